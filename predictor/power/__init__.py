"""Power, energy and heat of accelerators and nodes: pure functions of arrays."""

from predictor.power.clock import LOWEST, VoltageCurve, power_at, settled, stretch, switching
from predictor.power.conditions import Conditions
from predictor.power.constants import RELATIVE_ENERGY, STREAMING, PowerConstants, relative_energy
from predictor.power.demand import (
    Activity,
    Drawn,
    Operating,
    demand,
    leaking,
    occupancy,
    operating,
)
from predictor.power.heat import (
    AIR,
    COOLINGS,
    Chassis,
    Settled,
    ambient,
    die_gap,
    package_gap,
    settle,
)
from predictor.power.pace import CLOCKS, Pace, pace, sensible, worth
from predictor.power.phases import (
    AVERAGED,
    INSTANT,
    Phase,
    energy,
    mean_power,
    peak_power,
)
from predictor.power.site import (
    KWH,
    NodeConstants,
    NodePower,
    Tariff,
    fan_power,
    node_power,
)
from predictor.power.work import Powered, lengthened, powered, unlimited

__all__ = [
    "AIR",
    "AVERAGED",
    "CLOCKS",
    "COOLINGS",
    "INSTANT",
    "KWH",
    "LOWEST",
    "RELATIVE_ENERGY",
    "STREAMING",
    "Activity",
    "Chassis",
    "Conditions",
    "Drawn",
    "NodeConstants",
    "NodePower",
    "Operating",
    "Pace",
    "Phase",
    "PowerConstants",
    "Powered",
    "Settled",
    "Tariff",
    "VoltageCurve",
    "ambient",
    "demand",
    "die_gap",
    "energy",
    "fan_power",
    "leaking",
    "lengthened",
    "mean_power",
    "node_power",
    "occupancy",
    "operating",
    "pace",
    "package_gap",
    "peak_power",
    "power_at",
    "powered",
    "relative_energy",
    "sensible",
    "settle",
    "settled",
    "stretch",
    "switching",
    "unlimited",
    "worth",
]
