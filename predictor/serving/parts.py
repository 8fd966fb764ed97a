"""What a pass of a served model takes: by term and by family, and operator by operator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass

COMPUTE = ("linear", "experts", "attention", "elementwise", "head")
COMMUNICATION = ("tp_communication", "ep_communication", "pp_communication", "host_transfer")
TERMS = (*COMPUTE, *COMMUNICATION)
"""Terms of a pass on the device; they add up to its time there."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One operator of a pass, of a single plan: executions, seconds of all of them, what bounds
    it, by how much ideal compute time exceeds ideal memory time (a ratio), how it is known."""

    name: str
    op: str
    count: float
    time: Array
    bound: str
    intensity: float
    pedigree: str


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Device time of a pass by term of `TERMS` [s], kernels launched, seconds and sigma by family
    of the fits; arrays of the plans' shape. `lines` lists its operators where there is one plan."""

    terms: dict[str, Array]
    kernels: Array
    families: dict[str, tuple[Array, Array]]
    lines: tuple[Line, ...] = ()

    @property
    def compute(self) -> Array:
        """Kernels of the model [s]."""
        return np.asarray(sum(self.terms[name] for name in COMPUTE))

    @property
    def communication(self) -> Array:
        """Collectives [s]."""
        return np.asarray(sum(self.terms[name] for name in COMMUNICATION))

    def plus(self, other: Pass) -> Pass:
        """Both passes, one after the other."""
        families = dict(self.families)
        for name, (time, sigma) in other.families.items():
            known = families.get(name)
            pair = (time, sigma)
            families[name] = (
                pair
                if known is None
                else (
                    known[0] + time,
                    np.maximum(known[1], sigma),
                )
            )
        return Pass(
            {name: self.terms[name] + other.terms[name] for name in TERMS},
            self.kernels + other.kernels,
            families,
            self.lines + other.lines,
        )

    def at_least(self, other: Pass) -> Pass:
        """This pass, none of whose terms is shorter than another's of the same kernels; listed as
        the one that takes longer."""
        families = {
            name: (np.maximum(time, other.families[name][0]), sigma)
            for name, (time, sigma) in self.families.items()
        }
        terms = {name: np.maximum(self.terms[name], other.terms[name]) for name in TERMS}
        longer = bool(np.all(other.compute > self.compute))
        return Pass(terms, self.kernels, families, other.lines if longer else self.lines)

    def times(self, factor: Numeric) -> Pass:
        """The same pass, `factor` times."""
        return Pass(
            {name: value * factor for name, value in self.terms.items()},
            self.kernels * factor,
            {name: (time * factor, sigma) for name, (time, sigma) in self.families.items()},
            tuple(
                replace(line, time=line.time * factor, count=line.count * float(factor))
                for line in self.lines
            ),
        )
