"""What ranks that split a sequence exchange for attention.

Liu et al. 2023 (ring attention); Jacobs et al. 2023 (Ulysses).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import SEPARATE, TrainingPlan
from predictor.records import dataclass
from predictor.work.cores import WINDOWED, kv_heads
from predictor.work.primitives import Collective
from predictor.work.recompute import region_repeats

GRADIENT = 4.0
"""Bytes of an element of the gradients of keys and values that PyTorch's ranks pass on
(`convert_to_f32`)."""


def context_parallel(model: Model, plan: TrainingPlan) -> list[Collective]:
    """What the ranks that split a sequence exchange for attention, by kind of attention block."""
    if not model.attends:
        return []
    blocks = max(model.attention_blocks, 1)
    stated = plan.cp_kind != "ulysses" or exchanges_heads(model, plan)
    kind = plan.cp_kind if stated else "allgather"
    return [
        found
        for n, one in model.attention_kinds
        for found in _exchanged(one, plan, model.attention_share * n / blocks, kind)
    ]


def _token_width(model: Model, plan: TrainingPlan) -> Numeric:
    """Elements of a token's keys and values on a rank, with its index key: latents where keys are
    chosen on them; of several tokens one key where they are compressed, beside a window of those
    before, which is little."""
    if model.is_compressed:
        each = float(model.head_dim + model.index_head_dim)
        return each / model.compression if model.compression else 0.0
    own = kv_heads(model, plan.tp) * (model.qk_dim + model.v_dim)
    if not model.is_sparse:
        return own
    chosen = model.kv_lora_rank + model.qk_rope_head_dim if model.is_latent else own
    return chosen + model.index_head_dim


def exchanges_heads(model: Model, plan: TrainingPlan) -> bool:
    """Whether ranks that divide a sequence exchange heads for tokens: by Ulysses, unless keys are
    chosen or compressed in some layers, which queries of any token may ask for."""
    kinds = (one for _, one in model.attention_kinds)
    return plan.cp_kind == "ulysses" and not any(k.is_sparse or k.is_compressed for k in kinds)


def meets_blocks(model: Model, plan: TrainingPlan) -> bool:
    """Whether a rank's queries meet the keys of one rank after the other and what they find is
    merged: PyTorch's context parallelism, whether keys are gathered or go round a ring."""
    kinds = (one for _, one in model.attention_kinds)
    if any(k.is_sparse or k.is_compressed for k in kinds) or plan.attention in SEPARATE:
        return False
    return plan.merges_apart and plan.cp_kind != "ulysses"


def held_by_blocks(model: Model, plan: TrainingPlan) -> Numeric:
    """Bytes that the backward pass of attention holds where blocks are merged: keys and values of
    all ranks, or of the rank before it and its own where they go round; in 32 bits the sum of the
    gradients of its queries, and those of keys and values that it sends and that come. 0 on one
    rank, and where nothing is merged."""
    if not meets_blocks(model, plan):
        return 0.0
    way = _way(model, plan, plan.cp_kind)
    there = plan.cp if way.kind == "allgather" else 2.0
    queries = model.heads / plan.tp * model.qk_dim
    wide = GRADIENT * plan.tokens * (queries + 2.0 * way.width)
    return np.where(np.asarray(plan.cp) > 1.0, there * way.token * way.width + wide, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """What blocks that are alike exchange, and behind what.

    kind      'ring', 'allgather' or 'ulysses', of what attends to all keys
    token     bytes of an activation element, times the tokens of a rank
    width     elements of a token's keys and values, as they travel
    query     of its queries and the outcome
    core      kernel of attention, `gradient` that of its gradients
    blocks    keys are met block by block, and what is found is merged
    """

    kind: str
    token: Numeric
    width: Numeric
    query: Numeric
    core: str
    gradient: str
    blocks: bool


def _way(model: Model, plan: TrainingPlan, kind: str) -> _Way:
    query = model.heads / plan.tp * (model.qk_dim + model.v_dim)
    if plan.attention in SEPARATE:
        core, gradient = "attention.context", "attention.context.dgrad"
    else:
        core = "attention" if model.windowed_share < 1.0 else WINDOWED
        gradient = f"{core}.bwd"
    chosen = model.is_sparse or model.is_compressed
    return _Way(
        kind="allgather" if chosen else kind,
        token=plan.recipe.activation * plan.tokens,
        width=query if plan.keys_repeated and not chosen else _token_width(model, plan),
        query=query,
        core=core,
        gradient=gradient,
        blocks=meets_blocks(model, plan) and core != WINDOWED,
    )


def _exchanged(model: Model, plan: TrainingPlan, share: float, kind: str) -> list[Collective]:
    """The same of blocks that are alike.

    A ring passes keys and values on behind the attention to those that are there; a gathering
    fetches all of them first, as where each token chooses its own among them; Ulysses exchanges
    heads of queries, keys and values for tokens, and the outcome back, by all-to-alls.
    """
    way = _way(model, plan, kind)
    again, beside = region_repeats("attention", plan), f"{way.core}.again"
    if way.blocks and plan.recompute == "per_op" and not plan.fused:
        again, beside = 1.0, ""  # not among what checkpoints keep, which attention is
    found: list[Collective] = []
    for phase, suffix, behind, times in (
        ("forward", "", way.core, 1.0 + np.asarray(plan.unlearned)),
        ("recompute", ".again", beside, again),
        ("backward", ".bwd", way.gradient, 1.0),
    ):
        if times is not None:
            build = _apart if way.blocks else _together
            found += build(way, plan, phase, f"attention.exchange{suffix}", behind, times * share)
    return found


def _together(
    way: _Way, plan: TrainingPlan, phase: str, name: str, behind: str, count: Numeric
) -> list[Collective]:
    """Keys and values, or backward these and their gradients; by Ulysses all that attends."""
    place = (phase, "layer", "cp")
    volume = 2.0 if phase == "backward" else 1.0
    if way.kind == "ulysses":
        message = way.token * (way.query + way.width)
        return [Collective(name, "alltoall", *place, message, count)]
    message = volume * way.token * way.width
    if way.kind == "allgather":
        return [Collective(name, "allgather", *place, message * plan.cp, count)]
    calls = plan.cp - 1.0
    return [Collective(name, "p2p", *place, message, count, behind=behind, calls=calls)]


def _apart(
    way: _Way, plan: TrainingPlan, phase: str, name: str, behind: str, count: Numeric
) -> list[Collective]:
    """The same of PyTorch's own: keys and values gathered behind the first block, or passed on
    behind each, in the backward pass once more; their gradients are passed on in 32 bits after
    every block, the last time behind none. A compiled graph waits for what it sends at once:
    `_maybe_wait` meets no tensor to wait for while the graph is traced, where functional
    collectives have been waited for already (torch/distributed/_functional_collectives.py,
    `_maybe_wrap_tensor`; 2.6 to 2.13)."""
    place, hops = (phase, "layer", "cp"), plan.cp - 1.0
    hidden = "" if plan.fused else behind
    message = way.token * way.width
    if way.kind == "allgather":
        found = [Collective(name, "allgather", *place, message * plan.cp, count, behind=hidden)]
    else:
        found = [Collective(name, "p2p", *place, message, count * hops, behind=hidden)]
    if phase != "backward":
        return found
    wide = GRADIENT / plan.recipe.activation * message
    return [
        *found,
        Collective(f"{name}.gradients", "p2p", *place, wide, count * hops, behind=hidden),
        Collective(f"{name}.last", "p2p", *place, wide, count * np.where(hops > 0, 1.0, 0.0)),
    ]
