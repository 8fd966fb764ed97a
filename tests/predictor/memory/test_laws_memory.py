"""Bytes of every class, counted by hand for plans small enough to count."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from predictor.memory.training import _buffers, allocation, lay_out, memory
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters

exact = partial(pytest.approx, rel=1e-12)
"""A byte too many is noticed among billions."""

L, H, HEADS, KV, D, FFN, V = 6, 640, 12, 4, 48, 1792, 3072
B, S, TP, DP = 3, 1280, 2, 4
T = B * S

DENSE = Model(
    name="dense", layers=L, hidden=H, heads=HEADS, kv_heads=KV, head_dim=D, ffn_hidden=FFN, vocab=V
)
EXPERTS, TOP, INNER, SHARED = 24, 3, 448, 320
MIXED = replace(
    DENSE, num_experts=EXPERTS, top_k=TOP, expert_ffn_hidden=INNER, dense_layers=2,
    shared_expert_ffn_hidden=SHARED, shared_experts=1,
)  # fmt: skip
BARE = RunParameters(context=0.0, fragmentation=0.0)

ATTENTION = H * 2 * (HEADS + KV) * D
FEED_FORWARD = 3 * H * FFN
LAYER = (ATTENTION + FEED_FORWARD) / TP + 2 * H
"""Of a rank: matrices are split, norms are not."""

LAYERS, EXPERT, ENDS = (
    f"{part} weights and optimizer" for part in ("layer", "expert", "embedding and head")
)


def plan(**fields: object) -> TrainingPlan:
    given = {"tp": float(TP), "pp": 1.0, "dp": float(DP), "micro_batch": float(B)}
    given |= {"global_batch": 24.0, "seq_len": float(S), "vocab_multiple": 1.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def classes(model: Model, made: TrainingPlan, kind: int = 2) -> dict[str, float]:
    found = memory(model, made, BARE).classes
    return {name: float(np.asarray(value)[kind]) for name, value in found.items()}


@pytest.mark.parametrize(
    ("sharding", "each"),
    [
        ("none", 2 + 4 + 12),
        ("zero1", 2 + 4 + 12 / DP),
        ("zero2", 2 + (4 + 12) / DP),
        ("zero3", (2 + 4 + 12) / DP),
    ],
)
def test_states_of_a_dense_model(sharding: str, each: float) -> None:
    """Weights, gradients and optimizer states; what is sharded is divided among all replicas."""
    found = classes(DENSE, plan(sharding=sharding))
    assert found[LAYERS] == exact(each * L * LAYER)
    assert found[ENDS] == exact(each * (2 * V / TP * H + H))
    assert found[EXPERT] == 0


def test_biases_of_columns_are_split_and_those_of_rows_are_whole() -> None:
    """Layer norms have two vectors each."""
    model = replace(DENSE, gated=False, norm="layernorm", bias=True, activation="gelu")
    split = ATTENTION + 2 * H * FFN + (HEADS + 2 * KV) * D + FFN
    layer = split / TP + 2 * (2 * H + H)
    assert classes(model, plan(sharding="none"))[LAYERS] == exact(18 * L * layer)
    only = replace(DENSE, qkv_bias=True)
    more = classes(only, plan(sharding="none"))[LAYERS] - 18 * L * LAYER
    assert more == exact(18 * L * (HEADS + 2 * KV) * D / TP)


def test_key_heads_that_do_not_suffice_are_held_more_than_once() -> None:
    """Eight ranks for four key heads: each rank has one whole."""
    found = classes(DENSE, plan(tp=8.0, sharding="none"))[LAYERS]
    attention = H * (2 * HEADS / 8 + 2 * 1) * D
    assert found == exact(18 * L * (attention + FEED_FORWARD / 8 + 2 * H))


@pytest.mark.parametrize("etp", [1, 2])
def test_states_of_a_mixture(etp: int) -> None:
    """Two dense layers, four mixtures; routers are whole on every rank, experts on the ranks that
    hold them, whose replicas are fewer than those of the rest."""
    ep, sharing = 2, TP * DP // (2 * etp)
    found = classes(MIXED, plan(ep=float(ep), etp=float(etp), sharding="zero1"))
    each = 2 + 4 + 12 / DP
    mixture = 3 * H * SHARED / TP + H * EXPERTS + H
    layers = L * (ATTENTION / TP + H) + 2 * (FEED_FORWARD / TP + H) + 4 * mixture
    assert found[LAYERS] == exact(each * layers)
    experts = 4 * EXPERTS * 3 * H * INNER / (ep * etp)
    assert found[EXPERT] == exact((2 + 4 + 12 / sharing) * experts)


def test_states_of_latent_attention() -> None:
    """Projections down are whole on every rank, and the norms of the latents with them."""
    rank, latent, nope, rope, value = 384, 320, 96, 32, 80
    model = replace(
        DENSE, kv_heads=HEADS, q_lora_rank=rank, kv_lora_rank=latent, qk_nope_head_dim=nope,
        qk_rope_head_dim=rope, v_head_dim=value,
    )  # fmt: skip
    down = H * (rank + latent + rope) + rank + latent
    up = rank * HEADS * (nope + rope) + latent * HEADS * (nope + value) + HEADS * value * H
    layer = down + (up + FEED_FORWARD) / TP + 2 * H
    assert classes(model, plan(sharding="none"))[LAYERS] == exact(18 * L * layer)


def test_extra_prediction_layers_have_a_projection_of_their_own() -> None:
    """Another layer, and 2 h x h before it; the head is the model's own."""
    found = classes(replace(DENSE, mtp_layers=1), plan(sharding="none"))[LAYERS]
    assert found == exact(18 * ((L + 1) * LAYER + 2 * H**2 / TP))
    without = classes(replace(DENSE, mtp_layers=1), plan(sharding="none", mtp=False))[LAYERS]
    assert without == exact(18 * L * LAYER)


