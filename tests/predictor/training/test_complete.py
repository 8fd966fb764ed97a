from __future__ import annotations

import math
from dataclasses import replace

import pytest

from predictor.catalog import load
from predictor.catalog.filling import framework_settings, frameworks
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory import MEMORY_FRACTION, memory
from predictor.timing.calibration import RunParameters
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.fitting import LEAST_SHARE, ROUNDS
from predictor.training.prediction import predict

RUN = RunParameters()
BASE = {
    "model": "llama3-8b",
    "system": "dgx-h100",
    "gpus": 64,
    "global_batch": 64,
    "seq_len": 8192,
}


def complete(**changes: object) -> TrainingRequest:
    fields = {**BASE, **changes}
    return complete_training(
        parse(TrainingPlanSpec, {k: v for k, v in fields.items() if v is not None}, "test"), RUN
    )


def test_what_was_said_is_kept_and_what_was_filled_is_reported() -> None:
    found = complete(tp=4, pp=2)
    assert (found.plan.tp, found.plan.pp, found.plan.dp) == (4, 2, 8)
    filled = {a.field: a.rule for a in found.assumed}
    assert "tp" not in filled
    assert "gpus" not in filled
    assert filled["dp"] == "gpus / (tp x pp x cp)"
    assert {"precision", "micro_batch", "recompute", "sharding"} <= set(filled)


def test_the_smallest_layout_that_fits_is_taken() -> None:
    small, large = complete(), complete(model="llama3-70b", gpus=64)
    assert small.plan.tp * small.plan.pp <= 2
    assert large.plan.tp * large.plan.pp >= 8


def test_recomputation_is_the_first_that_fits() -> None:
    assert complete(tp=8, pp=1).plan.recompute == "none"
    assert complete(model="llama3-70b", tp=8, pp=4, seq_len=32768).plan.recompute != "none"


def test_precision_follows_the_accelerator() -> None:
    assert complete(system="dgx-a100").plan.precision == "bf16"
    assert complete(system="DGX-1V", gpus=8).plan.precision == "fp16"


def test_an_accelerator_alone_gets_its_system() -> None:
    found = complete(system=None, accelerator="A100-SXM4-80GB")
    assert found.cluster.name == "DGX-A100-80GB"
    four = complete(system=None, accelerator="H200-SXM-141GB", accelerators_per_node=4)
    assert four.cluster.tiers[0].size == 4


def test_a_stated_network_replaces_the_catalogs() -> None:
    found = complete(inter_link_gbps=100)
    assert found.cluster.tiers[-1].bandwidth == pytest.approx(12.5e9)


def test_frameworks_have_eras() -> None:
    old, label = framework_settings("megatron-lm", "2021-04")
    new, _ = framework_settings("megatron-lm", None)
    assert old["attention"] == "unfused"
    assert new["attention"] == "flash"
    assert label == "megatron-lm until 2021-09"


@pytest.mark.parametrize(
    ("accelerator", "era", "kernels"),
    [
        ("B200-SXM-180GB", "2025-04", "flash2"),
        ("B200-SXM-180GB", "2025-06", "flash"),
        ("H100-SXM5-80GB", "2025-06", "flash2"),
    ],
)
def test_torchtitan_takes_cudnns_attention_on_blackwell(
    accelerator: str, era: str, kernels: str
) -> None:
    """From 3b85aa31f of 2025-05-14 on, on compute capability 10.0 and later."""
    common = {"framework": "torchtitan", "era": era, "tp": 1, "pp": 1}
    assert complete(system=None, accelerator=accelerator, **common).plan.attention == kernels


def test_every_framework_is_complete() -> None:
    for name, periods in frameworks().items():
        for period in periods:
            assert period["evidence"], name
            complete(framework=name, era=period.get("until"), tp=8, pp=1)


def test_experts_are_shared_out_inside_the_scale_up_domain() -> None:
    common = {"model": "qwen3-235b-a22b", "tp": 1, "pp": 1, "gpus": 288, "global_batch": 288}
    node, rack = (complete(**common, system=s) for s in ("dgx-h200", "GB200-NVL72"))
    assert (node.plan.ep, rack.plan.ep) == (8, 32)  # 128 experts, 288 ranks
    assert "ep" in {a.field for a in node.assumed}
    assert complete(**common, system="dgx-h200", ep=4).plan.ep == 4


def test_sharded_experts_are_divided_as_far_as_they_go() -> None:
    common = {"model": "qwen3-235b-a22b", "tp": 1, "pp": 1, "gpus": 64, "sharding": "fsdp"}
    assert complete(**common).plan.ep == 64


