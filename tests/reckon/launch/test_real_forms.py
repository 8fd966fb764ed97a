"""Forms in which public repositories keep launch lines: what is read of each, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from predictor import catalog
from predictor.errors import InputError
from reckon.launch import read_launch
from reckon.launch.effects import by_effect, told
from reckon.launch.interpolation import interpolated
from reckon.launch.tokenizers import vocabulary

FUNCTIONAL = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-file: ${DATA_PATH}/text/the_pile/bpe/vocab.json
  --merge-file: ${DATA_PATH}/text/the_pile/bpe/merges.txt
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --sequence-parallel: true
  --deterministic-mode: true
  --bf16: true
"""


def test_a_functional_test_of_megatron_and_its_vocabulary() -> None:
    launch = read_launch("megatron", FUNCTIONAL)
    assert launch.model is not None
    assert (launch.model.layers, launch.model.hidden, launch.model.vocab) == (12, 512, 50257)
    assert launch.fields["vocab_multiple"] == 128  # padded to 128 x tp, as arguments.py does
    assert launch.fields["tp"] == 2
    assert launch.unknown == ["--deterministic-mode"]
    assert not any("CUDA" in flag for flag in launch.ignored)


def test_a_vocabulary_is_counted_in_the_file_that_is_named(tmp_path: Path) -> None:
    words = {f"w{n}": n for n in range(300)}
    body = {"model": {"vocab": words}, "added_tokens": [{"content": "<x>"}, {"content": "w3"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(body))
    pieces = (
        b"".join(b"\x0a\x03\x0a\x01" + bytes([65 + n]) for n in range(26)) + b"\x12\x02\x08\x01"
    )
    (tmp_path / "t.model").write_bytes(pieces)
    named = {"--tokenizer-model": "tokenizer.json"}
    assert vocabulary(named, tmp_path) == (301, "vocabulary 301 of tokenizer.json")
    assert vocabulary({"--tokenizer-model": "t.model"}, tmp_path)[0] == 26  # type: ignore[index]
    assert vocabulary({"--tokenizer-model": "/x/qwen3-8b-dist/tokenizer"}, tmp_path)[0] == 151936  # type: ignore[index]
    assert vocabulary({"--tokenizer-model": "/x/mine.model"}, tmp_path) is None


MEGATRON_DEEPSPEED = """
GPT_ARGS=" --num-layers 30 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 512 --bf16 \
  --position-embedding-type alibi --pad-vocab-size-to 250880 --checkpoint-activations \
  --train-tokens 300000000000 --tokenizer-name-or-path bigscience/tokenizer "
export CMD=" pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \
  $GPT_ARGS --deepspeed --deepspeed_config x.json --zero-stage 1 "
srun -N 4 --ntasks-per-node 8 bash -c 'python -u $CMD'
"""


def test_megatron_deepspeed() -> None:
    launch = read_launch("megatron", MEGATRON_DEEPSPEED)
    assert launch.model == catalog.model("bloom-7b1")  # alibi, 30 x 4096, 250,880 words
    wanted = {"recompute": "full", "sharding": "zero1", "gpus": 32, "tp": 2, "pp": 4,
              "tokens": 300_000_000_000}  # fmt: skip
    assert {name: launch.fields.get(name) for name in wanted} == wanted
    assert "--zero-stage" not in launch.unknown


def test_zero_3_and_experts_that_differ_from_layer_to_layer() -> None:
    line = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
    found = read_launch("megatron", line + "--vocab-size 99 --zero-stage 3")
    assert found.fields["sharding"] == "zero3"
    with pytest.raises(InputError, match="layers with different numbers of experts"):
        read_launch("megatron", line + "--vocab-size 99 --num-experts 64 64 128")


def test_a_configuration_split_over_files(tmp_path: Path) -> None:
    (tmp_path / "CONFIG.sh").write_text('export ARGS=" --num-layers ${NLS} --hidden-size 2304"\n')
    main = (
        "NLS=24\n. CONFIG.sh\npython pretrain_gpt.py $ARGS --num-attention-heads 24 "
        "--vocab-size 51200 --max-position-embeddings 2048\n"
    )
    (tmp_path / "run.sh").write_text(main)
    launch = read_launch("megatron", str(tmp_path / "run.sh"))
    assert launch.model is not None
    assert launch.model.name == "megatron-1.7b"
    (tmp_path / "CONFIG.sh").unlink()
    with pytest.raises(InputError, match="without its layers"):
        read_launch("megatron", str(tmp_path / "run.sh"))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("pretrain_t5.py --encoder-num-layers 12", "an encoder and a decoder"),
        ("pretrain_bert.py --num-layers 12", "BERT"),
        ("pretrain_gpt.py --hybrid-override-pattern M-M*", "hybrid of Mamba"),
        ("pretrain_vlm.py --img-h 336", "sees images"),
        ("examples/multimodal/train.py --num-layers 32", "sees images"),
        ("train.py --freeze-ViT --num-layers 32", "sees images"),
        ("examples/mimo/train.py --num-layers 32", "MIMO"),
        ("train.py --model-provider llava_vlm --num-layers 32", "MIMO"),
        ("train.py --llm-tp 2 --llm-dp 4 --num-layers 52", "sees images"),
    ],
)
def test_what_is_not_predicted_is_refused_by_its_name(line: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_launch("megatron", f"python {line} --hidden-size 64 --num-attention-heads 2")


NEMO1 = """
run: {name: llama3_70b}
trainer: {num_nodes: 128, devices: 8, precision: bf16, max_steps: 300000, gradient_clip_val: 1.0}
model:
  micro_batch_size: 1
  global_batch_size: 2048
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 2
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  normalization: layernorm1p
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tokenizer: {library: huggingface, type: meta-llama/Meta-Llama-3-70B}
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  fp8: true
  ub_tp_comm_overlap: true
  optim: {name: mcore_distributed_optim, overlap_grad_sync: true, overlap_param_sync: true}
"""


def test_nemo_1_and_its_keys_of_speed() -> None:
    launch = read_launch("nemo", NEMO1)
    assert launch.model is not None
    assert launch.model.vocab == 128256  # of Llama 3, not the 32,000 of Llama 2 with its dimensions
    wanted = {"gpus": 1024, "tp": 4, "pp": 4, "vpp": 5, "cp": 2, "precision": "fp8",
              "tp_overlap": True, "grad_overlap": True, "param_overlap": True, "sharding": "zero1",
              "recompute": "full", "recompute_share": pytest.approx(2 / (80 / 20)),
              "sequence_parallel": True}  # fmt: skip
    assert {name: launch.fields.get(name) for name in wanted} == wanted
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", None), ("gradient_accumulation_fusion: false", True),
     ("gradient_accumulation_fusion: true", False)],
)  # fmt: skip
def test_a_configuration_says_whether_products_add_gradients(
    more: str, expected: bool | None
) -> None:
    """As Primus's do of most models, and Megatron's line by --no-gradient-accumulation-fusion."""
    lines = f"num_layers: 32\nhidden_size: 4096\nnum_attention_heads: 32\nvocab_size: 99\n{more}"
    launch = read_launch("megatron", lines)
    assert launch.fields.get("sums_apart") is expected
    assert launch.unknown == []
    line = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --vocab-size 99 "
    found = read_launch("megatron", line + "--no-gradient-accumulation-fusion")
    assert found.fields["sums_apart"] is True


