"""Launch lines, scripts and configurations as they are found: what is understood of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.models.model import Model
from predictor.timing.calibration import Calibration
from predictor.training.completion import complete_training
from reckon.launch import emit, read_launch
from reckon.launch.dimensions import dimensions, layer_pattern

GPT3 = """#!/bin/bash
# Runs the "175B" parameter model
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
# Change for multinode config
MASTER_ADDR=localhost
MASTER_PORT=6000
NUM_NODES=128
NODE_RANK=0
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1 #<Specify path>
TENSORBOARD_LOGS_PATH=$2 #<Specify path>
VOCAB_FILE=$3 #<Specify path to file>/gpt2-vocab.json
MERGE_FILE=$4 #<Specify path to file>/gpt2-merges.txt
DATA_PATH=$5 #<Specify path and file prefix>_text_document

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)

MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)

DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval 100
    --save-interval 10000
    --eval-interval 1000
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --eval-iters 10
    --tensorboard-dir $TENSORBOARD_LOGS_PATH
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS[@]} \\
    ${EVAL_AND_LOGGING_ARGS[@]}
"""


def test_the_gpt3_script_of_megatron_lm() -> None:
    launch = read_launch("megatron", GPT3)
    assert launch.model == catalog.model("gpt3-175b")
    expected = {"tp": 8, "pp": 16, "cp": 1, "vpp": 1, "gpus": 1024, "micro_batch": 1,
                "global_batch": 1536, "seq_len": 2048, "precision": "fp16", "sharding": "none",
                "recompute": "none", "sequence_parallel": False, "dropout": True,
                "grad_overlap": False, "framework": "megatron-lm",
                "tokens": 500000 * 1536 * 2048}  # fmt: skip
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert "attention" not in launch.fields
    assert launch.unknown == []
    assert {"--lr", "--data-path", "--rampup-batch-size"} <= set(launch.ignored)


LLAMA3 = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b_fp8"}
TOKENIZER_ARG=${3:-"MOCK"} # Path to tokenizer model, or "MOCK"
DATA_ARG=${4:-"MOCK"}
mkdir -p "$(dirname "$CHECKPOINT_PATH")"
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
PRETRAIN_SCRIPT_PATH="pretrain_gpt.py"
TP_SIZE=1
CP_SIZE=1
PP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
NUM_LAYERS=32
DTYPE="fp8"
SEQ_LENGTH=8192
MAX_POSITION_EMBEDDINGS=8192

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers $NUM_LAYERS
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $MAX_POSITION_EMBEDDINGS
    --position-embedding-type rope
    --rotary-base 1000000
    --rotary-percent 1.0
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --init-method-std 0.0134
    --attention-backend fused
    --apply-layernorm-1p
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --normalization RMSNorm
)
TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size $GLOBAL_BATCH_SIZE
    --train-samples 1953125000
    --lr-decay-samples 1949218748
    --lr 0.00015
    --clip-grad 1.0
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --calculate-per-token-loss
    --manual-gc
    --empty-unused-memory-level 1
)
# Conditional arguments based on DTYPE (FP8)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE
    --sequence-parallel
)
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
DATA_ARGS_LIST=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ "$DATA_ARG" == "MOCK" ]]; then
    DATA_ARGS_LIST+=(
        "--mock-data"
        "--tokenizer-type NullTokenizer"
        "--vocab-size 128256"
    )
else
    DATA_ARGS_LIST+=(
        "--tokenizer-type HuggingFaceTokenizer"
        "--vocab-size 99"
    )
fi
if [ ! -f "$PRETRAIN_SCRIPT_PATH" ]; then
    echo "Error: pretrain_gpt.py not found at $PRETRAIN_SCRIPT_PATH"
    exit 1
fi
torchrun ${DISTRIBUTED_ARGS[@]} \\
    "$PRETRAIN_SCRIPT_PATH" \\
    ${MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${DTYPE_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS_LIST[@]}
"""


def test_the_llama3_fp8_script_of_megatron_lm() -> None:
    launch = read_launch("megatron", LLAMA3)
    assert launch.model is not None
    assert launch.model.name == "llama3-8b"
    expected = {"tp": 1, "pp": 1, "gpus": 8, "precision": "fp8", "weight_bytes": 1,
                "gradient_bytes": 2, "reduce_bytes": 2, "sharding": "zero1", "dropout": False,
                "attention": "flash", "grad_overlap": True,
                "tokens": 1953125000 * 8192}  # fmt: skip
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert set(launch.unknown) == {
        "--cross-entropy-loss-fusion", "--calculate-per-token-loss", "--empty-unused-memory-level",
    }  # fmt: skip


