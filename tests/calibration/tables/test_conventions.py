"""Published rates as step times: conventions of FLOPs, and sizes that nobody says."""

from __future__ import annotations

import math

import pytest

from calibration.tables.cells import plain_number
from calibration.tables.conventions import convention, usual_size
from calibration.tables.runs import Point, Skipped, point_of
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.models import model_flop_per_token

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


def test_a_step_from_a_share_of_the_peak_by_hand() -> None:
    """40 % of 989.4 TFLOP/s are 395.8; of eight bits nobody says which peak is meant."""
    cells = {"seq_len": 4096, "global_batch": 8, "flops_convention": "6*N*D"}
    rate = 0.4 * float(catalog.accelerator("H100-SXM5-80GB").peak["bf16"]) / 1e12
    known = point(**cells, metric="model_tflops_per_gpu", value=rate).measured
    for value in (0.4, 40.0):
        assert point(**cells, metric="mfu", value=value).measured == pytest.approx(known)
    unsaid = {**cells, "metric": "mfu", "value": 0.4, "precision": "fp8"}
    assert "of which peak" in point(**{**unsaid, "framework": "nemo"}).why
    assert "nothing is known of the metric" in point(**{**unsaid, "metric": "goodness"}).why
    for told in ({"framework": "torchtitan"}, {"notes": "share of the bf16 peak"},
                 {"notes": "peak 989.4 TFLOPS"}):  # fmt: skip
        assert point(**{**unsaid, "framework": "nemo", **told}).measured == pytest.approx(known)
    narrow = point(**{**unsaid, "framework": "nemo", "notes": "of the FP8 peak"})
    assert narrow.measured == pytest.approx(known / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("framework", "month", "name"),
    [
        ("megatron-lm", "2024-06", "megatron"),
        ("megatron-lm", "2025-06", "megatron_causal"),
        ("torchtitan", "2025-06", "megatron"),
        ("maxtext", "2025-12", "megatron_causal"),
        ("huggingface", "2024-06", "palm"),
    ],
)
def test_who_does_not_say_how_it_counts_counts_as_its_framework(
    framework: str, month: str, name: str
) -> None:
    cells = {"seq_len": 4096, "global_batch": 8, "metric": "TFLOPs/GPU", "value": "400 TFLOPS"}
    cells = {**cells, "value": 400.0, "framework": framework, "published": month}
    found = point(**cells)
    flop = float(model_flop_per_token(LLAMA, 4096, name)) * 4096 * 8
    assert found.measured == pytest.approx(flop / (8 * 400e12))
    assert not found.told  # guessed, so that no fit learns from it
    assert point(**cells, flops_convention="6*N*D").told
    half = float(model_flop_per_token(LLAMA, 4096, f"{name.removesuffix('_causal')}_causal"))
    assert point(**{**cells, "metric": "TFLOPs/GPU (causal)"}).measured == pytest.approx(
        half * 4096 * 8 / (8 * 400e12)
    )


def test_flops_of_megatron_deepspeed_count_what_is_computed_again() -> None:
    cells = {"seq_len": 4096, "global_batch": 8, "framework": "megatron-deepspeed",
             "value": 150.0}  # fmt: skip
    plain, again = (point(**cells, metric="TFLOPs/GPU", recompute=r) for r in ("none", "full"))
    assert 1.25 < again.measured / plain.measured < 4 / 3
    own = point(**cells, metric="model TFLOPs/GPU", recompute="full")
    assert own.measured == pytest.approx(plain.measured)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("Tokens/s/GPU", 4096.0), ("tokens per second", 32768.0), ("step time (ms)", 1e3),
     ("samples_per_s", 8.0), ("tokens_per_sec_per_device", 4096.0), ("TGS", 4096.0),
     ("tokens/GPU/sec", 4096.0), ("s/it", 1.0), ("ms/step", 1e3), ("steps per second", 1.0),
     ("elapsed time per iteration (ms)", 1e3), ("sequences/s/GPU", 1.0),
     ("tokens/day", 32768.0 * 86400.0)],
)  # fmt: skip
def test_a_step_is_a_step_in_any_unit(metric: str, value: float) -> None:
    cells = {"seq_len": 4096, "global_batch": 8, "metric": metric, "value": value}
    assert point(**cells).measured == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("column", "value"),
    [("MFU (%)", "41.2"), ("tflops_per_gpu", 412.0), ("Tokens/s/GPU", "4,096"), ("s/it", 1.0)],
)
def test_a_column_may_be_called_by_what_it_holds(column: str, value: object) -> None:
    cells = {"seq_len": 4096, "global_batch": 8, column: value}
    assert 0.4 < point(**cells).measured < 2.0
    stated = point(**cells, metric="step_time_s", value=3.0)
    assert stated.measured == 3.0


def test_a_whole_run_is_so_many_steps() -> None:
    """1e12 tokens in steps of 32,768 are 3.05e7 steps; 10 days are .0283 s each."""
    cells = {"seq_len": 4096, "global_batch": 8}
    seconds = 10 * 86400.0 / (1e12 / (8 * 4096))
    for told in ({"tokens": 1e12}, {"notes": "trained on 1T tokens"}, {"notes": "1,000B tokens"}):
        days = point(**cells, **told, metric="total_days", value=10.0)
        assert days.measured == pytest.approx(seconds)
        hours = point(**cells, **told, metric="GPU hours", value=10.0 * 24 * 8)
        assert hours.measured == pytest.approx(seconds)
    assert "without the tokens" in point(**cells, metric="total_days", value=10.0).why


@pytest.mark.parametrize(
    ("said", "number"),
    [("450k", 450e3), ("1.3M", 1.3e6), ("42 %", 42.0), ("7,000", 7000.0), ("420 TFLOPS", 420.0),
     ("~5.5", 5.5), ("6.5e3 tokens/s", 6500.0), (".4", 0.4), ("5 ms", None), ("fast", None)],
)  # fmt: skip
def test_a_value_as_people_write_it(said: str, number: float | None) -> None:
    assert plain_number(said) == (None if number is None else pytest.approx(number))


def test_memory_may_be_what_was_measured() -> None:
    cells = {"seq_len": 4096, "global_batch": 8}
    found = point(**cells, metric="memory_gb_per_gpu", value=60.0)
    assert found.memory == pytest.approx(60.0 * 2**30)
    assert math.isnan(found.measured)


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
