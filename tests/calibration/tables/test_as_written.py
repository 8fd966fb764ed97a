"""Rows as strangers write them: units behind numbers, batches in tokens, what is trained."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from calibration.checks.scoreboard import score
from calibration.tables.cells import check_runs
from predictor.catalog import load

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
