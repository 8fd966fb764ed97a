"""Decoding over a cache, and other ways to do what a kernel does: by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import Numeric
from predictor.catalog import load
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing.alternatives import (
    BUSY,
    CAST_BANDWIDTH,
    SLACK,
    TOGETHER,
    VECTOR,
    WIDENED_ROWS,
    WIDENING,
    answering,
    as_kept,
    other_ways,
    padded,
    together,
    whole_rows,
    whole_shares,
    widens,
    wider_cache,
    without_cast,
)
from predictor.timing.attention import (
    ATTENTION_TILE,
    EXPONENTIALS,
    LEAST_TILE,
    STEADY,
    USUAL_EXPONENTIALS,
    attention,
    decode,
)
from predictor.timing.calibration import EMPTY_KERNEL
from predictor.timing.features import ideal
from predictor.timing.kernels import shape_times
from predictor.timing.shapes import LONG_KERNEL, Shapes
from predictor.work import Operator
from tests.predictor.timing.test_laws_timing import L2, L2_RATE, PEAK, RATE, SMS

DEVICE = Accelerator(
    name="device", architecture="none", peak={"bf16": PEAK, "fp8": 2 * PEAK, "fp32": PEAK / 10},
    memory=4e10, bandwidth=RATE, l2=L2, l2_bandwidth=L2_RATE, sms=SMS, clock=1.5e9,
)  # fmt: skip


def shapes(op: str, dtype: str, m: float, n: float, k: float, batch: float = 1.0,
           **more: object) -> Shapes:  # fmt: skip
    """Products of m x k by k x n, inputs and outputs in 16 bits; of experts, three of each."""
    matrices = 3.0 if op == "moe_gemm" else 1.0
    flop = 2.0 * m * n * k * batch * matrices
    inner = m * (k + (matrices - 1.0) * n) if op == "moe_gemm" else m * k
    moved = WEIGHT_BYTES[dtype] * matrices * k * n + ELEMENT_BYTES[dtype] * inner + 2.0 * m * n
    columns = (np.array([value], float) for value in (m, n, k, batch, flop, moved * batch))
    return Shapes(op, dtype, ("fwd",), np.zeros(1), *columns, **more)  # type: ignore[arg-type]


def cache(heads: float, keys: Numeric, sequences: float, **more: object) -> Shapes:
    """New tokens of `heads` query heads to a key head of 96, over caches in 16 bits."""
    flop, moved = 4.0 * heads * keys * 96 * sequences, 4.0 * keys * 96 * sequences
    columns = np.broadcast_arrays(
        *(np.atleast_1d(v).astype(float) for v in (heads, keys, 96.0, sequences, flop, moved))
    )
    return Shapes("attention_decode", "bf16", ("x",), 0.0 * columns[0], *columns,
                  **more)  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "keys", "sequences", "idle", "windowed"),
    [(4, 3000, 100, 0.0, 0.0), (200, 5, 3, 0.5, 1.0), (1, 100000, 9, 2.0, 1.0), (7, 900, 40, 0, 0)],
)
def test_decoding_by_hand(
    heads: int, keys: int, sequences: int, idle: float, windowed: float
) -> None:
    own = cache(heads, keys, sequences, idle=idle, windowed=windowed, cold=1.0)
    found = decode(own, DEVICE)
    moved, flop = float(own.bytes[0]), float(own.flop[0])
    held = min(moved, L2)
    floor = held / L2_RATE + (moved - held) / RATE
    time = max(flop / PEAK, floor)
    assert float(found.time[0]) == pytest.approx(time)
    assert float(found.compute[0]) == pytest.approx(flop / PEAK)
    assert float(found.memory[0]) == pytest.approx(moved / RATE)
    # Of a cache up to two thirds of the last level stays all, of one twice as large nothing; what
    # stays in a benchmark comes from memory in a model.
    stay = min(max(2.0 - 1.5 * moved / L2, 0.0), 1.0)
    apart = moved * stay * (1 / RATE - 1 / L2_RATE)
    assert float(np.asarray(found.fetch)[0]) == pytest.approx(apart)
    log = math.log
    expected = [
        min(max(log(flop / PEAK / floor), -6), 6),
        log(min(time, 5e-3) / 1e-6),
        min(max(log(sequences / SMS), -6), 4),
        min(max(log(sequences * keys / (256 * SMS)), -6), 6),
        log(min(max(keys, 16), 65536)),
        log(min(heads, 128)),
        log(96 / 128),
        1 / (1 + moved / L2),
        math.log1p(idle),
        windowed,
        windowed * log(min(max(keys * (1 + idle), 16), 131072)),
        log(min(max(keys * (1 + idle), 16), 131072)),
        1 / (1 + 4 * moved / L2),
        sequences / (math.ceil(sequences / SMS) * SMS),
    ]
    assert found.features[0].tolist() == pytest.approx(expected)


def test_no_cache_comes_faster_than_memory_delivers_it() -> None:
    """Whole catalog, caches from a tenth of the last level to nine times: other layers have been
    there since the last token, so that all of it comes from memory."""
    kernels = load("kernels-only")
    for name in catalog.rows("accelerators"):
        one = catalog.accelerator(name)
        if one.is_host or "bf16" not in one.peak:
            continue
        shares = np.array([0.1, 0.6, 0.9, 1.2, 1.34, 1.6, 3.0, 9.0])
        keys = shares * float(np.nan_to_num(one.l2, nan=4e7)) / (4.0 * 96 * 64)
        shapes = cache(4, np.maximum(keys, 16.0), 64, cold=1.0)
        took = shape_times(shapes, one, kernels)[0]
        assert (took > shapes.bytes / one.bandwidth).all(), name


def test_what_benchmarks_find_near_is_theirs() -> None:
    assert float(np.asarray(decode(cache(4, 300, 9), DEVICE).fetch).max()) == 0.0
    # A cache as quick as memory fetches nothing on top, a slower one neither.
    for rate in (RATE, RATE / 2):
        slow = decode(cache(4, 300, 9, cold=1.0), replace(DEVICE, l2_bandwidth=rate))
        assert float(np.asarray(slow.fetch).max()) == 0.0


def test_hosts_measured_caches_both_near_and_far() -> None:
    """What comes from memory takes its bandwidth, what is near the cache's; nothing on top."""
    host = replace(DEVICE, architecture="cpu-x")
    far, near = (decode(cache(4, 300, 9, cold=cold), host) for cold in (1.0, 0.0))
    moved = 4 * 300 * 96 * 9
    assert float(far.time[0]) == pytest.approx(moved / RATE)
    assert float(near.time[0]) == pytest.approx(moved / L2_RATE)
    assert float(np.asarray(far.fetch).max()) == 0.0


