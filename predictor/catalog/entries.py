"""Finds and loads accelerators, models and calibrations: by name, from a file or given."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Numeric
from predictor.catalog.alike import as_alike
from predictor.catalog.forms import Spec, parse
from predictor.catalog.machine_names import accelerator_of, other_memory, refuse_not_modelled
from predictor.catalog.model_names import unlike_catalog
from predictor.catalog.specs import AcceleratorSpec, ModelSpec, SystemSpec
from predictor.catalog.tables import data_dir, find, known, read_mapping, rows
from predictor.errors import InputError, unknown
from predictor.hardware import DEFAULT_CLOCK, L2_BYTES_PER_CLOCK_PER_SM, Accelerator
from predictor.models import (
    PATTERNS,
    Model,
    Quantization,
    Tower,
    from_config,
    is_config,
    understood,
    widths,
)
from predictor.units import to_si

Ref = str | Path | Mapping[str, Any]


def _looks_like_file(ref: str | Path) -> bool:
    return isinstance(ref, Path) or str(ref).endswith((".yaml", ".yml", ".json"))


def resolve(kind: str, ref: Ref) -> tuple[dict[str, Any], str]:
    """The mapping behind a name, file or mapping, and what to call it in errors."""
    if isinstance(ref, Mapping):
        return dict(ref), f"{kind[:-1]} mapping"
    if _looks_like_file(ref):
        return read_mapping(Path(ref)), str(ref)
    row = find(kind, str(ref))
    return row, f"{kind}.csv, {row['name']}"


def accelerator(ref: Ref | Accelerator) -> Accelerator:
    """Load an accelerator from a name, a YAML file or a mapping."""
    if isinstance(ref, Accelerator):
        return ref
    if isinstance(ref, str) and not _looks_like_file(ref):
        return _catalog_accelerator(ref, data_dir())
    own = _accelerator(_accelerator_spec(ref))
    known = [
        _catalog_accelerator(name, data_dir())
        for name, row in rows("accelerators").items()
        if row["architecture"] == own.architecture
    ]
    return as_alike(own, known)


@lru_cache(maxsize=256)
def _catalog_accelerator(name: str, _: Path) -> Accelerator:
    """An accelerator that the catalog of a folder knows by name."""
    return _accelerator(_accelerator_spec(name))


def _accelerator_spec(ref: Ref, within: int = 0) -> AcceleratorSpec:
    if isinstance(ref, str) and not _looks_like_file(ref) and not known("accelerators", ref):
        ref = accelerator_of(ref) or _of_other_memory(ref)
    content, where = resolve("accelerators", ref)
    if "accelerator" in content:  # a system file names or holds its accelerator
        if within > 3:
            raise InputError(f"{where}: key 'accelerator' leads back to the file itself")
        return _accelerator_spec(content["accelerator"], within + 1)
    return parse(AcceleratorSpec, content, where)


def _of_other_memory(name: str) -> Ref:
    """A chip that the catalog has with other memory, by that which its name states: all else is as
    in the catalog; the name itself where there is none."""
    found = other_memory(name)
    if found is None:
        refuse_not_modelled(name)
        return name
    row, stated = found
    return {**find("accelerators", row), "name": name, "aliases": "", "memory_gib": stated}


def _accelerator(spec: AcceleratorSpec) -> Accelerator:
    si = to_si(spec.to_dict(blanks=False))
    peak: dict[str, Numeric] = {
        dtype: float(si[dtype])
        for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
        if dtype in si
    }
    bandwidth = float(si["memory_bandwidth"])
    sms, clock = float(si.get("sm_count", DEFAULT_SMS)), float(si.get("clock", DEFAULT_CLOCK))
    l2_bandwidth = si.get("l2_bandwidth", L2_BYTES_PER_CLOCK_PER_SM * sms * clock)
    return Accelerator(
        name=spec.name,
        architecture=spec.architecture,
        peak=peak,
        memory=float(si["memory"]),
        bandwidth=bandwidth,
        l2=float(si.get("l2", DEFAULT_L2)),
        l2_bandwidth=max(float(l2_bandwidth), bandwidth),
        sms=sms,
        power=float(si.get("tdp", np.nan)),
        clock=clock,
        year=float(si.get("year", np.nan)),
        vendor=spec.vendor,
        host_bandwidth=float(si.get("host_link", np.nan)),
        dispatch=float(si.get("dispatch", 0.0)),
        split_dispatch=float(si.get("split_dispatch", 0.0)),
    )


DEFAULT_L2 = 32e6
"""Last-level cache where a catalog row states none (TPUs): the order of an A100's 40 MB."""