def test_experts_are_split_as_the_rest_where_that_fits() -> None:
    common = {"model": "mixtral-8x7b", "pp": 1, "tp": 4, "ep": 8}
    assert complete(**common, gpus=64).plan.etp == 4
    assert complete(**common, gpus=8, global_batch=2).plan.etp == 1


def test_routers_are_uneven_unless_something_balances_them() -> None:
    common = {"model": "mixtral-8x7b", "tp": 1, "pp": 1}
    assert complete(**common).plan.expert_load == 1.1
    assert complete(**common, framework="megatron-bridge").plan.expert_load == 1.0
    assert complete(**common, expert_load=1.5).plan.expert_load == 1.5
    # Padded to the busiest of eight experts, two a token: between 1 and 4 times the even share.
    assert complete(**common, framework="kempnerforge").plan.expert_load == 2.5
    assert "expert_load" not in {a.field for a in complete(tp=1, pp=1).assumed}


def test_latents_are_projected_again_before_whole_layers_are() -> None:
    common = {"model": "deepseek-v3", "system": "GB200-NVL72", "pp": 4, "tp": 1, "ep": 64}
    found = complete(**common, gpus=256, global_batch=1024, seq_len=5120)
    assert (found.plan.recompute, found.plan.recompute_modules) == ("selective", "mla_up_proj")
    assert "recompute_modules" in {a.field for a in found.assumed}
    stated = complete(**common, gpus=256, global_batch=1024, seq_len=5120, recompute="selective",
                      recompute_modules="mlp,moe")  # fmt: skip
    assert stated.plan.recompute_parts == ("mlp", "moe")
    with pytest.raises(InputError, match=r"'mlpp' is not one of .*did you mean 'mlp'"):
        complete(**common, gpus=256, recompute_modules="mlpp")


def test_a_mixture_gets_the_least_recomputation_that_fits() -> None:
    common = {"model": "deepseek-v3", "pp": 8, "tp": 1, "ep": 64, "gpus": 512, "global_batch": 4096}
    assert complete(**common, seq_len=4096, system="GB200-NVL72").plan.recompute == "none"
    assert complete(**common, seq_len=16384, system="dgx-h100").plan.recompute == "full"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 8, "pp": 1, "ep": 8}, r"ep 8 needs a mixture of experts; llama3-8b is dense"),
        ({"tp": 1, "pp": 1, "model": "mixtral-8x7b", "ep": 16}, r"ep 16 does not divide the 8"),
        ({"tp": 8, "pp": 1, "expert_load": 0.5}, r"expert_load: .*at least 1"),
        ({"tp": 8, "pp": 1, "dispatch": "one"}, r"'one' is not one of .*did you mean 'once'"),
        ({"tp": 8, "pp": 1, "trained": "none"}, r"'none' is not one of all, lora, lora_qkv"),
        ({"tp": 3, "pp": 1}, r"gpus 64 is not a multiple of tp 3 x pp 1 x cp 1 = 3"),
        ({"tp": 6, "pp": 1, "gpus": 6}, r"tp 6 does not divide the 32 attention heads"),
        ({"tp": 8, "pp": 1, "dp": 4}, r"gpus 64 is not tp 8 x pp 1 x cp 1 x dp 4 = 32"),
        ({"tp": 8, "pp": 1, "global_batch": 7}, r"global batch 7 is not a multiple of dp 8"),
        ({"tp": 8, "pp": 1, "cp": 3, "gpus": 24}, r"cp 3 does not divide"),
        ({"tp": 8, "pp": 64, "gpus": 512}, r"more stages than .* has layers"),
        ({"tp": 8, "pp": 1, "vpp": 2}, r"vpp 2 needs pp of at least 2"),
        ({"system": "L40S-8x-PCIe"}, r"no network beyond 8 accelerators"),
        ({"system": None}, r"give --system or --accelerator"),
        ({"model": None}, r"give --model"),
        ({"seq_len": None}, r"give --seq-len"),
        ({"framework": "megatrom"}, r"unknown framework 'megatrom'; did you mean"),
        ({"framework": "megatron-lm", "era": "lately"}, r"era 'lately' is not a date"),
        ({"gpus": 0}, r"gpus: .*at least 1"),
        ({"gpus": "many"}, r"gpus: .*got 'many'"),
        ({"precision": "bf15"}, r"'bf15' is not one of .*did you mean 'bf16'"),
        ({"tpp": 8}, r"unknown key 'tpp'; did you mean 'tp'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        complete(**changes)
    assert "\n" not in str(caught.value)


def test_so_many_layers_recomputed() -> None:
    """Llama 3 8B has 32 layers: two of each of four stages are a quarter."""
    block = complete(tp=4, pp=4, recompute="full", recompute_layers=2)
    assert (block.plan.recompute_share, block.plan.recompute_chunk) == (0.25, 1.0)
    every = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 4}
    uniform = complete(tp=4, pp=4, **every)
    assert (uniform.plan.recompute_share, uniform.plan.recompute_chunk) == (1.0, 4.0)
    with pytest.raises(InputError, match="recompute_layers is of full recomputation"):
        complete(tp=4, pp=4, recompute="selective", recompute_layers=2)
    with pytest.raises(InputError, match="state --pp"):
        complete(recompute="full", recompute_layers=2)


