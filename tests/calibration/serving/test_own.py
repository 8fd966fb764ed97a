"""A handful of own benchmarks: laws of what they say of an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import reckon
from calibration.serving.engines import parameters_of
from calibration.serving.own import adapt_engines
from calibration.serving.timed import timed, values
from calibration.tables.requests import InferencePoint, inference_point
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration

BASE = load("default")


def row(concurrency: int, metric: str, value: float) -> dict[str, Any]:
    return {
        "point_id": f"c{concurrency}_{metric}", "source": "own", "accelerator": "H100-SXM5-80GB",
        "model": "llama3-8b", "framework": "vllm", "tp": 1, "num_gpus": 1, "input_len": 512,
        "output_len": 256, "concurrency": concurrency, "batch": concurrency, "metric": metric,
        "value": value, "weights_precision": "bf16",
    }  # fmt: skip


METRICS = ("tpot_ms", "output_tokens_per_s", "ttft_ms")


def benchmarks(calibration: Calibration, loads: tuple[int, ...]) -> list[InferencePoint]:
    """What a calibration says of benchmarks, as if measured."""
    made = [inference_point(row(n, metric, 1.0), BASE.run) for n in loads for metric in METRICS]
    points = [one for one in made if isinstance(one, InferencePoint)]
    found, refused = timed(points, calibration)
    assert not refused
    told = values(found, parameters_of(found, calibration.serving.engines))[0]
    own = zip(found.points, told.tolist(), strict=True)
    return [replace(point, value=float(value)) for point, value in own]


def slower(step: float) -> Calibration:
    """Engines whose host takes so many times as long for a pass."""
    own = BASE.serving.engines.items()
    engines = {name: replace(one, step=float(one.step) * step) for name, one in own}
    return replace(BASE, serving=replace(BASE.serving, engines=engines))


def off(calibration: Calibration, points: list[InferencePoint]) -> float:
    found, _ = timed(points, calibration)
    told = values(found, parameters_of(found, calibration.serving.engines))[0]
    measured = np.array([point.value for point in found.points])
    return float(np.mean(np.abs(np.log(told / measured))))


def test_a_slow_host_is_found_and_carried_to_other_loads() -> None:
    truth = slower(10.0)  # of 4 times, passes of a captured graph hide all
    found = adapt_engines(BASE, benchmarks(truth, (2, 8, 32)))
    others = benchmarks(truth, (1, 16, 64))
    assert off(found.calibration, others) < 0.4 * off(BASE, others)
    plan = others[0].request.plan
    one, two = (c.serving.of(plan.framework, plan.era) for c in (BASE, found.calibration))
    assert float(two.step) > 1.5 * float(one.step)
    assert any("host" in line for line in found.words)
    known = BASE.serving.spread("tpot", "serving")
    assert found.calibration.serving.spread("tpot", "serving") < known


def test_benchmarks_that_are_as_predicted_move_nothing() -> None:
    found = adapt_engines(BASE, benchmarks(BASE, (4, 16))).calibration
    assert off(found, benchmarks(BASE, (1, 8, 64))) < 1e-3


def test_benchmarks_that_contradict_each_other_are_named() -> None:
    one, *_ = benchmarks(BASE, (4,))
    with pytest.raises(InputError, match=f"{one.point_id} and again are of the same"):
        adapt_engines(BASE, [one, replace(one, point_id="again", value=2.0 * one.value)])


def test_a_table_of_benchmarks_is_learned_from_and_kept(tmp_path: Path) -> None:
    units = {"tpot_s": ("tpot_ms", 1e3), "ttft_s": ("ttft_ms", 1e3),
             "output_tokens_per_s": ("output_tokens_per_s", 1.0)}  # fmt: skip
    rows = [
        row(int(p.request.plan.batch), units[p.metric][0], p.value * units[p.metric][1])
        for p in benchmarks(slower(10.0), (2, 16))
    ]
    table = pd.DataFrame(rows)
    adapted = reckon.adapt(BASE, table)
    table.to_csv(tmp_path / "mine.csv", index=False)
    summary = reckon.calibrate(out=tmp_path / "cal", reference=[tmp_path / "mine.csv"])
    assert len(summary["interval_points"]) == len(rows)
    again = load(tmp_path / "cal")
    one, two = (float(c.serving.of("vllm", "neutral").step) for c in (adapted, again))
    assert two == pytest.approx(one, rel=1e-3)
    assert one > 1.3 * float(BASE.serving.of("vllm", "neutral").step)
