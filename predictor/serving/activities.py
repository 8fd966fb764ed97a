"""What an accelerator does in a second of serving: passes over prompts, passes that decode, both in
one, and what is idle between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Mask, Numeric, combined
from predictor.plans import ServingPlan
from predictor.power import INSTANT, Activity
from predictor.records import dataclass
from predictor.serving.clients import poisson_quantile
from predictor.serving.joint import repeated
from predictor.serving.latency import met_at_work, passes_with_prompts
from predictor.serving.pass_times import Arriving, Work, decode_time, prompt_time
from predictor.serving.pass_works import PassWork, decode_work, mixed_work, prompt_work
from predictor.serving.prediction import InferencePrediction
from predictor.serving.prompts import beside, full_share, in_pass, single_passes
from predictor.timing import EngineParameters


@dataclass(frozen=True, slots=True, eq=False)
class ServingActivity:
    """What one accelerator does in a second of serving, by phase: 'prefill', 'decode', 'idle'; of
    the first two apart what ranks spend in collectives ('decode.exchange'), which meets a limit by
    itself: a rank that waits draws less than its products do.

    share     of the second
    activity  while it lasts
    prompts, passes   a second, of one replica; `passes` decode
    pieces    of phases and of what is a peak by itself, in their share of a second; of decoding
              its passes, unless stated
    """

    share: dict[str, Array]
    activity: dict[str, Activity]
    prompts: Array
    passes: Array
    pieces: dict[str, Array]


def _tiled(found: InferencePrediction) -> float:
    """1 where a pass multiplies its experts in tiles of 64 tokens, however few each has: with
    scales by block (vLLM, model_executor/layers/fused_moe/fused_moe.py, `get_default_config`,
    from memory)."""
    return float(found.model.is_moe and found.plan.weights == "fp8_block")


def _exchanging(
    found: InferencePrediction, own: Array, steps: Array, first: Array, rest: Array
) -> list[Array]:
    """Shares of the time of reading and of decoding in which ranks talk to each other.

    own, steps    requests and passes per second
    first, rest   shares of the time in which prompts are read, and in which tokens are decoded
    """
    talk = found.parameters.communication
    asking = own * talk * found.work.prompts.communication / found.work.together
    meeting = steps * talk * found.work.decoding.communication
    return [
        np.clip(part / np.maximum(whole, 1e-12), 0.0, 1.0)
        for part, whole in ((asking, first), (meeting, rest))
    ]


EXCHANGE = "exchange"
"""Of a phase: its collectives, in which ranks wait for each other and no kernel multiplies."""


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """Passes of a phase in a second: the work of one, how many there are, rows of their products,
    whether those have a row for each sequence only (1 or 0); shares of their time that are tiles of
    padding, in which the host is at work, and in which ranks talk to each other."""

    phase: str
    work: PassWork
    rate: Array
    rows: Array
    thin: float
    padded: Array
    halted: Array
    talks: Array

    def parts(self, time: Array) -> dict[str, Activity]:
        """Activity of their kernels, and of their collectives where there are any.

        time   of the phase in a second
        """
        each, rate = self.work, self.rate
        alone = np.maximum(1.0 - self.talks, 1e-12)
        found = {
            self.phase: Activity(
                time=np.maximum(time * alone, 1e-12),
                flop=rate * each.flop,
                bytes=rate * each.bytes,
                widened=rate * each.widened,
                rows=self.rows,
                thin=self.thin,
                padded=np.minimum(self.padded / alone, 1.0),
                core=each.core,
                halted=np.minimum(self.halted / alone, 1.0),
            )
        }
        if np.any(self.talks > 0):
            found[f"{self.phase}.{EXCHANGE}"] = Activity(
                np.maximum(time * self.talks, 1e-12), link=rate * each.link, spinning=1.0
            )
        return found


def of_a_second(
    passes: Iterable[tuple[Passing, Array]], idle: Array, plan: ServingPlan
) -> tuple[dict[str, Array], dict[str, Activity]]:
    """Shares of a second, and activity, of passes that take so much of it, and of what is idle."""
    activity: dict[str, Activity] = {}
    for one, time in passes:
        activity |= one.parts(time)
    share = {name: np.asarray(part.time) for name, part in activity.items()}
    share["idle"] = idle
    activity["idle"] = Activity(time=np.maximum(idle, 1e-12), flop=np.zeros(plan.shape))
    return share, activity


def in_flight(found: InferencePrediction) -> Array:
    """Micro-batches that are in a pipeline's stages at a time: of so many passes each accelerator
    does its part while one of them goes through all stages; 1 without a pipeline."""
    return np.maximum(np.minimum(found.plan.working, found.work.running), 1.0)


def decoding_rate(work: Work, plan: ServingPlan, requests: Array) -> Array:
    """Decoding passes in a second, of so many requests: none after an answer of one token."""
    after = np.maximum(np.asarray(work.output_len) - 1.0, 0.0)
    together = np.maximum(np.asarray(work.sequences), 1e-9)
    return np.asarray(requests * after / plan.tokens_per_pass / together)


def serving_activity(
    found: InferencePrediction, tokens_per_s: Numeric | None = None
) -> ServingActivity:
    """Activity of a prediction of serving.

    tokens_per_s   generated by the whole engine, where it was measured; None: as predicted

    A static batch reads its prompts and decodes to its end (`_in_turn`); at a concurrency passes
    follow each other without a gap but the host's (`_following`); at a rate of arrivals the rest of
    the time is idle (`_at_random`).
    """
    if tokens_per_s is None and found.arriving is not None:
        return _at_random(found, found.arriving)
    own = np.asarray(found.latencies.requests_per_s)
    if tokens_per_s is not None:
        own = np.asarray(tokens_per_s / found.plan.output_len / found.plan.dp)
    serving = np.broadcast_to(np.asarray(found.plan.serving) > 0, found.plan.shape)
    if not np.any(serving):
        return _in_turn(found, own)
    following = _following(found, own)
    return following if np.all(serving) else _either(serving, following, _in_turn(found, own))


def _either(first: Mask, one: ServingActivity, other: ServingActivity) -> ServingActivity:
    """The one where `first` holds, the other elsewhere."""
    none = Activity(time=np.full(first.shape, 1e-12))

    def chosen(mine: Any, others: Any) -> Any:
        return np.where(first, mine, others)

    def of_each(name: str) -> Activity:
        both = [own.activity.get(name, none) for own in (one, other)]
        return combined(both, lambda two: chosen(*two))

    names = dict.fromkeys([*one.activity, *other.activity])
    return ServingActivity(
        share={n: chosen(one.share.get(n, 0.0), other.share.get(n, 0.0)) for n in names},
        activity={n: of_each(n) for n in names},
        prompts=chosen(one.prompts, other.prompts),
        passes=chosen(one.passes, other.passes),
        pieces={
            n: chosen(value, other.pieces.get(n, other.passes)) for n, value in one.pieces.items()
        },
    )


def _in_turn(found: InferencePrediction, own: Array) -> ServingActivity:
    """Activity of static batches of so many requests a second, whose prompts are read before
    anything decodes."""
    plan, flight = found.plan, in_flight(found)
    sequences, steps = np.asarray(found.work.sequences), decoding_rate(found.work, plan, own)
    # What others read is padding, which is computed, too.
    read = own * repeated(found.work)
    reading = read * prompt_time(found.work, found.parameters) / found.work.together / flight
    first = np.clip(reading, 0.0, 0.95)
    rest = np.minimum(steps * found.latencies.step / flight, 1.0 - first)
    none = np.zeros(plan.shape)
    kernels = steps * decode_time(replace(found.work, streamed=0.0), found.parameters) / flight
    waits = _exchanging(found, read / flight, steps / flight, first, rest)
    halted = np.maximum(1.0 - kernels / np.maximum(rest, 1e-12), 0.0)
    many = np.asarray(found.work.together) * plan.new_tokens
    passes = (
        Passing(
            phase="prefill", work=prompt_work(found), rate=read, rows=many, thin=0.0, padded=none,
            halted=none, talks=waits[0],
        ),
        Passing(
            phase="decode", work=decode_work(found, sequences), rate=steps,
            rows=sequences * (1.0 + plan.drafted), thin=1.0, padded=none, halted=halted + none,
            talks=waits[1],
        ),
    )  # fmt: skip
    share, activity = of_a_second(zip(passes, (first, rest), strict=True), 1.0 - first - rest, plan)
    return ServingActivity(
        share=share,
        activity=activity,
        prompts=np.asarray(own),
        passes=np.asarray(steps),
        pieces={
            "prefill": np.maximum(own / found.work.together, 1e-9),
            "decode": np.maximum(steps, 1.0),
            "idle": np.ones_like(steps),
        },
    )


def _talking(
    work: Work, own: EngineParameters, prompts: Array, time: Array, flight: Array
) -> Array:
    """Share of passes over `prompts` prompts, of so long a time of an accelerator in all [s], in
    which ranks talk to each other: those over one, and what each other adds."""
    more = np.maximum(prompts - 1.0, 0.0) / work.together
    talk = work.single.communication + more * np.asarray(work.prompts.communication)
    talk = talk / flight
    return np.asarray(np.clip(own.communication * talk / np.maximum(time, 1e-12), 0.0, 1.0))


def reading_passes(found: InferencePrediction) -> tuple[Passing, Array]:
    """Passes over one prompt of those that are read together, and an accelerator's time in them
    [s]."""
    work, own, plan = found.work, found.parameters, found.plan
    none, time = np.zeros(plan.shape), full_share(work, own)
    talk = own.communication * np.asarray(work.prompts.communication) / work.together
    talk = talk * (1.0 + np.asarray(work.fill))
    reading = Passing(
        phase="prefill",
        work=prompt_work(found),
        rate=np.ones(plan.shape),
        rows=np.asarray(work.together) * plan.new_tokens,
        thin=0.0,
        padded=none,
        halted=none,
        talks=np.clip(talk / np.maximum(time, 1e-12), 0.0, 1.0),
    )
    return reading, time


def _met(found: InferencePrediction, prompts: Array) -> tuple[Passing, Array]:
    """Passes over so many prompts that come while others decode, and an accelerator's time in them
    [s]: beside these, or in passes of their own."""
    work, own, plan = found.work, found.parameters, found.plan
    share, none, count = full_share(work, own), np.zeros(plan.shape), single_passes(work)
    more, flight = np.maximum(prompts - 1.0, 0.0), in_flight(found)
    if plan.batching == "mixed":
        sequences = np.asarray(work.sequences)
        step = decode_time(work, own) / flight
        time = count * step + beside(work, own) + more * own.mixing * share
    else:
        sequences = none
        alone = prompt_time(work, own, single=True) / flight
        time = np.maximum(alone, share) + more * share
    reading = Passing(
        phase="prefill",
        work=mixed_work(found, prompts, sequences),
        rate=np.ones(plan.shape),
        rows=prompts * plan.new_tokens / count + sequences * (1.0 + plan.drafted),
        thin=0.0,
        padded=none,
        halted=none,
        talks=_talking(work, own, prompts, time, flight),
    )
    return reading, np.asarray(time)


def decoding_passes(found: InferencePrediction) -> tuple[Passing, Array]:
    """A pass that decodes and nothing else, and an accelerator's time in it [s]."""
    work, own, plan = found.work, found.parameters, found.plan
    sequences, time = np.asarray(work.sequences), decode_time(work, own)
    kernels = decode_time(replace(work, streamed=0.0), own)
    talk = own.communication * np.asarray(work.decoding.communication)
    decoding = Passing(
        phase="decode",
        work=decode_work(found, sequences),
        rate=np.ones(plan.shape),
        rows=sequences * (1.0 + plan.drafted),
        thin=1.0,
        padded=np.zeros(plan.shape),
        halted=np.maximum(1.0 - kernels / np.maximum(time, 1e-12), 0.0) + np.zeros(plan.shape),
        talks=np.clip(talk / np.maximum(time, 1e-12), 0.0, 1.0),
    )
    return decoding, np.asarray(time / in_flight(found))


