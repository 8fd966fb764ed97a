"""Mixtures of experts: operators, collectives, memory and laws, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.arrays import stack
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.memory.training import memory
from predictor.models.flops import model_flop_per_token
from predictor.models.model import Model
from predictor.plans import distinct_share
from predictor.plans.pipeline import stages
from predictor.plans.placement import blocks
from predictor.plans.rules import check, feasible
from predictor.plans.training import ROUTINGS, TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.prediction import TERMS, predict
from predictor.work.communication import step_collectives
from predictor.work.mixture import LOOPED
from predictor.work.training import step_operators
from tests.predictor.work.served import of_step

Make = Callable[..., TrainingPlan]
MIXTRAL = catalog.model("mixtral-8x7b")
DEEPSEEK = catalog.model("deepseek-v3")
H200 = catalog.system("dgx-h200")
NVL72 = catalog.system("GB200-NVL72")
KERNELS = load("kernels-only")


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (8, 1), (4, 2), (1, 8)])
def test_an_expert_sees_its_share_of_the_tokens(plan: Make, ep: int, etp: int) -> None:
    """2048 tokens go to 2 of 8 experts each; a group of ep ranks shares its tokens out, the ranks
    that split experts work on each other's."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, ep=float(ep), etp=float(etp))
    found = of_step(MIXTRAL, made)
    up, down = found["moe.up"], found["moe.down"]
    assert up.batch == down.batch == up.kernels == 8 / ep
    assert up.m == down.m == 2048 * 2 * ep * etp / 8
    assert (up.n, up.k) == (2 * 14336 / etp, 4096)
    assert (down.n, down.k) == (4096, 14336 / etp)
    # Arithmetic per rank is the same however experts are laid out.
    forward = up.flop + down.flop
    assert forward == pytest.approx(6.0 * 2048 * 2 * 14336 * 4096)
    backward = [found[f"moe.{name}.{way}"] for name in ("up", "down") for way in ("dgrad", "wgrad")]
    assert sum(float(o.flop) for o in backward) == pytest.approx(2 * float(forward))


def test_the_traffic_of_experts_is_weights_and_both_products(plan: Make) -> None:
    """Forward: weights (3 n k), input and output (2 m k), and the inner values written (2 m n) and
    read (m n) by the products; the activation between them reads 2 m n and writes m n. What is
    kept: the input, the first product's output, the activation's."""
    m, n, k = 4096, 14336, 4096
    found = of_step(MIXTRAL, plan(tp=1.0, pp=1.0, dp=8.0, ep=8.0))
    moved = sum(float(found[f"moe.{name}"].bytes) for name in ("up", "activation", "down"))
    assert moved == pytest.approx(2.0 * (3 * n * k + 2 * m * k + 6 * m * n))
    saved = sum(float(found[f"moe.{name}"].saved) for name in ("up", "activation", "down"))
    assert saved == pytest.approx(2.0 * m * (k + 3 * n))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "grok-1-314b", "dbrx-132b"])
def test_products_add_up_to_the_active_parameters(name: str, plan: Make) -> None:
    model = catalog.model(name)
    made = plan(tp=1.0, pp=1.0, attention="unfused", vocab_multiple=1.0)
    found = sum(
        float(o.flop * o.count) * (1 if o.module == "head" else model.layers)
        for o in step_operators(model, made)
    )
    expected = model_flop_per_token(model, 2048.0, "megatron") * 2048
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_busiest_rank_has_more_to_do(plan: Make) -> None:
    even = of_step(MIXTRAL, plan(tp=1.0, ep=8.0, dp=8.0))
    uneven = of_step(MIXTRAL, plan(tp=1.0, ep=8.0, dp=8.0, expert_load=1.25))
    assert uneven["moe.up"].flop == pytest.approx(1.25 * even["moe.up"].flop)
    assert uneven["moe.router"].flop == even["moe.router"].flop


def test_experts_without_tokens_do_not_run(plan: Make) -> None:
    few = of_step(DEEPSEEK, plan(tp=1.0, pp=1.0, seq_len=16.0, global_batch=1.0))["moe.up"]
    assert few.batch == 16 * 8  # of 256
    assert few.m == 1


