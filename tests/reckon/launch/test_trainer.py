"""Files of axolotl, LLaMA-Factory, TRL, torchtune and litgpt: what each says, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from predictor.errors import InputError
from reckon.launch import read_launch
from reckon.verbs.plans import search

AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
gradient_checkpointing: true
attn_implementation: flash_attention_2
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_offload_params: true, fsdp_state_dict_type: FULL_STATE_DICT}
"""

FACTORY = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_offload_config.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
flash_attn: fa2
"""

TUNE = """
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192}
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj']
  apply_lora_to_mlp: False
  lora_rank: 64
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}
batch_size: 4
gradient_accumulation_steps: 8
clip_grad_norm: null
compile: True
enable_activation_checkpointing: True
enable_activation_offloading: True
dtype: bf16
optimizer: {_component_: torch.optim.AdamW, fused: True}
"""

LITGPT = """
checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3.1-8B
precision: bf16-true
devices: 4
num_nodes: 2
train: {global_batch_size: 64, micro_batch_size: 2, max_seq_length: 512}
"""


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        (AXOLOTL, "llama3.1-8b", {
            "seq_len": 4096, "micro_batch": 2, "global_batch": 64, "precision": "bf16",
            "recompute": "full", "sharding": "fsdp", "trained": "lora", "lora_rank": 16,
            "frozen_precision": "nf4", "optimizer": "adam8bit", "offload_optimizer": 1.0,
            "attention": "flash", "windows_masked": False, "pp": 1}),
        (FACTORY, "qwen3-8b", {
            "seq_len": 2048, "global_batch": 16, "sharding": "zero3", "framework": "deepspeed",
            "recompute": "full", "trained": "all", "offload_optimizer": 1.0}),
        (TUNE, "llama3.1-8b", {
            "seq_len": 8192, "global_batch": 256, "trained": "lora_qkv", "lora_rank": 64,
            "recompute": "full", "offload_activations": 1.0, "fused": True}),
        (LITGPT, "llama3.1-8b", {
            "global_batch": 64, "micro_batch": 2, "seq_len": 512, "weight_bytes": 2,
            "optimizer_bytes": 4, "recompute": "none", "trained": "all"}),
    ],
    ids=["axolotl", "llama-factory", "torchtune", "litgpt"],
)  # fmt: skip
def test_what_a_file_says(text: str, model: str, expected: dict[str, object]) -> None:
    launch = read_launch("trainer", text, beside={"gpus": 8})
    assert launch.model is not None
    assert launch.model.name == model
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == []


def test_a_command_that_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(FACTORY)
    (tmp_path / "run.sh").write_text(
        "accelerate launch --num_processes 4 train.py sft.yaml --per_device_train_batch_size 8\n"
    )
    launch = read_launch("trainer", str(tmp_path / "run.sh"))
    assert {k: launch.fields[k] for k in ("gpus", "micro_batch", "global_batch")} == {
        "gpus": 4, "micro_batch": 8, "global_batch": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (AXOLOTL + "rl: grpo\n", r"the line is of reinforcement learning \(GRPO\)"),
        (TUNE + "loss: {_component_: torchtune.rlhf.loss.PPOLoss}\n", "a loss of PPOLoss"),
        (AXOLOTL + "deepspeed: ours.json\n", "its stage is not in its name; give --sharding"),
        ("base_model: x\nsequence_len: long\n", "long: not a number"),
    ],
)
def test_what_is_not_read_is_told_by_name(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_launch("trainer", text, beside={"gpus": 8})


def test_such_files_are_not_written() -> None:
    with pytest.raises(InputError, match="such files are read, not written"):
        search("llama3-8b", "dgx-h100", {"gpus": 8, "global_batch": 8, "seq_len": 4096},
               "none", target="trainer")  # fmt: skip


@pytest.mark.parametrize(
    ("said", "framework"),
    [
        ({"per_device_train_batch_size": 2}, "huggingface"),
        ({"per_device_train_batch_size": 2, "deepspeed": "ds_z3_config.json"}, "deepspeed"),
        ({"batch_size": 2, "model._component_": "torchtune.models.llama3.llama3_8b"}, "torchtune"),
        ({"train.micro_batch_size": 2, "lora_query": True}, "litgpt"),
    ],
)
def test_whose_modules_run(said: dict[str, object], framework: str) -> None:
    """HuggingFace's trainer and what stands on it, and those whose modules are others'."""
    text = yaml.safe_dump({"model_name_or_path": "meta-llama/Meta-Llama-3-8B", **said})
    launch = read_launch("trainer", text, beside={"gpus": 8})
    assert launch.fields["framework"] == framework


@pytest.mark.parametrize(
    ("said", "masked"), [("sdpa", True), ("flash_attention_2", False), (None, None)]
)
def test_whose_attention_has_masks_for_windows(said: str | None, masked: bool | None) -> None:
    """PyTorch's own; FlashAttention has windows, and sequences of any length."""
    own = {} if said is None else {"attn_implementation": said}
    content = {"model_name_or_path": "meta-llama/Meta-Llama-3-8B", "bf16": True, **own}
    launch = read_launch("trainer", yaml.safe_dump(content), beside={"gpus": 8})
    assert launch.fields.get("windows_masked") is masked
    assert launch.fields.get("attention") == (None if said is None else "flash")


