"""What an accelerator does in a second of serving, as predicted and at a measured rate."""

from __future__ import annotations

import numpy as np

from predictor.catalog import ServingPlanSpec, load, parse
from predictor.serving import complete_serving, predict_inference, serving_activity
from predictor.serving.prediction import InferencePrediction

CALIBRATION = load("default")


def served(model: str, precision: str, gpus: int) -> InferencePrediction:
    fields = {
        "model": model, "accelerator": "H100-SXM5-80GB", "gpus": gpus, "tp": gpus,
        "precision": precision, "concurrency": 32, "input_len": 200, "output_len": 400,
        "framework": "vllm",
    }  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, fields, "test"), CALIBRATION.run)
    return predict_inference(found.model, found.cluster, found.plan, CALIBRATION)


def padded(found: InferencePrediction, rate: float | None) -> float:
    share = serving_activity(found, rate).activity["decode"].padded
    return float(np.asarray(share).ravel()[0])


def test_shares_of_a_second_add_up_to_it() -> None:
    found = served("llama3-8b", "bf16", 1)
    for rate in (None, 0.5 * float(found.output_tokens_per_s)):
        shares = serving_activity(found, rate).share
        assert np.isclose(sum(float(one) for one in shares.values()), 1.0)


def test_only_experts_scaled_by_block_fill_time_that_nobody_foresaw_with_padding() -> None:
    mixture = served("qwen3-235b-a22b", "fp8_block", 8)
    rate = float(mixture.output_tokens_per_s)
    assert padded(mixture, None) == 0.0
    half, quarter = padded(mixture, 0.5 * rate), padded(mixture, 0.25 * rate)
    assert 0.3 < half < quarter < 1.0
    for other in (served("qwen3-235b-a22b", "bf16", 8), served("llama3-8b", "fp8_block", 1)):
        assert padded(other, 0.25 * float(other.output_tokens_per_s)) == 0.0
