"""What plans leave unstated, where nothing may be lost, and schedules work by work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InputError
from predictor.plans.again import request_of
from predictor.plans.critical import critical_path
from predictor.plans.events import timeline
from predictor.plans.pipeline import stages
from predictor.plans.placement import blocks
from predictor.plans.rules import check
from predictor.plans.schedules import (
    SCHEDULES,
    Passes,
    _around,
    _places,
    _slowest_behind,
    pipeline_time,
)
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.precision import PRECISIONS
from predictor.work.communication import groups
from tests.predictor.dense import dense

Make = Callable[..., TrainingPlan]
SMALL = dense()

sizes = st.sampled_from([1.0, 2.0, 4.0])


@given(sizes, sizes, sizes, sizes, sizes, st.integers(1, 5))
def test_every_token_of_a_batch_is_worked_on_once(
    tp: float, pp: float, dp: float, cp: float, micro: float, times: int
) -> None:
    """By every rank that splits it: micro-batches x tokens of each, over replicas and parts."""
    batch, length = dp * micro * times, 4096.0
    plan = TrainingPlan(tp, pp, dp, micro, batch, length, cp=cp)
    assert plan.micro_batches == times
    assert plan.tokens * plan.micro_batches * plan.dp * plan.cp == batch * length
    assert plan.gpus == tp * pp * dp * cp == plan.stage_ranks * pp
    assert plan.gradient_group * tp * pp == plan.gpus
    assert plan.expert_gradient_group * pp == plan.gpus


@given(sizes, sizes, sizes, st.sampled_from([1.0, 2.0]), st.sampled_from(["zero1", "hsdp"]))
def test_replicas_of_experts_are_the_ranks_of_a_stage_over_those_that_differ(
    tp: float, dp: float, ep: float, etp: float, sharding: str
) -> None:
    plan = TrainingPlan(tp, 2.0, 8 * dp, 1.0, 64.0, 4096.0, ep=ep, etp=etp, sharding=sharding)
    assert plan.expert_gradient_group * ep * etp == tp * 8 * dp
    assert plan.expert_shard_group == plan.expert_gradient_group
    both = replace(plan, pp=4.0, schedule="dualpipe")
    assert both.gradient_group == 2 * plan.gradient_group
    assert both.expert_gradient_group == 2 * plan.expert_gradient_group


@pytest.mark.parametrize("pp", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("dp", [1.0, 2.0])
def test_without_expert_parallelism_experts_are_shared_as_the_rest_is(pp: float, dp: float) -> None:
    """Mirrored devices of a pipeline from both ends too: with one rank per part of a stage, both
    groups are the same ranks."""
    for schedule in ("1f1b", "dualpipe"):
        found = groups(TrainingPlan(1.0, pp, dp, 1.0, 64.0, 4096.0, schedule=schedule))
        dense, experts = found["dp"], found["edp"]
        assert float(dense.size) == float(experts.size)
        if float(dense.size) > 1:
            assert float(dense.stride) == float(experts.stride)


def test_what_a_training_plan_leaves_open() -> None:
    """Nothing is divided; 16-bit weights, fp32 gradients, Adam of Rajbhandari et al. 2020; logits
    twice in fp32, a vocabulary padded to multiples of 128 on each rank (Megatron-LM)."""
    plan = TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, 4096.0)
    for name in ("cp", "vpp", "ep", "etp", "expert_load", "recompute_share", "recompute_chunk"):
        assert getattr(plan, name) == 1, name
    for name in ("sequence_parallel", "offload_activations", "offload_optimizer"):
        assert getattr(plan, name) == 0, name
    for name in ("dp_shard", "first_layers", "last_layers", "loader_rate", "routed_nodes"):
        assert np.isnan(getattr(plan, name)), name
    recipe = PRECISIONS[plan.precision]
    assert plan.weight_bytes == recipe.weight == plan.gather_bytes == 2
    assert plan.gradient_bytes == plan.reduce_bytes == 4
    assert plan.optimizer_bytes == recipe.optimizer == 12
    assert plan.logit_bytes == 2 * 4
    assert plan.vocab_share(32000) == 32000
    assert plan.vocab_share(32001) == 32000 + 128
    assert replace(plan, tp=8.0).vocab_share(32001) == 4096
    assert plan.shape == ()


def test_what_a_serving_plan_leaves_open() -> None:
    """One device, no cache, no guesses, no workers apart; a static batch."""
    plan = ServingPlan(batch=6.0, input_len=1000.0, output_len=200.0)
    for name in ("tp", "pp", "dp", "ep", "expert_load", "prefill_tp"):
        assert getattr(plan, name) == 1, name
    for name in ("cached", "serving", "drafted", "draft_cost", "prefill_workers", "host_memory"):
        assert getattr(plan, name) == 0, name
    for name in ("window", "kv_rate", "host_bandwidth", "host_link"):
        assert np.isinf(getattr(plan, name)), name
    assert 0 < plan.synchrony < 1
    assert 0 < plan.acceptance < 1
    assert (plan.gpus, plan.etp, plan.sequences, plan.micro_batches) == (1, 1, 6, 1)
    assert (plan.new_tokens, plan.tokens_per_pass) == (1000, pytest.approx(1))


def test_how_a_serving_plan_divides() -> None:
    plan = ServingPlan(
        batch=6.0, input_len=1000.0, output_len=200.0, tp=4.0, pp=3.0, dp=2.0, ep=4.0,
        cached=0.75, prefill_workers=3.0, prefill_tp=2.0, drafted=2.0, acceptance=0.5,
    )  # fmt: skip
    assert plan.gpus == 4 * 3 * 2 + 3 * 2
    assert plan.etp == 2
    assert (plan.sequences, plan.working, plan.micro_batches) == (3, 3, 3)
    assert replace(plan, pipelining="turns").micro_batches == 1
    assert replace(plan, batch=2.0).micro_batches == 1
    assert plan.new_tokens == 250
    assert replace(plan, cached=1.0).new_tokens == 1
    # The first, then a half and a quarter that are right (Leviathan et al. 2023, eq. 1).
    assert float(plan.tokens_per_pass) == pytest.approx(1 + 1 / 2 + 1 / 4)
    assert float(replace(plan, acceptance=1.0).tokens_per_pass) == pytest.approx(3)
    assert float(replace(plan, acceptance=0.0).tokens_per_pass) == 1


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("p", [2, 4, 5, 8])
def test_orders_have_every_work_of_a_device_once(name: str, p: int) -> None:
    """Forward, backward and, where they are apart, gradients of weights, of every micro-batch and
    chunk: each of a pipeline from both ends takes half of the micro-batches from either."""
    entry = SCHEDULES[name]
    p += p % 2 if entry.fold == "both" else 0
    directions = ("forward", "backward", "weights") if entry.splits else ("forward", "backward")
    chunks = {"line": 1, "v": 2, "both": 2}[entry.fold]
    for m, stage in product((2 * p, 2 * p + 2, 5 * p), range(p)):
        if entry.fold == "both":
            batches = [(batch, int(batch >= m // 2)) for batch in range(m)]
        else:
            batches = list(product(range(m), range(chunks)))
        expected = {(direction, *one) for direction in directions for one in batches}
        found = Counter(work for block in entry.order(stage, p, chunks, m) for work in block)
        assert set(found) == expected
        assert set(found.values()) == {1}


@pytest.mark.parametrize("name", [name for name, one in SCHEDULES.items() if one.fold == "line"])
def test_few_micro_batches_pass_every_stage_once(name: str) -> None:
    """Fewer than stages, too."""
    entry, p = SCHEDULES[name], 4
    directions = ("forward", "backward", "weights") if entry.splits else ("forward", "backward")
    for m, stage in product((1, 2), range(p)):
        found = [work for block in entry.order(stage, p, 1, m) for work in block]
        assert sorted(found) == sorted(product(directions, range(m), [0]))


@pytest.mark.parametrize("vpp", [2, 3])
@pytest.mark.parametrize("p", [2, 4])
def test_interleaved_orders_have_every_chunk_once(p: int, vpp: int) -> None:
    for m, stage in product((p, 2 * p, 3 * p), range(p)):
        order = SCHEDULES["1f1b"].order(stage, p, vpp, m)
        found = Counter(work for block in order for work in block)
        assert set(found) == set(product(("forward", "backward"), range(m), range(vpp)))
        assert set(found.values()) == {1}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_no_work_comes_before_what_it_needs(name: str) -> None:
    """A stage's backward pass follows its forward pass, its weights' gradients follow that."""
    entry, p = SCHEDULES[name], 4
    chunks = {"line": 1, "v": 2, "both": 2}[entry.fold]
    for stage in range(p):
        works = [work for block in entry.order(stage, p, chunks, 2 * p + 2) for work in block]
        at = {work: position for position, work in enumerate(works)}
        for direction, batch, chunk in works:
            before = {"backward": "forward", "weights": "backward"}.get(direction)
            if before:
                assert at[(before, batch, chunk)] < at[(direction, batch, chunk)]


def three(first: float, inner: float, last: float, p: int, weights: float = 0.9) -> Passes:
    kinds = np.array([first, inner, last])
    return Passes(kinds, 1.1 * kinds, weights * kinds, np.array([1.0, p - 2.0, 1.0]))


stretch = st.floats(0.3, 2.0)


@given(stretch, stretch, stretch, st.integers(2, 8), st.integers(1, 12))
def test_one_forward_one_backward_is_its_last_event(
    first: float, inner: float, last: float, p: int, m: int
) -> None:
    """To the last digit, whichever stages are the slowest, however few micro-batches there are."""
    of = three(first, inner, last, p)
    closed = float(pipeline_time("1f1b", of, float(m)))
    played = timeline("1f1b", *of.of_every_stage(), m)[-1].end
    assert closed == pytest.approx(played, rel=1e-9)


links = st.floats(0.0, 4.0)


@settings(max_examples=60)
@given(stretch, stretch, stretch, st.integers(2, 8), st.integers(1, 16), links, links)
def test_links_are_resources_of_their_own(
    first: float, inner: float, last: float, p: int, m: int, transfer: float, latency: float
) -> None:
    """GPipe to the last digit; 1F1B never longer than played, and at most 7 % shorter; slower links
    never make a run faster, and it never takes longer than if every pass waited for its own."""
    of = three(first, inner, last, p)
    linked = replace(of, transfer=transfer, latency=latency)
    for name, near in (("gpipe", 1e-9), ("1f1b", 0.07)):
        closed = float(pipeline_time(name, linked, float(m)))
        played = timeline(name, *of.of_every_stage(), m, 1, transfer, latency)[-1].end
        assert played * (1 - near) <= closed <= played * (1 + 1e-9)
        assert closed >= float(pipeline_time(name, of, float(m))) * (1 - 1e-12)
        slower = replace(linked, transfer=1.1 * transfer)
        assert float(pipeline_time(name, slower, float(m))) >= closed * (1 - 1e-12)
        hop = transfer + latency
        series = replace(of, forward=of.forward + hop, backward=of.backward + hop)
        assert closed <= float(pipeline_time(name, series, float(m))) * (1 + 1e-9)


def test_micro_batches_that_share_a_way_follow_one_another_over_its_link() -> None:
    """Two stages of .3, .33 and .27 a pass, two micro-batches under way, links of 3, a latency of
    .25: a way there and back takes two of the .9 s and two hops, the four make it in two turns, and
    the fourth is one transfer behind the third."""
    of = replace(three(0.3, 0.0, 0.3, 2), transfer=3.0, latency=0.25)
    way = 2 * (0.3 + 0.33 + 0.27) + 2 * 3.25
    assert float(pipeline_time("1f1b", of, 4.0)) == pytest.approx(2 * way + 3.0)
    assert float(pipeline_time("1f1b", of, 3.0)) == pytest.approx(2 * way)


def test_latency_is_paid_in_fill_and_drain_by_gpipe_and_by_every_round_of_1f1b() -> None:
    """Four stages f b = 1 2, eight micro-batches, a latency of 10: GPipe pays 3 hops each way. 1F1B
    has four micro-batches under way; the ninth way begins after two whole ones: of (8 - 1) / 4 + 1
    ways there and back of 12 + 60, three quarters of the last are as far as a hop less."""
    of = three(1.0, 1.0, 1.0, 4, 0.9)
    far = replace(of, latency=10.0)
    alone = float(pipeline_time("gpipe", of, 8.0))
    assert float(pipeline_time("gpipe", far, 8.0)) == pytest.approx(alone + 2 * 3 * 10.0)
    one = float(pipeline_time("1f1b", far, 1.0))
    assert one == pytest.approx(4 * 3.0 + 6 * 10.0)
    assert float(pipeline_time("1f1b", far, 5.0)) == pytest.approx(2 * one)
    assert float(pipeline_time("1f1b", far, 9.0)) == pytest.approx(3 * one)


def test_a_link_that_carries_more_than_stages_make_sets_the_pace() -> None:
    """Two stages f b = 1 2, links of 5: each phase of GPipe takes 5 a micro-batch."""
    of = replace(three(1.0, 0.0, 1.0, 2, 0.9), transfer=5.0)
    assert float(pipeline_time("gpipe", of, 8.0)) == pytest.approx(2 + 4 + 2 * 5 + 2 * 7 * 5.0)


@given(stretch, stretch, stretch, st.integers(2, 8))
def test_what_lies_around_a_stage(first: float, inner: float, last: float, p: int) -> None:
    """Sums before and behind, and the slowest behind, against the stages one by one."""
    of = three(first, inner, last, p)
    every = [first, *[inner] * (p - 2), last]
    for kind, ahead, position in _places(of.count):
        at = int(position)
        if not of.present[kind]:
            continue
        before, behind = _around(kind, ahead, of.forward, of.count)
        assert float(before) == pytest.approx(sum(every[:at]))
        assert float(behind) == pytest.approx(sum(every[at + 1 :]))
        slowest = float(_slowest_behind(kind, ahead, of.forward, of.count))
        assert slowest == max(every[at + 1 :], default=0.0)


@given(stretch, stretch, stretch, st.integers(2, 8), st.integers(1, 12))
def test_all_forward_all_backward_is_its_last_event(
    first: float, inner: float, last: float, p: int, m: int
) -> None:
    of = three(first, inner, last, p)
    played = timeline("gpipe", *of.of_every_stage(), m)[-1].end
    assert float(pipeline_time("gpipe", of, float(m))) == pytest.approx(played, rel=1e-9)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@settings(max_examples=20)
@given(stretch, stretch, st.floats(1e-3, 1e3))
def test_pipelines_know_no_clock(name: str, ends: float, inner: float, factor: float) -> None:
    """Passes so many times as long take so many times as long together; what a plan lacks takes
    nothing, whatever is said of it; and no device does less than its own work."""
    vpp = 2.0 if SCHEDULES[name].fold == "v" else 1.0
    for p in (2, 4):
        of = three(ends, inner, ends, p)
        slow = replace(
            of, **{f: getattr(of, f) * factor for f in ("forward", "backward", "weights")}
        )
        one, more = (float(pipeline_time(name, each, 16.0, vpp)) for each in (of, slow))
        assert more == pytest.approx(factor * one, rel=1e-9)
        busiest = 3.0 * max(ends, inner if p > 2 else 0.0)
        assert one >= 16 * busiest * (1 - 1e-12)
    alone = Passes(*(np.array([v, 7.0, v]) for v in (1.0, 1.1, 0.9)), np.array([1.0, 0.0, 1.0]))
    told = Passes(*(np.array([v, 0.0, v]) for v in (1.0, 1.1, 0.9)), np.array([1.0, 0.0, 1.0]))
    assert pipeline_time(name, alone, 16.0, vpp) == pipeline_time(name, told, 16.0, vpp)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_one_stage_waits_for_nothing(name: str) -> None:
    of = Passes(*(np.array([0.0, 0.0, v]) for v in (1.0, 1.1, 0.9)), np.array([0.0, 0.0, 1.0]))
    assert float(pipeline_time(name, of, 5.0)) == pytest.approx(5 * 3.0)
    assert timeline(name, [1.0], [1.1], [0.9], 5)[-1].end == pytest.approx(5 * 3.0)


def test_each_device_has_one_stage_unless_stated() -> None:
    own = timeline("1f1b", [1.0] * 3, [2.0] * 3, [0.0] * 3, 6)
    assert own == timeline("1f1b", [1.0] * 3, [2.0] * 3, [0.0] * 3, 6, 1)
    of = three(1.0, 1.0, 1.0, 3)
    assert pipeline_time("1f1b", of, 6.0) == pipeline_time("1f1b", of, 6.0, 1.0)
    for entry in SCHEDULES.values():
        assert entry.least == (0.0 if entry.fold == "line" else 2.0)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe", "dualpipev"])
def test_equal_arithmetic_needs_ends_apart_from_two_stages_on(schedule: str) -> None:
    plan = TrainingPlan(1.0, 2.0, 1.0, 1.0, 16.0, 1024.0, split="cost", schedule=schedule,
                        vpp=1.0 if schedule == "dualpipe" else 2.0)  # fmt: skip
    with pytest.raises(InputError, match=f"split cost cannot be with schedule {schedule}"):
        check(plan, SMALL)
    check(replace(plan, split="slots"), SMALL)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("pp", [2.0, 3.0, 4.0, 6.0])
def test_stages_have_every_block_of_the_model(schedule: str, pp: float) -> None:
    """Layers, dense and mixed ones, embedding and head, summed over the stages: each once."""
    model = replace(
        SMALL, num_experts=8, top_k=2, expert_ffn_hidden=256, dense_layers=3, mtp_layers=1
    )
    if schedule == "dualpipe" and pp % 2:
        return
    plan = TrainingPlan(1.0, pp, 1.0, 1.0, 96.0, 1024.0, schedule=schedule,
                        vpp=2.0 if SCHEDULES[schedule].fold == "v" else 1.0)  # fmt: skip
    at = stages(model, plan)
    held = {
        name: float((value * at.count).sum()) for name, value in blocks(model, plan, at).items()
    }
    assert float((at.layers * at.count).sum()) == 12
    assert held["layer"] == 12 + 1
    assert held["dense"] == pytest.approx(3)
    assert held["moe"] == pytest.approx(9 + 1)
    assert (held["embedding"], held["head"], held["mtp"]) == (1, 1 + 1, 1)
    plain = blocks(model, replace(plan, mtp=False), at)
    assert float((plain["layer"] * at.count).sum()) == 12


def test_every_other_layer_may_be_a_mixture() -> None:
    model = replace(SMALL, num_experts=8, top_k=2, expert_ffn_hidden=256, moe_every_n=2)
    plan = TrainingPlan(1.0, 3.0, 1.0, 1.0, 12.0, 1024.0)
    at = stages(model, plan)
    held = blocks(model, plan, at)
    assert held["moe"].tolist() == held["dense"].tolist() == [2, 2, 2]


def test_leading_dense_layers_fall_on_the_first_stages() -> None:
    """Five of twelve, on stages of three: three on the first; the inner two share two."""
    model = replace(SMALL, num_experts=8, top_k=2, expert_ffn_hidden=256, dense_layers=5)
    plan = TrainingPlan(1.0, 4.0, 1.0, 1.0, 12.0, 1024.0)
    held = blocks(model, plan, stages(model, plan))
    assert held["dense"].tolist() == [3, 1, 0]
    assert held["moe"].tolist() == [0, 2, 3]


def test_a_slow_stage_in_the_middle_by_hand() -> None:
    """Passes of 1, 3 and 1 s both ways, two micro-batches: the middle stage works from 1 to 13 s
    without a pause, and a second before and after it are the first stage's."""
    each = np.array([1.0, 3.0, 1.0])
    assert float(critical_path(each, each, np.ones(3), 2.0)) == 14.0


