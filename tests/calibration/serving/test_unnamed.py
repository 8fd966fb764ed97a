"""What hiding the engine, or the weights' data type, adds to a run's spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.serving.fit import read_inference
from calibration.serving.unnamed import HIDDEN, ROWS, fit_added, hidden_points
from predictor.timing import UNNAMED_SPREAD, UNSAID_SPREAD, RunParameters, ServingParameters

ROW = {
    "published": "2025-06", "accelerator": "H100-SXM5-80GB", "num_gpus": 1, "model": "llama3-8b",
    "weights_precision": "bf16", "tp": 1, "input_len": 512, "output_len": 128, "notes": "",
    "framework": "vllm", "framework_version": "0.9.0", "concurrency": 8, "metric": "tpot_ms",
    "value": 8.0,
}  # fmt: skip


def table(place: Path, **columns: object) -> Path:
    """A table of 15 rows of each of two sources, one of them of two metrics."""
    rows = [
        {**ROW, "point_id": f"{source}{metric}{i}", "source": source, "metric": metric, **columns}
        for source, metric in (("a", "tpot_ms"), ("a", "ttft_ms"), ("b", "tpot_ms"))
        for i in range(15)
    ]
    pd.DataFrame(rows).to_csv(place / "runs.csv", index=False)
    return place / "runs.csv"


def test_rows_are_read_as_if_nobody_had_named_the_engine(tmp_path: Path) -> None:
    path, run = table(tmp_path), RunParameters()
    named, found = read_inference([path], run), hidden_points([path], run, UNNAMED_SPREAD)
    assert len(named) == 45
    assert len(found) == 3 * ROWS
    assert all(point.request.plan.named for point in named)
    assert not any(point.request.plan.named for point in found)
    ids = {point.point_id for point in named}
    assert not ids & {point.point_id for point in found}
    assert {point.kind for point in found} == {"serving"}
    values = {point.value for point in found}
    assert values == {8e-3}


def test_rows_that_are_read_otherwise_without_their_engine_say_nothing(tmp_path: Path) -> None:
    """Requests at a rate are served one by one, whose loads no fit of a concurrency has."""
    path = table(tmp_path, request_rate=4.0)
    assert hidden_points([path], RunParameters(), UNNAMED_SPREAD) == []


def test_rows_are_read_as_if_nobody_had_said_in_what_the_weights_are(tmp_path: Path) -> None:
    """Of a checkpoint that says it itself nothing is hidden; nor is a row of use that did not say
    it, or that does not name its engine."""
    path, run = table(tmp_path, weights_precision="fp8"), RunParameters()
    found = hidden_points([path], run, UNSAID_SPREAD)
    assert len(found) == 3 * ROWS
    assert {point.request.plan.weights for point in found} == {"bf16"}
    assert all(point.request.guessed and point.request.plan.named for point in found)
    assert not any(point.request.guessed for point in read_inference([path], run))
    for fields in ({"weights_precision": ""}, {"framework": ""},
                   {"model": "gpt-oss-20b", "weights_precision": "mxfp4"}):  # fmt: skip
        assert hidden_points([table(tmp_path, **fields)], run, UNSAID_SPREAD) == []


@pytest.mark.parametrize("what", sorted(HIDDEN))
def test_what_is_added_is_what_errors_were_drawn_with(tmp_path: Path, what: str) -> None:
    """Errors of spread (0.1² + 0.05² + 0.4²)^½ of runs that are sure to 0.1 beside operators of
    0.05; of fewer sources than five nothing is told."""
    base = hidden_points([table(tmp_path)], RunParameters(), what)[:1]
    count, sources = 6000, 6
    points = [replace(base[0], source=f"s{i % sources}") for i in range(count)]
    known = ServingParameters(sigma={"tpot.serving": 0.1})
    drawn = np.random.default_rng(5).standard_normal(count)
    errors = np.sqrt(0.1**2 + 0.05**2 + 0.4**2) * drawn
    fields = (np.full(count, 0.05), np.zeros((2, count)), known, 1.2816, 0.8)
    found = fit_added(what, points, errors, *fields)
    assert found == {what: pytest.approx(0.4, abs=0.03)}
    sure = fit_added(what, points, errors / 10.0, *fields)
    assert sure[what] == 0.0
    few = [replace(point, source="s") for point in points]
    assert fit_added(what, few, errors, *fields) == {}