MIXTRAL = """
GPUS_PER_NODE=8; NNODES=${SLURM_NNODES:-"16"}
MODEL_ARGS=(
    --use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm
    --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 8 --no-masked-softmax-fusion
    --no-position-embedding --rotary-base 1000000
)
MOE_ARGS=(
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall
    --overlap-param-gather --overlap-grad-reduce
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000
    --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 0.1
    --lr-warmup-iters 500 --clip-grad 1.0 --bf16)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 8 --expert-model-parallel-size 8
    --use-distributed-optimizer --sequence-parallel)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes "$NNODES" pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} \\
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER_MODEL} > log.txt 2>&1
"""


def test_the_mixtral_script_of_megatron_lm(kernels_only: Calibration) -> None:
    launch = read_launch("megatron", MIXTRAL)
    assert launch.model is not None
    assert launch.model.name == "mixtral-8x7b"
    expected = {"gpus": 128, "pp": 4, "vpp": 1, "ep": 8, "etp": 1, "dispatch": "copies"}
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == []


def test_a_model_beside_the_line_counts() -> None:
    line = "--num-layers 40 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000 --bf16"
    assert read_launch("megatron", line).model is not None
    launch = read_launch("megatron", line, catalog.model("llama3-8b"))
    assert launch.model == catalog.model("llama3-8b")
    assert any("layers 40" in note and "32" in note for note in launch.notes)


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama3-70b", "deepseek-v3", "gemma2-9b", "dbrx-132b"]
)
def test_dimensions_of_a_line_are_the_models(name: str, kernels_only: Calibration) -> None:
    model = catalog.model(name)
    spec = parse(TrainingPlanSpec, {"gpus": 64, "global_batch": 64, "seq_len": 2048}, "test")
    request = complete_training(
        spec, kernels_only.run, model=model, cluster=catalog.system("dgx-h100"), strict=False
    )
    other = read_launch("megatron", emit("megatron", request, kernels_only.run).text).model
    assert isinstance(other, Model)
    assert dimensions(other) == dimensions(model)
    assert other.parameters == model.parameters


def test_megatron_configurations_in_yaml() -> None:
    core = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  add_bias_linear: true
  gated_linear_unit: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  recompute_granularity: null
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  sequence_parallel: true
  bf16: true
micro_batch_size: 4
global_batch_size: 64
seq_length: 2048
max_position_embeddings: 2048
use_distributed_optimizer: true
vocab_size: 50257
lr: 0.0001
"""
    launch = read_launch("megatron", core)
    assert launch.model is not None
    assert (launch.model.layers, launch.model.bias) == (24, True)
    assert launch.fields["tp"] == 2
    assert launch.fields["sharding"] == "zero1"
    assert launch.unknown == []
    recipe = "MODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n"
    recipe += "  --bf16: true\n  --vocab-size: 50257\n  --swiglu: true\n"
    found = read_launch("megatron", recipe)
    assert found.model is not None
    assert found.model.ffn_hidden == 1344  # int(4 * 512 * 2 / 3 / 64) * 64
    assert found.fields["precision"] == "bf16"


TORCHTITAN_LLAMA = """
# NOTE: this toml config is a preset for 64 A100 GPUs.
[job]
dump_folder = "./outputs"
description = "Llama 3 70B training"

[profiling]
enable_profiling = true

[model]
name = "llama3"
flavor = "70B"
tokenizer_path = "./assets/tokenizer/original/tokenizer.model"

[optimizer]
name = "AdamW"
lr = 1.5e-4

