"""Rows of published tables as models: stated dimensions over the catalog's, and what follows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from calibration.tables.cells import cell
from predictor import catalog
from predictor.catalog import Assumption
from predictor.errors import InputError
from predictor.models import Model

EXPERT_DIMENSIONS = ("num_experts", "top_k", "expert_ffn_hidden", "shared_experts", "gated")
DIMENSIONS = ("layers", "hidden", "heads", "ffn_hidden", "vocab")
FURTHER = ("kv_heads", "tied_embeddings", "head_dim", "dense_layers")
"""Dimensions that follow from others where a row does not state them; the last two are columns of
tables of one's own only."""
GPT3_VOCAB = 51200
"""GPT-2's words as Megatron-LM pads them for eight ranks (Narayanan et al. 2021, section 5)."""

GPT_LIKE = ("gpt", "bloom", "opt", "mpt", "mt-nlg", "megatron", "nemotron", "falcon")


def base_name(name: str) -> str:
    """Catalog name behind a table's: fine-tuning and proxy suffixes dropped."""
    text = re.sub(r"\s*\(.*\)$", "", name.lower())
    return re.sub(r"[-_ ](sft|q?lora|1layer|[0-9]+l-proxy|[0-9]+layers?)$", "", text)


def model_of(row: Mapping[str, Any]) -> Model:
    """The model of a row, as `described`."""
    return described(row)[0]


def described(row: Mapping[str, Any]) -> tuple[Model, tuple[Assumption, ...]]:
    """The model of a row, stated dimensions over the catalog's entry of that name, and what of it
    neither states but follows from the rest.

    Raises InputError where neither gives a dimension.
    """
    name = str(cell(row, "model") or "unnamed")
    columns = (*DIMENSIONS, *FURTHER, *EXPERT_DIMENSIONS)
    stated = {key: value for key in columns if (value := cell(row, key)) is not None}
    known = _known(base_name(name), stated)
    merged = {**_consistent(known, stated), **stated}
    if proxy := re.search(r"-([0-9]+)(?:l-proxy|layers?)$", name.lower()):
        merged["layers"] = int(proxy[1])
    merged |= _shortened(merged, known, stated)
    for key in ("aliases", "source", "notes"):
        merged.pop(key, None)
    family = str(cell(row, "family") or merged.get("family") or "")
    if not known:
        catalog.refuse_not_read(base_name(name), family)
        text = f"{family} {name}".lower()
        merged = {**_style(text, merged, str(cell(row, "framework") or "")), **merged}
    assumed = tuple(_derive(merged, family, name, cell(row, "params_b")))
    missing = [key for key in DIMENSIONS if merged.get(key) in (None, "")]
    if missing:
        raise InputError(f"model {name!r}: {', '.join(missing)} not stated and not in the catalog")
    merged["name"] = name
    found = catalog.model(merged)
    _agrees(found, known, cell(row, "params_b"))
    return found, assumed


CONTRADICTED, UNITS = 2.0, 100.0
"""Parameters that a row states over those of its model, or the other way round, from which on it is
another model; and from which on they are counted in other units than billions."""


def _agrees(model: Model, known: Mapping[str, Any], params_b: float | None) -> None:
    """Raise InputError where a row states other parameters than its model has: all of them, those
    that a token touches, or those of the catalog's entry that it is a part of."""
    if not params_b:
        return
    whole = [catalog.model(known)] if known else []
    counts = [n for one in (model, *whole) for n in (one.parameters, one.active_parameters)]
    off = min(max(n / (1e9 * params_b), 1e9 * params_b / n) for n in counts)
    if CONTRADICTED < off < UNITS:
        has = f"{model.parameters / 1e9:.3g}"
        raise InputError(
            f"the row contradicts itself: params_b {params_b:g}, and {model.name} has {has}"
        )


INTERLEAVED = (
    "attention_layers", "mamba_layers", "delta_layers", "choosing_layers", "pooling_layers",
    "borrowing_layers", "conv_layers", "sharing_layers", "reading_layers", "decoder_layers",
    "decoder_choosers", "ngram_layers",
)  # fmt: skip
"""Layers of kinds that take turns, so that a shorter model has as large a share of each."""