@pytest.mark.parametrize("m", [1.0, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("ends", [(1.0, 0.0, 1.0)])
def test_where_links_alone_take_time_every_message_waits_for_the_one_before(
    m: float, ends: tuple[float, float, float]
) -> None:
    """Two stages that take nothing: each micro-batch crosses and comes back, two on their way at a
    time, so that one ends each transfer: m + 1 transfers, and both latencies once."""
    nothing = np.zeros(3)
    took = critical_path(nothing, nothing, np.array(ends), m, 2.0, 0.0)
    assert float(took) == 2.0 * (m + 1.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"reduce_last": True}, True),
        ({"reduce_last": True, "global_batch": 2.0}, False),  # one micro-batch: nothing to add up
        ({"reduce_last": True, "sharding": "zero1"}, False),  # weights are not sharded
        ({"reshard": False}, False),
        ({"pp": 2.0, "reshard": False}, True),
        ({"pp": 2.0, "reduce_last": True}, False),  # what is let go of is reduced at once
    ],
)
def test_gradients_of_sharded_weights_add_up_where_something_is_kept(
    fields: dict[str, object], expected: bool
) -> None:
    """Alone by `reduce_last`; in a pipeline where weights stay gathered."""
    given = {"tp": 1.0, "pp": 1.0, "dp": 2.0, "micro_batch": 1.0, "global_batch": 8.0,
             "seq_len": 128.0, "sharding": "fsdp", "reshard": True,
             "reduce_last": False}  # fmt: skip
    plan = TrainingPlan(**{**given, **fields})  # type: ignore[arg-type]
    assert bool(plan.accumulates) is expected


