from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.tables import check_kernels, kinds, read_table, shapes_of, variants
from predictor.errors import InputError
from predictor.model import Model
from predictor.operators import Operator, step_operators
from predictor.plan import TrainingPlan

ROW = {"accelerator": "A100-SXM4-80GB", "op": "gemm", "dtype": "bf16", "m": 8, "n": 16, "k": 32,
       "latency_us": 3.0}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency_us": "fast"}, "line 2: latency_us 'fast' is not a number"),
        ({"latency_us": 0}, "line 2: latency_us must be above 0"),
        ({"m": "wide"}, "line 2: m 'wide' is not a number"),
        ({"schema_version": 99}, "schema version 99, this reckon reads 1"),
    ],
)
def test_a_bad_row_is_named(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_kernels(pd.DataFrame([{**ROW, **change}]), "t.csv")


def test_a_foreign_table_is_refused() -> None:
    with pytest.raises(InputError, match="no kernel table: column 'accelerator'"):
        check_kernels(pd.DataFrame({"a": [1]}), "t.csv")


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "k.parquet"
    pd.DataFrame([ROW]).to_parquet(whole)
    broken = tmp_path / "b.parquet"
    broken.write_bytes(whole.read_bytes()[:200])
    text = tmp_path / "x.csv.gz"
    text.write_text("not gzip")
    for path in (broken, text, tmp_path / "missing.csv", tmp_path / "x.txt"):
        with pytest.raises(InputError) as caught:
            read_table(path)
        assert "\n" not in str(caught.value)


def as_row(operator: Operator) -> dict:
    """An operator as the profiler would write it."""
    o = operator
    common = {"accelerator": "A100-SXM4-80GB", "op": o.op, "dtype": o.dtype, "latency_us": 1.0}
    if o.op.startswith("attention"):
        return {**common, "batch": 1.0, "heads": o.batch, "q_len": o.m, "kv_len": o.n,
                "head_dim": o.k, "causal": 1.0}  # fmt: skip
    found = {**common, "m": o.m, "n": o.n, "k": o.k, "batch": o.batch}
    if o.op == "gemm":
        return {**found, "layout": o.variant}
    return {**found, "kernel": o.variant, "message_bytes": o.bytes}


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_a_measured_operator_has_the_predicted_ones_shape(attention: str) -> None:
    """What is fitted and what is predicted are counted alike: kind, FLOPs and bytes."""
    from predictor.features import columns, kind_of

    model = Model("m", 2, 1024, 16, 16, 64, 4096, 8192)
    plan = TrainingPlan(1.0, 1.0, 1.0, 2.0, 2.0, 512.0, attention=attention)
    for operator in step_operators(model, plan):
        table = check_kernels(pd.DataFrame([as_row(operator)]), "t")
        assert kinds(table).iloc[0] == kind_of(operator.op, operator.variant)
        assert variants(table).iloc[0] == operator.variant
        found = shapes_of(table, operator.op, operator.dtype)
        expected = columns([operator], ())
        for name in ("m", "n", "k", "flop", "bytes"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)
