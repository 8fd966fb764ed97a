"""What checkpoints by operator run again, counted by hand from the order of a block's matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.models import repeated_products
from predictor.models.model import Model
from predictor.models.repeated import repeated_share


def test_latents_shift_what_comes_after_them() -> None:
    """DeepSeek-V3: latents of queries 1, queries 2, latents of keys 3, keys and values 4, output 5,
    gate 6, up 7, down 8; experts are never kept."""
    found = repeated_products(catalog.model("deepseek-v3"))
    assert [found[f"attention.{n}"] for n in ("q_down", "q_up", "kv_down", "kv_up", "out")] == [
        0.0, 1.0, 0.0, 1.0, 0.0,
    ]  # fmt: skip
    assert (found["shared.up"], found["shared.down"]) == (0.5, 1.0)
    assert found["moe.up"] == found["moe.down"] == found["moe.router"] == 1.0


def test_without_a_gate_the_way_down_has_an_even_number() -> None:
    """GPT-3: output 4, up 5, down 6."""
    found = repeated_products(catalog.model("gpt3-175b"))
    assert (found["attention.qkv"], found["attention.out"]) == (pytest.approx(1 / 3), 1.0)
    assert (found["mlp.up"], found["mlp.down"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt-oss-120b", "nemotron-h-56b"])
def test_no_more_runs_again_than_there_is(name: str) -> None:
    assert 0.0 < repeated_share(catalog.model(name)) < 1.0


H, HEADS, KV, D, FFN = 64, 4, 2, 16, 192
PLAIN = Model(
    name="plain", layers=6, hidden=H, heads=HEADS, kv_heads=KV, head_dim=D, ffn_hidden=FFN,
    vocab=100, gated=False,
)  # fmt: skip


def test_shares_of_whole_models_by_hand() -> None:
    """Queries 1, keys 2, values 3, output 4; up 5, down 6, or both sides and down. Of the layers'
    products alone: the output projection is none of theirs."""
    kv, attention = KV * D * H, 2 * HEADS * D * H + 2 * KV * D * H
    again = kv + HEADS * D * H
    plain = 6 * (again + FFN * H) / (6 * (attention + 2 * FFN * H))
    assert repeated_share(PLAIN) == pytest.approx(plain)
    gated = 6 * (again + FFN * H) / (6 * (attention + 3 * FFN * H))
    assert repeated_share(replace(PLAIN, gated=True)) == pytest.approx(gated)


def test_experts_run_again_whole_and_shared_ones_as_dense_blocks() -> None:
    """Two of six layers dense; three of eight experts each, two shared; a router."""
    model = replace(
        PLAIN, num_experts=8, top_k=3, expert_ffn_hidden=32, shared_experts=2, dense_layers=2
    )
    kv, attention = KV * D * H, 2 * HEADS * D * H + 2 * KV * D * H
    routed, shared = 3 * 2 * 32 * H + 8 * H, 2 * 2 * 32 * H
    again = 6 * (kv + HEADS * D * H) + 2 * FFN * H + 4 * (routed + shared / 2)
    whole = 6 * attention + 2 * 2 * FFN * H + 4 * (routed + shared)
    assert repeated_share(model) == pytest.approx(again / whole)


def test_of_latents_every_other_runs_again_and_of_what_is_not_in_order_half() -> None:
    """An indexer beside them; state spaces and delta rules, whose places are not known."""
    model = replace(
        PLAIN, q_lora_rank=24, kv_lora_rank=40, qk_rope_head_dim=8, qk_nope_head_dim=12,
        v_head_dim=20, kv_heads=HEADS,
    )  # fmt: skip
    sizes = [H * 24, 24 * HEADS * 20, H * 48, 40 * HEADS * 32, HEADS * 20 * H]
    known = sizes[1] + sizes[3]
    # Five come before: up 6, down 7.
    whole = 6 * (sum(sizes) + 2 * FFN * H)
    assert repeated_share(model) == pytest.approx(6 * (known + FFN * H) / whole)
    index = replace(model, index_heads=3, index_head_dim=10, index_topk=64)
    more = 24 * 30 + H * (10 + 3)
    found = 6 * (known + more / 2 + FFN * H) / (whole + 6 * more)
    assert repeated_share(index) == pytest.approx(found)
    # Queries at once: theirs 1, latents 2, keys and values 3, output 4, up 5, down 6.
    alone = replace(model, q_lora_rank=0)
    sizes = [H * HEADS * 20, H * 48, 40 * HEADS * 32, HEADS * 20 * H]
    again = sizes[1] + sizes[3] + FFN * H
    assert repeated_share(alone) == pytest.approx(6 * again / (6 * (sum(sizes) + 2 * FFN * H)))
    assert repeated_products(alone)["attention.q_up"] == 0.0


@pytest.mark.parametrize("kind", ["state space", "rule", "inputs"])
def test_blocks_whose_place_is_not_known_run_again_by_half(kind: str) -> None:
    more = {
        "state space": {"layers": 6, "mamba_layers": 2, "attention_layers": 2, "mamba_heads": 4,
                        "mamba_head_dim": 8, "mamba_state": 4, "mamba_groups": 2},
        "rule": {"delta_layers": 4, "delta_key_heads": 2, "delta_value_heads": 4,
                 "delta_key_dim": 8, "delta_value_dim": 12},
        "inputs": {"layer_inputs": 10},
    }[kind]  # fmt: skip
    model = replace(PLAIN, **more)
    kv, attention = KV * D * H, 2 * HEADS * D * H + 2 * KV * D * H
    blocks = {"state space": 2, "rule": 2, "inputs": 6}[kind]
    dense = {"state space": 2, "rule": 6, "inputs": 6}[kind]
    rest = {
        "state space": 2 * model.mamba_matrix, "rule": 4 * model.delta_matrix,
        "inputs": 6 * model.layer_input_matrix + model.input_projection,
    }[kind]  # fmt: skip
    assert rest > 0
    again = blocks * (kv + HEADS * D * H) + dense * FFN * H + rest / 2
    whole = blocks * attention + dense * 2 * FFN * H + rest
    assert model.matrix_parameters(active=True) == whole
    assert repeated_share(model) == pytest.approx(again / whole)
