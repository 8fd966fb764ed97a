"""What a training step draws: its phases from the kernels and the schedule that give its time.

Products count as those of many rows, and meet a limit apart from the kernels between them; what a
framework adds is between them, too. Exposed communication and bubbles wait in kernels that spin;
the optimizer streams memory. All of it is of the slowest stage, on which the breakdown is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.catalog import power_setting
from predictor.power import (
    Activity,
    Conditions,
    Powered,
    powered,
    relative_energy,
    unlimited,
)
from predictor.records import dataclass
from predictor.training.decomposition import COMPUTE_TERMS, EXCHANGE_TERMS
from predictor.training.prediction import TrainingPrediction

FAR = ("pp_communication", "dp_communication")
STREAMED = 0.7
"""Share of the memory's bandwidth that the optimizer reaches."""

PRODUCTS = ("gemm", "moe_gemm", "attention_prefill", "attention_backward")
"""Kernels of matrix units, which draw what the limit binds."""

FULL = 1e9
"""Rows of kernels that fill the processors."""

SENDING = 0.6
"""Share of a link's rate that collectives reach, for its energy."""

COPIES = 3.0
"""Traffic of the memory per byte on a link: read, read to be added to, written (rings)."""


@dataclass(frozen=True, slots=True, eq=False)
class StepActivity:
    """What one accelerator does in a step, by phase: activities of the plans' shape, and in how
    many pieces each comes."""

    activity: dict[str, Activity]
    pieces: dict[str, Array]


def step_activity(found: TrainingPrediction) -> StepActivity:
    """Activity of the slowest stage by phase: terms of the breakdown, collectives together
    ('communication'), host, framework and loading as 'waiting'."""
    terms, plan = found.breakdown, found.plan
    neutral = found.step_time - terms["data_loading"]
    factor = neutral / np.maximum(neutral - terms["framework"], 1e-15)
    work = _work(found)
    compute = sum((terms[name] for name in COMPUTE_TERMS), np.zeros(()))
    hidden = sum(found.hidden.values(), np.zeros(()))
    beside = np.minimum(hidden / np.maximum(compute, 1e-15), 1.0)
    device = found.cluster.accelerator
    peak, bandwidth = found.peak, np.asarray(device.bandwidth)
    near, far = (SENDING * np.asarray(found.cluster.tiers[at].bandwidth) for at in (0, -1))
    micro = np.asarray(plan.micro_batches, float) * plan.vpp
    activity, pieces = {}, {}
    for name in COMPUTE_TERMS:
        lasts = sum((time for _, _, time in work[name].values()), np.zeros(()))
        for part, (flop, moved, time) in work[name].items():
            ideal = flop / peak, moved / bandwidth
            share = time / np.maximum(lasts, 1e-30)
            own = terms[name] * share
            # What a framework adds is between products, not in them.
            own = own if part == "products" else own + (factor - 1.0) * terms[name]
            activity[f"{name}.{part}"] = Activity(
                time=np.maximum(own, 1e-12),
                flop=flop,
                bytes=moved,
                link=beside * terms[name] * share * near,
                rows=FULL,
                spinning=beside,
                core=ideal[0] / np.maximum(ideal[0] + ideal[1], 1e-30),
            )
        pieces[name] = micro
    inner, outer = (
        factor * sum((terms[name] for name in names), np.zeros(()))
        for names in (EXCHANGE_TERMS, FAR)
    )
    sent = inner * near + outer * far
    activity["communication"] = Activity(
        np.maximum(inner + outer, 1e-12), bytes=COPIES * sent, link=sent, spinning=1.0
    )
    pieces["communication"] = micro
    activity["bubble"] = Activity(np.maximum(factor * terms["bubble"], 1e-12), spinning=1.0)
    pieces["bubble"] = np.full_like(micro, 2.0)
    update = np.maximum(factor * terms["optimizer"], 1e-12)
    activity["optimizer"] = Activity(update, bytes=STREAMED * bandwidth * update, rows=FULL)
    pieces["optimizer"] = np.ones_like(micro)
    waits = factor * (terms["host"] + terms["offload"]) + terms["data_loading"]
    activity["waiting"] = Activity(np.maximum(waits, 1e-12))
    pieces["waiting"] = micro
    return StepActivity(activity, pieces)


