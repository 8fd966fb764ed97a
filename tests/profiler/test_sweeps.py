"""The command line of sweeps."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from profiler.sweeps import sweep

ROWS = [{"m": 1, "latency_us": 2.5}, {"m": 2, "latency_us": 3.5}]


@pytest.mark.parametrize("seconds", ["nan", "0", "-3", "inf", "soon"])
def test_a_time_that_is_none_ends_in_one_line(
    seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep("A sweep.", lambda _: iter(ROWS), 1.0, ["--out", str(tmp_path / "x"), "--seconds",
                                                      seconds])  # fmt: skip
    assert ended.value.code == 2
    assert "--seconds" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("gpu", [True, False])
def test_rows_are_written_whole_where_there_is_a_gpu(
    gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    out = tmp_path / "sweep.csv"
    asked = ["--out", str(out), "--seconds", "7"]
    if not gpu:
        with pytest.raises(SystemExit, match="2"):
            sweep("A sweep.", lambda _: iter(ROWS), 1.0, asked)
        return
    sweep("A sweep.", lambda seconds: iter([{"told": seconds}]), 1.0, asked)
    assert pd.read_csv(out)["told"].tolist() == [7.0]
    with pytest.raises(SystemExit, match="2"):
        sweep("A sweep.", lambda _: iter([]), 1.0, asked)
