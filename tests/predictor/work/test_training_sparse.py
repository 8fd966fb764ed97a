"""Training of attention over chosen or compressed keys, and of several residual streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.arrays import stack
from predictor.memory.kept import kept_by
from predictor.models import Model
from predictor.models.flops import model_flop_per_token
from predictor.plans.training import TrainingPlan
from predictor.work.communication import pipeline_collectives, step_collectives
from predictor.work.layer import layer_blocks, mean_layer
from predictor.work.primitives import Operator
from predictor.work.serving import prompts
from predictor.work.training import step_operators, training_list

DSA, POOLED, BLOCKS = (
    catalog.model(name) for name in ("deepseek-v3.2", "glm-5.3-flash", "minimax-m3")
)
V4, K3 = catalog.model("deepseek-v4-flash"), catalog.model("kimi-k3")
SPARSE = [DSA, catalog.model("glm-5.2"), POOLED, BLOCKS, V4, catalog.model("deepseek-v4-pro")]
LENGTH = 8192.0


def made(**changes: Any) -> TrainingPlan:
    """A plan of one device, one sequence at a time."""
    plain = TrainingPlan(
        tp=1.0, pp=1.0, dp=1.0, micro_batch=1.0, global_batch=1.0, seq_len=LENGTH, mtp=False
    )
    return replace(plain, **changes)


def listed(model: Model, **changes: Any) -> dict[str, list[Operator]]:
    """Operators of a step by name; blocks of several kinds have some names in common."""
    found: dict[str, list[Operator]] = {}
    for one in step_operators(model, made(**changes)):
        found.setdefault(one.name, []).append(one)
    return found


def work(found: dict[str, list[Operator]], name: str) -> float:
    """FLOPs of all operators of a name, per layer."""
    return sum(float(one.flop * one.count) for one in found.get(name, []))


def triangle(most: float, length: float = LENGTH) -> float:
    """Pairs of tokens and keys before them or their own, `most` of each token, in the integral."""
    return most**2 / 2 + (length - most) * most


@pytest.mark.parametrize("model", SPARSE, ids=lambda one: one.name)
def test_a_forward_pass_reads_as_a_prefill_of_its_software_does(model: Model) -> None:
    """Sequences longer than what is chosen: training's places are of the whole sequence."""
    learned = training_list(model, made())
    at = replace(learned, learning=None, operators=[])
    layer_blocks(at, mean_layer(model), prompts(model, 1.0, LENGTH))
    ends = ("embedding", "head")
    ours, theirs = (
        [o for o in found if o.phase == "forward" and o.module not in ends]
        for found in (step_operators(model, made()), at.operators)
    )
    apart = ["index.narrow"] if model.is_compressed or not model.index_block else []
    assert sum(o.saved for o in theirs) == 0.0
    # What serving projects in one product, training does in two: an indexer learns by itself.
    joined = {"index.compress": "compress.in", "index.compress_sum": "compress.sum"}
    joined |= {"index.query": "attention.qkv"} if model.index_block else {}
    names = [joined.get(o.name, o.name) for o in ours]
    assert {*names, *apart} == {*(o.name for o in theirs), *apart}
    for name in {*names}:
        one, other = (
            [o for o in found if joined.get(o.name, o.name) == name] for found in (ours, theirs)
        )
        amounts = ["flop"] if name in {*joined.values(), "index.scores", "index.rope"} else [
            "flop", "bytes", "count"  # indexes are in 16 bits here, in 8 there
        ]  # fmt: skip
        for amount in amounts:
            mine, other_sum = (
                sum(float(getattr(o, amount) * o.count) for o in x) for x in (one, other)
            )
            assert mine == pytest.approx(other_sum, rel=1e-9), (name, amount)


