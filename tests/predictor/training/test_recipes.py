"""What published recipes set, and what graphs do to a step."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import data_dir, recipe_facts, settings_of
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.plans import CUDA_GRAPHS
from predictor.timing.calibration import RunParameters
from predictor.training import predict
from predictor.training.completion import TrainingRequest, complete_training

BASE = {
    "model": "llama3-8b",
    "system": "dgx-h100",
    "gpus": 8,
    "tp": 1,
    "pp": 1,
    "global_batch": 16,
    "seq_len": 1024,
    "framework": "megatron-bridge",
    "precision": "bf16",
}


def complete(**changes: Any) -> TrainingRequest:
    spec = parse(TrainingPlanSpec, {**BASE, **changes}, "test")
    return complete_training(spec, RunParameters())


def rules(found: TrainingRequest) -> dict[str, str]:
    return {one.field: one.rule for one in found.assumed}


def test_every_fact_can_be_said_in_fields_of_a_plan() -> None:
    fields = set(TrainingPlanSpec.fields())
    with (data_dir() / "software" / "recipes.csv").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) > 500
    for row in table:
        assert row["field"] in fields
        assert row["from"] <= row["until"]
        assert row["source"].startswith("NVIDIA")
        if row["field"] == "cuda_graphs":
            assert set(row["value"].split(",")) <= set(CUDA_GRAPHS)


def test_what_was_read_beside_the_table_holds() -> None:
    """Every fact that was read by hand is among the recipes, and no other says the same field."""
    folder = data_dir() / "software"
    tables = []
    for name in ("recipes.csv", "recipes_read.csv"):
        with (folder / name).open(newline="", encoding="utf-8") as stream:
            tables.append([tuple(row) for row in csv.reader(stream)])
    every, read = tables
    assert every[0] == read[0]
    assert len(read) > 5
    for row in read:
        assert [one for one in every if one[:7] == row[:7]] == [row]


def test_a_recipe_fills_what_is_open_and_is_named() -> None:
    # NVIDIA-NeMo/Megatron-Bridge v0.6.0: experts overlap where the whole step is one graph.
    fields = {"model": "deepseek-v3", "system": "gb200-nvl72", "gpus": 256, "pp": 4, "ep": 64,
              "vpp": 4, "global_batch": 4096, "seq_len": 4096, "precision": "mxfp8"}  # fmt: skip
    found = complete(**fields, era="2026-08")
    assert found.plan.ep_overlap
    assert found.plan.cuda_graphs == "step"
    assert found.plan.dispatch == "once"
    assert found.plan.recompute_modules == "mla_up_proj"
    assert "Megatron-Bridge" in rules(found)["cuda_graphs"]
    stated = complete(**fields, era="2026-08", cuda_graphs="none", ep_overlap=False)
    assert stated.plan.cuda_graphs == "none"
    assert not stated.plan.ep_overlap
    assert "cuda_graphs" not in rules(stated)


def test_recipes_change_with_the_release() -> None:
    # Qwen3-235B on H100: all-to-all with overlap in all releases (notes of the facts' table).
    fields = {"model": "qwen3-235b-a22b", "gpus": 256, "pp": 8, "tp": 2, "ep": 32, "vpp": 4,
              "global_batch": 2048, "seq_len": 4096}  # fmt: skip
    assert complete(**fields, era="2026-08").plan.ep_overlap
    assert complete(**fields, era="2026-08").plan.dispatch == "copies"
    assert "recipe" not in " ".join(rules(complete(**fields, era="2023-08")).values())


@pytest.mark.parametrize(
    ("system", "era", "attention"),
    [
        ("gb200-nvl72", "2025-05", "unfused"),
        ("gb200-nvl72", "2025-08", "flash"),
        ("dgx-h100", "2025-05", "flash"),
    ],
)
def test_latent_heads_had_no_fused_backward_pass_on_the_first_blackwells(
    system: str, era: str, attention: str
) -> None:
    # TransformerEngine v2.2 to v2.5, fused_attn.cpp: heads of 192 and 128 from cuDNN 9.11 on.
    fields = {"model": "deepseek-v3", "system": system, "gpus": 256, "pp": 4, "tp": 2, "ep": 64,
              "global_batch": 2048, "seq_len": 4096}  # fmt: skip
    found = complete(**{**fields, "framework": "nemo"}, era=era, precision="bf16")
    assert found.plan.attention == attention


def test_experts_clamp_apart_until_one_kernel_runs_them() -> None:
    fields = {"model": "gpt-oss-120b", "system": "gb200-nvl72", "gpus": 64, "ep": 64,
              "global_batch": 1280, "seq_len": 4096}  # fmt: skip
    assert complete(**fields, era="2026-02", precision="bf16").plan.clamps_apart
    assert not complete(**fields, era="2026-06", precision="mxfp8").plan.clamps_apart


OLD = {"system": "dgx-a100", "model": "gpt3-1.3b", "micro_batch": 1, "precision": "fp16"}
LATE = {"system": "dgx-h100", "micro_batch": 1}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # Megatron-LM: fused in February 2022; forced to 32 bits with bf16 alone.
        ({**OLD, "framework": "megatron-lm", "era": "2021-06"}, (True, 2.0)),
        ({**OLD, "framework": "megatron-lm", "era": "2021-06", "precision": "bf16"}, (True, 4.0)),
        ({**OLD, "framework": "megatron-lm", "era": "2022-05"}, (False, 4.0)),
        # NeMo's launcher: July 2022, and of Nemotron and Mixtral not until 24.07.
        ({**OLD, "framework": "nemo", "era": "2022-06"}, (True, 4.0)),
        ({**OLD, "framework": "nemo", "era": "2022-08"}, (False, 4.0)),
        ({**LATE, "framework": "nemo", "era": "2024-06", "model": "nemotron-4-15b"}, (True, 2.0)),
        ({**LATE, "framework": "nemo", "era": "2024-06", "model": "llama3-8b"}, (False, 2.0)),
        ({**LATE, "framework": "nemo", "era": "2024-06", "model": "mixtral-8x7b"}, (True, 2.0)),
        ({**LATE, "framework": "nemo", "era": "2024-09", "model": "nemotron-4-15b"}, (False, 2.0)),
        ({**OLD, "framework": "megatron-deepspeed", "era": "2022-01"}, (True, 2.0)),
        ({**LATE, "framework": "megatron-deepspeed", "era": "2023-06"}, (True, 6.0)),
        ({**LATE, "framework": "nanotron"}, (True, 6.0)),
        # Primus: most of AMD's recipes, not all.
        ({"system": "mi300x", "framework": "primus"}, (True, 4.0)),
        ({"system": "mi300x", "framework": "primus", "model": "qwen3-30b-a3b"}, (False, 4.0)),
        ({**LATE, "framework": "megatron-lm"}, (False, 4.0)),
    ],
)
def test_gradients_are_added_by_kernels_of_their_own_until_products_do(
    fields: dict[str, Any], expected: tuple[bool, float]
) -> None:
    plan = complete(**fields).plan
    assert (plan.sums_apart, float(plan.gradient_bytes)) == expected


@pytest.mark.parametrize(
    ("framework", "era", "system", "expected"),
    [
        ("megatron-lm", "2021-06", "dgx-a100", False), ("megatron-lm", "2021-11", "dgx-a100", True),
        ("megatron-lm", "2022-05", "dgx-a100", True), ("nemo", "2022-03", "dgx-a100", True),
        ("nemo", "2024-06", "dgx-h100", False),
        ("megatron-deepspeed", "2022-05", "dgx-a100", False),
    ],
)  # fmt: skip
def test_layer_norms_of_ampere_persist_since_october_2021(
    framework: str, era: str, system: str, expected: bool
) -> None:
    fields = {"framework": framework, "era": era, "system": system, "model": "gpt3-1.3b"}
    assert complete(**fields).plan.norms_persist is expected


@pytest.mark.parametrize(
    ("model", "framework", "era", "expected"),
    [
        ("nemotron-4-15b", "nemo", "2025-05", True),
        ("nemotron-4-15b", "megatron-bridge", "2026-02", False),
        ("llama2-7b", "nemo", "2024-02", True),
        ("llama2-7b", "nemo", "2024-06", False),
        ("gpt3-1.3b", "nemo", "2024-02", False),
    ],
)
def test_activations_are_written_out_where_nothing_fuses_them(
    model: str, framework: str, era: str, expected: bool
) -> None:
    found = complete(model=model, framework=framework, era=era)
    assert found.plan.activation_apart is expected


def test_what_is_later_than_any_release_is_taken_for_the_newest() -> None:
    of = ("deepseek-v3", "pretrain", "GB200-186GB", "mxfp8")
    newest, later, never = (
        {one.field: one.value for one in recipe_facts("megatron-bridge", era, *of)}
        for era in ("2026-08", "2027-12", "2019-01")
    )
    assert newest == later != {} == never


def test_activations_that_a_recipe_offloads_are_a_share_of_the_layers() -> None:
    facts = recipe_facts(
        "megatron-bridge", "2026-08", "llama3.1-405b", "pretrain", "GB300-288GB", "bf16"
    )
    (found,) = (settings_of(one, 126, True) for one in facts if one.field == "sharding")
    assert found["sharding"] == "fsdp"
    assert 0 < found["offload_activations"] <= 1


def test_layers_that_run_again_are_counted_where_stages_are_known() -> None:
    (fact,) = (
        one
        for one in recipe_facts(
            "megatron-bridge", None, "llama3-8b", "pretrain", "H100-SXM5-80GB", "fp8"
        )
        if one.field == "recompute"
    )
    assert fact.value == "full 5"
    assert settings_of(fact, 32, True) == {"recompute": "full", "recompute_layers": 5}
    assert settings_of(fact, 32, False) == {}


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b", "nemotron-h-8b"])
def test_graphs_take_launches_away_and_nothing_else(model: str) -> None:
    run = RunParameters(host_per_kernel=1e-3)
    known = replace(catalog.load("none"), run=run)
    times = {}
    for graphs in ("none", "attention", "attention,mlp,mamba,router", "layers", "step"):
        found = complete(model=model, cuda_graphs=graphs, framework="neutral")
        times[graphs] = predict(found.model, found.cluster, found.plan, known)
    steps = [float(one.step_time) for one in times.values()]
    assert all(a >= b for a, b in pairwise(steps))
    assert steps[-1] < 0.5 * steps[0], "at 1 ms a launch the host decides"
    assert float(times["step"].breakdown["host"]) == 0
    for term in ("forward", "backward"):
        values = [float(one.breakdown[term]) for one in times.values()]
        np.testing.assert_allclose(values, values[0])


def test_recomputation_that_has_to_fit_stays_open() -> None:
    fields = {"model": "llama3-70b", "gpus": 64, "tp": 4, "pp": 4, "global_batch": 128}
    assert complete(**fields, seq_len=8192).plan.recompute == "none"
    fitted = complete(**fields, seq_len=32768, recompute="fit", era="2026-04")
    assert fitted.plan.recompute != "none"


def test_graphs_of_everything_go_with_nothing_else() -> None:
    with pytest.raises(InputError, match="step goes with nothing else"):
        complete(cuda_graphs="attention,step")
    assert complete(cuda_graphs="attention,mlp").plan.captured == ("attention", "mlp")


@pytest.mark.parametrize(
    ("model", "changes", "stored"),
    [("llama2-70b", {}, "fp8"), ("llama3-70b", {}, "as multiplied"),
     ("llama2-70b", {"precision": "bf16"}, "as multiplied"),
     ("llama2-70b", {"trained": "all"}, "as multiplied")],
)  # fmt: skip
def test_a_habit_of_a_model_and_a_plan_is_of_both(
    model: str, changes: dict[str, Any], stored: str
) -> None:
    """Frozen weights in fp8: NVIDIA's MLPerf fine-tuning of Llama 2 70B in fp8, nothing else."""
    plan = {"model": model, "framework": "nemo", "precision": "fp8", "trained": "lora_qkv"}
    assert complete(**{**plan, **changes}).plan.frozen_precision == stored


