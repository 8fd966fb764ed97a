"""Launch lines: what is written reads back as the same plan; real scripts are understood."""

from __future__ import annotations

import json
import random
import tomllib
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec, TrainingPlanSpec
from predictor.errors import InputError
from predictor.serving.completion import ServingRequest, complete_serving
from predictor.timing.calibration import Calibration
from predictor.training.completion import TrainingRequest, complete_training
from reckon.launch import DIALECTS, emit, read_launch

ANY: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4],
    "seq_len": [2048, 4096, 8192],
    "precision": ["bf16", "bf16", "fp16", "fp8", "fp8_block", "mxfp8"],
    "recompute": ["none", "selective", "full"],
    "recompute_modules": ["core_attn", "core_attn,mlp", "layernorm,moe", "moe_act,shared_experts"],
    "offload_optimizer": [None, None, 0.5, 1],
    "routed_nodes": [None, 2],
    "sharding": ["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"],
    "cp_kind": ["ring", "allgather", "ulysses"],
    "attention": ["flash", "unfused"],
    "dispatch": ["copies", "once"],
    "rank_order": ["tp-cp-dp-pp", "tp-cp-pp-dp"],
    "expert_load": [1, 1.1, 1.25],
    "tokens": [1e12, None],
    "optimizer_bytes": [None, 8, 6],
    **{
        name: [True, False]
        for name in ("sequence_parallel", "grad_overlap", "param_overlap", "tp_overlap", "fused",
                     "p2p_overlap", "ep_overlap", "tp_async_backward", "dropout", "grad_clip",
                     "mtp")
    },
}  # fmt: skip
"""What Megatron-LM's arguments can say."""

TORCHTITAN: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4],
    "seq_len": [4096, 8192],
    "precision": ["bf16", "fp8", "fp8_rowwise", "mxfp8", "nvfp4"],
    "recompute": ["none", "per_op", "full"],
    "sharding": ["fsdp", "zero3", "hsdp"],
    "cp_kind": ["ring", "allgather"],
    "schedule": ["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipev"],
    "tp_overlap": [True, False],
    "reshard": [True, False],
    "fused": [True, False],
    "grad_clip": [True, False],
    "tokens": [1e12, None],
}

SAYABLE = [
    name
    for name in catalog.rows("models")
    if (m := catalog.model(name)).positions != "alibi"
    and not m.is_hybrid
    and not (m.is_sparse or m.is_compressed or m.residual_block)
    and not m.delta_layers
    and len(m.attention_kinds) == 1
    and not (m.conv_layers or m.output_gate or m.head_gate)
    and not m.sliding_pattern.startswith("chunked")
    and (m.gated or m.activation in ("gelu", "squared_relu"))
]


def random_training(
    rng: random.Random,
    space: dict[str, list[Any]],
    models: list[str],
    framework: str,
    run: Any,
) -> TrainingRequest:
    """A random plan that obeys the laws."""
    while True:
        model = catalog.model(rng.choice(models))
        tp, pp, cp, dp = (2 ** rng.randrange(most) for most in (4, 4, 3, 5))
        fields = {name: rng.choice(values) for name, values in space.items()}
        fields |= {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "gpus": tp * pp * cp * dp}
        fields["global_batch"] = fields["micro_batch"] * dp * rng.choice([1, 2, 8, 16])
        fields["framework"] = framework
        if fields.get("schedule") in ("zb-v", "dualpipev"):
            fields["vpp"] = 2
        if pp > 1 and fields.get("schedule", "1f1b") == "1f1b":
            fields["vpp"] = rng.choice([1, 1, 2, 4]) if framework != "torchtitan" else 1
        if pp > 2 and fields.get("vpp", 1) == 1 and framework == "megatron-lm":
            fields |= rng.choice([{}, {"first_layers": 1}, {"first_layers": 2, "last_layers": 1}])
        if fields["sharding"] == "hsdp":
            fields["dp_shard"] = rng.choice([n for n in (2, 4, 8, dp) if dp % n == 0])
        if fields["precision"] == "fp16":
            fields |= {"gradient_bytes": 2, "reduce_bytes": 2}
        if fields["recompute"] == "full" and framework != "torchtitan":
            layers = model.layers / (pp * fields.get("vpp", 1))
            if layers == int(layers) and rng.random() < 0.3:
                fields |= {"recompute_method": "uniform", "recompute_layers": rng.choice([1, 2])}
            elif layers == int(layers):
                fields["recompute_share"] = rng.randrange(1, int(layers) + 1) / layers
        if model.is_moe:
            fields["ep"] = rng.choice([n for n in (1, 2, 4) if (tp * cp * dp) % n == 0])
            fields["etp"] = rng.choice([1, tp]) if framework != "torchtitan" else 1
        spec = parse(TrainingPlanSpec, fields, "test")
        try:
            return complete_training(spec, run, model=model, cluster=catalog.system("dgx-b200"))
        except InputError:
            continue


