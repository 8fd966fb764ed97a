"""Engines whose work is prompts: answers of few tokens, or of one."""

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.serving.completion import complete_serving
from predictor.serving.prediction import predict_inference
from predictor.serving.simulation import one_by_one

CALIBRATION = load("default")
ENGINES, ANSWERS = ("vllm", "sglang", "trtllm"), (1, 2, 4)


def request(framework, output_len, **fields):
    base = {"model": "llama3-8b", "system": "dgx-h100", "tp": 1, "input_len": 2048}
    given = {**base, "framework": framework, "output_len": output_len, **fields}
    return complete_serving(parse(ServingPlanSpec, given, "test"), CALIBRATION.run)


def predicted(one):
    return predict_inference(one.model, one.cluster, one.plan, CALIBRATION)


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("output_len", ANSWERS)
def test_an_engine_is_as_quick_as_requests_one_by_one_have_it(framework, output_len):
    """Two clients and more: what passes of few prompts share is told to a quarter."""
    for clients in (2, 8, 32):
        one = request(framework, output_len, concurrency=clients)
        served = one_by_one(
            one.model, one.cluster, one.plan, CALIBRATION, 10 * clients, clients=clients
        )
        served = served.after(2 * clients, 2 * clients)
        life = float(predicted(one).latencies.e2e)
        assert float(served.e2e.mean()) == pytest.approx(life, rel=0.28), clients


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("output_len", ANSWERS)
def test_prompts_are_not_read_faster_than_the_units_multiply(framework, output_len):
    for load_of in ({"concurrency": 32}, {"saturated": True}):
        found = predicted(request(framework, output_len, **load_of))
        flop = 2.0 * 7.5e9 * 2048  # of a prompt in the layers; the head is of its last token
        used = float(found.requests_per_s) * flop / found.cluster.accelerator.peak_for("bf16")
        assert 0.4 < used < 0.75


def test_more_clients_lose_no_requests():
    """Eight share passes, where one alone waits for its host."""
    for framework in ENGINES:
        each = [
            float(predicted(request(framework, 2, concurrency=c)).requests_per_s) for c in (2, 8)
        ]
        alone = float(predicted(request(framework, 2, concurrency=1)).requests_per_s)
        assert each[0] > 0.95 * alone
        assert each[1] > alone
        assert np.isfinite(each).all()
