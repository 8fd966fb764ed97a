"""Steps of models of real size, timed on an H100 and an H200 by `tools/real_models.py`. Nothing is
fitted to them; how kernels take turns under a power cap was written with them in view."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from reckon.verbs.validating import validate

FOLDERS = {"h100-sxm-2": "H100-SXM5-80GB", "h200-sxm-2": "H200-SXM-141GB"}
HOST = ("small-mixture", "gpt2-355m")
"""Their loops wait for a host of 30 to 60 us a launch, which no catalog knows."""


@pytest.mark.parametrize("folder", list(FOLDERS))
def test_plain_steps_take_what_their_kernels_do_within_a_tenth(folder: str, tmp_path: Path) -> None:
    """Llamas and GPTs of 0.8 to 3 B parameters, sequences of 512 to 8,192 tokens, with and without
    recomputation: each within a tenth, a twentieth on the whole, without the level of published
    runs, which are of many ranks."""
    source = catalog.data_dir() / "measurements" / folder / "real_steps.csv"
    table = pd.read_csv(source).assign(accelerator=FOLDERS[folder])
    plain = table["point_id"].str.contains("single1") & ~table["model"].isin(HOST)
    table[plain].to_csv(tmp_path / "steps.csv", index=False)
    known = load("default")
    bare = replace(known.run, factors={**known.run.factors, "pytorch": 1.0})
    points = validate(tmp_path / "steps.csv", replace(known, run=bare))["points"]
    away = np.array([point["predicted"] / point["published"] - 1.0 for point in points])
    assert len(away) == plain.sum() >= 7
    assert np.abs(away).max() < 0.1
    assert np.abs(away).mean() < 0.05
