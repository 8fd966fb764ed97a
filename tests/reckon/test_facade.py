from __future__ import annotations

import ast
import typing
from dataclasses import replace

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.plans.training import TrainingPlan
from predictor.training import TrainingPrediction
from reckon.explore import explore, read_grid
from reckon.verbs.results import Prediction
from reckon.verbs.rl import predict_rl
from reckon.verbs.training import expand, predict_each, predict_train, sweep
from tests.conftest import ROOT

PLAN = {"gpus": 64, "tp": 2, "pp": 1, "global_batch": 128, "seq_len": 8192}


def test_names_mappings_and_objects_are_alike() -> None:
    one = reckon.predict_train("llama3-8b", "dgx-h100", PLAN)
    two = reckon.predict_train(catalog.model("llama3-8b"), catalog.system("DGX-H100"), PLAN)
    assert isinstance(one, Prediction)
    assert isinstance(two, Prediction)
    assert one.step_time == two.step_time


def test_a_plan_of_arrays_gives_arrays() -> None:
    plan = TrainingPlan(
        tp=np.array([1.0, 2.0, 8.0]), pp=1.0, dp=8.0, micro_batch=1.0, global_batch=64.0,
        seq_len=4096.0,
    )  # fmt: skip
    found = predict_train("llama3-8b", "dgx-h100", plan, "kernels-only")
    assert found.step_time.shape == (3,)  # type: ignore[union-attr]


def test_a_frame_has_a_row() -> None:
    found = reckon.predict_train("llama3-8b", "dgx-h100", PLAN)
    frame = found.to_frame()
    assert len(frame) == 1
    assert frame["step_time_s"].iloc[0] == found.step_time.value
    assert frame["model"].iloc[0] == "llama3-8b"


def test_days_follow_from_the_budget() -> None:
    found = reckon.predict_train("llama3-8b", "dgx-h100", {**PLAN, "tokens": 1e12})
    steps = 1e12 / (128 * 8192)
    assert found.training_days().value == pytest.approx(steps * found.step_time.value / 86400)
    assert found.gpu_hours().value == pytest.approx(found.training_days().value * 24 * 64)
    assert reckon.predict_train("llama3-8b", "dgx-h100", PLAN).training_days() is None


def test_a_run_loses_time_to_failures_and_costs_money() -> None:
    plan = {**PLAN, "tokens": 1e12, "price_per_gpu_hour": 2.5}
    found = reckon.predict_train("llama3-8b", "dgx-h100", plan)
    days, calendar, run = found.training_days(), found.effective_days(), found.run()
    share = run["goodput"]["value"]
    assert calendar.value == pytest.approx(days.value / share)
    assert calendar.low < days.value / share < calendar.high
    assert calendar.high / calendar.value >= days.high / days.value
    assert run["cost"]["value"] == pytest.approx(2.5 * 24 * 64 * calendar.value)
    assert run["interruptions"] == pytest.approx(calendar.value * 24 / run["mtbf_hours"])
    assert reckon.predict_train("llama3-8b", "dgx-h100", PLAN).run() is None
    sure = reckon.predict_train("llama3-8b", "dgx-h100", {**plan, "mtbf_hours": 1e12})
    assert sure.run()["goodput"]["value"] == pytest.approx(1.0, abs=1e-3)


def test_utilisation_differs_by_convention() -> None:
    mfu = reckon.predict_train("llama3-8b", "dgx-h100", PLAN).mfu()
    assert mfu["6nd"] < mfu["palm"]
    assert mfu["megatron_causal"] < mfu["megatron"]
    full = reckon.predict_train("llama3-8b", "dgx-h100", {**PLAN, "recompute": "full"})
    assert full.mfu(hardware=True)["megatron"] > full.mfu()["megatron"]


def test_bad_input_raises() -> None:
    with pytest.raises(reckon.InputError, match="did you mean"):
        reckon.predict_train("llama3-8x", "dgx-h100", PLAN)
    assert issubclass(reckon.InputError, ValueError)
    with pytest.raises(AttributeError):
        reckon.nothing  # noqa: B018


def test_combinations() -> None:
    found, varying = expand({"a": [1, 2], "b": 3, "c": ["x", "y"]})
    assert varying == ["a", "c"]
    assert len(found) == 4
    assert found[0] == {"a": 1, "b": 3, "c": "x"}
    with pytest.raises(reckon.InputError, match="more than"):
        expand({name: list(range(100)) for name in "abc"})


def test_an_accelerator_can_be_swapped() -> None:
    h100 = catalog.system("dgx-h100")
    slower = replace(h100, accelerator=catalog.accelerator("H100-PCIe-80GB"))
    fast, slow = (reckon.predict_train("llama3-8b", c, PLAN).step_time for c in (h100, slower))
    assert slow.value > fast.value


def test_one_of_many_can_be_played() -> None:
    fields = {"model": "llama3-8b", "system": "dgx-h100", **PLAN, "pp": [1, 2]}
    for found in sweep(fields, load("default"), "test").predictions:
        pp = int(found.request.plan.pp)
        events = found.timeline()
        assert {event.stage for event in events} == set(range(pp))
        assert events[-1].end < found.step_time.value


BESIDE = (
    {"accelerator": "H200-SXM-141GB"}, {"accelerators_per_node": 4}, {"inter_link_gbps": 50},
)  # fmt: skip


