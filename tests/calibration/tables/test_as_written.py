"""Rows as strangers write them: units behind numbers, batches in tokens, what is trained."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from calibration.checks.scoreboard import score
from calibration.power.stated import check_power
from calibration.sources.headers import as_headed
from calibration.tables.cells import check_runs, numbers, plain_number, without_units
from calibration.tables.runs import Point, point_of
from predictor.catalog import load
from predictor.errors import InputError

TRAINING = {
    "source": "s", "published": "2024-06", "accelerator": "H100", "num_gpus": "8",
    "model": "llama3-8b", "seq_len": "4096", "precision": "bf16", "global_batch": "64",
    "micro_batch": "1", "framework": "torchtitan", "metric": "step_time_s", "value": "5",
}  # fmt: skip

SERVING = {
    "source": "s", "published": "2025-06", "accelerator": "TPU v5p", "num_gpus": "1",
    "model": "llama3.1-8b", "weights_precision": "bf16", "tp": "1", "batch": "8",
    "input_len": "512", "output_len": "128", "metric": "tpot_ms", "value": "10",
}  # fmt: skip


def predicted(path: Path, usual: dict[str, str], *written: dict[str, str]) -> list[float]:
    """What is predicted of one row after the other."""
    rows = [{**usual, "point_id": f"p{n}", **one} for n, one in enumerate(written)]
    pd.DataFrame(rows).to_csv(path / "t.csv", index=False)
    found = score([path / "t.csv"], load("default"))
    assert found.skipped == []
    return [{one.point_id: one.predicted for one in found.rows}[f"p{n}"] for n in range(len(rows))]


@pytest.mark.parametrize(
    ("column", "said", "number"),
    [
        ("seq_len", "4096 tokens", 4096),
        ("seq_len", "8k tokens", 8192),
        ("num_gpus", "1,024 GPUs", 1024),
        ("num_gpus", "256 chips", 256),
        ("global_batch", "64 sequences", 64),
        ("global_batch", "4M tokens", 1024),
        ("global_batch", "524,288 tokens", 128),
        ("micro_batch", "2 samples", 2),
    ],
)
def test_a_unit_behind_a_number_is_its_columns(column: str, said: str, number: float) -> None:
    table = pd.DataFrame([{"seq_len": "4096", column: said}, {"seq_len": "4096", column: "16"}])
    assert check_runs(table, "t.csv")[column].tolist() == [number, 16]


def test_a_unit_of_something_else_is_not_read() -> None:
    table = pd.DataFrame([{"num_gpus": "8 nodes"}, {"num_gpus": "16"}])
    told = check_runs(table, "t.csv", by_row=True)["@unread"]
    assert "num_gpus must be a number" in told[0]


def test_what_is_trained_in_words(tmp_path: Path) -> None:
    qlora, noted, full, usual = predicted(
        tmp_path, TRAINING, {"trained": "QLoRA"}, {"notes": "QLoRA"}, {"trained": "full"}, {}
    )
    assert qlora == noted < full == usual


def test_sixteen_bits_of_a_tpu_are_bf16(tmp_path: Path) -> None:
    half, own = predicted(tmp_path, SERVING, {"weights_precision": "fp16"}, {})
    assert half == own
    tpus = {**TRAINING, "accelerator": "TPU v5e", "num_gpus": "64", "framework": "maxtext"}
    half, own = predicted(tmp_path, tpus, {"precision": "fp16"}, {})
    assert half == own


def test_experts_of_fewer_accelerators_than_stages_are_refused_for_the_stages(
    tmp_path: Path,
) -> None:
    row = {**TRAINING, "model": "mixtral-8x7b", "num_gpus": "1", "pp": "4", "ep": "8"}
    pd.DataFrame([row]).to_csv(tmp_path / "t.csv", index=False)
    (one,) = score([tmp_path / "t.csv"], load("default")).skipped
    assert "multiple of tp" in one.reason


def test_headers_as_people_write_them() -> None:
    heads = ["GPU", "Model name", "Power limit (W)", "GBS", "Avg_power_w", "dtype", "odd one"]
    table = as_headed(pd.DataFrame([[1] * len(heads)], columns=heads))
    told = ["accelerator", "model", "power_limit_w", "global_batch", "avg_power_w", "precision"]
    assert list(table.columns) == [*told, "odd one"]
    both = pd.DataFrame([[1, 2]], columns=["gpus", "num_gpus"])
    assert list(as_headed(both).columns) == ["gpus", "num_gpus"]
    kernels = pd.DataFrame([[1, 2]], columns=["dtype", "latency_us"])
    assert list(as_headed(kernels).columns) == ["dtype", "latency_us"]


@pytest.mark.parametrize(
    ("column", "said", "number"),
    [
        ("memory_gb_per_gpu", "18.2 GB", 18.2),
        ("peak_gib", "40960 MiB", 40.0),
        ("peak_gib", "22,5", 22.5),
        ("num_gpus", "1,024", 1024),
        ("power_limit_w", "450 W", 450),
        ("avg_power_w", "1.2 kW", 1200),
        ("energy_per_out_token_j", "1.2 J", 1.2),
        ("output_tok_s", "110 tok/s", 110),
    ],
)
def test_units_of_power_and_memory(column: str, said: str, number: float) -> None:
    table = without_units(pd.DataFrame([{column: said}, {column: "16"}]))
    assert numbers(table, [column], "t.csv")[column].tolist() == [number, 16]


@pytest.mark.parametrize("said", ["1.2.3 GB", ". GB", "1,2,3 GiB"])
def test_what_is_no_number_before_a_unit_is_named(said: str) -> None:
    with pytest.raises(InputError, match="line 2: memory_gb_per_gpu must be a number"):
        check_runs(pd.DataFrame([{**TRAINING, "memory_gb_per_gpu": said}]), "t")


@pytest.mark.parametrize(
    ("said", "number"), [("450k", 4.5e5), ("42%", 42.0), (".5", 0.5), ("e5", None), (".", None)]
)
def test_values_as_people_write_them(said: str, number: float | None) -> None:
    assert plain_number(said) == number


def test_a_limit_may_be_a_share_of_the_highest() -> None:
    rows = [{"accelerator": "RTX 3090", "power_limit_w": one} for one in ("100%", "60 %", "175")]
    other = {"accelerator": "mystery", "power_limit_w": "60%"}
    checked = check_power(pd.DataFrame([*rows, other]), "sweeps", "t.csv")["power_limit_w"]
    assert checked[:3].tolist() == [350.0, 210.0, 175.0]
    assert math.isnan(checked[3])


MEMORY = {**TRAINING, "metric": "", "value": ""}


@pytest.mark.parametrize(
    ("cells", "peak", "status"),
    [
        ({"peak_gib": "30"}, 30.0, ""),
        ({"peak_gib": "OOM"}, math.nan, "OOM"),
        ({"status": "FAILED (OOM)"}, math.nan, "OOM"),
        ({"status": "out of memory"}, math.nan, "OOM"),
        ({"status": "ok", "memory_gb_per_gpu": "40 GiB"}, 40.0, "Success"),
        ({"global_batch": "", "peak_gib": "30"}, 30.0, ""),
        ({"memory_gb_per_gpu": "0"}, math.nan, ""),
    ],
)
def test_peaks_and_how_a_run_ended(cells: dict[str, str], peak: float, status: str) -> None:
    table = check_runs(pd.DataFrame([{**MEMORY, **cells}, MEMORY]), "t.csv")
    found = point_of(table.to_dict("records")[0], load("none").run)
    assert isinstance(found, Point), found.reason
    assert found.memory / 2**30 == pytest.approx(peak, nan_ok=True)
    assert found.status == status


@pytest.mark.parametrize(
    ("trained", "quantized", "kept"),
    [
        ("dora", "", "as multiplied"),
        ("LoRA (r=16)", "", "as multiplied"),
        ("lora", "4bit", "nf4"),
        ("lora_all", "bnb-int8", "int8"),
        ("QLoRA", "", "nf4"),
    ],
)
def test_adapters_by_their_names(trained: str, quantized: str, kept: str) -> None:
    cells = {"trained": trained, "quantized": quantized, "peak_gib": 20.0, "gradient_bytes": 0.0}
    row = {**MEMORY, "num_gpus": 8, "seq_len": 4096, "global_batch": 64, "micro_batch": 1, **cells}
    found = point_of(row, load("none").run)
    assert isinstance(found, Point), found.reason
    assert found.request.plan.trained == "lora"
    assert found.request.plan.frozen_precision == kept


def test_no_row_of_served_energy_is_lost(tmp_path: Path) -> None:
    """A row without power or energy, one of an accelerator whose power nobody states, and a line
    that says nothing cost no other row."""
    usual = {"source": "mine", "model": "llama3.1-8b", "n_gpus": 1, "engine": "vllm", "batch": 16,
             "precision": "bf16", "input_len": 512, "output_len": 256, "output_tok_s": 1200,
             "power_per_gpu_w": 400, "accelerator": "H100"}  # fmt: skip
    rows = [usual, {**usual, "accelerator": "TPU v5e"}, {**usual, "power_per_gpu_w": None}, {}]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    found = score([tmp_path / "t.csv"], load("default"))
    assert {one.point_id for one in found.rows} == {"mine:0"}
    assert {one.point_id for one in found.skipped} == {"mine:1", "mine:2"}
    assert found.total == 3
