"""Calibrations read from their folders: `calibration.json`, `arrays.npy`, `shapes.npy` and the
engines of `serving.json`.

Reading executes nothing. `calibration/` fits and writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.catalog import entries
from predictor.catalog.engines import ENGINES, engines_file, read_engines
from predictor.catalog.learned import read_learned
from predictor.errors import InputError
from predictor.hardware import LinkCurve, LinkModel
from predictor.timing import (
    Calibration,
    EfficiencyModel,
    Kin,
    Neighbours,
    RunParameters,
    ServingParameters,
    Throttle,
)

FILES = MANIFEST, ARRAYS, SHAPES = "calibration.json", "arrays.npy", "shapes.npy"
"""Files of a calibration. Where `kernels` of the manifest is the name of a folder beside it, models
of kernels and both arrays are that folder's: what has the same kernels keeps them once."""

SCHEMA_VERSION = 6
"""Of the files, and of the features that their models were fitted to (`timing/features.py`): a
change to either makes older calibrations unreadable."""


def load(ref: str | Path | Calibration) -> Calibration:
    """Read a calibration: a name in `data/calibrations`, or a directory; 'none' is the
    uncalibrated default.

    Its serving engines are those of its folder, else the default calibration's; the provenance says
    which.

    Raises InputError for what is no name, an unknown one, an unreadable file or another schema
    version.
    """
    if isinstance(ref, Calibration):
        return ref
    if not isinstance(ref, str | Path):
        told = type(ref).__name__
        raise InputError(f"calibration: expected a name, a folder or a Calibration, got {told}")
    if str(ref) == "none":
        return Calibration("none")
    directory = entries.calibration_dir(ref).absolute()
    return _loaded(directory, tuple(_stamp(path) for path in files_read(directory)))


Stamp = tuple[int, int, int] | None
"""What changes when a file does: its number, time and size; None: not there."""


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=8)
def _loaded(directory: Path, _: tuple[Stamp, ...]) -> Calibration:
    """The calibration of a folder whose files have these stamps."""
    manifest = _read_manifest(directory)
    where = _kernels_dir(directory, manifest)
    if where != directory:
        manifest["kernels"] = _read_manifest(where).get("kernels")
    try:
        arrays, keys = (
            np.asarray(np.load(where / name, mmap_mode="r", allow_pickle=False))
            for name in (ARRAYS, SHAPES)
        )
        kernels = Kernels(where, manifest["kernels"], arrays, keys)
        return _build(manifest, kernels, read_engines(directory))
    except InputError:
        raise
    except DAMAGE as error:
        raise _damaged(where, error) from None


DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError)
"""What reading a file raises that is not what it should be."""


def _damaged(directory: Path, error: Exception) -> InputError:
    return InputError(
        f"calibration {directory} is damaged or incomplete ({type(error).__name__}: {error}); "
        "write it anew with `reckon calibrate`"
    )


Key = tuple[str, str, str]


class Kernels(Mapping[Key, EfficiencyModel]):
    """Efficiency models of a folder by (kind, data type, accelerator), each cut out of the arrays
    when it is first asked for: a prediction needs ten of several hundred.

    Raises InputError for entries and arrays that do not go together: here for their extent, on
    access for what is in one of them.
    """

    def __init__(
        self, directory: Path, listed: list[dict[str, Any]], arrays: Array, keys: Array
    ) -> None:
        self._directory, self._arrays, self._keys = directory, arrays, keys
        self._listed = {(e["kind"], e["dtype"], e["accelerator"]): e for e in listed}
        self._cut: dict[Key, EfficiencyModel] = {}
        if self._listed:  # they lie one behind the other: where the last is whole, all are
            self[max(self._listed, key=lambda key: self._listed[key]["offset"])]

    def __getitem__(self, key: Key) -> EfficiencyModel:
        entry = self._listed[key]
        if key not in self._cut:
            try:
                self._cut[key] = _kernel(entry, self._arrays, self._keys)
            except DAMAGE as error:
                raise _damaged(self._directory, error) from None
        return self._cut[key]

    def __contains__(self, key: object) -> bool:
        return key in self._listed

    def __iter__(self) -> Iterator[Key]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def files_read(ref: str | Path) -> list[Path]:
    """The files that `load` reads for a calibration, whichever folder each lies in.

    Raises InputError as `load` for folders that are not there.
    """
    directory = entries.calibration_dir(ref).absolute()
    kernels = _kernels_of(directory, _stamp(directory / MANIFEST))
    found = dict.fromkeys([directory / MANIFEST, *(kernels / name for name in FILES)])
    engines = engines_file(directory)
    return [*found, *([] if engines is None else [engines])]


