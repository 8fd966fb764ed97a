"""Clients whose prompts and answers are of one length each stay together: as requests served one
by one show, and by how much."""

from dataclasses import replace

import numpy as np
import pytest

from predictor.catalog import ServingPlanSpec, load, parse
from predictor.serving import complete_serving, pass_table, predict_inference, serve
from predictor.serving.latency import _together

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
    """Prompts first (SGLang), or beside decoding (vLLM): the closed form's first token errs by less
    than half as much against requests one by one, in logarithms, as that of clients whose lengths
    vary does, and by less than a factor of two."""
    request = completed(framework=framework)
    told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    apart = completed(framework=framework, variation=0.1)
    loose = predict_inference(apart.model, apart.cluster, apart.plan, CALIBRATION)
    shown = one_by_one(request)
    off, far = (abs(np.log(float(one.latencies.ttft) / shown)) for one in (told, loose))
    assert off < min(0.5 * far, np.log(2.0))


@pytest.mark.parametrize(
    ("given", "made", "within"),
    [(800, 200, 0.18), (1000, 200, 0.16), (4000, 500, 0.15), (8000, 100, 0.15)],
)
@pytest.mark.parametrize("framework", ["vllm", "tensorrt-llm"])
def test_a_wave_meets_the_prompts_of_those_that_ended_before(framework, given, made, within):
    """Clients of one length each whose prompts take several passes: each comes when a pass over the
    prompts of others begins. Within the 15 % of closed forms against requests one by one, where ten
    prompts and a quarter fill a pass 18, and where eight and a fifth do 16."""
    request = completed(framework=framework, input_len=given, output_len=made)
    told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    assert float(told.latencies.ttft) == pytest.approx(one_by_one(request), rel=within)


@pytest.mark.parametrize(
    "fields",
    [{"variation": 0.1}, {"lengths": "lognormal"}, {"concurrency": None, "batch": 8}],
)
def test_others_are_spread(fields):
    assert float(completed(**fields).plan.synchrony) == pytest.approx(0.1)


def test_a_stated_share_holds():
    assert float(completed(framework="sglang", synchrony=0.4).plan.synchrony) == 0.4


def first(**fields) -> float:
    """Mean time to the first token, in closed form [s]."""
    request = completed(framework="vllm", batching="mixed", **fields)
    told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    return float(told.latencies.ttft)


def test_those_that_end_before_the_first_is_back_return_together():
    """Where prompts ride along, lengths that are alike never shorten the wait for a first token;
    a pass that reads more of the prompts sends more of them back together; with so long a host's
    work before a first token that all have ended before anybody is back, all return together."""
    base = {"input_len": 1024, "chunk": 2048}
    assert first(**base) > first(**base, variation=0.1)
    request = completed(framework="vllm", batching="mixed", **base)
    told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
    work, own = told.work, told.parameters
    wide = replace(work, chunk=8192.0)
    assert float(_together(wide, own)) > float(_together(work, own)) > 1.0
    endless = replace(own, request=1e3, burst=1e12)
    assert float(_together(work, endless)) == pytest.approx(CLIENTS)
    # Nor where one waits for room, who takes it before anybody is back.
    waiting = {"clients": CLIENTS + 1.0}
    for lone in ({"synchrony": 0.0}, {"alike": 0.0}, {"clients": np.inf}, waiting):
        assert float(_together(replace(work, **lone), endless)) == pytest.approx(1.0)


def test_a_client_is_back_after_the_hosts_work():
    """One client, one request at a time: its requests end as often as one takes (Little 1961)."""
    request = completed(framework="vllm", concurrency=1, batching="mixed")
    plan = request.plan
    table = pass_table(
        request.model, request.cluster, plan, CALIBRATION, (plan.input_len, plan.output_len)
    )
    lengths = (np.full(20, float(one)) for one in (plan.input_len, plan.output_len))
    served = serve(table, *lengths, clients=1)
    assert served.requests_per_s * float(served.e2e.mean()) == pytest.approx(1.0, rel=1e-9)


def test_fewer_rounds_are_more_of_an_opening():
    """All clients come at once to begin with: of one request of each client these are all, of ten a
    tenth. The mean first token lies between that of a later request and that of the opening, as
    far as the opening is of the requests."""
    firsts = {}
    for rounds in (1.0, 5.0, 10.0, 1e9):
        request = completed(framework="vllm", rounds=rounds, variation=0.1)
        assert float(request.plan.synchrony) == pytest.approx(1.0 / rounds)
        told = predict_inference(request.model, request.cluster, request.plan, CALIBRATION)
        firsts[rounds] = float(told.latencies.ttft)
    opening, later = firsts[1.0], firsts[1e9]
    assert opening > 2.0 * later
    for rounds in (5.0, 10.0):
        share = (firsts[rounds] - later) / (opening - later)
        assert share == pytest.approx(1.0 / rounds, rel=0.25)


@pytest.mark.parametrize("rounds", [1.0, 2.0, 3.0, 5.0])
def test_a_few_rounds_are_what_requests_one_by_one_show(rounds):
    """A run of some requests of each client, their opening wave among them: within 11 %, where the
    host's work before a first token takes a little more than a pass (7 where a little less)."""
    request = completed(framework="vllm", variation=0.0, rounds=rounds)
    plan = request.plan
    table = pass_table(
        request.model, request.cluster, plan, CALIBRATION, (plan.input_len, plan.output_len)
    )
    count = int(rounds * CLIENTS)
    lengths = (np.full(count, float(one)) for one in (plan.input_len, plan.output_len))
    shown = float(np.mean(serve(table, *lengths, clients=CLIENTS).ttft))
    told = predict_inference(request.model, request.cluster, plan, CALIBRATION)
    assert float(told.latencies.ttft) == pytest.approx(shown, rel=0.11)
