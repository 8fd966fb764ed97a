"""Published runs whose requests arrive at a rate."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calibration.serving import open_loops
from calibration.serving.timed import timed
from calibration.tables.requests import InferencePoint, inference_point
from predictor.catalog import load

CALIBRATION = load("default")
ROW = {
    "point_id": "x", "source": "s", "published": "2025-06", "accelerator": "H100-SXM5-80GB",
    "num_gpus": 1, "model": "llama3-8b", "tp": 1, "input_len": 512, "output_len": 64,
    "framework": "tensorrt-llm (triton backend)", "metric": "ttft_ms", "value": 30.0,
    "notes": "300 requests; means",
}  # fmt: skip


def point(rate: float | None, **changes: Any) -> InferencePoint:
    found = inference_point({**ROW, "request_rate": rate, **changes}, CALIBRATION.run)
    assert isinstance(found, InferencePoint)
    return found


def value(rate: float, metric: str) -> float:
    _, values, refused = open_loops.predicted([point(rate, metric=metric)], CALIBRATION)
    assert not refused
    return float(values[0])


def test_a_rate_is_read_with_the_number_of_requests() -> None:
    found = point(4.0)
    assert (found.kind, found.rate, found.requests) == ("open", 4.0, 300)
    assert found.metric == "ttft_s"
    assert found.request.plan.framework == "tensorrt-llm"
    assert point(math.inf).rate == math.inf
    assert point(None, concurrency=4).rate is None
    assert point(4.0, notes="").requests == 500


def test_engines_are_fitted_to_closed_loops_alone() -> None:
    found, refused = timed([point(4.0), point(None, concurrency=4)], CALIBRATION)
    assert [one.rate for one in found.points] == [None]
    assert not refused


def test_a_rate_that_is_kept_up_with_is_the_rate_of_answers() -> None:
    """Little: what comes, goes; 300 requests at 2/s take 150 s, and the last a second more."""
    assert value(2.0, "requests_per_s") == pytest.approx(2.0, rel=0.15)
    tokens = value(2.0, "output_tokens_per_s")
    assert tokens == pytest.approx(64 * value(2.0, "requests_per_s"), rel=1e-9)


def test_all_at_once_waits_longest_and_answers_fastest() -> None:
    rates = (2.0, 16.0, math.inf)
    waits = [value(rate, "ttft_ms") for rate in rates]
    answers = [value(rate, "requests_per_s") for rate in rates]
    assert waits == sorted(waits)
    assert answers == sorted(answers)
    # Half of all requests wait while the other half is served, and a little more.
    assert waits[-1] < 300 / answers[-1]


def test_total_tokens_are_those_of_prompts_and_answers() -> None:
    found = point(4.0, metric="total_tokens_per_s", value=576.0)
    assert (found.metric, found.value) == ("output_tokens_per_s", pytest.approx(64.0))