CORE = T * (2 * (2 * HEADS + 2 * KV) * D + 4 * HEADS) / TP
"""What attention keeps of a layer [bytes]: queries, keys, values and outcome, and for each query
the logarithm of its softmax's sum in fp32 (Dao 2023, algorithm 1)."""


def kept(own: float) -> float:
    """Of a dense layer with flash attention [bytes]: both norms' inputs and those of the products
    behind them, what attention keeps, gate and value, the input of the last product."""
    return 2 * (4 * own * H + 3 * T * FFN / TP) + CORE


def test_activations_of_a_dense_model() -> None:
    for parallel, own in ((0.0, T), (1.0, T / TP)):
        found = classes(DENSE, plan(sequence_parallel=parallel))
        assert found["activations"] == exact(L * kept(own))
        # Input of the last norm and of the head; two copies of logits in fp32.
        ends = 2 * 2 * own * H + 8 * T * V / TP
        assert found["embedding and head activations"] == exact(ends)


def test_pipelines_hold_as_many_micro_batches_as_stages_are_left() -> None:
    """Three stages of two layers, eight micro-batches: the first holds three of them; only the last
    has the head, only the first the embedding, whose mask dropout keeps."""
    made = plan(pp=3.0, dp=1.0, dropout=True)
    found = memory(DENSE, made, BARE).classes
    masks = 2 * T * H
    each = 2 * (kept(T) + masks)
    assert found["activations"] == exact([3 * each, 2 * each, each])
    head = 2 * 2 * T * H + 8 * T * V / TP
    assert found["embedding and head activations"] == exact([3 * T * H, 0, head])


def test_stages_of_a_single_layer_hold_it_as_those_of_several_do() -> None:
    found = memory(replace(DENSE, layers=3), plan(pp=3.0, dp=1.0), BARE).classes
    assert found["activations"] == exact([3 * kept(T), 2 * kept(T), kept(T)])


def test_full_recomputation_of_some_layers_and_of_groups() -> None:
    """A share of the layers keeps its input alone; of groups one input is kept, and all layers of
    one group are at work at a time, with the one that they come from."""
    whole, one = L * kept(T), kept(T)
    half = classes(DENSE, plan(recompute="full", recompute_share=0.5))
    assert half["activations"] == exact(0.5 * whole + 0.5 * L * 2 * T * H)
    chunks = classes(DENSE, plan(recompute="full", recompute_chunk=3.0))
    assert chunks["activations"] == exact(2 * 2 * T * H)
    for fields, again in (
        ({}, 0.0),
        ({"recompute": "full", "recompute_share": 0.5}, one),
        ({"recompute": "full", "recompute_chunk": 3.0}, 3 * one),
    ):
        found = memory(DENSE, plan(pp=3.0, dp=1.0, **fields), BARE).classes
        assert found["backward workspace"][:2] == exact(again + PASSING)


PASSING = 2 * T * (2 * FFN / TP + H) + 2 * T * H
"""Gradients of gate and value, from which that of their input is made, and of the residual stream:
the widest that a dense layer's backward pass holds [bytes]."""


def test_a_layer_and_the_loss_take_turns() -> None:
    """Logits are gone when the first layer's backward pass begins: the larger of both counts."""
    head, work = 2 * 2 * T * H + 8 * T * V / TP, kept(T) + PASSING
    for logits in (8.0, 0.1):
        made = plan(recompute="full", logit_bytes=logits)
        found = classes(DENSE, made)
        own = head + (logits - 8) * T * V / TP
        assert found["embedding and head activations"] == exact(own)
        assert found["backward workspace"] == exact(max(work - own, 0.0))
    assert work > own


