"""The order in which shapes are measured."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.work.primitives import Operator, gemm, streaming
from profiler.design import COVER, PRIOR_SPREAD, design


@pytest.fixture(scope="module")
def device() -> Accelerator:
    return catalog.accelerator("A100-SXM4-80GB")


def candidates() -> list[Operator]:
    sizes = (64.0, 256.0, 1024.0, 4096.0)
    products = [
        gemm(name="x", layout=layout, phase="forward", module="layer", dtype="bf16", m=m, n=n, k=k)
        for layout in ("fwd", "dgrad")
        for m in sizes
        for n in sizes
        for k in sizes
    ]
    norms = [
        streaming(
            name="x",
            op="norm",
            variant="rmsnorm",
            phase="forward",
            module="layer",
            dtype="bf16",
            rows=m,
            columns=n,
            bytes_per_element=4.0,
        )
        for m in sizes
        for n in sizes
    ]
    return products + norms


def played(device: Accelerator, count: int, noise: float = 0.0) -> list[int]:
    """The first choices where every kernel takes its ideal time, times a random factor."""
    plan = design(candidates(), device, 1.0)
    random = np.random.default_rng(0)
    order = []
    for _ in range(count):
        chosen = plan.next(1e9)
        assert chosen is not None
        group, at = plan.place[chosen]
        plan.learn(chosen, float(group.ideal[at]) * float(np.exp(noise * random.normal())))
        order.append(chosen)
    return order


def test_every_group_is_covered_before_any_is_refined(device: Accelerator) -> None:
    order = played(device, 2 * COVER)
    assert len(set(order)) == len(order)
    norms = sum(one >= 128 for one in order)
    assert norms == COVER


def test_the_cover_spreads(device: Accelerator) -> None:
    """Its shapes lie further apart than as many neighbours in the list."""
    plan = design(candidates(), device, 1.0)
    group, _ = plan.place[0]
    order = [one for one in played(device, 2 * COVER) if one < 128]

    def apart(members: list[int]) -> float:
        x = group.features[members]
        distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
        return float(distance[np.triu_indices(len(members), 1)].min())

    assert apart(order) > apart(list(range(COVER)))


def test_measuring_lowers_uncertainty_most_nearby(device: Accelerator) -> None:
    plan = design(candidates(), device, 1.0)
    group, _ = plan.place[0]
    before = group.uncertainty()
    assert before == pytest.approx(np.full(128, PRIOR_SPREAD))
    for at in (0, 127):
        plan.learn(at, float(group.ideal[at]) * (2.0 if at else 1.0))
    after = group.uncertainty()
    assert (after[[0, 127]] < 0.2 * PRIOR_SPREAD).all()
    distance = np.linalg.norm(group.features - group.features[0], axis=1)
    near, far = np.argsort(distance)[1], np.argsort(distance)[-20]
    assert after[near] < after[far]


def test_calm_groups_are_left_to_wild_ones(device: Accelerator) -> None:
    """What spreads as predicted is soon known; what does not goes on being measured."""
    calm, wild = len(set(played(device, 40))), played(device, 40, noise=0.6)
    assert calm == 40
    assert len(set(wild)) == 40


def test_what_takes_too_long_or_is_known_is_not_chosen(device: Accelerator) -> None:
    plan = design(candidates(), device, 1e-12)
    assert plan.next(1e9) is None
    plan = design(candidates(), device, 1.0)
    assert plan.next(0.0) is None
    for one in range(len(candidates())):
        plan.drop(one)
    assert plan.next(1e9) is None
