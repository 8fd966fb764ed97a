"""The command line of a sweep: what one kind of kernel takes on a GPU, as a table."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from predictor.files import write_text


def _seconds(text: str) -> float:
    """A length of time above 0 [s]; ValueError otherwise."""
    value = float(text)
    if not 0.0 < value < math.inf:
        raise ValueError(text)
    return value


def sweep(
    about: str,
    rows: Callable[[float], Iterator[dict[str, Any]]],
    seconds: float,
    arguments: list[str] | None = None,
) -> None:
    """Measure for `--seconds` and write `--out`, whole, as CSV. One line and exit status 2 for a
    time that is none, without a GPU, and where nothing could be measured.

    rows      of the table, measured while so many seconds last
    seconds   unless stated [s]
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=_seconds, default=seconds)
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this needs a GPU that PyTorch sees")
    found = list(rows(asked.seconds))
    if not found:
        parser.error("nothing could be measured: give more --seconds")
    write_text(asked.out, pd.DataFrame(found).to_csv(index=False))
    print(f"{len(found)} rows in {asked.out}")