def test_gradients_of_experts_are_those_of_their_tokens() -> None:
    """Gate and value of the experts that a token goes to, and the input that is made from them."""
    found = memory(replace(MIXED, dense_layers=0), plan(pp=2.0), BARE).classes
    routed = 2 * T * TOP / TP * (2 * INNER + H)
    assert found["backward workspace"][0] == exact(routed + 2 * T * H)


SUMS = 4 * T * HEADS / TP
"""Of attention's rows, in 32 bits."""
OUTCOMES = 2 * T * (HEADS + KV) * D / TP + 2 * T * HEADS * D / TP + SUMS
"""Queries and values, and what attention makes of them; keys are the second product of a layer."""


def test_recomputation_by_operator_keeps_attention_and_every_other_product() -> None:
    """Their outcomes, the gate's among them, and the layer's input, however narrow the products;
    outside a graph the last of a layer, too. Ranks that split norms keep what they scatter."""
    own = OUTCOMES + 2 * T * FFN / TP
    for fields in ({}, {"precision": "fp8"}, {"precision": "fp8", "saves_narrow": False}):
        found = classes(DENSE, plan(recompute="per_op", **fields))["activations"]
        assert found == exact(L * (2 * T * H + own))
    eager = classes(DENSE, plan(recompute="per_op", fused=False))["activations"]
    assert eager == exact(L * (2 * 2 * T * H + own))
    split = classes(DENSE, plan(recompute="per_op", sequence_parallel=1.0))["activations"]
    assert split == exact(L * (2 * 2 * T * H / TP + own))
    four = classes(DENSE, plan(recompute="per_op", precision="nvfp4"))["activations"]
    assert four == exact(L * (2 * T * H + 2 * T * HEADS * D / TP + SUMS))


def test_recomputation_by_operator_keeps_what_comes_from_and_goes_to_experts() -> None:
    """What an all-to-all brings and takes back; products of experts never."""
    model = replace(MIXED, dense_layers=0)
    alone, apart = (
        classes(model, plan(recompute="per_op", ep=ep, expert_load=1.0))["activations"]
        for ep in (1.0, 2.0)
    )
    assert apart - alone == exact(L * 2 * 2 * T / TP * TOP * H)


def test_what_comes_again_by_operator_stands_beside_the_gradients() -> None:
    """That of one layer, once the logits are gone."""
    common = {"logit_bytes": 1e-6, "vocab_multiple": 1.0}
    none, some = (classes(DENSE, plan(recompute=r, **common)) for r in ("none", "per_op"))
    more = some["backward workspace"] - none["backward workspace"]
    assert more == exact((none["activations"] - some["activations"]) / L)


def test_gathered_layers_of_sharded_weights() -> None:
    """Two layers at a time, or all where they are kept; one layer's gradients are not yet reduced,
    and there are none of weights that are frozen."""
    common = {"sharding": "zero3", "gather_bytes": 2.0, "reduce_bytes": 4.0}
    assert classes(DENSE, plan(**common))["gathered layers"] == exact((2 * 2 + 4) * LAYER)
    for layers in (2, 3):
        stays = classes(replace(DENSE, layers=layers), plan(**common, reshard=False))
        assert stays["gathered layers"] == exact((layers * 2 + 4) * LAYER)
    one_each = plan(**common, reshard=False, pp=2.0)
    found = classes(replace(DENSE, layers=2), one_each)["gathered layers"]
    assert found == exact((2 * 2 + 4) * LAYER), "the gradients of all layers: of one"
    flat = classes(DENSE, plan(**common, flat_copies=True))["gathered layers"]
    assert flat == exact((2 * 2 + 2 + 4) * LAYER), "a layer's own beside those on their way"
    for copies in (False, True):
        own = plan(**common, trained="lora", flat_copies=copies)
        assert classes(DENSE, own)["gathered layers"] == exact(2 * 2 * LAYER)
    assert classes(DENSE, plan(sharding="zero2"))["gathered layers"] == 0
    mixed = classes(replace(MIXED, dense_layers=0), plan(**common, ep=2.0))["gathered layers"]
    mean = (ATTENTION + 3 * H * SHARED) / TP + H * EXPERTS + 2 * H
    mean += EXPERTS * 3 * H * INNER / 2
    assert mixed == exact((2 * 2 + 4) * mean)


