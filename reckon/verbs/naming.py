"""Models and machines as a request names them, so that another can be made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.hardware import Cluster
from predictor.models import Model


def reference(model: Model) -> str | dict[str, Any]:
    """The name of a model of the catalog; the dimensions of another."""
    if model.name in catalog.rows("models") and catalog.model(model.name) == model:
        return model.name
    return asdict(model)


def named(
    model: str | Path | Mapping[str, Any] | Model, system: str | Path | Mapping[str, Any] | Cluster
) -> dict[str, Any]:
    """The keys `model` and `system` of a request that is given both beside its plan: names, files
    and mappings as they are, models by `reference`; a `Cluster` has none."""
    found: dict[str, Any] = {}
    for key, ref in (("model", model), ("system", system)):
        if isinstance(ref, Mapping):
            found[key] = dict(ref)
        elif isinstance(ref, Model):
            found[key] = reference(ref)
        elif isinstance(ref, str | Path):
            found[key] = str(ref)
    return found
