"""Further kernels of lists by hand: adapters of requests, weights widened in memory, conversions,
inputs of layers, states, and blocks of two kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.models import Model
from predictor.plans import FROZEN_BYTES
from predictor.precision import WEIGHT_BYTES
from predictor.work import mamba, serving
from predictor.work.communication import step_collectives
from predictor.work.primitives import Collective, Operator, gemm
from predictor.work.serving import layer_operators, prefill_attention
from predictor.work.training import step_operators, training_list
from tests.predictor.work.counts import (
    CHANNELS,
    DENSE,
    FFN,
    GROUPS,
    HEADS,
    HYBRID,
    KV,
    MIXED,
    OWN,
    PLAIN,
    STATES,
    WIDE,
    D,
    H,
    served,
    trained,
)

TP = 2.0


def test_what_an_operator_leaves_open() -> None:
    one = Operator(name="x", op="gemm", variant="fwd", phase="forward", module="layer",
                   dtype="bf16", m=2.0, n=3.0)  # fmt: skip
    for name in ("flop", "bytes", "saved", "idle", "windowed", "joined"):
        assert getattr(one, name) == 0.0, name
    for name in ("k", "batch", "count", "sharing", "kernels"):
        assert getattr(one, name) == 1.0, name
    assert not one.core
    product = gemm(name="x", layout="fwd", phase="forward", module="layer", dtype="bf16",
                   m=2.0, n=3.0, k=5.0)  # fmt: skip
    assert (product.flop, product.bytes) == (2 * 2 * 3 * 5, 2 * (2 * 5 + 5 * 3 + 2 * 3))
    for name in ("batch", "count", "kernels"):
        assert getattr(product, name) == 1.0, name
    assert (product.saved, product.joined, product.core) == (0.0, 0.0, False)
    call = Collective("x", "allreduce", "forward", "layer", "tp", 8.0)
    assert (call.count, call.calls, call.copies, call.least, call.behind) == (1, 1, 1, 0, "")
    assert math.isnan(float(call.reach))
    assert math.isnan(float(call.turn))


@pytest.mark.parametrize(("model", "ahead", "back"), [(DENSE, 3, 5), (PLAIN, 2, 3)])
def test_activations_move_each_operand_once_and_what_goes_with_them(
    model: Model, ahead: int, back: int
) -> None:
    """Of 16 bits: gate and value read and one written, backward three read and two written; without
    a gate one less each, and a gradient less. One byte and four beside of each of 7 x 10."""
    at = training_list(model, trained())
    at.activation("act", 10.0, 7.0, (1.0, 4.0))
    found = {one.name: float(one.bytes) for one in at.operators}
    assert found == {"act": 70 * (2 * ahead + 1), "act.bwd": 70 * (2 * back + 4)}
    assert float(at.operators[0].saved) == 70 * 2 * (ahead - 1)


@pytest.mark.parametrize("adapters", [0.0, 1.0, 4.0])
def test_adapters_of_requests(adapters: float) -> None:
    """A narrow matrix of rank 16 and a wide one, of each adapter that ten rows ask for."""
    plan = served(tp=TP, adapters=adapters, adapter_rank=16.0)
    found = {one.name: one for one in layer_operators(DENSE, plan, 10.0)}
    product = found["mlp.down"]
    if not adapters:
        own = found.get("mlp.down.lora")
        assert own is None or float(np.max(own.count)) == 0.0
        return
    own = found["mlp.down.lora"]
    width = FFN / TP + H
    hit = adapters * (1 - (1 - 1 / adapters) ** 10)
    assert float(own.flop) == pytest.approx(2 * 10 * 16 * width)
    moved = 2 * width * (hit * 16 + 10) + 2 * 2 * 10 * 16
    assert float(own.bytes) == pytest.approx(moved)
    assert (float(own.count), float(own.kernels)) == (float(product.count), 2.0)


def test_batches_of_plans_with_and_without_adapters() -> None:
    plan = served(tp=TP, adapters=np.array([0.0, 2.0]), adapter_rank=16.0)
    own = {one.name: one for one in layer_operators(DENSE, plan, 10.0)}["mlp.down.lora"]
    for value in (own.flop, own.bytes, own.count):
        assert np.asarray(value).tolist()[0] == 0.0
        assert np.asarray(value).tolist()[1] > 0.0


def test_an_adapter_lies_on_the_accelerators_of_its_layers() -> None:
    """Of five layers on two stages the fuller one has three."""
    qkv, out = (HEADS + 2 * KV) * D / TP + H, HEADS * D / TP + H
    widths = qkv + out + (2 * FFN / TP + H) + (FFN / TP + H)
    for pp, layers in ((1.0, 5), (2.0, 3)):
        plan = served(tp=TP, pp=pp, adapters=1.0, adapter_rank=16.0)
        found = float(serving.adapter_bytes(DENSE, replace(plan, adapters=0.0)))
        assert found == pytest.approx(2 * 16 * widths * layers)


@pytest.mark.parametrize(("rows", "many"), [(64.0, 0.0), (65.0, 1.0)])
def test_narrow_weights_are_widened_in_memory_for_many_rows(rows: float, many: float) -> None:
    """ggml: few rows by a kernel of its own; for more than 64 the matrix is written in 16 bits and
    multiplied; inputs come from 32 bits and outcomes go back to them."""
    plan = served(tp=TP, weights="q4_k", fusion="converted")
    found = {one.name: one for one in layer_operators(DENSE, plan, rows)}
    narrow, widen, wide = (found[f"mlp.up{part}"] for part in ("", ".widen", ".wide"))
    assert [float(np.max(one.count)) for one in (narrow, widen, wide)] == [
        5 * (1 - many), 5 * many, 5 * many
    ]  # fmt: skip
    columns = 2 * FFN / TP
    assert float(widen.bytes) == pytest.approx((WEIGHT_BYTES["q4_k"] + 2) * columns * H)
    assert wide.dtype in ("bf16", "fp16", "fp16_acc")
    assert narrow.dtype == "q4_k"
    for name, matrices, depth, own in (
        ("mlp.up", 2, H, columns), ("mlp.down", 1, FFN / TP, H),
        ("attention.qkv", 3, H, (HEADS + 2 * KV) * D / TP),
    ):  # fmt: skip
        convert = found[f"{name}.convert"]
        assert float(convert.bytes) == pytest.approx(6 * rows * (matrices * depth + own))
        assert float(np.max(convert.count)) == 5 * many
    joined = {one.name for one in layer_operators(DENSE, served(tp=TP, weights="q4_k"), rows)}
    assert not {"mlp.up.widen", "mlp.up.convert"} & joined
    plain = served(tp=TP, fusion="converted")
    assert "mlp.up.widen" not in {one.name for one in layer_operators(DENSE, plain, rows)}


@pytest.mark.parametrize(("rows", "many"), [(65.0, 0.0), (128.0, 0.0), (129.0, 1.0)])
def test_integers_are_multiplied_without_a_copy_of_the_weights(rows: float, many: float) -> None:
    """ggml's mul_mat_q: tiles of 128 rows with the weights as they are, more as quickly as 16-bit
    products; nothing is widened or converted in memory but around weights in 16 bits."""
    plan = served(tp=TP, weights="q4_k", fusion="integers")
    found = {one.name: one for one in layer_operators(DENSE, plan, rows)}
    assert not {"mlp.up.widen", "mlp.up.convert", "attention.qkv.convert"} & set(found)
    counts = [float(np.max(found[name].count)) for name in ("mlp.up", "mlp.up.wide")]
    assert counts == [5 * (1 - many), 5 * many]
    wide = {o.name for o in layer_operators(DENSE, served(tp=TP, fusion="integers"), rows)}
    assert "mlp.up.convert" in wide


@pytest.mark.parametrize(("kv", "variant"), [("bf16", "flash"), ("fp8", "kv8")])
def test_prompts_behind_a_narrow_cache_have_their_own_kernel(kv: str, variant: str) -> None:
    (one,) = prefill_attention(DENSE, served(tp=TP, kv=kv), 2.0, 100.0)
    assert one.variant == variant
    trained_ = {o.name: o for o in step_operators(DENSE, trained())}
    assert trained_["attention"].variant == "flash"


INPUTS = replace(DENSE, layer_inputs=24)


def test_inputs_of_layers_in_training() -> None:
    """Each gates its 24 channels by the residual stream and projects them back; all of them come
    from the embedding at once."""
    found = {one.name: one for one in step_operators(INPUTS, trained())}
    for name, n, k, saved in (
        ("input.gate", 24, H, 2 * OWN * H), ("input.project", H, 24, 2 * OWN * 24),
        ("inputs.project", 5 * 24, H, 2 * OWN * H),
    ):  # fmt: skip
        one = found[name]
        assert (float(one.m), float(one.n), float(one.k)) == (OWN, n, k), name
        assert float(one.saved) == saved, name
    assert float(found["inputs.add"].bytes) == 3 * 2 * OWN * 5 * 24
    assert float(found["inputs.norm"].n) == 5 * 24


def test_states_of_state_spaces() -> None:
    """In 32 bits, or as narrow as all else; and three tokens of what a convolution sees, in 16."""
    own = 4 * CHANNELS / TP * WIDE * STATES
    seen = 2 * 3 * (CHANNELS / TP * WIDE + 2 * GROUPS / TP * STATES)
    assert float(mamba.state_bytes(HYBRID, TP, 2.0, 4.0)) == own + seen
    assert float(serving.state_bytes(HYBRID, served(tp=TP))) == 4 * (own + seen)
    narrow = served(tp=TP, states="half")
    assert float(serving.state_bytes(HYBRID, narrow)) == 4 * (own / 2 + seen)


def test_blocks_of_two_kinds_pass_on_what_each_has() -> None:
    """Two of six layers see all, four a window by half as many keys: each exchanges its own."""
    model = replace(DENSE, layers=6, sliding_window=128, sliding_pattern="2 local : 1 global",
                    window_kv_heads=2)  # fmt: skip
    plan = trained(cp=2.0)
    found = [one for one in step_collectives(model, plan) if one.name == "attention.exchange"]
    told = sorted((float(np.max(one.bytes)), float(np.max(one.count))) for one in found)
    token = 2 * 3 * 1280 / 2 * 2 * D / TP
    expected = [(2 * token, 4 / 6), (4 * token, 2 / 6)]
    assert np.array(told).ravel().tolist() == pytest.approx(np.ravel(expected).tolist())


def test_layers_that_run_again_in_part_gather_in_part() -> None:
    plan = trained(recompute="full", recompute_share=0.25)
    found = {one.name: one for one in step_collectives(DENSE, plan)}
    for name in ("attention.qkv.gather", "mlp.down.scatter"):
        assert float(np.max(found[name].count)) == 1.0
        assert float(np.max(found[f"{name}.again"].count)) == 0.25
    whole = trained(recompute="full", recompute_share=0.25, sequence_parallel=0.0)
    found = {one.name: one for one in step_collectives(DENSE, whole)}
    assert float(np.max(found["mlp.down.reduce.again"].count)) == 0.25


def test_alone_with_the_experts_nothing_is_handled() -> None:
    plan = trained(tp=1.0, ep=1.0, sequence_parallel=0.0, dispatch="once",
                   dispatch_processors=20.0)  # fmt: skip
    for one in step_collectives(MIXED, plan):
        assert float(np.max(one.least)) == 0.0, one.name


def test_frozen_weights_have_their_bits() -> None:
    """Four bits of NF4 and a scale of 8 bits for 64 of them (QLoRA: Dettmers et al. 2023, section
    3: 0.127 bits of constants a weight)."""
    assert FROZEN_BYTES["fp8"] == FROZEN_BYTES["int8"] == 1.0
    assert FROZEN_BYTES["nf4"] == pytest.approx((4 + 0.127) / 8, abs=5e-4)
    assert FROZEN_BYTES["as multiplied"] == 0.0


@pytest.mark.parametrize("window", [0, 256])
def test_fused_attention_in_training_by_hand(window: int) -> None:
    """Three sequences of 1,280 tokens by six heads of 48 that share two of keys: what is kept are
    queries, outcomes, keys and values in 16 bits, and for each row and head its sum in 32."""
    model = replace(DENSE, sliding_window=window)
    found = {one.name: one for one in step_operators(model, trained())}
    name = "attention.window" if window else "attention"
    one, back = found[name], found[f"{name}.bwd"]
    rows, keys, queries, groups = 3 * 1280, 1280, HEADS / TP, KV / TP
    seen = 640 if not window else 256 * (1 - 128 / 1280)
    flop = 2 * 3 * queries * 1280 * 2 * D * seen
    moved = 3 * 2 * D * 2 * (1280 * queries + keys * groups)
    kept = rows * (2 * 2 * D * (queries + groups) + 4 * queries)
    assert [float(np.max(v)) for v in (one.flop, one.bytes, one.saved)] == pytest.approx(
        [flop, moved, kept]
    )
    assert [float(np.max(v)) for v in (back.flop, back.bytes, back.saved)] == pytest.approx(
        [2.5 * flop, 2 * moved, 0.0]
    )
    for each in (one, back):
        shape = (float(each.m), float(each.n), float(each.k), float(each.batch))
        assert shape == (1280, window or 1280, D, 3 * queries)
        assert float(np.max(each.sharing)) == queries / groups
        assert float(np.max(each.idle)) == pytest.approx(1280 / (window or 1280) - 1)
        assert float(np.max(each.windowed)) == float(window > 0)
        assert each.core
