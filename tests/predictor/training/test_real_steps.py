"""Steps of models of real size, timed on an H100 and an H200 by `tools/real_models.py`. Nothing is
fitted to them; how kernels take turns under a power cap, that a loop on one rank has no level,
what norms and activations in parts take and what autocast adds were written with them in view."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.tables.runs import point_of
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.memory.training import memory
from predictor.units import GIB
from reckon.verbs.validating import validate

FOLDERS = {
    "h100-sxm-2": "H100-SXM5-80GB",
    "h200-sxm-2": "H200-SXM-141GB",
    "h100-sxm-3": "H100-SXM5-80GB",
    "h200-sxm-3": "H200-SXM-141GB",
    "h200-sxm-4": "H200-SXM-141GB",
}
FIRST, THEN, TUNED = list(FOLDERS)[:2], list(FOLDERS)[2:4], list(FOLDERS)[4]
HOST = ("small-mixture", "gpt2-355m")
"""Their loops wait for a host of 30 to 60 us a launch, which no catalog knows."""


def away(folder: str, whose: str, without: tuple[str, ...], tmp_path: Path) -> np.ndarray:
    """Predicted over measured steps of one kind of code, less one."""
    name = "real_others.csv" if folder in THEN else "real_steps.csv"
    name = "real_tuned.csv" if folder == TUNED else name
    table = pd.read_csv(catalog.data_dir() / "measurements" / folder / name).assign(
        accelerator=FOLDERS[folder]
    )
    kept = table["point_id"].str.contains(whose) & ~table["model"].isin(without)
    table[kept].to_csv(tmp_path / "steps.csv", index=False)
    points = validate(tmp_path / "steps.csv", load("default"))["points"]
    assert len(points) == kept.sum()
    return np.array([point["predicted"] / point["published"] - 1.0 for point in points])


@pytest.mark.parametrize("folder", FIRST)
def test_plain_steps_take_what_is_predicted_within_a_tenth(folder: str, tmp_path: Path) -> None:
    """Llamas and GPTs of 0.8 to 3 B parameters, sequences of 512 to 8,192 tokens, with and without
    recomputation: each within a tenth, a twentieth on the whole."""
    found = away(folder, "single1", HOST, tmp_path)
    assert len(found) >= 7
    assert np.abs(found).max() < 0.1
    assert np.abs(found).mean() < 0.05


@pytest.mark.parametrize("folder", FIRST)
def test_so_do_steps_of_somebody_elses_models(folder: str, tmp_path: Path) -> None:
    """Norms and GPT-2's GELU written out in its code, which says so."""
    found = away(folder, "transformers", (), tmp_path)
    assert len(found) == 3
    assert np.abs(found).max() < 0.1


NARROW = ("qwen3-0.6b",)
"""Norms of heads of 128 elements, whose sums along a row PyTorch takes twice as long for: 18 % of a
step of which they are a third."""


@pytest.mark.parametrize("folder", THEN)
def test_so_do_steps_of_other_models(folder: str, tmp_path: Path) -> None:
    """Qwens, OPTs and GPT-2, plain, HuggingFace's, compiled and under autocast: as the code was
    before any had been timed, those that computed in 16 bits throughout, of one piece, were 0.95 to
    1.03 of what they took."""
    found = away(folder, "single|transformers|autocast|compiled", NARROW, tmp_path)
    assert len(found) == {"h100-sxm-3": 5, "h200-sxm-3": 15}[folder]
    assert np.abs(found).max() < 0.1
    assert np.abs(found).mean() < 0.05


SMALL = ("qwen3-mixture", "qwen2.5-0.5b", "llama3.2-1b")
"""Their steps wait for the host, or hardly not."""


def test_so_do_steps_of_adapters_in_fp8_and_behind_masks(tmp_path: Path) -> None:
    """Adapters of peft, kept in three ways, torchao's fp8, layers compiled one by one, models with
    windows: 0.61 to 1.02 of what they took as the code was before they had been timed."""
    found = away(TUNED, "single|transformers", SMALL, tmp_path)
    assert len(found) == 13
    assert np.abs(found).max() < 0.12
    assert np.abs(found).mean() < 0.06


def test_tensors_of_those_steps_take_what_is_predicted() -> None:
    """Most that was allocated at once, with adapters or without, recomputed or not, in fp8."""
    table = pd.read_csv(catalog.data_dir() / "measurements" / TUNED / "real_tuned.csv")
    run = load("default").run
    found = {}
    for row in table.assign(accelerator=FOLDERS[TUNED]).to_dict("records"):
        request = point_of(row, run).request
        held = float(memory(request.model, request.plan, run).tensors) / GIB
        found[row["point_id"]] = held / row["peak_gib"] - 1.0
    off = np.array(list(found.values()))
    assert len(off) == 18
    assert np.abs(off).max() < 0.1
    assert np.abs(off).mean() < 0.04