def random_serving(
    rng: random.Random, space: dict[str, list[Any]], framework: str, run: Any
) -> ServingRequest:
    """A random way to serve that obeys the laws."""
    names = [n for n, row in catalog.rows("models").items() if row.get("hf_id")]
    while True:
        name = rng.choice(names)
        model = catalog.model(name)
        fields = {name: rng.choice(values) for name, values in space.items()}
        fields |= {"input_len": rng.randrange(1, 4096), "output_len": rng.randrange(1, 1024)}
        fields |= rng.choice(
            [{"batch": 64}, {"concurrency": 256}, {"saturated": True}, {"rate": 7.5}]
        )
        tp, dp = 2 ** rng.randrange(4), 2 ** rng.randrange(3)
        fields |= {"tp": tp, "dp": dp, "framework": framework}
        fields["ep"] = rng.choice([1, tp * dp]) if model.is_moe else 1
        if fields["prefill_workers"] and "batch" not in fields:
            fields["prefill_tp"] = 2 ** rng.randrange(4)
        else:
            fields["prefill_workers"] = 0
        try:
            return complete_serving(
                parse(ServingPlanSpec, fields, "test"),
                run,
                model=model,
                cluster=catalog.system("dgx-b200"),
            )
        except InputError:
            continue


ENGINES: dict[str, dict[str, list[Any]]] = {
    "vllm": {
        "pp": [1, 2], "precision": ["bf16", "fp16", "fp8", "int4_wo", "nvfp4"],
        "kv_precision": ["fp8", None], "execution": ["graph", "eager"],
        "allreduce": ["custom", "nccl"], "max_batch": [64, 256, 1024], "chunk": [2048, 8192],
        "drafted": [0, 0, 3], "prefill_workers": [0, 0, 1, 5],
    },
    "sglang": {
        "pp": [1], "precision": ["bf16", "fp16", "fp8", "sq", "int4_wo"],
        "kv_precision": ["fp8", None], "execution": ["graph", "eager"],
        "allreduce": ["custom", "nccl"], "max_batch": [64, 256, 1024], "chunk": [2048, 8192],
        "drafted": [0, 0, 4], "prefill_workers": [0, 0, 1, 5],
    },
}  # fmt: skip


def missed(requests: list[Any], dialect: str, run: Any, but: tuple[str, ...] = ()) -> list[str]:
    """What the launch lines of requests do not say."""
    found = []
    for request in requests:
        written = emit(dialect, request, run)
        found += [
            f"{request.model.name}: {one}\n{written.text}"
            for one in written.unsaid
            if one.field not in but
        ]
    return found


@pytest.mark.parametrize(("dialect", "count"), [("megatron", 400), ("nemo", 100)])
def test_megatron_arguments_read_back_as_the_same_plan(
    dialect: str, count: int, kernels_only: Calibration
) -> None:
    rng = random.Random(7)
    run, framework = kernels_only.run, DIALECTS[dialect].framework
    plans = [random_training(rng, ANY, SAYABLE, framework, run) for _ in range(count)]
    assert {p.plan.recompute for p in plans} == {"none", "selective", "full"}
    assert any(p.model.is_moe for p in plans)
    assert any(p.model.is_latent for p in plans)
    found = missed(plans, dialect, run)
    assert not found, found[0]


