"""What published rows state, of what is predicted for them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from calibration.serving.engines import parameters_of
from calibration.serving.open_loops import predicted
from calibration.serving.timed import timed, unmoved, values
from calibration.tables.requests import InferencePoint, inference_point
from predictor.catalog import load
from predictor.timing import RunParameters
from reckon.verbs.serving import predicted as served


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("per_pass", [1.0, 2.0])
@pytest.mark.parametrize("output", [101.0, 1001.0])
def test_prompts_move_the_median_pass_where_half_of_the_passes_have_one(output, per_pass, replicas):
    """As many requests begin in a pass as end: one in so many passes as each takes. Counted over
    passes in which prompts arrive at random."""
    passes = (output - 1.0) / per_pass
    running = passes * np.array([0.4, 0.6, 0.68, 0.71, 0.8, 2.0]) / replicas
    work = SimpleNamespace(output_len=output, per_pass=per_pass, running=running, meeting=replicas)
    draws = np.random.default_rng(3).poisson(running / passes, (20_000, replicas, 6)).max(axis=1)
    assert list(unmoved(work)) == list(np.median(draws, axis=0) == 0)


def test_a_single_token_takes_a_pass():
    running = np.array([0.5, 1.0])
    work = SimpleNamespace(output_len=1.0, per_pass=1.0, running=running, meeting=1.0)
    assert list(unmoved(work)) == [math.log(2.0) > 0.5, False]


ROW = {
    "point_id": "p1", "source": "mine", "published": "2025-01", "accelerator": "H200-SXM-141GB",
    "num_gpus": 1.0, "model": "llama3-8b", "tp": 1.0, "concurrency": 256.0, "input_len": 1000.0,
    "output_len": 200.0, "framework": "vllm", "metric": "output_tokens_per_s", "value": 1.0,
}  # fmt: skip


def point(**more: object) -> InferencePoint:
    found = inference_point({**ROW, **more}, RunParameters())
    assert isinstance(found, InferencePoint), found
    return found


def test_rows_under_a_limit_of_power_take_the_time_that_it_leaves():
    """A row that states one, beside one that does not, in one table: as `predict` has it, but for
    how long the engine itself, whose host no limit slows, keeps the device waiting."""
    known = load("default")
    found, refused = timed([point(), point(power_limit=400.0), point(clock=1200.0)], known)
    assert not refused
    rates = values(found, parameters_of(found, known.serving.engines))[0]
    at = [one.request.conditions.stated for one in found.points]
    told = {name: float(rate) for name, rate in zip(at, rates, strict=True)}
    alone = {
        one.request.conditions.stated: float(served(one.request, known).output_tokens_per_s.value)
        for one in found.points
    }
    assert told["power_limit"] < 0.95 * told[""]
    for name in ("power_limit", "clock"):
        assert told[name] / told[""] == pytest.approx(alone[name] / alone[""], rel=0.03)


def test_a_limit_that_cannot_be_refuses_its_row_alone():
    found, refused = timed([point(), point(power_limit=900.0)], load("default"))
    assert len(found.points) == 1
    assert "--power-limit 900 W" in refused[0][1]


def test_limits_are_read_in_words_and_in_the_configurations_of_submissions():
    assert point(notes="8xA100, power-limited to 330 W").request.conditions.limit == 330.0
    own = {"source": "mlperf_inference_v4.1", "published": "2024-08", "concurrency": None}
    own |= {"model": "llama2-70b", "num_gpus": 8.0, "tp": None, "framework": "tensorrt-llm"}
    folder = "closed/NVIDIA/results/H200-SXM-141GBx8_TRT"
    less = point(**own, source_locator=f"{folder}_MaxQ/llama2-70b-99.9/Offline")
    most = point(**own, source_locator=f"{folder}/llama2-70b-99.9/Offline")
    assert (less.request.conditions.limit, most.request.conditions.limit) == (500.0, None)


def test_open_loops_under_a_limit_take_longer():
    own = {"concurrency": None, "request_rate": 12.0, "requests": 40.0, "metric": "e2e_latency_s"}
    _, times, refused = predicted([point(**own), point(**own, power_limit=300.0)], load("default"))
    assert not refused
    assert times[1] > 1.05 * times[0]