DEFAULT_SMS = 128.0
"""Processors where a catalog row states none (TPUs): the order of a GPU's 108 to 152."""


def model(ref: Ref | Model) -> Model:
    """Load a model from a catalog name, a HuggingFace `config.json`, a YAML file or a mapping."""
    if isinstance(ref, Model):
        return ref
    if isinstance(ref, str) and not _looks_like_file(ref):
        return _catalog_model(ref, data_dir())
    if isinstance(ref, Mapping) and all(type(value) in SIMPLE for value in ref.values()):
        told = tuple((key, type(value), value) for key, value in ref.items())
        return _described_model(told, data_dir())
    return _model(*_model_spec(ref))


SIMPLE = frozenset((str, int, float, bool, type(None)))
"""Types of values that mappings of models can be told apart by."""


@lru_cache(maxsize=256)
def _described_model(told: tuple[tuple[str, type, Any], ...], _: Path) -> Model:
    """A model of a mapping of plain values."""
    return _model(*_model_spec({key: value for key, _, value in told}))


@lru_cache(maxsize=256)
def _catalog_model(name: str, _: Path) -> Model:
    """A model that the catalog of a folder knows by name."""
    return _model(*_model_spec(name))


def _model_spec(ref: Ref) -> tuple[ModelSpec, str]:
    named = unlike_catalog(ref) if isinstance(ref, str) else None
    if named is not None:
        content, where = {**find("models", named.row)}, f"models.csv, {named.row}"
        if named.quantization:
            content["quantization"] = named.quantization
    else:
        content, where = resolve("models", ref)
    if is_config(content):
        content = from_config(content, where, _config_classes(data_dir()))
    return parse(ModelSpec, content, where), where


@lru_cache(maxsize=8)
def _config_classes(directory: Path) -> dict[str, Any]:
    """What HuggingFace's configuration classes take for keys that a file leaves out."""
    path = directory / "defaults" / "config_classes.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return found


MODEL_FIELDS = tuple(field.name for field in fields(Model))


def _model(spec: ModelSpec, where: str) -> Model:
    told = spec.to_dict()
    given = {name: told[name] for name in MODEL_FIELDS if name in told}
    given["kv_heads"] = spec.kv_heads or spec.heads
    if spec.head_dim is None and spec.kv_lora_rank:  # heads of latents, whatever the width
        given["head_dim"] = (spec.qk_nope_head_dim or 0) + (spec.qk_rope_head_dim or 0)
    elif spec.head_dim is None:
        if spec.hidden % spec.heads:
            raise InputError(
                f"{where}: hidden {spec.hidden} is not a multiple of heads {spec.heads}; state "
                "head_dim"
            )
        given["head_dim"] = spec.hidden // spec.heads
    if spec.ffn_hidden is None:
        if spec.gated:
            raise InputError(f"{where}: key 'ffn_hidden' is missing (gated models have no default)")
        given["ffn_hidden"] = 4 * spec.hidden
    if spec.heads % given["kv_heads"]:
        raise InputError(
            f"{where}: kv_heads {given['kv_heads']} does not divide heads {spec.heads}"
        )
    _check_blocks(spec, where)
    if spec.quantization is not None:
        given["quantization"] = Quantization(**spec.quantization.to_dict())
    if spec.tower is not None:
        given["tower"] = Tower(**spec.tower.to_dict())
    return Model(**given)


