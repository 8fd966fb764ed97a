"""Constants of completing and explaining by the recipes and papers that they were read off."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.memory import offload
from predictor.memory.training import DRIVER, WHOLE_WEIGHT
from predictor.precision import ELEMENT_BYTES
from predictor.training import fitting, fleet, ledger, unlike_stages
from predictor.training.frame import CHANNELS
from predictor.training.pacing import PARTS


def test_ranks_are_no_narrower_than_those_of_recipes() -> None:
    """Llama 3 70B on tp 4 and 405B on 8, GPT-3 175B on 4, Nemotron 340B on 8 and 22B on 2."""
    widths = (8192 / 4, 16384 / 8, 12288 / 4, 18432 / 8, 6144 / 2)
    assert min(widths) == fitting.NARROWEST


def test_sequences_are_no_shorter_than_those_of_mlperf_and_of_recipes() -> None:
    """8,192 tokens on eight ranks; 4,096 of a rank's of long ones, from eight of them on."""
    assert fitting.SHORTEST == 8192 / 8
    assert fitting.LEAST_SHARE == 4096
    assert fitting.LONG == 8 * fitting.LEAST_SHARE


def test_bubbles_that_are_worth_avoiding_are_a_fifth() -> None:
    """(p - 1) / (p m + p - 1) of a step with m micro-batches for each of p stages."""
    p = 1e6
    assert abs((p - 1) / (p * fitting.ROUNDS + p - 1) - 0.2) < 1e-6


def test_prices_of_computing_again_are_shares_of_both_passes() -> None:
    assert fitting.PARTLY < fitting.WIDER < fitting.AGAIN
    assert abs(fitting.AGAIN - 1 / 3) < 0.01
    assert fitting.AVOIDED > 1.0, "more than a step"
    assert 1.1 <= fitting.BELIEVED <= 1.0 + 1 / 7


def test_stages_compute_quarters_of_their_layers_again() -> None:
    assert tuple(part / 4 for part in range(4)) == unlike_stages.EASED
    assert PARTS == {"forward": ("forward",), "backward": ("backward", "recompute")}


def test_waiting_differs_by_more_than_a_third_and_less_than_twice() -> None:
    """From hour to hour, in the logarithm."""
    assert 1 / 3 < ledger.UNSURE < 0.7


def test_weights_of_a_whole_model_and_layers_on_their_way() -> None:
    assert ELEMENT_BYTES["bf16"] == WHOLE_WEIGHT
    assert offload.RESIDENT == 1 + 1, "one in use, one on its way"
    assert 0.3e9 < DRIVER < 1e9
    assert 0.15 <= offload.SIGMA <= 0.3


def test_hosts_of_older_links_have_half_of_the_memory_s_rate() -> None:
    """19 GB/s for an accelerator of a DGX-1V, 32 with Xeons of 2017, beside 50; PCIe 3 carries
    15.75 GB/s, PCIe 4 31.5."""
    assert pytest.approx(np.mean([19.0, 32.0]) / 50.0, rel=0.05) == offload.OLDER
    assert 15.75e9 < offload.OLDER_LINK < 31.5e9
    assert 0.5 < offload.HOST_USABLE < 1.0


def test_collectives_between_nodes_have_as_many_channels_as_nccl_s_logs_name() -> None:
    assert 8 <= CHANNELS <= 24


def test_spares_are_enough_in_ninety_nine_of_a_hundred() -> None:
    """No rate of a run with fewer than three quarters of a hundred replicas is of a plan that one
    would run; more are not looked at one by one."""
    assert fleet.SURE == 0.99
    assert 16 <= fleet.FEWER <= 32
