"""Who waits for whom: from the spread of accelerators and of stretches of work to that of a step.

Tensor-, context- and expert-parallel ranks wait for each other in every section, stages of a
pipeline for the slowest of them, data-parallel replicas once a step. Everything is relative to the
time of a pipeline of median accelerators without noise; times of a maximum are by `order`.

A static spread decides once: with m micro-batches the slowest of all N accelerators sets the pace
of m passes, the p - 1 passes of filling and draining see the slowest of a typical group. Noise in
time is drawn anew for every section.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass
from predictor.variation.order import clark, normal_maximum
from predictor.variation.profile import Profile, slowest


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """Who meets whom in a step; floats or arrays of one broadcast shape.

    ranks      that meet in every section (tensor, context and expert parallel)
    stages     of the pipeline
    replicas   that meet once a step: accelerators / (ranks x stages)
    batches    micro-batches of a pipeline
    chunks     virtual stages of a device
    sections   independent draws of noise in a micro-batch's passes on a stage
    """

    ranks: Numeric
    stages: Numeric
    replicas: Numeric
    batches: Numeric
    chunks: Numeric = 1.0
    sections: Numeric = 1.0

    @property
    def accelerators(self) -> Numeric:
        """In all."""
        return self.ranks * self.stages * self.replicas

    def of(self, accelerators: Numeric) -> Meeting:
        """The same layout on at most so many accelerators: fewer replicas, then stages, then
        ranks."""
        ranks = np.minimum(self.ranks, accelerators)
        stages = np.minimum(self.stages, np.maximum(accelerators / ranks, 1.0))
        replicas = np.minimum(self.replicas, np.maximum(accelerators / (ranks * stages), 1.0))
        return replace(self, ranks=ranks, stages=stages, replicas=replicas)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """What waiting adds to a pipeline's time, as a share of it; arrays of one shape.

    ranks, stages, replicas   by whom one waits for
    step         standard deviation of the whole from step to step
    allocation   the same from one set of accelerators to another
    """

    ranks: Array
    stages: Array
    replicas: Array
    step: Array
    allocation: Array

    @property
    def whole(self) -> Array:
        """All three together."""
        return np.asarray(self.ranks + self.stages + self.replicas)


def _section(h: Array, ranks: Array, gpu: Array, work: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of a section around an accelerator h slow: the larger of its own
    time and of the slowest of the others', by Clark's formula; (...) each."""
    late, narrow = normal_maximum(np.maximum(ranks - 1.0, 1.0))
    both = np.hypot(gpu, work)
    mean, spread = clark((h, work), (late * both, narrow * both))
    several = (ranks > 1.0) & (work > 0)
    return np.where(several, mean, h), np.where(several, spread, work)


def _pace(meeting: Meeting, gpu: Array, work: Array, of: Profile) -> tuple[Array, Array, Array]:
    """Share added by the slowest of the accelerators of `meeting`; its standard deviation from step
    to step and from allocation to allocation."""
    ranks, stages = np.asarray(meeting.ranks, float), np.asarray(meeting.stages, float)
    m = np.asarray(meeting.batches, float)
    static, allocation = slowest(meeting.accelerators, gpu, of)
    section, noise = _section(static, ranks, gpu, work)
    alone, _ = slowest(ranks, np.hypot(gpu, work), of)
    fill = (stages - 1.0) / meeting.chunks
    pace = (m * section + fill * alone) / (m + fill)
    own = noise / np.sqrt(np.maximum(m * meeting.sections, 1.0))
    # Replicas that are about as slow as each other wait for the unluckiest of the step.
    _, apart = slowest(ranks * stages, gpu, of)
    late, narrow = normal_maximum(meeting.replicas)
    pace = pace + late * (np.hypot(apart, own) - apart)
    alike = own / np.maximum(np.hypot(apart, own), 1e-300)
    return pace, own * (alike * narrow + 1.0 - alike), allocation * (m / (m + fill))


def waiting(meeting: Meeting, gpu: Numeric, work: Numeric, of: Profile) -> Waiting:
    """What waiting adds to a pipeline's time.

    gpu    standard deviation between accelerators, static
    work   of one section of one rank, drawn anew every time
    of     the profile, for accelerators that are slow beyond `gpu`

    Parts are by ordered addition: ranks by themselves, then their stages, then all replicas.
    """
    shape = np.broadcast_shapes(
        *(np.shape(getattr(meeting, name)) for name in Meeting.__dataclass_fields__),
        np.shape(gpu),
        np.shape(work),
    )
    names = tuple(Meeting.__dataclass_fields__)
    rows = [np.broadcast_to(np.asarray(getattr(meeting, n), float), shape).ravel() for n in names]
    rows += [np.broadcast_to(np.asarray(v, float), shape).ravel() for v in (gpu, work)]
    whole = Meeting(*rows[: len(names)])
    spread, noise = rows[len(names)], rows[len(names) + 1]
    one = np.ones_like(spread)
    group = replace(whole, stages=one, replicas=one)
    line = replace(whole, replicas=one)
    by_ranks, _, _ = _pace(group, spread, noise, of)
    by_stages, _, _ = _pace(line, spread, noise, of)
    by_all, step, allocation = _pace(whole, spread, noise, of)
    parts = (
        by_ranks,
        np.maximum(by_stages - by_ranks, 0.0),
        np.maximum(by_all - np.maximum(by_stages, by_ranks), 0.0),
        step,
        allocation,
    )
    return Waiting(*(np.asarray(value).reshape(shape) for value in parts))
