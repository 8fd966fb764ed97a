"""Collectives that share a window: each hides in its part of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.schedules import Passes
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.decomposition import parts
from predictor.training.exchange import Exchange, Slot
from predictor.training.faults import _stages
from predictor.training.ledger import (
    _beside,
    _inside,
    _waiting,
    booked,
    shown_and_hidden,
    wire_time,
)
from predictor.training.prediction import predict
from predictor.training.software import Environment
from predictor.variation.meeting import late
from predictor.work import PASSES
from tests.predictor.dense import dense


def exchange(time: float, count: float) -> Exchange:
    one = np.ones(3)
    return Exchange(time * one, 0.0 * one, count * one, one, 0.1 * one, 0.0 * one, 0.0 * one)


def hidden(
    calls: list[tuple[float, float]], forward: float, backward: float, **run: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What of each of several collectives beside both passes shows, and what hides [s]."""
    slots = [Slot("ep", "alltoall", f"module{at}", PASSES) for at in range(len(calls))]
    other = Slot("tp", "allgather", "layer", "")
    inside = {(slot, at): exchange(*calls[at]) for at, slot in enumerate(slots)}
    shown: list[tuple[float, float]] = []
    book = SimpleNamespace(
        parts=SimpleNamespace(
            inside={(other, 0): exchange(9.0, 1.0), **inside}, spread=lambda value: value
        ),
        run=RunParameters(**run),
        wire=lambda one: one.time,
        on_stages=lambda module, value: 2.0 * value,  # two such modules on every stage
        book=lambda kind, show, hide, *_: shown.append((float(show[0]), float(hide[0]))),
    )
    windows = {"forward": forward * np.ones(3), "backward": backward * np.ones(3)}
    _beside(book, windows)  # type: ignore[arg-type]
    both = np.array(shown)
    return both[:, 0], both[:, 1]


CALLS = [[(0.1, 1.0)], [(0.1, 3.0), (0.2, 5.0)], [(0.5, 2.0), (0.01, 40.0), (0.03, 1.0)]]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("overlap", [0.25, 1.0])
@pytest.mark.parametrize("window", [0.3, 0.9, 100.0])
def test_what_shares_a_window_hides_in_all_of_it_together(
    calls: list[tuple[float, float]], overlap: float, window: float
) -> None:
    wire = np.array([2.0 * time * count for time, count in calls])
    show, hide = hidden(calls, window / 3, window * 2 / 3, overlap={"ep": overlap}, contention=1.2)
    assert hide.sum() == pytest.approx(min(wire.sum(), overlap * window))
    assert hide == pytest.approx(hide.sum() * wire / wire.sum())
    # What hides slows what runs beside it by a fifth of it.
    assert show == pytest.approx(wire - hide + 0.2 * hide)


def test_nothing_hides_without_an_overlap() -> None:
    show, hide = hidden(CALLS[1], 1.0, 1.0, overlap={"tp": 1.0}, contention=1.5)
    assert hide.tolist() == [0.0, 0.0]
    assert show == pytest.approx([2.0 * 0.3, 2.0 * 1.0])
    assert shown_and_hidden(np.array(2.0), np.array(4.0), 0.25, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("behind", ["gemm", ""])
@pytest.mark.parametrize("overlap", [{}, {"ep": 1.0}, {"tp": 0.5}, {"tp": 0.1}])
def test_collectives_inside_a_stage_hide_behind_the_kernels_that_they_are_said_to(
    behind: str, overlap: dict[str, float]
) -> None:
    """Three of 0.4 s a layer, two layers a stage: behind a product of 1 s, which takes half as long
    again in a step, as far as their kind overlaps at all; behind nothing all of it shows."""
    window = (1.0 if behind else 0.0) * np.ones(3)
    one = replace(exchange(0.4, 3.0), window=window)
    seen: list[tuple[float, float]] = []
    book = SimpleNamespace(
        parts=SimpleNamespace(
            inside={(Slot("tp", "allgather", "layer", behind), 0): one},
            spread=lambda value: value, mean_layer={"layer": 1.0},
        ),
        run=RunParameters(overlap=overlap, contention=1.2), stretch={"gemm": 1.5},
        wire=lambda one: one.time, on_stages=lambda module, value: 2.0 * value,
        book=lambda kind, show, hide, *_: seen.append((float(show[0]), float(hide[0]))),
        note_routed=lambda module, time: None, layer=np.zeros(3),
    )  # fmt: skip
    _inside(book)  # type: ignore[arg-type]
    hides = min(0.4, overlap.get("tp", 0.0) * 1.5) if behind else 0.0
    shows = 0.4 - hides + 0.2 * hides
    assert seen == [pytest.approx((6.0 * shows, 6.0 * hides))]
    assert book.layer.tolist() == pytest.approx([3.0 * shows] * 3)


def test_a_stage_is_slow_in_all_that_it_does() -> None:
    """Gradients of weights are part of its backward pass."""
    kinds = (np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), np.array([0.5, 0.25, 0.125]))
    forward, backward = _stages(Passes(*kinds, count=np.array([1.0, 2.0, 1.0])))
    assert forward.tolist() == [1.0, 2.0, 2.0, 3.0]
    assert backward.tolist() == [4.5, 5.25, 5.25, 6.125]


