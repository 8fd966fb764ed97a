"""Spreads of first tokens: sooner and later than predicted, and with what waits."""

from dataclasses import replace

import numpy as np
import pytest

from calibration.serving.late import fit_first_tokens, interval_score
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.serving import ServingPlan
from predictor.serving.prediction import predict_inference
from predictor.timing.engines import EARLY_SPREADS, LATE_SPREADS


def test_the_interval_of_a_first_token_under_load_grows_with_what_waits():
    """Sooner and later have spreads of their own, both wider the longer prompts are read; static
    batches and other metrics have one."""
    plan = ServingPlan(batch=8.0, serving=1.0, input_len=1000.0, output_len=100.0)
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    base = load("default")
    sigma = {**base.serving.sigma, "ttft.serving": 0.1, "ttft.serving.used": 0.2,
             "ttft.late": 0.3, "ttft.late.used": 1.0}  # fmt: skip
    calibration = replace(base, serving=replace(base.serving, sigma=sigma))
    widths = []
    for clients in (2.0, 64.0):
        found = predict_inference(model, cluster, replace(plan, batch=clients), calibration)
        low, high = (np.log(float(v)) for v in found.interval("ttft", np.asarray(1.0)))
        used = float(found.latencies.requests_per_s * found.latencies.prompt)
        used = (1.0 - 1.0 / clients) * min(used, 1.0)
        run = [np.hypot(0.1, 0.2 * used), np.hypot(0.3, used)]
        # What the operators' own spread adds is the same on both sides.
        both = (high / base.interval_q) ** 2 - (low / base.interval_q) ** 2
        assert both == pytest.approx(run[1] ** 2 - run[0] ** 2, rel=1e-6)
        widths.append((-low, high))
        for metric in ("tpot", "e2e"):
            low, high = (float(v) for v in found.interval(metric, np.asarray(1.0)))
            assert low * high == pytest.approx(1.0)
    assert widths[0][0] < widths[1][0]
    assert widths[0][1] < widths[1][1]
    still = predict_inference(model, cluster, replace(plan, serving=0.0), calibration)
    low, high = (float(v) for v in still.interval("ttft", np.asarray(1.0)))
    assert low * high == pytest.approx(1.0)


def test_spreads_of_first_tokens_are_those_that_errors_were_drawn_from():
    """Errors of sixteen sources with spreads of 0.1 and 0.3 without load, and more with it and
    where there is no room; those of one that doubts itself count less than any other's."""
    rng = np.random.default_rng(3)
    count, loads = 16_000, rng.uniform(0.0, 1.0, (2, 16_000))
    draw = rng.standard_normal(count)
    terms = np.array([[0.1, 0.3, 0.5], [0.3, 0.9, 0.7]])
    both = np.sqrt(terms**2 @ np.vstack([np.ones(count), loads]) ** 2)
    run = np.where(draw < 0, *both)
    sources = [f"s{i % 16}" for i in range(count)]
    fields = {"operators": np.zeros(count), "loads": loads, "sources": sources, "q": 1.2816}
    sure = np.zeros(count, bool)
    found = fit_first_tokens(errors=-draw * run, doubtful=sure, level=0.8, **fields)
    stated = dict(zip((*EARLY_SPREADS, *LATE_SPREADS), terms.ravel().tolist(), strict=True))
    assert found == pytest.approx(stated, abs=0.05)
    odd = np.array([one == "s0" for one in sources])
    wild = np.where(odd, -3.0, -draw * run)
    doubted = fit_first_tokens(errors=wild, doubtful=odd, level=0.8, **fields)
    believed = fit_first_tokens(errors=wild, doubtful=sure, level=0.8, **fields)
    assert found["ttft.late"] <= doubted["ttft.late"] < believed["ttft.late"]
    few = np.arange(count) < 4
    assert fit_first_tokens(
        errors=wild[few], doubtful=odd[few], level=0.8, operators=np.zeros(4), loads=loads[:, few],
        sources=sources[:4], q=1.2816,
    ) == {}  # fmt: skip


def test_a_score_of_intervals_is_least_at_the_quantiles():
    """Of intervals around a standard normal number, that of 80 % has the least mean score."""
    value = np.random.default_rng(0).standard_normal(20_000)
    scores = [
        float(interval_score(np.full(value.shape, -w), np.full(value.shape, w), value, 0.8).mean())
        for w in (1.0, 1.2816, 1.6)
    ]
    assert scores[1] < min(scores[0], scores[2])
