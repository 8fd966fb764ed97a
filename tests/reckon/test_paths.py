"""One request gives one number, whichever way it is asked: command line, run file, Python, the
page, a check, a comparison, a sweep, a grid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import reckon
from predictor.plans import PREDICT, SERVING_FIELDS, TRAINING_FIELDS
from reckon.explore import explore
from reckon.sweeping import sweep

Cli = Callable[..., tuple[int, str, str]]

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": ("train", {"model": "mixtral-8x22b", "system": "p5.48xlarge", "gpus": 64, "tp": 4,
                          "pp": 2, "ep": 8, "global_batch": 128, "seq_len": 8192,
                          "precision": "fp8", "framework": "megatron-lm"}),
    "slice": ("train", {"model": "google/gemma-3-27b-it", "system": "v5p-128", "gpus": 64,
                        "global_batch": 128, "seq_len": 8192, "framework": "maxtext"}),
    "adapters": ("train", {"model": "llama3.2-1b", "system": "l40s", "gpus": 4,
                           "global_batch": "3.2e1", "seq_len": 2048, "trained": "lora",
                           "tokens": "1B"}),
    "checkpoint": ("infer", {"model": "Qwen/Qwen3-32B-FP8", "system": "8xH200", "tp": 2,
                             "concurrency": 16, "input_len": 1000, "output_len": 200,
                             "framework": "vllm"}),
    "arrivals": ("infer", {"model": "qwen3-8b", "system": "mi300x", "tp": 1, "rate": 2,
                           "input_len": 1024, "output_len": 64, "framework": "vllm"}),
}  # fmt: skip


def figures(kind: str, found: dict[str, Any]) -> list[float]:
    """What a result says, from the same keys of the JSON."""
    if kind == "train":
        return [found["step_time_s"]["value"], found["step_time_s"]["high"]]
    return [found[name]["value"] for name in ("ttft_s", "tpot_s", "output_tokens_per_s")]


def flags(kind: str, fields: dict[str, Any]) -> list[str]:
    table = TRAINING_FIELDS if kind == "train" else SERVING_FIELDS
    found: list[str] = []
    for name, value in fields.items():
        if name in ("model", "system") or PREDICT in table[name].flags:
            found += ["--" + name.replace("_", "-"), str(value)]
        else:
            found += ["--set", f"{name}={value}"]
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_every_path_gives_the_same(name: str, tmp_path: Path, cli: Cli) -> None:
    kind, fields = REQUESTS[name]
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(fields))
    plan = {key: value for key, value in fields.items() if key not in ("model", "system")}

    def told(*arguments: str) -> dict[str, Any]:
        _, out, error = cli(*arguments, "--json", "-")
        assert out, error
        return json.loads(out)  # type: ignore[no-any-return]

    predict = reckon.predict_train if kind == "train" else reckon.predict_infer
    wanted = figures(kind, predict(fields["model"], fields["system"], plan).to_dict())
    found = {
        "flags": figures(kind, told("predict", kind, *flags(kind, fields), "--allow-oom")),
        "file": figures(kind, told("predict", kind, str(run), "--allow-oom")),
        "check": figures(kind, told("check", str(run))["prediction"]),
    }
    assert found == dict.fromkeys(found, wanted)
    compared = told("compare", str(run), str(run))["ratios"]
    assert {round(one["value"], 9) for one in compared.values()} == {1.0}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_sweep_gives_the_same(name: str, tmp_path: Path) -> None:
    """Names as people write them are taken, and mean what they mean elsewhere."""
    kind, fields = REQUESTS[name]
    sweep({**fields, "verb": f"predict {kind}"}, tmp_path / "out", workers=1)
    row = pd.read_parquet(tmp_path / "out").iloc[0]
    predict = reckon.predict_train if kind == "train" else reckon.predict_infer
    plan = {key: value for key, value in fields.items() if key not in ("model", "system")}
    wanted = figures(kind, predict(fields["model"], fields["system"], plan).to_dict())
    key = "step_time_s" if kind == "train" else "ttft_s"
    assert row["status"] in ("ok", "does not fit"), row["reason"]
    assert row[key] == pytest.approx(wanted[0], rel=1e-12)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_grid_gives_the_same(name: str) -> None:
    """A grid of one point, to five digits, since machines go through it as arrays; arrivals at a
    rate are no grid's, which says so."""
    kind, fields = REQUESTS[name]
    plan = {key: value for key, value in fields.items() if key not in ("model", "system")}
    asked = {
        "workload": "training" if kind == "train" else "serving",
        "model": fields["model"],
        "system": fields["system"],
        "plan": plan,
    }
    if "rate" in plan:
        with pytest.raises(reckon.InputError, match="sweep"):
            explore(asked)
        return
    row = explore(asked, bottlenecks=False).table.iloc[0]
    predict = reckon.predict_train if kind == "train" else reckon.predict_infer
    found = predict(fields["model"], fields["system"], plan).to_dict()
    wanted = found["step_time_s" if kind == "train" else "e2e_s"]
    key = "step_time_s" if kind == "train" else "e2e_s"
    assert [row[key], row["low_s"], row["high_s"]] == pytest.approx(
        [wanted["value"], wanted["low"], wanted["high"]], rel=1e-5
    )
    if kind == "infer":
        told = [row["ttft_ms"] * 1e-3, row["tpot_ms"] * 1e-3, row["output_tokens_per_s"]]
        assert told == pytest.approx(figures(kind, found), rel=1e-5)


def test_the_page_gives_the_same() -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed (reckon[serve])")
    pytest.importorskip("httpx", reason="httpx is not installed (reckon[test])")
    from fastapi.testclient import TestClient

    from reckon.serve import application

    with TestClient(application()) as client:
        for kind, fields in REQUESTS.values():
            plan = {key: value for key, value in fields.items() if key not in ("model", "system")}
            body = {"model": fields["model"], "system": fields["system"], "plan": plan}
            predict = reckon.predict_train if kind == "train" else reckon.predict_infer
            own = predict(fields["model"], fields["system"], plan).to_dict()
            assert figures(kind, client.post(f"/api/{kind}", json=body).json()) == figures(
                kind, own
            )
