"""What a step draws, and lasts under a limit, counted from its breakdown and its operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.plans import TrainingPlan
from predictor.power import CLOCKS, Conditions, Pace, relative_energy
from predictor.training.decomposition import COMPUTE_TERMS, EXCHANGE_TERMS
from predictor.training.pacing import (
    PassPace,
    _inside,
    _parts,
    delayed,
    pipeline_of,
    with_clocks,
)
from predictor.training.power import (
    COPIES,
    FAR,
    PRODUCTS,
    SENDING,
    STREAMED,
    limited,
    step_activity,
    step_power,
    under_limits,
)
from predictor.training.prediction import TrainingPrediction, predict
from tests.predictor.dense import dense

MODEL = dense(layers=8, heads=16, kv_heads=8, head_dim=128, ffn_hidden=5632, vocab=32000)
DGX, KNOWN = catalog.system("dgx-h100"), load("default")


@pytest.fixture(scope="module")
def found() -> TrainingPrediction:
    """Sixteen micro-batches on four stages of two ranks, two replicas on two nodes, fp8 products,
    recomputed layers, a slow loader."""
    made = TrainingPlan(
        tp=2.0, pp=4.0, dp=2.0, micro_batch=1.0, global_batch=32.0, seq_len=2048.0,
        precision="fp8", recompute="full", sequence_parallel=1.0, loader_rate=5e4,
        framework="megatron-lm", era="2024",
    )  # fmt: skip
    return predict(MODEL, DGX, made, KNOWN)


def seconds(found: TrainingPrediction, *names: str) -> float:
    return sum(float(found.breakdown[name]) for name in names)


def test_phases_of_a_step_last_as_long_as_its_terms(found: TrainingPrediction) -> None:
    """The framework's factor stretches all but loading; what it adds to passes lies between
    products; the phases together are the step."""
    work = step_activity(found).activity
    step, loading = float(found.step_time), seconds(found, "data_loading")
    assert loading > 0.0
    factor = (step - loading) / (step - loading - seconds(found, "framework"))
    assert factor > 1.0
    assert float(work["communication"].time) == pytest.approx(
        factor * seconds(found, *EXCHANGE_TERMS, *FAR)
    )
    for phase, term in (("bubble", "bubble"), ("optimizer", "optimizer")):
        assert float(work[phase].time) == pytest.approx(factor * seconds(found, term))
    waits = factor * seconds(found, "host", "offload") + loading
    assert float(work["waiting"].time) == pytest.approx(waits)
    for name in COMPUTE_TERMS:
        both = float(work[f"{name}.products"].time + work[f"{name}.others"].time)
        assert both == pytest.approx(factor * seconds(found, name))
    assert sum(float(one.time) for one in work.values()) == pytest.approx(step)


def test_work_of_a_step_is_its_operators(found: TrainingPrediction) -> None:
    """FLOPs by what their data type takes, bytes, shares of a phase's time; of products apart."""
    work, factor = step_activity(found).activity, None
    hidden = sum(float(one) for one in found.hidden.values())
    beside = min(hidden / seconds(found, *COMPUTE_TERMS), 1.0)
    bandwidth, near = float(DGX.accelerator.bandwidth), SENDING * DGX.tiers[0].bandwidth
    far = SENDING * DGX.tiers[-1].bandwidth
    neutral = float(found.step_time) - seconds(found, "data_loading")
    factor = neutral / (neutral - seconds(found, "framework"))
    for name in COMPUTE_TERMS:
        sums = {"products": np.zeros(3), "others": np.zeros(3)}
        for one, count, time in zip(
            found.operators, found.executions, found.timing.time, strict=True
        ):
            if one.phase == name:
                each = float(one.flop) * relative_energy(one.dtype), float(one.bytes), float(time)
                part = "products" if one.op in PRODUCTS else "others"
                sums[part] += float(count) * np.array(each)
        lasts = sum(own[2] for own in sums.values())
        for part, (flop, moved, time) in sums.items():
            own = work[f"{name}.{part}"]
            assert (float(own.flop), float(own.bytes)) == pytest.approx((flop, moved))
            share = time / lasts
            extra = (factor - 1.0) * seconds(found, name) if part == "others" else 0.0
            assert float(own.time) == pytest.approx(share * seconds(found, name) + extra)
            ideal = flop / float(found.peak), moved / bandwidth
            assert float(own.core) == pytest.approx(ideal[0] / sum(ideal))
            assert float(own.link) == pytest.approx(beside * share * seconds(found, name) * near)
            assert float(own.spinning) == pytest.approx(beside)
    sent = factor * (near * seconds(found, *EXCHANGE_TERMS) + far * seconds(found, *FAR))
    talk = work["communication"]
    assert float(talk.link) == pytest.approx(sent)
    assert float(talk.bytes) == pytest.approx(COPIES * sent)
    assert float(np.asarray(talk.spinning)) == float(np.asarray(work["bubble"].spinning)) == 1.0
    update = work["optimizer"]
    assert float(update.bytes) == pytest.approx(STREAMED * bandwidth * float(update.time))
    pieces = step_activity(found).pieces
    assert {name: float(one) for name, one in pieces.items()} == {
        **dict.fromkeys((*COMPUTE_TERMS, "communication", "waiting"), 16.0), "bubble": 2.0,
        "optimizer": 1.0,
    }  # fmt: skip


