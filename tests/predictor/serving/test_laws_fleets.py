"""Fleets by the hand: how long replicas are up, what of a prompt is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor.serving.events import EngineRun
from predictor.serving.fleet import FleetSettings, Replica, serve_fleet
from predictor.serving.prefixes import CacheTier, Prefixes
from predictor.serving.workload import sessions
from tests.predictor.serving.test_fleet import ones, table


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_that_are_there_from_the_start_are_up_to_the_end(replicas: int) -> None:
    """However long it would take to start another."""
    came = np.linspace(3.0, 40.0, 6)
    fleet = FleetSettings(replicas=replicas, most=replicas, cold=5.0)
    found = serve_fleet(table(), sessions(*ones(6), came), fleet)
    assert found.seconds == pytest.approx(replicas * found.served.last.max())
    assert found.replicas == replicas


def test_replicas_are_up_from_when_they_are_wanted_until_they_have_ended_and_are_not() -> None:
    """Ten requests at 10 s for a replica of four: two more are wanted from then on, until one
    request comes at 210 s, which one is enough for: 1 s for its prompt, ten passes of 1 s."""
    came = np.concatenate([np.full(10, 10.0), [210.0]])
    fleet = FleetSettings(most=4, target=4.0, cold=5.0)
    found = serve_fleet(table(), sessions(*ones(11), came), fleet)
    assert found.served.last.max() == pytest.approx(221.0)
    assert found.seconds == pytest.approx(221.0 + 2 * 200.0)


@pytest.mark.parametrize("kind", [EngineRun, Replica])
@pytest.mark.parametrize("have", [0.0, 5.0, 19.0, 19.5, 60.0])
def test_at_least_one_token_of_a_prompt_is_read(kind: Any, have: float) -> None:
    """A fifth of 100 tokens is new, of which a replica has some; a prompt of one token is read."""
    fleet = SimpleNamespace(have=[have, have])
    own = SimpleNamespace(
        given=[100.0, 1.0], fresh=0.2, fleet=fleet, work=SimpleNamespace(adapter=[])
    )
    known = have if kind is Replica else 0.0
    assert kind.new_tokens(own, 0) == pytest.approx(max(20.0 - known, 1.0))
    assert kind.new_tokens(own, 1) == 1.0


def test_a_replica_that_has_requests_is_not_stopped() -> None:
    """Four requests at once for replicas of two each: two of either; a fifth at 50 s, when only the
    last of the four decodes yet, on the second replica: it stays up to its end, 1 s and 300."""
    came = np.array([0.0, 0.0, 0.0, 0.0, 50.0])
    made = np.array([11.0, 11.0, 11.0, 301.0, 11.0])
    work = sessions(np.full(5, 100.0), made, came)
    found = serve_fleet(table(), work, FleetSettings(most=2, target=2.0))
    assert found.replicas == 2
    assert found.served.last.max() == pytest.approx(301.0)
    assert found.seconds == pytest.approx(2 * 301.0)


def test_a_fleet_that_begins_with_nothing_waits_for_the_first_that_is_there() -> None:
    """One request each. At 10 s the first is started, at 11 s, when that is not there yet, another:
    both requests go to the one that is ready at 15 s and reads them in 2; ten passes of 1 s follow.
    At 60 s one is enough, of two that are idle."""
    work = sessions(*ones(3), np.array([10.0, 11.0, 60.0]))
    found = serve_fleet(table(), work, FleetSettings(replicas=0, most=3, target=1.0, cold=5.0))
    assert found.served.first.tolist() == pytest.approx([17.0, 17.0, 61.0])
    assert found.served.last.tolist() == pytest.approx([27.0, 27.0, 71.0])
    assert found.seconds == pytest.approx((71.0 - 10.0) + (60.0 - 11.0))


@pytest.mark.parametrize("think", [0.0, 2.5])
def test_a_client_thinks_before_it_asks_again(think: float) -> None:
    """One client: of its time a request takes the answer's, then it thinks (interactive response
    time law: clients = rate x (response + think))."""
    served = serve_fleet(
        table(), sessions(*ones(6), None), FleetSettings(think=think), clients=1
    ).served
    assert np.diff(served.arrival) == pytest.approx(served.e2e[:-1] + think)
    assert served.arrival[0] == 0.0


def test_who_has_its_answer_first_asks_next() -> None:
    """Two clients, a replica each. One reads 5,000 tokens, 1,000 to a pass of 10 s; the other has
    its answer of two tokens at 2 s and asks for the next one then, which its replica reads at once,
    whatever the first is at."""
    given, made = np.array([5000.0, 100.0, 100.0]), np.array([11.0, 2.0, 2.0])
    fleet = FleetSettings(replicas=2, most=2, router="least-loaded")
    served = serve_fleet(table(), sessions(given, made, None), fleet, clients=2).served
    assert served.arrival.tolist() == pytest.approx([0.0, 0.0, 2.0])
    assert served.last.tolist() == pytest.approx([50.0 + 10.0, 2.0, 4.0])


def test_tokens_that_are_cached_are_where_they_are_counted() -> None:
    """Whatever is put, taken and goes down: on each tier as many as its pieces have, no piece on
    two, no tier fuller than it has room; what there is room for anywhere is not lost."""
    random = np.random.default_rng(2)
    cached = Prefixes([CacheTier(60.0, 1e-3), CacheTier(90.0, 2e-3)])
    sizes = random.integers(5, 25, 30).astype(float)
    seen: set[int] = set()
    for _ in range(300):
        chosen = random.integers(0, 30, 3).tolist()
        pieces = [(one, sizes[one]) for one in dict.fromkeys(chosen)]
        cached.take(pieces, 100.0)
        cached.put(pieces)
        seen |= set(chosen)
        before = {key for level in cached._levels for key in level}
        cached.settle(50.0)
        levels = [dict(level) for level in cached._levels]
        assert cached._used == pytest.approx([sum(level.values()) for level in levels])
        assert [used <= room for used, room in zip(cached._used, (50, 60, 90), strict=True)] == (
            [True] * 3
        )
        kept = [key for level in levels for key in level]
        assert len(kept) == len(set(kept))
        assert before - set(kept) == set() or cached._used[-1] > 90 - 25
    assert len(seen) == 30
