"""Megatron-LM: the arguments that state a model's dimensions."""

from __future__ import annotations

import re
from typing import Any

from predictor.errors import InputError
from reckon.launch.dimensions import layer_pattern
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    Switch,
    truth,
    whole_number,
)
from reckon.launch.tokenizers import FLAGS as TOKENIZER_FLAGS

BESIDE = "--attention-beside-mlp"
"""Of no line: how a configuration of GPT-NeoX says whether attention and MLP stand side by side,
'shared_norm', 'own_norms' or 'none'."""


def _attention_says(facts: Facts) -> Flags:
    """Grouped queries, and the size of a head where it does not follow."""
    found: Flags = {}
    if facts.get("model.kv_lora_rank"):
        return found
    if facts["model.kv_heads"] != facts["model.heads"]:
        found["--group-query-attention"] = True
        found["--num-query-groups"] = facts["model.kv_heads"]
    if facts["model.head_dim"] * facts["model.heads"] != facts["model.hidden"]:
        found["--kv-channels"] = facts["model.head_dim"]
    return found


def _attention_means(flags: Flags, facts: Facts) -> Facts:
    if "model.heads" not in facts:
        return {}
    found: Facts = {"model.kv_heads": facts["model.heads"]}
    if "--num-query-groups" in flags and truth("", flags.get("--group-query-attention", True)):
        groups = whole_number("--num-query-groups", flags["--num-query-groups"])
        found["model.kv_heads"] = groups
    if "--kv-channels" in flags:
        found["model.head_dim"] = whole_number("--kv-channels", flags["--kv-channels"])
    elif "model.hidden" in facts and facts["model.hidden"] % facts["model.heads"] == 0:
        found["model.head_dim"] = facts["model.hidden"] // facts["model.heads"]
    return found


def _latent_says(facts: Facts) -> Flags:
    if not facts.get("model.kv_lora_rank"):
        return {}
    return {
        "--multi-latent-attention": True,
        "--kv-lora-rank": facts["model.kv_lora_rank"],
        "--qk-head-dim": facts["model.qk_nope_head_dim"],
        "--qk-pos-emb-head-dim": facts["model.qk_rope_head_dim"],
        "--v-head-dim": facts["model.v_head_dim"],
        **({"--q-lora-rank": facts["model.q_lora_rank"]} if facts["model.q_lora_rank"] else {}),
    }


def _latent_means(flags: Flags, facts: Facts) -> Facts:
    if not truth("", flags.get("--multi-latent-attention", False)):
        return {}
    defaults = {"--kv-lora-rank": 32, "--qk-head-dim": 128, "--qk-pos-emb-head-dim": 64,
                "--v-head-dim": 128, "--q-lora-rank": 0}  # fmt: skip
    size = {f: whole_number(f, flags.get(f, absent)) for f, absent in defaults.items()}
    return {
        "model.kv_lora_rank": size["--kv-lora-rank"],
        "model.q_lora_rank": size["--q-lora-rank"],
        "model.qk_nope_head_dim": size["--qk-head-dim"],
        "model.head_dim": size["--qk-head-dim"],
        "model.qk_rope_head_dim": size["--qk-pos-emb-head-dim"],
        "model.v_head_dim": size["--v-head-dim"],
    }


def _ffn_means(flags: Flags, facts: Facts) -> Facts:
    if "--ffn-hidden-size" in flags:
        return {"model.ffn_hidden": whole_number("--ffn-hidden-size", flags["--ffn-hidden-size"])}
    if "model.hidden" not in facts:
        return {}
    hidden = facts["model.hidden"]  # as arguments.py has it: narrower by --swiglu alone
    narrow = truth("--swiglu", flags.get("--swiglu", False))
    wide = int(4 * hidden * 2 / 3 / 64) * 64 if narrow else 4 * hidden
    return {"model.ffn_hidden": wide}