def test_chosen_keys_by_hand() -> None:
    """128 heads of 576 columns against keys, 512 of values; 2,048 keys of 8,192 at most. Queries
    come down to the latents, and back up to values of 128; all three have two gradients."""
    found = listed(DSA)
    pairs = triangle(2048.0)
    assert work(found, "attention.chosen") == pytest.approx(2 * 128 * (576 + 512) * pairs)
    assert work(found, "attention.chosen.bwd") == pytest.approx(5 * 128 * (576 + 512) * pairs)
    for name, columns in (("absorb", 128 * 512), ("expand", 512 * 128)):
        once = 2 * LENGTH * 128 * columns
        for step in ("", ".dgrad", ".wgrad"):
            assert work(found, f"attention.{name}{step}") == pytest.approx(once)
    assert work(found, "attention") == 0.0
    (kept,) = found["attention.chosen"]
    # Queries, outcome, the latents of all keys; numbers of the keys and a sum of each head.
    expected = 2 * LENGTH * (128 * 1088 + 576) + 4 * LENGTH * (2048 + 128)
    assert kept.saved == pytest.approx(expected)
    assert found["attention.out"][0].saved == pytest.approx(2 * LENGTH * 128 * 128)
    (part,) = listed(DSA, cp=4.0)["attention.chosen"]  # of other ranks' latents none are kept
    assert 4 * part.saved == pytest.approx(kept.saved)
    (scored,) = found["index.scores"]
    queries, keys = 2 * LENGTH * 64 * 128, 2 * LENGTH * 128
    assert scored.bytes == pytest.approx(queries + keys + 4 * LENGTH**2 / 2)


def test_what_chooses_together_is_told_together() -> None:
    """Blocks of 128 keys for each of MiniMax-M3's key heads; keys that stand for 16 tokens."""
    (blocks,), (pooled,) = (listed(m)["attention.chosen"] for m in (BLOCKS, POOLED))
    heads, width = BLOCKS.heads, BLOCKS.qk_dim + BLOCKS.v_dim
    numbers = BLOCKS.kv_heads * BLOCKS.index_topk / 128
    kept = 2 * (heads + BLOCKS.kv_heads) * width + 4 * (heads + numbers)
    assert blocks.saved == pytest.approx(LENGTH * kept)
    latent = POOLED.kv_lora_rank + POOLED.qk_rope_head_dim
    kept = 2 * (POOLED.heads * (latent + POOLED.kv_lora_rank) + latent)
    kept += 4 * (POOLED.heads + POOLED.index_topk / 16)
    assert pooled.saved == pytest.approx(LENGTH * kept)


def test_scores_of_an_indexer_by_hand() -> None:
    """64 heads of 128 with every key before a token; the products of its three projections."""
    found = listed(DSA)
    assert work(found, "index.scores") == pytest.approx(2 * 64 * 128 * LENGTH**2 / 2)
    assert work(found, "index.query") == pytest.approx(2 * LENGTH * 1536 * 64 * 128)
    assert work(found, "index.key") == pytest.approx(2 * LENGTH * 7168 * (128 + 64))
    assert {one.dtype for one in found["index.scores"]} == {"bf16"}


def test_short_sequences_see_all_keys() -> None:
    """No more than can be chosen: latents are expanded, as in a model that does not choose; the
    indexer is there all the same, with nothing to score."""
    short = listed(DSA, seq_len=2048.0)
    plain = listed(catalog.model("deepseek-v3"), seq_len=2048.0)
    for name in ("attention", "attention.bwd", "attention.kv_up"):
        assert work(short, name) == pytest.approx(work(plain, name))
    assert work(short, "attention.chosen") == 0.0
    assert work(short, "index.scores") == 0.0


@pytest.mark.parametrize("model", SPARSE, ids=lambda one: one.name)
def test_nothing_is_learned_by_a_choice_without_a_loss_of_its_own(model: Model) -> None:
    found = listed(model)
    assert not [name for name in found if name.startswith("index.") and "bwd" in name]
    assert not [name for name in found if name.startswith("index.") and "grad" in name]
    taught = listed(model, index_loss=True)
    more = set(taught) - set(found)
    assert {"index.target", "index.loss", "index.scores.bwd"} <= more
    assert all(name.startswith("index.") for name in more)


