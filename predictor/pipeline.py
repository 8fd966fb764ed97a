"""Pipeline schedules: how layers fall on stages, how long a pipeline takes, what is in flight.

Stages are of three kinds (first, inner, last): arrays of shape (3, *batch), with how many stages
there are of each. A closed form serves search; an event timeline serves one run and checks it.

1F1B: Narayanan et al. 2019; interleaved: Narayanan et al. 2021, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.hardware import Array, Numeric
from predictor.model import Model
from predictor.plan import TrainingPlan

STAGES = ("first", "inner", "last")


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """How the model falls on the stages; every field has shape (3, *batch).

    count   stages of the kind (with one stage in all, it is 'last' and has both ends)
    layers  layers on a stage of the kind (the fullest one, of inner stages)
    embeds, heads   1 where the stage holds the embedding, the output projection
    index   position of the kind's earliest stage
    """

    count: Array
    layers: Array
    embeds: Array
    heads: Array
    index: Array


def stages(model: Model, plan: TrainingPlan) -> Stages:
    """Divide the layers among the stages.

    Where pp * vpp divides the layers, all stages are equal. Where it divides layers + 2, embedding
    and output projection take a slot each (Llama 3.1 405B: 126 + 2; BLOOM: 70 + 2). Else the
    remainder goes to the inner stages.
    """
    layers = float(model.layers)
    shape = plan.shape
    p = np.broadcast_to(np.asarray(plan.pp, float), shape)
    chunks = np.broadcast_to(np.asarray(plan.pp * plan.vpp, float), shape)
    even = layers % chunks == 0
    slots = (layers + 2) % chunks == 0
    per = np.where(even, layers / p, np.where(slots, (layers + 2) / p, np.floor(layers / p)))
    edge = np.where(~even & slots, per - 1, per)
    inner_stages = np.maximum(p - 2, 0)
    rest = layers - np.where(p > 1, 2 * edge, 0)
    inner = np.where(inner_stages > 0, np.ceil(rest / np.maximum(inner_stages, 1)), 0)
    # Two uneven stages have no inner one: the first takes the remainder.
    first = np.where(p == 2, layers - edge, edge)
    one = p == 1
    zero = np.zeros_like(per)
    return Stages(
        count=np.stack([np.where(one, 0.0, 1.0), inner_stages, zero + 1]),
        layers=np.stack([first, inner, np.where(one, layers, edge)]),
        embeds=np.stack([zero + 1, zero, np.where(one, 1.0, 0.0)]),
        heads=np.stack([zero, zero, zero + 1]),
        index=np.stack([zero, np.minimum(1.0, p - 1), p - 1]),
    )


def in_flight(plan: TrainingPlan, at: Stages) -> Array:
    """Layers' worth of activations that a stage holds at its peak, (3, *batch).

    1F1B: min(pp - index, m) micro-batches of all its layers. Interleaved: min(m vpp,
    2 (pp - index - 1) + (vpp - 1) pp + 1) chunks of layers / vpp (Narayanan et al. 2021; on the
    first stage this is pp vpp + pp - 1).
    """
    m = plan.micro_batches
    behind = plan.pp - at.index
    plain = np.minimum(behind, m)
    chunks = np.minimum(m * plan.vpp, 2 * (behind - 1) + (plan.vpp - 1) * plan.pp + 1)
    interleaved = chunks / plan.vpp
    return np.asarray(np.where(plan.vpp > 1, interleaved, plain) * at.layers)


def pipeline_time(forward: Array, backward: Array, count: Array, m: Numeric, vpp: Numeric) -> Array:
    """Time of all micro-batches through the pipeline [s], shape of the batch.

    forward, backward   of one micro-batch on a stage of each kind [s], (3, *batch)
    count               stages of each kind, (3, *batch)
    m, vpp              micro-batches; virtual stages per device

    Stage k works m t_k. It waits for the first micro-batch to pass the stages before it, and they
    finish after it: sum t of those. With n stages behind it, which take S = sum t of those, it has
    n forward passes to do before the first backward pass can arrive and n backward passes before
    the last one, and idles for the rest: max(0, S - n f_k) + max(0, S - n b_k). The pipeline takes
    as long as the stage for which this adds up to most; virtual stages divide all but m t_k. With
    equal stages this is (m + (p - 1) / vpp) t (Narayanan et al. 2021, section 2.2.2).
    """
    present = count > 0
    f, b = np.where(present, forward, 0.0), np.where(present, backward, 0.0)
    t = f + b
    first, inner, last = t * count
    others = np.maximum(count[1] - 1.0, 0.0) * t[1]
    zero = np.zeros_like(first)

    def through(k: int, before: Array, behind: Array, n: Array) -> Array:
        idle = np.maximum(behind - n * f[k], 0.0) + np.maximum(behind - n * b[k], 0.0)
        return np.asarray(np.where(present[k], m * t[k] + (before + idle) / vpp, 0.0))

    stages_behind = count.sum(axis=0) - 1.0
    bounds = [
        through(0, zero, inner + last, stages_behind),
        through(1, first, others + last, stages_behind - 1.0),  # the first of the inner stages
        through(1, first + others, last, zero + 1.0),  # and the last of them
        through(2, first + inner, zero, zero),
    ]
    return np.asarray(np.max(np.stack(np.broadcast_arrays(*bounds)), axis=0))


def _order(stage: int, pp: int, vpp: int, m: int) -> list[tuple[str, int, int]]:
    """Order of work on one stage: (direction, micro-batch, chunk).

    1F1B: pp - stage - 1 forwards, then one forward and one backward in turn. Interleaved:
    micro-batches advance in groups of pp through the chunks (Megatron-LM's schedule).
    """

    def item(step: int, forward: bool) -> tuple[int, int]:
        if vpp == 1:
            return step, 0
        group = step % (pp * vpp)
        chunk = group // pp
        batch = (step // (pp * vpp)) * pp + group % pp
        return batch, chunk if forward else vpp - 1 - chunk

    total = m * vpp
    warmup = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warmup = min(warmup, total)
    order = [("forward", *item(step, True)) for step in range(warmup)]
    for step in range(total - warmup):
        order.append(("forward", *item(step + warmup, True)))
        order.append(("backward", *item(step, False)))
    order += [("backward", *item(step, False)) for step in range(total - warmup, total)]
    return order


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work on one stage [s]."""

    stage: int
    direction: str
    micro_batch: int
    chunk: int
    start: float
    end: float


def timeline(forward: list[float], backward: list[float], m: int, vpp: int = 1) -> list[Event]:
    """Play a 1F1B or interleaved schedule event by event.

    forward, backward   time of one micro-batch on each stage, all its chunks together [s]
    m                   micro-batches; a multiple of the number of stages when vpp > 1

    Returns the events in order of their end; the last one's end is the pipeline's time.
    """
    pp = len(forward)
    orders = [_order(stage, pp, vpp, m) for stage in range(pp)]
    position, free = [0] * pp, [0.0] * pp
    done: dict[tuple[str, int, int, int], float] = {}
    events: list[Event] = []

    def ready(stage: int, direction: str, batch: int, chunk: int) -> float | None:
        """When the input of a piece of work is there; None while it is not yet known."""
        if direction == "forward":
            if stage == 0 and chunk == 0:
                return 0.0
            before = (stage - 1, chunk) if stage > 0 else (pp - 1, chunk - 1)
            return done.get(("forward", batch, *before))
        if stage == pp - 1 and chunk == vpp - 1:
            return done.get(("forward", batch, stage, chunk))
        before = (stage + 1, chunk) if stage < pp - 1 else (0, chunk + 1)
        return done.get(("backward", batch, *before))

    progress = True
    while progress:
        progress = False
        for stage in range(pp):
            while position[stage] < len(orders[stage]):
                direction, batch, chunk = orders[stage][position[stage]]
                available = ready(stage, direction, batch, chunk)
                if available is None:
                    break
                start = max(free[stage], available)
                whole = forward[stage] if direction == "forward" else backward[stage]
                end = start + whole / vpp
                done[(direction, batch, stage, chunk)] = free[stage] = end
                events.append(Event(stage, direction, batch, chunk, start, end))
                position[stage] += 1
                progress = True
    return sorted(events, key=lambda event: event.end)
