"""Every kernel of every block by hand: arithmetic, traffic and what is kept, from the dimensions.

Dimensions are odd ones out, so that no two of them can stand in for each other.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import pytest

from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.work.primitives import Collective, Operator, gemm, grouped, streaming
from predictor.work.serving import (
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    prefill_attention,
)
from predictor.work.training import step_operators, update_operators

B, S, TP = 3, 1280, 2
T = B * S
"""Sequences of a micro-batch, tokens of each, tensor-parallel ranks; tokens in all."""

OWN = T // TP
"""Tokens of a rank between the blocks, where sequences are parallel too."""

H, HEADS, KV, D, FFN, V = 640, 12, 4, 48, 1792, 3072

DENSE = Model("dense", 5, H, HEADS, KV, D, FFN, V)
PLAIN = replace(DENSE, gated=False, activation="gelu", norm="layernorm", bias=True)


class Count(NamedTuple):
    """Of one execution: arithmetic [FLOP], traffic and what is kept [bytes]."""

    flop: float
    bytes: float
    saved: float = 0.0


def product(
    m: float, n: float, k: float, saved: float = 0.0, out: float = 2, batch: float = 1
) -> Count:
    """Operands of 16 bits once, the outcome once."""
    return Count(2 * m * n * k * batch, (2 * m * k + 2 * k * n + out * m * n) * batch, saved)


def stream(rows: float, columns: float, each: float, saved: float = 0.0) -> Count:
    """So many bytes for each element of rows x columns."""
    return Count(0.0, rows * columns * each, saved)


def layer(name: str, m: float, n: float, k: float, saved: float = 0.0) -> dict[str, Count]:
    """A linear layer, the gradients of its input and of its weights, these summed up in fp32."""
    return {
        name: product(m, n, k, saved),
        f"{name}.dgrad": product(m, k, n),
        f"{name}.wgrad": product(n, k, m, out=4),
    }


def norm(name: str, rows: float, width: float) -> dict[str, Count]:
    """Read and written; backward its input and gradient read, and a gradient written."""
    kept = 2 * rows * width
    return {name: stream(rows, width, 4, kept), f"{name}.bwd": stream(rows, width, 6)}


def residual(name: str, rows: float) -> dict[str, Count]:
    """Two read and one written, both ways."""
    return {name: stream(rows, H, 6), f"{name}.bwd": stream(rows, H, 6)}


def swiglu(name: str, rows: float, width: float) -> dict[str, Count]:
    """Gate and value read, one written, both kept; backward three read and two written."""
    kept = 2 * 2 * rows * width
    return {name: stream(rows, width, 6, kept), f"{name}.bwd": stream(rows, width, 10)}


def trained(**fields: object) -> TrainingPlan:
    given = {"tp": float(TP), "pp": 1.0, "dp": 1.0, "micro_batch": float(B), "global_batch": 12.0}
    given |= {"seq_len": float(S), "sequence_parallel": 1.0, "vocab_multiple": 1.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def served(**fields: object) -> ServingPlan:
    given = {"batch": 2.0, "input_len": 1024.0, "output_len": 128.0, "tp": float(TP), **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def check(found: list[Operator], expected: dict[str, Count], prefix: tuple[str, ...]) -> None:
    """All kernels of those names, and no other, count what is expected."""
    own = {o.name: o for o in found if o.name.startswith(prefix) and o.name not in CORES}
    assert set(own) == set(expected)
    for name, count in expected.items():
        operator = own[name]
        told = [float(np.max(v)) for v in (operator.flop, operator.bytes, operator.saved)]
        assert told == pytest.approx(list(count)), name


CORES = ("attention", "attention.bwd")
"""What attends is counted in `test_counts_by_hand`."""


def test_dense_layer_of_llamas_kind() -> None:
    """Queries, keys and values in one product; two sides up, one down; the input of a region is
    kept in parts and gathered again."""
    qkv, inner = (HEADS + 2 * KV) * D // TP, FFN // TP
    expected = (
        norm("attention.norm", OWN, H)
        | layer("attention.qkv", T, qkv, H, 2 * OWN * H)
        | {
            "attention.rope": stream(T, (HEADS + KV) * D // TP, 4),
            "attention.rope.bwd": stream(T, (HEADS + KV) * D // TP, 4),
        }
        | layer("attention.out", T, H, HEADS * D // TP)
        | residual("attention.residual", OWN)
        | norm("mlp.norm", OWN, H)
        | layer("mlp.up", T, 2 * inner, H, 2 * OWN * H)
        | swiglu("mlp.activation", T, inner)
        | layer("mlp.down", T, H, inner, 2 * T * inner)
        | residual("mlp.residual", OWN)
    )
    check(step_operators(DENSE, trained()), expected, ("attention", "mlp"))


def test_inputs_that_are_not_gathered_again_are_kept_whole() -> None:
    kept, again = (
        {o.name: float(o.saved) for o in step_operators(DENSE, trained(tp_regather=given))}
        for given in (False, True)
    )
    more = {name: kept[name] - again[name] for name in kept if kept[name] != again[name]}
    extra = 2.0 * (T - OWN) * H
    assert more == {"attention.qkv": extra, "mlp.up": extra, "head": extra}


def test_dense_layer_of_gpts_kind_with_dropout() -> None:
    """One side up; biases, whose gradients sum up what comes; a mask of a byte per element of what
    is dropped out."""
    qkv, inner = (HEADS + 2 * KV) * D // TP, FFN // TP

    def dropped(name: str) -> dict[str, Count]:
        return {
            name: stream(OWN, H, 7, OWN * H),
            f"{name}.bwd": stream(OWN, H, 6),
            f"{name}.dropout.bwd": stream(OWN, H, 5),
        }

    def biased(name: str, m: float, n: float, k: float, saved: float) -> dict[str, Count]:
        return layer(name, m, n, k, saved) | {f"{name}.bias": stream(m, n, 2)}

    expected = (
        norm("mlp.norm", OWN, H)
        | biased("mlp.up", T, inner, H, 2 * OWN * H)
        | {
            "mlp.activation": stream(T, inner, 4, 2 * T * inner),
            "mlp.activation.bwd": stream(T, inner, 6),
        }
        | biased("mlp.down", T, H, inner, 2 * T * inner)
        | dropped("mlp.residual")
        | biased("attention.qkv", T, qkv, H, 2 * OWN * H)
        | biased("attention.out", T, H, HEADS * D // TP, 0.0)
        | dropped("attention.residual")
    )
    found = step_operators(PLAIN, trained(dropout=True))
    names = ("mlp", "attention.qkv", "attention.out", "attention.residual")
    check(found, expected, names)


def test_separate_kernels_save_the_input_of_the_projection() -> None:
    fused, apart = (
        {o.name: float(o.saved) for o in step_operators(DENSE, trained(attention=a))}
        for a in ("flash", "unfused")
    )
    assert fused["attention.out"] == 0
    assert apart["attention.out"] == 2 * T * HEADS * D // TP


def test_what_nothing_joins_is_the_kernels_of_its_definition() -> None:
    """RMS norm of 16 bits: casts both ways (2 + 4 bytes each), square, mean, product and weight in
    fp32; rotary encoding in three passes; silu (2 + 2) and the product (2 + 2 + 2)."""
    found = {o.name: o for o in step_operators(DENSE, trained(fused=False))}
    assert float(found["mlp.norm"].bytes) == OWN * H * (2 * (2 + 4) + 5 * 4 + 2 * 2)
    assert float(found["mlp.norm.bwd"].bytes) == OWN * H * (2 * (2 + 4) + 10 * 4 + 6 * 2)
    rope = T * (HEADS + KV) * D // TP * 3 * 4
    assert float(found["attention.rope"].bytes) == rope
    assert float(found["attention.rope.bwd"].bytes) == rope
    inner = FFN // TP
    assert float(found["mlp.activation"].bytes) == T * inner * (2 + 2 + 2 + 2 + 2)
    assert float(found["mlp.activation.bwd"].bytes) == T * inner * 8 * 2
    full = {o.name: o for o in step_operators(DENSE, trained(fused=False, precision="fp32"))}
    assert float(full["mlp.norm"].bytes) == OWN * H * (5 * 4 + 2 * 4)


def test_both_ends() -> None:
    """Rows are looked up; backward a whole table of gradients is cleared and rows are added to it.
    Logits are kept twice in fp32 unless stated; the loss reads a logit and writes 4 bytes."""
    vocab = V // TP
    expected = (
        {
            "embedding": Count(0.0, 2 * 2 * T * H),
            "embedding.bwd": Count(0.0, 3 * 2 * T * H + 2 * vocab * H),
        }
        | norm("final.norm", OWN, H)
        | layer("head", T, vocab, H, 2 * OWN * H)
        | {"loss": stream(T, vocab, 2 + 4, 8 * T * vocab), "loss.bwd": stream(T, vocab, 2 + 4)}
    )
    found = step_operators(DENSE, trained())
    check(found, expected, ("embedding", "final", "head", "loss"))
    dropped = {o.name: o for o in step_operators(DENSE, trained(dropout=True))}
    assert float(dropped["embedding"].saved) == OWN * H


def test_adapters() -> None:
    """x A of r columns, then B; x is kept already, x A must be kept; both have gradients, and the
    outcome is added to the layer's."""
    rank, inner = 8, FFN // TP
    m, n, k = T, 2 * inner, H
    expected = {
        "mlp.up": product(m, n, k, 2 * OWN * H),
        "mlp.up.dgrad": product(m, k, n),
        "mlp.up.lora_a": product(m, rank, k),
        "mlp.up.lora_a.dgrad": product(m, k, rank),
        "mlp.up.lora_a.wgrad": product(rank, k, m, out=4),
        "mlp.up.lora_b": product(m, n, rank, 2 * m * rank),
        "mlp.up.lora_b.dgrad": product(m, rank, n),
        "mlp.up.lora_b.wgrad": product(n, rank, m, out=4),
        "mlp.up.lora_add": stream(m, n, 6),
        "mlp.up.lora_add.bwd": stream(m, k, 6),
    }
    found = step_operators(DENSE, trained(trained="lora", lora_rank=float(rank)))
    check(found, expected, ("mlp.up",))


