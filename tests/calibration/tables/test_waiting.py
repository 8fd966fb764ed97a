"""Rows of a profile that timed other programs teach nothing of a kernel, and what its threads
waited is no part of its time."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.tables.profiles import device_accelerators, read_measurements
from calibration.tables.waiting import LEFT, calm_share, calmed, crowded, threads_of, undisturbed
from predictor.catalog import accelerator
from predictor.files import write_text
from tests.conftest import ROOT


def table(*rows: tuple[str, str, float]) -> pd.DataFrame:
    columns = ["op", "dtype", "waited"]
    return pd.DataFrame(rows, columns=columns).assign(accelerator="cpu", latency_us=1.0)


CALM = [("gemm", "bf16", 0.0)] * 20


def test_rows_whose_threads_waited_are_left_out() -> None:
    rows = table(
        ("gemm", "bf16", 0.0),
        ("gemm", "bf16", 1.03),
        ("gemm", "bf16", 0.12),
        *CALM,
    )
    assert list(undisturbed(rows)["waited"]) == list(rows["waited"].drop(1))


def test_on_a_busy_machine_all_rows_say_what_is_usual() -> None:
    waited = ("gemm", "bf16", 0.6)
    rows = table(*CALM, waited, waited, waited)
    assert undisturbed(rows).equals(rows)


def test_a_kind_that_was_only_timed_while_others_ran_is_kept() -> None:
    rows = table(*CALM, ("norm", "bf16", 0.6))
    assert undisturbed(rows).equals(rows)
    assert undisturbed(rows.assign(waited=math.nan)).equals(rows.assign(waited=math.nan))


PROFILE = ROOT / "data" / "measurements" / "two-cores-1"
HOSTS = device_accelerators(PROFILE)


@given(st.floats(0.0, 5.0), st.integers(1, 64), st.floats(0.1, 10.0))
def test_what_is_left_of_a_time_is_what_threads_ran(
    waited: float, threads: int, calm: float
) -> None:
    """t threads that compute for c seconds and wait w seconds each, at the same time, take c + w
    and wait t x w together: c is left, as long as a tenth of the time is theirs."""
    took, together = calm + waited, threads * waited
    left = float(took * calm_share(together / took, threads))
    assert left == pytest.approx(max(calm, LEFT * took))


def test_more_waiting_leaves_less_and_none_leaves_all() -> None:
    shares = calm_share(np.linspace(0.0, 3.0, 31), 2.0)
    assert shares[0] == 1.0
    assert np.all(np.diff(shares) <= 0)
    assert np.all(shares >= LEFT)


def test_kernels_of_a_host_are_those_of_a_calm_one() -> None:
    """Two threads that waited for half a second each of every second have worked for half of it;
    devices wait for no processor, and rows that do not say how much they waited did not."""
    names = sorted(HOSTS)
    gpu = accelerator("H100-SXM5-80GB")
    found = {**HOSTS, gpu.name: gpu}
    rows = pd.DataFrame({
        "accelerator": [names[1], names[0], gpu.name, names[1]],
        "waited": [1.0, 0.5, 1.0, math.nan],
        "latency_us": 8.0, "latency_p10_us": 6.0, "latency_p90_us": 10.0,
    })  # fmt: skip
    assert [threads_of(found[name]) for name in (*names, gpu.name)] == [1.0, 2.0, np.inf]
    calm = calmed(rows, found)
    assert crowded(rows, found) == 0
    assert crowded(rows.assign(waited=2.0), found) == 3
    assert list(calm["latency_us"]) == [4.0, 4.0, 8.0, 8.0]
    assert list(calm["latency_p90_us"] / calm["latency_p10_us"]) == pytest.approx([10 / 6] * 4)


def test_a_profile_whose_kernels_waited_is_read_as_one_whose_did_not(tmp_path: Path) -> None:
    """The same kernels, three times as long since all threads waited for two thirds of the time."""
    table = pd.read_parquet(PROFILE / "kernels.parquet").assign(waited=0.0)
    threads = table["accelerator"].map(threads_of_name)
    loud = table.assign(waited=threads * 2.0 / 3.0)
    times = ["latency_us", "latency_p10_us", "latency_p90_us"]
    loud[times] = 3.0 * table[times]
    read = []
    for name, rows in (("calm", table), ("loud", loud)):
        place = tmp_path / name
        place.mkdir()
        rows.to_parquet(place / "kernels.parquet")
        for device in PROFILE.glob("device*.yaml"):
            write_text(place / device.name, device.read_text(encoding="utf-8"))
        read.append(read_measurements([place]).table[times].to_numpy())
    assert read[1] == pytest.approx(read[0])


def threads_of_name(name: str) -> float:
    return threads_of(HOSTS[name])


@pytest.mark.parametrize("name", ["two-cores-1", "two-cores-2", "two-cores-3", "two-cores-5"])
def test_kernels_without_their_waiting_are_nearer_to_those_of_a_quiet_machine(name: str) -> None:
    """The same products of one process, timed beside others and, another time, beside none."""
    place = ROOT / "data" / "measurements"
    shape = ["op", "dtype", "m", "n", "k"]
    quiet, loud = (
        rows[(rows["op"] == "gemm") & rows["accelerator"].str.endswith("-2t")]
        for rows in (pd.read_parquet(place / f / "kernels.parquet") for f in ("two-cores-4", name))
    )
    known = quiet.groupby(shape)["latency_us"].median().rename("quiet").reset_index()
    away = []
    for rows in (loud, calmed(loud, device_accelerators(place / name))):
        both = rows.merge(known, on=shape)
        away.append(np.abs(np.log(both["latency_us"] / both["quiet"])).mean())
    assert away[1] < away[0]