def test_a_pipeline_that_folds_has_two_stages_per_device() -> None:
    found = complete(tp=1, pp=4, global_batch=512, schedule="zb-v")
    assert found.plan.vpp == 2
    moe = complete(model="mixtral-8x7b", tp=1, pp=2, global_batch=512, schedule="dualpipe")
    assert (moe.plan.vpp, moe.plan.ep_overlap) == (1, True)
    with pytest.raises(InputError, match="offload_optimizer: must be at most"):
        complete(offload_optimizer=2)
    with pytest.raises(InputError, match="'disk' is not one of cpu, nvme"):
        complete(offload_to="disk")


def test_an_accelerator_without_a_catalog_system_gets_a_node_of_pcie() -> None:
    """T4: PCIe 3 x16, 15.75 GB/s; eight share one 100 Gb/s port."""
    request = complete(accelerator="T4-16GB", system=None, precision="fp16", gpus=64)
    inside, outside = request.cluster.tiers
    assert (inside.link, inside.size) == ("pcie3", 8)
    assert inside.bandwidth in (pytest.approx(15.75e9), pytest.approx(32e9))
    assert outside.bandwidth == pytest.approx(12.5e9 / 8)
    assert any(a.field == "system" and "PCIe node" in str(a.value) for a in request.assumed)


@pytest.mark.parametrize(
    ("accelerator", "gbps"),
    [
        ("T4-16GB", 100.0),
        ("A100-PCIe-80GB", 200.0),
        ("H100-PCIe-80GB", 400.0),
        ("L40S-48GB", 200.0),
    ],
)
def test_a_run_larger_than_its_node_is_joined_by_a_port_of_its_slots_generation(
    accelerator: str, gbps: float
) -> None:
    """A x16 slot of PCIe 3, 4, 5 carries 16, 32, 63 GB/s, its adapters 100, 200, 400 Gb/s; what is
    sold as one node (L40S-8x-PCIe) is no reason to refuse a run that somebody had."""
    several = complete(accelerator=accelerator, system=None, precision="fp16", gpus=64)
    outside = several.cluster.tiers[-1]
    assert outside.size == math.inf
    assert outside.bandwidth == pytest.approx(gbps * 1e9 / 8 / 8)
    stated = complete(
        accelerator=accelerator, system=None, precision="fp16", gpus=64, inter_link_gbps=40.0
    )
    assert stated.cluster.tiers[-1].bandwidth == pytest.approx(40e9 / 8)


@pytest.mark.parametrize("framework", ["nemo", "megatron-bridge"])
def test_nvidias_recipes_recompute_nothing_but_latents(framework: str) -> None:
    """Whatever fits: their dense recipes buy memory with layouts (recipe files, 23.03 to 26.08)."""
    dense = complete(framework=framework, model="llama3-70b", tp=4, pp=4)
    assert dense.plan.recompute == "none"
    latent = complete(
        framework=framework, model="deepseek-v2", system="dgx-h100", gpus=512, tp=1, pp=16,
        global_batch=4096, seq_len=4096,
    )  # fmt: skip
    assert (latent.plan.recompute, latent.plan.recompute_modules) == ("selective", "mla_up_proj")
    stated = complete(framework=framework, recompute="full")
    assert stated.plan.recompute == "full"


def test_weights_stay_gathered_under_a_pipeline() -> None:
    own = {"framework": "torchtitan", "tp": 2}
    assert complete(**own, pp=1).plan.reshard is True
    assert complete(**own, pp=2).plan.reshard is False
    assert complete(**own, pp=2, reshard=True).plan.reshard is True


