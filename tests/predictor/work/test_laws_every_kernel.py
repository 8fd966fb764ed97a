"""Every kernel of every block by hand: arithmetic, traffic and what is kept, from the dimensions.

Dimensions are odd ones out, so that no two of them can stand in for each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.work.serving import (
    decode_attention,
    layer_operators,
    prefill_attention,
)
from predictor.work.training import step_operators
from tests.predictor.work.counts import (
    CHANNELS,
    CHOSEN,
    DENSE,
    EXPERTS,
    FFN,
    GROUPS,
    HEADS,
    HYBRID,
    INDEX,
    INNER,
    KV,
    LATENT,
    LATENTS,
    MIXED,
    NOPE,
    OWN,
    PLAIN,
    RANK,
    ROPE,
    SHARED,
    SMALL,
    SPARSE,
    STATES,
    TOP,
    TP,
    VALUE,
    WIDE,
    Count,
    D,
    H,
    T,
    V,
    check,
    layer,
    norm,
    product,
    residual,
    served,
    stream,
    swiglu,
    trained,
)


def without_loss(known: dict[str, Count]) -> dict[str, Count]:
    return {name: count for name, count in known.items() if not name.startswith("loss")}


def weighed(name: str, rows: float, width: float) -> dict[str, Count]:
    """An activation times what the router gave: for the gradient of that, gate, value and the
    gradient of the output are read once more."""
    found = swiglu(name, rows, width)
    more = stream(rows, width, 3 * 2).bytes
    back = found[f"{name}.bwd"]
    return found | {f"{name}.bwd": back._replace(bytes=back.bytes + more)}


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
    fp32; backward its two products (8 + 12), a sum and its spread (4 + 4), the square's power,
    factor and product (8 + 8 + 12) and a sum (12) in fp32, and three passes over the weight's;
    rotary encoding in three passes; silu (2 + 2) and the product (2 + 2 + 2)."""
    found = {o.name: o for o in step_operators(DENSE, trained(fused=False))}
    assert float(found["mlp.norm"].bytes) == OWN * H * (2 * (2 + 4) + 5 * 4 + 2 * 2)
    assert float(found["mlp.norm.bwd"].bytes) == OWN * H * (2 * (2 + 4) + 17 * 4 + 6 * 2)
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
    Logits are kept twice in fp32 unless stated; the loss reads a logit and writes 4 bytes. Where no
    more than the logit is kept, it is read twice, its gradient takes its place and is scaled
    there: 3 and 2 passes."""
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
    over = {
        "loss.over": stream(T, vocab, 3 * 2, 2 * T * vocab),
        "loss.over.bwd": stream(T, vocab, 2 * 2),
    }
    ends = ("embedding", "final", "head", "loss")
    found = step_operators(DENSE, trained())
    check([o for o in found if np.all(o.count)], expected, ends)
    found = step_operators(DENSE, trained(logit_bytes=2.0))
    check([o for o in found if np.all(o.count)], {**without_loss(expected), **over}, ends)
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


def test_state_space_block() -> None:
    """Gate and channels, B and C of each group, step sizes; a convolution over channels, B and C;
    a scan in chunks of 128 tokens. Scores, states and the convolution are computed once more
    backward, and the product that the scores' gradient comes from, for that of the decay."""
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
            "mamba.conv.bwd": stream(T, mixed, 2 * (2 + 3)),
            "mamba.decay": product(128, 128, WIDE, batch=chunks * heads),
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
        | weighed("moe.activation", came, inner)
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
