"""What of a training step CUDA graphs hold: those kernels the host does not launch one by one."""

from __future__ import annotations

from predictor.work.primitives import Operator

LAYERS = ("attention", "mlp", "mamba", "delta", "moe", "shared")
"""How names of operators inside a layer begin."""

EXPERTS = tuple(
    f"moe.{name}"
    for name in ("up", "activation", "down", "bias", "permute", "sort", "unsort", "unpermute")
)
"""What a mixture's layer does for as many tokens as its experts get, which a router's graph does
not hold (Megatron Core's scopes moe_router and moe_preprocess)."""

PARTS = {"attention": ("attention",), "mlp": ("mlp", "shared"), "mamba": ("mamba", "delta")}


def captured(operator: Operator, parts: tuple[str, ...]) -> bool:
    """Whether graphs of those parts (`plans.CUDA_GRAPHS`) hold an operator of a micro-batch."""
    if "step" in parts:
        return True
    block = operator.name.partition(".")[0]
    if "layers" in parts:
        return block in LAYERS
    if "router" in parts and block == "moe" and not operator.name.startswith(EXPERTS):
        return True
    return any(block in PARTS.get(part, ()) for part in parts)
