"""Lines of power and uneven work: errors are those of hand counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.checks.asked import Line, _line, _swept, told_apart
from calibration.power.points import PowerPoint
from predictor.units import Z80


def point(predicted: float, control: str = "", metric: str = "rel_time") -> PowerPoint:
    """Beside one that is published as 100, with an interval of 12.8 % on either side."""
    return PowerPoint(
        point_id="a", source="b", metric=metric, published=100.0, predicted=predicted,
        sigma=np.log(1.128) / Z80, accelerator="C", control=control,
    )  # fmt: skip


def test_a_line_counts_errors_and_what_intervals_hold() -> None:
    """Errors of 10 and 30 %: 20 % on average and in the middle, one of two inside."""
    found = _line("it", [point(110.0), point(70.0)], "5%")
    bias = 0.5 * (np.log(1.1) + np.log(0.7))
    assert str(found) == f"| it | 2 | 20.0% | 20.0% | {bias:+.2f} | 50% | 5% |"
    assert found.inside == (True, False)


def test_nothing_scored_is_said_to_be_nothing() -> None:
    assert str(Line("it", (), ())) == "| it | 0 | | | | |  |"


def test_limits_that_bind_are_apart_from_those_that_do_not_and_from_clocks() -> None:
    points = [
        point(110.0, "bound"), point(120.0, "free"), point(130.0, "clock", "rel_power"),
        point(140.0, "bound", "rel_power"), point(150.0, "free", "rel_power"),
    ]  # fmt: skip
    counted = {line.what: np.exp(line.errors[0]) for line in _swept(points)}
    assert [round(float(one), 6) for one in counted.values()] == [1.1, 1.4, 1.5, 1.3]


def test_rungs_do_not_tell_their_own_spread() -> None:
    """Of three rows the one that is missed by far has the spread of the other two."""
    points = [replace(point(v), point_id=str(v)) for v in (110.0, 110.0 / 1.21, 200.0)]
    sigmas = [one.sigma for one in told_apart(points)]
    assert sigmas[2] == pytest.approx(np.log(1.1) / Z80)
    assert min(sigmas[:2]) > sigmas[2]
