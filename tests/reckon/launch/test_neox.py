"""Configurations of GPT-NeoX: sizes against the parameters that the models' authors state."""

from __future__ import annotations

import pytest

from predictor.errors import InputError
from reckon.launch import read_launch

LLAMA = """
{"pipe_parallel_size": 2, "model_parallel_size": 4, "make_vocab_size_divisible_by": 1,
 "num_layers": 80, "hidden_size": 8192, "intermediate_size": 65536, "num_attention_heads": 64,
 "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary",
 "no_weight_tying": true, "norm": "rmsnorm", "use_bias_in_mlp": false,
 "use_bias_in_attn_linear": false, "activation": "swiglu", "mlp_multiple_of": 256,
 "vocab_size": 32000, "train_micro_batch_size_per_gpu": 2, "precision": "bfloat16",
 "zero_optimization": {"stage": 1}, "checkpoint_activations": true,
 "attention_config": [[["flash"], 80]]}
"""


def test_a_gated_width_is_a_third() -> None:
    launch = read_launch("megatron", LLAMA)
    assert launch.model is not None
    assert launch.model.ffn_hidden == 22016  # 65,536 / 3 = 21,845, up to a multiple of 256
    assert launch.model.parameters / 1e9 == pytest.approx(65.29, rel=1e-3)  # LLaMA, table 2
    said = {"tp": 4, "pp": 2, "micro_batch": 2, "precision": "bf16", "sharding": "zero1",
            "recompute": "full", "attention": "flash", "dropout": False}  # fmt: skip
    assert {name: launch.fields[name] for name in said} == said


def test_micro_batches_of_a_replica() -> None:
    text = LLAMA.replace('"vocab_size"', '"gradient_accumulation_steps": 32, "vocab_size"')
    fields = read_launch("megatron", text, beside={"gpus": 96}).fields
    assert fields["global_batch"] == 2 * 32 * (96 // (4 * 2))


def test_no_modules_of_stages_is_one_stage() -> None:
    assert read_launch("megatron", LLAMA.replace('size": 2,', 'size": 0,', 1)).fields["pp"] == 1


def test_other_layers_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"mamba layers.*not read"):
        read_launch("megatron", LLAMA.replace("flash", "mamba"))


def test_blocks_stand_one_behind_the_other_unless_it_says_otherwise() -> None:
    """EleutherAI/gpt-neox, configs/2-7B.yml: the sizes of Phi-2, whose blocks are side by side."""
    text = """
    {"pipe-parallel-size": 1, "model-parallel-size": 1, "num-layers": 32, "hidden-size": 2560,
     "num-attention-heads": 32, "seq-length": 2048, "max-position-embeddings": 2048,
     "norm": "layernorm", "pos-emb": "rotary", "no-weight-tying": true, "vocab_size": 51200,
     "train_micro_batch_size_per_gpu": 4}
    """

    def found(more: str = "") -> tuple[str, str]:
        model = read_launch("megatron", text.replace('"vocab_size"', f'{more} "vocab_size"')).model
        assert model is not None
        return model.name, model.parallel

    name, parallel = found()
    assert (name.startswith("launched"), parallel) == (True, "")
    assert found('"gpt_j_residual": true,')[1] == "own_norms"
    assert found('"gpt_j_residual": true, "gpt_j_tied": true,') == ("phi-2", "shared_norm")


def test_recompute_activations_wins() -> None:
    """Megatron-LM, arguments.py, validate_args: it sets the granularity to selective, whatever is
    stated."""
    fields = read_launch(
        "megatron",
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000 "
        "--recompute-activations --recompute-granularity full",
    ).fields
    assert (fields["recompute"], fields["recompute_modules"]) == ("selective", "core_attn")
