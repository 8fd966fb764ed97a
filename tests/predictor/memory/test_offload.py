"""What the host keeps, and what it costs to bring it there, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory.offload import (
    ADAM,
    HOST_MEMORY,
    HOST_USABLE,
    HOST_USUAL,
    NVME_READ,
    NVME_WRITE,
    PINNED,
    host_rate,
    host_room,
    loss_time,
    pass_times,
    takes_loss,
    weights_time,
)
from predictor.memory.offload import update_time as on_host
from predictor.memory.training import memory
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.search.layouts import search_train
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training
from predictor.training.prediction import predict

Make = Callable[..., TrainingPlan]
KERNELS = load("kernels-only")
DGX = catalog.system("dgx-h100")
H100 = DGX.accelerator
ALL_RANKS = {"tp": 8.0, "pp": 1.0, "dp": 1.0}
BYTES = {"optimizer_bytes": 12.0, "gradient_bytes": 4.0, "weight_bytes": 2.0}


def test_copies_by_hand(plan: Make) -> None:
    """63 GB of activations over a PCIe 5 link of 63 GB/s, of which pinned copies reach 0.83; a
    drive writes 4 and reads 6.8."""
    made = plan(offload_activations=0.5)
    down, up = pass_times(made, H100, np.array(126e9), 0.0, 0.0).values()
    assert down == up == pytest.approx(1.0 / PINNED)
    drives = replace(made, offload_to="nvme")
    down, up = pass_times(drives, H100, np.array(126e9), 0.0, 0.0).values()
    assert (down, up) == (pytest.approx(63e9 / NVME_WRITE), pytest.approx(63e9 / NVME_READ))


def test_weights_come_up_for_every_pass_and_gradients_go_down(plan: Make) -> None:
    """1e9 weights of 2 bytes a pass, up; gradients of 16 bits down, and, of all micro-batches but
    the first, up before. Megatron Core's gradients stay; DeepSpeed's weights come by themselves."""
    away = {"offload_optimizer": 1.0, "offload_weights": 1.0, "sharding": "zero3", "dp": 1.0}
    link = PINNED * 63e9
    made = plan(**away, global_batch=4.0, micro_batch=1.0, framework="pytorch")
    ahead, back = pass_times(made, H100, 0.0, 1e9, 1e9).values()
    assert ahead == pytest.approx(2e9 / link)
    assert back == pytest.approx((2e9 + 0.75 * 2e9) / link)
    kept = pass_times(replace(made, framework="megatron-lm"), H100, 0.0, 1e9, 1e9)
    assert kept["backward"] == pytest.approx(2e9 / link)
    scored = replace(made, learns_from="dpo", referred=1.0)
    assert pass_times(scored, H100, 0.0, 1e9, 1e9)["forward"] == pytest.approx(4e9 / link)
    assert weights_time(made, H100, 1e9) == {}
    fetched = replace(scored, framework="deepspeed")
    ahead, back = weights_time(fetched, H100, 1e9).values()
    assert (ahead, back) == (pytest.approx(4e9 / link), pytest.approx(2e9 / link))
    hidden = pass_times(fetched, H100, 0.0, 1e9, 1e9)
    assert hidden["forward"] == 0.0
    assert hidden["backward"] == pytest.approx(0.75 * 2e9 / link + 0.25 * 2e9 / link)


def test_what_a_loss_keeps_leaves_with_activations_of_trl(llama: Model, plan: Make) -> None:
    """4 bytes of each logit at 0.83 of 63 GB/s; none of a loss in one kernel, or of answers'
    probabilities; only TRL's context holds the loss."""
    made = plan(**ALL_RANKS, offload_activations=0.5, framework="huggingface")
    logits = float(made.tokens) * float(made.vocab_share(llama.vocab))
    assert loss_time(llama, made, H100) == pytest.approx(0.5 * 4 * logits / (PINNED * 63e9))
    for none in ({"logit_bytes": 0.1}, {"learns_from": "dpo"}):
        assert loss_time(llama, replace(made, **none), H100) == 0.0
    assert takes_loss(made)
    assert not takes_loss(replace(made, framework="torchtune"))


def test_a_node_of_one_accelerator_has_no_worse_a_host(plan: Make) -> None:
    """Than one of eight whose others rest: 200 GB/s."""
    one = plan(tp=1.0, pp=1.0, dp=1.0)
    small = replace(DGX, accelerators_per_node=1)
    assert host_rate(one, small) == host_rate(one, DGX) == pytest.approx(200e9)


