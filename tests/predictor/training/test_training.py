from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.hardware.systems import Cluster
from predictor.models.model import Model
from predictor.plans.rules import check, feasible
from predictor.plans.training import NUMERIC_FIELDS, SHARDINGS, TrainingPlan
from predictor.timing.calibration import Calibration
from predictor.training.prediction import TERMS, TrainingPrediction, predict

Make = Callable[..., TrainingPlan]
KERNELS = load("kernels-only")
LLAMA = catalog.model("llama3-8b")
DGX = catalog.system("dgx-h100")


def run(plan: TrainingPlan, model: Model = LLAMA, cluster: Cluster = DGX) -> TrainingPrediction:
    return predict(model, cluster, plan, KERNELS)


plans = st.builds(
    lambda tp, pp, dp, cp, vpp, micro, groups, s, sp, recompute, sharding, attention: TrainingPlan(
        tp=float(tp),
        pp=float(pp),
        dp=float(dp),
        cp=float(cp),
        vpp=float(vpp if pp > 1 else 1),
        micro_batch=float(micro),
        global_batch=float(dp * micro * groups),
        seq_len=float(s),
        sequence_parallel=float(sp and tp > 1),
        recompute=recompute,
        sharding=sharding,
        attention=attention,
    ),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 16]),
    cp=st.sampled_from([1, 2]),
    vpp=st.sampled_from([1, 2]),
    micro=st.sampled_from([1, 2]),
    groups=st.sampled_from([4, 8]),
    s=st.sampled_from([2048, 4096]),
    sp=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    sharding=st.sampled_from(sorted(SHARDINGS)),
    attention=st.sampled_from(["flash", "unfused"]),
)


@given(plans)
@settings(deadline=None)
def test_terms_add_up_to_the_step(plan: TrainingPlan) -> None:
    found = run(plan)
    assert set(found.breakdown) == set(TERMS)
    assert sum(float(v) for v in found.breakdown.values()) == pytest.approx(float(found.step_time))
    assert all(float(v) >= -1e-12 for v in found.breakdown.values())
    assert found.low < found.step_time < found.high


@given(plans)
@settings(deadline=None, max_examples=30)
def test_a_faster_machine_is_never_slower(plan: TrainingPlan) -> None:
    tiers = tuple(replace(tier, bandwidth=2 * tier.bandwidth) for tier in DGX.tiers)
    assert run(plan, cluster=replace(DGX, tiers=tiers)).step_time <= run(plan).step_time


@given(plans)
@settings(deadline=None, max_examples=30)
def test_more_work_takes_longer(plan: TrainingPlan) -> None:
    longer = replace(plan, global_batch=2 * plan.global_batch)
    assert run(longer).step_time > run(plan).step_time


def test_doubling_the_layers_doubles_their_time(plan: Make) -> None:
    one, two = LLAMA, replace(LLAMA, layers=2 * LLAMA.layers)
    made = plan(tp=8.0, pp=1.0, global_batch=4.0)
    assert run(made, two).layer_time == pytest.approx(float(run(made, one).layer_time))
    for term in ("forward", "backward"):
        ends = run(made, replace(LLAMA, layers=0)).breakdown[term]
        first, second = (run(made, m).breakdown[term] - ends for m in (one, two))
        assert second == pytest.approx(2 * first)


def test_recomputation_costs_a_forward_pass_at_most(plan: Make) -> None:
    none, selective, full = (
        run(plan(tp=8.0, pp=1.0, recompute=r)) for r in ("none", "selective", "full")
    )
    assert none.step_time < selective.step_time < full.step_time
    extra = float(full.breakdown["recompute"])
    assert extra <= float(full.breakdown["forward"]) * (1 + 1e-9)


def test_sequence_parallelism_helps_memory_bound_kernels(plan: Make) -> None:
    gpt, dgx = catalog.model("gpt3-175b"), catalog.system("dgx-a100")
    plain, split = (
        run(plan(sequence_parallel=sp, attention="unfused"), gpt, dgx) for sp in (0.0, 1.0)
    )
    assert split.layer_time < plain.layer_time


def test_an_interval_is_wider_where_less_is_known(plan: Make) -> None:
    known = run(plan(tp=8.0, pp=1.0), cluster=DGX)
    unknown = run(plan(tp=8.0, pp=1.0), cluster=catalog.system("MI300X-8x"))
    assert unknown.sigma > known.sigma


def test_precision_that_the_machine_lacks_is_refused(plan: Make) -> None:
    with pytest.raises(InputError, match="no fp8 rate"):
        run(plan(precision="fp8"), cluster=catalog.system("dgx-a100"))


