"""Requests one by one, and serving at a rate: against each other and by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.plans.serving import ServingPlan
from predictor.serving.clients import poisson, spread_lengths
from predictor.serving.events import serve
from predictor.serving.prediction import predict_inference
from predictor.serving.rates import Rates, predict_rate
from predictor.serving.tables import Lookup, PassTable, pass_table
from predictor.timing.engines import ServingParameters
from tests.predictor.serving.bare import BARE

CALIBRATION = replace(load("default"), serving=ServingParameters())
MODEL, CLUSTER = catalog.model("llama3-70b"), catalog.system("dgx-h100")


def plan(**fields):
    base = {"batch": 8.0, "input_len": 1000.0, "output_len": 200.0, "tp": 8.0, "serving": 1.0}
    return ServingPlan(**{**base, **fields})


def table(pool=1e9, most=64.0, chunk=1000.0, admission="mean", each=0.0):
    """A pass takes 1 s, and `each` s more per sequence; a prompt 0.01 s per token."""
    own = ServingPlan(
        batch=most, input_len=100.0, output_len=10.0, chunk=chunk, admission=admission
    )
    rows = [[1.0 + each * many] * 2 for many in (1.0, most)]
    costs = [0.1, 100.0]
    return PassTable(
        running=[1.0, most], contexts=[0.0, 1e6], decode=rows, lengths=[10.0, 1e4], prompt=costs,
        alone=costs, core=[0.0, 0.0], tokens=[10.0, 1e4], beside=[costs, costs], pool=pool,
        plan=own, own=BARE,
    )  # fmt: skip


def test_one_request_by_hand():
    found = serve(table(), np.array([100.0]), np.array([11.0]), clients=1)
    assert found.ttft[0] == pytest.approx(1.0)
    assert found.tpot[0] == pytest.approx(1.0)
    assert found.e2e[0] == pytest.approx(11.0)


def test_a_prompt_delays_those_who_decode():
    # The second comes at 3 s: the pass under way ends at 4, its own takes 1 s and 1 s of prompt.
    found = serve(table(), np.full(2, 100.0), np.array([11.0, 3.0]), arrivals=np.array([0.0, 2.5]))
    assert found.ttft[1] == pytest.approx(3.0 - 2.5 + 2.0)
    assert found.e2e[0] == pytest.approx(12.0)


def test_passes_that_are_prepared_ahead_take_a_request_up_one_later():
    # The second comes at 2.5 s, in a pass that ends at 3; the next one is prepared by then and ends
    # at 4; the one after has its prompt, too.
    own = table()
    own = replace(own, plan=replace(own.plan, scheduling="overlapped"))
    found = serve(own, np.full(2, 100.0), np.array([11.0, 3.0]), arrivals=np.array([0.0, 2.5]))
    assert found.first[1] == pytest.approx(4.0 + 2.0)
    # An idle engine has prepared nothing.
    assert found.first[0] == pytest.approx(1.0)


def test_a_closed_loop_begins_with_all_clients_at_once():
    """Of ten requests a client the first meets those of all others: the closed form against
    requests one by one, whose lengths are uniform within a ninth of the mean."""
    for clients in (4, 16, 64):
        own = plan(batch=float(clients), synchrony=0.1, scheduling="overlapped")
        lengths = [spread_lengths(m, 10 * clients, 1 / 9, i) for i, m in enumerate((1000, 200), 1)]
        served = serve(
            pass_table(MODEL, CLUSTER, own, CALIBRATION, (1120.0, 230.0)), *lengths, clients=clients
        )
        closed = predict_inference(MODEL, CLUSTER, own, CALIBRATION).latencies
        assert float(closed.ttft) == pytest.approx(served.ttft.mean(), rel=0.2)
        assert float(closed.tpot) == pytest.approx(served.tpot.mean(), rel=0.07)


def test_prompts_longer_than_a_chunk_take_several_passes():
    found = serve(table(chunk=100.0), np.array([1000.0]), np.array([1.0]), clients=1)
    assert found.ttft[0] == pytest.approx(10.0)
    assert found.last[0] == found.first[0]


@pytest.mark.parametrize("chunk", [100.0, 250.0, 1000.0])
def test_parts_of_a_prompt_attend_to_those_before_them(chunk: float):
    """However a prompt of 1,000 tokens is cut, beside passes that decode its attention adds up: 5 s
    for 500 tokens, 20 s for all; with 0.01 s a token for the rest, and passes of 1 s."""
    lengths, core = [10.0, 500.0, 1000.0], [0.0, 5.0, 20.0]
    added = [0.01 * tokens for tokens in lengths]
    own = replace(table(chunk=chunk), lengths=lengths, prompt=added, alone=added, core=core,
                  tokens=lengths, beside=[added, added])  # fmt: skip
    found = serve(own, np.array([10.0, 1000.0]), np.array([100.0, 1.0]), np.array([0.0, 0.5]))
    begun = 0.1 + 1.0
    assert found.first[1] == pytest.approx(begun + 20.0 + 10.0 + 1000.0 / chunk)


def test_whole_admission_never_preempts_and_mean_admission_recovers():
    given, made = np.full(6, 100.0), np.full(6, 100.0)
    safe = serve(table(pool=450.0, admission="whole"), given, made, clients=6)
    bold = serve(table(pool=450.0), given, made, clients=6)
    assert safe.preempted == 0
    assert bold.preempted > 0
    for found in (safe, bold):
        assert np.all(found.last >= found.first)
        assert np.all(found.first > found.arrival)


@given_any(st.integers(1, 80), st.floats(0.0, 120.0))
def test_what_is_looked_up_is_linear_between_the_nodes_and_level_beyond(row, column):
    """Against NumPy's interpolation, first along the columns, then between the rows."""
    rows, columns = [1.0, 2.0, 8.0, 64.0], [1.0, 10.0, 100.0]
    values = [[1.0, 2.0, 4.0], [1.5, 2.0, 7.0], [3.0, 3.0, 3.0], [4.0, 9.0, 12.0]]
    found = Lookup(values, rows, columns)
    along = [np.interp(column, columns, line) for line in values]
    for _ in range(2):  # found, and kept
        assert found.at(row, column) == pytest.approx(np.interp(row, rows, along), rel=1e-12)


