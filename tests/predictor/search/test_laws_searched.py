"""What a search does beside timing plans: budgets, corrections by one's own runs, contradictions,
splits of an iteration; against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor.catalog.given import Range
from predictor.errors import InputError
from predictor.plans.rules import Rule
from predictor.plans.training import TrainingPlan
from predictor.search import layouts, post_training
from predictor.search.conflict import Conflict
from predictor.search.fleets import search_engines
from predictor.search.layouts import _Search
from predictor.search.post_training import BEHIND, IN_TURN, SHARED, Rollouts
from predictor.search.ranking import Limits
from predictor.serving.capacities import Promise
from tests.predictor.search.test_laws_axes import SMALL
from tests.predictor.search.test_laws_space import load, machine
from tests.predictor.search.test_search_serving import DGX, KNOWN, LLAMA

PLANS = 60
RANDOM = np.random.default_rng(5)
BLOCK, ROW = RANDOM.integers(0, 2, PLANS), RANDOM.integers(0, 9, PLANS)
TIME, PEAK = RANDOM.uniform(1.0, 5.0, PLANS), RANDOM.uniform(1e9, 9e9, PLANS)
SIGMA, BY = RANDOM.uniform(0.1, 0.3, PLANS), RANDOM.uniform(1.0, 1.5, PLANS)
GPUS = 2.0 ** RANDOM.integers(0, 5, PLANS)


def block(batch: float, length: float) -> Any:
    return SimpleNamespace(
        plan=lambda rows: SimpleNamespace(
            global_batch=batch + rows, seq_len=length, rows=rows, first=batch
        )
    )


BLOCKS = [block(8.0, 1000.0), block(64.0, 500.0)]


@pytest.mark.parametrize(("days", "money"), [(0.3, None), (None, 60.0), (0.3, 60.0)])
def test_budgets_keep_what_ends_in_time_and_is_paid_by_the_hour(
    days: float | None, money: float | None
) -> None:
    """Steps are tokens over those of a step."""
    limits = Limits(tokens=1e8, days=days, money=money, price=2.0)
    own: Any = SimpleNamespace(limits=limits, blocks=BLOCKS)
    kept = _Search._affordable(own, BLOCK, ROW, TIME, GPUS)
    expected = []
    for number, row, time, gpus in zip(BLOCK, ROW, TIME, GPUS, strict=True):
        sequences, length = ((8 + row), 1000) if number == 0 else ((64 + row), 500)
        hours = 1e8 / (sequences * length) * time / 3600
        cheap = money is None or hours * gpus * 2.0 <= money
        expected.append(cheap and (days is None or hours / 24 <= days))
    assert kept.tolist() == expected
    assert 5 < sum(expected) < PLANS - 5


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_one_s_own_runs_are_asked_of_the_best_and_of_the_front(
    power: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are ranked; what comes out is in the order of what they say."""
    asked: list[np.ndarray] = []

    def measured(block: Any, row: Any, known: Any, exact: np.ndarray, *rest: Any) -> Any:
        asked.append(exact)
        return known[0] * np.linspace(1.0, 3.0, PLANS), known[1]

    monkeypatch.setattr(layouts, "CORRECTED", 7)
    own: Any = SimpleNamespace(
        calibration=SimpleNamespace(own=1), power=power, rows=[ROW], enumerated=9, possible=8,
        limits=Limits(), model=None, cluster=None, objective="cost", machines=None, keep=3,
        space=SimpleNamespace(assumed=()), blocks=BLOCKS, _as_measured=measured,
    )  # fmt: skip
    state: Any = SimpleNamespace(columns=lambda: (BLOCK, ROW, TIME, SIGMA, PEAK, BY, GPUS))
    found = _Search._result(own, state, {}, {})
    score = TIME * BY * GPUS**power
    best = set(np.argsort(score)[:7].tolist())
    every = list(zip(TIME * BY, PEAK, GPUS, strict=True))
    front = {
        at
        for at, one in enumerate(every)
        if not any(all(b <= a for a, b in zip(one, two, strict=True)) and two != one
                   for two in every)
    }  # fmt: skip
    assert set(asked[0].tolist()) == best | front
    assert best - front
    assert front - best
    assert np.all(np.diff(found.score) >= 0)
    assert found.score == pytest.approx(found.ranked * found.gpus**power)
    assert sorted(found.ranked / found.step_time) == pytest.approx(sorted(BY))
    assert sorted(found.step_time) == pytest.approx(sorted(TIME * np.linspace(1.0, 3.0, PLANS)))


