"""Latent attention, sliding windows and Ulysses, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.memory.parameters import mixer_parameters
from predictor.memory.training import memory
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.work.communication import step_collectives
from predictor.work.serving import cache_bytes, decode_attention, layer_operators
from tests.predictor.work.served import named, of_step
from tests.predictor.work.served import plan as served

Make = Callable[..., TrainingPlan]
DEEPSEEK = catalog.model("deepseek-v3")
GPT_OSS = catalog.model("gpt-oss-120b")


def test_latent_projections_are_deepseeks(plan: Make) -> None:
    """7168 -> 1536 -> 128 x 192 for queries, 7168 -> 512 + 64 -> 128 x 256 for keys and values."""
    found = of_step(DEEPSEEK, plan(tp=1.0))
    shapes = {
        name: (float(found[f"attention.{name}"].n), float(found[f"attention.{name}"].k))
        for name in ("q_down", "q_up", "kv_down", "kv_up", "out")
    }
    assert shapes == {
        "q_down": (1536, 7168),
        "q_up": (128 * 192, 1536),
        "kv_down": (576, 7168),
        "kv_up": (128 * 256, 512),
        "out": (7168, 128 * 128),
    }
    weights = sum(n * k for n, k in shapes.values())
    assert weights == DEEPSEEK.attention_matrix


def test_heads_of_two_sizes_have_exact_arithmetic(plan: Make) -> None:
    """Scores over 192 and context over 128, each 2 s^2 per head, causal halves."""
    attention = of_step(DEEPSEEK, plan(tp=1.0))["attention"]
    assert attention.k == 160
    assert attention.flop == 0.5 * 128 * 2 * 2048**2 * (192 + 128)


def test_ranks_project_down_their_own_tokens_and_gather_the_latents(plan: Make) -> None:
    made = plan(tp=8.0, sequence_parallel=1.0)
    found = of_step(DEEPSEEK, made)
    assert found["attention.q_down"].m == found["attention.kv_down"].m == 2048 / 8
    assert found["attention.q_up"].m == 2048
    gathered = {c.name: c.bytes for c in step_collectives(DEEPSEEK, made)}
    assert gathered["attention.kv_up.gather"] == 2.0 * 2048 * (1536 + 512 + 64)


def test_latent_weights_are_replicated_over_tensor_parallel_ranks() -> None:
    down = 7168 * (1536 + 512 + 64)
    one, eight = mixer_parameters(DEEPSEEK, 1.0), mixer_parameters(DEEPSEEK, 8.0)
    vectors = 7168 + 1536 + 512
    assert one == DEEPSEEK.attention_matrix + vectors
    assert eight == (DEEPSEEK.attention_matrix - down) / 8 + down + vectors


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("gpt-oss-120b", 0.5),
        ("gemma3-27b", 52 / 62),  # ten of 62 layers are global
        ("gemma2-9b", 0.5),
        ("mistral-7b", 1.0),
        ("llama4-scout-17b-16e", 0.75),
        ("llama3-8b", 0.0),
    ],
)
def test_windowed_layers_are_read_from_the_pattern(name: str, share: float) -> None:
    assert catalog.model(name).windowed_share == pytest.approx(share)


def test_a_window_bounds_the_keys_that_are_seen(plan: Make) -> None:
    """Counted one by one: query i of a causal sequence sees min(i + 1/2, w) keys."""
    s, w = 4096, 128
    seen = np.minimum(np.arange(s) + 0.5, w).sum()
    found = of_step(GPT_OSS, plan(tp=1.0, seq_len=float(s)))
    windowed, full = found["attention.window"], found["attention"]
    assert windowed.flop == pytest.approx(4 * 64 * 64 * seen, rel=1e-4)
    assert full.flop == 4 * 64 * 64 * s * s / 2
    assert (windowed.n, full.n) == (w, s)
    assert float(windowed.count) == float(full.count) == 0.5


def test_chunked_attention_sees_half_a_chunk(plan: Make) -> None:
    scout = catalog.model("llama4-scout-17b-16e")
    found = of_step(scout, plan(tp=1.0, seq_len=32768.0))
    assert found["attention.window"].flop == 4 * 40 * 128 * 32768 * 8192 / 2


def test_a_window_beyond_the_sequence_changes_nothing(plan: Make) -> None:
    mistral = catalog.model("mistral-7b")
    plain = replace(mistral, sliding_window=0)
    short = of_step(mistral, plan(tp=1.0, seq_len=2048.0))["attention.window"]
    assert short.flop == of_step(plain, plan(tp=1.0, seq_len=2048.0))["attention"].flop
    long = of_step(mistral, plan(tp=1.0, seq_len=32768.0))["attention.window"]
    whole = of_step(plain, plan(tp=1.0, seq_len=32768.0))["attention"]
    assert long.flop == pytest.approx(whole.flop * (1 - (1 - 4096 / 32768) ** 2))


def test_ulysses_exchanges_tokens_for_heads(llama: Model, plan: Make) -> None:
    """Jacobs et al. 2023: queries, keys, values and the outcome move once each way; the arithmetic
    stays, over whole sequences of a part of the heads."""
    ring, ulysses = (plan(tp=2.0, cp=4.0, cp_kind=kind) for kind in ("ring", "ulysses"))
    one, other = (of_step(llama, made)["attention"] for made in (ring, ulysses))
    assert other.flop == one.flop
    assert (one.m, other.m) == (512, 2048)
    assert (one.batch, other.batch) == (32, 8)
    moved = {c.phase: c for c in step_collectives(llama, ulysses) if c.group == "cp"}
    width = (2 * 32 + 2 * 4) * 128  # of q and the outcome, k and v on one tensor-parallel rank
    assert moved["forward"].op == "alltoall"
    assert moved["forward"].bytes == moved["backward"].bytes == 2.0 * 512 * width
    # Every rank meets each key once, not cp times as where the sequence stays split.
    assert other.bytes < one.bytes


def test_latents_and_windows_are_kept_for_the_backward_pass(plan: Make) -> None:
    """Per token of DeepSeek-V3: q, k of 192, v and the outcome of 128 for 128 heads, 4 bytes of
    softmax statistics each; and the latents before and after their norms."""
    found = of_step(DEEPSEEK, plan(tp=1.0))
    assert found["attention"].saved == 2048 * 128 * (2 * (2 * 192 + 2 * 128) + 4)
    assert found["attention.kv_norm"].saved == found["attention.kv_up"].saved == 2 * 2048 * 512
    deep = memory(GPT_OSS, plan(tp=1.0, pp=1.0), RunParameters()).classes["activations"][2]
    plain = replace(GPT_OSS, sliding_window=0)
    same = memory(plain, plan(tp=1.0, pp=1.0), RunParameters()).classes["activations"][2]
    assert deep == pytest.approx(same)


@pytest.mark.parametrize(("heads", "aligned"), [(64, True), (128, False), (96, True), (54, True)])
def test_heads_off_the_boundaries_of_matrix_units_leave_them(
    plan: Make, heads: int, aligned: bool
) -> None:
    """13824 columns are heads of 216, 108, 144 and 256: in kernels of their own, products of those
    that are no multiple of eight have the same arithmetic in another data type. Fused kernels pad
    heads on the chip."""
    each = 13824 // heads
    model = replace(catalog.model("bloom-176b"), heads=heads, kv_heads=heads, head_dim=each)
    apart = of_step(model, plan(tp=1.0, attention="unfused"))
    names = [f"attention.{name}" for name in ("scores", "context", "scores.dgrad", "context.wgrad")]
    for name in names:
        assert apart[name].dtype == ("bf16" if aligned else "fp32")
        assert apart[name].flop == heads * 2 * 2048**2 * 13824 / heads
    assert of_step(model, plan(tp=1.0))["attention"].dtype == "bf16"


@pytest.mark.parametrize("ranks", [12.0, 16.0])
def test_ranks_that_do_not_divide_the_heads_fill_them_up(ranks: float) -> None:
    """Forty heads on twelve ranks are four on each, as forty-eight would be; on sixteen three:
    products, cache, what reads it (transformers_neuronx/decoder.py @ 0623de2: `get_pad_size`)."""
    own = catalog.model("llama2-13b")
    each = np.ceil(own.heads / ranks)
    wide = replace(own, heads=int(each * ranks), kv_heads=int(each * ranks))
    plan = served(tp=ranks)
    found, full = (named(layer_operators(m, plan, 4.0)) for m in (own, wide))
    assert float(found["attention.qkv"].n) == float(full["attention.qkv"].n) == 3 * 128 * each
    assert float(found["attention.out"].k) == 128 * each
    reads = [decode_attention(m, plan, 4.0, np.array(1024.0)) for m in (own, wide)]
    assert [float(one.bytes) for one in reads[0]] == [float(one.bytes) for one in reads[1]]
    assert float(cache_bytes(own, plan, 1024.0)) == float(cache_bytes(wide, plan, 1024.0))
