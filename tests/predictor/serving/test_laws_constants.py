"""Constants of engines by what they were read off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.memory.serving import WIDE_LOGIT
from predictor.plans import KV_BYTES
from predictor.precision import ELEMENT_BYTES
from predictor.search.post_training import WEIGHT
from predictor.serving import checked, doubts, gathering, kernels, offload, passes, tables


def test_kernels_of_few_rows_by_little_s_law() -> None:
    """4 KB under way in a processor over 650 clocks; of gpt-fast on A100 a weight takes 0.73 ps
    where memory takes 0.65, and 0.55 where it takes 0.40: what is left of the squares, on 108
    processors at 1.41 GHz."""
    assert pytest.approx(4096 / 650, rel=0.1) == kernels.IN_FLIGHT
    left = [math.sqrt(whole**2 - memory**2) for whole, memory in ((0.73, 0.65), (0.55, 0.40))]
    rates = [1e12 / own / (108 * 1.41e9) for own in left]
    assert pytest.approx(np.mean(rates), rel=0.05) == kernels.WIDENED


def test_shares_that_kernels_reach_are_those_of_engines() -> None:
    """TensorRT-LLM 0.5 on H100: 0.79 of the memory's bandwidth, 0.4 to 0.6 of the cache's; vLLM on
    MI300X 0.4 to 0.6 of its vector units with 7B, 0.3 to 0.45 with 70B; one matrix 0.83 to 0.93."""
    assert 0.75 <= kernels.HEADWISE_SHARE <= 0.83
    assert 0.4 <= kernels.HEADWISE_CACHED <= 0.6
    assert 0.4 <= kernels.VECTOR_SHARE <= 0.45
    assert 0.83 <= kernels.STREAMED <= 0.93
    assert 0.6 <= kernels.MIXED_SHARE <= 0.8
    assert kernels.MIXED_ROWS == 16.0, "mma.m16n8k16"
    assert kernels.FEW_ROWS == 8.0
    assert kernels.STREAM_LIMIT == 256.0


def test_rows_that_are_handed_out_take_what_llama_cpp_takes_longer() -> None:
    """65 to 98 us on two devices, 154 to 210 on eight."""
    for devices, least, most in ((2, 65e-6, 98e-6), (8, 154e-6, 210e-6)):
        assert least <= kernels.HANDED + 2 * devices * kernels.COPIED <= most
    assert kernels.MATRICES == {"attention.qkv": 3.0, "mlp.up": 2.0}


def test_hosts_are_as_fast_as_their_memory_and_links() -> None:
    """Eight channels of DDR4-3200, eight bytes each; PCIe 4 and 5, 16 lanes of 16 and 32 GT/s."""
    assert pytest.approx(8 * 3200e6 * 8, rel=0.03) == offload.HOST_BANDWIDTH
    for (_, rate), sheet in zip(offload.LINKS, (32e9, 64e9), strict=True):
        assert 0.75 * sheet < rate < 0.9 * sheet


def test_bytes_of_logits_weights_and_caches_are_those_of_their_types() -> None:
    assert ELEMENT_BYTES["fp32"] == WIDE_LOGIT
    assert ELEMENT_BYTES["bf16"] == WEIGHT
    assert {name: ELEMENT_BYTES[name] for name in KV_BYTES} == KV_BYTES


def test_numbers_that_say_how_closely_is_looked() -> None:
    """A queue that is full is no queue; after three lives exp(-3) is left, less than a twentieth;
    prompts near their mean lie evenly about it; half a year; a rule of eight nodes."""
    assert 0.95 <= gathering.FULLEST < 1.0
    assert math.exp(-checked.LIVES) < 0.05 < math.exp(-checked.LIVES + 0.1)
    assert pytest.approx(1.0 + np.array([-0.1, -0.05, 0.0, 0.05, 0.1])) == tables.NEAR_MEAN
    assert doubts.MONTHS == 12 / 2
    assert 0.0 < doubts.LEAST_TOLD <= 0.03
    assert passes.STEPS_LISTED == 8
