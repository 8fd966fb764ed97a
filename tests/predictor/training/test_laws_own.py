"""What a step is compared by: elasticities, which follow from what a step is the sum of; the peak
of unlike machines together, and habits of who accumulates nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.timing import HOSTS, Traits
from predictor.training.dealt import told
from predictor.training.decomposition import Parts, parts
from predictor.training.habits import whole_micro_batch, whole_share
from predictor.training.own import (
    SIZES,
    SLOPES,
    STEP,
    WORDS,
    _between,
    as_measured,
    describe,
    hosts,
    slopes,
)
from predictor.training.prediction import predict
from predictor.training.software import Environment
from predictor.training.spread import family_errors
from predictor.training.step import assemble

NONE = load("none")
PLAN = TrainingPlan(
    tp=8.0, pp=4.0, dp=2.0, micro_batch=1.0, global_batch=32.0, seq_len=2048.0, recompute="full"
)


@pytest.fixture(scope="module")
def found() -> Parts:
    return parts(catalog.model("llama3-8b"), catalog.system("dgx-h100"), PLAN, NONE)[0]


def test_what_crosses_nodes_takes_longer_in_flight_too_and_nothing_else_does(found: Parts) -> None:
    slower = _between(found, 3.0)
    crossed = 0
    for before, after in (
        (found.inside, slower.inside),
        (found.between, slower.between),
        (found.gradients, slower.gradients),
    ):
        assert before.keys() == after.keys()
        for key, one in before.items():  # type: ignore[attr-defined]
            factor = np.where(one.domains > 1, 3.0, 1.0)
            crossed += int(np.any(factor > 1))
            other = after[key]  # type: ignore[index]
            np.testing.assert_allclose(other.time, factor * one.time)
            np.testing.assert_allclose(other.flight, factor * one.flight)
    assert crossed >= 2  # stages and replicas; tensor parallelism stays in the node
    assert any(float(np.max(one.flight)) > 0 for one in found.between.values())


def test_elasticities_of_parts_are_their_shares(found: Parts) -> None:
    """d log(sum) / d log(part) = part / sum: recomputation and the bubble by definition, attention
    where nothing hides behind it, and what a framework adds takes no part."""
    run = replace(NONE.run, overlap={})
    for using in (Environment(), Environment(factor=1.3)):
        step = assemble(found, run, using)
        own = dict(zip(SLOPES, slopes(found, run, using, step), strict=True))
        whole = float(step.step_time) / using.factor
        for name in ("recompute", "bubble"):
            assert own[name] == pytest.approx(float(step.breakdown[name]) / whole)
            assert own[name] > 0.0
        assert own["contention"] == pytest.approx(0.0, abs=1e-12)  # nothing runs beside anything
        # Half of a step's growth in two halves: the log is a little above its tangent.
        once = _between(found, np.exp(STEP))
        grown = float(assemble(once, run, using).step_time / step.step_time)
        assert own["between"] == pytest.approx(np.log(grown) / STEP)
        assert 0.0 < own["between"] < 1.0
        assert 0.0 < own["attention"] < 1.0


def test_hosts_that_cost_more_take_longer_and_the_calibrations_own_is_the_step(
    found: Parts,
) -> None:
    run, using = replace(NONE.run, host_per_kernel=30e-6), Environment()
    step = assemble(found, run, using)
    moved = hosts(found, run, using, step)
    assert moved.shape == (len(HOSTS),)
    assert list(moved[np.equal(HOSTS, 0.0)]) == [0.0]
    grown = np.diff(moved) / np.diff(HOSTS)  # of the step, where the host's is 1
    assert np.all((grown >= 0.0) & (grown < 1.0))
    assert grown[-1] > 0.5  # e^5 times the host: it is most of the step


def test_the_peak_of_unlike_machines_is_their_mean_by_accelerators() -> None:
    model, own, other = catalog.model("llama3-8b"), *map(catalog.system, ("dgx-h100", "dgx-a100"))
    base = predict(model, own, PLAN, NONE)
    terms = {name: float(value) for name, value in base.breakdown.items()}
    peaks = [one.accelerator.peak["bf16"] for one in (own, other)]
    for many, expected in (
        ((16.0, 48.0), 0.25 * peaks[0] + 0.75 * peaks[1]),
        ((8.0, 0.0), peaks[0]),
    ):
        devices = list(zip((own, other), many, strict=True))
        found = told(base, own, terms, base.memory, devices, NONE)
        assert float(found.peak) == pytest.approx(expected)
        assert float(found.step_time) == pytest.approx(sum(terms.values()))
        ratio = float(found.high / found.step_time)
        assert ratio == pytest.approx(float(found.step_time / found.low))
        assert ratio == pytest.approx(float(np.exp(NONE.interval_q * base.sigma)))


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("share", [1, 6, 8, 12, 16, 64])
def test_who_accumulates_nothing_fills_every_stage_with_the_largest_that_divides(
    pp: int, share: int
) -> None:
    """1F1B: a micro-batch for each stage at least, as far as there are sequences."""
    values = {"global_batch": 4 * share, "dp": 4, "pp": pp}
    assert whole_share(values) == share
    assert whole_share({"global_batch": 4 * share, "gpus": 4 * pp, "pp": pp}) == share
    found, _ = whole_micro_batch(values)
    fills = [n for n in range(1, share + 1) if share % n == 0 and share // n >= pp]
    assert found == max(fills, default=1)


def test_runs_are_compared_by_doublings() -> None:
    """Parameters, tp, length, stages, sequences: twice of one is one more of it alone."""
    model, dgx = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    own = describe(model, dgx, PLAN)
    sizes = [float(model.parameters), 8.0, 2048.0, 4.0, 1.0]
    assert own.sizes.tolist() == [[pytest.approx(float(np.log2(one))) for one in sizes]]
    for at, name in enumerate(SIZES):
        if name != "parameters":
            more = replace(PLAN, **{name: 2.0 * getattr(PLAN, name)})
            moved = describe(model, dgx, more).sizes - own.sizes
            assert moved.tolist() == [[pytest.approx(float(k == at)) for k in range(len(SIZES))]]
    many = describe(model, dgx, replace(PLAN, tp=np.array([8.0, 4.0, 8.0])))
    assert many.sizes.shape == (3, len(SIZES))
    assert many.words[0].tolist() == many.words[2].tolist() == own.words[0].tolist()
    assert many.words[1, 3] != own.words[0, 3]


def test_a_slowdown_beside_communication_is_felt_by_what_hides() -> None:
    """On one stage the step is what it would be without, and the slowdown of all that hides:
    T + (c - 1) h, whose elasticity is c h / (T + (c - 1) h)."""
    made = replace(PLAN, pp=1.0, dp=1.0, tp_overlap=True, sequence_parallel=1.0)
    found, _ = parts(catalog.model("llama3-8b"), catalog.system("dgx-h100"), made, NONE)
    run = replace(NONE.run, overlap={"tp": 1.0}, contention=1.5)
    step = assemble(found, run, Environment())
    own = dict(zip(SLOPES, slopes(found, run, Environment(), step), strict=True))
    plain = assemble(found, replace(run, contention=1.0), Environment())
    felt = 3.0 * float(step.step_time - plain.step_time)  # 1.5 of its time, of which 0.5 is added
    assert felt > 0.0
    assert own["contention"] == pytest.approx(felt / float(step.step_time), rel=0.02)


def test_runs_are_compared_by_what_their_kernels_leave_open(
    found: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spread of runs among each other is what one's own runs are to tell."""
    run, using = NONE.run, Environment()
    step = assemble(found, run, using)
    seen: list[float] = []

    def corrected(learned: object, known: Traits, *rest: object) -> tuple[object, ...]:
        seen.append(float(known.sigma[0]))
        return step, using, np.zeros(())

    monkeypatch.setattr("predictor.training.own.corrected", corrected)
    prior = SimpleNamespace(slopes=SLOPES, lengths=SIZES, alike=WORDS)
    knows = SimpleNamespace(own=SimpleNamespace(prior=prior), run=run)
    of = catalog.model("llama3-8b"), catalog.system("dgx-h100"), PLAN
    as_measured(found, step, using, np.ones(()), of, knows)  # type: ignore[arg-type]
    alone = np.sqrt(sum(float(one) ** 2 for one in family_errors(step, 1.0).values()))
    assert seen == [pytest.approx(alone)]
    assert seen[0] < 0.5
