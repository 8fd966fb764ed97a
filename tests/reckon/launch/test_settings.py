"""Files and commands of MaxText, nanotron and llm-foundry: what each says, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import reckon
from predictor.errors import InputError
from predictor.timing.calibration import RunParameters
from reckon.launch import emit, read_launch
from reckon.launch.maxtext_remat import DOTS, HOSTED, KEPT, TENSORS

MAXTEXT = """
export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true"
python3 -m maxtext.inference.decode base.yml model_name=llama2-7b per_device_batch_size=9
python3 -m MaxText.train MaxText/configs/base.yml steps=10 per_device_batch_size=3 \\
    remat_policy=minimal global_parameter_scale=64 ici_fsdp_parallelism=-1 \\
    ici_tensor_parallelism=4 max_target_length=2048 attention='flash' quantization="" \\
    dataset_type=synthetic
python3 -m maxtext.inference.decode base.yml model_name=llama2-7b per_device_batch_size=9
"""

NANOTRON = """
general: {project: p, run: r, seed: 1}
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 64
  init_method: {std: 0.02}
  model_config:
    is_starcoder2_config: true
    hidden_size: 4608
    num_attention_heads: 36
    num_hidden_layers: 32
    num_kv_heads: 4
    grouped_query: true
    vocab_size: 49152
    sliding_window_size: 4096
optimizer: {zero_stage: 1, clip_grad: 1.0, accumulate_grad_in_fp32: true}
parallelism: {dp: 16, pp: 2, tp: 4, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER,
  tp_linear_async_communication: true, recompute_layer: true}
tokens: {sequence_length: 4096, train_steps: 1000, micro_batch_size: 2,
  batch_accumulation_per_replica: 8}
"""

FOUNDRY = """
variables: {max_seq_len: 2048}
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  no_bias: true
  attn_config: {attn_impl: flash, alibi: true, attn_type: grouped_query_attention, kv_n_heads: 8}
max_duration: 63900ba
global_train_batch_size: 1024
device_train_microbatch_size: auto
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true,
  activation_checkpointing_reentrant: false}
algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}
"""


def said(dialect: str, text: str, **beside: object) -> dict[str, object]:
    return read_launch(dialect, text, beside=beside).fields


def test_the_command_that_trains_counts() -> None:
    """Widths of base.yml (2048, 7168, 16 layers) four times: 64 = 4 x 4 x 4; fp32 weights."""
    launch = read_launch("maxtext", MAXTEXT, beside={"gpus": 64})
    model = launch.model
    assert model is not None
    assert (model.layers, model.hidden, model.ffn_hidden, model.heads) == (64, 8192, 28672, 64)
    matrices = 64 * (4 * 8192 * 8192 + 3 * 8192 * 28672) + 2 * 8192 * 32000
    assert model.parameters == pytest.approx(matrices, rel=1e-3)
    assert {k: launch.fields[k] for k in ("tp", "dp", "sharding", "micro_batch")} == {
        "tp": 4, "dp": 16, "sharding": "fsdp", "micro_batch": 12}  # fmt: skip
    assert launch.fields["global_batch"] == 3 * 64
    assert launch.fields["tokens"] == 10 * 3 * 64 * 2048
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("more", "gpus", "meant"),
    [
        ("", 64, {"dp": 64, "sharding": "fsdp"}),
        ("hardware=gpu", 64, {"dp": 64, "sharding": "hsdp", "dp_shard": 8}),
        ("compile_topology_num_slices=2", 64, {"dp": 64, "sharding": "hsdp", "dp_shard": 32}),
        ("ici_fsdp_parallelism=1 ici_data_parallelism=-1", 64, {"sharding": "none"}),
        ("ici_expert_parallelism=8", 64, {"dp": 64, "ep": 8, "sharding": "fsdp"}),
        ("ici_context_parallelism=4", 64, {"dp": 16, "cp": 4, "micro_batch": 8}),
        ("dcn_pipeline_parallelism=4 dcn_data_parallelism=1", 64, {"pp": 4, "dp": 16, "vpp": 20}),
    ],
)
def test_axes_that_take_what_remains(more: str, gpus: int, meant: dict[str, object]) -> None:
    """Degrees give the accelerators; a replica's sequences are those of its accelerators."""
    line = f"python3 -m MaxText.train base.yml model_name=llama2-70b per_device_batch_size=2 {more}"
    found = said("maxtext", line, gpus=gpus)
    assert {name: found[name] for name in meant} == meant
    ranks = found["tp"] * found["pp"] * found["cp"] * found["dp"]  # type: ignore[operator]
    assert (ranks, found["global_batch"]) == (gpus, 2 * gpus)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("per_device_batch_size=0.25", "0.25 sequences"),
        ("per_device_batch_size=1 ici_tensor_parallelism=3", "64 accelerators of a slice"),
        ("per_device_batch_size=1 remat_policy=most", "known are full"),
        ("per_device_batch_size=1 quantization=int3", "known are"),
        ("per_device_batch_size=1 global_parameter_scale=3 model_name=default", "a power of two"),
        ("per_device_batch_size=1 remat_policy=custom context=host", "remat, device, offload"),
    ],
)
def test_what_maxtext_refuses_is_refused(line: str, names: str) -> None:
    with pytest.raises(InputError, match=names):
        said("maxtext", f"python -m MaxText.train base.yml model_name=llama2-7b {line}", gpus=64)


