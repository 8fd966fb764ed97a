"""Which loads closed forms answer, and what requests one by one say of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.plans import ServingPlan
from predictor.serving import (
    Client,
    Rates,
    one_by_one,
    predict_inference,
    served_instead,
    unchecked,
)
from predictor.serving.checked import FEWEST, LENGTHS, MOST, MOST_LOAD, MOST_PROMPTS, counts
from reckon import predict_infer

PLAN = ServingPlan(
    batch=np.inf, serving=1.0, input_len=1000.0, output_len=200.0, max_batch=512.0,
    framework="vllm", batching="mixed", scheduling="overlapped",
)  # fmt: skip
ASKED = {"gpus": 1, "tp": 1, "framework": "vllm", "input_len": 1000, "output_len": 200}
MODEL, SYSTEM = "llama3-8b", "dgx-h100"


def test_loads_inside_the_grid_are_left_to_the_closed_forms():
    for given in LENGTHS["input_len"]:
        for made in LENGTHS["output_len"]:
            plan = replace(PLAN, input_len=given, output_len=made)
            assert unchecked(plan, Client(), MOST_LOAD, 1.0, MOST_PROMPTS) == ()


@pytest.mark.parametrize(
    ("plan", "client", "rate", "word"),
    [
        (PLAN, Client(), 0.81, "largest rate"),
        (PLAN, Client(burstiness=0.5), 0.5, "burstiness"),
        (PLAN, Client(variation=0.5), 0.5, "lengths"),
        (PLAN, Client(lengths="exponential"), 0.5, "lengths"),
        (replace(PLAN, input_len=8000.0), Client(), 0.5, "input_len"),
        (replace(PLAN, output_len=20.0), Client(), 0.5, "output_len"),
        (replace(PLAN, batching="waiting"), Client(), 0.5, "held"),
        (replace(PLAN, polling=10.0), Client(), 0.5, "passes"),
    ],
)
def test_each_bound_that_a_load_leaves_is_told(plan, client, rate, word):
    (told,) = unchecked(plan, client, rate, 1.0, 0.5)
    assert word in told


def test_many_prompts_within_the_time_of_a_token_are_told():
    """20 ms per token: 30 requests a second are more than half a prompt, of two replicas less."""
    (told,) = unchecked(PLAN, Client(), 30.0, 100.0, 0.02)
    assert "0.6 prompts" in told
    assert unchecked(replace(PLAN, dp=2.0), Client(), 30.0, 100.0, 0.02) == ()


@pytest.mark.parametrize("share", [0.1, 0.8, 0.95])
def test_enough_requests_are_served_for_the_engine_to_fill(share):
    """As many before any counts as run at three times, the more the fuller it is; at least so many
    that count, and as many after them as run at a time."""
    for running in (1.0, 2.5, 100.0, 300.2):
        requests, warm, ending = counts(running, share)
        assert warm >= min(3.0 * running / (1.0 - share), MOST // 2)
        assert requests - warm - ending >= FEWEST
        assert ending >= running
    requests, warm, ending = counts(1e6, share)
    assert requests == MOST
    assert warm == MOST // 2


@pytest.mark.parametrize("batching", ["mixed", "apart"])
def test_requests_that_count_are_of_an_engine_that_stays_as_full(batching):
    """Answers of 1,000 tokens at three quarters of the most: as many as are served say of the time
    per token what many times as many do, within the 5 % that closed forms are held to."""
    model, cluster, known = catalog.model(MODEL), catalog.system(SYSTEM), load("default")
    plan = replace(PLAN, input_len=200.0, output_len=1000.0, batching=batching)
    rates = Rates(model, cluster, plan, known)
    rate = 0.75 * rates.most
    closed = rates.at(rate)
    _, served = served_instead(model, cluster, plan, known, Client(), rate, closed)
    many = one_by_one(model, cluster, plan, known, 3 * MOST, Client(), rate)
    whole = many.after(MOST // 2, MOST // 2)
    assert len(whole.tpot) > 5 * len(served.tpot)
    assert float(served.tpot.mean()) == pytest.approx(float(whole.tpot.mean()), rel=0.05)


@pytest.mark.parametrize(("lengths", "share"), [((1000.0, 200.0), 0.5), ((128.0, 128.0), 0.3)])
def test_where_closed_forms_hold_both_say_the_same(lengths, share):
    """Within the bounds that the grid of loads is held to: 5 % of the time per token, 15 % of the
    first token; also where passes over short prompts wait for their launches."""
    model, cluster, known = catalog.model(MODEL), catalog.system(SYSTEM), load("default")
    plan = replace(PLAN, input_len=lengths[0], output_len=lengths[1])
    rates = Rates(model, cluster, plan, known)
    rate = share * rates.most
    closed = rates.at(rate)
    found, served = served_instead(model, cluster, plan, known, Client(), rate, closed)
    one, other = found.prediction.latencies, closed.prediction.latencies
    assert float(one.tpot) == pytest.approx(float(other.tpot), rel=0.05)
    assert float(one.ttft) == pytest.approx(float(other.ttft), rel=0.15)
    assert float(one.ttft) == pytest.approx(float(served.ttft.mean()))
    assert sum(float(v) for v in found.prediction.breakdown.values()) == pytest.approx(
        float(one.e2e), rel=1e-9
    )


@pytest.mark.parametrize("batching", ["mixed", "apart"])
def test_a_request_that_meets_nobody_waits_for_nobody(batching):
    """At a rate near nothing the first token is that of one client alone, and the closed form is
    within 5 % of requests one by one at a hundredth of the most."""
    model, cluster, known = catalog.model(MODEL), catalog.system(SYSTEM), load("default")
    plan = replace(PLAN, batching=batching)
    alone = predict_inference(model, cluster, replace(plan, batch=1.0), known).latencies
    rates = Rates(model, cluster, plan, known)
    nearly = rates.at(1e-4).prediction.latencies
    assert float(nearly.ttft) == pytest.approx(float(alone.ttft), rel=0.01)
    rate = 0.01 * rates.most
    closed = rates.at(rate).prediction.latencies
    served = one_by_one(model, cluster, plan, known, 2000, Client(), rate).after(50)
    assert float(closed.ttft) == pytest.approx(float(served.ttft.mean()), rel=0.05)


def test_bursts_are_served_later_than_random_arrivals_and_the_result_says_who_answers():
    calm = predict_infer(MODEL, SYSTEM, {**ASKED, "rate": 8.0})
    bursts = predict_infer(MODEL, SYSTEM, {**ASKED, "rate": 8.0, "burstiness": 0.2})
    assert calm.instead is None
    assert calm.to_dict()["rate"]["answered_by"] == "closed forms"
    told = bursts.to_dict()["rate"]
    assert told["answered_by"] == "requests one by one"
    assert told["requests"] >= FEWEST
    assert "burstiness" in told["because"][0]
    assert bursts.ttft.value > 1.1 * calm.ttft.value
    assert bursts.ttft.low < bursts.ttft.value < bursts.ttft.high
    assert sum(bursts.breakdown.values()) == pytest.approx(bursts.e2e.value, rel=1e-9)


def test_a_rate_beyond_the_most_is_told_by_closed_forms():
    far = predict_infer(MODEL, SYSTEM, {**ASKED, "rate": 1e4, "burstiness": 0.2})
    assert far.saturated
    assert far.instead is None


@pytest.mark.parametrize("made", [1, 2, 4])
def test_no_part_of_a_life_is_less_than_nothing(made):
    """Quicker one by one than in closed form: less is waited, and no part takes negative time."""
    found = predict_infer(
        "qwen1.5-110b", "dgx-h200",
        {"tp": 1, "dp": 8, "precision": "fp8", "input_len": 2000, "output_len": made, "rate": 0.5},
    )  # fmt: skip
    assert found.instead is not None
    parts = {name: float(value) for name, value in found.breakdown.items()}
    assert min(parts.values()) >= 0.0
    assert sum(parts.values()) == pytest.approx(found.e2e.value)