@pytest.mark.parametrize("stated", BESIDE, ids=str)
def test_what_a_plan_states_of_its_system_holds_in_python_as_on_the_line(
    stated: dict[str, object],
) -> None:
    """Only the name of a system is an argument; a plan's other words of it were dropped."""
    calibration = load("default")
    plain = reckon.predict_train("llama3-8b", "dgx-h100", PLAN).step_time
    fields = {"model": "llama3-8b", "system": "dgx-h100", **PLAN, **stated}
    line = predict_each([fields], calibration, "line")[0]
    assert isinstance(line, Prediction)
    for system in ("dgx-h100", catalog.system("dgx-h100")):
        own = reckon.predict_train("llama3-8b", system, {**PLAN, **stated})
        assert own.step_time.value == line.step_time.value != plain.value
    narrow = {"tp": 2, "pp": 1, **stated}
    asked = {key: PLAN[key] for key in ("gpus", "global_batch", "seq_len")}
    found = reckon.search("llama3-8b", "dgx-h100", {**asked, **narrow})
    assert found.result.cluster.accelerator.name == line.batch.cluster.accelerator.name
    assert repr(found.result.cluster.tiers) == repr(line.batch.cluster.tiers)


def test_serving_and_fleets_take_it_too() -> None:
    lengths = {"input_len": 512, "output_len": 128}
    other = {"accelerator": "H200-SXM-141GB"}
    own = reckon.predict_infer("llama3-8b", "dgx-h100", {**lengths, **other, "concurrency": 8})
    same = reckon.predict_infer("llama3-8b", "dgx-h200", {**lengths, "concurrency": 8})
    assert own.tpot.value == pytest.approx(same.tpot.value, rel=1e-9)
    found = reckon.search_infer(
        "llama3-8b", "dgx-h100", {**lengths, **other, "tp": 1, "pp": 1}, 20.0, ttft=1.0
    )
    assert found.to_dict()["fleets"][0]["accelerator"] == "H200-SXM-141GB"
    with pytest.raises(InputError, match="accelerators_per_node"):
        reckon.predict_train("llama3-8b", "dgx-h100", {**PLAN, "accelerators_per_node": 0})


@pytest.mark.parametrize(
    "asked",
    [{"power_limit": 300}, {"faults": "nic:0.5"}, {"split": "heat"}, {"inlet": 40}],
    ids=str,
)
def test_searches_and_grids_refuse_what_only_single_plans_answer(asked: dict[str, object]) -> None:
    """Each was dropped, and the ranking that of a plain machine."""
    fields = {"gpus": 16, "global_batch": 64, "seq_len": 4096, "tp": 2, "pp": 2, **asked}
    name = next(iter(asked))
    with pytest.raises(InputError, match=name):
        reckon.search("llama3-8b", "dgx-h100", fields)
    grid = {"model": "llama3-8b", "system": "dgx-h100", "plan": fields, "sweep": {"plan.tp": [2]}}
    with pytest.raises(InputError, match=name):
        explore(read_grid(grid))
    if name in ("power_limit", "inlet"):
        lengths = {"input_len": 512, "output_len": 128}
        with pytest.raises(InputError, match=name):
            reckon.search_infer("llama3-8b", "dgx-h100", {**lengths, **asked}, 5.0)


def test_a_key_that_is_misspelled_is_named_before_those_that_lack() -> None:
    with pytest.raises(InputError, match="the request has 'modle'"):
        predict_rl({"modle": "llama3-8b"})


@pytest.mark.parametrize("kind", ["training", "serving"])
def test_a_request_of_mappings_is_made_again_from_its_result(kind: str) -> None:
    """Model and machine as they were given, whichever way; a file by its name."""
    model = {**catalog.spec_of("models", "llama3-8b").to_dict(defaults=False), "layers": 16}
    system = {**catalog.spec_of("systems", "dgx-h100").to_dict(defaults=False), "name": "ours"}
    training = kind == "training"
    verb = reckon.predict_train if training else reckon.predict_infer
    plan = (
        {"gpus": 8, "tp": 2, "global_batch": 8, "seq_len": 2048}
        if training
        else {"tp": 2, "batch": 4, "input_len": 128, "output_len": 16}
    )
    first = verb(model, system, plan).to_dict()
    stated = first["stated"]
    assert (stated["model"], stated["system"]) == (model, system)
    again = verb(stated["model"], stated["system"], stated).to_dict()
    assert again == first
    own = verb(catalog.model(model), "dgx-h100", plan).to_dict()["stated"]
    assert catalog.model(own["model"]) == catalog.model(model)
    assert verb(catalog.model("llama3-8b"), "dgx-h100", plan).to_dict()["stated"]["model"] == (
        "llama3-8b"
    )


def test_checkers_of_types_are_told_of_all_that_there_is() -> None:
    """They saw `Any` for every verb: the module answers names when they are first used."""
    stub = ast.parse((ROOT / "reckon" / "__init__.pyi").read_text(encoding="utf-8"))
    told = {
        str(name.asname): f"{one.module}"
        for one in stub.body
        if isinstance(one, ast.ImportFrom) and one.module != "typing"
        for name in one.names
    }
    assert told.pop("InputError") == "predictor.errors"
    assert told == reckon._LAZY
    for package in ("reckon", "predictor", "calibration", "profiler"):
        assert (ROOT / package / "py.typed").is_file()
    found = [typing.get_type_hints(one)["return"] for one in typing.get_overloads(predict_train)]
    assert found == [Prediction, TrainingPrediction]


def test_verbs_that_were_not_used_yet_are_listed() -> None:
    """Notebooks complete names by `dir`, which knew only what had been used."""
    assert set(reckon.__all__) <= set(dir(reckon))