def test_of_the_others_the_mean_of_corrections_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Geometric, as corrections multiply; nobody is surer than the mean of those that are known."""
    exact = np.arange(0, PLANS, 3)

    def measured(found: Any, step: Any, using: Any, sigma: Any, of: Any, known: Any) -> Any:
        time = np.array([1000.0 * of[2].first + row for row in of[2].rows])
        return SimpleNamespace(step_time=time), None, sigma / 2.0

    for name, value in (
        ("environment_of", lambda *_: None), ("parts", lambda *_: (None, None)),
        ("assemble", lambda *_: None), ("as_measured", measured),
    ):  # fmt: skip
        monkeypatch.setattr(layouts, name, value)
    group = SimpleNamespace(of=lambda block, rows: None)
    own: Any = SimpleNamespace(
        calibration=SimpleNamespace(run=None), cluster=None, model=None,
        blocks=[SimpleNamespace(group=0, plan=one.plan) for one in BLOCKS],
    )  # fmt: skip
    time, sigma = _Search._as_measured(own, BLOCK, ROW, (TIME, SIGMA), exact, {0: group}, {})  # type: ignore[dict-item]
    said = np.where(BLOCK == 0, 8000.0, 64000.0) + ROW
    assert time[exact] == pytest.approx(said[exact])
    assert sigma[exact] == pytest.approx(SIGMA[exact] / 2.0)
    rest = np.setdiff1d(np.arange(PLANS), exact)
    factor = np.prod((said[exact] / TIME[exact]) ** (1.0 / len(exact)))
    assert time[rest] == pytest.approx(TIME[rest] * factor)
    assert sigma[rest] == pytest.approx(np.maximum(SIGMA[rest], np.mean(SIGMA[exact]) / 2.0))


FIELDS = ("tp", "pp", "cp", "ep", "etp")


def told(masks: np.ndarray) -> tuple[str, list[str]]:
    """What is said of plans that break five laws, and the laws that it names."""
    found = Conflict()
    plans = TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, np.full(masks.shape[1], 8.0))
    laws = [Rule(m, f"{{{n}}} breaks {n}", (n,)) for m, n in zip(masks, FIELDS, strict=True)]
    half = masks.shape[1] // 2
    for part in (slice(None, half), slice(half, None)):
        own = [Rule(law.broken[part], law.message, law.fields) for law in laws]  # type: ignore[index]
        found.note(own, TrainingPlan(*(np.asarray(1.0),) * 5, plans.seq_len[part]))  # type: ignore[index]
    message = found.message()
    return message, [name for name in FIELDS if f"breaks {name}" in message]


def test_laws_that_exclude_a_plan_each_are_all_named() -> None:
    """None of five speaks for another's plans."""
    message, names = told(np.tile(np.eye(5, dtype=bool), 2))
    assert names == list(FIELDS)
    assert message.startswith("no plan is possible, every one breaks one of these: ")


@pytest.mark.parametrize("seed", range(20))
def test_contradictions_are_the_fewest_laws_that_exclude_every_plan(seed: int) -> None:
    """Of up to three; where more are needed all are named."""
    random = np.random.default_rng(seed)
    masks = random.random((5, 12)) < random.uniform(0.1, 0.7)
    masks[random.integers(0, 5, 12), np.arange(12)] = True

    def excluding(some: tuple[int, ...]) -> bool:
        return bool(masks[list(some)].any(axis=0).all())

    fewest = next(n for n in range(1, 6) if any(map(excluding, combinations(range(5), n))))
    message, names = told(masks)
    assert excluding(tuple(FIELDS.index(name) for name in names))
    if fewest <= 3:
        assert len(names) == fewest
    else:
        assert len(names) == masks.any(axis=1).sum()
    assert message.startswith("no plan is possible" + (":" if fewest == 1 else ", every one"))


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_a_contradiction_tells_the_nearest_where_there_is_one_value(count: int) -> None:
    """And the first four values where there are several."""
    found = Conflict()
    sizes = np.arange(3.0, 3.0 + count)
    plan = TrainingPlan(sizes, 1.0, 1.0, 1.0, 1.0, 8.0)
    law = Rule(np.ones(count, bool), "{tp} is odd", ("tp",), lambda value: f"{value + 1:g}")
    found.note([law], plan)
    values = " or ".join(f"{one:g}" for one in sizes[:4]) + (" or more" if count > 4 else "")
    near = "; nearest 4" if count == 1 else ""
    assert found.message() == f"no plan is possible: tp {values} is odd{near}"


