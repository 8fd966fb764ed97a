"""watch without a plan of its own: what stands beside it is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import reckon

Cli = Callable[..., tuple[int, str, str]]

PLAN = {"gpus": 8, "tp": 2, "global_batch": 16, "seq_len": 4096}


def log_of(path: Path, steps: int, seconds: float) -> Path:
    """So many steps as Megatron-LM prints them."""
    lines = [
        f" [2025-03-04 10:{at // 60:02}:{at % 60:02}] iteration {at + 1:8}/ 500 | consumed "
        "samples: "
        f"{16 * (at + 1):12} | elapsed time per iteration (ms): {1e3 * seconds:.1f} | "
        "global batch size:    16 | lm loss: 1.1E+01 |"
        for at in range(steps)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (3.0, 1)])
def test_flags_alone_say_what_a_job_is_held_against(
    cli: Cli, tmp_path: Path, factor: float, status: int
) -> None:
    """They were dropped without a word, and any job was as predicted."""
    own = reckon.predict_train("llama3-8b", "dgx-h100", PLAN).step_time
    log = log_of(tmp_path / "train.log", 40, factor * own.value)
    beside = [f"--set={key}={value}" for key, value in PLAN.items()]
    told = ("--model", "llama3-8b", "--system", "dgx-h100", *beside)
    found, out, _ = cli("watch", log, "--once", "--json", *told)
    assert found == status
    end = json.loads(out.splitlines()[-1])
    assert end["predicted_s"] == own.value
    assert end["ratio"] == pytest.approx(factor, rel=1e-3)


def test_a_job_of_few_steps_is_not_called_as_predicted(tmp_path: Path) -> None:
    log = log_of(tmp_path / "train.log", 4, 30.0)
    *_, end = reckon.watch(log, fields={"model": "llama3-8b", "system": "dgx-h100", **PLAN},
                           once=True)  # fmt: skip
    assert end["inside"] is None
    assert end["text"] == "4 steps, too few to judge"