def test_degrees_of_a_checkpoint_are_refused() -> None:
    """NVIDIA/NeMo 1.23, conf/megatron_gpt_inference.yaml: -1 is the checkpoint's."""
    with pytest.raises(InputError, match=r"tensor_model_parallel_size -1: .* the checkpoint"):
        read_launch("nemo", "tensor_model_parallel_size: -1\ntrainer:\n  devices: 1\n")


def test_interpolations() -> None:
    found = interpolated(
        {
            "training": {"model": {"hidden": 8, "ffn": "${multiply:4, ${.hidden}}"}},
            "out": "${training.model.ffn}/x",
            "own": "${somewhere.else}",
            "ring": "${ring}",
        }
    )
    assert found["training"]["model"]["ffn"] == 32
    assert found["out"] == "32/x"
    assert found["own"] == "${somewhere.else}"
    assert found["ring"] == "${ring}"


BRIDGE = """
from megatron.bridge import AutoBridge

def llama3_70b_pretrain_32gpu_h100_bf16_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_granularity = None
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.data_parallel_sharding_strategy = "no_shard"
    return cfg

def other_config():
    return _pretrain_common()
"""


def test_a_recipe_of_megatron_bridge(tmp_path: Path) -> None:
    path = tmp_path / "llama3.py"
    path.write_text(BRIDGE)
    launch = read_launch("nemo", f"{path}:llama3_70b_pretrain_32gpu_h100_bf16_config")
    assert launch.model == catalog.model("llama3-70b")
    wanted = {"gpus": 32, "tp": 4, "pp": 4, "vpp": 5, "cp": 2, "global_batch": 512,
              "seq_len": 8192, "recompute": "none", "sharding": "zero1",
              "precision": "bf16"}  # fmt: skip
    assert {name: launch.fields.get(name) for name in wanted} == wanted
    with pytest.raises(InputError, match=r"2 recipes; name one as FILE.py:NAME"):
        read_launch("nemo", str(path))
    with pytest.raises(InputError, match="did you mean"):
        read_launch("nemo", f"{path}:llama3_70b_pretrain_config")