def test_the_loss_of_torchtitan_is_compiled_from_april_2025_and_in_chunks_from_may_2026() -> None:
    def kept(era: str, **changes: Any) -> float:
        return float(complete(framework="torchtitan", era=era, **changes).plan.logit_bytes)

    for era, eager, compiled in (
        ("2024-12", 14, 14),
        ("2025-04", 14, 4),
        ("2026-04", 14, 4),
        ("2026-05", 1.75, 0.5),
    ):
        assert (kept(era), kept(era, fused=True)) == (eager, compiled)
    assert kept("2026-08", fused=True, precision="mxfp8") == 1.75
    assert kept("2026-05", fused=True, logit_bytes=3) == 3


def test_checkpoints_of_torchtitan_run_to_their_end_from_september_2025() -> None:
    for era, eager in (("2025-08", True), ("2025-09", False), ("2026-08", False)):
        for fused, stops in ((None, eager), (False, eager), (True, True)):
            stated = {} if fused is None else {"fused": fused}
            plan = complete(framework="torchtitan", era=era, **stated).plan
            assert plan.stops_early is stops


def test_pipelines_of_torchtitan_had_a_micro_batch_for_each_rank_until_2025() -> None:
    """Of 32 sequences of a rank, four at once on eight stages; one since micro-batches have a size
    of their own. Without a pipeline nothing is said."""
    fields = {"framework": "torchtitan", "gpus": 512, "tp": 8, "pp": 8, "seq_len": 2048}
    for era, sequences in (("2024-12", 4), ("2025-05", 1)):
        made = complete(**fields, model="llama3-70b", era=era, global_batch=256)
        assert float(made.plan.micro_batch) == sequences
    flat = {"model": "llama3-8b", "framework": "torchtitan", "gpus": 8, "global_batch": 512}
    alone = [complete(**flat, era=era).plan.micro_batch for era in ("2024-12", "2025-05")]
    assert alone[0] == alone[1]


