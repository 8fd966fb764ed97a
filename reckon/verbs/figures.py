"""Figures of a result, and what all results write alike into JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.records import dataclass

if TYPE_CHECKING:
    from predictor.catalog import Assumption
    from predictor.serving import ServingRequest
    from predictor.timing import Calibration
    from predictor.training import TrainingRequest

SCHEMA_VERSION = 1
"""Of what `--json` writes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value with its interval, all in the same unit."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    def scaled(self, factor: float) -> Interval:
        """The interval in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def to_dict(self) -> dict[str, float]:
        """As JSON writes it."""
        return {"value": self.value, "low": self.low, "high": self.high}


def picked(values: Any, index: int | None) -> float:
    """The value of one request of a batch, along the last axis; what all of them share is a
    number."""
    array = np.asarray(values, float)
    return float(array if index is None or not array.ndim else array[..., index])


def plain(value: Any) -> Any:
    """A value that JSON knows."""
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def assumptions(assumed: Iterable[Assumption]) -> list[dict[str, Any]]:
    """What was taken for what a request left open, and why."""
    return [{"field": a.field, "value": plain(a.value), "rule": a.rule} for a in assumed]


def of_request(
    kind: str, inputs: Mapping[str, Any], request: TrainingRequest | ServingRequest
) -> dict[str, Any]:
    """What a result says of the request that it answers; `stated` is the request as it was made, of
    which another gives the same."""
    stated = request.stated
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "inputs": inputs,
        "stated": None if stated is None else stated.to_dict(defaults=False),
        "assumed": assumptions(request.assumed),
        "no_effect": list(request.idle),
    }


def of_calibration(calibration: Calibration) -> dict[str, Any]:
    """What a result says of the calibration behind it."""
    return {
        "name": calibration.name,
        "interval_level": calibration.interval_level,
        "fitted_to": calibration.provenance.get("fitted_to", "nothing"),
    }
