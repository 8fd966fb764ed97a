"""Trainers of preferences: what is learned from, and batches of pairs in sequences."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from predictor.errors import InputError
from reckon.launch import read_launch

FILE = {"base_model": "Qwen/Qwen3-8B", "sequence_len": 2048, "micro_batch_size": 2,
        "gradient_accumulation_steps": 4, "bf16": True}  # fmt: skip
COMMAND = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 2048"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"rl": "dpo"}, {"learns_from": "dpo", "micro_batch": 4, "global_batch": 128}),
        ({"rl": "ipo", "adapter": "lora"}, {"learns_from": "dpo", "trained": "lora"}),
        ({"rl": "kto"}, {"learns_from": "kto", "micro_batch": 2, "global_batch": 64}),
        ({"rl": "simpo"}, {"learns_from": "orpo", "micro_batch": 4}),
        ({"stage": "dpo", "pref_loss": "orpo"}, {"learns_from": "orpo", "micro_batch": 4}),
        ({"stage": "dpo", "pref_loss": "sigmoid", "ref_model": "Qwen/Qwen3-8B"},
         {"learns_from": "dpo", "compared_with": "held"}),
        ({"stage": "dpo", "precompute_ref_log_probs": True}, {"compared_with": "none"}),
        ({"stage": "sft"}, {"learns_from": None, "micro_batch": 2, "global_batch": 64}),
        ({"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}, {"learns_from": "dpo"}),
    ],
)  # fmt: skip
def test_what_a_file_learns_from(said: dict[str, Any], expected: dict[str, Any]) -> None:
    launch = read_launch("trainer", yaml.safe_dump({**FILE, **said}), beside={"gpus": 8})
    assert {name: launch.fields.get(name) for name in expected} == expected
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"trl dpo {COMMAND}", {"learns_from": "dpo", "micro_batch": 4, "recompute": "full",
                                "precision": "bf16"}),
        (f"accelerate launch examples/scripts/kto.py {COMMAND} --bf16",
         {"learns_from": "kto", "micro_batch": 2, "recompute": "none"}),
        (f"trl sft {COMMAND} --gradient_checkpointing false",
         {"learns_from": None, "recompute": "none"}),
        (f"swift rlhf --rlhf_type cpo {COMMAND}", {"learns_from": "orpo", "micro_batch": 4}),
    ],
)  # fmt: skip
def test_what_a_command_learns_from(text: str, expected: dict[str, Any]) -> None:
    launch = read_launch("trainer", text, beside={"gpus": 8})
    assert {name: launch.fields.get(name) for name in expected} == expected


@pytest.mark.parametrize("text", [f"trl grpo {COMMAND}", f"swift rlhf --rlhf_type ppo {COMMAND}"])
def test_what_generates_its_answers_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="whose steps generate too"):
        read_launch("trainer", text, beside={"gpus": 8})
