"""Forms of launch files of 2025 and 2026: what is read of each, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InputError
from reckon.launch import DIALECTS, read_launch


def test_a_gate_of_another_kind_is_a_gate_too() -> None:
    """Three matrices of each expert, as `--quick-geglu` makes them (GPT-OSS of Megatron-LM)."""
    line = ("torchrun pretrain_gpt.py --num-layers 12 --hidden-size 512 --ffn-hidden-size 2048 "
            "--num-attention-heads 64 --group-query-attention --num-query-groups 8 "
            "--disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm "
            "--position-embedding-type rope --vocab-size 128256 --num-experts 4 "
            "--moe-router-topk 2 --seq-length 8192 --micro-batch-size 1 --bf16")  # fmt: skip
    plain, gated = (read_launch("megatron", one).model for one in (line, f"{line} --quick-geglu"))
    assert plain is not None
    assert gated is not None
    assert gated.parameters - plain.parameters == 12 * 4 * 512 * 2048


def test_megatron_fsdp_says_in_what_gradients_are_kept_and_sent() -> None:
    line = (
        "torchrun pretrain_gpt.py --use-megatron-fsdp --use-distributed-optimizer --bf16 "
        "--data-parallel-sharding-strategy optim_grads_params --micro-batch-size 1 "
    )
    sent = "--megatron-fsdp-grad-comm-dtype bf16 "
    kept = "--megatron-fsdp-main-grads-dtype bf16"
    for given, expected in ((line, (4, 4)), (line + sent, (4, 2)), (line + kept, (2, 2))):
        fields = read_launch("megatron", given).fields
        assert (fields["gradient_bytes"], fields["reduce_bytes"]) == expected
    with pytest.raises(InputError, match="known are auto, fp32"):
        read_launch("megatron", line + "--megatron-fsdp-grad-comm-dtype fp12")


BRIDGE = """
def glm45_air_106b_peft_8gpu_h100_bf16_config(peft_scheme: str | PEFT = "lora"):
    cfg = _peft_common()
    cfg.dataset = default_squad_config(seq_length=2048)
    hf_path = "zai-org/GLM-4.5-Air"
    cfg.model = AutoBridge.from_hf_pretrained(hf_path).to_megatron_provider(load_weights=False)
    cfg.peft = default_peft_config(peft_scheme)
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.train.global_batch_size = 128
    return cfg

def olmoe_7b_pretrain_8gpu_h100_bf16_config():
    cfg = _pretrain_common()
    cfg.model = OlMoEModelProvider(
        expert_model_parallel_size=8, recompute_granularity="selective", recompute_modules=None)
    cfg.mixed_precision = MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False)
    return cfg
"""


def test_a_recipe_says_its_model_its_adapters_and_its_precision(tmp_path: Path) -> None:
    """By names of its own, in the order of its lines (recipes of Megatron-Bridge of 2026)."""
    path = tmp_path / "glm45.py"
    path.write_text(BRIDGE, encoding="utf-8")
    found = read_launch("nemo", f"{path}:glm45_air_106b_peft_8gpu_h100_bf16_config")
    assert found.model is not None
    assert found.model.name == "glm-4.5-air"
    expected = {"trained": "lora", "lora_rank": 32, "pp": 4, "vpp": 1, "gpus": 8, "seq_len": 2048}
    assert {name: found.fields.get(name) for name in expected} == expected
    path.write_text(BRIDGE.replace('"lora"', "None"), encoding="utf-8")
    full = read_launch("nemo", f"{path}:glm45_air_106b_peft_8gpu_h100_bf16_config")
    assert full.fields["trained"] == "all"
    other = read_launch("nemo", f"{path}:olmoe_7b_pretrain_8gpu_h100_bf16_config")
    assert other.model is None
    assert any("OlMoEModelProvider" in note for note in other.notes)
    expected = {"ep": 8, "recompute": "selective", "precision": "bf16", "reduce_bytes": 2}
    assert {name: other.fields.get(name) for name in expected} == expected


def test_adapters_of_nemo_are_read_and_others_than_low_ranks_refused() -> None:
    text = """
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model:
  global_batch_size: 128
  micro_batch_size: 4
  peft:
    peft_scheme: lora
    lora_tuning: {adapter_dim: 16}
