"""What is stated and changes nothing is told."""

from __future__ import annotations

from typing import Any

import pytest

import reckon
from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS
from predictor.plans.idle import SERVING, TRAINING

TRAINED: dict[str, Any] = {
    "gpus": 8, "tp": 1, "pp": 1, "cp": 1, "global_batch": 64, "seq_len": 4096,
    "recompute": "none", "sharding": "zero1", "dispatch": "copies", "trained": "all",
}  # fmt: skip
SERVED: dict[str, Any] = {"gpus": 8, "tp": 8, "input_len": 256, "output_len": 64}

OTHER: dict[str, Any] = {
    "lora_rank": 8, "frozen_precision": "nf4", "adapter_style": "fp32",
    "compared_with": "held",
    "offload_to": "nvme", "host_memory_gb": 700,
    "recompute_share": 0.5, "stage_recompute": "fits",
    "recompute_modules": "mlp", "dp_shard": 4, "reshard": False, "routed_nodes": 1,
    "dispatch_processors": 2,
    "routing": "in_turn", "cp_kind": "ulysses", "merges_apart": True, "keys_repeated": True,
    "p2p_overlap": True, "handed_rate": 1e9, "pipeline_fill": 2, "image_tiles": 3,
    "tower": "frozen",
    "prefill_tp": 2, "prefill_power_limit": 400, "prefill_dp": 2, "kv_gbs": 3, "cold_start_s": 9,
    "cache_drive_gbs": 1, "draft_cost": 0.3, "acceptance": 0.4, "adapter_rank": 8,
    "host_bandwidth_gbs": 9, "host_link_gbs": 9, "spacing_s": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
def test_training_is_as_without_and_says_so(name: str) -> None:
    plain = reckon.predict_train("mixtral-8x7b", "dgx-h100", {**TRAINED, "gpus": 64, "ep": 8})
    asked = {**TRAINED, "gpus": 64, "ep": 8, name: OTHER[name]}
    found = reckon.predict_train("mixtral-8x7b", "dgx-h100", asked)
    told = found.to_dict()["no_effect"]
    assert plain.to_dict()["no_effect"] == []
    assert [one.partition(" ")[0] for one in told] == [name]
    assert found.step_time == plain.step_time
    assert found.peak_memory == plain.peak_memory


@pytest.mark.parametrize("name", SERVING)
def test_serving_is_as_without_and_says_so(name: str) -> None:
    asked = {**SERVED, "concurrency": 4} if name == "spacing_s" else {**SERVED, "batch": 4}
    plain = reckon.predict_infer("llama3-8b", "dgx-h100", asked)
    found = reckon.predict_infer("llama3-8b", "dgx-h100", {**asked, name: OTHER[name]})
    assert [one.partition(" ")[0] for one in found.to_dict()["no_effect"]] == [name]
    assert found.e2e == plain.e2e


def test_what_has_what_it_needs_is_not_told() -> None:
    lora = {**TRAINED, "trained": "lora", "lora_rank": 8, "recompute": "full"}
    again = {**lora, "recompute_share": 0.5}
    assert reckon.predict_train("llama3-8b", "dgx-h100", again).to_dict()["no_effect"] == []
    drafted = {**SERVED, "batch": 4, "drafted": 3, "draft_cost": 0.2}
    assert reckon.predict_infer("llama3-8b", "dgx-h100", drafted).to_dict()["no_effect"] == []


def test_entries_are_fields() -> None:
    assert set(TRAINING) <= set(TRAINING_FIELDS)
    assert set(SERVING) <= set(SERVING_FIELDS)


@pytest.mark.parametrize("name", ["expert_loads", "expert_replicas", "expert_chunks"])
def test_what_is_of_experts_is_told_of_a_model_without_any(name: str) -> None:
    """A guide's own key beside a dense model changed nothing, and nobody said so."""
    value = {"expert_loads": "zipf:0.6"}.get(name, 8)
    stated = {"expert_loads": "even", name: value} if name == "expert_replicas" else {name: value}
    for found in (
        reckon.predict_train("llama3-8b", "dgx-h100", {**TRAINED, **stated}),
        reckon.predict_infer("llama3-8b", "dgx-h100", {**SERVED, **stated}),
    ):
        assert f"{name} (needs a model with experts)" in found.to_dict()["no_effect"]
