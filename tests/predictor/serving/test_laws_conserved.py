"""What adds up while requests are served: time of a second, tokens of prompts, accelerators of a
request, months between releases."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor.serving import completion, doubts, own, simulation
from predictor.serving.activities import EXCHANGE, serving_activity
from predictor.serving.around import Around
from predictor.serving.clients import Client
from predictor.serving.latency import Latencies, latencies
from predictor.serving.spreads import LATE, load_shares
from predictor.serving.workload import sessions
from tests.predictor.dense import dense
from tests.predictor.serving.counted import OWN, plan, work
from tests.predictor.serving.test_serving_power import served


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_while_tokens_are_decoded_kernels_run_ranks_meet_or_the_host_works(
    gpus: int, rate: float
) -> None:
    """At a measured rate below the predicted one: nothing else fills the second."""
    found = served("llama3-8b", "bf16", gpus)

    def decoding(tokens: float | None) -> tuple[float, float]:
        """Time, and how much of it the host is at work."""
        told = serving_activity(found, tokens)
        kernels, talk = told.activity["decode"], told.share.get(f"decode.{EXCHANGE}", np.zeros(1))
        waits = float(np.max(kernels.halted * kernels.time))
        return float(np.max(told.share["decode"])) + float(np.max(talk)), waits

    (full, hidden), (whole, waits) = (
        decoding(tokens) for tokens in (None, rate * float(found.output_tokens_per_s))
    )
    assert waits + rate * (full - hidden) == pytest.approx(whole)
    assert 0.0 < waits < whole


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0, 3.0, 1e9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_pieces_of_a_prompt_add_up_to_it(shared: float, turns: int) -> None:
    """However little is shared, and where a question is a single token; none is without tokens."""
    asked = np.array([1.0, 4.0, 2.0, 7.0, 1.0, 3.0])
    found = sessions(asked, asked[::-1], None, turns=turns, shared=shared)
    for pieces, length in zip(found.pieces, found.input_len, strict=True):
        assert sum(tokens for _, tokens in pieces) == pytest.approx(length)
        assert all(tokens > 0 for _, tokens in pieces)


@pytest.mark.parametrize(("tp", "pp", "dp", "apart"), [*product((1, 2, 8), (1, 3), (1, 4), (0, 6))])
def test_ranks_that_are_open_are_what_the_stated_ones_leave(
    tp: int, pp: int, dp: int, apart: int
) -> None:
    """Accelerators are tensor-parallel ranks x stages x replicas, and those that read prompts."""
    gpus = {"gpus": tp * pp * dp + apart, "pp": pp}
    read = {"prefill_workers": 2, "prefill_tp": 3} if apart else {}
    for stated in ({"tp": tp}, {"dp": dp}, {"tp": tp, "dp": dp}):
        assert completion._ranks({**gpus, **read, **stated}) == (tp, dp)


@pytest.mark.parametrize("fleet", [False, True])
def test_tables_reach_the_longest_of_all_requests(
    fleet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond their last node they are level: none may be longer."""
    reach: list[tuple[float, float]] = []
    lengths_of: list[tuple[Any, Any]] = []
    monkeypatch.setattr(simulation, "pass_table", lambda *given: reach.append(given[-1]))
    monkeypatch.setattr(simulation, "serve", lambda table, g, m, *rest: lengths_of.append((g, m)))
    monkeypatch.setattr(
        simulation, "serve_fleet",
        lambda table, w, *rest: lengths_of.append((w.input_len, w.output_len)),
    )  # fmt: skip
    client = Client(variation=0.5)
    of: Any = (dense(), None, plan(), None, 50)
    if fleet:
        simulation.with_fleet(*of, Around(client=client, turns=3), 2.0)
    else:
        simulation.one_by_one(*of, client, 2.0)
    (longest,), (lengths,) = reach, lengths_of
    assert longest == tuple(float(np.max(one)) for one in lengths)
    assert all(np.min(one) < np.max(one) for one in lengths)


MONTHS = ["2024-01", "2025-06", "2025-12", "2026-07"]


