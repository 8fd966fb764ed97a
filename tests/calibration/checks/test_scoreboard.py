from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.checks.scoreboard import kind_of_table, refold, score
from calibration.checks.scored import Scores, summary
from calibration.runs.fit import fit_runs, read_points
from calibration.spread import (
    Residual,
    carried_sigma,
    plan_spreads,
    run_sigma,
    with_plan_spread,
    with_spread,
    with_unnamed_spread,
)
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.timing.calibration import Calibration, RunParameters
from reckon.verbs.validating import validate
from reckon.views.validation import show_validation as report
from tests.calibration.conftest import gemm_table
from tests.calibration.tables.test_points import ROW

KERNELS = load("kernels-only")
KEYS = {
    "kind", "n_points", "n_predicted", "mape", "median_ape", "p90_ape", "bias", "macro_mape",
    "in_sample_mape", "by_metric", "interval_level", "interval_coverage", "median_width", "groups",
    "skipped", "noted", "points", "memory",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        {**ROW, "point_id": f"p{i}", "source": "one" if i < 4 else "two", "global_batch": 64.0 * i}
        for i in range(1, 7)
    ]
    rows.append({**ROW, "point_id": "unknown", "model": "mystery-8x7b"})
    rows.append({**ROW, "point_id": "oom", "status": "OOM", "tp": 1.0, "model": "llama3-70b"})
    rows.append({**ROW, "point_id": "mem", "status": "Success", "memory_gb_per_gpu": 40.0})
    path = tmp_path / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_the_summary_is_the_contract(table: Path) -> None:
    found = summary(score([table], KERNELS), 0.8)
    assert set(found) == KEYS
    assert (found["kind"], found["n_points"], found["n_predicted"]) == ("training", 9, 7)
    assert {row["point_id"] for row in found["skipped"]} == {"unknown"}
    assert set(found["points"][0]) == {
        "point_id", "source", "metric", "published", "predicted", "low", "high", "in_sample",
    }  # fmt: skip
    macro = np.mean([group["mape"] for group in found["groups"]])
    assert found["macro_mape"] == pytest.approx(macro)
    assert found["memory"]["n"] == 1
    assert found["memory"]["oom_recall"] == 1.0
    assert found["in_sample_mape"] is None


def test_sources_are_told_without_their_doubtful_rows_too(table: Path) -> None:
    rows = pd.read_csv(table)
    rows["doubtful"] = np.where(rows["point_id"].isin(["p5", "p6"]), "of another machine", None)
    rows.to_csv(table, index=False)
    found = summary(score([table], KERNELS), 0.8)
    assert set(found) == {*KEYS, "without_doubtful"}
    assert found["n_predicted"] == 7
    whole, sure = (
        {group["source"]: group for group in found[name]} for name in ("groups", "without_doubtful")
    )
    assert sure["one"] == whole["one"]
    assert whole["two"]["n"] - sure["two"]["n"] == 2
    kept = [
        p for p in found["points"] if p["source"] == "two" and p["point_id"] not in ("p5", "p6")
    ]
    errors = [abs(p["predicted"] / p["published"] - 1) for p in kept]
    assert sure["two"]["mape"] == pytest.approx(np.mean(errors))


def test_fitted_points_count_apart(table: Path) -> None:
    known = Calibration(
        "x", KERNELS.kernels, KERNELS.links, KERNELS.throttles, KERNELS.run,
        fitted_points=frozenset({"p1", "p2"}),
    )  # fmt: skip
    found = summary(score([table], known), 0.8)
    assert sum(point["in_sample"] for point in found["points"]) == 2
    outside = [p for p in found["points"] if not p["in_sample"]]
    expected = np.mean([abs(p["predicted"] / p["published"] - 1) for p in outside])
    assert found["mape"] == pytest.approx(expected)
    assert found["in_sample_mape"] is not None


def test_tables_are_told_apart(tmp_path: Path) -> None:
    assert kind_of_table(pd.DataFrame(columns=["latency_us"]), "t") == "kernels"
    assert kind_of_table(pd.DataFrame(columns=["input_len"]), "t") == "inference"
    assert kind_of_table(pd.DataFrame(columns=["global_batch"]), "t") == "training"
    assert kind_of_table(pd.DataFrame(columns=["micro_batch", "num_gpus"]), "t") == "training"
    assert kind_of_table(pd.DataFrame(columns=["output_len", "batch"]), "t") == "inference"
    with pytest.raises(InputError, match="no table of points"):
        kind_of_table(pd.DataFrame(columns=["x"]), "t")


