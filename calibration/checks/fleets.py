"""How good the fleet is that would have been chosen: of servers measured in several layouts, the
tokens per second and accelerator of the layout and load predicted to be best under a promise of
time per token, over those of the best one measured that keeps it.

`tools/scoreboard.py` prints the table, with engines fitted without each source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.checks.serving_baseline import yardstick
from calibration.sources.reading import read_table
from predictor.arrays import Array, Index

SERVED = ("source", "accelerator", "model", "weights_precision", "framework", "framework_version",
          "input_len", "output_len")  # fmt: skip
"""Columns of what is to be served, with what and on which accelerators: a group to choose in."""

LAYOUT = ("tp", "pp", "ep", "dp", "num_gpus")
"""Columns of how it is laid out."""

PROMISES = (0.25, 0.5, 0.75)
"""Promises of time per token: these quantiles of what a group's rows measured."""

BROKEN = 1.1
"""A promise is broken where the time per token is so many times what was promised."""

CLOSE = 0.9
"""A choice is close whose throughput is at least this share of the best that keeps the promise."""


def offered(tables: Sequence[Path]) -> pd.DataFrame:
    """Rows that state a time per token at a fixed concurrency, with `served` and `layout` in one
    text each, `tpot` [s] and `rate`, the tokens per second and accelerator.

    Raises InputError where a table cannot be read.
    """
    rows = pd.concat([read_table(path) for path in tables], ignore_index=True)
    rows = rows[rows["metric"].isin(["tpot_ms", "tpot_s"])]
    rows = rows[rows["concurrency"].notna() & rows["num_gpus"].notna()]
    rows = rows[rows.reindex(columns=["request_rate"])["request_rate"].isna()]
    rows = rows.reset_index(drop=True)
    unit = np.where(rows["metric"] == "tpot_ms", 1e-3, 1.0)
    tpot = rows["value"].to_numpy(float) * unit

    def text(names: Sequence[str]) -> list[str]:
        known = rows.reindex(columns=list(names))
        return [repr(tuple(row)) for row in known.itertuples(index=False)]

    return rows.assign(
        served=text(SERVED),
        layout=text(LAYOUT),
        tpot=tpot,
        rate=rows["concurrency"].to_numpy(float) / tpot / rows["num_gpus"].to_numpy(float),
    )


def chosen(tpot: Array, rate: Array, promise: float) -> int:
    """Position of the highest rate whose time per token keeps a promise; of the least time per
    token where none does."""
    able: Index = np.flatnonzero(tpot <= promise)
    if not able.size:
        return int(np.argmin(tpot))
    return int(able[np.argmax(rate[able])])


def choices(rows: pd.DataFrame, predicted: Mapping[str, float]) -> pd.DataFrame:
    """One row for each group of two layouts or more and each promise.

    rows       as `offered` gives them; those that are not predicted are left out
    predicted  time per token by point [s]

    `share` is the rate of what was chosen, as measured, over the best measured that keeps the
    promise; `kept` whether what was chosen keeps it, within `BROKEN`; `layouts` how many there are.
    """
    known = rows[rows["point_id"].isin(predicted.keys())]
    found = []
    for name, own in known.groupby("served", sort=True):
        if own["layout"].nunique() < 2:
            continue
        tpot, rate = np.asarray(own["tpot"], float), np.asarray(own["rate"], float)
        told = np.asarray(own["point_id"].map(predicted), float)
        said = rate * tpot / told
        for promise in np.quantile(tpot, PROMISES).tolist():
            best, mine = chosen(tpot, rate, promise), chosen(told, said, promise)
            found.append(
                {
                    "served": name,
                    "source": own["source"].iloc[0],
                    "layouts": own["layout"].nunique(),
                    "promise": promise,
                    "share": rate[mine] / rate[best],
                    "kept": tpot[mine] <= BROKEN * promise,
                }
            )
    return pd.DataFrame(found)


def fleet_lines(tables: Sequence[Path], ours: Mapping[str, float]) -> list[str]:
    """A table of how good chosen fleets are, beside those that one constant per engine over a
    roofline chooses.

    ours   time per token by point [s], as predicted with its source left out
    """
    rows = offered(tables)
    constants = {k: v for k, v in yardstick(tables).items() if k in ours}
    rows = rows[rows["point_id"].isin(constants.keys())]
    lines = [
        "| fleet | groups | promises | kept | kept, and within 10 % of the best | mean throughput "
        "over the best, where kept |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for what, told in (("predicted", ours), ("by one constant per engine", constants)):
        own = choices(rows, told)
        kept = own["kept"].to_numpy(bool)
        close = kept & (own["share"] >= CLOSE).to_numpy(bool)
        mean = own["share"][kept].clip(upper=1.0).mean()
        lines.append(
            f"| {what} | {own['served'].nunique()} | {len(own)} | {kept.mean():.0%} | "
            f"{close.mean():.0%} | {mean:.1%} |"
        )
    return lines
