"""Latencies out of passes: arithmetic only, floats or arrays of one broadcast shape.

A static batch starts together and ends together. At a concurrency, requests follow each other:
while one of `running` decodes, each of the others has one prompt read. Prompts that are read
together delay each other's first token; the rest delay the decoding.

Little 1961 for the balance of requests; Yu et al. 2022 (Orca) for passes that mix both; Pollaczek
1930 for the wait behind random arrivals.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass
from predictor.serving.joint import joint, meetings
from predictor.serving.meeting import with_prompts
from predictor.serving.pass_times import Work, decode_time, prompt_time
from predictor.serving.prompts import (
    at_random,
    beside,
    full_share,
    in_pass,
    own_prompt,
    read_time,
    single_passes,
)
from predictor.serving.spaced import spaced
from predictor.timing import EngineParameters


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Seconds, and requests per second of one replica.

    step     one pass that decodes and nothing else
    prompt   what one more prompt costs
    turn     time between the prompts that are taken up while others wait
    queue    wait of a request until there is room for it, part of `e2e` and of `ttft`; of a static
                      batch, wait of the last requests
    """

    ttft: Array
    tpot: Array
    e2e: Array
    requests_per_s: Array
    step: Array
    prompt: Array
    turn: Array
    queue: Array


def latencies(work: Work, own: EngineParameters) -> Latencies:
    """Latencies of a static batch, or in the steady state of a concurrency.

    Static: first token = prompts (1 + fill), or as `spaced` clients send; the rest = (n - 1)
    passes; what the cache cannot hold comes after that. The batch is in the engine's own process.

    Concurrency, R of C clients running: with S = synchrony (R - 1), G = 1 + S / (1 + S tokens /
    burst) prompts arrive together, and the other R - G while a request decodes, as far as its
    passes have room for them (the rest delays first tokens too). Of the G, one is read alone and
    the others after it, c to a pass: (1 + (G - 1) (1 + (G - 1 + c) / 2)) / G prompts have been
    read when a mean one has (c at most G - 1). First token = request + half a pass that is under
    way (not where all send together) + those prompts + the pass that answers + queue; the rest =
    (n - 1) passes + what (R - G) prompts add to them (`riding`); fewer passes where each adds
    several tokens. Alike ones meet full passes (`_under_way`). Engines that look every N passes let
    requests wait for (N - 1) / 2 more. What does not run waits (C - R) / R of a running life.

    Prompts read apart by W workers: none delays the decoding, the cache travels before it; one
    costs 1 / W of its time, of workers that replicas share (W < 1) as much as of one's own.
    """
    step, batch, prompt = decode_time(work, own), read_time(work, own), full_share(work, own)
    apart, static = np.asarray(work.workers) > 0, np.asarray(work.static) > 0
    turn = np.where(apart, prompt / np.maximum(work.shared, 1.0), prompt)
    prompt = np.where(apart, prompt / np.where(apart, work.workers, 1.0), prompt)
    after = (tokens := np.maximum(work.output_len - 1.0, 0.0)) / work.per_pass
    opening, burst = _opening(work), _burst(work, own, after)
    read = _while_decoding(work, own, burst, prompt, after)
    mixed = riding(work, own, read, prompt, after)
    delay = np.where(static | apart | (after <= 0), 0.0, mixed / np.maximum(after, 1e-9))
    each, full = read / np.maximum(after, 1e-9), _full(work, own, prompt, step)
    told = joint(work, own, each, prompt, step + delay, full)
    alone = batch / np.maximum(work.together, 1.0)
    first = _reading(work, own, burst, prompt, alone, step, told.scale)
    under_way = _residual(work, own, after, told.usual, told.longer)
    first = first + np.where(apart, 0.0, (1.0 - opening) * under_way)
    ttft = np.where(static, spaced(work, batch, step), first) + work.answered * step
    # In passes of their own, with what passes over few prompts take beyond their share.
    several = np.where(read > 0, mixed / np.maximum(read, 1e-9), prompt)
    separate, few = np.asarray(work.apart) > 0, apart | static | (work.running <= 1)
    ahead = np.where(few, 0.0, np.where(separate & ~told.meets, several, told.turn))
    mixed = mixed + _behind(work, own, prompt, _room(work, after) - read)
    mixed = np.where(static | apart | (tokens < 1), 0.0, mixed)
    decoding = after * step + mixed + np.where(tokens > 0, work.transfer, 0.0)
    # Workers that are always busy, or full passes, decide how often a request gets its turn.
    full = np.where(apart, prompt, np.where(separate, 0.0, ahead))
    busy = np.maximum(work.running * full - ttft - decoding, 0.0)
    life = (ttft := ttft + busy) + decoding
    waiting = np.where(np.isfinite(work.clients), work.clients - work.running, 0.0)
    queue = np.maximum(waiting, 0.0) / work.running * life
    # A static batch ends with its last wave; waves start one after the other.
    tpot = np.where(tokens > 0, decoding / np.maximum(tokens, 1.0), step / work.per_pass)
    return Latencies(
        ttft=np.asarray(np.where(static, _of_batch(work, ttft, life), ttft + queue)),
        tpot=np.asarray(tpot),
        e2e=np.asarray(life + queue),
        requests_per_s=np.asarray(work.running / life),
        step=step,
        prompt=np.asarray(np.where(ahead > 0, ahead, prompt)),
        turn=np.asarray(np.where((ahead > 0) & (separate | told.meets), ahead, turn)),
        queue=np.asarray(queue + busy),
    )