@pytest.mark.parametrize(
    ("steps", "fill"),
    [("gradient_accumulation_steps=4", 2.0), ("gradient_accumulation_steps=1", None)],
)
def test_pipelines_of_maxtext_run_empty_between_accumulated_passes(
    steps: str, fill: float | None
) -> None:
    """Each pass takes `num_pipeline_microbatches` through the stages."""
    line = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=8 "
    line += f"ici_pipeline_parallelism=4 num_pipeline_microbatches=8 {steps}"
    assert said("maxtext", line, gpus=32).get("pipeline_fill") == fill


def test_pipelines_of_torchtitan_run_empty_once_a_local_batch(tmp_path: Path) -> None:
    """The batch beyond the local ones of all ranks is accumulated over, and written so again."""
    line = "torchrun --nproc_per_node=8 --nnodes=4 -m torchtitan.train --model.name llama3 "
    line += "--model.flavor 8B "
    line += "--parallelism.pipeline_parallel_degree 4 --training.local_batch_size 8 "
    found = said("torchtitan", line + "--training.global_batch_size 256")
    assert (found["dp"], found["pipeline_fill"]) == (8, 2.0)
    assert "pipeline_fill" not in said("torchtitan", line + "--training.global_batch_size 64")
    assert "pipeline_fill" not in said("torchtitan", line)
    plan = {"gpus": 32, "pp": 4, "global_batch": 256, "micro_batch": 1, "seq_len": 8192,
            "pipeline_fill": 2, "framework": "torchtitan"}  # fmt: skip
    result = reckon.predict_train("llama3-8b", "dgx-h100", plan)
    written = emit("torchtitan", result.request, RunParameters(host_per_kernel=0.0, overlap={}))
    (tmp_path / "job.toml").write_text(written.text)
    again = read_launch("torchtitan", str(tmp_path / "job.toml")).fields
    assert (again["pipeline_fill"], again["global_batch"]) == (2.0, 256)


