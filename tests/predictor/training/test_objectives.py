"""Learning from preferences and rewards: passes without gradients, and what answers are compared
with, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory import memory
from predictor.memory.reference import REFERENCE
from predictor.models import hardware_flop_per_token, model_flop_per_token
from predictor.plans import OBJECTIVES, TrainingPlan
from predictor.training.completion import complete_training
from predictor.training.prediction import TrainingPrediction, predict
from predictor.work import Held, gradient_collectives, step_collectives, step_operators

KNOWN = load("kernels-only")
MODEL, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")
BASE: dict[str, Any] = {
    "gpus": 8, "tp": 1, "pp": 1, "global_batch": 64, "seq_len": 2048, "micro_batch": 2,
    "recompute": "full", "sharding": "zero3", "framework": "huggingface",
}  # fmt: skip


def planned(**fields: Any) -> TrainingPlan:
    spec = parse(TrainingPlanSpec, {**BASE, **fields}, "test")
    return complete_training(spec, KNOWN.run, model=MODEL, cluster=DGX).plan


def found(**fields: Any) -> TrainingPrediction:
    return predict(MODEL, DGX, planned(**fields), KNOWN)


PLAIN = found()


@pytest.mark.parametrize(
    ("objective", "times"),
    [("tokens", 1.0), ("orpo", 1.0), ("dpo", 2.0), ("kto", 4.0), ("grpo", 2.0)],
)
def test_forward_passes_are_as_many_as_trainers_run(objective: str, times: float) -> None:
    """KTO: its own over mismatched answers, the reference over both; TRL's GRPO has no reference
    and works old probabilities out; backward passes are as ever."""
    own, plain = found(learns_from=objective, logit_bytes=2), found(logit_bytes=2)
    assert own.breakdown["forward"] == pytest.approx(times * plain.breakdown["forward"])
    for term in ("backward", "recompute", "optimizer"):
        assert own.breakdown[term] == pytest.approx(plain.breakdown[term])


def test_a_loss_of_pairs_reads_16_bit_logits_in_one_kernel() -> None:
    """And keeps 5 bytes of each, where the next token's keeps 14 (TRL 1.16)."""
    own, plain = planned(learns_from="orpo"), planned()
    assert (own.logit_bytes, plain.logit_bytes) == (5.0, 14.0)
    assert [bool(one.loss_in_one) for one in (own, plain)] == [True, False]
    assert [bool(replace(one, framework="neutral").loss_in_one) for one in (own, plain)] == [
        False, False,
    ]  # fmt: skip
    moved = [
        sum(
            float(np.max(o.bytes * o.count)) for o in step_operators(MODEL, one) if "loss" in o.name
        )
        for one in (own, plain)
    ]
    assert moved[0] / moved[1] == pytest.approx((3 + 2) * 2 / (2 * (2 + 4 + 8)))


@pytest.mark.parametrize("said", ["sft", "SFT", "tokens"])
def test_the_next_token_is_what_nobody_states(said: str) -> None:
    assert found(learns_from=said).step_time == PLAIN.step_time


def test_a_reference_that_is_held_is_divided_as_the_weights_are() -> None:
    """8.03e9 weights of 2 bytes, over eight ranks with ZeRO-3, whole with ZeRO-2."""
    for sharding, ranks in (("zero3", 8), ("zero2", 1)):
        plan = planned(learns_from="dpo", sharding=sharding)
        held = memory(MODEL, plan, KNOWN.run)
        without = memory(MODEL, replace(plan, compared_with="none"), KNOWN.run)
        weights = 2.0 * MODEL.parameters / ranks
        assert held.classes[REFERENCE].max() == pytest.approx(weights, rel=1e-3)
        assert held.tensors - without.tensors == pytest.approx(weights, rel=1e-3)


def test_adapters_that_are_switched_off_take_neither_memory_nor_time() -> None:
    plan = planned(learns_from="dpo", trained="lora")
    assert plan.compared_with == "adapters"
    assert REFERENCE not in memory(MODEL, plan, KNOWN.run).classes
    again = [o for o in step_operators(MODEL, plan) if o.name.endswith(".unlearned")]
    assert sum(o.count for o in again if ".lora_" in o.name) == 0.0
    assert sum(o.count for o in again if o.op == "gemm") > 0.0
    assert sum(o.saved for o in again) == 0.0


def test_probabilities_that_were_worked_out_before_take_nothing() -> None:
    said = {"logit_bytes": 2}
    before, plain = found(learns_from="dpo", compared_with="none", **said), found(**said)
    assert before.step_time == found(learns_from="orpo", **said).step_time == plain.step_time
    assert float(before.memory.peak) == float(plain.memory.peak)