def test_torchtitan_jobs_read_back_as_the_same_plan(kernels_only: Calibration) -> None:
    from reckon.launch.torchtitan import FLAVORS

    rng = random.Random(8)
    known = [name for name in FLAVORS if name not in ("llama3.1-8b", "llama3.1-70b")]
    plans = [
        random_training(rng, TORCHTITAN, known, "torchtitan", kernels_only.run) for _ in range(300)
    ]
    found = missed(plans, "torchtitan", kernels_only.run)
    assert not found, found[0]


@pytest.mark.parametrize(("dialect", "count"), [("vllm", 300), ("sglang", 100)])
def test_serving_lines_read_back_as_the_same_plan(
    dialect: str, count: int, kernels_only: Calibration
) -> None:
    rng = random.Random(9)
    run = kernels_only.run
    plans = [random_serving(rng, ENGINES[dialect], dialect, run) for _ in range(count)]
    assert any(p.plan.prefill_workers > 1 for p in plans)
    found = missed(plans, dialect, run, but=("acceptance", "draft_cost"))
    assert not found, found[0]


def test_tensorrt_llm_says_all_but_static_batches(kernels_only: Calibration) -> None:
    rng = random.Random(10)
    space = {**ENGINES["vllm"], "precision": ["bf16", "fp8", "fp8_block", "nvfp4", "sq"],
             "prefill_workers": [0],
             "kv_precision": ["fp8", "int8", None], "admission": ["whole", "mean"]}  # fmt: skip
    run = kernels_only.run
    plans = [random_serving(rng, space, "tensorrt-llm", run) for _ in range(100)]
    said = [p for p in plans if p.plan.serving and (p.plan.dp == 1 or _told(p))]
    assert any(p.plan.dp > 1 and p.model.is_moe for p in said)
    assert any(p.plan.dp > 1 and not p.model.is_moe for p in said)
    assert not missed(said, "trtllm", run, but=("acceptance", "draft_cost"))
    mixed = [p for p in plans if not _told(p) and p.plan.dp > 1]
    assert all("dp" in " ".join(missed([p], "trtllm", run)) for p in mixed)


def _told(request: Any) -> bool:
    """Whether replicas are servers of their own, or attention is on each rank of a stage."""
    return not request.model.is_moe or request.plan.tp == 1


@pytest.mark.parametrize("dialect", [name for name, one in DIALECTS.items() if one.serving])
def test_every_line_of_an_engine_is_read_again(dialect: str, kernels_only: Calibration) -> None:
    """Also where it cannot say the plan: what it means then is told, and is a plan by itself, if
    perhaps one that the engine refuses (more ranks than a mixture's delta rule has key heads)."""
    rng = random.Random(12)
    run, framework = kernels_only.run, DIALECTS[dialect].framework
    space = {**ENGINES["vllm"], "precision": [None, "bf16", "fp8"], "prefill_workers": [0]}
    for _ in range(60):
        request = random_serving(rng, space, framework, run)
        written = emit(dialect, request, run)
        launch = read_launch(dialect, written.text)
        assert launch.model is not None
        fields = {**launch.fields, **{k: v for k, v in written.beside.items() if k != "model"}}
        spec = parse(ServingPlanSpec, fields, dialect)
        model = launch.model if "model" not in written.beside else request.model
        again = complete_serving(spec, run, False, model=model, cluster=request.cluster).plan
        told = {one.field for one in written.unsaid}
        assert {"tp", "pp", "dp"} & told or again.gpus == request.plan.gpus, written.text
        for name in ("tp", "pp", "dp", "ep", "max_batch", "chunk", "execution", "weights", "kv"):
            assert getattr(again, name) == getattr(written.again.plan, name), (name, written.text)
            held = getattr(again, name) == getattr(request.plan, name)
            assert held or name in told, (name, written.text)


def test_llama_cpp_deals_no_more_parts_than_there_are_layers(kernels_only: Calibration) -> None:
    """All ranks of a mixture would be 32 parts of 16 layers."""
    asked = {"tp": 8, "pp": 2, "dp": 2, "batch": 64, "input_len": 128, "output_len": 16,
             "framework": "llama.cpp"}  # fmt: skip
    run = kernels_only.run
    model, cluster = catalog.model("olmoe-1b-7b"), catalog.system("dgx-b200")
    spec = parse(ServingPlanSpec, asked, "test")
    request = complete_serving(spec, run, model=model, cluster=cluster)
    written = emit("llama-cpp", request, run)
    assert written.again.plan.pp == 16
    assert "--tensor-split " + ",".join(["1"] * 16) + " " in written.text


