"""Slow stages against the event timeline; placement and shares by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InputError
from predictor.plans import Passes, pipeline_time, timeline
from predictor.variation.links import ALGORITHMS, NIC, PATH, fair_shares, rerouted, slowdown
from predictor.variation.slow import line_time, placed, run_share


def with_slow_stage(
    forward: np.ndarray, backward: np.ndarray, m: float, factor: float
) -> np.ndarray:
    """Time of the pipeline with each of its stages in turn `factor` times as slow."""
    slow = np.where(np.eye(len(forward), dtype=bool), factor, 1.0)
    return line_time(forward[:, None] * slow, backward[:, None] * slow, m)


@settings(max_examples=25, deadline=None)
@given(
    p=st.integers(1, 8),
    more=st.integers(0, 24),
    factor=st.floats(1.0, 2.0),
    slow=st.floats(0.0, 0.999),
    split=st.floats(0.3, 0.5),
)
def test_one_slow_stage_is_the_event_timeline_within_one_per_cent(
    p: int, more: int, factor: float, slow: float, split: float
) -> None:
    m, at = p + more, int(slow * p)
    forward, backward = np.full(p, split), np.full(p, 1.0 - split)
    found = with_slow_stage(forward, backward, m, factor)[at]
    scale = np.where(np.arange(p) == at, factor, 1.0)
    events = timeline("1f1b", list(forward * scale), list(backward * scale), [0.0] * p, m)
    assert found == pytest.approx(events[-1].end, rel=0.01)


def test_three_kinds_of_stages_are_the_plans_closed_form() -> None:
    forward, backward = np.array([1.0, 1.2, 1.2, 0.9]), np.array([2.0, 2.3, 2.3, 2.5])
    kinds = [np.array(v)[[0, 1, 3]] for v in (forward, backward)]
    passes = Passes(kinds[0], kinds[1], np.zeros(3), np.array([1.0, 2.0, 1.0]))
    for vpp in (1.0, 2.0):
        assert line_time(forward, backward, 8.0, vpp) == pytest.approx(
            pipeline_time("1f1b", passes, 8.0, vpp)
        )


def test_virtual_stages_divide_what_a_slow_first_stage_waits_for() -> None:
    """Two micro-batches of two parts each; the first stage, 5.5 each, has no slack before its first
    backward pass, and waits 5 - 0.5 before its last, in parts half as long: 11 + 4.5 / 2."""
    forward, backward = np.array([5.0, 1.0]), np.array([0.5, 4.0])
    assert float(line_time(forward, backward, 2.0, 2.0)) == pytest.approx(13.25)
    assert float(line_time(forward, backward, 2.0)) == pytest.approx(11.0 + 4.5)
    # With one micro-batch nothing is between: one pass each way.
    assert float(line_time(forward, backward, 1.0)) == pytest.approx(10.5)


def test_a_slow_unit_on_a_stage_with_slack_is_free() -> None:
    """The first stage has half of the others' work: 1.5 times as slow it is still not the pace."""
    forward, backward = np.array([0.5, 1.0, 1.0, 1.0]), np.array([1.0, 2.0, 2.0, 2.0])
    sound = line_time(forward, backward, 64.0)
    slow = with_slow_stage(forward, backward, 64.0, 1.5) / sound - 1.0
    assert slow[0] < 0.02 < 0.4 < slow[2]
    own = placed(slow, 2.0, 8.0)
    assert own.packed == slow.min()
    assert own.packed < own.random < own.spread == slow.max()
    assert (1.0 + own.random) / (1.0 + own.packed) > 1.2


def test_random_placement_by_hand() -> None:
    """Losses 0 and 1 on two stages: n units miss the bad one with probability 2^-n."""
    losses = np.array([0.0, 1.0])
    assert [placed(losses, n, 8.0).random for n in (1.0, 2.0, 3.0)] == [0.5, 0.75, 0.875]


def test_time_in_which_one_is_slow() -> None:
    """A spell of an hour per thousand hours, of one and of very many."""
    assert float(run_share(1.0, 3.6e6, 3.6e3)) == pytest.approx(1e-3, rel=1e-3)
    assert float(run_share(1e6, 3.6e6, 3.6e3)) == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", [NIC, PATH])
def test_a_sound_link_costs_nothing_and_a_worse_one_never_less(algorithm: str, what: str) -> None:
    costs = slowdown(algorithm, what, np.array([1.0, 0.9, 0.5, 0.25, 0.1]))
    assert costs[0] == 1.0
    assert np.all(np.diff(costs) >= 0.0)
    assert costs[-1] == (2.5 if (algorithm, what) == ("tree", PATH) else 10.0)


def test_what_cannot_be_of_links_is_refused() -> None:
    with pytest.raises(InputError, match="rerouted"):
        slowdown("ring", NIC, 0.0)
    with pytest.raises(InputError, match="algorithm"):
        slowdown("rings", NIC, 0.5)
    assert float(rerouted(1.0, 8.0)) == 0.875
    assert float(rerouted(1.0, 1.0)) == 0.0


def test_flows_share_links_fairly() -> None:
    """Two flows on a link of 10, one of which also crosses a link of 3: 3 and 7. Bertsekas and
    Gallager's rule by hand."""
    paths = np.array([[1.0, 1.0], [1.0, 0.0]])
    assert fair_shares(np.array([10.0, 3.0]), paths) == pytest.approx([3.0, 7.0])
    assert fair_shares(np.array([10.0]), np.ones((2, 1))) == pytest.approx([5.0, 5.0])
