"""Compressed keys and chosen blocks: cache, arithmetic and traffic by hand, what is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.memory.parameters import mixer_parameters
from predictor.memory.serving import weight_bytes
from predictor.serving.completion import complete_serving
from predictor.serving.prediction import predict_inference
from predictor.timing.calibration import RunParameters
from predictor.work.serving import (
    cache_bytes,
    decode_attention,
    layer_operators,
    prefill_attention,
    read_bytes,
    state_bytes,
)
from tests.predictor.work.served import CALIBRATION, CLUSTER, named, plan

FLASH, PRO, M3 = (
    catalog.model(name) for name in ("deepseek-v4-flash", "deepseek-v4-pro", "minimax-m3")
)
MILLION = float(2**20)


def test_the_cache_of_a_million_tokens_is_the_published_one() -> None:
    """9.62 GiB in 16 bits (vLLM's announcement of DeepSeek-V4, 2026-04-24), in which index keys
    have 16 bits too; here they have 8 and a scale, of every fourth token of 30 layers."""
    index = 30 * MILLION / 4 * (2 * 128 - 132)
    held = float(cache_bytes(PRO, plan(), MILLION)) + index
    assert held / 2**30 == pytest.approx(9.62, abs=0.005)


def test_bytes_of_a_narrow_key() -> None:
    """448 of 8 bits, 64 of 16, and eight bytes of scales: 584 (vLLM, mla/sparse_swa.py). A window
    of 128 in 43 layers, every fourth token of 21 with its index key, every 128th of 20."""
    tokens = 65536.0
    own = 43 * 128 * 584 + 21 * tokens / 4 * (584 + 132) + 20 * tokens / 128 * 584
    assert float(cache_bytes(FLASH, plan(kv="fp8"), tokens)) == own
    # Nothing of it is divided by tensor parallelism: there is one key head.
    assert float(cache_bytes(FLASH, plan(kv="fp8", tp=4.0), tokens)) == own


def test_incomplete_keys_are_kept_in_32_bits() -> None:
    """Of eight tokens for a key of four, since sums overlap, and of 128."""
    choosing, pooling = 8 * 4 * (4 * 512 + 4 * 128), 128 * 4 * (2 * 512)
    assert float(state_bytes(FLASH, plan())) == 21 * choosing + 20 * pooling


def test_a_new_token_sees_its_window_and_chosen_or_all_compressed_keys() -> None:
    keys = 65536.0
    found = named(decode_attention(FLASH, plan(tp=4.0), 2.0, keys))
    each = 4 * 2 * (64 / 4) * 512
    assert found["attention.window"].flop == each * 128
    assert found["attention.chosen"].flop == each * (128 + 512)
    assert found["attention.pooled"].flop == each * (128 + 65536 / 128)
    assert [found[f"attention.{kind}"].count for kind in ("window", "chosen", "pooled")] == [
        2, 21, 20,
    ]  # fmt: skip
    read, written = 2 * 512 * (128 + 512), 2 * 2 * 16 * 512
    assert found["attention.chosen"].bytes == 2 * (read + written)
    # Every rank scores with all index heads, one key for four tokens.
    scores = found["index.scores"]
    assert scores.flop == 2 * 2 * 64 * 128 * 65536 / 4
    assert scores.bytes == 2 * (64 * 128 + 65536 / 4 * (132 + 4))


def test_prompts_see_what_their_tokens_see_on_average() -> None:
    """4,096 tokens: 128 of a window but for the first 128, which see half; a quarter of those
    before, 512 at most, which the first 2,048 do not reach; a 128th of them."""
    found = named(prefill_attention(FLASH, plan(tp=1.0), 3.0, 4096.0))
    each = 4 * 3 * 64 * 4096 * 512
    window = 128 - 128 * 64 / 4096
    assert float(found["attention.window"].flop) == pytest.approx(each * window)
    chosen = window + (2048 * 256 + 2048 * 512) / 4096
    assert float(found["attention.chosen"].flop) == pytest.approx(each * chosen)
    assert float(found["attention.pooled"].flop) == pytest.approx(each * (window + 2048 / 128))
    scores = found["index.scores"]
    assert float(scores.flop) == pytest.approx(2 * 3 * 64 * 128 * 4096 * 2048 / 4)


def test_products_of_a_block_by_hand() -> None:
    """Of one of four ranks: two of eight groups of heads; latents and compressors whole."""
    found = named(layer_operators(FLASH, plan(tp=4.0), 10.0))
    shape = {name: (one.m, one.n, one.k, one.batch) for name, one in found.items()}
    assert shape["attention.down"] == (10, 1024 + 512, 4096, 1)
    assert shape["attention.q_up"] == (10, 16 * 512, 1024, 1)
    assert shape["attention.out_groups"] == (10, 1024, 4096, 2)
    assert shape["attention.out"] == (10, 4096, 2 * 1024, 1)
    assert shape["index.query"] == (10, 64 * 128, 1024, 1)
    assert shape["streams.project"] == (10, 24, 4 * 4096, 1)
    compressors = [one for one in layer_operators(FLASH, plan(), 10.0) if one.name == "compress.in"]
    assert [(one.n, one.count) for one in compressors] == [(4 * 512 + 4 * 128, 21), (2 * 512, 20)]
    # Each of 86 blocks reads four streams and what was added, writes four, and sums them.
    for name, passes in (("streams.mix", 9), ("streams.sum", 5)):
        assert (found[name].bytes, found[name].count) == (2 * 10 * 4096 * passes, 86)


def test_weights_of_all_ranks_are_those_of_the_model_and_the_copies() -> None:
    for model in (FLASH, PRO):
        for blocks, one in model.attention_kinds:
            whole = one.compressed_whole_matrix + one.compressed_vectors[1] + one.norm_parameters
            split = float(mixer_parameters(one, 1.0)) - whole
            assert blocks * float(mixer_parameters(one, 8.0)) == pytest.approx(
                blocks * (split / 8 + whole)
            )


def test_checkpoints_have_their_published_size() -> None:
    """160 GB of DeepSeek-V4-Flash: its experts in 4 bits, the rest in 8, tables in 16."""
    own = plan(tp=1.0, ep=1.0, weights="w4a8_mxfp4_mxfp8", narrowed="experts_below_fp8")
    assert float(weight_bytes(FLASH, own)) / 1e9 == pytest.approx(160, rel=0.03)


def test_chosen_blocks_are_of_whole_heads_and_16_bits() -> None:
    """MiniMax-M3: three layers see all, 57 sixteen blocks of 128; an index head for each of four
    groups, of which a rank of four has one."""
    keys = 65536.0
    found = decode_attention(M3, plan(tp=4.0), 2.0, keys)
    seen = {float(one.n): one.count for one in found if one.name == "attention"}
    assert seen == {65536.0: 3, 2048.0: 57}
    scores = named(found)["index.scores"]
    assert scores.flop == 2 * 2 * 1 * 128 * 65536
    assert scores.bytes == 2 * (2 * 128 + 65536 * 256 + 4 * 65536 / 128)
    # 4 key heads of 128 and values; an index key in 16 bits in 57 of 60 layers.
    each = 2 * 4 * 2 * 128
    assert float(cache_bytes(M3, plan(tp=1.0), keys)) == keys * (60 * each + 57 * 256)
    read = 3 * keys * each + 57 * (2048 * each + keys * 256)
    assert float(read_bytes(M3, plan(tp=1.0), keys)) == read


def test_prompts_over_chosen_blocks() -> None:
    """4,096 tokens see half of themselves in three layers; 2,048 at most in the others."""
    found = prefill_attention(M3, plan(tp=1.0), 1.0, 4096.0)
    whole = named(found)["attention"]
    assert float(whole.flop) == pytest.approx(2 * 64 * 4096 * 256 * 2048)
    core = named(found)["attention.chosen"]
    assert float(core.flop) == pytest.approx(2 * 64 * 4096 * 256 * 1536)
    assert (float(whole.count), float(core.count)) == (3, 57)


@pytest.mark.parametrize("model", [FLASH, PRO, M3], ids=lambda one: one.name)
def test_longer_contexts_cost_less_than_in_proportion(model: object) -> None:
    """And never less: a window, chosen keys and experts do not grow."""
    lengths = np.array([2e3, 2e4, 2e5])
    own = plan(input_len=lengths, tp=8.0, weights="fp8_block")
    tokens = np.asarray(predict_inference(model, CLUSTER, own, CALIBRATION).latencies.tpot)
    assert np.all(np.diff(tokens) > 0)
    assert tokens[2] / tokens[0] < 10.0


@pytest.mark.parametrize("model", [FLASH, M3], ids=lambda one: one.name)
def test_a_batch_of_plans_is_the_plans_one_by_one(model: object) -> None:
    lengths = np.array([500.0, 9000.0])

    def latencies(given: object) -> object:
        own = plan(input_len=given, weights="fp8_block")
        return predict_inference(model, CLUSTER, own, CALIBRATION).latencies

    both = latencies(lengths)
    for i, length in enumerate(lengths):
        one = latencies(float(length))
        assert float(both.ttft[i]) == pytest.approx(float(one.ttft))  # type: ignore[attr-defined]
        assert float(both.tpot[i]) == pytest.approx(float(one.tpot))  # type: ignore[attr-defined]


def test_names_say_what_checkpoints_have() -> None:
    fields = {"accelerator": "B200-SXM-180GB", "accelerators_per_node": 8, "tp": 4,
              "input_len": 1000, "output_len": 100, "batch": 4}  # fmt: skip
    given = {**fields, "model": "deepseek-ai/DeepSeek-V4-Flash"}
    own = complete_serving(parse(ServingPlanSpec, given, "test"), RunParameters()).plan
    assert (own.weights, own.projections, own.feed_forward) == (
        "w4a8_mxfp4_mxfp8", "fp8_block", "fp8_block",
    )  # fmt: skip
    with pytest.raises(InputError, match="scores cached keys in fp8"):
        complete_serving(
            parse(ServingPlanSpec, {**given, "accelerator": "A100-SXM4-80GB"}, "test"),
            RunParameters(),
        )
