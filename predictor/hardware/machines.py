"""What computes: accelerators, and the network between them as a list of tiers.

Everything is in SI: FLOP/s, bytes, bytes/s, seconds, watts. Numeric fields are floats or arrays
of one broadcast shape, so that a sweep over machines is one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.errors import InputError

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
    dispatch       host time of an eager operator beside its kernel, where the host is the device
                   itself and both add up: modules, views, PyTorch's dispatcher, autograd [s]
    split_dispatch  the same on tensors that PyTorch divides among tensor-parallel ranks [s]
    registers, shared   of one processor [bytes]; NaN where unknown
    register_bandwidth, shared_bandwidth   of all processors [bytes/s]
    instruction    rows and columns of the output of one matrix instruction
    cluster        thread blocks that load an operand from the cache once for all of them
    energy         per 16-bit FLOP of sustained products [J]; NaN: by the width of the matrix unit
                   (`features.power_limit`)
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
    doubt: Numeric = 0.0
    relative: Accelerator | None = None

    @property
    def varying(self) -> list[Array]:
        """Its numbers that are arrays; none for a single machine."""
        every = [getattr(self, name) for name in _numbers(self)]
        return [
            value
            for value in (*every, *self.peak.values())
            if isinstance(value, np.ndarray) and value.ndim
        ]

    @property
    def is_host(self) -> bool:
        """Whether this is a CPU: it runs kernels itself instead of queueing them."""
        return self.architecture.startswith("cpu")

    def host_time(self, tp: Numeric) -> Array:
        """Host time of an operator [s] under tensor parallelism of size `tp`."""
        split = np.maximum(self.split_dispatch, self.dispatch)
        return np.asarray(np.where(np.asarray(tp) > 1, split, self.dispatch))

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
    """Accelerators of one kind behind a tiered network (innermost tier first).

    host_memory   of a node [bytes]; NaN: not known
    """

    name: str
    accelerator: Accelerator
    accelerators_per_node: int
    tiers: tuple[Tier, ...]
    host_memory: float = np.nan

    @property
    def varying(self) -> list[Array]:
        """Numbers of accelerators and tiers that are arrays; none for a single machine."""
        found = self.accelerator.varying
        for tier in self.tiers:
            found += [value for name in _numbers(tier) if np.ndim(value := getattr(tier, name))]
        return found


M = TypeVar("M", Accelerator, Tier)

NUMBERS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(one.name for one in fields(kind) if str(one.type) == "Numeric")
    for kind in (Accelerator, Tier)
}
"""Fields of a machine that are numbers."""


def _numbers(machine: Accelerator | Tier) -> tuple[str, ...]:
    return NUMBERS[type(machine)]


def _each(machine: M, change: Any) -> M:
    """The same with `change` applied to every number that is an array."""
    found: dict[str, Any] = {
        name: change(value)
        for name in _numbers(machine)
        if np.ndim(value := getattr(machine, name))
    }
    if isinstance(machine, Accelerator):
        found["peak"] = {
            dtype: change(rate) if np.ndim(rate) else rate for dtype, rate in machine.peak.items()
        }
    return replace(machine, **found) if found else machine


def accelerators_at(
    machine: Accelerator, shape: tuple[int, ...], index: npt.NDArray[np.intp]
) -> Accelerator:
    """Accelerators at `index` of a batch flattened from `shape`."""
    if not machine.varying:
        return machine
    return _each(machine, lambda value: np.broadcast_to(value, shape).ravel()[index])


def clusters_at(cluster: Cluster, shape: tuple[int, ...], index: npt.NDArray[np.intp]) -> Cluster:
    """Clusters at `index` of a batch flattened from `shape`."""
    if not cluster.varying:
        return cluster
    chosen = tuple(
        _each(tier, lambda value: np.broadcast_to(value, shape).ravel()[index])
        for tier in cluster.tiers
    )
    machine = accelerators_at(cluster.accelerator, shape, index)
    return replace(cluster, accelerator=machine, tiers=chosen)


def batch_shape(cluster: Cluster, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a batch of plans of `shape` on a batch of machines."""
    return np.broadcast_shapes(shape, *(np.shape(value) for value in cluster.varying))


def repeated(machine: Accelerator, shape: tuple[int, ...], times: int) -> Accelerator:
    """Accelerators of a batch of `shape` once for each of `times` operators, flattened."""
    if not machine.varying:
        return machine
    return _each(machine, lambda value: np.tile(np.broadcast_to(value, shape).ravel(), times))
