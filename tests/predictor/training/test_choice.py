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


def test_experts_are_divided_where_gathering_them_costs_far_more() -> None:
    """DeepSeek-V3 on 1,024 B200 fits with whole experts, hundreds of which every micro-batch would
    gather: the larger Kimi K2, which does not, was three times as fast. Not where HuggingFace
    trains, which divides none, nor where it costs about as much."""
    large = {**LARGE, "system": "dgx-b200", "gpus": 1024, "global_batch": 1024}
    found, whole = complete(**large), complete(**large, ep=1)
    assert fits(whole)
    assert found.plan.ep > 1 == whole.plan.ep
    assert seconds(found) < seconds(whole) / 2
    assert complete(**{**large, "framework": "huggingface"}).plan.ep == 1
    near = {**TITAN, "model": "mixtral-8x7b", "gpus": 64, "global_batch": 1024}
    assert rule(complete(**near), "ep") == "default of torchtitan"


def test_sharded_experts_are_divided_as_far_as_it_pays() -> None:
    """Nobody says how: among all ranks, tokens to other nodes took four times what gathers do."""
    given = {"system": "dgx-b200", "framework": "deepspeed", "model": "qwen3-235b-a22b",
             "gpus": 256, "global_batch": 4096, "seq_len": 4096}  # fmt: skip
    found = complete(**given)
    for other in (complete(**given, ep=ep) for ep in (8, 128)):
        assert seconds(found) < 1.02 * seconds(other)
    assert complete(**given, ep=128).plan.ep == 128


def test_chips_divide_layers_where_no_sequence_fits_otherwise() -> None:
    """70B of 8,192 tokens on 128 chips of 32 GB: two ranks a layer; what is stated holds."""
    chips = {"model": "llama3-70b", "gpus": 128, "global_batch": 512, "seq_len": 8192}
    found, stated = (complete(accelerator="TPUv6e", **chips, **one) for one in ({}, {"tp": 1}))
    assert (found.plan.tp, stated.plan.tp, stated.plan.micro_batch) == (2, 1, 1)
    assert fits(found) > fits(stated)
    assert complete(accelerator="TPUv6e", **{**chips, "seq_len": 4096}).plan.tp == 1


def test_whole_layers_run_again_where_nothing_else_fits() -> None:
    """GPT-3 on 512 H100 that shard it: the framework's own checkpoints keep 100 GB."""
    large = {**TITAN, "model": "gpt3-175b", "gpus": 512, "global_batch": 1024}
    found, stated = complete(**large), complete(**large, recompute="per_op")
    assert (found.plan.recompute, stated.plan.recompute) == ("full", "per_op")
    assert fits(found) > fits(stated)


def test_a_pipeline_is_folded_as_far_as_it_fits() -> None:
    """A device that folds its pipeline keeps more micro-batches: GLM 4.5 on two stages."""
    given = {"model": "glm-4.5", "system": "gb200-nvl72", "framework": "megatron-bridge"}
    given |= {"gpus": 256, "global_batch": 1024, "seq_len": 4096}
    run = load("default").run
    stated = {"tp": 1, "pp": 2, "vpp": 2, "recompute": "none"}
    specs = (parse(TrainingPlanSpec, {**given, **one}, "") for one in ({}, stated))
    found, folded = (complete_training(spec, run) for spec in specs)
    assert (found.plan.pp, found.plan.vpp) == (2, 1)
    kept, more = (float(memory(one.model, one.plan, run).peak) for one in (found, folded))
    assert kept < float(found.cluster.accelerator.memory) < more


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


def test_of_what_fits_in_no_way_that_is_shown_which_lacks_least() -> None:
    """70B over a million tokens on 16 A100 was a pipeline of sixteen stages for one sequence, which
    lacks 1,276 GB; layers and the sequence divided lack 195."""
    given: dict[str, Any] = {"model": "llama3-70b", "framework": "megatron-lm", "gpus": 16}
    given |= {"global_batch": 1, "seq_len": 2**20, "system": "dgx-a100-80gb"}
    found = complete(**given)
    assert not fits(found)
    assert found.plan.cp > 1
    peak = memory(found.model, found.plan, RUN).peak
    for tp, pp in ((1, 16), (8, 2), (2, 8)):
        stated = complete(**given, tp=tp, pp=pp, cp=1)
        assert peak < memory(stated.model, stated.plan, RUN).peak


def test_long_sequences_run_again_rather_than_out_of_memory() -> None:
    """A recipe's recomputation is of its own lengths: a million tokens of 70B were taken to need
    1,860 GB of 80. Latent keys of every head stay in the node where whole layers can run again."""
    given = {"system": "dgx-h100", "framework": "megatron-bridge", "gpus": 512, "global_batch": 32}
    found = complete(**given, model="llama3-70b", seq_len=2**20)
    assert fits(found)
    assert (found.plan.recompute, found.plan.cp > 1) == ("full", True)
    given["global_batch"] = 1024
    found, far = (complete(**given, model="deepseek-v3", seq_len=32768, **one)
                  for one in ({}, {"tp": 8, "pp": 16, "cp": 4}))  # fmt: skip
    assert found.plan.tp * found.plan.cp <= 8
    assert rule(found, "recompute") == "whole layers: nothing less fits"
    assert seconds(found) < 0.75 * seconds(far)


def test_chips_divide_long_sequences() -> None:
    """MaxText's ici_context_parallelism; 131,072 tokens of an 8B need twice what a TPU v5p has."""
    given = {"model": "llama3-8b", "accelerator": "TPUv5p", "gpus": 64, "global_batch": 64}
    found = complete(**given, seq_len=131072)
    assert found.plan.cp > 1
    assert fits(found) > fits(complete(**given, seq_len=131072, cp=1))
