"""Volumes and groups of the collectives, against the papers' counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.work.communication import (
    Held,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.work.primitives import Collective
from predictor.work.training import step_operators
from predictor.work.worklist import LAYER_MODULES

Make = Callable[..., TrainingPlan]


def per_layer(model: Model, plan: TrainingPlan, group: str) -> dict[str, float]:
    """Bytes per layer and micro-batch by 'phase op'."""
    found: dict[str, float] = defaultdict(float)
    for c in step_collectives(model, plan):
        if c.module in LAYER_MODULES and c.group == group:
            found[f"{c.phase} {c.op}"] += float(c.bytes * c.count * c.calls)
    return {key: value for key, value in found.items() if value}


def test_tensor_parallelism_reduces_twice_per_pass(gpt3: Model, plan: Make) -> None:
    """Narayanan et al. 2021, section 3.2: two all-reduces forward, two backward, and two more
    where the forward pass runs again."""
    whole = 2.0 * 1 * 2048 * gpt3.hidden
    assert per_layer(gpt3, plan(), "tp") == {
        "forward allreduce": 2 * whole,
        "backward allreduce": 2 * whole,
    }
    assert per_layer(gpt3, plan(recompute="full"), "tp")["recompute allreduce"] == 2 * whole
    half = plan(recompute="full", recompute_share=0.5)
    assert per_layer(gpt3, half, "tp")["recompute allreduce"] == whole


def test_sequence_parallelism_gathers_and_scatters(gpt3: Model, plan: Make) -> None:
    """Korthikanti et al. 2022, section 4.2: the same traffic as the all-reduces, and one more
    all-gather per block backward, since the gathered input was not kept."""
    whole = 2.0 * 1 * 2048 * gpt3.hidden
    made = plan(sequence_parallel=1.0, recompute="full")
    assert per_layer(gpt3, made, "tp") == {
        "forward allgather": 2 * whole,
        "forward reducescatter": 2 * whole,
        "recompute allgather": 2 * whole,
        "recompute reducescatter": 2 * whole,
        "backward allgather": 4 * whole,
        "backward reducescatter": 2 * whole,
    }


@pytest.mark.parametrize("overlap", [False, True])
def test_checkpoints_by_operator_gather_again_and_keep_what_was_scattered(
    gpt3: Model, plan: Make, overlap: bool
) -> None:
    """Nothing is gathered a third time where what comes again is kept until the gradient; GPT-3's
    first product behind a gathering does not run again, so that nothing can hide it."""
    made = plan(sequence_parallel=1.0, recompute="per_op", tp_regather=False, tp_overlap=overlap)
    whole = 2.0 * 1 * 2048 * gpt3.hidden
    assert per_layer(gpt3, made, "tp") == {
        "forward allgather": 2 * whole,
        "forward reducescatter": 2 * whole,
        "recompute allgather": 2 * whole,
        "backward allgather": 2 * whole,
        "backward reducescatter": 2 * whole,
    }
    up = next(c for c in step_collectives(gpt3, made) if c.name == "mlp.up.gather.again")
    assert up.behind == ""


@pytest.mark.parametrize("kind", ["ring", "allgather"])
def test_context_parallelism_moves_keys_and_values(llama: Model, plan: Make, kind: str) -> None:
    """Each rank sees the keys and values of the others once forward; backward their gradients go
    round as well (Liu et al. 2023, section 3)."""
    made = plan(cp=4.0, tp=2.0, cp_kind=kind)
    own = 2 * 2.0 * (2048 / 4) * (llama.kv_heads / 2) * llama.head_dim
    moved = per_layer(llama, made, "cp")
    op, times = ("p2p", 3) if kind == "ring" else ("allgather", 4)
    assert moved == {f"forward {op}": times * own, f"backward {op}": 2 * times * own}
    again = per_layer(llama, plan(cp=4.0, tp=2.0, cp_kind=kind, recompute="selective"), "cp")
    assert again[f"recompute {op}"] == moved[f"forward {op}"]


def test_stages_pass_on_a_share_of_the_sequence(gpt3: Model, plan: Make) -> None:
    for made in (plan(), plan(vpp=3.0), plan(sequence_parallel=1.0)):
        for found in pipeline_collectives(gpt3, made):
            assert (found.op, float(found.count)) == ("p2p", 1.0)
            assert found.bytes == 2.0 * 2048 * gpt3.hidden / 8
    alone = pipeline_collectives(gpt3, plan(pp=1.0))
    assert [float(found.count) for found in alone] == [0.0, 0.0]


def per_step(plan: TrainingPlan, shared: float = 0.0) -> dict[str, float]:
    """Bytes per step by 'group op', of 1e9 parameters in 9 layers."""
    found: dict[str, float] = defaultdict(float)
    for c in gradient_collectives(plan, Held(1e9, 1e9), Held(0.0, 0.0), 9.0, shared):
        found[f"{c.group} {c.op} {c.phase}"] += float(c.bytes * c.count)
    return {key: value for key, value in found.items() if value}


def test_gradients_are_reduced_as_they_are_sharded(plan: Make) -> None:
    """Rajbhandari et al. 2020, section 7: an all-reduce, or a reduce-scatter of the gradients and
    an all-gather of the weights; fully sharded weights are gathered for each of the two passes."""
    common = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "global_batch": 32.0, "reduce_bytes": 2.0}
    assert per_step(plan(**common, sharding="none")) == {"dp allreduce backward": 2e9}
    assert per_step(plan(**common, sharding="zero1")) == {
        "dp reducescatter backward": 2e9,
        "dp allgather forward": 2e9,
    }
    # The gradients of zero2 are divided, so each of the 4 micro-batches reduces its own.
    assert per_step(plan(**common, sharding="zero2"))["dp reducescatter backward"] == 8e9
    full = per_step(plan(**common, sharding="fsdp"))
    replicas = full.pop("replicate allreduce backward")
    assert replicas == pytest.approx(8e9 / 8)  # between groups of one: no time
    assert full == pytest.approx(
        {
            "shard allgather forward": 8e9,
            "shard allgather backward": 8e9,
            "shard reducescatter backward": 8e9,
        }
    )
    hybrid = per_step(plan(**common, sharding="hsdp", dp_shard=4.0))
    assert hybrid["replicate allreduce backward"] == pytest.approx(4 * 2e9 / 4)


def test_a_tied_embedding_is_reduced_between_the_ends(plan: Make) -> None:
    assert per_step(plan(gradient_bytes=4.0), 1e8)["ends allreduce backward"] == 4e8
    assert "ends allreduce backward" not in per_step(plan(pp=1.0), 1e8)


def test_groups_lie_in_megatrons_rank_order(plan: Make) -> None:
    """TP, CP, DP, PP from the inside out: ranks of a group are as far apart as all that is inside.
    Its sizes multiply to the number of GPUs."""
    made = plan(tp=4.0, cp=2.0, dp=8.0, pp=16.0, sharding="hsdp", dp_shard=2.0)
    found = groups(made)
    places = {name: (float(g.size), float(g.stride)) for name, g in found.items()}
    assert places == {
        "tp": (4, 1),
        "etp": (1, 1),
        "ep": (1, 1),
        "edp": (64, 1),  # a rank without expert parallelism shares its experts with its stage
        "eshard": (16, 1),
        "ereplicate": (4, 16),
        "cp": (2, 4),
        "dp": (16, 4),  # replicas of the weights: data times context parallel
        "shard": (4, 4),
        "replicate": (4, 16),
        "tables": (1024, 1),
        "pp": (2, 64),  # neighbours
        "ends": (2, 64 * 15),
    }


def test_the_user_may_keep_pipelines_together(plan: Make) -> None:
    """Megatron's tp-pp-dp mapping: stages are next to each other, replicas far apart."""
    made = plan(tp=2.0, dp=8.0, pp=4.0, rank_order="tp-cp-pp-dp", sharding="hsdp", dp_shard=2.0)
    found = {name: (float(g.size), float(g.stride)) for name, g in groups(made).items()}
    assert found["tp"] == (2, 1)
    assert (found["pp"], found["ends"]) == ((2, 2), (2, 2 * 3))
    assert (found["dp"], found["shard"], found["replicate"]) == ((8, 8), (2, 8), (4, 16))


