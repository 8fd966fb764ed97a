"""Why a step takes as long as it does: its terms, its longest operators, what would help most, and
what is known about each share of the time.

What would help is found by taking each cost away in turn and putting the step together again, so
that what hides behind it, waits for it or takes its place is counted: gains do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import memory
from predictor.plans import TrainingPlan
from predictor.precision import PEAK
from predictor.records import dataclass
from predictor.timing import BOUNDS, Calibration, RunParameters, Taxes
from predictor.training.completion import TrainingRequest
from predictor.training.decomposition import Parts, parts
from predictor.training.doubts import Doubt, doubts
from predictor.training.exchange import Exchange, Slot
from predictor.training.layer import Worklist, kernel_class, layer_parts
from predictor.training.ledger import KINDS
from predictor.training.software import ATTENTION, Environment, environment_of, stretched
from predictor.training.step import Step, assemble
from predictor.training.taxes import taxes

SHOWN = 1e-6
"""Share of a step from which on something is more than what sums are rounded by."""

LONGEST = 5
"""Operators that are named."""


@dataclass(frozen=True, slots=True)
class Named:
    """One operator of the slowest stage over a step.

    time    [s]; share of the step
    ideal   what its arithmetic would take at the peak of its data type [s]
    """

    name: str
    phase: str
    time: float
    share: float
    ideal: float
    bound: str
    pedigree: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """One cost taken away.

    saves   of the step [s]; share of the step
    note    what it would take, or '' where the name says it
    """

    name: str
    saves: float
    share: float
    note: str


@dataclass(frozen=True, slots=True)
class Ground:
    """What a share of the time rests on.

    name    of the fit: 'kind/data type/accelerator', or 'operation/link'
    share   of the step, with its part of the pipeline's bubble
    known   'measured', 'interpolated', 'transferred', 'roofline', 'default', 'stated' or 'fitted to
            runs'
    sigma   log-standard-deviation of the fit on what was held out of it
    points  measurements behind it; 0 where there are none
    """

    name: str
    share: float
    known: str
    sigma: float
    points: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a step takes as long as it does; times in seconds.

    terms      seconds by term, which add up to the step
    operators  the longest
    remedies   what would help, most first
    grounds    what is known, by share of the time; shares add up to one
    doubts     what was assumed and would change the step most if it were otherwise
    taxes      launching, bulk-synchronous waiting and data locality, alone and together
    """

    step_time: float
    terms: dict[str, float]
    operators: tuple[Named, ...]
    remedies: tuple[Remedy, ...]
    grounds: tuple[Ground, ...]
    doubts: tuple[Doubt, ...]
    taxes: Taxes

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; every key carries its unit."""
        return {
            "terms": {
                name: {"time_s": time, "share": time / self.step_time}
                for name, time in self.terms.items()
            },
            "taxes": self.taxes.to_dict(),
            "longest_operators": [
                {
                    "name": o.name,
                    "phase": o.phase,
                    "time_s": o.time,
                    "share": o.share,
                    "ideal_s": o.ideal,
                    "bound": o.bound,
                    "pedigree": o.pedigree,
                }
                for o in self.operators
            ],
            "would_help": [
                {"without": r.name, "saves_s": r.saves, "share": r.share, "note": r.note}
                for r in self.remedies
            ],
            "worth_stating": [
                {
                    "field": d.field,
                    "assumed": _plain(d.value),
                    "other": d.other,
                    "change": d.change,
                    "expected": d.weight,
                }
                for d in self.doubts
            ],
            "pedigree": [
                {
                    "fit": g.name,
                    "share": g.share,
                    "known": g.known,
                    "sigma": g.sigma,
                    "points": g.points,
                }
                for g in self.grounds
            ],
        }


def _plain(value: Any) -> Any:
    """A number without a fraction as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _ideal(worklist: Worklist, cluster: Cluster) -> Array:
    """Time of every operator's arithmetic at the peak of its data type [s]; 0 without any."""
    accelerator = cluster.accelerator

    def peak(dtype: str) -> float:
        try:
            return float(accelerator.peak_for(PEAK.get(dtype, dtype)))
        except InputError:  # memory-bound kernels in types without a rate of their own
            return np.inf

    return np.array([float(o.flop) / peak(o.dtype) for o in worklist.operators])


def _silent(found: Parts, kind: str) -> Parts:
    """Parts without one kind of communication."""

    def quiet(table: dict[Any, Exchange], of: Callable[[Any], Slot]) -> dict[Any, Exchange]:
        return {
            key: replace(e, time=0.0 * e.time) if of(key).kind == kind else e
            for key, e in table.items()
        }

    rings = {module: 0.0 * hops if kind == "tp" else hops for module, hops in found.hops.items()}
    return replace(
        found,
        inside=quiet(found.inside, lambda key: key[0]),
        between=quiet(found.between, lambda key: key),
        gradients=quiet(found.gradients, lambda key: key[0]),
        offload=quiet(found.offload, lambda key: key),
        hops=rings,
    )