def _of_batch(work: Work, prompts: Array, life: Array) -> Array:
    """Mean first token of a static batch [s]. Engines that take blocks of the cache on demand read
    as many prompts at once as it holds of these (`started`); the others wait, half as long as the
    last of them on average.

    prompts   first token of those that run to their end
    life      of a wave of these
    """
    started = np.maximum(work.started, work.running)
    later = 0.5 * np.maximum(work.clients - started, 0.0) / work.running * life
    return np.asarray(prompts * (started / work.running) + later)


def _opening(work: Work) -> Array:
    """Share of the requests that are sent when all clients begin at once: the first of those that
    each sends."""
    return np.asarray(np.minimum(work.synchrony, 1.0 / np.maximum(work.rounds, 1.0)))


def _later(work: Work) -> Array:
    """Of the clients, those that send together in the waves after the first."""
    opening = _opening(work)
    rest = 1.0 - opening
    return np.asarray(np.where(rest > 0, (work.synchrony - opening) / np.maximum(rest, 1e-9), 1.0))


def _together(work: Work, own: EngineParameters) -> Array:
    """Prompts that arrive together in the waves after the first. Where prompts come first, whoever
    is back while those of a wave are read is of it; elsewhere fewer come together, the more tokens
    they have.
    """
    others = np.maximum(work.running - 1.0, 0.0)
    together = np.maximum(_later(work) * others, np.minimum(_returning(work, own), others))
    joins = (np.asarray(work.apart) > 0) & (_later(work) >= 1.0) & (np.asarray(work.workers) <= 0)
    fewer = np.where(joins, 1.0, 1.0 + together * work.new_tokens / own.burst)
    return np.asarray(1.0 + together / fewer)


def _returning(work: Work, own: EngineParameters) -> Array:
    """Others whose next prompts come with one's own, where requests of one length ride along: those
    that a pass read end in one pass, those of the next one pass later; all that end before the
    first of their clients is back, after the host's work before a first token, are back together.
    Where clients wait for room, one of them takes it as soon as a request ends, whoever is back.
    """
    waves = _waves(work)
    if not np.any(waves):
        return np.zeros(waves.shape)
    usual = decode_time(work, own)
    usual = usual + _following(work) * (_full_pass(work, own) - usual)
    passes = 1.0 + work.launching * np.asarray(own.request) / usual
    return np.asarray(np.where(waves, np.maximum(in_pass(work), 1.0) * passes - 1.0, 0.0))


