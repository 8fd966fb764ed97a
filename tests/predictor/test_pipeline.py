from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.model import Model
from predictor.pipeline import in_flight, pipeline_time, stages, timeline
from predictor.plan import TrainingPlan

Make = Callable[..., TrainingPlan]


def closed(times: list[float], m: int, vpp: int, ahead: float = 1 / 3) -> float:
    """The closed form for given stage times (first, inner ones, last) and forward share."""
    p = len(times)
    if p == 1:
        stage = np.array([0.0, 0.0, times[0]])
        count = np.array([0.0, 0.0, 1.0])
        return float(pipeline_time(ahead * stage, (1 - ahead) * stage, count, float(m), float(vpp)))
    inner = times[1:-1]
    assert len(set(inner)) <= 1, "inner stages of one kind are alike"
    stage = np.array([times[0], inner[0] if inner else 0.0, times[-1]])
    count = np.array([1.0, float(len(inner)), 1.0])
    return float(pipeline_time(ahead * stage, (1 - ahead) * stage, count, float(m), float(vpp)))


@given(
    p=st.integers(1, 8), vpp=st.integers(1, 4), groups=st.integers(1, 5), back=st.floats(0.5, 3.0)
)
def test_closed_form_is_the_timeline_with_equal_stages(
    p: int, vpp: int, groups: int, back: float
) -> None:
    if p == 1:
        vpp = 1
    m = p * groups
    events = timeline([1.0] * p, [back] * p, m, vpp)
    assert len(events) == 2 * m * p * vpp
    expected = closed([1.0 + back] * p, m, vpp, 1 / (1 + back))
    assert max(event.end for event in events) == pytest.approx(expected, rel=1e-9)


@given(
    p=st.integers(2, 8),
    m=st.integers(8, 40),
    first=st.floats(0.7, 1.5),
    last=st.floats(0.7, 1.5),
)
def test_closed_form_is_near_the_timeline_with_uneven_ends(
    p: int, m: int, first: float, last: float
) -> None:
    times = [first, *[1.0] * (p - 2), last] if p > 2 else [first, last]
    events = timeline([t / 3 for t in times], [2 * t / 3 for t in times], m + p)
    found = max(event.end for event in events)
    assert closed(times, m + p, 1) == pytest.approx(found, rel=0.02)


@given(p=st.integers(2, 6), vpp=st.integers(1, 3), groups=st.integers(1, 4))
def test_no_stage_does_two_things_at_once(p: int, vpp: int, groups: int) -> None:
    events = timeline([1.0] * p, [2.0] * p, p * groups, vpp)
    for stage in range(p):
        own = sorted((e.start, e.end) for e in events if e.stage == stage)
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(own))


def test_interleaving_divides_the_bubble() -> None:
    plain, interleaved = closed([3.0] * 8, 32, 1), closed([3.0] * 8, 32, 4)
    assert plain - 32 * 3.0 == pytest.approx(4 * (interleaved - 32 * 3.0))


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "expected"),
    [
        ("gpt3-175b", 8, 3, (12, 12, 12)),
        ("llama3.1-405b", 16, 1, (7, 8, 7)),  # 126 + 2 slots
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
