"""What hiding the engine adds to a run's spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.serving.fit import read_inference
from calibration.serving.unnamed import ROWS, fit_unnamed, unnamed_points
from predictor.timing import UNNAMED_SPREAD, RunParameters, ServingParameters

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
    named, found = read_inference([path], run), unnamed_points([path], run)
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
    """LMDeploy's benchmark calls a batch its concurrency; rows of no engine are hidden already."""
    assert unnamed_points([table(tmp_path, framework="lmdeploy")], RunParameters()) == []
    assert unnamed_points([table(tmp_path, request_rate=4.0)], RunParameters()) == []


def test_what_is_added_is_what_errors_were_drawn_with(tmp_path: Path) -> None:
    """Errors of spread (0.1² + 0.05² + 0.4²)^½ of runs that are sure to 0.1 beside operators of
    0.05; of fewer sources than five nothing is told."""
    base = unnamed_points([table(tmp_path)], RunParameters())[:1]
    count, sources = 6000, 6
    points = [replace(base[0], source=f"s{i % sources}") for i in range(count)]
    known = ServingParameters(sigma={"tpot.serving": 0.1})
    drawn = np.random.default_rng(5).standard_normal(count)
    errors = np.sqrt(0.1**2 + 0.05**2 + 0.4**2) * drawn
    fields = (np.full(count, 0.05), np.zeros((2, count)), known, 1.2816, 0.8)
    found = fit_unnamed(points, errors, *fields)
    assert found == {UNNAMED_SPREAD: pytest.approx(0.4, abs=0.03)}
    sure = fit_unnamed(points, errors / 10.0, *fields)
    assert sure[UNNAMED_SPREAD] == 0.0
    few = [replace(point, source="s") for point in points]
    assert fit_unnamed(few, errors, *fields) == {}
