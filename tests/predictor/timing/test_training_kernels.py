"""Attention of training, which writes no cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.timing import operator_times, training_times
from predictor.timing.kernels import Timing
from predictor.timing.shapes import ALONE
from predictor.timing.training_kernels import _no_slower
from predictor.work import Operator
from predictor.work.primitives import gemm

KERNELS = load("kernels-only")


def attention(tokens: float, op: str) -> Operator:
    steps, moves = (2.5, 2.0) if op.endswith("backward") else (1.0, 1.0)
    return Operator(
        name=op, op=op, variant="flash", phase="forward", module="layer", dtype="bf16",
        m=tokens, n=tokens, k=128.0, batch=32.0, core=True,
        flop=steps * 2 * 32 * tokens**2 * 128, bytes=moves * 4 * 2 * tokens * 32 * 128,
    )  # fmt: skip


@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "A100-SXM4-80GB", "H200-SXM-141GB"])
def test_no_kernel_is_slower_than_the_one_before(op: str, name: str) -> None:
    device = catalog.accelerator(name)
    for tokens in (64.0, 512.0, 2048.0, 16384.0):
        one = attention(tokens, op)
        found = training_times([one], device, KERNELS, ()).time
        others = [replace(one, variant=kernel) for kernel in ALONE]
        # cuDNN's was timed on Hopper.
        others = others if device.architecture == "hopper" else others[:1]
        times = [
            operator_times([two], device, KERNELS, (), sustained=True, library=name).time
            for two, name in (
                *((other, "") for other in others),
                *((one, name) for name in ("sglang", "trtllm", "vllm")),
            )
        ]
        # Under a power cap each is slower by what it is bound by.
        assert float(found[0]) == pytest.approx(float(min(times)[0]), rel=0.05)


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"])
def test_training_waits_for_no_engine_that_is_slower_than_another(name: str) -> None:
    """Neutral times are the mean of three engines' kernels, which differ by more than a tenth."""
    device = catalog.accelerator(name)
    one = attention(8192.0, "attention_prefill")
    every = [
        float(operator_times([one], device, KERNELS, (), sustained=True, library=engine).time[0])
        for engine in ("sglang", "trtllm", "vllm")
    ]
    found = float(training_times([one], device, KERNELS, ()).time[0])
    assert found <= min(every)
    assert max(every) > 1.05 * min(every)


def test_short_prompts_of_training_have_no_cache_to_write() -> None:
    """FlashAttention over 64 tokens takes a kernel's launch, not the 9 us of an engine's prompt."""
    device = catalog.accelerator("H100-SXM5-80GB")
    one = attention(64.0, "attention_prefill")
    engine = operator_times([one], device, KERNELS, (), sustained=True).time
    assert training_times([one], device, KERNELS, ()).time < 0.8 * engine


def test_where_the_kernel_before_was_not_measured_nothing_changes() -> None:
    device = catalog.accelerator("MI300X-192GB")
    one = attention(512.0, "attention_prefill")
    found = training_times([one], device, KERNELS, ())
    assert found.time == operator_times([one], device, KERNELS, (), sustained=True).time


@pytest.mark.parametrize("name", ["B200-SXM-180GB", "GB200-186GB", "H100-SXM5-80GB"])
@pytest.mark.parametrize("m", [256.0, 2048.0, 8192.0])
def test_one_scale_for_a_matrix_takes_no_longer_than_one_for_each_block(
    name: str, m: float
) -> None:
    device = catalog.accelerator(name)
    whole, blocks = (
        gemm(
            name="up",
            layout="fwd",
            phase="forward",
            module="dense",
            dtype=dtype,
            m=m,
            n=14336.0,
            k=4096.0,
        )
        for dtype in ("fp8", "fp8_block")
    )
    found = training_times([whole], device, KERNELS, ()).time
    usual, other = (
        operator_times([one], device, KERNELS, (), sustained=True).time for one in (whole, blocks)
    )
    assert found == min(usual, other)


def test_blocks_that_were_not_timed_on_an_accelerator_bound_nothing() -> None:
    device = catalog.accelerator("H100-SXM5-96GB-HBM2e-500W")
    one = gemm(
        name="up", layout="fwd", phase="forward", module="dense", dtype="fp8", m=2048.0, n=14336.0,
        k=4096.0,
    )  # fmt: skip
    found = training_times([one], device, KERNELS, ())
    assert found.time == operator_times([one], device, KERNELS, (), sustained=True).time


@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
@pytest.mark.parametrize("name", ["B200-SXM-180GB", "B300-SXM-288GB", "R100-288GB"])
def test_kernels_of_older_matrix_units_gain_processors_and_clocks_alone(op: str, name: str) -> None:
    """FlashAttention-2 runs on `mma`, which does as much per processor and clock after Hopper as on
    it: long sequences take as long as processors and clocks say, within a wave in ten, and longer
    than with today's kernels."""
    hopper, device = catalog.accelerator("H100-SXM5-80GB"), catalog.accelerator(name)
    one = replace(attention(32768.0, op), variant="flash2")
    there, here = (float(training_times([one], at, KERNELS, ()).time[0]) for at in (hopper, device))
    more = (device.sms * device.clock) / (hopper.sms * hopper.clock)
    assert here * more == pytest.approx(there, rel=0.1)
    today = replace(one, variant="flash")
    assert here > float(training_times([today], device, KERNELS, ()).time[0])


def test_what_stands_in_for_a_slower_kernel_is_as_unsure_as_the_less_sure_of_both() -> None:
    """Four shapes: sooner and later, each with the surer and the less sure of two spreads."""
    own, other = (
        Timing(
            time=np.array([[2.0, 2.0, 1.0, 1.0]]) if first else np.array([[1.0, 1.0, 2.0, 2.0]]),
            sigma=np.array([[0.1, 0.3, 0.1, 0.3]]) if first else np.array([[0.2] * 4]),
            bound=np.zeros((1, 4)) if first else np.ones((1, 4)),
            measured=np.full((1, 4), first),
            pedigree=("interpolated",),
            family=("one",),
        )
        for first in (True, False)
    )
    _no_slower(own, 0, other, 0)
    assert own.time[0].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert own.sigma[0].tolist() == [0.2, 0.3, 0.1, 0.3]
    assert own.bound[0].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert own.measured[0].tolist() == [False, False, True, True]
