"""The least energy, or money, of a search: its best plans under limits of power, within a deadline.

Plans are searched by the accelerators' time, which energy follows within the span between what an
accelerator draws waiting and working; the best of them are then powered, under each limit, and
ranked by what they draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index
from predictor.errors import InputError
from predictor.power import KWH, Conditions, Tariff
from predictor.records import dataclass
from predictor.search import SearchResult
from predictor.training import predict, step_power

MOST = 200
"""Plans of the least accelerators' time that are powered."""

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Frugal:
    """A plan under a limit of power.

    position   of the plan in the search
    limit      of an accelerator [W]; None: its own
    step_time  under it [s]
    power      of an accelerator, mean [W]
    energy     of all accelerators, of a sample [J]
    money      of a sample: energy at the meter, and accelerators by the hour; None without prices
    """

    position: int
    limit: float | None
    step_time: float
    power: float
    energy: float
    money: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; every key carries its unit."""
        return {
            "rank": self.position + 1,
            "power_limit_w": self.limit,
            "step_time_s": self.step_time,
            "power_w": self.power,
            "energy_per_sample_j": self.energy,
            "money_per_sample": self.money,
        }


@dataclass(frozen=True, slots=True)
class Thrift:
    """What is asked.

    limits     of power to try [W], beside the accelerator's own
    slower     share by which a step may be longer than the fastest that was found; None: any
    tariff     of energy
    """

    limits: tuple[float, ...] = ()
    slower: float | None = None
    tariff: Tariff = field(default_factory=Tariff)

    def __post_init__(self) -> None:
        if self.slower is not None and not 0 <= self.slower < np.inf:
            raise InputError(f"slower {self.slower:g} must be at least 0 (0.05: 5 %)")


def thrift_of(stated: Mapping[str, Any]) -> Thrift:
    """What a request states: `power_limits` (a list, or text with commas), `slower`,
    `price_per_kwh`.

    Raises InputError for what are no numbers above 0.
    """

    def number(name: str, value: Any) -> float:
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = -1.0
        if not 0 <= found < np.inf or (found == 0 and name != "slower"):
            raise InputError(f"{name} {value!s:.40} must be a number above 0")
        return found

    given = stated.get("power_limits", ())
    texts = given.split(",") if isinstance(given, str) else np.atleast_1d(given).tolist()
    price = stated.get("price_per_kwh")
    slower = stated.get("slower")
    return Thrift(
        limits=tuple(number("power limit", one) for one in texts),
        slower=None if slower is None else number("slower", slower),
        tariff=Tariff(price=None if price is None else number("price_per_kwh", price)),
    )


def powered_plans(
    found: SearchResult, positions: Index, conditions: Conditions
) -> tuple[Array, Array]:
    """Step time [s] and mean power of an accelerator [W] of plans of a ranking, under conditions.

    Raises InputError where the accelerator's power is not known or the conditions cannot be.
    """
    times, powers = np.empty(len(positions)), np.empty(len(positions))
    for number in np.unique(found.block[positions]):
        own = np.flatnonzero(found.block[positions] == number)
        plan = found.blocks[number].plan(found.row[positions[own]])
        batch = predict(found.model, found.cluster, plan, found.calibration)
        usual = step_power(batch, Conditions())
        under = step_power(batch, conditions) if conditions.slows else usual
        times[own] = batch.step_time * under.time / usual.time
        powers[own] = under.mean
    return times, powers


def frugal(found: SearchResult, thrift: Thrift, money: bool = False) -> list[Frugal]:
    """Plans under limits, least energy (or money) first, each plan once, with its best limit.

    Raises InputError where nothing is within the deadline, or no price is stated for money.
    """
    positions = np.arange(min(MOST, len(found)))
    samples = np.asarray(found.column("global_batch", positions.tolist()), float)
    gpus = np.asarray(found.gpus[positions], float)
    fastest = float(found.step_time.min())
    if money and thrift.tariff.price is None and found.limits.price is None:
        raise InputError("the least money needs --price-per-kwh or --price-per-gpu-hour")
    days = None
    if found.limits.days is not None and found.limits.tokens is not None:
        length = np.asarray(found.column("seq_len", positions.tolist()), float)
        days = found.limits.days * 24 * HOUR / (found.limits.tokens / (samples * length))
    best: dict[int, Frugal] = {}
    for limit in (None, *thrift.limits):
        times, powers = powered_plans(found, positions, Conditions(limit=limit))
        allowed = np.ones(len(positions), dtype=bool)
        if thrift.slower is not None:
            allowed &= times <= (1.0 + thrift.slower) * fastest * (1 + 1e-12)
        if days is not None:
            allowed &= times <= days
        joules = gpus * powers * times / samples
        spent = _money(found, thrift, joules, gpus * times / samples)
        for at in np.flatnonzero(allowed):
            one = Frugal(
                position=int(positions[at]),
                limit=limit,
                step_time=float(times[at]),
                power=float(powers[at]),
                energy=float(joules[at]),
                money=None if spent is None else float(spent[at]),
            )
            before = best.get(one.position)
            if before is None or _key(one, money) < _key(before, money):
                best[one.position] = one
    if not best:
        raise InputError(
            f"none of the {len(positions)} plans of the least accelerators' time is within the "
            "deadline; allow more, or search by time"
        )
    return sorted(best.values(), key=lambda one: (_key(one, money), one.position))


def _key(one: Frugal, money: bool) -> float:
    return one.money if money and one.money is not None else one.energy


def _money(found: SearchResult, thrift: Thrift, joules: Array, seconds: Array) -> Array | None:
    """Of a sample; `seconds` of accelerators."""
    kwh, hourly = thrift.tariff.price, found.limits.price
    if kwh is None and hourly is None:
        return None
    energy = joules / KWH * thrift.tariff.pue * (kwh or 0.0)
    return np.asarray(energy + seconds / HOUR * (hourly or 0.0))


def reordered(found: SearchResult, first: Sequence[int]) -> SearchResult:
    """The ranking with some plans before the others."""
    rest = np.setdiff1d(np.arange(len(found)), first)
    order = np.concatenate([np.asarray(first, dtype=np.intp), rest])
    place = np.empty(len(found), dtype=np.intp)
    place[order] = np.arange(len(found))
    names = ("step_time", "sigma", "ranked", "memory", "gpus", "score", "block", "row")
    columns: dict[str, Any] = {name: getattr(found, name)[order] for name in names}
    return replace(found, **columns, frontier=place[found.frontier])
