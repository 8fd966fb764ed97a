"""Tables of power: which table a file is, how rows are read, what is predicted of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import reckon
from calibration.power.fit import row_marks
from calibration.power.ladder import fit_ladder, unread_rungs
from calibration.power.leakage import fit_leakage, measured_slope
from calibration.power.points import power_points
from calibration.power.spreads import spread, spread_of_another, spreads_apart
from calibration.power.stated import NUMBERS, power_table
from calibration.power.sweeps import (
    LEVELS,
    START,
    device_of,
    fit_sweeps,
    relative,
    stated_laws,
    sweep_of,
)
from calibration.power.training import node_row
from calibration.tables.energy import catalog_name, energy_point
from calibration.tables.requests import InferencePoint
from calibration.tables.runs import Skipped
from predictor.arrays import Array
from predictor.catalog import load, power_constants, power_fit
from predictor.errors import InputError
from predictor.power import Activity, VoltageCurve, demand, operating, settled

BASE = {"source": "made", "group": "g", "control": "power_limit", "core_clock_mhz": np.nan}


def limits(accelerator: str = "A40") -> pd.DataFrame:
    rows = [
        {"accelerator": accelerator, "power_limit_w": w, "time_s": t, "avg_power_w": p, **BASE}
        for w, t, p in ((300.0, 10.0, 270.0), (200.0, 11.5, 190.0), (250.0, 10.3, 240.0))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("google/gemma-3-12b-it", "gemma3-12b"),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-8b"),
    ],
)
def test_checkpoints_have_the_catalogs_names(name: str, known: str) -> None:
    assert catalog_name(name) == known


def test_a_checkpoint_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError):
        catalog_name("nobody/no-model-7b")


def test_rows_of_served_energy_are_points_or_say_why_not() -> None:
    row = {
        "source": "mlenergy_v3", "model": "Qwen/Qwen3-8B", "accelerator": "B200", "n_gpus": 1,
        "task": "gpqa", "batch": 7.9, "max_num_seqs": 8.0, "output_len": 900.0, "tp": 1.0,
        "precision": "bfloat16", "output_tok_s": 500.0,
    }  # fmt: skip
    run = load("default").run
    point = energy_point(row, 3, run)
    assert isinstance(point, InferencePoint)
    assert point.point_id == "mlenergy_v3:3"
    assert point.value == 500.0
    refused = energy_point({**row, "source": "tokenpowerbench"}, 3, run)
    assert isinstance(refused, Skipped)
    assert "seconds" in refused.reason
    early = {**row, "source": "mlenergy_v1", "accelerator": "V100 (variant not stated)"}
    first = energy_point({**early, "model": "lmsys/vicuna-13B", "task": "chat"}, 3, run)
    assert isinstance(first, InferencePoint)
    assert first.request.plan.framework == "huggingface"
    assert first.request.cluster.accelerator.name == "V100-SXM2-32GB"


def test_stated_replicas_of_the_attention_share_the_experts() -> None:
    row = {
        "source": "mlenergy_v3", "model": "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "tp": 1.0,
        "accelerator": "B200", "n_gpus": 8, "task": "sourcegraph-fim", "batch": 60.0,
        "max_num_seqs": 64.0, "output_len": 250.0, "precision": "fp8", "output_tok_s": 500.0,
        "ep": 8.0, "dp": 8.0,
    }  # fmt: skip
    run = load("default").run
    found = energy_point(row, 3, run)
    assert isinstance(found, InferencePoint)
    plan = found.request.plan
    assert (float(plan.tp), float(plan.dp), float(plan.ep)) == (1.0, 8.0, 8.0)
    # What the source's scripts pass holds for its table of energy, too.
    assert (plan.scheduling, plan.replica_passes) == ("overlapped", "padded")
    assert plan.narrow_experts == "buffers"
    split = energy_point({**row, "dp": 1.0}, 3, run)
    assert isinstance(split, InferencePoint)
    assert (float(split.request.plan.tp), float(split.request.plan.dp)) == (8.0, 1.0)


def test_the_highest_limit_is_the_reference_and_lower_ones_cost_time() -> None:
    sweep, skipped = sweep_of(limits())
    assert [at for at, _ in skipped] == [0]
    time, power = relative(sweep, START)
    by_limit = dict(zip(sweep.limit.tolist(), zip(time, power, strict=True), strict=True))
    assert by_limit[200.0][0] > by_limit[250.0][0] >= 1.0
    assert by_limit[200.0][1] < by_limit[250.0][1] < 1.0
    assert sweep.binding.tolist() == [True, True]


def test_what_waits_for_its_host_loses_less_time_to_a_limit() -> None:
    """A small batch takes twice the time of the best one for the same work, a large one a quarter
    more: half of the first waits for the host, nothing of the others does."""
    epochs = {8.0: 20.0, 64.0: 10.0, 512.0: 12.5}
    tables = [
        limits().assign(
            group=f"b{batch:g}", batch=batch, workload="w", time_unit="one epoch",
            time_s=[time, time, time],
        )
        for batch, time in epochs.items()
    ]  # fmt: skip
    sweep, _ = sweep_of(pd.concat(tables, ignore_index=True))
    assert sorted(set(sweep.bound.tolist())) == [0.5, 1.0]
    assert (sweep.bound == 0.5).sum() == 2
    time, _ = relative(sweep, START)
    low = sweep.limit == 200.0
    assert time[low & (sweep.bound == 0.5)].max() < time[low & (sweep.bound == 1.0)].min()


def capped(spread: float, share: float) -> tuple[Array, Array, Array]:
    """Limits, times and powers [W] of an A40's run, a share of whose time is products at its own
    limit and the rest waits, by the law of a `spread`."""
    awake = START["still"] * 300.0 + START["gddr_w_per_gb"] * 48.0
    top = START["held"] * 300.0
    before = share * top + (1.0 - share) * awake
    table = pd.DataFrame(
        [
            {"accelerator": "A40", "power_limit_w": w, "time_s": 1.0, "avg_power_w": before, **BASE}
            for w in np.linspace(300.0, 150.0, 16)
        ]
    )
    sweep, _ = sweep_of(table)
    time, power = relative(sweep, {**START, "spread": spread})
    return sweep.limit, time, power * before


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_of_a_run_that_is_all_or_nothing_products_alone_meet_a_limit(share: float) -> None:
    """Products draw the limit and take what the voltage curve says, waits draw an awake device's
    power and take no longer."""
    limit, time, power = capped(0.001, share)
    awake = START["still"] * 300.0 + START["gddr_w_per_gb"] * 48.0
    drawn = START["held"] * 300.0 - awake
    clock = settled(START["held"] * limit, awake, drawn, 0.0, 1.0, VoltageCurve(0.8, 0.78))
    levels = 1.0 / len(LEVELS)
    assert time == pytest.approx(
        1.0 + share / clock - share, abs=levels / 2 * (1 / clock - 1).max()
    )
    products = share / clock * START["held"] * limit
    mean = (products + (1.0 - share) * awake) / (share / clock + 1.0 - share)
    assert power == pytest.approx(mean, rel=levels)


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_lower_limit_is_never_quicker_and_never_draws_more(spread: float, share: float) -> None:
    limit, time, power = capped(spread, share)
    order = np.argsort(limit)
    assert np.all(np.diff(time[order]) <= 1e-12)
    assert np.all(np.diff(power[order]) >= -1e-9)
    assert np.all(power <= START["held"] * limit + 1e-6)


def test_a_fit_of_sweeps_comes_back_to_what_made_them() -> None:
    made, _ = sweep_of(pd.concat([limits(), limits("RTX 3090").assign(group="h")]))
    truth = {**START, "slope": 1.0, "spread": 0.5}
    time, power = relative(made, truth)
    found = fit_sweeps(replace(made, time=time, power=power))
    again = relative(made, found)
    assert np.abs(again[0] / time - 1).max() < 0.02
    assert np.abs(again[1] / power - 1).max() < 0.02


def test_tables_are_told_apart_and_scored() -> None:
    assert power_table(limits()) == "sweeps"
    assert power_table(pd.DataFrame({"m": [1]})) is None
    points, skipped = power_points(limits(), "sweeps", load("default"))
    assert {point.metric for point in points} == {"rel_time", "rel_power"}
    assert not any(point.in_sample for point in points)
    assert all(point.predicted > 0 and point.sigma > 0 for point in points)
    assert len(skipped) == 1


def test_a_ladder_of_three_rungs_gives_them_back() -> None:
    rows = pd.DataFrame(
        [
            {"source": "made", "accelerator": "B300-SXM6", "workload": w, "precision": "bf16",
             "enforced_limit_w": 1100.0, "avg_power_w": p}
            for w, p in (("idle", 183.0), ("unit-dram", 765.0), ("prec-bf16", 1036.0))
        ]
    )  # fmt: skip
    found = fit_ladder(rows, "B300-SXM6", stated_laws())
    assert found["awake_share"] == pytest.approx(183 / 1100)
    assert 40 < found["byte_pj"] < 90
    full = rows.iloc[0].to_dict() | {"workload": "unit-fma", "avg_power_w": 403.0}
    told = fit_ladder(pd.concat([rows, pd.DataFrame([full])]), "B300-SXM6", stated_laws())
    assert told["busy_share"] == pytest.approx(220 / 1100)
    points, _ = power_points(rows, "kernels", load("default"))
    assert [round(p.predicted / p.published, 1) for p in points] == [1.0, 1.0, 1.0]


def test_rungs_that_were_not_read_tell_how_sure_a_ladder_is() -> None:
    """The same product at a tenth more than the rung that was read is missed by that tenth; the
    rungs themselves, and an accelerator without any, tell nothing."""
    powers = {"idle": 183.0, "unit-dram": 765.0, "prec-bf16": 1000.0, "tensor-only-bf16": 1100.0}
    rows = pd.DataFrame(
        [
            {"source": "made", "accelerator": "B300-SXM6", "workload": w, "precision": "bf16",
             "enforced_limit_w": 1200.0, "avg_power_w": p}
            for w, p in powers.items()
        ]
    )  # fmt: skip
    own = fit_ladder(rows, "B300-SXM6", stated_laws())
    errors = unread_rungs(rows, "B300-SXM6", stated_laws(), own)
    assert errors == pytest.approx([-np.log(1.1)], abs=1e-3)
    assert unread_rungs(rows, "B300-SXM6", stated_laws(), {}) == []


def test_rated_power_is_no_measurement() -> None:
    assert node_row({"measured": "no (TDP)", "workload": "x"}) == (
        "not measured: rated power times hours"
    )


def test_marks_tell_rows_apart_and_spreads_have_a_floor() -> None:
    marks = row_marks(limits())
    assert len(set(marks)) == 3
    assert spread(np.zeros(10)) == pytest.approx(0.05 / 1.2816)
    assert spread(np.linspace(-1, 1, 101)) == pytest.approx(0.8 / 1.2816, rel=0.02)


def test_a_spread_is_told_by_other_groups_alone() -> None:
    """A group that is missed by far widens the intervals of the others, not its own."""
    errors = np.array([0.3, -0.3, 0.3, 0.06, -0.06, 0.06])
    found = spreads_apart(errors, ["far"] * 3 + ["near"] * 3, 0.2)
    assert found[:3] == pytest.approx(spread(errors[3:]))
    assert found[3:] == pytest.approx(spread(errors[:3]))
    assert spreads_apart(errors, ["one"] * 6, 0.2) == pytest.approx(0.2)


def test_what_groups_share_is_told_by_few_of_them() -> None:
    """Rows that differ within groups alone tell their own spread. What all rows of a group share
    counts by Student's t, whose ninetieth percentile is 3.078 of one and 1.886 of two (tables)."""
    within = np.array([-0.2, -0.1, 0.1, 0.2])
    assert spread_of_another(within, ["a"] * 4) == pytest.approx(spread(within))
    for groups, percentile in ((1, 3.078), (2, 1.886)):
        shared = np.full(4 * groups, 0.3)
        names = [f"g{n}" for n in range(groups) for _ in range(4)]
        found = spread_of_another(shared, names)
        narrow = 0.05 / 1.2816  # no interval is narrower
        assert found == pytest.approx(np.hypot(narrow, 0.3 * percentile / 1.2816), rel=1e-3)
    assert spread_of_another(within + 0.3, ["a"] * 4) > spread(within + 0.3)


