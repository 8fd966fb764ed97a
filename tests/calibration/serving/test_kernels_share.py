"""How much of the kernels' own spread stands beside that of runs."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.serving.spreads import kernels_share
from calibration.spread import Residual
from predictor.timing import KERNELS_SHARE

Q, LEVEL = 1.2816, 0.8


def rows(share: float, sources: int = 12, each: int = 300) -> list[Residual]:
    """Rows of sources whose kernels are sure to between .02 and .6, that err by so much of it
    beside a tenth."""
    rng = np.random.default_rng(3)
    found = []
    for source, kernels in enumerate(np.linspace(0.02, 0.6, sources)):
        errors = np.hypot(share * kernels, 0.1) * rng.standard_normal(each)
        found += [Residual(float(e), float(kernels), f"s{source}") for e in errors]
    return found


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_share_is_what_errors_were_drawn_with(share: float) -> None:
    found = kernels_share({"tpot.static": rows(share)}, Q, LEVEL)
    assert found == {f"{KERNELS_SHARE}.tpot": pytest.approx(share, abs=0.15)}


def test_all_of_it_stands_where_another_is_hardly_better() -> None:
    assert kernels_share({"tpot.static": rows(1.0)}, Q, LEVEL) == {}
    assert kernels_share({"tpot.static": rows(0.95)}, Q, LEVEL) == {}


def test_all_of_it_stands_where_too_few_sources_tell() -> None:
    assert kernels_share({"tpot.static": rows(0.0, sources=2)}, Q, LEVEL) == {}
    assert kernels_share({}, Q, LEVEL) == {}


def test_a_metric_has_its_own_share_and_its_sources_count_alike() -> None:
    """One metric says nothing of another, and a class of many rows outweighs no class of a few."""
    many, few = rows(1.0, each=900), rows(0.0, each=90)
    assert kernels_share({"tpot.static": many, "e2e.static": few}, Q, LEVEL) == (
        kernels_share({"e2e.static": few}, Q, LEVEL)
    )
    beside = {"tpot.static": many, **{f"tpot.{name}": few for name in ("serving", "open")}}
    found = kernels_share(beside, Q, LEVEL)
    assert 0.0 < found[f"{KERNELS_SHARE}.tpot"] < 1.0
    assert kernels_share({**beside, "tpot.static": many * 2}, Q, LEVEL) == found
