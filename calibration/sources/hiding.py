"""Published rows of which something is not said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibration.sources.told import amended

Row = Mapping[Any, Any]


def hide(row: Row, columns: Sequence[str]) -> dict[Any, Any]:
    """A row with columns emptied, under a name that amends nothing of it."""
    known = dict(amended(row))
    return {**known, **dict.fromkeys(columns, ""), "point_id": f"{row['point_id']}?"}


def sampled(rows: Sequence[Row], each: int) -> list[Row]:
    """At most so many rows of each source, the same ones every time."""
    chosen: list[Row] = []
    for source in sorted({str(row["source"]) for row in rows}):
        own = [row for row in rows if row["source"] == source]
        order = np.random.default_rng(0).permutation(len(own))[:each]
        chosen += [own[i] for i in sorted(order.tolist())]
    return chosen