def _waves(work: Work) -> Array:
    """Where requests of one length ride along, and each that ends is followed by its client's
    next."""
    waves = np.isfinite(work.clients) & (np.asarray(work.synchrony) > 0)
    waves = waves & (np.asarray(work.clients) <= work.running)
    return np.asarray(waves & (np.asarray(work.alike) > 0) & (np.asarray(work.apart) <= 0))


def _following(work: Work) -> Array:
    """Of the passes over the prompts of a wave, those that follow another: all but the first."""
    every = np.maximum(np.asarray(work.running, float), 1.0)
    return np.asarray(1.0 - np.minimum(np.maximum(in_pass(work), 1.0) / every, 1.0))


def _full_pass(work: Work, own: EngineParameters) -> Array:
    """Time of a pass that is full of prompts and decodes beside them [s]."""
    each = _full(work, own, full_share(work, own), decode_time(work, own))
    return np.asarray(np.maximum(in_pass(work), 1e-9) * each)


def _while_decoding(
    work: Work, own: EngineParameters, burst: Array, prompt: Array, after: Array
) -> Array:
    """Prompts of others that are read while a request decodes, in `after` of its passes: each of
    those that do not come with it sends one in its life, of which the passes before the first token
    and the host's work are a part, too.

    burst    prompts that come with one's own
    prompt   time of one among others [s]
    """
    read = (1.0 - _opening(work)) * np.maximum(work.running - burst, 0.0)
    passes = np.maximum(after, 1e-9)
    usual = decode_time(work, own) + riding(work, own, read, prompt, after) / passes
    waiting = np.isfinite(work.clients) & (np.asarray(work.clients) > work.running)
    host = np.where(waiting, 0.0, work.launching * np.asarray(own.request)) / usual
    before = met_at_work(work) * _passes_before(work, after, 1.0) + host
    elsewhere = (np.asarray(work.static) > 0) | (np.asarray(work.workers) > 0)
    return np.asarray(read * np.where(elsewhere, 1.0, passes / (passes + before)))


def _burst(work: Work, own: EngineParameters, after: Numeric) -> Array:
    """Prompts that are read one after the other before one of them on average decodes: that arrive
    together, or for which passes that decode have no room."""
    burst = _together(work, own)
    waiting = work.running - _room(work, after)
    return np.where(np.asarray(work.workers) > 0, burst, np.maximum(burst, waiting))


def _room(work: Work, after: Numeric) -> Array:
    """Prompts that `after` passes read at most beside what they decode."""
    return np.asarray(after * np.maximum(work.chunk / work.new_tokens, 1e-9))


def _reading(
    work: Work,
    own: EngineParameters,
    burst: Array,
    prompt: Array,
    alone: Array,
    step: Array,
    scale: Array,
) -> Array:
    """Time from a request to the end of the passes over its prompt, nothing being under way [s]:
    in the opening wave behind those of all clients, later behind those that come with it.

    prompt, alone   of one among others, and by itself, where nothing decodes meanwhile
    step            a pass that decodes
    scale           of those that are read while others decode (`joint.Joint`)
    """
    among = (np.asarray(work.running) > 1) & (np.asarray(work.workers) <= 0)
    opening, later = _opening(work), _later(work)
    idle = np.where(among, _in_burst(work, own, prompt, step), prompt)
    mine, busy = np.where(among, _in_passes(work, own, prompt, burst), prompt), met_at_work(work)
    mine = busy * mine + (1.0 - busy) * prompt
    mine = later * idle + (1.0 - later) * mine
    each = alone / np.maximum(prompt, 1e-12)
    rest = _first(work, burst, mine, each * mine)
    # Of several waves, one after the other, each finds the prompts of another in the pass ahead,
    # as many of them as it has room for.
    several = np.asarray(work.overlapped) * ((later > 0) & (later < 1))
    ahead = np.minimum(burst, np.maximum(work.chunk / work.new_tokens, 1.0))
    found = (1.0 - opening) * scale * (rest + several * ahead * mine)
    found = found + opening * _first(work, np.asarray(work.running), idle, each * idle)
    return np.asarray(found + work.launching * np.asarray(own.request))


