"""Clients whose prompts and answers are of one length each stay together: as requests served one
by one show, and by how much."""

import numpy as np
import pytest

from predictor.catalog import ServingPlanSpec, load, parse
from predictor.serving import complete_serving, pass_table, predict_inference, serve

CALIBRATION = load("default")
CLIENTS = 32


def completed(**fields):
    stated = {
        "model": "llama3-8b", "system": "dgx-h100", "gpus": 1, "input_len": 1000,
        "output_len": 200, "concurrency": CLIENTS, "variation": 0.0, **fields,
    }  # fmt: skip
    return complete_serving(parse(ServingPlanSpec, stated, "test"), CALIBRATION.run)


def one_by_one(request) -> float:
    """Mean time to the first token of ten requests per client, all alike [s]."""
    plan = request.plan
    table = pass_table(
        request.model, request.cluster, plan, CALIBRATION, (plan.input_len, plan.output_len)
    )
    count = 10 * CLIENTS
    lengths = (np.full(count, float(one)) for one in (plan.input_len, plan.output_len))
    return float(np.mean(serve(table, *lengths, clients=CLIENTS).ttft))


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
def test_lengths_alike_keep_clients_together(framework):
    """Prompts first (SGLang), or beside decoding (vLLM): the closed form's first token is within a
    factor of 1.6 of requests one by one; that of clients whose lengths vary is not."""
    request = completed(framework=framework)
    told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    apart = completed(framework=framework, variation=0.1)
    loose = predict_inference(apart.model, apart.cluster, apart.plan, CALIBRATION)
    shown = one_by_one(request)
    assert abs(np.log(float(told.latencies.ttft) / shown)) < np.log(1.6)
    assert abs(np.log(float(loose.latencies.ttft) / shown)) > np.log(1.6)


def test_a_pass_with_room_for_one_prompt_sends_one_at_a_time():
    request = completed(framework="vllm", chunk=1000)
    assert float(request.plan.synchrony) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "fields",
    [{"variation": 0.1}, {"lengths": "lognormal"}, {"concurrency": None, "batch": 8}],
)
def test_others_are_spread(fields):
    assert float(completed(**fields).plan.synchrony) == pytest.approx(0.1)


def test_a_stated_share_holds():
    assert float(completed(framework="sglang", synchrony=0.4).plan.synchrony) == 0.4


def test_those_that_one_pass_reads_stay_together():
    """Of 32 clients a pass of 8,192 tokens reads eight prompts of 1,024 beside those that decode:
    each of them has 7 of 31 others with it. Prompts that come first keep all together; lengths that
    vary, none beyond what is usual."""
    own = {"framework": "vllm", "input_len": 1024, "chunk": 8192, "batching": "mixed"}
    assert float(completed(**own).plan.synchrony) == pytest.approx(7 / 31, abs=5e-4)
    assert float(completed(**own, concurrency=8).plan.synchrony) == 1.0
    assert float(completed(**{**own, "batching": "apart"}).plan.synchrony) == 1.0
    loose = float(completed(**{**own, "variation": 0.1}).plan.synchrony)
    assert loose < 7 / 31