HOUR = 3600.0
"""Over which a sensor looks for a peak [s]."""

BURST = "prefill.burst"
"""Passes over as many prompts as come within a window of a sensor once in that time."""

SELDOM = 1e-6
"""Passes a second that tell how long such a pass takes, and add nothing to what is drawn."""

PASSES: dict[str, Callable[[InferencePrediction], tuple[Passing, Array]]] = {
    "prompts": reading_passes,
    "single": lambda found: _met(found, np.ones(found.plan.shape)),
    "step": decoding_passes,
}
"""As a request meets them: over prompts that are read together, over one among others, that
decode."""


def one_pass_each(
    found: InferencePrediction, names: Iterable[str] = tuple(PASSES)
) -> dict[str, Activity]:
    """Activity of passes of `PASSES`, of which there are next to none."""
    activity: dict[str, Activity] = {}
    for name in names:
        passing, time = PASSES[name](found)
        rare = replace(passing, phase=name, rate=SELDOM * passing.rate)
        activity |= rare.parts(SELDOM * time)
    return activity


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """Passes of one kind, an accelerator's time in one of them [s], and how many a second has."""

    passing: Passing
    time: Array
    count: Array

    def filling(self, name: str, share: Array) -> tuple[Passing, Array]:
        """As a phase that takes so much of a second."""
        return replace(self.passing, phase=name, rate=self.passing.rate * self.count), share


