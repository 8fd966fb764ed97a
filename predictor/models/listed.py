"""What files list layer by layer, or a type implies where they do not: which layers are mixtures,
which have a window, which choose the keys that they see.

Read off the configuration classes of transformers 5.24.0 (2026-11): src/transformers/models/*/
configuration_*.py, whose `__post_init__` fills in what published files leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from predictor.errors import InputError
from predictor.models.mixed import Found, leading, listed_windows

WINDOW, WHOLE = "sliding_attention", "full_attention"
CHUNK, CHOSEN = "chunked_attention", "indexed_attention"

RENAMED = {"attention": WHOLE, "deepseek_sparse_attention": CHOSEN}
"""Older names of kinds of layers (transformers 5.24.0, configuration_utils.py)."""

USUAL_DENSE = {"beam": 3, "glm4_moe_lite": 1, "hy_v3": 1, "sarvam_moe": 1, "sarvam_mla": 1,
               "axk1": 1, "exaone_moe": 1, "hy_v4": 1, "hy_v4_vl_text": 1, "glm5_next_text": 3,
               "glm_moe_dsa": 3, "deepseek_v32": 3, "mistral_large4_text": 1,
               "iquest_q1": 1}  # fmt: skip
"""Leading layers without experts where a file says nothing of them."""

Whole = Callable[[int, int, Mapping[str, Any]], bool]


def _every(usual: int, key: str = "sliding_window_pattern") -> Whole:
    """Every so manieth layer sees all keys."""
    return lambda at, layers, content: (at + 1) % int(content.get(key) or usual) == 0


def _from_the_end(at: int, layers: int, content: Mapping[str, Any]) -> bool:
    return (layers - 1 - at) % 4 == 0


USUAL_WHOLE: dict[str, Whole] = {
    "afmoe": _every(4, "global_attn_every_n_layers"),
    "beam": lambda at, layers, content: (at + 1) % 6 == 0 or at == layers - 1,
    "cohere2": _every(4),
    "cohere2_moe": lambda at, layers, content: _after_dense(at, layers, content),
    "flint": lambda at, layers, content: at < 2 or at % 4 == 1 or at == layers - 1,
    "granite_swa": lambda at, layers, content: at % 4 == 0,
    "granitemoe_swa": lambda at, layers, content: at % 4 == 0,
    "iquest_q1": lambda at, layers, content: at == 0 or at % 4 == 1 or at >= layers - 3,
    "kolibri1": _every(5),
    "muse_glimmer_text": _from_the_end,
    "muse_spark_text": _from_the_end,
    "spark2_5": _every(4),
}
"""Whether a layer sees all keys, by its number, where a file has no list of them."""


def _after_dense(at: int, layers: int, content: Mapping[str, Any]) -> bool:
    dense = int(content.get("first_k_dense_replace") or 0)
    if at < dense:
        return (at + 1) % int(content.get("prefix_dense_sliding_window_pattern") or 1) == 0
    return (at - dense + 1) % int(content.get("sliding_window_pattern") or 4) == 0


def windows(kind: str, content: Mapping[str, Any], found: Found, where: str) -> Found:
    """Which layers see a window only, in the words of a catalog's `sliding_pattern`; empty where
    neither the file nor its type says.

    Raises InputError for a kind of layer that its type does not have.
    """
    layers, listed = found["layers"], content.get("layer_types")
    if isinstance(listed, list):
        listed = [RENAMED.get(str(one), one) for one in listed[:layers]]
        known = {CHOSEN} if found.get("index_topk") and CHOSEN in listed else {WINDOW, WHOLE, CHUNK}
        if strange := set(listed) - known:
            raise InputError(
                f"{where}: key 'layer_types' has {sorted(map(str, strange))[0]}, which "
                f"{kind} is not predicted with"
            )
    elif kind in USUAL_WHOLE and found.get("sliding_window"):
        whole = USUAL_WHOLE[kind]
        listed = [WHOLE if whole(at, layers, content) else WINDOW for at in range(layers)]
    elif content.get("use_sliding_window") and isinstance(content.get("max_window_layers"), int):
        listed = [WHOLE if at < content["max_window_layers"] else WINDOW for at in range(layers)]
    if not isinstance(listed, list) or not found.get("sliding_window"):
        return {}
    if content.get("use_sliding_window") is False or kind == "llama4_text":
        return {}
    if WINDOW not in listed and CHUNK not in listed:
        return {"sliding_window": 0}
    pattern = listed_windows(listed)
    return {"sliding_pattern": pattern} if pattern else {}


def _marks(content: Mapping[str, Any], layers: int) -> tuple[str, list[bool]] | None:
    """Key that says which layers are mixtures, and whether each is; None where there is no such."""
    numbers = range(layers)
    first = int(content.get("first_k_dense_replace") or 0)
    kinds, each = content.get("mlp_layer_types"), content.get("moe_layer_freq")
    if isinstance(kinds, list) and len(kinds) >= layers:
        return "mlp_layer_types", [kind != "dense" for kind in kinds[:layers]]
    if isinstance(each, list) and len(each) >= layers:
        return "moe_layer_freq", [bool(mark) and at >= first for at, mark in enumerate(each)]
    if isinstance(each, int) and each > 1:
        return "moe_layer_freq", [at >= first and at % each == 0 for at in numbers]
    step = content.get("decoder_sparse_step") or 1
    plain = content.get("mlp_only_layers")
    if plain or step > 1:
        without = set(plain or ())
        return "mlp_only_layers", [at not in without and (at + 1) % step == 0 for at in numbers]
    step, last = content.get("moe_layer_interval") or 1, content.get("moe_layer_end_index")
    if step > 1 or (isinstance(last, int) and 0 <= last < layers - 1):
        start = int(content.get("moe_layer_start_index") or 0)
        end = layers - 1 if last in (None, -1) else int(last)
        return "moe_layer_interval", [(at + 1) % step == 0 and start <= at <= end for at in numbers]
    return None


def mixtures(kind: str, content: Mapping[str, Any], found: Found, where: str) -> Found:
    """Which layers are mixtures of experts: behind leading dense ones, or every so manieth.

    Raises InputError where they are neither.
    """
    if not found.get("num_experts"):
        return {}
    layers = found["layers"]
    marks = _marks(content, layers)
    if marks is None:
        if "dense_layers" in found or kind not in USUAL_DENSE:
            return {}
        return {"dense_layers": min(USUAL_DENSE[kind], layers)}
    key, sparse = marks
    step = sparse.index(True) + 1 if True in sparse else 1
    if step > 1 and sparse == [(at + 1) % step == 0 for at in range(layers)]:
        return {"moe_every_n": step, "dense_layers": 0}
    return {"dense_layers": leading([int(mark) for mark in sparse], key, where)}


def sharing(
    content: Mapping[str, Any], attending: list[int], usual: Callable[[int], bool]
) -> dict[str, int]:
    """How many layers see the keys that an earlier one chose: listed, a pattern of F and S, or all
    but every so manieth.

    attending   numbers of the layers that see chosen keys
    usual       whether a layer chooses itself, by its number, where a file says nothing
    """
    listed = content.get("indexer_types") or content.get("index_topk_pattern")
    every = content.get("index_topk_freq")
    if isinstance(listed, list | str):
        own = [at < len(listed) and listed[at] in ("full", "F") for at in attending]
    elif isinstance(every, int) and every > 0:
        offset = int(content.get("index_skip_topk_offset", 2))
        own = [max(at - offset + 1, 0) % every == 0 for at in attending]
    else:
        own = [usual(at) for at in attending]
    return {"sharing_layers": own.count(False)}
