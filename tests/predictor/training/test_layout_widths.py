"""Layouts that are filled in divide everything that tensor parallelism divides."""

from __future__ import annotations

import pytest

from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.plans import divided_widths, feasible
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training


@pytest.mark.parametrize("name", ["granite-4.0-h-small", "falcon-h1-34b"])
def test_a_layout_that_nobody_stated_is_possible(name: str) -> None:
    """State spaces of one or two groups on eight devices that do not hold the model: too much is
    said of it, and no law that nobody asked for."""
    asked = {"model": name, "system": "dgx-h100", "seq_len": 2048, "global_batch": 64}
    request = complete_training(parse(TrainingPlanSpec, asked, "test"), RunParameters(), False)
    assert feasible(request.plan, request.model).all()
    assert all(width % int(request.plan.tp) == 0 for _, width in divided_widths(request.model))
