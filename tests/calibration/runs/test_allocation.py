"""What frameworks' allocation adds to memory: found again from made-up rows, by hand otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.runs.allocation import LEAST_ROWS, Tensors, fit_allocation, take_tensors
from calibration.runs.fit import default_run
from calibration.tables.runs import Point, point_of
from predictor.memory.training import allocation, memory
from tests.calibration.tables.test_points import ROW

RUN = default_run()


def point(**changed: object) -> Point:
    found = point_of({**ROW, "framework": "nanotron", "status": "Success", **changed}, RUN)
    assert isinstance(found, Point)
    return found


@pytest.mark.parametrize(("pp", "several", "grows"), [(1, 4, 1.0), (4, 4, 1.5), (4, 1, 1.5)])
def test_held_acts_on_every_stage_of_pipelines_only(pp: int, several: int, grows: float) -> None:
    """Also where one micro-batch is in flight: on the last stage, and of a step that has no more.
    Jobs of the sweep with one micro-batch reserve 14 % more than its bytes."""
    model, plan = point().request.model, point().request.plan
    none, held = (replace(RUN, factors=own) for own in ({}, {"held/nanotron": 1.5}))
    dp = plan.gpus / pp
    batch = several * plan.micro_batch * dp
    own = replace(plan, pp=float(pp), vpp=1.0, cp=1.0, tp=1.0, dp=dp, global_batch=batch)
    before, after = (memory(model, own, run) for run in (none, held))
    kept, reserved = (one.classes["activations"][one.present] for one in (before, after))
    assert reserved == pytest.approx(grows * kept)


@pytest.mark.parametrize(("framework", "copies"), [("megatron-deepspeed", 2), ("megatron-lm", 0)])
def test_pipelines_keep_what_they_hand_on(framework: str, copies: int) -> None:
    """Of four stages the first has four micro-batches in flight, each with so many tensors of the
    residual stream more; a stage by itself hands nothing on."""
    model, plan = point().request.model, point().request.plan
    for pp in (1.0, 4.0):
        own = replace(plan, framework=framework, pp=pp, vpp=1.0, tp=1.0, dp=plan.gpus / pp, cp=1.0)
        bare, found = (
            memory(model, own, run).classes["activations"]
            for run in (replace(RUN, factors={}), RUN)
        )
        one = 2.0 * float(own.tokens) * model.hidden
        flying = np.array([4.0, 3.0, 1.0]) if pp > 1 else np.zeros(3)
        there = memory(model, own, RUN).present
        assert (found - bare)[there] == pytest.approx(copies * one * flying[there])


def test_nanotron_keeps_what_it_gathers_into() -> None:
    """Two buffers of a micro-batch's residual stream on every rank of a group that splits it, none
    where there is no group, or none that splits it; no other framework has them."""
    model, plan = point().request.model, replace(point().request.plan, pp=1.0, cp=1.0)
    bare = replace(RUN, factors={})
    for tp, split, framework, count in (
        (4.0, 1.0, "nanotron", 2),
        (1.0, 1.0, "nanotron", 0),
        (4.0, 0.0, "nanotron", 0),
        (4.0, 1.0, "megatron-lm", 0),
    ):
        own = replace(plan, tp=tp, dp=plan.gpus / tp, sequence_parallel=split, framework=framework)
        without, found = (
            memory(model, own, run).classes["backward workspace"] for run in (bare, RUN)
        )
        buffer = 2.0 * float(own.tokens) * model.hidden
        assert (found - without)[2] == pytest.approx(count * buffer)


def test_other_frameworks_keep_the_defaults() -> None:
    run = replace(RUN, factors={"context/nanotron": 2.0, "fragmentation/nanotron": 3.0})
    assert allocation(run, "nemo") == allocation(RUN, "nemo")
    assert allocation(run, "nanotron").context == pytest.approx(2.0 * RUN.context)
    assert allocation(run, "nanotron").fragmentation == pytest.approx(3.0 * RUN.fragmentation)


def test_the_stated_allocation_is_found_again() -> None:
    """Rows made with held 1.4, a tenth lost and 12 GB beside: the fit says so within what the noise
    leaves open."""
    rng = np.random.default_rng(0)
    count = 400
    fixed = rng.uniform(5e9, 40e9, (count, 3))
    flying = rng.uniform(5e9, 40e9, (count, 3)) * [1.0, 0.5, 0.0]
    first = np.zeros(count, int)
    true = (fixed + 1.4 * flying) * 1.1
    noise = np.exp(rng.normal(0.0, 0.03, count))
    out = true.max(axis=1) * noise + 12e9 > 80e9
    made = Tensors(
        fixed=fixed, flying=flying, present=np.ones((count, 3), bool), first=first,
        measured=np.where(out, np.nan, true[:, 0] * noise), told=np.ones(count, bool),
        divided=np.ones(count), out=out, capacity=np.full(count, 80e9),
    )  # fmt: skip
    found = fit_allocation(made, RUN, "x")
    assert found["held/x"] == pytest.approx(1.4, rel=0.03)
    assert found["fragmentation/x"] * RUN.fragmentation == pytest.approx(0.1, abs=0.02)
    assert found["context/x"] * RUN.context == pytest.approx(12e9, rel=0.15)

    # What else was reserved in rows that do not tell it changes nothing but what they left free.
    odd = rng.random(count) < 0.3
    more = np.where(odd, 1.02 * made.measured, made.measured)
    again = fit_allocation(replace(made, measured=more, told=~odd), RUN, "x")
    bare = fit_allocation(made.only(~odd | out), RUN, "x")
    assert again["held/x"] == pytest.approx(bare["held/x"])


def test_what_ended_had_room_beside_it() -> None:
    """Plans of one stage that ran out from 60 GB on would have it that 20 are taken beside; one
    that ended with 68 GB reserved says that it is 12 at most."""
    fixed = np.linspace(40e9, 80e9, 81)
    out = fixed > 60e9
    made = Tensors(
        fixed=np.repeat(fixed[:, None], 3, axis=1), flying=np.zeros((81, 3)),
        present=np.tile([False, False, True], (81, 1)), first=np.full(81, 2),
        measured=np.where(out, np.nan, fixed), told=np.ones(81, bool), divided=np.ones(81),
        out=out, capacity=np.full(81, 80e9),
    )  # fmt: skip
    run = replace(RUN, fragmentation=1e-9)
    free = fit_allocation(made, run, "x")["context/x"] * run.context
    assert free == pytest.approx(20e9, rel=0.05)
    full = made.measured.copy()
    full[0] = 68e9
    bound = fit_allocation(replace(made, measured=full), run, "x")["context/x"] * run.context
    assert bound == pytest.approx(12e9, rel=1e-5)


def test_few_rows_say_nothing() -> None:
    points = [point(memory_reserved_gb=40.0)] * (LEAST_ROWS - 1)
    assert fit_allocation(take_tensors(points, RUN), RUN, "nanotron") == {}


def test_tensors_are_those_of_the_prediction() -> None:
    """Taken apart and put together again: the peak of `memory` without context."""
    one = point(tp=2.0, pp=4.0, memory_reserved_gb=40.0)
    made = take_tensors([one], RUN)
    whole = memory(one.request.model, one.request.plan, RUN)
    assert made.reserved(1.0, RUN.fragmentation).max() == pytest.approx(float(whole.reserved))
    assert (made.first[0], made.measured[0]) == (0, 40.0 * 2**30)