def test_kempnerforge_builds_whole_models_where_no_layer_is_divided() -> None:
    """Its build_parallel_model has a branch for tensor parallelism, which builds on no device."""
    own = {"framework": "kempnerforge", "sharding": "fsdp"}
    assert complete(**own, tp=1).plan.built_whole is True
    assert complete(**own, tp=2).plan.built_whole is False
    assert complete(framework="torchtitan", tp=1).plan.built_whole is False


def test_deepspeed_moves_models_to_the_device_whole_where_there_is_room() -> None:
    """engine.py, _configure_distributed_model: all but those that were built inside zero.Init."""
    own = {"framework": "deepspeed", "sharding": "zero3"}
    assert complete(**own, model="llama3-8b").plan.built_whole is True
    assert complete(**own, model="llama3-70b", gpus=64).plan.built_whole is False
    assert complete(**own, model="llama3-8b", built_whole=False).plan.built_whole is False


def test_the_first_megatron_reduces_in_16_bits_and_overlaps_under_wide_layers() -> None:
    """Its README of 2020 on --DDP-impl, and --fp32-allreduce of its arguments."""
    for tp, overlaps in ((1, False), (2, False), (8, True)):
        plan = complete(framework="megatron-lm", era="2020-09", tp=tp).plan
        assert (plan.grad_overlap, plan.reduce_bytes) == (overlaps, 2)
    assert complete(framework="megatron-lm", era="2021-04", tp=8).plan.grad_overlap is False


def test_the_launchers_optimizer_is_divided_from_september_2022_on() -> None:
    """fused_adam, then distributed_fused_adam in conf/training/gpt3."""
    for era, sharding in (("2022-07", "none"), ("2022-09", "zero1"), ("2023-03", "zero1")):
        assert complete(framework="nemo", era=era).plan.sharding == sharding


def test_what_stops_early_is_a_habit() -> None:
    """PyTorch's checkpoints and compiled programs leave out the end; Megatron Core's do not."""
    for framework, early in (("torchtune", True), ("maxtext", True), ("megatron-lm", False)):
        assert complete(framework=framework).plan.stops_early is early


def test_programs_without_accumulation_take_a_ranks_sequences_at_once() -> None:
    """MaxText's gradient_accumulation_steps is 1: 256 sequences on 64 chips are 4 each."""
    own = {"framework": "maxtext", "global_batch": 256}
    assert complete(**own).plan.micro_batch == 4
    assert complete(**own, micro_batch=2).plan.micro_batch == 2
    assert complete(**{**own, "global_batch": 64}).plan.micro_batch == 1
    assert complete(framework="nemo", global_batch=256).plan.micro_batch == 1


def test_a_rank_takes_as_many_sequences_at_once_as_fit() -> None:
    """One of 8 GB hardly fills 80 GB; what is left of the share is for further micro-batches, and a
    pipeline takes one at a time."""
    own = {"model": "llama3.2-1b", "global_batch": 64 * 8, "seq_len": 2048, "tp": 1}
    alone = complete(**own, pp=1)
    assert alone.plan.micro_batch == 8
    assert "fit in memory" in {a.field: a.rule for a in alone.assumed}["micro_batch"]
    large = complete(model="llama3-8b", tp=2, pp=1, global_batch=32 * 64, recompute="none").plan
    assert 1 <= large.micro_batch < 64
    assert large.global_batch % (large.dp * large.micro_batch) == 0
    assert complete(**own, pp=2).plan.micro_batch == 1


def test_mixtures_are_divided_into_stages_before_their_layers_are() -> None:
    """DeepSeek-V3 on 256 B200 of eight a node: NVIDIA's recipe has tp 1, pp 16, ep 8; what it was
    given before (tp 8, pp 1) computes at a twentieth of the peak."""
    own = {"model": "deepseek-v3", "system": "dgx-b200", "framework": "megatron-bridge"}
    plan = complete(**own, gpus=256, global_batch=4096, seq_len=4096).plan
    assert plan.tp == 1
    assert plan.pp in (8, 16)
    assert plan.ep == 8


def test_ranks_stay_wide_where_pipelines_are_filled() -> None:
    """Of 8,192 wide layers four ranks at most; with a batch that fills no pipeline, all eight."""
    own = {"model": "llama3-70b", "framework": "nemo", "gpus": 64}
    assert complete(**own, global_batch=512).plan.tp == 4
    starved = complete(
        framework="megatron-lm", era="2021-04", gpus=8, global_batch=8, micro_batch=8
    )
    assert (starved.plan.tp, starved.plan.pp) == (8, 1)


