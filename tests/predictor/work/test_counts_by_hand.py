"""Attention, rotary encoding and caches against counts from their definition; traffic floors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.serving.passes import prefill_cores
from predictor.work.primitives import Operator
from predictor.work.serving import (
    decode_attention,
    end_operators,
    kv_token_bytes,
    layer_operators,
    prefill_attention,
)
from predictor.work.training import step_operators

CLUSTER = catalog.system("DGX-H100")


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 2.0, "input_len": 1024.0, "output_len": 128.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def trained(**fields: object) -> TrainingPlan:
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 2.0, "global_batch": 2.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def pairs(query: int, past: int, window: float = np.inf) -> float:
    """Keys that queries see, summed over the queries, each of which sees half of itself: the
    diagonal of the score matrix is halved, as in s^2 / 2."""
    return sum(min(past + i + 0.5, window) for i in range(query))


def sizes(name: str) -> tuple[int, int, int, int, int]:
    """Layers, query heads, key heads, sizes of a query and of a value head: as published."""
    return {
        "gpt3-175b": (96, 96, 96, 128, 128),
        "llama3-70b": (80, 64, 8, 128, 128),
        "llama3-8b": (32, 32, 8, 128, 128),
        "gemma2-9b": (42, 16, 8, 256, 256),
        "falcon-40b": (60, 128, 8, 64, 64),
        "deepseek-v3": (61, 128, 128, 192, 128),
    }[name]


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "gemma2-9b", "falcon-40b"])
@pytest.mark.parametrize(("query", "past"), [(1024, 0), (256, 1000), (2048, 6144)])
@pytest.mark.parametrize("tp", [1, 4])
def test_attention_over_prompts(name: str, query: int, past: int, tp: int) -> None:
    """Scores and context: 2 d FLOP each for every pair of query and key that it sees, of every
    head. Queries and outcome, keys and values cross memory once, in 16 bits."""
    _, heads, kv_heads, d, _ = sizes(name)
    model = replace(catalog.model(name), sliding_window=0)
    sequences = 3
    core = prefill_attention(model, plan(tp=float(tp)), 3.0, float(query), float(past))[0]
    assert float(core.flop) == pytest.approx(
        sequences * heads / tp * pairs(query, past) * 2 * (d + d)
    )
    asked, there = query * heads / tp, (past + query) * kv_heads / tp
    assert float(core.bytes) == pytest.approx(sequences * 2 * 2 * d * (asked + there))
    shape = (float(core.m), float(core.n), float(core.k), float(core.batch))
    assert shape == (query, query + past, d, sequences * heads / tp)
    assert core.count == sizes(name)[0]


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "falcon-40b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 4])
def test_attention_in_training(name: str, tp: int) -> None:
    """As over prompts; backward five products instead of two (Dao 2023, section 3.1), and what
    crosses memory twice: once to be read, once its gradient."""
    _, heads, kv_heads, d_qk, d_v = sizes(name)
    made = trained(tp=float(tp), seq_len=2048.0)
    found = {o.name: o for o in step_operators(catalog.model(name), made)}
    flop = 2 * heads / tp * pairs(2048, 0) * 2 * (d_qk + d_v)
    moved = 2 * 2 * 2048 * (d_qk + d_v) * (heads + kv_heads) / tp
    assert float(found["attention"].flop) == pytest.approx(flop)
    assert float(found["attention.bwd"].flop) == pytest.approx(2.5 * flop)
    assert float(found["attention"].bytes) == pytest.approx(moved)
    assert float(found["attention.bwd"].bytes) == pytest.approx(2 * moved)
    assert float(found["attention"].k) == (d_qk + d_v) / 2


def test_a_cut_sequence_is_attended_to_once_by_all_ranks_together(llama: Model) -> None:
    whole, cut = (
        {o.name: o for o in step_operators(llama, trained(cp=cp, seq_len=4096.0))}["attention"]
        for cp in (1.0, 4.0)
    )
    assert float(cut.flop) * 4 == pytest.approx(float(whole.flop))


@pytest.mark.parametrize(("query", "past"), [(1024, 0), (2048, 0), (100, 3000), (512, 8192)])
@pytest.mark.parametrize("window", [128, 1024])
def test_windows_are_counted_query_by_query(query: int, past: int, window: int) -> None:
    """Every key within reach of some query is read: a window's worth before the first, and their
    own. Continuous windows err by half a key at the edge."""
    _, heads, kv_heads, d, _ = sizes("llama3-8b")
    model = replace(catalog.model("llama3-8b"), sliding_window=window, sliding_pattern="")
    (core,) = prefill_attention(model, plan(), 2.0, float(query), float(past))
    assert core.name == "attention.window"
    assert float(core.flop) == pytest.approx(
        2 * heads * pairs(query, past, window) * 4 * d, rel=1e-3
    )
    reach = min(query + past, query + window)
    moved = 2 * 2 * 2 * d * (query * heads + reach * kv_heads)
    assert float(core.bytes) == pytest.approx(moved)


def test_cached_tokens_out_of_reach_of_a_window_cost_nothing() -> None:
    model = replace(catalog.model("llama3-8b"), sliding_window=1024, sliding_pattern="")
    near, far = (prefill_attention(model, plan(), 2.0, 512.0, past)[0] for past in (4e3, 64e3))
    for quantity in ("m", "n", "flop", "bytes", "idle"):
        assert float(getattr(near, quantity)) == float(getattr(far, quantity))


@pytest.mark.parametrize("past", [0, 4096])
def test_latents_are_expanded_for_all_tokens_that_are_there(past: int) -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 against the keys, 128 from them; keys and values of
    128 + 128 for each head from 512 latents, of cached tokens too."""
    layers, heads, _, d_qk, d_v = sizes("deepseek-v3")
    model = catalog.model("deepseek-v3")
    found = {o.name: o for o in prefill_attention(model, plan(), 2.0, 512.0, float(past))}
    core, up = found["attention"], found["attention.kv_up"]
    assert float(core.flop) == pytest.approx(2 * heads * pairs(512, past) * 2 * (d_qk + d_v))
    assert float(core.bytes) == pytest.approx(2 * 2 * heads * (d_qk + d_v) * (512 + 512 + past))
    assert float(up.flop) == 2 * 2 * (512 + past) * 512 * heads * (128 + 128)
    assert core.count == up.count == layers


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "gemma2-9b", "falcon-40b"])
@pytest.mark.parametrize(("kv", "width"), [("bf16", 2), ("fp8", 1)])
@pytest.mark.parametrize("drafted", [0, 3])
def test_attention_of_new_tokens(name: str, kv: str, width: int, drafted: int) -> None:
    """Every new token against every cached key; the cache is read once for all of them."""
    _, heads, kv_heads, d, _ = sizes(name)
    model = replace(catalog.model(name), sliding_window=0)
    own = plan(tp=4.0, kv=kv, drafted=float(drafted))
    core = decode_attention(model, own, 5.0, 700.0)[0]
    new = 1 + drafted
    assert float(core.flop) == 5 * new * heads / 4 * 700 * 4 * d
    cache = 5 * 700 * kv_heads / 4 * 2 * d * width
    assert float(core.bytes) == cache + 5 * new * heads / 4 * 2 * d * 2
    assert (core.m, core.k, core.batch) == (new * heads / kv_heads, d, 5 * kv_heads / 4)