def prompt(rows: float, keys: float, heads: float, op: str = "attention_prefill",
           size: float = 96.0, **more: object) -> Shapes:  # fmt: skip
    steps = 2.5 if op == "attention_backward" else 1.0
    flop, moved = 4.0 * rows * keys * size * heads * steps, 4.0 * (rows + keys) * size * heads
    columns = (np.array([v], float) for v in (rows, keys, size, heads, flop, moved))
    return Shapes(op, "bf16", ("x",), np.zeros(1), *columns, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "sharing", "size"),
    [
        (700, 2048, 32, 4, 96),
        (100, 30000, 96, 8, 128),
        (5000, 5000, 200, 1, 60),
        (9, 40, 7, 7, 256),
    ],
)
@pytest.mark.parametrize("traffic", [1.0, 1e4])
def test_prompts_by_hand(
    op: str, rows: int, keys: int, heads: int, sharing: int, size: int, traffic: float
) -> None:
    """Blocks of 64 or 128 rows of a head, or of all heads that share keys, in whole waves; each
    walks over the keys that it sees at four FLOP for each of a head's channels."""
    own = prompt(rows, keys, heads, op, size, sharing=float(sharing), idle=0.25, windowed=1.0)
    own = replace(own, bytes=own.bytes * traffic)
    found = attention(own, DEVICE)
    flop, moved = float(own.flop[0]), float(own.bytes[0])
    held = min(moved, L2)
    floor = held / L2_RATE + (moved - held) / RATE
    steps = 2.5 if op == "attention_backward" else 1.0
    walks = []
    for m, many in ((rows, heads), (rows * sharing, heads / sharing)):
        for tile in (64, 128):
            waves = math.ceil(math.ceil(m / tile) * many / SMS)
            walks.append(steps * waves * tile * keys * 4 * size / (PEAK / SMS))
    time = max(flop / PEAK, floor, min(walks))
    assert float(found.time[0]) == pytest.approx(time)
    assert float(found.compute[0]) == pytest.approx(flop / PEAK)
    assert float(found.memory[0]) == pytest.approx(moved / RATE)
    scores = flop / (4 * size)
    blocks = math.ceil(rows / 128) * heads
    packed = math.ceil(rows * sharing / 128) * heads / sharing
    waves, fewer = math.ceil(blocks / SMS), math.ceil(packed / SMS)
    steady, log = min(keys, 8192), math.log
    expected = [
        min(max(log(flop / PEAK / floor * steady / keys), -6), 6),
        log(min(time, 5e-3) / 1e-6),
        min(max(log(scores / (16 * SMS * 1.5e9) / time), -4), 2),
        min(log(waves), 4), blocks / (waves * SMS),
        min(log(fewer), 4), packed / (fewer * SMS),
        log(steady), log(size / 128), log(math.ceil(size / 32) * 32 / size), float(size % 8 == 0),
        math.log1p(0.25), 1.0, math.log1p(0.5 * min(rows, 128) / steady),
        min(max(log(heads / SMS), -6), 4), min(max(log(heads / sharing / SMS), -6), 4),
        log(sharing), *(min(max(log(walk / time), -2), 4) for walk in walks),
    ]  # fmt: skip
    assert found.features[0].tolist() == pytest.approx(expected)