def test_groups_of_experts_lie_inside_the_stage(plan: Make) -> None:
    """Megatron Core: expert TP innermost, EP next, replicas of the experts outermost in the stage,
    whatever the order of TP, CP and DP in it."""
    made = plan(tp=2.0, cp=2.0, dp=16.0, ep=8.0, etp=2.0)
    found = {name: (float(g.size), float(g.stride)) for name, g in groups(made).items()}
    assert (found["etp"], found["ep"], found["edp"]) == ((2, 1), (8, 2), (4, 16))
    for shard, sizes in ((4.0, (1, 4)), (16.0, (4, 1))):
        hybrid = groups(plan(tp=2.0, cp=2.0, dp=16.0, ep=8.0, sharding="hsdp", dp_shard=shard))
        assert (float(hybrid["eshard"].size), float(hybrid["ereplicate"].size)) == (
            (2 * sizes[0], 4 // sizes[0])
        )


def test_gradients_of_experts_have_a_group_of_their_own(plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, dp=64.0, ep=8.0, reduce_bytes=2.0)
    dense, experts = Held(1e9, 1e9), Held(7e9, 7e9)
    found = {
        f"{c.group} {c.op}": float(c.bytes * c.count)
        for c in gradient_collectives(made, dense, experts, 9.0, 0.0)
        if float(c.bytes * c.count)
    }
    assert found == {
        "dp reducescatter": 2e9,
        "dp allgather": 2e9,
        "edp reducescatter": 14e9,
        "edp allgather": 14e9,
    }


def test_weights_that_are_kept_are_gathered_once(plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "global_batch": 32.0, "sharding": "fsdp"}
    assert "shard allgather backward" in per_step(plan(**common))
    assert "shard allgather backward" not in per_step(plan(**common, reshard=False))


def test_pipelines_that_keep_weights_exchange_once_a_step(plan: Make) -> None:
    """However many micro-batches there are; without a pipeline, or where weights are dropped after
    every pass, each gathers and reduces anew."""
    few = {"tp": 1.0, "dp": 8.0, "global_batch": 64.0, "sharding": "fsdp"}
    many = few | {"global_batch": 256.0}
    gathered, reduced = "shard allgather forward", "shard reducescatter backward"
    for fields, times in (
        ({"pp": 4.0, "reshard": False}, 1.0),
        ({"pp": 4.0}, 4.0),
        ({"pp": 1.0, "reshard": False}, 4.0),
    ):
        one, other = (per_step(plan(**known, **fields)) for known in (few, many))
        assert other[gathered] == pytest.approx(times * one[gathered])
        assert other[reduced] == pytest.approx(times * one[reduced])


def test_what_overlaps_hides_behind_a_product_that_exists(llama: Model, plan: Make) -> None:
    from predictor.work.training import step_operators

    for changes in ({"tp_overlap": True}, {"attention": "unfused"}, {"recompute": "selective"}):
        made = plan(cp=2.0, sequence_parallel=1.0, **changes)
        names = {operator.name for operator in step_operators(llama, made)}
        behind = [c for c in step_collectives(llama, made) if c.behind]
        assert behind
        assert {c.behind for c in behind} <= names
        assert all(isinstance(c, Collective) for c in behind)


@pytest.mark.parametrize(
    ("precision", "element", "gradient"),
    [
        ("fp8", 1.0, 1.0),
        ("fp8_rowwise", 2.0, 2.0),
        ("mxfp8", 1 + 1 / 32, 2 + 2 / 32),
        ("nvfp4", 0.5 + 1 / 16, 1 + 2 / 16),
    ],
)
def test_what_is_gathered_for_narrow_products_travels_narrow(
    precision: str, element: float, gradient: float, gpt3: Model, plan: Make
) -> None:
    """Inputs of both regions forward, and again backward; gradients of both outputs, which travel
    twice where scales run along one direction. Sums are scattered in 16 bits."""
    made = plan(sequence_parallel=1.0, precision=precision)
    found, whole = per_layer(gpt3, made, "tp"), 1.0 * 2048 * gpt3.hidden
    assert found["forward allgather"] == pytest.approx(2 * element * whole)
    assert found["backward allgather"] == pytest.approx(2 * (element + gradient) * whole)
    assert found["forward reducescatter"] == found["backward reducescatter"] == 2 * 2.0 * whole


def test_what_is_cast_after_it_is_gathered_hides_behind_nothing(gpt3: Model, plan: Make) -> None:
    """A product that casts the whole of its input first cannot start on a part of it; what it puts
    out is scattered in parts all the same."""
    for precision, shown in (("fp8", False), ("fp8_rowwise", True)):
        made = plan(sequence_parallel=1.0, precision=precision, tp_overlap=True, tp_regather=False)
        layer = [c for c in step_collectives(gpt3, made) if c.module in LAYER_MODULES]
        assert {c.behind == "" for c in layer if c.op == "allgather"} == {shown}
        assert all(c.behind for c in layer if c.op == "reducescatter")


def test_who_keeps_what_was_gathered_does_not_gather_again(gpt3: Model, plan: Make) -> None:
    """Two all-gathers less in the backward pass, and both inputs of a layer kept whole."""
    made = plan(sequence_parallel=1.0)
    keeps = replace(made, tp_regather=False)
    whole = 2.0 * 2048 * gpt3.hidden
    again, once = (per_layer(gpt3, p, "tp") for p in (made, keeps))
    assert again["backward allgather"] - once["backward allgather"] == 2 * whole
    assert {k: v for k, v in again.items() if k != "backward allgather"} == {
        k: v for k, v in once.items() if k != "backward allgather"
    }
    saved = [
        sum(float(o.saved) for o in step_operators(gpt3, p) if o.module in LAYER_MODULES)
        for p in (made, keeps)
    ]
    assert saved[1] - saved[0] == 2 * whole * (1 - 1 / 8)


@pytest.mark.parametrize(
    ("order", "strides"),
    [
        ("tp-cp-dp-pp", {"tp": 1, "cp": 2, "dp": 2, "pp": 32, "ep": 1, "edp": 8}),
        ("tp-cp-pp-dp", {"tp": 1, "cp": 2, "dp": 8, "pp": 4, "ep": 4, "edp": 32}),
        ("dp-tp-cp-pp", {"tp": 8, "cp": 16, "dp": 2, "pp": 32, "ep": 1, "edp": 8}),
        ("pp-tp-cp-dp", {"tp": 4, "cp": 8, "dp": 8, "pp": 1, "ep": 4, "edp": 32}),
    ],
)
def test_any_order_of_dimensions(order: str, strides: dict, plan: Make) -> None:
    """tp 2, cp 2, dp 8, pp 4: each stride is the product of what lies inside; cp x dp ranks share
    a gradient. Experts over eight ranks: four apart as soon as pipelines lie between those."""
    made = plan(tp=2.0, cp=2.0, dp=8.0, pp=4.0, ep=8.0, rank_order=order)
    found = groups(made)
    assert {name: float(found[name].stride) for name in strides} == strides
    assert float(found["dp"].size) == 16


def test_sharded_weights_are_gathered_layer_by_layer_and_the_rest_at_once(plan: Make) -> None:
    """32 layers and what is around them: 33 messages, all weights between them, each way."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, sharding="fsdp")
    dense, none = Held(weights=3.3e9, trained=1.1e9), Held(weights=0.0, trained=0.0)
    found = {one.name: one for one in gradient_collectives(made, dense, none, 32.0, 0.0)}
    gathered, reduced = found["weights.gather"], found["gradients.scatter"]
    assert float(gathered.count) == float(reduced.count) == 33.0 * made.exchanges
    assert float(gathered.bytes) == pytest.approx(3.3e9 * made.gather_bytes / 33.0)
    assert float(reduced.bytes) == pytest.approx(1.1e9 * made.reduce_bytes / 33.0)
