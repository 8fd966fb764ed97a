from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.plans.events import Event, timeline
from predictor.plans.rules import check
from predictor.plans.schedules import SCHEDULES, Passes, pipeline_time
from predictor.plans.training import TrainingPlan
from predictor.training.prediction import predict

Make = Callable[..., TrainingPlan]
KERNELS = load("kernels-only")
LLAMA = catalog.model("llama3-70b")
DGX = catalog.system("dgx-h100")

SPLIT = (1.0, 1.1, 0.9)
"""Forward, backward, weights of a usual stage."""

names = st.sampled_from(sorted(SCHEDULES))


def possible(name: str, p: int, vpp: int = 1) -> tuple[int, int, int]:
    """The nearest devices, virtual stages and least micro-batches that a schedule can have."""
    entry = SCHEDULES[name]
    if entry.fold == "line":
        return p, vpp if p > 1 and entry.chunks else 1, p + 1
    if entry.fold == "both":
        p += p % 2
    p = max(p, 2)
    return p, 2 if entry.fold == "v" else 1, 2 * p


def passes(sizes: list[float], split: tuple[float, float, float] = SPLIT) -> Passes:
    """Stages that take `sizes` times `split`: the first, alike inner ones, the last."""
    p = len(sizes)
    inner = sizes[1:-1]
    assert len(set(inner)) <= 1, "inner stages of one kind are alike"
    kinds = np.array([sizes[0] if p > 1 else 0.0, inner[0] if inner else 0.0, sizes[-1]])
    count = np.array([float(p > 1), float(len(inner)), 1.0])
    f, b, w = (part * kinds for part in split)
    return Passes(f, b, w, count)


def played(name: str, of: Passes, m: int, vpp: int = 1) -> float:
    events = timeline(name, *of.of_every_stage(), m, vpp)
    return max(event.end for event in events)


def closed(name: str, of: Passes, m: int, vpp: int = 1) -> float:
    return float(pipeline_time(name, of, float(m), float(vpp)))


@given(
    name=names,
    p=st.integers(1, 8),
    vpp=st.integers(1, 4),
    groups=st.integers(1, 5),
    back=st.floats(0.5, 3.0),
    late=st.floats(0.3, 1.5),
)
def test_closed_forms_are_the_timeline_with_equal_stages(
    name: str, p: int, vpp: int, groups: int, back: float, late: float
) -> None:
    p, vpp, _ = possible(name, p, vpp)
    of = passes([1.0] * p, (1.0, back, late))
    m = p * (groups if SCHEDULES[name].fold == "line" else groups + 1)
    assert closed(name, of, m, vpp) == pytest.approx(played(name, of, m, vpp), rel=1e-9)


@given(
    name=names,
    p=st.integers(2, 8),
    more=st.integers(0, 40),
    first=st.floats(0.7, 1.5),
    last=st.floats(0.7, 1.5),
)
def test_closed_forms_are_near_the_timeline_with_uneven_ends(
    name: str, p: int, more: int, first: float, last: float
) -> None:
    """Within 2 % from three micro-batches per stage on, 4 % below; where the pipeline folds, so
    that both ends lie on one device, 3 % and 5 %."""
    p, vpp, least = possible(name, p)
    fold = SCHEDULES[name].fold
    last = {"line": last, "v": 1.0, "both": first}[fold]
    of = passes([first, *[1.0] * (p - 2), last])
    m = 3 * p + more + (p + more) % 2 * (fold == "both")
    near, nearly = (0.02, 0.04) if fold == "line" else (0.03, 0.05)
    assert closed(name, of, m, vpp) == pytest.approx(played(name, of, m, vpp), rel=near)
    assert closed(name, of, least, vpp) == pytest.approx(played(name, of, least, vpp), rel=nearly)


@given(
    name=st.sampled_from(["zb-v", "dualpipev"]),
    p=st.integers(2, 8),
    more=st.integers(0, 40),
    first=st.floats(0.7, 1.5),
    last=st.floats(0.7, 1.5),
)
def test_folded_pipelines_with_two_uneven_devices(
    name: str, p: int, more: int, first: float, last: float
) -> None:
    of = passes([first, *[1.0] * (p - 2), last])
    m = 3 * p + more
    assert closed(name, of, m, 2) == pytest.approx(played(name, of, m, 2), rel=0.06)


