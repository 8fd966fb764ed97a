"""How sure a step is: by hand, and what fits of kernels say of the errors that shapes share."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.timing import RunParameters
from predictor.training import Step, assemble, environment_of, interval, parts
from predictor.training.spread import COMMON

PLAN = {"gpus": 8, "global_batch": 16, "seq_len": 2048}


def step() -> Step:
    """Of ten seconds, eight of products and two of a link."""
    found = reckon.predict_train("llama3-8b", "dgx-h100", PLAN).batch
    run = RunParameters()
    using = environment_of(found.cluster, found.plan, run)
    made, _ = parts(found.model, found.cluster, found.plan, found.calibration)
    whole = assemble(made, run, using)
    assert whole.kernels < whole.families.keys()
    return replace(
        whole,
        step_time=np.array(10.0),
        families={"products": np.array(8.0), "link": np.array(2.0)},
        sigmas={"products": np.array(0.1), "link": np.array(0.3)},
        kernels=frozenset(["products"]),
    )


def test_a_step_is_as_sure_as_its_parts_by_hand() -> None:
    made = step()
    both = np.sqrt((COMMON * 0.8 * 0.1) ** 2 + (0.2 * 0.3) ** 2)
    assert float(interval(made, 1.0, 0.0)) == pytest.approx(both)
    assert float(interval(made, 1.0, 0.05)) == pytest.approx(np.hypot(both, 0.05))
    # What a framework adds is as uncertain as what it stretches.
    longer = replace(made, step_time=2.0 * made.step_time)
    assert float(interval(longer, 2.0, 0.0)) == pytest.approx(both)


def test_half_of_what_products_err_by_elsewhere_is_common_to_all_shapes() -> None:
    """Of accelerators left out of the shipped fits: rms of mean errors over rms of errors (of a
    normal spread, the mean absolute error over 0.8); three shapes average the rest out."""
    text = (catalog.data_dir() / "calibrations" / "default" / "calibration.json").read_text()
    table = json.loads(text)["heldout"]["accelerator_left_out"]
    left = [one for name, one in table.items() if name.startswith("gemm/")]
    assert len(left) > 20
    bias = np.array([one["bias"] for one in left])
    error = np.array([one["mape"] for one in left]) / np.sqrt(2.0 / np.pi)
    share = float(np.sqrt(np.mean(bias**2) / np.mean(error**2)))
    assert np.sqrt(share**2 + (1.0 - share**2) / 3.0) == pytest.approx(COMMON, abs=0.1)
