"""Families of 2023 and 2024, and files that leave sizes to their class: their `config.json`
against the parameters that their authors state, in billions."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog

CHATGLM3: dict[str, Any] = {
    "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32,
    "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696, "seq_length": 8192,
    "padded_vocab_size": 65024, "add_qkv_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "kv_channels": 128, "intermediate_size": 22016, "seq_length": 8192, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip
BAICHUAN2: dict[str, Any] = {
    "model_type": "baichuan", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 125696,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
INTERNLM2: dict[str, Any] = {
    "model_type": "internlm2", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 92544, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
EXAONE: dict[str, Any] = {
    "model_type": "exaone", "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 102400, "head_dim": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
    },
}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096},
}


@pytest.mark.parametrize(
    ("config", "stated"),
    [
        (CHATGLM3, 6.24),  # THUDM/ChatGLM3
        (QWEN, 7.72),  # Qwen-7B, technical report
        (BAICHUAN2, 7.51),  # baichuan-inc/Baichuan2-7B-Base
        (INTERNLM2, 7.74),  # internlm/internlm2-7b
        (EXAONE, 7.82),  # LGAI-EXAONE/EXAONE-3.0-7.8B
        (GEMMA3_4B, 3.88),  # 3,209 million and embeddings of 675 million: Gemma 3's report, table 1
        (LLAVA, 6.74),  # that of Vicuna 7B
    ],
)
def test_counts_are_the_stated_ones(config: dict[str, Any], stated: float) -> None:
    assert catalog.model({**config, "_name_or_path": "x"}).parameters / 1e9 == pytest.approx(
        stated, rel=0.005
    )


def test_what_a_file_leaves_to_its_class_is_the_smallest_gemma() -> None:
    """Gemma 2 2B: 2,614,341,888 parameters with a vocabulary of 256,000 (its report: 590 million of
    embeddings, 2,024 million others); its successor's class has 262,208, and norms of queries and
    keys."""
    found = catalog.model({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    layer = 2304 * 256 * (8 + 2 * 4 + 8) + 3 * 2304 * 9216
    assert 26 * (layer + 4 * 2304) + 256_000 * 2304 + 2304 == 2_614_341_888
    assert found.matrix_parameters() == 26 * layer
    assert (found.layers, found.heads, found.kv_heads, found.vocab) == (26, 8, 4, 262_208)
    assert found.parameters == pytest.approx(26 * layer + 262_208 * 2304, rel=1e-3)
    assert found.sliding_window == 4096
