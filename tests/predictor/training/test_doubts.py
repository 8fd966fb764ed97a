"""What was assumed and matters."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.catalog import load
from predictor.plans import feasible
from predictor.precision import ELEMENT_BYTES
from predictor.training.completion import TRAINED_LOAD
from predictor.training.doubts import LAYOUT, MATTERS, OTHERS, OTHERWISE, USUAL, others

RUN = load("kernels-only").run

PLAN = {"gpus": 128, "tp": 4, "pp": 4, "global_batch": 128, "seq_len": 4096}


@cache
def explained(system: str, **stated: Any) -> Any:
    return reckon.predict_train("llama3-70b", system, {**PLAN, **stated}, "kernels-only").explain()


def test_what_would_change_the_step_is_what_changes_it_when_stated() -> None:
    why = explained("dgx-h100")
    assert why.doubts
    base = reckon.predict_train("llama3-70b", "dgx-h100", PLAN, "kernels-only").step_time.value
    for one in why.doubts[:4]:
        again = reckon.predict_train(
            "llama3-70b", "dgx-h100", {**PLAN, one.field: one.other}, "kernels-only"
        )
        assert again.step_time.value / base - 1 == pytest.approx(one.change, rel=1e-6), one.field


def test_what_is_stated_is_not_doubted() -> None:
    open_ = {one.field for one in explained("dgx-h100").doubts}
    assert "vpp" in open_
    closed = explained("dgx-h100", vpp=2, micro_batch=1)
    assert not {"vpp", "micro_batch"} & {one.field for one in closed.doubts}


def test_the_most_important_comes_first_and_trifles_not_at_all() -> None:
    found = explained("dgx-h100").doubts
    assert min(abs(one.change) for one in found) >= MATTERS
    weights = [one.weight for one in found]
    assert weights == sorted(weights, reverse=True)
    # Expected: how often others do otherwise, times no more than the largest change.
    for one in found:
        most = OTHERWISE.get(one.field, USUAL) * abs(math.log1p(one.change))
        assert 0.0 < one.weight <= most * (1 + 1e-12)
    assert len({one.field for one in found}) == len(found)
    assert {one.field for one in found} <= set(OTHERS)


def test_no_other_value_breaks_a_law() -> None:
    found = reckon.predict_train(
        "llama3-70b", "dgx-h100", {**PLAN, "pp": 1, "tp": 8}, "kernels-only"
    )
    assert "vpp" not in {one.field for one in found.explain().doubts}
    assert bool(feasible(found.request.plan, found.request.model).all())


def test_another_layout_has_as_many_accelerators() -> None:
    plan = {"gpus": 64, "global_batch": 256, "seq_len": 4096}
    request = reckon.predict_train("llama3-70b", "dgx-h100", plan, "kernels-only").request
    seen = 0
    for field in LAYOUT:
        for other, changed in others(request, field, RUN):
            assert other in (getattr(request.plan, field) * 0.5, getattr(request.plan, field) * 2)
            assert float(changed.gpus) == 64
            seen += 1
    assert seen > 2


def test_experts_are_as_uneven_as_switches_were_trained_with() -> None:
    """Capacities of 1.0, 1.25 and 2.0 per expert (Fedus et al. 2021, table 1); a rank averages over
    several experts, so that it is assumed to have no more than the 1.25 at which hardly any token
    is dropped, and doubted to have less than 2.0. None is less loaded than the mean."""
    loads = OTHERS["expert_load"]
    assert 1.0 == loads[0] < TRAINED_LOAD <= 1.25
    assert TRAINED_LOAD in loads
    assert 1.25 < loads[-1] < 2.0


@pytest.mark.parametrize(("tp", "values"), [(1, {2}), (2, {1, 4}), (8, {4})])
def test_a_layout_may_be_half_or_twice_as_wide(tp: int, values: set[int]) -> None:
    """Never less than one rank, and no more than the key heads of eight."""
    plan = {"gpus": 64, "pp": 8, "tp": tp, "global_batch": 256, "seq_len": 4096}
    request = reckon.predict_train("llama3-70b", "dgx-h100", plan, "kernels-only").request
    assert {value for value, _ in others(request, "tp", RUN)} == values


def test_an_unnamed_framework_is_doubted_with_its_habits() -> None:
    """As if it had been named, with all that it does where a plan says nothing: torchtitan and
    MaxText shard weights, and recompute what Megatron keeps."""
    why = reckon.predict_train("llama3-70b", "dgx-h100", PLAN, "default").explain()
    assert "framework" in {one.field for one in why.doubts}
    named = {**PLAN, "framework": "megatron-lm"}
    other = reckon.predict_train("llama3-70b", "dgx-h100", named, "default").explain()
    assert "framework" not in {one.field for one in other.doubts}
    request = reckon.predict_train("llama3-70b", "dgx-h100", {**PLAN, "pp": 1, "tp": 8}).request
    changed = dict(others(request, "framework", RUN))
    assert changed["torchtitan"].sharding == "fsdp"
    assert {name: plan.framework for name, plan in changed.items()} == {n: n for n in changed}


def test_who_names_no_framework_is_less_sure() -> None:
    """By `sigma_unnamed`, in a plan and in a search of plans; not on accelerators that one
    framework alone trains on."""
    known = load("kernels-only")
    sure = replace(known, run=replace(known.run, sigma_unnamed=0.0))
    unsure = replace(known, run=replace(known.run, sigma_unnamed=0.2))
    for system, named, extra in (
        ("dgx-h100", {}, 0.2),
        ("dgx-h100", {"framework": "nemo"}, 0.0),
        ("tpu-v5p", {}, 0.0),
    ):
        plan = {"gpus": 64, "tp": 4, "global_batch": 128, "seq_len": 4096, **named}
        one, other = (
            reckon.predict_train("llama3-70b", system, plan, each).batch.sigma
            for each in (sure, unsure)
        )
        assert float(other) == pytest.approx(math.hypot(float(one), extra)), (system, named)
    plan = {"gpus": 8, "global_batch": 8, "seq_len": 4096, "tp": 8, "recompute": "full"}
    best = [reckon.search("llama3-8b", "dgx-h100", plan, each) for each in (sure, unsure)]
    one, other = (found.entry(0)["step_time_s"] for found in best)
    assert other["value"] == one["value"]
    assert other["high"] / other["low"] > 1.2 * one["high"] / one["low"]


@pytest.mark.parametrize(("system", "others"), [("dgx-h100", {"fp8"}), ("dgx-a100-80gb", set())])
def test_narrower_products_are_doubted_where_there_are_some(system: str, others: set[str]) -> None:
    """Who states no precision may well train in 8 bits where the accelerator multiplies them."""

    def doubted(**stated: Any) -> dict[str, Any]:
        return {one.field: one for one in explained(system, **stated).doubts}

    open_ = doubted()
    assert {one.other for one in open_.values() if one.field == "precision"} == others
    if others:
        assert open_["precision"].value == "bf16"
        assert open_["precision"].change < 0.0
        assert "precision" not in doubted(precision="bf16")


def test_other_values_are_doublings_and_bytes_of_types() -> None:
    """Up to eight sequences or chunks at a time; gradients travel in 16 or 32 bits; a factor of a
    layout is undone by the other."""
    for field in ("vpp", "micro_batch"):
        assert OTHERS[field] == tuple(2**power for power in range(4))
    assert OTHERS["reduce_bytes"] == (ELEMENT_BYTES["bf16"], ELEMENT_BYTES["fp32"])
    for field in LAYOUT:
        assert np.prod(OTHERS[field]) == 1.0
        assert max(OTHERS[field]) == 2.0
    loads = OTHERS["expert_load"]
    assert min(loads) == 1.0
    assert list(loads) == sorted(loads)
    shares = [share for field, share in OTHERWISE.items() if field != "framework"]
    assert all(0.0 < share < 0.5 for share in shares), "what is assumed is what most have"
    assert shares == sorted(shares, reverse=True), "most first"
    assert pytest.approx(np.mean(shares), abs=0.005) == USUAL
    assert OTHERWISE["framework"] == 1.0, "nobody runs the neutral one"


@pytest.mark.parametrize(("pp", "shards"), [(1, True), (2, False)])
def test_weights_are_sharded_by_who_has_no_pipeline(pp: int, shards: bool) -> None:
    plan = {"gpus": 64, "tp": 4, "pp": pp, "global_batch": 256, "seq_len": 4096}
    request = reckon.predict_train("llama3-8b", "dgx-h100", plan, "kernels-only").request
    found = {value for value, _ in others(request, "sharding", RUN)}
    assert ("fsdp" in found) == shards
    assert found <= set(OTHERS["sharding"]) - {request.plan.sharding}
