"""What an engine that is never idle while anyone waits takes at most, and at least.

While R requests run, R prompts are read in the life of one on average (Little 1961), whoever sends
them. Passes that read nothing decode all that run: a request meets as many of these as it has
tokens to come, and those under way when it comes, no more. So a life is never longer than the R
prompts, each in a pass of its own beside what decodes, and those passes; nor, where prompts have
passes of their own, shorter than their share of full ones and the passes that decode.

A concurrency of short answers is where that decides: each of few passes would hold the prompts of
all others, and be waited for as such.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Mask
from predictor.serving.latency import Latencies
from predictor.serving.pass_times import Work, decode_time, most_sent, prompt_time
from predictor.serving.prompts import beside, full_share, mixed_time, own_prompt, single_passes
from predictor.timing import EngineParameters


def longest_life(work: Work, own: EngineParameters, after: Array) -> Array:
    """Most that a request takes among those that run [s]; inf where something else is waited for:
    other replicas, stages, workers, a look for requests.

    after   passes that decode its tokens after the first

    Prompts that wait when a pass begins share it as far as it has room: of a life, passes are those
    that decode one's tokens, one's own, the one under way (with passes prepared ahead, the next
    one, too), and those that others fill before. The one under way reads or decodes.
    """
    step, running = decode_time(work, own), np.asarray(work.running, float)
    apart, passes = np.asarray(work.apart) > 0, single_passes(work)
    alone = np.maximum(prompt_time(work, own, single=True), full_share(work, own))
    mixed = np.maximum(mixed_time(work, own), passes * step + beside(work, own))
    each = np.where(apart, alone, mixed)
    share = np.minimum(np.where(apart, 1.0, own.mixing) * full_share(work, own), each)
    under_way = np.where(running > 1, 1.0 + np.asarray(work.overlapped), 0.0)
    met = after + 1.0 + under_way + running * work.new_tokens / work.chunk
    met = np.where(passes > 1, running, np.minimum(met, running))
    host = work.launching * np.asarray(own.request) + np.asarray(work.answered) * step
    most = met * each + (running - met) * share + (after + under_way) * step + host
    return np.asarray(np.where(_by_itself(work), most, np.inf))


def shortest_life(work: Work, own: EngineParameters, after: Array) -> Array:
    """Least that a request takes among those that run, where prompts have passes of their own [s];
    0 elsewhere."""
    least = np.asarray(work.running) * full_share(work, own) + after * decode_time(work, own)
    return np.asarray(np.where(_by_itself(work) & (np.asarray(work.apart) > 0), least, 0.0))


def conserved(work: Work, own: EngineParameters, found: Latencies) -> Latencies:
    """Latencies with a life that is neither longer nor shorter than the engine's work lets it be.

    Of one that is too long, what its first token and its others take beyond those of a request that
    meets nobody is cut alike; one that is too short waits for its prompt.
    """
    tokens = np.maximum(np.asarray(work.output_len) - 1.0, 0.0)
    after = tokens / work.per_pass
    life = np.asarray(work.running) / found.requests_per_s
    waits = found.e2e - life
    first = found.ttft - waits
    decoding = life - first
    share, host = full_share(work, own), work.launching * np.asarray(own.request)
    alone = np.minimum(np.minimum(share, own_prompt(work, own, share)) + host, first)
    least = np.minimum(after * decode_time(work, own), decoding)
    room = np.maximum(longest_life(work, own, after) - alone - least, 0.0)
    kept = np.minimum(room / np.maximum(life - alone - least, 1e-12), 1.0)
    later = np.maximum(shortest_life(work, own, after) - life, 0.0)
    first = alone + kept * (first - alone) + later
    decoding = least + kept * (decoding - least)
    whole = first + decoding
    longer = waits * whole / life
    told = replace(
        found,
        ttft=first + longer,
        tpot=np.where(tokens > 0, decoding / np.maximum(tokens, 1.0), found.tpot),
        e2e=whole + longer,
        requests_per_s=np.asarray(work.running) / whole,
        queue=longer + np.minimum(found.queue - waits, first - alone) + later,
    )
    as_it_is = (kept >= 1.0) & (later <= 0.0)
    names = ("ttft", "tpot", "e2e", "requests_per_s", "queue")
    both = {name: (getattr(found, name), getattr(told, name)) for name in names}
    made = {name: np.where(as_it_is, old, new) for name, (old, new) in both.items()}
    return sent(work, replace(found, **made))


EARLY = 0.5
"""Of what clients wait for a server that sends slower than its engine computes, the share before
the first token: of clients that come at random all of it, behind the tokens of others; of those
that stay together none, since all their tokens are late alike. Half, where nothing tells (of SGLang
with 512 clients 0.2 with answers of 2,000 tokens, 0.5 with 500)."""


def sent(work: Work, found: Latencies) -> Latencies:
    """Latencies where one process sends all clients of a closed loop their tokens: each of these
    waits at least as long as all of them take (Little 1961)."""
    closed = (np.asarray(work.static) <= 0) & np.isfinite(work.clients)
    clients = np.where(closed, work.clients, 0.0)
    late = np.maximum(clients / most_sent(work) - found.e2e, 0.0)
    if not np.any(late > 0):
        return found
    tokens = np.asarray(work.output_len, float)
    early = np.where(tokens > 1, EARLY, 1.0) * late
    return replace(
        found,
        ttft=found.ttft + early,
        tpot=found.tpot + (late - early) / np.maximum(tokens - 1.0, 1.0),
        e2e=found.e2e + late,
        requests_per_s=found.requests_per_s * found.e2e / (found.e2e + late),
    )


def _by_itself(work: Work) -> Mask:
    """Whether an engine waits for nothing but its own passes."""
    waits = (np.asarray(work.static) > 0) | (np.asarray(work.workers) > 0)
    waits = waits | (np.asarray(work.meeting) > 1) | (np.asarray(work.fill) > 0)
    waits = waits | (np.asarray(work.hold) > 0) | (np.asarray(work.polling, float) > 1)
    return np.asarray(~waits)
