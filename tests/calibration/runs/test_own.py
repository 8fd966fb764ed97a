"""A handful of own runs: laws of what they say of others, stated before they are asked."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import reckon
from calibration.artifact import write
from calibration.checks.few_shot import Drawn, early, levelled, scaled, shot, table
from calibration.checks.own_steps import added, likeliest, steps_of
from calibration.runs.apart import take_apart
from calibration.runs.fit import read_points
from calibration.runs.own import adapt_runs, contradictions, suggest, words
from calibration.runs.prior import START, Block, _pieces, _vector, block, fit_prior, likelihood
from calibration.tables.profiles import device_systems
from calibration.tables.runs import Point, point_of
from predictor.catalog import load, own_prior
from predictor.catalog.learned import learned_mapping, read_learned
from predictor.errors import InputError
from predictor.timing import HOSTS, Calibration, Prior, Traits, joined, learn, open_variance
from predictor.timing.adaptation import narrower
from predictor.training import WORDS, predict
from predictor.units import Z80
from tests.conftest import ROOT

BASE = load("default")
PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 1, "pp": 1, "num_gpus": 8, "global_batch": 32},
    {"tp": 2, "pp": 1, "num_gpus": 16, "global_batch": 64},
    {"tp": 4, "pp": 2, "num_gpus": 32, "global_batch": 64},
    {"tp": 8, "pp": 1, "num_gpus": 64, "global_batch": 128},
    {"tp": 2, "pp": 4, "num_gpus": 64, "global_batch": 256},
)


def row(plan: dict[str, Any], seconds: float, name: str) -> dict[str, Any]:
    return {
        "point_id": name, "source": "own", "accelerator": "H100-SXM5-80GB", "model": "llama3-8b",
        "seq_len": 4096, "micro_batch": 1, "precision": "bf16", "framework": "megatron-lm",
        "dp_sharding": "zero1", "recompute": "selective", "vpp": 1, "cuda_graphs": "none",
        "sequence_parallel": 1, "step_time_s": seconds, "metric": "step_time_s", **plan,
    }  # fmt: skip


@cache
def predicted(calibration: Calibration) -> tuple[Point, ...]:
    """Own runs that take as long as a calibration predicts."""
    found = []
    for at, plan in enumerate(PLANS):
        one = point_of(row(plan, 1.0, f"r{at}"), BASE.run)
        assert isinstance(one, Point), one
        time = predict(one.request.model, one.request.cluster, one.request.plan, calibration)
        found.append(replace(one, measured=float(time.step_time)))
    return tuple(found)


def points(factor: float, calibration: Calibration = BASE) -> list[Point]:
    """Own runs, so many times as slow as a calibration predicts."""
    return [replace(one, measured=factor * one.measured) for one in predicted(calibration)]


def time_of(point: Point, calibration: Calibration) -> tuple[float, float, float]:
    of = point.request
    found = predict(of.model, of.cluster, of.plan, calibration)
    return tuple(float(getattr(found, name)) for name in ("step_time", "low", "high"))  # type: ignore[return-value]


def test_others_follow_one_s_own_and_are_surer_with_each() -> None:
    slow = points(1.3)
    last = slow[-1]
    widths, ratios = [], []
    for known in (1, 2, 4):
        found = adapt_runs(BASE, slow[:known]).calibration
        time, low, high = time_of(last, found)
        ratios.append(time / time_of(last, BASE)[0])
        widths.append(high / low)
        assert low < last.measured < high
    assert 1.05 < ratios[0] < ratios[-1] < 1.35
    assert widths == sorted(widths, reverse=True)


def test_runs_that_are_as_predicted_change_nothing_but_the_interval() -> None:
    found = adapt_runs(BASE, points(1.0)[:3]).calibration
    for point in points(1.0):
        assert time_of(point, found)[0] == pytest.approx(point.measured, rel=0.04)


def test_the_order_of_runs_and_learning_in_two_goes_make_no_difference() -> None:
    own = [replace(p, measured=p.measured * f) for p, f in zip(points(1.0), (1.1, 1.3, 1.2, 1.25),
                                                               strict=False)]  # fmt: skip
    whole = adapt_runs(BASE, own[:3]).calibration
    turned = adapt_runs(BASE, own[2::-1]).calibration
    twice = adapt_runs(adapt_runs(BASE, own[:1]).calibration, own[1:3]).calibration
    expected = time_of(own[3], whole)
    for other in (turned, twice):
        assert time_of(own[3], other) == pytest.approx(expected, rel=1e-9)


def test_a_host_three_times_as_slow_is_found_and_told() -> None:
    slower = replace(BASE, run=replace(BASE.run, host_per_kernel=3.0 * BASE.run.host_per_kernel))
    own = []
    for at, plan in enumerate(PLANS[:4]):
        one = point_of({**row(plan, 1.0, f"r{at}"), "seq_len": 1024}, BASE.run)
        assert isinstance(one, Point)
        own.append(replace(one, measured=time_of(one, slower)[0]))
    found = adapt_runs(BASE, own)
    assert found.calibration.own is not None
    mean, spread = found.calibration.own.host
    assert mean == pytest.approx(np.log(3.0), abs=0.35)
    assert spread < 0.5 * own_prior().host
    assert any("host cost" in line for line in found.words)


def test_a_plan_and_many_plans_agree_and_breakdowns_add_up() -> None:
    found = adapt_runs(BASE, points(1.2)[:2]).calibration
    of = points(1.0)[3].request
    batch = replace(of.plan, micro_batch=np.array([1.0, 1.0, 2.0]))
    many = predict(of.model, of.cluster, batch, found)
    one = predict(of.model, of.cluster, of.plan, found)
    assert many.step_time[:2] == pytest.approx(float(one.step_time), rel=1e-12)
    assert many.high[0] == pytest.approx(float(one.high), rel=1e-9)
    assert sum(many.breakdown.values()) == pytest.approx(many.step_time)


def test_a_search_ranks_by_what_predict_says() -> None:
    found = adapt_runs(BASE, points(1.25)[:3]).calibration
    limits = {"gpus": 8, "global_batch": 64, "seq_len": 4096, "precision": "bf16", "tp": 2,
              "micro_batch": 1, "recompute": "none", "sharding": "zero1"}  # fmt: skip
    best = reckon.search("llama3-8b", "dgx-h100", limits, calibration=found).result
    own = predict(best.model, best.cluster, best.plan(0), found)
    assert float(best.step_time[0]) == pytest.approx(float(own.step_time), rel=1e-9)
    assert list(best.score) == sorted(best.score)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = adapt_runs(BASE, points(1.2)[:3]).calibration
    write(known, tmp_path / "mine")
    again = load(tmp_path / "mine")
    last = points(1.0)[-1]
    assert time_of(last, again) == pytest.approx(time_of(last, known), rel=1e-6)
    assert again.own is not None
    assert again.own.runs == 3


def test_runs_that_contradict_each_other_or_physics_are_named() -> None:
    one, *_ = points(1.0)
    with pytest.raises(InputError, match="runs r0 and again are the same configuration"):
        adapt_runs(BASE, [one, replace(one, point_id="again", measured=1.5 * one.measured)])
    with pytest.raises(InputError, match=r"run r0: .* of the peak"):
        adapt_runs(BASE, [replace(one, measured=one.measured / 20)])
    with pytest.raises(InputError, match=r"run r0: .* 1000 x the time .* in seconds"):
        adapt_runs(BASE, [replace(one, measured=one.measured * 1000)])


def test_one_run_among_many_that_is_off_is_left_aside() -> None:
    own = points(1.0)
    own[1] = replace(own[1], measured=2.5 * own[1].measured)
    found = adapt_runs(BASE, own)
    assert list(found.doubtful) == ["r1"]
    assert time_of(own[0], found.calibration)[0] == pytest.approx(own[0].measured, rel=0.08)


def test_recomputation_that_is_not_stated_is_found_and_kept(tmp_path: Path) -> None:
    rows = [{**row(plan, 1.0, f"r{at}"), "recompute": None} for at, plan in enumerate(PLANS)]
    for one in rows:
        full = point_of({**one, "recompute": "full"}, BASE.run)
        assert isinstance(full, Point)
        assert "recompute" not in {a.field for a in full.request.assumed}
        one["step_time_s"] = time_of(full, BASE)[0]
    known = reckon.adapt(BASE, pd.DataFrame(rows))
    assert known.run.habits == {"recompute": "full"}
    write(known, tmp_path / "mine")
    asked = {k: v for k, v in rows[1].items() if k in ("tp", "pp", "seq_len", "micro_batch")}
    asked |= {"gpus": 16, "global_batch": 64, "framework": "megatron-lm", "precision": "bf16"}
    found = reckon.predict_train("llama3-8b", "dgx-h100", asked, load(tmp_path / "mine"))
    assert found.request.plan.recompute == "full"


def test_a_setting_is_learned_where_it_is_sure_and_carried_where_the_rules_are_the_same() -> None:
    """One run says no more of recomputation than of a slow machine, and leaves the rules as they
    are; what five show of plans that the rules leave without any is not of plans of which they say
    something else."""
    rows = [{**row(plan, 1.0, f"r{at}"), "recompute": None} for at, plan in enumerate(PLANS)]
    for one in rows:
        full = point_of({**one, "recompute": "full"}, BASE.run)
        assert isinstance(full, Point)
        one["step_time_s"] = time_of(full, BASE)[0]
    assert reckon.adapt(BASE, pd.DataFrame(rows[:1])).run.habits == {}
    known = reckon.adapt(BASE, pd.DataFrame(rows))
    assert known.run.usual == {"recompute": ("none",)}
    asked = {"gpus": 8, "tp": 8, "seq_len": 8192, "global_batch": 8, "framework": "megatron-lm",
             "precision": "bf16", "micro_batch": 1}  # fmt: skip
    unlike = replace(known.run, usual={"recompute": ("selective",)})
    for run, kind in ((known.run, "full"), (unlike, "none")):
        calibration = replace(known, run=run)
        plan = reckon.predict_train("llama3-8b", "dgx-h100", asked, calibration).request.plan
        assert plan.recompute == kind


def synthetic(count: int, level: float, seed: int) -> Block:
    """Runs that are off by one level and a little noise."""
    generator = np.random.default_rng(seed)
    traits = Traits(
        np.zeros((count, len(START.slopes))),
        generator.normal(0.0, 2.0, (count, len(START.lengths))),
        np.array([["a"] * len(WORDS)] * count),
        np.zeros(count),
        np.zeros((count, len(HOSTS))),
        np.zeros(count),
    )
    return Block(f"s{seed}", traits, level + generator.normal(0.0, 0.02, count))


def test_the_slope_of_the_likelihood_is_its_slope() -> None:
    own = synthetic(6, 0.2, 1)
    own = Block("s", replace_slopes(own.traits), own.residual)
    pieces, vector = [_pieces(own)], _vector(START)
    value, slope = likelihood(vector, pieces, START)
    for at in range(len(vector)):
        moved = vector.copy()
        moved[at] += 1e-6
        change = (likelihood(moved, pieces, START)[0] - value) / 1e-6
        assert change == pytest.approx(slope[at], abs=1e-4)


def replace_slopes(traits: Traits) -> Traits:
    generator = np.random.default_rng(0)
    slopes = generator.uniform(0.0, 0.3, traits.slopes.shape)
    host = np.outer(generator.uniform(0.0, 0.3, len(slopes)), HOSTS)
    return replace(traits, slopes=slopes, sigma=np.full(len(slopes), 0.05), host=host)


def test_a_prior_learns_how_far_sources_lie_apart() -> None:
    blocks = [synthetic(8, 0.3 * (-1) ** seed, seed) for seed in range(8)]
    found = fit_prior(blocks)
    together = np.sqrt(found.level**2 + sum(v**2 for v in found.alike.values()))
    assert 0.15 < together < 0.6
    assert found.noise < 0.05
    drawn = [Drawn(one.source, one, found) for one in blocks[:3]]
    scores = table(drawn, (0, 1, 3))
    for name in scores[0]:
        # exp(0.3) - 1 and 1 - exp(-0.3)
        assert 0.23 < scores[0][name].error < 0.38
        assert scores[3][name].error < 0.05
    assert shot(drawn[0], 0, 1).error == shot(drawn[0], 0, 2).error


def test_runs_of_a_restless_place_say_little_of_others() -> None:
    """Equal runs that take 1.5 x and 0.67 x the time by turns, as on a shared cluster: others are
    corrected less than by runs all of which take 1.5 x, and what is said of them is wider than
    their own spread; of one run alone nothing of the kind can be known."""
    one = synthetic(1, 0.0, 4)
    known = joined([one.traits] * 6)
    steady = learn(START, known, np.full(6, np.log(1.5)))
    loud = learn(START, known, np.log(1.5) * np.array([1.0, -1.0, 1.0, 1.0, 1.0, 1.0]))
    louder = learn(START, known, np.log(1.5) * np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]))
    assert steady.restless < 0.05
    assert loud.restless < 0.5 < louder.restless  # one of six is an outlier, three are a place
    assert sum(louder.doubtful) < 0.5
    (mean, sigma), (wide, sure) = louder.correction(one.traits), steady.correction(one.traits)
    assert abs(mean[0]) < 0.1 < wide[0]
    assert Z80 * sigma[0] > np.log(1.3) > Z80 * sure[0]
    assert any("alone on the machine" in line for line in words(louder))
    assert not any("alone on the machine" in line for line in words(steady))
    assert learn(START, one.traits, np.array([0.1])).restless < 0.1


def test_of_drawn_runs_that_contradict_each_other_the_first_is_learned_from() -> None:
    """As calibrate asks: the second is left out, and predicted like any that is not known."""
    own = points(1.0)
    twice = [*own, replace(own[0], point_id="again", measured=1.5 * own[0].measured)]
    found = contradictions(twice)
    assert np.argwhere(found).tolist() == [[0, 5], [5, 0]]
    even = synthetic(6, 0.3, 1)
    one = Drawn("s", even, START, found)
    assert one.agreeing(np.array([5, 2, 0])).tolist() == [5, 2]
    with_twin = shot(one, 3, 0, np.array([5, 2, 0]))
    assert with_twin == shot(one, 2, 0, np.array([5, 2]))
    assert with_twin != shot(replace(one, twins=None), 3, 0, np.array([5, 2, 0]))


def test_far_from_all_runs_nothing_is_corrected() -> None:
    prior = Prior(
        level=0.0, slopes=START.slopes, alike=START.alike, near=0.2, lengths=START.lengths,
        noise=0.02, rough=START.rough, known=0.0,
    )  # fmt: skip
    near = synthetic(3, 0.4, 3)
    learned = learn(prior, near.traits, near.residual)
    far = Traits(
        near.traits.slopes[:1],
        near.traits.sizes[:1] + 100.0,
        np.array([["b"] * len(WORDS)]),
        np.zeros(1),
        np.zeros((1, len(HOSTS))),
        np.zeros(1),
    )
    mean, spread = learned.correction(far)
    assert mean[0] == pytest.approx(0.0, abs=1e-12)
    assert spread[0] >= np.sqrt(open_variance(far, prior)[0])
    own, _ = learned.correction(near.traits)
    assert own == pytest.approx(near.residual, abs=0.15)


def test_what_is_suggested_leaves_least_open() -> None:
    lone, crowd = synthetic(1, 0.0, 4).traits, synthetic(1, 0.0, 5).traits
    crowd = joined([crowd] * 5)
    lone = replace(lone, sizes=lone.sizes + 50.0, words=np.array([["b"] * len(WORDS)]))
    names = [f"c{i}" for i in range(5)] + ["lone"]
    first, second = suggest(None, START, joined([crowd, lone]), names, 2)
    assert first.name.startswith("c")
    assert second.name == "lone"
    assert first.before > first.after == second.before > second.after


def test_of_small_plans_that_is_asked_for_which_is_like_the_large_ones_cared_about() -> None:
    """Five plans alike that may be measured, and one of another kind: the one, where plans of its
    kind are cared about; with the plans themselves to choose from, one of them."""
    alike = joined([synthetic(1, 0.0, 5).traits] * 5)
    lone = synthetic(1, 0.0, 4).traits
    lone = replace(lone, sizes=lone.sizes + 50.0, words=np.array([["b"] * len(WORDS)]))
    names = [*(f"small{at}" for at in range(5)), "other"]
    able = joined([alike, lone])
    (first,) = suggest(None, START, able, names, 1, joined([lone, lone]))
    assert first.name == "other"
    assert first.after < first.before
    (first,) = suggest(None, START, able, names, 1, alike)
    assert first.name.startswith("small")
    whole = suggest(None, START, able, names, 2)
    assert [one.name for one in suggest(None, START, able, names, 2, able)] == [
        one.name for one in whole
    ]


def test_intervals_of_one_run_are_as_narrow_as_four_fifths_of_sources_ask_for() -> None:
    """Sources count alike however many rows they have; runs that lie as far off as their intervals
    ask for nothing, and the narrowing goes as runs come."""
    even = np.linspace(0.0, 1.25, 1001)
    assert early([even]) == pytest.approx(0.0, abs=0.01)
    assert early([0.8 * even]) == pytest.approx(2.0 * 0.2, abs=0.01)
    assert early([0.8 * even, *[0.8 * even[::10]] * 3]) == pytest.approx(0.4, abs=0.02)
    assert early([2.0 * even]) == 0.0
    own, others = synthetic(6, 0.3, 1), synthetic(3, 0.3, 2)
    share = []
    for count in (1, 5):
        known = own.take(np.arange(count))
        wide, narrow = (
            learn(replace(START, early=e), known.traits, known.residual).correction(others.traits)
            for e in (0.0, 0.3)
        )
        assert narrow[0] == pytest.approx(wide[0])
        share.append(narrow[1] / wide[1])
    assert share[0] == pytest.approx(1.0 - 0.3 / 2.0)
    assert share[1] == pytest.approx(1.0 - 0.3 / 6.0)


MEASURED = ROOT / "data" / "measurements" / "two-cores-2"


def test_steps_of_a_profile_are_runs_of_its_devices_wherever_the_table_lies(tmp_path: Path) -> None:
    """Their residuals are against what `predict` says, of a host without levels of frameworks."""
    steps = MEASURED / "steps.csv"
    beside = read_points([steps], BASE.run)
    copied = tmp_path / "two.csv"
    pd.read_csv(steps).head(2).to_csv(copied, index=False)
    with pytest.raises(InputError, match="no row"):
        read_points([copied], BASE.run)
    assert [p.point_id for p in read_points([copied], BASE.run, device_systems(MEASURED))] == [
        p.point_id for p in beside[:2]
    ]
    runs = take_apart(BASE, beside)
    expected = [np.log(p.measured / time_of(p, BASE)[0]) for p in runs.points]
    assert block(runs, BASE.run).residual == pytest.approx(expected, abs=1e-9)
    own = reckon.adapt(BASE, steps).own
    assert own is not None
    assert own.runs == len(beside)


def test_two_own_steps_tell_of_the_others_where_nothing_of_a_machine_was_measured() -> None:
    found = added(steps_of(MEASURED, BASE))
    assert found.draws == 10 * 9 / 2
    assert found.with_own < found.alone
    with pytest.raises(InputError, match="no such"):
        steps_of(MEASURED / "absent", BASE)


def test_runs_that_waited_for_processors_say_less() -> None:
    """Of three runs that took 1.5 x the time, less is carried to a plan where they waited; another
    that waits is known less well than a plan, which does not."""
    calm = synthetic(4, 0.0, 7).traits
    waited = replace(calm, waited=np.ones(4))
    residual = np.full(3, np.log(1.5))
    steady = learn(START, calm.take(np.arange(3)), residual)
    loud = learn(START, waited.take(np.arange(3)), residual)
    plan, beside = calm.take(np.array([3])), waited.take(np.array([3]))
    (carried, _), (little, sure), (same, wide) = (
        one.correction(of) for one, of in ((steady, plan), (loud, plan), (loud, beside))
    )
    assert 0.0 < little[0] < carried[0]
    assert same[0] == pytest.approx(little[0])
    assert wide[0] > sure[0]
    assert any("waited for processors" in line for line in words(loud))
    assert not any("waited" in line for line in words(steady))
    kept = read_learned(json.loads(json.dumps(learned_mapping(loud))))
    assert kept is not None
    assert kept.correction(plan)[0] == pytest.approx(little)


def test_how_much_a_run_waited_is_read_beside_its_time_and_left_out_of_it() -> None:
    """Steps of one process have two threads, those of two ranks one each."""
    steps = pd.read_csv(MEASURED / "steps.csv").set_index("point_id")
    found = steps_of(MEASURED, BASE)
    runs = read_points([MEASURED / "steps.csv"], BASE.run)
    told = steps.loc[[point.point_id for point in runs]]
    assert [point.waited for point in runs] == list(told["waited"])
    threads = np.where(told["num_gpus"] == 1, 2.0, 1.0)
    lost = told["step_time_s"] * told["waited"] / threads
    calm = told["step_time_s"] - lost
    assert [point.measured for point in runs] == pytest.approx(list(calm))
    assert found.traits.waited == pytest.approx(lost / calm)


def test_the_spread_of_disturbed_steps_is_found_from_steps() -> None:
    """Eight profiles of ten steps each, each step off by .3 in the log by itself."""
    generator = np.random.default_rng(3)
    blocks = []
    for seed in range(8):
        one = synthetic(10, 0.0, seed)
        away = generator.normal(0.0, 0.3, 10)
        blocks.append(Block("loud", replace(one.traits, waited=np.ones(10)), away))
    quiet = replace(START, level=0.01, near=0.01, alike=dict.fromkeys(START.alike, 0.01))
    assert likeliest(blocks, quiet).strayed == pytest.approx(0.3, rel=0.3)


@pytest.mark.parametrize("freedom", [5.0, 7.0, 9.0, 14.0, 40.0])
def test_an_interval_is_that_of_a_t_not_of_a_normal_distribution_of_its_variance(
    freedom: float,
) -> None:
    half = stats.t.ppf(0.9, freedom) / np.sqrt(freedom / (freedom - 2.0))
    assert narrower(freedom) == pytest.approx(half / stats.norm.ppf(0.9), rel=2e-4)


def test_larger_runs_are_those_of_four_times_the_accelerators_at_least() -> None:
    """Five small runs and five of sixteen times the accelerators, all off alike."""
    one = Drawn("s", synthetic(10, 0.3, 1), START)
    sizes = {"s": np.array([8.0] * 5 + [128.0] * 5)}
    found = scaled([one], sizes)["s"]
    assert 0.2 < found.none < 0.4
    assert found.drawn < found.none
    assert found.asked < found.none
    assert found.level <= min(found.none, found.drawn)
    assert scaled([one], {"s": np.array([8.0] * 5 + [31.0] * 5)}) == {}


def test_the_level_that_suits_runs_best_is_found_among_all() -> None:
    """Against factors tried one by one."""
    residual = np.random.default_rng(5).normal(0.2, 0.3, 15)
    tried = [np.mean(np.abs(np.expm1(by - residual))) for by in np.linspace(-1.0, 1.0, 4001)]
    assert levelled(residual) == pytest.approx(min(tried), abs=1e-3)
    assert levelled(residual) <= min(tried) + 1e-12


def waiting(count: int, cost: float) -> Block:
    """Runs that wait for their host alone, whose host costs so many times as much, and no noise."""
    own = synthetic(count, 0.0, 6)
    bound = replace(own.traits, host=np.tile(HOSTS, (count, 1)))
    return Block("host", bound, np.full(count, np.log(cost)))


def test_a_slow_host_is_carried_as_far_as_it_is_and_a_level_is_not() -> None:
    """Three runs of a host six times as slow tell of three others, within its grid's half octaves;
    three off alike by as much for no reason do not beyond `most`."""
    one = waiting(6, 6.0)
    known, others = one.take(np.arange(3)), one.traits.take(np.arange(3, 6))
    found, _ = learn(START, known.traits, known.residual).correction(others)
    assert np.exp(found) == pytest.approx(6.0, rel=2.0**0.25 - 1.0)
    off = synthetic(6, np.log(6.0), 6).take(np.arange(3))
    found, _ = learn(replace(START, level=2.0), off.traits, off.residual).correction(
        synthetic(6, 0.0, 6).traits
    )
    assert np.all(found <= START.most)


def test_runs_learned_by_other_traits_are_refused_in_one_line() -> None:
    known = adapt_runs(BASE, points(1.2)[:2]).calibration
    assert known.own is not None
    slopes = {"stream": 0.3, **known.own.prior.slopes}
    old = replace(known, own=replace(known.own, prior=replace(known.own.prior, slopes=slopes)))
    for ask in (lambda: time_of(points(1.0)[3], old), lambda: adapt_runs(old, points(1.2)[2:3])):
        with pytest.raises(InputError, match="learn from them again"):
            ask()
