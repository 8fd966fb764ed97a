"""Results as objects: how they read, how they travel, and what is refused as a plan."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.catalog import load
from predictor.errors import InputError
from predictor.plans import ServingPlan, TrainingPlan

PLAN = {"gpus": 8, "tp": 2, "global_batch": 16, "seq_len": 2048}
SERVED = {"tp": 1, "batch": 1, "input_len": 128, "output_len": 8}


def trained(plan: Any = PLAN, calibration: Any = "default") -> Any:
    return reckon.predict_train("llama3-8b", "dgx-h100", plan, calibration)


def served(plan: Any = SERVED) -> Any:
    return reckon.predict_infer("llama3-8b", "dgx-h100", plan)


def test_results_read_as_a_line() -> None:
    """As notebooks and debuggers show them; a megabyte of fitted arrays is none."""
    narrow = {**PLAN, "recompute": "none", "schedule": "1f1b", "sharding": "zero1"}
    found = reckon.search("llama3-8b", "dgx-h100", narrow)
    load_ = {"input_len": 128, "output_len": 8, "tp": 1, "precision": "bf16"}
    fleets = reckon.search_infer("llama3-8b", "dgx-h100", load_, 1.0, ttft=1.0, tpot=0.1)
    one = trained()
    for result in (one, served(), found, fleets, load("default")):
        assert len(repr(result)) < 200
        assert "\n" not in repr(result)
    step = one.step_time
    assert f"{step.value:.4g} ({step.low:.4g} to {step.high:.4g}) s" in repr(one)
    assert len(repr(one.batch)) < 50_000


def test_a_copy_is_as_the_original_and_begins_without_what_was_kept() -> None:
    one = trained()
    known = one.batch.calibration
    again = pickle.loads(pickle.dumps(known))
    assert len(pickle.dumps(again)) == len(pickle.dumps(known))
    asked: list[int] = []
    assert known.once(("asked",), lambda: asked.append(1) or 7) == 7
    assert known.once(("asked",), lambda: asked.append(1) or 8) == 7
    assert copy.deepcopy(known).once(("asked",), lambda: asked.append(1) or 9) == 9
    assert len(asked) == 2
    for like in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
        assert like.to_dict() == one.to_dict()


WHOLE = {"pp": 1.0, "dp": 4.0, "micro_batch": 1.0, "global_batch": 16.0, "seq_len": 2048.0}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "plan: expected keys and values, a file or a TrainingPlan, got NoneType"),
        ([PLAN], "a file or a TrainingPlan, got list"),
        (ServingPlan(batch=1.0, input_len=8.0, output_len=2.0), "TrainingPlan, got ServingPlan"),
        (TrainingPlan(tp=3.0, **WHOLE), "tp 3 does not divide the 32 attention heads"),
        (
            TrainingPlan(tp=np.ones(2), **{**WHOLE, "dp": np.ones(3)}),
            r"its arrays do not go together: .*tp \(2,\)",
        ),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(plan: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trained(plan)


def test_what_is_no_plan_of_serving_or_no_calibration_or_limit_is_refused() -> None:
    with pytest.raises(InputError, match="a file or a ServingPlan, got TrainingPlan"):
        served(TrainingPlan(tp=1.0, **WHOLE))
    with pytest.raises(InputError, match="tp 3 does not divide"):
        served(ServingPlan(tp=3.0, batch=1.0, input_len=8.0, output_len=2.0))
    with pytest.raises(InputError, match="expected a name, a folder or a Calibration"):
        trained(PLAN, None)
    with pytest.raises(InputError, match="unknown limit of a search 'dayz'; did you mean 'days'"):
        reckon.search("llama3-8b", "dgx-h100", PLAN, dayz=3)


def test_lengths_may_be_written_as_8k_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("gpus: 8\ntp: 2\nglobal_batch: 16\nseq_len: 2k\n", encoding="utf-8")
    assert trained(path).step_time == trained({**PLAN, "seq_len": "2k"}).step_time
    assert trained(path).step_time == trained().step_time
    assert served({**SERVED, "input_len": "1K"}).ttft == served({**SERVED, "input_len": 1024}).ttft
