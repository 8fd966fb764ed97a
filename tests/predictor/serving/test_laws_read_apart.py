"""Engines whose prompts are read apart, counted by hand: passes as long as the logarithm of what
they decode says, so that positions between loads are on a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor.arrays import take
from predictor.catalog import load, system
from predictor.memory import serving_memory
from predictor.plans.serving import ServingPlan
from predictor.serving.apart import transfer_time
from predictor.serving.apart_capacities import FULL, Apart, read_apart
from predictor.serving.capacities import LOADS, Promise, poisson_quantile
from predictor.serving.reading import queue
from tests.predictor.dense import dense

MODEL = dense(layers=4, kv_heads=4, ffn_hidden=1024, vocab=2048)
CLUSTER = system("dgx-h100")
QUEUES = [queue(np.array([0.1])), queue(np.array([0.04, 0.06]))]
MOST, FIRST, MORE = np.array([64.0, 16.0]), np.array([0.010, 0.020]), np.array([0.006, 0.003])
OWN_REQUEST = 0.05


def engines(workers: float, **fields: Any) -> tuple[Apart, ServingPlan, np.ndarray]:
    """Two layouts whose passes take FIRST for one sequence and MORE on top for the most, with
    workers of two kinds."""
    given: dict[str, Any] = {
        "input_len": 2000.0, "output_len": 101.0, "dp": np.array([2.0, 4.0]), "serving": 1.0,
        "prefill_workers": np.full(2, workers), "batch": np.array([np.inf, np.inf]), **fields,
    }  # fmt: skip
    plan = ServingPlan(**given)
    step = FIRST[:, None] + MORE[:, None] * np.linspace(0.0, 1.0, LOADS)
    found = Apart(
        model=MODEL, cluster=CLUSTER, plan=plan, most=MOST, step=step, kind=np.array([1, 0]),
        queues=QUEUES, request=OWN_REQUEST,
    )  # fmt: skip
    alone = np.array([QUEUES[1].alone, QUEUES[0].alone])
    return found, plan, transfer_time(MODEL, plan, CLUSTER, alone)[:, None]


def decoding(plan: ServingPlan, number: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Time from a request's first token to its last while so many decode [s]."""
    place = np.log(number) / np.log(MOST[:, None])
    passes = (plan.output_len - 1.0) / np.asarray(plan.tokens_per_pass)
    return passes * (FIRST[:, None] + MORE[:, None] * place) + moved


@pytest.mark.parametrize("fields", [{}, {"drafted": 2.0, "acceptance": 0.7}, {"input_len": 9000.0}])
@pytest.mark.parametrize("workers", [2.0, 40.0, 400.0])
def test_what_an_engine_holds_is_its_rate_times_the_time_in_it(
    workers: float, fields: dict[str, Any]
) -> None:
    """Little's law, of those that wait, are read, sent and decode; as many workers as 400 read all
    that is decoded, two bound it."""
    found, plan, moved = engines(workers, **fields)
    promise = Promise(ttft_share=0.9, tpot_share=0.8)
    told = found.capacity(np.array([0, 1]), np.asarray(plan.prefill_workers), promise)
    met = [QUEUES[kind].at(told.rate[row], workers) for row, kind in enumerate((1, 0))]
    before = np.array([one.wait + one.read for one in met])
    decoded = told.running - told.rate * before
    number = decoded / np.asarray(plan.dp)[:, None]
    assert told.rate * decoding(plan, number, moved) == pytest.approx(decoded)
    assert number[:, 0] == pytest.approx(1.0), "loads begin at one sequence of each replica"
    assert (np.diff(told.rate, axis=1) > 0).all()
    # They end at the most, or close to what workers read: a rate that grows faster than its
    # position is below the line between two loads.
    bound = FULL * workers * np.array([QUEUES[1].most, QUEUES[0].most])
    full = np.asarray(plan.dp) * MOST / decoding(plan, MOST[:, None], moved)[:, 0]
    reached = np.minimum(full, bound)
    assert (told.rate[:, -1] <= bound * (1.0 + 1e-9)).all()
    assert told.rate[:, -1] == pytest.approx(reached, rel=0.01)
    assert number[bound > full, -1] == pytest.approx(MOST[bound > full])
    # While the most decode, so many workers as read what comes are busy.
    spent = decoding(plan, MOST[:, None], 0.0 * moved)[:, 0]
    read = found.busiest() * bound / FULL / workers
    assert read * spent == pytest.approx(np.asarray(plan.dp) * MOST)
    # Latencies: the first token when it is read, the others as when so many decode as a share of
    # requests does not exceed.
    first = np.array([one.quantile(promise.ttft_share) for one in met])
    assert told.ttft == pytest.approx(first + OWN_REQUEST)
    slow = np.minimum(poisson_quantile(number, promise.tpot_share), MOST[:, None])
    assert told.tpot == pytest.approx(decoding(plan, slow, moved) / (plan.output_len - 1.0))
    assert told.used == pytest.approx(np.array([one.busy for one in met]))


