"""What tables call frameworks and engines: releases, platforms and remarks beside a known name."""

import pytest

import reckon
from predictor.catalog import frameworks, ported, recognised
from predictor.catalog.software import all_engines


@pytest.mark.parametrize(
    ("written", "engine"),
    [
        ("vLLM 0.4.3+rocm614, PyTorch 2.3.0, ROCm 6.1.2", "vllm"),
        ("sglang-v0.5.9", "sglang"),
        ("tensorrt-llm (triton backend)", "tensorrt-llm"),
        ("vllm-gaudi", "vllm-gaudi"),  # an engine of its own, not a platform of vLLM
        ("lmdeploy-turbomind", "lmdeploy"),
        ("Ollama", "llama.cpp"),
        ("NVIDIA Dynamo (TRT-LLM)", "tensorrt-llm"),  # what it runs on
        ("dynamo-vllm", "vllm"),
        ("MAX 25.4", "max"),
        ("MindIE 2.0", "mindie"),
        ("AMD ATOM", "atom"),
        ("JetStream (MaxText)", "jetstream"),
        ("mlx-lm 0.21", "mlx"),
        ("Ray Serve with vLLM 0.11", "vllm"),
        ("hf-tgi", "tgi"),
        ("colossal-ai", "deepspeed"),
        ("DeepSpeed-Inference 0.6", "deepspeed"),
        ("deepspeed-fastgen", "deepspeed-mii"),
        ("vllmesque", None),
        ("myvllm", None),
        ("CUDA 12.2", None),
    ],
)
def test_engines(written: str, engine: str | None) -> None:
    assert recognised(written, all_engines()) == engine


@pytest.mark.parametrize(
    ("name", "vendor", "engine"),
    [
        ("vllm", "NVIDIA", "vllm"),
        ("vllm", "AMD", "vllm-rocm"),
        ("vllm", "Intel", "vllm-gaudi"),
        ("vllm", "AWS", "transformers-neuronx"),
        ("tgi", "Intel", "optimum-habana"),
        ("tgi", "AMD", "tgi"),
        ("neutral", "AMD", "neutral"),
    ],
)
def test_engines_have_ports(name: str, vendor: str, engine: str) -> None:
    assert ported(name, vendor) == engine


def test_an_engine_is_its_port_on_every_path() -> None:
    """Asked for by name, and in a table."""
    asked = {"gpus": 8, "tp": 8, "batch": 16, "input_len": 512, "output_len": 64}
    named, own = (
        reckon.predict_infer("llama3-70b", "mi300x-8x", {**asked, "framework": framework})
        for framework in ("vllm", "vllm-rocm")
    )
    assert named.request.plan.framework == "vllm-rocm"
    assert named.to_dict()["tpot_s"] == own.to_dict()["tpot_s"]


@pytest.mark.parametrize(
    ("written", "framework"),
    [
        ("NeMo 2.0", "nemo"),
        ("nemo-automodel", "nemo-automodel"),  # not NeMo, with whose name it begins
        ("primus (megatron)", "megatron-lm"),
        ("megatron-deepspeed", "megatron-deepspeed"),
        ("lit-gpt fork (FSDP)", "litgpt"),
        ("AXLearn", "maxtext"),
        ("PyTorch/XLA 2.5", "maxtext"),  # XLA's, not PyTorch's own launches
        ("torch_xla", "maxtext"),
        ("PyTorch 2.5", "pytorch"),
        ("torchtune", "torchtune"),
        ("Primus (torchtitan)", "torchtitan"),  # its other backend
        ("FlagScale", "megatron-lm"),
        ("ms-swift 3.1", "huggingface"),
        ("OpenRLHF", "deepspeed"),
        ("NeMo Megatron Bridge", "megatron-bridge"),
        ("PyTorch torchtitan", "torchtitan"),
        ("Megatron-LM + DeepSpeed", "megatron-deepspeed"),
        ("EasyDeL (JAX)", "maxtext"),
        ("PyTorch DDP", "pytorch"),
        ("Hugging Face Trainer", "huggingface"),
        ("oneflow", None),
    ],
)
def test_frameworks(written: str, framework: str | None) -> None:
    assert recognised(written, frameworks()) == framework


