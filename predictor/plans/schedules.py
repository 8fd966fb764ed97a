"""Pipeline schedules, each an entry of one table: closed form, activations held, event order.

Stages are of three kinds (first, inner, last): arrays of shape (3, *batch), with how many stages
there are of each. The closed form serves search; the event timeline plays the order for one run
and checks it: they are equal with equal stages. A step ends when the last stage does: the
optimizer waits for the norm of all gradients. Links between the stages of one chunk each are
resources of their own: what a stage sends keeps the link to itself for a while and is there some
time later, and meanwhile the stage works on.

GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019; interleaved: Narayanan et al. 2021, section
2.2. ZB-H1: Qi et al. 2024, "Zero bubble pipeline parallelism". ZB-V, DualPipe: `folded`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.plans import folded
from predictor.plans.critical import critical_path
from predictor.plans.folded import Block, Work
from predictor.records import dataclass

LINE, V, BOTH = "line", "v", "both"
"""Where stages lie: stage k on device k (with chunks, round and round); there and back; from both
ends at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Time of one micro-batch on a stage of each kind, all its chunks together [s], (3, *batch).

    forward   of the forward pass
    backward  of the gradients of the inputs, which the stage before waits for
    weights   of the gradients of the weights, which nobody waits for
    count     stages of each kind
    transfer  for which what a micro-batch sends on keeps a link, one way, to itself [s], (*batch)
    latency   after which the last byte of it is there [s]
    """

    forward: Array
    backward: Array
    weights: Array
    count: Array
    transfer: Numeric = 0.0
    latency: Numeric = 0.0

    @property
    def hop(self) -> Numeric:
        """From the end of a pass to its outcome on the next stage, where the link is free [s]."""
        return self.transfer + self.latency

    @property
    def present(self) -> Array:
        """Passes with nothing on kinds that the plan lacks."""
        return np.asarray(self.count > 0)

    def of_every_stage(self) -> tuple[list[float], list[float], list[float]]:
        """The three passes of one plan, stage by stage."""
        kinds = [kind for kind in range(3) for _ in range(int(self.count[kind]))]
        values = (self.forward, self.backward, self.weights)
        forward, backward, weights = ([float(value[kind]) for kind in kinds] for value in values)
        return forward, backward, weights


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule.

    time    (passes, micro-batches, virtual stages) -> time of all micro-batches [s], (*batch)
    held    (stages from this one to the last, stages, micro-batches, virtual stages) -> micro-
            batches whose activations a stage holds at its peak
    order   (stage, stages, virtual stages, micro-batches) -> work of one stage in order
    splits  the gradients of the weights are work of their own
    chunks  a device may hold several stages; two where the pipeline folds in a V
    fold    'line', 'v' or 'both' (see `LINE`)
    least   micro-batches per device that the order needs
    """

    time: Callable[[Passes, Numeric, Numeric], Array]
    held: Callable[[Array, Numeric, Numeric, Numeric], Array]
    order: Callable[[int, int, int, int], list[Block]]
    splits: bool = False
    chunks: bool = False
    fold: str = LINE
    least: float = 0.0

    @property
    def copies(self) -> float:
        """How many devices hold each stage."""
        return 2.0 if self.fold == BOTH else 1.0


def _sequences(passes: Passes) -> tuple[Array, Array, Array]:
    """The three passes, zero on kinds that the plan lacks."""
    there = passes.present
    return (
        np.where(there, passes.forward, 0.0),
        np.where(there, passes.backward, 0.0),
        np.where(there, passes.weights, 0.0),
    )


def _places(count: Array) -> tuple[tuple[int, Array, Array], ...]:
    """Stages that can decide: (kind, stages of the inner kind before it, position). The first
    stage, the first and the last of the inner ones, the last stage."""
    zero = np.zeros_like(count[1])
    inner = count[1]
    return (
        (0, zero, zero),
        (1, zero, count[0]),
        (1, np.maximum(inner - 1.0, 0.0), count[0] + np.maximum(inner - 1.0, 0.0)),
        (2, inner, count[0] + inner),
    )


def _around(kind: int, inner_before: Array, value: Array, count: Array) -> tuple[Array, Array]:
    """Sum of a pass over the stages before and behind one."""
    first, inner, last = value * count
    before = (first if kind > 0 else 0.0) + inner_before * value[1]
    own = value[kind]
    return np.asarray(before), np.asarray(first + inner + last - before - own)


def _slowest_behind(kind: int, inner_before: Array, value: Array, count: Array) -> Array:
    """The largest pass of the stages behind one; 0 behind the last."""
    if kind == 2:
        return np.zeros_like(value[2])
    left = count[1] - (inner_before + 1.0 if kind == 1 else 0.0)
    return np.asarray(np.maximum(np.where(left > 0, value[1], 0.0), value[2]))


