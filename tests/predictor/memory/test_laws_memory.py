"""Bytes of every class, counted by hand for plans small enough to count."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.hardware.systems import Cluster, Tier
from predictor.memory.serving import ServingMemory, serving_memory, tower_bytes
from predictor.memory.training import _buffers, allocation, lay_out, memory
from predictor.models.encoder import tower_parameters
from predictor.models.model import Model
from predictor.models.tower import Tower
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.work.serving import adapter_bytes, state_bytes

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


def test_recomputation_by_operator_keeps_attention_and_every_other_product() -> None:
    products = 2 * (2 * T * H + T * FFN / TP)
    found = classes(DENSE, plan(recompute="per_op"))["activations"]
    assert found == exact(L * (CORE + 0.5 * products))


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
    frozen = classes(DENSE, plan(**common, trained="lora"))["gathered layers"]
    assert frozen == exact(2 * 2 * LAYER)
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


MEMORY = 10e9
DEVICE = Accelerator(
    name="device", architecture="none", peak={"bf16": 1e14}, memory=MEMORY, bandwidth=1e12, l2=4e7,
    l2_bandwidth=4e12, sms=100.0,
)  # fmt: skip
NODE = Cluster("node", DEVICE, 8, (Tier("nvlink4", 8.0, 4e11), Tier("infiniband", math.inf, 5e10)))
RUN = RunParameters(engine=1.5e9)


def served(**fields: object) -> ServingPlan:
    given = {"batch": 40.0, "input_len": 1000.0, "output_len": 200.0, "tp": 2.0, **fields}
    given = {"serving": 1.0, "chunk": 4096.0, "max_batch": 64.0, **given}
    return ServingPlan(**given)  # type: ignore[arg-type]


def test_what_a_served_model_takes() -> None:
    """Weights of 16 bits; of one pass the residual, a norm's outcome, what the first product and
    the activation put out; logits of 16 and 32 bits of as many sequences as there may be; keys and
    values of two of four heads for every token."""
    found = serving_memory(DENSE, NODE, served(), RUN)
    weights = 2 * (L * LAYER + 2 * V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights)
    states = 2 * 4096 * (2 * H + 3 * FFN / TP)
    logits = (2 + 4) * 64 * V / TP
    assert float(found.classes["activations"]) == exact(states + logits)
    assert float(found.classes["runtime"]) == 1.5e9
    token = L * 2 * 2 * KV / TP * D
    assert float(found.per_sequence) == exact(1200 * token)
    assert float(found.capacity) == exact(0.9 * MEMORY)
    room = 0.9 * MEMORY - weights - states - logits - 1.5e9
    assert float(found.sequences) == math.floor(room / (1200 * token))
    assert float(found.admitted) == math.floor(room / (1100 * token))
    assert float(found.classes["cache"]) == exact(40 * 1200 * token)
    assert float(found.total) == exact(sum(map(float, found.classes.values())))


def test_few_tokens_take_few_activations_and_replicas_add_up() -> None:
    """Static: whole prompts of the batch; those of the largest pass that there may be where an
    engine measures what is left for its cache. Two replicas hold twice as many sequences."""
    for pool, tokens in (("free", 100), ("total", 4096)):
        few = served(batch=1.0, input_len=100.0, serving=0.0, pool=pool)
        states = 2 * tokens * (2 * H + 3 * FFN / TP)
        found = serving_memory(DENSE, NODE, few, RUN).classes["activations"]
        assert float(found) == exact(states + 6 * V / TP)
    one, two = (
        serving_memory(DENSE, NODE, served(dp=dp, batch=2.0 * dp), RUN) for dp in (1.0, 2.0)
    )
    assert float(two.sequences) == 2 * float(one.sequences)


@pytest.mark.parametrize("pool", ["free", "total"])
def test_a_server_holds_room_for_its_largest_pass_whoever_comes(pool: str) -> None:
    """So that more clients never find less of a cache, and get fewer tokens."""
    one, many = (
        serving_memory(DENSE, NODE, served(batch=batch, input_len=100.0, pool=pool), RUN)
        for batch in (1.0, 500.0)
    )
    assert float(one.classes["activations"]) == float(many.classes["activations"])
    assert float(one.sequences) == float(many.sequences)


def test_stages_have_whole_layers_and_one_table_each() -> None:
    """Six layers on four stages: two on the fullest."""
    found = serving_memory(DENSE, NODE, served(pp=4.0), RUN)
    weights = 2 * (2 * LAYER + V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights)
    assert float(found.per_sequence) == exact(1200 * 2 * 2 * 2 * KV / TP * D)


def test_one_sequence_is_held_however_little_room_there_is() -> None:
    """So that a plan that does not fit says by how much."""
    device = replace(DEVICE, memory=1e8)
    found = serving_memory(DENSE, replace(NODE, accelerator=device), served(), RUN)
    assert float(found.classes["cache"]) == float(found.per_sequence)
    assert float(found.sequences) == 0


def test_windows_bound_the_cache_of_their_layers() -> None:
    """Half of the layers see 128 tokens at most."""
    model = replace(DENSE, sliding_window=128, sliding_pattern="alternating")
    token = L * 2 * 2 * KV / TP * D
    found = serving_memory(model, NODE, served(), RUN)
    assert float(found.per_sequence) == exact(token * (600 + 64))


def test_a_pool_of_what_is_left_is_nine_tenths_of_it() -> None:
    """Nine tenths of memory less weights, activations and runtime."""
    found = serving_memory(DENSE, NODE, served(pool="free"), RUN)
    fixed = sum(float(found.classes[n]) for n in ("weights", "activations", "runtime"))
    token = L * 2 * 2 * KV / TP * D
    assert float(found.sequences) == math.floor(0.9 * (MEMORY - fixed) / (1200 * token))


def test_experts_of_a_served_mixture() -> None:
    """Four mixtures behind two dense layers; eight ranks hold three experts each."""
    found = serving_memory(MIXED, NODE, served(tp=8.0, ep=8.0, weights="fp8"), RUN)
    attention = H * (2 * HEADS / 8 + 2 * 1) * D + H
    dense = FEED_FORWARD / 8 + H
    mixture = 3 * H * SHARED / 8 + H * EXPERTS + H
    experts = 4 * 3 * 3 * H * INNER
    layers = L * attention + 2 * dense + 4 * mixture + experts
    assert float(found.classes["weights"]) == exact(layers + 2 * (2 * V * H / 8 + H))
    # Widest: three copies of a token, with what lies between the two products.
    states = 2 * 4096 * (4 * H + 2 * TOP * (2 * H + 3 * INNER) / 8)
    logits = 6 * 64 * V / 8
    assert float(found.classes["activations"]) == exact(states + logits)


def test_states_take_the_place_of_a_cache() -> None:
    """Mamba-2: 32 bits of heads x channels x state, and three tokens of the convolution's input in
    16. Delta rules: keys by values of each head alike."""
    hybrid = replace(
        DENSE, layers=8, attention_layers=1, mamba_layers=4, mamba_heads=10, mamba_head_dim=32,
        mamba_state=16, mamba_groups=4,
    )  # fmt: skip
    scan = 4 * 10 / TP * 32 * 16
    seen = 2 * 3 * (10 * 32 + 2 * 4 * 16) / TP
    assert float(state_bytes(hybrid, served())) == exact(4 * (scan + seen))
    delta = replace(
        DENSE, delta_layers=3, delta_key_heads=4, delta_value_heads=8, delta_key_dim=32,
        delta_value_dim=96,
    )  # fmt: skip
    rule = 4 * 8 / TP * 32 * 96
    mixed = 2 * 3 * (2 * 4 * 32 + 8 * 96) / TP
    assert float(state_bytes(delta, served())) == exact(3 * (rule + mixed))
    found = serving_memory(hybrid, NODE, served(), RUN)
    token = 1 * 2 * 2 * KV / TP * D
    assert float(found.per_sequence) == exact(1200 * token + 4 * (scan + seen))


def test_weights_in_the_hosts_memory_come_two_layers_at_a_time() -> None:
    own = served(offload="weights", host_memory=64e9)
    found = serving_memory(DENSE, NODE, own, RUN)
    weights = 2 * (L * LAYER + 2 * V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights * 2 / L)
    assert float(found.classes["cache"]) == 0
    token = L * 2 * 2 * KV / TP * D
    room = 0.9 * 64e9 / float(own.gpus) - weights
    assert float(found.sequences) == math.floor(room / (1200 * token))


def test_what_is_missing_is_what_exceeds_the_capacity() -> None:
    small, large = (
        serving_memory(DENSE, NODE, served(batch=n, serving=0.0), RUN) for n in (2.0, 1e5)
    )
    assert (float(small.fits), float(small.shortfall)) == (1.0, 0.0)
    assert float(large.fits) == 0.0
    assert float(large.shortfall) == exact(float(large.total - large.capacity))


def test_adapters_that_are_live_take_memory_and_leave_fewer_sequences() -> None:
    """Two matrices of rank r in 16 bits beside every product of a layer: r (k + n) elements each.
    No more adapters are live than sequences ask for, or slots hold."""
    model = catalog.model("llama3-8b")
    plan = ServingPlan(batch=64.0, serving=1.0, input_len=500.0, output_len=100.0)
    h, kv, inner = 4096, 1024, 14336
    # Queries, keys and values; what attention gives; gate and up; down.
    sides = [(h, h + 2 * kv), (h, h), (h, 2 * inner), (inner, h)]
    one = 2 * 32 * model.layers * sum(k + n for k, n in sides)

    def found(**fields: float) -> ServingMemory:
        own = replace(plan, adapter_rank=32.0, **fields)
        return serving_memory(model, catalog.system("dgx-h100"), own, RunParameters())

    bare, some = found(), found(adapters=10.0)
    assert "adapters" not in bare.classes
    assert float(some.classes["adapters"]) == exact(10 * one)
    assert float(found(adapters=1000.0).classes["adapters"]) == exact(64 * one)
    few = found(adapters=10.0, adapter_slots=4.0)
    assert float(few.classes["adapters"]) == exact(4 * one)
    lost = float(bare.sequences - some.sequences)
    assert lost == pytest.approx(10 * one / float(bare.per_sequence), abs=1.0)


def test_a_second_tower_is_divided_where_its_heads_are() -> None:
    """16-bit weights of one layer of a tower of eight heads: on two ranks half each, on three,
    which do not divide eight, all of them; without images none."""
    eight = Tower("vision", layers=1, hidden=64, heads=8, ffn_hidden=256, patches=9, tokens=9,
                  patch_width=12)  # fmt: skip
    seeing = replace(DENSE, heads=24, kv_heads=24, tower=eight)
    whole = 2 * tower_parameters(eight, H)
    for tp, share in ((1.0, 1.0), (2.0, 0.5), (3.0, 1.0)):
        told = float(np.asarray(tower_bytes(seeing, served(tp=tp, tiles=1.0))))
        assert told == exact(share * whole)
    assert float(np.asarray(tower_bytes(seeing, served(tiles=0.0)))) == 0.0


def test_adapters_that_one_request_asks_for_are_there_once() -> None:
    """Of five, as many as there are slots and requests that ask for one each; one at least."""
    one = adapter_bytes(DENSE, served(adapters=1.0, adapter_rank=8.0))
    for batch, slots, many in ((1.0, 0.0, 1), (3.0, 0.0, 3), (3.0, 2.0, 2), (40.0, 0.0, 5)):
        made = served(batch=batch, serving=0.0, adapters=5.0, adapter_rank=8.0, adapter_slots=slots)
        found = serving_memory(DENSE, NODE, made, RUN).classes
        assert float(found["adapters"]) == exact(many * float(one))


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
