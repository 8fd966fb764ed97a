"""What ranks that split a sequence exchange for attention.

Liu et al. 2023 (ring attention); Jacobs et al. 2023 (Ulysses).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import SEPARATE, TrainingPlan
from predictor.work.cores import WINDOWED, kv_heads
from predictor.work.primitives import Collective
from predictor.work.recompute import region_repeats


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


def _exchanged(model: Model, plan: TrainingPlan, share: float, kind: str) -> list[Collective]:
    """The same of blocks that are alike.

    kind   'ring', 'allgather' or 'ulysses', of what attends to all keys

    A ring passes keys and values on behind the attention to those that are there; a gathering
    fetches all of them first, as where each token chooses its own among them; Ulysses exchanges
    heads of queries, keys and values for tokens, and the outcome back, by all-to-alls.
    """
    width = _token_width(model, plan)
    query = model.heads / plan.tp * (model.qk_dim + model.v_dim)
    token = plan.recipe.activation * plan.tokens
    found: list[Collective] = []
    if plan.attention in SEPARATE:
        core, gradient = "attention.context", "attention.context.dgrad"
    else:
        core = "attention" if model.windowed_share < 1.0 else WINDOWED
        gradient = f"{core}.bwd"
    kind = "allgather" if model.is_sparse or model.is_compressed else kind
    for phase, name, behind, volume, times in (
        ("forward", "attention.exchange", core, 1.0, 1.0 + np.asarray(plan.unlearned)),
        (
            "recompute",
            "attention.exchange.again",
            f"{core}.again",
            1.0,
            region_repeats("attention", plan),
        ),
        ("backward", "attention.exchange.bwd", gradient, 2.0, 1.0),
    ):
        if times is None:
            continue
        count = times * share
        if kind == "ring":
            message, calls = volume * token * width, plan.cp - 1.0
            found.append(
                Collective(
                    name=name,
                    op="p2p",
                    phase=phase,
                    module="layer",
                    group="cp",
                    bytes=message,
                    count=count,
                    behind=behind,
                    calls=calls,
                )
            )
        elif kind == "ulysses":
            message = token * (query + width)
            found.append(Collective(name, "alltoall", phase, "layer", "cp", message, count))
        else:
            message = volume * token * width * plan.cp
            found.append(Collective(name, "allgather", phase, "layer", "cp", message, count))
    return found
