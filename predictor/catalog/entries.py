"""Finds and loads accelerators, models and calibrations: by name, from a file or given.

The only module that knows where data lies: `$RECKON_DATA`, else the data installed with the
package (`predictor/_data`), else the checkout's `data/`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Numeric
from predictor.catalog.specs import AcceleratorSpec, ModelSpec, Spec, SystemSpec, parse
from predictor.errors import InputError, unknown
from predictor.hardware import DEFAULT_CLOCK, L2_BYTES_PER_CLOCK_PER_SM, Accelerator
from predictor.models import Model, Quantization, from_config, is_config
from predictor.units import to_si

Ref = str | Path | Mapping[str, Any]
Row = dict[str, Any]

KINDS = ("accelerators", "systems", "models")


def data_dir() -> Path:
    """Where catalogs, defaults and calibrations lie.

    Raises InputError if `$RECKON_DATA` is set to something that is not a folder.
    """
    override = os.environ.get("RECKON_DATA")
    if override:
        if not Path(override).is_dir():
            raise InputError(f"RECKON_DATA={override} is not a folder")
        return Path(override)
    return _own_data()


@lru_cache(maxsize=1)
def _own_data() -> Path:
    here = Path(__file__).resolve().parent.parent
    installed = here / "_data"
    return installed if installed.is_dir() else here.parent / "data"


@lru_cache(maxsize=8)
def _rows(directory: Path, kind: str) -> dict[str, Row]:
    path = directory / f"{kind}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            table = [_nest(row) for row in csv.DictReader(stream)]
    except OSError as error:
        raise InputError(f"cannot read the catalog {path}: {error.strerror}") from None
    return {row["name"]: row for row in table}


def rows(kind: str) -> dict[str, Row]:
    """All rows of a catalog by name; empty cells are left out, tier columns are nested."""
    return _rows(data_dir(), kind)


def _nest(row: Mapping[str, str]) -> Row:
    """Turn columns 'tier2_size' into entries of a list 'tiers'; drop empty cells."""
    flat: Row = {}
    tiers: dict[str, Row] = {}
    for key, value in row.items():
        if value in ("", None):
            continue
        head, _, tail = key.partition("_")
        if head.startswith("tier") and head[4:].isdigit():
            tiers.setdefault(head, {})[tail] = value
        else:
            flat[key] = value
    if tiers:
        flat["tiers"] = [tiers[name] for name in sorted(tiers)]
    return flat


def _aliases(row: Row) -> list[str]:
    return [alias.strip() for alias in str(row.get("aliases", "")).split(";") if alias.strip()]


def find(kind: str, name: str) -> Row:
    """The catalog row of a name or alias; case does not count.

    Raises InputError with the nearest name.
    """
    table = rows(kind)
    if name in table:
        return table[name]
    wanted = name.lower()
    for row in table.values():
        if wanted in (known.lower() for known in (row["name"], *_aliases(row))):
            return row
    known = [*table, *(alias for row in table.values() for alias in _aliases(row))]
    raise unknown(kind[:-1], name, known, f"reckon show {kind}, or give a .yaml file")


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping. Nothing in it is executed.

    Raises InputError, one line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file") from None
    if path.suffix == ".json":
        import json

        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {error}") from None
    else:
        import yaml

        try:
            content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            line = getattr(getattr(error, "problem_mark", None), "line", None)
            at = f" (line {line + 1})" if line is not None else ""
            raise InputError(
                f"{path} is not YAML{at}: {getattr(error, 'problem', '') or 'cannot be parsed'}"
            ) from None
        except (ValueError, RecursionError) as error:  # dates and numbers that cannot be
            raise InputError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold keys and values, found {type(content).__name__}")
    return content


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
    return _accelerator(_accelerator_spec(ref))


def _accelerator_spec(ref: Ref, within: int = 0) -> AcceleratorSpec:
    content, where = resolve("accelerators", ref)
    if "accelerator" in content:  # a system file names or holds its accelerator
        if within > 3:
            raise InputError(f"{where}: key 'accelerator' leads back to the file itself")
        return _accelerator_spec(content["accelerator"], within + 1)
    return parse(AcceleratorSpec, content, where)


def _accelerator(spec: AcceleratorSpec) -> Accelerator:
    si = to_si(spec.model_dump(exclude_none=True))
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
    return _model(*_model_spec(ref))


def _model_spec(ref: Ref) -> tuple[ModelSpec, str]:
    content, where = resolve("models", ref)
    if is_config(content):
        content = from_config(content, where)
    return parse(ModelSpec, content, where), where


MODEL_FIELDS = tuple(field.name for field in fields(Model))


def _model(spec: ModelSpec, where: str) -> Model:
    given = {name: value for name, value in spec.model_dump().items() if name in MODEL_FIELDS}
    given["kv_heads"] = spec.kv_heads or spec.heads
    if spec.head_dim is None:
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
        given["quantization"] = Quantization(**spec.quantization.model_dump())
    return Model(**given)


NEEDED = {
    "num_experts": ("top_k", "expert_ffn_hidden"),
    "mamba_layers": ("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_groups"),
    "kv_lora_rank": ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    "attention_layers": ("mamba_layers",),
    "delta_layers": ("delta_key_heads", "delta_value_heads", "delta_key_dim", "delta_value_dim"),
    "index_topk": ("index_heads", "index_head_dim", "kv_lora_rank"),
}
"""Keys that make no sense without others."""


def _check_blocks(spec: ModelSpec, where: str) -> None:
    """Raise InputError where the kinds of blocks contradict each other."""
    for key, others in NEEDED.items():
        missing = [other for other in others if not getattr(spec, other)]
        if getattr(spec, key) and missing:
            raise InputError(f"{where}: {key} {getattr(spec, key)} needs {', '.join(missing)}")
    if spec.num_experts and spec.top_k > spec.num_experts:
        raise InputError(
            f"{where}: top_k {spec.top_k} is more than the {spec.num_experts} experts there are"
        )
    mixers = spec.attention_layers + spec.mamba_layers
    if mixers + spec.dense_layers > spec.layers:
        raise InputError(
            f"{where}: attention, mamba and dense layers are {mixers + spec.dense_layers}, more "
            f"than the {spec.layers} layers there are"
        )
    if spec.delta_layers and spec.mamba_layers:
        raise InputError(f"{where}: delta_layers and mamba_layers in one model are not predicted")
    if spec.delta_layers > spec.layers:
        raise InputError(
            f"{where}: delta_layers {spec.delta_layers} are more than the {spec.layers} layers"
        )
    if spec.delta_layers and spec.delta_value_heads % spec.delta_key_heads:
        raise InputError(
            f"{where}: delta_key_heads {spec.delta_key_heads} does not divide delta_value_heads "
            f"{spec.delta_value_heads}"
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
    return spec.model_dump(exclude_defaults=True)


def spec_of(kind: str, ref: Ref) -> Spec:
    """The validated entry of a catalog, or file, units as in the file."""
    if kind == "accelerators":
        return _accelerator_spec(ref)
    if kind == "models":
        return _model_spec(ref)[0]
    return parse(SystemSpec, *resolve(kind, ref))
