"""Passes of a plan on the device: over prompts, over a token of every sequence, and over both.

Prompts fill one pass after the other; what is left of them is a pass of its own, however small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric, in_order
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.encoding import encoding
from predictor.serving.offload import with_decoding, with_prompts
from predictor.serving.parts import Line, Pass
from predictor.serving.passes import STEPS_LISTED, body, decode_cores, prefill_cores, steps
from predictor.timing import Calibration
from predictor.work import passing_tokens


def prompt_pass(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    prompts: Numeric,
    calibration: Calibration,
) -> tuple[Pass, Array]:
    """Passes over `prompts` prompts of one replica together, in parts of at most `plan.chunk` new
    tokens, and how many passes those are; with the second tower over their images."""
    tokens = np.broadcast_to(prompts * plan.new_tokens, plan.shape)
    # Logits are made of the last token of each prompt, in the pass that reads it.
    ended = np.maximum(prompts / _count(tokens, plan), 1.0)
    linear, count = _in_parts(model, cluster, plan, tokens, 0.0, ended, calibration)
    past = plan.input_len - plan.new_tokens
    cores = prefill_cores(
        model, cluster, plan, prompts, plan.new_tokens, past, calibration, sustained=True
    )
    found = linear.plus(cores)
    if np.any(plan.tiles):
        fresh = prompts * plan.tiles * plan.new_tokens / plan.input_len
        found = found.plus(encoding(model, cluster, plan, fresh, calibration))
    return with_prompts(found, model, plan, count), count


def decode_pass(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    sequences: Numeric,
    calibration: Calibration,
    listed: int = STEPS_LISTED,
) -> Pass:
    """One pass that decodes `sequences` sequences of one replica, their guesses with them, averaged
    over the contexts from the first token after the prompt to the last (`passes.steps`)."""
    captured = plan.captured(sequences)
    tokens = plan.rows(sequences) * (1.0 + plan.drafted)
    linear = body(
        model,
        cluster,
        plan,
        tokens,
        tokens,
        calibration,
        captured=captured,
        sustained=False,
    )
    contexts, weights = steps(plan, listed)
    cores = decode_cores(model, cluster, plan, sequences, contexts, weights, calibration)
    whole = linear.plus(cores.times(1.0 / in_order(weights)))
    mean = plan.input_len + 0.5 * plan.output_len
    return with_decoding(whole, model, plan, sequences, mean)


def mixed_pass(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    fresh: Numeric,
    sequences: Numeric,
    calibration: Calibration,
) -> tuple[Pass, Array]:
    """Passes over `fresh` new tokens of prompts, without their attention, each of which decodes
    `sequences` sequences of half their answer, and how many these are: products over the tokens of
    both (Agrawal et al. 2024, Sarathi-Serve, section 4.1)."""
    rows = plan.rows(sequences) * (1.0 + plan.drafted)
    layers, count = _in_parts(model, cluster, plan, fresh, rows, 1.0 + rows, calibration)
    shape = np.broadcast_shapes(plan.shape, np.shape(count))
    middle = np.broadcast_to(plan.input_len + 0.5 * plan.output_len, shape)[None]
    ones = np.ones((1, *shape))
    cores = decode_cores(model, cluster, plan, sequences, middle, ones, calibration)
    return layers.plus(cores.times(count)), count


def _count(fresh: Numeric, plan: ServingPlan) -> Array:
    """Passes over so many new tokens of prompts."""
    return np.asarray(np.maximum(np.ceil(np.asarray(fresh) / plan.chunk), 1.0))


def _in_parts(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    fresh: Numeric,
    beside: Numeric,
    rows: Numeric,
    calibration: Calibration,
) -> tuple[Pass, Array]:
    """Passes over `fresh` new tokens, without attention, and how many these are: full ones, and one
    over the rest; each over `beside` other rows, too, and with `rows` rows of logits."""
    count = _count(fresh, plan)
    full = np.minimum(np.asarray(fresh, float), plan.chunk)

    def part(tokens: Numeric) -> Pass:
        last, pieces = passing_tokens(model, plan, tokens, beside), plan.in_pieces(tokens + beside)
        found = body(model, cluster, plan, tokens + beside, rows, calibration, captured=pieces,
                     sustained=True, last=last)  # fmt: skip
        # One after each layer's attention, and one before them all.
        launched = np.where(np.asarray(pieces) > 0, model.layers + 1.0, found.kernels)
        return replace(found, kernels=launched)

    found = part(fresh - (count - 1.0) * full)
    if not np.any(count > 1):
        return found, count
    others = part(full).times(count - 1.0)
    return replace(others.plus(found), lines=_lines(others.lines, found.lines)), count


def _lines(full: Sequence[Line], rest: Sequence[Line]) -> tuple[Line, ...]:
    """Lines of full passes and of one over the rest, those of one name together: passes over few
    tokens may lack some (ggml converts what products of many rows read)."""
    left: dict[str, list[Line]] = {}
    for one in rest:
        left.setdefault(one.name, []).append(one)
    lines = []
    for more in full:
        if alike := left.get(more.name):
            one = alike.pop(0)
            lines.append(replace(one, count=one.count + more.count, time=one.time + more.time))
        else:
            lines.append(more)
    return (*lines, *(one for few in left.values() for one in few))