def _work(found: TrainingPrediction) -> dict[str, dict[str, tuple[Array, Array, Array]]]:
    """Arithmetic (16-bit equivalents) [FLOP], traffic [bytes] and time by themselves [s] of the
    products of a step, and of its other kernels, by phase."""
    index = found.unique
    shape = found.step_time.shape

    def every(value: object) -> Array:
        known = np.asarray(value, float)
        return known[index] if known.ndim else known

    none = (np.zeros(shape), np.zeros(shape), np.zeros(shape))
    totals = {name: {"products": none, "others": none} for name in COMPUTE_TERMS}
    rows = zip(found.operators, found.executions, found.timing.time, strict=True)
    for operator, count, time in rows:
        if operator.phase not in totals:
            continue
        part = "products" if operator.op in PRODUCTS else "others"
        flop = count * every(operator.flop * relative_energy(operator.dtype))
        moved, lasts = count * every(operator.bytes), count * every(time)
        before = totals[operator.phase][part]
        totals[operator.phase][part] = (before[0] + flop, before[1] + moved, before[2] + lasts)
    return totals


def step_power(found: TrainingPrediction, conditions: Conditions) -> Powered:
    """Power of a step under conditions.

    Raises InputError where the accelerator's power is not known, or the conditions cannot be.
    """
    return _drawn(found, step_activity(found), conditions)


def _drawn(found: TrainingPrediction, work: StepActivity, conditions: Conditions) -> Powered:
    """`step_power` of a step that does such work."""
    constants, chassis = power_setting(found.cluster, conditions, found.calibration.power)
    return powered(work.activity, work.pieces, constants, chassis, conditions)


def under_limits(found: TrainingPrediction, limits: Sequence[float | None]) -> tuple[Array, Array]:
    """Time of a step [s] and mean power of an accelerator [W], (limits, plans), of a batch of plans
    under each of several limits of power [W], or under the board's own (None): as `step_power` and
    `limited` have them of one.

    Raises InputError as `step_power`.
    """
    work, shape = step_activity(found), (len(limits), *found.step_time.shape)
    times, watts = np.broadcast_to(found.step_time, shape).copy(), np.empty(shape)
    free = [at for at, limit in enumerate(limits) if limit is None]
    held = [at for at, limit in enumerate(limits) if limit is not None]
    if free:
        watts[free] = _drawn(found, work, Conditions()).mean
    if held:
        stated = np.array([limits[at] for at in held], float)
        under = _drawn(found, work, Conditions(limit=stated.reshape(-1, *(1,) * (len(shape) - 1))))
        times[held] = sum(
            _under(found, _slower(under, _usual(found, under))).values(), np.zeros(())
        )
        watts[held] = under.mean
    return times, watts


def _usual(found: TrainingPrediction, under: Powered) -> dict[str, Array]:
    """Time of each phase over that by itself without conditions, of the work that was powered."""
    setting = power_setting(found.cluster, Conditions(), found.calibration.power)
    return unlimited(under.work, *setting)


def limited(
    found: TrainingPrediction, under: Powered, conditions: Conditions
) -> TrainingPrediction:
    """The prediction in the time that conditions leave it; itself where none slow it.

    under   what `step_power` finds of it
    """
    if not conditions.slows:
        return found
    slower = _slower(under, _usual(found, under))
    breakdown, work = _under(found, slower), _computing(found, slower)
    step = np.asarray(sum(breakdown.values(), np.zeros(())))
    passes = replace(
        found.passes,
        forward=found.passes.forward * work,
        backward=found.passes.backward * work,
        weights=found.passes.weights * work,
    )
    return replace(
        found.lasting(step, breakdown), passes=passes, layer_time=found.layer_time * work
    )


def _slower(under: Powered, usual: Mapping[str, Array]) -> dict[str, Array]:
    """How much longer phases take under conditions than without them (`_usual`)."""
    return {name: under.longer[name] / usual[name] for name in under.longer}


def _computing(found: TrainingPrediction, slower: Mapping[str, Array]) -> Array:
    """How much longer all computation takes together."""
    terms = found.breakdown
    compute = sum((terms[name] * slower[name] for name in COMPUTE_TERMS), np.zeros(()))
    before = sum((terms[name] for name in COMPUTE_TERMS), np.zeros(()))
    return np.asarray(compute / np.maximum(before, 1e-15))


def _under(found: TrainingPrediction, slower: Mapping[str, Array]) -> dict[str, Array]:
    """Terms of a step whose phases take so much longer [s]."""
    owner = {name: name for name in (*COMPUTE_TERMS, "bubble", "optimizer")}
    owner |= dict.fromkeys((*EXCHANGE_TERMS, *FAR), "communication")
    terms, work = found.breakdown, _computing(found, slower)
    breakdown = {
        name: value * (work if name == "bubble" else slower.get(owner.get(name, ""), 1.0))
        for name, value in terms.items()
    }
    neutral = sum(
        (value for name, value in terms.items() if name not in ("framework", "data_loading")),
        np.zeros(()),
    )
    after = sum(
        (value for name, value in breakdown.items() if name not in ("framework", "data_loading")),
        np.zeros(()),
    )
    breakdown["framework"] = terms["framework"] * after / np.maximum(neutral, 1e-15)
    return breakdown
