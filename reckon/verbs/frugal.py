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
from predictor.catalog import number
from predictor.errors import InputError
from predictor.power import KWH, Conditions, Tariff
from predictor.records import dataclass
from predictor.search import SearchResult
from predictor.training import pipeline_of, predict, under_limits
from reckon.verbs.pacing import MODES, paced

MOST = 200
"""Plans of the least accelerators' time that are powered."""

PACED = 10
"""Plans of the least energy (or money) whose stages are given clocks of their own."""

HOUR = 3600.0
DAY = 24 * HOUR

LADDER = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the accelerator's own limit that a front of time and energy tries."""

SAME = 1e-6
"""Energies that differ by less than this share are one."""


@dataclass(frozen=True, slots=True)
class Frugal:
    """A plan under a limit of power.

    position   of the plan in the search
    limit      of an accelerator [W]; None: its own
    step_time  under it [s]
    power      of an accelerator, mean [W]
    energy     of all accelerators, of a sample [J]
    money      of a sample: energy at the meter, and accelerators by the hour; None without prices
    saved      share of the energy that clocks of the stages save; None without them
    """

    position: int
    limit: float | None
    step_time: float
    power: float
    energy: float
    money: float | None
    saved: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; every key carries its unit."""
        return {
            "rank": self.position + 1,
            "power_limit_w": self.limit,
            "step_time_s": self.step_time,
            "power_w": self.power,
            "energy_per_sample_j": self.energy,
            "money_per_sample": self.money,
            "stage_clocks_saved_share": self.saved,
        }


@dataclass(frozen=True, slots=True)
class Thrift:
    """What is asked.

    limits     of power to try [W], beside the accelerator's own
    slower     share by which a step may be longer than the fastest that was found; None: any
    tariff     of energy
    paced      'stage' or 'pass': clocks of the stages of the best plans; None: none
    """

    limits: tuple[float, ...] = ()
    slower: float | None = None
    tariff: Tariff = field(default_factory=Tariff)
    paced: str | None = None

    def __post_init__(self) -> None:
        for limit in self.limits:
            if not 0 < limit < np.inf:
                raise InputError(f"power limit {limit:g} W must be above 0")
        if self.slower is not None and not 0 <= self.slower < np.inf:
            raise InputError(f"slower {self.slower:g} must be at least 0 (0.05: 5 %)")
        if self.paced not in (None, *MODES):
            raise InputError(f"stage_clocks {self.paced!r} is not one of {', '.join(MODES)}")


def thrift_of(stated: Mapping[str, Any]) -> Thrift:
    """What a request states: `power_limits` (a list, or text with commas), `slower`,
    `price_per_kwh`, `stage_clocks`.

    Raises InputError for what are no numbers, or cannot be.
    """
    given = stated.get("power_limits", ())
    texts = given.split(",") if isinstance(given, str) else np.atleast_1d(given).tolist()
    price = stated.get("price_per_kwh")
    slower = stated.get("slower")
    tariff = Tariff() if price is None else Tariff(price=number("price_per_kwh", price))
    if tariff.price is not None and tariff.price <= 0:
        raise InputError(f"price_per_kwh {tariff.price:g} must be above 0")
    return Thrift(
        limits=tuple(number("power limit", one) for one in texts),
        slower=None if slower is None else number("slower", slower),
        tariff=tariff,
        paced=stated.get("stage_clocks"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Powered:
    """Plans of a ranking under limits of power; arrays of (limits, plans).

    positions   of the plans in the ranking, (plans,)
    limits      [W], (limits,); None: the accelerator's own
    times       of a step [s]
    powers      of an accelerator, mean [W]
    energies    of all accelerators, of a sample [J]
    """

    positions: Index
    limits: tuple[float | None, ...]
    times: Array
    powers: Array
    energies: Array

    def one(self, limit: int, at: int, money: Array | None = None) -> Frugal:
        """One plan under one limit."""
        return Frugal(
            position=int(self.positions[at]),
            limit=self.limits[limit],
            step_time=float(self.times[limit, at]),
            power=float(self.powers[limit, at]),
            energy=float(self.energies[limit, at]),
            money=None if money is None else float(money[limit, at]),
        )

    def front(self) -> list[Frugal]:
        """Pareto front of step time and energy, fastest first."""
        times, energies = self.times.ravel(), self.energies.ravel()
        order = np.lexsort((energies, times))
        least = np.minimum.accumulate(energies[order])
        kept = order[np.append(True, least[1:] < least[:-1] * (1.0 - SAME))]
        return [self.one(*divmod(int(at), len(self.positions))) for at in kept]


def powered_plans(found: SearchResult, positions: Index, limits: Sequence[float | None]) -> Powered:
    """Plans of a ranking under limits.

    Raises InputError where the accelerator's power is not known or a limit cannot be.
    """
    times = np.empty((len(limits), len(positions)))
    powers = np.empty_like(times)
    for block in np.unique(found.block[positions]):
        own = np.flatnonzero(found.block[positions] == block)
        plan = found.blocks[block].plan(found.row[positions[own]])
        batch = predict(found.model, found.cluster, plan, found.calibration)
        times[:, own], powers[:, own] = under_limits(batch, limits)
    samples = np.asarray(found.column("global_batch", positions.tolist()), float)
    energies = found.gpus[positions] * powers * times / samples
    return Powered(positions, tuple(limits), times, powers, energies)


def ladder(found: SearchResult) -> tuple[float | None, ...]:
    """Limits that a front tries where none is named: the accelerator's own, and shares of it."""
    whole = float(np.max(np.asarray(found.cluster.accelerator.power)))
    return (None, *(round(share * whole) for share in LADDER))


