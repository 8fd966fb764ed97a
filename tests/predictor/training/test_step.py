from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.training.decomposition import parts, stack, take
from predictor.training.layer import weight_share
from predictor.training.ledger import KINDS
from predictor.training.prediction import predict
from predictor.training.software import Environment, environment, stretched
from predictor.training.step import assemble

Make = Callable[..., TrainingPlan]
KERNELS = load("kernels-only")
LLAMA = catalog.model("llama3-8b")
MIXTRAL = catalog.model("mixtral-8x7b")
GPT = catalog.model("gpt3-175b")
DGX = catalog.system("dgx-h100")
A100 = catalog.system("dgx-a100")
PLAIN = Environment()


def test_a_batch_of_unlike_runs_is_each_of_them(plan: Make) -> None:
    """Runs of different models, machines and categories put together at once, as the fit does."""
    runs = [
        (LLAMA, DGX, plan(tp=8.0, pp=1.0, sequence_parallel=1.0)),
        (GPT, A100, plan(recompute="full", attention="unfused", sharding="none")),
        (LLAMA, A100, plan(tp=1.0, pp=1.0, dp=64.0, global_batch=64.0, sharding="fsdp")),
        (LLAMA, DGX, plan(tp=2.0, pp=2.0, cp=2.0)),
        (MIXTRAL, DGX, plan(tp=2.0, pp=1.0, dp=32.0, ep=8.0, etp=2.0, sequence_parallel=1.0)),
    ]
    together = stack([parts(*run, KERNELS)[0] for run in runs])
    step = assemble(together, KERNELS.run, PLAIN)
    for at, run in enumerate(runs):
        alone = predict(*run, KERNELS)
        assert step.step_time[at] == pytest.approx(float(alone.step_time), rel=1e-12)
        assert step.layer_time[at] == pytest.approx(float(alone.layer_time), rel=1e-12)
        for term, value in alone.breakdown.items():
            assert step.breakdown[term][at] == pytest.approx(float(value), abs=1e-12)
    some = assemble(take(together, np.array([2, 0])), KERNELS.run, PLAIN)
    assert some.step_time.tolist() == step.step_time[[2, 0]].tolist()


def test_exposed_and_hidden_make_the_whole(plan: Make) -> None:
    """Hiding communication moves it from one side to the other; nothing is lost. Of what hides
    between replicas the processors that it takes from the passes are missed."""
    made = plan(tp=8.0, pp=1.0, dp=8.0, sequence_parallel=1.0, tp_overlap=True)
    found, _ = parts(LLAMA, DGX, made, KERNELS)
    shown = assemble(found, replace(KERNELS.run, overlap={}), PLAIN)
    both = assemble(found, KERNELS.run, PLAIN)
    assert set(both.hidden) == set(KINDS)
    assert all(float(value) == 0 for value in shown.hidden.values())
    for kind, missed in (("tp", 0.0), ("dp", 16 / 132)):
        term = f"{kind}_communication"
        assert both.hidden[kind] > 0
        assert both.breakdown[term] + (1 - missed) * both.hidden[kind] == pytest.approx(
            float(shown.breakdown[term])
        )


