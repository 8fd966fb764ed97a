"""What a request says of power: limits, cooling, and what energy costs."""

from __future__ import annotations

from dataclasses import field, replace

from predictor.arrays import Numeric
from predictor.power.site import Tariff
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a run is powered; what is None is as the machine has it.

    limit     of one accelerator [W]; several at once as an array that broadcasts with the work
    reading   of one that reads prompts apart; None: `limit`
    clock     that it does not exceed [Hz]
    inlet     of air or coolant [°C]
    cooling   'air', 'liquid' or 'immersion'
    tariff    of energy
    paced     'stage' or 'pass': what of a pipeline has a clock of its own; None: nothing
    slack     share by which its clocks may make the pipeline longer
    """

    limit: Numeric | None = None
    clock: float | None = None
    inlet: float | None = None
    cooling: str | None = None
    tariff: Tariff = field(default_factory=Tariff)
    paced: str | None = None
    slack: float = 0.0
    reading: Numeric | None = None

    @property
    def of_readers(self) -> Conditions:
        """Of accelerators that read prompts apart."""
        return self if self.reading is None else replace(self, limit=self.reading)

    @property
    def slows(self) -> bool:
        """Whether anything is asked for that a prediction without it does not have."""
        own = (self.limit, self.reading, self.clock, self.inlet, self.cooling)
        return any(one is not None for one in own)

    @property
    def stated(self) -> str:
        """The first of its fields that is not as the machine has it, as a plan calls it; empty:
        none."""
        values = {
            "power_limit": self.limit,
            "prefill_power_limit": self.reading,
            "clock": self.clock,
            "inlet": self.inlet,
            "cooling": self.cooling,
            "stage_clocks": self.paced,
            "price_per_kwh": self.tariff.price,
            "carbon_intensity": self.tariff.carbon,
        }
        return next((name for name, value in values.items() if value is not None), "")
