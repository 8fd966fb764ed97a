"""How steady steps are: a population recovered from made-up clusters, and scores of tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.variation.population import Population, distance, fit, shipped
from calibration.variation.ratios import Configuration, configurations
from predictor.errors import InputError
from predictor.variation import names, profile

Cli = Callable[..., tuple[int, str, str]]

TRUE = Population(np.log(0.004), 0.4, -1.0, 0.3, 0.3, 0.0)


def made(count: int, seed: int = 0) -> list[Configuration]:
    """Configurations of the population `TRUE`."""
    lots = np.random.default_rng(seed)
    found = []
    for at in range(count):
        n, size = 2.0 ** lots.integers(3, 13), lots.choice([8e9, 70e9, 175e9])
        own = TRUE.spread(n, size) * np.exp(TRUE.apart * lots.standard_normal())
        scale = own * np.exp(TRUE.within * lots.standard_normal(2000))
        ratios = np.sort(np.exp(scale * lots.standard_normal(2000)))
        found.append(Configuration(f"c{at}", "s", f"o{at % 7}", "b", n, size, ratios))
    return found


def test_a_fit_recovers_the_population() -> None:
    own = fit(made(60))
    assert own.level == pytest.approx(TRUE.level, abs=0.3)
    assert own.by_accelerators == pytest.approx(0.4, abs=0.06)
    assert own.by_parameters == pytest.approx(-1.0, abs=0.1)
    assert own.apart == pytest.approx(0.3, rel=0.3)
    assert own.within == pytest.approx(0.3, abs=0.15)


def test_quantiles_and_distribution_agree() -> None:
    for p in (0.5, 0.75, 0.95, 0.99):
        at = np.array([TRUE.quantile(p, 0.01)])
        assert float(TRUE.below(at, 0.01, TRUE.within)[0]) == pytest.approx(p, abs=2e-3)


def test_the_distance_is_kolmogorovs() -> None:
    """Of one point at the median: a half. Of evenly spaced quantiles: half a step."""
    assert distance(np.array([0.5]), lambda x: x) == 0.5
    even = (np.arange(100) + 0.5) / 100
    assert distance(even, lambda x: x) == pytest.approx(0.005)


def test_too_few_configurations_are_refused() -> None:
    with pytest.raises(InputError, match="4 configurations"):
        fit(made(3))


def table(**changes: object) -> pd.DataFrame:
    lots = np.random.default_rng(1)
    row = {"source": "s", "org": "o", "system": "x", "benchmark": "gpt3", "gpus": 512.0, "run": 0}
    rows = [
        {**row, "ratio": float(np.exp(0.002 * z)), **changes} for z in lots.standard_normal(400)
    ]
    return pd.DataFrame(rows)


def test_tables_are_scored_by_configuration(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "ratios.csv", tmp_path / "out.json"
    pd.concat([table(), table(system="y", gpus=np.nan)]).to_csv(path, index=False)
    code, said, _ = cli("validate", path, "--json", out)
    assert code == 0
    for figure in ("p95_over_p50", "p99_over_p50", "ks", "ks_pooled"):
        assert f"\n{figure}" in said
    found = json.loads(out.read_text())
    assert found["kind"] == "variation"
    assert set(found["by_metric"]) == {"p95_over_p50", "p99_over_p50", "ks", "ks_pooled"}
    assert found["n_points"] == found["n_predicted"] == 7
    first = found["points"][0]
    assert first["published"] == pytest.approx(np.exp(0.002 * 1.645), abs=1e-3)
    assert first["low"] < first["predicted"] < first["high"]
    assert not first["in_sample"], "the population was not fitted to it"
    assert 0.0 < found["by_metric"]["ks"]["mape"] < 1.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"ratio": -1.0}, "line 2: ratio must be above 0"), ({"ratio": "x"}, "line 2: ratio")],
)
def test_bad_tables_are_one_line(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        configurations(table(**changes), "t.csv")


def test_what_ships_says_how_far_it_is_off_what_it_was_not_fitted_to() -> None:
    """PRISM (arXiv 2510.15596) states a distance of 0.208 for its own."""
    from predictor import catalog

    content = json.loads(catalog.data_dir().joinpath("variation", "steps.json").read_text())
    own, fitted = shipped()
    assert len(fitted) > 20
    assert content["held_out_ks"]["configuration"]["pooled"] <= 0.15
    assert content["held_out_ks"]["configuration"]["median"] <= 0.15
    assert content["held_out_ks"]["submitter"]["pooled"] <= 0.15
    typical = own.spread(1024.0, 70e9)
    assert 0.0002 < typical < 0.02
    assert {"tuned", "typical", "cloud"} <= set(names())
    assert profile("tuned").step < profile("typical").step < profile("cloud").step