def test_settings_of_base_stand_in_no_file(tmp_path: Path) -> None:
    """The file that holds the defaults says nothing of the model that a command names."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.yml").write_text("model_name: default\nbase_emb_dim: 64\n")
    (tmp_path / "configs" / "own.yml").write_text(
        "base_config: base.yml\nmodel_name: llama2-7b\nper_device_batch_size: 4\n"
    )
    (tmp_path / "run.sh").write_text(
        "python3 MaxText/train.py configs/base.yml model_name=llama2-70b per_device_batch_size=1\n"
    )
    model = read_launch("maxtext", str(tmp_path / "run.sh")).model
    assert model is not None
    assert model.name == "llama2-70b"
    own = read_launch("maxtext", str(tmp_path / "configs" / "own.yml"))
    assert own.model is not None
    assert (own.model.name, own.fields["micro_batch"]) == ("llama2-7b", 4)


def test_what_is_kept_and_where() -> None:
    """Llama 2 7B: of input, queries, keys and values, of 4,096 each, the host keeps three of four;
    what keeps more runs less again."""
    head = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=1 "
    host = said("maxtext", head + "remat_policy=qkv_proj_offloaded")
    assert host["offload_activations"] == pytest.approx(3 / 4)
    own = " ".join(f"{name}=offload" for name in HOSTED["qkv_proj_offloaded"])
    assert said("maxtext", f"{head}remat_policy=custom {own}") == host
    away = said("maxtext", head + "remat_policy=custom decoder_layer_input=offload")
    assert (away["recompute"], away["offload_activations"]) == ("full", 1.0)
    parts = {}
    for policy in KEPT:
        found = said("maxtext", f"{head}remat_policy={policy}")
        again = str(found.get("recompute_modules", "core_attn,layernorm,mlp,mlp_act,qkv"))
        parts[policy] = set(again.split(","))
    for one, kept in KEPT.items():
        for other, more in KEPT.items():
            if set(kept) <= set(more):
                assert parts[other] <= parts[one], (one, other)
    assert set(DOTS) < set(TENSORS)


def test_nanotron_of_starcoder2() -> None:
    """7,173,923,840 parameters, as its model card has them, of a tied head; 128 accelerators."""
    launch = read_launch("nanotron", NANOTRON)
    assert launch.model is not None
    assert launch.model.parameters / 1e9 == pytest.approx(7.174, rel=2e-3)
    meant = {"tp": 4, "pp": 2, "dp": 16, "global_batch": 2 * 8 * 16, "sharding": "zero1",
             "recompute": "full", "sequence_parallel": True, "gradient_bytes": 6,
             "tokens": 1000 * 256 * 4096}  # fmt: skip
    assert {name: launch.fields[name] for name in meant} == meant
    assert launch.unknown == []
    odd = NANOTRON.replace("vocab_size: 49152", "vocab_size: 49153")
    model = read_launch("nanotron", odd).model
    assert model is not None
    assert model.vocab == 49152 + 64 * 4  # of tp ranks, each of a multiple of 64


def test_a_command_of_nanotron_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(NANOTRON)
    run = tmp_path / "run.sh"
    run.write_text("torchrun --nproc_per_node=8 run_train.py --config-file one.yaml\n")
    assert read_launch("nanotron", str(run)).fields == read_launch("nanotron", NANOTRON).fields
    run.write_text("torchrun --nproc_per_node=8 run_train.py --config-file two.yaml\n")
    with pytest.raises(InputError, match="cannot read two"):
        read_launch("nanotron", str(run))


def test_llm_foundry() -> None:
    """Interpolations, grouped queries, a budget in batches; a micro-batch that it seeks is open."""
    launch = read_launch("llm-foundry", FOUNDRY, beside={"gpus": 64})
    model = launch.model
    assert model is not None
    assert (model.kv_heads, model.positions, model.gated, model.bias) == (8, "alibi", False, False)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 4096 * 16384
    assert model.parameters == pytest.approx(32 * layer + 4096 * 50368, rel=1e-3)
    meant = {"sharding": "fsdp", "recompute": "full", "reduce_bytes": 2, "attention": "flash2",
             "precision": "bf16", "global_batch": 1024, "tokens": 63900 * 1024 * 2048}  # fmt: skip
    assert {name: launch.fields[name] for name in meant} == meant
    assert "micro_batch" not in launch.fields


def test_llm_foundry_in_a_request(tmp_path: Path) -> None:
    inner = "".join(f"  {line}\n" for line in FOUNDRY.strip().splitlines())
    request = f"name: x\ncompute:\n  gpus: 16\n  cluster: y\nparameters:\n{inner}"
    assert said("llm-foundry", request)["gpus"] == 16
    (tmp_path / "mpt.yaml").write_text(FOUNDRY)
    run = tmp_path / "run.sh"
    run.write_text("composer -n 8 train/train.py mpt.yaml max_seq_len=1024 model.n_layers=4\n")
    launch = read_launch("llm-foundry", str(run))
    assert launch.model is not None
    assert (launch.model.layers, launch.fields["seq_len"], launch.fields["gpus"]) == (4, 1024, 8)


@pytest.mark.parametrize(
    ("dialect", "text", "named"),
    [
        ("llm-foundry", "model: {name: hf_bert}\nglobal_train_batch_size: 8", "masked words"),
        ("llm-foundry", "model: {name: hf_t5}\nglobal_train_batch_size: 8", "encoder"),
        ("nanotron", "model: {model_config: {d_state: 16}}\nparallelism: {dp: 1}", "Mamba"),
        ("maxtext", "base_config: base.yml\nuse_dpo: true\nper_device_batch_size: 1", "DPO"),
        ("maxtext", "python3 -m MaxText.decode base.yml model_name=llama2-7b", "does not train"),
        ("maxtext", "decoder_block: envy\nper_device_batch_size: 1", "give --model"),
        ("maxtext", "a: 1", "no flag of maxtext"),
        ("nanotron", "a: 1", "neither parallelism nor tokens"),
        ("llm-foundry", "a: 1", "neither global_train_batch_size"),
    ],
)  # fmt: skip
def test_what_is_not_predicted_is_refused_by_name(dialect: str, text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_launch(dialect, text)
