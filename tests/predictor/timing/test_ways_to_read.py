"""Attention, experts and small kernels that nobody timed, against other ways to do the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.timing.alternatives import FEWEST_KEYS, UNTUNED, gated, usually_held, whole_keys
from predictor.timing.kernels import operator_times, shape_times
from predictor.timing.prompts import TWICE, WAYS_SLACK, prompt_ways
from predictor.timing.shapes import Shapes, columns
from predictor.work.primitives import Operator, grouped

KNOWN = load("default")


def prompt(
    query: float = 2048.0,
    heads: float = 16.0,
    keyed: float = 8.0,
    size: float = 128.0,
    window: float = np.inf,
    variant: str = "flash",
    **more: Any,
) -> Shapes:
    """A causal prompt without cached keys, whose cache has 16 bits a number, or 8 (`kv8`)."""
    one, keys = np.ones(1), min(window, query)
    seen = 0.5 * query if window >= query else window - 0.5 * window**2 / query
    stored = 1.0 if variant == "kv8" else 2.0
    moved = 2.0 * query * size * (2.0 * heads + stored * keyed)
    return Shapes(
        op="attention_prefill", dtype=more.pop("dtype", "bf16"), variants=(variant,),
        variant=0 * one, m=query * one, n=keys * one, k=size * one, batch=heads * one,
        flop=4.0 * heads * query * size * seen * one, bytes=moved * one,
        idle=(query / keys - 1.0) * one, windowed=float(window < np.inf) * one,
        sharing=heads / keyed * one,
    )  # fmt: skip


def took(shapes: Shapes, name: str, library: str = "") -> float:
    return float(shape_times(shapes, catalog.accelerator(name), KNOWN, library=library)[0][0])


def test_heads_between_timed_ones_take_no_longer_than_the_next() -> None:
    """Heads of 192 over a cache of 8 bits took 17 times as long as heads of 256."""
    few, more = (
        took(prompt(8192.0, size=size, variant="kv8"), "B200-SXM-180GB", "vllm")
        for size in (192.0, 256.0)
    )
    assert 0.5 * more < few <= WAYS_SLACK * more


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "B200-SXM-180GB", "Trainium2-96GB"])
def test_a_window_takes_no_longer_than_a_mask_over_all_keys(name: str) -> None:
    """1,024 keys took twelve times as long as all of 2,000 (heads of 256 in fp8 on H100)."""
    windowed, full = (
        took(prompt(2000.0, 16.0 * 16, 8.0 * 16, 256.0, window, dtype="fp8"), name)
        for window in (1024.0, np.inf)
    )
    assert windowed <= WAYS_SLACK * full


def test_large_heads_take_no_longer_than_their_halves_where_nobody_timed_any() -> None:
    for name in ("MI455X-432GB", "TPUv8t", "Gaudi3-128GB"):
        whole = took(prompt(8192.0, 16.0, 8.0, 256.0), name)
        halves = took(prompt(8192.0, 32.0, 16.0, 128.0), name)
        assert whole <= WAYS_SLACK * TWICE * halves * 1.001, name


def test_ways_do_the_same_work_and_no_less() -> None:
    shapes = prompt(100.0, 16.0, 4.0, 96.0, 64.0)
    ((other, times, where),) = prompt_ways(shapes, np.array([True]))
    assert (times, bool(where[0])) == (WAYS_SLACK, True)
    assert (float(other.m[0]), float(other.k[0]), float(other.n[0])) == (128.0, 128.0, 128.0)
    assert float(np.asarray(other.windowed)[0]) == float(np.asarray(other.idle)[0]) == 0.0
    seen = float(other.flop[0]) / (4.0 * 128 * 128 * 16)
    assert seen == pytest.approx(50.0)  # of 100 keys half, as without a window
    assert other.bytes[0] > shapes.bytes[0]


def test_whole_tiles_of_usual_heads_are_left_alone() -> None:
    assert not list(prompt_ways(prompt(4096.0), np.array([True])))
    assert not list(prompt_ways(prompt(4096.0, size=256.0), np.array([False])))
    assert not list(prompt_ways(prompt(100.0, variant="flash2"), np.array([True])))
    ((half, times, where),) = prompt_ways(prompt(4096.0, size=256.0), np.array([True]))
    assert (half.k[0], half.batch[0], times) == (128.0, 32.0, WAYS_SLACK * TWICE)
    assert where.all()


def cache(keys: float, batch: float) -> Shapes:
    """Decoding with 32 heads of 96 elements, each with keys of its own."""
    one = np.ones(1)
    return Shapes(
        op="attention_decode", dtype="bf16", variants=("",), variant=0 * one, m=one, n=keys * one,
        k=96.0 * one, batch=32.0 * batch * one, flop=4.0 * 32 * batch * keys * 96.0 * one,
        bytes=4.0 * 32 * batch * (keys + 1) * 96.0 * one, idle=0 * one, cold=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["MI355X-288GB", "MI300X-192GB", "R100-288GB"])
def test_fewer_keys_than_a_tile_take_no_longer(name: str) -> None:
    """16 of 512 sequences took ten times as long as 64 on MI355X."""
    few, some, whole = (took(cache(keys, 512.0), name) for keys in (16.0, 64.0, FEWEST_KEYS))
    assert max(few, some) <= 1.001 * whole


def test_whole_caches_are_left_alone() -> None:
    assert whole_keys(cache(FEWEST_KEYS, 4.0)) is None
    found = whole_keys(cache(32.0, 4.0))
    assert found is not None
    assert (found.n[0], found.idle[0]) == (FEWEST_KEYS, 0.0)
    assert found.flop[0] == cache(FEWEST_KEYS, 4.0).flop[0]


def test_experts_of_two_matrices_take_no_longer_than_twice_gated_ones() -> None:
    """5.9 times on L40S (two of Mixtral's experts, divided by eight)."""
    device, one = catalog.accelerator("L40S-48GB"), np.array([257.0, 700.0])
    two, three = (
        operator_times(
            [grouped("x", "moe", "fp8", one, 1792.0, 4096.0, 2.0, gated=gate, size=2.0)],
            device, KNOWN, (2,), library="vllm",
        ).time[0]
        for gate in (False, True)
    )  # fmt: skip
    assert (two <= 1.001 * UNTUNED * three).all()


def test_a_gate_is_a_third_matrix() -> None:
    parts = [
        columns([grouped("x", "moe", "fp8", 8.0, 64.0, 32.0, 4.0, gated=gate, size=2.0)], ())
        for gate in (False, True)
    ]
    found = gated(parts[0])
    assert found is not None
    assert (found.flop[0], found.bytes[0]) == (parts[1].flop[0], parts[1].bytes[0])
    assert gated(parts[1]) is None


def loss(rows: float, columns: float, dtype: str = "bf16") -> Operator:
    moved = 6.0 * rows * columns
    return Operator(
        "x", "loss", "fwd", phase="forward", module="head", dtype=dtype, m=rows, n=columns,
        bytes=moved,
    )  # fmt: skip


def lost(name: str) -> float:
    """Time of a loss over 4,096 rows of 8,192 elements, of what its bytes take."""
    device = catalog.accelerator(name)
    one = loss(4096.0, 8192.0, device.wide)
    time = float(operator_times([one], device, KNOWN, ()).time[0])
    return time * float(device.bandwidth) / float(np.asarray(one.bytes))


def test_large_caches_make_no_small_kernels_of_large_ones() -> None:
    """200 MB took 72 times what they take from memory, with 192 MB of cache; 6 on an A100."""
    usual = lost("A100-SXM4-80GB")
    for name in ("Ascend-910B1-64GB", "PVC-Max1550-128GB", "RTX-4090-24GB"):
        assert lost(name) < 3.0 * usual, name


def test_caches_that_are_soon_full_are_left_alone() -> None:
    one = loss(64.0, 64.0)
    assert usually_held(columns([one], ()), catalog.accelerator("A100-SXM4-80GB")) is None
    found = usually_held(columns([one], ()), catalog.accelerator("RTX-4090-24GB"))
    assert found is not None
    product = replace(columns([one], ()), op="gemm")
    assert usually_held(product, catalog.accelerator("RTX-4090-24GB")) is None
