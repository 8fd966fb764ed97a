"""What searches try and keep, against plain loops; iterations of rollouts in round numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import take
from predictor.catalog.artifacts import load
from predictor.catalog.given import Range
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, Tier
from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.search import fleet_space, fleets, post_training, space
from predictor.search.axes import AXES, LEAST_TOKENS, MOST_GPUS, UNEVEN, SearchBasis, extend
from predictor.search.comparison import Timed, differences, ratio
from predictor.search.contenders import Contenders, frontier
from predictor.search.fleets import EngineOffer, accelerators, engine_brief, replicas
from predictor.search.post_training import BEHIND, IN_TURN, SHARED, Rollouts
from predictor.search.ranking import DAY, HOUR, Limits
from tests.predictor.search.test_laws_axes import MIXED, SMALL

DEVICE = Accelerator(
    name="x", architecture="none", peak={"bf16": 1e14}, memory=4e10, bandwidth=1e12, l2=3e7,
    l2_bandwidth=4e12, sms=100.0,
)  # fmt: skip


def machine(node: int, domain: float = math.inf, tiers: int = 2) -> Cluster:
    inner = Tier("nvlink4", float(node), 4e11)
    outer = Tier("infiniband", domain, 5e10)
    return Cluster("one", DEVICE, node, (inner, outer)[:tiers])


def basis(cluster: Cluster, given: Mapping[str, Any], model: Model = SMALL) -> SearchBasis:
    return SearchBasis(model, cluster, given, TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, 4096.0))


def values(field: str, at: SearchBasis, *numbers: float) -> list[float]:
    return next(axis for axis in AXES if axis.field == field).values(at, *numbers)


def test_numbers_of_accelerators_reach_from_a_node_to_all_there_are() -> None:
    """Or to the most that anybody looks at."""
    small = values("gpus", basis(machine(8, 40.0), {}))
    assert small == [8, 16, 24, 32, 40]
    endless = values("gpus", basis(machine(8), {}))
    assert (endless[0], endless[-1]) == (8, MOST_GPUS)
    assert 32768 < MOST_GPUS <= 131072, "the largest published runs have tens of thousands"
    ranged = basis(machine(8), {"gpus": Range(16, 48)})
    assert values("gpus", ranged) == [16, 24, 32, 48]
    stepped = basis(machine(8), {"gpus": Range(16, 48, 16)})
    assert values("gpus", stepped) == [16, 32, 48]
    # A single node, of which all that there is are four.
    assert values("gpus", basis(machine(8, 4.0), {})) == [4]


def test_what_does_not_divide_leaves_one() -> None:
    at = basis(machine(8), {})
    assert values("micro_batch", at, 10.0, 4.0) == [1.0], "two and a half sequences a replica"
    assert values("micro_batch", at, 2.0, 4.0) == [1.0]
    assert values("micro_batch", at, 8.0, 0.5) == [1.0]
    assert values("pp", basis(machine(8), {}), 9.0, 1.0, 1.0) == [1.0, 3.0], "of nine six have two"
    assert values("pp", basis(machine(8), {}), 3.0, 2.0, 1.0) == [1.0]
    assert values("tp", replace(at, model=replace(SMALL, heads=7)), 8.0, 1.0) == [1.0]
    assert values("cp", at, 8.0, 4095.0) == [1.0]
    assert LEAST_TOKENS == 2048
    assert 1.0 < UNEVEN < 2.0, "no stage has twice the mean"


def test_every_row_meets_every_value() -> None:
    """Rows of pp times dp; micro-batches of each replica's share of the batch."""
    rows = {"global_batch": np.array([8.0, 12.0, 8.0]), "dp": np.array([2.0, 4.0, 1.0])}
    axis = next(axis for axis in AXES if axis.field == "micro_batch")
    found, source = extend(rows, axis, basis(machine(8), {}))
    pairs = [
        (row, one)
        for row, (batch, dp) in enumerate(zip(*rows.values(), strict=True))
        for one in range(1, 13)
        if (batch / dp) % one == 0
    ]
    assert list(zip(source.tolist(), found["micro_batch"].tolist(), strict=True)) == pairs
    assert found["dp"].tolist() == rows["dp"][source].tolist()
    # What is stated stands in its place; a range bounds it, or is taken as it is.
    for given, expected in (
        ({"micro_batch": (3.0, 5.0)}, [3.0, 5.0]),
        ({"micro_batch": Range(2, 3)}, [2.0]),
        ({"micro_batch": Range(5, 7)}, [5.0]),
        ({"micro_batch": Range(2, 8, 3)}, [2.0, 5.0, 8.0]),
    ):
        one = {"global_batch": np.array([8.0]), "dp": np.array([2.0])}
        assert extend(one, axis, basis(machine(8), given))[0]["micro_batch"].tolist() == expected
    shares, source = extend(rows, AXES[10], basis(machine(8), {}))
    assert AXES[10].field == "recompute_share"
    assert shares["recompute_share"].tolist() == [0.25, 0.5, 0.75, 1.0] * 3
    assert source.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_layouts_of_engines_in_plain_loops() -> None:
    """Powers of two inside the node that divide the heads; a mixture's attention in replicas, its
    experts on all ranks or those of one."""
    found = fleet_space.layouts(MIXED, machine(4), {})
    rows = set(zip(*(found[name].tolist() for name in ("tp", "pp", "dp", "ep")), strict=True))
    expected = set()
    for tp in (1, 2, 4):
        for pp in (1, 2, 4, 8):
            for dp in (1, 2, 4):
                ranks = {1} if dp == 1 else set()
                ranks |= {r for r in (tp, tp * dp) if r > 1 and 12 % r == 0}
                expected |= {(tp, pp, dp, ep) for ep in ranks}
    assert rows == expected
    dense = fleet_space.layouts(replace(SMALL, heads=6), machine(8), {"pp": (3,)})
    assert sorted(set(dense["tp"])) == [1, 2]
    assert set(dense["pp"]) == {3.0}
    assert set(dense["dp"]) == set(dense["ep"]) == {1.0}
    some = fleet_space.layouts(SMALL, machine(8), {"tp": Range(2, 4), "pp": (1,)})
    assert sorted(set(some["tp"])) == [2, 4]
    assert fleet_space.layouts(SMALL, machine(8), {"ep": (2,)})["ep"].tolist() == [2.0] * 16


