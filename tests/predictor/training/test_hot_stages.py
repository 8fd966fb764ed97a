"""Stages that sit where a node is hot."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.dealt import Dealt
from predictor.training.hot_stages import stage_rows
from predictor.training.prediction import TrainingPrediction
from predictor.training.uneven import dealt_step
from reckon.verbs.training import predict_each

KNOWN = load("default")
BASE: dict[str, Any] = {
    "model": "llama3-70b", "system": "dgx-h100", "gpus": 8, "tp": 4, "pp": 2, "global_batch": 64,
    "seq_len": 4096, "recompute": "full", "split": "heat",
}  # fmt: skip


def complete(**fields: Any) -> TrainingRequest:
    spec = parse(TrainingPlanSpec, {**BASE, **fields}, "test")
    return complete_training(spec, KNOWN.run, strict=False)


def both(**fields: Any) -> tuple[TrainingPrediction, Dealt]:
    return dealt_step(complete(**fields), KNOWN)


def layers(dealt: Dealt) -> list[int]:
    return [one.layers for one in dealt.shares]


def test_a_rear_stage_that_heat_holds_back_is_given_fewer_layers() -> None:
    """Air of 60 C lets the rear row run at half its pace or less, and the step of the deal lies
    between that of a cool rear and that of an even deal."""
    hot, dealt = both(inlet=60)
    cool, _ = both(inlet=60, cooling="liquid")
    front, rear = layers(dealt)
    assert front + rear == 80
    assert front > 1.2 * rear
    assert float(cool.step_time) < float(hot.step_time) < 0.9 * min(dealt.even, dealt.cool)


def test_where_no_place_is_hotter_layers_are_dealt_as_without_heat() -> None:
    """Liquid reaches all at one temperature; and stages of whole nodes have both rows."""
    for fields in ({"cooling": "liquid"}, {"gpus": 32, "tp": 8, "pp": 4}):
        found, dealt = both(**fields)
        assert dealt.cool == pytest.approx(float(found.step_time), rel=1e-9)


def test_an_even_deal_takes_as_long_as_the_plain_step_under_the_same_limit() -> None:
    _, dealt = both(power_limit=350)
    plain = {**BASE, "split": "slots", "power_limit": 350}
    found = predict_each([plain], KNOWN, "test")[0]
    assert not isinstance(found, InputError)
    assert dealt.even == pytest.approx(found.step_time.value, rel=0.01)


def test_rows_in_which_stages_sit() -> None:
    """Two stages of four in a node of eight, front and rear; of a pipeline spread over nodes, all
    have both rows; and replicas inside pipelines move neither."""
    assert stage_rows(complete().plan, 8, 2) == [{0}, {1}]
    assert stage_rows(complete(gpus=16, tp=8).plan, 8, 2) == [{0, 1}, {0, 1}]
    wide = complete(gpus=16, rank_order="tp-cp-pp-dp").plan
    assert stage_rows(wide, 8, 2) == [{0}, {1}]
    assert stage_rows(complete(gpus=16).plan, 8, 2) == [{0, 1}, {0, 1}]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pp": 1, "tp": 8}, "at least 2"),
        ({"first_layers": 30}, "first_layers"),
        ({"variation": "cloud"}, "variation"),
        ({"faults": "nic:0.5"}, "faults"),
        ({"price_per_kwh": 0.1}, "price_per_kwh"),
        ({"vpp": 2}, "plain pipelines"),
        ({"pp": None, "stage_systems": "dgx-h100:1+dgx-a100:1", "system": None}, "one system"),
    ],
)
def test_what_cannot_be_dealt_by_heat_is_refused_in_a_line(
    fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        both(**fields)


@pytest.mark.parametrize("key", ["power_limit", "clock", "inlet", "price_per_kwh"])
def test_power_of_several_systems_is_refused_rather_than_left_out(key: str) -> None:
    """It was dropped: the step under 250 W was that of 700."""
    asked = {"system": None, "pp": None, "stage_systems": "dgx-h100:1+dgx-a100:1", "split": "slots"}
    value = {"power_limit": 250, "clock": 1000, "inlet": 30, "price_per_kwh": 0.1}[key]
    with pytest.raises(InputError, match=key):
        both(**asked, **{key: value})