def test_engines_that_move_by_themselves_take_no_processors(plan: Make) -> None:
    """A TPU's gradients travel beside its products; NCCL's channels have processors of H100."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, global_batch=64.0, sharding="fsdp")
    pod, dgx = (
        parts(LLAMA, system, made, KERNELS)[0].taken for system in (catalog.system("tpu-v5p"), DGX)
    )
    assert (float(pod), float(dgx)) == (0.0, pytest.approx(16 / 132))


def test_what_a_host_does_once_a_step_is_neither_repeated_nor_stretched(plan: Make) -> None:
    """By itself, whatever the framework's factor and however many micro-batches; nothing where the
    device walks through a program by itself."""
    run, using = KERNELS.run, Environment(factor=1.3, once=2000.0)
    for batch in (64.0, 512.0):
        found, _ = parts(LLAMA, DGX, plan(pp=1.0, dp=8.0, global_batch=batch), KERNELS)
        without, step = assemble(found, run, replace(using, once=0.0)), assemble(found, run, using)
        more = step.step_time - without.step_time
        assert more == pytest.approx(2000.0 * run.host_per_kernel)
        assert step.breakdown["host"] - without.breakdown["host"] == pytest.approx(float(more))
        assert sum(step.breakdown.values()) == pytest.approx(float(step.step_time))
    pod, _ = parts(LLAMA, catalog.system("tpu-v5p"), plan(tp=1.0, pp=1.0, dp=64.0), KERNELS)
    with_it, without = (assemble(pod, run, replace(using, once=n)) for n in (2000.0, 0.0))
    assert with_it.step_time == without.step_time


def test_the_way_to_experts_hides_by_a_share_of_its_own(plan: Make) -> None:
    """Exchanges among expert ranks and among those that split experts are one term; only the
    first may hide, and only by the share of its own kind."""
    made = plan(tp=2.0, pp=1.0, dp=32.0, ep=8.0, etp=2.0, sequence_parallel=1.0, ep_overlap=True)
    found, _ = parts(MIXTRAL, DGX, made, KERNELS)
    shown, half = (
        assemble(found, replace(KERNELS.run, overlap=overlap), PLAIN)
        for overlap in ({"tp": 1.0}, {"tp": 1.0, "ep": 0.5})
    )
    assert shown.hidden["ep"] == 0 < half.hidden["ep"]
    total = half.breakdown["ep_communication"] + half.hidden["ep"]
    assert total == pytest.approx(float(shown.breakdown["ep_communication"]))


def test_the_way_to_experts_hides_behind_both_passes(plan: Make) -> None:
    """With a share of 1 and no contention, what shows is what exceeds all computation of a
    micro-batch; with half of it, what exceeds half."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, ep=64.0, micro_batch=1.0, ep_overlap=True)
    found, _ = parts(catalog.model("qwen3-235b-a22b"), DGX, made, KERNELS)
    plain, whole, half = (
        assemble(found, replace(KERNELS.run, overlap={"ep": share}), PLAIN)
        for share in (0.0, 1.0, 0.5)
    )
    total = float(plain.breakdown["ep_communication"])
    passes = float(plain.breakdown["forward"] + plain.breakdown["backward"])
    for step, share in ((whole, 1.0), (half, 0.5)):
        shown = float(step.breakdown["ep_communication"])
        assert shown == pytest.approx(max(total - share * passes, 0.0))
        assert shown + float(step.hidden["ep"]) == pytest.approx(total)


def test_gradients_of_weights_are_told_apart(plan: Make) -> None:
    """A zero-bubble schedule can put them off."""
    _, listed = parts(MIXTRAL, DGX, plan(tp=1.0, pp=8.0, dp=8.0, ep=8.0), KERNELS)
    shares = {o.name: weight_share(o) for o in listed.operators}
    late = {name for name, share in shares.items() if share}
    assert {"moe.up.wgrad", "moe.down.wgrad", "attention.qkv.wgrad"} <= late
    assert not late & {"moe.up", "moe.up.dgrad", "moe.down.dgrad"}


def test_hidden_communication_slows_what_runs_beside_it(plan: Make) -> None:
    found, _ = parts(LLAMA, DGX, plan(tp=8.0, pp=1.0, tp_overlap=True), KERNELS)
    calm = assemble(found, KERNELS.run, PLAIN)
    busy = assemble(found, replace(KERNELS.run, contention=1.5), PLAIN)
    extra = 0.5 * (calm.hidden["tp"] + calm.hidden["dp"])
    assert busy.step_time - calm.step_time == pytest.approx(float(extra))


def test_a_class_of_kernels_is_stretched_by_itself_and_its_kind() -> None:
    factors = {"gemm": 1.5, "gemm.ampere": 2.0, "attention": 3.0}
    assert stretched(factors, "gemm.ampere") == 3.0
    assert stretched(factors, "gemm.hopper") == 1.5
    assert stretched(factors, "attention.triton") == 3.0
    assert stretched(factors, "stream") == 1.0


