"""What prompts add to passes: full ones, those over a single prompt, those that decode as well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.serving.pass_times import LISTING, Work, decode_time, prompt_time
from predictor.timing import EngineParameters


def read_time(work: Work, own: EngineParameters) -> Array:
    """Wall time of the passes over `together` prompts [s]: a last token that is decoded is not
    read."""
    unread = np.asarray(work.answered) / np.maximum(work.new_tokens, 1.0)
    return np.asarray(prompt_time(work, own) * (1.0 - unread))


def full_share(work: Work, own: EngineParameters) -> Array:
    """A prompt's share of passes that are full of them [s]."""
    return np.asarray(read_time(work, own) / work.together * (1.0 + np.asarray(work.fill)))


def in_pass(work: Work) -> Array:
    """Prompts of a pass that is full of them."""
    return np.asarray(work.chunk / np.asarray(work.new_tokens))


def single_passes(work: Work) -> Array:
    """Passes over a single prompt."""
    return np.asarray(np.maximum(np.asarray(work.single.passes), 1.0))


def beside(work: Work, own: EngineParameters) -> Array:
    """What one prompt that rides along adds to the passes that decode in any case [s]."""
    step = decode_time(replace(work, drafting=0.0), own)
    added = mixed_time(work, own) - single_passes(work) * step
    return np.asarray(own.mixing * np.maximum(added, 0.0) * (1.0 + work.fill))


def mixed_time(work: Work, own: EngineParameters) -> Array:
    """Wall time of the passes over one prompt that decode beside it [s]."""
    each = own.sequence + LISTING * np.asarray(work.listed) + np.asarray(work.told)
    each = np.asarray(each * work.sequences)
    shown = np.where(np.asarray(work.overlapped) > 0, work.shown, 1.0)
    rest = single_passes(work) * shown * work.launching * each
    return np.asarray(prompt_time(work, own, single=True) + rest)


def own_prompt(work: Work, own: EngineParameters, prompt: Array) -> Array:
    """What a prompt adds to the pass in which its first token comes, while others decode [s]: what
    it takes by itself, and the passes before that one."""
    alone = np.maximum(prompt, prompt_time(work, own, single=True))
    mixed = beside(work, own) + (single_passes(work) - 1.0) * decode_time(work, own)
    return np.asarray(np.where(np.asarray(work.apart) > 0, alone, mixed))


def at_random(work: Work) -> Array:
    """Whether requests arrive at random, whatever passes do."""
    return np.asarray((np.asarray(work.synchrony) <= 0) & np.isfinite(work.clients))


IDLE_ROUNDS = 12
"""Of the fixed point between how often nobody runs and how long prompts take, alone or beside
others: prompts found alone take a little less, a contraction of 0.1 and less."""


def idle_share(work: Work, own: EngineParameters, rate: Numeric) -> Array:
    """Share of the time in which nobody runs on an engine at which requests arrive at random.

    rate   of a replica [1/s]

    (1 - u) exp(-rate D): none is being read, which takes u of the time, and none has come within
    the time D in which it decodes, in a clock that stands still while prompts are read. In that
    clock prompts come at the same rate, alone or with those that come while they are read (busy
    periods of M/D/1, and an empty M/D/infinity behind them: Takacs 1962).
    """
    step, share, passes = decode_time(work, own), full_share(work, own), single_passes(work)
    apart = np.asarray(work.apart) > 0
    after = np.maximum(np.asarray(work.output_len) - 1.0, 0.0) / work.per_pass
    # Those that ride along are read in passes that decode in any case.
    with_it = np.where(apart, 0.0, passes) * step
    first = np.where(apart, prompt_time(work, own, single=True), beside(work, own))
    by_itself = np.maximum(share - with_it, 0.0)
    free = np.exp(-rate * (after * step + with_it))
    found = free
    for _ in range(IDLE_ROUNDS):
        read = rate * (found * by_itself + (1.0 - found) * first)
        found = np.maximum(1.0 - read, 0.0) * free
    return np.asarray(found)