def test_rings_read_add_and_write_what_they_send() -> None:
    """Every byte that arrives is read to be added to what is read here, and written: three."""
    assert COPIES == 3.0
    assert 0.0 < SENDING < STREAMED < 1.0


@pytest.mark.parametrize(
    "conditions", [Conditions(limit=350.0), Conditions(clock=1e9), Conditions(inlet=20.0)]
)
def test_a_step_under_conditions_is_its_phases_each_as_much_longer(
    found: TrainingPrediction, conditions: Conditions
) -> None:
    """By what a board without them would take; a bubble as the work that it is made of, what the
    framework adds as all that it adds to, a loader not at all."""
    under = step_power(found, conditions)
    usual = step_power(found, Conditions())
    slower = {name: float(under.longer[name] / usual.longer[name]) for name in under.longer}
    own = limited(found, under, conditions)
    new = {name: float(value) for name, value in own.breakdown.items()}
    for name in (*COMPUTE_TERMS, "optimizer"):
        assert new[name] == pytest.approx(slower[name] * seconds(found, name))
    for name in (*EXCHANGE_TERMS, *FAR):
        assert new[name] == pytest.approx(slower["communication"] * seconds(found, name))
    work = sum(new[name] for name in COMPUTE_TERMS) / seconds(found, *COMPUTE_TERMS)
    assert new["bubble"] == pytest.approx(work * seconds(found, "bubble"))
    for name in ("data_loading", "host", "offload"):
        assert new[name] == seconds(found, name)
    rest = [name for name in new if name not in ("framework", "data_loading")]
    more = sum(new[name] for name in rest) / seconds(found, *rest)
    assert new["framework"] == pytest.approx(more * seconds(found, "framework"))
    assert float(own.step_time) == pytest.approx(sum(new.values()))
    assert float(own.layer_time) == pytest.approx(work * float(found.layer_time))
    for name in ("forward", "backward", "weights"):
        before = getattr(found.passes, name)
        assert getattr(own.passes, name) == pytest.approx(work * before)
    ratio = float(own.step_time / found.step_time)
    assert float(own.low / found.low) == pytest.approx(ratio)
    assert limited(found, usual, Conditions()) is found


def test_a_pass_at_clocks_is_the_mean_of_its_parts() -> None:
    """Three quarters of it twice as long at the lower clock: 1.75; 100 W of waiting aside it takes
    (300 - 100) 2 x 0.75 + (150 - 100) 0.25 J for each of its seconds."""
    own = PassPace(
        ("forward", "forward"), np.array([0.75, 0.25]),
        Pace(np.array([[1.0, 1.0], [2.0, 1.0]]), np.array([[500.0, 200.0], [300.0, 150.0]])),
    )  # fmt: skip
    assert own.longer().tolist() == [1.0, 1.75]
    assert own.beyond(100.0).tolist() == [0.75 * 400 + 0.25 * 100, 1.5 * 200 + 0.25 * 50]


def test_passes_at_the_highest_clock_are_the_step_as_it_is(found: TrainingPrediction) -> None:
    """Phases, energy and all; what is spent at a lower one is longer and draws less there."""
    own = pipeline_of(found, Conditions())
    assert own.times.shape == (3, 4)
    every = float(found.factor) * np.array(found.passes.of_every_stage())
    assert own.times == pytest.approx(every)
    many = np.array([[own.graph.pieces[own.graph.stage == s].sum(axis=0)[d] for s in range(4)]
                     for d in range(3)])  # fmt: skip
    spent = many * own.times
    highest = np.zeros((3, 4, len(CLOCKS)))
    highest[..., 0] = spent
    same = with_clocks(own, highest)
    usual = {one.name: one for one in own.usual.phases}
    assert float(sum(one.time for one in same.phases)) == pytest.approx(float(own.usual.time))
    inside = _inside(own)
    stage = int(np.argmax(own.times.sum(axis=0)))
    assert sum(inside.values()) == pytest.approx(
        sum(spent[d, stage] * float(own.paces[d].longer()[0]) for d in range(3))
    )
    for one in same.phases:
        if one.name in ("optimizer", "waiting"):
            assert float(one.time) <= float(usual[one.name].time) * (1 + 1e-9)
    watts = {one.name: float(one.power) for one in same.phases}
    assert watts["optimizer"] == pytest.approx(float(usual["optimizer"].power)), "of no pass"
    lower = np.zeros_like(highest)
    lower[..., 5] = spent
    slow = with_clocks(own, lower, slower=0.3)
    assert float(sum(one.time for one in slow.phases)) == pytest.approx(
        max(float(own.usual.time) + 0.3, sum(float(one.time) for one in slow.phases))
    )
    passes = {one.name: float(one.time) for one in slow.phases if one.name in COMPUTE_TERMS}
    expected: dict[str, float] = {}
    for pace, each in zip(own.paces, spent.sum(axis=1) / 4, strict=True):
        for name, longer, share in zip(pace.names, pace.at.longer[5], pace.share, strict=True):
            expected[name] = expected.get(name, 0.0) + longer * share * each
    for name, time in passes.items():
        assert time == pytest.approx(expected[name])


