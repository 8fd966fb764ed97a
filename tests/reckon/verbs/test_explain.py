"""A trace against its prediction, and schedules as traces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InputError
from reckon.verbs.results import Prediction
from reckon.verbs.timeline import schedule_events, write_timeline
from reckon.verbs.tracing import explain
from reckon.verbs.training import predict_train

Cli = Callable[..., tuple[int, str, str]]

MODEL = {"name": "small", "layers": 2, "hidden": 2048, "heads": 16, "ffn_hidden": 8192,
         "vocab": 32000, "gated": False}  # fmt: skip
PLAN = {"gpus": 1, "global_batch": 4, "micro_batch": 4, "seq_len": 2048, "recompute": "none"}
FIELDS = {"model": MODEL, "system": "dgx-a100", **PLAN}
STRIDES = {"fwd": ([9, 1], [1, 9]), "dgrad": ([9, 1], [9, 1]), "wgrad": ([1, 9], [9, 1])}


def predicted(**more: Any) -> Prediction:
    found = predict_train(MODEL, "dgx-a100", {**PLAN, **more})
    assert isinstance(found, Prediction)
    return found


def trace_of(prediction: Prediction, path: Path, slow: str = "", idle: float = 5.0) -> float:
    """A recorded step of the matrix products alone, each as long as predicted but `slow`, which
    takes three times as long; the device waits `idle` us for the host before each. Returns the
    kernel time [us]."""
    events: list[dict[str, Any]] = []
    clock = total = 0.0
    timing = prediction.batch.timing
    for position, operator in enumerate(prediction.batch.operators):
        for _ in range(round(float(prediction.batch.executions[position]))):
            if operator.op != "gemm":
                continue
            time = float(timing.time[position]) * 1e6 * (3.0 if operator.name == slow else 1.0)
            m, n, k = (int(float(value)) for value in (operator.m, operator.n, operator.k))
            number = len(events)
            ids = {"External id": number, "correlation": number, "device": 0, "stream": 7}
            described = {
                "Input Dims": [[m, k], [k, n]],
                "Input type": ["c10::BFloat16"] * 2,
                "Input Strides": list(STRIDES[operator.variant]),
            }
            host = {"ph": "X", "pid": 1, "tid": 1, "ts": clock}
            events += [
                {**host, "cat": "cpu_op", "name": "aten::mm", "dur": idle + 1.0,
                 "args": ids | described},
                {**host, "cat": "cuda_runtime", "name": "launch", "dur": idle, "args": ids},
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
                 "ts": clock + idle, "dur": time, "args": ids},
            ]  # fmt: skip
            clock += idle + time
            total += time
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1}
    events.append({**step, "ts": 0.0, "dur": clock, "args": {}})
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    return total


def terms(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {term["term"]: term for term in result["terms"]}


def test_products_that_run_as_predicted_are_set_beside_themselves(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    prediction = predicted()
    total = trace_of(prediction, path)
    result = explain(path, FIELDS)
    gemm = terms(result)["gemm"]
    assert gemm["measured_s"] == pytest.approx(total * 1e-6)
    expected = sum(o.time_s for o in prediction.operators if o.op == "gemm")
    assert gemm["predicted_s"] == pytest.approx(expected)
    assert gemm["measured_s"] == pytest.approx(gemm["predicted_s"], rel=0.02)
    work = result["work"]
    assert work["gemm_flop_measured"] == pytest.approx(work["gemm_flop_predicted"])
    step = result["step_time_s"]
    for side, whole in (("measured_s", step["measured"]), ("predicted_s", step["predicted"])):
        assert sum(term[side] for term in result["terms"]) == pytest.approx(whole, rel=1e-6)
    assert step["predicted"] == pytest.approx(prediction.step_time.value)
    assert terms(result)["attention"]["measured_s"] == 0
    assert not any("slower than their interval" in text for text in result["findings"])


def test_the_slow_product_and_the_host_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace_of(predicted(), path, slow="mlp.down", idle=2000.0)
    result = explain(path, FIELDS)
    worst = result["operators"][0]
    assert worst["operator"] == "gemm bf16 fwd 8192 x 2048 x 8192"
    assert worst["measured_s"] == pytest.approx(3 * worst["predicted_s"], rel=0.25)
    assert worst["calls"] == 2
    waiting = terms(result)["waiting for the host"]
    assert waiting["measured_s"] == pytest.approx(2e-3 * (waiting["kernels"]), rel=1e-6)
    text = " | ".join(result["findings"])
    assert "gemm bf16 fwd 8192 x 2048 x 8192" in text
    assert "the host is the limit" in text


def test_another_batch_shows_in_the_arithmetic(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace_of(predicted(), path)
    result = explain(path, {**FIELDS, "global_batch": 8, "micro_batch": 8})
    assert any("0.50 times the arithmetic" in text for text in result["findings"])


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    path, out, both = tmp_path / "t.json", tmp_path / "out.json", tmp_path / "both.json"
    trace_of(predicted(), path)
    model = tmp_path / "small.yaml"
    model.write_text(json.dumps(MODEL))
    flags = ["--model", model, "--system", "dgx-a100", "--gpus", 1, "--global-batch", 4,
             "--micro-batch", 4, "--seq-len", 2048, "--recompute", "none"]  # fmt: skip
    status, text, _ = cli("explain", path, *flags, "--json", out, "--timeline", both)
    assert status == 0
    assert "gemm" in text
    assert json.loads(out.read_text())["kind"] == "explanation"
    events = json.loads(both.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "gemm"]
    assert min(e["ts"] for e in kernels) == pytest.approx(5.0)
    assert any(e.get("cat") == "predicted" for e in events)
    for bad, words in (
        (["explain", path], "needs --model and --system"),
        (["explain", path, *flags[:2], "--system", "dgx-h100", *flags[4:]], "holds H100"),
        (["explain", tmp_path / "none.json", *flags], "no such file"),
        (["explain", model, *flags], "has no traceEvents"),
    ):
        status, _, err = cli(*bad)
        assert status == 2
        assert words in err
        assert err.count("\n") == 1


def test_a_trace_calibrates(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "t.json", tmp_path / "calibration"
    trace_of(predicted(), path)
    status, text, _ = cli("calibrate", path, "--out", out)
    assert status == 0
    assert "gemm/bf16/A100-SXM4-80GB" in text


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": 4, "pp": 2, "global_batch": 8, "micro_batch": 1},
        {"gpus": 8, "pp": 2, "global_batch": 16, "micro_batch": 1, "schedule": "zb-h1"},
        {"gpus": 8, "dp": 8, "global_batch": 32},
    ],
)
def test_the_timeline_ends_with_the_step(more: dict[str, Any], tmp_path: Path) -> None:
    found = predicted(**more)
    events = schedule_events(found)
    slices = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(found.step_time.value * 1e6)
    stages = more.get("pp", 1)
    micro = more["global_batch"] * stages // (more["gpus"] * more.get("micro_batch", 4))
    assert {e["pid"] for e in slices} == set(range(stages))
    for stage in range(stages):
        own = sorted((e for e in slices if e["pid"] == stage), key=lambda e: e["ts"])
        assert sum(e["name"].startswith("forward") for e in own) == micro
        for first, second in itertools.pairwise(own):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-3
        held = [
            e["args"]["chunks"]
            for e in events
            if "chunks" in e.get("args", {}) and e["pid"] == stage
        ]
        assert held[-1] == 0
        assert 0 < max(held) <= micro
    write_timeline(tmp_path / "t.json", events)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == events
    with pytest.raises(InputError, match=r"expected a \.json file"):
        write_timeline(tmp_path / "t.txt", events)


def test_a_timeline_is_of_one_plan(cli: Cli, tmp_path: Path) -> None:
    flags = ["--model", "llama3-8b", "--system", "dgx-h100", "--gpus", 8, "--global-batch", 8,
             "--seq-len", 4096]  # fmt: skip
    out = tmp_path / "t.json"
    status, _, err = cli("predict", "train", *flags, "--tp", "4,8", "--timeline", out)
    assert status == 2
    assert "draws one plan" in err
    status, *_ = cli("predict", "train", *flags, "--tp", "8", "--timeline", out)
    assert status == 0
    assert json.loads(out.read_text())["displayTimeUnit"] == "ms"
