"""A world in which everything takes a quarter of its time: machines, links, kernels' latencies and
hosts. What is predicted of it follows from dimensions alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from predictor.hardware import Accelerator, Cluster, Tier
from predictor.schema import COLLECTIVE_OPS
from predictor.timing import Calibration, EngineParameters, ServingParameters
from predictor.timing.defaults import DEFAULTS

QUICKER = 4.0
"""Times as fast; a power of four, of which the square root is exact too."""

RATES = (
    "bandwidth", "l2_bandwidth", "clock", "host_bandwidth", "power", "register_bandwidth",
    "shared_bandwidth",
)  # fmt: skip
TIMES = ("dispatch", "split_dispatch")
HOST = ("gap", "launch", "step", "sequence", "request")


def quicker_accelerator(one: Accelerator) -> Accelerator:
    return replace(
        one,
        peak={name: rate * QUICKER for name, rate in one.peak.items()},
        **{name: getattr(one, name) * QUICKER for name in RATES},
        **{name: getattr(one, name) / QUICKER for name in TIMES},
    )


def quicker_tier(one: Tier) -> Tier:
    return replace(one, bandwidth=one.bandwidth * QUICKER, latency=one.latency / QUICKER)


def quicker_cluster(one: Cluster) -> Cluster:
    return replace(
        one,
        accelerator=quicker_accelerator(one.accelerator),
        tiers=tuple(map(quicker_tier, one.tiers)),
        prefill=None if one.prefill is None else quicker_cluster(one.prefill),
    )


def quicker_engine(one: EngineParameters) -> EngineParameters:
    return replace(one, **{name: getattr(one, name) / QUICKER for name in HOST})


def quicker_kernels(one: EngineParameters) -> EngineParameters:
    """An engine whose kernels, collectives and host all take a quarter, on the same machine."""
    names = (*HOST, "decode", "prefill", "communication")
    return replace(one, **{name: getattr(one, name) / QUICKER for name in names})


def quicker_calibration(one: Calibration, cluster: Cluster) -> Calibration:
    """An uncalibrated one whose links, launches and engines are as much faster."""
    links = {}
    for op in COLLECTIVE_OPS:
        for tier in cluster.tiers:
            own = one.link(op, tier.link)
            links[op, tier.link] = replace(
                own,
                base=own.base / QUICKER,
                hop=own.hop / QUICKER,
                root=own.root / np.sqrt(QUICKER),
                clock=own.clock * QUICKER,
            )
    run = replace(one.run, host_per_kernel=one.run.host_per_kernel / QUICKER)
    engine = quicker_engine(one.serving.of("neutral", "neutral"))
    return replace(one, links=links, run=run, serving=ServingParameters({"neutral": engine}))


@contextmanager
def quicker_latencies() -> Iterator[None]:
    """Kernels that were never measured start and end in a quarter of the time."""
    quick = {op: replace(one, latency=one.latency / QUICKER) for op, one in DEFAULTS.items()}
    with patch.dict(DEFAULTS, quick):
        yield


@contextmanager
def quicker_constants(*names: str) -> Iterator[None]:
    """Constants in seconds are a quarter of what they are, those in 1/s four times:
    'module.NAME', or 'module.NAME*' for a rate."""
    with ExitStack() as stack:
        for name in names:
            place = f"predictor.{name.rstrip('*')}"
            module, _, word = place.rpartition(".")
            value = getattr(__import__(module, fromlist=["_"]), word)
            factor = QUICKER if name.endswith("*") else 1.0 / QUICKER
            stack.enter_context(patch(place, value * factor))
        yield