@pytest.mark.parametrize("slow", ["first", "inner", "last"])
@pytest.mark.parametrize("name", ["zb-v", "dualpipe", "dualpipev"])
def test_others_catch_up_with_a_slower_device_of_a_fold(name: str, slow: str) -> None:
    """But no more than they do: the step is told a hundredth too short at most."""
    mirrored = name == "dualpipe"
    for p, more in product((4, 6) if mirrored else (3, 4, 6), (1.05, 1.1, 1.2, 1.4)):
        ends = more if mirrored and slow != "inner" else 1.0
        works = [ends, *[more if slow == "inner" else 1.0] * (p - 2), ends]
        if slow != "inner":
            works[0 if slow == "first" else -1] = more
        of, m, vpp = passes(works), 3 * p + 3 * p % 2 * mirrored, 1 if mirrored else 2
        ratio = closed(name, of, m, vpp) / played(name, of, m, vpp)
        assert 0.99 < ratio < 1.05, (p, more)


@given(name=names, p=st.integers(1, 6), m=st.integers(1, 12))
def test_every_stage_does_all_work_one_thing_at_a_time(name: str, p: int, m: int) -> None:
    p, vpp, least = possible(name, p)
    m = m if vpp == 1 and SCHEDULES[name].fold == "line" else least + 2 * m
    events = timeline(name, *passes([1.0] * p).of_every_stage(), m, vpp)
    assert len(events) == (3 if SCHEDULES[name].splits else 2) * m * p * vpp
    for stage in range(p):
        own = sorted((e.start, e.end) for e in events if e.stage == stage)
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(own))
        assert sum(b - a for a, b in own) == pytest.approx(m * sum(SPLIT))


def peak(events: list[Event], stage: int, until: str) -> int:
    """Most micro-batches between their forward pass and the end of `until` on a stage."""
    moves = [(e.end, -1) for e in events if e.stage == stage and e.direction == until]
    moves += [(e.start, 1) for e in events if e.stage == stage and e.direction == "forward"]
    held = np.cumsum([step for _, step in sorted(moves)])
    return int(held.max())


@given(name=names, p=st.integers(1, 6), groups=st.integers(1, 4))
def test_what_is_held_is_what_the_timeline_holds(name: str, p: int, groups: int) -> None:
    p, vpp, _ = possible(name, p)
    entry, m = SCHEDULES[name], p * (groups + (vpp == 2 or p % 2 == 0))
    events = timeline(name, *passes([1.0] * p).of_every_stage(), m, vpp)
    until = "weights" if entry.splits else "backward"
    held = [peak(events, stage, until) / vpp for stage in range(p)]
    said = [float(entry.held(np.array(float(p - k)), float(p), float(m), 1.0)) for k in range(p)]
    assert all(a <= b for a, b in zip(held, said, strict=True))
    # What papers say of folded pipelines is reached within the micro-batch that is handed on.
    assert entry.fold == "line" or max(held) >= max(said) - 1.0


def test_bubbles_by_hand() -> None:
    """Four stages, eight micro-batches, f b w = 1 1 1: bubbles of 3 (f + b + w) for 1F1B and
    GPipe, of 3 (f + b - w) for ZB-H1; interleaving divides it."""
    of = passes([1.0] * 4, (1.0, 1.0, 1.0))
    assert closed("1f1b", of, 8) - 24 == pytest.approx(9)
    assert closed("gpipe", of, 8) - 24 == pytest.approx(9)
    assert closed("zb-h1", of, 8) - 24 == pytest.approx(3)
    assert closed("1f1b", of, 8, 3) - 24 == pytest.approx(3)


def test_bubbles_of_folded_pipelines_by_hand() -> None:
    """ZB-V on four devices: none waits but for the three chunks of 1/2 that end after the first.
    DualPipe on four: (4/2 - 1) (F&B + B - 3W) = 3 + 2 - 3; DualPipeV: the eight chunks of 1/2 make
    (8/2 - 1) of half of that."""
    of = passes([1.0] * 4, (1.0, 1.0, 1.0))
    assert closed("zb-v", of, 8, 2) - 24 == pytest.approx(1.5)
    assert closed("dualpipe", of, 8) - 24 == pytest.approx(2)
    assert closed("dualpipev", of, 8, 2) - 24 == pytest.approx(3)


def test_a_batch_of_pipelines_is_each_of_them() -> None:
    each = [passes([1.0] * p) for p in (2, 4, 6)]
    together = Passes(
        *(
            np.stack([getattr(one, part) for one in each], axis=1)
            for part in ("forward", "backward", "weights", "count")
        )
    )
    for name in SCHEDULES:
        found = pipeline_time(name, together, np.array([8.0, 8.0, 16.0]))
        alone = [closed(name, one, m) for one, m in zip(each, (8, 8, 16), strict=True)]
        assert found == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@settings(deadline=None)
@given(vpp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4, 8]))
def test_a_predicted_run_can_be_played(name: str, vpp: int, pp: int) -> None:
    pp, vpp, _ = possible(name, pp, vpp)
    plan = TrainingPlan(
        tp=8.0, pp=float(pp), dp=1.0, micro_batch=1.0, global_batch=float(4 * pp), seq_len=2048.0,
        vpp=float(vpp), schedule=name,
    )  # fmt: skip
    found = predict(LLAMA, DGX, plan, KERNELS)
    pipeline = sum(
        float(value)
        for term, value in found.breakdown.items()
        if term not in ("dp_communication", "optimizer", "framework")
    )
    assert found.timeline()[-1].end == pytest.approx(pipeline, rel=0.02)