def test_what_leaves_with_gradients_and_weights_is_not_on_the_device(
    llama: Model, plan: Make
) -> None:
    """ZeRO-Offload keeps weights of 16 bits alone (Ren et al. 2021, section 3), ZeRO-Infinity none:
    16 bytes of each parameter with the host, then 18, over the two ranks."""
    run = RunParameters(fragmentation=0.0)
    made = plan(tp=8.0, pp=1.0, dp=2.0, global_batch=2.0, sharding="zero3", framework="deepspeed")
    states = replace(made, offload_optimizer=1.0)
    whole, some, none = (
        memory(llama, one, run) for one in (made, states, replace(states, offload_weights=1.0))
    )
    assert float(some.host) == pytest.approx(float(whole.peak - some.peak))
    assert float(none.host) == pytest.approx(float(some.host) * 18 / 16)
    assert float(some.peak - none.peak) == pytest.approx(float(some.host) * 2 / 16)


def test_few_accelerators_have_more_of_their_host(plan: Make) -> None:
    """Eight of a node share its memory's rate; one has a socket's, half of all."""
    rates = [
        float(host_rate(plan(tp=1.0, pp=1.0, dp=ranks, global_batch=64.0), DGX)) / HOST_MEMORY
        for ranks in (1.0, 2.0, 4.0, 8.0, 16.0)
    ]
    assert rates == [4.0, 4.0, 2.0, 1.0, 1.0]


def test_host_update_by_hand(plan: Make) -> None:
    """1e9 parameters: the host streams 4 + 2 x 12 + 2 bytes of each at what CPU Adam reaches of its
    memory's rate; the device would take 60 ms for all."""
    made = plan(**ALL_RANKS, offload_optimizer=0.5, **BYTES)
    host = 0.5e9 * 30 / (ADAM * HOST_MEMORY)
    assert on_host(made, DGX, np.array(1e9), np.array(0.06)) == pytest.approx(host)
    # With little on the host, what is left on the device takes longer.
    less = replace(made, offload_optimizer=0.02)
    assert on_host(less, DGX, np.array(1e9), np.array(0.06)) == pytest.approx(0.0588)
    drives = replace(made, offload_to="nvme")
    states = 0.5e9 * 12 * (1 / NVME_READ + 1 / NVME_WRITE)
    assert on_host(drives, DGX, np.array(1e9), np.array(0.06)) == pytest.approx(states)


def test_a_host_behind_pcie_3_updates_half_as_quickly(plan: Make) -> None:
    made = plan(**ALL_RANKS, offload_optimizer=1.0, **BYTES)
    nodes = [
        replace(DGX, accelerator=catalog.accelerator(name))
        for name in ("V100-SXM2-16GB", "A100-SXM4-80GB", "H100-SXM5-80GB")
    ]
    times = [float(on_host(made, node, np.array(1e9), np.array(0.0))) for node in nodes]
    assert times == pytest.approx([2.0 * times[2], times[2], times[2]])


def test_what_the_host_keeps_is_not_on_the_device(llama: Model, plan: Make) -> None:
    run = RunParameters(fragmentation=0.0)
    made = plan(tp=8.0, pp=1.0, dp=2.0, global_batch=2.0)
    whole = memory(llama, made, run)
    assert float(whole.host) == 0.0
    less = memory(llama, replace(made, offload_optimizer=1.0), run)
    # ZeRO-1 over two ranks: 12 bytes of states of each parameter; the host has gradients too.
    gone = float(whole.peak - less.peak)
    assert float(less.host) == pytest.approx(gone * 16 / 12)
    some = memory(llama, replace(made, offload_activations=0.75), run)
    kept = float(whole.classes["activations"][2])
    # Of 80 layers' activations, all but two layers' three quarters.
    away = 0.75 * kept * 78 / 80
    assert float(some.host) == pytest.approx(away)
    assert float(whole.peak - some.peak) == pytest.approx(away)


def test_offloading_costs_what_does_not_hide(llama: Model, plan: Make) -> None:
    made = plan(tp=8.0, pp=2.0, dp=1.0, global_batch=8.0)
    times = {
        share: predict(llama, DGX, replace(made, offload_activations=share), KERNELS)
        for share in (0.0, 0.5, 1.0)
    }
    none, half, all_ = (times[share] for share in times)
    assert float(none.breakdown["offload"]) == float(none.hidden["offload"]) == 0.0
    assert (
        0
        < float(half.hidden["offload"])
        < float(all_.hidden["offload"]) + float(all_.breakdown["offload"])
    )
    assert float(none.step_time) <= float(half.step_time) <= float(all_.step_time)
    slow = replace(DGX, accelerator=replace(H100, host_bandwidth=2e9))
    waits = predict(llama, slow, replace(made, offload_activations=1.0), KERNELS)
    assert float(waits.breakdown["offload"]) > float(all_.breakdown["offload"])
    assert sum(float(v) for v in waits.breakdown.values()) == pytest.approx(float(waits.step_time))