def test_what_an_indexer_learns_from_by_hand() -> None:
    """Attention's scores over the chosen keys once more, without values; the indexer's, and two
    gradients; of its projections those of the weights, whose inputs have none."""
    found = listed(DSA, index_loss=True)
    pairs = triangle(2048.0)
    assert work(found, "index.target") == pytest.approx(2 * 128 * 576 * pairs)
    assert work(found, "index.scores.bwd") == pytest.approx(3 * 2 * 64 * 128 * pairs)
    assert work(found, "index.query.wgrad") == pytest.approx(work(found, "index.query"))
    assert work(found, "index.key.wgrad") == pytest.approx(work(found, "index.key"))
    assert "index.query.dgrad" not in found
    taught = step_collectives(DSA, made(index_loss=True, tp=4.0))
    (added,) = [o for o in taught if o.name == "index.target.reduce"]
    assert (added.op, added.group) == ("allreduce", "tp")
    assert added.bytes == pytest.approx(4 * LENGTH * 2048)  # of every head's scores the sum
    assert added.count == 1.0
    assert not [o for o in step_collectives(DSA, made(tp=4.0)) if o.name.startswith("index")]
    short = step_collectives(DSA, made(index_loss=True, tp=4.0, seq_len=2048.0))
    assert [float(o.count) for o in short if o.name.startswith("index")] == [0.0]
    again = step_collectives(DSA, made(index_loss=True, tp=4.0, recompute="full"))
    assert [o.phase for o in again if o.name.startswith("index")] == ["forward", "recompute"]
    together = listed(POOLED, index_loss=True)  # 2,048 tokens, by keys that stand for 16
    share = sum(float(o.count) for o in together["index.target"])
    width = POOLED.kv_lora_rank + POOLED.qk_rope_head_dim
    target = 2 * max(POOLED.heads, 64) * width * pairs
    assert work(together, "index.target") == pytest.approx(share * target)
    scores = 3 * 2 * POOLED.index_heads * POOLED.index_head_dim * pairs / 16
    assert work(together, "index.scores.bwd") == pytest.approx(share * scores)
    adapters = listed(DSA, index_loss=True, trained="lora")
    assert "index.target" not in adapters  # what is frozen learns nothing
    assert "attention.absorb.wgrad" not in adapters
    assert "attention.absorb.dgrad" in adapters
    assert adapters["attention.absorb"][0].saved == 0.0


@pytest.mark.parametrize("model", [DSA, catalog.model("glm-5.2")], ids=lambda one: one.name)
def test_adapters_are_as_large_for_any_length(model: Model) -> None:
    """Of keys and values, too, whether latents are expanded or seen as they are."""
    sizes = []
    for length in (2048.0, LENGTH):
        plan = made(trained="lora", seq_len=length)
        sizes.append(kept_by(step_operators(model, plan), model, plan).adapters["layer"])
    assert sizes[0] == pytest.approx(sizes[1])


def test_what_a_batch_holds_is_what_each_of_its_plans_does() -> None:
    """Products of longer sequences, which stand in a shorter one's list, are none of its own."""
    dense = replace(DSA, num_experts=0, top_k=0, shared_experts=0, dense_layers=0)
    plans = [made(seq_len=length) for length in (2048.0, LENGTH)]
    both = stack(plans)
    whole = kept_by(step_operators(dense, both), dense, both)
    for index, plan in enumerate(plans):
        alone = kept_by(step_operators(dense, plan), dense, plan)
        for module, size in alone.passing.items():
            assert whole.passing[module][index] == pytest.approx(size)


def test_compressed_keys_by_hand() -> None:
    """64 heads of 512: a window of 128 in every layer, one key for 128 tokens of all that are
    complete in 20 of 43, 512 of those for four in 21 others (DeepSeek-V4-Flash)."""
    found = listed(V4)
    heads, width, layers = 64, 512, 43
    window = triangle(128.0)
    pooled, chosen = LENGTH**2 / 2 / 128, triangle(512.0 * 4) / 4
    each = 2 * heads * 2 * width
    for name, blocks, beside in (
        ("attention.window", layers - V4.choosing_layers - V4.pooling_layers, 0.0),
        ("attention.pooled", V4.pooling_layers, pooled),
        ("attention.chosen", V4.choosing_layers, chosen),
    ):
        expected = blocks / layers * each * (window + beside)
        assert work(found, name) == pytest.approx(expected)
        assert work(found, f"{name}.bwd") == pytest.approx(2.5 * expected)
    assert work(found, "index.scores") == pytest.approx(
        V4.choosing_layers / layers * 2 * 64 * 128 * LENGTH**2 / 2 / 4
    )


