"""Which matrices of a model its `quantization_config` narrows, in the two forms that plans know:
all linear projections of the layers, or the experts alone.

Router, embedding and output projection are in 16 bits in either form, as published checkpoints have
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from predictor.errors import InputError
from predictor.models.model import Model
from predictor.models.quantization import Quantization

PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers",
            "backbone.layers")  # fmt: skip
"""Where the layers of a language model are, also of one that sees images."""

_GATED = ("gate_proj", "up_proj", "down_proj")

MODULES: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention": (
        tuple(f"self_attn.{side}_proj" for side in "qkvo"),
        ("self_attn.qkv_proj", "self_attn.o_proj"),
        ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa",
         "self_attn.kv_b_proj", "self_attn.o_proj"),
        tuple(f"mixer.{side}_proj" for side in "qkvo"),
    ),
    "state space": (
        ("mixer.in_proj", "mixer.out_proj"),
        ("mamba.in_proj", "mamba.out_proj"),
    ),
    "delta rule": (
        ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
        ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"),
    ),
    "short convolution": (("conv.in_proj", "conv.out_proj"),),
    "dense feed-forward": (
        tuple(f"mlp.{side}" for side in _GATED),
        tuple(f"feed_forward.{side}" for side in _GATED),
        tuple(f"feed_forward.w{side}" for side in "123"),
        ("mixer.up_proj", "mixer.down_proj"),
    ),
    "shared experts": (
        tuple(f"mlp.shared_experts.{side}" for side in _GATED),
        tuple(f"mlp.shared_expert.{side}" for side in _GATED),
        tuple(f"feed_forward.shared_expert.{side}" for side in _GATED),
        ("mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"),
    ),
    "experts": (
        tuple(f"mlp.experts.0.{side}" for side in _GATED),
        ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        ("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w2",
         "block_sparse_moe.experts.0.w3"),
        tuple(f"feed_forward.experts.{side}" for side in ("gate_up_proj", "down_proj")),
        tuple(f"feed_forward.experts.0.w{side}" for side in "123"),
        ("mixer.experts.0.up_proj", "mixer.experts.0.down_proj"),
    ),
}  # fmt: skip
"""Modules of a block by what it is, in the spellings of published models."""

NEGLIGIBLE = 0.001
"""Share of the weights that is not worth a word."""


def _mean(kinds: tuple[tuple[int, Model], ...], matrix: str) -> float:
    """Weights of the mean block of several kinds."""
    whole = sum(n * int(getattr(one, matrix)) for n, one in kinds)
    return whole / max(sum(n for n, _ in kinds), 1)


def _blocks(model: Model) -> dict[str, tuple[int, float]]:
    """Blocks of every kind, and weights of one."""
    dense = model.ffn_blocks - model.moe_layers
    experts = model.num_experts * model.expert_matrix
    found = {
        "attention": (model.attention_blocks, _mean(model.attention_kinds, "attention_matrix")),
        "state space": (model.mamba_layers, model.mamba_matrix),
        "delta rule": (model.delta_layers, model.delta_matrix),
        "short convolution": (model.conv_layers, model.conv_matrix),
        "dense feed-forward": (dense, _mean(model.dense_kinds, "dense_ffn_matrix")),
        "shared experts": (model.moe_layers, model.shared_matrix),
        "experts": (model.moe_layers, experts),
    }
    return {kind: sizes for kind, sizes in found.items() if sizes[0] * sizes[1] > 0}


def _listed(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a list of modules holds one: by its name or that of a part around it, by a glob, or
    by a regular expression behind 're:'."""
    plain = {p.rstrip(".") for p in patterns if not p.startswith("re:") and "*" not in p}
    globs = [re.escape(p).replace(r"\*", ".*") + r"(\..*)?$" for p in patterns if "*" in p
             and not p.startswith("re:")]  # fmt: skip
    free = [p.removeprefix("re:") for p in patterns if p.startswith("re:")]
    try:
        matched = [re.compile("|".join(f"(?:{g})" for g in own)) for own in (globs, free) if own]
    except re.error as error:
        raise InputError(
            f"quantization_config: {error.pattern!r:.80} is no regular expression: {error.msg}"
        ) from None

    def holds(name: str) -> bool:
        parts = name.split(".")
        size = range(len(parts))
        within = any(".".join(parts[a : b + 1]) in plain for a in size for b in size[a:])
        return within or any(own.match(name) for own in matched)

    return holds


def _narrow_shares(model: Model, stated: Quantization) -> dict[str, float]:
    """Share of the blocks of every kind that is narrow, 0..1."""
    exempt, chosen = _listed(stated.exempt), _listed(stated.targets)

    def wide(layer: int, module: str) -> bool:
        names = [f"{prefix}.{layer}.{module}" for prefix in PREFIXES]
        return any(map(exempt, names)) or (bool(stated.targets) and not any(map(chosen, names)))

    found = {}
    for kind, (blocks, _) in _blocks(model).items():
        # Lists that name layers name those that hold such a block; patterns hit every layer.
        each = (
            (sum(wide(layer, module) for module in spelling) / len(spelling)
             for spelling in MODULES[kind])
            for layer in range(model.layers)
        )  # fmt: skip
        pick = min if stated.targets else max
        found[kind] = max(1.0 - sum(pick(shares) for shares in each) / blocks, 0.0)
    return found


@lru_cache(maxsize=64)
def narrowing(model: Model) -> tuple[str, str]:
    """What of a model is narrow: 'linear', 'experts' or 'none', whichever has the fewest weights
    wrong; and a remark on those that it has wrong.

    model   with a `quantization`

    Raises InputError for a list of modules that cannot be read.
    """
    assert model.quantization is not None
    narrow, blocks = _narrow_shares(model, model.quantization), _blocks(model)
    weights = {kind: float(count * each) for kind, (count, each) in blocks.items()}
    whole = sum(weights.values())

    def wrong(form: str) -> dict[str, float]:
        held = {k: float(form == "linear" or (form == "experts" and k == form)) for k in weights}
        return {k: weights[k] * abs(held[k] - narrow[k]) / whole for k in weights}

    forms = ("linear", "experts", "none") if model.is_moe else ("linear", "none")
    form = min(forms, key=lambda one: sum(wrong(one).values()))
    left = {kind: share for kind, share in wrong(form).items() if share > NEGLIGIBLE}
    if not left:
        return form, ""
    told = ", ".join(f"{kind} {1 - narrow[kind]:.0%} in 16 bits" for kind in left)
    return form, f"{sum(left.values()):.0%} of the weights are otherwise in it: {told}"
