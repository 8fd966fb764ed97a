from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.given import read_given
from predictor.errors import InputError
from predictor.memory import UNHELD, memory
from predictor.plans.rules import check, feasible, training_rules
from predictor.plans.training import NUMERIC_FIELDS, TrainingPlan
from predictor.search.axes import gpu_counts
from predictor.search.contenders import frontier
from predictor.search.layouts import _Search, search_train
from predictor.search.ranking import Limits, SearchResult, mapping
from predictor.search.space import as_float, narrow, space_of, template
from predictor.training.prediction import predict
from predictor.training.variation import vary
from predictor.variation import profile

KERNELS = load("kernels-only")
LLAMA, MIXTURE = catalog.model("llama3-8b"), catalog.model("mixtral-8x7b")
DGX = catalog.system("dgx-h100")
SMALL = {"gpus": 16, "global_batch": 32, "seq_len": 8192}
FEW = {
    "tp": [2, 16],
    "pp": [1, 2, 4],
    "cp": [1, 2],
    "vpp": [1, 2],
    "micro_batch": 2,
    "recompute": ["none", "full"],
    "recompute_share": [0.5, 1.0],
    "sequence_parallel": [False, True],
    "cp_kind": "ring",
    "rank_order": "tp-cp-dp-pp",
    "sharding": ["zero1", "fsdp"],
    "schedule": ["1f1b", "zb-h1"],
}


def search(fields: dict[str, Any], model: Any = LLAMA, **options: Any) -> SearchResult:
    return search_train(model, DGX, {**SMALL, **fields}, KERNELS, **options)


def exhaustive(capacity: float) -> list[tuple[float, float, dict[str, Any]]]:
    """Every combination of `FEW`, one plan after the other through the single-run predictor."""
    given_ = read_given({**SMALL, **FEW})
    starts = {
        (name, pp): template(LLAMA, DGX, given_, {"sharding": name}, KERNELS.run, pp)[0]
        for name in FEW["sharding"]
        for pp in FEW["pp"]
    }
    found = []
    names = list(FEW)
    for values in itertools.product(*(np.atleast_1d(FEW[name]) for name in names)):
        own = {
            n: float(v) if n in NUMERIC_FIELDS else _plain(v)
            for n, v in zip(names, values, strict=True)
        }
        if own["recompute"] == "none" and own["recompute_share"] != 1.0:
            continue
        ranks = own["tp"] * own["pp"] * own["cp"]
        alone = own["tp"] * own["pp"] == 16 and own["sharding"] == "fsdp"
        if 16 % ranks or alone:  # nobody to share with
            continue
        plan = replace(
            starts[own["sharding"], own["pp"]],
            **own,
            dp=16 / ranks,
            global_batch=32.0,
            seq_len=8192.0,
            vocab_multiple=128.0,
        )
        try:
            check(plan, LLAMA)
        except InputError:
            continue
        result = predict(LLAMA, DGX, plan, KERNELS)
        if float(result.memory.peak) <= capacity:
            found.append((float(result.step_time), float(result.memory.peak), mapping(plan)))
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@pytest.fixture(scope="module")
def every() -> list[tuple[float, float, dict[str, Any]]]:
    return exhaustive(0.95 * float(DGX.accelerator.memory))


def _key(plan: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in plan.items() if name in FEW))


def test_every_plan_of_a_small_space_is_timed_as_by_itself(every: Any) -> None:
    found = search(FEW, prune=False)
    alone = {_key(plan): (time, peak) for time, peak, plan in every}
    assert len(found) > 100
    for position in range(len(found)):
        time, peak = alone[_key(found.mapping(position))]
        assert found.step_time[position] == pytest.approx(time, rel=1e-12)
        assert found.memory[position] == pytest.approx(peak, rel=1e-12)


@pytest.mark.parametrize("prune", [False, True])
def test_search_finds_what_exhaustion_finds(every: Any, prune: bool) -> None:
    found = search(FEW, prune=prune, keep=20)
    assert found.step_time[0] == pytest.approx(min(time for time, _, _ in every), rel=1e-12)
    time, peak = (np.array([one[at] for one in every]) for at in (0, 1))
    best = frontier(time, peak, np.full(len(time), 16.0))
    ours = sorted(zip(found.step_time[found.frontier], found.memory[found.frontier], strict=True))
    assert np.array(ours) == pytest.approx(
        np.array(sorted(zip(time[best], peak[best], strict=True))), rel=1e-12
    )


SIZES = {"gpus": [8, 16], "global_batch": 64, "cp": [1, 2], "recompute": ["none", "full"],
         "sharding": ["zero1", "fsdp"]}  # fmt: skip
"""Two sizes of a cluster, ways to cut sequences, to recompute and to share; everything else
open."""


