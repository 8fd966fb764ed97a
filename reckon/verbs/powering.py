"""`result.power`: what a prediction draws, what it costs, how hot it gets, for users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.catalog import node_constants, power_constants, power_laws, power_setting
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.power import KWH, Conditions, NodePower, Powered, node_power
from predictor.records import dataclass
from predictor.serving import PoweredApart
from predictor.units import Z80
from reckon.verbs.figures import picked

B = TypeVar("B")

LOWER, MATTERS = 0.8, 0.01
"""Of the catalog's limit, what a machine's is supposed to be where nobody states it; share of the
time below which that is not worth telling."""

MEGAJOULE = 1e6
YEAR = 8766.0
"""Hours of a year of 365.25 days."""


NARROW = 1.05
"""Least that an upper bound of a power is over it, whatever limit holds it."""


def interval(value: float, sigma: float, room: float = np.inf) -> dict[str, float]:
    """80 % interval of a power or an energy, as JSON writes it. No mean power exceeds its limit by
    more than a sensor errs (of 971 measured under one, 98 % are below 1.02 of it, the others at the
    lowest that boards take).

    sigma   log-standard-deviation
    room    the limit over the mean power
    """
    reach = float(np.exp(Z80 * sigma))
    return {"value": value, "low": value / reach, "high": value * min(reach, max(room, NARROW))}


def limit_of(cluster: Cluster, conditions: Conditions) -> float:
    """Limit of power of an accelerator, of those that read prompts apart if that is higher [W]:
    what is stated, or the board's own.

    Raises InputError where its power is not known.
    """
    pairs = [(cluster, conditions.limit), (cluster.readers, conditions.of_readers.limit)]
    return max(
        float(np.max(np.asarray(power_constants(one.accelerator).limit if at is None else at)))
        for one, at in pairs
    )


@dataclass(frozen=True, eq=False)
class Machines:
    """Nodes of one system whose accelerators, so many, draw so much each on average [W]; of several
    times as an array."""

    cluster: Cluster
    gpus: int
    mean: Numeric
    conditions: Conditions

    @cached_property
    def node(self) -> NodePower:
        """Of a node [W]."""
        constants, cooled = power_setting(self.cluster, self.conditions)
        places = self.cluster.accelerators_per_node
        return node_power(
            accelerators=self.mean,
            count=min(places, self.gpus),
            rated=constants.limit,
            constants=node_constants(self.cluster),
            cooling=cooled.cooling,
            places=places,
        )

    @property
    def site(self) -> Array:
        """Of the nodes and their network at the site's meter [W]."""
        node = self.node
        nodes = max(self.gpus / self.cluster.accelerators_per_node, 1.0)
        fabric = node.fabric if nodes > 1 else 0.0
        return np.asarray((node.whole + fabric) * nodes * self.conditions.tariff.pue)


