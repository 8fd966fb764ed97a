"""Short convolutions, choices that layers share, index keys of several tokens, gates of heads and
whole decays: their kernels by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.memory.parameters import delta_parameters, mixer_parameters
from predictor.memory.serving import weight_bytes
from predictor.work.serving import (
    cache_bytes,
    decode_attention,
    kv_token_bytes,
    layer_operators,
    pass_collectives,
    prefill_attention,
    read_bytes,
    state_bytes,
)
from predictor.work.training import step_operators
from tests.predictor.work.counts import (
    DENSE,
    HEADS,
    INDEX,
    LATENTS,
    OWN,
    RANK,
    SMALL,
    SPARSE,
    TP,
    VALUE,
    H,
    T,
    check,
    layer,
    norm,
    product,
    residual,
    served,
    stream,
    trained,
)

TAPS = 5
CONV = replace(DENSE, conv_layers=3, conv_taps=TAPS)
"""Two of five layers have attention."""

SHARING = replace(SPARSE, sharing_layers=3)
POOL = 8
POOLED = replace(SPARSE, index_pool=POOL)


def test_a_short_convolution_in_training() -> None:
    """B, C and x are projected at once; gates and taps touch a rank's channels, each once."""
    own, kept = H / TP, 2 * T * H // TP
    expected = (
        norm("conv.norm", OWN, H)
        | layer("conv.in", T, 3 * own, H, 2 * OWN * H)
        | {
            "conv.gate_in": stream(T, own, 6, kept), "conv.gate_in.bwd": stream(T, own, 10),
            "conv.conv": stream(T, own, 4, kept), "conv.conv.bwd": stream(T, own, 8),
            "conv.gate_out": stream(T, own, 6, kept), "conv.gate_out.bwd": stream(T, own, 10),
        }
        | layer("conv.out", T, H, own, kept)
        | residual("conv.residual", OWN)
    )  # fmt: skip
    found = step_operators(CONV, trained())
    check(found, expected, ("conv",))
    counts = {o.name: o.count for o in found}
    assert counts["conv.in"] * 2 == pytest.approx(counts["attention.qkv"] * 3)


def test_a_short_convolution_keeps_its_last_tokens_alone() -> None:
    assert state_bytes(CONV, served()) == 3 * 2 * (TAPS - 1) * H / TP
    assert state_bytes(DENSE, served()) == 0
    two, five = (cache_bytes(one, served(), 100.0) for one in (CONV, DENSE))
    assert two / 2 == five / 5
    reduced = {one.name: one for one in pass_collectives(CONV, served(), 4.0, 4.0)}
    assert reduced["attention.reduce"].count == 5


def test_an_engine_holds_the_weights_that_there_are() -> None:
    """On one rank, all in 16 bits."""
    for name in ("lfm2-8b-a1b", "lfm3-1.7b", "ling-3.0-flash", "glm-5.2", "trinity-mini"):
        model = catalog.model(name)
        held = float(weight_bytes(model, served(tp=1.0)))
        # Drafting layers aside; norms of latents and of heads are beside the count.
        assert held == pytest.approx(2.0 * model.parameters, rel=0.001), name


def test_layers_that_share_a_choice_have_no_kernels_of_it() -> None:
    own = {o.name: o for o in layer_operators(SPARSE, served(), 50.0)}
    found = [o for o in layer_operators(SHARING, served(), 50.0) if o.name.startswith("index")]
    assert {o.name for o in found} == {name for name in own if name.startswith("index")}
    assert sum(float(o.count) for o in found if o.name == "index.query") == 2
    cores = decode_attention(SHARING, served(), 4.0, 8192.0)
    assert sum(float(o.count) for o in cores if o.name == "index.scores") == 2
    seen = [o for o in cores if o.name == "attention"]
    assert sum(float(o.count) for o in seen) == 5
    every = {o.name: o for o in decode_attention(SPARSE, served(), 4.0, 8192.0)}
    assert all(o.flop == every["attention"].flop for o in seen)  # all see as many keys
    reading = prefill_attention(SHARING, served(), 1.0, 900.0, 0.0)
    assert sum(float(o.count) for o in reading if o.name == "index.scores") == 2
    assert sum(float(o.count) for o in reading if o.name == "attention.chosen") == 5


def test_layers_that_share_a_choice_keep_no_index_keys() -> None:
    tokens, each = 5000.0, SMALL + 4
    plain = cache_bytes(SPARSE, served(), tokens)
    assert plain - cache_bytes(SHARING, served(), tokens) == 3 * each * tokens
    less = read_bytes(SPARSE, served(), tokens) - read_bytes(SHARING, served(), tokens)
    assert less == 3 * each * tokens
    kinds = SHARING.attention_kinds
    index = RANK * INDEX * SMALL + H * (SMALL + INDEX)
    whole, shared = (float(mixer_parameters(one, 1.0)) for _, one in kinds)
    assert whole - shared == index


def test_index_keys_of_several_tokens() -> None:
    """A key and its weights are projected; fewer keys are kept and scored."""
    found = {o.name: o for o in layer_operators(POOLED, served(), 50.0)}
    expected = product(50.0, 2 * SMALL + INDEX, H)
    assert (found["index.key"].flop, found["index.key"].bytes) == (expected.flop, expected.bytes)
    beside = kv_token_bytes(SPARSE, served()) - kv_token_bytes(POOLED, served())
    assert beside == pytest.approx((SMALL + 4) * (1 - 1 / POOL))
    one, many = ({o.name: o for o in decode_attention(model, served(), 4.0, 8192.0)}
                 for model in (POOLED, SPARSE))  # fmt: skip
    assert one["index.scores"].flop * POOL == many["index.scores"].flop
    assert one["index.scores"].bytes == 4 * (INDEX * SMALL + 8192 / POOL * (SMALL + 4 + 4))
    assert one["index.choose"].bytes * POOL == many["index.choose"].bytes
    assert one["attention"].flop == many["attention"].flop
    reading, whole = ({o.name: o for o in prefill_attention(model, served(), 1.0, 900.0, 0.0)}
                      for model in (POOLED, SPARSE))  # fmt: skip
    assert reading["index.scores"].flop * POOL == whole["index.scores"].flop


def test_a_gate_for_each_head_of_latents() -> None:
    """As many columns as heads; its outcome multiplies all values."""
    gated = replace(LATENTS, head_gate=True)
    assert gated.attention_matrix - LATENTS.attention_matrix == H * HEADS
    found = {o.name: o for o in layer_operators(gated, served(), 50.0)}
    assert (found["attention.gate_in"].n, found["attention.gate_in"].k) == (HEADS / TP, H)
    assert found["attention.gate"].bytes == 50 * HEADS / TP * VALUE * 6


def test_decays_that_are_projected_at_once() -> None:
    """A decay for each channel of the keys beside queries, keys, values and gates."""
    rule = replace(
        DENSE, delta_layers=3, delta_key_heads=6, delta_value_heads=6, delta_key_dim=20,
        delta_value_dim=20, delta_gate_rank=20, delta_whole_gate=True, delta_whole_decay=True,
    )  # fmt: skip
    width = 6 * 20
    found = {o.name: o for o in layer_operators(rule, served(), 50.0)}
    assert found["delta.in"].n == 5 * width / TP
    assert not {"delta.down", "delta.decay_up", "delta.gate_up"} & set(found)
    assert rule.delta_matrix == H * (5 * width + 6 + width) + 4 * 3 * width
    assert delta_parameters(rule, 2.0) * 2 == delta_parameters(rule, 1.0)  # nothing is whole
