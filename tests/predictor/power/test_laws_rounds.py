"""How often a chip that heat holds back is looked at: until two rounds agree, no further."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor import catalog
from predictor.power import Activity, Chassis, demand, settle
from predictor.power.demand import operating
from predictor.power.heat import AIR, DEGREES, MOST, NEAR, ROUNDS, _expected

BOARD = catalog.power_constants(catalog.accelerator("H100-SXM5-80GB"))
BUSY = demand(Activity(1.0, flop=6e14, rows=1e9), BOARD)


@pytest.mark.parametrize("inlet", [25.0, 40.0, 55.0, 60.0, 65.0, 70.0])
@pytest.mark.parametrize("rows", [1, 2])
def test_rounds_end_where_two_of_them_agree(
    inlet: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves a twentieth of what the one before it missed: from a hundred kelvin or all of the
    power that takes as many rounds as a twentieth has to be taken of it, and one that agrees."""
    met: list[np.ndarray] = []

    def looked(*given: object) -> object:
        met.append(np.asarray(given[4]))
        return operating(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("predictor.power.heat.operating", looked)
    found = settle([BUSY], [np.ones(())], BOARD, 700.0, Chassis("air", inlet, rows, 0.045))
    if not found.throttled.any():
        assert len(met) == ROUNDS
        return
    needed = max(math.log(100.0 / DEGREES, 20.0), math.log(1.0 / NEAR, 20.0))
    assert ROUNDS <= len(met) <= min(2 + math.ceil(needed), MOST - 1)
    now = np.minimum(found.temperature, BOARD.slowdown)
    assert np.abs(now - met[-1]).max() <= DEGREES


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rounds_begin_at_the_mean_of_front_and_rear(rows: int) -> None:
    """Of a quarter of the time below the limit and the rest at it, which the cooling carries away
    from 20 °C and from what those before have warmed."""
    drawn = [demand(Activity(1.0, flop=flop, rows=1e9), BOARD) for flop in (1e13, 9e14)]
    share = [np.asarray(0.5), np.asarray(1.5)]
    limit = 400.0
    low, high = (min(float(one.whole), limit) for one in drawn)
    mean = 0.25 * low + 0.75 * high
    before = mean / (AIR * 0.045)
    resistance = float(np.asarray(BOARD.resistance["air"]))
    expected = 20.0 + 0.5 * (0.0 + (rows - 1) * before) + resistance * mean
    chassis = Chassis("air", 20.0, rows, 0.045)
    found = _expected(drawn, share, BOARD, np.asarray(limit), chassis)
    assert found.tolist() == pytest.approx([min(expected, float(BOARD.slowdown))])
