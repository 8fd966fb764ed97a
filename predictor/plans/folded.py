"""Pipeline schedules that fold: every device holds two chunks of the model, one from each end.

ZB-V and DualPipeV fold one pipeline in a V: of 2 p chunks, device k holds chunks k and
2 p - 1 - k. DualPipe feeds one pipeline from both ends: device k holds stage k for half of the
micro-batches and stage p - 1 - k for the others, so that every weight is held twice. Mirrored
devices do the same at the same time; a pair of them works as one device of a V on half of the
micro-batches (DualPipeV is "cut in half").

ZB-V: Qi et al. 2024, "Pipeline parallelism with controllable memory", in the order of PyTorch's
ScheduleZBVZeroBubble. DualPipe: DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.1, in the order of
github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from predictor.arrays import Array, Numeric

Work = tuple[str, int, int]
"""Direction ('forward', 'backward', 'weights'), micro-batch, chunk."""

Block = tuple[Work, ...]
"""Work that begins once the inputs of all of it are there, and hands on all outcomes at its end."""

Waits = Callable[[Numeric, Array, Array, Array], Array]

ZERO_BUBBLE, DUAL = np.array([1.5, 0.0, 0.0]), np.array([2.0, 0.0, 0.5])
"""Slack of the first device, of inner ones and of the last (`_folded`), of ZB-V and of both duals:
found by playing the orders, so that no pipeline with a slower device is told a hundredth too
short."""


def _waits_dual(d: Numeric, f: Array, b: Array, w: Array) -> Array:
    """What DualPipeV takes beside its work on d + 1 equal devices [s].

    f, b, w   of a chunk: forward, gradients of inputs, gradients of weights

    The longest of its critical paths: a device fills, forward and backward chunks run as one
    block. Where f >= b - w: d (2 f + b - w), which with f = b = w is the published (PP/2 - 1)
    (F&B + B - 3W), PP = 2 (d + 1).
    """
    return np.asarray(
        np.maximum.reduce(
            np.broadcast_arrays(
                (d - 1.0) * f + 2.0 * d * b - d * w,
                d * (2.0 * f + b - w),
                2.0 * d * f,
                (d - 1.0) * f + d * b,
            )
        )
    )


def _waits_zero_bubble(d: Numeric, f: Array, b: Array, w: Array) -> Array:
    """The same of ZB-V: no device waits once it has begun where f = b = w, and the first ends d
    chunks after its own work because the optimizer waits for all."""
    return np.asarray(
        np.maximum.reduce(
            np.broadcast_arrays(
                2.0 * d * (b - w),
                d * b,
                f + (d - 1.0) * w,
                b + (d - 1.0) * w,
                (2.0 * d - 1.0) * f - (d - 1.0) * b,
                (2.0 * d - 1.0) * f + b - 2.0 * d * w,
                2.0 * d * f - d * b - w,
                2.0 * d * f - (2.0 * d + 1.0) * w,
            )
        )
    )


def _folded(
    passes: tuple[Array, Array, Array], count: Array, m: Numeric, waits: Waits, slack: Array
) -> Array:
    """Time of m micro-batches on the devices of a V [s].

    passes   forward, gradients of inputs, gradients of weights of a chunk, (3, *batch)
    count    devices of each kind
    slack    micro-batches' chunks, in multiples of the devices, by which the others run ahead or
             behind of a slower device of each kind, (3,)

    A device works m times both its chunks, and waits as long as equal devices do that take what
    the others take on average; where it is slower than they are, they catch up meanwhile. Exact
    with equal devices.
    """
    devices = count.sum(axis=0)
    rest = np.maximum(devices - 1.0, 1.0)
    total = np.asarray(sum(passes))
    found: Array = np.zeros(total.shape[1:])
    for kind in range(3):
        left = count.copy()
        left[kind] -= 1.0
        others = [(each * left).sum(axis=0) / rest for each in passes]
        beside = np.where(left > 0, total, 0.0).max(axis=0)
        caught = slack[kind] * devices * np.maximum(total[kind] - beside, 0.0)
        wait = np.maximum(waits(devices - 1.0, *others) - caught, 0.0)
        bound = 2.0 * m * total[kind] + np.where(devices > 1, wait, 0.0)
        found = np.maximum(found, np.where(count[kind] > 0, bound, 0.0))
    return found


def zero_bubble_v(f: Array, b: Array, w: Array, count: Array, m: Numeric) -> Array:
    """Time of ZB-V [s]; f, b, w of a device, both its chunks, (3, *batch)."""
    return _folded((f / 2, b / 2, w / 2), count, m, _waits_zero_bubble, ZERO_BUBBLE)


def dual_pipe_v(f: Array, b: Array, w: Array, count: Array, m: Numeric) -> Array:
    """Time of DualPipeV [s]; f, b, w of a device, both its chunks, (3, *batch)."""
    return _folded((f / 2, b / 2, w / 2), count, m, _waits_dual, DUAL)


def dual_pipe(f: Array, b: Array, w: Array, count: Array, m: Numeric) -> Array:
    """Time of DualPipe [s]; f, b, w of a device per micro-batch, (3, *batch): first and last
    device are mirrored, so a V of the first half with a stage each way for every two of m."""
    half = np.stack([count[0] + count[2], count[1], np.zeros_like(count[2])]) / 2.0
    ends = [np.stack([np.where(count[0] > 0, p[0], p[2]), p[1], p[2]]) for p in (f, b, w)]
    f, b, w = ends
    return _folded((f, b, w), half, m / 2.0, _waits_dual, DUAL)


def order_zero_bubble_v(stage: int, pp: int, m: int) -> list[Block]:
    """Order of ZB-V on one device: chunks 0 and 1. m of at least 2 pp."""
    found: list[Block] = []
    done: Counter[tuple[str, int]] = Counter()

    def run(*works: tuple[str, int]) -> None:
        for direction, chunk in works:
            found.append(((direction, done[(direction, chunk)], chunk),))
            done[(direction, chunk)] += 1

    first = [("forward", 0)]
    second = [("forward", 1), ("backward", 1), ("weights", 1)]
    run(*first * (2 * (pp - stage) - 1))
    run(*[("forward", 1), ("forward", 0)] * stage)
    run(*second * (pp - stage))
    while done[("forward", 1)] < m:
        run(*first * (done[("forward", 0)] < m))
        run(("backward", 0), ("weights", 0), *second)
    run(*[("backward", 0), ("backward", 1)] * stage)
    run(*[("backward", 0), ("weights", 0)] * (pp - stage))
    for chunk in (1, 0):
        run(*[("weights", chunk)] * (done[("backward", chunk)] - done[("weights", chunk)]))
    return found


class _Order:
    """Blocks of one device, one after the other; each direction and chunk counts its own
    micro-batches. `left` are gradients of weights that are still to come."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.left: list[Work] = []
        self.done: Counter[tuple[str, int]] = Counter()

    def work(self, direction: str, chunk: int) -> Work:
        """The next micro-batch of a direction and chunk."""
        self.done[(direction, chunk)] += 1
        return direction, self.done[(direction, chunk)] - 1, chunk

    def forward(self, chunk: int) -> None:
        """A forward pass."""
        self.blocks.append((self.work("forward", chunk),))

    def backward(self, chunk: int, later: bool = False) -> None:
        """A backward pass, gradients of weights at once or later."""
        inputs, weights = self.work("backward", chunk), self.work("weights", chunk)
        if later:
            self.left.append(weights)
        self.blocks.append((inputs,) if later else (inputs, weights))

    def both(self, chunk: int, other: int) -> None:
        """A forward pass and, of another chunk, a backward pass as one block."""
        ahead, back = self.work("forward", chunk), self.work("backward", other)
        self.blocks.append((ahead, back, self.work("weights", other)))

    def weights(self) -> None:
        """Gradients of weights that were put off first."""
        self.blocks.append((self.left.pop(0),))