def test_one_adapter_is_that_of_early_zero_3_alone() -> None:
    def adapters(era: str, **changes: Any) -> float:
        return float(complete(framework="deepspeed", gpus=16, era=era, **changes).plan.adapters)

    assert adapters("2021-06") == adapters("2021-06", sharding="zero3") == 1.0
    assert np.isnan(adapters("2021-06", sharding="zero2"))
    assert np.isnan(adapters("2023-01", sharding="zero3"))


def test_torchtitan_merges_attention_over_keys_that_it_repeated_until_2026() -> None:
    for era, repeated in (("2024-12", True), ("2026-01", True), ("2026-02", False)):
        plan = complete(framework="torchtitan", era=era, cp=2).plan
        assert (plan.cp_kind, plan.merges_apart) == ("allgather", True)
        assert plan.keys_repeated is repeated
    assert complete(framework="megatron-lm", cp=2).plan.merges_apart is False


def test_torchtitan_checkpoints_its_largest_models_whole() -> None:
    # pytorch/torchtitan, models/llama3/config_registry.py @ 00d1c0e44.
    fields = {"framework": "torchtitan", "gpus": 512, "global_batch": 1024, "seq_len": 8192}
    assert complete(**fields).plan.recompute == "per_op"
    for era in ("2024-12", "2025-04", "2026-01"):
        for model in ("llama3-70b", "llama3.1-405b"):
            assert complete(**fields, model=model, era=era).plan.recompute == "full"
    stated = complete(**fields, model="llama3-70b", recompute="none")
    assert stated.plan.recompute == "none"


