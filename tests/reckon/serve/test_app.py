"""The server over HTTP: what it answers, what it refuses, and how."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed (reckon[serve])")
pytest.importorskip("httpx", reason="httpx is not installed (reckon[test])")

from fastapi.testclient import TestClient

import reckon
from predictor import catalog
from reckon.serve import answers, application

PLAN = {"gpus": 64, "tp": 8, "pp": 1, "global_batch": 64, "seq_len": 4096}
BODY = {"model": "llama3-8b", "system": "dgx-h100", "plan": PLAN}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application("kernels-only"), raise_server_exceptions=False) as found:
        yield found


def test_the_page_and_its_files_come_from_here(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in ("/app.js", "/style.css", "/icon.svg", "/plotly.js"):
        assert client.get(path).status_code == 200
        assert path in page.text or path == "/plotly.js"
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_it_answers_what_python_answers(client: TestClient) -> None:
    found = client.post("/api/train", json=BODY).json()
    own = reckon.predict_train("llama3-8b", "dgx-h100", PLAN, "kernels-only")
    assert found["step_time_s"]["value"] == own.step_time.value
    words = found["command"].split()
    assert words[:3] == ["reckon", "predict", "train"]
    assert words[words.index("--tp") + 1] == "8"
    serving = {"model": "llama3-8b", "system": "8xH100",
               "plan": {"tp": 8, "concurrency": 4, "input_len": 64, "output_len": 8}}  # fmt: skip
    assert client.post("/api/infer", json=serving).json()["memory"]["fits"] is True


def test_each_kind_is_answered_once_before_anyone_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first answer needs (catalogs, tables, compiled methods) is there by then."""
    asked: list[str] = []
    for name in ("train", "infer"):
        own = getattr(answers, name)
        monkeypatch.setattr(
            answers,
            name,
            lambda body, known, own=own, name=name: asked.append(name) or own(body, known),
        )
    with TestClient(application("kernels-only")):
        until = time.monotonic() + 60
        while len(asked) < 2 and time.monotonic() < until:
            time.sleep(0.02)
    assert asked == ["train", "infer"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "llama3-9b"}, "did you mean"),
        ({"model": "/etc/passwd.yaml"}, "is a file"),
        ({"system": {"accelerator": "x/y.JSON", "name": "a"}}, "is a file"),
        ({"plan": {**PLAN, "colour": 3}}, "unknown key 'colour'"),
        ({"plan": {**PLAN, "tp": "many"}}, "tp"),
        ({"plan": {**PLAN, "gpus": [8, 16]}}, "not a list"),
        ({"plan": {**PLAN, "gpus": 60}}, "60"),
        ({"plan": {"gpus": 8}}, "give --seq-len"),
    ],
)
def test_bad_input_is_422_and_the_line_of_the_command_line(
    client: TestClient, change: dict[str, Any], told: str
) -> None:
    answer = client.post("/api/train", json={**BODY, **change})
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


@pytest.mark.parametrize("verb", ["train", "infer"])
def test_power_limits_trade_time_for_energy(client: TestClient, verb: str) -> None:
    """A lower limit never makes work faster, nor lets it draw more; one that is stated is there."""
    serving = {"tp": 8, "concurrency": 4, "input_len": 512, "output_len": 8, "gpus": 8}
    body = {**BODY, "plan": {**(PLAN if verb == "train" else serving), "power_limit": 500}}
    found = client.post(f"/api/limits/{verb}", json=body).json()
    rows = [row for row in found["rows"] if "refused" not in row]
    assert len(rows) >= 5
    assert [row["limit_w"] for row in rows if row["yours"]] == [500]
    for upper, lower in itertools.pairwise(rows):
        assert lower["limit_w"] < upper["limit_w"]
        assert lower["time_s"]["value"] >= upper["time_s"]["value"] * (1 - 1e-9)
        assert lower["power_w"]["value"] <= upper["power_w"]["value"] * (1 + 1e-9)
        assert lower["power_w"]["value"] <= lower["limit_w"]
    one = client.post(f"/api/{verb}", json=body).json()
    mine = next(row for row in rows if row["yours"])
    assert one["power"]["power_w"] == mine["power_w"]
    none = {**body, "plan": {**body["plan"], "power_limit": 20}}
    refused = client.post(f"/api/limits/{verb}", json=none)
    assert refused.status_code == 422


