"""What slow accelerators, throttled memory, and slow or failed links take of a step: by dimension
of the plan that crosses them, and by where they sit.

The step is taken apart once for the sound machine and once for each fault, with that machine's
numbers; what the fault does not touch is taken from the sound one. A fault on an accelerator, or on
a link that its stage uses for every micro-batch, slows one stage (`predictor.variation.slow`);
gradients wait for it once a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import Passes, TrainingPlan
from predictor.records import dataclass
from predictor.timing import Calibration, Timing
from predictor.training.decomposition import Parts, parts
from predictor.training.layer import layer_parts
from predictor.training.ledger import KINDS
from predictor.training.software import environment_of
from predictor.training.step import Step, assemble
from predictor.variation.faults import COMPUTE, HBM, NEIGHBOUR, NVLINK, RAIL, SPINE, Fault
from predictor.variation.links import rerouted
from predictor.variation.sharing import kept_of
from predictor.variation.slow import line_time, placed

KERNELS = "kernels"
"""What of a step a fault of an accelerator touches, beside kinds of communication."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One plan, taken apart on a sound machine."""

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    calibration: Calibration
    found: Parts
    timing: Timing
    step: Step

    @classmethod
    def of(
        cls, model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration
    ) -> Case:
        """Take a single plan apart. Raises InputError for a batch."""
        if plan.shape:
            raise InputError("faults are looked at for one plan, not for a batch")
        found, listed = parts(model, cluster, plan, calibration)
        using = environment_of(cluster, plan, calibration.run)
        step = assemble(found, calibration.run, using)
        return cls(model, cluster, plan, calibration, found, listed.timing, step)

    def put_together(self, found: Parts) -> Step:
        """The step of other parts."""
        using = environment_of(self.cluster, self.plan, self.calibration.run)
        return assemble(found, self.calibration.run, using)

    def apart(self, cluster: Cluster) -> Parts:
        """The parts on another machine."""
        return parts(self.model, cluster, self.plan, self.calibration)[0]


def _stages(passes: Passes) -> tuple[Array, Array]:
    """Forward and backward pass of every stage."""
    forward, backward, weights = (np.array(v) for v in passes.of_every_stage())
    return forward, backward + weights


def _by_stage(case: Case, slow: Step) -> Array:
    """Loss of the step with each stage in turn as in `slow`, the others sound; (stages,). As of
    1F1B, whose pace is that of every schedule."""
    plan, step = case.plan, case.step
    m, vpp, fills = float(plan.filled), float(plan.vpp), float(plan.fills)
    forward, backward = _stages(step.passes)
    worse = _stages(slow.passes)
    p = len(forward)
    one = np.eye(p, dtype=bool)
    times = line_time(
        np.where(one, worse[0], forward[:, None]),
        np.where(one, worse[1], backward[:, None]),
        m,
        vpp,
    )
    more = fills * np.maximum(times - line_time(forward, backward, m, vpp), 0.0)
    factor = float(environment_of(case.cluster, case.plan, case.calibration.run).factor)
    ends = _ends(slow, factor) - _ends(step, factor)
    return np.asarray((factor * more + max(ends, 0.0)) / float(step.step_time))


def _ends(step: Step, factor: float) -> float:
    return float(factor * step.breakdown["dp_communication"] + step.breakdown["optimizer"])


def _arithmetic(case: Case, factor: float) -> Parts:
    """Parts with kernels that are bound by arithmetic so much slower."""
    timing = case.timing
    slower = np.where(np.asarray(timing.bound) == 0, factor, 1.0)
    own = layer_parts(
        case.model,
        case.cluster,
        case.plan,
        case.calibration,
        replace(timing, time=timing.time * slower),
    )
    layers = own, case.found.index
    return parts(case.model, case.cluster, case.plan, case.calibration, layers)[0]


def _network(case: Case, tier: int, derate: float) -> Cluster:
    tiers = list(case.cluster.tiers)
    tiers[tier] = replace(tiers[tier], bandwidth=tiers[tier].bandwidth * derate)
    return replace(case.cluster, tiers=tuple(tiers))


def _only(sound: Parts, worse: Parts, kind: str) -> Parts:
    """Parts with one kind of communication as on the worse machine."""
    return replace(
        sound,
        inside={k: worse.inside[k] if k[0].kind == kind else e for k, e in sound.inside.items()},
        between={k: worse.between[k] if k.kind == kind else e for k, e in sound.between.items()},
        gradients={
            k: worse.gradients[k] if k[0].kind == kind else e for k, e in sound.gradients.items()
        },
    )


