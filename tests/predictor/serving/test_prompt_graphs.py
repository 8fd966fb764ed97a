"""Passes with prompts in captured pieces, and launches of those that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.plans import ServingPlan
from predictor.serving import predict_inference
from predictor.serving.events import serve
from predictor.serving.modules import launches
from predictor.serving.tables import pass_table
from predictor.serving.whole_passes import mixed_pass, prompt_pass
from predictor.timing import Calibration, EngineParameters, ServingParameters
from predictor.work import layer_operators, prefill_attention

LLAMA, DEEPSEEK = catalog.model("llama3-8b"), catalog.model("deepseek-v3")
MACHINE = catalog.system("dgx-h100")
PLAN = ServingPlan(
    batch=4.0, serving=1.0, input_len=400.0, output_len=100.0, library="vllm", graph_limit=512.0
)
SLOW = EngineParameters(launch=300e-6)
"""Launches that take longer than what they launch."""
CALIBRATION = Calibration("bare", serving=ServingParameters({"neutral": SLOW}))


def kernels(plan: ServingPlan, tokens: float) -> float:
    found, _ = prompt_pass(LLAMA, MACHINE, replace(plan, input_len=tokens), 1.0, CALIBRATION)
    return float(found.kernels)


def test_a_captured_pass_is_a_piece_for_each_layer_and_their_attention():
    captured = replace(PLAN, prompt_graphs=400.0)
    # The write of the cache and attention, a piece after each, one before them all.
    assert kernels(captured, 400.0) == LLAMA.layers * (2 + 1) + 1
    assert kernels(captured, 401.0) == kernels(PLAN, 401.0) > LLAMA.layers * 9
    eager = replace(captured, execution="eager")
    assert kernels(eager, 400.0) == kernels(PLAN, 400.0)
    assert captured.in_pieces(400.0) == 1.0
    assert captured.in_pieces(401.0) == PLAN.in_pieces(1.0) == 0.0


def test_what_decodes_beside_a_prompt_counts_as_well():
    captured = replace(PLAN, prompt_graphs=402.0)
    few, many = (
        float(mixed_pass(LLAMA, MACHINE, captured, 400.0, beside, CALIBRATION)[0].kernels)
        for beside in (2.0, 3.0)
    )
    assert few < many


def test_prompts_in_pieces_do_not_wait_for_launches():
    limits = np.array([0.0, 300.0, 512.0, 4096.0])
    batch = predict_inference(
        LLAMA, MACHINE, replace(PLAN, prompt_graphs=limits), CALIBRATION
    ).latencies
    ones = [
        float(
            predict_inference(
                LLAMA, MACHINE, replace(PLAN, prompt_graphs=one), CALIBRATION
            ).latencies.ttft
        )
        for one in limits
    ]
    assert batch.ttft == pytest.approx(ones)
    assert ones[0] == ones[1] > 2.0 * ones[2]
    assert ones[2] >= ones[3]
    # Where the device is what takes time nothing is gained.
    quick = Calibration("bare", serving=ServingParameters({"neutral": replace(SLOW, launch=1e-9)}))
    free = [
        float(
            predict_inference(
                LLAMA, MACHINE, replace(PLAN, prompt_graphs=one), quick
            ).latencies.ttft
        )
        for one in limits
    ]
    assert free == pytest.approx([free[0]] * len(free), rel=0.02)


@pytest.mark.parametrize("batching", ["mixed", "apart"])
@pytest.mark.parametrize("limit", [0.0, 4096.0])
def test_requests_one_by_one_agree(batching: str, limit: float):
    plan = replace(PLAN, prompt_graphs=limit, batching=batching, synchrony=0.0)
    closed = predict_inference(LLAMA, MACHINE, plan, CALIBRATION).latencies
    table = pass_table(LLAMA, MACHINE, plan, CALIBRATION)
    rng = np.random.default_rng(1)
    made = rng.integers(60, 141, 200).astype(float)
    served = serve(table, np.full(200, 400.0), made, clients=4).after(10, 4)
    host = float(SLOW.request)
    assert float(np.mean(served.ttft)) + host == pytest.approx(float(closed.ttft), rel=0.25)
    assert float(np.mean(served.tpot)) == pytest.approx(float(closed.tpot), rel=0.15)


def layer(plan: ServingPlan, eager: bool) -> dict[str, float]:
    listed = [
        *layer_operators(DEEPSEEK, plan, 512.0),
        *prefill_attention(DEEPSEEK, plan, 1.0, 512.0, 0.0),
    ]
    return {one.name: float(np.asarray(launches(one, plan, eager))) for one in listed}


def test_launches_of_a_layer_of_deepseek_by_hand():
    """srt/models/deepseek_v2.py, layers/moe/fused_moe_triton of SGLang 0.5.9: narrowed products are
    two, the norms of both latents, keys and values made, put together and copied, a cache that is
    written before attention, and experts one after the other in seven or as one operator."""
    plan = replace(PLAN, library="sglang", weights="fp8_block", kv="bf16", tp=8.0)
    own = layer(plan, True)
    assert own["attention.q_up"] == own["attention.out"] == own["shared.up"] == 2.0
    assert own["attention.latent_norm"] == own["attention"] == 2.0
    assert own["attention.kv_up"] == 5.0
    assert own["moe.experts"] == 7.0
    assert layer(replace(plan, narrow_experts="generated"), True)["moe.experts"] == 3.0
    wide = layer(replace(plan, weights="bf16"), True)
    assert (wide["attention.q_up"], wide["attention.kv_up"], wide["moe.experts"]) == (1.0, 4.0, 5.0)
    assert set(layer(plan, False).values()) == {1.0}
    assert set(layer(replace(plan, library="neutral"), True).values()) == {1.0}
    assert set(layer(replace(plan, execution="native"), True).values()) == {1.0}
