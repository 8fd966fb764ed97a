"""What passes of serving compute, read and send.

The list of kernels that gives the time gives the arithmetic and the traffic. Prompts count as
products of many rows, decoding as products of a row for each sequence.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.power import relative_energy
from predictor.precision import ELEMENT_BYTES
from predictor.records import dataclass
from predictor.serving.apart import worker
from predictor.serving.prediction import InferencePrediction
from predictor.serving.prompts import single_passes
from predictor.timing import widens
from predictor.work import (
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    passing_tokens,
    prefill_attention,
)

PRODUCTS = ("gemm", "moe_gemm")
"""Operators that have weights."""

FLOATS = ("w4a16_mxfp4",)
"""Narrow weights that are floats, beside activations of 16 bits."""

TILE = 128.0
"""Rows of the tiles in which products of 16 bits are made (CUTLASS's usual ones)."""


@dataclass(frozen=True, slots=True, eq=False)
class PassWork:
    """Arithmetic (16-bit equivalents) [FLOP], traffic, bytes on links and bytes of weights that are
    widened on their way, of one accelerator in a pass; share of its time that follows the clock."""

    flop: Array
    bytes: Array
    link: Array
    widened: Array
    core: Array


def _listed(
    operators: list[Operator], plan: ServingPlan, link: Numeric, device: Accelerator
) -> PassWork:
    """Work of a list of operators on an accelerator; stages of a pipeline share it."""
    flop: Array = np.zeros(plan.shape)
    moved: Array = np.zeros(plan.shape)
    made: Array = np.zeros(plan.shape)
    for one in operators:
        flop = flop + np.asarray(one.flop) * one.count * relative_energy(one.dtype)
        moved = moved + np.asarray(one.bytes) * one.count
        if one.op in PRODUCTS and _is_widened(one.dtype, device):
            made = made + _widened(one) * one.count * ELEMENT_BYTES[one.dtype]
    whole = PassWork(flop, moved, np.asarray(link), made, np.zeros(()))
    return _shared(whole, plan.pp)


def _shared(work: PassWork, among: Numeric) -> PassWork:
    """One of as many equal parts."""
    return PassWork(
        work.flop / among, work.bytes / among, work.link / among, work.widened / among, work.core
    )


def _is_widened(dtype: str, device: Accelerator) -> bool:
    """Whether processors widen weights for the matrix units: these take floats of four bits
    themselves where they multiply such (from Blackwell and CDNA 4 on)."""
    return widens(dtype) and not (dtype in FLOATS and "fp4" in device.peak)


def _widened(product: Operator) -> Array:
    """Weights of a product that processors make 16 bits of: all, once for each tile of its rows."""
    rows = np.maximum(product.m, 1e-30)
    return np.asarray(product.flop) / (2.0 * rows) * np.ceil(rows / TILE)


def _sent(
    model: Model, plan: ServingPlan, tokens: Numeric, rows: Numeric, last: Numeric | None = None
) -> Array:
    """Bytes that a rank sends in the collectives of a pass."""
    ranks = pass_groups(plan)
    found: Array = np.zeros(plan.shape)
    for one in pass_collectives(model, plan, tokens, rows, last):
        size = np.asarray(ranks[one.group].size, float)
        twice = 2.0 if one.op == "allreduce" else 1.0
        share = twice * (size - 1.0) / size
        found = found + share * np.asarray(one.bytes) * one.count
    return found


def _bound(work: PassWork, model_peak: Numeric, bandwidth: Numeric) -> PassWork:
    """The same with the share of its time that follows the clock: the arithmetic's part of both
    ideal times."""
    compute, memory = work.flop / model_peak, work.bytes / bandwidth
    share = compute / np.maximum(compute + memory, 1e-30)
    return replace(work, core=np.asarray(share))


def decode_work(found: InferencePrediction, sequences: Numeric) -> PassWork:
    """Work of a pass that decodes `sequences` sequences of a replica at the mean context."""
    model, plan = found.model, found.plan
    tokens = np.asarray(sequences) * (1.0 + plan.drafted)
    context = plan.input_len + 0.5 * plan.output_len
    operators = [
        *layer_operators(model, plan, tokens),
        *end_operators(model, plan, tokens, tokens),
        *decode_attention(model, plan, np.asarray(sequences, float), context),
    ]
    work = _listed(operators, plan, _sent(model, plan, tokens, tokens), found.cluster.accelerator)
    return _bound(work, *_rates(found))


def prompt_work(found: InferencePrediction) -> PassWork:
    """Work of one prompt of a replica, as many read together as the prediction has."""
    model, plan, together = found.model, worker(found.plan), np.asarray(found.work.together)
    tokens = together * plan.new_tokens
    past, last = plan.input_len - plan.new_tokens, passing_tokens(model, plan, tokens)
    operators = [
        *layer_operators(model, plan, tokens, last),
        *end_operators(model, plan, tokens, together),
        *prefill_attention(model, plan, together, plan.new_tokens, past),
    ]
    sent = _sent(model, plan, tokens, together, last)
    work = _listed(operators, plan, sent, found.cluster.accelerator)
    work = _bound(work, *_rates(found))
    return _shared(work, together)


def mixed_work(found: InferencePrediction, prompts: Numeric, sequences: Numeric) -> PassWork:
    """Work of the passes over `prompts` prompts of a replica, each of which decodes `sequences`
    sequences beside them, added up."""
    model, plan, count = found.model, found.plan, single_passes(found.work)
    fresh = np.asarray(prompts * plan.new_tokens) / count
    rows = np.asarray(sequences) * (1.0 + plan.drafted)
    tokens, last = fresh + rows, passing_tokens(model, plan, fresh, rows)
    ends = np.asarray(prompts) / count + rows
    context = plan.input_len + 0.5 * plan.output_len
    past = plan.input_len - plan.new_tokens
    operators = [
        *layer_operators(model, plan, tokens, last),
        *end_operators(model, plan, tokens, ends),
        *decode_attention(model, plan, np.asarray(sequences, float), context),
        *prefill_attention(model, plan, np.asarray(prompts) / count, plan.new_tokens, past),
    ]
    sent = _sent(model, plan, tokens, ends, last)
    work = _listed(operators, plan, sent, found.cluster.accelerator)
    return _shared(_bound(work, *_rates(found)), 1.0 / count)


def _rates(found: InferencePrediction) -> tuple[Numeric, Numeric]:
    device = found.cluster.accelerator
    half = device.peak.get("bf16", device.peak.get("fp16", device.peak.get("fp32", np.inf)))
    return half, device.bandwidth
