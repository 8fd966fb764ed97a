"""Steps of models of real size, timed on an H100 and an H200 by `tools/real_models.py`: nothing is
fitted to them, but that a plain loop on one rank has no level was written with them in view."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.plans import batches
from predictor.training.completion import complete_training
from predictor.training.prediction import predict
from reckon.verbs.validating import validate

FOLDERS = {"h100-sxm-2": "H100-SXM5-80GB", "h200-sxm-2": "H200-SXM-141GB"}
HOST = ("small-mixture", "gpt2-355m")
"""Their loops wait for a host of 30 to 60 us a launch, which no catalog knows."""


@pytest.mark.parametrize("folder", list(FOLDERS))
def test_plain_steps_take_what_is_predicted_within_a_tenth(folder: str, tmp_path: Path) -> None:
    """Llamas and GPTs of 0.8 to 3 B parameters, sequences of 512 to 8,192 tokens, with and without
    recomputation: each within a tenth, a twentieth on the whole."""
    source = catalog.data_dir() / "measurements" / folder / "real_steps.csv"
    table = pd.read_csv(source).assign(accelerator=FOLDERS[folder])
    plain = table["point_id"].str.contains("single1") & ~table["model"].isin(HOST)
    table[plain].to_csv(tmp_path / "steps.csv", index=False)
    points = validate(tmp_path / "steps.csv", load("default"))["points"]
    away = np.array([point["predicted"] / point["published"] - 1.0 for point in points])
    assert len(away) == plain.sum() >= 7
    assert np.abs(away).max() < 0.1
    assert np.abs(away).mean() < 0.05


def test_one_rank_is_predicted_alike_alone_and_among_many() -> None:
    """A plain loop has the level of published runs from two ranks on, in a batch as by itself."""
    known = load("default")
    asked = [
        complete_training(
            parse(
                TrainingPlanSpec,
                {
                    "model": "gpt2-774m", "system": "dgx-h100", "gpus": gpus, "tp": 1, "pp": 1,
                    "micro_batch": 2, "global_batch": 2 * gpus, "seq_len": 1024,
                    "framework": "pytorch",
                },
                "test",
            ),
            known.run,
        )
        for gpus in (1, 2, 1, 4)
    ]  # fmt: skip
    alone = [predict(one.model, one.cluster, one.plan, known) for one in asked]
    for batch in batches(asked):
        found = predict(batch.model, batch.cluster, batch.plan, known)
        for index, position in enumerate(batch.positions):
            assert found.step_time[index] == float(alone[position].step_time)
    assert float(alone[0].factor) == 1.0 < float(alone[1].factor)
