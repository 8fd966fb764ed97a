from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.checks.baseline import constant_mfu, constant_mfu_by_source
from calibration.tables.runs import Point, point_of
from predictor.catalog.artifacts import load
from tests.calibration.tables.test_points import ROW


def run(source: str, step: float, **changed: object) -> Point:
    found = point_of({**ROW, "source": source, **changed}, load("kernels-only").run)
    assert isinstance(found, Point)
    return replace(found, measured=step)


def test_a_constant_utilisation_by_hand() -> None:
    """Two sources at 1 s and 2 s (the latter twice) of one configuration; a third at 4 s expects
    their geometric mean; twice the batch takes twice as long."""
    points = [run("a", 1.0), run("b", 2.0), run("b", 2.0), run("c", 4.0)]
    points.append(run("c", 8.0, global_batch=2.0 * ROW["global_batch"]))
    error = constant_mfu(points)
    assert error[3] == pytest.approx(np.log(2**0.5 / 4))
    assert error[4] == pytest.approx(error[3])
    assert error[0] == pytest.approx(np.log(8**0.5))


def test_a_source_alone_on_its_accelerator_takes_that_of_others() -> None:
    alone = run("c", 4.0, accelerator="A100-SXM4-80GB")
    error = constant_mfu([run("a", 1.0), run("b", 2.0), alone])
    peak = 989.5 / 312.0
    assert error[2] == pytest.approx(np.log(2**0.5 * peak / 4), abs=0.01)


def test_errors_by_source_leave_layer_times_out() -> None:
    points = [run("a", 1.0), run("b", 2.0), replace(run("c", 1e-3), one_layer=True)]
    assert constant_mfu_by_source(points) == pytest.approx({"a": 1.0, "b": 0.5})
