"""What a single process of a server sends its clients, and what these wait for it."""

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.serving.completion import complete_serving
from predictor.serving.pass_times import SENT
from predictor.serving.prediction import predict_inference
from predictor.serving.rates import NEARLY, Rates

CALIBRATION = load("default")


def request(**fields):
    base = {"model": "llama3.1-8b", "accelerator": "H200-SXM-141GB", "gpus": 8, "tp": 8,
            "framework": "sglang", "input_len": 100, "output_len": 1000}  # fmt: skip
    given = {name: value for name, value in {**base, **fields}.items() if value is not None}
    return complete_serving(parse(ServingPlanSpec, given, "test"), CALIBRATION.run)


def predicted(**fields):
    one = request(**fields)
    return predict_inference(one.model, one.cluster, one.plan, CALIBRATION)


def test_clients_get_no_more_tokens_than_one_process_sends():
    """Each waits as long as all tokens of all clients take; half of that before its first."""
    found = predicted(concurrency=512)
    free = predicted(concurrency=512, front_end="beside")
    assert float(found.output_tokens_per_s) == pytest.approx(1.0 / SENT["single"])
    late = 512 * 1000 * SENT["single"] - float(free.latencies.e2e)
    assert late > 0.0
    assert float(found.latencies.ttft) == pytest.approx(float(free.latencies.ttft) + 0.5 * late)
    whole = float(found.latencies.ttft) + 999.0 * float(found.latencies.tpot)
    assert float(found.latencies.e2e) == pytest.approx(whole)
    assert sum(map(float, found.breakdown.values())) == pytest.approx(whole)


def test_a_process_that_makes_texts_too_sends_fewer():
    found = predicted(framework="tensorrt-llm", concurrency=512)
    assert float(found.output_tokens_per_s) == pytest.approx(1.0 / SENT["whole"])
    assert SENT["whole"] > SENT["single"]


def test_tokens_that_come_together_are_sent_together():
    """Guesses that are accepted make as many fewer events."""
    fields = {"concurrency": 512, "drafted": 3, "acceptance": 0.8, "max_batch": 512}
    several = predicted(**fields)
    each = float(several.work.per_pass)
    assert each > 2.0
    assert float(several.output_tokens_per_s) < each / SENT["single"]
    assert float(several.output_tokens_per_s) > 1.0 / SENT["single"]


@pytest.mark.parametrize(
    "fields",
    [{"concurrency": 8}, {"batch": 512}, {"saturated": True}, {"concurrency": 64, "tp": 1}],
)
def test_others_wait_for_no_server(fields):
    """Few clients, batches that hang on no server, engines that are asked what they do at most."""
    told, free = predicted(**fields), predicted(**fields, front_end="beside")
    for name in ("ttft", "tpot", "e2e", "requests_per_s"):
        assert np.array_equal(getattr(told.latencies, name), getattr(free.latencies, name))


def test_no_more_requests_are_served_than_can_be_sent():
    one = request(rate=30.0)
    rates = Rates(one.model, one.cluster, one.plan, CALIBRATION)
    assert rates.most == pytest.approx(1.0 / (1000 * SENT["single"]))
    over = rates.at(30.0)
    assert over.saturated
    assert float(over.prediction.requests_per_s) == pytest.approx(NEARLY * rates.most, rel=0.05)
    assert not rates.at(0.9 * rates.most).saturated
    free = request(rate=30.0, front_end="beside")
    assert Rates(free.model, free.cluster, free.plan, CALIBRATION).most > 1.2 * rates.most