def test_constants_of_attention_are_those_of_its_kernels() -> None:
    """FlashAttention-2's blocks have 128 rows or 64; the CUDA programming guide has 16 exponentials
    per clock, Blackwell Ultra twice as many."""
    assert (ATTENTION_TILE, LEAST_TILE) == (128, 64)
    assert (USUAL_EXPONENTIALS, EXPONENTIALS) == (16.0, {"blackwell-ultra": 32.0})
    ultra = replace(DEVICE, architecture="blackwell-ultra")
    one, other = (attention(prompt(512, 512, 64), own).features[0, 2] for own in (DEVICE, ultra))
    assert one - other == pytest.approx(math.log(2.0))
    assert (STEADY, LONG_KERNEL) == (8192, 5e-3), "features that shipped fits were made with"


def test_how_long_kernels_take_shows_up_to_where_their_start_and_end_no_longer_do() -> None:
    """5 ms of each of a mixture's four passes; of others 5 ms."""
    long = shapes("moe_gemm", "bf16", 5e4, 8192, 8192, 8), shapes("gemm", "bf16", 5e4, 3e4, 3e4)
    for one, most in zip(long, (20e-3, 5e-3), strict=True):
        found = ideal(one, DEVICE)
        assert float(found.time[0]) > most
        assert found.features[0, 1] == pytest.approx(math.log(most / 1e-6))


def test_constants_of_other_ways_are_what_was_measured() -> None:
    """Casts of many elements reach .75 to .87 of the bandwidth (aiconfigurator); a shift, a mask, a
    conversion and a scale widen a weight; A100 has 312 TFLOP/s in 16 bits and 19.5 beside them."""
    assert 0.75 <= CAST_BANDWIDTH <= 0.87
    assert (WIDENING, WIDENED_ROWS) == (4.0, 128.0)
    assert pytest.approx(312 / 19.5) == VECTOR
    assert SLACK == 3.0
    assert 0.45 <= BUSY <= 0.55
    assert TOGETHER == 16.0


