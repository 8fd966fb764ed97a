from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.errors import InputError
from predictor.memory.training import memory
from predictor.models.model import Model
from predictor.plans.pipeline import in_flight, stages
from predictor.plans.rules import check
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters

Make = Callable[..., TrainingPlan]


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "expected"),
    [
        ("gpt3-175b", 8, 3, (12, 12, 12)),
        ("llama3.1-405b", 16, 1, (7, 8, 7)),  # 126 + 2 slots
        ("deepseek-v3", 16, 1, (3, 4, 2)),  # 61 + 3 slots
        ("llama3-70b", 4, 1, (20, 20, 20)),
        ("llama3-8b", 3, 1, (10, 12, 10)),  # the remainder goes to the middle
        ("llama3-8b", 1, 1, (32, 0, 32)),
    ],
)
def test_layers_fall_on_stages(name: str, pp: int, vpp: int, expected: tuple, plan: Make) -> None:
    found = stages(catalog.model(name), plan(pp=float(pp), vpp=float(vpp)))
    assert tuple(found.layers) == expected
    assert float((found.layers * found.count).sum()) == catalog.model(name).layers


@given(st.integers(2, 40))
def test_stages_hold_every_layer(pp: int) -> None:
    model = catalog.model("llama3-70b")
    found = stages(model, TrainingPlan(1.0, float(pp), 1.0, 1.0, 64.0, 2048.0))
    held = float((found.layers * found.count).sum())
    # Inner stages are counted by the fullest of them.
    assert model.layers <= held < model.layers + max(pp - 2, 1)


def test_the_first_stage_holds_most_micro_batches(gpt3: Model, plan: Make) -> None:
    made = plan(global_batch=64.0)
    found = in_flight(made, stages(gpt3, made))
    assert tuple(found) == (96, 84, 12)
    interleaved = plan(vpp=3.0)
    chunks = in_flight(interleaved, stages(gpt3, interleaved)) / (96 / 24)
    # Megatron-LM warms up 2 (p - k - 1) + (v - 1) p chunks on stage k, and one more is at work.
    assert tuple(chunks) == (2 * 7 + 2 * 8 + 1, 2 * 6 + 2 * 8 + 1, 2 * 8 + 1)


def test_schedules_hold_what_their_papers_say(gpt3: Model, plan: Make) -> None:
    def held(schedule: str, pp: float = 8.0) -> tuple[float, ...]:
        made = plan(global_batch=64.0, schedule=schedule, pp=pp)
        at = stages(gpt3, made)
        return tuple((in_flight(made, at) / at.layers).tolist())

    m = float(plan(global_batch=64.0).micro_batches)
    assert held("gpipe") == (m, m, m)
    assert held("1f1b") == (8, 7, 1)
    assert held("zb-h1") == (8, 8, 8)


@pytest.mark.parametrize(
    ("pp", "expected"),
    [(1, (16, 0, 16)), (2, (11, 0, 5)), (4, (6, 5, 0)), (8, (3, 3, 0))],
)
def test_stages_of_equal_arithmetic_count_the_head(
    pp: int, expected: tuple[int, ...], llama: Model, plan: Make
) -> None:
    """16 layers of 4 x 2048^2 + 3 x 2048 x 5461.33 = 50.3 M weights, a head of 131072 x 2048 =
    268 M: 5.33 layers. Of 21.33, two stages pass their share of 10.67 after 11 layers; four theirs
    of 5.33 after 6, 11 and 17, eight theirs of 2.67 after 3, 6, 9, ...; the head is last."""
    model = replace(
        llama,
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=32,
        head_dim=64,
        ffn_hidden=5461,
        vocab=131072,
    )
    found = stages(model, plan(pp=float(pp), dp=64.0 / pp, tp=1.0, split="cost"))
    assert tuple(found.layers) == expected
    assert float((found.layers * found.count).sum()) >= 16