def traffic(model: Model, plan: TrainingPlan, group: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for c in step_collectives(model, plan):
        if c.group == group and c.module == "moe":
            key = f"{c.phase} {c.op}"
            found[key] = found.get(key, 0.0) + float(c.bytes * c.count)
    return found


def test_tokens_go_to_their_experts_and_back_in_both_passes(plan: Make) -> None:
    """Each copy of each token crosses the group twice forward and twice backward."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, ep=8.0)
    one_way = 2.0 * 2048 * 2 * 4096
    found = traffic(MIXTRAL, made, "ep")
    assert found["forward alltoall"] == found["backward alltoall"] == 2 * one_way
    assert found["forward allgather"] == 8 * 8 * 8  # counts of 8 experts, 8 bytes, from 8 ranks
    again = traffic(MIXTRAL, replace(made, recompute="full", recompute_share=0.5), "ep")
    assert again["recompute alltoall"] == one_way


def test_ranks_that_split_experts_gather_what_arrives(plan: Make) -> None:
    made = plan(tp=2.0, pp=1.0, dp=8.0, ep=4.0, etp=2.0, sequence_parallel=1.0)
    arrived = 2.0 * 2048 * 2 * 4096  # of both ranks' halves of the sequence
    assert traffic(MIXTRAL, made, "etp") == {
        "forward allgather": arrived,
        "forward reducescatter": arrived,
        "backward allgather": arrived,
        "backward reducescatter": arrived,
    }
    # What is dispatched are each rank's own tokens, half of the sequence.
    assert traffic(MIXTRAL, made, "ep")["forward alltoall"] == arrived


def test_dispatch_once_says_how_many_copies_share_the_way(plan: Make) -> None:
    made = plan(tp=1.0, dp=8.0, ep=8.0, dispatch="once")
    shared = {c.name: c.copies for c in step_collectives(MIXTRAL, made) if c.group == "ep"}
    assert shared["moe.dispatch"] == shared["moe.combine.bwd"] == MIXTRAL.top_k
    assert shared["moe.counts"] == 1


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_what_travels_once_is_put_in_order_where_it_came_to(plan: Make, ep: int) -> None:
    """A copy is written for each expert of a token, and read once on each rank that has any: of 8
    ranks, 2 choices reach 8 (1 - (7/8)^2). Every copy by itself is read from its token."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, ep=float(ep), dispatch="once")
    copies, each = 2048 * 2, 2.0 * 4096
    ranks = ep * (1 - (1 - 1 / ep) ** 2)
    for name in ("moe.permute", "moe.unpermute", "moe.permute.bwd", "moe.unpermute.bwd"):
        found = of_step(MIXTRAL, made)[name]
        assert float(found.bytes) == pytest.approx((copies + 2048 * ranks) * each)
    alone = of_step(MIXTRAL, replace(made, dispatch="copies"))["moe.permute"]
    assert float(alone.bytes) == pytest.approx((copies + 2048) * each)


def test_clamps_of_their_own_read_and_write_each_half_and_the_whole(plan: Make) -> None:
    """Each of two halves of 16 bits: read and written, then both; backward read, its gradient read
    and written, then both."""
    model = catalog.model("gpt-oss-20b")
    made = plan(tp=1.0, pp=1.0, dp=8.0, ep=8.0)
    found, apart = (
        {o.name: float(o.bytes) for o in step_operators(model, replace(made, clamps_apart=given))}
        for given in (False, True)
    )
    more = {name: apart[name] - found[name] for name in found if apart[name] != found[name]}
    elements = 2048 * 4 * 2880
    halves, whole = 2 * (2 + 2), 4 + 4
    masked = 2 * (2 + 2 + 2)
    assert more == pytest.approx(
        {
            "moe.activation": elements * (halves + whole),
            "moe.activation.bwd": elements * (masked + whole),
        }
    )
    plain = step_operators(MIXTRAL, replace(made, clamps_apart=True))
    assert [o.bytes for o in plain] == [o.bytes for o in step_operators(MIXTRAL, made)]


@pytest.mark.parametrize(("precision", "launches"), [("bf16", 1), ("mxfp8", 2)])
def test_rows_of_narrow_experts_are_cast_expert_by_expert(
    precision: str, launches: int, plan: Make
) -> None:
    """A cast and a product each, of which a dense layer's cast is part of its product; gradients of
    weights find both operands cast."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, ep=2.0, precision=precision)
    found = {o.name: o for o in step_operators(MIXTRAL, made)}
    for name in ("moe.up", "moe.down", "moe.up.dgrad", "moe.down.dgrad"):
        assert found[name].kernels == launches * 4 - (launches - 1)
    assert found["moe.up.wgrad"].kernels == 4
    assert found["attention.qkv"].kernels == 1


def test_a_loop_over_experts_launches_each_by_itself(plan: Make) -> None:
    """What is multiplied and moved stays; every expert of the rank is launched with what stands
    around its products, in both passes, and where a layer runs again once more."""
    made = plan(ep=2, dp=8)
    once, looped = (
        {o.name: o for o in step_operators(MIXTRAL, replace(made, experts_looped=yes))}
        for yes in (False, True)
    )
    more = {name: one.kernels - once[name].kernels for name, one in looped.items()}
    grown = {name: value for name, value in more.items() if np.any(value)}
    assert set(grown) == {"moe.permute", "moe.permute.bwd"}
    assert [float(value) for value in grown.values()] == [4 * LOOPED[0], 4 * LOOPED[1]]
    for name, one in looped.items():
        assert (float(one.flop), float(one.bytes)) == (
            float(once[name].flop), float(once[name].bytes),
        )  # fmt: skip
    again = step_operators(MIXTRAL, replace(made, experts_looped=True, recompute="full"))
    launched = sum(float(o.kernels) for o in again if o.name.startswith("moe.permute"))
    assert launched == 2 * (1 + 4 * LOOPED[0]) + 1 + 4 * LOOPED[1]


def test_overlap_hides_the_way_behind_the_experts(plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, dp=16.0, ep=16.0, global_batch=64.0)
    model = catalog.model("qwen3-30b-a3b")
    plain, hidden = (
        predict(model, H200, replace(made, ep_overlap=o), KERNELS).breakdown["ep_communication"]
        for o in (False, True)
    )
    assert 0 < hidden < plain


def test_experts_are_held_and_sharded_apart_from_the_rest(plan: Make) -> None:
    """Mixtral: 32 layers of 8 experts of 3 x 4096 x 14336; each rank of ep = 8 holds one of each
    layer. 64 ranks: its optimizer state is divided among 8, that of the rest among 64."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, ep=8.0, gradient_bytes=4.0)
    held = 32 * 3 * 4096 * 14336
    key = "expert weights and optimizer"
    found = memory(MIXTRAL, made, RunParameters()).classes[key][2]
    assert found == pytest.approx(held * (2 + 4 + 12 / 8))
    split = replace(made, tp=2.0, dp=32.0, etp=2.0)
    assert memory(MIXTRAL, split, RunParameters()).classes[key][2] == pytest.approx(
        held / 2 * (2 + 4 + 12 / 4)
    )


def test_parameters_on_all_ranks_are_those_of_the_model(plan: Make) -> None:
    """Weights alone, over the ranks that hold different ones."""
    made = plan(
        tp=1.0, pp=1.0, dp=8.0, ep=8.0, gradient_bytes=0.0, optimizer_bytes=0.0, vocab_multiple=1.0
    )
    found = memory(MIXTRAL, made, RunParameters()).classes
    experts = found["expert weights and optimizer"][2] * 8
    rest = sum(
        found[f"{part} weights and optimizer"][2] for part in ("layer", "embedding and head")
    )
    assert (experts + rest) / 2 == pytest.approx(MIXTRAL.parameters, rel=1e-9)


@pytest.mark.parametrize(("pp", "expected"), [(1, [0, 0, 3]), (4, [3, 0, 0])])
def test_dense_layers_come_first(plan: Make, pp: int, expected: list[int]) -> None:
    made = plan(tp=1.0, pp=float(pp), mtp=False)
    at = stages(DEEPSEEK, made)
    found = blocks(DEEPSEEK, made, at)
    assert list(found["dense"]) == expected
    assert (found["dense"] + found["moe"] == found["layer"]).all()


def test_dense_layers_beyond_the_first_stage_fall_on_the_next(plan: Make) -> None:
    model = replace(DEEPSEEK, layers=16, dense_layers=5)
    made = plan(tp=1.0, pp=8.0, mtp=False)
    found = blocks(model, made, stages(model, made))
    assert list(found["dense"]) == [2, 0.5, 0]
    assert (found["dense"] * [1, 6, 1]).sum() == 5


def test_every_second_layer_may_be_a_mixture(plan: Make) -> None:
    model = catalog.model("llama4-maverick-17b-128e")
    made = plan(tp=1.0, pp=4.0)
    found = blocks(model, made, stages(model, made))
    assert list(found["moe"]) == list(found["dense"]) == [6, 6, 6]


def test_an_extra_prediction_layer_has_a_head_of_its_own(plan: Make) -> None:
    """On the last stage: one more layer, head and projection (DeepSeek-V3, section 2.2)."""
    made = plan(tp=1.0, pp=4.0)
    with_, without = (
        blocks(DEEPSEEK, replace(made, mtp=m), stages(DEEPSEEK, made)) for m in (True, False)
    )
    for module in ("layer", "moe", "head", "mtp"):
        assert list(with_[module] - without[module]) == [0, 0, 1]
    project = of_step(DEEPSEEK, made)["mtp.project"]
    assert project.flop == 2 * 2048 * 7168 * (2 * 7168)


EP_PLANS = st.builds(
    lambda tp, pp, dp, ep, micro, sharding, recompute, dispatch: TrainingPlan(
        tp=float(tp),
        pp=float(pp),
        dp=float(dp),
        ep=float(min(ep, dp)),
        micro_batch=float(micro),
        global_batch=float(dp * micro * 4),
        seq_len=4096.0,
        sequence_parallel=float(tp > 1),
        sharding=sharding,
        recompute=recompute,
        dispatch=dispatch,
    ),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 4]),
    dp=st.sampled_from([8, 64]),
    ep=st.sampled_from([1, 8, 32]),
    micro=st.sampled_from([1, 2]),
    sharding=st.sampled_from(["none", "zero1", "fsdp"]),
    recompute=st.sampled_from(["none", "full", "per_op"]),
    dispatch=st.sampled_from(["copies", "once"]),
)


