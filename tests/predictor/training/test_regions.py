"""Regions: their order, what crosses them, what packing saves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.prediction import predict
from predictor.training.regions import Regions, read_regions
from predictor.training.uneven import by_region, dealt_step

KNOWN = load("default")
BASE: dict[str, Any] = {
    "model": "gpt3-1.3b", "accelerator": "V100-SXM2-16GB", "accelerators_per_node": 1, "gpus": 16,
    "tp": 1, "pp": 4, "global_batch": 64, "seq_len": 2048, "schedule": "gpipe",
    "recompute": "full",
}  # fmt: skip


def complete(**fields: Any) -> TrainingRequest:
    return complete_training(parse(TrainingPlanSpec, {**BASE, **fields}, "test"), KNOWN.run)


def regions(rate: float = 1e8, latency: float = 0.02, crossing: str = "best") -> Regions:
    apart = 1.0 - np.eye(2)
    return Regions(
        ("one", "two"), 1.25e9 * np.eye(2) + rate * apart, 1e-4 * np.eye(2) + latency * apart,
        crossing,
    )  # fmt: skip


def step(of: Regions, **fields: Any) -> dict[str, float]:
    request = complete(**fields)
    found, _ = by_region(request.model, request.cluster, request.plan, KNOWN, of)
    terms = {name: float(value) for name, value in found.breakdown.items()}
    assert sum(terms.values()) == pytest.approx(float(found.step_time))
    return {"step": float(found.step_time), **terms}


def test_pipelines_go_through_regions_the_fastest_way() -> None:
    draws = np.random.default_rng(0)
    rate = draws.uniform(0.1e9, 1e9, (5, 5))
    of = Regions(tuple("abcde"), (rate + rate.T) / 2, draws.uniform(0.01, 0.2, (5, 5)), "best")

    def slowest(way: tuple[int, ...]) -> float:
        return max(1e8 / of.bandwidth[a, b] + of.latency[a, b] for a, b in pairwise(way))

    assert slowest(of.order(1e8)) == min(slowest(way) for way in permutations(range(5)))
    one, other = of.slowest(1e8)
    times = 1e8 / of.bandwidth + of.latency
    assert times[one, other] == max(times[a, b] for a in range(5) for b in range(5) if a != b)


def test_regions_as_near_as_within_are_one_region() -> None:
    """The step is that of one system with that network, but for layers dealt as well or better."""
    near, request = regions(1.25e9, 1e-4), complete()
    single = near.linked(request.cluster, 0, 0)
    plain = float(predict(request.model, single, request.plan, KNOWN).step_time)
    for crossing in ("pipelines", "replicas"):
        found = step(replace(near, crossing=crossing))["step"]
        assert 0.97 * plain < found <= plain * (1 + 1e-9)


def test_slower_and_longer_links_are_never_faster() -> None:
    for crossing in ("pipelines", "replicas"):
        slow = [step(regions(rate, crossing=crossing))["step"] for rate in (1e9, 1e8, 1e7)]
        far = [step(regions(latency=own, crossing=crossing))["step"] for own in (1e-3, 0.05, 0.5)]
        assert slow == sorted(slow)
        assert far == sorted(far)


def test_what_crosses_is_what_waits_and_the_faster_is_taken() -> None:
    pipelines, replicas = (step(regions(1e7, crossing=c)) for c in ("pipelines", "replicas"))
    assert pipelines["pp_communication"] > replicas["pp_communication"]
    assert replicas["dp_communication"] > pipelines["dp_communication"]
    assert step(regions(1e7))["step"] == min(pipelines["step"], replicas["step"])


def test_packed_activations_take_their_part_of_the_time() -> None:
    """Where links bind, a quarter of the bytes is a quarter of their time: gpipe's pace is the
    longer of a pass and a transfer."""
    whole = step(regions(2e6, 0.0, "pipelines"))
    packed = step(regions(2e6, 0.0, "pipelines"), handed_bytes=0.5)
    assert packed["step"] == pytest.approx(whole["step"] / 4.0, rel=0.1)
    plain = complete()
    same = complete(handed_bytes=2.0)
    ours, theirs = (predict(r.model, r.cluster, r.plan, KNOWN).step_time for r in (plain, same))
    assert float(ours) == float(theirs)


def test_files_and_requests(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    good = "{names: [a, b], bandwidth_gbs: [[1, 0.1], [0.1, 1]], rtt_ms: [[0, 50], [50, 0]]}"
    file.write_text(good)
    of = read_regions(str(file), "best")
    assert of.bandwidth[0, 1] == 1e8
    assert of.latency[0, 1] == 0.025
    request = complete(regions=str(file), crossing="replicas")
    found, dealt = dealt_step(request, KNOWN)
    assert [one.system for one in dealt.shares] == ["a", "b"]
    assert float(found.step_time) > 0
    for old, new, message in (
        ("[0.1, 1]]", "[0.1]]", "2 rows of 2 numbers"),
        ("names: [a, b]", "names: [a]", "2 to 8 regions"),
        ("names: [a, b]", "names: 2", "a list of 2 to 8 regions"),
        ("0.1, 1]]", "0, 1]]", "above 0"),
        ("rtt_ms", "rtt", "lacks rtt_ms"),
    ):
        file.write_text(good.replace(old, new))
        with pytest.raises(InputError, match=message):
            read_regions(str(file), "best")
    with pytest.raises(InputError, match="crossing needs"):
        complete(crossing="replicas")
    with pytest.raises(InputError, match="divide neither pp 4 nor dp 3"):
        step(replace(regions(), names=("a", "b", "c", "d", "e")), gpus=12, global_batch=66)


@pytest.mark.parametrize("latency", [1e-3, 0.02, 30.0])
def test_gradients_are_reduced_over_the_slowest_of_all_links(latency: float) -> None:
    """One is far, another narrow: 1.3 billion gradients in 32 bits wait for the narrow one, unless
    the far one is half a minute away."""
    bandwidth, times = np.full((4, 4), 1.25e9), np.full((4, 4), 1e-4)
    times[0, 1] = times[1, 0] = latency
    bandwidth[2, 3] = bandwidth[3, 2] = 2e8
    of = Regions(tuple("abcd"), bandwidth, times, "replicas")

    def over(one: int, other: int) -> float:
        """The step where all links are as that of two regions."""
        alike = 1.0 - np.eye(4)
        own = replace(
            of, bandwidth=1.25e9 * np.eye(4) + bandwidth[one, other] * alike,
            latency=1e-4 * np.eye(4) + times[one, other] * alike,
        )  # fmt: skip
        return step(own, pp=1)["step"]

    found = step(of, pp=1)["step"]
    far, narrow = over(0, 1), over(2, 3)
    assert found == pytest.approx(max(far, narrow))
    assert (far > narrow) == (latency > 1.0)


class _Asked(Exception):
    """Nothing more is of interest."""


@pytest.mark.parametrize(("handed", "size"), [({}, 2.0), ({"handed_bytes": 0.5}, 0.5)])
@pytest.mark.parametrize("tp", [1.0, 2.0])
def test_regions_are_ordered_for_what_a_stage_hands_on_to_the_next(
    handed: dict[str, float], size: float, tp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations of a micro-batch's tokens in 16 bits, or packed, shared among ranks."""
    request = complete()
    plan = replace(request.plan, tp=tp, micro_batch=2.0, **handed)
    asked: list[float] = []

    def order(self: Regions, message: float) -> tuple[int, ...]:
        asked.append(message)
        raise _Asked

    monkeypatch.setattr(Regions, "order", order)
    with pytest.raises(_Asked):
        by_region(request.model, request.cluster, plan, KNOWN, regions())
    assert asked == [size * 2.0 * 2048.0 * request.model.hidden / tp]