STATES, GROUPS, CHANNELS, WIDE = 16, 4, 10, 32
"""Of state-space blocks: state, groups, heads, channels of each."""

HYBRID = replace(
    DENSE, layers=8, attention_layers=1, mamba_layers=4, mamba_heads=CHANNELS,
    mamba_head_dim=WIDE, mamba_state=STATES, mamba_groups=GROUPS,
)  # fmt: skip


def test_state_space_block() -> None:
    """Gate and channels, B and C of each group, step sizes; a convolution over channels, B and C;
    a scan in chunks of 128 tokens. Scores and states are computed once more backward."""
    heads, groups, chunks = CHANNELS // TP, GROUPS // TP, T / 128
    width, mixed = heads * WIDE, heads * WIDE + 2 * groups * STATES

    def mix(
        name: str, m: float, n: float, k: float, batch: float, repeated: bool
    ) -> dict[str, Count]:
        again = {f"{name}.repeat": product(m, n, k, batch=batch)} if repeated else {}
        return {
            name: product(m, n, k, batch=batch),
            f"{name}.dgrad": product(m, k, n, batch=batch),
            f"{name}.wgrad": product(n, k, m, batch=batch),
            **again,
        }

    expected = (
        norm("mamba.norm", OWN, H)
        | layer("mamba.in", T, 2 * width + 2 * groups * STATES + heads, H, 2 * OWN * H)
        | {
            "mamba.conv": stream(T, mixed, 4, 2 * T * mixed),
            "mamba.conv.bwd": stream(T, mixed, 8),
            "mamba.gate": stream(T, width, 6, 2 * 2 * T * width),
            "mamba.gate.bwd": stream(T, width, 12),
            "mamba.pass": stream(chunks * heads * STATES, WIDE, 2 * 4),
            "mamba.pass.bwd": stream(chunks * heads * STATES, WIDE, 6 * 4),
        }
        | mix("mamba.scores", 128, 128, STATES, chunks * groups, True)
        | mix("mamba.within", 128, WIDE, 128, chunks * heads, False)
        | mix("mamba.states", STATES, WIDE, 128, chunks * heads, True)
        | mix("mamba.between", 128, WIDE, STATES, chunks * heads, False)
        | layer("mamba.out", T, H, width, 2 * T * width)
        | residual("mamba.residual", OWN)
    )
    check(step_operators(HYBRID, trained()), expected, ("mamba",))
    for drafted in (0, 3):  # every guess updates the state, too
        listed = decode_attention(HYBRID, served(drafted=float(drafted)), 5.0, 700.0)
        new = {o.name: o for o in listed}["mamba.update"]
        assert float(new.bytes) == 5 * (1 + drafted) * heads * STATES * WIDE * 2 * 4
        assert new.count == 4


