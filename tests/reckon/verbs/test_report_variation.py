"""Pictures of a plan on machines that vary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Cli = Callable[..., tuple[int, str, str]]

ASKED = (
    "plan", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "64",
    "--global-batch", "128", "--seq-len", "8192", "--tp", "1", "--pp", "1,2", "--cp", "1",
    "--micro-batch", "1", "--recompute", "none", "--sharding", "zero1", "--calibration", "none",
)  # fmt: skip


def charts(path: Path) -> dict[str, Any]:
    """Charts of a page by the axis that is theirs alone."""
    text = re.search(r'id="charts">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    every = json.loads(text.group(1))
    return {one["layout"]["xaxis"]["title"]["text"]: one for one in every}


def test_steps_and_their_growth_are_drawn(cli: Cli, tmp_path: Path) -> None:
    """Nearly all steps are in the histogram, half of them before the P50; the curve passes through
    the plan itself, and waiting never falls with more accelerators."""
    page, out = tmp_path / "report.html", tmp_path / "out.json"
    status, _, error = cli(*ASKED, "--variation", "cloud", "--report", page, "--json", out)
    assert status == 0, error
    best = json.loads(out.read_text())["plans"][0]
    drawn = charts(page)
    bars = drawn["step time, s"]["data"][0]
    share, at = np.array(bars["y"]), np.array(bars["x"])
    assert share.sum() == pytest.approx(100.0, abs=1.0)
    told = {a["text"]: a["x"] for a in drawn["step time, s"]["layout"]["annotations"]}
    assert list(told) == ["P50", "P95", "P99"]
    assert share[at <= told["P50"]].sum() == pytest.approx(50.0, abs=share.max())
    assert told["P95"] == pytest.approx(best["p95_s"], rel=1e-6)
    curve = {one["name"]: one for one in drawn["accelerators"]["data"]}
    gpus = np.array(curve["P95"]["x"])
    assert (gpus[-1], 64.0 in gpus) == (65536.0, True)
    p95 = np.array(curve["P95"]["y"])
    assert float(p95[gpus == 64][0]) == pytest.approx(best["p95_s"], rel=1e-6)
    over = p95 / np.array(curve["predicted step"]["y"])
    assert np.all(np.diff(over) > -1e-3)


def test_nothing_is_drawn_unless_asked(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert cli(*ASKED, "--report", page)[0] == 0
    assert "accelerators" not in charts(page)
