"""From accelerators to nodes, racks and sites: kilowatts, kilowatt-hours, money and CO2."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass

KWH = 3.6e6
"""Joules."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeConstants:
    """What of a node is no accelerator.

    idle, span    of processors, memory and drives: idle, and what work adds at most [W]
    load          share of that which the host adds while its accelerators work
    adapter       one network adapter with its optics [W]; adapters in a node
    switch        switches inside the node, per accelerator [W]
    fans          of an air-cooled node at full flow [W]; cubic in the flow, which follows the heat
    spread        least flow over the full one
    efficiency    of the power supplies
    fabric        switches and optics outside, per adapter [W]
    """

    idle: Numeric
    span: Numeric
    load: Numeric
    adapter: Numeric
    adapters: Numeric
    switch: Numeric
    fans: Numeric
    spread: Numeric
    efficiency: Numeric
    fabric: Numeric


@dataclass(frozen=True, slots=True, eq=False)
class NodePower:
    """Of one node [W]: by part, at its supplies' outlets (`direct`) and inlets (`whole`); `fabric`
    is the network outside it."""

    parts: dict[str, Array]
    direct: Array
    whole: Array
    fabric: Array


def fan_power(heat: Numeric, full: Numeric, constants: NodeConstants, cooling: str) -> Array:
    """Fans [W]: flow in proportion to heat, power cubic in flow (fan affinity laws); none in
    liquid."""
    if cooling != "air":
        return np.zeros(np.shape(heat))
    flow = np.clip(np.asarray(heat) / full, constants.spread, 1.0)
    return np.asarray(constants.fans * flow**3)


def node_power(
    accelerators: Numeric,
    count: Numeric,
    rated: Numeric,
    constants: NodeConstants,
    cooling: str,
    places: Numeric | None = None,
) -> NodePower:
    """Power of a node.

    accelerators   one of them, mean [W]; `count` of the node's at work, each rated at `rated` [W]
    places         accelerators that the node has, for which its fans are made; None: `count`
    """
    ours = np.asarray(accelerators) * count
    host = constants.idle + constants.span * np.asarray(constants.load)
    adapters = constants.adapter * np.asarray(constants.adapters)
    switches = constants.switch * np.asarray(count)
    inside = ours + host + adapters + switches
    most = np.asarray(count if places is None else places)
    beside = constants.idle + constants.span + adapters + constants.switch * most
    full = np.asarray(rated) * most + beside
    fans = fan_power(inside, full, constants, cooling)
    direct = inside + fans
    whole = direct / constants.efficiency
    parts = {
        "accelerators": ours,
        "host": host,
        "adapters": adapters,
        "switches": switches,
        "fans": fans,
        "supplies": whole - direct,
    }
    shape = np.shape(whole)
    return NodePower(
        {name: np.broadcast_to(value, shape) for name, value in parts.items()},
        np.asarray(direct),
        np.asarray(whole),
        np.broadcast_to(constants.fabric * np.asarray(constants.adapters), shape),
    )


@dataclass(frozen=True, slots=True)
class Tariff:
    """What energy costs: per kWh in any currency (None: not asked), kg CO2e per kWh (None), and
    the site's power over that of its machines."""

    price: float | None = None
    carbon: float | None = None
    pue: float = 1.15