def _in_burst(work: Work, own: EngineParameters, prompt: Array, step: Array) -> Array:
    """Time of one prompt of a burst that an idle engine meets [s]: where prompts ride along, passes
    that are full of them decode those that are read already, half of them on average."""
    half = _full(work, own, prompt, 0.5 * step)
    mixed = np.maximum(prompt, half)
    return np.asarray(np.where(np.asarray(work.apart) > 0, prompt, mixed))


def riding(
    work: Work, own: EngineParameters, many: Numeric, prompt: Array, after: Numeric
) -> Array:
    """Time by which the prompts of `many` others delay a request's decoding of `after` passes [s].

    Prompts in passes of their own: that of all of them, and what passes over few of them take
    beyond their share of a full one (`_own_passes`). Those that ride along are read in passes that
    decode in any case, and make these longer (`beside`); the first of its pass by more than those
    that share it (`_first_ones`), which add their share of a full one. One that takes several
    passes has them to itself. Where the passes of replicas are as long as the longest (`meeting`),
    it is the prompts of the one that reads most (`_met`), but for what is divided among them; of
    prompts that take several passes, those passes in which any replica has one under way.
    """
    alone = np.asarray(many * prompt) + _own_passes(work, own, many, prompt, after)
    first, share = beside(work, own), own.mixing * prompt
    each = np.asarray(many) / np.maximum(after, 1e-9)
    ones = np.minimum(after * _first_ones(work, own, each, first, share), many)
    apart = np.asarray(work.apart) > 0
    delay = np.where(apart, alone, ones * first + np.maximum(many - ones, 0.0) * share)
    meets = np.asarray(work.meeting) > 1
    if np.any(meets):
        longer = after * (meetings(work, own, each, prompt).interval - decode_time(work, own))
        delay = np.where(meets, longer, delay)
    return np.asarray(delay)


def passes_with_prompts(work: Work, own: EngineParameters, each: Array) -> Array:
    """How often any of `each` prompts are read for a pass that decodes: in it, or in one of their
    own."""
    prompt, first = full_share(work, own), beside(work, own)
    extra = np.maximum(prompt_time(work, own, single=True) - prompt, 0.0)
    ones = _first_ones(work, own, each, first, own.mixing * prompt)
    return np.where(np.asarray(work.apart) > 0, _followed(work, own, each, prompt, extra), ones)


def _first_ones(
    work: Work, own: EngineParameters, each: Array, first: Array, share: Array
) -> Array:
    """Of passes that decode, those in which prompts ride along, of which there are `each` for every
    pass.

    first, share   what the first of a pass adds to it, and every other one [s]

    A client's next prompt comes where a pass has ended: 1 - exp(-m) of them have one. Those of a
    wave fill passes, one after the other. Prompts that arrive at random gather during passes that
    others make longer (`with_prompts`). Those that take several passes share none.
    """
    ones = -np.expm1(-each)
    # Short ones hide one by one in passes that wait for launches.
    packed = np.where(first > share, each / np.maximum(in_pass(work), 1.0), np.inf)
    ones = np.where(_waves(work), np.minimum(ones, packed), ones)
    several, random = single_passes(work) > 1, at_random(work)
    if not np.any(random):
        return np.where(several, each, ones)
    step, found = decode_time(work, own), ones
    for _ in range(GATHERED):
        rate = each / (step + found * first + np.maximum(each - found, 0.0) * share)
        more = np.maximum(each / np.maximum(found, 1e-12) - 1.0, 0.0)
        told = with_prompts(rate, step, step + first, share, more)
        told = np.clip(told, 1e-12, np.maximum(each, 1e-12))
        found = found + PART * (told - found)
    return np.where(several, each, np.where(random, found, ones))


GATHERED, PART = 12, 0.35
"""Rounds of the fixed point between how long passes over prompts take and how many prompts gather,
and the part of the way that each goes: whole steps swing between two values where passes over
prompts are much longer than others."""


def _own_passes(
    work: Work, own: EngineParameters, many: Numeric, prompt: Array, after: Numeric
) -> Array:
    """Time that passes over `many` prompts take beyond the prompts' share of full ones [s], in
    `after` passes that decode, where prompts have passes of their own, which come first."""
    each = np.asarray(many) / np.maximum(after, 1e-9)
    extra = np.maximum(prompt_time(work, own, single=True) - prompt, 0.0)
    return np.asarray(after * _followed(work, own, each, prompt, extra) * extra)


