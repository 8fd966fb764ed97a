"""Training of gated delta rules: counts by hand, the prompt's work, and what grows with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.memory.parameters import layer_parameters
from predictor.models import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.work.communication import step_collectives
from predictor.work.primitives import Operator
from predictor.work.serving import prefill_attention
from predictor.work.training import step_operators
from tests.predictor.work.served import of_step

NEXT = catalog.model("qwen3-next-80b-a3b")
DENSE = catalog.model("qwen3.5-27b")
SMALL = Model(
    name="small", layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn_hidden=512,
    vocab=1000, output_gate=True, delta_layers=3, delta_key_heads=2, delta_value_heads=4,
    delta_key_dim=32, delta_value_dim=64,
)  # fmt: skip


def plan(**fields: Any) -> TrainingPlan:
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 1.0, "global_batch": 8.0}
    return TrainingPlan(**{**given, "seq_len": 2048.0, **fields})


def rule(found: dict[str, Operator], phase: str) -> float:
    """FLOPs of the rule itself, per delta layer."""
    apart = ("delta.in", "delta.out", "delta.steps")
    return sum(
        float(one.flop)
        for one in found.values()
        if one.name.startswith("delta.") and one.phase == phase and one.op == "gemm"
        if not one.name.startswith(apart)
    )


def test_products_of_a_small_model_are_those_counted_by_hand() -> None:
    """4 heads with keys of 32 and values of 64, 2048 tokens in 32 chunks of 64."""
    found = of_step(SMALL, plan())
    c, k, v = 64, 32, 64
    once = c * c * k + c * c * c + c * k * c + c * v * c + 4 * (c * v * k)
    once += c * c * k - c * v * k + c * v * c  # three products with states; scores; within
    assert rule(found, "forward") == pytest.approx(2 * 32 * 4 * once)
    repeated = c * k * c + c * v * c + 2 * c * v * k + c * c * k  # W, U, W S, K^T V', Q K^T
    assert rule(found, "backward") == pytest.approx(2 * 32 * 4 * (2 * once + repeated))
    # queries, keys and values 2 x 64 + 256, and a gate of 256, from 256
    assert float(found["delta.in"].flop) == 2 * 2048 * (2 * 64 + 2 * 256) * 256
    assert float(found["delta.in"].count) == pytest.approx(0.75)
    assert float(found["attention.qkv"].count) == pytest.approx(0.25)


def test_its_forward_pass_is_that_of_a_prompt() -> None:
    served = ServingPlan(batch=1.0, input_len=2048.0, output_len=1.0, tp=1.0)
    prompt = {one.name: one for one in prefill_attention(NEXT, served, 1.0, 2048.0)}
    trained = of_step(NEXT, plan())
    for name, one in prompt.items():
        same = trained[name]
        assert float(same.flop) == pytest.approx(float(one.flop)), name
        assert float(NEXT.layers * same.count) == pytest.approx(float(one.count)), name


def test_the_rule_grows_with_the_tokens_and_attention_with_their_square() -> None:
    short, long = of_step(NEXT, plan(seq_len=4096.0)), of_step(NEXT, plan(seq_len=16384.0))
    for phase in ("forward", "backward"):
        assert rule(long, phase) == pytest.approx(4 * rule(short, phase))
    assert float(long["attention"].flop) == pytest.approx(16 * float(short["attention"].flop))


def test_what_is_kept_grows_with_tokens_and_is_split_over_heads() -> None:
    def kept(**fields: Any) -> float:
        found = step_operators(NEXT, plan(**fields))
        rule = ("delta.conv", "delta.unit", "delta.pass", "delta.gate", "delta.out")
        return sum(float(one.saved) for one in found if one.name in rule)

    one = kept()
    # before the convolution 8192; keys and queries 4096; values, solutions (32 x 64); the rule's
    # output and its gate, and what the last projection reads: 4096 each; 2 bytes
    assert one == 2048 * 2 * (8192 + 4096 + 4096 + 2048 + 3 * 4096)
    assert kept(seq_len=8192.0) == pytest.approx(4 * one)
    assert kept(tp=2.0) == pytest.approx(one / 2)


def test_a_gate_of_attentions_output_is_projected_kept_and_learned() -> None:
    plain, gated = (of_step(one, plan()) for one in (replace(SMALL, output_gate=False), SMALL))
    wide = 4 * 64
    more = float(gated["attention.qkv"].flop) - float(plain["attention.qkv"].flop)
    assert more == 2 * 2048 * 256 * wide
    assert "attention.gate" not in plain
    assert float(gated["attention.gate"].saved) == 2 * 2048 * wide
    assert float(gated["attention.out"].saved) == 2 * 2048 * wide
    assert float(plain["attention.out"].saved) == 0.0
    assert gated["attention.gate.bwd"].phase == "backward"


@pytest.mark.parametrize("model", [NEXT, DENSE])
def test_ranks_hold_all_parameters_once(model: Model) -> None:
    """Those of all layers but the routed experts, norms of queries and keys aside."""
    routed = model.moe_layers * model.num_experts * model.expert_matrix
    every = model.matrix_parameters() - routed
    held = float(np.asarray(layer_parameters(model, 1.0))) * model.layers
    assert held == pytest.approx(every, rel=1e-3)


def test_its_products_are_tensor_parallel() -> None:
    made = plan(tp=2.0)
    counts = [
        float(np.asarray(one.count))
        for one in step_collectives(NEXT, made)
        if one.group == "tp" and "delta" in one.name
    ]
    assert counts
    assert max(counts) == pytest.approx(0.75)


def test_gates_of_few_channels_keep_their_channels() -> None:
    """2,048 tokens of 16 channels in two bytes for each second product, whole on every rank."""
    model = replace(SMALL, delta_gate_rank=16)
    for tp in (1.0, 2.0):
        listed = step_operators(model, plan(tp=tp))
        kept = {o.name: float(o.saved) for o in listed if o.phase == "forward"}
        assert kept["delta.decay_up"] == kept["delta.gate_up"] == 2.0 * 2048.0 * 16.0
