"""Constants of searches: what is best, and how far is looked."""

from __future__ import annotations

from predictor import catalog
from predictor.search import fleet_space, layouts
from predictor.search.ranking import OBJECTIVES
from predictor.units import GB


def test_what_is_cheapest_costs_least_for_each_step() -> None:
    """Accelerators times time; what is fastest takes the least time, whatever it costs."""
    assert OBJECTIVES == {"time": 0, "cost": 1}


def test_parts_of_a_search_leave_time_for_the_rest() -> None:
    assert 0.5 < layouts.NARROWED + layouts.BOUNDED < 1.0


def test_workers_hold_the_largest_models_beyond_their_node() -> None:
    """DeepSeek-V3's 671 billion weights in 16 bits on nodes of eight A100 of 40 GB: five of them
    where nine tenths of the memory are an engine's, and eight as a power of two."""
    weights = 2.0 * float(catalog.model("deepseek-v3").parameters)
    node = 0.9 * 8 * float(catalog.accelerator("A100-SXM4-40GB").memory)
    assert fleet_space.BEYOND / 2 < weights / node < fleet_space.BEYOND
    assert weights > 1e3 * GB


def test_workers_are_looked_at_beyond_those_that_are_always_busy() -> None:
    """Half as many again: with those two thirds busy a wait is half of a pass (Erlang, one prompt a
    pass and worker: 0.67 / (2 x 0.33) = 1 at the most)."""
    assert 1.0 / fleet_space.SPARE <= 0.7
    assert 1.0 < fleet_space.SPARE < 2.0
    assert fleet_space.FEW < fleet_space.STEPS < 48