def _followed(work: Work, own: EngineParameters, each: Array, prompt: Array, extra: Array) -> Array:
    """Passes over prompts for each that decodes, of `each` prompts that have passes of their own; a
    full one takes `prompt` for each of its own, one over a single prompt `extra` more [s].

    A client's next prompt comes where a pass that decodes has ended: of m prompts for each of
    these, 1 - exp(-m) are followed by a pass over prompts. Prompts that arrive at random come
    during these, too, at r: a pass over prompts is followed by another unless none came, so that
    (1 - exp(-r s)) / c of them follow one that decodes in s, with c as `with_prompts` has it.
    """
    step, follow, random = decode_time(work, own), -np.expm1(-each), at_random(work)
    if np.any(random):
        passes = follow
        for _ in range(GATHERED):
            spent = passes * extra + each * prompt
            rate = each / (step + spent)
            more = np.maximum(each / np.maximum(passes, 1e-12) - 1.0, 0.0)
            ending = np.exp(-np.minimum(rate * (extra + prompt), 50.0))
            ending = ending / (1.0 + more * -np.expm1(-rate * prompt))
            told = np.clip(-np.expm1(-rate * step) / ending, 1e-12, np.maximum(each, 1e-12))
            passes = passes + PART * (told - passes)
        follow = np.where(random, passes, follow)
    return np.asarray(follow)


def _in_passes(work: Work, own: EngineParameters, prompt: Array, burst: Array) -> Array:
    """What each of a burst of prompts adds, on average, to the passes in which their first tokens
    come, while others decode [s]: of those that ride along in one pass the first as much as by
    itself, which may be little where passes wait for launches; the rest their share of a full
    pass."""
    first = own_prompt(work, own, prompt)
    filling = np.clip(np.floor(work.chunk / work.new_tokens), 1.0, np.maximum(burst, 1.0))
    packed = (first + (filling - 1.0) * own.mixing * prompt) / filling
    return np.asarray(np.where(np.asarray(work.apart) > 0, first, packed))


def _full(work: Work, own: EngineParameters, prompt: Array, step: Array) -> Array:
    """Time of one prompt in a pass that is full of them and decodes in `step` beside [s]; of one
    that fills several, in as much of these as it fills, whose rest is the next one's."""
    each = np.asarray(work.new_tokens / work.chunk)
    rest = np.maximum(1.0 - each, 0.0) * own.mixing * prompt
    return np.asarray(each * step + np.minimum(each, 1.0) * beside(work, own) + rest)


WAITING_SHARE = 0.3
"""Of the running requests, as many waiting ones as let an engine that holds prompts begin with
them (TGI's waiting_served_ratio)."""


def _residual(
    work: Work, own: EngineParameters, after: Numeric, usual: Array, longer: Array
) -> Array:
    """Time for which a request waits beside the prompts that come with it, on average [s]: for the
    pass under way and those before the engine looks for it, and for the one that answers.

    usual   a pass that decodes, with the prompts of others that it has on average
    longer  mean square of passes over the square of that: long ones are met more often

    Where all send together, nothing is under way when they do. Engines that prepare passes while
    those before them run have the next one ready when a request comes, too. One that holds prompts
    until enough wait begins no later than its `polling`.
    """
    before, later = _till_next(work, longer), _later(work)
    waits = (_passes_before(work, after, longer) - (1.0 - later) * before) * usual
    waits = waits + (1.0 - later) * _under_way(work, own, before, usual)
    return np.asarray(met_at_work(work) * waits)


def _till_next(work: Work, longer: Numeric) -> Array:
    """Passes that a request waits for which comes anywhere in one."""
    return np.asarray(0.5 * longer + np.asarray(work.overlapped))


