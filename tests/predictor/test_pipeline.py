from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.model import Model
from predictor.pipeline import in_flight, stages
from predictor.plan import TrainingPlan

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