@pytest.mark.parametrize(
    ("name", "schedule", "pp", "layers", "heads"),
    [
        ("llama3.1-405b", "zb-v", 16, (6, 8, 8), (1, 0, 0)),  # both slots on the first device
        ("llama3-70b", "dualpipev", 4, (20, 20, 20), (1, 0, 0)),
        ("deepseek-v3", "dualpipev", 16, (1, 4, 4), (1, 0, 0)),  # 61 + 3 slots
        ("llama3.1-405b", "dualpipe", 16, (7, 8, 7), (0.5, 0, 0.5)),
        ("deepseek-v3", "dualpipe", 16, (2.5, 4, 2.5), (0.5, 0, 0.5)),  # means of 3 and 2
    ],
)
def test_a_pipeline_that_folds_has_both_ends_on_a_device(
    name: str, schedule: str, pp: int, layers: tuple, heads: tuple, plan: Make
) -> None:
    vpp = 1.0 if schedule == "dualpipe" else 2.0
    found = stages(catalog.model(name), plan(pp=float(pp), vpp=vpp, schedule=schedule))
    assert tuple(found.heads) == tuple(found.embeds) == heads
    assert tuple(found.layers) == layers


def test_dualpipe_holds_weights_twice_and_optimizer_states_once(llama: Model, plan: Make) -> None:
    """Two devices hold each stage; ZeRO-1 divides its states among twice the ranks."""
    states = {
        name: plan(tp=8.0, pp=4.0, dp=2.0, schedule=name, weight_bytes=2.0, gradient_bytes=4.0)
        for name in ("1f1b", "dualpipe")
    }
    held = {
        name: memory(llama, made, RunParameters()).classes["layer weights and optimizer"][1]
        for name, made in states.items()
    }
    # 6 bytes of weight and gradient, 12 of states over 2 or 4 ranks: 12 against 2 x (6 + 3).
    assert held["dualpipe"] / held["1f1b"] == pytest.approx(18 / 12)
    assert states["dualpipe"].gradient_group == 2 * states["1f1b"].gradient_group


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"first_layers": 7.0, "last_layers": 7.0}, (7, 9, 7)),
        ({"first_layers": 6.0}, (6, 8, 8)),  # 26 over three: 8, 9, 9 in the fullest
        ({"last_layers": 5.0}, (9, 9, 5)),
    ],
)
def test_stated_layers_of_the_ends_hold(given: dict, expected: tuple, plan: Make) -> None:
    """32 layers on four stages, as Megatron's decoder-first-pipeline-num-layers states them."""
    model = catalog.model("llama3-8b")
    found = stages(model, plan(pp=4.0, **given))
    assert found.layers[0] == expected[0]
    assert found.layers[2] == expected[2]
    assert found.layers[1] == np.ceil((32 - expected[0] - expected[2]) / 2)
    two = stages(model, plan(pp=2.0, **{k: v for k, v in given.items() if k == "first_layers"}))
    assert float((two.layers * two.count).sum()) == 32


def test_layers_that_cannot_be_stated(plan: Make) -> None:
    model = catalog.model("llama3-8b")
    changes: dict
    for changes, message in (
        ({"pp": 1.0, "first_layers": 8.0}, "with pp of at least 2"),
        ({"pp": 2.0, "first_layers": 8.0, "last_layers": 8.0}, "do not leave a layer"),
        ({"pp": 2.0, "first_layers": 15.0, "last_layers": 16.0}, "do not leave a layer"),
        ({"pp": 4.0, "first_layers": 30.0}, "30 and last_layers unstated do not leave a layer"),
        ({"pp": 4.0, "last_layers": 6.0, "split": "cost"}, "6 cannot be with split cost"),
        ({"pp": 4.0, "last_layers": 2.5}, "last_layers 2.5 must be a whole number"),
    ):
        with pytest.raises(InputError, match=message):
            check(plan(tp=1.0, dp=1.0, **changes), model)
