"""Replicas that wait for each other's passes, request by request."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import ServingPlanSpec, load, parse
from predictor.plans import ServingPlan
from predictor.serving import (
    Client,
    Rates,
    complete_serving,
    followed,
    one_by_one,
    pass_table,
    serve,
    unchecked,
)
from predictor.serving.events import EngineRun
from predictor.serving.lockstep import serve_together
from predictor.serving.tables import PassTable

KNOWN = load("default")
MODEL, CLUSTER = catalog.model("deepseek-v3"), catalog.system("dgx-h200")
NAMES = ("arrival", "first", "last")


@cache
def table(batching: str = "mixed", chunk: float = 8192.0) -> PassTable:
    """Of sixteen replicas on as many accelerators."""
    plan = ServingPlan(
        batch=512.0, tp=1.0, dp=16.0, ep=16.0, input_len=1000.0, output_len=50.0, serving=1.0,
        chunk=chunk, weights="fp8_block", kv="bf16", framework="vllm", batching=batching,
        replica_passes="waiting", scheduling="overlapped",
    )  # fmt: skip
    return pass_table(MODEL, CLUSTER, plan, KNOWN)


def lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    return draws.integers(600, 1400, count) * 1.0, draws.integers(20, 80, count) * 1.0


@pytest.mark.parametrize("batching", ["mixed", "apart"])
@pytest.mark.parametrize("clients", [0, 8])
def test_one_replica_waits_for_nobody(batching: str, clients: int) -> None:
    alone = replace(table(batching), meeting=1)
    given, made = lengths(100)
    came = None if clients else np.cumsum(np.random.default_rng(4).exponential(0.05, 100))
    both = serve(alone, given, made, came, clients), serve_together(alone, given, made, came,
                                                                    clients)  # fmt: skip
    for name in NAMES:
        np.testing.assert_allclose(*(getattr(one, name) for one in both), rtol=1e-12)


@pytest.mark.parametrize("divided", [0.0, 0.7])
@pytest.mark.parametrize("batching", ["mixed", "apart"])
def test_replicas_with_the_same_requests_do_as_one(batching: str, divided: float) -> None:
    """All read as many prompts in every pass: nobody waits, and the mean is that of each."""
    own = replace(table(batching), meeting=4, divided=divided)
    given, made = lengths(60)
    one = serve(own, given, made, clients=6)
    four = serve_together(own, np.repeat(given, 4), np.repeat(made, 4), clients=6)
    assert four.replicas == 4
    for name in NAMES:
        np.testing.assert_allclose(np.sort(getattr(four, name)).reshape(60, 4),
                                   np.sort(getattr(one, name))[:, None] * np.ones(4),
                                   rtol=1e-9)  # fmt: skip
    assert four.requests_per_s == pytest.approx(one.requests_per_s, rel=1e-9)
    assert len(four.after(10, 5).last) == 4 * (60 - 15)


def test_a_lone_prompt_takes_its_part_of_what_all_divide() -> None:
    """Nobody else is there: of a share that sixteen replicas divide a sixteenth is its own."""
    one = np.array([1000.0])
    whole = table("apart").prompts(1000.0, True)
    for divided in (0.0, 0.5, 1.0):
        own = replace(table("apart"), divided=divided)
        found = serve_together(own, one, one, np.array([0.0]))
        turn = float(own.plan.launching * own.own.request)
        part = 1.0 - divided + divided / 16.0
        assert float(found.ttft[0]) - turn == pytest.approx(part * whole, rel=1e-9)


@pytest.mark.parametrize("batching", ["mixed", "apart"])
def test_waiting_costs_time_and_loses_no_token(batching: str) -> None:
    own = replace(table(batching), divided=0.0, meeting=8)
    given, made = lengths(400)
    came = np.cumsum(np.random.default_rng(4).exponential(0.02, 400))
    waits = serve_together(own, given, made, came)
    assert sorted(waits.output_len) == sorted(made)
    assert np.all(waits.first > waits.arrival)
    assert waits.gaps[1].sum() == made.sum() - len(made)
    # As many requests of a replica by itself, one of eight.
    alone = serve(own, given[::8], made[::8], came[::8])
    assert waits.tpot.mean() > alone.tpot.mean()
    less = serve_together(replace(own, divided=0.9), given, made, came)
    assert less.tpot.mean() < waits.tpot.mean()


@pytest.mark.parametrize("chunk", [300.0, 512.0, 2048.0])
def test_parts_of_prompts_fill_their_passes(chunk: float) -> None:
    """Beyond a pass lengths are whole passes; one of them costs what its length does by itself."""
    own = table("apart", chunk)
    beyond = [length for length in own.lengths if length > chunk]
    assert all(length % chunk == 0 for length in beyond)
    assert own.lengths[-1] >= 1000.0
    if beyond:
        assert chunk in own.lengths
        short = pass_table(MODEL, CLUSTER, replace(own.plan, input_len=chunk), KNOWN)
        assert own.prompts(chunk, True) == pytest.approx(short.prompts(chunk, True), rel=1e-6)


@pytest.mark.parametrize(("framework", "replicas", "share"),
                         [("vllm", 2, 0.4), ("vllm", 16, 0.3), ("sglang", 2, 0.4),
                          ("sglang", 16, 0.3)])  # fmt: skip
def test_closed_forms_say_what_requests_one_by_one_show(
    framework: str, replicas: int, share: float
) -> None:
    """Within 10 % of the time per token and 20 % of the first token; one replica's own passes,
    without the others, are off by more."""
    stated = {"model": "deepseek-v3", "system": "dgx-h200", "framework": framework, "gpus": 16,
              "dp": replicas, "tp": 16 // replicas, "precision": "fp8", "input_len": 1000,
              "output_len": 200, "rate": 1.0}  # fmt: skip
    request = complete_serving(parse(ServingPlanSpec, stated, "test"), KNOWN.run)
    plan = request.plan
    assert plan.replica_passes == "waiting"
    rates = Rates(MODEL, CLUSTER, plan, KNOWN)
    rate = share * rates.most
    told = rates.at(rate).prediction.latencies
    served = one_by_one(MODEL, CLUSTER, plan, KNOWN, 300, Client(), rate).after(100, 20)
    assert float(told.tpot) == pytest.approx(float(served.tpot.mean()), rel=0.10)
    assert float(told.ttft) == pytest.approx(float(served.ttft.mean()), rel=0.20)


def test_beyond_half_of_the_most_they_are_served_one_by_one() -> None:
    plan = replace(table().plan, batch=np.inf, input_len=1000.0, output_len=200.0)
    assert unchecked(plan, Client(), 0.49, 1.0, 0.1, meet=True) == ()
    (told,) = unchecked(plan, Client(), 0.6, 1.0, 0.1, meet=True)
    assert "60% of the largest rate of replicas that wait" in told
    assert unchecked(plan, Client(), 0.6, 1.0, 0.1) == ()


def test_many_replicas_share_the_requests_that_are_asked_for() -> None:
    plan = table().plan
    assert followed(MODEL, plan, 2000) == 1000
    assert followed(MODEL, replace(plan, dp=4.0), 2000) == 2000
    assert followed(MODEL, replace(plan, replica_passes="apart"), 2000) == 2000
    assert followed(MODEL, plan, 2000, clients=400) == 1600
    assert followed(MODEL, plan, 2000, clients=4000) == 2000


def test_leaps_are_passes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that has nobody is there when its next request comes."""
    own = replace(table(), meeting=3)
    given, made = lengths(12)
    came = np.cumsum(np.random.default_rng(5).exponential(0.9, 12))
    leaping = serve_together(own, given, made, came)
    passes = EngineRun.passes
    monkeypatch.setattr(EngineRun, "passes", lambda one, pace=0.0: min(passes(one, pace), 1))
    stepping = serve_together(own, given, made, came)
    for name in NAMES:
        np.testing.assert_allclose(getattr(leaping, name), getattr(stepping, name), rtol=1e-6)
