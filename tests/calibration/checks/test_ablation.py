"""Whether parts that are taken out are out, and figures of variants those of hand counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.checks.ablation import (
    elsewhere,
    figures,
    held_out,
    main,
    same_for_all,
    some,
    spreads_left_out,
    variants,
    without_facts,
)
from calibration.runs.apart import take_apart
from calibration.runs.fit import read_points
from calibration.spread import Residual
from predictor import catalog
from predictor.errors import InputError
from predictor.timing import Calibration, RunParameters

FACTS = catalog.read_mapping(catalog.data_dir() / "defaults" / "frameworks.yaml")


def calibration() -> Calibration:
    """Without kernels; spreads alone are asked of it."""
    return Calibration("test", run=RunParameters())


def test_all_frameworks_do_the_same_where_nothing_is_known_of_them() -> None:
    bare = same_for_all(FACTS)
    assert set(bare) == set(FACTS)
    settings = [periods[0]["settings"] for periods in bare.values()]
    assert all(one == FACTS["neutral"][-1]["settings"] for one in settings)
    assert all(len(periods) == 1 and "recipes" not in periods[0] for periods in bare.values())
    assert bare["torchtitan"][0]["means"] == FACTS["torchtitan"][-1]["means"]


def test_data_without_facts_are_the_shipped_ones_but_for_these(tmp_path: Path) -> None:
    """A process that reads them knows no recipe, and the same accelerators."""
    folder = without_facts(tmp_path)
    shipped = catalog.data_dir()
    for path in shipped.rglob("*.csv"):
        own = folder / path.relative_to(shipped)
        same = own.read_bytes() == path.read_bytes()
        assert same == (own.name != "recipes.csv"), own
    script = (
        "from predictor import catalog\n"
        "from predictor.catalog import framework_settings\n"
        "print(len(list(catalog.recipe_facts('megatron-bridge', None, 'deepseek-v3', 'pretrain',"
        " 'GB200-186GB', 'bf16'))), framework_settings('nanotron', None)[0]['reduce_bytes']"
        " if 'reduce_bytes' in framework_settings('nanotron', None)[0] else 'none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RECKON_DATA": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "none"]


def test_a_process_elsewhere_says_what_it_would_say_here(tmp_path: Path) -> None:
    """Errors of a few runs by a process that reads the shipped data, as by this one; what fails
    there is one line here, and none is left when nobody waits."""
    table = tmp_path / "few.csv"
    whole = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    whole[whole["source"] == "megatron_sc21"].head(3).to_csv(table, index=False)
    calibration = catalog.load("kernels-only")
    with elsewhere(table, "kernels-only", catalog.data_dir()) as ended:
        here = held_out(take_apart(calibration, read_points([table], calibration.run)))
        there = ended()
    assert here.keys() == there.keys()
    assert len(here) == 3
    for name, one in here.items():
        assert there[name].error == pytest.approx(one.error, rel=1e-9)
    with (
        elsewhere(tmp_path / "none.csv", "kernels-only", catalog.data_dir()) as ended,
        pytest.raises(InputError, match=r"none\.csv"),
    ):
        ended()
    with elsewhere(table, "kernels-only", catalog.data_dir()) as ended:
        pass
    with pytest.raises((InputError, ValueError)):
        ended()


def test_figures_are_means_over_sources() -> None:
    """Three rows that are right, and one source of one row twice too slow."""
    right = [Residual(0.0, 0.0, "many") for _ in range(3)]
    found = figures([*right, Residual(np.log(2.0), 0.0, "one")], np.full(4, 0.1), 1.2816)
    assert found.error == pytest.approx((0.0 + 1.0) / 2)
    assert found.median == 0.0
    assert found.inside == pytest.approx(0.5)
    assert found.width == pytest.approx(np.exp(0.25632))
    wide = 2 * 1.2816 * 0.1
    outside = wide + 10.0 * (np.log(2.0) - wide / 2)  # Gneiting and Raftery 2007: 2 / (1 - 0.8)
    assert found.score == pytest.approx((wide + outside) / 2)


LOTS = np.random.default_rng(3)


def drawn(spread: float, source: str, moe: bool) -> list[Residual]:
    return [Residual(float(e), 0.0, source, moe) for e in spread * LOTS.standard_normal(200)]


def test_terms_of_intervals_are_worth_what_tells_runs_apart() -> None:
    """Mixtures four times as uncertain as dense models: one spread for both is too wide for most,
    and covers all the same."""
    rows = [one for n in range(8) for one in drawn(0.2 if n % 2 else 0.05, f"s{n}", bool(n % 2))]
    known = {str(n): one for n, one in enumerate(rows)}
    found = variants(known, known, calibration())
    shipped, plain = found["as shipped"], found["interval terms off"]
    assert shipped.error == plain.error
    assert shipped.inside == pytest.approx(0.8, abs=0.05)
    assert plain.inside == pytest.approx(0.8, abs=0.05)
    assert shipped.score < 0.95 * plain.score
    assert found["facts off"] == shipped
    alone = spreads_left_out(rows, calibration(), terms=False)
    assert len(set(np.round(alone, 3))) < 20  # of sources, not of rows


def test_runs_that_a_variant_cannot_predict_count_in_none() -> None:
    rows = [one for n in range(4) for one in drawn(0.1, f"s{n}", False)]
    known = {str(n): one for n, one in enumerate(rows)}
    bare = {name: one for name, one in known.items() if int(name) % 2}
    assert {one.rows for one in variants(known, bare, calibration()).values()} == {400}


def test_as_many_rows_of_each_source_as_asked(tmp_path: Path) -> None:
    whole = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    whole[::5].to_csv(table := tmp_path / "fifth.csv", index=False)
    points = read_points([table], RunParameters())
    kept = some(points, 2)
    counts = np.unique([one.source for one in kept], return_counts=True)[1]
    assert counts.max() == 2
    assert kept == some(points, 2)


@pytest.mark.parametrize("given", [["missing.csv"], ["pyproject.toml"], ["x.csv", "--rows", "-1"]])
def test_bad_input_is_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("usage") is False