TRAIN = ("train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 "
         "--gradient_accumulation_steps 4 --bf16 --max_seq_length 4096")  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "files", "expected"),
    [
        (
            "--use_deepspeed --deepspeed_config_file ds.json",
            {"ds.json": '{"zero_optimization": {"stage": 3}}'},
            {"sharding": "zero3", "framework": "deepspeed"},
        ),
        (
            "--use_deepspeed --deepspeed_config_file ds.json",
            {"ds.json": '{"zero_optimization": {"stage": 2, '
                        '"offload_optimizer": {"device": "cpu"}}}'},
            {"sharding": "zero2", "offload_optimizer": 1},
        ),
        ("--use_deepspeed", {}, {"sharding": "zero2"}),
        ("--use_deepspeed --zero_stage 3", {}, {"sharding": "zero3"}),
        ("--use_fsdp", {}, {"sharding": "fsdp", "framework": "huggingface"}),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", {}, {"sharding": "zero2"}),
        (
            "--config_file acc.yaml",
            {"acc.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n"
                         "num_processes: 16\nmixed_precision: bf16\n"},
            {"sharding": "zero3", "gpus": 16},
        ),
        (
            "--config_file acc.yaml",
            {"acc.yaml": "distributed_type: FSDP\nnum_processes: 8\n"
                         "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"},
            {"sharding": "zero2", "gpus": 8},
        ),
        ("--multi_gpu", {}, {"sharding": "none"}),
    ],
)  # fmt: skip
def test_what_accelerate_says_of_sharding(
    launcher: str, files: dict[str, str], expected: dict[str, object], tmp_path: Path
) -> None:
    """It was dropped without a word: a plain copy on every accelerator was predicted."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    script = tmp_path / "run.sh"
    count = "" if "acc.yaml" in files else "--num_processes 8 "
    script.write_text(f"accelerate launch {count}{launcher} {TRAIN}\n", encoding="utf-8")
    found = read_launch("trainer", str(script)).fields
    assert {name: found.get(name) for name in expected} == expected


def test_the_stage_of_a_file_whose_name_does_not_tell_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\n"
                    "cutoff_len: 4096\ndeepspeed: ds.json\n", encoding="utf-8")  # fmt: skip
    assert read_launch("trainer", str(path)).fields["sharding"] == "zero1"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"use_liger_kernel": True}, {"fused": True, "logit_bytes": 2 / 38}),
        ({"liger_fused_linear_cross_entropy": True}, {"fused": None, "logit_bytes": 2 / 38}),
        ({"liger_rms_norm": True}, {"fused": True, "logit_bytes": None}),
        ({"optim": "adafactor"}, {"optimizer": "adafactor"}),
        ({"optim": "paged_adamw_8bit"}, {"optimizer": "adam8bit"}),
        ({"optim": "lion_32bit"}, {"optimizer": "lion"}),
        ({"optim": "adamw_torch_fused"}, {"optimizer": None}),
        ({"quantization_bit": 4, "finetuning_type": "lora"}, {"frozen_precision": "nf4"}),
        ({"fsdp": "full_shard offload"}, {"offload_optimizer": 1.0, "offload_weights": 1.0}),
        ({"deepspeed": "ds_z3_offload_config.json"}, {"offload_weights": 1.0}),
        ({"deepspeed": "ds_z2_offload_config.json"}, {"offload_weights": None}),
    ],
)
def test_kernels_optimizers_and_what_stays_with_the_host(
    said: dict[str, object], expected: dict[str, object]
) -> None:
    """Liger's loss keeps one of as many chunks as the vocabulary is wider than the model: Qwen3
    8B's 151,936 by 4,096."""
    text = yaml.safe_dump(
        {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 2, **said}
    )
    launch = read_launch("trainer", text, beside={"gpus": 8})
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [("deepspeed_zero3.yaml", "zero3"), ("deepspeed_zero2.yaml", "zero2"), ("fsdp2.yaml", "fsdp"),
     ("multi_gpu.yaml", "none")],
)  # fmt: skip
def test_a_launchers_file_that_is_not_there_is_what_its_name_tells(
    file: str, expected: str
) -> None:
    line = f"accelerate launch --num_processes 8 --config_file accelerate_configs/{file} {TRAIN}"
    assert read_launch("trainer", line).fields["sharding"] == expected