def test_rows_left_out_do_not_tell_their_own_spread() -> None:
    """Of two accelerators each has the spread of what the other is missed by."""
    table = pd.concat([limits(), limits("RTX 3090").assign(group="h", time_s=[10.0, 30.0, 20.0])])
    points, _ = power_points(table, "sweeps", load("default"), "accelerator")
    names = {"A40", "RTX 3090"}
    for metric in ("rel_time", "rel_power"):
        errors = {
            name: np.array([
                np.log(p.predicted / p.published)
                for p in points
                if (p.accelerator, p.metric) == (name, metric)
            ])
            for name in names
        }  # fmt: skip
        for name in names:
            (other,) = names - {name}
            own = {p.sigma for p in points if (p.accelerator, p.metric) == (name, metric)}
            assert sorted(own) == pytest.approx([spread(errors[other])])


def test_leakage_comes_back_from_the_time_that_a_kelvin_costs() -> None:
    """Products of three V100s at their limit, made with a known growth, each chip with a time of
    its own; a table of nothing at the limit tells nothing."""
    growth = 0.02
    constants = power_constants(device_of("V100-SXM2-16GB"), stated_laws(), {})
    drawn = demand(Activity(1.0, flop=1e18, rows=1e9, core=1.0), constants)
    warmer = replace(constants, leakage=growth)
    warm = np.tile(np.linspace(64.0, 74.0, 6), 3)
    slower = operating(drawn, warmer, constants.limit, temperature=warm).slower
    chip = np.repeat([0, 1, 2], 6)
    table = pd.DataFrame(
        {
            "accelerator": "V100-SXM2-16GB", "workload": "sgemm", "gpu_index": chip,
            "temp_c": warm, "power_w": 296.0, "power_limit_w": 300.0,
            "work_time_s": slower * (200.0 + 10.0 * chip),
        }
    )  # fmt: skip
    assert fit_leakage(table, stated_laws()) == pytest.approx(growth, rel=0.02)
    told = measured_slope(table)
    assert told is not None
    assert told[2] < 0.05 * told[1]
    assert fit_leakage(table.assign(power_w=200.0), stated_laws()) is None


