"""What computes: accelerators, and the network between them as a list of tiers.

Everything is in SI: FLOP/s, bytes, bytes/s, seconds, watts. Numeric fields are floats or arrays
of one broadcast shape, so that a sweep over machines is one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.errors import InputError

Array = npt.NDArray[np.float64]
Numeric = float | Array

L2_BYTES_PER_CLOCK_PER_SM = 32.0
"""Achievable L2 read rate of NVIDIA and AMD data-centre parts, bytes per clock and SM; about 5 TB/s
on A100 and 7 TB/s on H100 (te42kyfo/gpu-benches, L2 bandwidth plots). Used where a catalog row
or a device file states no `l2_bandwidth_gbs`."""

DEFAULT_CLOCK = 1.8e9
"""Where a catalog row states none: A100 has 1.41 GHz, H100 1.83, B200 1.97."""


@dataclass(frozen=True, slots=True, eq=False)
class Accelerator:
    """One device: peak rates, memories, and how many processors share the work.

    peak           dense FLOP/s by data type: 'bf16', 'fp16', 'fp32', 'tf32', 'fp8', 'fp4', 'int8'
    memory         capacity [bytes]
    bandwidth      of that memory [bytes/s]
    l2             last-level cache [bytes]
    l2_bandwidth   [bytes/s]
    sms            streaming multiprocessors, compute units or cores
    power          cap [W]; NaN where unknown
    clock          [Hz]; `DEFAULT_CLOCK` where unknown
    year           of release; NaN where unknown
    host_bandwidth  of the link to the host, each way [bytes/s]; NaN where unknown
    """

    name: str
    architecture: str
    peak: Mapping[str, Numeric]
    memory: Numeric
    bandwidth: Numeric
    l2: Numeric
    l2_bandwidth: Numeric
    sms: Numeric
    power: Numeric = np.nan
    clock: Numeric = DEFAULT_CLOCK
    year: Numeric = np.nan
    vendor: str = ""
    host_bandwidth: Numeric = np.nan

    @property
    def is_host(self) -> bool:
        """Whether this is a CPU: it runs kernels itself instead of queueing them."""
        return self.architecture.startswith("cpu")

    def peak_for(self, dtype: str) -> Numeric:
        """Dense peak rate for a data type [FLOP/s].

        Raises InputError where the accelerator has no such rate.
        """
        try:
            return self.peak[dtype]
        except KeyError:
            has = ", ".join(self.peak)
            other = (
                f"choose a precision that uses one of: {has}" if has else f"state {dtype}_tflops"
            )
            raise InputError(f"{self.name} has no {dtype} rate; {other}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """One level of the network, from the inside out.

    link              technology, e.g. 'nvlink4', 'infiniband-ndr' (the name a calibration knows)
    size              accelerators inside one domain of this tier (inf for the outermost)
    bandwidth         per accelerator and direction [bytes/s]
    oversubscription  of the fabric; bandwidth is divided by it for traffic that leaves a domain
    in_switch         whether the switch reduces (NVLS, SHARP)
    latency           one hop [s]; NaN: the calibration's value for the link
    """

    link: str
    size: float
    bandwidth: Numeric
    latency: Numeric = np.nan
    oversubscription: Numeric = 1.0
    in_switch: bool = False

    @property
    def rate(self) -> Numeric:
        """Bytes/s per accelerator and direction, oversubscription counted."""
        return self.bandwidth / self.oversubscription


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Accelerators of one kind behind a tiered network (innermost tier first)."""

    name: str
    accelerator: Accelerator
    accelerators_per_node: int
    tiers: tuple[Tier, ...]
