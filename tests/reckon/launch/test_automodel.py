"""Files of NeMo AutoModel: what each says, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InputError
from reckon.console.cli import main
from reckon.launch import read_launch

MIXTURE = """
recipe: BenchmarkingRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 256, local_batch_size: 8, max_steps: 12}
benchmark: {num_nodes: 32}
distributed:
  strategy: fsdp2
  tp_size: 1
  cp_size: 1
  pp_size: 4
  ep_size: 64
  sequence_parallel: false
  activation_checkpointing: true
  pipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 1, layers_per_stage: 2,
             round_virtual_stages_to_pp_multiple: down}
  moe: {reshard_after_forward: false, wrap_outer_model: false}
model:
  config: {pretrained_model_name_or_path: deepseek-ai/DeepSeek-V3}
  backend: {attn: te, dispatcher: hybridep, dispatcher_num_sms: 64, enable_fsdp_optimizations: true}
dataset: {seq_len: 4096}
optimizer: {_target_: torch.optim.Adam, lr: 0.0001}
"""

ADAPTERS = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 32, local_batch_size: 2}
model: {pretrained_model_name_or_path: meta-llama/Llama-3.3-70B-Instruct, torch_dtype: bf16}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 2, sequence_parallel: true,
              mp_policy: {param_dtype: bfloat16, reduce_dtype: float32}}
peft: {target_modules: "*_proj", dim: 8, alpha: 32}
packed_sequence: {packed_sequence_size: 4096}
"""


def said(text: str, **beside: Any) -> dict[str, Any]:
    return dict(read_launch("automodel", text, beside=beside).fields)


def test_a_mixture_in_a_pipeline() -> None:
    """61 layers in twos are 31 stages, rounded down to 28: seven on each device."""
    launch = read_launch("automodel", MIXTURE, beside={"gpus": 256})
    assert launch.model is not None
    assert launch.model.name == "deepseek-v3"
    expected = {"pp": 4, "ep": 64, "dp": 64, "micro_batch": 1, "pipeline_fill": 2.0, "vpp": 7,
                "global_batch": 256, "seq_len": 4096, "schedule": "1f1b", "recompute": "full",
                "sharding": "fsdp", "reshard": False, "reduce_last": True, "dispatch": "once",
                "dispatch_processors": 64, "weight_bytes": 2, "optimizer_bytes": 4,
                "attention": "flash", "trained": "all"}  # fmt: skip
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == []


def test_adapters_on_packed_sequences() -> None:
    found = said(ADAPTERS, gpus=8)
    expected = {"tp": 2, "dp": 4, "micro_batch": 2, "global_batch": 32, "seq_len": 4096,
                "trained": "lora", "lora_rank": 8, "recompute": "none", "reduce_bytes": 4,
                "sequence_parallel": True}  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert "pipeline_fill" not in found


@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ("optimizer: {exp_avg_dtype: torch.float32, master_weights: true, "
         "store_param_remainders: true}", {"optimizer_bytes": 10}),
        ("optimizer: {exp_avg_dtype: torch.float32, master_weights: true}",
         {"optimizer_bytes": 12}),
        ("optimizer: {_target_: dion.Muon}", {"optimizer": "muon"}),
        ("fp8: {enabled: true, recipe_name: rowwise}", {"precision": "fp8_rowwise"}),
        ("fp8: {enabled: true}", {"precision": "fp8"}),
        ("compile: {enabled: true}", {"fused": True}),
        ("slurm: {nodes: 4, ntasks_per_node: 8}", {"gpus": 32, "dp": 16}),
        ("autopipeline: {pp_microbatch_size: 1}", {"micro_batch": 2}),
    ],
)  # fmt: skip
def test_single_keys(more: str, meant: dict[str, Any]) -> None:
    found = said(ADAPTERS + more)
    assert {name: found.get(name) for name in meant} == meant


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("strategy: ddp", {"sharding": "none"}),
        ("strategy: megatron_fsdp, zero_dp_strategy: 2", {"sharding": "zero2"}),
        ("strategy: fsdp2, dp_replicate_size: 2", {"sharding": "hsdp", "dp_shard": 8}),
        ("activation_checkpointing: selective", {"recompute": "per_op"}),
        ("defer_fsdp_grad_sync: false", {"reduce_last": False}),
        ("dp_size: 4, tp_size: 2, pp_size: 2, pipeline: {pp_schedule: gpipe}",
         {"gpus": 16, "schedule": "gpipe", "pipeline_fill": 1.0}),
    ],
)  # fmt: skip
def test_keys_of_the_layout(key: str, meant: dict[str, Any]) -> None:
    head = "step_scheduler: {global_batch_size: 32, local_batch_size: 2}\n"
    found = said(f"{head}distributed: {{{key}}}", **({} if "dp_size" in key else {"gpus": 16}))
    assert {name: found.get(name) for name in meant} == meant


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a: 1", "neither step_scheduler.local_batch_size"),
        (f"{MIXTURE}flow_matching: {{sigma_min: 0}}", "makes images"),
        (MIXTURE.replace("interleaved1f1b", "zigzag"), "known are 1f1b"),
        (MIXTURE.replace("local_batch_size: 8", "local_batch_size: 9").replace(
            "pp_microbatch_size: 1", "pp_microbatch_size: 2"), "not a multiple"),
        (ADAPTERS.replace("fsdp2", "zero4"), "known are fsdp2"),
        (MIXTURE.replace("BenchmarkingRecipe", "KnowledgeDistillationRecipe"), "second model"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_in_a_line(text: str, names: str) -> None:
    with pytest.raises(InputError, match=names):
        said(text, gpus=256)


def test_a_file_is_known_by_itself_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peft.yaml"
    made = ADAPTERS.replace("model: {", "model: {_target_: nemo_automodel.NeMoAutoModel, ")
    path.write_text(made.replace("tp_size: 2,", "tp_size: 2, activation_checkpointing: true,"))
    assert main(["check", str(path), "--system", "dgx-h100", "--gpus", "8"]) == 0
    assert "understood (automodel)" in capsys.readouterr().out