def test_what_leaks_changes_nothing_at_the_reference_and_costs_time_above_it() -> None:
    constants = power_constants(device_of("H100-SXM5-80GB"))
    work = Activity(1.0, flop=1e18, rows=1e9, core=1.0)
    more = replace(constants, leaking=0.9)
    assert float(demand(work, more).whole) == pytest.approx(float(demand(work, constants).whole))
    times = [
        float(operating(demand(work, one), one, one.limit, temperature=80.0).slower)
        for one in (constants, more)
    ]
    assert 1.0 < times[0] < times[1]
    idle = Activity(1.0)
    warm = operating(demand(idle, constants), constants, constants.limit, temperature=80.0)
    assert float(warm.slower) == 1.0
    assert float(warm.power) > float(constants.awake)


def test_ranks_that_wait_draw_no_more_than_processors_full_of_threads() -> None:
    """Collectives spin in a few processors: of what ships, within the slack of the bound that the
    fit is held to."""
    fitted = power_fit()
    sets = {"laws": fitted["laws"], **fitted["accelerators"]}
    told = {name: one for name, one in sets.items() if "waiting_share" in one}
    assert len(told) >= 3
    for name, one in told.items():
        assert one["waiting_share"] <= 1.02 * one["busy_share"], name


SERVED = {
    "source": "made", "model": "meta-llama/Llama-3.1-8B", "accelerator": "H100-SXM5-80GB",
    "n_gpus": 1, "task": "gpqa", "batch": 8, "max_num_seqs": 8, "input_len": 200, "output_len": 400,
    "tp": 1, "pp": 1, "ep": 1, "dp": 1, "precision": "bfloat16", "output_tok_s": 900,
    "power_per_gpu_w": 500, "energy_per_out_token_j": 0.55, "avg_power_w": 500,
}  # fmt: skip
TABLES: dict[str, dict[str, Any]] = {
    "served": SERVED,
    "kernels": {"source": "made", "accelerator": "B300-SXM6", "workload": "prec-bf16",
                "precision": "bf16", "enforced_limit_w": 1100, "avg_power_w": 1000,
                "tflops": 2000},
    "heat": {"source": "made", "accelerator": "H100-SXM5-80GB", "position": "front",
             "workload": "sgemm", "temp_c": 60, "power_w": 600},
    "training": {"source": "made", "accelerator": "H100-SXM5-80GB", "model": "llama2-70b",
                 "workload": "LoRA fine-tuning", "num_gpus": 8, "gpus_per_node": 8,
                 "avg_power_per_gpu_w": 600, "median_power_per_gpu_w": 610, "node_power_w": None,
                 "measured": "yes"},
    "systems": {"source": "made", "category": "node", "component": "8xH100 air, LoRA 1 node, AC",
                "value": 7000, "unit": "W", "status": "measured"},
}  # fmt: skip


