"""Dimensions of a model as launch lines state them, and the catalog's model that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.models import Model
from reckon.launch.table import Facts, whole_number

PREFIX = "model."

PLAIN = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "gated", "norm",
    "positions", "tied_embeddings", "bias", "qkv_bias", "num_experts", "top_k",
    "expert_ffn_hidden", "dense_layers", "moe_every_n", "q_lora_rank", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "mtp_layers", "sliding_window",
)  # fmt: skip
"""Dimensions that lines state as the model has them."""

NEEDED = ("layers", "hidden", "heads")


def dimensions(model: Model) -> dict[str, Any]:
    """What decides a model's work, in one form for models that say the same in several.

    Attention windows are given as the share of layers that have one, shared experts as their
    width together; positions that the model can hold count only where it has learned them.
    """
    found = {name: getattr(model, name) for name in PLAIN}
    found |= {
        "activation": "silu" if model.gated else model.activation.removesuffix("_new"),
        "shared_width": model.shared_width,
        "moe_layers": model.moe_layers,
        "windowed_share": model.windowed_share,
        "max_context": model.max_context if model.positions == "learned" else 0,
        "expert_hidden": model.expert_hidden,
        "mamba_layers": model.mamba_layers,
        "delta_layers": model.delta_layers,
        "conv_layers": model.conv_layers,
        "index_topk": model.index_topk,
        "mixed_heads": _mixed(model),
        "layer_inputs": model.layer_inputs,
    }
    if model.is_latent:
        found["head_dim"] = model.qk_nope_head_dim
        found["kv_heads"] = model.heads
    if not found["moe_layers"] or model.dense_layers:
        found["moe_every_n"] = 1
    return found


def _mixed(model: Model) -> str:
    """Kinds of attention of a model that has several, or gates; empty for one of none."""
    kinds = model.attention_kinds
    gated = model.head_gate or (model.output_gate and not model.delta_layers)
    if len(kinds) == 1 and not gated:
        return ""
    told = (f"{n} of {m.heads}/{m.kv_heads} x {m.head_dim}" + " borrowing" * m.borrows
            for n, m in kinds)  # fmt: skip
    return ", ".join(told)


def facts_of(model: Model) -> Facts:
    """Facts of a model, its name and its repository among them."""
    row: dict[str, Any] = catalog.rows("models").get(model.name, {})
    return {
        **{PREFIX + name: value for name, value in dimensions(model).items()},
        "model.name": model.name,
        "model.repository": row.get("hf_id", ""),
        "model.stored": model.quantization.precision if model.quantization else "",
    }


def model_of(facts: Facts) -> tuple[Model | None, list[str]]:
    """The model that facts state, None where they state none; and what had to be found out.

    It is the catalog's where one has all the dimensions stated; what is not stated then follows
    from it.

    Raises InputError where dimensions are missing, or contradict each other.
    """
    stated = {name.removeprefix(PREFIX): v for name, v in facts.items() if name.startswith(PREFIX)}
    if "name" in stated:
        return _named(str(stated["name"]))
    if "unknown" in stated:
        return None, [f"the catalog has no model {stated['unknown']!r}; give --model, a name of "
                      "'reckon show models' or its config.json"]  # fmt: skip
    if not any(name in stated for name in NEEDED):
        return None, []
    missing = [name for name in NEEDED if name not in stated]
    if missing:
        raise InputError(
            f"the launch line states a model without its {' and '.join(missing)}; give --model"
        )
    alike, others = _alike(stated)
    notes = []
    if "vocab" not in stated:
        if alike is None:
            named = stated.get("tokenizer")
            of = f"; the tokenizer {named} is not one that is known" if named else ""
            raise InputError(
                "the launch line does not say the size of the vocabulary, and no catalog model has "
                f"its dimensions{of}; add --vocab-size, or give --model"
            )
        stated["vocab"] = alike.vocab
        notes.append(f"vocabulary {alike.vocab} of {alike.name}, whose dimensions these are")
        if others:
            told = ", ".join(f"{one.name} ({one.vocab})" for one in others)
            notes.append(f"{told} have these dimensions too; give --model, or add --vocab-size")
    own = _build(stated)
    if alike is not None:
        theirs = dimensions(alike)
        if not stated.get("mtp_layers"):  # prediction layers may be left out of training
            theirs["mtp_layers"] = 0
        if theirs == dimensions(own):
            return alike, notes
    return own, notes


def _named(name: str) -> tuple[Model, list[str]]:
    """The catalog's model of a name, and what was taken for what."""
    found, meant = catalog.model(name), catalog.read_model_name(name)
    if meant is None or meant.written == found.name:
        return found, []
    stored = (
        f"; weights {meant.stored}, by {meant.quantization['method']}" if meant.quantization else ""
    )
    return found, [meant.rule + stored]