def test_new_tokens_attend_to_latents() -> None:
    """All heads share one cached row of 512 + 64 per token; each multiplies 576 and 512 of it."""
    model = catalog.model("deepseek-v3")
    found = {o.name: o for o in decode_attention(model, plan(tp=8.0), 5.0, 700.0)}
    core = found["attention"]
    assert float(core.flop) == 5 * 16 * 700 * 2 * (576 + 512)
    assert float(core.bytes) == 5 * (700 * 576 * 2 + 2 * 2 * 16 * 576)
    # Queries of 128 to 512 latents, and 512 back to values of 128, for each of 16 heads.
    assert float(found["attention.absorb"].flop) == 2 * 5 * 16 * 128 * 512
    assert float(found["attention.expand"].flop) == 2 * 5 * 16 * 512 * 128


@pytest.mark.parametrize(
    ("name", "encoded", "written"),
    [
        ("llama3-70b", (64 + 8) * 128, 8 * 128),
        ("gemma2-9b", (16 + 8) * 256, 8 * 256),
        ("deepseek-v3", (128 + 1) * 64, 0),
        ("gpt3-175b", 0, 96 * 128),
    ],
)
def test_rotary_encoding_covers_queries_and_keys(name: str, encoded: int, written: int) -> None:
    """Only the part of latent heads that is encoded. While serving, values go to the cache on the
    way; where positions are learned, keys do too and nothing is encoded."""
    model = catalog.model(name)
    found = {o.name: o for o in step_operators(model, trained(seq_len=1024.0))}
    if encoded:
        assert float(found["attention.rope"].n) == encoded
        assert float(found["attention.rope"].bytes) == 2 * 1024 * encoded * (2 + 2)
    else:
        assert "attention.rope" not in found
    served = {o.name: o for o in layer_operators(model, plan(), 10.0)}["attention.rope"]
    both = encoded + written if encoded else 3 * written
    assert float(served.n) == both
    assert float(served.bytes) == 10 * both * (2 + 2)


