"""Workers that read prompts: their queue against theory and against passes one by one; by hand."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.plans.serving import ServingPlan
from predictor.serving.apart_events import serve_apart
from predictor.serving.clients import poisson
from predictor.serving.reading import ReadTable, _steady, erlang, queue, read_table
from predictor.serving.tables import PassTable
from tests.predictor.dense import dense
from tests.predictor.serving.bare import bare

LINEAR = 0.02 + 0.08 * np.arange(1.0, 9.0)
"""Passes over prompts that fill the device by themselves."""

SHORT = 0.02 + 0.01 * np.arange(1.0, 33.0)
"""Passes over prompts that do not."""


REQUESTS = 200_000


def one_by_one(times, rate):
    """Mean and P90 of the time from arrival to the end of the pass, of a worker that reads all that
    wait for it, as many as there is room for."""
    came, lasting = poisson(rate, REQUESTS), times.tolist()
    arrivals, done, ends, sizes = came.tolist(), 0.0, [], []
    at = 0
    while at < REQUESTS:
        start = max(done, arrivals[at])
        end = bisect_right(arrivals, start, at + 1, min(at + len(lasting), REQUESTS))
        done = start + lasting[end - at - 1]
        ends.append(done)
        sizes.append(end - at)
        at = end
    spent = np.repeat(ends, sizes) - came
    return np.mean(spent), np.quantile(spent, 0.9)


def in_turn(time, workers, rate):
    """Mean of the same where workers read one prompt at a time, which all take as long: the next is
    read when the one before it by as many as there are workers is, so that these take turns, and
    each ends behind a row of turns without a gap, whichever began last (Lindley 1952)."""
    came = poisson(rate, REQUESTS).reshape(-1, workers)
    turns = time * np.arange(len(came))[:, None]
    return np.mean(turns + time + np.maximum.accumulate(came - turns) - came)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.85, 0.95, 0.99, 0.999])
def test_room_for_one_prompt_is_pollaczeks_queue(share):
    met = queue(np.array([2.0])).at(share / 2.0, 1.0)
    assert float(met.wait) == pytest.approx(share * 2.0 / (2.0 * (1.0 - share)), rel=2e-3)
    assert (float(met.read), float(met.busy)) == pytest.approx((2.0, share))


def test_all_workers_are_busy_as_often_as_erlang_says():
    assert erlang(np.array([1.0, 2.0]), np.array([0.4, 0.5])) == pytest.approx([0.4, 1 / 3])
    # Ten lines, eight erlangs: 0.409 in the tables.
    assert float(erlang(np.array(10.0), np.array(0.8))) == pytest.approx(0.409, abs=1e-3)


@pytest.mark.parametrize("times", [LINEAR, SHORT, np.array([0.3])], ids=["long", "short", "one"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.7, 0.85])
def test_a_workers_queue_is_that_of_passes_one_by_one(times, share):
    own = queue(times)
    met = own.at(share * own.most, 1.0)
    mean, slow = one_by_one(times, share * own.most)
    assert float(met.wait + met.read) == pytest.approx(mean, rel=0.03)
    # What is promised to nine of ten is kept, and not twice as good.
    assert slow * 0.88 < float(met.quantile(0.9)) < slow * 1.3


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.85])
def test_several_workers_with_room_for_one_prompt(workers, share):
    own = queue(np.array([0.3]))
    met = own.at(share * own.most * workers, float(workers))
    mean = in_turn(0.3, workers, share * own.most * workers)
    assert float(met.wait + met.read) == pytest.approx(mean, rel=0.02)


def test_waits_grow_with_the_rate_and_shrink_with_workers():
    own = queue(LINEAR)
    rates = np.linspace(0.05, 0.999, 60) * own.most
    met = own.at(rates, 1.0)
    assert np.all(np.diff(met.wait) > 0)
    assert np.all(np.diff(met.quantile(0.9)) > -1e-12)
    many = own.at(0.9 * own.most, np.arange(1.0, 9.0))
    assert np.all(np.diff(many.wait) < 0)


def test_a_slow_link_bounds_what_a_worker_reads():
    fast, slow = queue(LINEAR), queue(LINEAR, sending=0.2)
    assert fast.most == pytest.approx(8.0 / LINEAR[-1])
    assert slow.most == pytest.approx(1.0 / 0.2)


PLAN = ServingPlan(
    batch=8.0, input_len=100.0, output_len=11.0, chunk=1000.0, prefill_workers=1.0, prefill_tp=1.0
)
DECODING = PassTable(
    running=[1.0, 8.0],
    contexts=[0.0, 1e6],
    decode=[[1.0, 1.0]] * 2,
    lengths=[1.0, 1e4],
    prompt=[0.0] * 2,
    alone=[0.0] * 2,
    core=[0.0] * 2,
    tokens=[1.0, 1e4],
    beside=[[0.0, 0.0]] * 2,
    pool=1e9,
    plan=PLAN,
    own=bare(),
)


def served(arrivals, sending=0.0, plan=PLAN, sizes=(1.0, 2.0, 3.0)):
    """A pass over one prompt takes 2 s, over two 3 s, over three 4 s; decoding 1 s per token."""
    times = [[1.0 + size] * 2 for size in sizes]
    table = ReadTable(
        sizes=list(sizes), lengths=[0.0, 1e4], times=times, sending=sending, layers=2.0, plan=plan,
        request=0.0, variation=0.0,
    )  # fmt: skip
    count = len(arrivals)
    lengths = np.full(count, 100.0), np.full(count, 11.0)
    return serve_apart(table, replace(DECODING, plan=plan), *lengths, np.array(arrivals))


def test_prompts_that_wait_are_read_together_by_hand():
    # The first is read alone until 2; the three that came meanwhile until 6, the last after it.
    found = served([0.0, 0.5, 1.0, 1.5, 1.9])
    assert found.first.tolist() == [2.0, 6.0, 6.0, 6.0, 8.0]
    assert found.last[0] == pytest.approx(12.0)


def test_two_workers_and_room_for_the_tokens_of_two_prompts_by_hand():
    plan = replace(PLAN, prefill_workers=2.0, chunk=200.0)
    found = served([0.0, 0.1, 0.5, 1.0, 1.5], plan=plan)
    assert found.first.tolist() == pytest.approx([2.0, 2.1, 5.0, 5.0, 4.1])


def test_caches_leave_layer_by_layer_one_pass_after_the_other_by_hand():
    """A cache of two layers takes 5.5 s, a prompt 2 s: the first layer leaves 1 s after the start,
    all has arrived at 6.5 s. The second prompt is read at 4 s, its cache leaves behind the first:
    at 12 s. The third prompt is read when the first cache is gone."""
    found = served([0.0, 0.1, 2.5], sending=5.5, sizes=(1.0,))
    assert found.first.tolist() == [2.0, 4.0, 8.5]
    assert found.last[0] == pytest.approx(6.5 + 10.0)
    # It joins the first pass that starts after 12 s, half a second later.
    assert found.last[1] == pytest.approx(12.5 + 10.0)


@pytest.mark.parametrize("come", [0.2, 1.0, 3.0])
def test_what_comes_beyond_the_last_state_stays_in_it(come):
    """A pass takes all that wait, so that what waits after it is what came in it: Poisson's chances
    of 0 and 1, and all the rest in the last of three states."""
    found = _steady(np.array([come]), np.array([1, 1, 1]), np.array([0, 0, 0]))
    none, one = np.exp(-come), come * np.exp(-come)
    assert found == pytest.approx([none, one, 1.0 - none - one])


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 4096, 5000])
def test_numbers_of_prompts_grow_by_no_more_than_half_between_two_nodes(most: int) -> None:
    """From one to two, then by a half and a third in turn, however many a pass has room for."""
    own = replace(PLAN, input_len=8.0, chunk=8.0 * most)
    machines = catalog.system("dgx-h100")
    sizes = np.array(read_table(dense(layers=4), machines, own, load("none"), 0.0).sizes)
    powers = {float(2**n) for n in range(13) if 2**n <= most}
    halves = {1.5 * power for power in powers - {1.0} if 1.5 * power <= most}
    assert set(sizes.tolist()) == powers | halves | {float(most)}
    assert (sizes[1:] <= np.maximum(1.5 * sizes[:-1], 2.0)).all()