def test_accuracy_is_that_of_the_calibration(client: TestClient) -> None:
    """The errors that the artifact holds of the accelerator asked for; none for others."""
    found = client.post("/api/accuracy", json=BODY).json()
    assert found["accelerator"] == "H100-SXM5-80GB"
    held = json.loads((catalog.calibration_dir("kernels-only") / "calibration.json").read_text())
    gemm = next(r for r in found["kernels"] if (r["kind"], r["dtype"]) == ("gemm", "bf16"))
    own = held["heldout"]["kernels"]["gemm/bf16/H100-SXM5-80GB"]
    assert gemm["unseen_shapes"] == own["mape"]
    assert gemm["points"] == own["points"]
    assert any("model left out" in one["what"] for one in found["power"])
    unknown = {**BODY, "system": {"name": "a", "accelerator": "MI100", "accelerators_per_node": 8,
               "tiers": [{"link": "x", "size": 8, "bandwidth_gbs": 50}]}}  # fmt: skip
    unmeasured = client.post("/api/accuracy", json=unknown)
    assert unmeasured.status_code == 200, unmeasured.text
    assert unmeasured.json()["power"] == []


def test_hostile_bodies_are_never_a_500(client: TestClient) -> None:
    rng = random.Random(7)
    nested: Any = {}
    for _ in range(8):
        nested = {"a": nested}
    values = [
        None,
        True,
        -1,
        0,
        1e308,
        10**30,
        "",
        "x" * 300,
        "\x00",
        [],
        nested,
        "1e999",
        "8",
        3.5,
    ]
    for _ in range(80):
        name = rng.choice([*PLAN, "ep", "cp", "schedule"])
        plan: dict[str, Any] = {**PLAN, name: rng.choice(values)}
        body: dict[str, Any] = {**BODY, "plan": plan}
        if rng.random() < 0.3:
            body[rng.choice(["model", "system", "plan", "other"])] = rng.choice(values)
        answer = client.post("/api/train", content=json.dumps(body),
                             headers={"content-type": "application/json"})  # fmt: skip
        assert answer.status_code in (200, 422), (body, answer.text)


def test_only_this_machine_is_answered_under_its_own_name(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def _ended(client: TestClient, identity: str) -> dict[str, Any]:
    for _ in range(600):
        found: dict[str, Any] = client.get(f"/api/search/{identity}").json()
        if found["state"] != "running":
            return found
        time.sleep(0.05)
    raise AssertionError("the search did not end")


def test_a_search_runs_beside_tells_how_far_it_is_and_can_be_ended(client: TestClient) -> None:
    small = {**BODY, "plan": {**PLAN, "gpus": 8, "global_batch": 8}}
    first = client.post("/api/search", json=small)
    assert first.status_code == 202
    found = _ended(client, first.json()["id"])
    assert found["state"] == "done", found["error"]
    plans = found["answer"]["plans"]
    times = [plan["step_time_s"]["value"] for plan in plans]
    assert times == sorted(times)
    assert found["answer"]["own"]["step_time"] >= times[0] * (1 - 1e-9)
    assert "reckon predict train" in plans[0]["command"]
    started = client.post("/api/search", json={**BODY, "plan": {**PLAN, "gpus": 1024}}).json()
    ended = client.delete(f"/api/search/{started['id']}").json()
    assert ended["state"] == "cancelled"
    assert client.get("/api/search/none").status_code == 404
    refused = client.post("/api/search", json={**BODY, "plan": {"gpus": 8}})
    assert refused.status_code == 422
