"""What engines carry that are full, or all but empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans import ServingPlan
from predictor.serving.capacities import Promise, capacity
from predictor.serving.prediction import predict_inference
from predictor.serving.rates import predict_rate

LLAMA, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")


@pytest.mark.parametrize("dp", [1.0, 2.0])
@pytest.mark.parametrize("most", [1.0, 2.0, 7.0])
def test_loads_reach_from_one_request_to_a_full_engine(most: float, dp: float) -> None:
    """A request that runs by itself on average meets another, where there is room for two: half of
    what two clients of an engine ask for; a full one ends what as many clients get as it has room
    for, each of whom is answered at once by the next."""
    known = load("none")
    plan = ServingPlan(
        batch=np.full(1, np.inf), input_len=500.0, output_len=50.0, serving=1.0, dp=dp,
        max_batch=most, synchrony=0.0,
    )  # fmt: skip
    found = capacity(LLAMA, DGX, plan, known, Promise())

    def clients(many: float) -> float:
        own = replace(plan, batch=np.full(1, many * dp))
        return float(predict_inference(LLAMA, DGX, own, known).requests_per_s[0])

    met = min(2.0, most)
    assert found.running[0, [0, -1]] == pytest.approx([dp, most * dp])
    assert found.rate[0, [0, -1]] == pytest.approx([clients(met) / met, clients(most)])
    assert np.all(np.diff(found.rate[0]) >= -1e-9 * found.rate[0, 0])


@pytest.mark.parametrize("dp", [1.0, 2.0])
def test_tokens_of_a_request_that_comes_seldom_come_as_if_it_were_alone(dp: float) -> None:
    known = load("none")
    plan = ServingPlan(batch=np.inf, input_len=500.0, output_len=50.0, serving=1.0, dp=dp)
    rare = predict_rate(LLAMA, DGX, plan, 1e-6, known).prediction.latencies
    one = predict_inference(LLAMA, DGX, replace(plan, batch=dp, synchrony=0.0), known).latencies
    assert float(rare.tpot) == pytest.approx(float(one.tpot), rel=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_an_engine_of_one_request_at_a_time_serves_each_alone(share: float) -> None:
    """Its others wait before it: u / (2 (1 - u)) turns of prompts (Pollaczek 1930), u being the
    share of the time in which they are read."""
    known = load("none")
    plan = ServingPlan(
        batch=np.inf, input_len=500.0, output_len=50.0, serving=1.0, max_batch=1.0, synchrony=0.0
    )
    alone = predict_inference(LLAMA, DGX, replace(plan, batch=1.0), known).latencies
    rate = share * float(alone.requests_per_s)
    found = predict_rate(LLAMA, DGX, plan, rate, known)
    assert found.most_requests_per_s == pytest.approx(float(alone.requests_per_s))
    used = rate * float(alone.prompt)
    wait = 0.5 * used / (1.0 - used) * float(alone.turn)
    mine = found.prediction.latencies
    assert float(mine.tpot) == pytest.approx(float(alone.tpot))
    assert float(mine.e2e) == pytest.approx(float(alone.e2e) + wait)