def _counted(
    mean: InferencePrediction, rate: Array, by_itself: Array, gathered: Array
) -> dict[str, _Counted]:
    """Passes of a second: over prompts that nobody decodes beside, over those that come while
    others decode, and those that decode and nothing else.

    mean       of passes as they are on average
    rate       of prompts of a replica [1/s], padding with them
    by_itself  share of them that are read while nothing decodes
    gathered   prompts of a pass that has some of the others
    """
    plan, work = mean.plan, mean.work
    steps = decoding_rate(work, plan, mean.latencies.requests_per_s)
    reads = rate * (1.0 - by_itself) / gathered
    riding = reads * single_passes(work) if plan.batching == "mixed" else np.zeros(plan.shape)
    return {
        "prefill": _Counted(*reading_passes(mean), rate * by_itself),
        "prefill.beside": _Counted(*_met(mean, gathered), reads),
        "decode": _Counted(*decoding_passes(mean), np.maximum(steps - riding, 0.0)),
    }


def _for_each_pass(mean: InferencePrediction, rate: Array, by_itself: Array) -> Array:
    """Prompts that come while others decode, for each pass that decodes; of answers of one token
    as if these had a second."""
    work = replace(mean.work, output_len=np.maximum(mean.work.output_len, 2.0))
    steps = decoding_rate(work, mean.plan, mean.latencies.requests_per_s)
    return np.asarray(np.maximum(rate * (1.0 - by_itself) / np.maximum(steps, 1e-9), 1e-12))