def test_narrow_weights_are_widened_before_or_within_a_product() -> None:
    """Before, by a copy of its own; within, on the other units, again for every 128 rows."""
    one = shapes("gemm", "int4_wo", 64, 4096, 2048)
    found = other_ways(one, DEVICE)
    assert found is not None
    plain, beside = found
    weights = 4096 * 2048
    before = EMPTY_KERNEL + (0.5156 + 2) * weights / (0.8 * RATE)
    within = 4 * weights / (PEAK / 10)
    assert float(beside[0]) == pytest.approx(min(before, within))
    assert within < before
    assert plain.dtype == "bf16"
    assert float(plain.bytes[0]) == pytest.approx(
        float(shapes("gemm", "bf16", 64, 4096, 2048).bytes[0])
    )
    many = other_ways(shapes("gemm", "int4_wo", 5000, 4096, 2048), DEVICE)
    assert many is not None
    assert float(many[1][0]) == pytest.approx(before)
    # Whose units are not stated has a sixteenth of its matrix unit.
    bare = replace(DEVICE, peak={"bf16": PEAK})
    few = other_ways(shapes("gemm", "int4_wo", 200, 4096, 2048), bare)
    assert few is not None
    assert float(few[1][0]) == pytest.approx(min(2 * 4 * weights / (PEAK / 16), before))


def test_activations_are_narrowed_before_a_narrow_product() -> None:
    """A copy of what goes in: of 16-bit weights' type to eight bits, four after eight."""
    one = shapes("gemm", "fp8", 64, 4096, 2048)
    found = other_ways(one, DEVICE)
    assert found is not None
    assert found[0].dtype == "bf16"
    cast = EMPTY_KERNEL + (1 + 2) * 64 * 2048 / (0.8 * RATE)
    assert float(found[1][0]) == pytest.approx(cast)
    experts = other_ways(shapes("moe_gemm", "fp8", 6, 300, 500, 4), DEVICE)
    assert experts is not None
    inputs = 4 * 6 * (500 + 2 * 300)
    assert float(experts[1][0]) == pytest.approx(EMPTY_KERNEL + 3 * inputs / (0.8 * RATE))
    fours = replace(DEVICE, peak={"bf16": PEAK, "fp8": 2 * PEAK, "fp4": 4 * PEAK})
    found = other_ways(shapes("gemm", "nvfp4", 64, 4096, 2048), fours)
    assert found is not None
    assert found[0].dtype == "fp8"