def test_zero_bubble_beats_what_it_splits(plan: Make) -> None:
    made = {
        name: plan(tp=8.0, pp=4.0, schedule=name, vpp=2.0 if SCHEDULES[name].fold == "v" else 1.0)
        for name in SCHEDULES
    }
    bubble = {
        n: float(predict(LLAMA, DGX, p, KERNELS).breakdown["bubble"]) for n, p in made.items()
    }
    assert bubble["zb-h1"] < 0.6 * bubble["1f1b"]
    assert bubble["zb-v"] < bubble["zb-h1"]
    assert bubble["dualpipe"] < 0.5 * bubble["1f1b"]
    held = {n: float(predict(LLAMA, DGX, p, KERNELS).memory.peak) for n, p in made.items()}
    assert held["1f1b"] <= held["zb-h1"] <= held["gpipe"]
    assert held["zb-v"] < held["dualpipev"] < held["dualpipe"]


def test_what_cannot_be_played_is_refused(plan: Make) -> None:
    batch = plan(pp=np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="not for a batch"):
        predict(LLAMA, DGX, batch, KERNELS).timeline()
    ragged = plan(tp=8.0, pp=4.0, vpp=2.0, dp=1.0, micro_batch=1.0, global_batch=6.0)
    folded = replace(ragged, schedule="zb-v", global_batch=9.0)
    assert len(predict(LLAMA, DGX, folded, KERNELS).timeline()) == 3 * 9 * 4 * 2
    few = replace(ragged, schedule="dualpipe", vpp=1.0)
    with pytest.raises(InputError, match="dualpipe needs 2 micro-batches per stage"):
        predict(LLAMA, DGX, few, KERNELS).timeline()
    with pytest.raises(InputError, match="multiples of pp 4, not 6"):
        predict(LLAMA, DGX, ragged, KERNELS).timeline()
    with pytest.raises(InputError, match="vpp 2 cannot be with schedule gpipe"):
        check(replace(ragged, schedule="gpipe", global_batch=8.0), LLAMA)
    with pytest.raises(
        InputError, match="dualpipe needs 2 micro-batches per stage: global batch 6"
    ):
        check(replace(ragged, schedule="dualpipe", vpp=1.0), LLAMA)
    with pytest.raises(InputError, match="dualpipe runs from both ends: pp 5"):
        check(replace(ragged, schedule="dualpipe", vpp=1.0, pp=5.0, global_batch=10.0), LLAMA)
    with pytest.raises(InputError, match="vpp 1 cannot be with schedule zb-v"):
        check(replace(ragged, schedule="zb-v", vpp=1.0, global_batch=8.0), LLAMA)
    with pytest.raises(InputError, match="split cost cannot be with schedule zb-v"):
        check(replace(ragged, schedule="zb-v", split="cost", global_batch=8.0), LLAMA)


@given(
    p=st.integers(2, 10),
    less=st.integers(0, 9),
    first=st.floats(0.5, 1.6),
    last=st.floats(0.5, 1.6),
)
def test_pipelines_that_never_fill(p: int, less: int, first: float, last: float) -> None:
    """Fewer micro-batches than stages: exact for one, and with equal stages."""
    m = max(p - less, 1)
    of = passes([first, *[1.0] * (p - 2), last])
    near = 1e-9 if m == 1 else 0.13
    assert closed("1f1b", of, m) == pytest.approx(played("1f1b", of, m), rel=near)
    equal = passes([1.0] * p)
    assert closed("1f1b", equal, m) == pytest.approx(played("1f1b", equal, m), rel=1e-9)


@settings(max_examples=300)
@given(
    p=st.integers(1, 9),
    m=st.integers(1, 24),
    sizes=st.tuples(*[st.floats(0.1, 5.0)] * 3),
    back=st.tuples(*[st.floats(0.1, 5.0)] * 3),
)
def test_one_forward_one_backward_is_its_timeline_whatever_its_stages(
    p: int, m: int, sizes: tuple[float, ...], back: tuple[float, ...]
) -> None:
    """Without links exactly, with few micro-batches too: forward and backward passes of each kind
    of stage are anything."""
    count = np.array([float(p > 1), max(p - 2.0, 0.0), 1.0])
    there = np.where(count > 0, 1.0, 0.0)
    f, b = np.array(sizes) * there, np.array(back) * there
    of = Passes(f, b, np.zeros(3), count)
    assert closed("1f1b", of, m) == pytest.approx(played("1f1b", of, m), rel=1e-9)