@pytest.mark.parametrize(
    ("name", "tp", "kv", "expected"),
    [
        ("llama3-8b", 1, "bf16", 2 * 2 * 8 * 128),
        ("llama3-70b", 4, "bf16", 2 * 2 * 2 * 128),
        ("llama3-70b", 16, "bf16", 2 * 2 * 1 * 128),
        ("llama3-70b", 8, "fp8", 2 * 1 * 1 * 128),
        ("gpt3-175b", 8, "bf16", 2 * 2 * 12 * 128),
        ("deepseek-v3", 1, "bf16", 2 * (512 + 64)),
        ("deepseek-v3", 8, "fp8", 512 + 64),
    ],
)
def test_cache_of_a_token_in_a_layer(name: str, tp: int, kv: str, expected: int) -> None:
    """Keys and values of a rank's heads; latents and the encoded key, whole on every rank."""
    assert float(kv_token_bytes(catalog.model(name), plan(tp=float(tp), kv=kv))) == expected


def test_no_prompt_is_read_faster_than_its_arithmetic_takes_at_the_peak() -> None:
    """128k tokens of Llama-3-70B on one rank of eight."""
    layers, heads, _, d, _ = sizes("llama3-70b")
    length = 131072
    found = prefill_cores(
        catalog.model("llama3-70b"), CLUSTER, plan(tp=8.0), 1.0, float(length), 0.0,
        load("default"), sustained=True,
    )  # fmt: skip
    flop = layers * heads / 8 * length**2 / 2 * 4 * d
    assert float(found.terms["attention"]) > flop / CLUSTER.accelerator.peak["bf16"]


FLOORS = {"norm": 2, "embedding": 2, "elementwise": 2, "softmax": 2, "loss": 1}
"""Elements that a kernel reads or writes at least, per element of its rows and columns: what goes
in, and what comes out as large; of a loss, the logits."""

INPUTS = {
    **dict.fromkeys(("swiglu", "add", "dropout_add", "gated_norm", "gate"), 3),
    **dict.fromkeys(("permute", "bias_grad"), 1),
}
"""The same of kernels with two inputs (a gate beside a value, a branch beside the stream), and of
those that make less than they read, or read less than they make: copies of tokens, sums of rows."""


def floor(one: Operator) -> float:
    """Least traffic of an operator [bytes]: what it needs and what it makes, once."""
    size = {"fp32": 4.0, "bf16": 2.0}[one.dtype]
    if one.op == "gemm":
        return float(size * one.batch * (one.m * one.k + one.k * one.n + one.m * one.n))
    if one.op == "moe_gemm":
        return float(size * one.batch * (2 * one.m * one.k + 2 * one.n * one.k))
    if one.op.startswith("attention"):
        return float(size * one.batch * 2 * one.m * one.k)
    elements = INPUTS.get(one.variant, FLOORS[one.op])
    return float(elements * size * one.m * one.n)


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama3-70b", "gpt-oss-20b", "deepseek-v3", "nemotron-3-nano-30b-a3b"]
)
@pytest.mark.parametrize("fused", [True, False])
def test_nothing_moves_less_than_it_reads_and_writes(name: str, fused: bool) -> None:
    model = catalog.model(name)
    trains = trained(seq_len=4096.0, fused=fused, attention="flash" if fused else "unfused")
    own = plan(fusion="fused" if fused else "unfused")
    lists = [
        step_operators(model, trains),
        layer_operators(model, own, 512.0),
        end_operators(model, own, 512.0, 16.0),
        prefill_attention(model, own, 2.0, 512.0, 512.0),
    ]
    for listed in lists:
        for one in listed:
            assert float(one.bytes) >= floor(one) * (1 - 1e-12), one.name
