"""What was assumed and matters."""

from __future__ import annotations

from typing import Any

import pytest

import reckon
from predictor.plans import feasible
from predictor.training.doubts import MATTERS, OTHERS

PLAN = {"gpus": 128, "tp": 4, "pp": 4, "global_batch": 128, "seq_len": 4096}


def explained(**stated: Any) -> Any:
    return reckon.predict_train(
        "llama3-70b", "dgx-h100", {**PLAN, **stated}, "kernels-only"
    ).explain()


def test_what_would_change_the_step_is_what_changes_it_when_stated() -> None:
    why = explained()
    assert why.doubts
    base = reckon.predict_train("llama3-70b", "dgx-h100", PLAN, "kernels-only").step_time.value
    for one in why.doubts[:4]:
        again = reckon.predict_train(
            "llama3-70b", "dgx-h100", {**PLAN, one.field: one.other}, "kernels-only"
        )
        if one.field == "attention":
            continue  # what fits decides of recomputation, too
        assert again.step_time.value / base - 1 == pytest.approx(one.change, rel=1e-6), one.field


def test_what_is_stated_is_not_doubted() -> None:
    open_ = {one.field for one in explained().doubts}
    assert "vpp" in open_
    closed = explained(vpp=2, micro_batch=1)
    assert not {"vpp", "micro_batch"} & {one.field for one in closed.doubts}


def test_the_most_important_comes_first_and_trifles_not_at_all() -> None:
    found = explained().doubts
    sizes = [abs(one.change) for one in found]
    assert min(sizes) >= MATTERS
    assert len({one.field for one in found}) == len(found)
    assert {one.field for one in found} <= set(OTHERS)


def test_no_other_value_breaks_a_law() -> None:
    found = reckon.predict_train(
        "llama3-70b", "dgx-h100", {**PLAN, "pp": 1, "tp": 8}, "kernels-only"
    )
    assert "vpp" not in {one.field for one in found.explain().doubts}
    assert bool(feasible(found.request.plan, found.request.model).all())