@dataclass(frozen=True, eq=False)
class PowerResult:
    """Power of one prediction; `index` is its place in the batch it was computed in.

    seconds   of wall time that the energy is of (a step, or a second of serving)
    counts    what is done in them, by name ('sample', 'token', 'request')
    """

    under: Powered
    cluster: Cluster
    conditions: Conditions
    gpus: int
    seconds: float
    counts: dict[str, float]
    index: int | None = None

    def at(self, values: Any) -> float:
        """Of this prediction's place in the batch."""
        return picked(values, self.index)

    def _rows(self, values: Any) -> list[float]:
        array = np.asarray(values, float)
        if self.index is not None and array.ndim > 1:
            array = array[:, self.index]
        return [float(one) for one in array.reshape(-1)]

    @cached_property
    def _limit(self) -> float:
        return limit_of(self.cluster, self.conditions)

    def _interval(self, value: float, of: float | None = None) -> dict[str, float]:
        """80 % interval; energies and powers are as uncertain as the constants, as far as the limit
        lets them.

        of   the power that it holds [W]; None: the mean
        """
        return interval(value, self.under.sigma, self._limit / (self.mean if of is None else of))

    @property
    def mean(self) -> float:
        """Of an accelerator [W]."""
        return self.at(self.under.mean)

    @property
    def phases(self) -> dict[str, tuple[float, float]]:
        """Watts and share of the time by phase."""
        whole = self.at(self.under.time)
        return {
            one.name: (self.at(one.power), self.at(one.time) / whole) for one in self.under.phases
        }

    @property
    def energy(self) -> float:
        """Of all accelerators over `seconds` [J]."""
        return self.mean * self.gpus * self.seconds

    @cached_property
    def node(self) -> NodePower:
        """Of a node of the cluster [W]; of two systems, of that which decodes."""
        return self._machines[0].node

    @cached_property
    def _machines(self) -> list[Machines]:
        """Machines of each system, those that decode first where others read prompts."""
        whole, conditions = self.under, self.conditions
        reader = self.cluster.prefill
        if reader is None or not isinstance(whole, PoweredApart):
            return [Machines(self.cluster, self.gpus, self.mean, conditions)]
        apart = round(self.at(whole.apart) * self.gpus)
        decoders, readers = (self.at(one.mean) for one in (whole.decoders, whole.readers))
        return [
            Machines(self.cluster, self.gpus - apart, decoders, conditions),
            Machines(reader, apart, readers, conditions.of_readers),
        ]

    @property
    def kinds(self) -> dict[str, PowerResult]:
        """Of accelerators that read prompts ('prefill') and of those that decode ('decode'), each
        kind by itself; empty where all do both."""
        whole = self.under
        if not isinstance(whole, PoweredApart):
            return {}
        apart = round(self.at(whole.apart) * self.gpus)
        return {
            "prefill": replace(
                self,
                under=whole.readers,
                gpus=apart,
                cluster=self.cluster.readers,
                conditions=self.conditions.of_readers,
            ),
            "decode": replace(
                self,
                under=whole.decoders,
                gpus=self.gpus - apart,
                cluster=replace(self.cluster, prefill=None),
                conditions=replace(self.conditions, reading=None),
            ),
        }

    @property
    def site(self) -> float:
        """Power of the accelerators' nodes and network at the site's meter [W]."""
        return sum(float(one.site) for one in self._machines)

    def costs(self, seconds: float) -> dict[str, float]:
        """Energy of so many seconds at the meter, its price and CO2e where stated, and what making
        the accelerators adds over that time."""
        tariff, law = self.conditions.tariff, power_laws()
        kwh = self.site * seconds / KWH
        found = {"site_kwh": kwh}
        if tariff.price is not None:
            found["energy_price"] = kwh * tariff.price
        if tariff.carbon is not None:
            found["kg_co2e"] = kwh * tariff.carbon
            life = law["embodied_years"] * YEAR * 3600.0
            found["embodied_kg_co2e"] = law["embodied_kg"] * self.gpus * seconds / life
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; every key carries its unit."""
        under, node = self.under, self.node
        per_s = {name: count / self.seconds for name, count in self.counts.items()}
        energy, averaged = self.energy, self.at(under.averaged)
        constants = power_constants(self.cluster.accelerator)
        return {
            "power_w": self._interval(self.mean),
            "peak_100ms_w": interval(self.at(under.instant), under.sigma),
            "peak_1s_w": self._interval(averaged, averaged),
            "burst": self.at(under.burst),
            "phases": {
                name: {"power_w": watts, "share": share}
                for name, (watts, share) in self.phases.items()
            },
            "energy_j": self._interval(energy),
            **{
                f"energy_per_{name}_j": self._interval(energy / count)
                for name, count in self.counts.items()
            },
            **{
                f"{name}s_per_s_per_mj": rate / (energy / MEGAJOULE) for name, rate in per_s.items()
            },
            "temperature_c": self._rows(under.temperature),
            "die_gap_k": self._rows(under.gap),
            "clock": self._rows(under.clock),
            "throttled": [bool(one) for one in self._rows(under.throttled)],
            "slowest_position_share": self.at(under.waited),
            "node_power_w": self._interval(float(node.whole)),
            "node_parts_w": {name: float(value) for name, value in node.parts.items()},
            "site_power_w": self._interval(self.site),
            "constants": constants.status,
            **self.costs(self.seconds),
            **self._by_kind(),
        }

    def _by_kind(self) -> dict[str, Any]:
        """What accelerators that read prompts draw, and those that decode, each by themselves."""
        names = ("power_w", "peak_100ms_w", "peak_1s_w", "phases", "temperature_c", "clock",
                 "throttled")  # fmt: skip
        found = {}
        for kind, one in self.kinds.items():
            told = one.to_dict()
            found[kind] = {"gpus": one.gpus, **{name: told[name] for name in names}}
        return {"kinds": found} if found else {}


@dataclass(frozen=True, eq=False)
class Drawn(Generic[B]):
    """What a batch draws under conditions, worked out when it is first asked for.

    of     predicts it of a batch
    batch  in the time that it takes without any conditions
    """

    of: Callable[[B, Conditions], Powered]
    batch: B
    conditions: Conditions

    @cached_property
    def found(self) -> Powered | None:
        """None where it is not known and nothing of it was asked.

        Raises InputError where conditions were stated that cannot be met, or not be told.
        """
        try:
            return self.of(self.batch, self.conditions)
        except InputError:
            if self.asked:
                raise
            return None

    @property
    def asked(self) -> bool:
        """Whether anything was stated of it."""
        stated = self.conditions
        return bool(stated.slows or stated.tariff.price or stated.tariff.carbon)


def powered(
    batch: B,
    conditions: Conditions,
    of: Callable[[B, Conditions], Powered],
    limited: Callable[[B, Powered, Conditions], B],
) -> tuple[B, Drawn[B]]:
    """A batch in the time that conditions leave it, and what it draws.

    of        what a batch draws
    limited   the batch in the time that conditions leave it, given what it draws

    Raises InputError where conditions were stated that cannot be met, or not be told.
    """
    drawn = Drawn(of, batch, conditions)
    under = drawn.found if drawn.asked else None
    return (batch if under is None else limited(batch, under, conditions)), drawn


@dataclass(frozen=True, slots=True)
class Supposed:
    """A limit of power that nobody stated, and what depends on it.

    taken   the catalog's, which is taken for the machine's [W]
    lower   one that it may have instead [W]
    longer  share of the time that work takes longer under that
    """

    taken: float
    lower: float
    longer: float


def supposed(
    drawn: Drawn[B],
    index: int | None,
    limited: Callable[[B, Powered, Conditions], B],
    time: Callable[[B], Any],
    cluster: Cluster,
) -> Supposed | None:
    """What a lower limit would cost, where none is stated and it matters; None otherwise, and where
    the device's power is not known.

    index    place in a batch
    limited  a batch in the time that conditions leave it, given what it draws
    time     of a batch [s]
    """
    if drawn.conditions.slows or drawn.found is None:
        return None
    taken = float(np.mean(np.asarray(power_constants(cluster.accelerator).limit)))
    conditions = replace(drawn.conditions, limit=LOWER * taken)
    slower = limited(drawn.batch, drawn.of(drawn.batch, conditions), conditions)
    ratio = np.asarray(time(slower)) / np.asarray(time(drawn.batch))
    longer = float(ratio if index is None or not ratio.ndim else ratio[index]) - 1.0
    return Supposed(taken, LOWER * taken, longer) if longer >= MATTERS else None