NEEDED = {
    "num_experts": ("top_k", "expert_ffn_hidden"),
    "mamba_layers": ("mamba_heads", "mamba_head_dim", "mamba_state"),
    "mamba_rank": ("mamba_layers",),
    "mamba_beside": ("mamba_layers",),
    "shared_blocks": ("attention_layers", "mamba_layers"),
    "shared_rank": ("shared_blocks",),
    "shared_queries": ("shared_rank",),
    "kv_lora_rank": ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    "attention_layers": ("mamba_layers",),
    "delta_layers": ("delta_key_heads", "delta_value_heads", "delta_key_dim", "delta_value_dim"),
    "conv_layers": ("conv_taps",),
    "delta_gate_rank": ("delta_layers",),
    "delta_whole_gate": ("delta_gate_rank",),
    "delta_whole_decay": ("delta_gate_rank",),
    "delta_fixed": ("delta_layers",),
    "index_topk": ("index_heads", "index_head_dim"),
    "index_block": ("index_topk",),
    "index_pool": ("index_topk",),
    "index_means": ("index_pool",),
    "stream_rank": ("streams",),
    "ngram_taps": ("ngram_layers",),
    "ngram_embedding": ("ngram_layers",),
    "sharing_layers": ("index_topk",),
    "whole_layers": ("index_block",),
    "choosing_layers": ("choosing_ratio", "index_topk", "out_groups"),
    "pooling_layers": ("pooling_ratio", "out_groups"),
    "reading_layers": ("choosing_layers", "index_from_keys"),
    "decoder_layers": ("decoder_choosers", "index_topk", "out_groups", "index_from_keys"),
    "decoder_choosers": ("decoder_layers",),
    "candidates": ("decoder_layers",),
    "ngram_layers": ("ngram_rows", "ngram_lookups", "ngram_width"),
    "out_groups": ("out_rank", "q_lora_rank", "qk_rope_head_dim", "sliding_window"),
    "window_heads": ("sliding_window",),
    "window_kv_heads": ("sliding_window",),
    "window_head_dim": ("sliding_window",),
    "borrowing_ffn_hidden": ("borrowing_layers",),
    "laurel_rank": ("alternating_streams",),
}
"""Keys that make no sense without others."""


def _check_blocks(spec: ModelSpec, where: str) -> None:
    """Raise InputError where the kinds of blocks contradict each other."""
    for key, others in NEEDED.items():
        if not getattr(spec, key):
            continue
        missing = [other for other in others if not getattr(spec, other)]
        if spec.positions == "none":  # latents without any
            missing = [other for other in missing if other != "qk_rope_head_dim"]
        if missing:
            raise InputError(f"{where}: {key} {getattr(spec, key)} needs {', '.join(missing)}")
    if spec.sliding_window and not understood(spec.sliding_pattern):
        raise InputError(f"{where}: sliding_pattern {spec.sliding_pattern!r} is none of {PATTERNS}")
    if spec.num_experts and spec.top_k > spec.num_experts:
        raise InputError(
            f"{where}: top_k {spec.top_k} is more than the {spec.num_experts} experts there are"
        )
    known = spec.kv_lora_rank or spec.index_means
    if spec.index_topk and not (known or spec.index_block or spec.out_groups):
        raise InputError(
            f"{where}: index_topk {spec.index_topk} needs kv_lora_rank, index_block, index_means "
            "or out_groups"
        )
    if spec.index_pool and not known:
        raise InputError(f"{where}: index_pool {spec.index_pool} needs kv_lora_rank or index_means")
    _check_spaces(spec, where)
    mixers = 0 if spec.mamba_beside else spec.attention_layers + spec.mamba_layers
    if mixers + spec.dense_layers > spec.layers:
        raise InputError(
            f"{where}: attention, mamba and dense layers are {mixers + spec.dense_layers}, more "
            f"than the {spec.layers} layers there are"
        )
    _check_kinds(spec, where)
    several = [key for key in ("delta_layers", "mamba_layers", "conv_layers") if getattr(spec, key)]
    if len(several) > 1:
        raise InputError(f"{where}: {' and '.join(several)} in one model are not predicted")
    if spec.conv_layers > spec.layers:
        raise InputError(
            f"{where}: conv_layers {spec.conv_layers} are more than the {spec.layers} layers"
        )
    _check_bare(spec, where)
    if spec.delta_layers > spec.layers:
        raise InputError(
            f"{where}: delta_layers {spec.delta_layers} are more than the {spec.layers} layers"
        )
    if spec.delta_layers and spec.delta_value_heads % spec.delta_key_heads:
        raise InputError(
            f"{where}: delta_key_heads {spec.delta_key_heads} does not divide delta_value_heads "
            f"{spec.delta_value_heads}"
        )


