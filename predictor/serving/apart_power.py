"""What is drawn where prompts are read apart, and how long passes take under limits: accelerators
that read and those that decode each by their own work, idle time, heat and clock.

Both do their part of each request, at one rate, and are idle for the rest of the time. Under a
limit workers read later, by as much as their passes take longer, and fewer requests decode
meanwhile, or more: who is waited for is told by the balance of requests (`latency`), as without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Mask, combined
from predictor.catalog import power_setting
from predictor.plans import ServingPlan
from predictor.power import INSTANT, Activity, Conditions, Phase, Powered, powered
from predictor.records import dataclass
from predictor.serving.activities import (
    BURST,
    HOUR,
    SELDOM,
    Passing,
    decoding_passes,
    in_flight,
    of_a_second,
    one_pass_each,
    reading_passes,
)
from predictor.serving.apart import readers
from predictor.serving.clients import poisson_quantile
from predictor.serving.latency import latencies
from predictor.serving.pass_times import Work, decode_time
from predictor.serving.prediction import InferencePrediction, handed_over
from predictor.serving.prompts import full_share
from predictor.serving.stretches import stretches

ROUNDS = 3
"""Of the fixed point between how much longer passes take and how many requests decode meanwhile: a
fourth would move a time per token by 1e-5 of it, where workers never stop by up to 3e-3."""

PASSES = {"prefill": "prompts", "decode": "step"}
"""What a limit makes longer, by the phase: as `one_pass_each` names it."""


@dataclass(frozen=True, slots=True, eq=False)
class PoweredApart(Powered):
    """Of a mean accelerator; phases are shares of its time, peaks those of the higher kind,
    positions those of the workers' nodes before those of the engines.

    readers, decoders   of one that reads prompts, and of one that decodes
    apart               share of the accelerators that read prompts
    lasting             passes in the time that the conditions leave them
    """

    readers: Powered
    decoders: Powered
    apart: Array
    lasting: Work


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Accelerators of one kind in a second: their machines and plan, their work and its pieces."""

    phase: str
    found: InferencePrediction
    activity: dict[str, Activity]
    pieces: dict[str, Array]

    def _own(self, conditions: Conditions) -> Conditions:
        """Those of its accelerators."""
        return conditions.of_readers if self.phase == "prefill" else conditions

    def powered(self, conditions: Conditions) -> Powered:
        """What one of them draws."""
        own, conditions = self.found, self._own(conditions)
        setting = power_setting(own.cluster, conditions, own.calibration.power)
        return powered(self.activity, self.pieces, *setting, conditions, rest="idle")

    def slower(self, conditions: Conditions) -> Array:
        """How much longer the kernels of a pass as a request meets it take."""
        own, name = self.found, PASSES[self.phase]
        work = {**self.activity, **one_pass_each(own, (name,))}
        given = self._own(conditions)
        told = stretches(work, {name: name}, own.cluster, own.calibration, given, "idle")
        return told[name]


def _reader(found: InferencePrediction) -> InferencePrediction:
    """The prediction with the machines and data types of the workers."""
    machines, plan = readers(found.plan, found.cluster)
    return replace(found, cluster=machines, plan=plan)


def _shares(held: InferencePrediction) -> tuple[Array, Array]:
    """Of the time in which a worker reads, and an engine decodes.

    held   in the time that limits leave it
    """
    work, own, rate = held.work, held.parameters, held.latencies.requests_per_s
    after = np.maximum(np.asarray(work.output_len) - 1.0, 0.0) / work.per_pass
    reading = rate * full_share(work, own) / work.workers
    decoding = rate * after * decode_time(work, own) / (work.sequences * in_flight(held))
    if held.arriving is not None:
        full = np.asarray(held.arriving.full) > 0
        reading = np.where(full, reading, held.arriving.reading)
        decoding = np.where(full, decoding, 1.0 - held.arriving.alone)
    return np.clip(reading, 1e-9, 1.0), np.clip(decoding, 1e-9, 1.0)


def _kinds(free: InferencePrediction, held: InferencePrediction) -> tuple[_Kind, _Kind]:
    """Workers and engines in a second.

    free, held   of as many as run under limits: passes by themselves, and as limits leave them
    """
    mean = free if free.arriving is None else replace(free, work=free.arriving.work)
    reading, decoding = _shares(held)
    asked = held.latencies.requests_per_s / held.work.workers
    return (
        _of_readers(_reader(free), _reader(mean), reading, asked),
        _of_decoders(free, mean, decoding),
    )


def _of_readers(
    found: InferencePrediction, mean: InferencePrediction, busy: Array, asked: Array
) -> _Kind:
    """A worker that reads for such a share of the time, each of its replicas so many prompts a
    second: those that have none wait for the others."""
    passing, time = reading_passes(mean)
    several = np.asarray(mean.plan.prefill_dp) > 1
    count = np.where(several, np.minimum(busy / time, asked), busy / time)
    together = np.asarray(mean.work.together)
    most = poisson_quantile(asked * INSTANT, 1.0 - INSTANT / HOUR)
    burst = SELDOM * np.maximum(most, together)
    kinds = {"prefill": (count, busy), BURST: (burst, burst * time)}
    pieces = {
        "prefill": np.maximum(count / together, 1e-9),
        BURST: SELDOM * np.ones_like(busy),
        "idle": np.maximum(count / together * (1.0 - busy), 1e-9),
    }
    return _in_a_second("prefill", found, passing, kinds, pieces, busy)


def _of_decoders(found: InferencePrediction, mean: InferencePrediction, busy: Array) -> _Kind:
    """An engine that decodes for such a share of the time."""
    passing, time = decoding_passes(mean)
    pieces = {
        "decode": np.maximum(busy / time, 1e-9),
        "idle": np.maximum(found.latencies.requests_per_s * (1.0 - busy), 1e-9),
    }
    return _in_a_second("decode", found, passing, {"decode": (busy / time, busy)}, pieces, busy)