@lru_cache(maxsize=8)
def _kernels_of(directory: Path, _: Stamp) -> Path:
    """Folder of the kernels of a calibration whose manifest has that stamp."""
    return _kernels_dir(directory, _read_manifest(directory))


def _kernels_dir(directory: Path, manifest: Mapping[str, Any]) -> Path:
    """Folder of a calibration's kernels: its own, or the one beside it that it shares them with.

    Raises InputError where none of that name is there, or that one has none of its own.
    """
    name = manifest.get("kernels")
    if not isinstance(name, str):
        return directory
    found = directory.resolve().parent / name
    if Path(name).name != name or not (found / MANIFEST).is_file():
        raise InputError(
            f"calibration {directory} shares the kernels of {name!r}, and no calibration of that "
            f"name lies beside it ({found})"
        )
    if isinstance(_read_manifest(found).get("kernels"), str):
        raise InputError(
            f"calibration {directory} shares the kernels of {name!r}, which has none of its own"
        )
    return found


def _read_manifest(directory: Path) -> dict[str, Any]:
    """A manifest, read once for each state of its file; the caller may replace its keys."""
    path = directory / MANIFEST
    return dict(_manifest(path, _stamp(path)))


@lru_cache(maxsize=4)
def _manifest(path: Path, _: Stamp) -> Mapping[str, Any]:
    """The manifest of a file with that stamp."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version!r}, this reckon reads {SCHEMA_VERSION}; write it "
            "anew with `reckon calibrate`"
        )
    return MappingProxyType(manifest)


def _kernel(entry: dict[str, Any], arrays: Array, keys: Array) -> EfficiencyModel:
    """Cut one model out of the flat arrays: box, standardisation, then weights and biases."""
    position = int(entry["offset"])

    def cut(*shape: int) -> Array:
        nonlocal position
        size = math.prod(shape)
        piece = arrays[position : position + size].reshape(shape)
        position += size
        return piece

    features, widths = entry["features"], entry["widths"]
    low, high, mean, scale = (cut(features) for _ in range(4))
    layers = [(cut(i, o), cut(o)) for i, o in pairwise(widths)]
    first, count = entry["keys"]
    return EfficiencyModel(
        kind=entry["kind"],
        dtype=entry["dtype"],
        accelerator=entry["accelerator"],
        latency=entry["latency_us"] * 1e-6,
        limit=entry["limit"],
        least=entry.get("least", 0.0),
        degree=entry["degree"],
        sigma=entry["sigma"],
        points=entry["points"],
        offsets=entry["offsets"],
        low=low,
        high=high,
        mean=mean,
        scale=scale,
        weights=tuple(weight for weight, _ in layers),
        biases=tuple(bias for _, bias in layers),
        tilt=cut(features + 1) if entry["bent"] else np.empty(0),
        stacks={name: cut(widths[1]) for name in entry["stacks"]},
        lags={name: value * 1e-6 for name, value in entry.get("lags_us", {}).items()},
        near=_neighbours(entry.get("near"), features, cut),
        year=entry["year"] if entry["year"] is not None else math.nan,
        keys=keys[first : first + count],
        casts={name: value * 1e-6 for name, value in entry.get("casts_us", {}).items()},
        kin=_kin(entry),
    )


def _kin(entry: Mapping[str, Any]) -> Kin | None:
    """Whose measurements a pooled model is of, None where it is an accelerator's own."""
    if "traits" not in entry:
        return None
    found = (math.nan if trait is None else float(trait) for trait in entry["traits"])
    return Kin(entry["vendor"], tuple(found))


