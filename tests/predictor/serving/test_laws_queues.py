"""Queues of prompts by hand: who waits, how long, and what a worker reads at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.serving import ServingPlan
from predictor.serving.apart_events import serve_apart
from predictor.serving.capacities import (
    Promise,
    poisson_quantile,
)
from predictor.serving.events import serve
from predictor.serving.prediction import predict_inference
from predictor.serving.reading import USED, PromptWaits, ReadTable, queue
from predictor.serving.tables import pass_table
from tests.predictor.serving.test_laws_serving import served


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("mean", [4.0, 9.0, 25.0, 100.0])
def test_poissons_quantiles_are_those_of_its_sum(mean: float, share: float) -> None:
    """Between the largest number that falls short of the share and the next, within a fifth."""
    total, number, each = 0.0, 0, math.exp(-mean)
    while total + each < share:
        total += each
        number += 1
        each *= mean / number
    low, high = number - 1, number
    part = (share - total) / each
    found = float(poisson_quantile(mean, share))
    assert found == pytest.approx(max(low + part + 0.5, mean), abs=0.2)
    assert low <= found <= high + 1
    assert float(poisson_quantile(mean, 0.5)) == mean


def test_waits_are_exponential_beyond_those_who_do_not_wait() -> None:
    """Of those that wait for prompts read apart."""
    promise = Promise()
    assert (promise.ttft, promise.tpot) == (math.inf, math.inf)
    assert promise.ttft_share == promise.tpot_share == 0.9
    met = PromptWaits(*(np.array(v) for v in (0.5, 0.25, 2.0, 4.0, 0.3)))
    assert float(met.read) == pytest.approx(0.75 * 2 + 0.25 * 4)
    # Of the quarter that waits 2 s and reads 2 s longer, two fifths are among the slowest tenth.
    assert float(met.quantile(0.9)) == pytest.approx(2 + 4 * math.log(2.5))
    assert float(met.quantile(0.7)) == 2.0


def test_a_queue_at_no_load_and_at_the_brim() -> None:
    own = queue(np.array([2.0, 3.0]))
    assert own.most == pytest.approx(2 / 3)
    idle = own.at(1e-6, 1.0)
    assert float(idle.wait) == pytest.approx(0.0, abs=1e-5)
    assert float(idle.read) == pytest.approx(2.0, rel=1e-4)
    assert float(idle.busy) == pytest.approx(2e-6, rel=0.1)
    assert float(own.at(0.99 * own.most, 1.0).wait) > 20 * float(own.at(0.7 * own.most, 1.0).wait)
    # A link that takes 4 s for each prompt's cache sets the pace.
    slow = queue(np.array([2.0, 3.0]), 4.0)
    assert slow.most == pytest.approx(1 / 4)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.05])
def test_few_prompts_wait_as_pollaczek_says(share: float) -> None:
    met = queue(np.array([2.0])).at(share / 2.0, 1.0)
    assert float(met.wait) == pytest.approx(share * 2.0 / (2.0 * (1.0 - share)), rel=2e-3)


def test_lengths_even_out_in_a_pass_over_several_prompts() -> None:
    """Passes that grow with the square of the mean length, which is uniform within v of one for one
    prompt and within v over two for four: 1 + v^2 / 3, and 1 + v^2 / 12."""
    lengths = np.linspace(0.4, 1.6, 2001)
    own = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0)
    squares = (lengths**2).tolist()
    table = ReadTable(
        sizes=[1.0, 4.0], lengths=lengths.tolist(), times=[squares, squares], sending=0.0,
        layers=1.0, plan=own, request=0.0, variation=0.6,
    )  # fmt: skip
    found = table.queue()
    assert found.alone == pytest.approx(1 + 0.36 / 3, rel=1e-3)
    assert found.most == pytest.approx(4 / (1 + 0.36 / 12), rel=1e-3)


def test_passes_of_workers_take_new_tokens_up_to_a_chunk() -> None:
    """Half of each prompt of 100 is cached: two fill a pass of 100 tokens."""
    own = ServingPlan(batch=8.0, input_len=100.0, output_len=10.0, chunk=100.0, cached=0.5,
                      prefill_workers=1.0)  # fmt: skip
    reading = ReadTable(
        sizes=[1.0, 4.0], lengths=[100.0], times=[[2.0], [5.0]], sending=0.0, layers=1.0, plan=own,
        request=0.0, variation=0.0,
    )  # fmt: skip
    found = serve_apart(reading, replace(served(), plan=own), np.full(3, 100.0), np.full(3, 10.0),
                        np.zeros(3))  # fmt: skip
    assert found.first.tolist() == pytest.approx([3.0, 3.0, 5.0])


def test_no_more_requests_decode_than_passes_have_room_to_read():
    """Answers of 129 tokens behind prompts of 2,048, four to a pass of 8,192: after 128 passes a
    request leaves, so that 512 of the 2,048 that are let in decode; requests served one by one
    carry as many, within a tenth. Prompts in passes of their own, and static batches, hold none
    back."""
    model, cluster, known = catalog.model("llama3-70b"), catalog.system("dgx-h200"), load("default")
    plan = ServingPlan(
        batch=np.inf, serving=1.0, input_len=2048.0, output_len=129.0, max_batch=2048.0, tp=8.0,
        chunk=8192.0, batching="mixed", scheduling="overlapped", weights="fp8", kv="fp8",
        admission="whole",
    )  # fmt: skip
    found = predict_inference(model, cluster, plan, known)
    assert float(found.work.running) == 2048.0
    assert float(found.work.sequences) == pytest.approx(512.0)
    table = pass_table(model, cluster, plan, known, (2048.0, 129.0))
    count = 6000
    served = serve(table, np.full(count, 2048.0), np.full(count, 129.0), clients=3000)
    ends = np.sort(served.last)
    most = (count // 2) / float(ends[3 * count // 4] - ends[count // 4])
    assert float(found.latencies.requests_per_s) == pytest.approx(most, rel=0.1)
    for other in (replace(plan, batching="apart"), replace(plan, batch=256.0, serving=0.0)):
        free = predict_inference(model, cluster, other, known)
        assert float(free.work.sequences) == pytest.approx(float(free.work.running))


@pytest.mark.parametrize(
    ("prompt", "many"), [(1000.0, 8.0), (3000.0, 2.0), (4096.0, 2.0), (5000.0, 1.0), (9000.0, 1.0)]
)
def test_a_pass_reads_whole_prompts_as_many_as_its_chunk_holds(prompt: float, many: float) -> None:
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    asked = ServingPlan(batch=32.0, input_len=prompt, output_len=100.0, serving=1.0, chunk=8192.0)
    found = predict_inference(model, cluster, asked, load("none"))
    assert float(found.work.together) == many == max(8192.0 // prompt, 1.0)


def test_queues_are_solved_at_shares_close_together() -> None:
    """From none to all of a worker's capacity, a tenth apart at most."""
    steps = np.diff([0.0, *USED, 1.0])
    assert (steps > 0).all()
    assert steps.max() <= 0.1 + 1e-9
