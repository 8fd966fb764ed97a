"""What may be wrong with a machine, as users write it: `nic:0.5`, `compute:1.2x4`, `rail:1@0.1`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection

from predictor.errors import InputError, unknown
from predictor.records import dataclass
from predictor.variation.slow import run_share

COMPUTE, HBM, NVLINK, NIC, RAIL, SPINE = "compute", "hbm", "nvlink", "nic", "rail", "spine"
NEIGHBOUR = "neighbour"

KINDS = {
    COMPUTE: "an accelerator's arithmetic, times as slow",
    HBM: "an accelerator's memory, share of its bandwidth that is left",
    NVLINK: "an accelerator's link inside the node, share of its rate that is left",
    NIC: "an accelerator's link between nodes, share of its rate that is left",
    RAIL: "links between nodes that a node has lost; its others take their traffic",
    SPINE: "uplinks that a leaf switch has lost, of how many: 1/32",
    NEIGHBOUR: "other jobs of its kind on the spine, by how many times that is oversubscribed: 1/2",
}

NONE = "none"

_FORM = re.compile(
    r"(\w+):([\d.eE+-]+)(?:/([\d.]+))?(?:x(\d+))?(?:@([\d.eE+-]+)(?:h/([\d.eE+-]+)h)?)?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    kind    one of `KINDS`
    value   as its kind says
    of      uplinks of a leaf; times that a spine is oversubscribed
    units   accelerators, nodes or links of which it is so
    share   of the time in which it is so, for expected losses; 1: always
    every, lasting   or: mean time between spells of one accelerator, and how long one lasts until
            it ends or is noticed and the accelerator replaced [s]; NaN: `share` says it
    """

    kind: str
    value: float
    of: float
    units: int
    share: float
    every: float
    lasting: float

    def share_of(self, accelerators: float) -> float:
        """Share of the time in which a job of so many has such a fault."""
        if math.isnan(self.every):
            return self.share
        return float(run_share(accelerators, self.every, self.lasting))

    def __str__(self) -> str:
        of = f"/{self.of:g}" if self.of else ""
        units = f"x{self.units}" if self.units > 1 else ""
        return f"{self.kind}:{self.value:g}{of}{units}"


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"faults: {where!r}: {text!r} is no number") from None


def fault(text: str) -> Fault:
    """Read one fault. Raises InputError, saying what to write instead."""
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise InputError(
            f"faults: {text!r} is not KIND:VALUE, as in nic:0.5, compute:1.2x4 (four of them) or "
            "rail:1@0.01 (a hundredth of the time; @5000h/2h: once in 5,000 h, for 2 h)"
        )
    kind, value, of, units, share, spell = found.groups()
    if kind not in KINDS:
        raise unknown("faults", kind, tuple(KINDS))
    own = Fault(
        kind,
        _number(value, text),
        _number(of, text) if of else 0.0,
        int(units or 1),
        _number(share, text) if share and not spell else 1.0,
        3600.0 * _number(share, text) if spell else math.nan,
        3600.0 * _number(spell, text) if spell else math.nan,
    )
    for kinds, broken, told in LAWS:
        if kind in kinds and broken(own):
            raise InputError(f"faults: {text!r}: {told.format(KINDS[kind])}")
    return own


LAWS: tuple[tuple[Collection[str], Callable[[Fault], bool], str], ...] = (
    (KINDS, lambda own: own.every <= 0, "the time between spells is above 0"),
    ((COMPUTE,), lambda own: not own.value >= 1, "{}, 1 or more"),
    ((HBM, NVLINK, NIC), lambda own: not 0 <= own.value <= 1, "{}, from 0 to 1"),
    ((HBM,), lambda own: own.value == 0, "an accelerator without memory stops the job"),
    ((SPINE,), lambda own: not 0 <= own.value <= own.of, "{}"),
    (
        (NEIGHBOUR,),
        lambda own: not (own.value == int(own.value) >= 0 and own.of >= 1),
        "{}",
    ),
    (
        KINDS.keys() - {SPINE, NEIGHBOUR},
        lambda own: bool(own.of),
        "only a spine is stated as a share, LOST/OF",
    ),
    (
        KINDS,
        lambda own: not 0 <= own.share <= 1 or own.units < 1 or own.value < 0,
        "a share of the time is from 0 to 1, units 1 or more",
    ),
)
"""What a fault of some kinds may not be, and what is told then, in the order in which it is asked;
`{}` is what the kind's value says."""


def faults(text: str) -> tuple[Fault, ...]:
    """Read a list of faults, separated by commas; none for `NONE`. Raises InputError."""
    if text == NONE:
        return ()
    return tuple(fault(part) for part in text.split(","))
