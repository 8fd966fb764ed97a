"""Requests one by one, by hand: what prompts cost beside those that decode, who is seen when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.plans.serving import ServingPlan
from predictor.serving.events import EngineRun, serve
from predictor.serving.tables import PassTable
from tests.predictor.serving.bare import BARE
from tests.predictor.serving.test_laws_serving import served

PLAN = ServingPlan(batch=8.0, input_len=100.0, output_len=10.0, chunk=1000.0)


def table(
    slack: float = 0.0, mixing: float = 1.0, most: float = 8.0, core: float = 0.0, **plan: object
) -> PassTable:
    """A pass that decodes takes 1 s; of a prompt's 0.01 s per token, `core` is attention; `slack`
    seconds of the rest fit into what a pass leaves."""
    costs, nodes = [0.1, 100.0], [10.0, 1e4]
    rest = [cost - core * tokens - slack for cost, tokens in zip(costs, nodes, strict=True)]
    return PassTable(
        running=[1.0, most], contexts=[0.0, 1e6], decode=[[1.0, 1.0]] * 2, lengths=nodes,
        prompt=costs, alone=costs, core=[core * tokens for tokens in nodes], tokens=nodes,
        beside=[rest, rest], pool=1e9, plan=replace(PLAN, **plan), own=replace(BARE, mixing=mixing),
    )  # fmt: skip


def ends(own: PassTable, came: list[float], given: float = 100.0) -> np.ndarray:
    made = np.array([21.0] + [3.0] * (len(came) - 1))
    return serve(own, np.full(len(came), given), made, np.array(came)).first


@pytest.mark.parametrize(
    ("slack", "mixing", "cost"), [(0.0, 1, 1.0), (0.25, 1, 0.75), (0.25, 2, 1.5), (2.0, 1, 0.0)]
)
def test_a_prompt_beside_those_that_decode(slack: float, mixing: float, cost: float) -> None:
    """It comes in the pass that ends at 4 s; its own takes 1 s, and of its 1 s what does not fit,
    `mixing` times."""
    for core in (0.0, 0.005):
        own = table(slack, mixing, core=core)
        assert ends(own, [0.0, 3.5])[1] == pytest.approx(4.0 + 1.0 + cost)


@pytest.mark.parametrize(("waits", "shown"), [(0.0, 0.5), (0.2, 0.3), (0.5, 0.0), (9.0, 0.0)])
def test_attention_within_a_prompt_hides_while_launches_are_waited_for(
    waits: float, shown: float
) -> None:
    """Of 1 s, 0.5 are attention, of which `waits` s hide."""
    own = replace(table(core=0.005), slack=[[waits] * 2] * 2)
    assert ends(own, [0.0, 3.5])[1] == pytest.approx(4.0 + 1.0 + 0.5 + shown)


def test_who_waited_for_room_is_read_as_soon_as_there_is_room() -> None:
    """The second of two that run ends at 6 s; the third has waited since 2.5 s."""
    own = table(most=2.0, scheduling="overlapped")
    found = serve(own, np.full(3, 100.0), np.array([21.0, 5.0, 3.0]), np.array([0.0, 0.0, 2.5]))
    assert found.last[1] == pytest.approx(6.0)
    assert found.first[2] == pytest.approx(6.0 + 2.0)


def test_who_comes_before_a_pass_starts_is_in_the_one_after_the_next() -> None:
    """Passes end at 2, 3, 4 s. One that came at 2.5 s is in none that was prepared by then; the one
    from 3 to 4 s was, and the prompt is read from 4 to 6 s. One that came at 3.0 s too."""
    own = table(scheduling="overlapped")
    for came, first in ((2.5, 6.0), (2.999, 6.0), (3.001, 7.0)):
        assert ends(own, [0.0, came])[1] == pytest.approx(first)


def test_two_that_come_one_after_the_other() -> None:
    """The first of two is read from 4 to 6 s, in a pass that started at 4; the second came at 5 s,
    after that, so that the pass from 6 to 7 s goes without it: read from 7 to 9 s."""
    found = ends(table(scheduling="overlapped"), [0.0, 2.5, 5.0])
    assert found[1:] == pytest.approx([6.0, 9.0])
    assert ends(table(), [0.0, 2.5, 5.0])[1:] == pytest.approx([5.0, 7.0])


def test_no_pass_is_made_while_somebody_gives_way() -> None:
    class Told(EngineRun):
        __slots__ = ()

        def passes(self, pace: float = 0.0) -> int:
            before = self.preempted
            found = super().passes(pace)
            assert (found == 0) == (self.preempted > before)
            return found

    engine = Told(served(pool=220.0), [100.0, 100.0], [15.0, 15.0], None, 2)
    engine.run()
    assert engine.preempted == 1
