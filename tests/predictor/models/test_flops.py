from __future__ import annotations

import pytest

from predictor import catalog
from predictor.models.flops import CONVENTIONS, hardware_flop_per_token, model_flop_per_token
from predictor.models.model import Model


def gpt(layers: int, hidden: int, vocab: int = 51200) -> Model:
    return Model(
        name="gpt", layers=layers, hidden=hidden, heads=hidden // 128, kv_heads=hidden // 128,
        head_dim=128, ffn_hidden=4 * hidden, vocab=vocab, gated=False, tied_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize(("layers", "hidden"), [(48, 6144), (96, 12288), (128, 25600)])
def test_megatron_convention_is_korthikanti_eq_7(layers: int, hidden: int) -> None:
    s, v = 2048, 51200
    expected = 72 * layers * hidden**2 * (1 + s / (6 * hidden) + v / (12 * layers * hidden))
    assert model_flop_per_token(gpt(layers, hidden), s, "megatron") == pytest.approx(expected)


def test_hardware_flops_with_full_recomputation_are_narayanan_eq_3() -> None:
    layers, h, s, v = 96, 12288, 2048, 51200
    expected = 96 * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    found = hardware_flop_per_token(gpt(layers, h), s, "megatron", "full")
    assert found == pytest.approx(expected)


def test_palm_is_six_n_plus_attention() -> None:
    model = catalog.model("llama3-8b")
    expected = 6 * model.parameters + 12 * model.layers * model.attention_width * 8192
    assert model_flop_per_token(model, 8192, "palm") == pytest.approx(expected)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_recomputation_only_adds(name: str) -> None:
    model = catalog.model("llama3-8b")
    by = {r: hardware_flop_per_token(model, 4096, name, r) for r in ("none", "selective", "full")}
    assert by["none"] == model_flop_per_token(model, 4096, name)
    assert by["none"] <= by["selective"] <= by["full"] <= 4 / 3 * by["none"] + 1


def test_causal_counting_halves_attention_only() -> None:
    model = catalog.model("llama3-70b")
    full, half = (model_flop_per_token(model, 8192, c) for c in ("megatron", "megatron_causal"))
    attention = 12.0 * model.layers * model.attention_width * 8192
    assert full - half == pytest.approx(attention / 2)


def test_latent_heads_multiply_queries_keys_and_values_of_their_own_sizes() -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 against the keys and 128 from them, in 61 layers; two FLOP
    each for every pair of tokens, three times over."""
    model, s = catalog.model("deepseek-v3"), 4096
    with_, without = (model_flop_per_token(model, s, c) for c in ("palm", "6nd"))
    assert with_ - without == pytest.approx(3 * 2 * 128 * (128 + 64 + 128) * s * 61)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_what_recomputation_repeats(name: str) -> None:
    """The attention core once more; of the products keys, output and one side of the gate (Llama-3
    8B); a share of all layers but the head."""
    model, s = catalog.model("llama3-8b"), 8192
    plain, *more = (
        hardware_flop_per_token(model, s, name, r) for r in ("none", "selective", "per_op", "full")
    )
    selective, per_op, full = (each - plain for each in more)
    counted = CONVENTIONS[name].attention
    assert selective == pytest.approx(4 * model.layers * model.attention_width * s * counted)
    again = (1024 + 4096 + 14336) / (4096 + 2 * 1024 + 4096 + 3 * 14336)
    assert per_op == pytest.approx(again * (full - selective))
    assert again == pytest.approx(0.365, abs=5e-4)
    half = hardware_flop_per_token(model, s, name, "full", 0.5) - plain
    assert half == pytest.approx(full / 2)
    every = CONVENTIONS[name].weights == "all"
    matrices = model.parameters if every else model.matrix_parameters()
    assert full - selective == pytest.approx(2 * matrices)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_frozen_weights_get_no_gradients_of_their_own(name: str) -> None:
    """Of products forward and to the input, of attention all three: 4 N and 3 times the core."""
    model = catalog.model("llama3-8b")
    every, frozen = (model_flop_per_token(model, 4096, name, own) for own in (False, True))
    core = 4.0 * model.layers * model.attention_width * 4096 * CONVENTIONS[name].attention
    assert frozen - 3.0 * core == pytest.approx(2.0 / 3.0 * (every - 3.0 * core))
    again = hardware_flop_per_token(model, 4096, name, "full", frozen=True)
    assert again - frozen == hardware_flop_per_token(model, 4096, name, "full") - every


def test_keys_that_are_attended_to_are_those_in_windows() -> None:
    """Gemma 3 27B: five of six layers see 1,024 keys at most, w (1 - w / 2s) on average; without
    windows it is the causal half, and no model counts more than that."""
    model, s = catalog.model("gemma3-27b"), 131072
    full, causal, seen = (
        model_flop_per_token(model, s, c) for c in ("megatron", "megatron_causal", "attended")
    )
    each = 3 * 2 * 2 * model.attention_width
    every = 2.0 * (full - causal) / (each * s)  # layers
    window = 1024 * (1.0 - 0.5 * 1024 / s)
    whole = model.layers // 6
    assert every == pytest.approx(model.layers)
    assert causal - seen == pytest.approx(each * (model.layers - whole) * (s / 2 - window))
    plain = catalog.model("llama3-8b")
    assert model_flop_per_token(plain, s, "attended") == model_flop_per_token(
        plain, s, "megatron_causal"
    )
