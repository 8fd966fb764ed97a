"""Replicas of the attention that make their passes together: what that does to latencies."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Mask
from predictor.records import dataclass
from predictor.serving.meeting import Together, met, together
from predictor.serving.pass_times import Work, decode_time, prompt_time
from predictor.serving.prompts import at_random, beside, in_pass, own_prompt, single_passes
from predictor.timing import EngineParameters


def meetings(work: Work, own: EngineParameters, each: Array, prompt: Array) -> Together:
    """Passes of replicas that wait for each other, each of which reads `each` prompts for every
    token of a sequence."""
    apart, passes = np.asarray(work.apart) > 0, single_passes(work)
    alone = np.maximum(prompt_time(work, own, single=True), prompt)
    return together(
        each=each,
        step=decode_time(work, own),
        first=np.where(apart, alone, beside(work, own)) / passes,
        share=np.where(apart, prompt, own.mixing * prompt),
        passes=passes,
        room=np.maximum(np.floor(in_pass(work)), 1.0),
        replicas=np.asarray(work.meeting, float),
        divided=work.divided,
        apart=apart,
        random=at_random(work) & np.ones(each.shape, dtype=bool),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """What waiting for other replicas does to a first token.

    meets   where there are any
    usual   a pass on average [s]; `longer`: mean square over the square of that
    scale   time of a prompt's own passes over what they take where all replicas read as many
    turn    for which a prompt keeps its replica from reading the next one [s]
    """

    meets: Mask
    usual: Array
    longer: Array
    scale: Array
    turn: Array


def joint(
    work: Work, own: EngineParameters, each: Array, prompt: Array, usual: Array, turn: Array
) -> Joint:
    """What waiting does where replicas meet, which read `each` prompts for every token of a
    sequence.

    usual, turn   of others: a pass on average, and what a prompt takes in a full one [s]
    """
    meets = (np.asarray(work.meeting) > 1) & (np.asarray(work.static) <= 0)
    meets = meets & (np.asarray(work.workers) <= 0)
    if not np.any(meets):
        return Joint(meets, usual, np.ones(()), np.ones(()), turn)
    of = meetings(work, own, each, prompt)
    return Joint(
        meets=meets,
        usual=np.where(meets, of.length, usual),
        longer=np.where(meets, of.longer, 1.0),
        scale=np.where(meets, _shortened(work, own, prompt, of), 1.0),
        turn=np.where(meets, _turn(work, own, prompt, of), turn),
    )


def _shortened(work: Work, own: EngineParameters, prompt: Array, of: Together) -> Array:
    """Time of a prompt's own passes over what they take where the other replicas read as many: what
    all divide is its own alone, and what they wait for is waited for in any case where another one
    reads."""
    passes, divided = single_passes(work), np.asarray(work.divided)
    idle, mine = 1.0 - of.some, divided / np.asarray(work.meeting)
    beyond = ((1.0 - divided) * idle + mine) * beside(work, own)
    mixed = (passes - 1.0) * of.length + beyond
    alone = np.maximum(prompt_time(work, own, single=True), prompt)
    # The others decode meanwhile.
    longer = np.maximum((1.0 - divided) * alone / passes - decode_time(work, own), 0.0)
    apart = passes * (of.length + idle * longer) + mine * alone
    whole = np.where(np.asarray(work.apart) > 0, apart, mixed)
    return np.asarray(whole / np.maximum(own_prompt(work, own, prompt), 1e-12))


def _turn(work: Work, own: EngineParameters, prompt: Array, of: Together) -> Array:
    """Time for which a prompt keeps a replica from reading the next one [s]: the passes that it
    fills, or its part of one that is full of them on every replica."""
    passes, step = single_passes(work), decode_time(work, own)
    fills = np.minimum(np.maximum(1.0 / in_pass(work), 1.0), passes)
    room = np.maximum(np.floor(in_pass(work)), 1.0)
    apart, divided = np.asarray(work.apart) > 0, np.asarray(work.divided)
    alone = np.maximum(prompt_time(work, own, single=True), prompt)
    first = np.where(apart, alone, beside(work, own))
    added = first + (room - 1.0) * np.where(apart, prompt, own.mixing * prompt)
    behind = np.maximum((1.0 - divided) * added - np.where(apart, step, 0.0), 0.0)
    full = (step + behind + divided * added) / room
    return np.asarray(np.where((passes > 1) | (room < 2), fills * of.length, full))


def _met(work: Work, each: Array) -> tuple[Array, Array]:
    """`meeting.met` of replicas that read `each` prompts for every pass."""
    return met(each, np.asarray(work.meeting), np.maximum(np.floor(in_pass(work)), 1.0))


def repeated(work: Work) -> Array:
    """Prompts that a replica computes, as padding or its own, for each of its own; the others' as
    `_met` has them."""
    padded = (np.asarray(work.meeting) > 1) & (np.asarray(work.divided) <= 0)
    if not padded.any():
        return np.ones_like(padded, dtype=float)
    after = np.maximum(np.asarray(work.output_len) - 1.0, 1.0) / work.per_pass
    each = np.maximum(np.asarray(work.running, float), 1e-9) / after
    return np.asarray(np.where(padded, _met(work, each)[1] / each, 1.0))
