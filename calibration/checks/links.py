"""Held-out errors of link models: message sizes, link generations and networks that a fit did not
see. Each function returns one row per op and link left out, and band of message sizes:

how         'sizes', 'generation' or 'source'
band        'large' (1 MB and more) or 'all'
n, mape, median, bias   number, absolute relative errors, and mean log of predicted over measured
coverage    share of the rows within the 80 % interval
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from calibration.heldout import errors
from calibration.network.fit import PHASES, fit_links, phases
from calibration.network.wire import op_of, wire, wire_spread, wire_times
from calibration.tables.kernel_table import gaps, is_collective
from predictor.hardware import link_class
from predictor.timing import Calibration
from predictor.units import Z80

LARGE = 1e6
"""From here on messages count as large [bytes]."""


def _usable(table: pd.DataFrame) -> pd.DataFrame:
    table = table[is_collective(table) & (gaps(table) == "")]
    return table.assign(fitted=op_of(table)).reset_index(drop=True)


def _predict(kept: pd.DataFrame, left: pd.DataFrame) -> pd.DataFrame:
    """Rows left out, with their log error and whether the interval holds them."""
    known = Calibration("", links=fit_links(kept).links)
    found = []
    for (op, link), own in left.groupby(["fitted", "link"]):
        rows, model = wire(own, str(op), known), known.link(str(op), str(link))
        error = np.log(wire_times(model, rows) / rows.time)
        inside = np.abs(error) <= Z80 * wire_spread(model, rows)
        found.append(own.assign(error=error, inside=inside))
    return pd.concat(found)


def _figures(rows: pd.DataFrame, how: str) -> pd.DataFrame:
    found: list[dict[str, Any]] = []
    for (op, link), own in rows.groupby(["fitted", "link"]):
        bands = {"large": own[own["message_bytes"] >= LARGE], "all": own}
        for band, part in bands.items():
            if part.empty:
                continue
            time = part["latency_us"].to_numpy(float)
            held = errors(time * np.exp(part["error"].to_numpy(float)), time)
            found.append(
                {"how": how, "op": op, "link": link, "band": band, "n": len(part),
                 "mape": held.mape, "median": held.median, "bias": held.bias,
                 "coverage": float(part["inside"].mean())}
            )  # fmt: skip
    return pd.DataFrame(found)


def _leave_out(
    table: pd.DataFrame, folds: Iterator[tuple[pd.Series, pd.Series]], how: str
) -> pd.DataFrame:
    """folds   pairs of masks: rows to fit to, rows to predict"""
    parts = [_predict(table[fit], table[judge]) for fit, judge in folds]
    return _figures(pd.concat(parts), how)


def unseen_sizes(table: pd.DataFrame, folds: int = PHASES) -> pd.DataFrame:
    """Every fourth message size of a collective on a link left out, each once; or so many of the
    four quarters."""
    table = _usable(table)
    sizes = table.groupby(["fitted", "link"])["message_bytes"]
    phase = sizes.transform(lambda own: phases(own.to_numpy(float)))
    quarters = ((phase != p, phase == p) for p in range(folds))
    return _leave_out(table, quarters, "sizes")


def unseen_generations(table: pd.DataFrame) -> pd.DataFrame:
    """All rows of a scale-up link left out: it is known by its family or class."""
    table = _usable(table)
    scale_up = table["link"][table["link"].map(link_class) == "scale-up"].unique()
    folds = ((table["link"] != link, table["link"] == link) for link in sorted(scale_up))
    return _leave_out(table, folds, "generation")


def unseen_sources(table: pd.DataFrame) -> pd.DataFrame:
    """All rows of a network between nodes left out, as one source measured it at one rate."""
    table = _usable(table)
    outside = table[table["link"].map(link_class) == "scale-out"]
    name = table["source"] + " " + table["link"] + " " + table["link_gbs"].astype(str)
    folds = ((name != own, name == own) for own in sorted(name[outside.index].unique()))
    return _leave_out(table, folds, "source")