@pytest.mark.parametrize("busiest", [0.2, 1.0, 3.7, 5.0, 12.0, 100.0, 1000.0])
def test_numbers_of_workers(busiest: float) -> None:
    """Half as many again as are busy, and two, at most; each of the first eight; no number twice;
    between them no gap wider than a twenty-third of the rest."""
    at, found = fleet_space.workers(np.array([busiest, busiest]), None)
    one = found[at == 0]
    assert one.tolist() == found[at == 1].tolist()
    most = math.ceil(1.5 * busiest) + 2
    assert one.tolist() == sorted(set(one.tolist()))
    assert one[-1] == most
    assert one[: min(most, 8)].tolist() == list(range(1, min(most, 8) + 1))
    beyond = one[one >= 8]
    assert np.all(np.diff(beyond) <= max(math.ceil((most - 8) / 23), 1) + 1e-9)
    assert len(one) <= 8 + 24
    assert (one % 1 == 0).all()


def test_numbers_of_workers_that_are_stated() -> None:
    at, counts = fleet_space.workers(np.array([3.0, 9.0]), (0, 2, 5))
    assert (at.tolist(), counts.tolist()) == ([0, 0, 1, 1], [2.0, 5.0, 2.0, 5.0])
    at, counts = fleet_space.workers(np.array([3.0]), Range(4, 6))
    assert counts.tolist() == [4.0, 5.0, 6.0]
    assert fleet_space.workers(np.array([3.0]), Range(0, 2))[1].tolist() == [1.0, 2.0]


def test_prompts_are_read_apart_or_not() -> None:
    plan = ServingPlan(batch=np.array([1.0]), input_len=8.0, output_len=np.array([2.0]))
    assert fleet_space.not_apart(plan, {}) is None
    one = replace(plan, output_len=np.array([1.0]))
    assert fleet_space.not_apart(one, {}) == "nothing is decoded after the first token"
    assert (
        fleet_space.not_apart(plan, {"prefill_workers": (0,)}) == "prefill_workers 0 was asked for"
    )
    for wanted in ((0, 2), Range(0, 3)):
        assert fleet_space.not_apart(plan, {"prefill_workers": wanted}) is None
    assert [fleet_space.together_too({"prefill_workers": w}) for w in (None, (0, 1), (2,))] == [
        True, True, False,
    ]  # fmt: skip
    assert not fleet_space.together_too({"prefill_workers": Range(0, 2)})