def space(count: int) -> TrainingPlan:
    """`count` different plans of 64 to 4096 GPUs as one batch."""
    rng = np.random.default_rng(0)

    def pick(*values: float) -> np.ndarray:
        return rng.choice(np.array(values), count)

    tp, pp, dp, micro = pick(1, 2, 4, 8), pick(1, 2, 4, 8), pick(1, 2, 4, 8, 16), pick(1, 2, 4)
    return TrainingPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=np.where(pp > 1, pick(1, 2, 4), 1.0),
        micro_batch=micro,
        global_batch=dp * micro * pp * pick(1, 2, 8),
        seq_len=pick(1024, 2048, 4096, 8192),
        sequence_parallel=np.where(tp > 1, pick(0, 1), 0.0),
        recompute="selective",
    )


def one(plan: TrainingPlan, index: int) -> TrainingPlan:
    numbers = {
        name: float(np.broadcast_to(getattr(plan, name), plan.shape)[index])
        for name in NUMERIC_FIELDS
    }
    return replace(plan, **numbers)


def test_twenty_thousand_plans_equal_the_single_runs() -> None:
    plan = space(20_000)
    together = run(plan)
    assert together.step_time.shape == (20_000,)
    for index in np.random.default_rng(1).choice(20_000, 60, replace=False):
        alone = run(one(plan, int(index)))
        for name in ("step_time", "low", "high", "layer_time", "p_oom"):
            assert getattr(together, name)[index] == pytest.approx(
                float(getattr(alone, name)), rel=1e-9, abs=1e-12
            )
        assert together.memory.peak[index] == pytest.approx(float(alone.memory.peak), rel=1e-9)
        for term in TERMS:
            assert together.breakdown[term][index] == pytest.approx(
                float(alone.breakdown[term]), rel=1e-9, abs=1e-12
            )
        assert together.utilisation("palm")[index] == pytest.approx(
            float(alone.utilisation("palm")), rel=1e-9
        )


def test_feasible_masks_what_check_refuses() -> None:
    plan = space(200)
    plan = replace(plan, tp=np.where(np.arange(200) % 3 == 0, 3.0, plan.tp))
    mask = feasible(plan, LLAMA)
    assert not mask[::3].any()
    for index in range(0, 200, 17):
        if mask[index]:
            check(one(plan, index), LLAMA)
        else:
            with pytest.raises(InputError):
                check(one(plan, index), LLAMA)


def test_uncalibrated_predictions_exist(plan: Make) -> None:
    found = predict(LLAMA, DGX, plan(tp=8.0, pp=1.0), Calibration("none"))
    assert set(found.timing.pedigree) == {"roofline"}
    assert 0.2 < float(found.utilisation("megatron")) < 0.8