def _neighbours(
    entry: Mapping[str, Any] | None, features: int, cut: Callable[..., Array]
) -> Neighbours | None:
    """The points that a model keeps, None where it keeps none."""
    if entry is None:
        return None
    count = int(entry["points"])
    return Neighbours(
        cut(count, features),
        cut(count),
        tuple(entry["variants"]),
        cut(count),
        entry["reach"],
        entry["kinship"],
    )


def run_parameters(content: Mapping[str, Any]) -> RunParameters:
    """Run parameters from their file form, units converted."""
    return RunParameters(
        host_per_kernel=content["host_per_kernel_us"] * 1e-6,
        overlap=content["overlap"],
        contention=content["contention"],
        context=content["context_gb"] * 1e9,
        fragmentation=content["fragmentation"],
        memory_sigma=content["memory_sigma"],
        sigma=content["sigma"],
        sigma_moe=content["sigma_moe"],
        spreads={name: (own[0], own[1]) for name, own in content.get("spreads", {}).items()},
        sigma_plan=content.get("sigma_plan", RunParameters().sigma_plan),
        sigma_unnamed=content.get("sigma_unnamed", RunParameters().sigma_unnamed),
        sigma_untimed=content.get("sigma_untimed", RunParameters().sigma_untimed),
        factors=content["factors"],
        habits=content.get("habits", {}),
        usual=content.get("usual", {}),
        jitter={name: (own[0], own[1]) for name, own in content.get("jitter", {}).items()},
        sold={name: str(month) for name, month in content.get("sold", {}).items()},
        sources=content["sources"],
    )


def _constants(content: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Constants of power by accelerator and law."""
    return {
        name: {law: float(value) for law, value in dict(own).items()}
        for name, own in dict(content).items()
    }


def _build(manifest: dict[str, Any], kernels: Kernels, serving: ServingParameters) -> Calibration:
    links = {
        (entry["op"], entry["link"]): LinkModel(
            op=entry["op"],
            link=entry["link"],
            base=entry["base_us"] * 1e-6,
            hop=entry["hop_us"] * 1e-6,
            root=entry["root"],
            log2_sizes=tuple(entry["log2_sizes"]),
            efficiencies=tuple(entry["efficiencies"]),
            sigma=entry["sigma"],
            points=entry["points"],
            pedigree=entry.get("pedigree", "interpolated"),
            clock=entry.get("clock_mhz", math.nan) * 1e6,
            sharing=entry.get("sharing", 0.0),
            curves=tuple(
                LinkCurve(c["members"], tuple(c["log_ideal"]), tuple(c["log_factor"]))
                for c in entry.get("curves", ())
            ),
            latency_sigma=entry.get("latency_sigma", math.nan),
            beyond=entry.get("beyond_us", math.nan) * 1e-6,
        )
        for entry in manifest["links"]
    }
    return Calibration(
        name=manifest["name"],
        kernels=kernels,
        links=links,
        throttles={
            name: Throttle(
                entry["start"],
                entry["gamma"],
                entry["fade_us"] * 1e-6,
                entry["watts_per_tflops"] * 1e-12,
            )
            for name, entry in manifest["throttles"].items()
        },
        run=run_parameters(manifest["run"]),
        serving=serving,
        transfer_sigma=manifest["transfer_sigma"],
        interval_level=manifest["interval"]["level"],
        interval_q=manifest["interval"]["q"],
        fitted_files=frozenset(manifest["fitted"]["files"]),
        fitted_points=frozenset(manifest["fitted"]["point_ids"]),
        own=read_learned(manifest.get("own")),
        power=_constants(manifest.get("power", {})),
        provenance={**manifest["provenance"], ENGINES: serving.origin},
    )
