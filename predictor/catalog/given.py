"""What a request states of a space of plans: values of a field, or their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.catalog.forms import Spec, parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.plans import NUMERIC_FIELDS, TRAINING_FIELDS, WORDS
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """Values of a field from `low` to `high`; every `step`-th where that is stated."""

    low: float
    high: float
    step: float | None = None


Given = Mapping[str, tuple[Any, ...] | Range]
"""What a request states: the values of a field, or their range."""


def read_given(
    fields: Mapping[str, Any],
    where: str = "request",
    form: type[Spec] = TrainingPlanSpec,
    numbers: Sequence[str] = (*NUMERIC_FIELDS, "gpus"),
) -> dict[str, Any]:
    """Values that a request states, checked: field -> tuple of values, or a range.

    fields   keys of a plan with a value, a list, a text with commas, or 'LOW..HIGH' or
             'LOW..HIGH:STEP'
    form     of the plan
    numbers  fields that may be ranges

    Raises InputError for unknown keys and values that cannot be.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, str) and ".." in value:
            found[name] = _range(name, value, where, numbers)
            continue
        own = TRAINING_FIELDS.get(name)
        one = own is not None and own.kind is WORDS  # whose commas are part of a value
        values = value.split(",") if isinstance(value, str) and not one else value
        if not isinstance(values, list | tuple):
            values = [values]
        if not values:
            raise InputError(f"{where}: {name}: the list is empty")
        checked = []
        for item in values:
            text = item.strip() if isinstance(item, str) else item
            spec = parse(form, {name: text}, where)
            checked.append(getattr(spec, name))
        found[name] = tuple(dict.fromkeys(checked)) if _hashable(checked) else tuple(checked)
    return found


def _hashable(values: list[Any]) -> bool:
    return not any(isinstance(value, dict) for value in values)


def _range(name: str, text: str, where: str, numbers: Sequence[str]) -> Range:
    ends, _, step = text.partition(":")
    low, _, high = ends.partition("..")
    if name not in numbers:
        raise InputError(f"{where}: {name}: a range {text!r} needs a field that is a number")
    try:
        found = Range(float(low), float(high), float(step) if step else None)
    except ValueError:
        raise InputError(f"{where}: {name}: {text!r} is not LOW..HIGH or LOW..HIGH:STEP") from None
    if found.low > found.high:
        raise InputError(f"{where}: {name}: {text!r} ends below where it starts")
    if not 1 <= found.low <= found.high or (found.step is not None and found.step <= 0):
        raise InputError(f"{where}: {name}: {text!r} has no value of at least 1")
    return found