def test_a_tied_table_is_copied_where_the_ends_lie_apart() -> None:
    """Both copies are trained, and must stay alike; one device that has both ends has one."""
    model, table = replace(DENSE, tied_embeddings=True), V / TP * H

    def tied(**fields: object) -> list[float]:
        made = plan(dp=1.0, **fields)
        found = lay_out(model, made).parameters
        return [float(value) for value in found.tied]

    assert tied(pp=2.0) == [table, 0, table]
    assert tied(pp=3.0) == [table, 0, table]
    assert tied(pp=1.0) == tied(pp=3.0, schedule="zb-v", vpp=2.0) == [0, 0, 0]
    assert tied(pp=2.0, trained="lora") == [0, 0, 0]


def test_pipelines_from_both_ends_hold_every_weight_twice() -> None:
    """DualPipe: two stages on every device, half of all layers each of four."""
    line, both = (
        memory(DENSE, plan(pp=2.0, global_batch=48.0, schedule=s, sharding="none"), BARE).classes
        for s in ("1f1b", "dualpipe")
    )
    assert both[LAYERS] == exact(2 * line[LAYERS])
    ends = 18 * (2 * V / TP * H + H)
    assert both[ENDS][[0, 2]] == exact([ends, ends])


def test_allocation_scales_what_was_fitted_by_the_framework() -> None:
    run = RunParameters(
        context=3e9,
        fragmentation=0.1,
        factors={"held/a": 1.5, "fragmentation/a": 2, "context/a": 4},
    )
    own, other = allocation(run, "a"), allocation(run, "b")
    assert (own.held, own.fragmentation, own.context) == exact((1.5, 0.2, 12e9))
    assert (other.held, other.fragmentation, other.context) == exact((1.0, 0.1, 3e9))


def test_holes_come_of_pipelines_on_every_stage() -> None:
    run = replace(BARE, factors={"held/neutral": 1.5})
    made = plan(pp=3.0, dp=1.0)
    plain, holed = (memory(DENSE, made, r).classes["activations"] for r in (BARE, run))
    assert holed / plain == exact([1.5, 1.5, 1.5])


def test_chance_of_not_fitting_is_that_of_the_normal_distribution() -> None:
    """One standard deviation above the mean: 0.8413."""
    found = memory(DENSE, plan(), BARE)
    sigma = 0.2
    for away, chance in ((1.0, 0.8413), (-1.0, 0.1587), (2.0, 0.9772), (0.0, 0.5)):
        capacity = float(found.peak) * math.exp(-away * sigma)
        assert float(found.probability_over(capacity, sigma)) == pytest.approx(chance, abs=1e-4)


@pytest.mark.parametrize(
    ("tp", "split", "there"),
    [(1.0, 1.0, 0), (4.0, 0.0, 0), (4.0, 1.0, 1), (2.0, 1.0, 1), (1.0, 0.0, 0)],
)
def test_whole_streams_are_gathered_where_ranks_split_them(
    tp: float, split: float, there: int
) -> None:
    """Two of 3 sequences of 512 tokens of 256 numbers, two bytes each."""
    model = Model(name="m", layers=2, hidden=256, heads=4, kv_heads=4, head_dim=64,
                  ffn_hidden=512, vocab=1000)  # fmt: skip
    plan = TrainingPlan(tp=tp, pp=1.0, dp=1.0, sequence_parallel=split, micro_batch=3.0,
                        global_batch=3.0, seq_len=512.0)  # fmt: skip
    assert float(_buffers(model, plan, 2.0)) == there * 2.0 * 2.0 * 3.0 * 512.0 * 256.0


@pytest.mark.parametrize("kind", [0, 2])
def test_a_stage_of_one_layer_holds_and_works_as_one(kind: int) -> None:
    """Its layer of each of two micro-batches is in use or on its way, so that the host has none of
    it; recomputed whole it keeps what each of three does that share a stage."""
    alone, several = replace(DENSE, layers=2), replace(DENSE, layers=6)
    whole, away = (plan(pp=2.0, offload_activations=share) for share in (0.0, 1.0))
    kept = classes(alone, whole, kind)["activations"]
    assert classes(alone, away, kind)["activations"] == exact(kept)
    again = plan(pp=2.0, recompute="full")
    work = [classes(one, again, kind)["backward workspace"] for one in (alone, several)]
    assert work[0] == exact(work[1])


def test_deepspeed_gathers_by_numbers_of_parameters() -> None:
    """All of a small model; of a large one a billion weights, and half as many gradients in the
    buffer in which they are reduced (`stage3_max_live_parameters`, `reduce_bucket_size`)."""
    own = plan(sharding="zero3", gather_bytes=2.0, reduce_bytes=4.0, framework="deepspeed")
    assert classes(DENSE, own)["gathered layers"] == exact((2 + 4) * DENSE.layers * LAYER)
    many = replace(DENSE, layers=math.ceil(2e9 / LAYER))
    assert classes(many, own)["gathered layers"] == exact(2 * 1e9 + 4 * 5e8)
