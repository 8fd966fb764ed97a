"""The yardstick of serving by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.checks.serving_baseline import beaten, constant_by_source, left_out, target_of
from calibration.tables.requests import InferencePoint, inference_point
from predictor.timing import RunParameters
from tests.calibration.tables.test_columns import ROW


def test_constants_are_those_of_other_sources_by_hand() -> None:
    """Engine x takes twice the roofline in source a, eight times in b (twice stated); y takes 32
    times in c. For c no other source has y: the middle of a and b on all engines, four times, so
    its error is that of 4 for 32. For a the only other source with x says 8, all others 8 and 32,
    16 in the middle: 16 x (8 / 16)^(1 / 3) = 12.7 for 2."""
    log = np.log([2.0, 8.0, 8.0, 32.0])
    target, engine, source = ["tpot"] * 4, ["x", "x", "x", "y"], ["a", "b", "b", "c"]
    error = left_out(log, target, engine, source)
    assert error[3] == pytest.approx(np.log(4 / 32))
    assert error[0] == pytest.approx(np.log(16 * 0.5 ** (1 / 3) / 2))
    # A metric that no other source has takes the constant of all metrics.
    lone = left_out(log, ["tpot", "tpot", "tpot", "ttft"], engine, source)
    assert lone[3] == pytest.approx(np.log(4 / 32))


def test_rows_of_a_table_against_their_roofline(tmp_path) -> None:
    """Two sources of one configuration, at 1 and at 4 times a figure: each is what the other's
    constant says, so they err by 75 and by 300 per cent."""
    rows = [{**ROW, "point_id": s, "source": s, "metric": "tpot_ms", "value": v}
            for s, v in (("a", 10.0), ("b", 40.0))]  # fmt: skip
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    found = constant_by_source([path])
    assert found == {"tpot": pytest.approx({"a": 3.0, "b": 0.75})}
    assert beaten({"a": 0.5, "b": 0.8}, found["tpot"]).tolist() == [True, False]


def test_what_a_row_is_judged_as() -> None:
    def told(**more: object) -> str:
        point = inference_point({**ROW, **more}, RunParameters())
        assert isinstance(point, InferencePoint)
        return target_of(point)

    assert told(metric="tpot_ms", value=10.0) == "tpot"
    assert told(metric="ttft_ms", value=10.0) == "ttft under concurrency"
    assert told() == "throughput, other"
