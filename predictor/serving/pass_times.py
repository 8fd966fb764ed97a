"""Wall times of passes: what the device takes, what the host does before it or beside it, and the
work of an engine from which latencies are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.timing import EngineParameters


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTime:
    """Passes of one kind on the device: kernels of the model and collectives [s], launches, and
    how many passes those are."""

    compute: Numeric
    communication: Numeric
    kernels: Numeric
    passes: Numeric = 1.0


BLOCK = 16.0
"""Tokens of a block of the cache (vLLM's default)."""

ANSWERING = 0.35e-3
"""Host time in which a sequence's new token is made text, packed and handed to its client, in the
loop of passes [s]: 0.30 to 0.43 ms on 16 of 18 pairs of model and ranks of vLLM 0.5 on A100, of one
to eight ranks (`mlenergy_v2`, 2B to 123B), beyond what the rest of the host's work takes."""

LISTING = 0.25e-6
"""Host time of a block in a table that is listed anew in every pass [s]: taken from the manager's
list, sliced, padded, made an array, and marked as used, some 50 ns each in CPython (vllm/core and
vllm/worker/model_runner.py of 0.2 to 0.7, from memory). What passes of vLLM on H100 and A100 take
longer the more is cached, at any number of ranks, is 0.2 to 0.33 us a block
(`argonne_llm_inference_bench`)."""

NOTHING = DeviceTime(0.0, 0.0, 0.0, 0.0)
"""No pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What an engine has to do for its requests; per attention replica.

    prompts     passes over `together` prompts, added up
    decoding    one pass that decodes `sequences` sequences, averaged over the growing context
    captured    1 where that pass is a captured graph, else 0
    fill        how much longer the prompts of all micro-batches take than those of one that goes
                through all stages by itself, as parts follow each other through them
    running     sequences that are decoded at a time, of all micro-batches
    clients     requests that wait or run; inf: there is always another one
    static      1 for a batch that starts together and is not refilled, else 0
    started     of such a batch, sequences whose prompts are read before any other ends, where the
                cache holds more prompts than it holds of what they become: at least `running`
    new_tokens  of a prompt, beyond what is cached
    output_len  tokens
    chunk       most tokens of prompts in one pass
    synchrony   share of the clients that send together; 0: requests arrive at random
    rounds      requests that each client sends, the first of all of them at once
    spacing     time between the requests of a static batch, as its clients send them [s]
    alike       1 where requests are of one length each, else 0
    meeting     replicas whose passes are as long as the longest of them, as they share experts
    divided     share of the passes over prompts that such replicas do together, each its part of
                what all of them read, as experts are; 0: they are padded
    per_pass    tokens that a pass adds to a sequence, on average
    launching   host time of a launch, a pass, a sequence, a request over that of Python
    drafting    time of guessing tokens ahead, over that of a pass
    workers     engines that read the prompts of this replica and nothing else, below 1 where
                replicas share them; 0: it reads them
    shared      the same of all replicas together
    transfer    time for which a cache from there is waited for, after the first token [s]
    overlapped  1 where the host prepares a pass while the one before it runs, else 0
    apart       1 where prompts have passes of their own, 0 where they ride along with decoding
    hold        1 where they do not begin before enough of them wait
    polling     passes between two looks for new requests
    single      passes over one prompt: by itself, where prompts have passes of their own, else
                beside as many sequences as decode at a time
    listed      blocks of a sequence's cache that the host lists in every pass, on average
    streamed    1 where clients are answered in the loop of passes
    answered    1 where the first token takes a pass that decodes after those over the prompt
    told        host time of telling workers of a sequence what it holds, in every pass [s]
    making      host time of making a static batch's session [s]
    shown       1 where the host's work per sequence is not hidden even if it prepares passes ahead
    sent        host time in which one process sends a client the tokens of a pass [s]
    """

    prompts: DeviceTime
    together: Numeric
    decoding: DeviceTime
    captured: Numeric
    sequences: Numeric
    fill: Numeric
    running: Numeric
    clients: Numeric
    static: Numeric
    new_tokens: Numeric
    output_len: Numeric
    chunk: Numeric
    synchrony: Numeric
    per_pass: Numeric = 1.0
    drafting: Numeric = 0.0
    overlapped: Numeric = 0.0
    workers: Numeric = 0.0
    shared: Numeric = 0.0
    transfer: Numeric = 0.0
    launching: Numeric = 1.0
    apart: Numeric = 0.0
    hold: Numeric = 0.0
    polling: Numeric = 1.0
    started: Numeric = 0.0
    single: DeviceTime = NOTHING
    streamed: Numeric = 0.0
    shown: Numeric = 0.0
    answered: Numeric = 0.0
    told: Numeric = 0.0
    making: Numeric = 0.0
    listed: Numeric = 0.0
    alike: Numeric = 0.0
    rounds: Numeric = 10.0
    spacing: Numeric = 0.0
    meeting: Numeric = 1.0
    divided: Numeric = 0.0
    sent: Numeric = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Arriving:
    """What an engine meets whose requests arrive at random. A request is likelier to come while
    many run, and meets more than a pass has on average.

    work    of passes as they are on average
    alone   share of the time in which nothing runs, and of the requests that find it so (Wolff
            1982); where prompts are read apart, in which nothing decodes
    full    1 where more arrive than can end, else 0
    reading   share of the time in which each of the workers reads that read prompts apart
    waiting, later   by how much longer a prompt waits for one of them under limits than without,
              and its first token comes later [s]
    """

    work: Work
    alone: Array
    full: Numeric = 0.0
    reading: Numeric = 0.0
    waiting: Numeric = 0.0
    later: Numeric = 0.0


def software_of(plan: ServingPlan) -> dict[str, Any]:
    """What passes of every kind have from a plan alone, by the name of its field in `Work`."""
    return {
        "chunk": plan.chunk,
        "synchrony": plan.synchrony,
        "rounds": plan.rounds,
        "spacing": plan.spacing,
        "alike": np.asarray(plan.variation) <= 0,
        "per_pass": plan.tokens_per_pass,
        "drafting": plan.drafted * plan.draft_cost,
        "launching": plan.launching,
        "overlapped": float(plan.scheduling == "overlapped"),
        "streamed": float(plan.front_end == "inside"),
        "answered": float(plan.last_token == "decoded"),
        "shown": float(plan.sampling == "penalised"),
        "sent": SENT.get(plan.front_end, 0.0),
    }


SENT = {"single": 52e-6, "whole": 108e-6}
"""Host time in which a server in Python makes the new token of a sequence an event, packs it and
sends it to its client, in the one process that all clients hang on [s]. `single`: read off SGLang
0.5.6 with 512 clients on four and eight H200, which sends no more than 17,600 to 19,600 tokens/s
whatever it computes (answers of 500 and 1,000 tokens; of 2,000 15,400: more where texts are
longer); another process makes the texts. `whole`, where the same process makes texts of tokens,
too: read off TensorRT-LLM 1.0 with 128 clients of an 8B on four and eight H100, 9,000 to 9,230
tokens/s (prompts of 1,024 tokens, answers of 256 and 512; of 128 it is a request in 28 ms that
bounds, which is in no term). NIM sends 12,500, vLLM 0.17 16,900: neither was seen to wait."""


def most_sent(work: Work) -> Array:
    """Requests per second and replica whose tokens one process sends at most; replicas that share
    experts have one process."""
    each = work.sent * np.asarray(work.output_len, float) / work.per_pass
    return np.asarray(1.0 / np.maximum(each * work.meeting, 1e-12))


PICKLED = 30e-9
"""Host time of a token in the message to one worker [s]: Python's pickle writes a number of a list
in 12 ns and reads it in 24 (CPython 3.11 on one core of an EPYC, measured in November 2026; the
cores of servers of accelerators turbo higher)."""


def told(plan: ServingPlan, context: Numeric) -> Numeric:
    """Host time of telling all workers of a sequence with so many tokens in every pass [s]; a lone
    worker is in the engine's own process."""
    if plan.control != "pickled":
        return 0.0
    return np.where(np.asarray(plan.tp) > 1, PICKLED * plan.tp * np.asarray(context), 0.0)


MADE, MADE_LAYER = 0.6e-3, 26e-6
"""Host time of making a session in Python, and of each layer's part of it [s]: a layer has two
tensors that are allocated (5 us in PyTorch), entered (2 us), and named, shaped and bound by a call
into TensorRT each (2 us); some sixty more are of no layer, most of them the sampler's and copied to
the device (10 us). GenerationSession.setup and _get_context_shape_buffer of
tensorrt_llm/runtime/generation.py of 0.5 to 0.9, counts and costs from memory."""


def making(plan: ServingPlan, layers: float) -> float:
    """Host time of making the session of a static batch [s]."""
    return MADE + MADE_LAYER * layers if plan.session == "made" else 0.0


def listed(plan: ServingPlan, context: Numeric) -> Numeric:
    """Blocks of a sequence with so many cached tokens that the host lists in every pass."""
    return np.asarray(context) / BLOCK if plan.block_tables == "listed" else 0.0


def host_bound(device: Numeric, kernels: Numeric, launch: Numeric) -> Array:
    """Time by which launching kernels one by one exceeds running them [s]."""
    return np.asarray(np.maximum(launch * kernels - device, 0.0))


def with_host(device: Numeric, host: Numeric, overlapped: Numeric) -> Array:
    """Wall time of a pass [s]: the host's work before the device's, or beside it."""
    beside = np.maximum(device, host)
    return np.asarray(np.where(np.asarray(overlapped) > 0, beside, device + np.asarray(host)))


def decode_time(work: Work, own: EngineParameters) -> Array:
    """Wall time of a pass that decodes [s]: the device's, gaps of a captured graph or launches one
    by one, and the host's work per pass and per sequence."""
    device = own.decode * work.decoding.compute + own.communication * work.decoding.communication
    gaps = own.gap * work.decoding.kernels
    launch = own.launch * np.asarray(work.launching)
    waiting = host_bound(device + gaps, work.decoding.kernels, launch)
    between = gaps + np.where(np.asarray(work.captured) > 0, 0.0, waiting)
    guessing = 1.0 + np.asarray(work.drafting)
    # A static batch has no clients.
    answering = ANSWERING * work.streamed * (1.0 - np.asarray(work.static))
    each = np.asarray(own.sequence + LISTING * np.asarray(work.listed) + work.told + answering)
    host = work.launching * (own.step + each * np.asarray(work.sequences))
    shown = np.asarray(work.launching * each * np.asarray(work.sequences) * work.shown)
    whole = with_host(guessing * (device + between), host - shown, work.overlapped)
    return np.asarray(whole + shown)


def launch_wait(passes: DeviceTime, work: Work, own: EngineParameters) -> Array:
    """Time for which passes over prompts wait for launches one by one [s]."""
    device = own.prefill * passes.compute + own.communication * passes.communication
    return host_bound(device, passes.kernels, own.launch * np.asarray(work.launching))


def prompt_time(work: Work, own: EngineParameters, single: bool = False) -> Array:
    """Wall time of the passes over `together` prompts, or over a single one [s]."""
    passes = work.single if single else work.prompts
    device = own.prefill * passes.compute + own.communication * passes.communication
    return with_host(
        device + launch_wait(passes, work, own),
        work.launching * own.step * np.asarray(passes.passes),
        work.overlapped,
    )
