"""Parameters of serving engines in their file form: `serving.json` in a calibration's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.catalog import tables
from predictor.catalog.learned import benchmarks_mapping, read_benchmarks
from predictor.errors import InputError
from predictor.timing import ENGINE_FIELDS, EngineParameters, ServingParameters

FILE = "serving.json"

ENGINES = "engines"
"""Key of a calibration's provenance under which it says where its engines come from."""


def read_parameters(path: Path) -> ServingParameters:
    """Read a `serving.json`.

    Raises InputError where it is none.
    """
    found = path.stat()
    return _read(path.resolve(), (found.st_ino, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, _: tuple[int, int, int]) -> ServingParameters:
    """The parameters of a file with that number, time and size."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return from_mapping(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no parameters of serving engines ({error})") from None


def from_mapping(content: Mapping[str, Any]) -> ServingParameters:
    """Parameters from their file form: durations in microseconds."""
    engines = {}
    for name, own in content["engines"].items():
        engines[name] = EngineParameters(
            **{
                key.removesuffix("_us"): v * (1e-6 if key.endswith("_us") else 1.0)
                for key, v in own.items()
            }
        )
    own = read_benchmarks(content.get("own"))
    return ServingParameters(engines, content["sigma"], frozenset(content["points"]), own=own)


def engines_mapping(parameters: ServingParameters) -> dict[str, Any]:
    """The file form that `from_mapping` reads."""
    durations = ("gap", "launch", "step", "sequence", "request")
    return {
        "engines": {
            name: {
                (f"{key}_us" if key in durations else key): float(
                    f"{getattr(own, key) * (1e6 if key in durations else 1.0):.5g}"
                )
                for key in ENGINE_FIELDS
            }
            for name, own in parameters.engines.items()
        },
        "sigma": dict(parameters.sigma),
        "points": sorted(parameters.points),
        **({} if parameters.own is None else {"own": benchmarks_mapping(parameters.own)}),
    }


def engines_file(directory: Path) -> Path | None:
    """The `serving.json` that goes with the calibration of a folder: its own, else that of the
    default calibration; None where neither is there."""
    for folder in (directory, tables.data_dir() / "calibrations" / "default"):
        if (folder / FILE).is_file():
            return folder / FILE
    return None


def read_engines(directory: Path) -> ServingParameters:
    """Parameters that go with the calibration of a folder (`engines_file`); `origin` says which.

    Raises InputError where the file is damaged.
    """
    path = engines_file(directory)
    if path is None:
        return ServingParameters()
    own = path.parent == directory
    origin = "fitted into this calibration" if own else "those of the calibration 'default'"
    return replace(read_parameters(path), origin=origin)
