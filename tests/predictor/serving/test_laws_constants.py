"""Constants of engines by what they were read off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.memory.serving import WIDE_LOGIT
from predictor.plans import HEADWISE, KV_BYTES
from predictor.precision import ELEMENT_BYTES
from predictor.search.post_training import WEIGHT
from predictor.serving import (
    around,
    calls,
    checked,
    checkpoint,
    doubts,
    equivalents,
    gathering,
    kernels,
    latency,
    meeting,
    offload,
    pass_times,
    passes,
    reading,
    simulation,
    tables,
)


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
    caches = {name: size for name, size in KV_BYTES.items() if name != "int4"}
    assert {name: ELEMENT_BYTES[name] for name in caches} == caches
    assert KV_BYTES["int4"] == (128 / 2 + 2 * 2) / 128  # a scale and a zero for a head of 128


def test_numbers_that_say_how_closely_is_looked() -> None:
    """A queue that is full is no queue; after three lives exp(-3) is left, less than a twentieth;
    prompts near their mean lie evenly about it; half a year; a rule of eight nodes."""
    assert 0.95 <= gathering.FULLEST < 1.0
    assert math.exp(-checked.LIVES) < 0.05 < math.exp(-checked.LIVES + 0.1)
    assert pytest.approx(1.0 + np.array([-0.1, -0.05, 0.0, 0.05, 0.1])) == tables.NEAR_MEAN
    assert doubts.MONTHS == 12 / 2
    assert 0.0 < doubts.LEAST_TOLD <= 0.03
    assert passes.STEPS_LISTED == 8


def test_sums_in_the_switch_end_where_vllm_s_do() -> None:
    """SYMM_MEM_ALL_REDUCE_MAX_SIZES of all_reduce_utils.py, by compute capability and ranks [MiB]:
    9.0 and 10.0."""
    assert calls.SWITCH_LIMITS["hopper"] == {2: 64, 4: 32, 8: 64}
    assert calls.SWITCH_LIMITS["blackwell"] == {2: 8, 4: 32, 8: 128}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all", {1, 2, 4, 7, 8, 9, 16}), ("copied", {1, 2, 4, 7, 8, 9, 16}), ("single", {1}),
        ("but8", {1, 2, 4, 7, 9, 16}), ("to8", {1, 9, 16}),
    ],
)  # fmt: skip
def test_numbers_of_heads_that_are_worked_through_one_by_one(kind: str, expected: set[int]) -> None:
    """All, all but eight, those that no kernel for two to eight heads takes, one alone."""
    groups = np.array([1, 2, 4, 7, 8, 9, 16])
    assert set(groups[kernels.HEADWISE_GROUPS[kind](groups)].tolist()) == expected
    assert set(HEADWISE) == {"none", *kernels.HEADWISE_GROUPS}


def test_the_slower_of_two_limits_decides_as_sharply_as_llama_cpp_s_rows_allow() -> None:
    """Between 4 and 8 it is all the same."""
    assert 4.0 <= kernels.STEEPNESS < 8.0
    assert equivalents.SHARING == 32.0, "beyond, libraries differ"


def test_fixed_points_are_found_and_no_more() -> None:
    """Of what is missing at first each round leaves a share, the last less than a hundredth of
    gathering, a thousandth where half is gone each time, a ten-millionth of meeting; 22 halves are
    a quarter of a millionth."""
    assert max(latency.PART, meeting.PART) <= 0.5, "whole steps swing"
    assert 1e-3 < (1.0 - latency.PART) ** latency.GATHERED < 1e-2
    assert 1e-8 < (1.0 - meeting.PART) ** meeting.ROUNDS < 1e-7
    assert 1e-7 < 0.5**gathering.HALVES < 1e-6
    assert 1e-4 < 0.5**gathering.ROUNDS < 1e-3
    assert 1e-8 < math.exp(-2.0 * reading.TAIL) < 1e-6, "Kingman's waits of constant service"


def test_percentiles_are_of_requests_enough() -> None:
    """Beyond the 99th lie ten and more; closed forms of replicas err twice as much at 0.6 as at
    0.4."""
    assert 10 <= 0.01 * around.FEWEST_REPLAYED < 20
    assert 0.4 < checked.MOST_MET < 0.6
    assert 2 <= simulation.WAVES < 8, "a client's first request meets an empty engine"
    assert simulation.FOLLOWED == 8, "replicas of a node of eight"


def test_tables_have_as_many_numbers_as_graphs_are_captured_for() -> None:
    """vLLM captures every eighth number from eight on: four from 32 to 64."""
    assert len(range(32, 64, 8)) == tables.PER_DOUBLING


def test_hosts_take_what_was_read_off_their_passes() -> None:
    """0.30 to 0.43 ms for a token that is handed on, 0.2 to 0.33 us for a block that is listed; two
    tensors of a layer that are allocated, entered and bound by three calls, and sixty copied."""
    assert 0.30e-3 <= pass_times.ANSWERING <= 0.43e-3
    assert 0.2e-6 <= pass_times.LISTING <= 0.33e-6
    assert pytest.approx(60 * 10e-6) == pass_times.MADE
    assert pytest.approx(2 * (5e-6 + 2e-6 + 3 * 2e-6)) == pass_times.MADE_LAYER


def test_replicas_begin_in_a_minute_and_load_as_fast_as_a_drive_of_four_lanes_allows() -> None:
    """PCIe 4: 16 GT/s on each, 128 of 130 bits; a drive reaches three quarters and more."""
    lanes = 4 * 16 / 8 * 128 / 130
    assert 0.75 * lanes < around.DRIVE_RATE < lanes
    assert 30.0 < around.COLD_START < 120.0
    assert checkpoint.FILLED == 0.9, "vLLM's gpu_memory_utilization"
    assert latency.WAITING_SHARE == 0.3, "TGI's waiting_served_ratio"
