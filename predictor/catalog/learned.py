"""What one's own runs say, and the priors with which they are read, in their file form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog.tables import data_dir
from predictor.errors import InputError
from predictor.timing import Learned, Prior, Traits, learn

OWN, TRAINING = "own", "training.json"
"""Folder and file of the prior."""


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
            }
            for i in range(learned.runs)
        ],
    }
