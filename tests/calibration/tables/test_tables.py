from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.kernel_table import check_kernels, gaps, kinds, shapes_of, variants
from predictor.errors import InputError
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.shapes import Shapes
from predictor.work.primitives import Operator
from predictor.work.training import step_operators

ROW = {"accelerator": "A100-SXM4-80GB", "op": "gemm", "dtype": "bf16", "m": 8, "n": 16, "k": 32,
       "latency_us": 3.0}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency_us": "fast"}, "latency_us must be a number, got 'fast'"),
        ({"latency_us": 0}, "latency_us must be above 0, got 0"),
        ({"latency_us": np.nan}, "latency_us must be above 0, got nan"),
        ({"latency_us": np.inf}, "latency_us must be a number from 0 up, got inf"),
        ({"m": "wide"}, "m must be a number, got 'wide'"),
        ({"m": -8}, "m must be a number from 0 up, got -8"),
        ({"message_bytes": -1}, "message_bytes must be a number from 0 up, got -1"),
        ({"op": None}, "op must be stated"),
        ({"schema_version": 99}, "schema_version is not 1, which this reckon reads"),
        ({"schema_version": "x"}, "schema_version is not 1, which this reckon reads"),
    ],
)
def test_a_bad_row_is_named(change: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_kernels(pd.DataFrame([ROW, {**ROW, **change}]), "t.csv")
    assert str(caught.value).startswith(f"t.csv, line 3: {message}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"m": 0}, "m is not stated"),
        ({"k": np.nan}, "k is not stated"),
        ({"dtype": "int3"}, "unknown data type int3"),
        ({"op": "mamba"}, "kernels of this kind are not predicted yet"),
        ({"op": "moe_gemm"}, "experts is not stated"),
        ({"op": "moe_gemm", "experts": 8, "topk": 2}, ""),
        ({"op": "attention_prefill"}, "batch is not stated"),
        ({"op": "norm"}, "message_bytes is not stated"),
        ({"op": "norm", "message_bytes": 64.0}, ""),
        (
            {"op": "memcpy"},
            "copies, launches, overlaps, host times and waiting describe the device only",
        ),
        ({"op": "allreduce", "message_bytes": 64.0}, "num_gpus is not stated"),
        ({"op": "p2p", "message_bytes": 8.0, "num_gpus": 2}, "the link is not stated"),
        ({"op": "p2p", "message_bytes": 8.0, "num_gpus": 2, "link": "x", "link_gbs": 9.0}, ""),
    ],
)
def test_a_row_that_cannot_be_used_says_why(change: dict, reason: str) -> None:
    table = check_kernels(pd.DataFrame([ROW, {**ROW, **change}]), "t.csv")
    found = list(gaps(table))
    assert found[0] == ""
    assert found[1].startswith(reason)
    assert (found[1] == "") == (reason == "")
    assert kinds(table)[0] == "gemm"
    assert (kinds(table)[1] != "") == (reason == "" and change.get("op") != "p2p")


def test_a_table_cut_off_within_a_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    pd.DataFrame([{**ROW, "notes": "x"}] * 3).to_csv(path, index=False)
    whole = path.read_text()
    path.write_text(whole.rstrip())  # no newline at the end: still whole
    assert len(read_table(path)) == 3
    path.write_text(whole[:-20])
    with pytest.raises(InputError, match="last line is cut off"):
        read_table(path)


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
    from predictor.timing.shapes import columns, kind_of

    model = Model(
        name="m", layers=2, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn_hidden=4096,
        vocab=8192,
    )  # fmt: skip
    plan = TrainingPlan(1.0, 1.0, 1.0, 2.0, 2.0, 512.0, attention=attention)
    every = step_operators(model, plan)
    table = check_kernels(pd.DataFrame([as_row(operator) for operator in every]), "t")
    assert list(kinds(table)) == [kind_of(one.op, one.variant) for one in every]
    assert list(variants(table)) == [one.variant for one in every]
    for (op, dtype), own in table.groupby(["op", "dtype"]):
        found = shapes_of(own, str(op), str(dtype))
        expected = columns([every[at] for at in own.index], ())
        for name in ("m", "n", "k", "flop", "bytes"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(expected, name), rtol=1e-12, err_msg=f"{op} {name}"
            )


def one(**row: object) -> Shapes:
    table = check_kernels(pd.DataFrame([{**ROW, **row}]), "t.csv")
    return shapes_of(table, str(row["op"]), "bf16")


def test_experts_of_one_device() -> None:
    """DeepSeek-V3's experts over 32 devices, 64 tokens: 16 choices fall on a device's 8 experts."""
    layer: dict[str, object] = {"op": "moe_gemm", "n": 2048, "k": 7168, "experts": 256, "topk": 8}
    found = one(**layer, m=64, moe_tp=1, moe_ep=32)
    assert (found.m, found.n, found.k, found.batch) == (2.0, 2048.0, 7168.0, 8.0)
    assert found.flop == 6 * 16 * 2048 * 7168
    assert found.bytes == 2 * (3 * 8 * 2048 * 7168) + 16 * (2 * 2 * 7168 + 6 * 2048)
    assert found.idle == 31.0
    few = one(**layer, m=4, moe_tp=4, moe_ep=1)  # benchmarks give no expert a second token first
    assert (few.m, few.n, few.batch, few.idle) == (1.0, 512.0, 32.0, 0.0)