def test_sharded_weights_are_gathered_for_each_pass() -> None:
    """Forward and backward of those that learn, and once for each without gradients; gradients are
    reduced as ever."""
    held = Held(1e9, 1e9)

    def times(**fields: Any) -> dict[str, float]:
        listed = gradient_collectives(planned(**fields), held, Held(0.0, 0.0), 32.0, 0.0)
        return {one.name: float(one.count) for one in listed}

    plain, kto = times(), times(learns_from="kto")
    assert kto["weights.gather"] == 4.0 * plain["weights.gather"]
    for name in ("weights.regather", "gradients.scatter"):
        assert kto[name] == plain[name]


def test_ranks_of_a_layer_talk_in_each_pass() -> None:
    def moved(**fields: Any) -> dict[str, float]:
        listed = step_collectives(MODEL, planned(tp=4, sharding="zero1", **fields))
        sums: dict[str, float] = {}
        for one in listed:
            sums[one.phase] = sums.get(one.phase, 0.0) + float(one.count * one.bytes)
        return sums

    plain, dpo = moved(), moved(learns_from="dpo")
    assert dpo["forward"] == pytest.approx(2.0 * plain["forward"])
    assert (dpo["backward"], dpo["recompute"]) == (plain["backward"], plain["recompute"])


def test_a_pipeline_runs_them_with_its_micro_batches() -> None:
    """(m + pp - 1) forward passes of the slowest stage more, whenever they run."""
    piped = {"pp": 4, "sharding": "zero1", "framework": "neutral"}
    plain, dpo = found(**piped), found(learns_from="dpo", **piped)
    m, pp = float(dpo.plan.micro_batches), 4.0
    more = (m + pp - 1.0) * float(np.max(np.asarray(plain.passes.forward)))
    assert float(dpo.step_time - plain.step_time) == pytest.approx(more, rel=0.05)


def test_hardware_flops_count_them_and_model_flops_do_not() -> None:
    plan = planned(learns_from="kto")
    alone = planned(learns_from="kto", recompute="none")
    for name in ("palm", "megatron"):
        model, hardware = predict(MODEL, DGX, alone, KNOWN).flop_per_token[name]
        assert hardware == pytest.approx(2.0 * model)  # three passes forward more
        assert model == model_flop_per_token(MODEL, 2048.0, name)
        whole = hardware_flop_per_token(MODEL, 2048.0, name, "full")
        assert predict(MODEL, DGX, plan, KNOWN).flop_per_token[name][1] == pytest.approx(
            whole + model
        )


def test_a_batch_of_plans_is_the_plans_one_by_one() -> None:
    plan = planned(learns_from="dpo")
    many = predict(MODEL, DGX, replace(plan, referred=np.array([0.0, 1.0, 2.5])), KNOWN)
    for at, passes in enumerate((0.0, 1.0, 2.5)):
        one = predict(MODEL, DGX, replace(plan, referred=passes), KNOWN)
        assert many.step_time[at] == pytest.approx(float(one.step_time), rel=1e-12)


def test_a_pair_is_not_split() -> None:
    with pytest.raises(InputError, match="micro_batch 3 splits what dpo compares"):
        planned(learns_from="dpo", micro_batch=3, global_batch=48)
    open_ = {name: value for name, value in BASE.items() if name != "micro_batch"}
    for own in ({}, {"pp": 4, "sharding": "zero1", "framework": "neutral"}):
        spec = parse(TrainingPlanSpec, {**open_, "learns_from": "dpo", **own}, "test")
        plan = complete_training(spec, KNOWN.run, model=MODEL, cluster=DGX).plan
        assert plan.micro_batch % OBJECTIVES["dpo"].together == 0


def test_what_others_call_them() -> None:
    assert planned(learns_from="SimPO").learns_from == "orpo"
    assert planned(learns_from="reinforce++").learns_from == "grpo"
    with pytest.raises(InputError, match="learns_from"):
        planned(learns_from="distillation")


def test_a_compiled_loss_writes_its_gradient_beside_the_logits() -> None:
    """Four bytes of a logit in a graph; kernel by kernel two, over the logits."""
    made = planned()
    for fused, kept, one in (
        (True, 4, True),
        (False, 4, False),
        (False, 2, True),
        (True, 8, False),
    ):
        assert bool(replace(made, fused=fused, logit_bytes=float(kept)).loss_in_one) is one
    assert not replace(made, fused=True, logit_bytes=8.0, precision="fp32").loss_in_one
