"""What the shipped calibration says of kernels that were profiled on accelerators of the catalog.

    python tools/strangers.py DIR=ACCELERATOR ... [--calibration NAME]

The profile's own device file is not read: its accelerator is the catalog's, as if nobody had
profiled it. Prints by operator and data type how many kernels, mean and median error, bias
(logarithm) and the share inside the 80 % interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import reckon
from predictor import catalog
from predictor.errors import InputError
from reckon.views.terminal import grid

FIRST = 2
"""Line of a table's first row."""


def points(folder: Path, accelerator: str, calibration: str) -> pd.DataFrame:
    """Published and predicted times of a profile's kernels [us], as `validate` has them.

    Raises InputError for an accelerator that the catalog lacks, or a folder that is no profile.
    """
    catalog.accelerator(accelerator)
    if not (folder / "kernels.parquet").is_file():
        raise InputError(f"{folder} holds no kernels.parquet (reckon profile writes one)")
    table = pd.read_parquet(folder / "kernels.parquet").assign(accelerator=accelerator)
    table["source"] = folder.name
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "kernels.parquet"
        table.drop(columns="device_file").to_parquet(path, index=False)
        found = reckon.validate(path, calibration)
    told = pd.DataFrame(found["points"])
    line = told["point_id"].str.rpartition(":")[2].astype(int)  # of the table, below its header
    own = table.reset_index(drop=True).loc[line - FIRST, ["op", "dtype"]]
    return told.assign(of=folder.name, op=own["op"].to_numpy(), dtype=own["dtype"].to_numpy())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("profiles", nargs="+", metavar="DIR=ACCELERATOR")
    parser.add_argument("--calibration", default="kernels-only")
    asked = parser.parse_args()
    named = [text.partition("=") for text in asked.profiles]
    try:
        table = pd.concat([points(Path(f), a, asked.calibration) for f, _, a in named])
    except InputError as error:
        print(f"strangers: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    table["off"] = np.log(table["predicted"] / table["published"])
    inside = (table["published"] >= table["low"]) & (table["published"] <= table["high"])
    rows = []
    for (of, op, dtype), one in table.assign(inside=inside).groupby(["of", "op", "dtype"]):
        away = np.abs(np.expm1(one["off"]))
        rows.append([
            str(of), str(op), str(dtype), str(len(one)), f"{away.mean():.1%}",
            f"{away.median():.1%}", f"{one['off'].mean():+.2f}", f"{one['inside'].mean():.0%}",
        ])  # fmt: skip
    print(grid(["profile", "operator", "type", "n", "mean", "median", "bias", "inside"], rows))


if __name__ == "__main__":
    main()
