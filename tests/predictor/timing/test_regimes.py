"""Short prompts, cached keys, windows, experts of two matrices, gradients at odd sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog import load
from predictor.plans import ServingPlan
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing import Shapes, ideal, operator_times, shape_times
from predictor.work.serving import decode_attention, prefill_attention

KERNELS = load("kernels-only")
H100 = catalog.accelerator("H100-SXM5-80GB")
LLAMA = catalog.model("llama3-8b")
GPT_OSS = catalog.model("gpt-oss-20b")
PLAN = ServingPlan(batch=8.0, input_len=512.0, output_len=64.0)


def prompt(query: float, past: float) -> float:
    """Time of attention of one layer of Llama-3 8B [s]."""
    found = prefill_attention(LLAMA, PLAN, 1.0, query, past)
    return float(operator_times(found, H100, KERNELS, ()).time.sum())


@given(st.sampled_from([16.0, 64.0, 200.0, 512.0, 2048.0]), st.sampled_from([512.0, 4096.0]))
def test_more_cached_keys_take_longer(query: float, past: float) -> None:
    assert prompt(query, 4.0 * past) > prompt(query, past) > 0.9 * prompt(query, 0.0)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "RTX-PRO-6000-96GB"])
@pytest.mark.parametrize("chunk", [64.0, 256.0])
def test_few_queries_walk_over_all_keys(name: str, chunk: float) -> None:
    """A block of a processor multiplies its rows with every key, one after the other: no chunk is
    faster than one processor's arithmetic on 64 rows and the keys behind it."""
    device = catalog.accelerator(name)
    past = 32768.0
    (operator,) = prefill_attention(LLAMA, replace(PLAN, tp=8.0), 1.0, chunk, past)
    found = operator_times([operator], device, KERNELS, ()).time[0]
    walk = 4.0 * 64 * past * 128 / (device.peak["bf16"] / device.sms)
    assert found > walk


def test_the_chunks_of_a_prompt_take_no_less_than_the_prompt_at_once() -> None:
    whole = prompt(8192.0, 0.0)
    parts = sum(prompt(1024.0, 1024.0 * i) for i in range(8))
    assert 0.9 * whole < parts < 3.0 * whole


def test_prompts_over_a_narrow_cache_are_a_kernel_of_their_own() -> None:
    (wide,) = prefill_attention(LLAMA, PLAN, 1.0, 512.0)
    (narrow,) = prefill_attention(LLAMA, replace(PLAN, kv="fp8"), 1.0, 512.0)
    assert (wide.variant, narrow.variant) == ("flash", "kv8")
    assert narrow.sharing == wide.sharing == LLAMA.heads / LLAMA.kv_heads
    # Keys and values of 8 heads of 128, one byte instead of two.
    assert wide.bytes - narrow.bytes == pytest.approx(512 * 2 * 8 * 128)
    assert narrow.flop == wide.flop


def test_a_window_is_a_kernel_of_its_own_even_where_it_does_not_bind() -> None:
    short = {o.name: o for o in decode_attention(GPT_OSS, PLAN, 4.0, 100.0)}
    long_ = {o.name: o for o in decode_attention(GPT_OSS, PLAN, 4.0, 4000.0)}
    window = float(GPT_OSS.sliding_window)
    assert short["attention.window"].windowed == long_["attention.window"].windowed == 1.0
    assert short["attention"].windowed == 0.0
    assert short["attention.window"].idle == 0.0
    assert long_["attention.window"].n == window
    assert long_["attention.window"].idle == pytest.approx(4000.0 / window - 1.0)


def experts(matrices: float) -> Shapes:
    m, n, k, hit = (np.array([x]) for x in (32.0, 1024.0, 2048.0, 8.0))
    flop = 2.0 * matrices * m * n * k * hit
    moved = (matrices * 2.0 * n * k + 4.0 * m * k) * hit
    return Shapes(
        op="moe_gemm", dtype="bf16", variants=("fwd",), variant=0 * m, m=m, n=n, k=k, batch=hit,
        flop=flop, bytes=moved,
    )  # fmt: skip


def test_experts_of_two_matrices_read_two() -> None:
    two, three = (ideal(experts(count), H100) for count in (2.0, 3.0))
    assert two.time[0] / three.time[0] == pytest.approx(2.0 / 3.0, rel=0.02)


SIZES = np.array([2048.0, 2150.4, 2200.0, 3001.0, 4096.5, 8192.0])
"""Tokens of an expert: whole, uneven, and means of several."""


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_three_products_of_a_layer_take_alike_on_every_accelerator(dtype: str) -> None:
    """The same arithmetic: within three of each other from 2,048 tokens on, and smooth in them."""
    h, f = 4096.0, 14336.0

    tokens = np.arange(2048.0, 2112.0)
    sizes = ((SIZES, f, h), (SIZES, h, f), (f, h, SIZES), (f, h, tokens))
    m, n, k = (
        np.concatenate(each)
        for each in zip(*(np.broadcast_arrays(*one) for one in sizes), strict=True)
    )
    moved = ELEMENT_BYTES[dtype] * m * k + WEIGHT_BYTES[dtype] * k * n + 2.0 * m * n
    shapes = Shapes(
        op="gemm", dtype=dtype, variants=("fwd", "dgrad", "wgrad"),
        variant=np.repeat([0.0, 1.0, 2.0], [len(SIZES), len(SIZES), len(SIZES) + len(tokens)]),
        m=m, n=n, k=k, batch=0 * m + 1, flop=2 * m * n * k, bytes=moved,
    )  # fmt: skip
    for name, row in catalog.rows("accelerators").items():
        if not row.get(f"{dtype}_tflops") or catalog.accelerator(name).architecture == "pascal":
            continue
        time = shape_times(shapes, catalog.accelerator(name), KERNELS)[0]
        three = time[: -len(tokens)].reshape(3, len(SIZES))
        assert (three.max(axis=0) / three.min(axis=0)).max() < 3.0, name
        assert np.abs(np.diff(np.log(time[-len(tokens) :]))).max() < 0.2, name