def validated(table: pd.DataFrame, path: Path) -> dict[str, Any] | str:
    """What `reckon validate` says of a table, or why it refuses it."""
    table.to_csv(path, index=False)
    try:
        return reckon.validate(path)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("kind", [*TABLES, "sweeps"])
def test_whatever_a_table_of_power_lacks_is_told(kind: str, tmp_path: Path) -> None:
    """A column that is not there, is empty, 0 or no number: rows are skipped with a reason, or the
    line is named."""
    table = limits() if kind == "sweeps" else pd.DataFrame([TABLES[kind]])
    path = tmp_path / "power.csv"
    for column in table.columns:
        for change in (
            table.drop(columns=column),
            table.assign(**{column: None}),
            table.assign(**{column: 0}),
            table.assign(**{column: "about a lot"}),
        ):
            found = validated(change, path)
            if isinstance(found, str):
                assert "\n" not in found
            else:
                assert found["points"] or found["skipped"], (kind, column)
    for column in set(NUMBERS[kind]) & set(table.columns):
        refused = validated(table.assign(**{column: "about a lot"}), path)
        assert f"line 2: {column} must be a number" in refused


def test_numbers_of_power_are_read_as_people_write_them(tmp_path: Path) -> None:
    plain, written = (
        validated(pd.DataFrame([SERVED | more]), tmp_path / "power.csv")
        for more in ({}, {"output_tok_s": "~900", "power_per_gpu_w": "0,500", "ep": "-"})
    )
    assert plain == written


