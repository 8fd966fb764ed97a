"""Logs and tables of learning from preferences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.tables.runs import Point, point_of
from predictor.catalog.artifacts import load
from reckon.logs import read_log

BANNER = """***** Running training *****
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 32
"""
LINE = "{'loss': 0.6, 'rewards/chosen': 0.1, 'rewards/margins': 0.1, 'logps/chosen': -9.0%s}\n"
BAR = "  2%%|1         | %d/1000 [%02d:%02d<1:06:00,  4.00s/it]\n"


def log(tmp_path: Path, more: str) -> Any:
    bars = "".join(BAR % (n, 4 * n // 60, 4 * n % 60) + LINE % more for n in (10, 20, 30, 40))
    path = tmp_path / "train.log"
    path.write_text(BANNER + bars)
    return read_log(path)


@pytest.mark.parametrize(
    ("more", "objective", "batch", "micro"),
    [("", "dpo", 64, 4), (", 'kl': 0.1", "kto", 32, 2), (", 'log_odds_ratio': 0.1", "orpo", 64, 4)],
)
def test_a_log_says_what_it_learns_from(
    tmp_path: Path, more: str, objective: str, batch: int, micro: int
) -> None:
    told = log(tmp_path, more).stated
    assert (told["learns_from"], told["global_batch"], told["micro_batch"]) == (
        objective, batch, micro,
    )  # fmt: skip


def test_a_state_counts_pairs(tmp_path: Path) -> None:
    entries = [
        {"step": 10, "loss": 0.6, "rewards/margins": 0.1},
        {"step": 20, "train_runtime": 80.0, "train_samples_per_second": 8.0},
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": entries, "train_batch_size": 2, "max_steps": 20}))
    told = read_log(path).stated
    assert (told["learns_from"], told["global_batch"], told["micro_batch"]) == ("dpo", 64, 4)


def test_answers_that_are_generated_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    line = "{'loss': 0.0, 'completions/mean_length': 200.0, 'reward_std': 0.1}\n"
    path.write_text(BANNER + "".join(BAR % (n, 0, n) + line for n in (10, 20, 30)))
    assert any("reckon predict rl" in note for note in read_log(path).notes)


ROW: dict[str, Any] = {
    "point_id": "a", "source": "s", "accelerator": "H100-SXM5-80GB", "num_gpus": 8,
    "model": "llama3-8b", "seq_len": 2048, "precision": "bf16", "global_batch": 32,
    "micro_batch": 1, "tp": 1, "pp": 1, "framework": "huggingface", "metric": "samples_per_s",
    "value": 10.0, "notes": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "objective", "batch"),
    [
        ({}, "tokens", 32),
        ({"notes": "DPO, beta 0.1"}, "dpo", 64),
        ({"model": "llama3-8b (KTO)"}, "kto", 32),
        ({"notes": "weights of a base without DPO"}, "tokens", 32),
        ({"learns_from": "dpo", "micro_batch": 2}, "dpo", 32),  # a column counts sequences
    ],
)
def test_a_row_that_says_so_is_read_so(own: dict[str, Any], objective: str, batch: int) -> None:
    """A row's samples are pairs, of which it says how many come a second."""
    point = point_of({**ROW, **own}, load("kernels-only").run)
    assert isinstance(point, Point)
    assert (point.request.plan.learns_from, point.request.plan.global_batch) == (objective, batch)
    assert point.measured == pytest.approx(3.2)