[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1

[compile]
enable = false

[activation_checkpoint]
mode = "full"

[float8]
enable_fsdp_float8_all_gather = false
"""


def test_torchtitans_llama_job(tmp_path: Path) -> None:
    path = tmp_path / "llama3_70b.toml"
    path.write_text(TORCHTITAN_LLAMA)
    launch = read_launch("torchtitan", str(path))
    assert launch.model == catalog.model("llama3-70b")
    expected = {"tp": 8, "micro_batch": 8, "sharding": "fsdp", "recompute": "full", "fused": False}
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert "gpus" not in launch.fields
    assert launch.unknown == []
    line = f"torchrun --nproc_per_node=8 --nnodes=8 -m torchtitan.train --job.config_file {path} "
    launch = read_launch("torchtitan", line + "--training.seq_len 4096 --compile.enable")
    expected = {"gpus": 64, "dp": 8, "global_batch": 64, "seq_len": 4096, "fused": True}
    assert {name: launch.fields.get(name) for name in expected} == expected


def test_a_deepspeed_command_with_its_configuration(tmp_path: Path) -> None:
    config = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": "auto", "bf16": {"enabled": True},
              "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
              "gradient_clipping": 1.0, "steps_per_print": 10}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(config))
    line = ("deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py --deepspeed "
            f"--deepspeed_config {tmp_path / 'ds.json'} --tensor-model-parallel-size 2 "
            "--seq-length 4096")  # fmt: skip
    launch = read_launch("deepspeed", line, catalog.model("llama3-8b"))
    expected = {"gpus": 32, "tp": 2, "seq_len": 4096, "global_batch": 512, "micro_batch": 4,
                "sharding": "zero3", "precision": "bf16", "grad_clip": True}  # fmt: skip
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.fields["offload_optimizer"] == 1
    assert launch.fields["offload_to"] == "cpu"
    assert launch.unknown == []
    assert any("'auto'" in note for note in launch.notes)


def test_real_serving_lines() -> None:
    line = (
        "docker run --gpus all vllm/vllm-openai:latest\n"
        "VLLM_USE_V1=1 vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --quantization fp8 "
        "--max-model-len 16384 --gpu-memory-utilization 0.92 --max-num-seqs=256 --foo 3"
    )
    launch = read_launch("vllm", line)
    assert launch.model == catalog.model("llama3.3-70b")
    expected = {"tp": 4, "precision": "fp8", "max_batch": 256, "execution": "graph"}
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == ["--foo"]
    line = (
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 "
        "--enable-dp-attention --ep-size 16 --trust-remote-code --nnodes 2 --node-rank 0"
    )
    launch = read_launch("sglang", line)
    assert {"tp": 1, "dp": 16, "ep": 16}.items() <= launch.fields.items()
    assert launch.unknown == []
    text = ("cat >./extra.yml<<EOF\nenable_attention_dp: true\nkv_cache_config:\n  dtype: fp8\n"
            "cuda_graph_config: null\nEOF\ntrtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 "
            "--ep_size 8 --max_batch_size 1024 --extra_llm_api_options ./extra.yml")  # fmt: skip
    launch = read_launch("trtllm", text)
    expected = {"tp": 1, "dp": 8, "ep": 8, "kv_precision": "fp8", "execution": "eager"}
    assert {name: launch.fields.get(name) for name in expected} == expected


STAGES = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage"


BASE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000 "


@pytest.mark.parametrize(
    ("dialect", "text", "told"),
    [
        ("megatron", BASE + "--bf16 --fp16", "--fp16 contradicts --bf16"),
        ("megatron", BASE + "--tensor-model-parallel-size four", "four: not a number"),
        ("megatron", BASE + "--tensor-model-parallel-size $TP", "does not set that variable"),
        ("megatron", BASE + "--tensor-model-parallel-size", "its value is missing"),
        (
            "megatron",
            BASE
            + "--recompute-activations --recompute-granularity full --recompute-method uniform",
            "Megatron-LM refuses --recompute-method uniform",
        ),
        ("megatron", BASE + "--fp8-format e5m2 --bf16", "known: hybrid, e4m3"),
        ("megatron", BASE + "--normalization BatchNorm", "known: RMSNorm, LayerNorm"),
        ("megatron", BASE + STAGES + " 3", "are not a multiple of pp 4 x 3 = 12"),
        ("megatron", BASE + STAGES + " 4 --num-virtual-stages-per-pipeline-rank 4", "contradicts"),
        ("megatron", BASE + "--window-size 8,0 --window-attn-skip-freq 0", "at least 1"),
        ("megatron", BASE + "--moe-layer-freq [0,1,0,0,1] --num-experts 8", "neither leading"),
        ("megatron", BASE + "--window-size 127,0 --window-attn-skip-freq 0", "at least 1"),
        ("megatron", "--num-layers 32 --hidden-size 4096", "without its heads"),
        ("megatron", "--num-layers 3 --hidden-size 64 --num-attention-heads 4", "--vocab-size"),
        ("megatron", "python train.py 'unclosed", "is not closed"),
        ("megatron", "ls -l --foo", "no flag of megatron is in it"),
        ("megatron", "nowhere.sh", "no such file"),
        ("torchtitan", "[model]\nname = ", "is not TOML"),
        ("torchtitan", "[training]\nlocal_batch_size = 3\n[parallelism]\n"
         "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2", "not a multiple"),
        ("torchtitan", "[parallelism]\npipeline_parallel_degree = 2\n"
         "pipeline_parallel_schedule = 'Fancy'", "known are 1F1B"),
        ("deepspeed", '{"zero_optimization": {"stage": 5}}', "known are 0, 1, 2, 3"),
        ("deepspeed", '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, '
         '"gradient_accumulation_steps": 1}', "contradicts"),
        ("sglang", "python -m sglang.launch_server --model-path x --tp-size 6 --dp-size 4 "
         "--enable-dp-attention", "does not divide"),
        ("vllm", "vllm serve x --kv-cache-dtype int3", "known are auto"),
        ("vllm", "vllm serve x --quantization magic", "--quantization magic: not known"),
    ],
)  # fmt: skip
def test_bad_lines_are_told_in_one_line(dialect: str, text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch(dialect, text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_patterns_of_expert_layers() -> None:
    assert layer_pattern("f", "([0]*3+[1]*58)") == {"model.dense_layers": 3, "model.moe_every_n": 1}
    assert layer_pattern("f", "2") == {"model.moe_every_n": 2}
    assert layer_pattern("f", "[1,0,1,0]")["model.moe_every_n"] == 2