def test_a_sweep_without_names_of_what_it_sets_is_one(tmp_path: Path) -> None:
    """Neither `control` nor `group`: rows of one workload are beside the one of the highest limit,
    or clock; rates say as much as times."""
    named = limits().assign(workload="w")
    bare = named.drop(columns=["control", "group", "core_clock_mhz"])
    rates = bare.assign(throughput_tok_s=100.0 / bare["time_s"]).drop(columns="time_s")
    first, second, third = (
        validated(table, tmp_path / "sweep.csv") for table in (named, bare, rates)
    )
    assert not isinstance(first, str)
    assert [one["metric"] for one in first["points"]].count("rel_time") == 2
    assert second == first
    assert not isinstance(third, str)
    assert [p["published"] for p in third["points"]] == pytest.approx(
        [p["published"] for p in first["points"]]
    )
    clocks = bare.assign(core_clock_mhz=bare["power_limit_w"] * 4, power_limit_w=300.0)
    told = validated(clocks.assign(control="locked clock (MHz)"), tmp_path / "sweep.csv")
    assert not isinstance(told, str)
    assert len(told["points"]) == 4
    assert validated(clocks, tmp_path / "sweep.csv") == told


def test_what_a_row_of_served_energy_runs_in_is_as_it_says() -> None:
    """Engine, release, data type of the weights, as stated or as the checkpoint is called."""
    run = load("default").run
    usual = {k: v for k, v in SERVED.items() if k != "precision"}

    def request(**more: Any) -> Any:
        point = energy_point({**usual, **more}, 0, run)
        assert isinstance(point, InferencePoint), point
        return point.request

    for said, engine in ((None, "vllm"), ("SGLang", "sglang"), ("TensorRT-LLM", "tensorrt-llm")):
        assert request(engine=said).plan.framework == engine
    known: dict[str, Any] = {
        "fp8": [{"precision": "FP8"}, {"model": "meta-llama/Llama-3.1-8B-FP8"}],
        "int4_wo": [{"precision": "AWQ"}, {"model": "meta-llama/Llama-3.1-8B-AWQ"}],
        "bf16": [{}, {"precision": "as released"}, {"precision": "bfloat16"}],
    }
    for weights, ways in known.items():
        for way in ways:
            assert request(**way).plan.weights == weights, way


