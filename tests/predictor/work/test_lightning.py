"""Lightning attention: rules that forget at fixed rates, by hand (MiniMax-Text-01, Ling 2.6)."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.work.serving import (
    decode_attention,
    layer_operators,
    pass_collectives,
    prefill_attention,
    state_bytes,
)
from tests.predictor.work.served import named, plan

TEXT = catalog.model("minimax-text-01")
LING = catalog.model("ling-2.6-flash")


def test_a_block_is_queries_keys_values_a_gate_and_the_output() -> None:
    wide = 64 * 128
    assert TEXT.delta_matrix == 5 * 6144 * wide
    assert (TEXT.attention_blocks, TEXT.delta_layers) == (10, 70)
    found = named(layer_operators(TEXT, plan(tp=8.0), 7.0))
    assert found["delta.in"].n == 4 * wide / 8
    own = {name for name in found if name.startswith("delta.")}
    assert own == {"delta.norm", "delta.in", "delta.gate", "delta.out"}


def test_a_token_multiplies_the_weights_it_touches() -> None:
    operators = layer_operators(TEXT, plan(tp=1.0), 1.0)
    flop = sum(o.flop * o.count for o in operators if o.op in ("gemm", "moe_gemm"))
    assert flop == pytest.approx(2.0 * TEXT.matrix_parameters(active=True))


def test_a_state_is_a_square_of_each_head_and_nothing_beside() -> None:
    assert state_bytes(TEXT, plan(tp=8.0)) == 70 * 4 * (64 / 8) * 128 * 128
    update = named(decode_attention(TEXT, plan(tp=1.0), 4.0, 1000.0))["delta.update"]
    assert update.bytes == 2 * 4 * (4 * 64 * 128 * 128)


def test_prompts_go_through_in_blocks_of_256_without_a_system_to_solve() -> None:
    """Per block and head: scores and what they weigh, 256 x 256 x 128; what a block adds to the
    state and what the state before it gives, 256 x 128 x 128."""
    found = named(prefill_attention(TEXT, plan(tp=1.0), 1.0, 4096.0))
    flop = sum(one.flop for name, one in found.items() if name.startswith("delta."))
    assert flop == pytest.approx(2 * 16 * 64 * (2 * 256 * 256 * 128 + 2 * 256 * 128 * 128))
    assert not {"delta.solve", "delta.w", "delta.u", "delta.scale"} & set(found)
    # A state of 128 x 32 in 32 bits comes and goes for each of 16 blocks; 4 slices, 64 heads.
    assert found["delta.pass"].bytes == 64 * 4 * 16 * 2 * 4 * 128 * 32


def test_ranks_add_up_squares_where_the_norm_is_over_all_heads() -> None:
    found = {one.name: one for one in pass_collectives(TEXT, plan(tp=8.0), 10.0, 2.0)}
    assert (found["delta.squares"].bytes, found["delta.squares"].count) == (4 * 10.0, 70)
    assert "attention.squares" not in found
    other = {one.name for one in pass_collectives(LING, plan(tp=8.0), 10.0, 2.0)}
    assert "delta.squares" not in other
