"""What a request may state of power, of training and of serving alike."""

from __future__ import annotations

from predictor.plans.fields import ALL, LOAD, POSITIVE, PREDICT, WORD, Kind, PlanField
from predictor.power import COOLINGS

INTENSITY = Kind("number", float, above=0, most=5)
"""Of a grid [kg/kWh]: burning coal emits about 1, so that more is in grams."""

POWER_FIELDS = (
    PlanField(
        "power_limit", POSITIVE, "Watts that an accelerator may draw.", ALL, unit="W",
        default="the board's own", flags=(PREDICT,), metavar="W", held="", quiet=True,
        more="As nvidia-smi -pl sets it. Work slows by as much as its processors bound it.",
    ),
    PlanField(
        "clock", POSITIVE, "Clock that it does not exceed.", ALL, unit="MHz",
        default="the board's own", flags=(PREDICT,), metavar="MHZ", held="", quiet=True,
        more="As nvidia-smi -lgc sets it, over the catalog's clock.",
    ),
    PlanField(
        "inlet", POSITIVE, "Of the air or the coolant.", ALL, unit="°C",
        default="25 of air, 30 of liquid, 40 of a bath", flags=(PREDICT,), metavar="C", held="",
        quiet=True,
    ),
    PlanField(
        "cooling", WORD, "air, liquid, immersion.", ALL, choices=COOLINGS,
        default="air; liquid where the scale-up domain is a rack", flags=(PREDICT,),
        metavar="NAME", held="", quiet=True,
    ),
    PlanField(
        "price_per_kwh", POSITIVE, "Adds the cost of energy.", ALL, unit="any currency",
        default="no price", flags=(PREDICT,), metavar="X", lists=False, held="", quiet=True,
    ),
    PlanField(
        "carbon_intensity", INTENSITY, "Adds CO2e: kg per kWh of the grid.", ALL, unit="kg/kWh",
        default="none stated", flags=(PREDICT,), metavar="X", lists=False, held="", quiet=True,
    ),
    PlanField(
        "pue", LOAD, "Power of the site over that of its machines.", ALL, default="1.15",
        reason="AWS 2023", held="",
    ),
)  # fmt: skip
"""Limits, cooling and prices; a prediction without them is that of the board's own limits."""