def test_workers_stay_inside_the_node_where_one_holds_the_weights() -> None:
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    run = load("none").run
    plan = ServingPlan(batch=np.ones(3), input_len=512.0, output_len=64.0, tp=np.array([1.0, 2, 4]))
    found = fleet_space.apart(model, cluster, plan, {}, run)
    assert found.prefill_tp.tolist() == [1.0, 2.0, 4.0, 8.0] * 3  # type: ignore[union-attr]
    assert np.asarray(found.tp).tolist() == [1.0] * 4 + [2.0] * 4 + [4.0] * 4
    assert np.asarray(found.prefill_workers).tolist() == [1.0] * 12
    # 405 billion weights in 16 bits are 810 GB: the node's 640 do not hold them, sixteen do.
    large = fleet_space.apart(
        catalog.model("llama3-405b"), cluster, take(plan, np.array([0])), {}, run
    )
    assert np.asarray(large.prefill_tp).tolist() == [1.0, 2.0, 4.0, 8.0, 16.0]
    stated = fleet_space.apart(model, cluster, plan, {"prefill_tp": (16, 1)}, run)
    assert np.asarray(stated.prefill_tp).tolist() == [16.0, 1.0] * 3


def offer(**changes: Any) -> EngineOffer:
    plan = ServingPlan(batch=8.0, input_len=100.0, output_len=50.0, tp=2.0, pp=3.0,
                       prefill_workers=2.0, prefill_tp=4.0)  # fmt: skip
    given: dict[str, Any] = {
        "cluster": machine(8), "plan": plan, "gpus": 14.0, "rate": 3.0, "ttft": 0.2, "tpot": 0.01,
        "running": 5.0, "used": 0.5, "memory": 1e10,
        "curve": (np.array([1.0, 3.0]), np.array([0.1, 0.2]), np.array([0.005, 0.01])),
    }  # fmt: skip
    return EngineOffer(**{**given, **changes})


def test_engines_for_a_load() -> None:
    """Whole ones, a tenth of headroom, one to spare; a load that fits exactly takes no more."""
    loads = np.array([0.0, 3.0, 3.01, 30.0])
    assert replicas(offer(), loads, 0.0, 0).tolist() == [0.0, 1.0, 2.0, 10.0]
    assert replicas(offer(), np.array([30.0]), 0.1, 1).tolist() == [12.0]
    assert replicas(offer(rate=0.1), np.array([0.3]), 0.0, 0).tolist() == [3.0]


def test_accelerators_of_engines_and_what_they_cost() -> None:
    one = offer()
    assert float(accelerators(one.plan, one.cluster)) == 6 + 8
    apart = replace(one.cluster, prefill=replace(machine(8), name="old"))
    cost = accelerators(one.plan, apart, {"one": 3.0, "old": 2.0})
    assert float(cost) == 6 * 3.0 + 8 * 2.0
    assert engine_brief(one.plan) == "tp 2 pp 3 + 2 x prefill tp 4, bf16, bf16 cache"
    alone = replace(one.plan, tp=1.0, pp=1.0, prefill_workers=0.0)
    assert engine_brief(alone) == "tp 1, bf16, bf16 cache"
    assert one.apart
    assert not offer(plan=alone).apart


def test_of_each_layout_the_numbers_of_workers_that_take_least_are_kept() -> None:
    group = np.array([1, 0, 1, 0, 1])
    first = np.array([3.0, 2.0, 1.0, 2.0, 1.0])
    second = np.array([0.0, 5.0, 9.0, 4.0, 8.0])
    assert fleets._least(group, first, second).tolist() == [3, 4]


def test_the_front_of_engines_is_no_engines_better() -> None:
    """Tokens per second and accelerator against time per token, over all engines and loads."""
    random = np.random.default_rng(3)
    engines = [
        offer(gpus=float(gpus), curve=tuple(np.sort(random.uniform(0.1, 2.0, (3, 6)), axis=1)))
        for gpus in (1, 2, 3)
    ]
    found = fleets.curve(engines, 50.0)
    points = [
        (rate * 50.0 / one.gpus, tpot, at, load_)
        for at, one in enumerate(engines)
        for load_, (rate, tpot) in enumerate(zip(one.curve[0], one.curve[2], strict=True))
    ]
    best = {p for p in points if not any(q[0] >= p[0] and q[1] <= p[1] and q != p for q in points)}
    assert {(a, b, c, d) for a, b, c, d in found} == best
    assert [p[1] for p in found] == sorted(p[1] for p in found)


