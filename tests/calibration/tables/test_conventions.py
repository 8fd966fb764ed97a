"""Published rates as step times: conventions of FLOPs, and sizes that nobody says."""

from __future__ import annotations

import math

import pytest

from calibration.tables.conventions import convention, usual_size
from calibration.tables.runs import Point, Skipped, point_of
from predictor import catalog
from predictor.catalog.artifacts import load

RUN = load("none").run
LLAMA = catalog.model("llama2-7b")
ROW = {
    "point_id": "a", "source": "mine", "model": "llama2-7b", "accelerator": "H100-SXM5-80GB",
    "num_gpus": 8, "tp": 1, "pp": 1, "micro_batch": 1, "framework": "torchtitan",
    "precision": "bf16",
}  # fmt: skip


def point(**cells: object) -> Point:
    found = point_of({**ROW, **cells}, RUN)
    assert not isinstance(found, Skipped), found.reason
    return found


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("Megatron-Bridge flop_utils (causal)", "megatron_causal"),
        ("Model TFLOP/s per Korthikanti App. A, full s^2 attention, no causal halving", "megatron"),
        ("6 N per token + 12 L H Q T (PaLM app. B)", "palm"),
        ("attention counted causally (6*s^2*d*h*L) + 6*N*tok", "palm_causal"),
        ("6*N*D", "6nd"),
        ("formula not stated", None),
        ("", None),
    ],
)
def test_conventions_are_read_from_what_tables_say(told: str, name: str | None) -> None:
    assert convention(told) == name


def test_a_step_from_flop_by_hand() -> None:
    """6 N per token, 8 sequences of 4,096 tokens at 400 TFLOP/s on each of 8 accelerators."""
    cells = {"seq_len": 4096, "global_batch": 8, "metric": "model_tflops_per_gpu", "value": 400.0}
    found = point(**cells, flops_convention="6*N*D")
    flop = 6.0 * LLAMA.active_parameters * 4096 * 8
    assert found.measured == pytest.approx(flop / (8 * 400e12))
    assert found.told
    # Recomputation is counted where the hardware's FLOPs are: a third more of the layers.
    more = {**cells, "metric": "hw_tflops_per_gpu", "flops_convention": "eq 3 of Narayanan et al."}
    once, again = (point(**more, recompute=kind).measured for kind in ("none", "full"))
    assert 1.25 < again / once < 4 / 3
    assert math.isnan(point(**cells, flops_convention="not stated").measured)


def test_a_step_from_a_share_of_the_peak_by_hand() -> None:
    """40 % of 989.4 TFLOP/s are 395.8; of eight bits nobody says which peak is meant."""
    cells = {"seq_len": 4096, "global_batch": 8, "flops_convention": "6*N*D"}
    rate = 0.4 * float(catalog.accelerator("H100-SXM5-80GB").peak["bf16"]) / 1e12
    known = point(**cells, metric="model_tflops_per_gpu", value=rate).measured
    for value in (0.4, 40.0):
        assert point(**cells, metric="mfu", value=value).measured == pytest.approx(known)
    assert math.isnan(point(**cells, metric="mfu", value=0.4, precision="fp8").measured)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("Tokens/s/GPU", 4096.0), ("tokens per second", 32768.0), ("step time (ms)", 1e3),
     ("samples_per_s", 8.0), ("tokens_per_sec_per_device", 4096.0)],
)  # fmt: skip
def test_a_step_is_a_step_in_any_unit(metric: str, value: float) -> None:
    cells = {"seq_len": 4096, "global_batch": 8, "metric": metric, "value": value}
    assert point(**cells).measured == pytest.approx(1.0)


def test_sizes_that_nobody_says_are_usual_and_taught_to_no_fit() -> None:
    cells = {"metric": "tokens_per_s_per_gpu", "value": 1000.0, "memory_gb_per_gpu": 50.0}
    found = point(**cells)
    assert (found.request.plan.seq_len, found.request.plan.global_batch) == (4096, 32)
    assert not found.told
    assert math.isnan(found.memory)  # activations are those of the length
    assert found.measured == pytest.approx(4096 * 32 / 8000.0)
    fields = {"gpus": 64, "tp": 2, "pp": 4, "micro_batch": 2, "seq_len": 2048}
    assert usual_size(cells, fields, LLAMA) == {"global_batch": 2 * 8 * 32}


def test_a_step_time_without_its_size_is_no_point() -> None:
    found = point_of({**ROW, "step_time_s": 3.0}, RUN)
    assert isinstance(found, Skipped)
    assert "seq-len" in found.reason