def test_an_old_toml_of_torchtitan() -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nbatch_size = 8\nseq_len = 8192\n'
        "tensor_parallel_degree = 8\ndata_parallel_shard_degree = 8\n"
        "[experimental]\npipeline_parallel_degree = 1\n"
    )
    launch = read_launch("torchtitan", text)
    assert launch.model == catalog.model("llama3-70b")
    assert (launch.fields["tp"], launch.fields["gpus"], launch.fields["micro_batch"]) == (8, 64, 8)
    assert launch.unknown == []


def test_deepspeed_auto_with_the_trainers_arguments(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"},
              "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "run.sh").write_text(
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --bf16 True "
        "--model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 4 --max_seq_length 4096 --gradient_checkpointing True\n"
    )
    launch = read_launch("deepspeed", str(tmp_path / "run.sh"))
    assert launch.model == catalog.model("llama3-8b")
    wanted = {"gpus": 8, "micro_batch": 2, "global_batch": 2 * 4 * 8, "seq_len": 4096,
              "precision": "bf16", "sharding": "zero3", "recompute": "full"}  # fmt: skip
    assert {name: launch.fields.get(name) for name in wanted} == wanted


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
      containers:
      - image: vllm/vllm-openai:v0.9
        command: ["python3", "-m", "vllm.entrypoints.openai.api_server"]
        args: ["--model=$(MODEL_ID)", "--tensor-parallel-size=8", "--enable-lora",
               "--max-num-seqs", "64"]
        env: [{name: MODEL_ID, value: meta-llama/Llama-3.1-70B-Instruct}]
        resources: {limits: {nvidia.com/gpu: "8"}}
"""

STACK = """
servingEngineSpec:
  modelSpec:
  - modelURL: mistralai/Mistral-7B-Instruct-v0.2
    requestGPU: 2
    vllmConfig: {tensorParallelSize: 2, maxModelLen: 4096, extraArgs: ["--kv-cache-dtype", "fp8"]}
"""

COMPOSE = """
services:
  engine:
    image: lmsysorg/sglang:latest
    command: python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B-FP8 --tp 2
"""


def test_manifests_of_kubernetes_the_production_stack_and_compose() -> None:
    launch = read_launch("vllm", MANIFEST)
    assert launch.model == catalog.model("llama3.1-70b")
    assert (launch.fields["tp"], launch.fields["max_batch"]) == (8, 64)
    assert launch.unknown == ["--enable-lora"]
    assert any("8xH100-SXM5-80GB" in note for note in launch.notes)
    launch = read_launch("vllm", STACK)
    assert launch.model == catalog.model("mistral-7b-v0.2")
    assert (launch.fields["tp"], launch.fields["kv_precision"]) == (2, "fp8")
    launch = read_launch("sglang", COMPOSE)
    assert launch.model is not None
    assert launch.model.quantization is not None
    assert launch.model.quantization.precision == "fp8_block"
    assert launch.fields["tp"] == 2


def test_a_template_and_a_shell_within_a_manifest() -> None:
    lines = MANIFEST.splitlines()
    at = next(n for n, line in enumerate(lines) if "command:" in line)
    inner = ['        command: ["/bin/sh", "-c"]',
             '        args: ["vllm serve $MODEL_ID --tensor-parallel-size 4"]']  # fmt: skip
    shell = "\n".join([*lines[:at], *inner, *lines[at + 3 :]])
    launch = read_launch("vllm", shell)
    assert launch.model == catalog.model("llama3.1-70b")
    assert launch.fields["tp"] == 4
    with pytest.raises(InputError, match="is a template"):
        read_launch("vllm", MANIFEST.replace("meta-llama/Llama-3.1-70B-Instruct", "'{{ x }}'"))


def test_a_model_that_is_not_in_the_catalog_is_named() -> None:
    launch = read_launch("vllm", "vllm serve acme/Unheard-9B --tensor-parallel-size 2")
    assert launch.model is None
    assert any("acme/Unheard-9B" in note and "config.json" in note for note in launch.notes)


def test_several_models_of_the_same_dimensions_are_told() -> None:
    line = (
        "python pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 "
        "--group-query-attention --num-query-groups 8 --ffn-hidden-size 28672 --swiglu "
        "--position-embedding-type rope --untie-embeddings-and-output-weights "
        "--disable-bias-linear --normalization RMSNorm"
    )
    silent = read_launch("megatron", line)
    assert any("have these dimensions too" in note for note in silent.notes)
    hinted = read_launch("megatron", line + " --tokenizer-model meta-llama/Llama-3.1-70B")
    assert hinted.model is not None
    assert hinted.model.vocab == 128256
    assert not any("too" in note for note in hinted.notes)


def test_what_may_matter_most_comes_first() -> None:
    assert by_effect(["--port", "--cuda-graph-impl", "--enable-lora"])[0] == "--enable-lora"
    assert "other than text" not in told(
        ["--use-turbo-gemm", "primus_turbo.use_turbo_grouped_mm"], 2
    )
    assert "other than text" in told(["--limit-mm-per-prompt"], 1)
    line = told(["--port", "--x", "--enable-lora", "--y"], 2)
    assert line.startswith("--enable-lora (each adapter")
    assert line.endswith("and 2 more")


PRIMUS = """
exp_name: ${PRIMUS_EXP_NAME:llama3_70B-pretrain}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3_70B.yaml
    overrides:
      micro_batch_size: 3
      global_batch_size: 24
      seq_length: ${PRIMUS_SEQ_LENGTH:8192}
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      use_torch_fsdp2: true
      use_distributed_optimizer: false
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 80
      fp8: hybrid
