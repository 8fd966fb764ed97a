"""Passes and reference of what a step learns from, where nobody states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.catalog import Default
from predictor.plans import OBJECTIVES, reference_of


def learned_from(values: Mapping[str, Any]) -> list[Default]:
    """Fields that the objective of a request sets; none where it is the next token."""
    name = values.get("objective", "tokens")
    if name == "tokens":
        return []
    one, rule = OBJECTIVES[name], f"objective {name}"
    usual = reference_of(name, values.get("trained", "all") != "all")
    has = values.get("reference", usual) != "none"
    return [
        Default("reference", usual, rule),
        Default("scored", one.own, rule),
        Default("referred", one.compared if has else 0.0, rule if has else "no reference"),
    ]


def compared_together(values: Mapping[str, Any]) -> int:
    """Sequences that a pass of a request compares, of which a micro-batch has whole groups."""
    return OBJECTIVES[values.get("objective", "tokens")].together