"""
    fields = read_launch("nemo", text).fields
    assert (fields["trained"], fields["lora_rank"]) == ("lora_qkv", 16)
    with pytest.raises(InputError, match="not predicted"):
        read_launch("nemo", text.replace("peft_scheme: lora", "peft_scheme: ptuning"))
    assert read_launch("nemo", text.replace(": lora\n", ": none\n")).fields["trained"] == "all"


def _primus(framework: str, model: str, settings: str) -> str:
    return (f"modules:\n  pre_trainer:\n    framework: {framework}\n    model: {model}.yaml\n"
            f"    overrides: {settings}\n")  # fmt: skip


def test_primus_drives_other_frameworks_too() -> None:
    titan = _primus("torchtitan", "gpt_oss_20b-fp8", "{training: {local_batch_size: 10, seq_len: "
                    "4096}, parallelism: {expert_parallel_degree: 8}}")  # fmt: skip
    found = read_launch("torchtitan", titan)
    assert found.model is not None
    assert found.model.name == "gpt-oss-20b"
    expected = {"micro_batch": 10, "seq_len": 4096, "ep": 8, "precision": "fp8",
                "recompute": "none", "sharding": "fsdp"}  # fmt: skip
    assert {name: found.fields.get(name) for name in expected} == expected
    jax = _primus("maxtext", "qwen3_30B_A3B", "{max_target_length: 4096, per_device_batch_size: 4}")
    other = read_launch("maxtext", jax)
    assert other.model is not None
    assert other.model.name == "qwen3-30b-a3b"
    assert (other.fields["seq_len"], other.fields["recompute"]) == (4096, "full")
    with pytest.raises(InputError, match="--from-maxtext reads it"):
        read_launch("megatron", jax)
    with pytest.raises(InputError, match="the rest is in that file"):
        read_launch("megatron", "extends: [base.yaml]\nlora: {dim: 32}\nmicro_batch_size: 2\n")


@pytest.mark.parametrize(("turbo", "expected"), [("true", "once"), ("false", None)])
def test_the_dispatcher_of_primus_sends_a_token_once(turbo: str, expected: str | None) -> None:
    text = _primus("megatron", "qwen3_30B_A3B", "{enable_primus_turbo: " + turbo +
                   ", use_turbo_deepep: true, micro_batch_size: 8, seq_length: 4096}")  # fmt: skip
    assert read_launch("megatron", text).fields.get("dispatch") == expected


DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    decode:
      subComponentType: decode
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0
          command: [/bin/bash, -c]
          args: ["exec python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-R1
            --all2all-backend deepep_low_latency --data-parallel-size 16
            --enable-expert-parallel --max-num-seqs 512"]
    prefill:
      subComponentType: prefill
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0
          command: [/bin/bash, -c]
          args: ["exec python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-R1 --is-prefill-worker
            --data-parallel-size 8 --enable-expert-parallel --max-num-seqs 64"]
"""


@pytest.mark.parametrize("said", ["--is-prefill-worker", "--disaggregation-mode prefill"])
def test_what_reads_prompts_apart_in_dynamo_is_not_what_decodes(said: str) -> None:
    found = read_launch("vllm", DYNAMO.replace("--is-prefill-worker", said))
    expected = {"dp": 16, "ep": 16, "max_batch": 512, "prefill_workers": 1, "prefill_tp": 1,
                "prefill_dp": 8}  # fmt: skip
    assert {name: found.fields.get(name) for name in expected} == expected
    assert not any("prefill" in name for name in found.unknown)


@pytest.mark.parametrize(("line", "what"), [
    ("docker run ghcr.io/huggingface/text-generation-inference:3.3 --model-id x/y --num-shard 4",
     "tgi"),
    ("lmdeploy serve api_server internlm/internlm3-8b-instruct --tp 2", "lmdeploy"),
    ("llama-server -hf unsloth/Qwen3.5-9B-GGUF:Q4_K_M -c 8192", "llama-cpp"),
])  # fmt: skip
def test_lines_of_other_engines_are_told_their_readers(line: str, what: str) -> None:
    with pytest.raises(InputError, match=f"of another engine; --from-{what} reads it"):
        read_launch("vllm", line)
    assert read_launch(what, line).fields["framework"] == DIALECTS[what].framework


def test_a_short_name_of_guessing_is_known() -> None:
    line = ("python3 -m dynamo.sglang --model-path Qwen/Qwen3-8B --tp 4 --speculative-algo EAGLE "
            "--speculative-num-steps 3 --speculative-eagle-topk 1")  # fmt: skip
    found = read_launch("sglang", line)
    assert found.fields["drafted"] == 3
    assert not found.unknown


@pytest.mark.parametrize(
    ("said", "ep"),
    [
        ("", 1),
        ("--moe-a2a-backend none", 1),
        ("--moe-a2a-backend deepep", 16),
        ("--moe-a2a-backend flashinfer --ep-size 1", 16),
        ("--enable-deepep-moe", 16),
        ("--ep-size 16", 16),
    ],
)
def test_with_an_exchange_of_tokens_every_rank_of_sglang_has_experts_of_its_own(said, ep) -> None:
    line = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 "
    found = read_launch("sglang", line + "--enable-dp-attention " + said)
    assert {"tp": 1, "dp": 16, "ep": ep}.items() <= found.fields.items()
    assert found.unknown == []


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("enable_attention_dp: true\n", "waiting"),
        ("enable_attention_dp: true\nattention_dp_config:\n  enable_balance: true\n"
         "  batching_wait_iters: 10\n  timeout_iters: 50\n", "apart"),
        ("enable_attention_dp: true\nattention_dp_config:\n  enable_balance: false\n", "waiting"),
        ("enable_attention_dp: false\n", None),
    ],
)  # fmt: skip
def test_tensorrt_llm_balances_prompts_of_its_replicas_only_if_told(said, passes) -> None:
    text = (f"cat >extra.yml<<EOF\n{said}EOF\ntrtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 "
            "--ep_size 8 --extra_llm_api_options extra.yml")  # fmt: skip
    found = read_launch("trtllm", text)
    assert found.fields.get("replica_passes") == passes
    assert found.unknown == []


@pytest.mark.parametrize(("shared", "replicas"), [("--enable-dp-attention ", 16), ("", 1)])
def test_replicas_of_sglang_share_a_chunk_and_running_requests(shared: str, replicas: int) -> None:
    line = ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 "
            f"{shared}--chunked-prefill-size 131072 --max-running-requests 4096")  # fmt: skip
    found = read_launch("sglang", line).fields
    assert (found["chunk"], found["max_batch"]) == (131072 / replicas, 4096 / replicas)
    small = read_launch("sglang", line.replace("131072", "8")).fields
    assert small["chunk"] == (1 if shared else 8), "no chunk is without a token"
