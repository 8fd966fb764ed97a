"""Norms of queries and keys, and of what blocks put out, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from predictor import catalog
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.work.serving import layer_operators
from tests.predictor.work.served import of_step
from tests.predictor.work.served import plan as served

Make = Callable[..., TrainingPlan]
QWEN = catalog.model("qwen3-8b")
GEMMA = catalog.model("gemma3-12b")
WHOLE = catalog.model("minimax-m2")


def without(model: Model) -> Model:
    return replace(model, family="llama")


@pytest.mark.parametrize("model", [QWEN, GEMMA, WHOLE], ids=lambda model: model.name)
@pytest.mark.parametrize("tp", [1.0, 4.0])
def test_queries_and_keys_are_read_and_written_once(model: Model, tp: float, plan: Make) -> None:
    """Four bytes an element forward, six backward (gradient and input in, gradient out), of a
    rank's own heads and all tokens."""
    made = plan(tp=tp)
    found = of_step(model, made)
    elements = float(made.tokens) * (model.heads + model.kv_heads) / tp * model.head_dim
    assert float(found["attention.qk_norm"].bytes) == pytest.approx(4.0 * elements)
    assert float(found["attention.qk_norm.bwd"].bytes) == pytest.approx(6.0 * elements)
    assert "attention.qk_norm" not in of_step(without(model), made)


def test_a_norm_of_heads_sees_one_head_and_a_norm_of_all_sees_all(plan: Make) -> None:
    assert float(of_step(QWEN, plan(tp=1.0))["attention.qk_norm"].n) == QWEN.head_dim
    wide = (WHOLE.heads + WHOLE.kv_heads) * WHOLE.head_dim
    assert float(of_step(WHOLE, plan(tp=1.0))["attention.qk_norm"].n) == wide


def test_blocks_of_gemma_end_with_a_norm(plan: Make) -> None:
    """As much as the norm that each begins with."""
    found = of_step(GEMMA, plan(tp=1.0))
    for block in ("attention", "mlp"):
        assert found[f"{block}.closing_norm"].bytes == found[f"{block}.norm"].bytes
    assert not [name for name in of_step(QWEN, plan(tp=1.0)) if "closing" in name]


@pytest.mark.parametrize("model", [QWEN, GEMMA], ids=lambda model: model.name)
def test_engines_have_these_norms_in_what_they_are_fitted_to(model: Model) -> None:
    names = [{o.name for o in layer_operators(m, served(), 8.0)} for m in (model, without(model))]
    assert names[0] == names[1]


def test_a_norm_keeps_its_input(plan: Make) -> None:
    made = plan(tp=1.0, recompute="none")
    elements = float(made.tokens) * (QWEN.heads + QWEN.kv_heads) * QWEN.head_dim
    assert float(of_step(QWEN, made)["attention.qk_norm"].saved) == pytest.approx(2.0 * elements)


def test_recomputation_that_stops_early_yields_what_a_closing_norm_reads(plan: Make) -> None:
    made = plan(tp=1.0, recompute="full", stops_early=True)
    assert "mlp.down.again" in of_step(GEMMA, made)
    assert "mlp.down.again" not in of_step(QWEN, made)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma3_text"])
def test_a_configuration_file_says_so_by_its_type(kind: str, plan: Make) -> None:
    model = catalog.model({
        "model_type": kind, "num_hidden_layers": 2, "hidden_size": 512, "vocab_size": 1000,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1024, "moe_intermediate_size": 256, "num_experts": 8,
        "num_experts_per_tok": 2,
    })  # fmt: skip
    assert "attention.qk_norm" in of_step(model, plan(tp=1.0))