def _positions_says(facts: Facts) -> Flags:
    kinds = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
    found: Flags = {"--max-position-embeddings": facts.get("seq_len", 4096)}
    if facts["model.positions"] in kinds:
        found["--position-embedding-type"] = kinds[facts["model.positions"]]
    if facts["model.positions"] == "learned":
        found["--max-position-embeddings"] = facts["model.max_context"]
    return found


def _positions_means(flags: Flags, facts: Facts) -> Facts:
    kinds = {"learned_absolute": "learned", "rope": "rope", "none": "none", "yarn": "rope",
             "mrope": "rope", "relative": "none", "alibi": "alibi"}  # fmt: skip
    said = str(flags.get("--position-embedding-type", "learned_absolute")).lower()
    if truth("", flags.get("--use-rotary-position-embeddings", False)):
        said = "rope"
    if said not in kinds:
        raise InputError(f"--position-embedding-type {said}: known are {', '.join(kinds)}")
    found: Facts = {"model.positions": kinds[said]}
    if kinds[said] == "learned" and "--max-position-embeddings" in flags:
        most = flags["--max-position-embeddings"]
        found["model.max_context"] = whole_number("--max-position-embeddings", most)
    return found


EXPERT_FLAGS = ("--num-experts", "--moe-ffn-hidden-size", "--moe-router-topk", "--moe-layer-freq",
                "--moe-shared-expert-intermediate-size")  # fmt: skip


def _experts_says(facts: Facts) -> Flags:
    if not facts.get("model.num_experts"):
        return {}
    found: Flags = {
        "--num-experts": facts["model.num_experts"],
        "--moe-router-topk": facts["model.top_k"],
        "--moe-ffn-hidden-size": facts["model.expert_ffn_hidden"],
    }
    if facts["model.shared_width"]:
        found["--moe-shared-expert-intermediate-size"] = facts["model.shared_width"]
    dense = facts["model.dense_layers"]
    if dense:
        found["--moe-layer-freq"] = f"([0]*{dense}+[1]*{facts['model.layers'] - dense})"
    elif facts["model.moe_every_n"] > 1:
        found["--moe-layer-freq"] = facts["model.moe_every_n"]
    return found


def _experts_means(flags: Flags, facts: Facts) -> Facts:
    if str(flags.get("--num-experts", "none")).lower() in ("none", "null", "0"):
        return {}

    def size(flag: str, absent: Any) -> int:
        return whole_number(flag, flags.get(flag, absent))

    found: Facts = {
        "model.num_experts": size("--num-experts", 0),
        "model.top_k": size("--moe-router-topk", 2),
        "model.expert_ffn_hidden": size("--moe-ffn-hidden-size", facts.get("model.ffn_hidden", 0)),
        "model.shared_width": size("--moe-shared-expert-intermediate-size", 0),
    }
    if "--moe-layer-freq" in flags:
        found |= layer_pattern("--moe-layer-freq", flags["--moe-layer-freq"])
    return found


