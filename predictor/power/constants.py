"""What an accelerator draws: the constants of its power, in SI."""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.power.clock import VoltageCurve
from predictor.records import dataclass

RELATIVE_ENERGY = {
    "fp32": 12.0,
    "tf32": 2.3,
    "fp8": 0.45,
    "fp8_block": 0.5,
    "mxfp8": 0.45,
    "int8": 0.45,
    "sq": 0.45,
    "fp4": 0.3,
    "nvfp4": 0.3,
    "mxfp4": 0.3,
    "w4a8_mxfp4_mxfp8": 0.45,
}
"""Energy of a FLOP over that of 16 bits. fp8 and tf32: unit ladder of a B300 (8192³ products, less
what it draws awake); int8 as fp8; fp32 outside matrix units: products of an H100 and an H200, 7.4
and 7.1 pJ beside what they draw full of threads (`data/measurements`); fp4: from memory, by the
width of its multipliers. Every other data type is multiplied in 16 bits."""


STREAMING = 0.92
"""Share of the memory's bandwidth that streaming kernels reach, from memory: copies on an H100 and
an H200 reach 0.88 and 0.90 (`data/measurements`)."""


def relative_energy(dtype: str) -> float:
    """Energy of a FLOP of a data type over that of 16 bits."""
    return RELATIVE_ENERGY.get(dtype, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class PowerConstants:
    """Constants of one accelerator, or arrays of many; those with a share are of `limit`.

    limit       cap that the board holds by itself [W]
    off         without a context [W]
    awake       with a context, boost clocks held, no kernel [W]
    busy        processors that are full of threads, beside what their arithmetic takes [W];
                `leaking` is the share of it, and of `awake`, that leaks at the temperature
                `reference` [°C]: a busy chip is warmer than an idle one
    waiting     ranks that spin in a collective or for each other [W]
    padding     products of tiles that are mostly padding, whatever they yield [W]
    rows        that fill the processors half
    flop        per 16-bit FLOP of products of many rows [J]; `thin` times as much where a pass has
                a row for each sequence only
    byte        of memory traffic [J]
    link        per byte sent on a link [J]
    widen       per byte of a 16-bit weight that is made of a narrower one [J]
    curve       voltage over clock
    tracking    mean power over the limit, where it binds
    clock       highest clock [Hz]
    leakage     relative growth of the leaking power per kelvin
    resistance  from the chip to its coolant [K/W], by cooling
    beside      share of what memory and links draw that warms the chip: they are beside it
    slowdown    temperature at which the clock is stepped down [°C]
    sigma       log-standard-deviation of a power of this accelerator
    status      'fitted' to measurements of it, or from its 'relatives'
    """

    limit: Numeric
    off: Numeric
    awake: Numeric
    busy: Numeric
    waiting: Numeric
    padding: Numeric
    rows: Numeric
    flop: Numeric
    thin: Numeric
    byte: Numeric
    link: Numeric
    leaking: Numeric
    leakage: Numeric
    reference: Numeric
    tracking: Numeric
    slowdown: Numeric
    widen: Numeric
    beside: Numeric
    clock: Numeric
    sigma: Numeric
    curve: VoltageCurve
    resistance: dict[str, float]
    status: str