def test_stretched_kernels_lengthen_their_terms(plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, dp=1.0, global_batch=1.0)
    found, _ = parts(LLAMA, DGX, made, KERNELS)
    one = assemble(found, KERNELS.run, PLAIN)
    names = ("gemm", "attention", "stream")
    two = assemble(found, replace(KERNELS.run, factors=dict.fromkeys(names, 2.0)), PLAIN)
    for term in ("forward", "backward"):
        assert two.breakdown[term] == pytest.approx(2 * float(one.breakdown[term]))


def test_environments_go_from_the_year_to_the_framework_to_all() -> None:
    factors = {"*": 1.2, "nemo": 1.1, "nemo/2024": 1.05, "launch/nemo": 3.0, "nodes": 1.5}
    factors |= {"hop/nanotron": 1.0, "hop/nanotron/slow": 40.0, "nodes/nanotron": 2.0}
    assert environment(factors, "nemo", "2024-08").factor == 1.05
    assert environment(factors, "nemo", "2023-08").factor == 1.1
    assert environment(factors, "other", "2023").factor == 1.2
    assert environment({}, "nemo", "neutral").factor == 1.0
    assert environment(factors, "nemo", "2024").launch == 3.0
    assert environment(factors, "nemo", "2024").nodes == 1.5
    assert [environment(factors, "nanotron", era).hop for era in ("slow", "neutral")] == [40, 1]
    assert environment(factors, "nanotron", "neutral").nodes == 2.0


def test_a_step_is_no_faster_than_its_launches(plan: Make) -> None:
    """One micro-batch of one layer, by hand: launches and ring steps times what each takes."""
    model = replace(LLAMA, layers=1)
    made = plan(tp=4.0, pp=1.0, dp=1.0, global_batch=1.0, sequence_parallel=1.0, seq_len=128.0)
    found, listed = parts(model, DGX, made, KERNELS)
    kernels = sum(float(np.asarray(o.count)) for o in listed.operators)
    # Four collectives forward and six backward in the layer, one and one around the embedding,
    # one and one around the head: three ring steps each; the three all-reduces of the loss, six.
    hops = (10 + 4) * 3 + 3 * 6
    slow = assemble(found, KERNELS.run, Environment(launch=1000.0, hop=500.0))
    working = slow.step_time - slow.breakdown["dp_communication"] - slow.breakdown["optimizer"]
    expected = KERNELS.run.host_per_kernel * (1000.0 * kernels + 500.0 * hops)
    assert working == pytest.approx(expected)


def test_larger_networks_are_slower_only_between_nodes(plan: Make) -> None:
    large = Environment(nodes=2.0)

    def exposed(gpus: float, using: Environment) -> float:
        made = plan(tp=1.0, pp=1.0, dp=gpus, global_batch=gpus, grad_overlap=False)
        found, _ = parts(LLAMA, DGX, replace(made, param_overlap=False), KERNELS)
        return float(assemble(found, KERNELS.run, using).breakdown["dp_communication"])

    ends = ((512.0, 32.0), (1024.0, 32.0), (16384.0, 32.0))  # nobody timed more than 64 nodes
    for gpus, factor in ((8.0, 1.0), (16.0, 1.0), (32.0, 2.0), (128.0, 8.0), *ends):
        assert exposed(gpus, large) == pytest.approx(factor * exposed(gpus, PLAIN))


def test_triton_attention_is_slower_by_its_factor(plan: Make) -> None:
    made = plan(tp=8.0, pp=1.0, seq_len=8192.0)
    fast, slow = (
        parts(LLAMA, DGX, replace(made, attention=a), KERNELS)[0] for a in ("flash2", "triton")
    )
    run = replace(KERNELS.run, factors={"attention.triton": 1.8})
    one, two = (assemble(found, run, PLAIN) for found in (fast, slow))
    own = sum(float(t) for (_, _, c), t in fast.work.items() if c == "attention")
    extra = 0.8 * own * LLAMA.layers * float(fast.m)
    assert two.step_time - one.step_time == pytest.approx(extra)