def test_a_window_cuts_scores_and_cache() -> None:
    whole: dict[str, object] = {"batch": 2, "kv_len": 4096, "heads": 8, "kv_heads": 2,
                                "head_dim": 64, "causal": 1}  # fmt: skip
    prefill = {"op": "attention_prefill", "q_len": 4096, **whole}
    full, cut = one(**prefill), one(**prefill, window=1024)
    assert cut.flop / full.flop == pytest.approx((1024 - 1024**2 / 8192) / 2048)
    assert (cut.n, full.n) == (1024.0, 4096.0)
    assert cut.bytes == full.bytes  # every key is read by somebody
    decode = {"op": "attention_decode", **whole}
    assert one(**decode, window=1024).flop == one(**decode).flop / 4
    assert one(**decode, window=1024).n == 1024.0
    assert one(**decode, window=1024).idle == cut.idle == 3.0


def test_a_latent_cache_is_read_once_for_keys_and_values() -> None:
    row = {"op": "attention_decode", "kernel": "mla", "batch": 4, "kv_len": 1000, "heads": 128,
           "kv_heads": 1, "head_dim": 576}  # fmt: skip
    found = one(**row)
    assert found.variants == ("mla",)
    assert found.bytes == 4 * (2 * 1000 * 576 + 2 * 2 * 128 * 576)
    assert found.flop == 2 * 4 * 128 * 1000 * (576 + 512)
    assert one(**row, kv_dtype="fp8").variants == ("mla_kv8",)
    prefill = one(op="attention_prefill", kernel="mla", batch=1, q_len=512, kv_len=512, heads=16,
                  head_dim=192, causal=1)  # fmt: skip
    assert prefill.flop == 2 * 16 * 512 * 256 * (192 + 128)


def test_a_table_of_a_spreadsheet_is_that_of_commas(tmp_path: Path) -> None:
    """Semicolons with decimal commas, tabs, a mark of byte order: the same numbers."""
    plain, other = tmp_path / "a.csv", tmp_path / "b.csv"
    plain.write_text("name,step_time_s,tp\na,4.25,8\n", encoding="utf-8")
    for text in ("\ufeffname;step_time_s;tp\na;4,25;8\n", "name\tstep_time_s\ttp\na\t4.25\t8\n"):
        other.write_text(text, encoding="utf-8")
        assert read_table(other).equals(read_table(plain))


def test_every_own_run_has_a_name() -> None:
    """Its own, whatever the column is called; where it has none its file and line."""
    table = pd.DataFrame({"name": ["a", None, " "], "step_time_s": [1.0, 2.0, 3.0]})
    assert [*check_runs(table, "/x/mine.csv")["point_id"]] == ["a", "mine.csv:3", "mine.csv:4"]
    stated = check_runs(table.assign(point_id=["p", "q", ""], name=""), "the runs")
    assert [*stated["point_id"]] == ["p", "q", "row:4"]
    assert "point_id" not in table


def test_a_dash_is_no_word_and_none_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("recompute,framework,tp\nNone,-,2\n-,nemo,None\n,n/a,4\n", encoding="utf-8")
    table = check_runs(read_table(path), "t.csv")
    assert table["recompute"].iloc[0] == "none"
    assert table.isna().to_dict("list") | {"point_id": []} == {
        "recompute": [False, True, True], "framework": [True, False, True],
        "tp": [False, True, False], "point_id": [],
    }  # fmt: skip


def test_numbers_as_people_write_them() -> None:
    told = {"seq_len": ["8k", "1M", "4096"], "global_batch": ["~2,048", "16", "\u2248 64"],
            "value": ["45%", "1,234.5", "7"]}  # fmt: skip
    found = check_runs(pd.DataFrame(told), "t.csv")
    assert [*found["seq_len"]] == [8192.0, 2.0**20, 4096.0]
    assert [*found["global_batch"]] == [2048.0, 16.0, 64.0]
    assert [*found["value"]] == [45.0, 1234.5, 7.0]
    for wrong in ("8k", "4M tokens"):
        with pytest.raises(InputError, match="global_batch must be a number"):
            check_runs(pd.DataFrame({"global_batch": [wrong]}), "t.csv")


@pytest.mark.parametrize(("value", "shown"), [("busy", "'busy'"), (-0.1, "-0.1"), (np.inf, "inf")])
def test_how_long_a_run_waited_is_of_all_its_threads(value: object, shown: str) -> None:
    """Of two threads, and of those beside, each may wait: together for more than went by."""
    table = pd.DataFrame({"step_time_s": [1.0, 2.0], "waited": [0.5, value]})
    with pytest.raises(InputError, match=f"line 3: waited must be a number from 0 up, got {shown}"):
        check_runs(table, "mine.csv")
    apart = check_runs(table.assign(waited=["1,234.5", "\u2014"]), "mine.csv")["waited"]
    assert apart.iloc[0] == 1234.5
    assert np.isnan(apart.iloc[1])
    whole = check_runs(table.assign(waited=[None, 1.8]), "mine.csv")["waited"]
    assert np.isnan(whole[0])
    assert whole[1] == 1.8


def test_cells_as_people_write_them() -> None:
    """Lengths in thousands of 1,024 tokens; nothing, in words; all requests at once."""
    table = pd.DataFrame(
        {"input_len": ["8k", "1.5K", "1000"], "tp": ["n/a", "Unknown", "8"],
         "request_rate": ["\u221e", "inf", "2"]}
    )  # fmt: skip
    found = check_runs(table, "mine.csv")
    assert [*found["input_len"]] == [8192.0, 1536.0, 1000.0]
    assert [*found["tp"].isna()] == [True, True, False]
    assert [*found["request_rate"]] == [math.inf, math.inf, 2.0]