@pytest.fixture(scope="module")
def whole() -> SearchResult:
    """Every plan that fits, timed."""
    return search(SIZES, prune=False, keep=30)


@pytest.fixture(scope="module")
def pruned() -> SearchResult:
    return search(SIZES, keep=30)


def test_without_the_best_of_each_value_the_best_and_the_front_stay(pruned: SearchResult) -> None:
    less = search(SIZES, keep=30, each=False)
    assert less.counts.timed < pruned.counts.timed
    assert less.step_time[:30].tolist() == pruned.step_time[:30].tolist()
    fronts = [sorted(one.step_time[one.frontier].tolist()) for one in (pruned, less)]
    assert fronts[0] == fronts[1]


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_the_bound_drops_nothing_that_is_kept(
    whole: SearchResult, pruned: SearchResult, objective: str
) -> None:
    found = pruned if objective == "time" else search(SIZES, objective=objective, keep=30)
    assert found.counts.timed < whole.counts.timed == whole.counts.fitting
    assert found.counts.fitting == whole.counts.fitting
    power = float(objective == "cost")
    ours, theirs = (np.sort(one.step_time * one.gpus**power)[:30] for one in (found, whole))
    assert ours.tolist() == theirs.tolist()
    assert np.array_equal((found.step_time * found.gpus**power)[:30], ours)
    for name in ("step_time", "memory", "gpus"):
        ours, theirs = (getattr(one, name)[one.frontier] for one in (found, whole))
        assert np.sort(ours) == pytest.approx(np.sort(theirs), rel=0)


@pytest.mark.parametrize("model", [LLAMA, MIXTURE])
def test_no_plan_is_faster_than_its_bound(model: Any) -> None:
    fields = {"gpus": 16, "global_batch": 64, "seq_len": 4096, "tp": [1, 2], "cp": 1,
              "micro_batch": 1, "sharding": ["zero1", "fsdp"]}  # fmt: skip
    space = space_of(model, DGX, fields, KERNELS.run)
    search_ = _Search(space, KERNELS, Limits(), "time", 10, None)
    search_.narrow()
    found = search_.time(prune=False)
    assert {"1f1b", "zb-h1", "dualpipe", "dualpipev", "zb-v"} <= set(found.column("schedule"))
    layers: dict[int, Any] = {}
    for number, block in enumerate(search_.blocks):
        rows = found.row[found.block == number]
        if not rows.size:
            continue
        if block.group not in layers:
            layers[block.group], _ = search_._layers(block, np.arange(block.base.shape[0]))
        bound = search_._bound(block, rows, layers)
        assert np.all(bound <= found.step_time[found.block == number])


def test_numbers_without_a_table_are_searched_where_several_are_stated() -> None:
    found = search({"offload_optimizer": [0, 0.5, 1], "tp": 2, "pp": 2, "micro_batch": 1,
                    "recompute": ["none", "full"]})  # fmt: skip
    assert set(found.column("offload_optimizer")) == {0.0, 0.5, 1.0}
    # The host's optimizer costs time and saves memory.
    least = found.column("offload_optimizer")[np.argmin(found.memory)]
    assert (found.mapping(0)["offload_optimizer"], least) == (0, 1.0)


def test_plans_are_possible_distinct_and_mixtures_divide_their_experts() -> None:
    found = search({"seq_len": 4096, "cp": 1, "recompute": "full"}, model=MIXTURE, keep=200)
    keys = {tuple(sorted((k, str(v)) for k, v in plan.items())) for plan in found.plans}
    assert len(keys) == len(found.plans)
    assert {1, 8} <= set(found.column("ep"))
    for position in range(50):
        check(found.plan(position), MIXTURE)
        assert found.plan(position).gpus == 16


def test_each_block_is_enumerated_once() -> None:
    space = space_of(LLAMA, DGX, SMALL, KERNELS.run)
    rows = set()
    count = 0
    for block in space.blocks():
        plan = block.plan(slice(None))
        assert feasible(plan, LLAMA).shape == (len(block),)
        columns = np.stack([block.column(name, slice(None)) for name in block.grid], axis=1)
        fixed = tuple(
            str(getattr(block.fixed, name))
            for name in ("recompute", "recompute_modules", "cp_kind", "rank_order", "sharding",
                         "schedule")
        )  # fmt: skip
        rows |= {(*fixed, *row) for row in columns.tolist()}
        count += len(block)
    assert len(rows) == count


points = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=40
)


@given(points)
@settings(deadline=None)
def test_frontier_is_what_no_plan_beats(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=float)
    chosen = frontier(*table.T)
    kept = {tuple(row) for row in table[chosen]}
    assert len(kept) == len(chosen)
    for row in table:
        beaten = any((other <= row).all() and (other < row).any() for other in table)
        assert (tuple(row) in kept) == (not beaten)