def test_no_other_way_is_of_a_higher_peak_or_unknown() -> None:
    assert other_ways(shapes("gemm", "bf16", 64, 64, 64), DEVICE) is None
    assert other_ways(cache(4, 300, 9), DEVICE) is None
    slow = replace(DEVICE, peak={"bf16": PEAK, "fp8": PEAK / 2})
    assert other_ways(shapes("gemm", "fp8", 64, 64, 64), slow) is None
    equal = replace(DEVICE, peak={"bf16": PEAK, "fp8": PEAK})
    assert other_ways(shapes("gemm", "fp8", 64, 64, 64), equal) is not None
    assert other_ways(shapes("gemm", "nvfp4", 64, 64, 64), DEVICE) is None, "no rate in four bits"
    assert [widens(one) for one in ("int8_wo", "q4_k", "fp8", "bf16", "mxfp4")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_rows_of_zeros_make_whole_multiples_of_eight() -> None:
    """Rows that are none already: their arithmetic, operand and outcome grow with them."""
    odd = shapes("gemm", "fp8", 61, 300, 500, 2)
    found = whole_rows(odd)
    assert found is not None
    assert float(found.m[0]) == 64.0
    assert float(found.flop[0]) == pytest.approx(2 * 64 * 300 * 500 * 2)
    assert float(found.bytes[0] - odd.bytes[0]) == pytest.approx(3 * (500 + 2 * 300) * 2)
    for rows in (64.0, 60.5, 512.0, 1000.0):
        assert whole_rows(shapes("gemm", "fp8", rows, 300, 500)) is None, rows
    assert whole_rows(shapes("gemm", "fp8", 511.0, 300, 500)) is not None
    names = ("n", "k", "batch", "flop", "bytes")
    twice = {name: np.repeat(getattr(odd, name), 2) for name in names}
    both = replace(odd, **twice, m=np.array([61.0, 600.5]))
    some = whole_rows(both)
    assert some is not None
    assert some.m.tolist() == [64.0, 600.5]
    assert some.bytes[1] == both.bytes[1]
    single = whole_rows(shapes("gemm", "fp8", 1, 300, 500))
    assert single is not None
    assert float(single.m[0]) == 8.0
    assert float(single.flop[0]) == pytest.approx(2 * 8 * 300 * 500)


@pytest.mark.parametrize("joined", [1.0, 0.5, -0.5, 0.0])
def test_what_comes_narrow_saves_its_cast(joined: float) -> None:
    """A launch and 16 bits in, eight out, at the rate of copies; never below the ideal."""
    one = shapes("gemm", "fp8", 4096, 4096, 2048, 3, joined=np.array([joined]))
    own, launch, busy = ideal(one, DEVICE), 3e-6, np.array([5e-4])
    cast = 3 * 4096 * 2048 * 3 / (0.8 * RATE) + (launch if joined > 0 else 0.0)
    found = without_cast(busy, own, 2e-6, one, DEVICE, launch)
    assert float(found[0]) == pytest.approx(5e-4 - joined * cast)
    least = float(own.time[0]) + EMPTY_KERNEL - 2e-6
    near = without_cast(np.array([least * 1.01]), own, 2e-6, one, DEVICE, launch)
    assert float(near[0]) == pytest.approx(max(least * 1.01 - joined * cast, least))
    below = without_cast(np.array([least * 0.5]), own, 2e-6, one, DEVICE, launch)
    assert float(below[0]) == pytest.approx(max(least * 0.5 - joined * cast, least * 0.5))


def test_features_of_a_type_that_another_stands_for_are_the_others() -> None:
    one = shapes("gemm", "fp8", 512, 4096, 2048)
    own, stood = ideal(one, DEVICE), answering(one, DEVICE, 2.0)
    half = ideal(shapes("gemm", "bf16", 512, 4096, 2048), DEVICE)
    assert stood.time == own.time
    assert stood.features.tolist() == half.features.tolist() != own.features.tolist()
    assert answering(one, DEVICE, 0.0).features.tolist() == own.features.tolist()
    prefill = prompt(512, 512, 64)
    assert (
        answering(prefill, DEVICE, 2.0).features.tolist()
        == ideal(prefill, DEVICE).features.tolist()
    )


def test_heads_up_to_those_timed_cost_nothing_more() -> None:
    for heads in (1.0, 16.0):
        few, beside = together(cache(heads, 100, 3), DEVICE)
        assert (float(few.m[0]), float(beside[0])) == (heads, 0.0)
    # Of 20, sixteen as timed; 16-row instructions hold 32, of which a fifth is the others'.
    own = cache(20.0, 100, 3)
    few, beside = together(own, DEVICE)
    assert float(few.flop[0]) == pytest.approx(float(own.flop[0]) * 0.8)
    assert float(beside[0]) == pytest.approx(float(own.flop[0]) * 32 / 20 * 0.2 / (0.5 * PEAK))


@pytest.mark.parametrize("name", ["MI300X-192GB", "B200-SXM-180GB", "Gaudi3-128GB"])
def test_more_heads_than_were_timed_take_no_more_than_their_arithmetic_on_top(name: str) -> None:
    known, device = load("default"), catalog.accelerator(name)

    def time(heads: float) -> float:
        found = shape_times(cache(heads, 8192, 64, cold=1.0), device, known)
        return float(found[0][0])

    for heads in (64.0, 128.0):
        _, beside = together(cache(heads, 8192, 64, cold=1.0), device)
        most = time(TOGETHER) + float(beside[0])
        assert time(TOGETHER) <= time(heads) <= most * (1.0 + 1e-9)
    assert time(64.0) < time(128.0)


def test_fewer_heads_of_a_key_head_fill_the_rows_of_the_next_power_of_two() -> None:
    for heads in (1.0, 2.0, 16.0, 20.0, 40.0):
        assert whole_shares(cache(heads, 100, 3)) is None, heads
    own = cache(6.0, 100, 3)
    found = whole_shares(own)
    assert found is not None
    assert float(found.m[0]) == 8.0
    assert float(found.flop[0]) == pytest.approx(float(own.flop[0]) * 8 / 6)
    queries = 2.0 * ELEMENT_BYTES["bf16"] * float(own.k[0]) * float(own.batch[0])
    assert float(found.bytes[0] - own.bytes[0]) == pytest.approx(2.0 * queries)


@pytest.mark.parametrize("name", ["GB300-288GB", "B300-SXM-288GB", "B200-SXM-180GB"])
@pytest.mark.parametrize("heads", [3.0, 5.0, 6.0, 7.0, 12.0])
def test_fewer_heads_of_a_key_head_take_no_longer_than_more(name: str, heads: float) -> None:
    """Six query heads of a key head (Qwen3.5-27B, of 256) took up to 39 times as long as eight."""
    known, device = load("default"), catalog.accelerator(name)

    def time(heads: float, keys: float) -> float:
        found = replace(cache(heads, keys, 4, cold=1.0), k=np.array([256.0]))
        moved, queries = 2.0 * 2.0 * keys * 256.0 * 4, 2.0 * 2.0 * heads * 256.0 * 4
        more = replace(found, bytes=np.array([moved + queries]), flop=np.array([heads * moved]))
        return float(shape_times(more, device, known, library="vllm")[0][0])

    whole = 2.0 ** math.ceil(math.log2(heads))
    for keys in (16384.0, 131072.0):
        assert time(heads, keys) <= time(whole, keys) * (1.0 + 1e-9), keys


@pytest.mark.parametrize("library", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["RTX-PRO-6000-96GB", "RTX-5090-32GB", "MI300X-192GB"])
def test_latents_in_8_bits_take_no_longer_than_in_16_by_kernels_of_others(
    name: str, library: str
) -> None:
    """TensorRT-LLM's alone was timed on RTX PRO 6000, of which one block walks over a cache: 7.4 ms
    over 131,072 tokens, for which vLLM's Triton kernel takes 0.2 in 16 bits."""
    known, device = load("default"), catalog.accelerator(name)

    def time(keys: float, variant: str, library: str) -> float:
        stored = (1.0 if variant == "mla_kv8" else 2.0) * 576 * keys
        own = replace(cache(16.0, keys, 1, cold=1.0), variants=(variant,), k=np.array([576.0]),
                      bytes=np.array([stored + 4 * 16 * 576.0]),
                      flop=np.array([2.0 * 16 * keys * (576 + 512)]))  # fmt: skip
        return float(shape_times(own, device, known, library=library)[0][0])

    for keys in (2048.0, 131072.0):
        assert time(keys, "mla_kv8", library) <= time(keys, "mla", library) * (1.0 + 1e-9)
    if device.vendor == "NVIDIA":
        assert time(131072.0, "mla_kv8", "trtllm") > 10.0 * time(131072.0, "mla_kv8", library)


def test_a_wider_cache_has_as_many_keys() -> None:
    own = replace(cache(16.0, 1000, 2), variants=("mla_kv8",), bytes=np.array([1000 * 96 * 2.0]))
    wide = wider_cache(own)
    assert wide is not None
    assert (wide.variants, float(wide.bytes[0])) == (("mla",), 2.0 * (1000 + 32) * 96 * 2)
    both = wider_cache(replace(own, variants=("kv8",)))
    assert both is not None
    assert (both.variants, float(both.bytes[0])) == (("",), 2.0 * (2000 + 32) * 96 * 2)
    assert wider_cache(replace(own, variants=("mla",))) is None


@pytest.mark.parametrize("name", ["B200-SXM-180GB", "H100-SXM5-80GB"])
def test_prompts_over_8_bits_are_multiplied_in_8_bits_where_the_engine_does(name: str) -> None:
    """SGLang's over a cache in 8 bits, of heads of 256, were those of Triton in 16 bits: 1.4 ms for
    4,096 tokens on a B200 that take 0.29 in FlashInfer's (`trtllm_mha`)."""
    known, device = load("default"), catalog.accelerator(name)

    def time(variant: str, dtype: str, library: str, size: float = 256.0) -> float:
        own = prompt(4096.0, 4096.0, 24.0, size=size, sharing=np.array([6.0]))
        made = replace(own, variants=(variant,), dtype=dtype, flop=0.5 * own.flop)
        return float(shape_times(made, device, known, library=library)[0][0])

    assert time("kv8", "bf16", "sglang") == pytest.approx(time("flash", "fp8", "sglang"), rel=0.01)
    own = replace(prompt(4096.0, 4096.0, 24.0), variants=("kv8",))
    assert as_kept(own, device, "vllm") is None
    assert as_kept(own, catalog.accelerator("RTX-PRO-6000-96GB"), "sglang") is None
    assert as_kept(replace(own, variants=("flash",)), device, "sglang") is None
    assert as_kept(replace(own, k=np.array([512.0])), device, "sglang") is None
    some = as_kept(replace(own, k=np.array([256.0, 512.0])), device, "sglang")
    assert some is not None
    assert (some.dtype, some.variants) == ("fp8", ("flash",))


def test_heads_in_32_bits_are_padded_where_there_is_no_such_rate() -> None:
    heads = [Operator("x", op, "fwd", "forward", "layer", dtype, core=core, m=1.0, n=1.0, k=1.0,
                      flop=1.0, bytes=1.0) for op, dtype, core in (
        ("gemm", "fp32", True), ("gemm", "fp32", False), ("norm", "fp32", True),
        ("gemm", "bf16", True))]  # fmt: skip
    assert [one.dtype for one in padded(heads, DEVICE)] == ["fp32", "fp32", "fp32", "bf16"]
    bare = replace(DEVICE, peak={"fp16": PEAK})
    assert [one.dtype for one in padded(heads, bare)] == ["fp16", "fp32", "fp32", "bf16"]
    none = replace(DEVICE, peak={"fp8": PEAK})
    assert [one.dtype for one in padded(heads, none)] == ["fp32", "fp32", "fp32", "bf16"]


@pytest.mark.parametrize("cold", [0.0, 1.0])
@pytest.mark.parametrize(("rows", "batch"), [(2.0, 3.0), (300.0, 8.0), (0.5, 1.0)])
def test_experts_take_their_weights_and_rows_or_their_arithmetic(
    rows: float, batch: float, cold: float
) -> None:
    """Three matrices of each expert that is hit; of benchmarks' five copies small ones stay near,
    while a model's come from memory, at four fifths of its rate where all stay, and begin later.
    Rows go in and come out."""
    one = shapes("moe_gemm", "bf16", rows, 256.0, 512.0, batch, cold=np.array([cold]))
    found = ideal(one, DEVICE)
    weights = 3 * 2.0 * 256 * 512 * batch
    beside = float(one.bytes[0]) - weights
    assert beside > 0
    held = min(beside, L2)
    stay = min(max(2 - 5 * weights / L2, 0.0), 1.0)
    floor = held / L2_RATE + (beside - held) / RATE
    floor += weights * (stay / L2_RATE + (1 - stay) / RATE)
    least = cold * weights / RATE * (1 + 0.25 * stay)
    assert float(np.asarray(found.least).max()) == pytest.approx(least)
    held_all = min(max((0.9 - 5 * weights / L2) / 0.2, 0.0), 1.0)
    fetch = cold * held_all * (0.6e-6 + weights * max(1 / RATE - 1 / L2_RATE, 0.0))
    assert float(np.asarray(found.fetch).max()) == pytest.approx(fetch)
    compute = float(one.flop[0]) / PEAK
    assert float(found.time[0]) == pytest.approx(max(compute, floor))
    assert float(found.compute[0]) == pytest.approx(compute)
    assert float(found.memory[0]) == pytest.approx(float(one.bytes[0]) / RATE)
    first = min(max(math.log(compute / floor), -6.0), 6.0)
    assert found.features[0, :2] == pytest.approx([first, math.log(max(compute, floor) / 1e-6)])
