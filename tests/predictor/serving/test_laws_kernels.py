"""Kernels of engines by hand: each by what limits it, on a machine of round numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.plans.serving import ServingPlan
from predictor.serving.kernels import (
    JOINED,
    JOINED_LIMITS,
    _joins,
    as_run,
    beside_routed,
    headwise_time,
    in_rows,
    matvec_time,
    mixed_time,
    widened,
    widening_time,
)
from predictor.timing import empty_kernel, power_limit

MACHINE = replace(
    catalog.accelerator("H100-SXM5-80GB"), bandwidth=2e12, l2_bandwidth=8e12, sms=100.0, clock=2e9,
    peak={"fp16": 1e15, "bf16": 1e15, "fp32": 5e13, "fp8": 2e15}, host_bandwidth=1e10,
)  # fmt: skip
EMPTY = float(empty_kernel(MACHINE.year))


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 1.0, "input_len": 200.0, "output_len": 200.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def kernel(**fields: Any) -> Any:
    """A product of two rows and a square matrix of 4,096, in 16 bits."""
    given: dict[str, Any] = {
        "op": "gemm", "name": "mlp.down", "variant": "fwd", "dtype": "bf16", "m": 2.0, "n": 4096.0,
        "k": 4096.0, "batch": 1.0, "bytes": 4e7, "flop": 2.0 * 2 * 4096**2,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **fields})


def run(each: float, one: Any, **fields: object) -> float:
    return float(as_run(np.asarray(each), one, plan(**fields), MACHINE))


def test_matrices_stream_at_nine_tenths_or_as_their_loads_arrive() -> None:
    """36e9 bytes at 1.8 TB/s: 20 ms. Loads in flight bring 6.8 B x 100 x 2e9 = 1.36 TB/s: of both
    limits the slower one decides, by the fourth power."""
    streams = float(matvec_time(36e9, MACHINE, "generated"))
    assert streams == pytest.approx(EMPTY + 0.02)
    both = (1.8e12**-4 + 1.36e12**-4) ** -0.25
    assert float(matvec_time(36e9, MACHINE, "plain")) == pytest.approx(EMPTY + 36e9 / both)
    narrow = replace(MACHINE, bandwidth=1e10)
    assert float(matvec_time(9e9, narrow, "plain")) == pytest.approx(EMPTY + 1.0, rel=1e-6)


def test_compilers_kernels_widen_eighteen_weights_a_clock() -> None:
    """8-bit weights are a byte each: 3.6e12 of them a second; 4-bit ones come twice as many."""
    assert float(widening_time(kernel(dtype="int8_wo", bytes=3.6e9), MACHINE)) == pytest.approx(
        1e-3
    )
    half = float(widening_time(kernel(dtype="exl2_4", bytes=3.6e9), MACHINE))
    assert half == pytest.approx(2e-3)


def test_kernels_that_widen_on_their_way_multiply_sixteen_rows_at_once() -> None:
    """Of 17 rows two tiles of 16: 32 / 17 of the arithmetic, at six tenths of the 16-bit peak, or
    of what the power cap leaves of it."""
    cool = replace(MACHINE, power=np.inf)
    few, many = (kernel(dtype="exl2_4", m=m, flop=1e12 * m, bytes=1e6) for m in (2.0, 17.0))
    assert float(mixed_time(few, cool)) == pytest.approx(16e12 / 6e14)
    assert float(mixed_time(many, cool)) == pytest.approx(32e12 / 6e14)
    capped = replace(MACHINE, power=200.0)
    assert 0.0 < (left := float(power_limit(capped))) < 0.9
    assert float(mixed_time(many, capped)) == pytest.approx(32e12 / 6e14 / left)
    streaming = kernel(dtype="exl2_4", flop=1.0, bytes=1.8e9)
    assert float(mixed_time(streaming, MACHINE)) == pytest.approx(EMPTY + 1e-3)
    assert [widened(name) for name in ("exl2_4", "int8_wo", "bf16", "fp8")] == [
        True,
        True,
        False,
        False,
    ]


def attention(group: float = 4.0) -> Any:
    """Decoding of 64 sequences x heads of 1,000 keys of 128 columns, two bytes each: 32.8 MB."""
    return kernel(op="attention_decode", m=group, batch=64.0, n=1000.0, k=128.0)


CACHE = 64 * 1000 * 2 * 128 * 2


def test_heads_by_themselves_read_the_cache_from_memory_once_and_from_its_copy_each() -> None:
    """Eight tenths of the memory, half of the last-level cache: 64 times 4 heads; where each die
    has a copy of its own, from memory every time."""
    one = attention(1.0)
    assert float(headwise_time(one, plan(), MACHINE)) == pytest.approx(EMPTY + CACHE / 1.6e12)
    many = attention(16.0)
    expected = EMPTY + 16 * CACHE / 4e12
    assert float(headwise_time(many, plan(), MACHINE)) == pytest.approx(expected)
    dies = replace(MACHINE, architecture="cdna3")
    assert float(headwise_time(many, plan(), dies)) == pytest.approx(EMPTY + 16 * CACHE / 1.6e12)
    narrow = float(headwise_time(one, plan(kv="fp8"), MACHINE))
    assert narrow == pytest.approx(EMPTY + 0.5 * CACHE / 1.6e12)


def test_copied_heads_move_the_cache_once_for_each_and_more() -> None:
    """Read and written as it grows, read, written for each of four heads, read by the products."""
    copied = float(headwise_time(attention(4.0), plan(headwise="copied"), MACHINE))
    assert copied == pytest.approx(EMPTY + 11.0 * CACHE / 1.8e12)


@pytest.mark.parametrize(
    ("headwise", "groups"),
    [("all", (1, 4, 8, 16)), ("but8", (1, 4, 16)), ("to8", (1, 16)), ("single", (1,)),
     ("copied", (1, 4, 8, 16)), ("none", ())],
)  # fmt: skip
def test_engines_work_through_heads_of_some_groups(headwise: str, groups: tuple[int, ...]) -> None:
    for group in (1, 4, 8, 16):
        one = attention(float(group))
        apart = float(headwise_time(one, plan(headwise=headwise), MACHINE))
        expected = apart if group in groups else 1e-9
        assert run(1e-9, one, headwise=headwise) == pytest.approx(expected)


@pytest.mark.parametrize(("splitting", "each"), [("few", 3), ("few_8k", 1)])
def test_beyond_512_heads_as_many_blocks_walk_as_scores_leave_room(
    splitting: str, each: int
) -> None:
    """A block of 4,096 scores takes 16.5 KiB of a processor's 64, one of 8,192 the half and more: 3
    and 1 to each of 100 processors, at 2.7 bytes a clock; where they are few, or longer than any
    block keeps, keys are split."""
    many = kernel(op="attention_decode", m=4.0, batch=200.0, n=1000.0, k=128.0)
    one = 2.0 * 128 * 2 * 1000
    walked = max(800 / (100 * each), 1.0) * one / (2.7 * 2e9)
    for fast in (1e-9, 1e-3):
        assert run(fast, many, splitting=splitting) == pytest.approx(np.hypot(fast, walked))
    for apart in (kernel(**{**vars(many), "batch": 128.0}), kernel(**{**vars(many), "n": 8193.0})):
        assert run(1e-6, apart, splitting=splitting) == pytest.approx(1e-6)
    assert run(1e-6, many, splitting="keys") == pytest.approx(1e-6)


def test_kernels_for_many_rows_have_four_bytes_a_clock_arrive() -> None:
    """8e8 bytes at 4 x 100 x 2e9 a second: 1 ms, of 16-bit products; of experts where nobody tuned
    them either; more rows take what their arithmetic takes."""
    product = kernel(bytes=8e8)
    experts = kernel(op="moe_gemm", bytes=8e8)
    assert run(1e-6, product, matvec="tiled") == pytest.approx(1e-3)
    assert run(2e-3, product, matvec="tiled") == pytest.approx(2e-3)
    assert run(1e-6, experts, matvec="tiled") == pytest.approx(1e-6)
    assert run(1e-6, experts, matvec="untuned") == pytest.approx(1e-3)
    assert run(1e-6, kernel(bytes=8e8, dtype="fp8"), matvec="untuned") == pytest.approx(1e-6)


def test_a_thread_block_that_has_a_part_to_itself_takes_its_time() -> None:
    """32 KB in flight over 600 ns, 54.6 GB/s: 1,000 keys and values of a head, 512 KB, in 9.4 us;
    recurrences of which each of 64 blocks has its part."""
    rate = 32 * 1024 / 600e-9
    assert run(1e-9, attention(), splitting="none") == pytest.approx(2 * 128 * 2 * 1000 / rate)
    assert run(1.0, attention(), splitting="none") == 1.0
    scan = kernel(op="scan", variant="recurrence", batch=64.0, bytes=6.4e6)
    assert run(1e-9, scan) == pytest.approx(1e5 / rate)


def test_units_that_are_not_made_for_products_take_their_time() -> None:
    """Of 16 bits alone: 0.45 of the rate in 32."""
    one = kernel(flop=9e12)
    assert run(1e-9, one, product_units="vector") == pytest.approx(9e12 / (0.45 * 5e13))
    assert run(7.0, one, product_units="vector") == 7.0
    assert run(1e-9, kernel(flop=9e12, dtype="fp8"), product_units="vector") == 1e-9


def test_products_of_eight_bits_at_the_rate_of_32_are_filled_up() -> None:
    """128 rows take what 4 take, 129 twice that; those of 16 bits do not."""
    few, full, more = (
        run(1e-9, kernel(flop=m * 1e11, m=m, dtype="fp8"), product_units="single")
        for m in (4.0, 128.0, 129.0)
    )
    assert few == full == pytest.approx(128e11 / 5e13)
    assert more == pytest.approx(2.0 * full)
    assert run(1e-9, kernel(flop=9e12), product_units="single") == 1e-9


def test_few_rows_stream_their_matrix_and_many_do_not() -> None:
    """Up to eight rows; kernels of one's own only, where they are the only ones, and the quicker of
    both else."""
    eight, nine = kernel(m=8.0, bytes=1.8e9), kernel(m=9.0, bytes=1.8e9)
    plain = float(matvec_time(1.8e9, MACHINE, "plain"))
    assert run(1e-9, eight, matvec="plain") == pytest.approx(plain)
    assert run(1e-9, nine, matvec="plain") == 1e-9
    experts = kernel(op="moe_gemm", m=2.0, bytes=1.8e9)
    assert run(1e-9, experts, matvec="plain") == 1e-9
    assert run(9.0, experts, matvec="plain") == pytest.approx(plain)
    made = kernel(dtype="int8_wo", bytes=1.8e9)
    both = np.hypot(float(matvec_time(1.8e9, MACHINE, "generated")), 0.5e-3)
    assert run(1e-9, made, matvec="generated") == pytest.approx(both)
    wide = kernel(bytes=1.8e9)
    assert run(1e-9, wide, matvec="generated") == 1e-9
    assert run(9.0, wide, matvec="generated") == pytest.approx(EMPTY + 1e-3)
    assert run(1e-9, eight, matvec="gemm") == 1e-9
    narrow = kernel(dtype="exl2_4", m=2.0, flop=1.0, bytes=1.8e9)
    assert run(9.0, narrow, matvec="mixed") == pytest.approx(EMPTY + 1e-3)
    assert run(1e-9, narrow, matvec="mixed") == 1e-9
    assert run(9.0, wide, matvec="mixed") == 9.0


def test_divided_rows_are_handed_out_once_for_each_matrix() -> None:
    """40 us and two copies of 10 for each of four devices, three times for queries, keys and
    values; inputs go to three others, and a quarter of the outcome each comes back."""
    one = kernel(name="attention.qkv", m=2.0, k=1000.0, n=3000.0)
    sent = 4.0 * 2.0 * (1000.0 * 3 + 3000.0 * 0.75) / 1e10
    found = float(in_rows(np.asarray(1e-2), one, plan(pp=4.0), MACHINE))
    assert found == pytest.approx(2.5e-3 + 3 * (40e-6 + 8 * 10e-6) + sent)
    unknown = replace(MACHINE, host_bandwidth=np.nan)
    assert float(in_rows(np.asarray(1e-2), one, plan(pp=4.0), unknown)) == pytest.approx(
        found - sent
    )
    assert run(1e-2, one, pp=4.0, pipelining="rows") == pytest.approx(found)
    assert run(1e-2, one, pp=4.0) == 1e-2


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize(("tp", "ranks"), [(2.0, 2), (3.0, 4), (4.0, 4), (8.0, 8)])
def test_norms_are_part_of_small_sums(name: str, tp: float, ranks: int) -> None:
    """Up to the largest message that one kernel adds up, a quarter of what the norm moves."""
    most = JOINED_LIMITS["hopper"][ranks]
    for more, joins in ((1.0, True), (1.001, False)):
        norm = kernel(op="norm", name=name, bytes=4.0 * most * more)
        assert bool(_joins(norm, plan(tp=tp), MACHINE)) is joins
        expected = 0.0 if joins else 1.0
        assert run(1.0, norm, tp=tp, reductions="joined") == expected
    small = kernel(op="norm", name=name, bytes=4.0)
    assert not _joins(small, plan(tp=1.0), MACHINE)
    assert not _joins(small, plan(tp=16.0), MACHINE)
    assert run(1.0, small, tp=tp) == 1.0
    newer = replace(MACHINE, architecture="blackwell-ultra")
    four = kernel(op="norm", name=name, bytes=4.0 * 32e6)
    assert bool(_joins(four, plan(tp=4.0), newer))


def beside(routed: float, shared: float, moved: float = 0.0, tokens: float = 8.0) -> list[float]:
    """Times as run of a routed kernel and of the three of a shared expert, a third each."""
    names = ("moe.experts", "shared.up", "shared.activation", "shared.down", "mlp.up")
    listed = [kernel(name=n, m=tokens, bytes=moved / 4.0) for n in names]
    times = [np.asarray(v) for v in (routed, *[shared / 3.0] * 3, 7.0)]
    found = beside_routed(listed, times, plan(shared_experts="beside"), MACHINE)
    return [float(one) for one in found]


def test_shared_experts_hide_beside_routed_ones() -> None:
    """What they take beyond these shows; all that both read takes as long as it does."""
    assert beside(5.0, 3.0) == pytest.approx([5.0, 0.0, 0.0, 0.0, 7.0])
    assert beside(5.0, 6.0) == pytest.approx([5.0, *[1.0 / 3.0] * 3, 7.0])
    assert beside(5.0, 3.0, moved=2e12 * 6.0) == pytest.approx([5.0, *[1.0 / 3.0] * 3, 7.0])
    assert beside(5.0, 3.0, moved=2e12 * 99.0) == pytest.approx([5.0, 1.0, 1.0, 1.0, 7.0])
    for tokens, hides in ((256.0, True), (257.0, False)):
        assert beside(5.0, 3.0, tokens=tokens)[1] == (0.0 if hides else 1.0)
    listed = [kernel(name="shared.up", m=8.0)]
    after = beside_routed(listed, [np.asarray(2.0)], plan(), MACHINE)
    assert [float(one) for one in after] == [2.0]
