"""Groups on the tori of TPUs: hops along the axes, exchanges of all with all."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.hardware import torus_axes
from predictor.timing.collectives import collective_time, detour, hops, torus_hops
from predictor.work.primitives import Group

KNOWN = load("default")


def took(op: str, system: str, size: float, message: float) -> float:
    cluster = catalog.system(system)
    time, _ = collective_time(op, message, Group(size, 1.0), cluster, KNOWN)
    return float(time)


def test_pods_have_as_many_axes_as_their_generation() -> None:
    assert [torus_axes("ici", pod) for pod in (256, 1024, 4096, 8960)] == [2, 2, 3, 3]
    assert torus_axes("nvlink5", 72) == torus_axes("infiniband-ndr", np.inf) == 0


@pytest.mark.parametrize("op", ["allgather", "reducescatter", "alltoall"])
def test_hops_go_along_the_axes_and_never_around_all_ranks(op: str) -> None:
    """16 x 16 x 16 chips: half of three rings of sixteen; a torus of few is a ring."""
    assert torus_hops(op, 4096.0, 3) == pytest.approx(24.0)
    assert torus_hops(op, 256.0, 2) == pytest.approx(16.0)
    sizes = np.arange(1.0, 5000.0)
    assert (torus_hops(op, sizes, 3) <= hops(op, sizes)).all()
    assert (np.diff(torus_hops(op, sizes, 3)) >= 0).all()
    assert torus_hops(op, np.array([1.0, 2.0]), 3).tolist() == [0.0, 1.0]


def test_a_gather_of_little_hardly_waits_for_more_chips() -> None:
    """400 MB, a layer of 8B: 8,192 chips of v5p took eleven times as long as 64."""
    few, many = (took("allgather", "TPU-v5p-pod", size, 4e8) for size in (64.0, 8192.0))
    assert few < many < 1.1 * few


def test_what_all_send_to_all_crosses_a_quarter_of_each_ring() -> None:
    """16 x 16 chips: eight links on average, so that each carries eight times as much."""
    assert detour(256.0, 2) == pytest.approx(8.0)
    assert detour(4.0, 2) == 1.0
    exchanged, gathered = (took(op, "TPU-v6e-pod", 256.0, 1e9) for op in ("alltoall", "allgather"))
    assert 6.0 < exchanged / gathered < 10.0