def test_inference_rows_are_listed_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "i.csv"
    pd.DataFrame([{"point_id": "a", "source": "s", "input_len": 5}]).to_csv(path, index=False)
    found = summary(score([path], KERNELS), 0.8)
    assert (found["kind"], found["n_points"], found["n_predicted"]) == ("inference", 1, 0)
    assert found["mape"] is None
    assert found["skipped"][0]["reason"] == "no value is stated"


def test_mixed_tables_have_no_common_error(table: Path, tmp_path: Path) -> None:
    kernels = tmp_path / "k.parquet"
    gemm_table("A100-SXM4-80GB", [1024, 2048], 0.7, 3.0).to_parquet(kernels)
    found = summary(score([table, kernels], KERNELS), 0.8)
    assert found["kind"] == "mixed"
    assert found["mape"] is None
    assert set(found["by_metric"]) == {"step_time_s", "latency_us"}


def test_kernel_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "k.parquet"
    table = gemm_table("A100-SXM4-80GB", [1024, 2048], 0.8, 3.0)
    odd = table.iloc[:2].assign(accelerator="Z900")
    pd.concat([table, odd], ignore_index=True).to_parquet(path)
    found = summary(score([path], KERNELS), 0.8)
    assert (found["n_points"], found["n_predicted"]) == (10, 8)
    assert found["points"][0]["point_id"].startswith("k.parquet:")
    assert all("unknown accelerator 'Z900'" in row["reason"] for row in found["skipped"])
    assert found["mape"] < 1.0


