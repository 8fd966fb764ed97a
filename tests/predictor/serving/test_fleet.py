"""Clients, sessions and fleets: laws and hand counts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from predictor.catalog.bench_clients import bench_client
from predictor.catalog.traces import Trace
from predictor.errors import InputError
from predictor.plans import ServingPlan
from predictor.serving.clients import arrivals, spread_lengths
from predictor.serving.events import Served, serve
from predictor.serving.fleet import CHOICES, FleetSettings, Replica, serve_fleet
from predictor.serving.prefixes import CacheTier, Prefixes
from predictor.serving.tables import PassTable
from predictor.serving.workload import of_trace, sessions, with_adapters
from tests.predictor.serving.bare import BARE

PLAN = ServingPlan(batch=64.0, input_len=100.0, output_len=10.0, chunk=1000.0)


def table(pool: float = 1e9, plan: ServingPlan = PLAN, slack: float = 0.0) -> PassTable:
    """A pass that decodes takes 1 s; a prompt 0.01 s per token, by itself or not, all of it
    products; these fit into `slack` of a pass."""
    costs = [0.1, 100.0]
    return PassTable(
        running=[1.0, 64.0], contexts=[0.0, 1e6], decode=[[1.0, 1.0]] * 2, lengths=[10.0, 1e4],
        prompt=costs, alone=costs, core=[0.0, 0.0], tokens=[10.0, 1e4],
        beside=[[cost - slack for cost in costs]] * 2, pool=pool, plan=plan, own=BARE,
    )  # fmt: skip


def ones(count: int, given: float = 100.0, made: float = 11.0):
    return np.full(count, given), np.full(count, made)


def test_a_fleet_of_one_is_one_engine():
    given, made = spread_lengths(100.0, 60, 0.5, 1), spread_lengths(20.0, 60, 0.5, 2)
    came = arrivals(0.4, 60, seed=3)
    alone = serve(table(), given, made, came)
    found = serve_fleet(table(), sessions(given, made, came), FleetSettings()).served
    for name in ("arrival", "first", "last"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name))
    closed = serve(table(), given, made, clients=4)
    again = serve_fleet(table(), sessions(given, made, None), FleetSettings(), clients=4).served
    assert sorted(again.last) == pytest.approx(sorted(closed.last))


def test_prompts_first_keep_those_that_run_waiting():
    """One decodes from 1 s on. The second comes at 3.5 s, is read from 4 to 5 s: by itself, where
    prompts come first; beside a pass, which takes 2 s, where they ride along; and at once where its
    products fit into what the pass leaves."""
    came = np.array([0.0, 3.5])

    def found(batching: str, slack: float = 0.0) -> Served:
        return serve(table(plan=replace(PLAN, batching=batching), slack=slack), *ones(2), came)

    apart, mixed, free = found("apart"), found("mixed"), found("mixed", 1.0)
    assert apart.first.tolist() == pytest.approx([1.0, 5.0])
    assert apart.last[0] == pytest.approx(1 + 10 + 1)
    assert mixed.first.tolist() == pytest.approx([1.0, 6.0])
    assert mixed.last[0] == pytest.approx(1 + 10 + 1)
    assert free.first.tolist() == pytest.approx([1.0, 5.0])
    assert free.last[0] == pytest.approx(1 + 10)


def test_gaps_between_tokens_are_those_of_all_requests():
    """Ten of 1 s of each request, one of which the other's prompt makes 2 s long."""
    plan = replace(PLAN, batching="apart")
    found = serve(table(plan=plan), *ones(2), np.array([0.0, 3.5]))
    gaps, counts = found.gaps
    assert counts.sum() == 20
    assert counts[gaps == 2.0].sum() == 1
    assert (gaps * counts).sum() == pytest.approx(np.sum(found.last - found.first))
    assert found.summary()["itl"]["p99"] == 2.0
    assert found.summary()["itl"]["p90"] == 1.0


