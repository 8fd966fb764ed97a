"""State spaces alone (Mamba, Mamba-2), beside attention (Falcon-H1), of Mamba-1 in turn with it
(Jamba), beside blocks that layers share (Zamba2): parameters by hand and as published, and files of
their types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.errors import InputError

PUBLISHED = {
    # Billions, all and active: model cards and reports (Mamba: Gu and Dao 2023; Mamba-2: Dao and
    # Gu 2024; Codestral: 7,285,403,648; Falcon-H1: arXiv 2507.22448; Jamba: arXiv 2408.12570).
    "mamba-130m": (0.129, 0.129),
    "mamba-370m": (0.372, 0.372),
    "mamba-790m": (0.793, 0.793),
    "mamba-1.4b": (1.372, 1.372),
    "mamba-2.8b": (2.768, 2.768),
    "mamba2-130m": (0.129, 0.129),
    "mamba2-370m": (0.370, 0.370),
    "mamba2-780m": (0.780, 0.780),
    "mamba2-1.3b": (1.344, 1.344),
    "mamba2-2.7b": (2.70, 2.70),
    "mamba-codestral-7b": (7.285403648, 7.285403648),
    "falcon-mamba-7b": (7.27, 7.27),
    "falcon-h1-0.5b": (0.521, 0.521),
    "falcon-h1-1.5b": (1.55, 1.55),
    "falcon-h1-1.5b-deep": (1.55, 1.55),
    "falcon-h1-3b": (3.15, 3.15),
    "falcon-h1-7b": (7.59, 7.59),
    "falcon-h1-34b": (33.6, 33.6),
    "jamba-1.5-mini": (52, 12),
    "jamba-1.5-large": (398, 94),
    "jamba-reasoning-3b": (3.03, 3.03),
}
SHARED = {"zamba2-1.2b": 1.22, "zamba2-2.7b": 2.66, "zamba2-7b": 7.36}
"""The same of models that share blocks, which a token touches several times."""


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_parameters_are_those_that_are_published(name: str, published: tuple[float, float]) -> None:
    found = catalog.model(name)
    assert found.parameters / 1e9 == pytest.approx(published[0], rel=0.01)
    assert found.active_parameters / 1e9 == pytest.approx(published[1], rel=0.01)


@pytest.mark.parametrize(("name", "published"), SHARED.items())
def test_shared_blocks_are_counted_once(name: str, published: float) -> None:
    assert catalog.model(name).parameters / 1e9 == pytest.approx(published, rel=0.01)


def test_zamba2_by_hand() -> None:
    """81 state spaces of 112 heads and two groups; two blocks that see twice the width; of each of
    13 uses a matrix and adapters of 128 on gate and up."""
    found = catalog.model("zamba2-7b")
    space = 3584 * (2 * 7168 + 2 * 2 * 64 + 112) + 7168 * 3584
    block = 3 * 7168 * 7168 + 7168 * 3584 + 3 * 3584 * 14336
    use = 3584 * 3584 + 128 * (3584 + 2 * 14336)
    assert found.matrix_parameters() == 81 * space + 2 * block + 13 * use
    assert found.matrix_parameters(active=True) == 81 * space + 13 * (block + use)
    rest = 32000 * 3584 + (81 + 1 + 2 * 3) * 3584
    assert found.parameters == found.matrix_parameters() + rest
    assert (found.stored_share, found.attention_input) == (2 / 13, 7168)
    small = catalog.model("zamba2-1.2b")
    assert small.use_adapters == 128 * (2048 + 2 * 8192 + 3 * (4096 + 4096))


def test_codestral_mamba_by_hand() -> None:
    """4096 to gate and channels (2 x 8192), B and C of 8 groups (2 x 1024) and 128 steps, and 8192
    back; two tables of 32,768; a norm each. Of the 7,285,403,648 that its card counts, what is
    left are convolutions of 10,240 channels with a bias, three vectors of 128, and 8,192 of the
    gated norm."""
    found = catalog.model("mamba-codestral-7b")
    block = 4096 * (2 * 8192 + 2 * 1024 + 128) + 8192 * 4096
    assert found.mamba_matrix == block
    assert found.parameters == 64 * (block + 4096) + 4096 + 2 * 32768 * 4096
    assert found.parameters + 64 * (10240 * 5 + 3 * 128 + 8192) == 7_285_403_648
    assert (found.attention_blocks, found.ffn_blocks, found.has_dense) == (0, 0, False)


def test_mamba_1_projects_steps_through_few_channels() -> None:
    """2560 to 2 x 5120; 5120 to 160 of steps, 16 of B and 16 of C; 160 to 5120; and back."""
    found = catalog.model("mamba-2.8b")
    assert found.mamba_matrix == 2560 * 2 * 5120 + 5120 * 192 + 160 * 5120 + 5120 * 2560
    assert (found.mamba_in_width, found.mamba_selected_width) == (10240, 192)
    assert catalog.model("mamba2-2.7b").mamba_selected_width == 0


def test_falcon_h1_has_all_three_in_each_layer_behind_two_norms() -> None:
    found = catalog.model("falcon-h1-34b")
    attention = 5120 * (2560 + 2 * 512) + 2560 * 5120
    space = 5120 * (2 * 4096 + 2 * 2 * 256 + 32) + 4096 * 5120
    layer = attention + space + 3 * 5120 * 21504 + 2 * 5120
    assert found.parameters == 72 * layer + 5120 + 2 * 261120 * 5120
    assert (found.attention_share, found.mamba_share, found.dense_share) == (1.0, 1.0, 1.0)
    assert (found.attention_blocks, found.ffn_blocks) == (72, 72)


def test_jamba_attends_in_every_eighth_layer_and_mixes_in_every_other() -> None:
    found = catalog.model("jamba-1.5-large")
    attention = 8192 * (8192 + 2 * 1024) + 8192 * 8192
    space = 8192 * 32768 + 16384 * (512 + 32) + 512 * 16384 + 16384 * 8192
    dense = 3 * 8192 * 24576
    mixture = 16 * dense + 16 * 8192
    assert found.matrix_parameters() == 9 * attention + 63 * space + 36 * (dense + mixture)
    assert (found.attention_blocks, found.mamba_layers, found.moe_layers) == (9, 63, 36)


CODESTRAL = {
    "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "num_heads": 128,
    "head_dim": 64, "state_size": 128, "n_groups": 8, "expand": 2, "chunk_size": 256,
    "tie_word_embeddings": False, "vocab_size": 32768,
}  # fmt: skip
OWN = {
    "d_model": 2560, "d_intermediate": 0, "n_layer": 64, "vocab_size": 50277,
    "ssm_cfg": {"layer": "Mamba2"}, "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": True,
    "pad_vocab_size_multiple": 16, "tie_embeddings": True,
}  # fmt: skip
MAMBA = {
    "model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "state_size": 16,
    "expand": 2, "time_step_rank": 160, "vocab_size": 50280,
}  # fmt: skip
FALCON_MAMBA = {
    "model_type": "falcon_mamba", "num_hidden_layers": 64, "hidden_size": 4096, "expand": 16,
    "intermediate_size": 8192, "state_size": 16, "time_step_rank": 256,
    "tie_word_embeddings": False, "vocab_size": 65024,
}  # fmt: skip
FALCON_H1 = {
    "model_type": "falcon_h1", "hidden_size": 3072, "num_hidden_layers": 44,
    "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 130048, "mamba_d_state": 256, "mamba_n_groups": 1,
    "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_expand": 2,
    "mamba_chunk_size": 128, "max_position_embeddings": 262144, "tie_word_embeddings": False,
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "attn_layer_offset": 4, "attn_layer_period": 8,
    "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_size": 4096,
    "intermediate_size": 14336, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256,
    "mamba_expand": 2, "num_attention_heads": 32, "num_experts": 16, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 65536, "sliding_window": None,
    "tie_word_embeddings": False, "max_position_embeddings": 262144,
}  # fmt: skip
REASONING = {
    **JAMBA, "attn_layer_offset": 7, "attn_layer_period": 14, "hidden_size": 2560,
    "intermediate_size": 8192, "mamba_dt_rank": 160, "num_attention_heads": 20, "num_experts": 1,
    "num_hidden_layers": 28, "num_key_value_heads": 1, "tie_word_embeddings": True,
}  # fmt: skip
MIXED = ["m"] * 5 + ["g"]
ZAMBA2 = {
    "model_type": "zamba2", "expansion_factor": 2, "ffn_hidden_size": 8192, "hidden_size": 2048,
    "layers_block_type": [*(MIXED * 6), "m", "m"], "lora_rank": 128, "mamba_headdim": 64,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 38,
    "num_key_value_heads": 32, "num_mem_blocks": 1, "state_size": 128, "use_mem_rope": True,
    "use_shared_attention_lora": True, "vocab_size": 32000,
}  # fmt: skip
ZAMBA2_NOW = {
    "model_type": "zamba2", "adapter_rank": 128, "chunk_size": 256, "hidden_size": 2560,
    "intermediate_size": 10240, "mamba_d_state": 64, "mamba_expand": 2, "mamba_headdim": 64,
    "mamba_ngroups": 1, "num_attention_heads": 32, "num_hidden_layers": 54, "num_mem_blocks": 2,
    "layers_block_type": [*(["mamba"] * 5 + ["hybrid"]) * 9], "use_mem_rope": False,
    "use_shared_attention_adapter": False, "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (CODESTRAL, "mamba-codestral-7b"),
        ({**CODESTRAL, "num_heads": None}, "mamba-codestral-7b"),
        (OWN, "mamba2-2.7b"),
        ({**OWN, "ssm_cfg": {}, "pad_vocab_size_multiple": 8}, "mamba-2.8b"),
        ({**OWN, "model_type": "mamba", "ssm_cfg": {}}, "mamba-2.8b"),
        (MAMBA, "mamba-2.8b"),
        ({**MAMBA, "time_step_rank": "auto"}, "mamba-2.8b"),
        (FALCON_MAMBA, "falcon-mamba-7b"),
        (FALCON_H1, "falcon-h1-7b"),
        ({**FALCON_H1, "mamba_d_head": "auto"}, "falcon-h1-7b"),
        (JAMBA, "jamba-1.5-mini"),
        (REASONING, "jamba-reasoning-3b"),
        (ZAMBA2, "zamba2-1.2b"),
        (ZAMBA2_NOW, "zamba2-2.7b"),
    ],
)
def test_files_are_read_as_the_catalog_has_them(content: dict[str, object], name: str) -> None:
    found, known = catalog.model(content), catalog.model(name)
    same = {"name": known.name, "max_context": known.max_context, "vocab": known.vocab}
    assert replace(found, **same) == known
    assert abs(found.vocab - known.vocab) < 16


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({**OWN, "attn_layer_idx": [9, 18]}, "'attn_layer_idx' and 'd_intermediate' are not"),
        ({**CODESTRAL, "num_heads": 100}, "100 heads of 64 are not the 8192 channels"),
        ({**FALCON_H1, "mamba_d_ssm": 4096}, "24 heads of 128 are not the 4096 channels"),
        ({**FALCON_H1, "mamba_use_mlp": False}, "'mamba_use_mlp' other than true"),
        ({**JAMBA, "attn_layer_period": 0}, "'attn_layer_period' must be a whole number"),
        ({**JAMBA, "expert_layer_period": 3}, "mixtures of 32 layers are not predicted"),
        ({**ZAMBA2, "layers_block_type": ["m"] * 37}, "must be mamba or hybrid for each layer"),
        ({**ZAMBA2, "layers_block_type": ["m"] * 38}, "must have a hybrid layer"),
        ({**MAMBA, "hidden_size": None}, "'hidden_size' must be a whole number"),
    ],
)
def test_files_that_are_otherwise_are_refused(content: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        catalog.model(content)


SPACE = {"mamba_layers": 4, "mamba_heads": 8, "mamba_head_dim": 8, "mamba_state": 4}
SIZES = {"layers": 8, "hidden": 64, "heads": 4, "ffn_hidden": 96, "vocab": 100, "name": "m"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "needs either mamba_groups"),
        ({"mamba_groups": 1, "mamba_rank": 4}, "needs either mamba_groups"),
        ({"mamba_rank": 4}, "heads of one channel"),
        ({"mamba_groups": 1, "mamba_beside": True}, "to be all of the 8 layers"),
        ({"mamba_groups": 1, "attention_layers": 1, "shared_blocks": 1}, "as these, not 3"),
        ({"mamba_groups": 1, "attention_layers": 2, "shared_blocks": 3}, "at least as many"),
        (
            {
                "mamba_groups": 1,
                "attention_layers": 2,
                "shared_blocks": 1,
                "num_experts": 4,
                "top_k": 1,
                "expert_ffn_hidden": 8,
            },
            "with experts, latents",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(more: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        catalog.model({**SIZES, **SPACE, **more})


def test_names_of_unknown_sizes_are_refused_by_what_they_have() -> None:
    with pytest.raises(InputError, match="state spaces whose sizes"):
        catalog.model("mamba2-77b")
