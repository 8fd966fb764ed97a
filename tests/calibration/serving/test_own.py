"""A handful of own benchmarks: laws of what they say of an engine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import reckon
from calibration.serving.engines import parameters_of
from calibration.serving.fit import read_inference
from calibration.serving.own import adapt_engines, slowed
from calibration.serving.process import START, Draw, corrections, fit_process
from calibration.serving.timed import timed, values
from calibration.tables.requests import InferencePoint, inference_point
from predictor.catalog import engines_mapping, load
from predictor.catalog.engines import from_mapping
from predictor.errors import InputError
from predictor.serving import predict_inference
from predictor.timing import Benchmarks, Calibration, key_of, sizes_of

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


def test_benchmarks_of_which_none_is_of_use_are_refused_in_one_line(tmp_path: Path) -> None:
    """Open loops alone, and rows of a machine that nobody knows."""
    made = inference_point({**row(4, "tpot_ms", 9.0), "request_rate": 4.0}, BASE.run)
    assert isinstance(made, InferencePoint)
    with pytest.raises(InputError, match="none of 1 benchmarks can be used: no closed loop"):
        adapt_engines(BASE, [made])
    path = tmp_path / "strange.csv"
    strange = {**row(4, "tpot_ms", 9.0), "accelerator": "my-cpu"}
    pd.DataFrame([strange]).to_csv(path, index=False)
    with pytest.raises(InputError, match="can be used: unknown accelerator 'my-cpu'"):
        read_inference([path], BASE.run)


def test_a_slow_host_is_found_and_carried_to_other_loads() -> None:
    truth = slower(15.0)  # of 8 times, passes of a captured graph hide all
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


def test_what_is_learned_of_an_earlier_release_is_said_to_be_of_it_alone() -> None:
    """A benchmark of mid-2025 moves vLLM as it was; where no era is named, today's is predicted."""
    rows = [{**row(n, "tpot_ms", 70.0), "published": "2025-06"} for n in (8, 32)]
    table = pd.DataFrame(rows)
    known = reckon.adapt(BASE, table)
    assert known.serving.engines["vllm"] == BASE.serving.engines["vllm"]
    assert known.serving.engines["vllm until 2025-12"] != BASE.serving.engines["vllm until 2025-12"]
    told = [line for line in known.provenance["own_words"] if "until 2025-12" in line]
    assert len(told) == 1
    assert "later releases are predicted as before" in told[0]
    now = reckon.adapt(BASE, table.drop(columns="published"))
    assert not any("later releases" in line for line in now.provenance["own_words"])


def test_what_no_parameter_explains_is_said_and_carried_to_like_benchmarks() -> None:
    """One time per token that is three times the predicted one is an odd row to the engine."""
    (one,) = (b for b in benchmarks(BASE, (16,)) if b.metric == "tpot_s")
    found = adapt_engines(BASE, [replace(one, value=3.0 * one.value)])
    (line,) = (words for words in found.words if "a token takes" in words)
    assert "like benchmarks" in line
    assert found.calibration.provenance["own_words"] == list(found.words)


def test_benchmarks_that_contradict_each_other_are_named() -> None:
    one, *_ = benchmarks(BASE, (4,))
    with pytest.raises(InputError, match=f"{one.point_id} and again are of the same"):
        adapt_engines(BASE, [one, replace(one, point_id="again", value=2.0 * one.value)])


def test_figures_of_another_unit_are_named() -> None:
    one, *_ = benchmarks(BASE, (4,))
    for factor, told in ((1e-3, "is 1/1000 of what"), (1e3, "is 1000 x what")):
        with pytest.raises(InputError, match=f"benchmark {one.point_id}: .* {told}"):
            adapt_engines(BASE, [replace(one, value=factor * one.value)])


def test_a_table_of_benchmarks_is_learned_from_and_kept(tmp_path: Path) -> None:
    units = {"tpot_s": ("tpot_ms", 1e3), "ttft_s": ("ttft_ms", 1e3),
             "output_tokens_per_s": ("output_tokens_per_s", 1.0)}  # fmt: skip
    rows = [
        row(int(p.request.plan.batch), units[p.metric][0], p.value * units[p.metric][1])
        for p in benchmarks(slower(15.0), (2, 16))
    ]
    table = pd.DataFrame(rows)
    adapted = reckon.adapt(BASE, table)
    table.to_csv(tmp_path / "mine.csv", index=False)
    summary = reckon.calibrate(out=tmp_path / "cal", reference=[tmp_path / "mine.csv"])
    assert len(summary["interval_points"]) == len(rows)
    again = load(tmp_path / "cal")
    told = [*summary["learned"], *summary["aside"]]
    assert told == list(adapted.provenance["own_words"]) == list(again.provenance["own_words"])
    assert told
    one, two = (float(c.serving.of("vllm", "neutral").step) for c in (adapted, again))
    assert two == pytest.approx(one, rel=1e-3)
    assert one > 1.3 * float(BASE.serving.of("vllm", "neutral").step)


LOADS = (1, 2, 4, 8, 16)


