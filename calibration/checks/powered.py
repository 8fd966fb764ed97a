"""Tables of power among what `reckon validate` scores."""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.checks.scored import Scored
from calibration.power.points import power_points
from calibration.power.stated import power_table
from calibration.tables.runs import Skipped
from predictor.timing import Calibration
from predictor.units import Z80

POWER = "power"
"""Kind of a table, and of its rows."""


def score_power(
    table: pd.DataFrame,
    calibration: Calibration,
    rows: list[Scored],
    skipped: list[Skipped],
    by: str | None = None,
) -> None:
    """Predict the rows of a table of power, by constants fitted without each group of `by`; adds
    them to `rows`, and those that cannot be to `skipped`."""
    points, refused = power_points(table, power_table(table) or "", calibration, by)
    skipped += refused
    for point in points:
        reach = float(np.exp(Z80 * point.sigma))
        rows.append(
            Scored(
                point_id=point.point_id,
                source=point.source,
                metric=point.metric,
                published=point.published,
                predicted=point.predicted,
                low=point.predicted / reach,
                high=point.predicted * reach,
                in_sample=point.in_sample,
                model=point.model,
                accelerator=point.accelerator,
                kind=POWER,
            )
        )
