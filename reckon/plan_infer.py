"""`search_infer`: the fewest accelerators, or the least money, that carry a load within promised
latencies."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.complete import Filler, complete_cluster
from predictor.efficiency import Calibration, RunParameters, load
from predictor.errors import InputError
from predictor.events import pass_table, poisson, serve, spread_lengths
from predictor.hardware import Array, Cluster
from predictor.model import Model
from predictor.search_serving import (
    FIELDS,
    Engine,
    Engines,
    Promise,
    curve,
    engine_brief,
    replicas,
    search_engines,
)
from predictor.serving_parameters import ServingParameters
from predictor.serving_plan import SERVING_CATEGORIES, SERVING_NUMBERS
from predictor.space import read_given
from predictor.specs import ServingPlanSpec, parse
from predictor.units import GB
from reckon.plan import CLUSTER
from reckon.predict import DEFAULT_CALIBRATION, Ref
from reckon.result import SCHEMA_VERSION
from reckon.serving import engine_parameters

OBJECTIVES = ("gpus", "cost")

STATED = (
    "model", "system", "accelerator", "input_len", "output_len", "tp", "pp", "dp", "ep",
    "precision", "kv_precision", "framework", "era",
)  # fmt: skip
"""Flags that say what to search."""

OPTIONS = (
    "rate", "load", "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom",
    "spare", "price", "objective", "simulate",
)  # fmt: skip
"""Flags that say what for."""

VARIATION = 0.1
"""Of the lengths of simulated requests, as in `reckon predict infer --simulate`."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests per second, hour by hour; one value for a constant rate."""

    hours: Array
    rates: Array

    @property
    def peak(self) -> float:
        """The largest."""
        return float(self.rates.max())


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Engines of one kind that carry the load.

    count     at the peak
    gpus      accelerators at the peak
    hours     accelerator-hours over the load's hours if engines come and go with it
    cost      money per hour of the load: of the fleet at its peak, and as it follows the load
    ttft, tpot  at the peak, at the promised shares of the requests [s]
    """

    engine: Engine
    count: int
    gpus: int
    hours: float
    cost: float | None
    cost_scaled: float | None
    ttft: float
    tpot: float


@dataclass(frozen=True, eq=False)
class InferenceSearch:
    """A search as a user sees it: fleets, best first.

    simulated   figures of requests served one by one by the best fleet at the peak, if asked for
    """

    model: Model
    load: Load
    promise: Promise
    objective: str
    output_len: float
    input_len: float
    headroom: float
    spare: int
    run: RunParameters
    found: Engines
    fleets: list[Fleet]
    simulated: dict[str, Any] | None = None

    @property
    def front(self) -> list[tuple[float, float, Engine]]:
        """Pareto front of the engines that keep the promise: output tokens per second and
        accelerator, time per token [s], engine."""
        points = curve(self.found.engines, self.output_len)
        return [(gain, slow, self.found.engines[at]) for gain, slow, at, _ in points]

    def emit(self, name: str, quiet: bool = False) -> dict[str, Any]:
        """Print the launch line of one engine of the best fleet, and of the load that it carries,
        as `reckon.launch` writes them."""
        from reckon.launching import emitted_plan

        best = self.fleets[0]
        engine = best.engine
        plan = replace(engine.plan, batch=float("inf"), serving=1.0)
        what = f"one of {best.count} engines"
        rate = round(self.load.peak / best.count, 4)
        return emitted_plan(
            name, self.model, engine.cluster, plan, self.run, what, rate=rate, quiet=quiet
        )

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        """The whole result as `--json` writes it; every key carries its unit."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "inference-search",
            "model": self.model.name,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "objective": self.objective,
            "headroom": self.headroom,
            "spare": self.spare,
            "load": {"hour": self.load.hours.tolist(), "requests_per_s": self.load.rates.tolist()},
            "promise": {
                "ttft_s": self.promise.ttft,
                "ttft_share": self.promise.ttft_share,
                "tpot_s": self.promise.tpot,
                "tpot_share": self.promise.tpot_share,
            },
            "counts": {
                "enumerated": self.found.enumerated,
                "possible": self.found.possible,
                "fitting": self.found.fitting,
                "keep_the_promise": len(self.found.engines),
            },
            "fleets": [self.entry(fleet) for fleet in self.fleets[:top]],
            "frontier": [
                {
                    "output_tokens_per_s_per_gpu": gain,
                    "tpot_s": slow,
                    "accelerator": engine.cluster.accelerator.name,
                    "plan": plan_mapping(engine),
                }
                for gain, slow, engine in self.front
            ],
            "simulated": self.simulated,
        }

    def entry(self, fleet: Fleet) -> dict[str, Any]:
        """One fleet with its figures."""
        engine = fleet.engine
        return {
            "system": engine.cluster.name,
            "accelerator": engine.cluster.accelerator.name,
            "gpus": fleet.gpus,
            "engines": fleet.count,
            "gpus_per_engine": int(engine.gpus),
            "plan": plan_mapping(engine),
            "ttft_s": fleet.ttft,
            "tpot_s": fleet.tpot,
            "most_requests_per_s_per_engine": engine.rate,
            "running_per_engine": engine.running,
            "memory_gb": engine.memory / GB,
            "gpu_hours_following_load": fleet.hours,
            "cost_per_hour": fleet.cost,
            "cost_per_hour_following_load": fleet.cost_scaled,
        }


