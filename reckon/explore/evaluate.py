"""Every point of a grid, predicted: machines and plans as arrays through the predictor."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from predictor import catalog
from predictor.arrays import Array, compact, flat, kind, stack, take
from predictor.catalog import (
    ServingPlanSpec,
    TrainingPlanSpec,
    load,
    parse,
)
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan, TrainingPlan
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.search import Limits, search_train
from predictor.serving import (
    InferencePrediction,
    complete_serving,
    predict_inference,
    serving_watts,
)
from predictor.timing import Calibration, RunParameters
from predictor.training import TrainingPrediction, complete_training, predict, step_power
from predictor.units import GIB
from reckon.explore.grid import Grid, combinations, read_grid
from reckon.explore.machines import (
    RESOURCES,
    Machines,
    boosted,
    catalog_machines,
    technology_machines,
)

POINTS_AT_ONCE = 4096
"""Points that are evaluated together: some 0.3 GB of arrays."""

PLANNING = 0.5
"""Share of a point that is done when its plan is: completing or finding it, or timing it on many
machines, may take nearly all of the time."""

LATENCY, LEAST_GAIN = "latency", 1.03
"""A machine of which no resource, doubled, gains so much is bound by what has no rate: launches,
hops, and work of the host."""

PLAN_COLUMNS = ("tp", "pp", "cp", "vpp", "ep", "dp", "micro_batch", "global_batch", "seq_len")

Columns = dict[str, npt.NDArray[Any]]
Progress = Callable[[int, int], None]

P = TypeVar("P", TrainingPrediction, InferencePrediction)


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """A grid's points, one row each: the swept fields, and what is predicted.

    refused   points that cannot be: swept fields, and the reason
    """

    grid: Grid
    table: pd.DataFrame
    refused: list[tuple[dict[str, Any], str]]


def explore(
    ref: Grid | str | Path | Mapping[str, Any],
    progress: Progress | None = None,
    bottlenecks: bool = True,
) -> Explored:
    """Predict every point of a grid.

    ref          a grid, its YAML file or its mapping
    progress     called with points done and points in all
    bottlenecks  also find which resource, doubled, helps each point most

    Raises InputError where the grid cannot be read or asks for an optimum, or no point is possible.
    """
    grid = ref if isinstance(ref, Grid) else read_grid(ref)
    if grid.spec.optimise:
        raise InputError(
            "optimise: the best of a budget is no table of points; ask reckon.explore.optimise "
            "(`reckon explore` finds it too)"
        )
    return _Run(grid, progress, bottlenecks).run()


def label(value: Any) -> Any:
    """A swept value as a cell: mappings by their name."""
    if isinstance(value, Mapping):
        return str(value.get("name", json.dumps(value, sort_keys=True)))
    return value


class _Run:
    """One exploration on its way."""

    def __init__(self, grid: Grid, progress: Progress | None, bottlenecks: bool) -> None:
        self.grid, self.spec = grid, grid.spec
        self.progress, self.bottlenecks = progress, bottlenecks
        self.index = grid.index()
        self.calibration = load(self.spec.calibration)
        if not self.spec.launches:
            run = replace(self.calibration.run, host_per_kernel=0.0)
            self.calibration = replace(self.calibration, run=run)
        self.refused: dict[int, str] = {}
        self.pieces: list[tuple[npt.NDArray[np.intp], Columns]] = []
        self.done = 0.0

    def run(self) -> Explored:
        points = np.arange(self.grid.size)
        machine_of, machines, refused = self._machines()
        for position, reason in refused.items():
            self._refuse(np.flatnonzero(machine_of == position), reason)
        models = self._codes([key for key in self.index if key.split(".")[0] == "model"])
        for code, model_keys in enumerate(models[1]):
            model = self._model(model_keys)
            for made in machines:
                place = np.full(int(machine_of.max()) + 1, -1)
                place[made.rows] = np.arange(len(made.rows))
                there = points[(models[0] == code) & (place[machine_of] >= 0)]
                if there.size:
                    self._plans(model, made, there, place[machine_of[there]])
        if not self.pieces:
            reason = next(iter(self.refused.values()), "the grid is empty")
            raise InputError(f"no point of the grid is possible: {reason}")
        return Explored(self.grid, self._table(), self._reasons())

    def _tell(self, points: float) -> None:
        """So many more points are done, for parts of them too."""
        self.done += points
        if self.progress is not None:
            self.progress(int(self.done + 1e-6), self.grid.size)

    def _refuse(self, points: npt.NDArray[np.intp], reason: str) -> None:
        self.refused |= {int(point): reason for point in points}
        self._tell(len(points))

    def _codes(self, keys: Sequence[str]) -> tuple[npt.NDArray[np.intp], list[dict[str, Any]]]:
        """Distinct combinations of some axes: their number for every point, and their values."""
        codes = np.zeros(self.grid.size, dtype=np.intp)
        for key in keys:
            codes = codes * len(self.grid.axes[key]) + self.index[key]
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        values = [
            {key: self.grid.axes[key][self.index[key][point]] for key in keys} for point in first
        ]
        return inverse.reshape(-1), values

    def _machines(
        self,
    ) -> tuple[npt.NDArray[np.intp], list[Machines], dict[int, str]]:
        sections = ("technology", "machine", "system")
        keys = [key for key in self.index if key.split(".")[0] in sections]
        codes, values = self._codes(keys)
        if self.spec.technology is not None:
            contents = [
                {**self.spec.technology, **{k.partition(".")[2]: v for k, v in each.items()}}
                for each in values
            ]
            made, refused = technology_machines(contents, self.spec.assumptions, self.spec.cost)
        else:
            systems = [
                (
                    each.get("system", self.spec.system),
                    {
                        **self.spec.machine,
                        **{k.partition(".")[2]: v for k, v in each.items() if k != "system"},
                    },
                )
                for each in values
            ]
            made, refused = catalog_machines(systems, self.spec.cost)
        return codes, made, refused

    def _model(self, values: Mapping[str, Any]) -> Model:
        ref = values.get("model", self.spec.model)
        changes = {k.partition(".")[2]: v for k, v in values.items() if k != "model"}
        if not changes:
            return catalog.model(ref)
        base = catalog.spec_of("models", ref).to_dict(defaults=False)
        return catalog.model({**base, **changes})

    def _plans(
        self,
        model: Model,
        made: Machines,
        points: npt.NDArray[np.intp],
        machine: npt.NDArray[np.intp],
    ) -> None:
        """Points of one model on alike machines: their plans, then their times."""
        keys = [key for key in self.index if key.startswith("plan.")]
        codes, values = self._codes(keys)
        best = self.spec.plans == "best"
        training = self.spec.workload == "training"
        alike = _alike(made)
        groups: dict[Hashable, list[tuple[npt.NDArray[Any], npt.NDArray[Any], Any]]] = {}
        for code in np.unique(codes[points]):
            own = codes[points] == code
            fields = {
                **self.spec.plan,
                **{k.partition(".")[2]: v for k, v in values[code].items()},
            }
            which = machine[own]
            # What a plan leaves open follows from its machine's memory and nodes.
            like = which if best and training else alike[which]
            for one in np.unique(like):
                rows = np.flatnonzero(own)[like == one]
                cluster = self._one(made, int(machine[rows[0]]))
                try:
                    plans = self._plan(model, cluster, fields, best)
                except InputError as error:
                    self._refuse(points[rows], str(error))
                    continue
                self._tell(PLANNING * len(rows))
                for plan in plans:
                    groups.setdefault(kind(plan), []).append((points[rows], machine[rows], plan))
        pairs = sum(len(ids) for members in groups.values() for ids, _, _ in members)
        planned = len({int(point) for own in groups.values() for ids, _, _ in own for point in ids})
        for members in groups.values():
            ids = np.concatenate([ids for ids, _, _ in members])
            which = np.concatenate([rows for _, rows, _ in members])
            repeat = np.repeat(np.arange(len(members)), [len(ids) for ids, _, _ in members])
            joined = stack([plan for _, _, plan in members])
            for start in range(0, len(ids), POINTS_AT_ONCE):
                part = slice(start, start + POINTS_AT_ONCE)
                self._evaluate(model, made, which[part], take(joined, repeat[part]), ids[part])
                self._tell((1.0 - PLANNING) * len(ids[part]) * planned / pairs)

    @staticmethod
    def _one(made: Machines, row: int) -> Cluster:
        """A single machine of a batch, its numbers plain."""
        return compact(flat(made.cluster, (len(made.rows),), np.array([row])))

    def _plan(
        self, model: Model, cluster: Cluster, fields: dict[str, Any], best: bool
    ) -> Sequence[TrainingPlan | ServingPlan]:
        """The plan that the fields state, completed; or candidates for the best one."""
        run = self.calibration.run
        if self.spec.workload == "serving":
            options = combinations(fields) if best else [fields]
            return [served(one, run, model, cluster) for one in options]
        if best:
            found = search_train(model, cluster, fields, self.calibration, Limits(), keep=1)
            return [found.plan(0)]
        spec = parse(TrainingPlanSpec, fields, "plan")
        asked = complete_training(spec, run, model=model, cluster=cluster)
        if asked.single:
            raise InputError(
                f"plan.{asked.single}: explore answers for plain steps; ask `reckon sweep`"
            )
        return [asked.plan]

    def _evaluate(
        self,
        model: Model,
        made: Machines,
        which: npt.NDArray[np.intp],
        plan: Any,
        ids: npt.NDArray[np.intp],
    ) -> None:
        cluster = flat(made.cluster, (len(made.rows),), which)
        training = self.spec.workload == "training"
        columns = (
            train_columns(model, cluster, plan, self.calibration)
            if training
            else serve_columns(model, cluster, plan, self.calibration)
        )
        if self.bottlenecks:
            slow = columns["step_time_s" if training else "e2e_s"]
            gains = {}
            for resource in RESOURCES:
                more = boosted(cluster, resource)
                fast = (
                    predict(model, more, plan, self.calibration).step_time
                    if training
                    else predict_inference(model, more, plan, self.calibration).latencies.e2e
                )
                gains[resource] = slow / fast
                columns[f"gain of twice the {resource}"] = gains[resource]
            table = np.stack(list(gains.values()))
            names = np.array(RESOURCES)[np.argmax(table, axis=0)]
            columns["bottleneck"] = np.where(table.max(axis=0) < LEAST_GAIN, LATENCY, names)
        count = len(ids)
        columns |= _machine_columns(cluster, count)
        if made.derived is not None:
            derived = made.derived
            columns["power_w"] = _spread(derived.power, len(made.rows))[which]
            columns["clock_ghz"] = _spread(derived.clock, len(made.rows))[which] / 1e9
            columns["machine limited by"] = _spread(derived.binds, len(made.rows))[which]
        if made.cost is not None:
            per_second = _spread(made.cost.per_second, len(made.rows))[which]
            watts = _spread(made.cost.watts, len(made.rows))[which]
            gpus = np.broadcast_to(np.asarray(plan.gpus, float), (count,))
            rate = columns["tokens_per_s" if training else "output_tokens_per_s"]
            columns["usd_per_gpu"] = _spread(made.cost.capital, len(made.rows))[which]
            columns["tokens_per_usd"] = rate / gpus / per_second
            columns["tokens_per_joule"] = rate / gpus / watts
        self.pieces.append((ids, {k: np.broadcast_to(v, (count,)) for k, v in columns.items()}))

    def _table(self) -> pd.DataFrame:
        frames = [pd.DataFrame({"point": ids, **columns}) for ids, columns in self.pieces]
        table = pd.concat(frames, ignore_index=True)
        if self.spec.plans == "best" and self.spec.workload == "serving":
            fitting = table[table["fits"]]
            kept = fitting if len(fitting) else table
            table = kept.sort_values("output_tokens_per_s", ascending=False, kind="stable")
            table = table.drop_duplicates("point")
        table = table.sort_values("point", kind="stable").reset_index(drop=True)
        for position, (key, values) in enumerate(self.grid.axes.items()):
            cells = [label(value) for value in values]
            column = [cells[at] for at in self.index[key][table["point"].to_numpy()]]
            if key in table:
                table = table.drop(columns=key)
            table.insert(position, key, column)
        return table.drop(columns="point")

    def _reasons(self) -> list[tuple[dict[str, Any], str]]:
        return [
            (
                {
                    key: label(values[self.index[key][point]])
                    for key, values in self.grid.axes.items()
                },
                reason,
            )
            for point, reason in sorted(self.refused.items())
        ]


def _spread(value: Any, count: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.asarray(value), (count,))


def _machine_columns(cluster: Cluster, count: int) -> Columns:
    own = cluster.accelerator
    found: dict[str, Any] = {
        f"{dtype}_tflops": np.asarray(own.peak[dtype]) / 1e12
        for dtype in ("bf16", "fp8", "fp4")
        if dtype in own.peak
    }
    found |= {
        "processors": own.sms,
        "memory_gib": np.asarray(own.memory) / GIB,
        "memory_bandwidth_gbs": np.asarray(own.bandwidth) / 1e9,
        "l2_mb": np.asarray(own.l2) / 1e6,
        "scale_up_gbs": np.asarray(cluster.tiers[0].bandwidth) / 1e9,
        "scale_out_gbs": np.asarray(cluster.tiers[-1].bandwidth) / 1e9,
    }
    return {name: _spread(np.asarray(value, float), count) for name, value in found.items()}


def energy_columns(
    found: P, watts: Callable[[P, Conditions], Array], each: str, seconds: Array
) -> dict[str, Array]:
    """Watts that an accelerator draws at work, and energy of all of them for a sample or a token;
    nothing where that is not known.

    seconds   that one of them takes
    """
    try:
        power = watts(found, Conditions())
    except InputError:
        return {}
    joules = power * np.asarray(found.plan.gpus) * seconds
    return {"drawn_w": power, f"energy_per_{each}_j": np.asarray(joules)}


def served(
    fields: Mapping[str, Any], run: RunParameters, model: Model, cluster: Cluster
) -> ServingPlan:
    """A plan of serving, completed; raises InputError where it states what a grid of arrays cannot
    answer: arrivals at a rate, requests one by one."""
    asked = complete_serving(
        parse(ServingPlanSpec, dict(fields), "plan"), run, model=model, cluster=cluster
    )
    if asked.conditions.stated:
        raise InputError(
            f"plan.{asked.conditions.stated}: explore answers for machines as they are; ask "
            "`reckon sweep`"
        )
    for key in ("rate", "simulate"):
        if getattr(asked, key):
            raise InputError(
                f"plan.{key}: explore answers for a batch or a concurrency; a rate of arrivals and "
                "requests one by one are for `reckon sweep`"
            )
    return asked.plan


def _alike(made: Machines) -> npt.NDArray[np.intp]:
    """Which machines have the same memory, and the same numbers of accelerators in reach of each
    other: a number for each."""
    cluster = made.cluster
    told = (cluster.accelerator.memory, *(tier.size for tier in cluster.tiers))
    columns = [np.broadcast_to(np.asarray(one, float), len(made.rows)) for one in told]
    found: npt.NDArray[np.intp] = np.unique(np.stack(columns), axis=1, return_inverse=True)[1]
    return found.reshape(-1)


def train_columns(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration
) -> dict[str, Array]:
    """What a grid says of a training run; arrays of the plans' shape."""
    found = predict(model, cluster, plan, calibration)
    columns: dict[str, Any] = {
        "step_time_s": found.step_time,
        "low_s": found.low,
        "high_s": found.high,
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_gpu": found.tokens_per_s / np.asarray(plan.gpus),
        "mfu": found.utilisation("megatron"),
        "peak_memory_gib": found.memory.peak / GIB,
        "fits": found.memory.peak <= np.asarray(cluster.accelerator.memory),
        "gpus": plan.gpus,
    }
    columns |= energy_columns(
        found,
        lambda one, given: step_power(one, given).mean,
        "sample",
        found.step_time / plan.global_batch,
    )
    columns |= {name: getattr(plan, name) for name in PLAN_COLUMNS}
    columns |= {name: getattr(plan, name) for name in ("precision", "recompute", "sharding")}
    columns |= {f"{term}_s": value for term, value in found.breakdown.items()}
    return {name: np.asarray(value) for name, value in columns.items()}


def serve_columns(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
) -> dict[str, Array]:
    """What a grid says of a served model; arrays of the plans' shape."""
    found = predict_inference(model, cluster, plan, calibration)
    low, high = found.interval("e2e", found.latencies.e2e)
    columns: dict[str, Any] = {
        "ttft_ms": 1e3 * found.latencies.ttft,
        "tpot_ms": 1e3 * found.latencies.tpot,
        "e2e_s": found.latencies.e2e,
        "low_s": low,
        "high_s": high,
        "output_tokens_per_s": found.output_tokens_per_s,
        "peak_memory_gib": found.memory.total / GIB,
        "fits": found.memory.fits > 0,
        "gpus": plan.gpus,
    }
    columns |= energy_columns(found, serving_watts, "token", 1.0 / found.output_tokens_per_s)
    names = ("tp", "pp", "dp", "ep", "batch", "input_len", "output_len", "weights", "kv")
    columns |= {name: getattr(plan, name) for name in names}
    columns |= {f"{term}_s": value for term, value in found.breakdown.items()}
    return {name: np.asarray(value) for name, value in columns.items()}
