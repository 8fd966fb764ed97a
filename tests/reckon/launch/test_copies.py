"""Flags of copies of Megatron-LM and of trainers of their own, as public scripts write them: what
each means is counted by hand."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.errors import InputError
from reckon.launch import read_launch

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--vocab-size 50000 --micro-batch-size 1 --global-batch-size 64 --bf16 "
)
MIXTURE = SIZES + "--ffn-hidden-size 8192 --moe-intermediate-size 1024 --num-experts 16 "


def model_of(flags: str):
    found = read_launch("megatron", f"torchrun pretrain_gpt.py {flags}").model
    assert found is not None
    return found


def test_one_head_of_keys() -> None:
    assert model_of(SIZES + "--attention-head-type multiquery").kv_heads == 1
    assert model_of(SIZES + "--attention-head-type multihead").kv_heads == 16


def test_leading_dense_layers_and_shared_experts() -> None:
    one = model_of(MIXTURE + "--first-k-dense-replace 3 --moe-layer-freq 1 --n-shared-experts 2")
    assert (one.dense_layers, one.expert_ffn_hidden, one.num_experts) == (3, 1024, 16)
    assert one.shared_experts * one.shared_expert_ffn_hidden == 2048
    assert model_of(MIXTURE + "--moe-layer-freq -1").dense_layers == 0


def test_layers_that_do_nothing_are_none() -> None:
    line = SIZES + "--pipeline-model-parallel-size 4 --noop-layers 22,23"
    launch = read_launch("megatron", f"torchrun pretrain_gpt.py {line}")
    assert launch.model is not None
    assert launch.model.layers == 22
    assert launch.fields["last_layers"] == 4  # of six in each stage


def test_experts_over_all_replicas() -> None:
    line = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py " + SIZES
    line += "--moe-num-experts 64 --moe-top-k 2 --tensor-model-parallel-size 2 "
    assert read_launch("megatron", line + "--moe-expert-model-parallelism").fields["ep"] == 8


def test_a_line_of_a_launcher_alone_is_nothing() -> None:
    with pytest.raises(InputError, match="no flag of megatron"):
        read_launch("megatron", "#SBATCH --nodes=0\n#SBATCH --gpus-per-node=8\nsrun train.sh\n")


def test_rollouts_are_no_steps_of_pretraining() -> None:
    with pytest.raises(InputError, match="reinforcement learning"):
        read_launch("megatron", f"ray job -- python train.py {SIZES} --rollout-batch-size 32")


def test_a_tokenizer_of_ones_own() -> None:
    line = SIZES.replace("--vocab-size 50000 ", "--tokenizer-type Llama2Tokenizer ")
    assert model_of(line + "--tokenizer-model my-tokenizer-100k.v3.model").vocab == 100_000
    assert model_of(line + "--tokenizer-model tokenizer.model").vocab == 32_000


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Llama31Config70B", "llama3.1-70b"),
        ("MixtralConfig8x22B", "mixtral-8x22b"),
        ("Qwen25Config1P5B", "qwen2.5-1.5b"),
        ("Qwen3Config30B_A3B", "qwen3-30b-a3b"),
    ],
)
def test_classes_of_nemo_name_models(written: str, meant: str) -> None:
    text = (
        "import nemo_run as run\n\n"
        f"def pretrain_recipe():\n    return run.Config(Model, config=run.Config({written}))\n"
    )
    found = read_launch("nemo", text).model
    assert found is not None
    assert found.parameters == catalog.model(meant).parameters


def test_the_stage_beside_the_switch() -> None:
    line = "deepspeed main.py --model_name_or_path facebook/opt-1.3b --deepspeed --zero_stage 3 "
    line += "--per_device_train_batch_size 4 --max_seq_len 512 --gradient_checkpointing 0 "
    fields = read_launch("trainer", line).fields
    assert (fields["sharding"], fields["seq_len"], fields["recompute"]) == ("zero3", 512, "none")


@pytest.mark.parametrize("name", ["zero_stage2_config.json", "ds_zero2.json", "z2.json"])
def test_the_stage_in_a_name(name: str) -> None:
    line = f"deepspeed t.py --deepspeed {name} --per_device_train_batch_size 1"
    assert read_launch("trainer", line).fields["sharding"] == "zero2"


def test_arithmetic_of_expr() -> None:
    text = "N=4\npython t.py --per_device_train_batch_size 2 "
    text += "--gradient_accumulation_steps $(expr 16 / $N) --num_train_epochs 1\n"
    launch = read_launch("trainer", text, beside={"gpus": 4})
    assert launch.fields["global_batch"] == 2 * 4 * 4


KUBEAI = """
apiVersion: kubeai.org/v1
kind: Model
spec:
  url: hf://Qwen/Qwen3-8B
  engine: VLLM
  args: [--max-num-seqs=32]
"""
BOOSTER = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelBooster
spec:
  backend:
    type: vLLM
    modelURI: hf://Qwen/Qwen3-8B
    workers: [{config: {max-num-seqs: 32, enforce-eager: ""}}]
"""


@pytest.mark.parametrize("text", [KUBEAI, BOOSTER, f"kubectl apply -f - <<EOF{KUBEAI}EOF\n"])
def test_models_of_controllers(text: str) -> None:
    launch = read_launch("vllm", text)
    assert launch.model is not None
    assert launch.model.name == "qwen3-8b"
    assert launch.understood["--max-num-seqs"] == "32"


@pytest.mark.parametrize("version", ["qwen25_72b", "qwen3_30b_a3b", "starcoder2_7b"])
def test_versions_of_recipes_name_models(version: str) -> None:
    text = f'import nemo_run\n\ndef pretrain_recipe():\n    return f_model(version="{version}")\n'
    found = read_launch("nemo", text).model
    assert found is not None
    assert found.name.replace(".", "").replace("-", "_") == version
