"""Steps of models of real size, timed on an H100 and an H200 by `tools/real_models.py`. Nothing is
fitted to them; how kernels take turns under a power cap, that a loop on one rank has no level and
what norms in parts take were written with them in view."""

from __future__ import annotations

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


def away(folder: str, whose: str, without: tuple[str, ...], tmp_path: Path) -> np.ndarray:
    """Predicted over measured steps of one kind of code, less one."""
    source = catalog.data_dir() / "measurements" / folder / "real_steps.csv"
    table = pd.read_csv(source).assign(accelerator=FOLDERS[folder])
    kept = table["point_id"].str.contains(whose) & ~table["model"].isin(without)
    table[kept].to_csv(tmp_path / "steps.csv", index=False)
    points = validate(tmp_path / "steps.csv", load("default"))["points"]
    assert len(points) == kept.sum()
    return np.array([point["predicted"] / point["published"] - 1.0 for point in points])


@pytest.mark.parametrize("folder", list(FOLDERS))
def test_plain_steps_take_what_is_predicted_within_a_tenth(folder: str, tmp_path: Path) -> None:
    """Llamas and GPTs of 0.8 to 3 B parameters, sequences of 512 to 8,192 tokens, with and without
    recomputation: each within a tenth, a twentieth on the whole."""
    found = away(folder, "single1", HOST, tmp_path)
    assert len(found) >= 7
    assert np.abs(found).max() < 0.1
    assert np.abs(found).mean() < 0.05


@pytest.mark.parametrize("folder", list(FOLDERS))
def test_so_do_steps_of_somebody_elses_llama(folder: str, tmp_path: Path) -> None:
    """Norms written out in its code, which says so; its GPT-2's activation is, too, which nothing
    here knows of."""
    found = away(folder, "transformers", ("gpt2-774m",), tmp_path)
    assert len(found) == 2
    assert np.abs(found).max() < 0.1