@pytest.mark.parametrize("framework", ["fms-fsdp", "pytorch"])
def test_checkpoints_are_switched_on_where_nothing_fits_without(framework: str) -> None:
    fields = {"framework": framework, "gpus": 256, "global_batch": 256, "seq_len": 4096}
    small = complete(**fields, model="llama3.2-1b")
    assert small.plan.recompute == "none"
    large = complete(**fields, model="llama3-70b")
    assert (large.plan.recompute, large.plan.recompute_share) == ("full", 1.0)


def test_whoever_takes_all_sequences_at_once_says_where_they_do_not_fit() -> None:
    fields = {"framework": "fms-fsdp", "gpus": 128, "seq_len": 4096, "model": "llama2-7b"}

    def said(batch: int) -> tuple[float, str, str]:
        found = complete(**fields, system="dgx-a100-80gb", global_batch=batch)
        (rule,) = (one.rule for one in found.assumed if one.field == "micro_batch")
        return float(found.plan.micro_batch), found.plan.recompute, rule

    assert said(256) == (2.0, "none", "a rank's sequences at once")
    assert said(1024) == (8.0, "full", "a rank's sequences at once")
    size, _, rule = said(16384)
    assert size < 128.0, "or nothing was tried"
    assert rule == "the most of a rank's sequences that fit in memory together"


