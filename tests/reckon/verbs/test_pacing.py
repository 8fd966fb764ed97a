"""Clocks of a pipeline's stages: closed forms on small schedules, and laws of what is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.errors import InputError
from predictor.plans import precedence
from predictor.power import CLOCKS, Conditions, sensible
from predictor.training import Pipeline, TrainingPrediction, pipeline_of
from predictor.training.pacing import PARTS, _parts
from reckon.verbs.frugal import Thrift
from reckon.verbs.pacing import Paced, paced
from reckon.verbs.plans import asked
from reckon.verbs.results import Prediction

PLAN = {
    "gpus": 32, "tp": 8, "pp": 4, "global_batch": 16, "seq_len": 4096, "schedule": "1f1b",
    "micro_batch": 1,
}  # fmt: skip


LONG = 1e4
"""Seconds of a step around a small pipeline: what is not at work waits."""


def train(**more: Any) -> Prediction:
    found = reckon.predict_train("llama3-70b", "dgx-h100", {**PLAN, **more}, "kernels-only")
    assert isinstance(found, Prediction)
    return found


@pytest.fixture(scope="module")
def alone() -> TrainingPrediction:
    return train().batch


@pytest.fixture(scope="module")
def real(alone: TrainingPrediction) -> Pipeline:
    return pipeline_of(alone, Conditions())


def shaped(real: Pipeline, times: Any, m: int, schedule: str = "1f1b") -> Pipeline:
    """The same work in another pipeline.

    times   of the passes forward and backward of each stage [s]
    """
    forward, backward = np.array(times, float)
    graph = precedence(schedule, len(forward), m, 1)
    zero = np.zeros_like(forward)
    times = np.stack([forward, backward, zero])
    rest = [
        replace(one, time=np.array(LONG if one.name == "bubble" else 0.0))
        for one in real.usual.phases
    ]
    usual = replace(real.usual, phases=rest)
    return replace(real, graph=graph, times=times, transfer=0.0, latency=0.0, usual=usual)


def joules(own: Pipeline, direction: int, lasts: float) -> float:
    """Least energy beyond waiting of a pass of a second that may take so long, by hand."""
    time, energy = own.paces[direction].longer(), own.paces[direction].beyond(own.waiting)
    kept = sensible(time, energy)
    return float(np.interp(min(lasts, time[kept[-1]]), time[kept], energy[kept]))


def saved_joules(found: Paced, stages: int) -> float:
    """Of all stages."""
    return stages * (float(found.before.energy) - float(found.after.energy))


def test_one_micro_batch_saves_nothing(real: Pipeline) -> None:
    """Every pass is waited for."""
    own = shaped(real, [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], 1)
    for mode in ("stage", "pass"):
        assert paced(own, mode).saved == pytest.approx(0.0, abs=1e-6)


def test_two_balanced_stages_save_in_their_two_gaps(real: Pipeline) -> None:
    """1F1B of two micro-batches, every pass as long as the others of its direction: the first
    stage's second forward pass and its first backward pass may take twice as long; nothing else may
    be longer."""
    own = shaped(real, [[1.0, 1.0], [1.0, 1.0]], 2)
    found = paced(own, "pass")
    usual = [float(own.paces[at].longer()[0]) for at in (0, 1)]
    hand = sum(joules(own, at, usual[at]) - joules(own, at, 2.0 * usual[at]) for at in (0, 1))
    assert hand > 0
    assert saved_joules(found, 2) == pytest.approx(hand, rel=1e-4)
    assert found.lasts == pytest.approx(found.quickest)
    assert paced(own, "stage").saved == pytest.approx(0.0, abs=1e-6)


def test_balanced_pipelines_save_in_bubbles_alone(real: Pipeline) -> None:
    """p - 1 micro-batches of the time, however many there are: as many joules of four times as
    many."""
    few, many = (
        saved_joules(paced(shaped(real, [[1.0] * 3, [2.0] * 3], m), "pass"), 3) for m in (8, 32)
    )
    assert few > 0
    assert few / many == pytest.approx(1.0, rel=0.15)


def test_a_light_stage_runs_at_its_clock_of_least_energy(real: Pipeline) -> None:
    """A tenth of the work of the other: all of it but the way in and out is not waited for."""
    own = shaped(real, [[0.1, 1.0], [0.2, 2.0]], 8)
    best = [int(np.argmin(one.beyond(own.waiting))) for one in own.paces[:2]]
    found = paced(own, "pass")
    assert found.lowest[0] == pytest.approx(min(CLOCKS[at] for at in best))
    assert found.lowest[1] == pytest.approx(1.0)


def test_two_stages_with_time_to_spare_have_their_clocks_of_least_energy(real: Pipeline) -> None:
    """8 t of the heavy stage and once t of the light one are the pipeline's time, in which both
    draw what waiting draws: each clock is the least of a sum by hand."""
    own = shaped(real, [[0.1, 1.0], [0.2, 2.0]], 8)
    both = paced(own, "stage", slower=5.0)
    longer = [one.longer() for one in own.paces[:2]]
    beyond = [one.beyond(own.waiting) for one in own.paces[:2]]
    for stage, size, times in ((0, 0.1, 1), (1, 1.0, 8)):
        work = 8 * size * (beyond[0] + 2 * beyond[1])
        lasts = times * size * (longer[0] + 2 * longer[1])
        best = int(np.argmin(work + 2 * own.waiting * lasts))
        assert both.clocks[stage] == pytest.approx(CLOCKS[best])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "dualpipe"])
def test_no_pipeline_is_later_than_its_deadline(real: Pipeline, schedule: str) -> None:
    draw = np.random.default_rng(3)
    own = shaped(real, draw.uniform(0.5, 2.0, (2, 4)), 8, schedule)
    own = replace(own, times=np.vstack([own.times[:2], draw.uniform(0.2, 1.0, (1, 4))]))
    last = -1e-9
    for slower in (0.0, 0.02, 0.1, 3.0):
        found = paced(own, "pass", slower)
        assert found.lasts <= found.quickest * (1.0 + slower) * (1.0 + 1e-6)
        assert found.saved > last
        assert found.saved >= paced(own, "stage", slower).saved - 1e-6
        last = found.saved


def test_a_prediction_keeps_its_time_and_draws_less() -> None:
    plain, slow = train(), train(stage_clocks="pass")
    assert slow.step_time.value == pytest.approx(plain.step_time.value)
    assert plain.power is not None
    assert slow.power is not None
    assert 0.02 < 1.0 - slow.power.mean / plain.power.mean < 0.5
    told = slow.to_dict()["power"]
    assert told["stage_clocks"]["energy_saved_share"] > 0.02
    mean = sum(watts * share for watts, share in slow.power.phases.values())
    assert mean == pytest.approx(slow.power.mean)
    assert "stage_clocks" not in plain.to_dict()["power"]
    late = train(stage_clocks="stage", stage_slack=0.05)
    assert 1.0 < late.step_time.value / plain.step_time.value <= 1.05
    assert sum(late.breakdown.values()) == pytest.approx(late.step_time.value)
    assert late.power is not None
    assert late.power.energy < plain.power.energy


def test_a_search_offers_them() -> None:
    space = {**PLAN, "model": "llama3-70b", "system": "dgx-h100", "objective": "energy",
             "pp": [2, 4], "cp": 1, "vpp": 1, "sharding": "zero1", "recompute": "none"}  # fmt: skip
    plain = asked(space, "kernels-only").frugal
    found = asked({**space, "stage_clocks": "pass"}, "kernels-only").frugal
    assert found[0].saved is not None
    assert found[0].energy < plain[0].energy
    assert found[0].step_time <= max(one.step_time for one in plain) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pp": 1, "stage_clocks": "pass"}, "need a pipeline"),
        ({"stage_slack": 0.1}, "--stage-clocks"),
        ({"stage_clocks": "kernel"}, "stage_clocks"),
        ({"stage_clocks": "pass", "stage_slack": -1}, "stage_slack"),
        ({"stage_clocks": "pass", "global_batch": 8192}, "are not sought"),
    ],
)
def test_what_cannot_be_is_one_line(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        train(**fields)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="stage_clocks"):
        Thrift(paced="kernel")


def test_parts_of_passes_are_the_whole_of_what_they_last(alone: TrainingPrediction) -> None:
    """Both directions together compute, talk and wait for as long as all passes of the slowest
    stage last; what lies around them is dealt by what each computes."""
    passes = float(alone.factor) * np.array(alone.passes.of_every_stage())
    busy = float(alone.plan.micro_batches) * float(passes.sum(axis=0).max())
    both = _parts(alone, busy)
    lasting = [sum(float(one.time) for _, one in own) for own in both]
    assert sum(lasting) == pytest.approx(busy)
    computed = [sum(float(one.time) for name, one in own if name in PARTS[way])
                for way, own in zip(PARTS, both, strict=True)]  # fmt: skip
    assert lasting[0] / lasting[1] == pytest.approx(computed[0] / computed[1])
    for what in ("communication", "waiting"):
        own = [one for part in both for name, one in part if name == what]
        whole = sum(float(one.time) for one in own)
        if whole > 0:
            assert float(own[0].time) / whole == pytest.approx(computed[0] / sum(computed))