def test_an_engine_looks_for_requests_every_so_many_passes():
    """Looks before passes 0, 10, ...: who comes after the first has begun is taken up at 11 s."""
    plan = replace(PLAN, polling=10.0)
    found = serve(table(plan=plan), *ones(2, made=30.0), np.array([0.0, 1.5]))
    assert found.first[1] == pytest.approx(11.0 + 2.0)
    at_once = serve(table(), *ones(2, made=30.0), np.array([0.0, 1.5]))
    assert at_once.first[1] == pytest.approx(4.0)


def test_held_prompts_wait_for_enough_others():
    """TGI: three tenths as many as run, else twenty passes. Of ten that run, two wait in vain."""
    plan = replace(PLAN, batching="waiting", polling=20.0)
    came = np.concatenate([np.zeros(10), [12.5, 13.5, 14.5]])
    found = serve(table(plan=plan), *ones(13, made=40.0), came)
    assert found.first[10:].tolist() == pytest.approx([15.0 + 3.0] * 3)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_rate_and_the_spread(shape):
    gaps = np.diff(arrivals(5.0, 40000, shape))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.05)


@pytest.mark.parametrize(
    ("lengths", "variation", "spread"),
    [("uniform", 0.3, 0.3 / 3**0.5), ("lognormal", 0.8, 0.8), ("exponential", 0.0, 1.0)],
)
def test_lengths_have_the_mean_and_the_spread(lengths, variation, spread):
    found = spread_lengths(1000.0, 60000, variation, 0, lengths)
    assert found.mean() == pytest.approx(1000.0, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(spread, rel=0.05)


def test_what_a_client_draws_depends_on_its_release():
    """sglang.bench_serving draws between 1 and what is asked for since 0.3."""
    assert bench_client("sglang-0.2.0").mean == 1.0
    assert bench_client("sglang").mean == bench_client("sglang-0.5.3").mean == 0.5
    with pytest.raises(InputError, match="unknown client"):
        bench_client("wrk")


def test_sessions_grow_by_what_was_said():
    work = sessions(*ones(6, 100.0, 10.0), None, turns=3, shared=40.0)
    assert work.input_len.tolist() == [100, 210, 320] * 2
    assert work.next == [1, 2, -1, 4, 5, -1]
    for one in range(6):
        assert sum(tokens for _, tokens in work.pieces[one]) == work.input_len[one]
    assert work.pieces[0][0] == work.pieces[3][0] == ("shared", 40.0)
    assert work.pieces[0][1] != work.pieces[3][1]


def test_a_cached_prefix_is_not_read_again():
    """Turns of 100 tokens and 10 of answer, a second between them: the second prompt has 210, of
    which 110 are known; only 100 are read."""
    work = sessions(*ones(2, 100.0, 10.0), np.zeros(1), turns=2)
    cold = serve_fleet(table(), work, FleetSettings(think=1.0))
    warm = serve_fleet(table(), work, FleetSettings(think=1.0, prefixes=True))
    assert cold.served.ttft.tolist() == pytest.approx([1.0, 2.1])
    assert warm.served.ttft.tolist() == pytest.approx([1.0, 1.0])
    assert warm.cached == pytest.approx(110 / 310)
    assert cold.cached == 0.0
    assert warm.served.arrival[1] == pytest.approx(1 + 9 + 1)


def test_what_the_device_drops_is_loaded_from_below():
    """Room for 220 tokens on the device: the second session takes the place of the first's prompt,
    whose 100 tokens come back from the host at 1 ms each, or are read again without it."""
    work = sessions(*ones(4, 100.0, 10.0), np.array([0.0, 20.0]), turns=2)
    fleet = FleetSettings(think=30.0, prefixes=True)
    lost = serve_fleet(table(pool=220.0), work, fleet).served.ttft
    kept = serve_fleet(table(pool=220.0), work, replace(fleet, tiers=(CacheTier(1e6, 1e-3),)))
    assert lost[1] == pytest.approx(2.1)
    assert kept.served.ttft[1] == pytest.approx(0.1 + 1.0)


def test_pieces_go_down_oldest_first_and_come_back():
    store = Prefixes((CacheTier(100.0, 0.5), CacheTier(100.0, 2.0)))
    store.put([("a", 100.0), ("b", 100.0), ("c", 100.0)])
    store.settle(100.0)
    assert store.take([("c", 100.0)], 1000.0) == (100.0, 0.0)
    assert store.take([("b", 100.0)], 1000.0) == (100.0, 50.0)
    store.settle(100.0)
    assert store.take([("a", 100.0)], 1000.0)[0] in (0.0, 100.0)
    assert store.take([("x", 10.0), ("b", 100.0)], 1000.0) == (0.0, 0.0)
    # The last token of a prompt is read in any case.
    assert store.take([("b", 100.0)], 100.0)[0] == 99.0


def test_blocks_of_a_trace_are_shared():
    pieces = (((1, 512.0), (2, 512.0)), ((1, 512.0), (3, 512.0)))
    trace = Trace(np.array([0.0, 50.0]), np.array([1024.0, 1024.0]), np.array([2.0, 2.0]), pieces)
    found = serve_fleet(
        table(plan=replace(PLAN, chunk=2000.0)), of_trace(trace), FleetSettings(prefixes=True)
    )
    assert found.served.ttft.tolist() == pytest.approx([10.24, 5.12])
    assert found.cached == pytest.approx(0.25)


@pytest.mark.parametrize("router", sorted(CHOICES))
def test_twice_the_replicas_serve_twice_the_load_as_one_does_once(router):
    given, made = spread_lengths(100.0, 400, 0.1, 1), spread_lengths(20.0, 400, 0.1, 2)
    came = arrivals(0.5, 400, 1.0, 4)
    one = serve_fleet(table(), sessions(given, made, came), FleetSettings()).served
    two = serve_fleet(
        table(), sessions(given, made, came / 2), FleetSettings(replicas=2, router=router)
    )
    assert two.replicas == 2
    assert two.served.tpot.mean() == pytest.approx(one.tpot.mean(), rel=0.1)
    assert len(two.served.last) == 400
    assert np.all(two.served.last > two.served.first - 1e-9)


def test_a_router_that_looks_sends_to_the_idle():
    """Answers of very different lengths, one at a time on each of four replicas, for 70 % of the
    time: a shortest queue waits less than a blind turn."""
    made = spread_lengths(20.0, 600, 0.0, 2, "exponential")
    work = sessions(np.full(600, 100.0), made, arrivals(0.7 * 4 / 20.0, 600))
    plan = replace(PLAN, max_batch=1.0, batch=1.0)
    narrow = replace(table(plan=plan), running=[1.0], decode=[[1.0, 1.0]], beside=[[0.1, 100.0]])
    waits = {
        router: serve_fleet(
            narrow, work, FleetSettings(replicas=4, router=router)
        ).served.ttft.mean()
        for router in ("round-robin", "least-loaded")
    }
    assert waits["least-loaded"] < 0.8 * waits["round-robin"]


def test_prefixes_attract_the_turns_of_a_session():
    work = sessions(*ones(40, 100.0, 10.0), np.arange(10) * 5.0, turns=4)
    fleet = FleetSettings(replicas=3, think=2.0, prefixes=True)
    spread = serve_fleet(table(), work, fleet)
    kept = serve_fleet(table(), work, replace(fleet, router="prefix"))
    assert kept.cached > spread.cached
    # All that was said before: 110 of 210, 220 of 320, 330 of 430 tokens, of 1,060 in all.
    assert kept.cached == pytest.approx(660 / 1060)


def test_replicas_are_started_when_needed_and_stopped_again():
    """Ten requests at once for a replica of four: three are wanted, ready 5 s later. Long after,
    one is enough."""
    came = np.concatenate([np.zeros(10), [200.0]])
    fleet = FleetSettings(most=4, target=4.0, cold=5.0)
    found = serve_fleet(table(), sessions(*ones(11), came), fleet)
    assert found.replicas == 3
    fixed = serve_fleet(table(), sessions(*ones(11), came), replace(fleet, target=np.inf))
    assert fixed.replicas == 1
    assert found.seconds < 3 * found.served.last.max()
    assert found.seconds > fixed.seconds


def test_adapters_that_are_not_there_are_loaded_and_few_fit_a_batch():
    given, made = ones(4)
    work = replace(sessions(given, made, np.zeros(4)), adapter=[0, 1, 0, 1])
    free = serve_fleet(table(), work, FleetSettings(adapter=0.5)).served
    assert free.ttft.min() == pytest.approx(0.5 + 4.0)
    tight = serve_fleet(table(), work, FleetSettings(slots=1)).served
    # One adapter at a time: the second request waits until the first, alone, has ended.
    assert tight.first[0] == pytest.approx(1.0)
    assert tight.first[1] >= tight.last[0]
    assert set(with_adapters(3, 100)) == {0, 1, 2}


@pytest.mark.parametrize("slots", [0, 1, 2, 3])
def test_an_adapter_that_is_on_its_way_is_waited_for_as_long_as_is_left(slots):
    """Two seconds from when it is first asked for, by whoever asks, unless others took its place:
    those asked for last stay."""
    asked = [(5.0, 0), (6.0, 0), (6.5, 1), (7.5, 0), (9.0, 1), (20.0, 2), (20.5, 1), (21.0, 3),
             (21.5, 0), (22.5, 1)]  # fmt: skip
    replica = SimpleNamespace(
        work=SimpleNamespace(adapter=[name for _, name in asked]), resident=OrderedDict(),
        fleet=SimpleNamespace(around=FleetSettings(adapter=2.0, slots=slots)),
    )  # fmt: skip
    here: list[tuple[int, float]] = []
    for one, (time, name) in enumerate(asked):
        at = dict(here).get(name, time + 2.0)
        here = [(other, since) for other, since in here if other != name] + [(name, at)]
        here = here[-slots:] if slots else here
        assert Replica._adapter(replica, one, time) == pytest.approx(max(at - time, 0.0))
    none = SimpleNamespace(work=SimpleNamespace(adapter=[]))
    assert Replica._adapter(none, 0, 3.0) == 0.0


def test_goodput_is_the_share_that_meets_both():
    found = Served(np.zeros(4), np.array([1.0, 2, 3, 4]), np.array([11.0, 32, 13, 14]),
                   np.full(4, 11.0), 0, np.zeros((2, 0)))  # fmt: skip
    assert found.attained() == 1.0
    assert found.attained(ttft=2.5) == 0.5
    assert found.attained(ttft=2.5, tpot=2.0) == 0.25
    assert found.after(2).ttft.tolist() == [3.0, 4.0]


def test_an_answer_of_one_replica_reaches_the_others_when_it_is_given():
    """Two clients, two replicas: that of the short answers serves all of them while the other
    makes its long one."""
    asked = sessions(np.full(4, 100.0), np.array([31.0, 11.0, 11.0, 11.0]), None)
    around = FleetSettings(replicas=2, most=2, router="least-loaded")
    found = serve_fleet(table(), asked, around, clients=2).served
    assert found.arrival.tolist() == pytest.approx([0.0, 0.0, 11.0, 22.0])
    assert found.last.tolist() == pytest.approx([31.0, 11.0, 22.0, 33.0])


@pytest.mark.parametrize("router", list(CHOICES))
def test_leaps_of_replicas_are_their_passes_one_by_one(
    router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers first decides where the next request goes."""
    given, made = spread_lengths(300.0, 40, 0.7, 1), spread_lengths(60.0, 40, 0.9, 2)
    slower = replace(table(), decode=[[1.0, 1e3], [1.7, 64e3]])  # all caches are read
    around = FleetSettings(replicas=3, most=3, router=router, think=0.37)
    work = sessions(given, made, None)
    leaping = serve_fleet(slower, work, around, clients=7).served
    passes = Replica.passes
    monkeypatch.setattr(Replica, "passes", lambda own: min(passes(own), 1))
    stepping = serve_fleet(slower, work, around, clients=7).served
    for name in ("arrival", "first", "last"):
        assert getattr(leaping, name) == pytest.approx(getattr(stepping, name), rel=1e-5)
