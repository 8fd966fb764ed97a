"""The hierarchical roofline: bytes by hand, and the laws of a roofline."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.catalog import technology as tech
from predictor.catalog.artifacts import load
from predictor.hardware.accelerators import Accelerator
from predictor.timing.features import ideal
from predictor.timing.kernels import shape_times
from predictor.timing.roofline import LEVELS, hierarchy, least_time
from predictor.timing.shapes import Shapes


def shapes(m: float, n: float, k: float, dtype: str = "bf16") -> Shapes:
    m, n, k = (np.array([value], float) for value in (m, n, k))
    moved = 2 * (m * k + k * n + m * n)
    return Shapes(
        op="gemm", dtype=dtype, variants=("fwd",), variant=np.zeros(1), m=m, n=n, k=k,
        batch=np.ones(1), flop=2 * m * n * k, bytes=moved,
    )  # fmt: skip


def h100(**keys: object) -> Accelerator:
    given = {"node": "N5", "area_mm2": 814, "memory": "HBM3", "stacks": 5, **keys}
    return tech.machine(tech.budget(given)).accelerator


def test_bytes_of_every_level_by_hand() -> None:
    machine = h100()
    found = hierarchy(shapes(8192, 8192, 8192), machine)
    rows, columns = found.tile[:, 0]
    # Two blocks share a load: 2 k (1 / (2 rows) + 1 / columns) bytes per output.
    reads = 2 * 8192**3 * (1 / (2 * rows) + 1 / columns) + 2 * 8192**2
    assert found.times[3, 0] == pytest.approx(reads / machine.l2_bandwidth)
    # Hopper's instruction yields 64 x 256: it reads 2 k (1/64 + 1/256) bytes per output.
    shared = 2 * 8192**3 * (1 / 64 + 1 / 256) + 2 * 8192**2
    assert found.times[2, 0] == pytest.approx(shared / machine.shared_bandwidth)


def test_large_products_compute_and_single_rows_read_weights() -> None:
    machine = h100()
    assert hierarchy(shapes(8192, 8192, 8192), machine).names == ["compute"]
    decode = hierarchy(shapes(1, 8192, 8192), machine)
    assert decode.names == ["memory"]
    assert decode.time[0] == pytest.approx(2 * (8192**2 + 2 * 8192) / machine.bandwidth, rel=1e-3)


@pytest.mark.parametrize("m", [1.0, 17.0, 64.0, 500.0])
@pytest.mark.parametrize("n", [8.0, 100.0, 4096.0])
def test_whole_tiles_in_whole_rounds_never_compute_faster_than_the_peak(m: float, n: float) -> None:
    """A product of one tile takes as long as a round of tiles on every processor."""
    machine = h100()
    found = hierarchy(shapes(m, n, 1024.0), machine)
    rows, columns = found.tile[:, 0]
    rounds = np.ceil(np.ceil(m / rows) * np.ceil(n / columns) / machine.sms)
    peak = 2.0 * m * n * 1024.0 / machine.peak["bf16"]
    assert found.times[0, 0] >= peak * rounds * machine.sms * rows * columns / (m * n) * (1 - 1e-9)
    assert rounds >= 1.0


@pytest.mark.parametrize("level", range(1, len(LEVELS)))
def test_a_starved_level_binds(level: int) -> None:
    machine = h100()
    name = ("", "register_bandwidth", "shared_bandwidth", "l2_bandwidth", "bandwidth")[level]
    starved = replace(machine, **{name: getattr(machine, name) / 1000})
    found = hierarchy(shapes(8192, 8192, 8192), starved)
    assert found.names == [LEVELS[level]]
    assert found.time[0] > hierarchy(shapes(8192, 8192, 8192), machine).time[0]


def test_tiles_fit_the_processor() -> None:
    small = replace(h100(), registers=32 * 1024.0, shared=16 * 1024.0)
    rows, columns = hierarchy(shapes(4096, 4096, 4096), small).tile[:, 0]
    assert 4 * rows * columns <= small.registers
    assert 2 * 32 * 2 * (rows + columns) <= small.shared


def test_a_machine_like_its_relative_takes_as_long() -> None:
    known, real = load("default"), tech.relative(tech.processor("hopper"))
    twin = replace(real, relative=real, doubt=0.2)
    rows = shapes(4096, 8192, 8192)
    time, sigma, *_ = shape_times(rows, twin, known)
    own, narrower, *_ = shape_times(rows, real, known)
    assert time == pytest.approx(own)
    assert sigma == pytest.approx(np.hypot(narrower, 0.2))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["bandwidth", "l2_bandwidth", "shared_bandwidth", "register_bandwidth", "l2"]),
    st.floats(1.0, 8.0),
    st.integers(1, 16384),
    st.integers(64, 16384),
)
def test_more_of_any_level_never_slows(field: str, more: float, m: int, n: int) -> None:
    known, machine = load("default"), h100()
    better = replace(machine, **{field: getattr(machine, field) * more})
    slow, fast = (shape_times(shapes(m, n, 4096), one, known)[0] for one in (machine, better))
    assert fast <= slow * (1 + 1e-12)


def test_the_least_time_of_a_product_is_of_all_levels_that_are_known() -> None:
    """Else arithmetic, memory, and the cache that all of it goes through."""
    machine, own = h100(), shapes(500, 300, 9000)
    assert least_time(own, machine) == hierarchy(own, machine).time
    unknown = replace(machine, shared_bandwidth=np.nan)
    usual = np.maximum(ideal(own, unknown).time, own.bytes / machine.l2_bandwidth)
    assert least_time(own, unknown) == pytest.approx(usual)
    starved = replace(machine, shared_bandwidth=machine.shared_bandwidth / 1e3)
    assert least_time(own, starved) > 10 * least_time(own, machine)
    stream = replace(own, op="elementwise")
    assert least_time(stream, starved) == least_time(stream, machine)
