"""Layouts that a serving request may have where it leaves them open."""

from __future__ import annotations

import math

import pytest

from predictor import catalog
from predictor.arrays import identity
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.models import Model
from predictor.serving.completion import _ranks, complete_serving
from predictor.serving.fitting import Draft, layouts, read_apart
from predictor.timing.calibration import RunParameters

LLAMA, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")


def possible(**values: int) -> list[tuple[int, int]]:
    return layouts(Draft(LLAMA, DGX, values))


def test_layouts_fill_what_there_is() -> None:
    """32 heads, eight accelerators a node: of sixteen on two replicas each has eight."""
    assert all(tp * pp * 2 == 16 for tp, pp in possible(gpus=16, dp=2))
    assert (8, 1) in possible(gpus=16, dp=2)
    assert all(tp * pp == 16 for tp, pp in possible(gpus=16))
    assert all(16 % (tp * pp) == 0 for tp, pp in possible(gpus=16, pp=2))
    assert possible(gpus=16, tp=4, pp=2) == [(4, 2)]


def test_stages_that_are_stated_leave_their_ranks_to_one_engine() -> None:
    """On all accelerators; replicas where a stage would leave its node, a whole one each where
    there are several."""
    assert possible(gpus=8, pp=2) == [(4, 2)]
    assert possible(gpus=8, pp=1) == [(8, 1)]
    assert possible(gpus=8, pp=2, dp=2) == [(2, 2)]
    assert possible(gpus=64, pp=2) == [(8, 2)]
    assert possible(gpus=16, pp=1) == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert possible(pp=2) == [(8, 2)]


def test_ranks_are_what_stated_stages_and_replicas_leave_whatever_they_divide() -> None:
    """Inferentia's compilers pad heads to twelve ranks."""
    assert possible(gpus=12, pp=1, dp=1) == [(12, 1)]
    assert possible(gpus=12, pp=2, dp=2) == [(3, 2)]
    assert possible(gpus=14, pp=1, dp=2, prefill_workers=2) == [(6, 1)]


@pytest.mark.parametrize("gpus", [6, 12])
def test_neuron_fills_heads_up_to_what_ranks_divide(gpus: int) -> None:
    """32 heads on twelve chips of one host, stated or not; of other makers neither is a plan."""
    asked = {"model": "llama3-8b", "gpus": gpus, "input_len": 128, "output_len": 16}
    for stated in ({}, {"tp": gpus}):
        for system, lawful in (("aws-inf2.48xlarge", True), ("dgx-h100", False)):
            spec = parse(ServingPlanSpec, {**asked, **stated, "system": system}, "test")
            if lawful:
                plan = complete_serving(spec, RunParameters()).plan
                assert (float(plan.tp), float(plan.pp)) == (gpus, 1.0)
            elif stated:
                with pytest.raises(InputError, match="does not divide the 32 attention heads"):
                    complete_serving(spec, RunParameters())


def test_an_engine_of_one_maker_runs_on_no_other() -> None:
    """TensorRT-LLM and NIM are NVIDIA's; an accelerator whose maker nobody says may be."""
    asked = {"model": "llama3-8b", "gpus": 1, "input_len": 128, "output_len": 16}
    for name in ("tensorrt-llm", "nim", "trtllm"):
        spec = parse(ServingPlanSpec, {**asked, "framework": name, "accelerator": "MI300X"}, "test")
        with pytest.raises(InputError, match="runs on NVIDIA's accelerators alone, not on MI300X"):
            complete_serving(spec, RunParameters())
        assert complete_serving(spec, RunParameters(), strict=False).plan.framework  # as published
        own = parse(ServingPlanSpec, {**asked, "framework": name, "system": "dgx-h100"}, "test")
        assert complete_serving(own, RunParameters()).plan.framework


def test_experts_are_shared_by_all_ranks_where_attention_has_replicas() -> None:
    """And whole on every rank that divides them otherwise; dense models have none to share."""
    fields = {"batch": 8, "serving": 1.0, "precision": "bf16", "kv_precision": "bf16",
              "input_len": 128, "output_len": 16}  # fmt: skip
    mixture, dense = catalog.model("mixtral-8x7b"), LLAMA

    def ep(model: Model, tp: int, **more: int) -> float:
        return float(Draft(model, DGX, {**fields, **more}).plan(tp, 1).ep)

    assert ep(mixture, 2, dp=4) == ep(mixture, 4, gpus=8) == 8.0
    assert ep(mixture, 8) == ep(mixture, 8, dp=1) == 1.0
    assert ep(mixture, 2, dp=4, ep=2) == 2.0
    assert ep(dense, 2, dp=4) == ep(dense, 8) == 1.0


def test_fewest_accelerators_come_first_and_no_rank_leaves_its_node() -> None:
    found = possible()
    assert [math.prod(pair) for pair in found] == sorted(math.prod(pair) for pair in found)
    assert found[0] == (1, 1)
    assert max(tp for tp, _ in found) == 8
    assert {pp for tp, pp in found if tp < 8} == {1}, "stages come behind a whole node"