def test_passes_in_a_leap_are_as_many_as_one_by_one():
    given, made = np.full(40, 100.0), spread_lengths(50.0, 40, 0.5)
    found = serve(table(each=0.01), given, made, clients=4)
    # Every request decodes its tokens in passes of at least 1 s.
    assert np.all(found.tpot >= 1.0)
    assert found.last.max() >= made.sum() / 4


@pytest.mark.parametrize(("clients", "length"), [(1, 1000.0), (16, 1000.0), (64, 200.0)])
def test_the_closed_form_agrees_with_requests_one_by_one(clients, length):
    own = plan(batch=float(clients), input_len=length)
    closed = predict_inference(MODEL, CLUSTER, own, CALIBRATION)
    given, made = (spread_lengths(mean, 10 * clients + 20, 0.1) for mean in (length, 200.0))
    longest = (float(given.max()), float(made.max()))
    times = pass_table(MODEL, CLUSTER, own, CALIBRATION, longest)
    found = serve(times, given, made, clients=clients)
    assert found.tpot.mean() == pytest.approx(float(closed.latencies.tpot), rel=0.05)
    assert found.e2e.mean() == pytest.approx(float(closed.latencies.e2e), rel=0.05)
    assert found.requests_per_s == pytest.approx(float(closed.requests_per_s), rel=0.1)


@pytest.mark.parametrize("rate", [1.0, 6.0, 11.0])
def test_the_closed_form_of_a_rate_agrees_too(rate):
    own = plan(batch=np.inf)
    closed = predict_rate(MODEL, CLUSTER, own, rate, CALIBRATION)
    assert not closed.saturated
    given, made = (spread_lengths(mean, 3000, 0.1) for mean in (1000.0, 200.0))
    longest = (float(given.max()), float(made.max()))
    times = pass_table(MODEL, CLUSTER, own, CALIBRATION, longest)
    found = serve(times, given, made, poisson(rate, 3000))
    assert found.tpot.mean() == pytest.approx(float(closed.prediction.latencies.tpot), rel=0.1)
    assert found.ttft.mean() == pytest.approx(float(closed.prediction.latencies.ttft), rel=0.35)
    assert sum(map(float, closed.prediction.breakdown.values())) == pytest.approx(
        float(closed.prediction.latencies.e2e)
    )


