"""`reckon compare`: a result that is read again is the request that it was, and a ratio is that of
the figures which both sides are predicted to have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import reckon

Cli = Callable[..., tuple[int, str, str]]

TRAIN: dict[str, Any] = {
    "model": "llama3-8b", "system": "dgx-h100", "gpus": 16, "global_batch": 32, "seq_len": 4096,
}  # fmt: skip
SERVE: dict[str, Any] = {
    "model": "qwen3-8b", "system": "dgx-h100", "tp": 1, "input_len": 1024, "output_len": 64,
    "framework": "vllm",
}  # fmt: skip


def written(folder: Path, fields: dict[str, Any]) -> tuple[str, str, Any]:
    """A run file, what `--json` writes of it, and the result."""
    plan = {key: value for key, value in fields.items() if key not in ("model", "system")}
    predict = reckon.predict_infer if "input_len" in fields else reckon.predict_train
    found = predict(fields["model"], fields["system"], plan)
    run, result = folder / "run.yaml", folder / "result.json"
    run.write_text(yaml.safe_dump(fields), encoding="utf-8")
    result.write_text(json.dumps(found.to_dict()), encoding="utf-8")
    return str(run), str(result), found


@pytest.mark.parametrize(
    "fields",
    [
        {**TRAIN, "documents": "wlb"},
        {**TRAIN, "recompute": "full", "recompute_method": "uniform", "recompute_layers": 4},
        {**SERVE, "batch": 8},
        {**SERVE, "concurrency": 32},
        {**SERVE, "saturated": True},
        {**SERVE, "rate": 2.0, "variation": 0.3},
        {**SERVE, "concurrency": 16, "prefill_workers": 1},
    ],
)
def test_a_result_is_compared_as_the_request_it_was(fields: dict[str, Any], tmp_path: Path) -> None:
    """Clients, a full engine and documents are no numbers of a plan: a result kept the plan alone,
    and was compared as a batch of one, or as sequences of one document."""
    run, result, _ = written(tmp_path, fields)
    for one, two in ((result, run), (result, result)):
        found = reckon.compare(one, two)
        assert {name: own.value for name, own in found.ratios.items()} == pytest.approx(
            dict.fromkeys(found.ratios, 1.0), rel=1e-12
        )


@pytest.mark.parametrize("fields", [{**TRAIN, "documents": "wlb"}, {**SERVE, "concurrency": 32}])
def test_a_result_is_a_run_file(fields: dict[str, Any], tmp_path: Path, cli: Cli) -> None:
    """What a prediction wrote is predicted and checked again, alone or with flags beside it."""
    run, result, found = written(tmp_path, fields)
    kind, figure = ("infer", "ttft_s") if "input_len" in fields else ("train", "step_time_s")
    wanted = found.to_dict()[figure]
    assert json.loads(cli("predict", kind, result, "--json", "-")[1])[figure] == wanted
    assert json.loads(cli("check", result, "--json", "-")[1])["prediction"][figure] == wanted
    beside = [cli("predict", kind, file, "--tp", 2, "--json", "-")[1] for file in (run, result)]
    first, second = (json.loads(one)[figure] for one in beside)
    assert first == second
    several = tmp_path / "several.json"
    cli("predict", kind, run, "--tp", "1,2", "--json", several)
    for verb in (("predict", kind), ("check",)):
        status, _, error = cli(*verb, several)
        assert status == 2
        assert "does not say what was stated of one run" in error
        assert error.count("\n") == 1


def test_an_older_result_is_read_by_its_inputs(tmp_path: Path) -> None:
    run, result, found = written(tmp_path, TRAIN)
    content = found.to_dict()
    del content["stated"]
    Path(result).write_text(json.dumps(content), encoding="utf-8")
    assert reckon.compare(result, run).ratios["step_time"].value == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    "more",
    [
        {"power_limit": 300},
        {"clock": 1000},
        {"pp": 2, "split": "heat"},
        {"pp": 4, "recompute": "full", "stage_recompute": "fits"},
    ],
)
def test_a_ratio_is_that_of_the_predictions(more: dict[str, Any], tmp_path: Path) -> None:
    """A limit of power was left out on both sides, and unlike stages were taken as alike."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    a, _, plain = written(folders[0], TRAIN)
    b, _, other = written(folders[1], {**TRAIN, **more})
    found = reckon.compare(a, b)
    assert found.ratios["step_time"].value == pytest.approx(
        other.step_time.value / plain.step_time.value, rel=1e-12
    )
    assert sum(two - one for _, one, two in found.terms) == pytest.approx(
        other.step_time.value - plain.step_time.value, rel=1e-9
    )


@pytest.mark.parametrize("fields", [TRAIN, SERVE], ids=["train", "infer"])
def test_a_run_is_as_long_as_itself_for_sure(fields: dict[str, Any], tmp_path: Path) -> None:
    """It was 0.93 to 1.08 times as long; what differs by a word alone is the same run."""
    folders = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in folders:
        folder.mkdir()
    a, _, plain = written(folders[0], fields)
    told = {"tp": int(plain.request.plan.tp), "dp": int(plain.request.plan.dp)}
    same, _, _ = written(folders[1], {**fields, **told})
    other, _, _ = written(folders[2], {**fields, **told, "tp": 2 * told["tp"]} | {"dp": None})
    for one in reckon.compare(a, same).ratios.values():
        assert (one.low, one.value, one.high) == (1.0, 1.0, 1.0)
    assert all(one.low < one.value < one.high for one in reckon.compare(a, other).ratios.values())