def test_iterations_in_round_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of 2, replicas of 4, twelve accelerators of 100 GB/s: n engines roll out in 24 / n s,
    training takes 48 s over its accelerators."""
    ends = {n: 24.0 / n for n in range(1, 13)}
    monkeypatch.setattr(post_training, "_rolled", lambda *_: lambda n: (2, ends.get(n, 0.0), 1.5))
    monkeypatch.setattr(
        post_training, "_trained", lambda *_: lambda g: (4, 48.0 / g if g and g != 8 else np.inf)
    )
    cluster = replace(machine(8), tiers=(Tier("infiniband", math.inf, 1e11),))
    of = Rollouts(2, 3, 10, 20, 0.5, 6)
    assert of.answers == 6
    model = SMALL
    found = post_training.iterations(model, cluster, 12, of, {}, {}, load("none"))
    sent = 2.0 * model.parameters / 2 / 1e11
    told = {(one.way, one.engines): one for one in found}
    # Two engines or four leave 8 and 4 accelerators; eight do not divide the batch.
    assert set(told) == {(SHARED, 6), *((way, n) for way in (IN_TURN, BEHIND) for n in (3, 4))}
    one = told[SHARED, 6]
    assert (one.rollout_gpus, one.training_gpus, one.rollout, one.training) == (12, 12, 4.0, 4.0)
    assert one.time == pytest.approx(8.0 + sent)
    assert one.idle == pytest.approx(1 - 96 / (12 * (8.0 + sent)))
    for way, n in told:
        if way == SHARED:
            continue
        one, roll = told[way, n], 24.0 / n
        assert (one.rollout_gpus, one.training_gpus, one.tail) == (2 * n, 4, 1.5)
        spent = (roll + 12.0 if way == IN_TURN else max(roll, 12.0)) + sent
        assert one.time == pytest.approx(spent)
        assert one.weights == pytest.approx(sent)
        assert one.idle == pytest.approx(1 - (2 * n * roll + 4 * 12.0) / (12 * spent))
    assert [one.time for one in found] == sorted(one.time for one in found)
    for gpus in (3, 1):
        with pytest.raises(InputError, match=f"gpus {gpus} hold no engine of 2 or no replica of 4"):
            post_training.iterations(model, cluster, gpus, of, {}, {}, load("none"))
    monkeypatch.setattr(post_training, "_trained", lambda *_: lambda g: (4, np.inf))
    with pytest.raises(InputError, match="no number of engines of 2 and replicas of 4 divides"):
        post_training.iterations(model, cluster, 12, of, {}, {}, load("none"))


def test_training_of_an_iteration_is_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve answers, four to a step, of ten tokens and twenty: three steps of sequences of 30."""
    asked: list[dict[str, Any]] = []
    names = ("seq_len", "global_batch", "tp", "pp", "cp", "gpus")

    def complete(spec: Any, run: Any, **_: Any) -> Any:
        asked.append({name: getattr(spec, name) for name in names})
        if spec.gpus == 16:
            raise InputError("no")
        return SimpleNamespace(plan=None)

    monkeypatch.setattr(post_training, "complete_training", complete)
    monkeypatch.setattr(post_training, "predict", lambda *_: SimpleNamespace(step_time=2.0))
    of = Rollouts(4, 3, 10, 20, 0.5, 4)
    known = load("none")
    trained = post_training._trained(SMALL, machine(8), of, {"tp": 2, "pp": 3}, known)
    assert trained(0) == (6, 0.0)
    assert trained(12) == trained(12) == (6, 6.0)
    assert trained(16) == (6, np.inf)
    assert len(asked) == 2, "what is known is not asked again"
    assert asked[0] == {"seq_len": 30, "global_batch": 4, "tp": 2, "pp": 3, "cp": 1, "gpus": 12}