def test_what_no_parameter_explains_is_carried_to_like_benchmarks_of_the_metric() -> None:
    """End-to-end times that are 1.3 x what the engine's first and other tokens come to."""
    plain = [inference_point(row(n, "e2e_latency_s", 1.0), BASE.run) for n in LOADS]
    points = [one for one in plain if isinstance(one, InferencePoint)]
    found, _ = timed(points, BASE)
    told = values(found, parameters_of(found, BASE.serving.engines))[0]
    own = [replace(p, value=1.3 * float(v)) for p, v in zip(found.points, told, strict=True)]
    known = adapt_engines(BASE, [*own[:2], *own[3:], *benchmarks(BASE, LOADS)]).calibration
    request = own[2].request

    def of(calibration: Calibration) -> Any:
        return predict_inference(request.model, request.cluster, request.plan, calibration)

    before, after = of(BASE), of(known)
    assert 1.1 < float(after.latencies.e2e / before.latencies.e2e) < 1.35
    assert float(after.latencies.tpot) == pytest.approx(float(before.latencies.tpot), rel=0.1)
    assert sum(after.breakdown.values()) == pytest.approx(after.latencies.e2e)
    far = replace(request.plan, tp=8.0, input_len=65536.0)
    ratio = predict_inference(request.model, request.cluster, far, known).latencies.tpot
    ratio = ratio / predict_inference(request.model, request.cluster, far, BASE).latencies.tpot
    assert float(ratio) == pytest.approx(1.0, rel=0.12)


def test_a_checkpoint_that_its_engine_serves_slowly_says_nothing_of_the_engine() -> None:
    """Of two checkpoints one decodes in thrice the time and is most of what was measured: its other
    benchmarks are predicted so (within the tenth that figures repeat to), and those of the other
    checkpoint as if nothing had been measured of the first."""

    def narrow(points: list[InferencePoint]) -> list[InferencePoint]:
        return [
            replace(p, request=replace(p.request, plan=replace(p.request.plan, narrowed="linear",
                                                               weights="fp8")))
            for p in points
        ]  # fmt: skip

    def of(calibration: Calibration, loads: tuple[int, ...], factor: float, slow: bool) -> Any:
        points = narrow(benchmarks(BASE, loads)) if slow else benchmarks(BASE, loads)
        found, _ = timed(points, calibration)
        told = values(found, parameters_of(found, calibration.serving.engines))[0]
        own = calibration.serving.own
        left = np.zeros(len(told)) if own is None else corrections(own, found)
        factors = factor ** slowed(found)
        return [
            replace(p, value=float(v)) for p, v in zip(found.points, told * factors * np.exp(left),
                                                       strict=True)
        ]  # fmt: skip

    loads, others = (1, 4, 16), (2, 8)
    known = adapt_engines(BASE, [*of(BASE, loads, 3.0, True), *of(BASE, (4, 16), 1.0, False)])
    for slow, factor in ((True, 3.0), (False, 1.0)):
        truth = of(BASE, others, factor, slow)
        told = of(known.calibration, others, 1.0, slow)
        for one, other in zip(truth, told, strict=True):
            assert math.log(other.value / one.value) == pytest.approx(0.0, abs=math.log(1.1))
    assert any("fp8" in line and "x the time" in line for line in known.words)
    again = from_mapping(json.loads(json.dumps(engines_mapping(known.calibration.serving)))).own
    own = known.calibration.serving.own
    assert again is not None
    assert own is not None
    assert again.levels == pytest.approx(own.levels)


def test_a_process_says_most_where_it_was_measured_and_nothing_of_other_engines() -> None:
    sizes = sizes_of(np.array([1.0, 4.0]), 512.0, 128.0, 1.0)
    known = Benchmarks(START, ["a", "a"], ["tpot", "ttft"], sizes, np.array([0.2, -0.2]))
    at, away = (float(known.correction("a", "tpot", s)) for s in (sizes[0], sizes[0] + 30.0))
    assert 0.1 < at < 0.2
    assert abs(away) < at
    # A first token waits in a queue, where chance has more of a say than in a pass.
    assert -at < float(known.correction("a", "ttft", sizes[1])) < 0.0
    assert float(known.correction("b", "tpot", sizes[0])) == 0.0
    narrow = [key_of("vllm", "m", "H100", "fp8", part) for part in ("linear", "feed_forward")]
    assert narrow[0] != narrow[1], "checkpoints of a model are narrow in different places"
    many = known.correction("a", "tpot", np.stack([sizes, sizes]))
    assert many.shape == (2, 2)
    assert many[1, 0] == pytest.approx(at)
    huge = replace_residual(known, np.array([9.0, 9.0]))
    assert float(huge.correction("a", "tpot", sizes[0])) <= START.most


def replace_residual(known: Benchmarks, residual: np.ndarray) -> Benchmarks:
    return Benchmarks(known.process, known.keys, known.metrics, known.sizes, residual)


def test_what_is_left_of_benchmarks_is_read_as_it_was_written() -> None:
    known = adapt_engines(BASE, benchmarks(slower(3.0), (1, 8))).calibration.serving
    again = from_mapping(json.loads(json.dumps(engines_mapping(known))))
    assert known.own is not None
    assert again.own is not None
    assert again.own.residual == pytest.approx(known.own.residual)
    assert again.own.process == known.own.process
    assert list(again.own.keys) == list(known.own.keys)
    assert "own" not in engines_mapping(BASE.serving)


def test_a_process_is_learned_that_predicts_what_is_left() -> None:
    """Groups whose benchmarks are all off by one factor, another in each group: the metric's own
    spread is found, and the rest of a group predicted."""
    generator = np.random.default_rng(0)
    draws = []
    for level in (0.3, -0.25, 0.2, -0.3):
        batch = 2.0 ** np.arange(8.0)
        left = level + generator.normal(0.0, 0.01, 8)
        whole = Benchmarks(START, ["a"] * 8, ["tpot"] * 8, sizes_of(batch, 512.0, 64.0, 1.0), left)
        draws.append(Draw("s", whole, np.arange(3), np.arange(3, 8)))
    found = fit_process(draws)
    for draw in draws:
        assert draw.errors(found)["tpot"] < 0.06
        assert draw.errors(found)["tpot"] <= draw.errors(START)["tpot"] + 1e-9