@pytest.mark.parametrize(
    ("gpus", "size", "replica"), [(12, 2, 3), (13, 1, 4), (8, 4, 2), (7, 7, 7)]
)
def test_every_split_of_the_accelerators_is_tried(
    gpus: int, size: int, replica: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least an engine and a replica each; as many whole replicas as there is room for."""

    def rolled(*_: Any) -> Callable[[int], tuple[int, float, float]]:
        return lambda engines: (size, 24.0 / max(engines, 1), 1.0)

    def trained(*_: Any) -> Callable[[int], tuple[int, float]]:
        return lambda ranks: (replica, 48.0 / max(ranks, 1))

    monkeypatch.setattr(post_training, "_rolled", rolled)
    monkeypatch.setattr(post_training, "_trained", trained)
    of = Rollouts(2, 3, 10, 20, 0.5, 6)
    found = post_training.iterations(SMALL, machine(8), gpus, of, {}, {}, load("none"))
    splits = {
        (way, n * size, ranks)
        for n in range(1, gpus // size + 1)
        if (ranks := (gpus - n * size) // replica * replica)
        for way in (IN_TURN, BEHIND)
    }
    whole = (SHARED, gpus // size * size, gpus // replica * replica)
    assert {(one.way, one.rollout_gpus, one.training_gpus) for one in found} == splits | {whole}
    assert all(one.engines * size == one.rollout_gpus for one in found)
    with pytest.raises(InputError, match="hold no engine"):
        post_training.iterations(SMALL, machine(8), size - 1, of, {}, {}, load("none"))


@pytest.mark.parametrize("workers", [(0,), (1, 2), (0, 1)])
def test_plans_are_counted_at_every_step_of_a_search_of_engines(workers: tuple[int, ...]) -> None:
    """Two layouts, of which one divides the heads; with prompts read apart each once for either
    size of workers, whatever their number; a promise that all keep."""
    fields = {"input_len": (1024,), "output_len": (64,), "tp": (1, 3), "pp": (1,),
              "prefill_workers": workers, "prefill_tp": (1, 2)}  # fmt: skip
    found = search_engines(LLAMA, [DGX], fields, Promise(), KNOWN)
    ways = (0 in workers) + 2 * any(workers)
    assert (found.enumerated, found.possible) == (2 * ways, ways)
    assert found.fitting == found.keeping == ways
    numbers = [(one.plan.prefill_tp, one.plan.prefill_workers) for one in found.engines]
    several = {(tp, n) for tp in (1, 2) for n in workers if n}
    assert {one for one in numbers if one[1]} == several
    assert len(numbers) == len(several) + (0 in workers)


def test_numbers_of_workers_that_miss_the_promise_take_no_layout_with_them() -> None:
    """One worker lets a prompt in five wait for another; engines of a request every few seconds,
    so that a rate of one would be a good one. As when every number is stated, the fewest
    accelerators for a request stand."""
    fields = {"input_len": (32000,), "output_len": (500,), "max_batch": (1,), "tp": (1, 2),
              "pp": (1,), "prefill_tp": (1,)}  # fmt: skip
    promise = Promise(ttft=1.4)
    ours, every = (
        search_engines(LLAMA, [DGX], {**fields, **stated}, promise, KNOWN).engines
        for stated in ({"prefill_workers": Range(1, 6)}, {"prefill_workers": (1, 2, 3, 4, 5, 6)})
    )
    assert min(one.plan.prefill_workers for one in every) == 2.0
    assert max(one.rate for one in every) < 1.0
    for tp in (1, 2):
        least = [
            min(one.gpus / one.rate for one in engines if one.plan.tp == tp)
            for engines in (ours, every)
        ]
        assert least[0] == pytest.approx(least[1])
