"""DeepSeek-V4.1 while serving: cache, what layers read of each other, halves of prompts, tables of
n-grams by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.memory.serving import weight_bytes
from predictor.models.halves import halves
from predictor.serving.kernels import as_run
from predictor.serving.prediction import predict_inference
from predictor.work.ngrams import LOOKUP, row_bytes, table_bytes
from predictor.work.serving import (
    cache_bytes,
    decode_attention,
    layer_operators,
    pass_collectives,
    passing_tokens,
    prefill_attention,
    read_bytes,
    state_bytes,
)
from tests.predictor.work.served import CALIBRATION, CLUSTER, named, plan

MODEL = catalog.model("deepseek-v4.1-flash")
WINDOWS = 40 * 128 * 584


def test_four_layers_hold_what_all_read() -> None:
    """584 bytes of a key and 132 of its index key, of every second token of three layers and of
    every token of one; a window in each."""
    tokens = 65536.0
    each = 584 + 132
    assert float(cache_bytes(MODEL, plan(kv="fp8"), tokens)) == WINDOWS + 2.5 * tokens * each
    # Two tokens' projections and weights of three layers; a key of one token waits for none.
    assert float(state_bytes(MODEL, plan())) == 3 * 2 * 4 * (2 * 512)


def test_what_a_new_token_reads_of_it() -> None:
    """Of all compressed keys 512 in 38 layers; all index keys of four, 16,384 candidates of four
    more."""
    tokens = 65536.0
    keys = WINDOWS + 38 * 512 * 584
    index = 132 * (3 * tokens / 2 + tokens + 4 * 16384)
    assert float(read_bytes(MODEL, plan(kv="fp8"), tokens)) == keys + index
    short = 132 * (3 * 4096 / 2 + 4096 + 4 * 4096)
    assert float(read_bytes(MODEL, plan(kv="fp8"), 4096.0)) == keys + short


def test_scores_of_a_new_token_by_layer() -> None:
    found = [
        (one.count, float(one.n))
        for one in decode_attention(MODEL, plan(), 2.0, 65536.0)
        if one.name == "index.scores"
    ]
    assert found == [(3, 32768), (1, 65536), (4, 16384)]
    seen = {
        (one.name, float(one.n)): 0.0 for one in decode_attention(MODEL, plan(), 2.0, 65536.0)
        if one.core
    }  # fmt: skip
    assert set(seen) == {("attention.window", 128), ("attention.chosen", 640)}


def test_prompts_pass_the_decoder_over_their_last_window() -> None:
    """Layers of the first half see 4,096 tokens of two prompts, those of the second 128."""
    own = replace(plan(), input_len=4096.0)
    tokens = 2 * 4096.0
    last = passing_tokens(MODEL, own, tokens)
    assert float(np.asarray(last)) == 2 * 128
    found = layer_operators(MODEL, own, tokens, last)
    outs = [(float(one.m), one.count) for one in found if one.name == "attention.out"]
    assert outs == [(8192, 2), (8192, 3), (8192, 15), (256, 1), (256, 4), (256, 15)]
    cores = [one for one in prefill_attention(MODEL, own, 2.0, 4096.0) if one.core]
    assert [(float(one.m), one.count) for one in cores] == [
        (4096, 2), (4096, 3), (4096, 15), (128, 1), (128, 4), (128, 15),
    ]  # fmt: skip
    # A window's tokens of the end see as much as any: 128 keys and 512 chosen ones.
    assert float(cores[3].flop) == pytest.approx(4 * 2 * 64 * 128 * 512 * (128 + 512))
    # What is decoded beside them passes all layers.
    assert float(np.asarray(passing_tokens(MODEL, own, tokens, 30.0))) == 2 * 128 + 30
    assert passing_tokens(catalog.model("deepseek-v4-flash"), own, tokens) is None


def test_a_pass_that_decodes_is_both_halves() -> None:
    whole = layer_operators(MODEL, plan(), 64.0)
    first, last = halves(MODEL)
    for quantity in ("flop", "bytes"):

        def total(listed, of=quantity):  # type: ignore[no-untyped-def]
            return sum(float(np.asarray(getattr(one, of))) * one.count for one in listed)

        both = layer_operators(first, plan(), 64.0) + layer_operators(last, plan(), 64.0)
        assert total(both) == pytest.approx(total(whole), rel=1e-12)


def test_collectives_of_each_half() -> None:
    own = plan(tp=8.0)
    found = pass_collectives(MODEL, own, 1000.0, 2.0, 100.0)
    sums = [(float(one.bytes), one.count) for one in found if one.name == "attention.reduce"]
    assert sums == [(2 * 1000 * 5120, 20), (2 * 100 * 5120, 20)]
    ends = [one for one in found if one.name == "embedding.reduce"]
    assert [float(one.bytes) for one in ends] == [2 * 1000 * 5120]
    gathered = named(found)["ngrams.gather"]
    assert (gathered.op, float(gathered.bytes), gathered.count) == ("allgather", 2 * 1000 * 6144, 2)


def test_tables_are_looked_up_by_all_ranks_and_projected_by_each() -> None:
    found = named(layer_operators(MODEL, plan(tp=8.0, weights="fp8"), 10.0))
    look = found[LOOKUP]
    assert (look.m, float(look.n), look.count) == (10, 6144 / 8, 2)
    assert float(look.bytes) == 10 * 6144 / 8 * (33 / 32 + 2)
    assert (found["ngrams.project"].n, found["ngrams.project"].k) == (5 * 5120, 6144)
    # Four streams and their keys and a value are read, four are written.
    assert float(found["ngrams.add"].bytes) == 2 * 10 * 5120 * 13


def test_an_index_key_is_made_of_each_compressed_one() -> None:
    found = [one for one in layer_operators(MODEL, plan(), 64.0) if one.name == "index.key"]
    assert [(float(one.m), one.n, one.k, one.count) for one in found] == [
        (32, 128, 512, 3), (64, 128, 512, 1),
    ]  # fmt: skip
    sums = [one for one in layer_operators(MODEL, plan(), 64.0) if one.name == "compress.in"]
    assert [(one.n, one.count) for one in sums] == [(2 * 512, 3), (512, 1)]


def test_tables_lie_on_the_ranks_or_with_the_host() -> None:
    """510 GB of its files: 203 of tables, 307 of weights with drafts and images of some 9."""
    own = plan(tp=1.0, ep=1.0, weights="w4a8_mxfp4_mxfp8", narrowed="experts_below_fp8")
    whole = float(weight_bytes(MODEL, own))
    tables = table_bytes(MODEL, own.weights)
    assert tables == 33 / 32 * 256 * (384006168 + 384016682)
    assert row_bytes("bf16") == 2
    assert whole / 1e9 == pytest.approx(510 - 9, rel=0.02)
    hosted = float(weight_bytes(MODEL, replace(own, offload="ngrams")))
    assert whole - hosted == pytest.approx(tables)
    split = replace(own, tp=4.0)
    away = float(weight_bytes(MODEL, replace(split, offload="ngrams")))
    assert float(weight_bytes(MODEL, split)) - away == pytest.approx(tables / 4)


def test_rows_of_the_hosts_tables_come_over_its_link() -> None:
    own = plan(tp=1.0, weights="fp8")
    look = named(layer_operators(MODEL, own, 1e5))[LOOKUP]
    each, device = np.asarray(1e-6), CLUSTER.accelerator
    away = replace(own, offload="ngrams", host_link=50e9)
    assert float(as_run(each, look, away, device)) == pytest.approx(1e5 * 6144 * 33 / 32 / 50e9)
    assert float(as_run(each, look, plan(), device)) == pytest.approx(1e-6)


def test_long_prompts_cost_about_half_of_what_all_layers_would() -> None:
    own = replace(plan(tp=8.0), input_len=8192.0, output_len=8.0, batch=4.0)
    found = predict_inference(MODEL, CLUSTER, own, CALIBRATION)
    other = replace(MODEL, decoder_layers=0, decoder_choosers=0, candidates=0,
                    choosing_layers=38, reading_layers=34, sharing_layers=30)  # fmt: skip
    whole = predict_inference(other, CLUSTER, own, CALIBRATION)
    ratio = float(found.latencies.ttft / whole.latencies.ttft)
    assert 0.45 < ratio < 0.65
    steps = float(found.latencies.step / whole.latencies.step)
    assert 0.9 < steps < 1.15


NEXT = catalog.model("qwen3.8-flash-next")


def test_index_keys_that_are_means() -> None:
    """Four heads' queries and one key of 128, of which a mean of four tokens is kept; all ranks
    score alike, and attention sees 2,048 tokens."""
    found = named(layer_operators(NEXT, plan(tp=2.0), 10.0))
    assert [(found[f"index.{name}"].n, found[f"index.{name}"].k) for name in ("query", "key")] == [
        (512, 2560), (128, 2560),
    ]  # fmt: skip
    scores = named(decode_attention(NEXT, plan(tp=2.0), 2.0, 65536.0))["index.scores"]
    assert (float(scores.n), scores.count) == (65536 / 4, 12)
    assert float(scores.flop) == 2 * 2 * 4 * 128 * 65536 / 4
    each = 2 * 2 * 2 * 256
    assert float(cache_bytes(NEXT, plan(tp=1.0), 4096.0)) == 12 * 4096 * (each + 132 / 4)
    read = 12 * (65536 * 132 / 4 + 2048 * each)
    assert float(read_bytes(NEXT, plan(tp=1.0), 65536.0)) == read


def test_streams_that_are_summed_channel_by_channel() -> None:
    """Through 320 channels to a gate for each of four streams' 2,560; each block adds to all."""
    found = named(layer_operators(NEXT, plan(tp=2.0), 10.0))
    shape = {name: (one.n, one.k, one.count) for name, one in found.items()}
    assert shape["streams.project"] == (320 + 4, 4 * 2560, 96)
    assert shape["streams.gates"] == (4 * 2560, 320, 96)
    for name, passes in (("streams.mix", 13), ("streams.sum", 9)):
        assert float(found[name].bytes) == 2 * 10 * 2560 * passes