def test_collective_rows_are_predicted(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    rows = [
        {"accelerator": "A100-SXM4-80GB", "op": "allreduce", "dtype": "fp16", "num_gpus": 8,
         "message_bytes": 2.0**28, "latency_us": 2180.0, "link": "nvlink3", "link_gbs": 300},
        {"accelerator": "A100-SXM4-80GB", "op": "allreduce", "dtype": "fp16", "num_gpus": 8,
         "message_bytes": 2.0**28, "latency_us": 2180.0},  # a node of these implies its link
        {"accelerator": "somebody's", "op": "allreduce", "dtype": "fp16", "num_gpus": 8,
         "message_bytes": 2.0**28, "latency_us": 2180.0},
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(path, index=False)
    found = summary(score([path], KERNELS), 0.8)
    assert found["n_predicted"] == 2
    assert found["mape"] < 0.1
    assert "link" in found["skipped"][0]["reason"]


def test_the_interval_covers_its_level() -> None:
    rng = np.random.default_rng(0)
    found = [Residual(float(e), 0.0, f"s{i % 5}") for i, e in enumerate(rng.normal(0, 0.2, 500))]
    sigma = run_sigma(found, 1.2816, 0.8)
    assert sigma == pytest.approx(0.2, abs=0.02)
    inside = np.mean([abs(r.error) <= 1.2816 * sigma for r in found])
    assert inside == pytest.approx(0.8, abs=0.01)


def test_sources_count_alike() -> None:
    many = [Residual(0.01, 0.0, "large")] * 1000
    few = [Residual(0.5, 0.0, "small")] * 2
    assert run_sigma(many + few, 1.0, 0.4) == pytest.approx(0.01)
    assert run_sigma(many + few, 1.0, 0.8) == pytest.approx(0.5)


def test_a_spread_covers_sources_that_it_has_not_seen() -> None:
    """Eight sources whose own spreads differ fivefold: what the others' spread, carried over,
    covers of each is the level, as a mean over them; the plain one covers less."""
    rng = np.random.default_rng(1)
    level, q = 0.8, 1.2816
    found = [
        Residual(float(error), 0.0, str(i))
        for i, spread in enumerate((0.1, 0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.5))
        for error in rng.normal(0.0, spread, 200)
    ]

    def left_out(fit) -> float:
        shares = []
        for name in {r.source for r in found}:
            sigma = fit([r for r in found if r.source != name], q, level)
            shares.append(np.mean([abs(r.error) <= q * sigma for r in found if r.source == name]))
        return float(np.mean(shares))

    assert left_out(carried_sigma) == pytest.approx(level, abs=0.03)
    assert left_out(run_sigma) < left_out(carried_sigma)


def test_attention_that_nobody_timed_widens_its_own_intervals_alone() -> None:
    """By what its runs lie beyond the others' spread: sqrt(0.26^2 - 0.1^2) of two that are 0.26 and
    less off, where the rest and the operators explain 0.1; nothing where there is none."""
    names, q = "abcdef", 1.0
    others = [Residual(e, 0.0, name, moe=True) for name in names for e in (-0.1, 0.1)]
    far = [Residual(-0.26, 0.0, "v", moe=True, untimed=True), Residual(0.05, 0.0, "w", True)]
    far[1] = replace(far[1], untimed=True)
    plain, fitted = (with_spread(KERNELS.run, found, q, 0.8) for found in (others, others + far))
    assert plain.sigma_untimed == KERNELS.run.sigma_untimed
    assert (fitted.sigma_moe, fitted.spreads) == (plain.sigma_moe, plain.spreads)
    assert fitted.sigma_untimed == pytest.approx(math.sqrt(0.26**2 - 0.1**2))
    assert with_spread(fitted, others + far, q, 0.8).sigma_untimed == fitted.sigma_untimed
    assert fitted.spread(True, untimed=True) == pytest.approx(0.26)
    assert fitted.spread(True) == pytest.approx(0.1)
    assert "2 runs" in fitted.sources["sigma_untimed"]


def test_mixtures_of_experts_have_a_spread_of_their_own() -> None:
    """Four sources of each: errors of dense models reach 0.1, those of mixtures 0.5."""
    names = [f"s{i}" for i in range(4)]
    dense = [Residual(e, 0.0, name) for name in names for e in (0.02, 0.1)]
    mixed = [Residual(e, 0.0, name, moe=True) for name in names for e in (-0.1, 0.5)]
    run = with_spread(KERNELS.run, dense + mixed, 1.0, 0.9)
    assert (run.spread(moe=False), run.spread(moe=True)) == pytest.approx((0.1, 0.5))
    few = [r for r in mixed if r.source in ("s0", "s1")]
    shared = with_spread(KERNELS.run, dense + few, 1.0, 0.9)
    assert shared.sigma_moe == pytest.approx(0.5)  # two sources say too little: that of all runs
    assert shared.sigma == pytest.approx(0.1)


def test_frameworks_of_the_maker_have_a_spread_of_their_own() -> None:
    """Three sources of each: errors of what the maker keeps reach 0.1, those of others 0.5."""
    names = [f"s{i}" for i in range(3)]
    made = [Residual(e, 0.0, n, framework="nemo") for n in names for e in (0.02, 0.1)]
    others = [Residual(e, 0.0, f"o{n}", framework="x") for n in names for e in (0.1, -0.5)]
    run = with_spread(KERNELS.run, made + others, 1.0, 0.9)
    assert run.spread(False, "megatron-lm") == pytest.approx(0.1)
    assert run.spread(False, "x") == run.spread(False) == run.sigma == pytest.approx(0.5)
    together = with_spread(KERNELS.run, made + others[:4], 1.0, 0.9)  # two say too little
    assert together.spread(False, "nemo") == together.spread(False, "x")


def test_the_fitted_interval_covers_its_share(table: Path) -> None:
    points = read_points([table], KERNELS.run)
    fitted = fit_runs(KERNELS, points)
    found = summary(score([table], fitted), 0.8)
    assert np.mean([group["coverage"] for group in found["groups"]]) >= 0.8


def test_folds_refit_the_interval_without_the_group(table: Path) -> None:
    scores = score([table], KERNELS)
    folded = refold(scores, KERNELS, "source")
    assert isinstance(folded, Scores)
    widths = {row.source: row.high / row.low for row in folded.rows}
    q, level = KERNELS.interval_q, KERNELS.interval_level
    for source, width in widths.items():
        rest = [
            Residual(row.log_error, row.sigma_operators, row.source, row.moe)
            for row in scores.rows
            if row.source != source
        ]
        own = next(row.sigma_operators for row in scores.rows if row.source == source)
        expected = np.exp(2 * q * np.hypot(own, run_sigma(rest, q, level)))
        assert width == pytest.approx(expected, rel=0.05)


def test_a_table_without_usable_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    pd.DataFrame([{**ROW, "model": "mystery-8x7b"}]).to_csv(path, index=False)
    with pytest.raises(InputError, match="no row of"):
        read_points([path], KERNELS.run)
    assert catalog.data_dir().is_dir()


def test_the_figures_are_what_they_say(table: Path) -> None:
    found = summary(score([table], KERNELS), 0.8)
    ratio = np.array([p["predicted"] / p["published"] for p in found["points"]])
    share = np.abs(ratio - 1)
    assert found["mape"] == pytest.approx(share.mean())
    assert found["median_ape"] == pytest.approx(np.median(share))
    assert found["p90_ape"] == pytest.approx(np.quantile(share, 0.9))
    assert found["bias"] == pytest.approx(np.log(ratio).mean())
    widths = [p["high"] / p["low"] for p in found["points"]]
    assert found["median_width"] == pytest.approx(np.median(widths))
    inside = [p["low"] <= p["published"] <= p["high"] for p in found["points"]]
    assert found["interval_coverage"] == pytest.approx(np.mean(inside))


def test_running_out_of_memory_is_scored_both_ways(tmp_path: Path) -> None:
    """Two rows that ran out, of which one is foreseen; two that did not, one of them in vain
    feared."""
    big = {"model": "llama3-70b", "tp": 1.0}
    rows = [
        {**ROW, "point_id": "a", "status": "OOM", **big},
        {**ROW, "point_id": "b", "status": "OOM"},
        {**ROW, "point_id": "c", "status": "Success", "memory_gb_per_gpu": 40.0},
        {**ROW, "point_id": "d", "status": "Success", "memory_gb_per_gpu": 40.0, **big},
    ]
    path = tmp_path / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    memory = summary(score([path], KERNELS), 0.8)["memory"]
    assert memory["oom_recall"] == 0.5
    assert memory["oom_precision"] == 0.5


def test_who_went_on_stayed_within_the_device(tmp_path: Path) -> None:
    """Llama 3 70B on one device does not fit; who states a peak of 40 GiB all the same had some way
    to, and took no more than there is."""
    row = {**ROW, "model": "llama3-70b", "tp": 1.0, "status": "Success", "memory_gb_per_gpu": 40.0}
    path = tmp_path / "runs.csv"
    pd.DataFrame([{**row, "point_id": "a"}]).to_csv(path, index=False)
    held = score([path], KERNELS).memory[0]
    device = catalog.accelerator(row["accelerator"])
    assert held.predicted == device.memory
    assert held.p_oom > 0.99


def test_kernels_that_were_fitted_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "k.parquet"
    gemm_table("A100-SXM4-80GB", [1024, 2048], 0.8, 3.0).to_parquet(path)
    known = Calibration("x", KERNELS.kernels, fitted_files=frozenset({str(path)}))
    assert all(p["in_sample"] for p in summary(score([path], known), 0.8)["points"])
    assert not any(p["in_sample"] for p in summary(score([path], KERNELS), 0.8)["points"])


def test_plans_differ_about_the_median_of_their_setting() -> None:
    def source(name: str, width: float) -> list[Residual]:
        """Two settings, each far off as a whole, whose three plans differ by `width`."""
        return [
            Residual(level + width * at, 0.0, name, setting=f"s{level}", plan=str(at))
            for level in (-0.5, 0.3)
            for at in (-1, 0, 1)
        ]

    found = [*source("a", 0.02), *source("b", 0.05), *source("c", 0.3)]
    # Of three plans the outer two deviate by the width, sqrt(3/2) of it with their middle unknown.
    wide = plan_spreads(found)
    expected = {"a": 0.02, "b": 0.05, "c": 0.3}
    assert wide == pytest.approx({k: 1.4826 * v * np.sqrt(1.5) for k, v in expected.items()})
    # A plan that was run twice counts once; settings of one plan and unknown ones say nothing.
    again = [*found, found[0], Residual(9.0, 0.0, "a", setting="alone"), Residual(9.0, 0.0, "a")]
    assert plan_spreads(again) == pytest.approx(wide)
    fitted = with_plan_spread(KERNELS.run, found)
    assert fitted.sigma_plan == pytest.approx(wide["b"])
    assert "b 0.091" in fitted.sources["sigma_plan"]
    assert with_plan_spread(KERNELS.run, found[:12]).sigma_plan == KERNELS.run.sigma_plan


@pytest.mark.parametrize(
    ("column", "value"),
    [("tp", "two"), ("num_gpus", "8x8"), ("hidden", "4k"), ("micro_batch", "-1"), ("pp", "inf")],
)
def test_text_in_a_column_of_numbers_costs_its_row_and_is_no_column_of_a_fit(
    table: Path, column: str, value: str
) -> None:
    """A fit refuses the table by line and column, and so is one of which no row can be read."""
    rows = pd.read_csv(table, dtype=str)
    before = score([table], load("none"))
    rows.loc[1, column] = value
    rows.to_csv(table, index=False)
    after = score([table], load("none"))
    told = {one.point_id: one.reason for one in after.skipped}
    assert told["p2"].startswith(f"{column} must be a number from 0 up, got ")
    others = [one for one in before.rows if one.point_id != "p2"]
    assert [(one.point_id, one.predicted) for one in after.rows] == [
        (one.point_id, one.predicted) for one in others
    ]
    with pytest.raises(InputError, match=f"line 3: {column}"):
        read_points([table], RunParameters())
    rows.assign(**{column: value}).to_csv(table, index=False)
    with pytest.raises(InputError) as caught:
        score([table], load("none"))
    assert str(caught.value).startswith(f"{table}, line 2: {column} must be a number")
    assert "\n" not in str(caught.value)


def test_what_counts_of_rows_that_contradict_themselves_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    odd: list[dict[str, Any]] = [{"dp": 16.0}, {"tp": 3.0, "dp": 2.0}, {"dp": 32.0}]
    rows = [{**ROW, "point_id": f"p{i}", **one} for i, one in enumerate(odd)]
    pd.DataFrame(rows).to_csv(path, index=False)
    scores = score([path], KERNELS)
    assert [(one.point_id, one.reason) for one in scores.noted] == [
        ("p0", "num_gpus 64 is not tp 2 x pp 1 x cp 1 x dp 16: it counts, and dp 32 follows"),
        ("p1", "num_gpus 64 is not tp 3 x pp 1 x cp 1 x dp 2: the ranks count, 6 accelerators"),
    ]
    assert summary(scores, 0.8)["noted"][0]["point_id"] == "p0"


def test_the_report_says_how_well_out_of_memory_is_told(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = validate(table, "none")
    report(result)
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("out of memory"))
    assert f"{result['memory']['oom_accuracy']:.1%} of rows right" in line
    assert f"{result['memory']['oom_recall']:.1%} said to" in line


def test_runs_without_a_named_framework_widen_until_their_share_lies_inside() -> None:
    """Beside a run's own 0.1 and operators' 0.05, errors of 0.3 at one standard deviation want
    sqrt(0.3² - 0.1² - 0.05²); few sources keep what was documented."""
    run = replace(KERNELS.run, sigma=0.1, sigma_moe=0.1)
    errors = [0.01, 0.02, 0.05, 0.1, 0.12, 0.15, 0.2, 0.3, 0.6, 0.9]
    found = [Residual(error, 0.05, source) for source in "abcd" for error in errors]
    fitted = with_unnamed_spread(run, found, 1.0, 0.8)
    assert fitted.sigma_unnamed == pytest.approx(math.sqrt(0.3**2 - 0.1**2 - 0.05**2))
    assert fitted.spread(moe=False) == 0.1
    wide = math.hypot(0.05, fitted.spread(moe=False, named=False))
    assert np.mean(np.abs([one.error for one in found]) <= wide * (1 + 1e-9)) == 0.8
    few = with_unnamed_spread(run, found[:20], 1.0, 0.8)
    assert few.sigma_unnamed == run.sigma_unnamed
    known = replace(run, sigma_untimed=1.0)  # of attention that nobody timed: enough for the rest
    untimed = [replace(one, untimed=True) for one in found]
    assert with_unnamed_spread(known, untimed, 1.0, 0.8).sigma_unnamed == 0.0
