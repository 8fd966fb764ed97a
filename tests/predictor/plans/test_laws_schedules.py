"""Laws of pipelines: what papers say is held, and that what is held bounds the pace."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.plans.critical import _in_turn, _Line
from predictor.plans.events import timeline
from predictor.plans.schedules import SCHEDULES, Passes, pipeline_time

P = 4

HELD = {
    "1f1b": lambda stage: P - stage,
    "gpipe": lambda stage: 64,
    "zb-h1": lambda stage: P,
    "zb-v": lambda stage: P,
    "dualpipe": lambda stage: P + 1,
    "dualpipev": lambda stage: (2 * P + 1) / 2,
}
"""Micro-batches of 64 that each of four devices holds: Narayanan et al. 2019 and 2021; Huang et al.
2019; Qi et al. 2024, section 2, and of controllable memory 2 p halves; DeepSeek-AI 2024, table 2:
PP + 1, of halves where the pipeline of 2 p folds."""


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_devices_hold_what_papers_say(name: str) -> None:
    behind = np.arange(P, 0, -1.0)
    found = SCHEDULES[name].held(behind, float(P), 64.0, 1.0)
    assert found.tolist() == [HELD[name](stage) for stage in range(P)]
    few = SCHEDULES[name].held(behind, float(P), 2.0, 1.0)
    assert (few <= 2).all(), "no more than there are"


def test_interleaved_stages_hold_more_by_what_they_read_ahead() -> None:
    """Narayanan et al. 2021, section 2.2: the first of p devices holds p (1 + (p - 1) / (p v))
    micro-batches, the last one only what its own v chunks keep, p (v - 1) + 1 chunks."""
    vpp = 3.0
    found = SCHEDULES["1f1b"].held(np.array([4.0, 1.0]), float(P), 64.0, vpp)
    assert found[0] == pytest.approx(P * (1 + (P - 1) / (P * vpp)))
    assert found[1] == pytest.approx((P * (vpp - 1) + 1) / vpp)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1"])
@given(
    p=st.integers(2, 8),
    transfer=st.floats(0.0, 6.0),
    latency=st.floats(0.0, 6.0),
    back=st.floats(0.5, 2.0),
)
def test_no_pipeline_is_faster_than_what_it_holds_comes_back(
    name: str, p: int, transfer: float, latency: float, back: float
) -> None:
    """Little's law: a stage that holds n micro-batches, each for its way there and back, begins
    n of them in that time; no link passes on more than one in the time that each keeps it; and no
    stage works on two at once."""
    kinds = np.array([1.0, float(p > 2), 1.0])
    count = np.array([1.0, float(p - 2), 1.0])
    of = Passes(kinds, back * kinds, 0.4 * kinds, count, transfer, latency)
    m, more = 64.0, 32.0
    held = float(SCHEDULES[name].held(np.array(float(p)), float(p), m + more, 1.0))
    way = p * (1.0 + back) + 2 * (p - 1) * (transfer + latency)
    pace = max(1.0 + back + 0.4, way / held, transfer)
    spent = float(pipeline_time(name, of, m + more) - pipeline_time(name, of, m))
    assert spent >= more * pace * (1 - 1e-9)
    free = replace(of, transfer=0.0, latency=0.0)
    assert float(pipeline_time(name, of, m)) >= float(pipeline_time(name, free, m))


def test_interleaved_stages_wait_for_those_behind_by_hand() -> None:
    """Two devices of two chunks, two micro-batches: the first device works 2 x 2.5 s; it waits for
    the 2.2 s behind it less its own forward pass, 2.0, and less its own backward pass, 0.5, which
    is less than three chunks' passes of what they are slower. The second works 2 x 2.2 s behind
    2.5 s of the first. Chunks halve what is no work of its own."""
    of = Passes(np.array([2.0, 0.0, 1.1]), np.array([0.5, 0.0, 1.1]), np.zeros(3),
                np.array([1.0, 0.0, 1.0]))  # fmt: skip
    first = 2 * 2.5 + (0.2 + min(1.7, 3 * 1.7)) / 2
    second = 2 * 2.2 + 2.5 / 2
    assert float(pipeline_time("1f1b", of, 2.0, 2.0)) == pytest.approx(max(first, second))
    played = timeline("1f1b", *of.of_every_stage(), 2, 2)[-1].end
    assert float(pipeline_time("1f1b", of, 2.0, 2.0)) == pytest.approx(played, rel=0.1)


PASS = st.integers(1, 12)


@given(
    forward=st.tuples(PASS, PASS, PASS), backward=st.tuples(PASS, PASS, PASS),
    inner=st.integers(0, 4), m=st.integers(1, 12), vpp=st.integers(2, 4),
)  # fmt: skip
def test_interleaved_pipelines_take_as_long_as_the_stage_that_waits_longest(
    forward: tuple[int, ...], backward: tuple[int, ...], inner: int, m: int, vpp: int
) -> None:
    """Stage by stage, as its docstring counts what each waits for, not by the kinds of them."""
    kinds = [0, *[1] * inner, 2]
    f, b = ([float(passes[kind]) for kind in kinds] for passes in (forward, backward))
    t, longest = [x + y for x, y in zip(f, b, strict=True)], 0.0
    for k in range(len(t)):
        behind = t[k + 1 :]
        n = min(len(behind), m * vpp - 1)
        idle = max(sum(behind) - n * f[k], 0.0)
        after = (m * vpp - 1) * (max(behind, default=0.0) - b[k])
        idle += max(min(sum(behind) - n * b[k], after), 0.0)
        longest = max(longest, m * t[k] + (sum(t[:k]) + idle) / vpp)
    of = Passes(*(np.array(one, float) for one in (forward, backward)), np.zeros(3),
                np.array([1.0, inner, 1.0]))  # fmt: skip
    assert float(pipeline_time("1f1b", of, float(m), float(vpp))) == pytest.approx(longest)


@pytest.mark.parametrize("p", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["zb-v", "dualpipe", "dualpipev"])
def test_folded_pipelines_are_their_last_event_whichever_part_they_wait_for(
    name: str, p: int
) -> None:
    """Gradients of inputs from half to three times a forward pass, of weights from a fifth to one
    and a half times: each of the critical paths is somewhere the longest."""
    entry = SCHEDULES[name]
    p += p % 2 if entry.fold == "both" else 0
    vpp = 2 if entry.fold == "v" else 1
    kinds = np.array([1.0, float(p > 2), 1.0])
    count = np.array([1.0, p - 2.0, 1.0])
    backs, lates = (0.5, 0.6, 0.8, 1.0, 1.2, 1.3, 3.0), (0.2, 0.25, 0.3, 0.6, 1.0, 1.5)
    for back, late in product(backs, lates):
        of = Passes(kinds, back * kinds, late * kinds, count)
        closed = float(pipeline_time(name, of, 2.0 * p, float(vpp)))
        played = timeline(name, *of.of_every_stage(), 2 * p, vpp)[-1].end
        assert closed == pytest.approx(played, rel=1e-9), (back, late)


@given(
    forward=st.tuples(PASS, PASS, PASS), backward=st.tuples(PASS, PASS, PASS),
    weights=st.tuples(PASS, PASS, PASS), inner=st.integers(0, 4), m=st.integers(1, 12),
    transfer=st.integers(0, 6), latency=st.integers(0, 6),
)  # fmt: skip
def test_zero_bubble_pipelines_take_as_long_as_the_stage_that_ends_last(
    forward: tuple[int, ...], backward: tuple[int, ...], weights: tuple[int, ...], inner: int,
    m: int, transfer: int, latency: int,
) -> None:  # fmt: skip
    """Stage by stage, as its docstring counts what each waits for, not by the kinds of them."""
    kinds, hop = [0, *[1] * inner, 2], float(transfer + latency)
    f, b, w = ([float(own[kind]) for kind in kinds] for own in (forward, backward, weights))
    p, ends = len(kinds), []
    for k in range(p):
        n, work = min(p - 1 - k, m - 1), m * (f[k] + b[k] + w[k])
        away = sum(f[k + 1 :]) + sum(b[k + 1 :]) + 2 * (p - 1 - k) * hop
        own = sum(f[:k]) + k * hop + work + max(away - n * f[k], 0.0)
        back = sum(f[:k]) + sum(b[:k]) + 2 * k * hop + work - min(k + 1, m) * w[k] + w[0]
        ends.append(max(own, back))
    way = sum(f) + sum(b) + 2 * (p - 1) * hop + w[0]
    slowest = max(x + y + z for x, y, z in zip(f, b, w, strict=True))
    more = (m - 1) * max(max(way / p, float(transfer)) - slowest, 0.0)
    of = Passes(*(np.array(one, float) for one in (forward, backward, weights)),
                np.array([1.0, inner, 1.0]), float(transfer), float(latency))  # fmt: skip
    # A kind that there is none of has no part in it.
    if not inner:
        of = replace(of, forward=of.forward * [1, 0, 1], backward=of.backward * [1, 0, 1],
                     weights=of.weights * [1, 0, 1])  # fmt: skip
    assert float(pipeline_time("zb-h1", of, float(m))) == pytest.approx(max(ends) + more)


@given(
    times=st.tuples(PASS, PASS, PASS), inner=st.integers(0, 4), m=st.integers(1, 12),
    left=st.integers(0, 12), transfer=st.integers(0, 6), latency=st.integers(0, 6),
)  # fmt: skip
def test_a_stage_takes_work_in_turn_by_itself_or_on_ways_there_and_back(
    times: tuple[int, ...], inner: int, m: int, left: int, transfer: int, latency: int
) -> None:
    """Stage by stage: ways over one link, all but one and all of them on either side, each with as
    many micro-batches as it has stages; those that are left go part of the way, or follow one
    another as fast as the stage and its link let them."""
    t = [float(times[kind]) for kind in (0, *[1] * inner, 2)]
    hop, p = float(transfer + latency), len(t)

    def longest(k: int) -> float:
        best = left * t[k]
        for many, way in ((p - 1 - k, t[k:]), (k, t[k::-1])):
            for links in {min(many, 1), max(many - 1, 0), many} if hop else ():
                loops, rest = divmod(left, links + 1)
                last = sum(way[:rest]) + 2.0 * (rest - 1) * hop if rest else 0.0
                pace = max(t[k], float(transfer)) if many else t[k]
                whole = sum(way[: links + 1]) + 2.0 * links * hop
                best = max(best, loops * whole + max(last, rest * pace))
        return best

    count = np.array([1.0, float(inner), 1.0])
    line = _Line.of(count, float(m))
    places = [int(k) for k in line.at]
    assert {0, p - 1} <= set(places)
    sums = np.array([sum(t[:k]) for k in places]), np.array([sum(t[: k + 1]) for k in places])
    found = _in_turn(line, np.array(times, float), sums, np.asarray(float(left)), hop, transfer)
    assert found.tolist() == pytest.approx([longest(k) for k in places])
