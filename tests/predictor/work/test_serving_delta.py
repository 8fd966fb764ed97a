"""Gated delta rules while serving: published sizes, states, scans, and what does not grow."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.memory.serving import serving_memory, weight_bytes
from predictor.serving.apart import transfer_time
from predictor.serving.completion import complete_serving
from predictor.serving.kernels import BLOCK_RATE
from predictor.serving.passes import decode_cores, prefill_cores
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.timing.calibration import RunParameters
from predictor.work.delta_rule import LINKS
from predictor.work.serving import (
    decode_attention,
    kv_token_bytes,
    layer_operators,
    pass_collectives,
    prefill_attention,
    state_bytes,
)
from tests.predictor.work.served import CALIBRATION, CLUSTER, named, plan

QWEN = catalog.model("qwen3.5-397b-a17b")
NEXT = catalog.model("qwen3-next-80b-a3b")


def predicted(**fields: object) -> InferencePrediction:
    return predict_inference(QWEN, CLUSTER, plan(**fields), CALIBRATION)


def test_parameters_are_those_that_are_published() -> None:
    """397B with 17B active; Qwen3-Next: 79B without the embedding and the output projection."""
    assert QWEN.parameters / 1e9 == pytest.approx(397, rel=0.01)
    assert QWEN.active_parameters / 1e9 == pytest.approx(17, rel=0.025)
    tables = NEXT.embedding_parameters + NEXT.head_parameters
    assert (NEXT.parameters - tables) / 1e9 == pytest.approx(79, rel=0.01)


def test_every_fourth_layer_has_attention() -> None:
    assert (QWEN.attention_blocks, QWEN.delta_layers, QWEN.moe_layers) == (15, 45, 60)
    # Queries twice as wide as heads x 256, two key heads, output.
    assert QWEN.attention_matrix == 4096 * (2 * 8192 + 2 * 512 + 8192)
    # Queries and keys of 16 heads, values and gates of 64, two numbers each; output; convolution.
    wide = 2 * 2048 + 2 * 8192 + 2 * 64
    assert QWEN.delta_matrix == 4096 * (wide + 8192) + 4 * (2 * 2048 + 8192)


def test_a_token_multiplies_the_weights_it_touches() -> None:
    operators = layer_operators(QWEN, plan(tp=1.0), 1.0)
    flop = sum(o.flop * o.count for o in operators if o.op in ("gemm", "moe_gemm"))
    convolution = 45 * QWEN.delta_conv * QWEN.delta_mixed_width
    assert flop == pytest.approx(2.0 * (QWEN.matrix_parameters(active=True) - convolution))


def test_the_rest_of_a_layer_is_reduced_as_after_attention() -> None:
    found = {one.name: one for one in pass_collectives(QWEN, plan(), 4.0, 4.0)}
    assert found["attention.reduce"].count == 60
    assert found["moe.reduce"].count == 60


def test_a_state_is_kept_in_place_of_a_cache() -> None:
    own = plan()
    rule, convolution = 4 * (64 / 8) * 128 * 128, 2 * 3 * (2 * 2048 + 8192) / 8
    assert state_bytes(QWEN, own) == 45 * (rule + convolution)
    assert kv_token_bytes(QWEN, own) == 2 * 1 * (256 + 256)  # one of two key heads, two copies

    def held(length: float) -> float:
        one = plan(input_len=length, output_len=10.0)
        return float(serving_memory(QWEN, CLUSTER, one, RunParameters()).per_sequence)

    assert held(2000.0) - held(1000.0) == pytest.approx(1000 * 15 * 1024)
    assert held(1000.0) == pytest.approx(1010 * 15 * 1024 + 45 * (rule + convolution))


def test_states_in_sixteen_bits_take_half_as_much_and_as_long_to_update() -> None:
    own, half = plan(), plan(states="half")
    rule, convolution = 4 * (64 / 8) * 128 * 128, 2 * 3 * (2 * 2048 + 8192) / 8
    assert state_bytes(QWEN, half) == 45 * (rule / 2 + convolution)
    moved = [
        next(o.bytes for o in decode_attention(QWEN, at, 7.0, 100.0) if o.name == "delta.update")
        for at in (own, half)
    ]
    assert moved[0] == 2 * 7 * rule
    assert moved[1] == moved[0] / 2


def test_states_travel_with_the_cache_of_a_prompt_read_apart() -> None:
    own = plan(serving=1.0, prefill_workers=1.0, prefill_tp=8.0, kv_rate=1e9)
    moved = 1024 * 15 * 1024 + float(state_bytes(QWEN, own))
    assert float(transfer_time(QWEN, own, CLUSTER, 0.0)) == pytest.approx(moved / 1e9)


def test_weights_are_split_over_ranks_but_key_heads_only_in_two() -> None:
    one, eight = (float(weight_bytes(QWEN, plan(tp=tp))) for tp in (1.0, 8.0))
    assert one == pytest.approx(2.0 * QWEN.parameters, rel=1e-3)
    whole = 15 * 2 * 4096 * 512 * (4 - 1) / 8 + 60 * QWEN.router_matrix * 7 / 8
    assert eight == pytest.approx(one / 8 + 2.0 * whole, rel=1e-3)


def test_a_new_token_reads_and_writes_each_state_once() -> None:
    update = named(decode_attention(QWEN, plan(tp=1.0), 4.0, 1000.0))["delta.update"]
    assert update.count == 45
    assert update.bytes == 2 * 4 * (4 * 64 * 128 * 128)
    guessed = decode_attention(QWEN, plan(tp=1.0, drafted=1.0), 4.0, 1000.0)
    assert named(guessed)["delta.update"].bytes == 2 * update.bytes


def test_only_attention_takes_longer_in_longer_contexts() -> None:
    def lines(context: float) -> dict[str, float]:
        found = decode_cores(
            QWEN, CLUSTER, plan(), 64.0, np.array([context]), np.ones(1), CALIBRATION
        )
        return {line.name: float(line.time) for line in found.lines}

    short, long = lines(1024.0), lines(65536.0)
    assert long["delta.update"] == short["delta.update"]
    assert long["attention"] > 16 * short["attention"]


def test_a_scan_is_linear_in_the_prompt() -> None:
    """Per chunk of 64 tokens and head: three squares of 64 x 64 (one of them the system itself),
    U and W, and the products with a state of 128 x 128."""
    one, two = (
        named(prefill_attention(QWEN, plan(tp=1.0), 1.0, length)) for length in (4096.0, 8192.0)
    )
    names = [name for name in one if name.startswith("delta.")]
    assert all(two[name].count == 45 for name in names)
    for name in names:
        if two[name].flop:
            assert two[name].flop == pytest.approx(2 * one[name].flop)
    small = 64 * 64 * (2 * 128 + 64) + 64 * 64 * (128 + 128 + 128)
    states = 3 * 64 * 128 * 128
    flop = sum(one[name].flop for name in names)
    assert flop == pytest.approx(2 * (4096 / 64) * 64 * (small + states))


def test_chunks_pass_the_state_on_one_after_the_other() -> None:
    """128 chunks, of each of which a thread block moves W and K (64 x 128), U and V' (64 x 32) and
    a slice of the state (128 x 32) in 16 bits; each takes a third longer, as it waits."""
    shares = {}
    for tp in (4.0, 8.0):
        found = prefill_cores(
            QWEN, CLUSTER, plan(tp=tp), 1.0, 8192.0, 0.0, CALIBRATION, sustained=True
        )
        shares[tp] = {line.name: float(line.time) for line in found.lines}["delta.pass"] / 45
    least = 128 * 2 * (2 * 64 * 128 + 2 * 64 * 32 + 128 * 32) / BLOCK_RATE
    assert shares[8.0] == pytest.approx(128 * LINKS["rule"])
    assert least < shares[8.0] < 1.4 * least
    # Heads run side by side: twice as many take as long, until the memory is busy.
    assert shares[8.0] <= shares[4.0] < 1.25 * shares[8.0]


def test_decoding_takes_no_less_than_the_weights_it_touches() -> None:
    found = predicted(batch=1.0)
    touched = 2.0 * (QWEN.active_parameters - QWEN.embedding_parameters) / 8
    floor = touched / CLUSTER.accelerator.bandwidth
    assert floor < float(found.latencies.step) < 12e-3


def test_a_batch_of_plans_is_the_plans_one_by_one() -> None:
    lengths = np.array([500.0, 9000.0])
    both = predicted(input_len=lengths, batch=np.array([1.0, 32.0])).latencies
    for i, (length, batch) in enumerate(zip(lengths, (1.0, 32.0), strict=True)):
        one = predicted(input_len=float(length), batch=batch).latencies
        assert float(both.ttft[i]) == pytest.approx(float(one.ttft))
        assert float(both.tpot[i]) == pytest.approx(float(one.tpot))


def test_a_user_gets_a_prediction() -> None:
    fields = {"model": "qwen3-next-80b-a3b", "system": "dgx-h100", "input_len": 1000}
    spec = parse(ServingPlanSpec, {**fields, "output_len": 100, "concurrency": 8}, "test")
    request = complete_serving(spec, CALIBRATION.run)
    found = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    assert float(found.memory.fits) == 1.0
    assert 0.0 < float(found.latencies.tpot) < 0.05


def test_ranks_share_out_whole_key_heads() -> None:
    fields = {"model": QWEN.name, "system": "DGX-H200", "tp": 32, "gpus": 32, "input_len": 10}
    spec = parse(ServingPlanSpec, {**fields, "output_len": 10}, "test")
    with pytest.raises(InputError, match="tp 32 does not divide the 16 key heads of the delta"):
        complete_serving(spec, CALIBRATION.run)


@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "kimi-k3"])
def test_decays_by_channel_go_through_few_channels(name: str) -> None:
    """Products of a token, by hand; every rank has the narrow side whole."""
    model = catalog.model(name)
    heads, rank = model.delta_value_heads, 128.0
    width = 128.0 * heads
    for tp in (1.0, 4.0):
        found = named(layer_operators(model, plan(tp=tp), 1.0))
        sides = 1 if model.delta_whole_gate else 2
        assert (found["delta.down"].n, found["delta.down"].k) == (sides * rank, model.hidden)
        assert (found["delta.decay_up"].n, found["delta.decay_up"].k) == (width / tp, rank)
        assert ("delta.gate_up" in found) == (sides == 2)
        wide = (3.0 + model.delta_whole_gate) * width
        assert found["delta.in"].n == wide / tp
        assert found["delta.decay"].m * found["delta.decay"].n == width / tp


def test_a_rule_that_decays_by_head_has_no_narrow_side() -> None:
    found = named(layer_operators(QWEN, plan(tp=1.0), 1.0))
    assert not {"delta.down", "delta.decay_up", "delta.gate_up", "delta.scale"} & set(found)


def test_each_block_of_k3_reads_the_sums_before_it() -> None:
    """Two blocks a layer. Layer l reads l // 12 sums, the embedding and its own, and writes one:
    on average (12 (0 + 1 + ... + 6) + 9 x 7) / 93 + 3 vectors of 7,168 elements in 16 bits."""
    model = catalog.model("kimi-k3")
    found = named(layer_operators(model, plan(tp=4.0), 1.0))["residual.choose"]
    assert found.count == 2 * 93
    assert found.bytes == pytest.approx(((12 * 21 + 9 * 7) / 93 + 3) * 7168 * 2)