def waited(
    alike: float, drawn: float, calls: dict[str, tuple[float, float]]
) -> tuple[dict[str, float], set[str]]:
    """Waiting by kind of communication [s], of collectives (time, count) on two modules a stage;
    and the families that it is booked to."""
    inside = {
        (Slot(kind, "allreduce", "layer", ""), 0): exchange(*call) for kind, call in calls.items()
    }
    found: dict[str, float] = {}
    families: set[str] = set()

    def book(kind: str, show: Any, hide: Any, family: str, sigma: Any) -> None:
        found[kind] = found.get(kind, 0.0) + float(show[0])
        families.add(family)
        assert float(np.max(hide)) == 0.0, "nobody computes while they wait"

    terms = {"forward": 2.0, "backward": 4.0, "recompute": 1.0, "host": 9.0}
    _waiting(
        SimpleNamespace(  # type: ignore[arg-type]
            parts=SimpleNamespace(inside=inside),
            using=Environment(alike=alike, drawn=drawn),
            full=(3,),
            terms={name: value * np.ones(3) for name, value in terms.items()},
            on_stages=lambda module, value: 2.0 * value,
            book=book,
        )
    )
    return found, families


@pytest.mark.parametrize(("alike", "drawn"), [(0.02, 0.0), (0.0, 0.05), (0.02, 0.05)])
def test_ranks_wait_at_every_meeting_for_the_slowest(alike: float, drawn: float) -> None:
    """Of seven seconds of kernels, by kind as often as they meet; what takes no time is none."""
    calls = {"tp": (0.1, 6.0), "ep": (0.2, 2.0), "cp": (0.0, 5.0)}
    found, families = waited(alike, drawn, calls)
    every = float(late(np.array(7.0), np.array(16.0), alike, drawn))
    assert every > 0
    assert sum(found.values()) == pytest.approx(every)
    assert found["tp"] == pytest.approx(3.0 * found["ep"])
    assert {kind for kind, value in found.items() if value} == {"tp", "ep"}
    assert families == {"waiting"}


def test_nobody_waits_where_ranks_are_alike_or_do_not_meet() -> None:
    assert waited(0.0, 0.0, {"tp": (0.1, 6.0)}) == ({}, set())
    found, _ = waited(0.02, 0.05, {"tp": (0.0, 6.0)})
    assert sum(found.values()) == pytest.approx(0.0, abs=1e-9)


def test_a_mixtures_blocks_take_their_kernels_and_what_shows_of_their_exchanges() -> None:
    """Of a micro-batch: with nothing hidden all of both; what is routed is a part of the whole."""
    model = replace(dense(layers=4), num_experts=8, top_k=2, expert_ffn_hidden=512)
    made = TrainingPlan(
        tp=2.0, pp=4.0, dp=4.0, micro_batch=1.0, global_batch=16.0, seq_len=1024.0, ep=4.0
    )
    found, _ = parts(model, catalog.system("dgx-h100"), made, load("none"))
    book = booked(found, RunParameters(overlap={}), Environment())
    kernels = sum(
        book.on_stages(module, book.stretch[own] * time)
        for (module, _, own), time in found.work.items()
        if module == "moe"
    )
    sent = sum(
        book.on_stages("moe", one.time * one.count)
        for (slot, _), one in found.inside.items()
        if slot.place == "moe" and slot.behind != PASSES
    )
    assert np.all(np.asarray(sent) > 0.0)
    assert book.routed.tolist() == pytest.approx((kernels + sent).tolist())
    assert np.all(book.routed < np.sum(list(book.terms.values()), axis=0))
    # All kernels and all that shows is in the families once.
    assert sum(book.families.values()).tolist() == pytest.approx(sum(book.terms.values()).tolist())


def test_networks_of_more_than_two_nodes_take_longer_by_their_doublings() -> None:
    """Of 1, 2, 3, 4 and 16 nodes: none, none, log2 1.5, one and three, of a tenth each."""
    domains = np.array([1.0, 2.0, 3.0, 4.0, 16.0])
    one = replace(exchange(1.0, 1.0), time=np.ones(5), domains=domains)
    found = wire_time(one, Environment(nodes=1.1))
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.1 ** np.log2(1.5), 1.1, 1.1**3])


def test_what_is_computed_again_hides_what_runs_beside_the_backward_pass() -> None:
    """Full recomputation adds a forward pass of the layers to what hides there, and no less."""
    cluster, run = catalog.system("dgx-h100"), RunParameters(overlap={})
    made = TrainingPlan(tp=1.0, pp=1.0, dp=1.0, micro_batch=1.0, global_batch=1.0, seq_len=1024.0)
    again = replace(made, recompute="full")
    plain, full = (
        booked(parts(dense(layers=4), cluster, one, load("none"))[0], run, Environment()).windows()
        for one in (made, again)
    )
    added = np.sum(full["backward"] - plain["backward"])
    assert 0.5 * np.sum(plain["forward"]) < added <= np.sum(plain["forward"])


def test_doubt_about_the_links_of_a_pipeline_is_doubt_about_its_step() -> None:
    """Over a slow network, where what a stage hands on shows."""
    known = load("kernels-only")
    far = catalog.system("dgx-h100")
    tiers = tuple(replace(tier, bandwidth=tier.bandwidth / 200.0) for tier in far.tiers)
    cluster = replace(far, tiers=tiers, accelerators_per_node=1)
    made = TrainingPlan(
        tp=1.0, pp=4.0, dp=1.0, micro_batch=1.0, global_batch=8.0, seq_len=1024.0,
    )  # fmt: skip
    links = {
        key: replace(link, sigma=1.0) if key[0] == "p2p" else link
        for key, link in known.links.items()
    }
    sure, unsure = (
        predict(dense(layers=4), cluster, made, one).sigma
        for one in (known, replace(known, links=links))
    )
    assert float(unsure) > float(sure)
