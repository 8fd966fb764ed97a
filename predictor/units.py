"""Units: files carry them in the key, the arithmetic is in SI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GB = 1e9
GIB = 2.0**30

Z80 = 1.2816
"""Standard deviations about the mean within which 80 % of a normal distribution lie."""

MM2, MM, PJ_PER_BIT, CM2 = 1e-6, 1e-3, 8e-12, 1e-4
"""Square and plain millimetres in metres; pJ per bit in J per byte; square centimetres."""

SUFFIXES: dict[str, float] = {
    "_tflops": 1e12,
    "_tops": 1e12,
    "_gflops": 1e9,
    "_gbs": 1e9,  # gigabytes per second
    "_gbps": 1e9 / 8,  # gigabits per second
    "_gib": GIB,
    "_gb": 1e9,
    "_mb": 1e6,
    "_kb": 1e3,
    "_mhz": 1e6,
    "_us": 1e-6,
    "_ms": 1e-3,
    "_s": 1.0,
    "_w": 1.0,
}


def split_unit(key: str) -> tuple[str, float]:
    """Split a key into its stem and the factor to SI: 'memory_gb' -> ('memory', 1e9)."""
    for suffix, factor in SUFFIXES.items():
        if key.endswith(suffix):
            return key[: -len(suffix)], factor
    return key, 1.0


def to_si(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with unit suffixes dropped and numbers converted to SI.

    Values that are not numbers, and keys without a unit, pass unchanged.
    """
    converted: dict[str, Any] = {}
    for key, value in fields.items():
        stem, factor = split_unit(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if factor != 1.0 and number:
            value = value * factor
        converted[stem] = value
    return converted
