"""Rows of a profile that timed other programs teach nothing of a kernel."""

import pandas as pd

from calibration.tables.profiles import undisturbed
from predictor.schema import DISTURBED


def table(*rows: tuple[str, str, str]) -> pd.DataFrame:
    columns = ["op", "dtype", "notes"]
    return pd.DataFrame(rows, columns=columns).assign(accelerator="cpu", latency_us=1.0)


CALM = [("gemm", "bf16", "load 0.5")] * 20


def test_rows_whose_threads_waited_are_left_out() -> None:
    rows = table(
        ("gemm", "bf16", "load 0.9"),
        ("gemm", "bf16", f"noisy: p90 is 1.00 times p10; {DISTURBED} 103% of the time; load 0.9"),
        ("gemm", "bf16", f"{DISTURBED} 12% of the time"),
        ("gemm", "bf16", "noisy: p90 is 1.40 times p10"),
        *CALM,
    )
    assert list(undisturbed(rows)["notes"]) == list(rows["notes"].drop(1))


def test_on_a_busy_machine_all_rows_say_what_is_usual() -> None:
    waited = ("gemm", "bf16", f"{DISTURBED} 60% of the time")
    rows = table(*CALM, waited, waited, waited)
    assert undisturbed(rows).equals(rows)


def test_a_kind_that_was_only_timed_while_others_ran_is_kept() -> None:
    rows = table(*CALM, ("norm", "bf16", f"{DISTURBED} 60% of the time"))
    assert undisturbed(rows).equals(rows)
    assert undisturbed(rows.assign(notes=None)).equals(rows.assign(notes=None))