@pytest.mark.parametrize("month", MONTHS)
def test_months_before_a_month_are_counted_one_by_one(month: str) -> None:
    """Twelve of them are the year before; a year by itself is its middle."""
    assert doubts._before(month, 0) == month
    assert doubts._before(month, 12) == f"{int(month[:4]) - 1}{month[4:]}"
    one = month
    for count in range(1, 15):
        one, before = doubts._before(one, 1), one
        assert one == doubts._before(month, count)
        assert one < before
        assert 1 <= int(one[5:]) <= 12
    assert doubts._before("2025", 0) == "2025-06"


def test_only_first_tokens_are_unsure_to_either_side() -> None:
    sigma = {"ttft": 0.1, LATE: 0.3, "tpot": 0.05, "e2e": 0.02}
    one: Any = SimpleNamespace(sigma=sigma)
    assert doubts._width(one, "ttft") == pytest.approx(0.2)
    assert [doubts._width(one, name) for name in ("tpot", "e2e")] == [0.05, 0.02]


LEFT = {"ttft": 2.0, "tpot": 3.0, "e2e": 5.0, "throughput": 7.0}
"""Of each latency, what one's own benchmarks say over what is predicted."""


def test_own_benchmarks_lengthen_each_latency_by_its_own() -> None:
    """What takes longer ends more seldom; terms stay parts of the whole."""
    made = plan()
    names = list(Latencies.__dataclass_fields__)
    found = Latencies(**{name: np.asarray(1.0 + at) for at, name in enumerate(names)})
    key = own.key_of(made.framework, "m", "x", made.weights, made.narrowed)
    of: Any = (
        SimpleNamespace(name="m"),
        SimpleNamespace(accelerator=SimpleNamespace(name="x")),
        made,
    )

    def corrected(keys: set[str] | None) -> tuple[Latencies, dict[str, Any]]:
        known: Any = None
        if keys is not None:
            known = SimpleNamespace(
                keys=keys, correction=lambda key, metric, sizes: np.log(LEFT[metric])
            )
        terms = {"a": 0.25 * found.e2e, "b": 0.75 * found.e2e}
        return own.as_benchmarked(found, terms, of, SimpleNamespace(own=known))  # type: ignore[arg-type]

    longer, terms = corrected({key})
    for name in ("ttft", "tpot", "e2e"):
        assert getattr(longer, name) == pytest.approx(getattr(found, name) * LEFT[name])
    assert longer.requests_per_s == pytest.approx(found.requests_per_s / LEFT["throughput"])
    assert sum(terms.values()) == pytest.approx(longer.e2e)
    for keys in (None, {"another"}):
        assert corrected(keys)[0] is found


@pytest.mark.parametrize(("turns", "dp"), [(1, 1.0), (3, 1.0), (2, 4.0)])
def test_sessions_arrive_so_that_their_turns_do_at_the_rate(
    turns: int, dp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one replica that is followed; as many sessions as have the requests that are asked for."""
    seen: list[tuple[float, int]] = []

    def came(rate: float, count: int, burstiness: float) -> np.ndarray:
        seen.append((rate, count))
        return np.arange(float(count))

    monkeypatch.setattr(simulation, "arrivals", came)
    made = simulation._workload(plan(dp=dp), Around(turns=turns), 60, 6.0)
    assert seen == [(pytest.approx(6.0 / dp / turns), 60 // turns)]
    assert made.count == 60
    assert simulation._workload(plan(dp=dp), Around(turns=turns), 60, None).arrival is None
    few = simulation._workload(plan(dp=dp), Around(turns=turns), turns - 1, 6.0)
    assert few.count == turns, "one session at least"


@pytest.mark.parametrize("clients", [1.0, 2.0, 6.0, 40.0, 4000.0])
@pytest.mark.parametrize("static", [0.0, 1.0])
def test_shares_of_a_load_are_shares(clients: float, static: float) -> None:
    """However many wait, also behind a static batch, whose last ones wait for longer than the mean
    first token takes."""
    load = work(clients=clients, running=min(clients, 6.0), static=static)
    found = latencies(load, OWN)
    reading, waited = map(float, load_shares(load, found))
    assert 0.0 <= reading <= 1.0
    assert waited == pytest.approx(min(float(found.queue / found.ttft), 1.0))
    assert reading <= 1.0 - 1.0 / clients
    if static and clients > 1000:
        assert float(found.queue) > float(found.ttft)
