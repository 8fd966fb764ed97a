"""How fast a link technology carries a collective: fitted parameters, and defaults with sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class LinkCurve:
    """Measured over fitted time of the traffic, for one number of members.

    log_ideal    knots: log of the ideal time [s], rising; constant outside
    log_factor   at the knots; falls by at most half of what `log_ideal` rises, so that the time
                 of a larger message is never shorter
    """

    members: float
    log_ideal: tuple[float, ...]
    log_factor: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Fitted time of one collective on one link technology.

    time = pace (base + hop steps) + (pace root sqrt(ideal) + ideal / efficiency) factor, where
    steps is the number of hops of the algorithm and ideal the time of the volume at the link's
    rate (`collectives`). The square root is the pipelining of messages in chunks and the
    transition between NCCL's protocols.

    base, hop     [s]
    root          [s^0.5]
    log2_sizes, efficiencies   share of the link's rate by log2 of the members (of a scale-out
                  link: domains), interpolated, constant outside
    clock         pace = this over the accelerator's clock [Hz]: the kernels that copy run on the
                  accelerator. NaN: pace is 1
    sharing       the links of g members of a domain carry g ** (1 - sharing) times one link's rate
    curves        measured shape of the link itself, by members; none where it was transferred
    sigma         log-standard-deviation of held-out residuals, of messages that take their time
    latency_sigma  the same of messages that mostly wait for latencies; NaN: not told apart
    beyond        what is documented of a hop beyond the usual one (`hop_beyond`), as `hop` and
                  `root` have it [s]; NaN: they hold for any link (inside nodes)
    """

    op: str
    link: str
    base: float
    hop: float
    root: float
    log2_sizes: tuple[float, ...]
    efficiencies: tuple[float, ...]
    sigma: float
    points: int
    pedigree: str = "interpolated"
    clock: float = math.nan
    sharing: float = 0.0
    curves: tuple[LinkCurve, ...] = ()
    latency_sigma: float = math.nan
    beyond: float = math.nan

    def waiting_beyond(self, beyond: Array | float) -> LinkModel:
        """The same with hops of so much more than the usual [s]. A message in chunks fills a
        pipeline of h hops of L in 2 sqrt(h L ideal) (k chunks take (h + k) (ideal / k + L), least
        for k = sqrt(h ideal / L)), so that the square root's term grows with that of the hop."""
        if math.isnan(self.beyond) or (np.ndim(beyond) == 0 and beyond == self.beyond):
            return self
        longer = np.sqrt((USUAL_HOP + np.asarray(beyond)) / (USUAL_HOP + self.beyond))
        hop, root = self.hop + (beyond - self.beyond), self.root * longer
        return replace(self, hop=hop, root=root, beyond=beyond)  # type: ignore[arg-type]

    def spread(self, waiting: Array | float) -> Array:
        """Log-standard-deviation of a time of which the share `waiting` is latencies."""
        small = self.sigma if math.isnan(self.latency_sigma) else self.latency_sigma
        return np.asarray(waiting * small + (1.0 - np.asarray(waiting)) * self.sigma)

    def pace(self, clock: Array | float) -> Array | float:
        """Factor on latencies for accelerators of that clock [Hz]; 1 where one is unknown."""
        ratio = self.clock / clock
        return np.where(np.isnan(ratio), 1.0, ratio)

    def factor(self, members: Array | float, ideal: Array | float) -> Array | float:
        """Factor of the measured curves on the time of the traffic; between two measured numbers
        of members interpolated in their logarithm."""
        if not self.curves:
            return 1.0
        members, ideal = np.broadcast_arrays(members, ideal)
        x = np.log(np.maximum(ideal, 1e-12))
        found = np.stack([np.interp(x, c.log_ideal, c.log_factor) for c in self.curves])
        known = np.log2([c.members for c in self.curves])
        at = np.interp(np.log2(np.maximum(members, 1.0)), known, np.arange(len(known)))
        below = at.astype(int)
        above = np.minimum(below + 1, len(known) - 1)
        low, high = (np.take_along_axis(found, row[None], axis=0)[0] for row in (below, above))
        return np.asarray(np.exp(low + (at - below) * (high - low)))


def link_family(link: str) -> str:
    """'nvlink4' -> 'nvlink', 'infiniband-ndr' -> 'infiniband'."""
    return link.split("-")[0].rstrip("0123456789")