def _passes_before(work: Work, after: Numeric, longer: Numeric) -> Array:
    """Passes of others between a request and its first token, where some are under way."""
    # A prompt that rides along has its first token with the tokens of the others.
    answers, later = np.where(np.asarray(work.apart) > 0, 0.0, 1.0), _later(work)
    waits = 0.5 * (looks(work, after) - 1.0) + (1.0 - 0.5 * later) * answers
    return np.asarray(waits + (1.0 - later) * _till_next(work, longer))


def met_at_work(work: Work) -> Array:
    """How often a request finds others at work. Those that arrive at random find the engine, and
    the replicas that it waits for, idle where none runs, whose number is Poisson's."""
    others = np.maximum(np.asarray(work.running) - 1.0, 0.0)
    random = -np.expm1(-others * np.asarray(work.meeting))
    return np.asarray(np.where(at_random(work), random, others > 0))


def _under_way(work: Work, own: EngineParameters, before: Array, usual: Array) -> Array:
    """Time until the pass can begin that reads a request's prompt [s].

    before   passes that a request waits for that comes anywhere in one
    usual    a pass as it is on average

    In a wave requests come as soon as a pass has ended, and meet the one after it, which is full
    of the prompts of those that ended before them; from the third group on, two of these where
    the next pass is prepared already.
    """
    anywhere = before * usual
    waves = _waves(work)
    if not np.any(waves):
        return np.asarray(anywhere)
    full = _full_pass(work, own)
    rest = np.maximum(full - work.launching * np.asarray(own.request), 0.0)
    follow = _following(work)
    # The second pass of a wave reads those that ended before the first of it began.
    third = np.maximum(2.0 * follow - 1.0, 0.0)
    met = follow * rest + third * np.asarray(work.overlapped) * full
    return np.asarray(np.where(waves, met + (1.0 - follow) * anywhere, anywhere))


def looks(work: Work, after: Numeric) -> Array:
    """Passes from one look for new requests to the next, of requests of `after` passes; one that
    holds prompts looks again as soon as enough of them wait."""
    every, running = np.asarray(work.polling, float), np.maximum(np.asarray(work.running), 1.0)
    # As many come in the passes of a request as run; the one that makes them enough waits no more.
    enough = 1.0 + np.maximum(WAITING_SHARE - 1.0 / running, 0.0) * np.asarray(after)
    return np.where(np.asarray(work.hold) > 0, np.minimum(every, enough), every)


def _first(work: Work, burst: Array, prompt: Array, alone: Array) -> Array:
    """Time in which a mean prompt of a burst is read [s].

    prompt   time of one in a pass, which a burst smaller than the prompts that were timed together
             fills less
    alone    time of one alone: an idle engine reads the first at once, and the rest after it, pass
             by pass
    """
    ahead = _ahead(work, burst)
    return np.asarray(np.maximum(ahead * prompt - np.maximum(prompt - alone, 0.0), alone))


def _ahead(work: Work, burst: Array) -> Array:
    """Prompts of a burst that have been read when a mean one of them has; a burst is one or more,
    however few clients there are for each replica."""
    burst = np.maximum(burst, 1.0)
    rest = burst - 1.0
    per_pass = np.maximum(np.floor(work.chunk / work.new_tokens), 1.0)
    filling = np.minimum(per_pass, rest)
    return np.asarray((1.0 + rest * (1.0 + 0.5 * (rest + filling))) / burst)


def _behind(work: Work, own: EngineParameters, prompt: Array, room: Numeric) -> Array:
    """Time for which prompts that come together are read after a mean one of them, whose next
    tokens wait for them [s]; an engine that is always full begins no wave.

    room   prompts that the passes of its next tokens read at most, where prompts ride along
    """

    def after(burst: Array) -> Array:
        return np.asarray(burst - _ahead(work, burst))

    opening, every = _opening(work), np.maximum(np.asarray(work.running, float), 1.0)
    prompts = opening * after(every) + (1.0 - opening) * after(_together(work, own))
    beside = np.minimum(prompts, np.maximum(room, 0.0)) * own.mixing * prompt
    delayed = np.where(np.asarray(work.apart) > 0, prompts * prompt, beside)
    return np.asarray(np.where(np.isfinite(work.clients), delayed, 0.0))