def test_updates_in_the_backward_pass_are_read() -> None:
    launch = read_launch("trainer", TUNE + "optimizer_in_bwd: true\n", beside={"gpus": 1})
    assert launch.fields["update_early"] is True


HOSTED = {"device": "cpu", "pin_memory": True}


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 3, "offload_optimizer": HOSTED, "offload_param": HOSTED},
         {"sharding": "zero3", "offload_optimizer": 1.0, "offload_weights": 1.0}),
        ({"stage": 3, "offload_optimizer": HOSTED},
         {"sharding": "zero3", "offload_optimizer": 1.0, "offload_weights": None}),
        ({"stage": 3, "offload_param": HOSTED},
         {"sharding": "zero3", "offload_optimizer": None, "offload_weights": 1.0}),
        ({"stage": 2, "cpu_offload": True},
         {"sharding": "zero2", "offload_optimizer": 1.0, "offload_weights": None}),
        ({"stage": 2}, {"sharding": "zero2", "offload_optimizer": None, "offload_weights": None}),
    ],
)  # fmt: skip
def test_what_a_deepspeed_file_that_is_there_keeps_with_the_host(
    tmp_path: Path, zero: dict[str, object], expected: dict[str, object]
) -> None:
    """Only its stage was read: what a file named 'ds_z3_offload' said by its name alone was lost
    where the file was there."""
    path = tmp_path / "ds_z3_offload.json"
    path.write_text(json.dumps({"zero_optimization": zero}))
    text = yaml.safe_dump({"model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft",
                           "per_device_train_batch_size": 2, "deepspeed": str(path)})  # fmt: skip
    launch = read_launch("trainer", text, beside={"gpus": 8})
    assert {name: launch.fields.get(name) for name in expected} == expected


def test_what_a_deepspeed_file_says_as_by_default_is_no_doubt(tmp_path: Path) -> None:
    """Of LLaMA-Factory's examples, with clipping as transformers' arguments have it."""
    zero = {"stage": 3, "offload_optimizer": HOSTED, "sub_group_size": 1e9,
            "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": 5e7,
            "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9}  # fmt: skip
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": zero, "gradient_clipping": "auto"})
    )
    line = (f"deepspeed --num_gpus 8 train.py --deepspeed {tmp_path / 'ds.json'} "
            "--model_name_or_path Qwen/Qwen3-8B --model_max_length 4096 "
            "--per_device_train_batch_size 2")  # fmt: skip
    launch = read_launch("deepspeed", line)
    assert (launch.unknown, launch.fields["grad_clip"]) == ([], True)
    zero["stage3_max_live_parameters"] = 3e9
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    assert "stage3_max_live_parameters" in read_launch("deepspeed", line).unknown[0]