def test_latency_grows_with_the_rate_until_it_saturates():
    own = plan(batch=np.inf)
    rates = Rates(MODEL, CLUSTER, own, CALIBRATION)
    found = [rates.at(rate) for rate in (1.0, 5.0, 12.0)]
    assert np.all(np.diff([float(one.prediction.latencies.e2e) for one in found]) > 0)
    assert rates.at(1e3).saturated
    assert not any(one.saturated for one in found)


def test_a_queue_beyond_saturation_grows():
    own = plan(batch=np.inf)
    times = pass_table(MODEL, CLUSTER, own, CALIBRATION)
    most = Rates(MODEL, CLUSTER, own, CALIBRATION).most
    given, made = np.full(3000, 1000.0), np.full(3000, 200.0)
    found = serve(times, given, made, poisson(1.5 * most, 3000))
    assert found.ttft[-300:].mean() > 5 * found.ttft[:300].mean()
    assert found.requests_per_s == pytest.approx(most, rel=0.15)


def test_requests_that_cannot_be_served():
    with pytest.raises(InputError, match="longer than the cache"):
        serve(table(pool=50.0), np.array([100.0]), np.array([1.0]), clients=1)
    with pytest.raises(InputError, match="at least one client"):
        serve(table(), np.array([100.0]), np.array([1.0]))
    long = replace(plan(tp=2.0), input_len=1e6)
    with pytest.raises(InputError, match="the cache has room for"):
        pass_table(MODEL, CLUSTER, long, CALIBRATION)


def test_attention_is_a_part_of_a_prompt_that_stages_share():
    """Alone in a pipeline a prompt goes through every stage, of which each works a part of the
    time: what it costs the others, its attention too, is divided by the stages that work. In a
    prompt of 64 times the tokens it is more of it; a prompt of 16 has next to none."""
    longest = (16384.0, 128.0)
    one, two = (
        pass_table(MODEL, CLUSTER, plan(tp=2.0, pp=pp, batch=16.0), CALIBRATION, longest)
        for pp in (1.0, 2.0)
    )
    for own in (one, two):
        share = np.array(own.core) / np.array(own.alone)
        assert (share < 1.0).all()
        assert share[-1] > 2 * share[np.searchsorted(own.lengths, 256.0)]
    assert np.array(two.core) == pytest.approx(np.array(one.core) / 2.0)


def test_lengths_and_arrivals_have_their_means():
    assert spread_lengths(500.0, 20000, 0.3).mean() == pytest.approx(500.0, rel=0.01)
    assert np.all(spread_lengths(500.0, 10, 0.0) == 500.0)
    assert 20000 / poisson(3.0, 20000)[-1] == pytest.approx(3.0, rel=0.05)


def test_replicas_share_a_rate():
    """What arrives at two replicas arrives at each half as often; both serve all that comes."""
    for replicas in (1.0, 2.0):
        found = predict_rate(MODEL, CLUSTER, plan(tp=4.0, dp=replicas), 2.0, CALIBRATION)
        assert not found.saturated
        assert float(found.prediction.latencies.requests_per_s) == pytest.approx(2.0 / replicas)
        tokens = float(found.prediction.output_tokens_per_s)
        assert tokens == pytest.approx(2.0 * 200.0, rel=1e-3)


def test_prompts_of_more_than_half_a_chunk_are_read_alone():
    """A pass has room for one of them: a prompt takes what it takes by itself; shorter ones share
    what a pass takes whatever is in it."""
    own = plan(batch=64.0, chunk=2048.0, input_len=1000.0)
    times = pass_table(MODEL, CLUSTER, own, CALIBRATION, (16384.0, 200.0))
    lengths, together, alone = (np.array(v) for v in (times.lengths, times.prompt, times.alone))
    long = lengths > own.chunk / 2
    assert 2 < long.sum() < len(lengths)
    assert together[long] == pytest.approx(alone[long])
    assert (together[~long] < alone[~long]).all()
