"""Who waits for whom, of traces of several ranks: by hand, from files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.sources.kineto_ranks import traced, waits
from predictor.errors import InputError
from reckon.verbs.tracing import awaited

ALL = ("", "gloo:all_reduce")


def test_waiting_by_hand() -> None:
    """Three ranks, two collectives. First: 5, 3, 1 us: rank 2 came last, the others waited 4 and
    2; with the next to last (rank 1) all save 2. Second: 4, 1, 6: rank 1, saved 3."""
    each = [{ALL: np.array(own)} for own in ([5.0, 4.0], [3.0, 1.0], [1.0, 6.0])]
    found, many = waits([0, 1, 2], each, "here")  # type: ignore[misc]
    assert many == 2
    assert [one.waited for one in found] == [7.0, 2.0, 5.0]
    assert [one.gain for one in found] == [0.0, 3.0, 2.0]
    assert [one.last for one in found] == [0.0, 0.5, 0.5]


def test_groups_are_told_apart() -> None:
    """Ranks 0 and 1 meet, 2 and 3 meet; nobody waits for the other pair."""
    one, other = ("[0, 1]", "allreduce"), ("[2, 3]", "allreduce")
    each = [{one: np.array([9.0])}, {one: np.array([1.0])},
            {other: np.array([3.0])}, {other: np.array([2.0])}]  # fmt: skip
    found, _ = waits([0, 1, 2, 3], each, "here")  # type: ignore[misc]
    assert [one.gain for one in found] == [0.0, 8.0, 0.0, 1.0]
    assert waits([0, 1], [{one: np.array([1.0])}, {other: np.array([1.0])}], "here") is None


def played(work: np.ndarray, folder: Path, wire: float = 10.0, device: bool = True) -> float:
    """Traces of ranks that meet after every section of `work` (ranks, sections) [us], each with a
    clock of its own. Returns the step [us]."""
    arrive = np.zeros(len(work))
    events: list[list[dict[str, Any]]] = [[] for _ in work]
    for section in work.T:
        arrive = arrive + section
        done = arrive.max() + wire
        for rank, began in enumerate(arrive):
            of = {"ph": "X", "pid": 0, "tid": 1, "ts": began + 1e6 * rank, "dur": done - began}
            kernel = {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}
            host = {"cat": "user_annotation", "name": "gloo:all_reduce"}
            events[rank].append({**of, **(kernel if device else host), "args": {"stream": 7}})
        arrive[:] = done
    for rank, own in enumerate(events):
        mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
                "ts": 1e6 * rank, "dur": float(arrive[0]), "args": {}}  # fmt: skip
        own.append({**mark, "name": "ncclDevKernel_SendRecv", "cat": "kernel", "dur": 5.0})
        text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [mark, *own]})
        (folder / f"z{9 - rank}.json").write_text(text)  # not in the order of their ranks
    return float(arrive[0])


@pytest.mark.parametrize("device", [True, False])
def test_a_slow_rank_is_named_with_what_it_costs(tmp_path: Path, device: bool) -> None:
    """One rank of four takes a quarter longer: without it, the step that is played without it."""
    work = 100.0 + np.random.default_rng(0).uniform(0.0, 4.0, (4, 50))
    work[2] *= 1.25
    whole = played(work, tmp_path, device=device)
    found = traced(tmp_path)
    assert found.step == pytest.approx(whole * 1e-6)
    assert found.collectives == 50
    slow = found.ranks[2]
    assert (slow.rank, slow.last, slow.waited) == (2, 1.0, 0.0)
    (tmp_path / "less").mkdir()
    less = played(np.delete(work, 2, axis=0), tmp_path / "less")
    assert slow.gain == pytest.approx((whole - less) * 1e-6, rel=1e-6)
    (sentence,) = awaited(found)
    assert "rank 2" in sentence
    assert f"{1 - less / whole:.1%}" in sentence


def test_equal_ranks_are_not_named(tmp_path: Path) -> None:
    played(np.full((2, 5), 100.0), tmp_path)
    (sentence,) = awaited(traced(tmp_path))
    assert "no rank holds a step up" in sentence


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder of traces"):
        traced(tmp_path / "none")
    with pytest.raises(InputError, match="holds 0 traces"):
        traced(tmp_path)
    played(np.full((2, 5), 100.0), tmp_path)
    own = json.loads((tmp_path / "z9.json").read_text())
    own["distributedInfo"]["rank"] = 1
    (tmp_path / "z9.json").write_text(json.dumps(own))
    with pytest.raises(InputError, match="two traces are of rank 1"):
        traced(tmp_path)
    own["distributedInfo"]["rank"] = 0
    del own["traceEvents"][1]
    (tmp_path / "z9.json").write_text(json.dumps(own))
    with pytest.raises(InputError, match="4 to 5 calls"):
        traced(tmp_path)