SCALE_UP = (
    "nvlink",
    "xgmi",
    "ualink",
    "pcie",
    "ici",
    "neuronlink",
    "rocemesh",
    "unifiedbus",
    "hccs",
    "xelink",
)


PCIE = "pcie"
"""The family of links through a host, which all its cards load together."""


def bridged(links: Sequence[str]) -> bool:
    """Whether bridges join some cards of a node, and its host the others; links from the inside."""
    return any(link_family(link) == PCIE for link in links[1:])


def link_class(link: str) -> str:
    """'scale-up' inside a node or rack, 'host' between processes of a machine, or 'scale-out'."""
    family = link_family(link)
    if family == "gloo":
        return "host"
    return "scale-up" if family in SCALE_UP else "scale-out"


PLANE = 1024
"""Most chips of a pod of TPUs that is a torus of two axes: v2's, v5e's and v6e's of 256 and v3's of
1,024; those of v4, v5p and v7, of 4,096 and more, have three (Jouppi et al., ISCA 2023, section 2;
docs.cloud.google.com/tpu/docs, v5e to v7)."""


def torus_axes(link: str, size: float) -> int:
    """Axes of the torus that a link joins so many accelerators in; 0: it joins them in none."""
    if link_family(link) != "ici":
        return 0
    return 2 if size <= PLANE else 3


PORTS = {
    "infiniband-edr": 12.5e9, "infiniband-hdr": 25e9, "infiniband-ndr": 50e9,
    "infiniband-xdr": 100e9, "infiniband-gdr": 200e9, "slingshot": 25e9,
}  # fmt: skip
"""What one adapter of a network between nodes carries each way [bytes/s]
(`data/technology/networks.csv`)."""

PORT = 12.5e9
"""The same where the network does not say: 100 Gb/s, of Omni-Path, of EFA up to p5's cards, and the
least of what nodes of accelerators have had since 2018."""


def adapters_of(link: str, node: float, most: float) -> float:
    """Network adapters of a node, as many as carry its traffic: p3dn's 12.5 GB/s is one of 100 Gb/s
    for eight accelerators, DGX-1V's 50 are four.

    link   between nodes
    node   rate of all traffic of a node to others, each way [bytes/s]
    most   as many as are told apart: one for each accelerator
    """
    several = round(node / PORTS.get(link, PORT))
    return float(min(max(several, 1), most))


USUAL_HOP = 4e-6
"""Hop of a network between nodes where nothing else is documented [s]: of NCCL's tuner, for
InfiniBand and the protocols of small messages (NVIDIA/nccl src/graph/tuning.cc)."""

EFA_HOPS = {"efa": 150e-6, "efa1": 75e-6, "efa2": 20e-6, "efa3": 20e-6, "efa4": 20e-6}
"""Hops of EFA's generations [s], as AWS's plugin for NCCL has them (aws/aws-ofi-nccl).
What it tells NCCL's tuner of p3dn, and of p4d and p4de, whose messages have two sides and go by the
simple protocol alone (src/platform-aws.c, `latency`, SENDRECV); since p5, which writes to
remote memory and may take the others, that of its own tuner (include/nccl_ofi_param.h,
TUNER_NET_LATENCY)."""


def hop_beyond(link: str) -> float:
    """What is documented of a link's hop beyond the usual one of its class [s]."""
    return EFA_HOPS.get(link, USUAL_HOP) - USUAL_HOP


def default_link(op: str, link: str) -> LinkModel:
    """Uncalibrated link: NCCL ring collectives on NVLink reach 0.75 of the datasheet rate, on
    InfiniBand 0.9 (NVIDIA nccl-tests, doc/PERFORMANCE.md and its issue tracker); hop latencies
    are those of NCCL's tuner (NVIDIA/nccl src/graph/tuning.cc)."""
    up = link_class(link) == "scale-up"
    return LinkModel(
        op=op,
        link=link,
        base=8e-6 if up else 15e-6,
        hop=1e-6 if up else USUAL_HOP + hop_beyond(link),
        root=0.0,
        log2_sizes=(1.0,),
        efficiencies=(0.75 if up else 0.85,),
        sigma=0.25,
        points=0,
        pedigree="roofline",
        beyond=math.nan if up else hop_beyond(link),
    )