def _one_forward_one_backward(passes: Passes, m: Numeric, vpp: Numeric) -> Array:
    """1F1B, plain or interleaved."""
    several = np.asarray(vpp) > 1
    if several.all():
        return _interleaved(passes, m, vpp)
    f, inputs, weights = _sequences(passes)
    plain = critical_path(f, inputs + weights, passes.count, m, passes.transfer, passes.latency)
    return np.where(several, _interleaved(passes, m, vpp), plain) if several.any() else plain


def _interleaved(passes: Passes, m: Numeric, vpp: Numeric) -> Array:
    """1F1B of several chunks on each device.

    Stage k works m t_k. It waits for the first micro-batch to pass the stages before it, and they
    finish after it: sum t of those. With n stages behind it, which take S = sum t of those, it has
    n forward passes to do before the first backward pass can arrive and n backward passes before
    the last one, and idles for the rest: max(0, S - n f_k) + max(0, S - n b_k). With m - 1 < n
    micro-batches after the first one it has only these to do, and the last one comes (m - 1) of the
    slowest stage behind it after the first. The pipeline takes as long as the stage for which this
    adds up to most; virtual stages divide all but m t_k. With equal stages this is
    (m + (p - 1) / vpp) t (Narayanan et al. 2021, section 2.2.2).
    """
    f, inputs, weights = _sequences(passes)
    b = inputs + weights
    t, count = f + b, passes.count
    stages = count.sum(axis=0)
    bounds = []
    for kind, inner, position in _places(count):
        before, behind = _around(kind, inner, t, count)
        n = np.minimum(stages - 1.0 - position, m * vpp - 1.0)
        pace = _slowest_behind(kind, inner, t, count)
        last = np.minimum(behind - n * b[kind], (m * vpp - 1.0) * (pace - b[kind]))
        idle = np.maximum(behind - n * f[kind], 0.0) + np.maximum(last, 0.0)
        bound = m * t[kind] + (before + idle) / vpp
        bounds.append(np.where(passes.present[kind], bound, 0.0))
    return np.asarray(np.max(np.stack(np.broadcast_arrays(*bounds)), axis=0))


def _all_forward_all_backward(passes: Passes, m: Numeric, vpp: Numeric) -> Array:
    """GPipe: the slowest stage or link sets the pace of each phase, the others add one pass each.

    sum f + (m - 1) max f + sum b + (m - 1) max b, which is (m + p - 1) t with equal stages
    (Huang et al. 2019), and p - 1 hops each way, whose latency is paid in fill and drain alone.
    Exact for any stages.
    """
    f, inputs, weights = _sequences(passes)
    b = inputs + weights
    links = passes.count.sum(axis=0) - 1.0
    kept = np.where(links > 0, passes.transfer, 0.0)
    phases = [
        (value * passes.count).sum(axis=0)
        + (m - 1.0) * np.maximum(value.max(axis=0), kept)
        + links * passes.hop
        for value in (f, b)
    ]
    return np.asarray(phases[0] + phases[1])


def _zero_bubble_h1(passes: Passes, m: Numeric, vpp: Numeric) -> Array:
    """ZB-H1: stage k (from 0) keeps the gradients of the weights of its last k micro-batches for
    the end, so that the gradients of the inputs pass sooner.

    Stage k cannot end before its own work and the wait for its first micro-batch and for the first
    gradient, max(0, S - n f_k) with n stages behind it that take S = sum (f + b); and the first
    stage cannot end before the last gradient has come from k: sum over the stages before of
    (f + b), m t_k less the weights' gradients that are left, and the first stage's own. With equal
    stages, m >= p and f <= b: (p - 1)(f + b - w) longer than m t, as in Qi et al. 2024, table 1.
    Of p micro-batches each makes the whole way there and back: where that takes longer than the
    work on p of them, stages wait for their links.
    """
    f, b, w = _sequences(passes)
    t, count = f + b + w, passes.count
    stages = count.sum(axis=0)
    start = np.where(count[0] > 0, w[0], w[2])
    bounds = []
    for kind, inner, position in _places(count):
        forward, _ = _around(kind, inner, f, count)
        inputs, _ = _around(kind, inner, b, count)
        _, behind = _around(kind, inner, f + b, count)
        left = stages - 1.0 - position
        n = np.minimum(left, m - 1.0)
        away = behind + 2.0 * left * passes.hop
        own = forward + position * passes.hop + m * t[kind] + np.maximum(away - n * f[kind], 0.0)
        late = np.minimum(position + 1.0, m) * w[kind]
        gradient = forward + inputs + 2.0 * position * passes.hop + m * t[kind] - late + start
        bounds.append(np.where(passes.present[kind], np.maximum(own, gradient), 0.0))
    alone = np.max(np.stack(np.broadcast_arrays(*bounds)), axis=0)
    way = ((f + b) * count).sum(axis=0) + 2.0 * (stages - 1.0) * passes.hop + start
    kept = np.where(stages > 1, passes.transfer, 0.0)
    pace = np.maximum(way / stages, kept)
    return np.asarray(alone + np.maximum(m - 1.0, 0.0) * np.maximum(pace - t.max(axis=0), 0.0))