@given(EP_PLANS, st.sampled_from(["qwen3-30b-a3b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b"]))
@settings(deadline=None, max_examples=40)
def test_terms_add_up_and_more_bandwidth_never_slows(plan: TrainingPlan, name: str) -> None:
    model = catalog.model(name)
    found = predict(model, H200, plan, KERNELS)
    assert sum(float(found.breakdown[t]) for t in TERMS) == pytest.approx(float(found.step_time))
    tiers = tuple(replace(tier, bandwidth=2 * tier.bandwidth) for tier in H200.tiers)
    faster = predict(model, replace(H200, tiers=tiers), plan, KERNELS)
    assert faster.step_time <= found.step_time
    is_once = plan.dispatch == "once"
    other = predict(model, H200, replace(plan, dispatch="copies" if is_once else "once"), KERNELS)
    once, copies = (found, other) if is_once else (other, found)
    assert once.step_time <= copies.step_time * (1 + 1e-12)


@pytest.mark.parametrize("name", ["deepseek-v3", "nemotron-3-super-120b-a12b", "gpt-oss-120b"])
def test_a_batch_of_plans_equals_the_plans_one_by_one(name: str, plan: Make) -> None:
    model = catalog.model(name)
    common = {"pp": 1.0, "dp": 64.0, "global_batch": 256.0, "sequence_parallel": 1.0}
    single = [
        plan(**common, tp=tp, ep=ep, etp=etp, expert_load=load_)
        for tp, ep, etp, load_ in (
            (1.0, 8.0, 1.0, 1.0),
            (2.0, 32.0, 1.0, 1.2),
            (2.0, 8.0, 2.0, 1.0),
        )
    ]
    together = predict(model, NVL72, stack(single), KERNELS)
    for index, alone in enumerate(predict(model, NVL72, p, KERNELS) for p in single):
        for field in ("step_time", "layer_time", "p_oom"):
            assert getattr(together, field)[index] == pytest.approx(
                float(getattr(alone, field)), rel=1e-9
            )
        assert together.memory.peak[index] == pytest.approx(float(alone.memory.peak))


