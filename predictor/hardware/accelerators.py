"""What computes: accelerators.

Everything is in SI: FLOP/s, bytes, bytes/s, seconds, watts. Numeric fields are floats or arrays
of one broadcast shape, so that a sweep over machines is one call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.precision import WIDE
from predictor.records import dataclass

L2_BYTES_PER_CLOCK_PER_SM = 32.0
"""Achievable L2 read rate of NVIDIA and AMD data-centre parts, bytes per clock and SM; about 5 TB/s
on A100 and 7 TB/s on H100 (te42kyfo/gpu-benches, L2 bandwidth plots). Used where a catalog row
or a device file states no `l2_bandwidth_gbs`."""

DEFAULT_CLOCK = 1.8e9
"""Where a catalog row states none: A100 has 1.41 GHz, H100 1.83, B200 1.97."""

SELF_PACED = frozenset({"tpu", "neuron"})
"""Architectures of chips that walk through a compiled program by themselves."""

ENERGY, NARROWING = 1.6e-12, 0.42
"""Joules per bf16 FLOP of a matrix unit of 1024 FLOP per clock; exponent of its width. Chosen by
hand from the power cap over the rate of large products in bursts (aiconfigurator tables): 1.7 pJ on
L40S, 1.5 on RTX PRO 6000, 1.6 on A100, 0.93 on H100, 0.67 on B200."""


def matrix_energy(
    width: Numeric, energy: Numeric = ENERGY, narrowing: Numeric = NARROWING
) -> Numeric:
    """Energy per 16-bit FLOP of sustained products [J], which falls with the width of a processor's
    matrix unit in FLOP per clock: 1.6 pJ at 1024 (L40S, RTX PRO 6000), 0.9 at 4096 (H100), 0.7 at
    8192 (B200)."""
    return energy * (width / 1024.0) ** -narrowing


OLDER = {"volta": 1.94, "turing": 1.94}
"""Energy of a matrix unit's product over that of `matrix_energy`, whose constants are those of
parts made in 4N, by architecture: made in TSMC's 12FFN. At equal speed that draws 4.0 times as much
(`data/technology/nodes.csv`), of which products feel as much as they do of the step from 4N to N7,
1.33 (A100 over the law) for 1.82: 4.0 ** (log 1.33 / log 1.82)."""


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
    dispatch       host time of an eager operator of a plain PyTorch loop: modules, views, PyTorch's
                   dispatcher, autograd [s]. Where the host is the device itself, it adds up with
                   kernels; else they hide behind each other. 0 where it was not measured
    split_dispatch  the same on tensors that PyTorch divides among tensor-parallel ranks [s]
    registers, shared   of one processor [bytes]; NaN where unknown
    register_bandwidth, shared_bandwidth   of all processors [bytes/s]
    instruction    rows and columns of the output of one matrix instruction
    cluster        thread blocks that load an operand from the cache once for all of them
    energy         per 16-bit FLOP of sustained products [J]; NaN: by the width of the matrix unit
                   (`timing.features.power_limit`)
    memory_energy  of a byte at the memory's own devices [J]; NaN: not stated
    relative       for a machine that does not exist: the nearest one that does, whose efficiencies
                   are carried over (`kernels.shape_times`)
    doubt          log-standard-deviation that this adds to its kernels
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
    dispatch: Numeric = 0.0
    split_dispatch: Numeric = 0.0
    registers: Numeric = np.nan
    shared: Numeric = np.nan
    register_bandwidth: Numeric = np.nan
    shared_bandwidth: Numeric = np.nan
    instruction: tuple[float, float] = (16.0, 8.0)
    cluster: float = 1.0
    energy: Numeric = np.nan
    memory_energy: Numeric = np.nan
    doubt: Numeric = 0.0
    relative: Accelerator | None = None

    @property
    def is_host(self) -> bool:
        """Whether this is a CPU: it runs kernels itself instead of queueing them."""
        return self.architecture.startswith("cpu")

    @property
    def is_queued(self) -> bool:
        """Whether a host queues its kernels one by one. It does not for a CPU, nor where the chip
        walks through a compiled program by itself: the core of a TPU fetches its instructions from
        a memory of its own (Norrie et al. 2021, IEEE Micro 41(2)), and every engine of a Trainium
        has a stream of instructions that is loaded before the run (Neuron executables)."""
        return not self.is_host and self.architecture not in SELF_PACED

    def host_time(self, tp: Numeric) -> Array:
        """What the host adds to an operator's kernel [s] under tensor parallelism of size `tp`;
        nothing where it queues kernels, which run meanwhile."""
        if not self.is_host:
            return np.asarray(0.0)
        split = np.maximum(self.split_dispatch, self.dispatch)
        return np.asarray(np.where(np.asarray(tp) > 1, split, self.dispatch))

    @property
    def wide(self) -> str:
        """The data type of what is not narrow: the first of `WIDE` that this multiplies."""
        return next((one for one in WIDE if one in self.peak), WIDE[0])

    def peak_for(self, dtype: str) -> Numeric:
        """Dense peak rate for a data type [FLOP/s]. Products of 16 bits that are also added up in
        16 bits run at half the rate of 8-bit integers: on GeForce cards twice as fast as those that
        are added up in 32 bits (NVIDIA's architecture white papers).

        Raises InputError where the accelerator has no such rate.
        """
        if dtype == "fp16_acc":
            return np.maximum(self.peak_for("fp16"), 0.5 * self.peak.get("int8", 0.0))
        try:
            return self.peak[dtype]
        except KeyError:
            has = ", ".join(self.peak)
            other = (
                f"choose a precision that uses one of: {has}" if has else f"state {dtype}_tflops"
            )
            raise InputError(f"{self.name} has no {dtype} rate; {other}") from None
