"""Why a step takes as long as it does: laws of what adds up and what helps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import reckon
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.timing.calibration import RunParameters
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.explanation import Explanation, explain
from predictor.training.prediction import predict

KNOWN = load("default")
DENSE = {
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": 256,
    "tp": 8,
    "pp": 4,
    "global_batch": 256,
    "seq_len": 8192,
}
MIXTURE = {**DENSE, "model": "mixtral-8x7b", "tp": 2, "pp": 2, "ep": 8, "recompute": "full"}
SMALL = {**DENSE, "model": "gpt2-124m", "gpus": 8, "tp": 1, "pp": 1, "global_batch": 8,
         "seq_len": 128}  # fmt: skip
OFFLOADED = {**DENSE, "offload_activations": 1.0, "offload_optimizer": 1.0}


@cache
def request(**fields: object) -> TrainingRequest:
    """A request of which nothing is doubted (`test_doubts`)."""
    found = complete_training(parse(TrainingPlanSpec, fields, "test"), RunParameters())
    return replace(found, assumed=())


@cache
def explained(**fields: object) -> Explanation:
    return explain(request(**fields), KNOWN)


@pytest.mark.parametrize("fields", [DENSE, MIXTURE, SMALL, OFFLOADED])
def test_parts_add_up_and_nothing_helps_by_more_than_all(fields: dict) -> None:
    why = explained(**fields)
    asked = request(**fields)
    whole = predict(asked.model, asked.cluster, asked.plan, KNOWN)
    assert why.step_time == pytest.approx(float(whole.step_time))
    assert sum(why.terms.values()) == pytest.approx(why.step_time)
    assert sum(ground.share for ground in why.grounds) == pytest.approx(1.0)
    assert all(0 < remedy.saves < why.step_time for remedy in why.remedies)
    told = {remedy.name for remedy in why.remedies}
    assert ("framework factor" in told) == (why.terms["framework"] > 1e-6 * why.step_time)
    for remedy in why.remedies:
        assert remedy.share == pytest.approx(remedy.saves / why.step_time)
    saves = [remedy.saves for remedy in why.remedies]
    assert saves == sorted(saves, reverse=True)


@pytest.mark.parametrize("fields", [DENSE, MIXTURE])
def test_the_longest_operators_are_the_predictions(fields: dict) -> None:
    why = explained(**fields)
    plan = {k: v for k, v in fields.items() if k not in ("model", "system")}
    report = reckon.predict_train(fields["model"], fields["system"], plan)
    assert isinstance(report, reckon.Prediction)
    told = [(one.name, one.phase, one.bound) for one in why.operators]
    assert told == [(one.name, one.phase, one.bound) for one in report.operators[:5]]
    for one, other in zip(why.operators, report.operators, strict=False):
        assert one.time == pytest.approx(other.time_s)
        assert one.ideal < one.time


def helping(why: Explanation) -> dict[str, float]:
    return {remedy.name: remedy.saves for remedy in why.remedies}


def test_what_is_taken_away_is_gone() -> None:
    dense, mixture = helping(explained(**DENSE)), helping(explained(**MIXTURE))
    # Exposed communication, and what of the bubble and the framework's factor consists of it.
    shown = explained(**DENSE).terms["tp_communication"]
    assert dense["tensor-parallel communication"] > shown
    assert "expert-parallel communication" not in dense
    assert {"expert-parallel communication", "recomputation", "imbalance of experts"} <= set(
        mixture
    )
    alone = helping(explained(**{**DENSE, "pp": 1, "gpus": 64, "recompute": "full"}))
    assert "pipeline bubble" not in alone
    assert "pipeline transfers" not in alone


def test_recomputation_saves_what_the_plan_without_it_saves() -> None:
    made = request(**MIXTURE)
    with_, without = (
        float(predict(made.model, made.cluster, plan, KNOWN).step_time)
        for plan in (made.plan, replace(made.plan, recompute="none"))
    )
    assert helping(explained(**MIXTURE))["recomputation"] == pytest.approx(with_ - without)


def test_small_models_wait_for_the_host() -> None:
    why = explained(**SMALL)
    best = next(r for r in why.remedies if r.name != "framework factor")
    assert best.name == "host time per launch"
    asked = request(**SMALL)
    free = replace(KNOWN, run=replace(KNOWN.run, host_per_kernel=0.0))
    left = float(predict(asked.model, asked.cluster, asked.plan, free).step_time)
    assert best.saves == pytest.approx(why.step_time - left), "all of it"
    assert why.grounds[0].name == "host time"
    assert why.grounds[0].points == 0  # of whole runs, not of kernels that were timed


def test_an_uncalibrated_step_rests_on_nothing_measured() -> None:
    why = explain(request(**DENSE), load("none"))
    assert {ground.known for ground in why.grounds} <= {"roofline", "default", "transferred"}
    assert sum(ground.points for ground in why.grounds) == 0


def test_one_plan_at_a_time() -> None:
    made = request(**DENSE)
    batch = replace(made, plan=replace(made.plan, micro_batch=np.array([1.0, 2.0])))
    with pytest.raises(InputError, match="one plan is explained at a time"):
        explain(batch, KNOWN)


def test_shares_of_operators_are_their_times_over_the_step() -> None:
    why = explained(**DENSE)
    assert len(why.operators) > 3
    for one in why.operators:
        assert one.share == pytest.approx(one.time / why.step_time)
        assert 0.0 < one.ideal <= one.time * 1.001
    assert sum(one.share for one in why.operators) < 1.0


def test_kernels_at_their_peak_would_be_quicker() -> None:
    """Both kinds are named with what they would save, a hundredth of the step and more."""
    saved = {one.name: one.share for one in explained(**DENSE).remedies}
    assert saved["memory- and latency-bound kernels"] > 0.01
    assert saved["compute-bound kernels below peak"] > 0.01


@pytest.mark.parametrize("framework", ["nemo", "torchtitan", "pytorch"])
def test_what_a_step_rests_on_is_what_its_terms_say(framework: str) -> None:
    """The share of the framework's factor is that of the step's own table, and what the factor does
    not stretch counts as long as it takes: an optimizer's share is the optimizer's."""
    found = explained(
        model="llama3-8b", system="dgx-h100", gpus=8, global_batch=16, seq_len=8192,
        framework=framework,
    )  # fmt: skip
    shares = {ground.name.partition("/")[0]: ground.share for ground in found.grounds}
    assert sum(ground.share for ground in found.grounds) == pytest.approx(1.0, abs=1e-3)
    for name, term in (("framework factor", "framework"), ("optimizer", "optimizer")):
        own = found.terms[term] / found.step_time
        assert shares.get(name, 0.0) == pytest.approx(own, abs=1e-6)
    host = found.terms["host"] / found.step_time
    assert shares.get("host time", 0.0) == pytest.approx(host, abs=1e-3)
