"""How a machine of one's own varies, from its profile: `python -m calibration.variation.machine DIR
--out variation.yaml` writes a file that `--variation variation.yaml` takes.

Repeated calls of a kernel give P10 and P90 of its time, whose logarithms lie 2.563 standard
deviations of a normal apart. Kernels bound by arithmetic say how a stretch of work varies, weighted
by how long they last; collectives between ranks say it of theirs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from calibration.sources.reading import read_table
from predictor.errors import InputError
from predictor.files import write_text
from predictor.schema import COLLECTIVE_OPS

APART = 2.563
"""Standard deviations of a normal from its P10 to its P90."""

LEAST = 5
"""Calls of a kernel of which quantiles are told."""

WORK = ("gemm", "moe_gemm", "attention_prefill", "attention_backward")

NEEDED = ("op", "latency_us", "latency_p10_us", "latency_p90_us", "samples")


def _spread(table: pd.DataFrame, ops: tuple[str, ...]) -> float | None:
    """Median log-standard-deviation of the calls of some operators, weighted by how long one
    lasts; None where none was repeated often enough."""
    own = table[table["op"].isin(ops) & (table["samples"] >= LEAST)]
    own = own[(own["latency_p10_us"] > 0) & (own["latency_p90_us"] >= own["latency_p10_us"])]
    if own.empty:
        return None
    spread = np.log((own["latency_p90_us"] / own["latency_p10_us"]).to_numpy(float)) / APART
    order = np.argsort(spread)
    weight = np.cumsum(own["latency_us"].to_numpy()[order])
    at = min(int(np.searchsorted(weight, 0.5 * weight[-1])), len(order) - 1)
    return float(spread[order][at])


def measured(table: pd.DataFrame, where: str) -> dict[str, float | str]:
    """Terms of a variation profile that a table of kernels tells of, with `base`, the profile that
    the others are of.

    Raises InputError for a table without quantiles, or whose kernels were not repeated.
    """
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise InputError(
            f"{where}: no column {missing[0]!r}; profile this machine (reckon profile)"
        )
    found: dict[str, float | str] = {"base": "typical"}
    for name, ops in (("work", WORK), ("collectives", COLLECTIVE_OPS)):
        spread = _spread(table, ops)
        if spread is not None:
            found[name] = round(spread, 5)
    if len(found) == 1:
        raise InputError(f"{where}: no kernel was timed {LEAST} times; profile with more budget")
    return found


def main() -> None:
    """Write a profile of variation beside a profile of kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("variation.yaml"))
    asked = parser.parse_args()
    path = asked.folder / "kernels.parquet"
    content = measured(read_table(path), str(path))
    write_text(asked.out, yaml.safe_dump(content, sort_keys=False))
    print(yaml.safe_dump(content, sort_keys=False), end="")


if __name__ == "__main__":
    main()
