"""A batch of plans is the plans one by one, whatever they differ in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import stack, take
from predictor.catalog import load
from predictor.plans import LAYER_FIELDS, NUMERIC_FIELDS, RANK_ORDERS, TrainingPlan
from predictor.search import search_train
from predictor.training import frame, predict

OTHERS = {
    "dp_shard": 2.0,
    "first_layers": 20.0,
    "last_layers": 10.0,
    "loader_rate": 1e3,
    "offload_activations": 0.5,
    "offload_optimizer": 0.5,
    "recompute_share": 0.25,
    "routed_nodes": 1.0,
    "sequence_parallel": 0.0,
}
"""Another value of a field of `PLAN` than twice its own."""

PLAN = TrainingPlan(
    tp=2.0,
    pp=2.0,
    dp=8.0,
    cp=2.0,
    ep=4.0,
    micro_batch=1.0,
    global_batch=64.0,
    seq_len=4096.0,
    sequence_parallel=1.0,
    recompute="full",
    recompute_share=0.5,
    offload_activations=0.25,
)


LAID_OUT = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "dp_shard", "routed_nodes")
"""Numbers that say between which ranks, and how far, something travels: all that an order of ranks
changes."""


def varied(plan: TrainingPlan, names: Collection[str] = NUMERIC_FIELDS) -> TrainingPlan:
    """The plan, and for each of these numbers one with another value of it alone."""
    changed = [{name: OTHERS.get(name, 2.0 * getattr(plan, name))} for name in names]
    return stack([plan, *(replace(plan, **change) for change in changed)])


def test_experts_that_a_loop_launches_are_told_apart() -> None:
    """How many kernels the host launches then goes with the plan: batches have arrays of it."""
    own, cluster, known = catalog.model("mixtral-8x7b"), catalog.system("dgx-h100"), load("default")
    alone = replace(PLAN, pp=1.0, dp=16.0, framework="huggingface", experts_looped=True)
    plans = [alone, replace(alone, ep=2.0)]
    found = predict(own, cluster, stack(plans), known).step_time
    each = [float(predict(own, cluster, plan, known).step_time) for plan in plans]
    assert found == pytest.approx(each, rel=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama3-8b", {"framework": "torchtitan", "precision": "fp8", "saves_narrow": False,
                       "sharding": "fsdp", "gather_bytes": 1.0}),
        ("mistral-7b", {"framework": "huggingface", "trained": "lora", "windows_masked": True,
                        "adapter_style": "autocast", "seq_len": 4096.0, "sharding": "none"}),
    ],
)  # fmt: skip
def test_so_are_those_that_cast_and_mask(model: str, changes: dict[str, object]) -> None:
    """Weights that come narrow or not, windows that bind or not, adapters of one rank or another,
    in time and in memory."""
    own, cluster, known = catalog.model(model), catalog.system("dgx-h100"), load("default")
    names = (set(LAYER_FIELDS) | {"gather_bytes", "weight_bytes", "dp"}) - {"document"}
    batch = varied(replace(PLAN, pp=1.0, ep=1.0, **changes), sorted(names))  # type: ignore[arg-type]
    found = predict(own, cluster, batch, known)
    for at in range(batch.shape[0]):
        one = predict(own, cluster, take(batch, np.array([at])), known)
        assert found.step_time[at] == pytest.approx(one.step_time[0], rel=1e-12)
        assert found.memory.peak[at] == pytest.approx(one.memory.peak[0], rel=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("model", "order", "names"),
    [
        ("deepseek-v3", "tp-cp-dp-pp", NUMERIC_FIELDS),
        ("deepseek-v3", "tp-cp-pp-dp", LAID_OUT),
        ("deepseek-v3", "cp-pp-tp-dp", LAID_OUT),
        ("deepseek-v3", "pp-dp-tp-cp", LAID_OUT),
        ("llama3-8b", "tp-cp-dp-pp", LAID_OUT),
        ("llama3-8b", "cp-pp-tp-dp", NUMERIC_FIELDS),
    ],
)
def test_plans_that_differ_in_any_number_are_told_apart(
    model: str, order: str, names: Collection[str]
) -> None:
    assert order in RANK_ORDERS
    own, cluster, known = catalog.model(model), catalog.system("dgx-h100"), load("default")
    batch = varied(replace(PLAN, rank_order=order, ep=4.0 if own.is_moe else 1.0), names)
    found = predict(own, cluster, batch, known).step_time
    for at, name in enumerate(("", *names)):
        one = take(batch, np.array([at]))
        assert found[at] == pytest.approx(
            float(predict(own, cluster, one, known).step_time[0]), rel=1e-12
        ), name


def test_what_lies_around_layers_is_of_each_plan() -> None:
    model, cluster, known = catalog.model("mixtral-8x7b"), catalog.system("dgx-h100"), load("none")
    batch = varied(replace(PLAN, offload_activations=0.0))
    part = np.array([3, 0, 8])
    taken = frame(model, cluster, batch, known).take(part)
    alone = frame(model, cluster, take(batch, part), known)
    assert np.array_equal(taken.update, alone.update)
    assert np.array_equal(taken.modules["layer"], alone.modules["layer"])
    for name in ("between", "gradients"):
        ours, theirs = getattr(taken, name), getattr(alone, name)
        assert ours.keys() == theirs.keys()
        for key, one in ours.items():
            assert np.array_equal(one.time, theirs[key].time)
            assert np.array_equal(one.domains, theirs[key].domains)


def test_a_search_ranks_plans_by_what_is_predicted_of_each_alone() -> None:
    """Where pipelines lie between the ranks of an expert group, its distance depends on them."""
    found = search_train(
        catalog.model("mixtral-8x7b"),
        catalog.system("dgx-h100"),
        {
            "gpus": 64,
            "global_batch": 64,
            "seq_len": 4096,
            "tp": [1, 2],
            "cp": 1,
            "micro_batch": 1,
            "recompute": "full",
        },
        load("default"),
    )
    orders = found.column("rank_order")
    for order in set(orders.tolist()):
        for at in np.flatnonzero((orders == order) & (found.column("pp") > 1))[::400]:
            alone = predict(found.model, found.cluster, found.plan(int(at)), found.calibration)
            assert found.step_time[at] == pytest.approx(float(alone.step_time), rel=1e-9)


def test_plans_of_one_rank_and_of_many_are_predicted_alike_in_a_search() -> None:
    """A plain loop, whose level must not depend on what else is searched."""
    found = search_train(
        catalog.model("gpt2-774m"),
        catalog.system("dgx-h100"),
        {
            "gpus": [1, 2, 8], "global_batch": 16, "seq_len": 1024, "micro_batch": 2,
            "framework": "pytorch",
        },
        load("default"),
    )  # fmt: skip
    ranks = found.column("gpus")
    assert set(ranks) == {1.0, 2.0, 8.0}
    for gpus in (1.0, 2.0, 8.0):
        for at in np.flatnonzero(ranks == gpus)[::100]:
            alone = predict(found.model, found.cluster, found.plan(int(at)), found.calibration)
            assert found.step_time[at] == pytest.approx(float(alone.step_time), rel=1e-9)
            assert found.sigma[at] == pytest.approx(float(alone.sigma), rel=1e-9)
            assert (float(alone.factor) == 1.0) == (gpus == 1.0)


def test_a_search_knows_how_ranks_wait_for_each_other() -> None:
    """How late the latest is depends on how many meet."""
    known = load("default")
    run = replace(known.run, jitter={"H100-SXM5-80GB": (0.02, 0.0)})
    found = search_train(
        catalog.model("gpt2-774m"),
        catalog.system("dgx-h100"),
        {"gpus": 8, "global_batch": 16, "seq_len": 1024, "micro_batch": 2, "pp": 1, "cp": 1},
        replace(known, run=run),
    )
    groups = found.column("tp")
    assert {1.0, 2.0, 4.0} <= set(groups)
    for tp in (1.0, 2.0, 4.0):
        at = int(np.flatnonzero(groups == tp)[0])
        alone = predict(found.model, found.cluster, found.plan(at), found.calibration)
        assert found.step_time[at] == pytest.approx(float(alone.step_time), rel=1e-9)


def test_plans_of_one_rank_and_of_many_are_predicted_alike_in_a_batch() -> None:
    batch = TrainingPlan(
        tp=np.array([1.0, 1.0, 1.0, 2.0]), pp=1.0, dp=np.array([1.0, 4.0, 1.0, 2.0]),
        micro_batch=2.0, seq_len=1024.0, global_batch=64.0, framework="pytorch",
    )  # fmt: skip
    model, cluster, known = catalog.model("gpt2-774m"), catalog.system("dgx-h100"), load("default")
    found = predict(model, cluster, batch, known)
    for at in range(4):
        alone = predict(model, cluster, take(batch, np.array([at])), known)
        for name in ("step_time", "layer_time", "sigma"):
            ours, own = getattr(found, name)[at], getattr(alone, name)[0]
            assert ours == pytest.approx(float(own), rel=1e-12), name
        assert found.breakdown["framework"][at] == pytest.approx(
            float(alone.breakdown["framework"][0]), rel=1e-9, abs=1e-12
        )