def test_a_batch_of_offloading_plans_is_each_of_them(llama: Model, plan: Make) -> None:
    shares = [0.0, 0.3, 1.0]
    common = {"tp": 8.0, "pp": 2.0, "dp": 1.0, "global_batch": 8.0}
    together = predict(
        llama,
        DGX,
        plan(
            **common, offload_activations=np.array(shares), offload_optimizer=np.array(shares[::-1])
        ),
        KERNELS,
    )
    for index, (share, other) in enumerate(zip(shares, shares[::-1], strict=True)):
        one = plan(**common, offload_activations=share, offload_optimizer=other)
        alone = predict(llama, DGX, one, KERNELS)
        assert together.step_time[index] == pytest.approx(float(alone.step_time))
        assert together.high[index] == pytest.approx(float(alone.high))
        assert together.memory.host[index] == pytest.approx(float(alone.memory.host))


def test_a_device_without_a_host_link_refuses(llama: Model, plan: Make) -> None:
    alone = replace(DGX, accelerator=replace(H100, host_bandwidth=np.nan))
    for field in ("offload_activations", "offload_optimizer"):
        with pytest.raises(InputError, match="H100-SXM5-80GB states no link to its host"):
            predict(llama, alone, plan(tp=8.0, pp=1.0, **{field: 0.5}), KERNELS)


def test_room_on_the_host_by_hand(plan: Make) -> None:
    """A DGX H100 has 2 TB for eight accelerators, or for the four of a smaller job."""
    many = plan(tp=8.0, pp=np.array([1.0, 4.0]), dp=1.0)
    assert host_room(DGX, many) == pytest.approx(HOST_USABLE * 2048e9 / 8)
    assert host_room(DGX, plan(tp=4.0, pp=1.0, dp=1.0)) == pytest.approx(HOST_USABLE * 2048e9 / 4)
    assert np.isinf(host_room(DGX, plan(tp=8.0, offload_to="nvme")))
    unknown = replace(DGX, host_memory=np.nan)
    assert host_room(unknown, many) == pytest.approx(HOST_USABLE * HOST_USUAL)


OFFLOADING = {"gpus": 8, "global_batch": 8, "seq_len": 4096, "tp": 8, "pp": 1, "recompute": "full",
              "offload_optimizer": 1}  # fmt: skip


def test_hosts_of_unknown_size_are_assumed_and_said(llama: Model) -> None:
    for cluster, told in ((DGX, False), (replace(DGX, host_memory=np.nan), True)):
        spec = parse(TrainingPlanSpec, OFFLOADING, "test")
        found = complete_training(spec, KERNELS.run, model=llama, cluster=cluster)
        assert ("host_memory_gb" in {one.field for one in found.assumed}) == told
    spec = parse(TrainingPlanSpec, {**OFFLOADING, "host_memory_gb": 512}, "test")
    stated = complete_training(spec, KERNELS.run, model=llama, cluster=DGX)
    assert stated.cluster.host_memory == 512e9


def test_a_search_offloads_no_more_than_hosts_hold(llama: Model) -> None:
    fields = {**OFFLOADING, "gpus": 16, "pp": 2, "offload_optimizer": [0, 0.5, 1]}

    def shares(host: float) -> set[float]:
        found = search_train(llama, replace(DGX, host_memory=host), fields, KERNELS, prune=False)
        return set(found.column("offload_optimizer").tolist())

    # 16 bytes of 70e9 / 16 parameters: 71 GB for each accelerator, or 35 for half of them.
    assert shares(2048e9) == {0.5, 1.0}
    assert shares(400e9) == {0.5}
    with pytest.raises(InputError, match=r"no plan fits the hosts .* keep 3\d\.\d GB .* has 22\.5"):
        shares(200e9)


def test_frozen_weights_stay_with_the_host_as_they_are_stored(plan: Make) -> None:
    """Llama 3 8B's layers in 4 bits, embedding and head in 16, over two ranks; gathered so, too."""
    model = catalog.model("llama3-8b")
    spec = parse(
        TrainingPlanSpec,
        {"gpus": 2, "global_batch": 2, "seq_len": 512, "sharding": "fsdp", "trained": "lora",
         "frozen_precision": "nf4", "framework": "huggingface", "offload_weights": 1},
        "test",
    )  # fmt: skip
    made = complete_training(spec, RunParameters(), model=model, cluster=DGX).plan
    assert made.gather_bytes == 0.516
    ends = 2 * model.vocab * model.hidden
    hand = (0.516 * (model.parameters - ends) + 2.0 * ends) / 2
    found = float(memory(model, made, RunParameters()).host)
    adapters = found - hand
    assert 0.0 < adapters < 0.02 * hand
