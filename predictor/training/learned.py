"""Passes and reference of what a step learns from, and how what is frozen travels, where nobody
states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.catalog import Default, Filler, TrainingPlanSpec
from predictor.plans import FROZEN_BYTES, LOOPS, OBJECTIVES, reference_of, states_of


def learned_from(values: Mapping[str, Any]) -> list[Default]:
    """Fields that follow from what a request learns from; none where it is the next token."""
    name = values.get("learns_from", "tokens")
    if name == "tokens":
        return []
    one, rule = OBJECTIVES[name], f"learns_from {name}"
    usual = reference_of(name, values.get("trained", "all") != "all")
    has = values.get("compared_with", usual) != "none"
    return [
        Default("compared_with", usual, rule),
        Default("scored", one.own, rule),
        Default("referred", one.compared if has else 0.0, rule if has else "no reference"),
    ]


def compared_together(values: Mapping[str, Any]) -> int:
    """Sequences that a pass of a request compares, of which a micro-batch has whole groups."""
    return OBJECTIVES[values.get("learns_from", "tokens")].together


def gathered(values: Mapping[str, Any], usual: float, rule: str) -> tuple[float, str]:
    """Bytes of a weight as it is gathered: frozen ones of 4 bits travel as they are stored, in
    PyTorch's FSDP (bitsandbytes' bnb_4bit_quant_storage, torchao's NF4Tensor; from memory)."""
    stored = values.get("frozen_precision", "")
    if stored != "nf4" or values.get("trained", "all") == "all" or values["framework"] not in LOOPS:
        return usual, rule
    return FROZEN_BYTES[stored], "frozen weights are gathered as they are stored"


def keeps(filler: Filler, stated: TrainingPlanSpec) -> None:
    """States of an optimizer other than Adam, whose would be those that are filled in."""
    name, adams = filler.values.get("optimizer", "adam"), filler.values["optimizer_bytes"]
    if name != "adam" and stated.optimizer_bytes is None:
        filler.refill("optimizer_bytes", states_of(name, adams), f"optimizer {name}")
