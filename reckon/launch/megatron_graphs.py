"""Megatron-LM's arguments for CUDA graphs: what captures, and which parts of a layer (Megatron Core
0.13 to 0.19, megatron/training/arguments.py)."""

from __future__ import annotations

from predictor.errors import InputError
from reckon.launch.table import Derived, Facts, Flags, truth

IMPL, SCOPE = "--cuda-graph-impl", "--cuda-graph-scope"
OLDER = ("--enable-cuda-graph", "--external-cuda-graph")
"""One graph for each layer, of Megatron Core or of Transformer Engine."""

PARTS = {
    "attention": ("attn",),
    "mlp": ("mlp",),
    "mamba": ("mamba",),
    "router": ("moe_router", "moe_preprocess"),
}
"""Parts of a plan's `cuda_graphs`, and what a scope calls them."""

WHOLE = "full_iteration"


def _says(facts: Facts) -> Flags:
    graphs = str(facts.get("cuda_graphs", "none"))
    if graphs == "none":
        return {}
    if graphs == "step":
        return {IMPL: "local", SCOPE: WHOLE}
    if graphs == "layers":
        return {IMPL: "local"}
    scopes = [scope for part in graphs.split(",") for scope in PARTS.get(part, ())]
    return {IMPL: "transformer_engine", SCOPE: " ".join(scopes)}


def _means(flags: Flags, facts: Facts) -> Facts:
    impl = str(flags.get(IMPL, "none")).lower()
    if any(truth(flag, flags.get(flag, False)) for flag in OLDER):
        impl = "local"
    if impl in ("none", "null"):
        return {"cuda_graphs": "none"}
    if impl not in ("local", "transformer_engine", WHOLE):
        raise InputError(f"{IMPL} {impl}: known are none, local, transformer_engine, {WHOLE}")
    named = str(flags.get(SCOPE, "")).strip("[]").replace(",", " ").split()
    scopes = {scope.strip("'\"") for scope in named}
    if impl == WHOLE or WHOLE in scopes:
        return {"cuda_graphs": "step"}
    parts = [part for part, own in PARTS.items() if scopes & set(own)]
    return {"cuda_graphs": ",".join(parts) or "layers"}


GRAPHS = Derived(
    (IMPL, SCOPE, *OLDER), _says, _means, off=((IMPL, "none"),), fields=("cuda_graphs",)
)
"""What graphs capture."""
