"""What a request says of unlike accelerators: systems of a pipeline's stages, or of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.catalog import several_systems
from predictor.errors import InputError
from predictor.hardware import Cluster

Kinds = Sequence[tuple[Cluster, int]]
"""Systems, and how many stages or replicas are on each, in their order."""

SEVERAL = ("stage_systems", "replica_systems", "regions")
"""Keys of a request that a search of plans does not take."""

KEYS = {"stage_systems": ("stage", "pp"), "replica_systems": ("replica", "dp")}
"""What each key deals to, and the field that says how many there are."""

APART = ("first_layers", "last_layers", "variation", "faults")
"""Of a request; said of one kind of accelerator."""


def several(values: dict[str, Any]) -> dict[str, Any]:
    """What a request says of unlike stages or replicas, taken out of its values: `kinds`, `by` and
    `eased` of a `TrainingRequest`; nothing of the first where one system has all.

    Raises InputError where both are stated, or what goes with one kind of accelerator.
    """
    eased = values.pop("stage_recompute", "alike") == "fits"
    return _systems(values) | ({"eased": True} if eased else {})


def _systems(values: dict[str, Any]) -> dict[str, Any]:
    """Systems and what is on each; they fill the system and the number of stages or replicas."""
    stated = [key for key in KEYS if key in values]
    if not stated:
        return {}
    if len(stated) > 1:
        raise InputError("give stage_systems or replica_systems, not both")
    by, size = KEYS[stated[0]]
    kinds = several_systems(str(values.pop(stated[0])), stated[0])
    whole = sum(many for _, many in kinds)
    if values.setdefault(size, whole) != whole:
        raise InputError(f"{stated[0]} names {whole} {by}s, {size} says {values[size]}")
    first = kinds[0][0].name
    if values.setdefault("system", first) != first and len(kinds) > 1:
        values["system"] = first
    if len(kinds) == 1:
        return {}
    if beside := [name for name in APART if values.get(name) not in (None, "none")]:
        raise InputError(f"{beside[0]} is of one kind of accelerator; leave it or {stated[0]} out")
    return {"kinds": kinds, "by": by}