def _following(found: InferencePrediction, own: Array) -> ServingActivity:
    """Activity of an engine of so many requests a second, whose clients follow each other: its
    passes fill the time at the predicted rate, but for what stages of a pipeline wait for each
    other, and where there are fewer clients than replicas as much of it as there are. How many
    prompts share a pass is told by `latency.passes_with_prompts`.

    What measured passes take beyond that, experts with scales by block spend on tiles that are
    mostly padding (`_tiled`), all others waiting for the host, which is also where clients are
    answered in the loop of passes: then no kernel keeps the processors busy.
    """
    plan, work = found.plan, found.work
    predicted = np.maximum(found.latencies.requests_per_s, 1e-12)
    read, by_itself = predicted * repeated(work), 1.0 - met_at_work(work)
    each = _for_each_pass(found, read, by_itself)
    some = passes_with_prompts(work, found.parameters, each)
    gathered = np.minimum(each / some, np.maximum(in_pass(work), 1.0))
    kinds = _counted(found, read, by_itself, gathered)
    busy = sum((one.time * one.count for one in kinds.values()), np.zeros(()))
    closed, often = found.arriving is None, np.asarray(own / predicted)
    meeting = np.asarray(work.meeting)
    taken = np.minimum(work.running * meeting, 1.0) if closed else np.ones(plan.shape)
    most = taken / np.maximum(busy, 1e-12)
    # Stages wait for each other; at a measured rate of arrivals the rest is idle.
    alone = (in_flight(found) <= 1) & closed
    filled = np.minimum(np.where(alone, most, np.minimum(most, 1.0)) * often, most)
    lasts = {name: one.time * one.count * filled for name, one in kinds.items()}
    whole = sum(lasts.values(), np.zeros(()))
    # Padding of several replicas may be computed in one pass.
    many = often * np.where(meeting > 1, np.minimum(most, 1.0), 1.0)
    kinds = {name: replace(one, count=one.count * many) for name, one in kinds.items()}
    gap = np.maximum(taken - whole, 0.0) if closed else np.zeros(plan.shape)
    timed = [kinds[n].filling(n, lasts[n]) for n in ("prefill", "prefill.beside")]
    decoding, time = kinds["decode"].filling("decode", lasts["decode"])
    timed.append(_with_gap(decoding, time, gap, _tiled(found)))
    share, activity = of_a_second(timed, np.maximum(1.0 - whole - gap, 0.0), plan)
    return ServingActivity(
        share=share,
        activity=activity,
        prompts=own,
        passes=decoding_rate(work, plan, own),
        pieces={
            "prefill": np.maximum(kinds["prefill"].count + kinds["prefill.beside"].count, 1e-9),
            "decode": np.maximum(kinds["decode"].count, 1.0),
            "idle": np.ones(plan.shape),
        },
    )


