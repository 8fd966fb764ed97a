"""What one's own runs say, and the priors with which they are read, in their file form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog.tables import data_dir
from predictor.errors import InputError
from predictor.timing import Benchmarks, Learned, Prior, Process, Traits, learn

OWN, TRAINING, SERVING = "own", "training.json", "serving.json"
"""Folder of the priors, and their files."""


def read_prior(content: Mapping[str, Any]) -> Prior:
    """A prior from its file form."""
    names = Prior.__slots__
    return Prior(**{name: content[name] for name in names if name in content})


@lru_cache(maxsize=4)
def _prior(path: Path) -> Prior:
    try:
        return read_prior(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"cannot read the prior {path}: {error}") from None


def own_prior() -> Prior:
    """The prior of own training runs, as published sources have it."""
    return _prior(data_dir() / OWN / TRAINING)


def read_learned(content: Mapping[str, Any] | None) -> Learned | None:
    """What own runs say, from a calibration's file; None where it holds none."""
    if not content:
        return None
    runs = content["runs"]

    def rows(name: str) -> np.ndarray:
        return np.array([run[name] for run in runs], float)

    traits = Traits(
        rows("slopes"),
        rows("sizes"),
        np.array([run["words"] for run in runs], dtype=str),
        rows("sigma"),
        rows("host"),
        np.array([run.get("waited", 0.0) for run in runs], float),
    )
    return learn(read_prior(content["prior"]), traits, rows("residual"))


def learned_mapping(learned: Learned | None) -> dict[str, Any] | None:
    """The contrary of `read_learned`."""
    if learned is None:
        return None
    traits, prior = learned.traits, learned.prior
    return {
        "prior": {
            name: dict(value) if isinstance(value, Mapping) else value
            for name in Prior.__slots__
            for value in [getattr(prior, name)]
        },
        "runs": [
            {
                "residual": float(learned.residual[i]),
                "sigma": float(traits.sigma[i]),
                "slopes": traits.slopes[i].tolist(),
                "sizes": traits.sizes[i].tolist(),
                "words": traits.words[i].tolist(),
                "host": traits.host[i].tolist(),
                "waited": float(traits.waited[i]),
            }
            for i in range(learned.runs)
        ],
    }


@lru_cache(maxsize=4)
def _process(path: Path) -> Process:
    try:
        return read_process(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"cannot read the prior {path}: {error}") from None


def read_process(content: Mapping[str, Any]) -> Process:
    """A process over benchmarks from its file form."""
    return Process(**{name: content[name] for name in Process.__slots__ if name in content})


def own_process() -> Process:
    """The process over what is left of own benchmarks, as published ones have it."""
    return _process(data_dir() / OWN / SERVING)


def read_benchmarks(content: Mapping[str, Any] | None) -> Benchmarks | None:
    """What is left of own benchmarks, from a calibration's file; None where it holds none."""
    if not content:
        return None
    rows = content["benchmarks"]
    return Benchmarks(
        read_process(content["process"]),
        [str(row["key"]) for row in rows],
        [str(row["metric"]) for row in rows],
        np.array([row["sizes"] for row in rows], float),
        np.array([row["residual"] for row in rows], float),
        {str(key): float(level) for key, level in content.get("levels", {}).items()},
    )


def benchmarks_mapping(known: Benchmarks) -> dict[str, Any]:
    """The contrary of `read_benchmarks`."""
    rows = zip(known.keys, known.metrics, known.sizes.tolist(), known.residual.tolist(),
               strict=True)  # fmt: skip
    return {
        "process": asdict(known.process),
        "benchmarks": [
            {"key": key, "metric": metric, "sizes": sizes, "residual": residual}
            for key, metric, sizes, residual in rows
        ],
        **({"levels": dict(known.levels)} if known.levels else {}),
    }
