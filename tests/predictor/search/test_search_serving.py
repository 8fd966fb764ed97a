from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.given import Range
from predictor.errors import InputError
from predictor.memory.serving import serving_memory
from predictor.search.fleets import (
    EngineOffer,
    Engines,
    curve,
    interruption,
    replicas,
    search_engines,
)
from predictor.serving.apart import worker
from predictor.serving.capacities import Promise, poisson_quantile
from predictor.serving.clients import poisson, spread_lengths
from predictor.serving.events import serve
from predictor.serving.prediction import predict_inference
from predictor.serving.rates import predict_rate
from predictor.serving.tables import pass_table

KNOWN = load("default")
LLAMA, MIXTURE = catalog.model("llama3-8b"), catalog.model("mixtral-8x7b")
DGX, OLD = catalog.system("dgx-h100"), catalog.system("dgx-a100")
LENGTHS = {"input_len": (1024,), "output_len": (256,)}
PROMISE = Promise(ttft=0.3, tpot=0.015)


def search(promise: Promise = PROMISE, **fields: object) -> Engines:
    wide = {name: v if isinstance(v, tuple) else (v,) for name, v in fields.items()}
    stated = {**LENGTHS, "prefill_workers": (0,), **wide}
    return search_engines(LLAMA, [DGX], stated, promise, KNOWN)


@pytest.fixture(scope="module")
def found() -> Engines:
    return search()


def test_engines_keep_the_promise_at_their_rate_and_no_load_above_does(found: Engines) -> None:
    assert len(found.engines) > 5
    for engine in found.engines:
        assert engine.ttft <= PROMISE.ttft
        assert engine.tpot <= PROMISE.tpot
        rate, ttft, tpot = engine.curve
        beyond = rate > engine.rate * (1 + 1e-9)
        assert np.all((ttft[beyond] > PROMISE.ttft) | (tpot[beyond] > PROMISE.tpot))


def test_a_load_is_that_of_the_single_run(found: Engines) -> None:
    for engine in found.engines[:4]:
        # A request meets as many as run on average, and is there itself (Wolff 1982), unless the
        # engine is full.
        met = engine.running + float(engine.plan.dp)
        plan = replace(engine.plan, batch=met, synchrony=0.0)
        alone = predict_inference(LLAMA, DGX, plan, KNOWN)
        share = engine.running / met
        assert share * float(alone.requests_per_s) == pytest.approx(engine.rate, rel=3e-3)


@pytest.mark.parametrize("tp", [1, 4])
def test_shares_are_those_of_requests_served_one_by_one(tp: int) -> None:
    (engine,) = search(tp=tp, pp=1).engines
    given, made = (spread_lengths(mean, 3000, 0.1, seed) for seed, mean in ((1, 1024), (2, 256)))
    longest = (float(given.max()), float(made.max()))
    table = pass_table(LLAMA, DGX, engine.plan, KNOWN, longest)
    served = serve(table, given, made, poisson(engine.rate, 3000))
    # No constant was fitted to these: queueing theory against a simulation.
    assert engine.tpot == pytest.approx(np.quantile(served.tpot, 0.9), rel=0.15)
    assert engine.ttft == pytest.approx(np.quantile(served.ttft, 0.9), rel=0.4)