def test_experts_inside_the_nvlink_domain_are_reached_faster(plan: Make) -> None:
    """EP 64 lies inside an NVL72 rack of 4-GPU trays, but spans 8 nodes of 8 elsewhere."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, ep=64.0, global_batch=64.0)
    model = catalog.model("qwen3-235b-a22b")
    rack, nodes = (
        predict(model, c, made, KERNELS).breakdown["ep_communication"] for c in (NVL72, H200)
    )
    assert nodes > 5 * rack


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ep": 3.0}, "ep 3 does not divide the 8 experts of mixtral-8x7b"),
        ({"etp": 5.0}, "etp 5 does not divide the width 14336"),
        ({"ep": 8.0, "etp": 2.0, "dp": 8.0}, "ep 8 x etp 2 does not divide the ranks of a stage"),
    ],
)
def test_impossible_layouts_of_experts_are_refused(plan: Make, changes: dict, says: str) -> None:
    made = plan(**{"tp": 1.0, "pp": 1.0, "dp": 8.0, **changes})
    with pytest.raises(InputError, match=says):
        check(made, MIXTRAL)
    assert not feasible(made, MIXTRAL).any()


@pytest.mark.parametrize(
    ("name", "tp", "says"),
    [
        ("nemotron-3-nano-30b-a3b", 16.0, "tp 16 does not divide the state-space groups 8"),
        ("qwen2-57b-a14b", 28.0, "tp 28 does not divide the shared experts' width 20480"),
    ],
)
def test_what_tensor_parallelism_divides_is_checked(
    plan: Make, name: str, tp: float, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check(plan(tp=tp, pp=1.0), catalog.model(name))


def test_a_dense_model_has_no_experts_to_divide(plan: Make, llama: Model) -> None:
    with pytest.raises(InputError, match="ep 8 needs a mixture of experts; llama3-70b is dense"):
        check(plan(ep=8.0), llama)


def test_the_list_depends_on_categories_only(plan: Make) -> None:
    one = [o.name for o in step_operators(DEEPSEEK, plan(tp=1.0))]
    many = plan(ep=np.array([1.0, 8.0]), tp=np.array([1.0, 2.0]))
    assert [o.name for o in step_operators(DEEPSEEK, many)] == one


def test_a_rank_is_sent_every_copy_at_most(plan: Make) -> None:
    """Experts padded to a busy one compute more than a rank could ever be sent."""
    sent = {
        load: next(
            one.bytes
            for one in step_collectives(MIXTRAL, plan(tp=1.0, ep=2.0, expert_load=load))
            if one.name == "moe.dispatch"
        )
        for load in (1.0, 1.5, 2.0, 4.0)
    }
    assert [float(sent[load] / sent[1.0]) for load in sent] == [1.0, 1.5, 2.0, 2.0]


def test_experts_dealt_in_turn_lie_on_few_ranks(plan: Make) -> None:
    """DeepSeek-V3 over 64 ranks, four experts each: eight neighbours lie on two ranks of one node,
    where random ones lie on 7.6 ranks of 5.25 nodes."""
    model = catalog.model("deepseek-v3")
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "ep": 64.0}

    def spent(**how: str) -> float:
        found = predict(model, H200, plan(**common, **how), KERNELS)
        return float(found.breakdown["ep_communication"])

    assert distinct_share(64.0, 8.0, turn=256.0) * 8 == pytest.approx(2.0)
    assert distinct_share(8.0, 8.0, turn=256.0) * 8 == pytest.approx(1.0)
    assert distinct_share(8.0, 22.0, turn=512.0) * 22 == pytest.approx((22 + 64 - 2) / 64)
    random, dealt = (spent(dispatch="once", routing=kind) for kind in ROUTINGS)
    assert dealt < 0.4 * random
    # Copies that travel by themselves are as many wherever they go.
    assert spent(dispatch="copies", routing="in_turn") == spent(dispatch="copies")


def test_routing_limited_to_nodes_saves_traffic_between_them(plan: Make) -> None:
    """DeepSeek-V3 over eight nodes: each token visits at most four, 3.6 instead of 5.25."""
    model = catalog.model("deepseek-v3")
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "ep": 64.0, "dispatch": "once"}
    spent = {
        nodes: float(
            predict(model, H200, plan(**common, routed_nodes=nodes), KERNELS).breakdown[
                "ep_communication"
            ]
        )
        for nodes in (np.nan, 4.0, 8.0)
    }
    assert spent[4.0] < 0.85 * spent[8.0]
    assert spent[8.0] == spent[np.nan]
    together = predict(model, H200, plan(**common, routed_nodes=np.array([np.nan, 4.0])), KERNELS)
    assert together.breakdown["ep_communication"] == pytest.approx([spent[np.nan], spent[4.0]])