def test_what_divides_nothing_is_refused() -> None:
    for values, words in (
        ({"gpus": 6, "tp": 4}, "gpus 6 is not a multiple of tp 4; nearest 4 and 8"),
        ({"gpus": 16, "dp": 3}, "gpus 16 is not a multiple of dp 3; nearest 15 and 18"),
        (
            {"gpus": 9, "pp": 2, "dp": 1},
            "gpus 9 is not a multiple of pp 2 x dp 1; nearest 8 and 10",
        ),
        ({"gpus": 131}, "no tp and pp divide the heads"),
        ({"gpus": 1, "prefill_workers": 1}, "prefill_workers take 1 of 1 accelerators"),
        ({"gpus": 262, "dp": 2}, "no tp and pp divide the heads"),
    ):
        with pytest.raises(InputError, match=words):
            possible(**values)


@pytest.mark.parametrize(
    ("gpus", "layout"), [(3, (1, 3)), (6, (2, 3)), (7, (1, 7)), (12, (4, 3)), (24, (8, 3))]
)
def test_odd_numbers_of_accelerators_are_stages(gpus: int, layout: tuple[int, int]) -> None:
    """An engine on all of them, as wide as divides them; replicas of it where these are stated."""
    assert possible(gpus=gpus) == possible(gpus=2 * gpus, dp=2) == [layout]


@pytest.mark.parametrize("stated", [{}, {"expert_loads": "zipf:0.6"}, {"expert_load": 1.2}])
def test_what_is_assumed_is_told_once(stated: dict[str, object]) -> None:
    """Loads follow from how experts are chosen, where stated; what is stated is not told."""
    asked = {"model": "mixtral-8x7b", "system": "dgx-h100", "gpus": 8, "tp": 1, "dp": 8, "ep": 8,
             "concurrency": 64, "input_len": 1000, "output_len": 100, **stated}  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, asked, "test"), RunParameters())
    told = [one.field for one in found.assumed]
    assert told.count("cached") == 1
    assert told.count("expert_load") == (0 if "expert_load" in stated else 1)
    assert (float(found.plan.expert_load) > 1.0) == bool(stated)


MIXTURE = {"model": "deepseek-v3", "system": "dgx-h200", "concurrency": 256, "input_len": 2000,
           "output_len": 200}  # fmt: skip


def completed(**stated: object):
    asked = {**MIXTURE, **stated}
    return complete_serving(parse(ServingPlanSpec, asked, "test"), RunParameters()).plan


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "neutral"])
@pytest.mark.parametrize(
    "same",
    [
        [{"tp": 1, "gpus": 16, "ep": 16}, {"dp": 16, "ep": 16}, {"gpus": 16, "ep": 16}],
        [{"gpus": 8}, {"tp": 8}, {"tp": 8, "dp": 1, "pp": 1}],
        [{"gpus": 32, "tp": 8, "pp": 1}, {"dp": 4, "tp": 8}],
    ],
)
def test_a_layout_is_the_same_plan_whichever_of_it_is_stated(engine, same) -> None:
    """Engines' defaults depend on the ranks (the exchange, memory kept free): those that follow
    from what is stated count as those that are."""
    plans = [completed(framework=engine, **one) for one in same]
    assert len({identity(plan) for plan in plans}) == 1


def test_attention_has_replicas_where_more_ranks_share_experts_than_divide_it() -> None:
    wide = completed(gpus=16, ep=16)
    assert (float(wide.tp * wide.dp), float(wide.pp), float(wide.ep)) == (16.0, 1.0, 16.0)
    assert float(wide.dp) > 1.0
    fabric = completed(gpus=32, ep=32, system="gb200-nvl72")
    assert float(fabric.tp) <= 8.0
    assert float(completed(gpus=8, ep=8).tp) == 8.0, "within a node ranks divide both"
    assert float(completed(gpus=16, tp=16, ep=16, system="gb200-nvl72").dp) == 1.0, "as stated"


def test_ranks_that_are_left_open_are_what_the_others_leave() -> None:
    """Sixteen accelerators in two stages of two ranks: four replicas; readers are no ranks."""
    assert _ranks({"gpus": 16, "tp": 2, "pp": 2}) == (2, 4)
    assert _ranks({"gpus": 16, "dp": 4, "pp": 2}) == (2, 4)
    assert _ranks({"gpus": 16, "pp": 2}) == (8, 1)
    assert _ranks({"gpus": 16, "tp": 4, "prefill_workers": 2, "prefill_tp": 4}) == (4, 2)
    assert _ranks({"tp": 4}) == (4, 1)
    assert _ranks({}) == (1, 1)


def test_workers_that_read_apart_are_of_one_accelerator_unless_more_are_stated() -> None:
    assert read_apart({"prefill_workers": 3}) == 3
    assert read_apart({"prefill_workers": 3, "prefill_tp": 4}) == 12
    assert read_apart({"prefill_tp": 4}) == 0, "no workers"
    assert all(tp * pp * 6 <= 8 for tp, pp in possible(gpus=8, prefill_workers=2, dp=6))
