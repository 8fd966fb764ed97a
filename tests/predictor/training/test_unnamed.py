"""What is assumed of a framework that nobody named, and of experts that nobody laid out."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.timing.calibration import RunParameters
from predictor.training.completion import TrainingRequest, complete_training

BASE: dict[str, Any] = {"model": "llama3-8b", "gpus": 64, "global_batch": 256, "seq_len": 8192}


def complete(strict: bool = True, **changes: Any) -> TrainingRequest:
    fields = {"accelerator": "H100-SXM5-80GB", **BASE, **changes}
    spec = parse(TrainingPlanSpec, fields, "test")
    return complete_training(spec, RunParameters(), strict=strict)


@pytest.mark.parametrize(
    ("accelerator", "framework"),
    [
        ("TPUv5p", "maxtext"),
        ("Trainium2-96GB", "neuronx-distributed"),
        ("H100-SXM5-80GB", "neutral"),
        ("MI300X-192GB", "neutral"),
    ],
)
def test_accelerators_with_a_framework_of_their_own_are_trained_with_it(
    accelerator: str, framework: str
) -> None:
    found = complete(accelerator=accelerator)
    assert found.plan.framework == framework
    assert "framework" in {one.field for one in found.assumed}
    assert complete(accelerator=accelerator, framework="nemo").plan.framework == "nemo"


def test_who_shards_weights_trains_with_pytorchs_fsdp() -> None:
    """Peak states of 16 bytes a parameter either way: fp32 weights and moments, fp32 gradients."""
    for framework in ("neutral", "torchtitan", "fms-fsdp"):
        plan = complete(framework=framework, sharding="fsdp").plan
        assert (plan.weight_bytes, plan.optimizer_bytes, plan.gradient_bytes) == (4, 8, 4)
        assert plan.stops_early or framework == "torchtitan"
    assert complete(sharding="zero1").plan.weight_bytes == 2
    dated = {era: complete(sharding="fsdp", era=era).plan.attention for era in ("2025", "2026-05")}
    assert dated == {"2025": "flash2", "2026-05": "flash"}


def test_whole_experts_fill_a_scale_up_domain_where_nothing_is_said_of_them() -> None:
    """Experts split as the layers are and divided over a node's ranks would leave the node."""
    mixture = {"model": "mixtral-8x7b", "pp": 2}
    unsaid = complete(**mixture, tp=4).plan
    assert (unsaid.ep, unsaid.etp) == (8, 1)
    assert complete(**mixture, tp=4, ep=4).plan.etp == 4  # Megatron Core's default
    assert complete(**mixture, tp=4, etp=2).plan.etp == 2


def test_a_published_plan_is_believed_to_have_fitted() -> None:
    """Somebody ran it: a peak of a few per cent beyond the memory is the estimate's."""
    stated = {"model": "llama3-70b", "pp": 4, "micro_batch": 1, "global_batch": 64}
    kinds = {
        (tp, strict): complete(strict, **stated, tp=tp).plan.recompute
        for tp in (2, 4, 8)
        for strict in (True, False)
    }
    assert kinds[8, True] == kinds[8, False] == "none"
    assert (kinds[4, True], kinds[4, False]) == ("full", "none")
    assert kinds[2, True] == kinds[2, False] == "full"  # far beyond it


def test_memory_is_bought_with_ranks_before_whole_layers_run_again() -> None:
    """As in NVIDIA's dense recipes: twice as many stages rather than a third more arithmetic."""
    large = complete(
        model="llama3.1-405b", accelerator="B200-SXM-180GB", gpus=512, global_batch=4096
    )
    assert (large.plan.recompute, large.plan.tp) == ("none", 8)
    assert large.plan.pp > 2
    # What is stated leaves nothing to buy with.
    small = {"model": "llama3.1-405b", "accelerator": "B200-SXM-180GB", "gpus": 512}
    assert complete(**small, global_batch=4096, tp=8, pp=2).plan.recompute == "full"


def test_mixtures_take_more_stages_before_their_layers_are_split() -> None:
    found = complete(
        model="deepseek-v3", accelerator="GB200-186GB", gpus=512, global_batch=8192, seq_len=4096
    )
    assert found.plan.tp == 1
    assert found.plan.pp > 1


def test_kempnerforge_compiles_all_but_mixtures() -> None:
    dense, mixture = (
        complete(framework="kempnerforge", model=model).plan
        for model in ("llama3-8b", "mixtral-8x7b")
    )
    assert (dense.recompute, dense.fused) == ("full", True)
    assert (mixture.recompute, mixture.fused) == ("full", False)


@pytest.mark.parametrize(
    ("layout", "whole"),
    [({}, 16), ({"pp": 4}, 16), ({"pp": 4, "schedule": "zb-v"}, 8)],
    ids=["no pipeline", "a micro-batch a stage", "two a stage"],
)
def test_who_accumulates_nothing_fills_a_pipeline_with_what_a_rank_has(
    layout: dict[str, Any], whole: int
) -> None:
    """64 ranks, tp 4: 16 replicas of 16 sequences, or 4 of 64 through four stages."""
    plan = complete(accelerator="TPUv5p", tp=4, **layout).plan
    assert plan.micro_batch == whole


def test_who_accumulates_nothing_still_accumulates_what_does_not_fit() -> None:
    """A third of the memory holds fewer of a rank's sixteen sequences of 32,768 tokens."""
    layout = {"tp": 4, "seq_len": 32768}
    held = [complete(accelerator=name, **layout).plan for name in ("TPUv5p", "TPUv6e")]
    assert held[0].micro_batch > held[1].micro_batch
    assert all(16 % plan.micro_batch == 0 for plan in held)


def test_where_nothing_fits_one_sequence_lacks_least() -> None:
    """A model of 405 billion parameters on 16 chips of 95 GiB: its states alone need 300 each."""
    small = {"model": "llama3.1-405b", "gpus": 16, "tp": 4, "global_batch": 16}
    assert complete(accelerator="TPUv5p", **small).plan.micro_batch == 1
    assert complete(accelerator="H100-SXM5-80GB", pp=1, **small).plan.micro_batch == 1


@pytest.mark.parametrize("accelerator", ["MI300X-192GB", "MI355X-288GB"])
def test_what_does_not_fit_on_a_chip_of_a_mesh_is_sharded(accelerator: str) -> None:
    """As AMD's own recipe of a 70B has it; what is stated holds, a small model is replicated, and
    chips behind a switch split layers."""
    large = {"accelerator": accelerator, "model": "llama3.1-70b", "gpus": 256, "global_batch": 512}
    found = complete(**large)
    assert (found.plan.sharding, found.plan.tp, found.plan.pp) == ("fsdp", 1, 1)
    for stated in ({"tp": 8}, {"pp": 4}, {"sharding": "zero2"}):
        other = complete(**large, **stated).plan
        assert other.sharding == stated.get("sharding", "zero1")
        assert other.weight_bytes == 2
    assert complete(accelerator=accelerator).plan.sharding == "zero1"
    assert complete(**large | {"accelerator": "H200-SXM-141GB"}).plan.sharding == "zero1"
