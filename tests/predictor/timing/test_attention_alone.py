"""FlashAttention-2 and cuDNN's attention, timed by themselves (`tools/attention_sweep.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.timing import operator_times
from predictor.timing.attention import LATE
from predictor.timing.shapes import ALONE, kind_of
from predictor.work import Operator
from tests.predictor.timing.test_training_kernels import attention

KNOWN = load("kernels-only")
H100 = catalog.accelerator("H100-SXM5-80GB")


def rate(one: Operator) -> float:
    """Arithmetic over time [FLOP/s]."""
    return float(one.flop) / float(operator_times([one], H100, KNOWN, ()).time[0])


@pytest.mark.parametrize(("first", "heads"), [(1, 8), (1, 16), (1, 60), (17, 16), (17, 50)])
def test_the_longest_walk_of_a_causal_mask_begins_last(first: int, heads: int) -> None:
    """Block by block: heads whose blocks walk over `first` to 32 tiles, in this order, on 132
    processors, each of which takes the next block as it is done with one."""
    free, walks = np.zeros(132), range(first, 33)
    for _ in range(heads):
        for tiles in walks:
            free[np.argmin(free)] += tiles
    even = heads * sum(walks) / 132
    assert free.max() / 32 == pytest.approx(even / 32 + LATE, abs=0.12)


@pytest.mark.parametrize("kernel", ALONE)
@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
def test_sequences_beyond_those_that_were_timed_are_more_of_the_same(op: str, kernel: str) -> None:
    """From 32,768 tokens on the rate settles: no 128k prompt comes nearer to the peak than a
    twentieth beyond, however few its heads."""
    for heads in (8.0, 32.0, 64.0):
        rates = []
        for tokens in (32768.0, 131072.0, 524288.0):
            one = attention(tokens, op)
            scale = heads / 32.0
            rates.append(rate(replace(
                one, variant=kernel, batch=heads, flop=one.flop * scale, bytes=one.bytes * scale,
            )))  # fmt: skip
        assert rates[0] * 0.95 < rates[1] < rates[0] * 1.1
        assert rates[1] * 0.97 < rates[2] < rates[1] * 1.05
        assert rates[2] < 0.8 * float(H100.peak["bf16"])


def test_a_causal_mask_costs_short_prompts_more() -> None:
    """Of 512 tokens a fifth of the tiles is on the diagonal, of 16,384 one in 128."""
    assert [kind_of("attention_prefill", one) for one in ALONE] == [
        "attention_prefill.flash2", "attention_prefill.cudnn",
    ]  # fmt: skip
    for kernel in ALONE:
        short, long = (
            rate(replace(attention(tokens, "attention_prefill"), variant=kernel))
            for tokens in (512.0, 16384.0)
        )
        assert short < 0.5 * long


def test_a_card_whose_architecture_was_not_timed_alone_keeps_the_features_of_engines() -> None:
    """FlashAttention-2 on an Ada card is told by its engines' kernels."""
    card = catalog.accelerator("L40S-48GB")
    one = attention(4096.0, "attention_prefill")
    times = [
        float(operator_times([replace(one, variant=kernel)], card, KNOWN, ()).time[0])
        for kernel in ("flash", "flash2")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