def _left(case: Case, fault: Fault) -> float:
    """Share of the rate that a link fault leaves; 0: the job stops."""
    node = float(case.cluster.accelerators_per_node)
    if fault.kind == RAIL:
        return float(rerouted(fault.value, node))
    if fault.kind == SPINE:
        return float(rerouted(fault.value, fault.of))
    if fault.value == 0.0 and fault.kind != NVLINK:
        return float(rerouted(1.0, node))
    return fault.value


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What a fault takes of a step, as shares of the sound step.

    by_dimension   'kernels' and kinds of communication, each alone; links only where they show
    by_stage       of one unit on each stage, (stages,)
    packed, random, spread   of all units (`slow.placed`)
    stops          the job does not go on
    """

    fault: Fault
    by_dimension: Mapping[str, float]
    by_stage: Array
    packed: float
    random: float
    spread: float
    stops: bool = False

    def to_dict(self, step_time: float, accelerators: float) -> dict[str, Any]:
        """As `--json` writes it."""
        stages = self.by_stage
        return {
            "fault": str(self.fault),
            "stops": self.stops,
            "loss_by_dimension": dict(self.by_dimension),
            "loss_by_stage": [float(value) for value in stages],
            "loss_packed": self.packed,
            "loss_random": self.random,
            "loss_spread": self.spread,
            "placement_gain": (1.0 + self.random) / (1.0 + self.packed),
            "step_time_s": None if self.stops else step_time * (1.0 + self.random),
            "share_of_time": self.fault.share_of(accelerators),
        }


def loss(case: Case, fault: Fault) -> Loss:
    """What a fault takes of a step; a fault of nothing (factor or derate 1) takes exactly 0.

    Raises InputError for links that the machine does not have.
    """
    if fault.kind in (COMPUTE, HBM):
        if fault.kind == COMPUTE:
            worse = _arithmetic(case, fault.value)
        else:
            accelerator = case.cluster.accelerator
            slower = replace(accelerator, bandwidth=accelerator.bandwidth * fault.value)
            worse = case.apart(replace(case.cluster, accelerator=slower))
        by_stage = _by_stage(case, case.put_together(worse))
        return _placed(case, fault, {KERNELS: float(by_stage.max())}, by_stage)
    tier = 0 if fault.kind == NVLINK else len(case.cluster.tiers) - 1
    if fault.kind != NVLINK and len(case.cluster.tiers) < 2:
        raise InputError(f"faults: {case.cluster.name} has no network between nodes")
    if fault.kind == NEIGHBOUR:
        return _beside(case, fault)
    left = _left(case, fault)
    if left <= 0.0:
        nothing = np.zeros(int(case.plan.pp))
        return Loss(fault, {}, nothing, np.inf, np.inf, np.inf, stops=True)
    worse = case.apart(_network(case, tier, left))
    alone = {
        kind: _by_stage(case, case.put_together(_only(case.found, worse, kind)))
        for kind in KINDS
        if kind != "offload"
    }
    shown = {kind: float(value.max()) for kind, value in alone.items() if value.max() > 0}
    return _placed(case, fault, shown, _by_stage(case, case.put_together(worse)))


def _beside(case: Case, fault: Fault) -> Loss:
    """What jobs of its kind on the same spine take: nothing where phases never meet, most where all
    reduce their gradients at once, and in between for as long of their steps as they send."""
    share = kept_of(fault.value, fault.of)
    worse = case.apart(_network(case, len(case.cluster.tiers) - 1, share))
    by_stage = _by_stage(case, case.put_together(_only(case.found, worse, "dp")))
    most, step = float(by_stage.max()), case.step
    talk = float(step.breakdown["dp_communication"] + step.hidden["dp"])
    meets = min(fault.value * talk / float(step.step_time), 1.0)
    return Loss(fault, {"dp": most} if most > 0 else {}, by_stage, 0.0, meets * most, most)


def _placed(case: Case, fault: Fault, shown: Mapping[str, float], by_stage: Array) -> Loss:
    own = placed(by_stage, float(fault.units), float(case.plan.tp))
    return Loss(fault, shown, by_stage, own.packed, own.random, own.spread)


def told(case: Case, listed: tuple[Fault, ...]) -> dict[str, Any]:
    """Faults of a plan, one by one, and what they cost on average, as `--json` writes it: each is
    there for its share of the time, by itself."""
    found = [loss(case, one) for one in listed]
    step = float(case.step.step_time)
    gpus = float(case.plan.gpus)
    expected = sum(one.fault.share_of(gpus) * one.random for one in found if not one.stops)
    return {
        "faults": [one.to_dict(step, gpus) for one in found],
        "expected_loss": expected,
        "expected_step_time_s": step * (1.0 + expected),
    }