def _window_says(facts: Facts) -> Flags:
    share = facts["model.windowed_share"]
    if not share:
        return {}
    found: Flags = {"--window-size": f"{facts['model.sliding_window']},0"}
    if share < 1:
        layers = facts["model.layers"]
        full = round((1 - share) * layers)
        every = next((n for n in range(2, layers + 1) if layers // n == full), None)
        found |= {"--window-attn-skip-freq": every} if every else {}  # else it is told as unsaid
    return found


def _window_means(flags: Flags, facts: Facts) -> Facts:
    if "--window-size" not in flags or "model.layers" not in facts:
        return {}
    left = str(flags["--window-size"]).strip("()[]").replace(",", " ").split()[0]
    found: Facts = {"model.sliding_window": whole_number("--window-size", left)}
    found["model.windowed_share"] = 1.0
    if "--window-attn-skip-freq" in flags:
        layers = facts["model.layers"]
        every = _skipped(flags["--window-attn-skip-freq"], int(layers))
        found["model.full_every"] = every
        found["model.windowed_share"] = 1.0 - layers // every / layers
    return found


def _skipped(said: Any, layers: int) -> int:
    """Which layer of how many attends to all keys: as a number, or as a pattern of all layers with
    1 for a window (Megatron-LM, transformer_config.py: `window_attn_skip_freq`).

    Raises InputError for anything else.
    """
    flag, text = "--window-attn-skip-freq", str(said)
    if "[" not in text:
        every = whole_number(flag, said)
        if every < 1:
            raise InputError(f"{flag} {every}: must be at least 1")
        return every
    windowed = [word == "1" for word in re.findall(r"[01]", text)]
    full = windowed.count(False)
    if re.search(r"[^\[\]01,\s]", text) or len(windowed) != layers or not full:
        raise InputError(
            f"{flag} {text:.60}: expected a number, or 0 or 1 for each of {layers} layers, some 0"
        )
    return layers // full


MODEL: tuple[Entry, ...] = (
    Number("--num-layers", "model.layers"),
    Number("--hidden-size", "model.hidden"),
    Number("--num-attention-heads", "model.heads"),
    Derived(
        ("--group-query-attention", "--num-query-groups", "--kv-channels"),
        _attention_says,
        _attention_means,
    ),
    Derived(
        (
            "--multi-latent-attention",
            "--q-lora-rank",
            "--kv-lora-rank",
            "--qk-head-dim",
            "--qk-pos-emb-head-dim",
            "--v-head-dim",
        ),
        _latent_says,
        _latent_means,
    ),
    Cases(
        ("model.gated", "model.activation"),
        (
            ((True, "silu"), {"--swiglu": True}),
            ((True, "silu"), {"--quick-geglu": True}),  # gated too: argument_utils.py, 2026-08
            ((False, "squared_relu"), {"--squared-relu": True}),
            ((False, "gelu"), {"--swiglu": False, "--squared-relu": False}),
        ),
    ),
    Derived(
        ("--ffn-hidden-size",),
        lambda facts: {"--ffn-hidden-size": facts["model.ffn_hidden"]},
        _ffn_means,
    ),
    Cases(
        ("model.norm",),
        (
            (("rmsnorm",), {"--normalization": "RMSNorm"}),
            (("layernorm",), {"--normalization": ("LayerNorm", "layernorm1p")}),
            (("layernorm",), {}),
        ),
    ),
    Derived(
        (
            "--position-embedding-type",
            "--max-position-embeddings",
            "--use-rotary-position-embeddings",
        ),
        _positions_says,
        _positions_means,
    ),
    Switch("--disable-bias-linear", "model.bias", when=False),
    Switch("--add-qkv-bias", "model.qkv_bias"),
    Derived(
        (BESIDE,),
        lambda facts: {},
        lambda flags, facts: (
            {"model.parallel": str(flags[BESIDE]).replace("none", "")} if BESIDE in flags else {}
        ),
    ),
    Switch("--untie-embeddings-and-output-weights", "model.tied_embeddings", when=False),
    Number("--vocab-size", "model.vocab", also=("--padded-vocab-size",)),
    Derived(
        TOKENIZER_FLAGS,
        lambda facts: {"--tokenizer-type": "NullTokenizer"},
        lambda flags, facts: (
            {"model.tokenizer": " ".join(str(flags[f]) for f in TOKENIZER_FLAGS if f in flags)}
            if any(f in flags for f in TOKENIZER_FLAGS)
            else {}
        ),
    ),
    Derived(EXPERT_FLAGS, _experts_says, _experts_means),
    Derived(("--window-size", "--window-attn-skip-freq"), _window_says, _window_means),
    Derived(
        ("--mtp-num-layers",),
        lambda facts: {},
        lambda flags, facts: {
            "model.mtp_layers": whole_number("--mtp-num-layers", flags.get("--mtp-num-layers", 0))
        },
    ),
)
"""Dimensions of the model."""
