"""What MaxText keeps of a layer for the backward pass (`remat_policy`; layers/decoders.py,
`get_remat_policy`, and utils/maxtext_utils.py, `get_save_and_offload_names`, @ e591f30c).

A policy names products whose outcome is kept; all else runs again. Here that is a choice of parts
of a layer: attention's core unless its outcome is kept, the MLP unless both of its wide outcomes
are, norms and activations in any case. A single product of those
around it that runs again is not counted.
"""

from __future__ import annotations

from predictor.errors import InputError
from reckon.launch.table import Derived, Facts, Flags

QKV = ("query_proj", "key_proj", "value_proj")
DOTS = (*QKV, "out_proj")
WIDE = ("mlpwi_0", "mlpwi_1", "mlpwo")
MIXED = tuple(f"moe_{name}" for name in WIDE)

KEPT: dict[str, tuple[str, ...]] = {
    "full": (),
    "save_out_proj": ("out_proj",),
    "save_qkv_proj": QKV,
    "save_dot_except_mlp": DOTS,
    "save_dot_except_mlpwi": (*DOTS, "mlpwo"),
    "save_dot_with_context_except_mlp": (*DOTS, "context"),
    "minimal": (*DOTS, *WIDE, *MIXED),
    "minimal_with_quantization": (*DOTS, *WIDE, *MIXED),
    "minimal_with_context": (*DOTS, *WIDE, *MIXED, "context"),
    "minimal_with_context_and_quantization": (*DOTS, *WIDE, *MIXED, "context"),
    "minimal_flash": (*DOTS, *WIDE, *MIXED, "context"),
    "save_dot": (*DOTS, *WIDE, *MIXED),
}
"""Outcomes that the accelerator keeps, beside the layer's input."""

HOSTED: dict[str, tuple[str, ...]] = {
    "qkv_proj_offloaded": QKV,
    "minimal_offloaded": (*DOTS, *WIDE),
}
"""Those that the host keeps."""

INPUT = "decoder_layer_input"
TENSORS = (INPUT, *DOTS, *WIDE, *MIXED, "context", "qkv_proj", "kv_proj", "mlpwi", "attention_out",
           "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv")  # fmt: skip
"""Outcomes that `custom` may name."""


def _named(flags: Flags, place: str) -> tuple[str, ...]:
    """What a custom policy leaves at a place: device or offload."""
    said = {name: str(flags.get(name, "device" if name == INPUT else "remat")) for name in TENSORS}
    wrong = next((n for n, v in said.items() if v not in ("remat", "device", "offload")), None)
    if wrong is not None:
        raise InputError(f"{wrong} {said[wrong]}: known are remat, device, offload")
    return tuple(name for name, value in said.items() if value == place)


def _spread(names: tuple[str, ...]) -> set[str]:
    """Names of several outcomes at once, taken apart."""
    several = {"qkv_proj": QKV, "kv_proj": QKV[1:], "mlpwi": WIDE[:2],
               "attention_out": ("context",),
               "mla_q": QKV[:1], "mla_kv": QKV[1:]}  # fmt: skip
    return {own for name in names for own in several.get(name, (name,))}


def _sizes(facts: Facts, experts: bool) -> dict[str, float]:
    """Elements a token of each outcome, of what is known of the model; relative sizes of a layer of
    Llama's shape where nothing is."""
    hidden = float(facts.get("model.hidden", 1.0))
    heads = float(facts.get("model.heads", 1.0))
    each = hidden / heads if "model.hidden" in facts else 1.0
    each = float(facts.get("model.head_dim", each))
    keys = float(facts.get("model.kv_heads", heads)) * each
    wide = float(facts.get("model.ffn_hidden", 3.5 * hidden))
    mixed = float(facts.get("model.expert_ffn_hidden", 0)) * float(facts.get("model.top_k", 0))
    found = {INPUT: hidden, "query_proj": heads * each, "key_proj": keys, "value_proj": keys,
             "out_proj": hidden, "context": heads * each}  # fmt: skip
    own = mixed if experts else wide
    prefix = "moe_" if experts else ""
    return found | {f"{prefix}mlpwi_0": own, f"{prefix}mlpwi_1": own, f"{prefix}mlpwo": hidden}


def _remat_means(flags: Flags, facts: Facts) -> Facts:
    """Which parts of a layer run again, and what share of the kept the host has."""
    policy = str(flags.get("remat_policy", "full")).lower()
    if policy == "none":
        return {"recompute": "none"}
    if policy == "custom":
        kept, hosted = _spread(_named(flags, "device")), _spread(_named(flags, "offload"))
    elif policy in KEPT:
        kept, hosted = {INPUT, *KEPT[policy]}, set()
    elif policy in HOSTED:
        kept, hosted = {INPUT}, set(HOSTED[policy])
    else:
        known = ", ".join((*KEPT, *HOSTED, "custom", "none"))
        raise InputError(f"remat_policy {policy}: known are {known}")
    experts = bool(flags.get("@experts"))
    found = _parts(kept | hosted, experts)
    sizes = _sizes(facts, experts)
    away = sum(size for name, size in sizes.items() if name in hosted)
    whole = sum(size for name, size in sizes.items() if name in kept | hosted)
    return found | ({"offload_activations": away / whole} if away else {})


def _parts(kept: set[str], experts: bool) -> Facts:
    """Parts that run again, of the outcomes that are kept."""
    prefix = "moe_" if experts else ""
    mlp = {f"{prefix}mlpwi_0", f"{prefix}mlpwi_1"} <= kept
    if not mlp and not set(QKV) <= kept:
        return {"recompute": "full"}
    again = ["layernorm", *(("mlp_act", "moe_act") if experts else ("mlp_act",))]
    if "context" not in kept:
        again.append("core_attn")
    if not mlp:
        again.append("moe" if experts else "mlp")
    return {"recompute": "selective", "recompute_modules": ",".join(sorted(again))}


REMAT = Derived(("remat_policy", "@experts", *TENSORS), lambda facts: {}, _remat_means,
                fields=("recompute",))  # fmt: skip
"""What runs twice, and what the host keeps."""