def test_the_last_gradients_are_never_hidden(plan: Make) -> None:
    """Overlap hides what runs beside the backward pass; the last bucket has nothing left to hide
    behind."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, global_batch=64.0, seq_len=65536.0)
    hidden, open_ = run(made), run(replace(made, grad_overlap=False, param_overlap=False))
    assert 0 < hidden.breakdown["dp_communication"] < 0.2 * open_.breakdown["dp_communication"]


def test_where_ranks_lie_decides_what_crosses_nodes(plan: Make) -> None:
    """TP 2 x PP 4 fill a node of eight: pipelines inside it, or gradients."""
    made = plan(tp=2.0, pp=4.0, dp=8.0, global_batch=64.0, grad_overlap=False)
    apart, together = (
        run(replace(made, rank_order=order)).breakdown for order in ("tp-cp-dp-pp", "tp-cp-pp-dp")
    )
    assert together["pp_communication"] < apart["pp_communication"]
    assert together["dp_communication"] > apart["dp_communication"]


def test_a_tiny_model_waits_for_the_host(plan: Make) -> None:
    tiny = replace(LLAMA, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn_hidden=512, vocab=512)
    made = plan(tp=1.0, pp=1.0, global_batch=4.0, seq_len=128.0)
    small, large = run(made, tiny), run(plan(tp=1.0, pp=1.0, global_batch=4.0))
    assert small.breakdown["host"] > 0
    assert large.breakdown["host"] == 0
    launched = float(small.executions.sum())
    busy = sum(float(v) for k, v in small.breakdown.items() if k not in ("optimizer", "bubble"))
    assert busy == pytest.approx(launched * KERNELS.run.host_per_kernel, rel=1e-6)


def test_the_framework_factor_stretches_the_step(plan: Make) -> None:
    slower = replace(KERNELS, run=replace(KERNELS.run, factors={"megatron-lm": 1.25}))
    made = plan(tp=8.0, pp=1.0, framework="megatron-lm")
    neutral, factored = run(made), predict(LLAMA, DGX, made, slower)
    own = [float(one.breakdown["framework"]) for one in (neutral, factored)]
    assert own[0] == 0.0
    assert factored.step_time == pytest.approx(float(neutral.step_time) + own[1])
    assert 0.2 < own[1] / float(neutral.step_time) < 0.25  # attention and optimizer stay
    one = sum(float(part[0]) for part in factored.passes.of_every_stage())
    told = 1.25 * (float(made.micro_batches) * one + float(factored.breakdown["dp_communication"]))
    assert told + float(factored.breakdown["optimizer"]) == pytest.approx(float(factored.step_time))


def test_training_runs_at_sustained_clocks(plan: Make) -> None:
    cool = replace(KERNELS, throttles={})
    made = plan(tp=8.0, pp=1.0)
    assert run(made).step_time > 1.02 * predict(LLAMA, DGX, made, cool).step_time


def test_uncertain_links_widen_the_interval_where_they_are_used(plan: Make) -> None:
    vague = replace(
        KERNELS, links={key: replace(link, sigma=1.0) for key, link in KERNELS.links.items()}
    )
    alone = plan(tp=1.0, pp=1.0, dp=1.0, global_batch=4.0)
    assert predict(LLAMA, DGX, alone, vague).sigma == run(alone).sigma
    spread = replace(alone, dp=64.0, global_batch=64.0, grad_overlap=False)
    share = run(spread).breakdown["dp_communication"] / run(spread).step_time
    assert share > 0.1
    assert predict(LLAMA, DGX, spread, vague).sigma >= float(share)


def test_what_a_plan_does_not_do_adds_no_uncertainty(plan: Make) -> None:
    """Stage kinds that a plan lacks (inner stages of pp 2) are zeros in the arrays, not doubt."""
    two = run(plan(tp=8.0, pp=2.0))
    assert two.memory.present.tolist() == [True, False, True]
    assert np.isfinite(two.sigma)
    vague = replace(
        KERNELS,
        links={k: v if k[0] == "p2p" else replace(v, sigma=9.0) for k, v in KERNELS.links.items()},
    )
    lonely = plan(tp=1.0, pp=2.0, dp=1.0, global_batch=4.0)
    assert predict(LLAMA, DGX, lonely, vague).sigma == pytest.approx(float(run(lonely).sigma))


def test_interleaving_sends_more_messages(plan: Make) -> None:
    one, two, four = (run(plan(tp=8.0, vpp=v)) for v in (1.0, 2.0, 4.0))
    assert four.breakdown["pp_communication"] == pytest.approx(
        2 * float(two.breakdown["pp_communication"])
    )
    assert four.breakdown["bubble"] < one.breakdown["bubble"]


def test_the_optimizer_is_divided_where_its_state_is(plan: Make) -> None:
    whole, divided = (
        run(plan(tp=1.0, pp=1.0, dp=8.0, global_batch=8.0, sharding=s)).breakdown["optimizer"]
        for s in ("none", "zero1")
    )
    assert divided == pytest.approx(float(whole) / 8, rel=0.25)


def test_tensor_parallel_traffic_hides_behind_its_products(plan: Make) -> None:
    made = plan(tp=8.0, pp=1.0, sequence_parallel=1.0, tp_async_backward=False)
    shown = run(made).breakdown["tp_communication"]
    some = run(replace(made, tp_async_backward=True)).breakdown["tp_communication"]
    most = run(replace(made, tp_overlap=True)).breakdown["tp_communication"]
    assert most < some < shown
    blind = replace(KERNELS, run=replace(KERNELS.run, overlap={}))
    unhidden = predict(LLAMA, DGX, replace(made, tp_overlap=True), blind)
    assert unhidden.breakdown["tp_communication"] == pytest.approx(float(shown))


def test_a_higher_power_cap_sustains_higher_clocks(plan: Make) -> None:
    made = plan(tp=8.0, pp=1.0)
    device = replace(DGX.accelerator, power=2 * DGX.accelerator.power)
    assert run(made, cluster=replace(DGX, accelerator=device)).step_time < run(made).step_time


def test_levels_of_accelerators_do_not_slow_a_host(dgx_a100: Cluster) -> None:
    """What published runs on accelerators have in common says nothing of a step on a CPU."""
    host = replace(dgx_a100.accelerator, name="my-cpu", architecture="cpu-x")
    level = replace(KERNELS.run, factors={"*": 1.3})
    slow, plain = replace(KERNELS, run=level), replace(KERNELS, run=replace(level, factors={}))
    plan = TrainingPlan(tp=1.0, pp=1.0, dp=8.0, global_batch=8.0, micro_batch=1.0, seq_len=1024.0)
    for accelerator, most in ((host, 1.0), (dgx_a100.accelerator, 1.3)):
        cluster = replace(dgx_a100, accelerator=accelerator)
        one, two = (predict(LLAMA, cluster, plan, c).step_time for c in (slow, plain))
        assert 1.0 + 0.8 * (most - 1.0) - 1e-9 < float(one / two) <= most


def test_a_batch_may_have_two_dimensions(plan: Make) -> None:
    tp, pp = np.array([[1.0, 2.0, 8.0]]), np.array([[1.0], [4.0]])
    together = run(plan(tp=tp, pp=pp, dp=8.0)).step_time
    assert together.shape == (2, 3)
    for i, stages in enumerate(pp[:, 0]):
        for j, ranks in enumerate(tp[0]):
            alone = run(plan(tp=float(ranks), pp=float(stages), dp=8.0)).step_time
            assert together[i, j] == pytest.approx(float(alone), rel=1e-9)