def test_a_looser_promise_carries_more() -> None:
    rates = [
        max(e.rate / e.gpus for e in search(Promise(ttft=1.0, tpot=tpot)).engines)
        for tpot in (0.01, 0.02, 0.05)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    often = search(Promise(ttft=0.3, tpot=0.015, tpot_share=0.99), tp=1, pp=1)
    assert often.engines[0].rate < search(tp=1, pp=1).engines[0].rate


def test_quantiles_are_those_of_the_distributions() -> None:
    numbers = np.random.default_rng(0).poisson(30.0, 200_000)
    assert poisson_quantile(30.0, 0.9) == pytest.approx(np.quantile(numbers, 0.9), abs=0.6)
    assert poisson_quantile(30.0, 0.99) == pytest.approx(np.quantile(numbers, 0.99), abs=0.8)


def test_engines_for_a_load(found: Engines) -> None:
    engine = replace(found.engines[0], rate=10.0)
    load_ = np.array([0.0, 10.0, 10.1, 25.0])
    assert replicas(engine, load_, 0.0, 0).tolist() == [0, 1, 2, 3]
    assert replicas(engine, load_, 0.2, 1).tolist() == [1, 3, 3, 4]


def test_a_load_may_be_more_than_any_engine_serves() -> None:
    """Engines that serve nothing within the promise are infinitely many, without a warning."""
    engine = replace(search(tp=1, pp=1).engines[0], rate=np.array(1e-300))
    assert np.isinf(replicas(engine, np.array(1e9), 0.0, 0))


def test_the_front_rises(found: Engines) -> None:
    points = curve(found.engines, 256.0)
    gains, slow = [p[0] for p in points], [p[1] for p in points]
    assert gains == sorted(gains)
    assert slow == sorted(slow)
    best = max(float((e.curve[0] * 256 / e.gpus).max()) for e in found.engines)
    assert gains[-1] == pytest.approx(best)


def test_systems_are_compared_and_mixtures_spread_their_experts() -> None:
    found = search_engines(MIXTURE, [DGX, OLD], {**LENGTHS, "pp": (1,)}, Promise(tpot=0.05), KNOWN)
    assert {e.cluster.name for e in found.engines} == {DGX.name, OLD.name}
    assert any(float(e.plan.ep) > 1 for e in found.engines)
    assert any(float(e.plan.dp) > 1 for e in found.engines)


def test_what_cannot_be_says_what_would() -> None:
    with pytest.raises(InputError, match=r"closest takes .* ms to the first token"):
        search(Promise(ttft=1e-3))
    with pytest.raises(InputError, match="does not divide the 32 attention heads"):
        search(tp=3)
    large = catalog.model("llama3-405b")
    with pytest.raises(InputError, match=r"least memory that would is [\d.]+ GiB per GPU"):
        search_engines(large, [DGX], {**LENGTHS, "tp": (1,), "pp": (1,)}, PROMISE, KNOWN)
    with pytest.raises(InputError, match="above 0"):
        Promise(ttft=0.0)
    with pytest.raises(InputError, match="between 0 and 1"):
        Promise(ttft_share=90.0)


LONG = {"input_len": (4096,), "output_len": (256,), "tp": (1, 2, 4), "pp": (1,)}
TIGHT = Promise(ttft=0.5, tpot=0.02)


def both(load: float = 40.0, promise: Promise = TIGHT, **fields: object) -> Engines:
    return search_engines(LLAMA, [DGX], {**LONG, **fields}, promise, KNOWN, load)


@pytest.fixture(scope="module")
def apart() -> Engines:
    return both()


def test_prompts_read_apart_are_single_runs(apart: Engines) -> None:
    engines = [engine for engine in apart.engines if engine.apart]
    assert len(engines) > 5
    assert {engine.apart for engine in apart.engines} == {True, False}
    assert all(one.ttft <= TIGHT.ttft and one.tpot <= TIGHT.tpot for one in engines)
    for engine in engines[::3]:
        plan = engine.plan
        alone = predict_rate(LLAMA, DGX, plan, engine.rate, KNOWN)
        assert not alone.saturated
        mean = alone.prediction.latencies
        # One in ten is promised nothing; the mean is not far below what the others are.
        assert 0.4 * engine.ttft < float(mean.ttft) < engine.ttft
        # Where a pass takes as long as its contexts do, the rate hardly says how many decode: at
        # equal numbers a single run gives the same rate, as closely as closed forms are held.
        number = replace(plan, batch=engine.running, synchrony=0.0)
        single = predict_inference(LLAMA, DGX, number, KNOWN)
        assert float(single.requests_per_s) == pytest.approx(engine.rate, rel=0.05)
        assert 0.8 * engine.tpot < float(single.latencies.tpot) < engine.tpot
        decoding, reading = plan.tp * plan.pp * plan.dp, plan.prefill_workers * plan.prefill_tp
        assert engine.gpus == float(decoding + reading)
        held = serving_memory(LLAMA, DGX, worker(replace(plan, batch=plan.dp)), KNOWN.run)
        assert float(held.fits) == 1.0
        assert engine.memory >= float(held.total)


def test_the_best_ratio_is_that_of_trying_every_one(apart: Engines) -> None:
    def needed(engines: Engines) -> float:
        load = np.array(400.0)
        return min(float(replicas(e, load, 0.0, 0)) * e.gpus for e in engines.engines)

    def best(engines: Engines) -> EngineOffer:
        return max(engines.engines, key=lambda engine: engine.rate / engine.gpus)

    every = both(prefill_workers=tuple(range(13)))
    assert len(every.engines) > len(apart.engines)
    ours, theirs = best(apart), best(every)
    assert (ours.rate, ours.gpus) == (theirs.rate, theirs.gpus)
    # Whole replicas for one load may suit another ratio, by less than one replica.
    assert needed(every) <= needed(apart) < needed(every) + ours.gpus
    # For this load apart takes fewer: no token waits for a prompt of sixteen times its length.
    together = both(prefill_workers=(0,))
    assert needed(apart) < needed(together)
    assert not any(engine.apart for engine in together.engines)
    assert together.unsearched == "prefill_workers 0 was asked for"
    own, other = apart.engines[-1], together.engines[0]
    assert own.apart
    assert interruption(LLAMA, other, KNOWN) > 0.05 * other.tpot
    assert interruption(LLAMA, own, KNOWN) < 0.05 * own.tpot


def test_workers_are_bounded_by_what_is_stated(apart: Engines) -> None:
    ranged = both(prefill_workers=Range(2, 3), prefill_tp=(2,))
    assert {float(e.plan.prefill_workers) for e in ranged.engines} <= {2.0, 3.0}
    assert {float(e.plan.prefill_tp) for e in ranged.engines} == {2.0}
    assert all(e.apart for e in ranged.engines)
    one = both(output_len=(1,))
    assert one.unsearched == "nothing is decoded after the first token"


def test_workers_that_cannot_hold_the_weights_are_none() -> None:
    large = catalog.model("llama3-405b")
    stated = {**LENGTHS, "tp": (8,), "pp": (4,), "prefill_workers": (1,), "prefill_tp": (4,)}
    with pytest.raises(InputError, match=r"least memory that would is [\d.]+ GiB .*prefill tp 4"):
        search_engines(large, [DGX], stated, Promise(), KNOWN)
    # Beyond the node where none inside it holds them.
    found = search_engines(large, [DGX], {**stated, "prefill_tp": Range(1, 64)}, Promise(), KNOWN)
    assert {float(e.plan.prefill_tp) for e in found.engines} == {16.0}


def test_engines_of_a_fleet_share_the_hosts_memory() -> None:
    stated = {**LENGTHS, "offload": ("weights",), "tp": (1, 2), "pp": (1,)}
    found = search_engines(LLAMA, [DGX], stated, Promise(), KNOWN)
    each = {float(e.plan.tp): float(e.plan.host_memory) for e in found.engines}
    assert each == pytest.approx({1.0: 2048e9 / 8, 2.0: 2048e9 / 4})
    assert found.unsearched == "the cache lies in the host's memory"
    with pytest.raises(InputError, match="cannot be read apart: the cache lies"):
        search_engines(LLAMA, [DGX], {**stated, "prefill_workers": (1,)}, Promise(), KNOWN)
