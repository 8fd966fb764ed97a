"""Times of a machine on which other programs ran beside: less what they took."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator

MOST_WAITED = 0.2
"""Share of its time that a kernel's threads may have waited for processors which others used: the
scheduler's turns, of several milliseconds, are then what was timed."""

RARE = 0.1
"""Share of a table's rows beyond which others ran all the time: what kernels take beside them is
then what steps take, too."""

ALIKE = ["accelerator", "op", "dtype"]

LEFT = 0.1
"""Share of its time that a kernel or a step has run at least: processes have threads beside those
that compute (of autograd, of collectives), and these wait, too."""

CROWDED = 0.5
"""Share of its time that a row's threads ran, below which its time is others' more than its own."""

TIMES = ("latency_us", "latency_p10_us", "latency_p90_us")


def undisturbed(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a checked kernel table without the few whose time is that of other programs, as long
    as others of their accelerator, kind and data type are left."""
    calm = ~(table["waited"] > MOST_WAITED)
    if (~calm).mean() > RARE:
        return table
    some = calm.groupby([table[name] for name in ALIKE], dropna=False).transform("any")
    return table[calm | ~some].reset_index(drop=True)


def calm_share(waited: Numeric, threads: Numeric) -> Array:
    """Share of a time that is left where nothing else runs: 1 - waited / threads.

    waited   what all threads of a process waited for processors together, over the time that went
             by
    threads  that compute

    Threads of a kernel wait for one another: what keeps one from running keeps all, and what is
    waited at the same time is lost once. Where they never wait at the same time, up to `threads`
    times as much is lost.
    """
    share = 1.0 - np.asarray(waited, float) / np.asarray(threads, float)
    return np.asarray(np.clip(share, LEFT, 1.0))


def threads_of(accelerator: Accelerator) -> float:
    """Threads that wait for processors: a host's; those of other devices wait for none, inf."""
    return float(accelerator.sms) if accelerator.is_host else np.inf


def calmed(table: pd.DataFrame, accelerators: Mapping[str, Accelerator]) -> pd.DataFrame:
    """Rows of a checked kernel table as they are where nothing else runs."""
    share = _running(table, accelerators)
    return table.assign(**{name: table[name] * share for name in TIMES if name in table})


def crowded(table: pd.DataFrame, accelerators: Mapping[str, Accelerator]) -> int:
    """How many rows of a checked kernel table were timed while others ran most of the time
    (`CROWDED`): they tell little of the machine, with their waiting or without."""
    return int((_running(table, accelerators) < CROWDED).sum())


def _running(table: pd.DataFrame, accelerators: Mapping[str, Accelerator]) -> Array:
    """Share of its time that each row's threads ran, as far as it is known (`calm_share`)."""
    threads = {name: threads_of(one) for name, one in accelerators.items()}
    of = np.array([threads[name] for name in table["accelerator"]])
    return calm_share(np.asarray(table["waited"].fillna(0.0), float), of)
