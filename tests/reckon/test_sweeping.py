"""Sweeps: every cell once, whoever dies; cells that are there are not done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import reckon
from predictor.errors import InputError
from reckon.sweeping import dataset, sweep
from reckon.sweeping.grid import chunks, read_grid
from tests.conftest import ROOT

Cli = Callable[..., tuple[int, str, str]]

GRID: dict[str, Any] = {
    "model": ["llama3-8b", "gpt3-13b"],
    "system": ["dgx-a100", "dgx-h100"],
    "gpus": [8, 16],
    "tp": [1, 2, 3],
    "pp": 1,
    "global_batch": 64,
    "seq_len": 2048,
}


def read(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder)


def test_every_cell_is_predicted_as_alone(tmp_path: Path) -> None:
    found = sweep(GRID, tmp_path / "out", workers=1, chunk=5)
    assert (found.cells, found.before) == (24, 0)
    assert found.ok + found.unfit + found.refused == 24
    frame = read(tmp_path / "out")
    assert len(frame) == 24
    assert frame["cell"].is_unique
    assert len(list((tmp_path / "out").iterdir())) == 5  # 4 x 5 cells and 4
    refused = frame[frame["status"] == "refused"]
    assert len(refused) == found.refused == 8
    assert refused["step_time_s"].isna().all()
    assert refused["reason"].str.contains("3").all()
    row = frame[(frame["status"] == "ok") & (frame["tp"] == 2)].iloc[0]
    request = json.loads(row["request"])
    alone = reckon.predict_train(
        request["model"], request["system"],
        {k: v for k, v in request.items() if k not in ("model", "system")},
    )  # fmt: skip
    assert row["step_time_s"] == pytest.approx(alone.step_time.value, rel=1e-9)
    assert row["memory_gb"] == pytest.approx(alone.peak_memory / 1e9)
    terms = [c for c in frame.columns if c.endswith("_s") and c[:-2] in alone.breakdown]
    assert row[terms].sum() == pytest.approx(row["step_time_s"])


@pytest.mark.parametrize(
    "grid",
    [
        GRID,
        {"model": ["llama3-8b", "mixtral-8x7b"], "system": "dgx-h100", "tp": [2, 8],
         "concurrency": [1, 64], "input_len": 512, "output_len": [20, 700]},
    ],
)  # fmt: skip
def test_rows_depend_neither_on_the_workers_nor_on_the_chunks(
    grid: dict[str, Any], tmp_path: Path
) -> None:
    def rows(workers: int, chunk: int) -> bytes:
        out = tmp_path / f"{workers}-{chunk}"
        sweep(grid, out, workers=workers, chunk=chunk)
        frame = read(out).sort_values("cell").reset_index(drop=True)
        frame.to_parquet(tmp_path / "one.parquet")
        return (tmp_path / "one.parquet").read_bytes()

    whole = rows(1, 256)
    assert rows(1, 1) == whole
    assert rows(1, 7) == whole
    assert rows(2, 5) == whole


def test_a_sweep_is_resumed_and_extended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = sweep(GRID, out, workers=1, chunk=5)
    names = {path.name for path in out.iterdir()}
    lost = sorted(out.iterdir())[1]
    rows = len(pd.read_parquet(lost))
    lost.unlink()
    (out / ".part-lost.parquet").write_bytes(b"half a file")  # of a client that was killed
    again = sweep(GRID, out, workers=1, chunk=5)
    assert again.before == 24 - rows
    assert again.ok + again.unfit + again.refused == rows
    assert {path.name for path in out.glob("part-*")} == names
    wider = sweep({**GRID, "gpus": [8, 16, 32]}, out, workers=1, chunk=7)
    assert (wider.cells, wider.before) == (36, 24)
    frame = read(out)
    assert len(frame) == 36
    assert frame["cell"].is_unique
    assert first.cells == 24
    nothing = sweep({**GRID, "gpus": [8, 16, 32]}, out, workers=1, chunk=3)
    assert (nothing.before, nothing.ok) == (36, 0)


def test_a_chunk_done_twice_counts_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(GRID, out, workers=1, chunk=24)
    content = next(out.glob("part-*")).read_bytes()
    grid = read_grid(GRID, "default")
    (one,) = chunks(grid, set(), 24)
    from reckon.sweeping.cells import columns, work

    dataset.write_part(out, one.identity, work(grid.verb, "default", one), columns(grid.verb))
    assert [path.read_bytes() for path in out.glob("part-*")] == [content]


def test_identities_do_not_depend_on_the_run() -> None:
    code = (
        "import json, sys; from reckon.sweeping.grid import read_grid; "
        "print([c.identity for c in read_grid(json.loads(sys.argv[1]), 'default').cells()][:3])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code, json.dumps(GRID)],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    here = [cell.identity for cell in read_grid(GRID, "default").cells()][:3]
    assert told == {f"{here}\n"}
    other = [cell.identity for cell in read_grid(GRID, "kernels-only").cells()][:3]
    assert not set(here) & set(other)


def test_serving_and_search_have_grids_too(tmp_path: Path, cli: Cli) -> None:
    serving = {"model": "llama3-8b", "system": ["dgx-h100", "dgx-h200"], "tp": [1, 2],
               "concurrency": [8, 64], "input_len": 512, "output_len": 128}  # fmt: skip
    found = sweep(serving, tmp_path / "serving", workers=1)
    assert (found.cells, found.ok) == (8, 8)
    frame = read(tmp_path / "serving")
    assert (frame["ttft_low_s"] < frame["ttft_s"]).all()
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({
        "verb": "plan train", "model": "llama3-8b", "system": "dgx-h100", "gpus": [8, 16],
        "global_batch": 64, "seq_len": 4096, "tp": "1,2", "pp": 1, "precision": "bf16",
        "cp": 1, "micro_batch": "1,2",
    }))  # fmt: skip
    arguments = ("sweep", path, "--out", tmp_path / "plans", "--workers", 1, "--json", "-")
    status, out, err = cli(*arguments)
    assert (status, err) == (0, "")
    assert json.loads(out)["ok"] == 2
    plans = read(tmp_path / "plans").sort_values("gpus")
    assert plans["gpus"].tolist() == [8, 16]
    assert (plans["tp"] <= 2).all()
    searched = reckon.search("llama3-8b", "dgx-h100", {
        "gpus": 8, "global_batch": 64, "seq_len": 4096, "tp": "1,2", "pp": 1, "precision": "bf16",
        "cp": 1, "micro_batch": "1,2",
    })  # fmt: skip
    best = searched.entry(0)
    assert plans["step_time_s"].iloc[0] == pytest.approx(best["step_time_s"]["value"])


def test_fleets_have_grids(tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "load.csv"
    table.write_text("hour,requests_per_s\n0,1\n1,40\n")
    grid = {
        "verb": "plan infer", "model": ["llama3-8b", "llama3-70b"],
        "system": ["dgx-h100", "dgx-a100"],
        "rate": [5, 40], "input_len": 1024, "output_len": 256, "ttft_ms": 500, "tpot_ms": 12,
        "precision": "bf16", "tp": 2, "pp": 1, "simulate": 200,
    }  # fmt: skip
    path, out = tmp_path / "grid.yaml", tmp_path / "fleets"
    path.write_text(yaml.safe_dump(grid))
    status, told, err = cli(
        "sweep", path, "--out", out, "--workers", 1, "--chunk", 3, "--json", "-"
    )
    assert (status, err) == (0, "")
    found = json.loads(told)
    frame = read(out)
    assert found["cells"] == len(frame) == 8
    assert found["refused"] == (frame["status"] == "refused").sum() > 0  # 70B: no A100 is that fast
    assert frame.loc[frame["status"] == "refused", "reason"].str.contains("closest takes").all()
    own = frame[(frame["model"] == "llama3-8b") & (frame["system"] == "DGX-H100")]
    own = own.sort_values("rate")
    assert own["rate"].tolist() == [5.0, 40.0]
    assert own["gpus"].is_monotonic_increasing
    for row in own.to_dict("records"):
        fields = {k: v for k, v in grid.items() if k in ("input_len", "output_len", "precision",
                                                         "tp", "pp")}  # fmt: skip
        alone = reckon.search_infer(
            "llama3-8b", "dgx-h100", fields, row["rate"], ttft=0.5, tpot=0.012, simulate=200
        )
        best = alone.entry(alone.fleets[0])
        assert (row["gpus"], row["engines"]) == (best["gpus"], best["engines"])
        assert row["tpot_s"] == pytest.approx(best["tpot_s"])
        assert row["prefill_workers"] == best["plan"]["prefill_workers"]
        assert row["why"] == alone.reason
    parts = {part: len(pd.read_parquet(part)) for part in sorted(out.iterdir())}
    lost = min(parts, key=lambda part: parts[part])
    rows = parts[lost]
    lost.unlink()
    again = sweep(path, out, workers=1, chunk=3)
    assert again.before == 8 - rows
    del grid["rate"]
    hourly = {**grid, "load": str(table), "model": "llama3-8b", "system": "dgx-h100,dgx-a100",
              "price": "dgx-h100=3,dgx-a100=1"}  # fmt: skip
    swept = sweep(hourly, tmp_path / "hours", workers=1)
    table.unlink()  # cells carry the table
    assert (swept.cells, swept.ok) == (1, 1)
    row = read(tmp_path / "hours").iloc[0]
    assert row["rate"] == 40.0
    assert row["cost_per_hour_following_load"] < row["cost_per_hour"]
    assert json.loads(row["request"])["load"]["requests_per_s"] == [1.0, 40.0]


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    out = tmp_path / "out"
    grid = {**GRID, "micro_batch": [1, 2, 4, 8]}
    killed: list[int] = []

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and not killed:
            if out.is_dir() and any(out.glob("part-*")):
                children = psutil.Process().children()
                worker = next(c for c in children if "popen_loky" in " ".join(c.cmdline()))
                worker.kill()
                killed.append(worker.pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    found = sweep(grid, out, workers=2, chunk=6)
    killer.join()
    assert killed
    assert found.cells == found.ok + found.unfit + found.refused == 96
    frame = read(out)
    assert len(frame) == 96
    assert frame["cell"].is_unique


Cluster = tuple[str, "list[subprocess.Popen[bytes]]", "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Dask scheduler and two worker processes on loopback: its address, the workers, it. The
    first test kills a worker, the second does with the other and kills the scheduler."""
    distributed = pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    quiet: dict[str, Any] = {
        "cwd": folder, "env": environment,
        "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
    }  # fmt: skip
    python = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
         "--no-dashboard", "--scheduler-file", str(file)], **quiet,
    )  # fmt: skip
    workers = [
        subprocess.Popen(
            [*python, "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads",
             "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"], **quiet,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, workers, scheduler
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_a_killed_worker_of_a_cluster_loses_nothing(tmp_path: Path, cluster: Cluster) -> None:
    address, workers, _ = cluster
    out = tmp_path / "out"
    grid = {**GRID, "micro_batch": [1, 2, 4, 8]}
    at_death: list[int] = []

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and not at_death:
            if out.is_dir() and (there := len(list(out.glob("part-*")))) >= 2:
                workers[0].kill()
                at_death.append(there)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    found = sweep(grid, out, cluster=address, chunk=4)
    killer.join()
    assert 2 <= at_death[0] < 24  # it died in the middle
    assert workers[0].wait() == -signal.SIGKILL
    assert workers[1].poll() is None
    assert found.cells == found.ok + found.unfit + found.refused == 96
    frame = read(out)
    assert len(frame) == 96
    assert frame["cell"].is_unique
    alone = sweep(grid, tmp_path / "alone", workers=1)
    assert (alone.ok, alone.unfit, alone.refused) == (found.ok, found.unfit, found.refused)
    both = frame.merge(read(tmp_path / "alone"), on="cell")
    pd.testing.assert_series_equal(both["step_time_s_x"], both["step_time_s_y"], check_names=False)


def test_a_killed_scheduler_loses_nothing_that_was_done(tmp_path: Path, cluster: Cluster) -> None:
    """The sweep ends with what to do, shows how far it came, and goes on without the cluster."""
    address, _, scheduler = cluster
    out, shares = tmp_path / "out", []

    def told(share: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            scheduler.kill()

    with pytest.raises(InputError, match="run again to go on"):
        sweep(GRID, out, cluster=address, chunk=1, progress=told)
    parts = len(list(out.glob("part-*.parquet")))
    assert 3 <= parts == len(shares)
    assert shares == sorted(shares)
    found = sweep(GRID, out, workers=1)
    assert shares[-1] == pytest.approx(found.before / found.cells)
    assert found.before == parts < found.cells
    assert found.before + found.ok + found.unfit + found.refused == found.cells == len(read(out))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"modle": "llama3-8b"}, "unknown field of grid 'modle'; did you mean 'model'?"),
        ({**GRID, "modle": 1}, "did you mean 'model'?"),
        ({**GRID, "model": ["llama3-8b", "lama3-80b"]}, "did you mean"),
        ({**GRID, "tp": []}, "tp: the list is empty"),
        ({**GRID, "tp": [1, "x"]}, "tp: "),
        ({**GRID, "tp": [1, 2, 1]}, "tp: 1 stands there twice"),
        ({**GRID, "recompute": ["ful"]}, "did you mean 'full'"),
        ({**GRID, "verb": "predict trian"}, "did you mean 'predict train'"),
        ({"gpus": 8}, "no model"),
        ({**GRID, "seq_len": list(range(1, 10**6))}, "more than 10,000,000"),
    ],
)
def test_bad_grids_are_told_in_one_line(content: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        read_grid(content, "default")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_folders_and_addresses(tmp_path: Path, cli: Cli) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump(GRID))
    out = tmp_path / "out"
    status, _, err = cli("sweep", grid, "--out", out, "--workers", 2, "--cluster", "tcp://a:1")
    assert status == 2
    assert "--workers or --cluster, not both" in err
    status, _, err = cli("sweep", grid, "--out", out, "--chunk", 0)
    assert (status, err) == (2, "reckon: --chunk 0 must be at least 1\n")
    status, _, err = cli("sweep", grid, "--out", out, "--calibration", "defualt")
    assert status == 2
    assert "did you mean 'default'" in err
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "part-x.parquet")
    with pytest.raises(InputError, match="is no part of a sweep"):
        sweep(GRID, tmp_path, workers=1)
    pytest.importorskip("distributed")
    from reckon.sweeping import workers

    before, workers.WAIT = workers.WAIT, "0.5s"
    try:
        status, _, err = cli("sweep", grid, "--out", out, "--cluster", "tcp://127.0.0.1:9")
    finally:
        workers.WAIT = before
    assert status == 2
    assert "no scheduler answers" in err
