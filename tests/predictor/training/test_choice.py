"""What is open together: further division of what does not fit, recomputation with its batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog import load, parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.memory import memory
from predictor.plans import TrainingPlan
from predictor.timing import RunParameters
from predictor.training.choice import price
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.fitting import Draft
from predictor.training.prediction import predict

RUN = RunParameters()
TITAN: dict[str, Any] = {"system": "dgx-h100", "seq_len": 4096, "framework": "torchtitan"}
LARGE: dict[str, Any] = {**TITAN, "model": "deepseek-v3", "gpus": 512, "global_batch": 4096}
OPT: dict[str, Any] = {
    "model": "opt-175b", "system": "dgx-a100-80gb", "gpus": 1024, "tp": 8, "sharding": "fsdp",
    "global_batch": 1024, "seq_len": 2048, "precision": "fp16", "era": "2022-05",
}  # fmt: skip


def complete(**fields: Any) -> TrainingRequest:
    return complete_training(parse(TrainingPlanSpec, fields, "test"), RUN)


def fits(found: TrainingRequest) -> bool:
    peak = float(memory(found.model, found.plan, RUN).peak)
    return peak <= float(found.cluster.accelerator.memory)


def seconds(found: TrainingRequest) -> float:
    return float(predict(found.model, found.cluster, found.plan, load("default")).step_time)


def rule(found: TrainingRequest, field: str) -> str:
    return next(one.rule for one in found.assumed if one.field == field)


def test_experts_that_a_framework_leaves_whole_are_divided_where_nothing_fits() -> None:
    """And only there, and not where somebody states that they are whole; whole layers run again
    where the framework's usual recomputation fits with no division."""
    found, whole = complete(**LARGE), complete(**LARGE, ep=1)
    assert found.plan.ep > 1 == whole.plan.ep
    assert fits(found) > fits(whole)
    assert (found.plan.recompute, whole.plan.recompute) == ("full", "per_op")
    assert "so that it fits" in rule(found, "ep")
    assert rule(found, "recompute") == "whole layers: nothing less fits"
    assert seconds(found) < seconds(whole)
    small = complete(**TITAN, model="qwen3-30b-a3b", gpus=16, global_batch=512)
    assert small.plan.ep == 1
    assert rule(small, "ep") == "default of torchtitan"
    none = complete(**{**LARGE, "gpus": 64})  # fits however it is divided not at all
    assert (none.plan.ep, none.plan.recompute) == (1, "per_op")


def test_shards_leave_the_node_where_nothing_fits_inside() -> None:
    given = {**TITAN, "model": "llama3-70b", "gpus": 64, "global_batch": 64, "sharding": "hsdp"}
    found, stated = complete(**given, tp=1), complete(**given, tp=1, dp_shard=8)
    assert found.plan.dp_shard > 8 == stated.plan.dp_shard
    assert fits(found) > fits(stated)
    assert complete(**{**given, "model": "llama3-8b"}, tp=1).plan.dp_shard == 8


def test_what_is_gathered_with_every_micro_batch_is_worth_computing_again() -> None:
    """Eight sequences at once, whose layers run again, gather weights an eighth as often as one."""
    found, kept = complete(**OPT), complete(**OPT, recompute="none")
    assert (kept.plan.micro_batch, found.plan.micro_batch) == (1, 8)
    assert fits(found)
    assert fits(kept)
    assert seconds(found) < seconds(kept) / 2
    fixed = complete(**OPT, micro_batch=1)
    assert fixed.plan.recompute == "none"
    # State of which nothing travels before the last micro-batch leaves nothing to save.
    replicas = {**OPT, "model": "llama3-8b", "tp": 1, "sharding": "zero1"}
    assert complete(**replicas).plan.recompute == "none"


@pytest.mark.parametrize("again", ["none", "full"])
def test_a_price_by_hand(again: str) -> None:
    """Passes of six FLOPs a weight and token at six tenths of the peak; two gathers and one sum of
    all weights over the network between nodes, hidden behind them as far as they last."""
    model, cluster = catalog.model("llama3-70b"), catalog.system("dgx-h100")
    draft = Draft(model, cluster, {"sharding": "fsdp"}, False)
    plan = TrainingPlan(tp=1.0, pp=1.0, dp=64.0, micro_batch=1.0, global_batch=64.0, seq_len=512.0,
                        sharding="fsdp", recompute=again)  # fmt: skip
    computed = 6.0 * model.parameters * 512 / (0.6 * float(cluster.accelerator.peak["bf16"]))
    moved = (2 * 2.0 + 4.0) * model.parameters / (8 * float(cluster.tiers[-1].rate))
    passes = 1.33 if again == "full" else 1.0
    assert moved > passes * computed
    shown = replace(plan, grad_overlap=False, param_overlap=False)
    reduced = replace(plan, reduce_bytes=4.0)
    assert price(draft, reduced) == pytest.approx(moved / computed)
    assert price(draft, shown) == pytest.approx(passes + moved / computed)
    tuned = replace(shown, trained="lora")  # gathers, and sums of adapters alone
    assert price(draft, tuned) == pytest.approx(passes + moved / 2 / computed)
    assert price(draft, replace(plan, sharding="zero1")) == pytest.approx(passes)
    several = replace(plan, micro_batch=64.0, global_batch=4096.0)
    assert price(draft, several) == pytest.approx(passes)