def plan_mapping(engine: Engine) -> dict[str, Any]:
    """The engine's plan as a mapping of `ServingPlan` fields; its batch is what runs at a time at
    the most that it carries."""
    found: dict[str, Any] = {}
    for name in SERVING_NUMBERS:
        value = engine.running if name == "batch" else float(getattr(engine.plan, name))
        if np.isfinite(value):  # what has no limit is not stated
            found[name] = int(value) if value == int(value) else value
    return {**found, **{name: getattr(engine.plan, name) for name in SERVING_CATEGORIES}}


def read_load(table: Path) -> Load:
    """Hours and requests per second of a CSV table. Raises InputError where it has none."""
    try:
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"cannot read {table}: {why}") from None
    for name in ("hour", "requests_per_s"):
        if not rows or name not in rows[0]:
            raise InputError(f"{table} needs the columns hour and requests_per_s, and a row")
    try:
        hours, rates = (
            np.array([float(row[name]) for row in rows]) for name in ("hour", "requests_per_s")
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{table}: {error}") from None
    return checked_load(hours, rates, str(table))


def checked_load(hours: Array, rates: Array, where: str) -> Load:
    """A load whose rates are possible."""
    if not np.all(np.isfinite(rates)) or np.any(rates < 0) or not rates.max() > 0:
        raise InputError(f"{where}: requests_per_s must be finite, 0 or more, and not all 0")
    return Load(hours, rates)


def prices(text: str | float | None, clusters: Sequence[Cluster]) -> dict[str, float] | None:
    """Price of an accelerator-hour by system: one number for all, or 'SYSTEM=X,SYSTEM=Y'."""
    if text is None:
        return None
    try:
        if "=" not in str(text):
            return {cluster.name: float(text) for cluster in clusters}
        pairs = (part.partition("=") for part in str(text).split(","))
        table = {catalog.system(name.strip()).name: float(value) for name, _, value in pairs}
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--price-per-gpu-hour {text!r}: write X, or SYSTEM=X,SYSTEM=Y") from None
    for cluster in clusters:
        if cluster.name not in table:
            raise InputError(f"--price-per-gpu-hour {text!r} says nothing of {cluster.name}")
    return table


def search_infer(
    model: Ref | Model,
    clusters: Ref | Cluster | Sequence[Ref | Cluster],
    plan: Mapping[str, Any],
    load_: float | Mapping[str, Sequence[float]] | Path | Load,
    *,
    ttft: float = float("inf"),
    tpot: float = float("inf"),
    ttft_share: float = 0.9,
    tpot_share: float = 0.9,
    headroom: float = 0.0,
    spare: int = 0,
    price: str | float | None = None,
    objective: str | None = None,
    simulate: int = 0,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> InferenceSearch:
    """Find the smallest (or cheapest) fleet for a load.

    model      as `predict_infer` takes it
    clusters   one system or several to choose among
    plan       keys of a serving plan: `input_len` and `output_len`; what else is stated bounds the
               search, as a value, a list or a text 'LOW..HIGH'
    load_      requests per second; a table of hours and requests_per_s, as a mapping or CSV file
    ttft, tpot  promised seconds, for the shares `ttft_share` and `tpot_share` of the requests
    headroom   share of the load that engines are to carry beyond it
    spare      engines beyond those that the load needs
    price      of an accelerator-hour: a number, or 'SYSTEM=X,SYSTEM=Y'
    objective  'gpus' or 'cost'; None: cost where there is a price
    simulate   requests to serve one by one with the best fleet, as a check

    Raises InputError for anything that cannot be.
    """
    known, parameters = load(calibration), engine_parameters(calibration)
    own_model = catalog.model(model)
    many = clusters if isinstance(clusters, list | tuple) else [clusters]
    systems = [catalog.system(one) for one in many]  # type: ignore[arg-type]
    table = prices(price, systems)
    goal = objective or ("cost" if table else "gpus")
    if goal not in OBJECTIVES:
        raise InputError(f"objective {goal!r} is not one of {', '.join(OBJECTIVES)}")
    if goal == "cost" and table is None:
        raise InputError("--objective cost needs a --price-per-gpu-hour")
    if headroom < 0 or spare < 0:
        raise InputError("--headroom and --spare cannot be below 0")
    given = read_given(plan, "request", ServingPlanSpec, FIELDS)
    for field in ("input_len", "output_len"):
        if field not in given:
            raise InputError(f"give --{field.replace('_', '-')}: it has no default")
        if len(given[field]) > 1:
            raise InputError(f"{field} takes one value in a search, not {len(given[field])}")
    wanted = _load(load_)
    promise = Promise(ttft, tpot, ttft_share, tpot_share)
    found = search_engines(own_model, systems, given, promise, known, parameters)
    fleets = [_fleet(e, wanted, headroom, spare, table) for e in found.engines]
    fleets.sort(
        key=lambda f: (f.cost if goal == "cost" else f.gpus, f.gpus, f.hours, f.tpot, f.ttft)
    )
    simulated = None
    if simulate:
        simulated = _simulate(own_model, fleets[0], wanted, promise, simulate, known, parameters)
    return InferenceSearch(
        own_model,
        wanted,
        promise,
        goal,
        float(given["output_len"][0]),
        float(given["input_len"][0]),
        headroom,
        spare,
        known.run,
        found,
        fleets,
        simulated,
    )


def _load(given: float | Mapping[str, Sequence[float]] | Path | Load) -> Load:
    if isinstance(given, Load):
        return given
    if isinstance(given, Mapping):
        try:
            hours, rates = (np.asarray(given[k], float) for k in ("hour", "requests_per_s"))
        except KeyError as error:
            raise InputError(f"the load lacks {error}") from None
        return checked_load(hours, rates, "load")
    if isinstance(given, str | Path):
        return read_load(Path(given))
    return checked_load(np.zeros(1), np.array([float(given)]), "--rate")


def _fleet(
    engine: Engine, wanted: Load, headroom: float, spare: int, table: dict[str, float] | None
) -> Fleet:
    counts = replicas(engine, wanted.rates, headroom, spare)
    most = int(max(counts.max(), 1))
    rate, ttft, tpot = engine.curve
    # What the engines meet at the peak, each its share of it.
    share = wanted.peak / most
    own = None if table is None else table[engine.cluster.name]
    hours = float(np.sum(np.maximum(counts, 1)) * engine.gpus)
    return Fleet(
        engine,
        most,
        int(most * engine.gpus),
        hours,
        None if own is None else own * most * engine.gpus,
        None if own is None else own * hours / len(wanted.rates),
        float(np.interp(share, rate, ttft)),
        float(np.interp(share, rate, tpot)),
    )


def _simulate(
    model: Model,
    fleet: Fleet,
    wanted: Load,
    promise: Promise,
    requests: int,
    calibration: Calibration,
    parameters: ServingParameters,
) -> dict[str, Any]:
    """One engine of the best fleet at the peak, request by request."""
    plan = fleet.engine.plan
    given, made = (
        spread_lengths(float(mean), requests, VARIATION, seed)
        for seed, mean in ((1, plan.input_len), (2, plan.output_len))
    )
    longest = (float(given.max()), float(made.max()))
    table = pass_table(model, fleet.engine.cluster, plan, calibration, parameters, longest)
    share = wanted.peak / fleet.count / float(plan.dp)
    served = serve(table, given, made, poisson(share, requests))
    return {
        "requests": requests,
        "ttft_s_at_share": float(np.quantile(served.ttft, promise.ttft_share)),
        "tpot_s_at_share": float(np.quantile(served.tpot, promise.tpot_share)),
        **{f"{name}_s": own for name, own in served.summary().items()},
    }


def run_infer(
    file: str | None,
    fields: dict[str, Any],
    settings: list[str],
    options: dict[str, Any],
    top: int,
    report: str | None,
    calibration: str,
    json: str | None,
    emit: str | None = None,
) -> int:
    """The verb `reckon plan infer`; returns the exit status."""
    from reckon.commands import settings_of

    content = dict(catalog.read_mapping(Path(file))) if file else {}
    stated = {**content, **fields, **settings_of(settings)}
    own = {name: stated.pop(name) for name in OPTIONS if name in stated} | options
    name = stated.pop("model", None)
    if name is None:
        raise InputError("give --model (reckon show models)")
    if ("rate" in own) == ("load" in own):
        raise InputError("give the load: --rate X, or --load TABLE.csv (hour, requests_per_s)")
    wanted = read_load(Path(own.pop("load"))) if "load" in own else float(own.pop("rate"))
    arguments = {
        "ttft": own.pop("ttft_ms", float("inf")) / 1e3,
        "tpot": own.pop("tpot_ms", float("inf")) / 1e3,
        "ttft_share": own.pop("ttft_percentile", 90.0) / 100.0,
        "tpot_share": own.pop("tpot_percentile", 90.0) / 100.0,
        **own,
    }
    systems = _systems(stated)
    found = search_infer(name, systems, stated, wanted, calibration=calibration, **arguments)
    line = {"emitted": found.emit(emit, quiet=json == "-")} if emit else {}
    if json:
        from reckon.files import write_json

        write_json(json, {**found.to_dict(max(top, 1)), **line})
    if report:
        from reckon.report import write_inference

        write_inference(Path(report), found, top)
    if json != "-" and not emit:
        from reckon.plan_infer_terminal import show_inference

        show_inference(found, top)
        if report:
            print(f"\npictures in {report}")
    return 0


def _systems(stated: dict[str, Any]) -> list[Cluster]:
    """Systems (or accelerators) among which to choose; taken out of what is stated."""
    rest = {name: stated.pop(name) for name in CLUSTER if name in stated}
    key = "system" if "system" in rest else "accelerator"
    value = rest.pop(key, None)
    if value is None:
        raise InputError("give --system or --accelerator, one or several (reckon show systems)")
    names = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
    return [
        complete_cluster(
            Filler(parse(ServingPlanSpec, {**rest, key: name}, "command line").model_dump())
        )
        for name in names
    ]


__all__ = ["InferenceSearch", "engine_brief", "search_infer"]
