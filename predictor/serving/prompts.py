"""What prompts add to passes: full ones, those over a single prompt, those that decode as well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array
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