EXPERTS, TOP, INNER, SHARED = 24, 3, 448, 320
MIXED = replace(
    DENSE, num_experts=EXPERTS, top_k=TOP, expert_ffn_hidden=INNER,
    shared_expert_ffn_hidden=SHARED, shared_experts=1,
)  # fmt: skip


@pytest.mark.parametrize("etp", [1, 2])
@pytest.mark.parametrize("load", [1.0, 1.25])
def test_mixture_block(etp: int, load: float) -> None:
    """Each rank routes its own tokens; its experts get the copies of all ranks that split them."""
    routed = T // TP
    copies, ep = routed * TOP, 4
    came = copies * etp * load
    busy = EXPERTS // ep
    inner = INNER // etp
    to_many = 2 * (1 + 1 / TOP)

    def moved(name: str, rows: float, each: float) -> dict[str, Count]:
        return {name: stream(rows, H, each), f"{name}.bwd": stream(rows, H, each)}

    def experts(name: str, n: float, k: float, saved: float) -> dict[str, Count]:
        m = came / busy
        return {
            name: product(m, n, k, saved, batch=busy),
            f"{name}.dgrad": product(m, k, n, batch=busy),
            f"{name}.wgrad": product(n, k, m, out=4, batch=busy),
        }

    expected = (
        norm("moe.norm", OWN, H)
        | layer("moe.router", routed, EXPERTS, H, 2 * OWN * H)
        | {
            "moe.route": stream(routed, EXPERTS, 12 + 4),
            "moe.route.bwd": stream(routed, EXPERTS, 12 + 4),
        }
        | moved("moe.permute", copies, to_many)
        | moved("moe.sort", came, 4)
        | moved("moe.unsort", came, 4)
        | moved("moe.unpermute", copies, to_many)
        | experts("moe.up", 2 * inner, H, 2 * came * H)
        | swiglu("moe.activation", came, inner)
        | experts("moe.down", H, inner, 2 * came * inner)
        | layer("shared.up", T, 2 * SHARED // TP, H)
        | swiglu("shared.activation", T, SHARED // TP)
        | layer("shared.down", T, H, SHARED // TP, 2 * T * SHARED // TP)
        | {"shared.add": stream(OWN, H, 6)}
        | residual("moe.residual", OWN)
    )
    plan = trained(ep=float(ep), etp=float(etp), dp=4.0, expert_load=load)
    found = step_operators(MIXED, plan)
    check(found, expected, ("moe", "shared"))
    assert {float(o.kernels) for o in found if ".up" in o.name and o.module == "moe"} == {busy, 1}
    sorts = [float(o.count) for o in found if "sort" in o.name]
    assert sorts == [1.0] * 4
    alone = step_operators(MIXED, trained())
    assert [float(o.count) for o in alone if "sort" in o.name] == [0.0] * 4


def test_mixture_at_a_width_of_its_own() -> None:
    """Tokens enter the experts at a narrower width, and come back from it."""
    width, routed = 256, T // TP
    found = step_operators(replace(MIXED, expert_hidden=width, shared_experts=0), trained(ep=2.0))
    expected = layer("moe.latent_down", routed, width, H) | layer(
        "moe.latent_up", routed, H, width, 2 * routed * width
    )
    check(found, expected, ("moe.latent",))
    up = {o.name: o for o in found}["moe.up"]
    assert (up.k, up.n) == (width, 2 * INNER)


RANK, LATENT, NOPE, ROPE, VALUE = 384, 320, 96, 32, 80
LATENTS = replace(
    DENSE, kv_heads=HEADS, q_lora_rank=RANK, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE,
    qk_rope_head_dim=ROPE, v_head_dim=VALUE,
)  # fmt: skip


def test_latent_attention() -> None:
    """Down on each rank's own tokens, up to the heads of a rank; latents are kept for both."""
    heads = HEADS // TP
    expected = (
        norm("attention.norm", OWN, H)
        | layer("attention.q_down", OWN, RANK, H, 2 * OWN * H)
        | norm("attention.q_norm", OWN, RANK)
        | layer("attention.kv_down", OWN, LATENT + ROPE, H)
        | norm("attention.kv_norm", OWN, LATENT)
        | layer("attention.q_up", T, heads * (NOPE + ROPE), RANK, 2 * OWN * RANK)
        | layer("attention.kv_up", T, heads * (NOPE + VALUE), LATENT, 2 * OWN * LATENT)
        | {
            "attention.rope": stream(T, (heads + 1) * ROPE, 4),
            "attention.rope.bwd": stream(T, (heads + 1) * ROPE, 4),
        }
        | layer("attention.out", T, H, heads * VALUE)
        | residual("attention.residual", OWN)
    )
    check(step_operators(LATENTS, trained()), expected, ("attention",))
    whole = {o.name: o for o in step_operators(replace(LATENTS, q_lora_rank=0), trained())}
    assert whole["attention.q_up"].k == H
    assert "attention.q_down" not in whole


def test_extra_prediction_layer() -> None:
    """Two norms side by side, and a projection of both inputs together."""
    found = step_operators(replace(DENSE, mtp_layers=1), trained())
    expected = norm("mtp.norm", OWN, 2 * H) | layer(
        "mtp.project", T, H // TP, 2 * H, 2 * 2 * OWN * H
    )
    check(found, expected, ("mtp",))
    assert not [o for o in step_operators(DENSE, trained()) if o.module == "mtp"]


CHOSEN, INDEX, SMALL = 512, 6, 40
SPARSE = replace(LATENTS, index_topk=CHOSEN, index_heads=INDEX, index_head_dim=SMALL)


def test_chosen_keys() -> None:
    """The indexer is whole on every rank: keys of 8 bits with a scale of 4 bytes, scores of 4."""
    tokens, both = 50.0, INDEX * SMALL + SMALL
    found = layer_operators(SPARSE, served(), tokens)
    expected = {
        "index.query": product(tokens, INDEX * SMALL, RANK),
        "index.key": product(tokens, SMALL + INDEX, H),
        "index.rope": stream(tokens, both, 4),
        "index.rotate": stream(tokens, both, 4),
        "index.narrow": stream(tokens, both, 2 + 1),
    }
    check(found, expected, ("index",))


@pytest.mark.parametrize("past", [0, 700])
def test_prompts_over_chosen_keys(past: int) -> None:
    """Every query is scored against those before it; latents of all keys cross memory once, queries
    and what attends once each."""
    sequences, query = 3, 900
    keys, before = past + query, past + query / 2
    found = {o.name: o for o in prefill_attention(SPARSE, served(), 3.0, 900.0, float(past))}
    scores, core = found["index.scores"], found["attention.chosen"]
    assert float(scores.flop) == 2 * sequences * INDEX * query * SMALL * before
    moved = query * INDEX * SMALL + keys * (SMALL + 4) + 4 * query * before
    assert float(scores.bytes) == sequences * moved
    assert (scores.m, scores.n, scores.k) == (query, keys, SMALL / 2)
    assert float(found["index.choose"].bytes) == sequences * query * before * 8
    heads, stored = HEADS // TP, LATENT + ROPE
    read, made = query * heads * stored, query * heads * LATENT
    assert float(core.bytes) == 2 * sequences * (read + made + keys * stored)
    # Few heads leave rows of a block of 64 idle, whose work is done all the same.
    seen = sum(min(past + i + 0.5, CHOSEN) for i in range(query))
    assert float(core.flop) == pytest.approx(
        2 * sequences * 64 * seen * (stored + LATENT), rel=1e-4
    )
    assert (core.m, core.n, core.batch) == (query, CHOSEN, sequences * 64)


DELTA = replace(
    DENSE, delta_layers=4, delta_key_heads=4, delta_value_heads=8, delta_key_dim=32,
    delta_value_dim=96, output_gate=True,
)  # fmt: skip


def test_delta_rule_block() -> None:
    """Queries, keys, values and gate in one product; a decay and a step size per head."""
    tokens = 50.0
    keys, values, heads = 4 * 32 // TP, 8 * 96 // TP, 8 // TP
    mixed = 2 * keys + values
    expected = {
        "delta.norm": stream(tokens, H, 8),
        "delta.in": product(tokens, mixed + values, H),
        "delta.steps": product(tokens, 2 * heads, H),
        "delta.conv": stream(tokens, mixed, 4),
        "delta.decay": stream(tokens, heads, 2 * 2 + 2 * 4),
        "delta.gate": stream(tokens, values, 6),
        "delta.out": product(tokens, H, values),
    }
    found = layer_operators(DELTA, served(), tokens)
    expected = {name: one._replace(saved=0.0) for name, one in expected.items()}
    check(found, expected, ("delta",))
    assert {float(o.count) for o in found if o.name.startswith("delta")} == {4.0}
    gate = {o.name: o for o in found}["attention.gate"]
    assert float(gate.bytes) == tokens * HEADS * D / TP * 6


def test_delta_rule_over_prompts_and_new_tokens() -> None:
    """Chunks of 64 tokens; a thread block walks over them with 32 columns of the state."""
    sequences, query, heads, k, v = 3, 640, 8 // TP, 32, 96
    batch = sequences * query / 64 * heads
    shapes = {
        "delta.overlap": (64, 64, k),
        "delta.solve": (64, 64, 64),
        "delta.w": (64, k, 64),
        "delta.u": (64, v, 64),
        "delta.correct": (64, v, k),
        "delta.states": (k, v, 64),
        "delta.between": (64, v, k),
        "delta.scores": (64, 64, k),
        "delta.within": (64, v, 64),
    }
    expected = {name: product(*shape, batch=batch) for name, shape in shapes.items()}
    expected["delta.unit"] = stream(sequences * query, 2 * 4 * k / TP, 4)
    each = 2 * (2 * 64 * k + 2 * 64 * 32 + k * 32)
    expected["delta.pass"] = stream(sequences * heads * v / 32, query / 64, each)
    check(prefill_attention(DELTA, served(), 3.0, 640.0), expected, ("delta",))
    new = {o.name: o for o in decode_attention(DELTA, served(), 5.0, 700.0)}["delta.update"]
    assert float(new.bytes) == 5 * heads * k * v * 2 * 4


def test_experts_while_serving() -> None:
    """One kernel for both products and the activation: weights of the experts that are hit, input
    and output, and what lies between written and read."""
    tokens = 40.0
    hit = EXPERTS / 4 * (1 - (1 - TOP / EXPERTS) ** tokens)
    received = tokens * TOP / 4 * 1.5
    # Of eight ranks, two split each of four groups of experts.
    found = layer_operators(MIXED, served(tp=8.0, ep=4.0, expert_load=1.5), tokens)
    experts = {o.name: o for o in found}["moe.experts"]
    m, inner = received / hit, INNER / 2
    assert (float(experts.m), float(experts.batch)) == pytest.approx((m, hit))
    assert float(experts.flop) == pytest.approx(3 * 2 * m * inner * H * hit)
    moved = 2 * (3 * inner * H + m * (2 * H + 2 * 3 * inner))
    assert float(experts.bytes) == pytest.approx(moved * hit)
    plain = grouped("", "moe", "bf16", 7.0, 5.0, 3.0, 2.0, gated=False, size=2.0)
    assert plain.flop == 2 * 2 * 7 * 5 * 3 * 2
    assert plain.bytes == 2 * (2 * (2 * 5 * 3) + 2 * 7 * (2 * 3 + 2 * 2 * 5))


def test_copies_of_tokens_are_put_in_order_before_the_experts_and_back_after() -> None:
    """Each is read and written; there are as many as came. Kernels of all experts do that
    themselves, those behind DeepEP do not."""
    own = served(tp=8.0, ep=4.0)
    behind = replace(own, exchange="deepep")
    found = {o.name: o for o in layer_operators(MIXED, behind, 40.0)}
    for name in ("moe.permute", "moe.unpermute"):
        assert float(found.pop(name).bytes) == 40 * TOP / 4 * H * 2 * 2
    joined = {o.name: o for o in layer_operators(MIXED, own, 40.0)}
    assert list(joined) == list(found)
    assert float(found["moe.route"].bytes) == 40 * EXPERTS * 12


def test_what_ranks_exchange_while_serving() -> None:
    """Two replicas of four ranks: copies of tokens go to their experts and back, each rank with its
    part of them; ranks that split experts gather and scatter what came. One replica adds up the
    experts' parts instead, as attention and dense layers do theirs; logits are gathered."""
    whole = 2.0 * 40 * H

    def told(**fields: float) -> dict[str, tuple[float, float]]:
        listed = pass_collectives(MIXED, served(tp=4.0, ep=4.0, **fields), 40.0, 7.0)
        found = {o.name: (float(o.bytes), float(o.count)) for o in listed}
        return {name: one for name, one in found.items() if one[1]}

    two = told(dp=2.0, batch=2.0)
    sent = 2.0 * 40 * H * TOP / 4
    assert two["moe.dispatch"] == two["moe.combine"] == (sent, 5)
    assert two["moe.gather"] == two["moe.scatter"] == (sent * 2, 5)
    assert "moe.reduce" not in two
    one = told()
    assert one["moe.reduce"] == one["attention.reduce"] == (whole, 5)
    assert one["embedding.reduce"] == (whole, 1)
    assert one["head.gather"] == (2.0 * 7 * V, 1)
    assert "moe.dispatch" not in one
    for model, mixers in ((HYBRID, 1 + 4), (DELTA, 1 + 4)):
        listed = pass_collectives(model, served(tp=2.0), 40.0, 7.0)
        assert float(listed[0].count) == mixers
    some = {o.name: o for o in layer_operators(replace(MIXED, dense_layers=2), served(), 40.0)}
    assert (float(some["mlp.up"].count), float(some["moe.experts"].count)) == (2, 3)
    piped = {o.name: o for o in pass_collectives(DENSE, served(tp=4.0, pp=3.0), 40.0, 7.0)}
    assert (float(piped["pipeline"].bytes), float(piped["pipeline"].count)) == (whole / 4, 2)
    assert (float(piped["mlp.reduce"].bytes), float(piped["mlp.reduce"].count)) == (whole, 5)


def test_ranks_of_a_served_model_lie_tensor_parallel_first() -> None:
    """Then replicas of the attention, then stages; experts over the ranks of a stage."""
    own = pass_groups(served(tp=4.0, dp=2.0, pp=3.0, ep=4.0, batch=2.0))
    found = {name: (float(g.size), float(g.stride)) for name, g in own.items()}
    assert found == {"tp": (4, 1), "ep": (4, 2), "etp": (2, 1), "pp": (2, 8)}
    alone = pass_groups(served(tp=4.0, ep=2.0))
    assert (float(alone["etp"].size), float(alone["pp"].size)) == (1, 1)


def test_what_runs_again_is_the_same_and_keeps_nothing() -> None:
    """Every forward kernel of the layers, in the share of them that is recomputed."""
    found = step_operators(PLAIN, trained(recompute="full", recompute_share=0.25, dropout=True))
    own = {o.name: o for o in found}
    ahead = [o for o in found if o.phase == "forward" and o.module in ("layer", "dense")]
    again = [o for o in found if o.phase == "recompute"]
    assert [o.name for o in again] == [f"{o.name}.again" for o in ahead]
    for one in ahead:
        twin = own[f"{one.name}.again"]
        assert (float(twin.flop), float(twin.bytes)) == (float(one.flop), float(one.bytes))
        assert (float(twin.count), float(twin.saved)) == (0.25 * float(one.count), 0.0)


def test_experts_without_a_gate_have_one_side_up() -> None:
    plain = replace(MIXED, gated=False, activation="gelu", shared_experts=0)
    found = {o.name: o for o in step_operators(plain, trained(ep=4.0, dp=4.0))}
    assert (found["moe.up"].n, found["moe.up"].k) == (INNER, H)
    assert float(found["moe.activation"].bytes) == T // TP * TOP * INNER * 4


def test_heads_exchanged_for_tokens_leave_whole_sequences() -> None:
    """Ulysses: every rank attends over all tokens with its part of the heads."""
    made = trained(cp=2.0, tp=1.0, cp_kind="ulysses")
    core = {o.name: o for o in step_operators(DENSE, made)}["attention"]
    whole = {o.name: o for o in step_operators(DENSE, trained(tp=1.0))}["attention"]
    assert (float(core.m), float(core.n)) == (S, S)
    assert float(core.flop) * 2 == pytest.approx(float(whole.flop))


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp8", 1), ("nvfp4", 0.5625)])
def test_inputs_are_kept_as_narrow_as_they_are_multiplied(precision: str, width: float) -> None:
    """Never wider than the activations are: the head's stay in 16 bits, those of fp32 in 32."""
    found = {o.name: float(o.saved) for o in step_operators(DENSE, trained(precision=precision))}
    assert found["mlp.up"] == pytest.approx(width * OWN * H)
    assert found["mlp.down"] == pytest.approx(width * T * FFN // TP)
    assert found["head"] == 2 * OWN * H
    wide = {o.name: float(o.saved) for o in step_operators(DENSE, trained(precision="fp32"))}
    assert wide["mlp.up"] == 4 * OWN * H


def test_ends_while_serving() -> None:
    """Logits of chosen rows; every rank draws from all of them: 12 bytes each."""
    found = end_operators(DENSE, served(), 50.0, 7.0)
    expected = {
        "embedding": Count(0.0, 2 * 2 * 50 * H),
        "head": product(7, V / TP, H),
        "final.norm": stream(50, H, 8),
        "sample": stream(7, V, 12),
    }
    check(found, expected, ("embedding", "final", "head", "sample"))


def test_an_optimizer_reads_and_writes_its_state() -> None:
    """Gradient, moments and master copy read; moments, copy and 16-bit weight written. Where no
    copy is kept apart, the weight itself is read. Clipping reads gradients twice and writes them,
    clearing writes them."""
    usual = {o.name: o for o in update_operators(trained(), 1000.0)}
    assert float(usual["optimizer"].bytes) == 1000 * (4 + 2 * 12 + 2)
    assert float(usual["gradient.clip"].bytes) == 1000 * 4 * 4
    bare = trained(optimizer_bytes=8.0, weight_bytes=4.0, grad_clip=False)
    found = {o.name: o for o in update_operators(bare, 1000.0)}
    assert float(found["optimizer"].bytes) == 1000 * (4 + 2 * 8 + 4 + 4)
    assert float(found["gradient.clip"].bytes) == 1000 * 4


def test_what_is_not_stated_happens_once_and_leaves_nothing() -> None:
    made = [
        gemm("", "fwd", "forward", "layer", "bf16", 3.0, 5.0, 7.0),
        streaming("", "norm", "rmsnorm", "forward", "layer", "bf16", 3.0, 5.0, 4.0),
        grouped("", "moe", "bf16", 7.0, 5.0, 3.0, 1.0, gated=True, size=2.0),
        Operator("", "norm", "rmsnorm", "forward", "layer", "bf16", 3.0, 5.0),
    ]
    for one in made:
        assert (one.count, one.batch, one.kernels, one.saved, one.idle) == (1, 1, 1, 0, 0)
    assert made[0].flop == 2 * 3 * 5 * 7
    assert made[0].bytes == 2 * (3 * 7 + 7 * 5 + 3 * 5)
    assert (made[3].flop, made[3].bytes, made[3].k) == (0, 0, 1)
    told = {f.name: f.default for f in fields(Collective)}
    assert (told["count"], told["calls"], told["copies"]) == (1, 1, 1)
    assert np.isnan(told["reach"])  # type: ignore[arg-type]
