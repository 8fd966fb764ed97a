"""Grids: what they refuse, and that an array of machines is the machines one by one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from predictor.catalog import KEYS, budget, system
from predictor.errors import InputError
from predictor.training.ledger import TERMS
from predictor.units import GIB
from reckon.console.cli import main
from reckon.explore import explore, read_grid
from reckon.explore.evaluate import train_columns
from reckon.explore.machines import RESOURCES
from reckon.explore.optimise import optimise
from reckon.views.budgets import technologies
from reckon.views.terminal import four

H100 = {"node": "N5", "area_mm2": 814, "power_w": 700, "memory": "HBM3", "stacks": 5}
TRAINING: dict[str, Any] = {
    "model": "llama2-13b",
    "technology": H100,
    "plan": {"gpus": 64, "tp": 8, "pp": 1, "global_batch": 64, "seq_len": 2048},
    "launches": False,
}
SERVING: dict[str, Any] = {
    "workload": "serving",
    "model": "llama2-13b",
    "system": "dgx-h100",
    "plan": {"tp": 2, "batch": 8, "input_len": 512, "output_len": 64},
}


def test_points_are_all_combinations_and_equal_single_grids() -> None:
    swept = {"technology.node": ["N7", "N5", "N3"], "technology.l2_share": [0.02, 0.05],
             "plan.micro_batch": [1, 2]}  # fmt: skip
    fixed = {**TRAINING, "technology": {**H100, "processor": "hopper"}}
    table = explore({**fixed, "sweep": swept}).table
    assert len(table) == 12
    assert list(table.columns[:3]) == list(swept)
    for at in (0, 5, 11):
        row = table.iloc[at]
        one = {
            **fixed,
            "technology": {
                **fixed["technology"],
                "node": row["technology.node"],
                "l2_share": float(row["technology.l2_share"]),
            },
            "plan": {**fixed["plan"], "micro_batch": int(row["plan.micro_batch"])},
        }
        alone = explore(one).table.iloc[0]
        for column in ("step_time_s", "low_s", "tokens_per_usd", "power_w", "mfu"):
            assert row[column] == pytest.approx(alone[column], rel=1e-12)
        assert row["bottleneck"] == alone["bottleneck"]


def test_breakdowns_add_up_and_gains_are_no_losses() -> None:
    table = explore({**TRAINING, "sweep": {"plan.micro_batch": [1, 2, 4]}}).table
    total = table[[f"{term}_s" for term in TERMS]].sum(axis=1)
    assert np.allclose(total, table["step_time_s"])
    for resource in RESOURCES:
        assert (table[f"gain of twice the {resource}"] >= 1 - 1e-9).all()


def test_any_field_of_model_and_machine_can_be_swept() -> None:
    content = {
        **SERVING,
        "sweep": {
            "model.layers": [20, 40],
            "machine.memory_bandwidth_gbs": {"from": 2000, "to": 8000, "steps": 3, "scale": "log"},
            "plan.batch": [1, 8],
        },
    }
    table = explore(content).table
    assert len(table) == 12
    by_width = table[(table["model.layers"] == 40) & (table["plan.batch"] == 1)]
    assert (np.diff(by_width["e2e_s"]) < 0).all()
    shallow = table[table["model.layers"] == 20]["e2e_s"].to_numpy()
    assert (shallow < table[table["model.layers"] == 40]["e2e_s"].to_numpy()).all()


def test_the_best_plan_is_no_slower_than_a_fixed_one() -> None:
    plans = {"tp": [4, 8], "pp": [1, 2], "cp": 1}
    loose = {**TRAINING, "plan": {"gpus": 64, "global_batch": 64, "seq_len": 2048, **plans}}
    swept = {"sweep": {"technology.node": ["N7", "N3"]}}
    technology = {"technology": {**H100, "processor": "hopper"}}
    fixed = explore({**TRAINING, **technology, **swept}).table
    best = explore({**loose, **technology, **swept, "plans": "best"}).table
    assert (best["step_time_s"] <= fixed["step_time_s"] * 1.001).all()
    assert best["fits"].all()


def test_the_best_serving_candidate_is_taken() -> None:
    plan = {**SERVING["plan"], "batch": [1, 8, 32]}
    best = explore({**SERVING, "plan": plan, "plans": "best"}).table
    assert len(best) == 1
    every = explore({**SERVING, "sweep": {"plan.batch": [1, 8, 32]}}).table
    assert best["output_tokens_per_s"].iloc[0] == every["output_tokens_per_s"].max()


def test_impossible_machines_are_listed_not_dropped() -> None:
    found = explore({**TRAINING, "sweep": {"technology.stacks": [4, 5, 9]}})
    assert list(found.table["technology.stacks"]) == [4, 5]
    assert found.refused[0][0] == {"technology.stacks": 9}
    assert "mm of the edge" in found.refused[0][1]


def test_optimised_shares_are_no_worse_and_within_bounds() -> None:
    over = {"technology.l2_share": [0.005, 0.4], "technology.stacks": [2, 6]}
    content = {
        **SERVING, "system": None, "technology": H100,
        "optimise": {"over": over, "objective": "tokens_per_usd"},
    }  # fmt: skip
    found = optimise(read_grid({k: v for k, v in content.items() if v is not None}))
    assert found.score >= found.before
    for name, (low, high) in over.items():
        assert low <= found.values[name] <= high
    assert found.values["technology.stacks"] % 1 == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sweep": {"technology.nodes": ["N5"]}}, "did you mean 'node'"),
        ({"sweep": {"plan.tp": 8}}, "needs a list"),
        ({"sweep": {"plan.tp": {"from": 1}}}, "from, to, steps"),
        ({"sweep": {"weather": [1]}}, "SECTION.FIELD"),
        ({"sweep": {"machine.l2_mb": [1]}}, "needs a system"),
        ({"technology": None}, "either a system or a technology"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"assumptions": {"pj": 1}}, "unknown assumption 'pj'"),
        ({"cost": {"margin": 1}}, "did you mean 'gross_margin'"),
        ({"sweep": {"technology.node": ["N6"]}}, "unknown logic node 'N6'"),
        ({"optimise": {"over": {"technology.node": [1, 2]}}}, "field to optimise"),
        ({"optimise": {"over": {"technology.l2_share": [2, 1]}}}, "write [low, high]"),
        ({"optimise": {"over": {}}}, "FIELD: [low, high]"),
        (
            {"sweep": {"technology.node": ["N5"]}, "optimise": {"over": {}}},
            "sweep and optimise are two questions",
        ),
    ],
)
def test_bad_grids_end_in_one_line_and_status_2(
    change: dict, words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    content = {k: v for k, v in {**TRAINING, **change}.items() if v is not None}
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(content))
    assert main(["explore", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_optimum_has_no_points_to_write(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    content = {**TRAINING, "optimise": {"over": {"technology.l2_share": [0.1, 0.2]}}}
    path, out = tmp_path / "grid.yaml", tmp_path / "points.csv"
    path.write_text(yaml.safe_dump(content))
    assert main(["explore", str(path), "--out", str(out)]) == 2
    assert "an optimum has no points" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "grid",
    [
        {**TRAINING, "sweep": {"plan.micro_batch": [1, 3, 2], "technology.stacks": [4, 5, 9]}},
        {
            **TRAINING,
            "plans": "best",
            "plan": {**TRAINING["plan"], "micro_batch": 1},
            "sweep": {"technology.stacks": [4, 5]},
        },
        {**SERVING, "plans": "best", "plan": {**SERVING["plan"], "batch": [1, 8, 32]}},
    ],
)
def test_progress_is_told_while_plans_are_found(grid: dict[str, Any]) -> None:
    """Finding or completing plans takes most of the time of many points: it is told as it goes,
    points that cannot be with the others, and at the end all of them are done."""
    told: list[tuple[int, int]] = []
    explore(grid, progress=lambda done, whole: told.append((done, whole)), bottlenecks=False)
    shares = [done / whole for done, whole in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    plans = len(grid.get("sweep", {}).get("plan.micro_batch", [1]))
    assert len(told) > plans


def test_a_rate_of_arrivals_is_refused_not_dropped() -> None:
    """Rows at 1 and at 10,000 requests a second were the same."""
    own = {key: value for key, value in SERVING["plan"].items() if key != "batch"}
    with pytest.raises(InputError, match=r"plan\.rate: explore answers for a batch"):
        explore({**SERVING, "plan": own, "sweep": {"plan.rate": [1, 10_000]}})


def test_points_without_a_number_end_in_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever makes one: every other row is written all the same, and the first is named."""

    def holed(*arguments: Any) -> dict[str, Any]:
        made = train_columns(*arguments)
        return {**made, "tokens_per_s": np.where(made["micro_batch"] == 2, np.nan, 1.0)}

    monkeypatch.setattr("reckon.explore.evaluate.train_columns", holed)
    path, out = tmp_path / "grid.yaml", tmp_path / "g.csv"
    path.write_text(yaml.safe_dump({**TRAINING, "sweep": {"plan.micro_batch": [1, 2, 4]}}))
    assert main(["explore", str(path), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "1 of 3 points have no tokens_per_s: plan.micro_batch 2" in told
    assert list(pd.read_csv(out)["tokens_per_s"].isna()) == [False, True, False]


def test_the_verb_writes_parquet_csv_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({**TRAINING, "sweep": {"plan.micro_batch": [1, 2]}}))
    parquet, csv = tmp_path / "g.parquet", tmp_path / "g.csv"
    assert main(["explore", str(path), "--out", str(parquet), "--out", str(csv)]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0].startswith("training llama2-13b; a machine of ")
    assert "node N5" in told.splitlines()[0]
    assert "plan.micro_batch" in told.splitlines()[2]
    assert "binds: of compute" in told
    first = pd.read_parquet(parquet).sort_values("tokens_per_s", ascending=False).iloc[0]
    assert told.splitlines()[3].split()[:2] == [
        str(first["plan.micro_batch"]), four(first["step_time_s"]),
    ]  # fmt: skip
    assert len(pd.read_parquet(parquet)) == len(pd.read_csv(csv)) == 2
    assert main(["explore", str(path), "--out", str(tmp_path / "g.xls")]) == 2


@pytest.mark.parametrize(
    "key", ["accelerator", "accelerators_per_node", "inter_link_gbps", "system"]
)
def test_a_plan_of_a_grid_says_nothing_of_its_machine(key: str) -> None:
    """Such keys were dropped without a word; now the line names where to write them."""
    grid = {
        "model": "llama3-8b", "system": "dgx-h100", "sweep": {"plan.tp": [1, 2]},
        "plan": {"gpus": 16, "global_batch": 16, "seq_len": 4096, key: 50},
    }  # fmt: skip
    with pytest.raises(InputError, match=rf"plan\.{key}: .*(machine|system)"):
        read_grid(grid)


def test_what_a_budget_may_hold_and_what_it_makes_are_shown(cli: Any, tmp_path: Path) -> None:
    """Every name that is listed is taken by its key; the machine shown is the one predicted with,
    and its price the sum of its parts."""
    for row in technologies():
        stated = {"scale_up": "NVLink4", **H100, row["key"]: row["name"]}
        assert budget(stated).node is not None
    assert {row["key"] for row in technologies()} <= set(KEYS)
    assert [row["name"] for row in technologies("hbm4e")] == ["HBM4E"]
    path = tmp_path / "machine.yaml"
    path.write_text(yaml.safe_dump({"name": "next", "technology": H100}))
    status, out, _ = cli("show", "systems", str(path), "--json", "-")
    found = json.loads(out)
    own = system(path).accelerator
    assert status == 0
    assert found["bf16_tflops"] == pytest.approx(own.peak["bf16"] / 1e12, abs=0.1)
    assert found["memory_gib"] == pytest.approx(own.memory / GIB)
    assert sum(found["area_mm2"].values()) == pytest.approx(H100["area_mm2"], rel=0.2)
    assert found["capital_usd"] == pytest.approx(sum(found["cost_usd"].values()))
    assert cli("show", "systems", str(path))[1].startswith("name ")
    path.write_text(yaml.safe_dump({"name": "next", "technology": {"node": "N5"}}))
    status, _, error = cli("show", "systems", str(path))
    assert (status, error.count("\n")) == (2, 1)
    assert "node, area_mm2 and memory" in error
    assert cli("show", "technology", "hbm99")[0] == 2


def test_an_optimum_is_asked_of_what_finds_it() -> None:
    """Without a sweep a table would have one point, the budget as it is stated."""
    over = {"technology.l2_share": [0.05, 0.2]}
    content = {**TRAINING, "sweep": {}, "optimise": {"over": over}}
    with pytest.raises(InputError, match=r"ask reckon\.explore\.optimise"):
        explore(content)
    with pytest.raises(InputError, match="state what may vary"):
        optimise({**TRAINING, "sweep": {}})


@pytest.mark.parametrize("sizes", [[80, 160], [160, 80]], ids=["up", "down"])
def test_what_a_plan_leaves_open_follows_from_each_machine(sizes: list[int]) -> None:
    """It followed from the first of the list: with the larger one first 123 GiB were kept on the
    80 GiB of the other."""
    grid = {"model": "llama3-8b", "system": "dgx-h100", "launches": False,
            "plan": {"gpus": 16, "tp": 2, "global_batch": 64, "seq_len": 8192}}  # fmt: skip
    table = explore({**grid, "sweep": {"machine.memory_gib": sizes}}).table
    found = table.set_index("machine.memory_gib")
    assert (found["peak_memory_gib"] <= found.index).all()
    assert found.loc[160, "micro_batch"] > found.loc[80, "micro_batch"]
    assert found.loc[160, "step_time_s"] < found.loc[80, "step_time_s"]
    usual = explore({**grid, "sweep": {"model": ["llama3-8b"]}}).table.iloc[0]
    assert found.loc[80, "step_time_s"] == pytest.approx(usual["step_time_s"], rel=1e-12)


def test_plans_with_keys_of_serving_are_served_without_saying_so() -> None:
    unsaid = {key: value for key, value in SERVING.items() if key != "workload"}
    assert read_grid(unsaid).spec.workload == "serving"
    swept = {**unsaid, "plan": {"tp": 2}, "sweep": {"plan.concurrency": [8, 16]}}
    assert read_grid(swept).spec.workload == "serving"
    assert read_grid({**TRAINING, "sweep": {"plan.tp": [1, 2]}}).spec.workload == "training"
