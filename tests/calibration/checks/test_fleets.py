"""Which fleet would have been chosen, by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from calibration.checks.fleets import choices, fleet_lines, offered
from tests.calibration.tables.test_columns import ROW


def table(tmp_path, tpots: dict[tuple[int, float], float], **more):
    """A table of one server at tensor parallelism and concurrency, with its time per token."""
    rows = [
        {**ROW, "point_id": f"{source}{tp}x{c:g}", "source": source, "metric": "tpot_ms",
         "value": value, "tp": tp, "num_gpus": tp, "concurrency": c, "request_rate": None, **more}
        for source in "ab" for (tp, c), value in tpots.items()
    ]  # fmt: skip
    path = tmp_path / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


MEASURED = {(1, 8.0): 20.0, (2, 8.0): 12.0, (2, 32.0): 24.0, (4, 32.0): 16.0}
"""Tokens per second and accelerator: 400, 333, 667, 500."""


def test_a_choice_is_judged_by_what_was_measured(tmp_path) -> None:
    """Promises are 15, 18 and 21 ms. Predicted as measured, the best is chosen each time: 2 x 8,
    4 x 32, 4 x 32. Who says that tp 2 at 32 takes 14 ms chooses it for every promise, and it keeps
    none within a tenth, for it takes 24; who says that none keeps a promise takes the fastest."""
    rows = offered([table(tmp_path, MEASURED)])
    right = dict(zip(rows["point_id"], rows["tpot"], strict=True))
    found = choices(rows, right)
    assert len(found) == 6
    assert found["share"].tolist() == pytest.approx([1.0] * 6)
    assert found["kept"].all()
    assert found["promise"].tolist()[:3] == pytest.approx([0.015, 0.018, 0.021])
    wrong = choices(rows, {**right, "a2x32": 0.014, "b2x32": 0.014})
    assert not wrong["kept"].any()
    assert wrong["share"].tolist()[:3] == pytest.approx([2.0, 4 / 3, 4 / 3])
    slow = choices(rows, {name: 10.0 * value for name, value in right.items()})
    assert slow["share"].tolist()[:3] == pytest.approx([1.0, 2 / 3, 2 / 3])
    assert slow["kept"].all()


def test_groups_of_one_layout_have_nothing_to_choose(tmp_path) -> None:
    rows = offered([table(tmp_path, {(2, 8.0): 12.0, (2, 32.0): 24.0})])
    assert choices(rows, dict.fromkeys(rows["point_id"], 0.01)).empty
    rows = offered([table(tmp_path, MEASURED, request_rate=1.0)])
    assert rows.empty


def test_the_table_counts_kept_promises(tmp_path) -> None:
    path = table(tmp_path, MEASURED)
    rows = offered([path])
    lines = fleet_lines([path], dict(zip(rows["point_id"], rows["tpot"], strict=True)))
    assert lines[2] == "| predicted | 2 | 6 | 100% | 100% | 100.0% |"
    assert lines[3].startswith("| by one constant per engine | 2 | 6 |")
