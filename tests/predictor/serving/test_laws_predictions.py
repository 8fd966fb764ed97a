"""What predictions of serving are made of, each counted from the others: loads, micro-batches,
parts of a latency, what they draw."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.plans.serving import ServingPlan
from predictor.power import Conditions
from predictor.serving.activities import serving_activity
from predictor.serving.capacities import Capacity, Promise
from predictor.serving.latency import latencies
from predictor.serving.parts import COMMUNICATION, COMPUTE, TERMS, Pass
from predictor.serving.pass_times import Arriving, decode_time, prompt_time
from predictor.serving.pass_works import (
    PassWork,
    _bound,
    _sent,
    _shared,
    _widened,
    decode_work,
    prompt_work,
)
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import (
    InferencePrediction,
    _breakdown,
    _load,
    predict_inference,
)
from predictor.work import pass_collectives

NONE = load("none")
LLAMA, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 16.0, "input_len": 800.0, "output_len": 100.0, "serving": 1.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def predicted(**fields: object) -> InferencePrediction:
    return predict_inference(LLAMA, DGX, plan(**fields), NONE)


def memory(sequences: float, admitted: float, entered: float) -> Any:
    return SimpleNamespace(
        sequences=np.asarray(sequences), admitted=np.asarray(admitted), entered=np.asarray(entered)
    )


def loaded(room: tuple[float, float, float] = (10.0, 20.0, 30.0), **fields: object) -> list[float]:
    found = _load(plan(**fields), memory(*room))
    names = ("clients", "running", "static", "started", "batches", "sequences")
    return [float(getattr(found, name)) for name in names]


def test_as_many_run_as_there_is_room_for() -> None:
    """Of forty clients of two replicas, twenty each: five where whole requests are kept free, ten
    of mean length, no more than the engine's own limit; of a static batch that does not count."""
    two = {"batch": 40.0, "dp": 2.0}
    assert loaded(**two, admission="whole") == [20.0, 5.0, 0.0, 5.0, 1.0, 5.0]
    assert loaded(**two, admission="mean") == [20.0, 10.0, 0.0, 15.0, 1.0, 10.0]
    assert loaded(**two, admission="mean", max_batch=7.0)[1] == 7.0
    assert loaded(**two, admission="mean", max_batch=7.0, serving=0.0)[1:3] == [10.0, 1.0]
    assert loaded((1e4,) * 3, **two, admission="mean")[1] == 20.0
    endless = loaded((1e4,) * 3, batch=math.inf, serving=0.0, max_batch=9.0)
    assert endless[:2] == [math.inf, 9.0]
    assert loaded((1.0, 1.0, 1.0), **two)[1] == 20.0  # not even one fits: as on a larger device


def test_micro_batches_share_what_runs_among_stages() -> None:
    """Four stages: four parts of five; of three that run three of one. Where prompts ride along,
    passes of 250 tokens let 250 / 800 of a prompt in, of which each stays for 99."""
    assert loaded((1e4,) * 3, batch=20.0, pp=4.0)[4:] == [4.0, 5.0]
    assert loaded((1e4,) * 3, batch=3.0, pp=4.0)[4:] == [3.0, 1.0]
    few = loaded((1e4,) * 3, batch=200.0, batching="mixed", chunk=250.0, max_batch=512.0)
    assert few[5] == pytest.approx(99 * 250 / 800)
    assert loaded((1e4,) * 3, batch=200.0, batching="apart", chunk=250.0, max_batch=512.0)[5] == 200
    short = loaded((1e4,) * 3, batch=200.0, batching="mixed", chunk=8.0, output_len=2.0)
    assert short[5] == 1.0


@pytest.mark.parametrize(
    ("more", "fill"),
    [({"pp": 4.0}, 1.0 / 4.0 - 1.0), ({"pp": 4.0, "batch": 2.0}, 1.0 / 2.0 - 1.0), ({}, 0.0)],
)
def test_prompts_of_a_load_follow_each_other_through_stages(more: dict, fill: float) -> None:
    """Parts of all stages at a time: each takes a part of what it takes by itself."""
    assert float(predicted(**more).work.fill) == pytest.approx(fill)


def test_parts_of_a_static_batch_fill_the_stages_once() -> None:
    """Two stages, two parts of eight: (2 + 1 / passes) / 2 of what all take through both; as many
    passes follow each other as there are, up to the plan's window."""
    found = predicted(pp=2.0, serving=0.0, chunk=1600.0)
    passes = float(found.work.prompts.passes)
    assert passes == 4.0  # eight prompts of 800 tokens, two to a pass
    following = min(passes, float(found.plan.window))
    assert float(found.work.fill) == pytest.approx((2.0 + 1.0 / following) / 2.0 - 1.0)


