"""The verb `import`: what it writes, and what it refuses before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from calibration.sources.formats import FORMATS
from calibration.sources.reading import read_table
from calibration.tables.kernel_table import check_kernels
from predictor.schema import KERNEL_COLUMNS

Cli = Callable[..., tuple[int, str, str]]

GEMM = pd.DataFrame(
    {
        "device": "NVIDIA H100 80GB HBM3",
        "gemm_dtype": "bfloat16",
        "m": [128, 128, 256],
        "n": 4096,
        "k": 4096,
        "latency": [0.010, 0.040, 0.030],
        "power": float("nan"),
        "dir_backend": ["vllm", "trtllm", "vllm"],
    }
)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
def test_every_ending_holds_the_same_table(cli: Cli, tmp_path: Path, ending: str) -> None:
    GEMM.to_parquet(tmp_path / "gemm_perf.parquet")
    (tmp_path / "wideep_moe_perf.parquet").write_bytes(b"not read")
    out = tmp_path / "out" / f"kernels{ending}"
    out.parent.mkdir()
    status, text, err = cli("import", "aiconfigurator", tmp_path, "--out", out, "--json", "-")
    assert (status, err) == (0, "")
    result = json.loads(text)
    assert result["written"] == [
        {"accelerator": "H100-SXM5-80GB", "op": "gemm", "dtype": "bf16", "n": 3}
    ]
    assert result["left_out"] == [{"reason": "tables wideep_moe_perf.parquet are not read", "n": 1}]
    table = read_table(out)
    assert tuple(table) == KERNEL_COLUMNS
    found = check_kernels(table, "t").set_index(["framework", "m"])["latency_us"]
    assert found.to_dict() == pytest.approx(
        {("vllm", 128.0): 10.0, ("trtllm", 128.0): 40.0, ("vllm", 256.0): 30.0}
    )
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert cli("validate", out)[0] == 0


@pytest.mark.parametrize("name", [("context_attention_perf", "h100_sxm"), ("nccl_perf",)])
def test_files_of_aiconfigurator(
    cli: Cli, measured_on: Callable[..., Path], tmp_path: Path, name: tuple[str, ...]
) -> None:
    path = measured_on(*name)
    out = tmp_path / "k.parquet"
    status, text, _ = cli("import", "aiconfigurator", path, "--out", out)
    assert status == 0
    assert "H100-SXM5-80GB" in text
    assert len(pd.read_parquet(out)) > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nccl", "{tmp}/a.txt"], "No such command 'nccl'. Did you mean 'nccl-tests'?"),
        (["nccl-tests", "{tmp}/a.txt", "--system", "dgx-a10"], "unknown system 'dgx-a10'; did you"),
        (["nccl-tests", "{tmp}/a.txt", "--op", "allredcue"], "did you mean 'allreduce'?"),
        (["nccl-tests", "{tmp}/a.txt", "--link", "nvlink4"], "a link needs its name and its rate"),
        (["nccl-tests", "{tmp}/a.txt", "--link-gbs", "3"], "a link needs its name and its rate"),
        (
            ["nccl-tests", "{tmp}/a.txt", "--link", "x", "--link-gbs", "nan"],
            "a link needs its name and its rate",
        ),
        (
            ["nccl-tests", "{tmp}/a.txt", "--system", "dgx-a100", "--in-switch"],
            "give --system or --link",
        ),
        (["nccl-tests", "{tmp}/none.txt"], "cannot read {tmp}/none.txt"),
        (["nccl-tests", "{tmp}/bytes.txt"], "is not a text file"),
        (["nccl-tests", "{tmp}"], "cannot read {tmp}"),
        (["kineto", "{tmp}/none.json"], "no such file: {tmp}/none.json"),
        (
            ["kineto", "{tmp}/a.txt", "--accelerator", "h10"],
            "unknown accelerator 'h10'; did you mean 'h100'?",
        ),
        (["kineto", "{tmp}/a.txt", "--op", "allreduce"], "kineto files state their own op"),
        (["vidur", "{tmp}/none", "--accelerator", "h100"], "no such file or folder: {tmp}/none"),
        (["vidur", "{tmp}", "--accelerator", "h100"], "{tmp}: expected mlp.csv, attention.csv"),
        (["aiconfigurator", "{tmp}/gemm_perf.parquet"], "is no such table of aiconfigurator"),
        (["aiconfigurator", "{tmp}/a.txt"], "expected gemm_perf.parquet, context_attention"),
        (["aiconfigurator", "{tmp}", "--accelerator", "h100"], "state their own accelerator"),
    ],
)
def test_bad_input_gives_one_line_and_writes_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "gemm_perf.parquet").write_bytes(b"PAR1 cut")
    out = tmp_path / "k.parquet"
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    status, text, err = cli("import", *given, "--out", out)
    assert (status, text) == (2, "")
    assert message.format(tmp=tmp_path) in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_ending_is_checked_first(cli: Cli, tmp_path: Path) -> None:
    status, _, err = cli("import", "kineto", tmp_path / "none", "--out", tmp_path / "k.xlsx")
    assert status == 2
    assert "expected a .parquet, .csv or .csv.gz file" in err


def test_help_names_every_format(cli: Cli) -> None:
    _, text, _ = cli("import", "--help")
    assert all(name in text for name in FORMATS)