def test_fine_tuning_of_other_models_is_not_that_of_the_one_that_is_known() -> None:
    row = TABLES["training"]
    assert not isinstance(node_row(row), str)
    assert not isinstance(node_row({**row, "model": "Llama-2-70B"}), str)
    assert node_row({**row, "model": "llama3-8b"}) == "the configuration is not stated"


def test_a_rate_of_requests_is_one() -> None:
    """More requests, more power; what is idle between them draws little; a stated rate of tokens
    does not make it a closed loop."""
    rows = [{**SERVED, "batch": None, "request_rate": rate} for rate in (0.5, 2.0, 8.0)]
    found, skipped = power_points(pd.DataFrame(rows), "served", load("kernels-only"))
    assert not skipped
    alone = [one.predicted for one in found if one.metric == "power_w"]
    assert alone == sorted(alone)
    assert alone[0] < 0.9 * alone[2]
    whole = pd.DataFrame([{**SERVED, "request_rate": 0.5}])
    first = power_points(whole, "served", load("kernels-only"))[0][0]
    assert first.predicted == pytest.approx(alone[0])
    empty = pd.DataFrame([{**SERVED, "batch": None}])
    assert "requests at a time" in power_points(empty, "served", load("kernels-only"))[1][0].reason


def test_training_that_states_its_run_is_predicted_from_it() -> None:
    run = {"source": "own", "accelerator": "H100-SXM5-80GB", "num_gpus": 8.0, "gpus_per_node": 8.0,
           "tp": 8.0, "pp": 1.0, "micro_batch": 1.0, "global_batch": 8.0, "seq_len": 4096.0,
           "precision": "bf16", "framework": "megatron-lm", "avg_power_per_gpu_w": 600.0,
           "node_power_w": None}  # fmt: skip
    rows = [
        {**run, "model": "llama3-8b"},
        {**run, "model": "gpt3-13b", "seq_len": 2048.0, "node_power_w": 8000.0},
        {**run, "model": "mystery"},
    ]
    found, skipped = power_points(pd.DataFrame(rows), "training", load("kernels-only"))
    assert [(one.metric, one.model) for one in found] == [
        ("power_w", "llama3-8b"), ("node_power_w", "gpt3-13b"),
    ]  # fmt: skip
    assert 350.0 < found[0].predicted < 700.0
    assert 4000.0 < found[1].predicted < 10200.0
    assert "mystery" in skipped[0].reason