@pytest.mark.parametrize(
    "more", [{}, {"serving": 0.0}, {"tp": 4.0}, {"batch": 64.0, "max_batch": 9.0}]
)
def test_a_latency_is_its_parts(more: dict) -> None:
    """Its own prompt's passes and its own decoding by term; the host beside them; its wait; what
    others' prompts add."""
    found = predicted(**more)
    own, work, told = found.parameters, found.work, found.breakdown
    share = 1.0 if "serving" in more else 1.0 / float(work.together)
    after = 99.0 / float(work.per_pass)
    device = 0.0
    for name in TERMS:
        read, made = (
            (own.communication,) * 2 if name in COMMUNICATION else (own.prefill, own.decode)
        )
        part = share * read * float(found.prompts.terms[name])
        part += after * made * float(found.decoding.terms[name])
        assert float(told[name]) == pytest.approx(part)
        device += part
    asked = 0.0 if "serving" in more else float(work.launching * own.request)
    alone = asked + share * float(prompt_time(work, own)) + after * float(found.latencies.step)
    assert float(told["host"]) == pytest.approx(alone - device)
    assert float(told["queue"]) == float(found.latencies.queue)
    assert sum(map(float, told.values())) == pytest.approx(float(found.latencies.e2e))
    assert float(told["others"]) == pytest.approx(
        float(found.latencies.e2e) - alone - float(found.latencies.queue)
    )


def test_rates_and_intervals_by_hand() -> None:
    found = predicted(dp=2.0)
    each = 2.0 * float(found.latencies.requests_per_s)
    assert float(found.requests_per_s) == each
    assert float(found.output_tokens_per_s) == 100.0 * each
    assert float(found.total_tokens_per_s) == 900.0 * each
    own = replace(
        found, sigma={**found.sigma, "ttft": np.asarray(0.1), "ttft.late": np.asarray(0.3)}
    )
    q = own.calibration.interval_q
    low, high = own.interval("ttft", np.asarray(2.0))
    assert (float(low), float(high)) == pytest.approx(
        (2 * math.exp(-0.1 * q), 2 * math.exp(0.3 * q))
    )


def one_pass(by: float, sigma: float = 0.1) -> Pass:
    return Pass(
        {name: np.asarray(by * (at + 1.0)) for at, name in enumerate(TERMS)}, np.asarray(10.0 * by),
        {"gemm": (np.asarray(by), np.asarray(sigma))},
    )  # fmt: skip


def test_passes_add_up_and_repeat() -> None:
    first, second = one_pass(1.0, 0.1), one_pass(2.0, 0.3)
    assert float(first.compute) == sum(at + 1.0 for at, n in enumerate(TERMS) if n in COMPUTE)
    assert float(first.compute + first.communication) == 45.0
    both = first.plus(second)
    assert [float(both.terms[n]) for n in TERMS] == [3.0 * (at + 1) for at in range(len(TERMS))]
    assert float(both.kernels) == 30.0
    assert [float(v) for v in both.families["gemm"]] == [3.0, 0.3]
    other = replace(second, families={"norm": (np.asarray(2.0), np.asarray(0.3))})
    assert set(first.plus(other).families) == {"gemm", "norm"}
    twice = first.times(2.0)
    assert float(twice.compute) == 2.0 * float(first.compute)
    assert [float(v) for v in twice.families["gemm"]] == [2.0, 0.1]
    assert float(twice.kernels) == 20.0
    most = first.at_least(second)
    assert [float(most.terms[n]) for n in TERMS] == [2.0 * (at + 1) for at in range(len(TERMS))]
    assert [float(v) for v in most.families["gemm"]] == [2.0, 0.1]
    assert float(most.kernels) == 10.0


def test_ranks_send_what_rings_send() -> None:
    """An all-reduce sends its message twice but for a rank's part, all else once."""
    own = plan(tp=4.0)
    whole = sum(
        (2.0 if c.op == "allreduce" else 1.0) * 0.75 * float(np.asarray(c.bytes) * c.count)
        for c in pass_collectives(LLAMA, own, 64.0, 8.0)
    )
    assert whole > 0.0
    assert float(_sent(LLAMA, own, 64.0, 8.0)) == pytest.approx(whole)
    assert float(_sent(LLAMA, plan(), 64.0, 8.0)) == 0.0


def test_work_of_a_pass_by_hand() -> None:
    one = PassWork(*(np.asarray(v) for v in (8e12, 4e9, 2e8, 6e8, 0.5)))
    part = _shared(one, 4.0)
    assert [float(getattr(part, f.name)) for f in fields(PassWork)] == [2e12, 1e9, 5e7, 1.5e8, 0.5]
    assert float(_bound(one, 4e12, 1e9).core) == pytest.approx(2.0 / 6.0)
    product = SimpleNamespace(m=np.asarray(200.0), flop=np.asarray(2.0 * 200 * 3e6))
    assert float(_widened(product)) == pytest.approx(2 * 3e6)  # type: ignore[arg-type]
    few = SimpleNamespace(m=np.asarray(128.0), flop=np.asarray(2.0 * 128 * 3e6))
    assert float(_widened(few)) == pytest.approx(3e6)  # type: ignore[arg-type]
    whole, half = (decode_work(predicted(pp=pp), 8.0) for pp in (1.0, 2.0))
    assert float(half.flop) == pytest.approx(0.5 * float(whole.flop))


