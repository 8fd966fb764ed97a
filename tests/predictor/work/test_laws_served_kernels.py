"""Every kernel of blocks with a rule of their own, of serving and of the optimizer, by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from predictor import catalog
from predictor.plans import ServingPlan
from predictor.work.primitives import Collective, Operator, grouped, streaming
from predictor.work.serving import (
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    prefill_attention,
    prompts,
)
from predictor.work.training import step_operators, update_operators
from tests.predictor.products import matmul
from tests.predictor.work.counts import (
    DENSE,
    EXPERTS,
    FFN,
    HEADS,
    HYBRID,
    INNER,
    MIXED,
    OWN,
    PLAIN,
    TOP,
    TP,
    Count,
    D,
    H,
    S,
    T,
    V,
    check,
    product,
    served,
    stream,
    trained,
)

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
    tokens = 10.0
    chance = tokens * TOP / (tokens * TOP + EXPERTS - TOP)
    # Of four ranks the one with most experts hit: 1.029 standard deviations above the mean.
    hit = EXPERTS / 4 * chance + 1.029 * math.sqrt(EXPERTS / 4 * chance * (1 - chance))
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
    # All but what a token's experts are sent has one way for each of its bytes.
    shared = {o.name: float(o.copies) for o in pass_collectives(MIXED, served(dp=2.0), 40.0, 7.0)}
    assert shared.pop("moe.dispatch") == shared.pop("moe.combine") == TOP
    assert set(shared.values()) == {1.0}
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
        matmul("bf16", 3.0, 5.0, 7.0, name=""),
        streaming(
            name="",
            op="norm",
            variant="rmsnorm",
            phase="forward",
            module="layer",
            dtype="bf16",
            rows=3.0,
            columns=5.0,
            bytes_per_element=4.0,
        ),
        grouped("", "moe", "bf16", 7.0, 5.0, 3.0, 1.0, gated=True, size=2.0),
        Operator(
            name="",
            op="norm",
            variant="rmsnorm",
            phase="forward",
            module="layer",
            dtype="bf16",
            m=3.0,
            n=5.0,
        ),
    ]
    for one in made:
        assert (one.count, one.batch, one.kernels, one.saved, one.idle) == (1, 1, 1, 0, 0)
    assert made[0].flop == 2 * 3 * 5 * 7
    assert made[0].bytes == 2 * (3 * 7 + 7 * 5 + 3 * 5)
    assert (made[3].flop, made[3].bytes, made[3].k) == (0, 0, 1)
    told = {f.name: f.default for f in fields(Collective)}
    assert (told["count"], told["calls"], told["copies"]) == (1, 1, 1)
    assert np.isnan(told["reach"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "asked"), [(1.0, 1.0), (2.0, 1.75), (3.0, 2.3125)])
def test_adapters_of_several_requests(tokens: float, asked: float) -> None:
    """Of four adapters one token asks for one, two for 2 - 1/4, three for 3 - 3/4 + 1/16 (by
    inclusion and exclusion); each is a narrow matrix and a wide one of the rank, read once, beside
    the rows in, out and between."""
    rank, found = 8.0, layer_operators(DENSE, served(adapters=4.0, adapter_rank=8.0), tokens)
    own = {one.name: one for one in found}
    pairs = [(one, own[f"{one.name}.lora"]) for one in found if one.op == "gemm"]
    assert len(pairs) >= 4
    for one, more in pairs:
        width = float(one.k) + float(one.n)
        matrices, rows = 2 * asked * rank * width, 2 * float(one.m) * (width + 2 * rank)
        assert float(one.m) == tokens
        assert float(more.bytes) == pytest.approx(matrices + rows)
        assert float(more.flop) == pytest.approx(2 * tokens * rank * width)
        assert float(more.count) == float(one.count)


def test_tokens_of_experts_are_put_in_order_once_a_layer() -> None:
    """As often as the experts' products run, with or without ranks that exchange them."""
    for more in ({}, {"ep": 4.0, "dp": 4.0}, {"ep": 4.0, "dp": 4.0, "dispatch": "once"}):
        own = {one.name: one for one in step_operators(MIXED, trained(**more))}
        moved = [one for name, one in own.items() if name in ("moe.permute", "moe.unpermute")]
        assert len(moved) == 2
        for one in moved:
            assert float(one.count) == float(own["moe.down"].count)


