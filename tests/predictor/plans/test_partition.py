"""Layers dealt to stages: against every way there is."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InputError
from predictor.plans.events import timeline
from predictor.plans.partition import Cost, partition


def largest(cost: Cost, counts: tuple[int, ...] | list[int]) -> float:
    ends = list(itertools.accumulate(counts))
    return max(cost(s, e - n, e) for s, (n, e) in enumerate(zip(counts, ends, strict=True)))


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.1, 10.0), min_size=4, max_size=8),
    st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4),
)
def test_no_other_deal_is_faster(layers: list[float], paces: list[float]) -> None:
    def cost(stage: int, begin: int, end: int) -> float:
        return paces[stage] * sum(layers[begin:end]) + (0.7 if stage == 0 else 0.0)

    n, p = len(layers), len(paces)
    ways = [w for w in itertools.product(range(1, n + 1), repeat=p) if sum(w) == n]
    best = min(largest(cost, way) for way in ways)
    found = partition(cost, n, p)
    assert sum(found) == n
    assert largest(cost, found) == pytest.approx(best, rel=1e-9)


def test_a_stage_takes_no_more_than_it_holds() -> None:
    def cost(stage: int, begin: int, end: int) -> float:
        return math.inf if stage == 0 and end - begin > 2 else float(end - begin)

    assert partition(cost, 10, 2) == [2, 8]
    with pytest.raises(InputError, match="do not hold the model"):
        partition(lambda s, b, e: math.inf if e - b > 2 else 1.0, 10, 2)
    with pytest.raises(InputError, match="fewer than the 3 stages"):
        partition(lambda s, b, e: 1.0, 2, 3)


def test_a_link_of_its_own_for_each_pair() -> None:
    passes = [1.0] * 3, [2.0] * 3, [0.0] * 3
    alike = timeline("gpipe", *passes, 4, 1, 0.3, 0.1)
    assert timeline("gpipe", *passes, 4, 1, (0.3, 0.3), (0.1, 0.1)) == alike
    # Latency alone is paid once on the way down and once on the way up of each link.
    far = timeline("gpipe", *passes, 4, 1, 0.0, (0.5, 0.0))[-1].end
    assert far == pytest.approx(timeline("gpipe", *passes, 4)[-1].end + 2 * 0.5)