"""


def test_a_configuration_of_primus_names_its_model_and_its_settings() -> None:
    launch = read_launch("megatron", PRIMUS)
    assert launch.model is not None
    assert launch.model.name == "llama3-70b"
    expected = {"seq_len": 8192, "tp": 1, "micro_batch": 3, "global_batch": 24, "precision": "fp8",
                "sharding": "fsdp", "recompute": "full", "recompute_share": 1.0}  # fmt: skip
    assert {name: launch.fields.get(name) for name in expected} == expected
    plain = read_launch("megatron", PRIMUS.replace("fp8: hybrid", "fp8: null"))
    assert plain.fields["precision"] == "bf16"


@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.19.0", "vllm/vllm-openai:deepseekv4-cu130"])
def test_an_images_own_command_takes_the_model_first(image: str) -> None:
    """As in the recipes of vLLM for DeepSeek-V4: the image starts `vllm serve`."""
    line = (f"docker run --gpus all --ipc=host -p 8000:8000 {image} deepseek-ai/DeepSeek-V4-Flash "
            "--data-parallel-size 4 --enable-expert-parallel")  # fmt: skip
    found = read_launch("vllm", line)
    assert found.model is not None
    assert found.model.name == "deepseek-v4-flash"
    assert (found.fields["dp"], found.fields["ep"]) == (4, 4)


DERIVED = """
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config

def ours():
    cfg = llama3_70b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.train.global_batch_size = 256
    return cfg
"""


def test_a_recipe_of_the_library_says_the_model_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(DERIVED, encoding="utf-8")
    found = read_launch("nemo", f"{path}:ours")
    assert found.model is not None
    assert (found.model.name, found.fields["tp"], found.fields["global_batch"]) == (
        "llama3-70b", 4, 256,
    )  # fmt: skip
    assert any("only its model is taken" in note for note in found.notes)
    line = "nemo llm pretrain --factory qwen3_30b_a3b data.global_batch_size=64"
    model = read_launch("nemo", line).model
    assert model is not None
    assert model.name == "qwen3-30b-a3b"
    assert read_launch("nemo", line.replace("qwen3_30b_a3b", "ours_1b")).model is None


NARROW = int(4 * 4096 * 2 / 3 / 64) * 64
"""What Megatron-LM's arguments make of a gated MLP of no width (`arguments.py`)."""


@pytest.mark.parametrize(
    ("flag", "wide"), [("--swiglu", NARROW), ("--quick-geglu", 4 * 4096), ("", 4 * 4096)]
)
def test_a_width_that_arguments_do_not_say(flag: str, wide: int) -> None:
    line = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        f"--num-attention-heads 32 --seq-length 4096 --vocab-size 32000 {flag}"
    )
    model = read_launch("megatron", line).model
    assert model is not None
    assert (model.ffn_hidden, model.gated) == (wide, bool(flag))


@pytest.mark.parametrize(
    ("told", "wide"),
    [("{activation_func: swiglu}", NARROW), ("{activation_func: silu}", 4 * 4096),
     ("{ffn_hidden_size: null}", 4 * 4096), ("{ffn_hidden_size: 14336}", 14336)],
)  # fmt: skip
def test_a_width_that_a_configuration_does_not_say(told: str, wide: int) -> None:
    """Megatron Core takes four times the model's width, gated or not; 'swiglu' is the flag."""
    core = {
        "language_model": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                           "gated_linear_unit": True, **yaml.safe_load(told)},
        "micro_batch_size": 1, "global_batch_size": 128, "seq_length": 4096, "vocab_size": 32000,
    }  # fmt: skip
    model = read_launch("megatron", yaml.safe_dump(core)).model
    assert model is not None
    assert (model.ffn_hidden, model.gated) == (wide, True)