def _check_bare(spec: ModelSpec, where: str) -> None:
    """Raise InputError where layers without attention, or of several feed-forward widths, are more
    than there are, or stand beside what is predicted for all layers alike."""
    if not spec.bare_layers and not spec.ffn_widths:
        return
    if spec.bare_layers >= spec.layers:
        raise InputError(
            f"{where}: bare_layers {spec.bare_layers} leave none of {spec.layers} layers attention"
        )
    kinds = widths(spec.ffn_widths) if spec.ffn_widths else ((spec.layers, spec.ffn_hidden or 0),)
    blocks, widest = sum(count for count, _ in kinds), max(width for _, width in kinds)
    if blocks > spec.layers or widest != (spec.ffn_hidden or 0):
        raise InputError(
            f"{where}: ffn_widths {spec.ffn_widths!r} must be of {spec.layers} layers at most, and "
            f"ffn_hidden {spec.ffn_hidden} the widest"
        )
    other = ("num_experts", "mamba_layers", "delta_layers", "conv_layers", "sliding_window",
             "kv_lora_rank", "borrowing_layers")  # fmt: skip
    if beside := [key for key in other if getattr(spec, key)]:
        raise InputError(
            f"{where}: bare_layers and ffn_widths beside {beside[0]} are not predicted"
        )


def _check_spaces(spec: ModelSpec, where: str) -> None:
    """Raise InputError where what is said of state spaces contradicts itself."""
    if not spec.mamba_layers:
        return
    if bool(spec.mamba_groups) == bool(spec.mamba_rank):
        raise InputError(
            f"{where}: mamba_layers {spec.mamba_layers} needs either mamba_groups (Mamba-2) or "
            "mamba_rank (Mamba-1)"
        )
    if spec.mamba_rank and spec.mamba_head_dim != 1:
        raise InputError(
            f"{where}: mamba_rank {spec.mamba_rank} needs heads of one channel: mamba_head_dim 1, "
            f"not {spec.mamba_head_dim}"
        )
    ffn = spec.layers - spec.attention_layers - spec.mamba_layers
    if spec.shared_blocks and not spec.shared_blocks <= spec.attention_layers == ffn:
        raise InputError(
            f"{where}: shared_blocks {spec.shared_blocks} needs at least as many attention_layers, "
            f"not {spec.attention_layers}, and as many feed-forward blocks as these, not {ffn}"
        )
    if spec.shared_blocks and (spec.num_experts or spec.kv_lora_rank or spec.mamba_beside):
        raise InputError(
            f"{where}: shared_blocks {spec.shared_blocks} with experts, latents or mamba_beside "
            "are not predicted"
        )
    if spec.mamba_beside and not spec.layers == spec.attention_layers == spec.mamba_layers:
        raise InputError(
            f"{where}: mamba_beside needs attention_layers and mamba_layers to be all of the "
            f"{spec.layers} layers"
        )