@pytest.mark.parametrize(
    ("framework", "accelerator", "kernels"),
    [
        ("torchtitan", "MI300X-192GB", "triton"),
        ("torchtune", "MI250X-128GB", "triton"),
        ("huggingface", "MI355X-288GB", "triton"),
        ("torchtitan", "H100-SXM5-80GB", "flash2"),
        ("nemo", "MI300X-192GB", "flash"),
    ],
)
def test_pytorchs_attention_is_written_in_triton_on_rocm(
    framework: str, accelerator: str, kernels: str
) -> None:
    """Transformer Engine has Composable Kernel's and AITER's, which PyTorch takes if it is told."""
    fields = {"model": "llama3-8b", "accelerator": accelerator, "framework": framework}
    fields |= {"gpus": 8, "global_batch": 8, "seq_len": 2048, "era": "2025-08"}
    found = complete_training(parse(TrainingPlanSpec, fields, "test"), RunParameters())
    assert found.plan.attention == kernels


def test_a_name_may_stand_on_another_frameworks_code() -> None:
    """unsloth on HuggingFace's, litgpt on FSDP's, OLMo on Composer's, nanoGPT on a plain loop: what
    an entry does not say is theirs, in that era; the plan is theirs, with what fits them."""
    for name, of in (
        ("unsloth", "huggingface"),
        ("lit-gpt", "fms-fsdp"),
        ("OLMo", "llm-foundry"),
        ("nanogpt", "pytorch"),
    ):
        own, other = (complete(framework=n, era="2024-06").plan for n in (name, of))
        assert own.framework == other.framework == of
        assert own.vocab_multiple == other.vocab_multiple or name == "nanogpt"
    one = {"gpus": 1, "global_batch": 8, "micro_batch": 2, "seq_len": 2048, "trained": "lora"}
    adapted = complete(**one, framework="unsloth", era="2025-06").plan
    assert (adapted.fused, adapted.recompute, adapted.logit_bytes) == (True, "full", 0.5)
    assert (adapted.weight_bytes, adapted.adapter_style) == (2, "apart")
    trained = complete(**one, framework="litgpt", era="2024-06").plan
    assert (trained.fused, trained.weight_bytes) == (False, 2)
    assert complete(framework="olmo", era="2023-06").plan.attention == "flash2"
    assert complete(framework="llm-foundry", era="2023-06").plan.attention == "triton"


def test_attention_is_fused_on_gaudi_in_megatron_deepspeed() -> None:
    # HabanaAI/Megatron-DeepSpeed @ 891d6db, scripts/run_llama.sh.
    fields = {"framework": "megatron-deepspeed", "tp": 8, "era": "2024-03", "global_batch": 64}
    for system, own in (("Gaudi2-HLS2", ("flash", "none")), ("dgx-a100-80gb", ("unfused", "full"))):
        plan = complete(**fields, system=system).plan
        assert (plan.attention, plan.recompute) == own


def test_attention_of_llama_3_is_fused_on_trainium() -> None:
    # aws-neuron/neuronx-distributed-training @ 9169aa0, examples/conf.
    fields = {"framework": "neuronx-distributed", "system": "Trn1-32xlarge", "gpus": 16, "tp": 4}
    for model, attention in (("llama3-8b", "flash"), ("llama2-7b", "unfused")):
        assert complete(**fields, model=model).plan.attention == attention
