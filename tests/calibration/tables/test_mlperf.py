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
        # 69 GB in 8 bits: more than half of 80 GiB, less than half of two of them or of 141.
        ("H100-SXM5-80GB", "llama2-70b", 8, "fp8", 2),
        ("H200-SXM-141GB", "llama2-70b", 8, "fp8", 1),
        # 39 GB in 4.5 bits: less than half of 180 GiB.
        ("B200-SXM-180GB", "llama2-70b", 8, "nvfp4", 1),
        # 406 GB: less than half of eight times 141 GiB, more than half of four.
        ("H200-SXM-141GB", "llama3.1-405b", 8, "fp8", 8),
        # There is no second one.
        ("H100-SXM5-80GB", "llama2-70b", 1, "fp8", 1),
        # No unit for 8 bits.
        ("A100-SXM4-80GB", "llama2-70b", 8, "bf16", 4),
    ],
)
def test_submissions_leave_half_of_the_memory_to_the_cache(accelerator, model, gpus, precision, tp):
    plan = point(accelerator=accelerator, model=model, num_gpus=gpus, notes="").request.plan
    assert (plan.weights, plan.tp, plan.gpus) == (precision, tp, gpus)


def test_what_a_row_states_counts_more():
    plan = point(weights_precision="bf16", tp=8, dp=1).request.plan
    assert (plan.weights, plan.tp, plan.dp) == ("bf16", 8, 1)


def test_answers_that_beams_search_for_are_refused():
    notes = "MLPerf Offline scenario, benchmark gptj-99, submitter A"
    found = inference_point({**ROW, "model": "gptj-6b", "notes": notes}, RunParameters())
    assert isinstance(found, Skipped)
    assert "beams" in found.reason