def test_a_pipeline_that_waits_longer_is_a_longer_bubble(found: TrainingPrediction) -> None:
    later = delayed(found, 0.5)
    assert float(later.step_time) == pytest.approx(float(found.step_time) + 0.5)
    assert float(later.breakdown["bubble"]) == pytest.approx(seconds(found, "bubble") + 0.5)
    assert float(later.high / later.step_time) == pytest.approx(float(found.high / found.step_time))
    assert delayed(found, 0.0) is found
    single: Any = replace(found, plan=replace(found.plan, pp=1.0))
    with pytest.raises(InputError, match="clocks by stage need a pipeline"):
        pipeline_of(single, Conditions())


def test_limits_at_once_are_those_one_by_one(found: TrainingPrediction) -> None:
    """Each row as by itself, to the last bit, whatever the others do; a limit of several that
    cannot be is named."""
    limits = np.array([700.0, 500.0, 350.0, 220.0])
    both = step_power(found, Conditions(limit=limits))
    for row, limit in enumerate(limits.tolist()):
        one = step_power(found, Conditions(limit=limit))
        assert float(both.time[row]) == float(one.time)
        assert float(both.mean[row]) == float(one.mean)
    assert np.all(np.diff(both.time) >= 0)
    with pytest.raises(InputError, match="--power-limit 9999 W"):
        step_power(found, Conditions(limit=np.array([700.0, 9999.0])))


def test_plans_under_limits_are_each_as_by_itself(found: TrainingPrediction) -> None:
    """Of a batch under all limits, the board's own among them, to the last bit."""
    plans = replace(found.plan, micro_batch=np.array([1.0, 2.0, 4.0]))
    batch, limits = predict(MODEL, DGX, plans, KNOWN), (500.0, None, 300.0)
    times, watts = under_limits(batch, limits)
    for row, limit in enumerate(limits):
        for at, micro_batch in enumerate((1.0, 2.0, 4.0)):
            alone = predict(MODEL, DGX, replace(found.plan, micro_batch=micro_batch), KNOWN)
            under = step_power(alone, given := Conditions(limit=limit))
            assert times[row, at] == float(limited(alone, under, given).step_time)
            assert watts[row, at] == float(under.mean)
    assert under_limits(found, (None,))[0].tolist() == [float(found.step_time)]


@pytest.mark.parametrize("beyond", [0.0, 0.5, 1.0, 3.0])
def test_parts_of_the_passes_last_as_long_as_the_passes(
    found: TrainingPrediction, beyond: float
) -> None:
    """What is not computed is the host's first, and what that does not take is sent."""
    work = step_activity(found).activity
    compute = sum(float(one.time) for name, one in work.items() if "." in name)
    host = float(work["waiting"].time) - seconds(found, "data_loading")
    assert host > 0.0
    busy = compute + beyond * host
    sides = _parts(found, busy)
    names = {name for own in sides for name, _ in own}
    lasts = {
        name: sum(float(w.time) for own in sides for n, w in own if n == name) for name in names
    }
    assert sum(lasts.values()) == pytest.approx(busy)
    assert lasts["waiting"] == pytest.approx(min(beyond, 1.0) * host)
    assert lasts["communication"] == pytest.approx(max(beyond - 1.0, 0.0) * host, abs=1e-9 * host)
    for own in sides:  # each side has of what lies between as it has of what is computed
        sums = [
            sum(float(w.time) for n, w in own if (n in COMPUTE_TERMS) is of) for of in (True, False)
        ]
        assert sums[1] * compute == pytest.approx(sums[0] * beyond * host)


def test_what_is_copied_to_hosts_waits_beside_what_hosts_take(found: TrainingPrediction) -> None:
    """A second more of copies that nothing hides is a second more of waiting, and of the step."""
    terms: Any = {**found.breakdown, "offload": np.asarray(1.0)}
    neutral = float(found.step_time) - seconds(found, "data_loading", "framework")
    factor = 1.0 + seconds(found, "framework") / neutral
    terms["framework"] = np.asarray((factor - 1.0) * (neutral + 1.0))
    later = replace(found, breakdown=terms, step_time=found.step_time + factor)
    waits = [float(step_activity(one).activity["waiting"].time) for one in (found, later)]
    assert waits[1] - waits[0] == pytest.approx(factor)
