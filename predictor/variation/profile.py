"""How a machine varies: one profile is a handful of numbers, each measured or said to be a guess.

    ln t = ln t_o + R + G + C + e (+ a stall)

R is drawn once a run, G once an accelerator, C once a step for all ranks alike, e for every stretch
of work of one rank. All are log-normal about the median, which is what is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.arrays import Array, Numeric
from predictor.errors import InputError, unknown
from predictor.records import dataclass
from predictor.variation.order import normal_maximum, normal_tail

NONE = "none"
"""The profile in which nothing varies, and nothing is said of it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a machine varies; standard deviations are of the logarithm.

    run          R: from run to run (allocation, clocks)
    compute, memory   G: between accelerators, of kernels bound by arithmetic and by memory
    slow_share   of accelerators that are slow beyond that, by at least the logarithm `slow_least`
                 and exponentially more, on average by `slow_scale`
    step         C: from step to step, all ranks alike (power, hosts, storage, fabric)
    correlation  of C from one step to the next (AR(1))
    work         e: of a stretch of one rank's work that lasts `memory_s` [s]; what is shorter moves
                 together, what is longer averages
    collectives  the same of a rank's collectives
    stalls       pauses of one rank per step and 1,000 accelerators
    stall_least, stall_index   their length over the step's: Pareto, least and tail index
    """

    name: str
    run: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    slow_share: float = 0.0
    slow_least: float = 0.1
    slow_scale: float = 0.02
    step: float = 0.0
    correlation: float = 0.0
    work: float = 0.0
    memory_s: float = 0.2
    collectives: float = 0.0
    stalls: float = 0.0
    stall_least: float = 0.1
    stall_index: float = 1.5

    def without(self, term: str) -> Profile:
        """The same machine with one of `TERMS` taken away."""
        none: dict[str, Any] = dict.fromkeys(TERMS[term], 0.0)
        return replace(self, **none)


TERMS: dict[str, tuple[str, ...]] = {
    "run": ("run",),
    "accelerators": ("compute", "memory"),
    "slow accelerators": ("slow_share",),
    "whole step": ("step",),
    "work": ("work",),
    "collectives": ("collectives",),
    "stalls": ("stalls",),
}
"""What varies, and the numbers of a profile that say how much."""

SILENT = Profile(NONE)


@lru_cache(maxsize=1)
def known() -> Mapping[str, Any]:
    """What ships: profiles by name, and how many accelerators calibrations have seen."""
    return catalog.read_mapping(catalog.data_dir() / "variation" / "profiles.yaml")


def names() -> tuple[str, ...]:
    """Names of the profiles, the one in which nothing varies first."""
    return (NONE, *known()["profiles"])


def profile(name: str) -> Profile:
    """A profile by name, or from a file (.yaml) of its terms, which may name the profile of the
    others as `base`. Raises InputError for a name or a file that is none."""
    if name == NONE:
        return SILENT
    profiles = known()["profiles"]
    if name in profiles:
        return checked(Profile(name, **profiles[name]))
    if not name.endswith((".yaml", ".yml")):
        raise unknown("variation", name, names())
    stated = dict(catalog.read_mapping(Path(name)))
    base = profile(str(stated.pop("base", NONE)))
    terms = [one.name for one in fields(Profile) if one.name != "name"]
    for key, value in stated.items():
        if key not in terms:
            raise unknown(f"{name}: term", key, terms)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name}: {key} is a number, not {value!r}")
    own: dict[str, Any] = {key: float(value) for key, value in stated.items()}
    return checked(replace(base, name=name, **own))


def checked(found: Profile) -> Profile:
    """The same. Raises InputError for numbers that no machine has."""
    for one in fields(Profile):
        value = getattr(found, one.name)
        if one.name != "name" and not (math.isfinite(value) and value >= 0.0):
            raise InputError(f"variation {found.name}: {one.name} {value} is not 0 or more")
    if found.correlation >= 1.0 or found.slow_share > 1.0:
        raise InputError(f"variation {found.name}: correlation is below 1 and slow_share at most 1")
    return found


def slower_than(x: Numeric, spread: Numeric, of: Profile) -> Array:
    """Share of accelerators whose time is more than the median's by the logarithm x: most are
    normal about it with the standard deviation `spread`, `slow_share` of them exponentially slow
    beyond `slow_least`; broadcast shape."""
    plain = normal_tail(np.asarray(x) / np.maximum(spread, 1e-12))
    if of.slow_share <= 0.0:
        return plain
    beyond = np.maximum(np.asarray(x) - of.slow_least, 0.0) / max(of.slow_scale, 1e-12)
    return np.asarray((1.0 - of.slow_share) * plain + of.slow_share * np.exp(-beyond))


def drawn(shape: tuple[int, ...], spread: float, of: Profile, lots: np.random.Generator) -> Array:
    """Accelerators of such a population, by lots."""
    found = spread * lots.standard_normal(shape)
    slow = lots.random(shape) < of.slow_share
    return np.where(slow, of.slow_least + of.slow_scale * lots.standard_exponential(shape), found)


LOG2_MOST = 24
"""Accelerators that are told apart, as a power of two."""

SPREADS = np.concatenate([[0.0], np.geomspace(1e-4, 0.3, 36)])


@lru_cache(maxsize=32)
def _table(share: float, least: float, scale: float) -> tuple[Array, Array]:
    """Mean and standard deviation of the slowest of 2^0, 2^0.5, ... accelerators for each of
    `SPREADS`, (spreads, numbers): the integral of x dF^N."""
    of = Profile("", slow_share=share, slow_least=least, slow_scale=scale)
    n = 2.0 ** (0.5 * np.arange(2 * LOG2_MOST + 1))
    means, spreads = [], []
    top = least + scale * (np.log(max(share, 1e-12) * n[-1]) + 12.0)
    for spread in SPREADS:
        near = np.linspace(-8.0, 8.0, 240) * max(spread, 1e-9)
        far = np.linspace(near[-1], max(top, near[-1]), 360)[1:]
        x = np.concatenate([near, far])
        tail = slower_than(x, spread, of)
        above = -np.expm1(n[:, None] * np.log1p(-np.minimum(tail, 1.0 - 1e-16)))
        cells = 0.5 * (above[:, 1:] + above[:, :-1]) * np.diff(x)
        middle = 0.5 * (x[1:] + x[:-1]) - x[0]
        mean = cells.sum(axis=1)
        means.append(x[0] + mean)
        spreads.append(np.sqrt(np.maximum(2.0 * (cells * middle).sum(axis=1) - mean**2, 0.0)))
    return np.stack(means), np.stack(spreads)


def slowest(n: Numeric, spread: Numeric, of: Profile) -> tuple[Array, Array]:
    """Mean and standard deviation of the logarithm of the slowest of n accelerators' time over the
    median's; broadcast shape, 0 for one. Interpolated in a table where some are slow beyond the
    normal."""
    count, width = np.broadcast_arrays(np.asarray(n, float), np.asarray(spread, float))
    if of.slow_share <= 0.0:
        mean, around = normal_maximum(count)
        return np.asarray(mean * width), np.asarray(around * width)
    at = np.clip(2.0 * np.log2(np.maximum(count, 1.0)), 0.0, 2.0 * LOG2_MOST)
    row = np.interp(width, SPREADS, np.arange(len(SPREADS)))
    left, below = np.floor(at).astype(int), np.floor(row).astype(int)
    right, up = np.minimum(left + 1, 2 * LOG2_MOST), np.minimum(below + 1, len(SPREADS) - 1)
    across, down = at - left, row - below

    def read(table: Array) -> Array:
        first = table[below, left] * (1.0 - across) + table[below, right] * across
        second = table[up, left] * (1.0 - across) + table[up, right] * across
        return np.asarray(first * (1.0 - down) + second * down)

    mean, around = (read(t) for t in _table(of.slow_share, of.slow_least, of.slow_scale))
    return np.where(count <= 1.0, 0.0, mean), around