def test_huggingfaces_trainer_is_plain_pytorch() -> None:
    """DDP with fp32 weights, gradients and moments (4 + 4 + 8 bytes) unless sharding is asked for,
    whose gradients travel in 16 bits; attention is one operator since Transformers 4.36."""
    plan = {"gpus": 8, "global_batch": 32, "seq_len": 2048, "framework": "axolotl"}
    found = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", plan).request.plan
    assert (found.framework, found.sharding, found.attention) == ("huggingface", "none", "flash2")
    assert found.weight_bytes + found.gradient_bytes + found.optimizer_bytes == 16
    assert (found.reduce_bytes, found.fused) == (4, False)
    old = {**plan, "era": "2023-06"}
    before = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", old).request.plan
    assert before.attention == "unfused"
    sharded = {**plan, "sharding": "fsdp"}
    other = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", sharded).request.plan
    assert other.reduce_bytes == 2
    staged = {**plan, "sharding": "zero2"}  # DeepSpeed's: 16-bit weights beside an fp32 copy
    other = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", staged).request.plan
    assert (other.weight_bytes, other.optimizer_bytes, other.reduce_bytes) == (2, 12, 2)


@pytest.mark.parametrize(
    ("model", "era", "fused"),
    [("llama2-7b", "2023-09", False), ("gpt3-5b", "2023-09", True), ("llama2-7b", "2024-06", True)],
)
def test_megatrons_gates_were_single_operators_until_megatron_core_had_kernels(
    model: str, era: str, fused: bool
) -> None:
    """Models with gates and rotary embeddings alone: Megatron's own had fused kernels before."""
    asked = {"gpus": 8, "global_batch": 64, "seq_len": 2048, "framework": "megatron-lm"}
    plan = reckon.predict_train(model, "dgx-a100-80gb", {**asked, "era": era}).request.plan
    assert plan.fused == fused
    assert (plan.sharding, plan.attention) == ("zero1", "flash")


@pytest.mark.parametrize(
    ("name", "system", "framework"),
    [
        ("optimum-habana", "gaudi2-hls2", "huggingface"),
        ("Optimum Neuron", "aws-trn1.32xlarge", "neuronx-distributed"),
        ("neuronx", "aws-trn1.32xlarge", "neuronx-distributed"),
    ],
)
def test_an_engines_name_says_what_trains_under_it(name: str, system: str, framework: str) -> None:
    asked = {"gpus": 32, "global_batch": 64, "seq_len": 4096, "framework": name}
    assert reckon.predict_train("llama3-8b", system, asked).request.plan.framework == framework


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_plain_pytorch_exchanges_beside_its_passes(sharding: str) -> None:
    """DistributedDataParallel's buckets and FSDP's gathers hide, on devices that have processors to
    themselves: two nodes wait for less than half of what a step exchanges unhidden."""
    asked = {"gpus": 16, "global_batch": 128, "seq_len": 4096, "framework": "pytorch"}
    asked |= {"micro_batch": 4, "sharding": sharding}
    found = reckon.predict_train("llama3.2-1b", "dgx-h100", asked)
    bare = {**asked, "grad_overlap": False, "param_overlap": False}
    shown, whole = (
        one.breakdown["dp_communication"]
        for one in (found, reckon.predict_train("llama3.2-1b", "dgx-h100", bare))
    )
    assert shown < whole / 2


SHARDED = ("none", "zero1", "zero2", "fsdp")


