"""Systems: accelerators of one kind behind a network, which is a list of tiers.

Everything is in SI, numbers are floats or arrays, as of accelerators.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware.accelerators import Accelerator
from predictor.hardware.links import torus_axes
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """One level of the network, from the inside out.

    link              technology, e.g. 'nvlink4', 'infiniband-ndr' (the name a calibration knows)
    size              accelerators inside one domain of this tier (inf for the outermost)
    bandwidth         per accelerator and direction [bytes/s]
    oversubscription  of the fabric; bandwidth is divided by it for traffic that leaves a domain
    in_switch         whether the switch reduces (NVLS, SHARP)
    latency           one hop [s]; NaN: the calibration's value for the link
    window            that a flow may have under way before it is acknowledged [bytes]; a flow of
                      TCP carries no more than this for each round trip (RFC 7323, section 1.1);
                      inf: the link is full
    direct            accelerators of a domain are wired to one another, each pair by as many links
                      of its own, without a switch: traffic to one peer has no others
    """

    link: str
    size: float
    bandwidth: Numeric
    latency: Numeric = np.nan
    oversubscription: Numeric = 1.0
    in_switch: bool = False
    window: Numeric = np.inf
    direct: bool = False

    def reached(self, peers: Numeric) -> Numeric:
        """Share of an accelerator's links that lead to so many peers of its domain, 0..1."""
        if not self.direct or np.isinf(self.size):
            return 1.0
        return np.minimum(peers / max(self.size - 1.0, 1.0), 1.0)

    def continues(self, inner: Tier) -> bool:
        """Whether this and the tier inside it are one fabric through which each accelerator reaches
        any other alike, whatever is mounted together: the trays of an NVL72 are no domains of its
        NVLink."""
        alike = self.link == inner.link and self.in_switch == inner.in_switch
        wired = self.direct or inner.direct or self.axes > 0 or inner.axes > 0
        return (
            alike
            and not wired
            and np.array_equal(self.rate, inner.rate)
            and np.array_equal(self.latency, inner.latency, equal_nan=True)
        )

    @property
    def axes(self) -> int:
        """Of the torus that joins the accelerators of a domain; 0: they are not in one."""
        return torus_axes(self.link, self.size)

    @property
    def rate(self) -> Numeric:
        """Bytes/s per accelerator and direction, oversubscription and windows counted."""
        carried = self.bandwidth / self.oversubscription
        if np.isinf(self.window).all():
            return carried
        return np.fmin(carried, self.window / (2.0 * self.latency))


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Accelerators of one kind behind a tiered network (innermost tier first).

    host_memory   of a node [bytes]; NaN: not known
    prefill       the system whose accelerators read prompts for those that decode on this one;
                  None: this one's own do
    """

    name: str
    accelerator: Accelerator
    accelerators_per_node: int
    tiers: tuple[Tier, ...]
    host_memory: float = np.nan
    prefill: Cluster | None = None

    @property
    def machines(self) -> str:
        """Its accelerators, and those that read prompts for them."""
        own = self.accelerator.name
        apart = self.prefill
        return own if apart is None else f"{own}, prompts on {apart.accelerator.name}"

    @property
    def readers(self) -> Cluster:
        """The system of workers that read prompts and nothing else."""
        return self if self.prefill is None else self.prefill