def _held_1f1b(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """min(pp - index, m) micro-batches. Interleaved: min(m vpp, 2 (pp - index - 1) + (vpp - 1) pp
    + 1) chunks, which on the first stage is pp vpp + pp - 1 (Narayanan et al. 2021)."""
    chunks = np.minimum(m * vpp, 2.0 * (behind - 1.0) + (vpp - 1.0) * pp + 1.0)
    return np.asarray(np.where(np.asarray(vpp) > 1, chunks / vpp, np.minimum(behind, m)))


def _held_all(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """GPipe holds every micro-batch."""
    return np.asarray(np.zeros_like(behind) + m)


def _held_h1(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """ZB-H1 holds on every stage what 1F1B holds on the first (Qi et al. 2024, section 2)."""
    return np.asarray(np.zeros_like(behind) + np.minimum(pp, m))


Closed = Callable[[Array, Array, Array, Array, Numeric], Array]


def _held_v(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """ZB-V holds 2 pp chunks on every device (Qi et al. 2024, controllable memory, section 3)."""
    return np.asarray(np.zeros_like(behind) + np.minimum(pp, m))


def _held_dual_v(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """DualPipeV holds PP + 1 chunks, PP = 2 pp, on every device (DeepSeek-AI, DualPipe)."""
    return np.asarray(np.zeros_like(behind) + np.minimum(pp + 0.5, m))


def _held_dual(behind: Array, pp: Numeric, m: Numeric, vpp: Numeric) -> Array:
    """DualPipe holds pp + 1 micro-batches on every device (DeepSeek-AI 2024, table 2)."""
    return np.asarray(np.zeros_like(behind) + np.minimum(pp + 1.0, m))


def _alone(
    order: Callable[[int, int, int, int], list[Work]],
) -> Callable[[int, int, int, int], list[Block]]:
    """An order in which nothing runs together."""
    return lambda stage, pp, vpp, m: [(work,) for work in order(stage, pp, vpp, m)]


def _order_1f1b(stage: int, pp: int, vpp: int, m: int) -> list[Work]:
    """Order of work on one stage.

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


def _order_gpipe(stage: int, pp: int, vpp: int, m: int) -> list[Work]:
    """All forward passes, then all backward passes."""
    return [(direction, batch, 0) for direction in ("forward", "backward") for batch in range(m)]


def _order_h1(stage: int, pp: int, vpp: int, m: int) -> list[Work]:
    """1F1B, each backward pass followed by the weights' gradients of the micro-batch `stage`
    earlier; those that are left come last."""
    warmup = min(pp - stage - 1, m)
    order: list[Work] = [("forward", batch, 0) for batch in range(warmup)]
    for batch in range(m):
        if batch + warmup < m:
            order.append(("forward", batch + warmup, 0))
        order.append(("backward", batch, 0))
        if batch >= stage:
            order.append(("weights", batch - stage, 0))
    return order + [("weights", batch, 0) for batch in range(max(m - stage, 0), m)]


def _folded(
    closed: Closed,
    held: Callable[[Array, Numeric, Numeric, Numeric], Array],
    order: Callable[[int, int, int], list[Block]],
    fold: str,
) -> Schedule:
    """A pipeline that folds: its closed form and its order are those of devices."""

    def time(passes: Passes, m: Numeric, vpp: Numeric) -> Array:
        return closed(*_sequences(passes), passes.count, m)

    return Schedule(
        time,
        held,
        lambda stage, pp, vpp, m: order(stage, pp, m),
        splits=True,
        chunks=fold == V,
        fold=fold,
        least=2.0,
    )


SCHEDULES: dict[str, Schedule] = {
    "1f1b": Schedule(_one_forward_one_backward, _held_1f1b, _alone(_order_1f1b), chunks=True),
    "gpipe": Schedule(_all_forward_all_backward, _held_all, _alone(_order_gpipe)),
    "zb-h1": Schedule(_zero_bubble_h1, _held_h1, _alone(_order_h1), splits=True),
    "zb-v": _folded(folded.zero_bubble_v, _held_v, folded.order_zero_bubble_v, V),
    "dualpipe": _folded(folded.dual_pipe, _held_dual, folded.order_dual_pipe, BOTH),
    "dualpipev": _folded(folded.dual_pipe_v, _held_dual_v, folded.order_dual_pipe_v, V),
}
"""'1f1b' is interleaved where a device holds several stages (vpp > 1)."""


def pipeline_time(schedule: str, passes: Passes, m: Numeric, vpp: Numeric = 1.0) -> Array:
    """Time of all micro-batches through the pipeline [s], shape of the batch.

    passes   of one micro-batch on each kind of stage
    m, vpp   micro-batches; virtual stages per device
    """
    return SCHEDULES[schedule].time(passes, m, vpp)