def _alike(stated: dict[str, Any]) -> tuple[Model | None, list[Model]]:
    """The catalog model with all dimensions that are stated (norms, biases and the like left
    aside), of those that agree most in the rest the one that a name in the line is of, else the
    first; and others that agree as much and have another vocabulary."""
    found: list[tuple[int, Model]] = []
    for name, row in catalog.rows("models").items():
        if any(int(row.get(key, 0)) != stated[key] for key in NEEDED):
            continue
        model = catalog.model(name)
        if stated.get("parallel", model.parallel) != model.parallel:
            continue
        own = dimensions(model)
        sizes = {k: own[k] == v for k, v in stated.items() if k in own and _is_size(k)}
        if all(sizes.values()):
            found.append((sum(own[k] == v for k, v in stated.items() if k in own), model))
    most = max((agree for agree, _ in found), default=0)
    best = [model for agree, model in found if agree == most]
    if not best:
        return None, []
    hinted = [model for model in best if model.name in _hints(stated)]
    chosen = (hinted or best)[0]
    return chosen, [] if hinted else [one for one in best if one.vocab != chosen.vocab]


def _hints(stated: dict[str, Any]) -> list[str]:
    """Catalog models that words of the line name: the run's name, the tokenizer."""
    found = []
    for word in f"{stated.get('tokenizer', '')} {stated.get('hint', '')}".split():
        try:
            meant = catalog.read_model_name(word)
        except InputError:
            continue
        if meant is not None:
            found.append(meant.row)
    return found


def _is_size(name: str) -> bool:
    return name not in (
        "norm", "positions", "tied_embeddings", "bias", "qkv_bias", "activation", "max_context",
        "mtp_layers",
    )  # fmt: skip


def _build(stated: dict[str, Any]) -> Model:
    """A model of its own."""
    given = {name: stated[name] for name in (*PLAIN, "max_context", "parallel") if name in stated}
    if stated.get("shared_width"):
        given |= {"shared_experts": 1, "shared_expert_ffn_hidden": stated["shared_width"]}
    if "activation" in stated:
        given["activation"] = stated["activation"]
    if stated.get("full_every"):
        given["sliding_pattern"] = f"every {stated['full_every']}th layer full"
    built = catalog.model({"name": "launched", **given})
    name = f"launched-{built.parameters / 1e9:.3g}b"
    if built.num_experts:
        name += f"-a{built.active_parameters / 1e9:.3g}b"
    return replace(built, name=name)


def layer_pattern(flag: str, value: Any) -> Facts:
    """Which layers are mixtures of experts, as Megatron writes it: every n-th, or a list of 0 and
    1 such as '([0]*3+[1]*58)'.

    Raises InputError for other patterns than leading dense layers or every n-th layer.
    """
    text = str(value).replace(" ", "").strip("'\"")
    if text.startswith("$"):
        raise InputError(f"{flag} {text}: the text does not set that variable; put it in")
    if text.isdigit():
        return {"model.moe_every_n": whole_number(flag, text)}
    bits: list[int] = []
    for term in text.strip("()").split("+"):
        inner, _, times = term.partition("*")
        items = inner.strip("[]()").split(",")
        if not all(item in ("0", "1") for item in items) or (times and not times.isdigit()):
            raise InputError(f"{flag} {value}: write a number, or a list such as ([0]*3+[1]*58)")
        bits += [int(item) for item in items] * int(times or 1)
    if bits and bits == [0, 1] * (len(bits) // 2):  # the last of every two, as Llama 4 has it
        return {"model.dense_layers": 0, "model.moe_every_n": 2}
    dense = bits.index(1) if 1 in bits else len(bits)
    rest = bits[dense:]
    every = rest.index(1, 1) if 1 in rest[1:] else 1
    if any(bit != int(i % every == 0) for i, bit in enumerate(rest)) or (dense and every > 1):
        raise InputError(f"{flag} {value}: neither leading dense layers nor every n-th layer")
    return {"model.dense_layers": dense, "model.moe_every_n": every}
