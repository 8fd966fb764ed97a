"""Pipelines that run empty several times in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

import reckon
from predictor import catalog
from predictor.catalog.recipes import recipe_facts
from predictor.catalog.tables import is_called
from predictor.errors import InputError
from predictor.plans.training import TrainingPlan

LINE = {"tp": 1, "pp": 4, "vpp": 1, "micro_batch": 1, "seq_len": 4096, "recompute": "none"}
SHARED: dict[str, Any] = {**LINE, "gpus": 8, "global_batch": 64, "framework": "pytorch"}


def predicted(**fields: Any) -> Any:
    return reckon.predict_train("llama3-8b", "dgx-h100", {**SHARED, **fields})


@pytest.mark.parametrize("vpp", [1, 2])
def test_a_step_of_several_fills_is_as_many_short_pipelines(vpp: int) -> None:
    """32 micro-batches, 8 at a time: the pipeline's part of the step is that of four of 8."""
    whole, parted = predicted(vpp=vpp), predicted(vpp=vpp, pipeline_fill=2)
    short = predicted(vpp=vpp, global_batch=16)
    assert parted.breakdown["bubble"] == pytest.approx(4.0 * short.breakdown["bubble"], rel=1e-9)
    assert parted.breakdown["bubble"] > 3.9 * whole.breakdown["bubble"]
    assert parted.breakdown["forward"] == pytest.approx(whole.breakdown["forward"], rel=1e-12)
    ends = [max(event.end for event in one.timeline()) for one in (parted, short)]
    assert ends[0] == pytest.approx(4.0 * ends[1], rel=1e-9)
    batches = {event.micro_batch for event in parted.timeline()}
    assert batches == set(range(32))


def test_one_fill_is_the_whole_step_to_the_bit() -> None:
    assert predicted(pipeline_fill=8).step_time.value == predicted().step_time.value
    assert predicted(pipeline_fill=100).step_time.value == predicted().step_time.value


def test_schedules_that_keep_all_micro_batches_keep_those_of_a_fill() -> None:
    kept = [
        predicted(schedule="gpipe", **more).memory_stages[0]["activations"]
        for more in ({}, {"pipeline_fill": 1}, {"global_batch": 8})
    ]
    assert kept[1] == pytest.approx(kept[2])
    assert kept[0] == pytest.approx(8.0 * kept[1])


def test_gathered_weights_are_reduced_once_a_fill_unless_with_the_last() -> None:
    made = TrainingPlan(1.0, 2.0, 2.0, 1.0, 32.0, 4096.0, sharding="fsdp", reshard=False,
                        pipeline_fill=np.array([np.nan, 2.0, 8.0]))  # fmt: skip
    assert made.fills == pytest.approx([1, 4, 1])
    assert made.filled == pytest.approx([16, 4, 16])
    assert made.exchanges == pytest.approx([1, 4, 1])
    last = TrainingPlan(1.0, 2.0, 2.0, 1.0, 32.0, 4096.0, sharding="fsdp", reshard=False,
                        reduce_last=True, pipeline_fill=2.0)  # fmt: skip
    assert last.exchanges == pytest.approx(1)


def test_automodel_fills_its_pipeline_once_a_local_batch() -> None:
    plan = {**SHARED, "framework": "nemo-automodel", "era": "2026-03", "gpus": 16}
    made = reckon.predict_train("llama3-8b", "dgx-h100", plan).request.plan
    assert made.filled == 4
    moe = {"gpus": 64, "pp": 4, "ep": 8, "framework": "nemo-automodel", "global_batch": 256,
           "seq_len": 4096, "micro_batch": 1}  # fmt: skip
    mixture = reckon.predict_train("qwen3-30b-a3b", "dgx-h100", moe).request.plan
    assert mixture.reduce_last
    assert mixture.fills > 1


def test_a_fill_is_no_shorter_than_the_schedule_needs() -> None:
    """ZB-V wants two micro-batches for each stage, AutoModel's habit is one."""
    plan = {**SHARED, "framework": "nemo-automodel", "schedule": "zb-v", "vpp": 2}
    made = reckon.predict_train("llama3-8b", "dgx-h100", plan).request.plan
    assert (float(made.fills), float(made.filled)) == (4.0, 8.0)
    uneven = reckon.predict_train(
        "llama3-8b", "dgx-h100", {**plan, "global_batch": 36}
    ).request.plan
    assert (float(uneven.fills), float(uneven.filled)) == (2.0, 9.0)


def test_clocks_by_stage_want_one_fill() -> None:
    with pytest.raises(InputError, match="--set pipeline_fill=8 "):
        predicted(pipeline_fill=1, stage_clocks="stage")


def test_recipes_of_a_rack_are_of_its_accelerator() -> None:
    """Megatron-Bridge names Vera Rubin's racks, the catalog the accelerator."""
    ask = {"framework": "megatron-bridge", "era": None, "task": "pretrain", "precision": "mxfp8"}
    rack = list(recipe_facts(model="nemotron-3-nano-30b-a3b", accelerator="R100-288GB", **ask))
    assert {fact.field for fact in rack} >= {"cuda_graphs", "dispatch"}
    assert not list(recipe_facts(model="nemotron-3-nano-30b-a3b", accelerator="T4-16GB", **ask))


def test_every_model_that_a_framework_s_recipe_names_is_in_the_catalog() -> None:
    """By its name, or another that the catalog has for it, without what tables say of a task."""
    table = yaml.safe_load((catalog.data_dir() / "defaults/frameworks.yaml").read_text("utf-8"))
    named = {
        name.removesuffix("-sft").removesuffix("-lora")
        for periods in table.values()
        for period in periods
        for recipe in period.get("recipes", ())
        for name in recipe.get("models", ())
    }
    rows = catalog.rows("models")
    assert named
    assert not [n for n in named if not any(is_called(row, (n,)) for row in rows)]
    assert is_called("nemotron-3-22b", ("nemotron-22b",))
    assert not is_called("llama3-8b", ("nemotron-22b",))
