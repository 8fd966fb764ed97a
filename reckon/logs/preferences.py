"""What lines of steps say of learning from preferences and rewards: figures that such trainers
alone print (TRL @ f2cd57710, trainer/dpo_trainer.py, kto_trainer.py and grpo_trainer.py and
experimental/orpo and cpo; LLaMA-Factory and axolotl stand on these).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from predictor.plans import OBJECTIVES
from reckon.logs.steps import Log, LoggedStep

SHOWN = "rewards/margins"
"""What all print that compare answers."""

SIGNS = (("log_odds_", "orpo"), ("nll_loss", "orpo"), ("'kl'", "kto"), ('"kl"', "kto"))
"""What else those print that are not DPO, whose own losses add no likelihood unless asked to."""

GENERATED = "completions/mean_length"
GENERATES = (
    "its steps make the answers that they learn from, which is no part of a training step: "
    "reckon predict rl"
)

PER_STEP = ("global_batch", "samples_per_s", "samples", "micro_batch")
"""Quantities of steps that count what is compared."""


def objective_of(line: str) -> str | None:
    """What a line of a step shows to be learned from; None for others."""
    if GENERATED in line:
        return "grpo"
    if SHOWN not in line:
        return None
    return next((name for sign, name in SIGNS if sign in line), "dpo")


def each_of(stated: Mapping[str, Any]) -> int:
    """Sequences of what a log counts as one."""
    return OBJECTIVES[stated.get("learns_from", "tokens")].together


def in_sequences(steps: Sequence[LoggedStep], each: int) -> tuple[LoggedStep, ...]:
    """Steps whose counts are of sequences, of which a pair is two."""
    if each == 1:
        return tuple(steps)
    return tuple(replace(one, values=scaled(one.values, each)) for one in steps)


def scaled(told: Mapping[str, Any], each: int) -> dict[str, Any]:
    """What is told of a step or a plan, its counts in sequences."""
    return {k: v * each if k in PER_STEP else v for k, v in told.items()}


def counted(log: Log, objective: str | None) -> Log:
    """A log that counts what an objective compares, in sequences, with that objective."""
    if objective is None:
        return log
    each = OBJECTIVES[objective].together
    stated = {**scaled(log.stated, each), "learns_from": objective}
    notes = (*log.notes, GENERATES) if objective == "grpo" else log.notes
    return replace(log, steps=in_sequences(log.steps, each), stated=stated, notes=notes)
