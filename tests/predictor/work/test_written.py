"""Small kernels of a model's own code, and what autocast adds, by hand counts."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.plans import TrainingPlan
from predictor.records import replace
from predictor.work import step_operators
from predictor.work.communication import Held
from predictor.work.training import cast_operators, sum_operators

LOOP = TrainingPlan(
    tp=1.0, pp=1.0, dp=1.0, micro_batch=2.0, seq_len=1024.0, global_batch=8.0, sharding="none",
    framework="pytorch", fused=False, fused_norm=True, weight_bytes=2.0,
)  # fmt: skip
WIDE = replace(LOOP, weight_bytes=4.0)


def moved(model: str, plan: TrainingPlan) -> dict[str, float]:
    """Bytes per element of small kernels by name."""
    listed = step_operators(catalog.model(model), plan)
    return {o.name: float(o.bytes / (o.m * o.n)) for o in listed if o.op in ("norm", "elementwise")}


def test_gpt2s_gelu_is_eight_kernels_in_its_own_code() -> None:
    """16 bits: cube (4), factor (4), sum (6), factor (4), tanh (4), one more (4), half (4), product
    (6); one kernel reads and writes (4, and 6 back)."""
    for fused_norm, expected in ((True, (4.0, 6.0)), (False, (36.0, 56.0))):
        found = moved("gpt2-355m", replace(LOOP, fused_norm=fused_norm))
        assert (found["mlp.activation"], found["mlp.activation.bwd"]) == expected
    # Who wrote another GELU, or fuses, has one kernel.
    assert moved("gpt3-1.3b", replace(LOOP, fused_norm=False))["mlp.activation"] == 4.0
    assert moved("gpt2-355m", replace(LOOP, fused=True))["mlp.activation"] == 4.0


def test_autocast_is_a_plain_loop_with_whole_wide_weights_and_narrow_arithmetic() -> None:
    assert WIDE.autocast.all()
    for other in (
        LOOP, replace(WIDE, framework="megatron-lm"), replace(WIDE, sharding="fsdp"),
        replace(WIDE, precision="fp32"),
    ):  # fmt: skip
        assert not other.autocast.any()
    assert replace(LOOP, weight_bytes=np.array([2.0, 4.0])).autocast.tolist() == [False, True]


def test_autocast_widens_the_residual_stream_and_narrows_what_products_read() -> None:
    """A layer norm reads and writes 4 bytes and is narrowed (4 + 2); back the narrow gradient is
    widened (2 + 4) and three streams of 4 pass. What a block adds is 2 bytes to 4 of 4."""
    narrow, wide = moved("gpt2-355m", LOOP), moved("gpt2-355m", WIDE)
    assert (narrow["mlp.norm"], narrow["mlp.norm.bwd"]) == (4.0, 6.0)
    assert (wide["mlp.norm"], wide["mlp.norm.bwd"]) == (14.0, 18.0)
    assert (narrow["mlp.residual"], wide["mlp.residual"]) == (6.0, 10.0)
    assert (narrow["mlp.residual.bwd"], wide["mlp.residual.bwd"]) == (6.0, 18.0)
    assert wide["mlp.activation"] == narrow["mlp.activation"]


def test_a_batch_of_plans_has_what_each_has_alone() -> None:
    both = replace(LOOP, weight_bytes=np.array([2.0, 4.0]))
    model = catalog.model("llama3.2-1b")
    together = step_operators(model, both)
    for at, plan in enumerate((LOOP, WIDE)):
        for one, many in zip(step_operators(model, plan), together, strict=True):
            assert np.broadcast_to(many.bytes, (2,))[at] == one.bytes
            assert np.broadcast_to(many.saved, (2,))[at] == one.saved


def test_gradients_are_added_to_those_of_earlier_micro_batches_by_themselves() -> None:
    """Of four micro-batches three are: 2 bytes of what is new, 4 twice of what is there."""
    held = Held(weights=1000.0, trained=600.0)
    (added,) = sum_operators(replace(LOOP, sums_apart=True), held)
    assert (float(added.bytes), float(added.count)) == (6000.0, 3.0)
    assert sum_operators(LOOP, held) == []


def test_gradients_of_two_kinds_are_added_to_the_wide_ones() -> None:
    """2 bytes of what is new, 4 twice of what is there, whatever stands beside it."""
    made = replace(LOOP, sums_apart=True, gradient_bytes=6.0)
    (added,) = sum_operators(made, Held(weights=1000.0, trained=600.0))
    assert float(added.bytes) == 6000.0


def test_a_squared_relu_written_out_is_two_kernels_and_four() -> None:
    """ReLU and square read and write; back the copy and its factor do, and two products read
    twice: 8 and 20 bytes in 16 bits for 4 and 6. A gate apart is written between: 10 and 16."""
    for model, joined, apart in (
        ("nemotron-4-15b", (4.0, 6.0), (8.0, 20.0)), ("llama3-8b", (6.0, 10.0), (10.0, 16.0)),
        ("gpt3-1.3b", (4.0, 6.0), (4.0, 6.0)),
    ):  # fmt: skip
        for given, expected in ((False, joined), (True, apart)):
            found = moved(model, replace(LOOP, fused=True, activation_apart=given))
            assert (found["mlp.activation"], found["mlp.activation.bwd"]) == expected
    kernels = {
        o.name: o.kernels
        for o in step_operators(catalog.model("nemotron-4-15b"), replace(LOOP, fused=False))
    }
    assert (kernels["mlp.activation"], kernels["mlp.activation.bwd"]) == (2.0, 4.0)


@pytest.mark.parametrize(("model", "kind"), [("gpt3-1.3b", "layernorm"), ("llama3-8b", "rmsnorm")])
def test_persistent_layer_norms_have_gradients_at_their_own_rate(model: str, kind: str) -> None:
    """Of as many bytes as before; RMS norms are not theirs."""
    for given in (False, True):
        listed = step_operators(catalog.model(model), replace(LOOP, norms_persist=given))
        (back,) = (o for o in listed if o.name == "mlp.norm.bwd")
        persistent = given and kind == "layernorm"
        assert back.variant == (kind if persistent else f"{kind}_bwd")
        assert kind == "rmsnorm" or float(back.bytes / (back.m * back.n)) == 6.0


def test_weights_and_gradients_are_cast_once_a_micro_batch() -> None:
    """4 + 2 bytes a weight before it is multiplied, 2 + 4 a gradient."""
    held = Held(weights=1000.0, trained=600.0)
    weights, gradients = cast_operators(WIDE, held)
    assert (float(weights.bytes), float(gradients.bytes)) == (6000.0, 3600.0)
    assert weights.count == gradients.count == pytest.approx(4.0)
    assert cast_operators(LOOP, held) == []
