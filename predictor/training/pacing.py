"""Passes of a pipeline at every clock: what a stage that is not waited for saves by a slower one.

Parts of a pass are those of the slowest stage's phases (`training.power`); other stages have as
much of each as their passes are long. Where a stage waits anyway, it draws what a bubble draws.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from predictor.arrays import Array
from predictor.catalog import power_setting
from predictor.errors import InputError
from predictor.plans import LINE, Precedence, precedence
from predictor.power import (
    Activity,
    Conditions,
    Pace,
    Phase,
    Powered,
    energy,
    mean_power,
    pace,
)
from predictor.records import dataclass
from predictor.training.decomposition import COMPUTE_TERMS
from predictor.training.power import step_activity, step_power
from predictor.training.prediction import TrainingPrediction

PARTS = {"forward": ("forward",), "backward": ("backward", "recompute")}
"""Phases of a pass; the weights' gradients are made as the others of the backward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class PassPace:
    """A pass at clocks.

    names   phase that each of its parts is of
    share   of the pass at the reference clock, (parts,)
    at      how long parts take at each clock, and what they draw
    """

    names: tuple[str, ...]
    share: Array
    at: Pace

    def longer(self) -> Array:
        """Time of the pass at each clock over that at the reference, (clocks,)."""
        return np.asarray(self.at.longer @ self.share)

    def beyond(self, waiting: float) -> Array:
        """Energy beyond waiting at each clock, for a second of the pass at the reference [W],
        (clocks,)."""
        return np.asarray((self.at.longer * (self.at.power - waiting)) @ self.share)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A pipeline whose passes may be slowed.

    graph     what waits for what
    times     of a micro-batch's passes by direction, of each stage, at the reference clock [s],
              (3, stages)
    paces     of the passes, by direction
    waiting   what an accelerator draws that waits [W]
    transfer, latency   between stages [s]
    usual     the step under its conditions, every stage at the clock that these leave it
    """

    graph: Precedence
    times: Array
    paces: tuple[PassPace, PassPace, PassPace]
    waiting: float
    transfer: float
    latency: float
    usual: Powered


def pipeline_of(found: TrainingPrediction, conditions: Conditions) -> Pipeline:
    """The pipeline of a single plan under conditions.

    found   without any conditions

    Raises InputError where there is no pipeline, and where its power is not known.
    """
    plan = found.plan
    m, pp, vpp = (int(value) for value in (plan.micro_batches, plan.pp, plan.vpp))
    if int(plan.fills) > 1:
        raise InputError(
            "clocks by stage are found for pipelines that run empty once a step; state "
            f"--set pipeline_fill={float(plan.micro_batches / plan.pp):g} for one of these"
        )
    if pp < 2:
        raise InputError("clocks by stage need a pipeline: --pp of 2 or more")
    if plan.pipeline.fold == LINE and vpp > 1 and m % pp:
        raise InputError(
            f"interleaving needs micro-batches in multiples of pp {pp}, not {m}; change "
            "--global-batch or --micro-batch"
        )
    usual = step_power(found, conditions)
    times = float(found.factor) * np.array(found.passes.of_every_stage())
    constants, _ = power_setting(found.cluster, conditions, found.calibration.power)
    limit = constants.limit if conditions.limit is None else conditions.limit
    warm = float(np.mean(usual.temperature))
    busy = m * float(times.sum(axis=0).max())
    both = []
    for own in _parts(found, busy):
        work = [replace(one, core=np.asarray(one.core, float)) for _, one in own]
        lasts = np.array([float(one.time) for one in work])
        at = pace([_plain(one) for one in work], constants, limit, warm)
        both.append(PassPace(tuple(name for name, _ in own), lasts / lasts.sum(), at))
    waiting = next(float(one.power) for one in usual.phases if one.name == "bubble")
    return Pipeline(
        graph=precedence(plan.schedule, pp, m, vpp),
        times=times,
        paces=(both[0], both[1], both[1]),
        waiting=waiting,
        transfer=float(found.passes.transfer),
        latency=float(found.passes.latency),
        usual=usual,
    )


def _plain(work: Activity) -> Activity:
    """The same with plain numbers."""
    return Activity(
        **{one.name: float(np.asarray(getattr(work, one.name))) for one in fields(work)}
    )


def _parts(found: TrainingPrediction, busy: float) -> list[list[tuple[str, Activity]]]:
    """Parts of the passes forward and backward of all micro-batches on the slowest stage, with the
    communication and the waiting within them.

    busy   time of all its passes [s]
    """
    work = step_activity(found).activity
    compute = sum(float(one.time) for name, one in work.items() if "." in name)
    host = float(work["waiting"].time) - float(found.breakdown["data_loading"])
    host = float(np.clip(host, 0.0, max(busy - compute, 0.0)))
    sent = max(busy - compute - host, 0.0)
    found_parts = []
    for names in PARTS.values():
        own = [
            (name.partition(".")[0], one)
            for name, one in work.items()
            if name.partition(".")[0] in names and "." in name
        ]
        share = sum(float(one.time) for _, one in own) / max(compute, 1e-30)
        around = (("communication", sent), ("waiting", host))
        for name, time in around:
            whole = work[name]
            part = share * time / max(float(whole.time), 1e-30)
            scaled = {
                each: np.asarray(getattr(whole, each)) * part
                for each in ("time", "flop", "bytes", "link")
            }
            own.append((name, replace(whole, **scaled)))
        found_parts.append(own)
    return found_parts


def with_clocks(own: Pipeline, chosen: Array, slower: float = 0.0) -> Powered:
    """The step with its passes at chosen clocks: phases are means over the stages.

    chosen   seconds at the reference clock that are spent at each, by direction and stage,
             (3, stages, clocks)
    slower   by which the pipeline is longer [s]
    """
    stages = own.times.shape[1]
    time: dict[str, float] = {}
    joules: dict[str, float] = {}
    for pace_of, spent in zip(own.paces, chosen.sum(axis=1) / stages, strict=True):
        lasts = pace_of.at.longer * pace_of.share * spent[:, None]
        drawn = lasts * pace_of.at.power
        for name, each, work in zip(pace_of.names, lasts.sum(0), drawn.sum(0), strict=True):
            time[name] = time.get(name, 0.0) + float(each)
            joules[name] = joules.get(name, 0.0) + float(work)
    before = {one.name: one for one in own.usual.phases}
    base = _inside(own)
    phases, left = [], float(own.usual.time) + slower
    for name, one in before.items():
        if name == "bubble":
            continue
        outside = max(float(one.time) - base.get(name, 0.0), 0.0)
        lasts_all = time.get(name, 0.0) + (0.0 if name in COMPUTE_TERMS else outside)
        drawn = 0.0 if name in COMPUTE_TERMS else outside * float(one.power)
        used = joules.get(name, 0.0) + drawn
        watts = used / lasts_all if lasts_all > 0 else float(one.power)
        left -= lasts_all
        phases.append(Phase(name, np.asarray(lasts_all), np.asarray(watts), one.pieces))
    phases.append(replace(before["bubble"], time=np.asarray(max(left, 0.0))))
    return replace(own.usual, phases=phases, mean=mean_power(phases), energy=energy(phases))


def delayed(found: TrainingPrediction, later: float) -> TrainingPrediction:
    """A single prediction whose pipeline waits for so much longer [s]."""
    if later <= 0:
        return found
    breakdown = {**found.breakdown, "bubble": found.breakdown["bubble"] + later}
    return found.lasting(found.step_time + later, breakdown)


def _inside(own: Pipeline) -> dict[str, float]:
    """Time of each phase within the passes of the slowest stage at the highest clock [s]."""
    stage = int(np.argmax(own.times.sum(axis=0)))
    here = own.graph.stage == stage
    many = own.graph.pieces[here].sum(axis=0)
    found: dict[str, float] = {}
    for number, each in enumerate(own.paces):
        whole = many[number] * own.times[number, stage] * each.share * each.at.longer[0]
        for name, value in zip(each.names, whole, strict=True):
            found[name] = found.get(name, 0.0) + float(value)
    return found
