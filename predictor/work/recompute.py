"""What runs a second time before the backward pass, and what need not be kept for that.

Korthikanti et al. 2022, section 5 (the attention core); Megatron Core's `recompute_modules` for the
other named parts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from predictor.arrays import Numeric
from predictor.models import UNKNOWN, Model, has_closing_norms, repeated_products
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.work.primitives import Operator

BEHIND_NORMS = (
    "attention.qkv", "attention.q_down", "attention.down", "mlp.up", "moe.router", "mamba.in",
    "delta.in",
)  # fmt: skip
"""Products whose input is what a norm put out."""

ADDED = ("mlp.residual", "moe.residual")
ENDING = ("mlp.down", *ADDED)
"""Operators at the end of a layer whose output its backward pass does not need (the gradient of a
product needs its inputs): recomputation that stops early does without. A norm before the residual
needs what the product puts out."""

NEVER_KEPT = ("nvfp4",)
"""Data types of products whose outcome checkpoints by operator do not keep: the operator
(`_scaled_mm_v2`, of torch.nn.functional.scaled_mm: torchao's nvfp4_linear.py @ 08879f344) is none
of those that torchtitan lists (distributed/activation_checkpoint.py @ b5bcd76c6). Products of 8
bits are `mm` of tensors that know their scales (torchao's mx_linear.py, float8_linear.py)."""

OUTSIDE = ("moe.norm", "moe.residual", "mlp.norm", "mlp.residual")
"""Operators of a feed-forward block that are not of the block proper."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the layer that selective recomputation may name.

    repeats   whether a forward operator runs again
    frees     share of an operator's saved bytes that need not be kept
    regions   parallel regions whose collectives run again
    """

    repeats: Callable[[Operator], bool]
    frees: Callable[[Operator, Model], Numeric]
    regions: tuple[str, ...] = ()


def _queries_keys_values(operator: Operator, _: Model) -> Numeric:
    """What attention keeps that is projected from latents comes again (`Operator.remade`), and so
    does all that is kept to make it."""
    whole = operator.name in ("attention.absorb", "attention.query_norm")
    return 1.0 if whole else operator.remade


UP = (
    "attention.q_up", "attention.kv_up", "attention.query_norm", "attention.rope",
    "attention.absorb",
)  # fmt: skip
"""What follows the latents, up to attention."""


def _streams(operator: Operator, model: Model) -> float:
    """Streams come again from a layer's and from what its blocks put out, which is kept."""
    if not operator.name.startswith("streams."):
        return 0.0
    return model.streams / (model.streams + 1.0)


SHARED = ("shared.up", "shared.activation", "shared.down")

PARTS: dict[str, Part] = {
    "core_attn": Part(
        lambda o: o.core,
        lambda o, _: float(o.core and o.op in ("softmax", "elementwise")),
        ("attention",),
    ),
    "layernorm": Part(
        lambda o: o.op == "norm",
        lambda o, _: float(o.name in BEHIND_NORMS),
    ),
    "mhc": Part(
        lambda o: o.name.startswith("streams."),
        _streams,
    ),
    "mla_up_proj": Part(
        lambda o: o.name in UP,
        _queries_keys_values,
    ),
    "mlp": Part(
        lambda o: o.module == "dense" and o.name not in OUTSIDE,
        lambda o, _: float(o.name in ("mlp.activation", "mlp.down")),
        ("mlp.up",),
    ),
    "mlp_act": Part(lambda o: o.name == "mlp.activation", lambda o, _: float(o.name == "mlp.down")),
    "moe": Part(
        lambda o: o.module == "moe" and o.name not in OUTSIDE,
        lambda o, _: float(o.module == "moe" and o.name not in (*OUTSIDE, "moe.router")),
        ("shared.up", "moe"),
    ),
    "moe_act": Part(lambda o: o.name == "moe.activation", lambda o, _: float(o.name == "moe.down")),
    "shared_experts": Part(
        lambda o: o.name in SHARED,
        lambda o, _: float(o.name in SHARED),
        ("shared.up",),
    ),
}
"""Parts by the names that Megatron Core gives them; it has none for a dense layer's activation,
which XLA never keeps where products are named that are (`jax.checkpoint_policies`)."""


def repeats(operator: Operator, model: Model, plan: TrainingPlan) -> Numeric | None:
    """How often recomputation runs a forward kernel of a layer again; None if never."""
    last = plan.recompute in ("full", "per_op") and plan.stops_early
    if last and operator.name in _ending(model):
        return None
    if plan.recompute == "full":
        return plan.recompute_share
    if plan.recompute == "selective":
        named = any(PARTS[name].repeats(operator) for name in plan.recompute_parts)
        return 1.0 if named else None
    if plan.recompute == "per_op" and not operator.core:
        if operator.op != "gemm" or operator.dtype in NEVER_KEPT:
            return 1.0
        return repeated_products(model).get(operator.name, UNKNOWN) or None
    return None


def region_repeats(region: str, plan: TrainingPlan) -> Numeric | None:
    """How often the collectives of a parallel region run again; None if never."""
    if plan.recompute == "full":
        return plan.recompute_share
    if plan.recompute == "selective":
        named = any(region in PARTS[name].regions for name in plan.recompute_parts)
        return 1.0 if named else None
    return None


def comes_again(product: str, model: Model, plan: TrainingPlan) -> bool:
    """Whether a product of a layer runs again at all where its region does."""
    return plan.recompute != "per_op" or repeated_products(model).get(product, UNKNOWN) > 0.0


def kept_outcome(operator: Operator, model: Model, plan: TrainingPlan) -> Numeric:
    """Bytes that checkpoints by operator keep of what one execution of a layer's forward kernel
    puts out: attention's outcome with a sum in 32 bits for each row, products that do not run
    again, of experts what comes and goes through an all-to-all, and what tensor-parallel ranks add
    up and scatter; less the last of a layer where a graph is compiled, in which nothing reads it
    (torchtitan's `_save_list` and `_get_custom_policy`, parallelisms/parallelize_llama.py @
    3f20451bc; distributed/activation_checkpoint.py @ b5bcd76c6; all-to-alls since c4e229115)."""
    size, name = plan.recipe.activation, operator.name
    rows = operator.m * operator.batch
    if operator.core:
        if operator.op != "attention_prefill":
            return operator.saved
        return np.where(np.asarray(operator.saved) > 0, rows * (size * model.v_dim + 4.0), 0.0)
    if operator.op != "gemm":
        return 0.0
    apart = np.asarray(plan.ep) > 1
    if name in SENT:
        return np.where(apart, size * rows * (operator.k if name == SENT[0] else operator.n), 0.0)
    last = plan.fused and name in _ending(model)
    kept = 0.0 if last else 1.0 - (repeats(operator, model, plan) or 0.0)
    split = (np.asarray(plan.tp) > 1) & (np.asarray(plan.sequence_parallel) > 0)
    if name not in LEAVING or not np.any(split):
        return kept * size * rows * operator.n
    scattered = np.where(split, (1.0 - last) / np.asarray(plan.tp), kept)
    return scattered * size * rows * operator.n


SENT = ("moe.up", "moe.down")
"""Products whose input comes, and whose outcome goes, through an all-to-all."""

LEAVING = ("attention.out", "mlp.down", "shared.down")
"""Row-parallel products, whose partial sums tensor-parallel ranks scatter."""


def _ending(model: Model) -> tuple[str, ...]:
    """Operators that recomputation which stops early does without."""
    return ADDED if has_closing_norms(model) else ENDING


def ends_early(product: str, model: Model, plan: TrainingPlan) -> bool:
    """Whether what follows a product of a layer is not run again: its collectives are not."""
    return plan.recompute == "full" and plan.stops_early and product in _ending(model)


def freed(operator: Operator, model: Model, plan: TrainingPlan) -> Numeric:
    """Share of an operator's saved bytes that selective recomputation need not keep, 0..1."""
    if plan.recompute != "selective":
        return 0.0
    shares = [PARTS[name].frees(operator, model) for name in plan.recompute_parts]
    return np.asarray(np.minimum(sum(shares, 0.0), 1.0))