_KIND_NAMES = {
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "pp": "pipeline transfers",
    "dp": "data-parallel communication",
    "offload": "copies to the host",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One plan taken apart, to put together in other ways."""

    request: TrainingRequest
    calibration: Calibration
    run: RunParameters
    using: Environment
    found: Parts
    listed: Worklist

    def with_kernels(self, times: Array) -> Parts:
        """The parts with kernels that take other times [s], which hide as much less, too."""
        made, timing = self.request, replace(self.listed.timing, time=times)
        on = made.model, made.cluster, made.plan, self.calibration
        return parts(*on, (layer_parts(*on, timing), self.found.index), around=self.found)[0]

    def time(
        self,
        found: Parts | None = None,
        run: RunParameters | None = None,
        using: Environment | None = None,
    ) -> float:
        """Step time with other parts, parameters or surroundings [s]."""
        return float(assemble(found or self.found, run or self.run, using or self.using).step_time)

    def anew(self, plan: TrainingPlan) -> float:
        """Step time of another plan [s], in its framework's surroundings."""
        request, using = self.request, self.using
        if plan.framework != request.plan.framework:
            using = environment_of(request.cluster, plan, self.run)
        found, _ = parts(request.model, request.cluster, plan, self.calibration)
        return self.time(found, using=using)


def _remedies(case: _Case, step: Step) -> list[Remedy]:
    """Every cost of the step taken away in turn, most first; those that cost nothing left out."""
    total = float(step.step_time)
    plan, cluster, found = case.request.plan, case.request.cluster, case.found
    rows: list[tuple[str, float, str]] = []
    for kind in KINDS:
        rows.append((_KIND_NAMES[kind], case.time(_silent(found, kind)), ""))
    free = replace(case.run, host_per_kernel=0.0)
    rows.append(("host time per launch", case.time(run=free), "graphs, compilation, fusion"))
    bubble = float(case.using.factor * step.breakdown["bubble"])
    rows.append(
        ("pipeline bubble", total - bubble, "more micro-batches, interleaving, zero bubble")
    )
    bound = np.asarray(case.listed.timing.bound)
    times = case.listed.timing.time
    least = np.minimum(times, _ideal(case.listed, cluster))
    for name, chosen, note in (
        ("memory- and latency-bound kernels", bound != 0, "fusion"),
        ("compute-bound kernels below peak", bound == 0, "better kernels, larger shapes"),
    ):
        rows.append((name, case.time(case.with_kernels(np.where(chosen, least, times))), note))
    rows.append(("optimizer", case.time(replace(found, update=0.0 * found.update)), ""))
    if plan.recompute != "none":
        other = replace(plan, recompute="none")
        need = float(memory(case.request.model, other, case.run).peak)
        fits = need <= float(cluster.accelerator.memory)
        note = "it would fit" if fits else f"it would need {need / 1e9:.0f} GB"
        rows.append(("recomputation", case.anew(other), note))
    if case.request.model.is_moe and float(plan.expert_load) > 1.0:
        even = case.anew(replace(plan, expert_load=1.0))
        rows.append(("imbalance of experts", even, ""))
    prompt = replace(found, loading=0.0 * found.loading)
    rows.append(("waiting for data", case.time(prompt), "more loading workers"))
    if float(case.using.factor) > 1.0:
        plain = replace(case.using, factor=1.0)
        rows.append(("framework factor", case.time(using=plain), "what no other term explains"))
    remedies = [
        Remedy(name, total - time, (total - time) / total, note) for name, time, note in rows
    ]
    kept = [remedy for remedy in remedies if remedy.share > SHOWN]
    return sorted(kept, key=lambda remedy: -remedy.saves)


UNSTRETCHED = (ATTENTION, "optimizer")
"""How families begin whose time the framework's factor leaves as it is."""


def _grounds(case: _Case, step: Step) -> list[Ground]:
    """What the time rests on, largest share first."""
    total, calibration = float(step.step_time), case.calibration
    timing, tiers = case.listed.timing, case.request.cluster.tiers
    pedigrees: dict[str, str] = {}
    for one, pedigree in zip(timing.family, timing.pedigree, strict=True):
        pedigrees[one] = min(pedigree, pedigrees.get(one, pedigree), key=_TRUST.index)
    links: dict[str, set[str]] = {}
    slots = [
        *((slot.op, e) for (slot, _), e in case.found.inside.items()),
        *((slot.op, e) for slot, e in case.found.between.items()),
        *(("dp", e) for _, e in case.found.gradients.items()),
    ]
    ops = {"dp": {slot.op for slot, _ in case.found.gradients}}
    for family, exchange in slots:
        far = bool(np.any((np.asarray(exchange.domains) > 1) & (np.asarray(exchange.time) > 0)))
        if np.any(np.asarray(exchange.time) > 0):
            links.setdefault(family, set()).add(tiers[-1 if far else 0].link)
    grounds: list[Ground] = []
    waiting = float(step.breakdown["data_loading"])
    extra = float(step.breakdown["framework"])
    left = total - waiting - extra
    factor = float(case.using.factor)
    for family, value in step.families.items():
        # What the factor does not stretch was divided by it (`step._stretched`).
        time = float(value) * (factor if family.startswith(UNSTRETCHED) else 1.0)
        left -= time
        if time <= 0:
            continue
        kind, _, rest = family.partition("/")
        dtype, _, place = rest.partition("/")
        model = calibration.kernels.get((kind, dtype, place))
        sigma, points, known, name = float(step.sigmas[family]), 0, "default", family
        if family in pedigrees:
            known, points = pedigrees[family], model.points if model else 0
        elif family in links:
            used = [
                calibration.link(op, link)
                for op in sorted(ops.get(family, {family}))
                for link in sorted(links[family])
            ]
            points = sum(model.points for model in used)
            known = min((model.pedigree for model in used), key=_TRUST.index)
            name = f"{family}/{'+'.join(sorted(links[family]))}"
        elif family == "optimizer":
            known = "transferred"
        grounds.append(Ground(name, time / total, known, sigma, points))
    of, framework = case.request.model, case.request.plan.framework
    spread = case.run.spread(of.is_moe, framework, untimed=of.untimed)
    if (share := left / total) > SHOWN:
        wide = float(np.hypot(spread, step.doubt))
        grounds.append(Ground("host time", share, "fitted to runs", wide, 0))
    if waiting > 0:
        grounds.append(Ground("data loading", waiting / total, "stated", 0.0, 0))
    runs = case.calibration.provenance.get("runs", {})
    count = sum(runs.values()) if isinstance(runs, dict) else 0
    if abs(share := extra / total) > SHOWN:
        name = f"framework factor/{case.request.plan.framework}"
        grounds.append(Ground(name, share, "fitted to runs", spread, count))
    return sorted(grounds, key=lambda ground: -ground.share)


_TRUST = ("default", "roofline", "transferred", "interpolated", "measured")
"""What is known, least first."""


def _longest(case: _Case, step: Step) -> list[Named]:
    """The operators that take most of the slowest stage's time, over all its micro-batches."""
    found, listed, total = case.found, case.listed, float(step.step_time)
    stage = int(step.slowest)
    cluster, plan = case.request.cluster, case.request.plan
    ideals = _ideal(listed, cluster)
    rows = []
    for index, operator in enumerate(listed.operators):
        executions = float(found.modules[operator.module][stage] * operator.count * found.m)
        own = kernel_class(operator, plan.attention, cluster.accelerator.architecture)
        one = float(listed.timing.time[index]) * stretched(case.run.factors, own, operator.module)
        rows.append(
            Named(
                operator.name,
                operator.phase,
                executions * one,
                executions * one / total,
                executions * float(ideals[index]),
                BOUNDS[int(listed.timing.bound[index])],
                listed.timing.pedigree[index],
            )
        )
    return sorted(rows, key=lambda row: -row.time)[:LONGEST]


def explain(request: TrainingRequest, calibration: Calibration) -> Explanation:
    """Explain the step of one request.

    request       of a single plan (`complete.complete_training`)
    calibration   what it is predicted with

    Raises InputError for a batch of plans.
    """
    if request.plan.shape:
        raise InputError("one plan is explained at a time, not a batch")
    run = calibration.run
    using = environment_of(request.cluster, request.plan, run)
    found, listed = parts(request.model, request.cluster, request.plan, calibration)
    case = _Case(request, calibration, run, using, found, listed)
    step = assemble(found, run, using)
    return Explanation(
        step_time=float(step.step_time),
        terms={name: float(value) for name, value in step.breakdown.items()},
        operators=tuple(_longest(case, step)),
        remedies=tuple(_remedies(case, step)),
        grounds=tuple(_grounds(case, step)),
        doubts=tuple(doubts(request, run, case.anew)),
        taxes=taxes(request.model, request.cluster, request.plan, calibration),
    )