@pytest.mark.parametrize("chunk", [1.0, 2.0, 3.0])
def test_whole_layers_recomputed_in_chunks_are_asked_for_by_their_size(chunk: float) -> None:
    """A share of layers or chunks of several: a request has one or the other."""
    plan = TrainingPlan(1.0, 1.0, 1.0, 1.0, 8.0, 128.0, recompute="full", recompute_chunk=chunk)
    found = request_of(plan)
    if chunk > 1.0:
        assert (found["recompute_method"], found["recompute_layers"]) == ("uniform", chunk)
        assert "recompute_share" not in found
    else:
        assert found["recompute_share"] == 1
        assert "recompute_method" not in found
    assert "recompute_modules" not in found
    plain = request_of(replace(plan, recompute="selective"))
    assert "recompute_modules" in plain
    assert not {"recompute_share", "recompute_method"} & set(plain)


@pytest.mark.parametrize(
    ("fields", "often"),
    [
        ({"sharding": "none"}, 1.0),
        ({"sharding": "zero1"}, 1.0),
        ({"sharding": "zero1", "pp": 2.0}, 1.0),
        ({"sharding": "zero2"}, 8.0),
        ({"sharding": "zero3"}, 8.0),
        ({"sharding": "zero3", "pp": 2.0}, 8.0),
        ({"sharding": "zero3", "reshard": False}, 8.0),
        ({"sharding": "zero3", "pp": 2.0, "reshard": False}, 1.0),
    ],
)
def test_replicas_exchange_once_or_with_every_micro_batch(
    fields: dict[str, object], often: float
) -> None:
    """Eight micro-batches of two replicas."""
    made = replace(TrainingPlan(1.0, 1.0, 2.0, 1.0, 16.0, 4096.0), **fields)  # type: ignore[arg-type]
    assert float(made.micro_batches) == 8.0
    assert float(made.exchanges) == often
