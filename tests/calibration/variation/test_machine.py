"""The variation of a machine of one's own: from its profile, into a prediction."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from calibration.variation.machine import measured
from predictor.errors import InputError
from predictor.variation import profile

Cli = Callable[..., tuple[int, str, str]]


def kernels(work: float, talk: float, samples: int = 40) -> pd.DataFrame:
    """Kernels whose calls are log-normal."""
    lots = np.random.default_rng(4)
    rows = []
    for op, spread in (("gemm", work), ("attention_prefill", work), ("allreduce", talk)):
        for size in (1e2, 1e3, 1e4):
            calls = size * np.exp(spread * lots.standard_normal(4000))
            low, middle, high = np.quantile(calls, (0.1, 0.5, 0.9))
            rows.append((op, middle, low, high, samples))
    columns = ["op", "latency_us", "latency_p10_us", "latency_p90_us", "samples"]
    return pd.DataFrame(rows, columns=columns)


def test_the_spread_of_kernels_and_collectives_is_recovered() -> None:
    found = measured(kernels(0.02, 0.3), "t")
    assert found["work"] == pytest.approx(0.02, rel=0.1)
    assert found["collectives"] == pytest.approx(0.3, rel=0.1)
    assert found["base"] == "typical"


def test_what_was_not_repeated_is_refused() -> None:
    with pytest.raises(InputError, match="5 times"):
        measured(kernels(0.02, 0.3, samples=1), "t")
    with pytest.raises(InputError, match="latency_p10_us"):
        measured(kernels(0.02, 0.3).drop(columns="latency_p10_us"), "t")


def test_a_file_is_a_profile(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "own.yaml", tmp_path / "out.json"
    path.write_text(yaml.safe_dump(measured(kernels(0.1, 0.1), "t")))
    own, base = profile(str(path)), profile("typical")
    assert (own.step, own.compute) == (base.step, base.compute)
    assert own.work > base.work
    common = (
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
        "--global-batch", "64", "--seq-len", "8192", "--calibration", "none",
    )  # fmt: skip
    assert cli(*common, "--variation", path, "--json", out)[0] == 0
    assert json.loads(out.read_text())["variation"]["profile"] == str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wrk: 0.1", "term"),
        ("work: yes", "is a number"),
        ("work: -1", "0 or more"),
        ("base: wild", "wild"),
        ("correlation: 1.0", "below 1"),
    ],
)
def test_a_bad_file_is_one_line(cli: Cli, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    status, _, error = cli(
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
        "--global-batch", "64", "--seq-len", "8192", "--variation", path, "--calibration", "none",
    )  # fmt: skip
    assert status == 2
    assert says in error
    assert error.strip().count("\n") == 0