@pytest.mark.parametrize("more", [{}, {"tp": 4.0}])
@pytest.mark.parametrize("measured", [None, 0.7])
def test_a_second_of_static_batches_by_hand(more: dict, measured: float | None) -> None:
    """Prompts by their time, up to 95 of a hundred; decoding as long as it takes; work and rates of
    both."""
    found = predicted(**more, serving=0.0)
    rate = None if measured is None else measured * float(found.output_tokens_per_s)
    requests = float(found.latencies.requests_per_s) * (measured or 1.0)
    act = serving_activity(found, rate)
    own, work = found.parameters, found.work
    sequences = float(work.sequences)
    passes = requests * 99.0 / sequences
    assert (float(act.prompts), float(act.passes)) == pytest.approx((requests, passes))
    reading = min(requests * float(prompt_time(work, own) / work.together), 0.95)
    decoding = passes * float(found.latencies.step)
    rest = min(decoding, 1.0 - reading)
    assert float(act.share["idle"]) == pytest.approx(1.0 - reading - rest, abs=1e-12)
    prompt, step = prompt_work(found), decode_work(found, sequences)
    for phase, whole, each, count, talk in (
        ("prefill", reading, prompt, requests, work.prompts.communication / work.together),
        ("decode", rest, step, passes, work.decoding.communication),
    ):
        talks = min(count * own.communication * float(talk) / whole, 1.0)
        kernels = act.activity[phase]
        assert float(kernels.time) == pytest.approx(whole * (1.0 - talks))
        assert float(act.share[phase]) == float(kernels.time)
        assert float(np.asarray(kernels.flop)) == pytest.approx(count * float(each.flop))
        assert float(np.asarray(kernels.bytes)) == pytest.approx(count * float(each.bytes))
        assert float(np.asarray(kernels.core)) == float(each.core)
        if "tp" in more:
            wires = act.activity[f"{phase}.exchange"]
            assert float(wires.time) == pytest.approx(whole * talks)
            assert float(np.asarray(wires.link)) == pytest.approx(count * float(each.link))
            assert float(np.asarray(wires.spinning)) == 1.0
    decode = act.activity["decode"]
    assert float(np.asarray(decode.rows)) == pytest.approx(sequences)
    assert float(np.asarray(act.activity["prefill"].rows)) == pytest.approx(
        float(work.together) * 800.0
    )
    busy = passes * float(decode_time(work, own))
    halted = min(max(1.0 - busy / rest, 0.0), 1.0)
    alone = float(decode.time) / rest
    assert float(np.asarray(decode.halted)) == pytest.approx(min(halted / alone, 1.0))


def test_what_no_condition_slows_stays_and_what_one_slows_keeps_its_parts() -> None:
    found = predicted()
    free = serving_power(found, Conditions())
    assert limited(found, free, Conditions()) is found
    for conditions in (Conditions(limit=300.0), Conditions(clock=1e9)):
        slow = limited(found, serving_power(found, conditions), conditions)
        again = latencies(slow.work, slow.parameters)
        for one in fields(again):
            value = float(getattr(again, one.name))
            assert float(getattr(slow.latencies, one.name)) == pytest.approx(value, rel=1e-6)
        assert sum(map(float, slow.breakdown.values())) == pytest.approx(float(slow.latencies.e2e))
        assert float(slow.latencies.e2e) > float(found.latencies.e2e)
    slow_arrivals = replace(found.latencies, requests_per_s=np.asarray(0.5))
    met = Arriving(found.work, np.asarray(0.5))
    rated = replace(found, latencies=slow_arrivals, arriving=met)
    own = limited(rated, serving_power(rated, Conditions(limit=300.0)), Conditions(limit=300.0))
    assert float(own.latencies.requests_per_s) == 0.5


def test_a_load_is_kept_where_both_latencies_are() -> None:
    rate = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    ttft = np.array([[0.1, 0.2, 0.9], [0.6, 0.7, 0.9]])
    own = Capacity(rate, ttft, 0.01 * rate, rate, rate)
    promise = Promise(ttft=0.5, tpot=0.025)
    assert own.kept(promise).tolist() == [[True, True, False], [False, False, False]]
    assert own.best(promise).tolist() == [1, 0]
    assert own.take(np.array([1])).ttft.tolist() == [[0.6, 0.7, 0.9]]


@pytest.mark.parametrize(("factor", "reads"), [("prefill", True), ("decode", False)])
def test_terms_of_a_request_are_passes_by_what_the_engine_takes_longer(
    factor: str, reads: bool
) -> None:
    """Kernels of its prompt by one factor, of the tokens after the first by the other."""
    found = predicted()
    usual = found.parameters
    slower = replace(usual, **{factor: 3.0 * getattr(usual, factor)})
    parts = (found.prompts, found.decoding, found.work, found.latencies)
    before, after = (_breakdown(*parts, own) for own in (usual, slower))
    times = 1.0 / float(found.work.together) if reads else float(found.work.output_len) - 1.0
    passes = found.prompts if reads else found.decoding
    for name in COMPUTE:
        more = 2.0 * getattr(usual, factor) * times * float(passes.terms[name])
        assert float(after[name] - before[name]) == pytest.approx(more, rel=1e-9), name
    for name in COMMUNICATION:
        assert float(after[name]) == float(before[name]), name