def _check_kinds(spec: ModelSpec, where: str) -> None:
    """Raise InputError where kinds of attention contradict each other."""
    heads = spec.window_heads or spec.heads
    keys = spec.window_kv_heads or spec.kv_heads or spec.heads
    if heads % keys:
        raise InputError(f"{where}: window_kv_heads {keys} does not divide its {heads} heads")
    compressed = spec.choosing_layers + spec.pooling_layers + spec.decoder_layers
    sparse = max(compressed, spec.whole_layers)
    if sparse > spec.layers:
        raise InputError(
            f"{where}: {sparse} layers that choose, pool or see all keys are more than the "
            f"{spec.layers} layers there are"
        )
    if spec.sharing_layers and spec.sharing_layers >= spec.layers - spec.delta_layers:
        raise InputError(
            f"{where}: sharing_layers {spec.sharing_layers} leave no layer that chooses keys"
        )
    if spec.sharing_layers and not (spec.kv_lora_rank or spec.out_groups):
        raise InputError(f"{where}: sharing_layers needs kv_lora_rank or out_groups")
    if spec.out_groups and not spec.sharing_layers <= spec.reading_layers < max(
        spec.choosing_layers, 1
    ):
        raise InputError(
            f"{where}: sharing_layers {spec.sharing_layers}, reading_layers {spec.reading_layers} "
            f"and choosing_layers {spec.choosing_layers} must grow in this order"
        )
    if spec.decoder_choosers > spec.decoder_layers:
        raise InputError(
            f"{where}: decoder_choosers {spec.decoder_choosers} are more than the "
            f"{spec.decoder_layers} decoder_layers"
        )
    if spec.ngram_layers > spec.layers - spec.decoder_layers:
        raise InputError(
            f"{where}: ngram_layers {spec.ngram_layers} are more than the layers before the "
            "decoder's"
        )
    if spec.out_groups and spec.heads % spec.out_groups:
        raise InputError(
            f"{where}: out_groups {spec.out_groups} does not divide {spec.heads} heads"
        )
    if spec.borrowing_layers >= spec.layers:
        raise InputError(
            f"{where}: borrowing_layers {spec.borrowing_layers} leave none of the {spec.layers} "
            "layers keys and values of its own"
        )
    many = spec.borrowing_layers or spec.window_heads or spec.window_kv_heads
    many = many or spec.window_head_dim or spec.values_are_keys
    others = spec.mamba_layers or spec.delta_layers or spec.conv_layers
    if many and (spec.kv_lora_rank or others):
        raise InputError(
            f"{where}: layers of several heads beside latent attention, state spaces, delta rules "
            "or convolutions are not predicted"
        )


def calibration_dir(ref: str | Path) -> Path:
    """Folder of a calibration: one of `data/calibrations` by name, or any path.

    Raises InputError with the nearest name.
    """
    shipped = data_dir() / "calibrations"
    named = shipped / str(ref)
    if (named / "calibration.json").is_file():
        return named
    path = Path(ref)
    if path.is_dir() or path.suffix or os.sep in str(ref):
        if (path / "calibration.json").is_file():
            return path
        raise InputError(f"{path} holds no calibration.json (reckon calibrate writes one)")
    raise unknown("calibration", ref, ["none", *calibrations()], "reckon show calibrations")


def calibrations() -> list[str]:
    """Names of the calibrations that ship with reckon."""
    shipped = data_dir() / "calibrations"
    return sorted(path.parent.name for path in shipped.glob("*/calibration.json"))


def to_mapping(spec: Spec) -> dict[str, Any]:
    """A spec as a mapping that can be written to YAML and read back."""
    return spec.to_dict(defaults=False)


def spec_of(kind: str, ref: Ref) -> Spec:
    """The validated entry of a catalog, or file, units as in the file."""
    if kind == "accelerators":
        return _accelerator_spec(ref)
    if kind == "models":
        return _model_spec(ref)[0]
    return parse(SystemSpec, *resolve(kind, ref))