def test_deepspeed_says_batch_and_sharding(kernels_only: Calibration) -> None:
    rng = random.Random(11)
    space = {"micro_batch": [1, 2], "seq_len": [4096], "precision": ["bf16", "fp16"],
             "sharding": ["none", "zero1", "zero2", "zero3", "hsdp"], "grad_overlap": [True, False],
             "grad_clip": [True, False], "recompute": ["none"]}  # fmt: skip
    run = kernels_only.run
    plans = [random_training(rng, space, SAYABLE, "deepspeed", run) for _ in range(100)]
    for request in plans:
        written = emit("deepspeed", request, run)
        config = json.loads(written.text)
        steps = config["gradient_accumulation_steps"]
        batch = config["train_micro_batch_size_per_gpu"] * steps * int(request.plan.dp)
        assert batch == config["train_batch_size"]
        left = {one.field for one in written.unsaid}
        assert {"model", "seq_len"} <= left
        assert not left & {"dp", "tp", "pp", "micro_batch", "global_batch", "sharding", "dp_shard",
                           "precision", "grad_overlap", "grad_clip", "gpus"}  # fmt: skip


def test_what_a_line_cannot_say_is_said(kernels_only: Calibration) -> None:
    fields = {"tp": 2, "pp": 4, "gpus": 8, "global_batch": 8, "seq_len": 4096,
              "schedule": "zb-h1", "recompute": "per_op", "expert_load": 1.1}  # fmt: skip
    spec = parse(TrainingPlanSpec, fields, "test")
    llama, system = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    request = complete_training(spec, kernels_only.run, model=llama, cluster=system)
    written = emit("megatron", request, kernels_only.run)
    assert {one.field for one in written.unsaid} == {"schedule", "recompute"}
    assert "# not said here: schedule=zb-h1 (it means 1f1b)" in written.text
    bloom = complete_training(
        parse(TrainingPlanSpec, {"gpus": 8, "global_batch": 8, "seq_len": 2048}, "test"),
        kernels_only.run, model=catalog.model("bloom-7b1"), cluster=system,
    )  # fmt: skip
    assert "model" in {one.field for one in emit("megatron", bloom, kernels_only.run).unsaid}


def test_the_torchtitan_job_is_toml(kernels_only: Calibration) -> None:
    rng = random.Random(3)
    request = random_training(rng, TORCHTITAN, ["llama3-8b"], "torchtitan", kernels_only.run)
    job = tomllib.loads(emit("torchtitan", request, kernels_only.run).text)
    assert (job["model"]["name"], job["model"]["flavor"]) == ("llama3", "8B")
    assert job["training"]["seq_len"] == request.plan.seq_len


def test_engines_that_read_prompts_apart_have_lines_and_a_router(
    kernels_only: Calibration,
) -> None:
    fields = {"model": "llama3-70b", "system": "dgx-h100", "input_len": 4096, "output_len": 256,
              "rate": 10, "tp": 8, "prefill_workers": 3, "prefill_tp": 2,
              "framework": "sglang"}  # fmt: skip
    request = complete_serving(parse(ServingPlanSpec, fields, "test"), kernels_only.run)
    written = emit("sglang", request, kernels_only.run)
    assert not written.unsaid
    worker, engine = written.text.split("# where the answers")
    assert "--tp-size 2" in worker
    assert "--disaggregation-mode prefill" in worker
    assert "--tp-size 8" in engine
    assert engine.count("--prefill http") == 3
    launch = read_launch("sglang", written.text)
    assert launch.unknown == []
    two = written.text.replace("--decode http", "--decode http://D:1 --decode http")
    with pytest.raises(InputError, match="3 engines that read prompts for 2 that decode"):
        read_launch("sglang", two)
    other = emit("trtllm", request, kernels_only.run)
    assert "prefill_workers" in {one.field for one in other.unsaid}
    assert "# not said here: prefill_workers=3 (it means 0)" in other.text
