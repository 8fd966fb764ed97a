"""Rows of MLPerf Inference: what their benchmarks and the rules of submission say."""

from __future__ import annotations

import pytest

from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Skipped
from predictor.timing import RunParameters

ROW = {
    "point_id": "a", "source": "mlperf_inference_v5.1", "accelerator": "H100-SXM5-80GB",
    "num_gpus": 8, "model": "llama2-70b", "output_len": 291.0, "metric": "output_tokens_per_s",
    "framework": "TensorRT 10.2.0, CUDA 12.4", "value": 1000.0, "published": "2024-08",
    "notes": "MLPerf Offline scenario, benchmark llama2-70b-99.9, submitter A, system B",
}  # fmt: skip


def point(**more) -> InferencePoint:
    found = inference_point({**ROW, **more}, RunParameters())
    assert not isinstance(found, Skipped), found
    return found


def test_the_benchmark_names_the_prompts_and_the_row_the_answers():
    found = point()
    plan = found.request.plan
    assert (plan.input_len, plan.output_len, found.kind) == (221, 291, "saturated")
    assert plan.framework == "tensorrt-llm"
    assert found.tentative  # its layout is a rule's, not its own: it teaches engines little
    assert point(output_len=None).request.plan.output_len == 294


@pytest.mark.parametrize(
    ("accelerator", "model", "gpus", "precision", "tp"),
    [
        # 69 GB in 8 bits: more than six tenths of 80 GiB, less of two of them or of 141.
        ("H100-SXM5-80GB", "llama2-70b", 8, "fp8", 2),
        ("H200-SXM-141GB", "llama2-70b", 8, "fp8", 1),
        # 39 GB in 4.5 bits.
        ("B200-SXM-180GB", "llama2-70b", 8, "nvfp4", 1),
        # Long prompts: 406 GB in 8 bits on eight times 141 GiB, 228 in 4.5 on four times 180 or two
        # times 288.
        ("H200-SXM-141GB", "llama3.1-405b", 8, "fp8", 8),
        ("B200-SXM-180GB", "llama3.1-405b", 8, "nvfp4", 4),
        ("GB300-288GB", "llama3.1-405b", 72, "nvfp4", 2),
        # There is no second one.
        ("H100-SXM5-80GB", "llama2-70b", 1, "fp8", 1),
        # No unit for 8 bits.
        ("A100-SXM4-80GB", "llama2-70b", 8, "bf16", 4),
    ],
)
def test_submissions_leave_memory_to_the_cache(accelerator, model, gpus, precision, tp):
    plan = point(accelerator=accelerator, model=model, num_gpus=gpus, notes="").request.plan
    assert (plan.weights, plan.tp, plan.gpus) == (precision, tp, gpus)


def test_deepseek_runs_whole_attention_on_each_accelerator():
    plan = point(accelerator="B200-SXM-180GB", model="deepseek-r1", output_len=None).request.plan
    assert (plan.tp, plan.dp, plan.ep, plan.max_batch) == (1, 8, 8, 512)


def test_engines_of_a_mixture_stand_beside_each_other():
    """Nine of eight accelerators, or eight of one, none of which shares experts with others: one is
    predicted, of the rate that is its own. Replicas of a dense model are one plan."""
    rack = point(accelerator="GB200-186GB", model="deepseek-r1", num_gpus=72, output_len=None)
    assert (rack.request.plan.gpus, rack.value) == (8, pytest.approx(1000.0 / 9))
    node = point(model="mixtral-8x7b")
    assert (node.request.plan.gpus, node.value) == (1, pytest.approx(1000.0 / 8))
    assert node.request.plan.weights == "fp8"  # 47 GB of 80: less than six tenths
    dense = point()
    assert (dense.request.plan.gpus, dense.value) == (8, 1000.0)


def test_amd_generates_without_a_server_in_the_loop():
    """AMD's harness calls LLM.generate, with room for many sequences; the loop of vLLM 0.4's server
    would take two thirds of the time."""
    told = {"framework": "vLLM 0.4.3+rocm614, PyTorch 2.3.0, ROCm 6.1.2", "num_gpus": 1}
    own = {"accelerator": "MI300X-192GB", "source": "mlperf_inference_v4.1", **told}
    offline = point(**own, source_locator="closed/AMD/results/a/llama2-70b-99.9/Offline/run_1")
    plan = offline.request.plan
    assert (plan.weights, plan.kv, plan.front_end) == ("fp8", "fp8", "beside")
    assert (plan.max_batch, plan.chunk, plan.batching) == (2048, 65536, "apart")
    served = point(**own, source_locator="closed/AMD/results/a/llama2-70b-99.9/Server/run_1")
    assert served.request.plan.max_batch == 768


def test_what_a_row_states_counts_more():
    plan = point(weights_precision="bf16", tp=8, dp=1).request.plan
    assert (plan.weights, plan.tp, plan.dp) == ("bf16", 8, 1)


def test_answers_that_beams_search_for_are_refused():
    notes = "MLPerf Offline scenario, benchmark gptj-99, submitter A"
    found = inference_point({**ROW, "model": "gptj-6b", "notes": notes}, RunParameters())
    assert isinstance(found, Skipped)
    assert "beams" in found.reason
