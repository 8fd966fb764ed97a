"""One slow accelerator or node: what a pipeline loses, and where it hurts least.

Its tensor-parallel group goes at its pace, and with it the stage; replicas wait once a step. So
several slow ones cost once where they sit in one group, and each anew where they do not: at random,
the worst of the stages that they fall on decides.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass


def line_time(forward: Array, backward: Array, m: Numeric, vpp: Numeric = 1.0) -> Array:
    """Time of m micro-batches through 1F1B on any stages [s], shape (*batch).

    forward, backward   of every stage, (stages, *batch) [s]; vpp virtual stages divide all but the
                        work of the stage that decides

    Stage k works m t_k, waits for the stages before it and, with n stages behind it that take S,
    for max(0, S - n f_k) before the first backward pass and min(S - n b_k, (m - 1) (pace - b_k))
    before the last. The pipeline takes the most of that over stages: with three kinds of stages
    `plans.pipeline_time`.
    """
    t = forward + backward
    p = len(t)
    before = np.cumsum(t, axis=0) - t
    behind = t.sum(axis=0) - before - t
    pace = np.zeros_like(t)
    for at in range(p - 2, -1, -1):
        pace[at] = np.maximum(pace[at + 1], t[at + 1])
    left = (p - 1.0 - np.arange(p)).reshape(-1, *([1] * (t.ndim - 1)))
    n = np.minimum(left, np.asarray(m) * vpp - 1.0)
    last = np.minimum(behind - n * backward, (np.asarray(m) * vpp - 1.0) * (pace - backward))
    idle = np.maximum(behind - n * forward, 0.0) + np.maximum(last, 0.0)
    return np.asarray((m * t + (before + idle) / vpp).max(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Loss of a step by where slow units sit, over the step without them.

    by_stage   of one unit on each stage, (stages,)
    packed     of all in one group, on the stage where it hurts least
    random     expected, each unit anywhere
    spread     each in a group of its own, one of them on the worst stage
    """

    by_stage: Array
    packed: float
    random: float
    spread: float


def placed(by_stage: Array, units: float, ranks: float) -> Placement:
    """Where units hurt.

    by_stage   loss of one unit on each stage, stages equally large
    units      slow ones
    ranks      accelerators of a group

    At random the largest loss among the stages that n units fall on: P(loss <= L) = (share of the
    stages with at most L)^n. Packed, they fill groups on the mildest stages first; replicas are
    enough for all of them there.
    """
    order = np.sort(by_stage)
    share = np.arange(1, len(order) + 1) / len(order)
    reached = share**units
    random = float(np.sum(order * np.diff(np.concatenate([[0.0], reached]))))
    worst = float(order[-1]) if units * len(order) > 1 else float(order[0])
    return Placement(by_stage, float(order[0]), random, worst if units > 0 else 0.0)


def run_share(accelerators: Numeric, every: Numeric, lasting: Numeric) -> Array:
    """Share of the time in which at least one of so many accelerators is slow.

    every     mean time between spells of one accelerator [s]
    lasting   of a spell, until it ends or is noticed and the accelerator replaced [s]

    Spells are a Poisson process: of an M/G/infinity queue, 1 - e^(-N lasting / every) of the time
    one is there.
    """
    return np.asarray(-np.expm1(-np.asarray(accelerators, float) * lasting / every))