def test_every_matrix_of_compressed_attention_has_its_gradients() -> None:
    found = listed(V4)
    for name in ("down", "q_up", "out_groups", "out"):
        label = f"attention.{name}"
        for step in ("dgrad", "wgrad"):
            assert work(found, f"{label}.{step}") == pytest.approx(work(found, label)), name
    norm, back = found["attention.query_norm"][0], found["attention.query_norm.bwd"][0]
    assert (norm.m, norm.n) == (64 * LENGTH, 512)
    assert norm.bytes == pytest.approx(4 * 64 * 512 * LENGTH)
    assert back.bytes == pytest.approx(6 * 64 * 512 * LENGTH)
    narrow = listed(V4, precision="mxfp8")
    assert {o.dtype for o in narrow["attention.out"]} == {"mxfp8"}
    assert {o.dtype for o in narrow["attention.out_groups.wgrad"]} == {"bf16"}
    for step in ("dgrad", "wgrad"):
        assert work(found, f"compress.in.{step}") == pytest.approx(work(found, "compress.in"))
    # What chooses is summed, too, and learns by a loss of its own alone.
    assert work(found, "index.compress") > 0
    taught = listed(V4, index_loss=True)
    assert work(taught, "index.compress.wgrad") == pytest.approx(work(found, "index.compress"))
    assert "index.compress.dgrad" not in taught
    frozen = listed(V4, trained="lora")
    assert frozen["attention.out_groups"][0].saved == 0.0
    assert "attention.out_groups.wgrad" not in frozen
    assert "attention.out_groups.dgrad" in frozen
    assert "compress.keep" not in found  # there is no cache that waits for a key's other tokens


def test_streams_by_hand() -> None:
    """Four of 4,096 columns: each of two blocks a layer reads and writes all and adds its own to
    them, and sums them for the next; gradients read them once more. All four, and what is added,
    are kept, unless they are made again."""
    found = listed(V4)
    vector = 2 * LENGTH * 4096
    ((mix,), (back,)) = found["streams.mix"], found["streams.mix.bwd"]
    assert mix.bytes == pytest.approx(9 * vector)
    assert back.bytes == pytest.approx((4 + 4 + 1 + 4 + 1) * vector)
    assert mix.saved == pytest.approx(5 * vector)
    assert mix.count == back.count == 2.0
    (added,) = found["streams.gradients"]
    assert added.bytes == pytest.approx(2 * 3 * 4 * vector)  # of mix, projection and sum
    assert added.kernels == 2.0
    plain, again = made(), made(recompute="selective", recompute_modules="mhc")
    (both, less) = (kept_by(step_operators(V4, plan), V4, plan) for plan in (plain, again))
    # They come again from what blocks put out, which is kept.
    assert both.whole["layer"] - less.left["layer"] == pytest.approx(2 * 4 * vector)
    assert not [name for name in found if name.endswith(".residual")]  # added as they are mixed
    assert "streams.mix.again" in {o.name for o in step_operators(V4, again)}
    assert both.start == pytest.approx(4 * vector)  # a layer's input is all of them


@pytest.mark.parametrize("name", ["hy4-770b-a49b", "glm-5.3-flash", "kimi-k3", "deepseek-v4-flash"])
def test_a_layer_has_two_blocks_of_streams_whatever_its_feed_forward_blocks_are(name: str) -> None:
    model = catalog.model(name)
    kernel = "residual.choose" if model.residual_block else "streams.mix"
    assert sum(float(o.count) for o in listed(model)[kernel]) == pytest.approx(2.0)