def order_dual_pipe_v(stage: int, pp: int, m: int) -> list[Block]:
    """Order of DualPipeV on one device: chunks 0 and 1; forward and backward chunks run as one
    block where both are there. m of at least 2 pp."""
    order, behind = _Order(), pp - stage - 1
    for _ in range(2 * behind):
        order.forward(0)
    for _ in range(stage + 1):
        order.forward(0)
        order.forward(1)
    for _ in range(behind):
        order.backward(1, later=True)
        order.weights()
        order.forward(1)
    for index in range(m - 2 * pp + stage + 1):
        if index == 0 and behind == 0:
            order.forward(0)
            order.backward(1)
        else:
            order.both(0, 1)
        order.both(1, 0)
    for _ in range(behind):
        order.backward(1)
        order.both(1, 0)
    turn, odd = (stage + 1) // 2, stage % 2
    for index in range(stage + 1):
        order.backward(1, later=index > turn or (index == turn and odd == 1))
        order.backward(0, later=index >= turn)
    for _ in range(behind):
        order.weights()
        order.backward(0, later=True)
    while order.left:
        order.weights()
    return order.blocks


def order_dual_pipe(stage: int, pp: int, m: int) -> list[Block]:
    """Order of DualPipe on one device; chunk 0 is its stage of the micro-batches from the front,
    chunk 1 that of the micro-batches from the back, whose numbers start at m / 2."""
    half, mirrored = m // 2, stage >= pp // 2
    near = pp - 1 - stage if mirrored else stage

    def own(work: Work) -> Work:
        direction, batch, chunk = work
        back = (chunk == 1) != mirrored
        return direction, batch + half * back, int(back)

    return [tuple(own(work) for work in block) for block in order_dual_pipe_v(near, pp // 2, half)]