def test_sequences_are_divided_where_there_are_fewer_than_replicas() -> None:
    """Llama 2 70B LoRA of MLPerf 5.0: nine sequences of 8,192 on 72 GB200, eight ranks for each."""
    own = {"model": "llama2-70b", "system": "GB200-NVL72", "framework": "nemo", "trained": "lora"}
    plan = complete(**own, gpus=72, global_batch=9, seq_len=8192).plan
    assert (plan.cp, plan.dp, plan.tp * plan.pp) == (8, 9, 1)
    assert complete(**own, gpus=72, global_batch=72, seq_len=8192).plan.cp == 1


def test_nvidias_pipelines_are_interleaved() -> None:
    """Llama 3 70B: 80 layers on 4 stages are 20 a device, five chunks of four in the recipes."""
    common = {"model": "llama3-70b", "tp": 4, "pp": 4, "gpus": 64, "era": "2024-02"}
    assert complete(**common, framework="nemo", global_batch=128).plan.vpp == 5
    assert complete(**common, framework="nemo", global_batch=128, vpp=1).plan.vpp == 1
    assert complete(**common, framework="nemo", global_batch=12).plan.vpp == 1
    assert complete(**common, framework="megatron-lm", global_batch=128).plan.vpp == 1


def test_automodels_examples_checkpoint_all_but_small_models() -> None:
    """examples/llm_benchmark: 30 B on eight H100 with four sequences of 4,096 each would need twice
    their memory if nothing were computed again."""
    own = {"framework": "nemo-automodel", "model": "qwen3-30b-a3b", "gpus": 8, "seq_len": 4096}
    found = complete(**own, global_batch=512, micro_batch=4, ep=8)
    assert (found.plan.recompute, found.plan.optimizer_bytes) == ("full", 4)
    run = RUN
    assert float(memory(found.model, found.plan, run).peak) < 80 * 2**30
    kept = replace(found.plan, recompute="none")
    assert float(memory(found.model, kept, run).peak) > 1.5 * 80 * 2**30
    small = complete(framework="nemo-automodel", model="llama3.1-8b", trained="lora", gpus=8)
    assert small.plan.recompute == "none"


def test_automodels_pipelines_of_lora_were_not_compiled() -> None:
    own = {
        "framework": "nemo-automodel",
        "model": "llama3-70b",
        "trained": "lora",
        "tp": 2,
        "pp": 4,
    }
    old, new = complete(**own, era="2025-12").plan, complete(**own, era="2026-06").plan
    assert (old.fused, new.fused) == (False, True)


@pytest.mark.parametrize("field", ["offload_activations", "offload_optimizer"])
def test_memory_of_a_host_is_assumed_as_soon_as_anything_lies_there(field: str) -> None:
    for system, unknown in (("HGX-H20", True), ("dgx-h100", False)):  # of which 2 TB are known
        nothing, some, stated = (
            complete(system=system, tp=8, **more)
            for more in ({}, {field: 0.5}, {field: 0.5, "host_memory_gb": 1024})
        )
        told = [
            "host_memory_gb" in {a.field for a in one.assumed} for one in (nothing, some, stated)
        ]
        assert told == [False, unknown, False]


def test_what_is_filled_in_leaves_the_room_that_searches_leave() -> None:
    """A plan that nobody ran is not laid out at the brim: Llama-3 70B of 8,192 tokens on 64 H100
    without recomputation takes more than 95 % of them. What was published did run."""
    asked = {"model": "llama3-70b", "gpus": 64, "global_batch": 256, "seq_len": 8192}
    asked |= {"accelerator": "H100-SXM5-80GB", "tp": 4, "pp": 8}
    spec = parse(TrainingPlanSpec, asked, "test")
    run = load("default").run
    planned, ran = (complete_training(spec, run, strict=strict) for strict in (True, False))
    peaks = [float(memory(one.model, one.plan, run).peak) for one in (planned, ran)]
    room = planned.cluster.accelerator.memory
    assert peaks[0] <= MEMORY_FRACTION * room < peaks[1] <= room
    assert (planned.plan.recompute, ran.plan.recompute) == ("full", "none")