def _in_a_second(
    phase: str,
    found: InferencePrediction,
    one: Passing,
    counts: Mapping[str, tuple[Array, Array]],
    pieces: dict[str, Array],
    busy: Array,
) -> _Kind:
    """A kind whose passes all are alike: of each name so many a second, and their share of it."""
    timed = [
        (replace(one, phase=name, rate=one.rate * many), lasts)
        for name, (many, lasts) in counts.items()
    ]
    return _Kind(phase, found, of_a_second(timed, 1.0 - busy, found.plan)[1], pieces)


def _under(
    found: InferencePrediction, conditions: Conditions
) -> tuple[InferencePrediction, InferencePrediction]:
    """Of as many requests as decode under conditions, passes by themselves and as these leave
    them; twice the prediction itself where they make nothing longer."""
    free = held = found
    old, own = found.work, found.parameters
    begin = replace(old, sequences=old.running / in_flight(found))
    of = (found.model, found.cluster, found.plan)
    for _ in range(ROUNDS if conditions.slows else 0):
        read, step = (one.slower(conditions) for one in _kinds(free, held))
        prompts = replace(old.prompts, compute=old.prompts.compute * read)
        work = replace(begin, prompts=prompts)
        work, _ = handed_over(of, work, found.calibration, own, found.listed, step)
        work = _where((read == 1.0) & (step == 1.0), old, work)
        told = replace(found.latencies, requests_per_s=_ending(found, work))
        alone = replace(work.decoding, compute=work.decoding.compute / step)
        held = replace(found, work=work, latencies=told)
        free = replace(held, work=replace(work, prompts=old.prompts, decoding=alone))
    return free, held


def _ending(found: InferencePrediction, work: Work) -> Array:
    """Requests that end per second where passes take the time that they do in `work`."""
    rate = found.latencies.requests_per_s
    now, then = (latencies(one, found.parameters).requests_per_s for one in (work, found.work))
    full = True if found.arriving is None else np.asarray(found.arriving.full) > 0
    return np.asarray(np.where(full, rate * now / then, rate))


def _where(same: Mask, old: Work, new: Work) -> Work:
    """The old work where nothing takes longer."""
    return combined([old, new], lambda two: np.where(same, two[0], two[1]))


def powered_apart(found: InferencePrediction, conditions: Conditions) -> PoweredApart:
    """Power of a second of engines whose prompts are read apart, under conditions.

    Raises InputError where the power of either kind of accelerators is not known, or cannot be as
    asked.
    """
    both = _under(found, conditions)
    read, decode = (one.powered(conditions) for one in _kinds(*both))
    return _joined(read, decode, _reading_share(found.plan), both[1].work)


def watts_apart(found: InferencePrediction, conditions: Conditions) -> Array:
    """Mean power of an accelerator at a rate of arrivals [W], which says how long passes run
    (`arriving`): that of `powered_apart`, and no more."""
    share = _reading_share(found.plan)
    read, decode = (one.powered(conditions).mean for one in _kinds(found, found))
    return np.asarray(share * read + (1.0 - share) * decode)


def _reading_share(plan: ServingPlan) -> Array:
    """Of the accelerators, those that read prompts: all that do not decode."""
    return np.asarray(1.0 - plan.tp * plan.pp * plan.dp / plan.gpus)


def _joined(read: Powered, decode: Powered, share: Array, lasting: Work) -> PoweredApart:
    """A mean accelerator, of which such a share reads prompts."""
    shape = np.broadcast_shapes(share.shape, read.mean.shape, decode.mean.shape)

    def rows(name: str) -> Array:
        both = [np.asarray(getattr(one, name)) for one in (read, decode)]
        return np.concatenate([np.broadcast_to(one, (len(one), *shape)) for one in both])

    def mean(name: str) -> Array:
        own = [np.asarray(getattr(one, name)) for one in (read, decode)]
        return np.asarray(share * own[0] + (1.0 - share) * own[1])

    def most(name: str) -> Array:
        return np.asarray(np.maximum(getattr(read, name), getattr(decode, name)))

    phases = _phases(read, decode, share)
    return PoweredApart(
        work={**decode.work, **{name: one for name, one in read.work.items() if name != "idle"}},
        phases=phases,
        longer={**read.longer, **decode.longer},
        each={**read.each, **decode.each},
        held={**read.held, **decode.held},
        temperature=rows("temperature"),
        clock=rows("clock"),
        throttled=rows("throttled").astype(bool),
        mean=mean("mean"),
        instant=most("instant"),
        averaged=most("averaged"),
        energy=mean("mean"),
        waited=mean("waited"),
        sigma=max(read.sigma, decode.sigma),
        gap=rows("gap"),
        readers=read,
        decoders=decode,
        apart=np.broadcast_to(share, shape),
        lasting=lasting,
    )


def _phases(read: Powered, decode: Powered, share: Array) -> list[Phase]:
    """Phases of a second of a mean accelerator; both kinds are idle in one."""
    found: dict[str, Phase] = {}
    for own, part in ((read, share), (decode, 1.0 - share)):
        for one in own.phases:
            time = np.asarray(part * one.time / own.time)
            before = found.get(one.name)
            if before is not None:
                whole = before.time + time
                joules = before.time * before.power + time * one.power
                power = joules / np.maximum(whole, 1e-15)
                found[one.name] = Phase(one.name, whole, power, before.pieces + one.pieces)
            else:
                found[one.name] = Phase(one.name, time, one.power, one.pieces)
    return list(found.values())