def _with_gap(passing: Passing, time: Array, gap: Array, tiled: float) -> tuple[Passing, Array]:
    """Passes that take so much of a second, and a time behind them in which no kernel runs [s], or,
    where `tiled`, only tiles of padding."""
    whole = np.maximum(time + gap, 1e-12)
    passes, rest = time / whole, gap / whole
    return replace(
        passing,
        padded=passing.padded * passes + tiled * rest,
        halted=passing.halted * passes + (1.0 - tiled) * rest,
        talks=passing.talks * passes,
    ), np.asarray(time + gap)


def _at_random(found: InferencePrediction, arriving: Arriving) -> ServingActivity:
    """Activity of an engine at which requests arrive at random.

    Those that find it idle are read alone. Prompts of the others gather in the passes that decode:
    of m for each of these, 1 - exp(-m) of them have some; those that take several passes have
    theirs one by one. Passes fill the time in which somebody runs.
    """
    plan, work = found.plan, arriving.work
    mean, alone = replace(found, work=work), np.asarray(arriving.alone)
    rate = np.asarray(found.latencies.requests_per_s)
    read, several = rate * repeated(work), single_passes(work) > 1
    each = _for_each_pass(mean, read, alone)
    kinds = _counted(mean, read, alone, np.where(several, 1.0, each / -np.expm1(-each)))
    most = poisson_quantile(read * INSTANT, 1.0 - INSTANT / HOUR)
    rare = SELDOM * np.ones(plan.shape)
    kinds[BURST] = _Counted(*_met(mean, np.maximum(most, 1.0)), rare)
    busy = sum((one.time * one.count for one in kinds.values()), np.zeros(()))
    # As many more, or fewer, as fill the time in which somebody runs: their number varies.
    more = (1.0 - alone) / np.maximum(busy, 1e-12)
    kinds = {name: replace(one, count=one.count * more) for name, one in kinds.items()}
    timed = [one.filling(name, one.time * one.count) for name, one in kinds.items()]
    share, activity = of_a_second(timed, alone + np.zeros(plan.shape), plan)
    return ServingActivity(
        share=share,
        activity=activity,
        prompts=rate,
        passes=decoding_rate(work, plan, rate),
        pieces={
            "prefill": kinds["prefill"].count + kinds["prefill.beside"].count,
            BURST: kinds[BURST].count,
            "decode": np.maximum(kinds["decode"].count, 1e-9),
            "idle": np.maximum(rate * alone, 1e-9),
        },
    )