@pytest.mark.parametrize("framework", ["nemo", "torchtitan", "deepspeed"])
def test_sequences_that_fit_on_no_rank_are_divided(framework: str) -> None:
    """131,072 tokens of an 8B: no plan without context parallelism fits in 80 GB as these
    frameworks recompute; nobody trains what runs out of memory where another plan would not. Where
    somebody states that no rank shares a sequence, whole layers again."""
    fields = {"framework": framework, "seq_len": 131072, "global_batch": 64, "gpus": 64}
    found = complete(**fields)
    capacity = found.cluster.accelerator.memory
    assert found.plan.cp > 1
    assert memory(found.model, found.plan, RUN).peak <= capacity
    undivided = complete(**fields, cp=1)
    assert undivided.plan.cp == 1
    again = framework != "deepspeed"  # whose loss keeps all logits
    assert (memory(undivided.model, undivided.plan, RUN).peak <= capacity) == again
    assert undivided.plan.recompute != found.plan.recompute or not again
    assert complete(**fields, era="2023-01").plan.cp == 1


def test_short_sequences_are_divided_for_no_memory() -> None:
    """Weights that do not fit need no context parallelism, which divides none of them."""
    found = complete(model="llama3-70b", framework="deepspeed", gpus=8, global_batch=64)
    assert found.plan.cp == 1


@pytest.mark.parametrize(("tp", "ep", "dp"), [(1, 8, 8), (2, 8, 4), (8, 4, 1), (4, 16, 4)])
def test_a_layout_without_a_number_of_accelerators_has_as_many_as_its_experts_need(
    tp: int, ep: int, dp: int
) -> None:
    """The fewest replicas whose ranks the experts' divide: an ep of 8 was refused beside dp 1."""
    found = complete(
        model="qwen3-30b-a3b", gpus=None, tp=tp, pp=1, cp=1, ep=ep, etp=1, global_batch=96
    )
    assert int(found.plan.dp) == dp
    assert tp * dp % ep == 0


def test_long_sequences_are_divided_rather_than_starve_a_pipeline() -> None:
    """32,768 tokens of a mixture on 256 H100: what fits on whole sequences is a pipeline of eight
    micro-batches for sixteen stages, nearly half of it bubble. Among ranks they fill it, in less
    time; who states one rank a sequence has it."""
    given: dict[str, object] = {"global_batch": 128, "seq_len": 32768}
    mixture: dict[str, object] = {"model": "qwen3-235b-a22b", "gpus": 256}
    free, whole = (complete(**mixture, **given, **more) for more in ({}, {"cp": 1}))
    assert whole.plan.cp == 1 < free.plan.cp
    assert whole.plan.micro_batches < ROUNDS * whole.plan.pp
    assert free.plan.micro_batches >= ROUNDS * free.plan.pp
    run = load("default")
    times = [predict(one.model, one.cluster, one.plan, run).step_time for one in (free, whole)]
    assert float(times[0]) < float(times[1])


def test_where_every_pipeline_starves_it_is_filled_as_far_as_may_be() -> None:
    """A sequence of 32,768 tokens for each 32 H100: eight ranks for each leave 8 micro-batches to 8
    stages, not one; what cannot fill them waits least with most. Of what ran nobody divided it."""
    given: dict[str, object] = {"model": "llama3.1-405b", "gpus": 16384, "seq_len": 32768}
    found = complete(**given, global_batch=512)
    assert found.plan.micro_batches >= found.plan.pp > 1 < found.plan.cp
    assert found.plan.micro_batches < ROUNDS * found.plan.pp
    rather = complete(**given, global_batch=128)
    assert rather.plan.micro_batches < rather.plan.pp
    assert rather.plan.cp == 32768 / LEAST_SHARE
    run = load("default")
    whole = complete(**given, global_batch=512, cp=1)
    times = [predict(one.model, one.cluster, one.plan, run).step_time for one in (found, whole)]
    assert float(times[0]) < 0.6 * float(times[1])


def test_a_pipeline_shards_nothing_unless_it_is_told_to() -> None:
    """Of a framework that shards as little as it needs: under a pipeline, nothing; hybrid sharding
    is inside a node, any other over all replicas."""
    least = {"framework": "huggingface", "global_batch": 64, "gpus": 16, "seq_len": 4096}
    assert complete(**least, pp=2).plan.sharding == "none"
    assert complete(**least).plan.sharding != "none"
    shards = {kind: complete(sharding=kind, tp=2).plan for kind in ("hsdp", "fsdp", "zero1")}
    assert shards["hsdp"].dp_shard == shards["hsdp"].shard_group == 4  # of two ranks a layer
    assert shards["fsdp"].shard_group == shards["zero1"].shard_group == 32
    assert complete(sharding="hsdp", gpus=4, tp=1).plan.shard_group == 4
