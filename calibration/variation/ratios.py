"""Tables of step times over their run's median, one configuration (submitter, system, benchmark) at
a time: `source`, `org`, `system`, `benchmark`, `gpus`, `run`, `ratio`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.arrays import Array
from predictor.errors import InputError

COLUMNS = ("source", "org", "system", "benchmark", "gpus", "run", "ratio")

BENCHMARKS = {
    "gpt3": "gpt3-175b",
    "llama31_8b": "llama3.1-8b",
    "llama31_405b": "llama3.1-405b",
    "llama2_70b": "llama2-70b",
    "llama2_70b_lora": "llama2-70b",
}
"""What MLPerf's benchmarks train."""

NODE = 8.0
"""Accelerators where a table does not state them: a node's."""


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """Steps of all runs of a configuration.

    parameters    of the model that is trained; NaN: not known
    ratios        step times over their run's median, in order of size
    """

    name: str
    source: str
    submitter: str
    benchmark: str
    accelerators: float
    parameters: float
    ratios: Array

    @property
    def spread(self) -> float:
        """Log-standard-deviation of the middle half of the steps, as of a normal."""
        low, high = np.quantile(np.log(self.ratios), (0.25, 0.75))
        return float((high - low) / 1.349)


def parameters_of(benchmark: str) -> float:
    """Parameters of what a benchmark trains, NaN where that is not known."""
    try:
        return float(catalog.model(BENCHMARKS.get(benchmark, benchmark)).parameters)
    except InputError:
        return float("nan")


def configurations(table: pd.DataFrame, where: str) -> list[Configuration]:
    """The configurations of a table, in its order.

    Raises InputError, naming what is wrong: a missing column, a ratio that is none.
    """
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise InputError(f"{where}: a table of step ratios needs the column {missing[0]!r}")
    ratios = pd.to_numeric(table["ratio"], errors="coerce")
    bad = ~(ratios > 0) | ~np.isfinite(ratios)
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        raise InputError(
            f"{where}, line {row + 2}: ratio must be above 0, got {table['ratio'].iloc[row]!r}"
        )
    found = []
    known: dict[str, float] = {}
    keys = ["source", "org", "system", "benchmark"]
    whole = table.assign(ratio=ratios.astype(float))
    for (source, org, system, benchmark), own in whole.groupby(keys, sort=False):
        name = str(benchmark)
        if name not in known:
            known[name] = parameters_of(name)
        gpus = float(pd.to_numeric(own["gpus"], errors="coerce").iloc[0])
        found.append(
            Configuration(
                name=f"{org}|{system}|{benchmark}",
                source=str(source),
                submitter=str(org),
                benchmark=name,
                accelerators=gpus if gpus >= 1 else NODE,
                parameters=known[name],
                ratios=np.sort(own["ratio"].to_numpy()),
            )
        )
    return found
