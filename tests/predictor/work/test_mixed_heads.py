"""Layers that attend with heads of two shapes, borrow keys and values, or add an embedding of their
own (Gemma 4, MiMo-V2, Step 3.5): weights, caches and traffic counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory.serving import weight_bytes
from predictor.plans.serving import ServingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training
from predictor.training.prediction import predict
from predictor.work.serving import (
    cache_bytes,
    decode_attention,
    end_operators,
    layer_operators,
    prefill_attention,
)

KNOWN = load("default")
E2B = catalog.model("gemma-4-e2b")
GEMMA = catalog.model("gemma-4-31b")
MIMO = catalog.model("mimo-v2-flash")
STEP = catalog.model("step-3.5-flash")
FAMILIES = (E2B, catalog.model("gemma-4-e4b"), catalog.model("gemma-4-26b-a4b"), GEMMA, MIMO, STEP)

CONFIG = {
    "model_type": "step3p5", "num_hidden_layers": 6, "hidden_size": 64, "head_dim": 16,
    "num_attention_heads": 4, "num_attention_groups": 2, "intermediate_size": 128,
    "vocab_size": 96, "sliding_window": 8, "moe_num_experts": 8, "moe_top_k": 2,
    "moe_intermediate_size": 32, "share_expert_dim": 32,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 2,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
}  # fmt: skip


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 4.0, "input_len": 1024.0, "output_len": 128.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.name)
def test_a_token_multiplies_the_weights_it_touches(model: catalog.Model) -> None:
    operators = layer_operators(model, plan(), 1.0) + end_operators(model, plan(), 1.0, 0.0)
    flop = sum(o.flop * o.count for o in operators if o.op in ("gemm", "moe_gemm"))
    assert flop == pytest.approx(2.0 * model.matrix_parameters(active=True))


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.name)
def test_one_device_holds_all_parameters(model: catalog.Model) -> None:
    assert float(weight_bytes(model, plan())) / 2 == pytest.approx(model.parameters, rel=1e-3)


@pytest.mark.parametrize(("tokens", "seen"), [(300.0, 300.0), (4000.0, 512.0)])
def test_layers_that_borrow_keep_no_cache_but_read_it(tokens: float, seen: float) -> None:
    """Of 35 layers 15 keep keys and values, three of them whole ones of 2 x 512 a token; all read
    them: seven whole ones, 28 windows of 2 x 256."""
    kept = 2 * (3 * 1024 * tokens + 12 * 512 * seen)
    assert float(cache_bytes(E2B, plan(), tokens)) == kept
    operators = decode_attention(E2B, plan(), 1.0, tokens)
    queries = 2 * 2 * 8 * (7 * 512 + 28 * 256)  # read, and the outcome written
    read = sum(float(o.bytes * o.count) for o in operators if o.op == "attention_decode")
    assert read == pytest.approx(2 * (7 * 1024 * tokens + 28 * 512 * seen) + queries)


def test_windows_and_full_layers_have_heads_of_their_own() -> None:
    """MiMo-V2: nine full layers of 4 key heads, 39 windows of 8; keys of 192, values of 128."""
    tokens = 10_000.0
    per_head = 2 * (192 + 128)
    assert float(cache_bytes(MIMO, plan(), tokens)) == per_head * (9 * 4 * tokens + 39 * 8 * 128)
    heads = {o.name: float(o.batch) for o in decode_attention(MIMO, plan(tp=2.0), 1.0, tokens)}
    assert heads == {"attention": 2, "attention.window": 4}
    work = {o.name: o for o in prefill_attention(STEP, plan(), 1.0, tokens)}
    assert float(work["attention.window"].batch / work["attention"].batch) == 96 / 64
    assert float(work["attention"].flop) == 2 * 64 * 2 * 128 * tokens**2 / 2


def test_full_layers_of_gemma_project_no_values() -> None:
    full, windowed = (one for _, one in GEMMA.attention_kinds)
    assert full.attention_matrix == 5376 * (2 * 32 * 512 + 4 * 512)
    assert windowed.attention_matrix == 5376 * (2 * 32 * 256 + 2 * 16 * 256)


def test_windows_of_the_same_shape_are_as_if_unstated() -> None:
    plain = catalog.model("gemma3-27b")
    same = replace(plain, window_heads=32, window_kv_heads=16, window_head_dim=128)
    assert len(same.attention_kinds) == 2
    for count in ("parameters", "attention_matrices", "vector_parameters"):
        assert getattr(same, count) == getattr(plain, count)
    for tokens in (500.0, 5000.0):
        assert cache_bytes(same, plan(), tokens) == pytest.approx(
            cache_bytes(plain, plan(), tokens)
        )
        one, other = (
            sum(float(np.sum(o.flop * o.count)) for o in prefill_attention(m, plan(), 1.0, tokens))
            for m in (plain, same)
        )
        assert one == pytest.approx(other)


@pytest.mark.parametrize("layout", [{}, {"tp": 4}, {"cp": 2}])
def test_a_step_of_two_kinds_takes_what_one_kind_takes(layout: dict[str, int]) -> None:
    plain = catalog.model("gemma3-27b")
    same = replace(plain, window_heads=32, window_kv_heads=16, window_head_dim=128)
    own = {"system": "DGX-H100", "gpus": 64, "global_batch": 128, "seq_len": 8192, "pp": 4}
    spec = parse(TrainingPlanSpec, {**own, **layout}, "test")
    requests = [complete_training(spec, RunParameters(), model=model) for model in (plain, same)]
    one, other = (predict(r.model, r.cluster, r.plan, KNOWN) for r in requests)
    assert float(other.step_time) == pytest.approx(float(one.step_time), rel=1e-3)
    assert float(other.memory.peak) == pytest.approx(float(one.memory.peak), rel=1e-6)


def test_dimensions_of_step_are_read_in_either_spelling() -> None:
    old = catalog.model(CONFIG)
    newer = {key: value for key, value in CONFIG.items() if not key.startswith("attention_other")}
    newer |= {"num_sliding_attention_heads": 6, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 3}
    assert catalog.model(newer) == old
    assert (old.window_heads, old.heads, old.dense_layers, old.moe_layers) == (6, 4, 3, 3)
    assert old.head_gate
    assert old.windowed_share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layer_types": ["full_attention"]}, "must say the kind of each of 6 layers"),
        ({"layer_types": ["other"] * 6}, "must consist of sliding_attention and full_attention"),
        ({"mlp_layer_types": ["sparse", "dense"] * 3}, "dense layers behind mixtures"),
        ({"moe_layers_enum": "3,x"}, "must list numbers of layers"),
        ({"num_sliding_attention_heads": 5}, "does not divide its 5 heads"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_line(
    changes: dict[str, object], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        catalog.model({**CONFIG, **changes})


BARE = {
    "model_type": "gemma4_text", "num_hidden_layers": 8, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 96,
}  # fmt: skip


def test_layers_that_all_borrow_are_refused() -> None:
    own = {**BARE, "num_hidden_layers": 6, "num_kv_shared_layers": 6}
    with pytest.raises(InputError, match="leave none of the 6 layers"):
        catalog.model(own)


def test_what_a_file_of_gemma_4_leaves_out_is_as_its_class_has_it() -> None:
    """transformers' `Gemma4TextConfig` (2026-11): heads of 256, of full layers of 512, windows of
    512, an embedding of 256 in each layer, every sixth layer full and the last one."""
    found = catalog.model(BARE)
    assert (found.head_dim, found.window_head_dim, found.sliding_window) == (512, 256, 512)
    assert (found.layer_inputs, found.borrowing_layers, found.num_experts) == (256, 0, 0)
    listed = {**BARE, "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 2}
    for one in (found, catalog.model(listed)):  # the sixth and the eighth are full
        assert one.sliding_pattern == "3 local : 1 global"
