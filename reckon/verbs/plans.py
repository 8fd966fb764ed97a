"""`search`: the best plans of training, ranked, with the Pareto front and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    BESIDE,
    Filler,
    Spec,
    TrainingPlanSpec,
    complete_cluster,
    load,
    number,
    parse,
    stated_cluster,
    with_host,
)
from predictor.errors import InputError, unknown
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import request_of
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.search import (
    OBJECTIVES,
    Alternative,
    Limits,
    Progress,
    Ratio,
    SearchResult,
    Timed,
    Within,
    alternatives,
    over_best,
    search_train,
    ties,
    timed_again,
)
from predictor.timing import Calibration
from predictor.training import TrainingPrediction, predict
from predictor.units import GB
from predictor.variation import NONE, PACKING_KEYS
from reckon.verbs.against import Own, hold_against
from reckon.verbs.asking import batch_of, check_single
from reckon.verbs.figures import SCHEMA_VERSION, assumptions, plain
from reckon.verbs.frugal import (
    MOST,
    Frugal,
    Powered,
    Thrift,
    frugal,
    ladder,
    powered_plans,
    reordered,
    thrift_of,
)
from reckon.verbs.powering import interval, limit_of
from reckon.verbs.training import DEFAULT_CALIBRATION, Ref

if TYPE_CHECKING:
    import pandas as pd

LIMITS = tuple(field.name for field in fields(Limits))
"""Keys that bound a search."""

CLUSTER = ("system", *BESIDE)
"""Keys that say where it runs."""

SAVING = ("energy", "money")
"""Objectives that power the best plans."""

THRIFT = ("power_limits", "slower", "price_per_kwh", "stage_clocks")
"""Keys of a search for them."""

MOST_TIES = 200
"""Plans behind the winner that are held against it."""


@dataclass(frozen=True, eq=False)
class TrainingSearch:
    """A search as a user sees it; `result` has the arrays.

    frugal   plans of the least energy or money, where that was asked for: the ranking begins with
             them
    limits   of power that were named
    """

    result: SearchResult
    own: Own | None = None
    frugal: tuple[Frugal, ...] = ()
    limits: tuple[float, ...] = ()

    def __repr__(self) -> str:
        found = self.result
        best = f"the best takes {self.winner.step_time:.4g} s"
        return (
            f"<TrainingSearch of {found.model.name} on {found.cluster.name}: {len(found)} plans, "
            f"{best}>"
        )

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The best plans, as mappings of their fields."""
        return self.result.plans

    @cached_property
    def winner(self) -> Timed:
        """The best plan, timed once more."""
        return timed_again(self.result, [0])[0]

    @cached_property
    def ties(self) -> list[tuple[int, Ratio]]:
        """Positions of plans of which it cannot be said that the winner is faster."""
        return ties(self.result, MOST_TIES)

    @property
    def ties_asked(self) -> int:
        """Plans behind the winner that were held against it: where all of them tie, more may."""
        return max(min(MOST_TIES, len(self.result)) - 1, 0)

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """The best plans with another value in one of the winner's fields."""
        return alternatives(self.result)

    def ratios(self, positions: list[int]) -> list[Ratio]:
        """Step times (or costs, as plans are ranked) over the winner's."""
        return over_best(self.result, positions)

    def prediction(self, position: int) -> TrainingPrediction:
        """Everything that is predicted for one plan."""
        found = self.result
        return predict(found.model, found.cluster, found.plan(position), found.calibration)

    def front(self, most: int = 0) -> list[int]:
        """Positions on the Pareto front, best first; if `most` is not 0, so many of those that
        take at most twice the least accelerator time, evenly."""
        found = self.result
        order = np.sort(found.frontier)
        if most:
            spent = found.step_time[order] * found.gpus[order]
            order = order[spent <= 2.0 * spent.min()]
        if most and len(order) > most:
            order = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
        return [int(position) for position in order]

    def drawn(self, positions: Sequence[int]) -> Powered | None:
        """What plans draw under the accelerator's own limit; None where that is not known."""
        try:
            return powered_plans(self.result, np.asarray(positions, dtype=np.intp), (None,))
        except InputError:
            return None

    @cached_property
    def saving(self) -> tuple[Frugal, ...]:
        """Pareto front of step time and energy of the best plans under limits of power (those that
        were named, else a ladder of them), fastest first; empty where power is not known."""
        positions = np.arange(min(MOST, len(self.result)))
        try:
            limits = (None, *self.limits) if self.limits else ladder(self.result)
            return tuple(powered_plans(self.result, positions, limits).front())
        except InputError:
            return ()

    def request(self, position: int = 0) -> dict[str, Any]:
        """Keys of a plan that `predict_train` takes, of one plan; beside the search's model and
        system, and what it said of the run and of its documents."""
        found = self.result
        documents = {
            name: value for name, value in found.mapping(position).items() if name in PACKING_KEYS
        }
        return {**request_of(found.plan(position)), **documents}

    def entry(
        self, position: int, against: Ratio | None = None, drawn: tuple[float, float] | None = None
    ) -> dict[str, Any]:
        """One plan with its figures, as `--json` writes it.

        drawn   mean power of an accelerator [W], energy of all for a sample [J]; None: not known
        """
        found = self.result
        against = against or self.ratios([position])[0]
        plan, time = found.mapping(position), float(found.step_time[position])
        reach = float(np.exp(found.calibration.interval_q * found.sigma[position]))
        days, cost = found.training_days([position]), found.cost([position])
        tokens = float(plan["global_batch"] * plan["seq_len"])
        return {
            "rank": position + 1,
            "gpus": int(found.gpus[position]),
            "plan": plan,
            "step_time_s": {"value": time, "low": time / reach, "high": time * reach},
            "over_best": {"value": against.value, "low": against.low, "high": against.high},
            "tie_with_best": against.tie,
            "tokens_per_s_per_gpu": tokens / time / float(found.gpus[position]),
            **({} if found.machines.name == NONE else {"p95_s": float(found.ranked[position])}),
            "peak_gb": float(found.memory[position]) / GB,
            "headroom_gb": (float(found.cluster.accelerator.memory) - float(found.memory[position]))
            / GB,
            "gpu_seconds_per_step": time * float(found.gpus[position]),
            "training_days": None if days is None else float(days[0]),
            "cost": None if cost is None else float(cost[0]),
            "power": None if drawn is None else self._drawn(*drawn),
        }

    def _drawn(self, watts: float, joules: float) -> dict[str, Any]:
        """What a plan draws: of an accelerator [W], and of a sample [J]."""
        sigma, limit = self._power_spread
        room = limit / watts
        return {
            "power_w": interval(watts, sigma, room),
            "energy_per_sample_j": interval(joules, sigma, room),
        }

    @cached_property
    def _power_spread(self) -> tuple[float, float]:
        """Log-standard-deviation of a power of the accelerator, and its own limit [W]."""
        cluster = self.result.cluster
        known = catalog.power_constants(cluster.accelerator)
        return float(np.max(np.asarray(known.sigma))), limit_of(cluster, Conditions())

    def entries(self, positions: list[int]) -> list[dict[str, Any]]:
        """Several of them, with what they draw."""
        drawn, ratios = self.drawn(positions), self.ratios(positions)
        powers: list[tuple[float, float] | None] = [None] * len(positions)
        if drawn is not None:
            powers = list(zip(drawn.powers[0].tolist(), drawn.energies[0].tolist(), strict=True))
        rows = zip(positions, ratios, powers, strict=True)
        return [self.entry(*row) for row in rows]

    def _listed(self, top: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Entries of the best plans and of the Pareto front, each made once."""
        best, front = range(min(top, len(self.result))), self.front()
        shown = sorted({*best, *front})
        entries = dict(zip(shown, self.entries(shown), strict=True))
        return [entries[at] for at in best], [entries[at] for at in front]

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        """The whole result as `--json` writes it; every key carries its unit."""
        found, (best, front) = self.result, self._listed(top)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "training-search",
            "model": found.model.name,
            "system": found.cluster.name,
            "accelerator": found.cluster.accelerator.name,
            "objective": found.objective,
            "limits": {name: getattr(found.limits, name) for name in LIMITS},
            **({"frugal": [one.to_dict() for one in self.frugal[:top]]} if self.frugal else {}),
            "counts": {
                name: getattr(found.counts, name)
                for name in ("enumerated", "possible", "fitting", "timed")
            },
            "assumed": assumptions(found.assumed),
            "plans": best,
            "breakdown_s": dict(self.winner.breakdown),
            "ties": [at + 1 for at, _ in self.ties],
            "frontier": front,
            "energy_frontier": [
                {**one.to_dict(), "plan": found.mapping(one.position)} for one in self.saving
            ],
            "alternatives": [
                {
                    "field": one.field,
                    "value": plain(one.value),
                    "plan": found.mapping(one.position),
                    "over_best": {
                        "value": one.ratio.value,
                        "low": one.ratio.low,
                        "high": one.ratio.high,
                    },
                    "costs_most": {"term": one.more[0], "seconds": one.more[1]},
                }
                for one in self.alternatives
            ],
            "compare": None
            if self.own is None
            else {
                "plan": self.own.plan,
                "step_time_s": self.own.step_time,
                "peak_gb": self.own.memory / GB,
                "fits": self.own.fits,
                "rank": self.own.rank,
                "over_best": {
                    "value": self.own.slower.value,
                    "low": self.own.slower.low,
                    "high": self.own.slower.high,
                },
                "spends_more_s": dict(self.own.spends),
            },
            "calibration": {
                "name": found.calibration.name,
                "interval_level": found.calibration.interval_level,
            },
        }

    def emit(self, name: str, quiet: bool = False) -> dict[str, Any]:
        """Print the winner's launch line, as `reckon.launch` writes it for a framework."""
        from reckon.verbs.launching import emitted_request, training_request

        found = self.result
        what = f"{float(found.step_time[0]):.4g} s per step, the best of {len(found):,} timed"
        request = training_request(found.model, found.cluster, found.plan(0), found.limits.tokens)
        return emitted_request(name, request, found.calibration, what, quiet=quiet)

    def to_frame(self, top: int = 100) -> pd.DataFrame:
        """A row for each of the best plans."""
        import pandas as pd

        entries = self.entries(list(range(min(top, len(self.result)))))
        rows = []
        for entry in entries:
            own = {k: v for k, v in entry.items() if k != "power" and not isinstance(v, dict)}
            power = {name: each["value"] for name, each in (entry["power"] or {}).items()}
            step = {"step_time_s": entry["step_time_s"]["value"]}
            rows.append({**own, **entry["plan"], **step, **power})
        return pd.DataFrame(rows)


def search(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: Mapping[str, Any],
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
    *,
    objective: str | None = None,
    compare: Mapping[str, Any] | None = None,
    keep: int = 100,
    prune: bool = True,
    target: str | None = None,
    progress: Progress | None = None,
    each: bool = True,
    thrift: Thrift | None = None,
    **limits: Any,
) -> TrainingSearch:
    """Find the best plans of training.

    model, cluster   as `predict_train` takes them
    plan         keys of a plan: `gpus`, `global_batch` (or `batch_tokens`), `seq_len`; what else
                 is stated, as a value, a list or a text 'LOW..HIGH', bounds the search
    objective    'time', 'cost', 'energy' or 'money' (energy and accelerators at their prices);
                 None: cost where days are bounded, else time
    compare      a plan of one's own to hold against the best
    target       'megatron', 'torchtitan', ...: only plans that a launch line of it can say, with
                 its framework's defaults unless another is stated
    progress     told how much of the search is done, 0..1
    each         whether all `alternatives` are certain to be found; without, less is timed
    thrift       of an objective of energy or money: limits of power to try, a deadline, prices
    limits       fields of `predictor.search.Limits`: memory_fraction, tp_in_node, tokens, days,
                 money, price

    Returns a `TrainingSearch`. Raises InputError for anything that cannot be.
    """
    known = load(calibration)
    own_model, stated = catalog.model(model), batch_of(plan)
    of_cluster = {name: stated.pop(name) for name in BESIDE if name in stated}
    spec = parse(TrainingPlanSpec, of_cluster, "plan")
    own_cluster = with_host(stated_cluster(cluster, spec.to_dict()), stated)
    aim = (own_model, own_cluster, known, stated)
    within = None if target is None else _aimed(target, *aim)
    bounds = _bounds(limits)
    saving = objective in SAVING
    goal = _goal(objective, bounds)
    result = search_train(
        model=own_model,
        cluster=own_cluster,
        fields=stated,
        calibration=known,
        limits=bounds,
        objective="cost" if saving else goal,
        keep=max(keep, MOST) if saving else keep,
        prune=prune,
        within=within,
        progress=progress,
        each=each,
    )
    result, kept = _saving(result, thrift or Thrift(), goal) if saving else (result, ())
    own = None if compare is None else hold_against(result, stated, compare)
    return TrainingSearch(result, own, kept, () if thrift is None else thrift.limits)


class _Switch(Spec):
    """The one condition that is no number."""

    tp_in_node: bool = False


def _bounds(stated: Mapping[str, Any]) -> Limits:
    """The conditions on plans; those that are numbers may be stated as text."""
    given = {name: value for name, value in stated.items() if value is not None}
    switched = {name: given.pop(name) for name in _Switch.__annotations__ if name in given}
    numbers = {name: number(name, value) for name, value in given.items()}
    known = [one.name for one in fields(Limits)]
    if odd := next((name for name in numbers if name not in known), None):
        raise unknown("limit of a search", odd, known)
    return Limits(tp_in_node=parse(_Switch, switched, "plan").tp_in_node, **numbers)


def _aimed(
    target: str, model: Model, cluster: Cluster, known: Calibration, stated: dict[str, Any]
) -> Within:
    """What launch lines of a target can say; its framework is taken where none is stated."""
    from reckon.launch import target_of

    aim = target_of(target, model, cluster, known.run, serving=False)
    stated.setdefault("framework", aim.dialect.framework)
    return aim.rules


def _saving(
    result: SearchResult, thrift: Thrift, goal: str
) -> tuple[SearchResult, tuple[Frugal, ...]]:
    """The ranking with plans of the least energy or money before the others, and those."""
    chosen = frugal(result, thrift, money=goal == "money")
    result = reordered(result, [one.position for one in chosen])
    return result, tuple(replace(one, position=at) for at, one in enumerate(chosen))


def _goal(objective: str | None, bounds: Limits) -> str:
    """What a search is for: what was asked; else cost under a deadline, time without one.

    Raises InputError for what no search is for.
    """
    known = (*OBJECTIVES, *SAVING)
    if objective not in (None, *known):
        raise InputError(f"objective {objective!r} is not one of {', '.join(known)}")
    return objective or ("cost" if bounds.days is not None else "time")


def asked(
    stated: Mapping[str, Any],
    calibration: str | Path | Calibration,
    where: str = "command line",
    **options: Any,
) -> TrainingSearch:
    """Search what a flat request asks for: `model`, `system` (or `accelerator`), keys of a plan,
    fields of `Limits`, `objective`.

    options   further ones of `search`

    Raises InputError.
    """
    rest = {name: value for name, value in stated.items() if value is not None}
    model = rest.pop("model", None)
    if model is None:
        raise InputError("give --model (reckon show models)")
    check_single(model=model, system=rest.get("system"))
    spec = parse(TrainingPlanSpec, {k: rest.pop(k) for k in CLUSTER if k in rest}, where)
    if "price_per_gpu_hour" in rest:
        rest.setdefault("price", rest.pop("price_per_gpu_hour"))
    options |= {name: rest.pop(name) for name in (*LIMITS, "objective") if name in rest}
    if own := {name: rest.pop(name) for name in THRIFT if name in rest}:
        if options.get("objective") not in SAVING:
            names = " or ".join(SAVING)
            raise InputError(
                f"limits of power, clocks of stages and a deadline need --objective {names}"
            )
        options["thrift"] = thrift_of(own)
    cluster = complete_cluster(Filler(spec.to_dict()))
    return search(model, cluster, rest, calibration, **options)