def test_rows_are_asked_for_in_any_order() -> None:
    found = engines(40.0)[0]
    workers = np.array([40.0, 3.0])
    both = found.capacity(np.array([1, 0]), workers, Promise())
    for row, (at, count) in enumerate(zip((1, 0), workers, strict=True)):
        one = found.capacity(np.array([at]), np.array([count]), Promise())
        for name in ("rate", "ttft", "tpot", "running", "used"):
            assert getattr(both, name)[row] == pytest.approx(getattr(one, name)[0]), name


def test_plans_of_a_batch_are_each_as_by_themselves() -> None:
    """Layouts and kinds of workers that several plans share are looked at once."""
    known = load("none")
    plans = ServingPlan(
        batch=np.full(5, np.inf), input_len=2000.0, output_len=101.0, serving=1.0, max_batch=48.0,
        tp=np.array([4.0, 1.0, 2.0, 2.0, 4.0]), dp=np.array([1.0, 2.0, 1.0, 2.0, 1.0]),
        prefill_tp=np.array([2.0, 1.0, 1.0, 2.0, 1.0]), prefill_workers=np.full(5, 1.0),
    )  # fmt: skip
    every = read_apart(MODEL, CLUSTER, plans, known)
    promise, few = Promise(), np.full(1, 3.0)
    for row in range(5):
        one = read_apart(MODEL, CLUSTER, take(plans, np.array([row])), known)
        assert every.most[row] == pytest.approx(one.most[0])
        assert every.step[row] == pytest.approx(one.step[0])
        told, alone = (
            every.capacity(np.array([row]), few, promise),
            one.capacity(np.array([0]), few, promise),
        )
        assert told.rate == pytest.approx(alone.rate)
        assert told.ttft == pytest.approx(alone.ttft)
        # So small a model leaves room for more than the engine takes at a time.
        assert one.most[0] == 48.0
        assert (np.diff(one.step[0]) > 0).all()


@pytest.mark.parametrize("admission", ["whole", "growing"])
def test_what_decodes_at_a_time_has_room(admission: str) -> None:
    """On a replica; at least one sequence, which a plan that fits has room for."""
    model = dense(layers=32, heads=64, head_dim=128, ffn_hidden=16384, vocab=32000)
    plan = ServingPlan(
        batch=np.full(2, np.inf), input_len=20000.0, output_len=20000.0, serving=1.0, tp=4.0,
        dp=np.array([1.0, 2.0]), prefill_workers=1.0, max_batch=4096.0, admission=admission,
    )  # fmt: skip
    known = load("none")
    found = read_apart(model, CLUSTER, plan, known)
    memory = serving_memory(model, CLUSTER, plan, known.run)
    room = memory.sequences if admission == "whole" else memory.admitted
    assert found.most == pytest.approx(np.maximum(room / plan.dp, 1.0))
    assert (found.most < 4096.0).all()