def test_gpu_counts_are_whole_nodes_that_double_or_grow_by_half() -> None:
    assert gpu_counts(8, 64, 8) == [8, 16, 24, 32, 48, 64]
    assert gpu_counts(10, 40, 8, step=10) == [10, 20, 30, 40]


def test_a_range_bounds_the_values() -> None:
    found = search({"tp": "2..4", "pp": "1..2", "cp": 1, "micro_batch": 1, "recompute": "full"})
    assert set(found.column("tp")) == {2.0, 4.0}
    assert set(found.column("pp")) <= {1.0, 2.0}


OPEN = {"cp": 1, "schedule": ["1f1b", "zb-h1"], "recompute": ["none", "full"]}


@pytest.fixture(scope="module")
def free() -> SearchResult:
    """A search that little bounds."""
    return search(OPEN)


def test_fewer_conditions_never_slow_the_best(free: SearchResult) -> None:
    for fields in ({"tp": 8}, {"sharding": "fsdp"}, {"micro_batch": 1}, {"recompute": "full"}):
        assert search({**OPEN, **fields}).step_time[0] >= free.step_time[0]


def test_less_memory_leaves_fewer_plans(free: SearchResult) -> None:
    half = search(OPEN, limits=Limits(memory_fraction=0.5))
    assert half.counts.fitting < free.counts.fitting
    assert half.memory.max() <= 0.5 * DGX.accelerator.memory


def test_budgets_bound_days_and_money() -> None:
    fields = {**OPEN, "gpus": "8..24", "global_batch": 48}
    limits = Limits(tokens=1e10, price=2.0)
    free = search(fields, limits=limits, prune=False)
    days, cost = free.training_days(), free.cost()
    assert days is not None
    assert cost is not None
    # 1e10 tokens in steps of 64 x 8192
    assert days[0] == pytest.approx(free.step_time[0] * 1e10 / (48 * 8192) / 86400)
    assert cost[0] == pytest.approx(days[0] * 24 * free.gpus[0] * 2.0)
    middle = float(np.sqrt(days.min() * days.max()))
    slow = search(fields, limits=Limits(tokens=1e10, price=2.0, days=middle), objective="cost")
    within = days <= middle
    assert slow.training_days() is not None
    assert slow.cost()[0] == pytest.approx(cost[within].min(), rel=1e-12)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ({"tp": 3}, {}, ["tp 3", "32 attention heads"]),
        ({"tp": 8, "pp": 4}, {}, ["tp 8 x pp 4", "does not divide"]),
        ({"tp": 2, "pp": 2, "dp": 8}, {}, ["dp stated, 8"]),
        ({"tp": 16}, {"limits": Limits(tp_in_node=True)}, ["tp 16", "node of 8"]),
        ({"vpp": 2, "schedule": "zb-h1", "pp": 2}, {}, ["vpp 2", "zb-h1"]),
        ({"global_batch": 33, "pp": 1, "tp": 1}, {}, ["global batch 33"]),
        ({"ep": 4}, {}, ["ep 4", "dense"]),
    ],
)
def test_contradictions_are_named(
    fields: dict[str, Any], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        search({"recompute": "full", "sharding": "zero1", **fields}, **options)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_nothing_fits_says_the_least_memory_that_would() -> None:
    large = catalog.model("llama3-405b")
    with pytest.raises(InputError, match=r"least that would is [\d.]+ GiB per GPU, with tp") as e:
        search({"gpus": 8, "global_batch": 8}, model=large)
    least = float(str(e.value).split("would is ")[1].split()[0])
    assert 80 < least < 2000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"recompute": "some"}, "'some' is not one of"),
        ({"tp": "8..2"}, "ends below where it starts"),
        ({"schedule": "1..2"}, "needs a field that is a number"),
        ({"tpp": 8}, "unknown key 'tpp'"),
        ({"seq_len": None}, "--seq-len"),
        ({"tp": []}, "list is empty"),
    ],
)
def test_bad_requests_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        search(fields)


def test_budgets_need_tokens_and_a_price() -> None:
    with pytest.raises(InputError, match="--tokens"):
        Limits(days=3)
    with pytest.raises(InputError, match="--price-per-gpu-hour"):
        Limits(tokens=1e9, money=3)
    few = {"tp": 8, "pp": 1, "sharding": "zero1", "recompute": "full"}
    with pytest.raises(InputError, match="fastest takes"):
        search(few, limits=Limits(tokens=1e15, days=1))
    with pytest.raises(InputError, match="cheapest costs"):
        search(few, limits=Limits(tokens=1e15, money=1, price=2))


def test_a_size_that_divides_nothing_is_named_itself() -> None:
    """Not what follows from it: a data-parallel size that is no whole number."""
    with pytest.raises(InputError, match="tp 7 does not divide"):
        search({"tp": 7, "gpus": 64, "global_batch": 64})


