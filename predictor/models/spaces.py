"""Configurations of state spaces: alone (Mamba, Mamba-2, Falcon-Mamba), side by side with attention
(Falcon-H1), of Mamba-1 in turn with it (Jamba), and beside blocks that layers share (Zamba2).

Read off published files and vLLM's models; what files leave to the configuration classes of
transformers 4.57 (2025-10) and to the authors' own package mamba_ssm 2.2 (state-spaces/mamba,
models/config_mamba.py, modules/mamba_simple.py and mamba2.py) is from memory, Zamba2's aside
(configuration_zamba2.py @ 02f5807).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError
from predictor.models.mixed import Found

OWN = "ssm_cfg"
"""Key that only files of mamba_ssm have, which name no type."""

EXPAND = 2
"""Channels of a state space over the model's width, where a file states neither."""


def is_own(content: Mapping[str, Any]) -> bool:
    """Whether a file is of mamba_ssm, whose words are not those of transformers' classes."""
    named = OWN in content or content.get("model_type") == "mamba"
    return named and "n_layer" in content and "num_hidden_layers" not in content


def own_config(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A file of mamba_ssm in the words of transformers' classes (models/config_mamba.py: what is
    not stated; mixer_seq_simple.py: the vocabulary is rounded up).

    Raises InputError where it has attention or feed-forward blocks, too.
    """
    inner = content.get(OWN) or {}
    if content.get("attn_layer_idx") or content.get("d_intermediate"):
        raise InputError(f"{where}: keys 'attn_layer_idx' and 'd_intermediate' are not predicted")
    step = int(content.get("pad_vocab_size_multiple", 8))
    found = {
        "model_type": "mamba2" if inner.get("layer") == "Mamba2" else "mamba",
        "hidden_size": content.get("d_model", 2560),
        "num_hidden_layers": content.get("n_layer", 64),
        "vocab_size": -(-int(content.get("vocab_size", 50277)) // step) * step,
        "tie_word_embeddings": content.get("tie_embeddings", True),
        "expand": inner.get("expand", EXPAND),
    }
    if found["model_type"] == "mamba":
        more = {"state_size": inner.get("d_state", 16), "time_step_rank": inner.get("dt_rank")}
    else:
        more = {
            "state_size": inner.get("d_state", 128),
            "head_dim": inner.get("headdim", 64),
            "n_groups": inner.get("ngroups", 1),
            "chunk_size": inner.get("chunk_size", 256),
        }
    return {**found, **{key: value for key, value in more.items() if value is not None}}


def _rank(stated: Any, hidden: int) -> int:
    """Channels through which step sizes are projected: stated, or a sixteenth of the width."""
    return math.ceil(hidden / 16) if stated in (None, "auto") else int(stated)


def _whole(value: Any, key: str, where: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{where}: key {key!r} must be a whole number of at least 1")
    return value


def _channels(width: int, state: int, rank: int) -> Found:
    """A state space of Mamba-1, each of whose channels is a head of its own."""
    return {
        "mamba_heads": width,
        "mamba_head_dim": 1,
        "mamba_state": state,
        "mamba_rank": rank,
    }


def _alone(found: Found, spaces: Found) -> Found:
    """Layers that are a state space each, and nothing else."""
    own = {"mamba_layers": found.get("layers", 0), "ffn_hidden": 0, "positions": "none"}
    heads = {"heads": spaces["mamba_heads"], "head_dim": spaces["mamba_head_dim"]}
    return {**spaces, **own, **heads}


def mamba(content: Mapping[str, Any], found: Found, where: str) -> Found:
    """Mamba and Falcon-Mamba: layers of one selective scan each (configuration_mamba.py,
    configuration_falcon_mamba.py; in the latter's files 'expand' is not what it is called)."""
    hidden = _whole(found.get("hidden"), "hidden_size", where)
    usual = int(content.get("expand", EXPAND) * hidden)
    width = _whole(content.get("intermediate_size") or usual, "intermediate_size", where)
    rank = _rank(content.get("time_step_rank"), hidden)
    return _alone(found, _channels(width, content.get("state_size", 16), rank))


def mamba2(content: Mapping[str, Any], found: Found, where: str) -> Found:
    """Mamba-2: layers of one state space each (configuration_mamba2.py)."""
    hidden = _whole(found.get("hidden"), "hidden_size", where)
    width = int(content.get("expand", EXPAND) * hidden)
    size = _whole(content.get("head_dim", 64), "head_dim", where)
    heads = content.get("num_heads") or width // size  # fla's class has no such key
    if heads * size != width:
        raise InputError(
            f"{where}: {heads} heads of {size} are not the {width} channels of 'expand'"
        )
    spaces: Found = {
        "mamba_heads": heads,
        "mamba_head_dim": size,
        "mamba_state": content.get("state_size", 128),
        "mamba_groups": content.get("n_groups", 8),
        "mamba_chunk": content.get("chunk_size", 256),
    }
    return _alone(found, spaces)


ALONE = {"mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2}
"""By `model_type`: what layers without attention are, whose heads no file states."""


def falcon_h1(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, and a gated block
    (configuration_falcon_h1.py, modeling_falcon_h1.py). Its multipliers cost what is joined with
    other kernels, and are left out."""
    if content.get("mamba_use_mlp") is False:
        raise InputError(f"{where}: key 'mamba_use_mlp' other than true is not predicted")
    usual = int(content.get("mamba_expand", EXPAND) * found["hidden"])
    width = content.get("mamba_d_ssm") or usual
    heads = _whole(found.get("mamba_heads", 128), "mamba_n_heads", where)
    if found.get("mamba_head_dim", "auto") == "auto":
        found["mamba_head_dim"] = width // heads
    if heads * found["mamba_head_dim"] != width:
        raise InputError(
            f"{where}: {heads} heads of {found['mamba_head_dim']} are not the {width} channels of "
            "'mamba_d_ssm'"
        )
    found |= {
        "mamba_beside": True,
        "attention_layers": found["layers"],
        "mamba_layers": found["layers"],
        "mamba_heads": heads,
    }
    for name, usual in (("mamba_state", 256), ("mamba_groups", 1), ("mamba_chunk", 256)):
        found.setdefault(name, usual)


def _every(content: Mapping[str, Any], what: str, usual: tuple[int, int], where: str) -> set[int]:
    """Numbers of the layers that a period and an offset choose."""
    period = _whole(content.get(f"{what}_layer_period", usual[0]), f"{what}_layer_period", where)
    first = content.get(f"{what}_layer_offset", usual[1])
    return {at for at in range(content["num_hidden_layers"]) if at % period == first}


def jamba(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Jamba: layers of attention or Mamba-1, and a feed-forward block each, of which every other is
    a mixture (Lieber et al. 2024, arXiv 2403.19887; configuration_jamba.py); counted as twice as
    many layers of one block each.

    Raises InputError where mixtures are not every so manieth layer.
    """
    layers, hidden = found["layers"], found["hidden"]
    attending = len(_every(content, "attn", (8, 4), where))
    width = int(content.get("mamba_expand", EXPAND) * hidden)
    rank = _rank(content.get("mamba_dt_rank"), hidden)
    if attending < layers:
        found |= _channels(width, content.get("mamba_d_state", 16), rank)
        found |= {"layers": 2 * layers, "attention_layers": attending}
        found["mamba_layers"] = layers - attending
    experts = content.get("num_experts", 16)
    mixtures = _every(content, "expert", (2, 1), where) if experts > 1 else set()
    if not mixtures:
        for name in ("num_experts", "expert_ffn_hidden", "top_k"):
            found.pop(name, None)
        return
    every = layers // len(mixtures)
    if layers // every != len(mixtures):
        raise InputError(f"{where}: {len(mixtures)} mixtures of {layers} layers are not predicted")
    found |= {
        "num_experts": experts,
        "moe_every_n": every,
        "expert_ffn_hidden": found["ffn_hidden"],
    }
    found.setdefault("top_k", 2)


def _first(content: Mapping[str, Any], keys: tuple[str, ...], usual: Any) -> Any:
    """What the first key that is stated says."""
    return next((content[key] for key in keys if content.get(key) is not None), usual)


USES = ("hybrid", "g")
"""Layers of Zamba2 that use a shared block, in the words of transformers' class and of its
authors' files."""


ALONE_TOO = ("mamba", "m", "linear_attention")
"""Layers that do not (`linear_attention`: transformers 5.24)."""


def zamba2(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Zamba2: layers of Mamba-2, before some of which one of a few blocks of attention and a gated
    feed-forward block runs, with adapters of its own for each use (configuration_zamba2.py,
    modeling_zamba2.py; files of 2024 have other words for the same)."""
    layers, hidden = found["layers"], found["hidden"]
    kinds = content.get("layers_block_type")
    if not isinstance(kinds, list) or set(kinds) - {*USES, *ALONE_TOO} or len(kinds) != layers:
        raise InputError(f"{where}: key 'layers_block_type' must be mamba or hybrid for each layer")
    uses = sum(kind in USES for kind in kinds)
    if not uses:
        raise InputError(f"{where}: key 'layers_block_type' must have a hybrid layer")
    width = int(_first(content, ("mamba_expand", "expansion_factor"), EXPAND) * hidden)
    size = _first(content, ("mamba_headdim",), 64)
    found |= {
        "layers": layers + 2 * uses,
        "attention_layers": uses,
        "mamba_layers": layers,
        "mamba_heads": width // size,
        "mamba_head_dim": size,
        "mamba_state": _first(content, ("mamba_d_state", "state_size"), 64),
        "mamba_groups": _first(content, ("mamba_ngroups",), 1),
        "mamba_chunk": _first(content, ("chunk_size",), 256),
        "head_dim": 2 * hidden // found["heads"],
        "ffn_hidden": _first(content, ("intermediate_size", "ffn_hidden_size"), 4 * hidden),
        "shared_blocks": min(_first(content, ("num_mem_blocks",), 1), uses),
        "shared_rank": _first(content, ("adapter_rank", "lora_rank"), 128),
        "positions": "rope" if content.get("use_mem_rope") else "none",
    }
    own = ("use_shared_attention_adapter", "use_shared_attention_lora")
    found["shared_queries"] = bool(_first(content, own, False))


READERS = {"falcon_h1": falcon_h1, "jamba": jamba, "zamba2": zamba2}
"""By `model_type`: completes what was found."""