def test_operators_add_up_to_their_terms_when_stretched(plan: Make) -> None:
    run = replace(KERNELS.run, factors={"gemm": 1.2, "attention": 1.3, "stream": 0.9})
    for made in (plan(tp=8.0, pp=4.0), plan(tp=8.0, pp=np.array([1.0, 4.0, 4.0]))):
        found = predict(LLAMA, DGX, made, replace(KERNELS, run=run))
        for phase in ("forward", "backward"):
            times = [
                found.timing.time[at][..., found.unique] * found.executions[at]
                if made.shape
                else found.timing.time[at] * found.executions[at]
                for at, operator in enumerate(found.operators)
                if operator.phase == phase
            ]
            assert sum(times) == pytest.approx(found.breakdown[phase])


def test_every_product_of_every_expert_is_launched(plan: Make) -> None:
    """Mixtral on ep 2: 4 experts on a rank, 2 products each forward and 4 backward: 18 kernels
    beside the first of each of the six operators. The device never waits for a host this fast; it
    does for one whose operators take a thousand times longer."""
    made = plan(tp=1.0, pp=1.0, dp=64.0, ep=2.0)
    found, listed = parts(MIXTRAL, DGX, made, KERNELS)
    experts = [o for o in listed.operators if float(np.max(o.kernels)) > 1.0]
    assert [float(o.kernels) for o in experts] == [4.0] * 6
    assert float(found.kernels["moe"]) == 24.0 - 6.0
    calm, slow = (
        assemble(found, KERNELS.run, replace(PLAIN, launch=launch)) for launch in (1.0, 1000.0)
    )
    assert calm.breakdown["host"] == 0 < slow.breakdown["host"]


def test_frameworks_without_launch_costs_of_their_own_have_those_of_all() -> None:
    factors = {"launch": 9.0, "launch/paxml": 1.0}
    found = [environment(factors, name, "").launch for name in ("nemo", "paxml")]
    assert found == [9.0, 1.0]


def test_transfers_between_stages_run_beside_work(plan: Make) -> None:
    """A stage of one chunk waits for the way of what it is sent, where it has nothing else to do;
    one of two has the other to compute."""
    shown = {}
    for vpp in (1.0, 2.0):
        made = plan(tp=8.0, pp=4.0, dp=2.0, vpp=vpp, micro_batch=1.0, p2p_overlap=True)
        found, _ = parts(LLAMA, DGX, made, KERNELS)
        step = assemble(found, replace(KERNELS.run, overlap={"pp": 1.0}), PLAIN)
        shown[vpp] = (float(step.breakdown["pp_communication"]), float(step.hidden["pp"]))
    assert shown[1.0][0] > 0 < shown[1.0][1]
    assert shown[2.0][0] == 0 < shown[2.0][1]


def test_a_slow_loader_is_waited_for(plan: Make) -> None:
    """The step lasts as long as its tokens take to load, if that is longer than all else."""
    common = {"tp": 8.0, "pp": 1.0, "dp": 1.0, "micro_batch": 1.0, "global_batch": 4.0}
    for rate in (np.nan, 1e9, 10_000.0, 100.0):
        made = plan(**common, loader_rate=rate)
        step = assemble(parts(LLAMA, DGX, made, KERNELS)[0], KERNELS.run, PLAIN)
        busy = float(step.step_time - step.breakdown["data_loading"])
        tokens = 4.0 * float(made.seq_len)
        assert float(step.step_time) == pytest.approx(max(np.nan_to_num(tokens / rate), busy))
        assert sum(map(float, step.breakdown.values())) == pytest.approx(float(step.step_time))
    assert float(step.breakdown["data_loading"]) > 0


def test_copies_of_flat_buffers_take_their_traffic(plan: Make) -> None:
    """8e9 weights in 8 ranks: two gatherings of 32 GB read and written, 48 GB of gradients: 112 GB,
    at 60 to 100 % of an H100's 3.35 TB/s, on top of all else; nothing of it hides."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, global_batch=8.0, seq_len=8192.0, sharding="fsdp",
                reduce_bytes=4.0)  # fmt: skip
    without, copied = (
        predict(LLAMA, DGX, replace(made, flat_copies=flat), KERNELS) for flat in (False, True)
    )
    more = float(copied.step_time - without.step_time)
    least = 14.0 * float(LLAMA.parameters) / 3.35e12
    assert least < more < least / 0.6
    term = "dp_communication"
    assert float(copied.breakdown[term] - without.breakdown[term]) == pytest.approx(more)
