"""Rows of a profile that timed other programs teach nothing of a kernel."""

import math

import pandas as pd

from calibration.tables.profiles import undisturbed


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