@pytest.mark.parametrize("ep", [2.0, 4.0])
@pytest.mark.parametrize("tokens", [8.0, 500.0])
def test_buffers_hold_every_copy_and_a_row_less_than_a_block_for_each_expert(
    ep: float, tokens: float
) -> None:
    """DeepGEMM's blocks have 128 rows; how few tokens there are changes nothing of the weights that
    are read (`compute_aligned_M` of vLLM 0.11)."""
    model = replace(DENSE, num_experts=16, top_k=2, expert_ffn_hidden=64)
    plan = served(tp=ep, ep=ep, weights="fp8_block", narrow_experts="buffers", library="vllm")
    found = {o.name: o for o in layer_operators(model, plan, tokens)}
    experts, own = found["moe.experts"], 16 / ep
    assert float(experts.m * experts.batch) == pytest.approx(2 * tokens + 127 * own)
    assert float(experts.batch) == own
    # Copies are put in order by kernels of their own, as many as come to the rank.
    moved = {o.name for o in layer_operators(model, replace(plan, narrow_experts="own"), tokens)}
    assert set(found) - moved == {"moe.permute", "moe.unpermute"}
    assert float(found["moe.permute"].m) == pytest.approx(2 * tokens / ep)


def test_only_block_scaled_experts_whose_tokens_are_everywhere_go_over_buffers() -> None:
    model = replace(DENSE, num_experts=16, top_k=2, expert_ffn_hidden=64)

    def rows(**fields: object) -> float:
        given = {
            "tp": 4.0,
            "ep": 4.0,
            "narrow_experts": "buffers",
            "weights": "fp8_block",
            **fields,
        }
        found = {o.name: o for o in layer_operators(model, served(**given), 8.0)}["moe.experts"]
        return float(np.max(found.m * found.batch))

    assert rows() == 8 * 2 + 4 * 127
    for other in (
        {"weights": "fp8"},
        {"narrow_experts": "own"},
        {"ep": 2.0},  # ranks split experts
        {"tp": 1.0, "dp": 4.0, "exchange": "deepep"},
    ):
        assert rows(**other) < 127
    assert rows(tp=1.0, dp=4.0, exchange="gather") == 4 * 8 * 2 + 4 * 127
    several = rows(ep=np.array([2.0, 4.0]))
    assert several == rows()


@pytest.mark.parametrize("ep", [1.0, 4.0])
def test_narrow_experts_of_fixed_shapes_multiply_every_token(ep: float) -> None:
    """All of a rank's experts are read, for one token too, and none has more than the others; with
    16 bits they are those that were chosen (optimum-habana)."""
    model = replace(DENSE, num_experts=16, top_k=2, expert_ffn_hidden=64)
    plan = served(tp=ep, ep=ep, weights="fp8", narrow_experts="all", expert_load=1.5)

    def experts(plan: ServingPlan, tokens: float) -> Operator:
        return {o.name: o for o in layer_operators(model, plan, tokens)}["moe.experts"]

    for tokens in (1.0, 100.0):
        found = experts(plan, tokens)
        assert float(found.batch) == pytest.approx(16 / ep)
        assert float(found.m * found.batch) == pytest.approx(tokens * 16 / ep)
    chosen = experts(replace(plan, weights="bf16"), 100.0)
    assert float(chosen.m * chosen.batch) == pytest.approx(100.0 * 2 / ep * 1.5)


def test_of_a_pass_s_tokens_half_are_ahead_of_a_query() -> None:
    """As many as a pass takes of a longer prompt, and no more than the prompt has; where attention
    is not causal, none."""
    causal = catalog.model("llama3-8b")
    for query, part, ahead in ((1000.0, 256.0, 128.0), (100.0, 256.0, 50.0), (64.0, np.inf, 32.0)):
        assert float(prompts(causal, 1.0, query, 0.0, part).hidden) == ahead
    assert float(prompts(replace(causal, causal=False), 1.0, 100.0, 0.0, 64.0).hidden) == 0.0