def _shortened(
    merged: Mapping[str, Any], known: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, int]:
    """Layers of each kind of a model of fewer layers than the catalog's entry of its name."""
    whole, own = known.get("layers"), merged.get("layers")
    if not whole or not own or int(own) >= int(whole):
        return {}
    counts = {name: int(known.get(name) or 0) for name in INTERLEAVED if name not in stated}
    return {name: count * int(own) // int(whole) for name, count in counts.items() if count}


def _known(name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The catalog's entry of a name; of what the name is taken for where a row does not state its
    dimensions itself; empty where there is none."""
    row = catalog.known("models", name)
    if row is not None:
        return dict(row)
    named = None if set(DIMENSIONS) <= set(stated) else catalog.read_model_name(name)
    return dict(catalog.find("models", named.row)) if named else {}


def _consistent(known: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """A catalog entry without what contradicts the heads and the width that a row states.

    Keys and values of an entry where every head has its own are those of the row's heads, and so
    are groups that do not divide these; heads of an entry that share out the whole width share out
    the row's.
    """
    found = dict(known)

    def number(key: str) -> int:
        return int(found.get(key) or 0)

    heads, hidden = int(stated.get("heads", number("heads"))), number("hidden")
    width = int(stated.get("hidden", hidden))
    if (heads, width) == (number("heads"), hidden):
        return found
    if number("kv_heads") == number("heads") or (heads and heads % max(number("kv_heads"), 1)):
        found.pop("kv_heads", None)
    if number("head_dim") * number("heads") == hidden:
        found.pop("head_dim", None)
    return found


def _derive(
    merged: dict[str, Any], family: str, name: str, params_b: float | None
) -> Iterator[Assumption]:
    """Fill in dimensions that follow from others, and say so."""

    def fill(key: str, value: int, rule: str) -> Assumption:
        merged[key] = value
        return Assumption(key, value, rule)

    hidden = int(merged.get("hidden") or 0)
    if merged.get("top_k") and merged.get("expert_ffn_hidden") and not merged.get("num_experts"):
        yield fill("num_experts", _experts(merged, name, params_b), "from the parameters stated")
    if merged.get("num_experts"):
        if not merged.get("ffn_hidden") and merged.get("expert_ffn_hidden"):
            yield fill("ffn_hidden", merged["expert_ffn_hidden"], "that of the experts")
        elif not merged.get("ffn_hidden") and hidden:
            width = -(-int(8 * hidden / 3 * 1.3) // 256) * 256
            yield fill("ffn_hidden", width, "8/3 hidden x 1.3, rounded up to 256 (Llama's code)")
        if "expert_ffn_hidden" not in merged and merged.get("ffn_hidden"):
            yield fill("expert_ffn_hidden", *_expert_width(merged, name, params_b))
    elif hidden and not merged.get("ffn_hidden") and str(merged.get("gated")) in ("0", "False"):
        yield fill("ffn_hidden", 4 * hidden, "4 x hidden, as GPT-3 and its kin")
    if "vocab" not in merged and "gpt" in f"{family} {name}".lower():
        yield fill("vocab", GPT3_VOCAB, "GPT-3's, padded")
    if "vocab" not in merged and all(merged.get(key) for key in ("layers", "hidden")):
        yield fill("vocab", *_usual_vocab(name, family))
    if hidden and not merged.get("heads"):
        keys = int(merged.get("kv_heads") or 1)
        sizes = [d for d in range(32, 257) if hidden % d == 0 and hidden // d % keys == 0]
        if sizes:
            heads = hidden // min(sizes, key=lambda d: abs(d - 128))
            yield fill("heads", heads, "a head size that divides hidden, nearest to 128")
    known = ("layers", "hidden", "vocab", "heads")
    if params_b and not merged.get("ffn_hidden") and all(merged.get(key) for key in known):
        none, more = (_parameters(merged, name, ffn_hidden=width) for width in (64, 128))
        tiles = 1 + round((1e9 * float(params_b) - none) / (more - none))
        yield fill("ffn_hidden", max(tiles, 1) * 64, "from the parameters stated")
    if params_b and not merged.get("layers") and not merged.get("num_experts"):
        needed = ("hidden", "ffn_hidden", "vocab", "heads")
        if all(merged.get(key) for key in needed):
            one = catalog.model({**merged, "name": name, "layers": 1})
            per_layer = one.matrix_parameters() + sum(one.mixer_vectors) + sum(one.ffn_vectors)
            rest = one.parameters - per_layer
            layers = max(round((1e9 * float(params_b) - rest) / per_layer), 1)
            yield fill("layers", layers, "from the parameters stated")


USUAL_VOCAB = 32000
"""Words of Llama and Llama 2, Mistral and what followed them."""


def _usual_vocab(*told: str) -> tuple[int, str]:
    """Words of a model that states none, and the rule: as many as most of the catalog's have whose
    names begin as its name does, or its family."""
    for text in told:
        found = re.match(r"[a-z]+[0-9.]*", text.lower())
        if found is None:
            continue
        called = re.compile(re.escape(found[0]) + "(?![0-9.a-z])")
        rows = catalog.rows("models").items()
        alike = [int(row["vocab"]) for name, row in rows if called.match(name)]
        if alike:
            return max(alike, key=alike.count), f"most models that are called {found[0]}"
    return USUAL_VOCAB, "Llama 2's"


EXPERTS_NEED = ("hidden", "vocab", "heads", "layers", "top_k")
"""What must be known of a mixture for its parameters to say how large its experts are."""

WIDER = 1.3
"""Parameters over those stated from which on experts are not as wide as a dense layer would be."""


def _parameters(merged: Mapping[str, Any], name: str, **of: int) -> float:
    """Of a mixture with other experts; dimensions that it does not need may be open."""
    made = {**merged, **of, "name": name}
    return float(catalog.model({**made, "ffn_hidden": made.get("ffn_hidden") or 1}).parameters)


def _experts(merged: Mapping[str, Any], name: str, params_b: float | None) -> int:
    """Experts of a layer, by the parameters stated.

    Raises InputError where these, or another dimension, are not.
    """
    if not params_b or not all(merged.get(key) for key in EXPERTS_NEED):
        raise InputError(f"model {name!r}: num_experts not stated and not in the catalog")
    least = int(merged["top_k"])
    few, more = (_parameters(merged, name, num_experts=least + i) for i in (0, 1))
    return max(least + round((1e9 * float(params_b) - few) / (more - few)), least)


def _expert_width(merged: Mapping[str, Any], name: str, params_b: float | None) -> tuple[int, str]:
    """Width of an expert, and the rule: that of the feed-forward, unless the parameters stated are
    far fewer."""
    wide, rule = int(merged["ffn_hidden"]), "the feed-forward width"
    if not params_b or not all(merged.get(key) for key in EXPERTS_NEED):
        return wide, rule
    none, whole = (_parameters(merged, name, expert_ffn_hidden=width) for width in (1, wide))
    if whole < WIDER * 1e9 * float(params_b):
        return wide, rule
    share = (1e9 * float(params_b) - none) / (whole - none)
    return max(round(wide * share / 64), 1) * 64, "from the parameters stated"


def _style(text: str, merged: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """What an architecture's family implies beyond its dimensions."""
    gated = merged.get("gated")
    gpt = any(word in text for word in GPT_LIKE) if gated is None else not gated
    if not gpt:
        return {"gated": True, "norm": "rmsnorm", "positions": "rope"}
    biased = "mpt" not in text and "falcon" not in text and "nemotron" not in text
    return {
        "gated": False,
        "norm": "layernorm",
        "activation": "gelu",
        "bias": biased,
        "positions": "alibi" if "bloom" in text or "mpt" in text else "learned",
        "tied_embeddings": "nemotron" not in text,
        "max_context": 2048,
    }
