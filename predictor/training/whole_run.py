"""What a request states of a whole run: its budget, how jobs fail and come back, what stands by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import Filler
from predictor.errors import InputError
from predictor.training.fleet import Reserve
from predictor.training.reliability import Reliability
from predictor.variation import NONE, faults, profile

FLEET = (
    "spares",
    "repair_hours",
    "preempted_hours",
    "returned_hours",
    "preempted_group",
    "elastic",
)
"""Fields of a fleet; a run has one where any is stated."""


def machines_of(values: Mapping[str, Any], tokens: float | None) -> dict[str, Any]:
    """How the machines of a run vary, what of them is slow, what stands by."""
    return {
        "variation": profile(values.get("variation", NONE)),
        "faults": faults(values.get("faults", NONE)),
        "fleet": _fleet(values, tokens),
    }


def _fleet(values: Mapping[str, Any], tokens: float | None) -> Reserve | None:
    """Spares and preemption in seconds, where any is stated."""
    stated = [name for name in FLEET if name in values]
    if not stated:
        return None
    if tokens is None:
        raise InputError(f"{stated[0]} is of a whole run; give --tokens too")
    return Reserve(
        spares=int(values.get("spares", 0)),
        repair=3600.0 * values.get("repair_hours", 24.0),
        every=3600.0 * values.get("preempted_hours", np.inf),
        returned=3600.0 * values.get("returned_hours", 1.0),
        group=max(float(values.get("preempted_group", 1.0)), 1.0),
        elastic=bool(values.get("elastic", False)),
    )


def budget_of(values: Mapping[str, Any], step: float) -> tuple[float | None, float | None]:
    """Tokens of a run and its price per accelerator and hour, where stated.

    step   tokens of one

    Raises InputError for fewer tokens than of one step, and for a price of no run.
    """
    tokens, price = values.get("tokens"), values.get("price_per_gpu_hour")
    if tokens is not None and tokens < step:
        raise InputError(
            f"--tokens {tokens:g} are fewer than the {step:,.0f} of one step (15T: 15e12)"
        )
    if price is not None and tokens is None:
        raise InputError("--price-per-gpu-hour is of a whole run; give --tokens too")
    return tokens, price


@lru_cache(maxsize=1)
def reliability_defaults() -> Mapping[str, Any]:
    """How jobs fail and come back, `data/defaults/reliability.yaml`."""
    return catalog.read_mapping(catalog.data_dir() / "defaults" / "reliability.yaml")


def reliability_of(stated: Mapping[str, Any]) -> Reliability:
    """Reliability from values with units in their keys."""
    return Reliability(
        mtbf=3600.0 * stated["mtbf_hours"],
        sigma=stated["sigma"],
        restart=stated["restart_s"],
        storage=1e9 * stated["storage_gbs"],
        blocking=stated["checkpoint_blocking"],
        interval=stated.get("checkpoint_interval_s", np.nan),
    )


def reliability_from(filler: Filler, tokens: float | None) -> Reliability:
    """As stated, and the defaults for the rest; an MTBF that is stated has no spread. Of no whole
    run, the defaults, which are then no assumption."""
    known = reliability_defaults()
    if tokens is None:
        return reliability_of(known)
    given = "mtbf_hours" in filler.values
    rules = {
        "mtbf_hours": "geometric mean of five published fleets",
        "restart_s": "five minutes to notice, five to initialise",
        "storage_gbs": "as published runs write, per accelerator",
        "checkpoint_blocking": "training waits for checkpoints",
    }
    stated = {name: filler.fill(name, known[name], rule) for name, rule in rules.items()}
    stated["sigma"] = 0.0 if given else known["sigma"]
    stated["checkpoint_interval_s"] = filler.values.get("checkpoint_interval_s", np.nan)
    return reliability_of(stated)