def test_plans_are_ranked_by_their_p95_where_machines_vary() -> None:
    """As each of them is predicted by itself; without a profile nothing changes."""
    fields = {"gpus": 32, "tp": [1, 2, 8], "pp": [1, 2], "cp": 1, "sharding": "zero1",
              "micro_batch": 1, "recompute": ["none", "full"]}  # fmt: skip
    plain, silent = search(fields), search({**fields, "variation": "none"})
    assert np.array_equal(plain.step_time, silent.step_time)
    assert np.array_equal(plain.score, silent.score)
    found = search({**fields, "variation": "cloud"})
    assert np.all(np.diff(found.ranked) >= 0)
    assert np.all(found.ranked > found.step_time)
    for position in (0, len(found) // 2, len(found) - 1):
        whole = predict(found.model, found.cluster, found.plan(position), KERNELS)
        p95 = float(vary(whole, profile("cloud")).quantile(0.95))
        assert found.ranked[position] == pytest.approx(p95, rel=1e-9)
    with pytest.raises(InputError, match="variation"):
        search({**fields, "variation": "wild"})


@pytest.mark.parametrize("name", UNHELD)
def test_who_is_near_and_what_hides_change_neither_laws_nor_memory(name: str) -> None:
    plan = TrainingPlan(tp=2.0, pp=2.0, dp=4.0, micro_batch=1.0, global_batch=64.0, seq_len=4096.0)
    changed = "tp-cp-pp-dp" if name == "rank_order" else not getattr(plan, name)
    there, other = plan, replace(plan, **{name: changed})
    for model in (LLAMA, MIXTURE):
        held = [memory(model, one, KERNELS.run) for one in (there, other)]
        assert held[0].peak == held[1].peak
        assert held[0].host == held[1].host
        laws = [training_rules(one, model) for one in (there, other)]
        assert [bool(law.broken) for law in laws[0]] == [bool(law.broken) for law in laws[1]]


def test_progress_grows_from_nothing_to_all() -> None:
    told: list[float] = []
    search(FEW, progress=told.append)
    assert told == sorted(told)
    assert 0.0 <= told[0] < 0.5
    assert told[-1] == 1.0


def test_no_plan_is_on_accelerators_that_no_network_joins():
    """As a single plan of them is refused; of several numbers those within reach are tried."""
    node = catalog.system("L40S-8x-PCIe")  # without adapters
    model, run = catalog.model("gpt2-1.5b"), load("default").run
    fixed = {"global_batch": 64, "seq_len": 1024, "tp": 1, "pp": 1}
    for asked in (16, [16, 32], "9..64"):
        with pytest.raises(InputError, match="no network beyond 8 accelerators"):
            space_of(model, node, {**fixed, "gpus": asked}, run)
    for asked, tried in (([4, 8, 16], {4, 8}), ("4..64", {4, 8}), ("2..64:2", {2, 4, 6, 8})):
        space = space_of(model, node, {**fixed, "gpus": asked}, run)
        found = {float(n) for block in space.blocks() for n in block.column("gpus", slice(None))}
        assert found == tried


def test_more_plans_than_can_be_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, as they are enumerated; the system ended the process instead."""
    count = search(FEW).counts.enumerated
    monkeypatch.setattr("predictor.search.space.MOST_PLANS", count)
    assert search(FEW).counts.enumerated == count
    monkeypatch.setattr("predictor.search.space.MOST_PLANS", count - 1)
    with pytest.raises(InputError, match=f"more than {count - 1:,} plans: state a range"):
        search(FEW)


def test_blocks_hold_where_their_plans_are_and_no_more() -> None:
    """Numbers are those of a few grids, whatever categories are tried."""
    blocks = space_of(LLAMA, DGX, SMALL, KERNELS.run).enumerated()
    grids = {id(block.grid): block.grid for block in blocks}
    assert len(grids) < len(blocks) / 8
    assert all(block.place.dtype.itemsize == 4 for block in blocks)
    assert len({id(block.inner) for block in blocks}) < len(blocks) / 2
    for block in blocks[:: len(blocks) // 7]:
        plan, rows = block.plan(slice(None)), np.arange(len(block))
        for name in ("tp", "micro_batch", "dp"):
            assert np.array_equal(getattr(plan, name), block.column(name, rows))
            assert np.asarray(getattr(plan, name)).dtype == float


@given(st.one_of(st.lists(st.floats()), st.lists(st.integers(-(2**40), 2**40))))
def test_narrow_columns_hold_every_value(values: list[float]) -> None:
    column = np.array(values, dtype=float)
    own = narrow({"x": column})["x"]
    assert np.array_equal(as_float(own), column, equal_nan=True)
    assert narrow({"x": np.round(np.clip(np.nan_to_num(column), -9, 9))})["x"].dtype == np.int16