@pytest.mark.parametrize(
    ("framework", "model", "gpus"),
    [
        ("huggingface", "llama3-8b", 1),
        ("huggingface", "llama3-8b", 8),
        ("huggingface", "llama3-70b", 64),
        ("pytorch", "llama3-8b", 1),
        ("pytorch", "llama3-8b", 8),
    ],
)
def test_trainers_without_pipelines_shard_before_anything_runs_again(
    framework: str, model: str, gpus: int
) -> None:
    """What replicates its model unless told otherwise is told to shard it where it does not fit: no
    tensor or pipeline parallelism is invented; every lesser sharding lacks memory, or runs again
    what this one does not; on one device there is nothing to share."""
    asked = {"gpus": gpus, "global_batch": 64, "seq_len": 4096, "framework": framework}
    found = reckon.predict_train(model, "h100", asked)
    plan = found.request.plan
    assert (plan.tp, plan.pp, plan.dp) == (1, 1, gpus)
    assert (plan.sharding == "none") == (gpus == 1)
    rule = next(one.rule for one in found.request.assumed if one.field == "sharding")
    assert "least" in rule
    assert bool(found.peak_memory <= found.capacity) == (gpus > 1)
    for less in SHARDED[: SHARDED.index(plan.sharding)]:
        other = reckon.predict_train(model, "h100", {**asked, "sharding": less})
        over = bool(other.peak_memory > 0.95 * other.capacity)
        assert over or (other.request.plan.recompute, plan.recompute) == ("full", "none")


@pytest.mark.parametrize(
    ("framework", "era", "habits"),
    [
        ("pytorch", "2020-06", ("none", "unfused")),
        ("pytorch", "2024-06", ("none", "flash")),
        ("fsdp", "2022-06", ("hsdp", "unfused")),
        ("maxtext", "2021-06", ("fsdp", "unfused")),
        ("paxml", "2024-06", ("fsdp", "flash")),
        ("deepspeed", "2020-02", ("zero1", "unfused")),
        ("deepspeed", "2020-09", ("zero2", "unfused")),
        ("deepspeed", "2021-06", ("zero3", "unfused")),
    ],
)
def test_nobody_does_what_was_not_published_yet(
    framework: str, era: str, habits: tuple[str, str]
) -> None:
    asked = {"gpus": 8, "global_batch": 64, "seq_len": 1024, "framework": framework, "era": era}
    plan = reckon.predict_train("gpt2-124m", "dgx-a100-80gb", asked).request.plan
    assert (plan.sharding, plan.attention.removesuffix("2")) == habits


@pytest.mark.parametrize(("era", "looped"), [("2025-09", True), ("2026-06", False)])
def test_huggingfaces_experts_were_a_loop_until_transformers_5(era: str, looped: bool) -> None:
    """A hundred and twenty-eight small experts of forty-eight layers: the host cannot keep up."""
    asked = {"gpus": 16, "global_batch": 64, "seq_len": 4096, "framework": "huggingface"}
    found = reckon.predict_train("qwen3-30b-a3b", "h100", {**asked, "era": era})
    assert found.request.plan.experts_looped == looped
    other = {**asked, "era": era, "experts_looped": not looped}
    stated = reckon.predict_train("qwen3-30b-a3b", "h100", other)
    slow, fast = (found, stated) if looped else (stated, found)
    assert slow.step_time.value > 1.2 * fast.step_time.value
    assert not reckon.predict_train("llama3-8b", "h100", asked).request.plan.experts_looped


def test_checkpoints_of_huggingfaces_trainer_are_of_every_layer() -> None:
    """`gradient_checkpointing` is a switch: nothing runs again, or every layer does."""
    asked = {"gpus": 8, "global_batch": 64, "seq_len": 8192, "framework": "huggingface"}
    plan = reckon.predict_train("llama3-8b", "h100", asked).request.plan
    assert (plan.recompute, plan.recompute_share) == ("full", 1.0)
    short = reckon.predict_train("llama3-8b", "h100", {**asked, "seq_len": 1024}).request.plan
    assert short.recompute == "none"


@pytest.mark.parametrize(
    ("system", "framework"),
    [("tpu-v5e-pod", "maxtext"), ("aws-trn2.48xlarge", "neuronx-distributed")],
)
def test_pytorch_runs_through_their_compiler_on_chips_that_have_no_other(
    system: str, framework: str
) -> None:
    plan = {"gpus": 16, "global_batch": 32, "seq_len": 2048}
    own = reckon.predict_train("llama3.2-1b", system, plan)
    plain = reckon.predict_train("llama3.2-1b", system, {**plan, "framework": "PyTorch"})
    assert plain.request.plan.framework == framework
    assert plain.step_time.value == pytest.approx(own.step_time.value)
