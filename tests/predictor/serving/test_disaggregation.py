"""Prompts read on accelerators of their own."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.plans.serving import ServingPlan
from predictor.serving.apart import link_rate, sending_time, transfer_time, worker
from predictor.serving.apart_events import serve_apart
from predictor.serving.clients import poisson, spread_lengths
from predictor.serving.completion import complete_serving
from predictor.serving.latency import latencies
from predictor.serving.prediction import BREAKDOWN, predict_inference
from predictor.serving.rates import Rates, predict_rate
from predictor.serving.reading import read_table
from predictor.serving.tables import pass_table
from predictor.timing.calibration import RunParameters
from predictor.timing.engines import ServingParameters
from predictor.work.serving import kv_token_bytes
from tests.predictor.serving.bare import BARE
from tests.predictor.serving.bare import work as bare_work

MODEL, CLUSTER = catalog.model("llama3-70b"), catalog.system("dgx-h100")
CALIBRATION = replace(load("default"), serving=ServingParameters())


def plan(**fields):
    base = {
        "batch": 16.0,
        "input_len": 2000.0,
        "output_len": 200.0,
        "serving": 1.0,
        "tp": 8.0,
        "prefill_workers": 2.0,
        "prefill_tp": 4.0,
        "synchrony": 0.0,
    }
    return ServingPlan(**{**base, **fields})


def predict(**fields):
    return predict_inference(MODEL, CLUSTER, plan(**fields), CALIBRATION)


@pytest.mark.parametrize("replicas", [1.0, 2.0, 4.0])
def test_replicas_share_the_workers_of_all(replicas: float) -> None:
    """As many times the engines, clients and workers are as many times the answers, at the same
    waits for workers that are always busy."""
    busy = {"input_len": 8000.0, "output_len": 50.0}
    one = predict(prefill_workers=2.0, batch=64.0, **busy)
    many = predict(prefill_workers=2.0 * replicas, dp=replicas, batch=64.0 * replicas, **busy)
    for name in ("ttft", "tpot", "e2e"):
        assert float(getattr(many.latencies, name)) == pytest.approx(
            float(getattr(one.latencies, name)), rel=1e-6
        )
    assert float(many.requests_per_s) == pytest.approx(replicas * float(one.requests_per_s))


def work(**fields):
    return bare_work(**{"running": 4.0, "clients": 4.0, **fields})


def test_workers_read_while_others_decode():
    # A prompt takes 2 s, ten passes 1 s, a cache half a second: four requests in 3.5 s.
    found = latencies(work(workers=4.0, transfer=0.5), BARE)
    assert (found.ttft, found.e2e) == pytest.approx((2.0, 3.5))
    assert found.tpot == pytest.approx(0.15)
    assert found.requests_per_s == pytest.approx(4 / 3.5)


def test_one_worker_is_always_busy():
    # Four prompts of 2 s in turn: a request every 2 s, which waits 8 - 3.5 s for its prompt.
    found = latencies(work(workers=1.0, transfer=0.5), BARE)
    assert found.requests_per_s == pytest.approx(0.5)
    assert (found.queue, found.e2e) == pytest.approx((4.5, 8.0))


def test_replicas_share_workers():
    # Two replicas and one worker: a prompt takes 2 s of it, of each replica's share twice that;
    # by itself it is read no slower, and what waits takes turns of 2 s.
    alone = {"workers": 0.5, "shared": 1.0, "running": 1.0, "clients": 1.0}
    found = latencies(work(**alone, output_len=41.0), BARE)
    assert (found.ttft, found.prompt, found.turn) == pytest.approx((2.0, 4.0, 2.0))
    # Two clients that decode for 1 s keep it busy: each has its turn every 4 s, after 1 s of wait.
    found = latencies(work(**alone), BARE)
    assert (found.ttft, found.e2e) == pytest.approx((3.0, 4.0))
    found = latencies(work(workers=0.5, shared=1.0), BARE)
    assert found.requests_per_s == pytest.approx(0.25)
    # Three workers for two replicas take up a prompt every two thirds of a second.
    found = latencies(work(workers=1.5, shared=3.0), BARE)
    assert found.turn == pytest.approx(2.0 / 3.0)


def test_stages_that_decode_do_not_speed_up_the_workers():
    deep = predict(pp=4.0, batch=8.0)
    flat = predict(pp=1.0, batch=8.0)
    assert float(deep.latencies.prompt) == pytest.approx(float(flat.latencies.prompt), rel=1e-9)


def test_a_cache_is_sent_layer_by_layer():
    one = plan(kv_rate=1e9)
    whole = 2000.0 * kv_token_bytes(MODEL, worker(one)) * 80 / 1e9
    assert float(transfer_time(MODEL, one, CLUSTER, 1e3)) == pytest.approx(whole / 80)
    assert float(transfer_time(MODEL, one, CLUSTER, 0.0)) == pytest.approx(whole)
    assert float(transfer_time(MODEL, one, CLUSTER, 0.1)) == pytest.approx(whole - 0.1 * 79 / 80)
    assert float(transfer_time(MODEL, plan(prefill_workers=0.0), CLUSTER, 0.0)) == 0.0


def test_every_accelerator_sends_its_part_of_a_cache():
    """1,024 tokens x 80 layers x 8 heads of 128, keys and values in 16 bits: 335.5 MB, of which
    each of two accelerators sends half, at 450 GB/s of NVLink: 0.373 ms."""
    own = plan(input_len=1024.0, tp=2.0, prefill_tp=2.0, prefill_workers=1.0)
    assert float(sending_time(MODEL, own, CLUSTER)) == pytest.approx(335.5e6 / 2 / 450e9, rel=1e-3)


def test_a_cache_takes_the_innermost_network_that_reaches_everyone():
    within = link_rate(plan(tp=4.0, prefill_workers=1.0), CLUSTER)
    across = link_rate(plan(), CLUSTER)
    assert within == CLUSTER.tiers[0].rate > across == CLUSTER.tiers[-1].rate


def test_decoding_is_undisturbed_and_parts_add_up():
    together, apart = predict(prefill_workers=0.0), predict()
    assert apart.latencies.tpot < together.latencies.tpot
    assert float(apart.plan.gpus) == 16.0
    total = sum(apart.breakdown[name] for name in BREAKDOWN)
    assert total == pytest.approx(float(apart.latencies.e2e))
    assert apart.reader is not None
    assert together.reader is None


def test_a_batch_of_plans_equals_the_plans_one_by_one():
    workers = np.array([0.0, 1.0, 2.0, 4.0])
    batch = predict(prefill_workers=workers)
    for index, each in enumerate(workers):
        one = predict(prefill_workers=each)
        for name in ("ttft", "tpot", "e2e", "requests_per_s"):
            value = getattr(batch.latencies, name)[index]
            assert value == pytest.approx(float(getattr(one.latencies, name)), rel=1e-9)


def tables(own, variation=0.0, longest=None):
    return (
        read_table(MODEL, CLUSTER, own, CALIBRATION, variation),
        pass_table(MODEL, CLUSTER, own, CALIBRATION, longest),
    )


@pytest.mark.parametrize("clients", [1, 8, 64])
def test_the_closed_form_agrees_with_requests_one_by_one(clients):
    own = plan(batch=float(clients))
    form = predict_inference(MODEL, CLUSTER, own, CALIBRATION)
    # Answers of different lengths, so that clients do not stay in step.
    lengths = np.full(1500, 2000.0), spread_lengths(200.0, 1500, 0.5)
    served = serve_apart(*tables(own, 0.0, (2000.0, 300.0)), *lengths, clients=clients)
    tail = slice(500, 1400)
    assert served.tpot[tail].mean() == pytest.approx(float(form.latencies.tpot), rel=0.05)
    assert served.e2e[tail].mean() == pytest.approx(float(form.latencies.e2e), rel=0.1)


@cache
def of_workers(workers, variation):
    """A plan with so many workers at any rate, and its tables."""
    own = plan(batch=np.inf, prefill_workers=workers)
    rates = Rates(MODEL, CLUSTER, own, CALIBRATION, variation)
    return rates, tables(own, variation, (2200.0, 220.0))


@pytest.mark.parametrize("variation", [0.0, 0.1])
@pytest.mark.parametrize("workers", [1.0, 2.0])
@pytest.mark.parametrize(("share", "count"), [(0.3, 6000), (0.6, 12000), (0.8, 20000)])
def test_random_arrivals_wait_for_a_worker(variation, workers, share, count):
    """The busier, the more its means vary, and the more requests are served."""
    rates, both = of_workers(workers, variation)
    rate = share * rates.most
    found = rates.at(rate)
    assert not found.saturated
    form = found.prediction
    lengths = (spread_lengths(mean, count, variation) for mean in (2000.0, 200.0))
    served = serve_apart(*both, *lengths, arrivals=poisson(rate, count))
    # Two workers whose passes grow with the load are an approximation.
    assert served.ttft.mean() == pytest.approx(float(form.latencies.ttft), rel=0.03 * workers)
    assert served.e2e.mean() == pytest.approx(float(form.latencies.e2e), rel=0.05)
    assert sum(map(float, form.breakdown.values())) == pytest.approx(float(form.latencies.e2e))


def test_workers_that_cannot_keep_up_are_told_and_fall_behind_one_by_one():
    own = plan(batch=np.inf, prefill_workers=1.0)
    rates = Rates(MODEL, CLUSTER, own, CALIBRATION)
    most = rates.most
    assert rates.at(1.05 * most).saturated
    lengths = spread_lengths(2000.0, 6000, 0.1), np.full(6000, 200.0)
    both = tables(own, 0.1, (2200.0, 200.0))
    behind = serve_apart(*both, *lengths, arrivals=poisson(1.2 * most, 6000))
    assert behind.requests_per_s == pytest.approx(most, rel=0.03)
    assert behind.ttft[-600:].mean() > 5 * behind.ttft[:600].mean()
    level = serve_apart(*both, *lengths, arrivals=poisson(0.9 * most, 6000))
    assert level.ttft[-600:].mean() < 5 * level.ttft[:600].mean()


def test_a_fleet_that_broke_its_promise():
    """One worker of two H200 for ten requests a second: 355 ms were promised, a queue without end
    was simulated. Both said the wrong: the passes over several prompts are shorter, and busy."""
    stated = {
        "model": "llama3-70b", "system": "dgx-h200", "gpus": 4, "tp": 2, "precision": "fp8",
        "input_len": 1024, "output_len": 256, "rate": 10, "prefill_workers": 1, "prefill_tp": 2,
    }  # fmt: skip
    asked = complete_serving(parse(ServingPlanSpec, stated, "test"), RunParameters())
    own = asked.plan, load("default")
    found = predict_rate(asked.model, asked.cluster, own[0], 10.0, own[1])
    lengths = [spread_lengths(mean, 20000, 0.1, seed) for seed, mean in ((1, 1024.0), (2, 256.0))]
    longest = tuple(float(values.max()) for values in lengths)
    served = serve_apart(
        read_table(asked.model, asked.cluster, *own),
        pass_table(asked.model, asked.cluster, *own, longest),
        *lengths,
        arrivals=poisson(10.0, 20000),
    )
    assert served.ttft.mean() == pytest.approx(float(found.prediction.latencies.ttft), rel=0.1)
    assert served.ttft[-5000:].mean() < 2.0 * served.ttft[:5000].mean()


def test_shared_workers_one_by_one():
    own = plan(batch=np.inf, tp=4.0, dp=4.0, prefill_workers=2.0)
    found = predict_rate(MODEL, CLUSTER, own, 6.0, CALIBRATION, 0.0)
    assert not found.saturated
    form = found.prediction
    lengths = np.full(16000, 2000.0), np.full(16000, 200.0)
    served = serve_apart(*tables(own), *lengths, arrivals=poisson(6.0, 16000))
    assert len(served.ttft) == 4000
    assert served.ttft.mean() == pytest.approx(float(form.latencies.ttft), rel=0.06)
    assert served.e2e.mean() == pytest.approx(float(form.latencies.e2e), rel=0.1)
    with pytest.raises(InputError, match="as many prefill workers for each of 4 replicas"):
        serve_apart(*tables(own), *lengths, clients=4)


def test_requests_that_cannot_be_served():
    reading, decoding = tables(plan())
    one = np.array([100.0])
    with pytest.raises(InputError, match="at least one client"):
        serve_apart(reading, decoding, one, one)
    with pytest.raises(InputError, match="longer than the cache"):
        serve_apart(reading, decoding, np.array([1e9]), one, clients=1)


def request(**fields):
    base = {"model": "llama3-70b", "system": "dgx-h100", "input_len": 512, "output_len": 128}
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, RunParameters())


def test_accelerators_are_shared_out():
    found = request(gpus=24, tp=8, concurrency=8, prefill_workers=2, kv_gbs=25).plan
    assert (float(found.dp), float(found.prefill_tp), float(found.kv_rate)) == (1.0, 8.0, 25e9)
    assert float(found.gpus) == 24.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefill_workers": 1, "batch": 4}, "state a concurrency or a rate"),
        ({"prefill_workers": 1, "prefill_tp": 3, "concurrency": 4}, "prefill_tp 3 does not divide"),
    ],
)
def test_impossible_splits_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        request(**fields)


def test_a_worker_holds_the_prompt_that_it_reads_and_the_one_that_is_sent():
    """Beside Llama-3 70B in 8 bits, 80 GB have room for one prompt of 4,000 tokens, not for two."""
    fields = {"prefill_tp": 1.0, "weights": "fp8", "output_len": 1.0}
    short, long = (predict(input_len=tokens, **fields).reader for tokens in (1000.0, 4000.0))
    for reader in (short, long):
        assert float(reader.classes["cache"]) == pytest.approx(2 * float(reader.per_sequence))
    assert (float(short.fits), float(long.fits)) == (1.0, 0.0)