def frugal(found: SearchResult, thrift: Thrift, money: bool = False) -> list[Frugal]:
    """Plans under limits, least energy (or money) first, each plan once, with its best limit.

    Raises InputError where nothing is within the deadline, or no price is stated for money.
    """
    positions = np.arange(min(MOST, len(found)))
    fastest = float(found.step_time.min())
    if money and thrift.tariff.price is None and found.limits.price is None:
        raise InputError("the least money needs --price-per-kwh or --price-per-gpu-hour")
    under = powered_plans(found, positions, (None, *thrift.limits))
    samples = np.asarray(found.column("global_batch", positions.tolist()), float)
    allowed = np.ones(under.times.shape, dtype=bool)
    if thrift.slower is not None:
        allowed &= under.times <= (1.0 + thrift.slower) * fastest * (1 + 1e-12)
    if found.limits.days is not None and found.limits.tokens is not None:
        length = np.asarray(found.column("seq_len", positions.tolist()), float)
        allowed &= under.times <= found.limits.days * DAY / (
            found.limits.tokens / (samples * length)
        )
    spent = _money(found, thrift, under.energies, found.gpus[positions] * under.times / samples)
    best: dict[int, Frugal] = {}
    for row, at in zip(*np.nonzero(allowed), strict=True):
        one = under.one(int(row), int(at), spent)
        before = best.get(one.position)
        if before is None or _key(one, money) < _key(before, money):
            best[one.position] = one
    if not best:
        raise InputError(
            f"none of the {len(positions)} plans of the least accelerators' time is within the "
            "deadline; allow more, or search by time"
        )
    order = sorted(best.values(), key=lambda one: (_key(one, money), one.position))
    if thrift.paced is None:
        return order
    some = [_paced(found, one, thrift) for one in order[:PACED]]
    return sorted([*some, *order[PACED:]], key=lambda one: (_key(one, money), one.position))


def _paced(found: SearchResult, one: Frugal, thrift: Thrift) -> Frugal:
    """A plan with clocks of its stages that cost it no time; itself without a pipeline, or where
    its schedule cannot be played."""
    plan = found.plan(one.position)
    if float(plan.pp) < 2 or thrift.paced is None:
        return one
    alone = predict(found.model, found.cluster, plan, found.calibration)
    try:
        saved = paced(pipeline_of(alone, Conditions(limit=one.limit)), thrift.paced).saved
    except InputError:
        return one
    energy = one.energy * (1.0 - saved)
    money = one.money
    if money is not None:
        less = (one.energy - energy) / KWH * thrift.tariff.pue * (thrift.tariff.price or 0.0)
        money -= less
    return replace(one, energy=energy, power=one.power * (1.0 - saved), money=money, saved=saved)


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