def test_rollouts_are_dealt_to_engines_and_their_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve answers to five engines: three each, whose last ends the rollout."""
    served: list[tuple[Any, ...]] = []

    def one(*given: Any, clients: int) -> Any:
        served.append((given[4], clients, given[5].variation))
        return SimpleNamespace(last=np.array([1.0, 3.0, 2.0]))

    monkeypatch.setattr(post_training, "one_by_one", one)
    of = Rollouts(4, 3, 10, 20, 0.5, 4)
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    rolled = post_training._rolled(model, cluster, of, {"tp": 2}, load("none"))
    assert rolled(0) == (2, 0.0, 0.0)
    size, last, tail = rolled(5)
    # Nine tenths of the way over three answers: eight of the way from the second to the third.
    assert (size, last, tail) == (2, 3.0, pytest.approx(3.0 - 2.8))
    assert served == [(3, 3, 0.5)]
    rolled(5), rolled(100)
    assert served == [(3, 3, 0.5), (1, 1, 0.5)]


def test_what_beats_a_plan_by_hand() -> None:
    """Scores of time x accelerators; the two best of four are kept, the front is its own."""
    found = Contenders(2, 1.0, [], each=False)
    zero = np.zeros(4, np.intp)
    time, peak, gpus = np.array([4.0, 2, 3, 1]), np.array([1.0, 5, 2, 9]), np.array([1.0, 2, 1, 8])
    found.add(zero, zero, time / 2.0, np.zeros(4), peak, np.full(4, 2.0), gpus)
    found.settle()
    assert found.best.tolist() == [3.0, 4.0]
    assert found.worst == 4.0
    bound = np.array([0.4, 3.0, 0.6, 3.0, 4.0, 2.0, 2.0, 4.5, 4.5])
    held = np.array([99.0, 99, 99, 2.5, 1.5, 4.0, 6.0, 1.5, 0.5])
    many = np.array([10.0, 1, 8, 1, 2, 2, 3, 2, 2])
    # Among the best by its score; or not beaten in all three by one of the front.
    mask = found.matters(0, np.zeros(9, np.intp), bound, held, many)
    front = list(zip(time, peak, gpus, strict=True))
    expected = [
        b * g <= 4.0 or not any(t < b and p <= h and n <= g for t, p, n in front)
        for b, h, g in zip(bound, held, many, strict=True)
    ]
    assert mask.tolist() == expected
    assert set(frontier(time, peak, gpus).tolist()) == {0, 1, 2, 3}
    assert Contenders(5, 0.0, [], each=False).worst == math.inf


def test_two_plans_against_each_other() -> None:
    """Errors of one family cancel as far as both share it; each plan has its own beside them."""
    one = Timed(6.0, {"a": 4.0, "b": 2.0}, {"x": 0.3, "y": 0.1})
    other = Timed(4.0, {"a": 1.0, "c": 3.0}, {"x": 0.1})
    known = load("none")
    own = known.run.sigma_plan
    sigma = math.sqrt(0.2**2 + 0.1**2 + 2 * own**2)
    found = ratio(one, other, known, 2.0)
    assert found.value == pytest.approx(3.0)
    assert found.high / found.value == pytest.approx(math.exp(known.interval_q * sigma))
    assert found.value / found.low == pytest.approx(math.exp(known.interval_q * sigma))
    assert not found.tie
    assert ratio(one, replace(one), known).tie
    assert differences(one, other) == [("a", 3.0), ("c", -3.0), ("b", 2.0)]


def test_limits_are_above_nought_and_budgets_have_what_they_need() -> None:
    assert (DAY, HOUR) == (24 * 3600, 3600)
    for share in (0.0, 1.01, -1.0):
        with pytest.raises(InputError, match="is not between 0 and 1"):
            Limits(memory_fraction=share)
    assert Limits(memory_fraction=1.0).memory_fraction == 1.0
    for name in ("tokens", "days", "money", "price"):
        for value in (0.0, math.inf):
            with pytest.raises(InputError, match=f"{name} {value:g} must be above 0"):
                Limits(**{name: value})
    with pytest.raises(InputError, match="a budget in days needs --tokens"):
        Limits(days=1.0)
    with pytest.raises(InputError, match="a budget in money needs --price-per-gpu-hour"):
        Limits(money=1.0, tokens=1.0)


def test_loads_of_experts_are_those_of_the_copies_that_a_rank_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight sequences of 1,000 tokens cut in two by length and in four by tensor parallelism,
    two experts each, which two ranks share."""
    seen: list[float] = []

    def load_of(_: Any, model: Model, ep: float, copies: float) -> Any:
        seen.append(copies)
        return SimpleNamespace(value=1.5)

    monkeypatch.setattr(space, "load_of", load_of)
    (axis,) = space._routed({"expert_loads": ("some",)})
    at = basis(machine(8), {}, MIXED)
    assert axis.values(at, 4.0, 2.0, 8.0, 1000.0, 4.0, 2.0) == [1.5]
    assert seen == [8 * 1000 / 2 / 4 * 2 * 2]
    assert axis.values(at, 4.0, 2.0, 8.0, 1000.0, 5.0, 2.0) == [], "five ranks of twelve experts"
    assert space._routed({}) == []
    for several in (("some", "other"), Range(1, 2)):
        with pytest.raises(InputError, match="expert_loads takes one value in a search"):
            space._routed({"expert_loads": several})