def test_a_table_in_16_bits_and_its_convolution() -> None:
    found = named(layer_operators(NEXT, plan(tp=2.0), 10.0))
    assert float(found[LOOKUP].bytes) == 10 * 2560 / 2 * (2 + 2)
    assert float(found["ngrams.conv"].bytes) == 10 * 2560 * 2 * 8
    assert float(found["ngrams.add"].bytes) == 10 * 2560 * 2 * (13 + 8)
    one = plan(tp=1.0)
    away = float(weight_bytes(NEXT, replace(one, offload="ngrams")))
    assert float(weight_bytes(NEXT, one)) - away == 2 * 160 * 320001536


def test_words_of_several_tokens_are_looked_up_projected_and_added_once() -> None:
    """LongCat-Flash-Lite: 12 rows of 256, a product to the width of 3072, a sum."""
    lite = catalog.model("longcat-flash-lite")
    found = named(layer_operators(lite, plan(tp=2.0), 10.0))
    assert float(found[LOOKUP].bytes) == 10 * (12 * 256 / 2) * (2 + 2)
    assert (found["ngrams.project"].n, found["ngrams.project"].k) == (3072, 12 * 256)
    assert float(found["ngrams.add"].bytes) == 10 * 3072 * 3 * 2
    assert found["ngrams.add"].count == 1
    one, two = (float(weight_bytes(lite, plan(tp=tp))) for tp in (1.0, 2.0))
    assert one == pytest.approx(2.0 * lite.parameters, rel=1e-3)
    assert one - two > lite.ngram_parameters