def test_stages_hand_on_all_streams() -> None:
    """Four of them; or, of Kimi K3, the embedding, the sums before and the layer's own."""
    one, several = replace(V4, streams=0), V4
    plan = made(pp=2.0)
    sizes = [pipeline_collectives(model, plan)[0].bytes for model in (one, several)]
    assert sizes[1] == pytest.approx(4 * sizes[0])
    sums = [layer // K3.residual_block for layer in range(K3.layers)]
    handed = pipeline_collectives(K3, plan)[0].bytes / (2 * LENGTH * 7168)
    assert handed == pytest.approx(2 + np.mean(sums))


def test_queries_come_again_from_their_latents() -> None:
    """Of DeepSeek-V3.2 128 queries of 576 columns, and the 128 that become 512 of them; of V4 those
    of 64 heads of 512, and what their norms read."""
    plain, again = made(), made(recompute="selective", recompute_modules="mla_up_proj")
    for model, each in ((DSA, 2 * 128 * (576 + 128)), (V4, 2 * 64 * (512 + 512))):
        both, less = (kept_by(step_operators(model, p), model, p) for p in (plain, again))
        freed = both.whole["layer"] - less.left["layer"]
        assert freed == pytest.approx(LENGTH * each)
        part = replace(again, tp=8.0)
        names = {o.name for o in step_operators(model, part)}
        assert {"attention.q_up.again", "attention.rope.again"} <= names


def test_gradients_of_chosen_sums_read_and_add_to_each() -> None:
    """Kimi K3: forward each of n sums is read and one written; backward the gradient is read, all
    are, and each of their gradients is read and written."""
    found = listed(K3)
    ((ahead,), (back,)) = found["residual.choose"], found["residual.choose.bwd"]
    vector = 2 * LENGTH * 7168
    sums = float(ahead.bytes) / vector - 1.0
    assert back.bytes == pytest.approx((1.0 + 3.0 * sums) * vector)


@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses"])
def test_ranks_that_divide_a_sequence_gather_what_is_chosen_from(kind: str) -> None:
    """Whatever the kind: latents that any token may choose, with the keys that choose them; twice
    as much backward. Blocks of MiniMax-M3 whose keys are not chosen do as they would."""
    plan = made(cp=4.0, cp_kind=kind)
    found = [o for o in step_collectives(DSA, plan) if o.group == "cp"]
    assert {one.op for one in found} == {"allgather"}
    forward = sum(o.bytes * o.count for o in found if o.phase == "forward")
    backward = sum(o.bytes * o.count for o in found if o.phase == "backward")
    assert forward == pytest.approx(2 * LENGTH * (512 + 64 + 128))
    assert backward == pytest.approx(2 * forward)
    blocks = [o for o in step_collectives(BLOCKS, plan) if o.group == "cp" and o.op == "allgather"]
    width = 2 * BLOCKS.kv_heads * BLOCKS.head_dim
    own = [o for o in blocks if o.phase == "forward" and o.bytes > 2 * LENGTH * width]
    assert [float(o.bytes) for o in own] == [pytest.approx(2 * LENGTH * (width + 128))]


def test_compressed_keys_are_gathered_compressed() -> None:
    """512 columns and an index key of 128 for four tokens; 512 for 128; nothing of windows."""
    found = [o for o in step_collectives(V4, made(cp=4.0)) if o.group == "cp"]
    forward = sum(o.bytes * o.count for o in found if o.phase == "forward")
    each = V4.choosing_layers * (512 + 128) / 4 + V4.pooling_layers * 512 / 128
    assert forward == pytest.approx(2 * LENGTH * each / 43)


@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses"])
@pytest.mark.parametrize("model", SPARSE, ids=lambda one: one.name)
def test_ranks_divide_attention_over_a_sequence_evenly(model: Model, kind: str) -> None:
    whole, part = listed(model, cp_kind=kind), listed(model, cp=4.0, cp_kind=kind)
    names = [name for name in whole if name.startswith(("attention.", "index.scores"))]
    for name in names:
        assert 4 * work(part, name) == pytest.approx(work(whole, name)), name


def test_conventions_count_the_keys_that_are_attended_to() -> None:
    """As a dense model's where all keys are chosen; twice the triangle of 2,048 keys beyond."""
    plain = catalog.model("deepseek-v3")
    beside = 6.0 * (DSA.matrix_parameters(active=True) - plain.matrix_parameters(active=True))
    counted = model_flop_per_token(DSA, 2048.0, "megatron_causal")
    assert counted - beside == pytest.approx(model_flop_per_token(plain, 2048.0, "megatron_causal"))
    longer = model_flop_per_token(DSA, LENGTH, "megatron_causal") - counted
    width = DSA.layers * DSA.heads * (DSA.qk_dim + DSA.v_dim)
    more = triangle(2048.0) / LENGTH - 1024.0
    assert longer == pytest.approx(3 * 2 * width * more)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash", "minimax-m3", "kimi-k3"])
@pytest.mark.parametrize("tp", [1, 4])
def test_steps_are_predicted(name: str, tp: int) -> None:
    """With ranks that divide layers and hide their exchange, with stages and divided sequences."""
    stated = {
        "gpus": 64, "tp": tp, "pp": 2, "cp": 2, "ep": 8, "global_batch": 64, "seq_len": 8192,
        "micro_batch": 1, "tp_overlap": True, "recompute": "full",
    }  # fmt: skip
    found: Any = reckon.predict_train(name, "gb200-nvl72", stated, "kernels-only")
    one: Any = reckon.predict_train(
        name, "gb200-nvl72", {**stated, "index_loss": True}, "kernels-only"
    )
    assert np.isfinite(found.step_time.value)
    chooses = name != "kimi-k3"
    assert (one.step_time.value > found.step_time.value) == chooses
