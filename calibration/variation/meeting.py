"""How long ranks of a machine wait for each other where they meet, of a profile whose ranks were
timed together.

Of a stretch of work the slowest of n ranks takes e_n s longer than the mean one, e_n being the mean
largest of n standard normals and s the log-standard-deviation between ranks. Part of s is alike
however long the stretch (accelerators differ, and so do their neighbours), part is drawn anew all
the time and falls with the root of the length: s^2 = alike^2 + drawn^2 / length.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from predictor.variation.order import normal_maximum

LEAST = 2
"""Lengths from which both parts are told apart; one is taken as alike."""


def jitter(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The two parts (log-standard-deviation, and the same of a second's work [s^0.5]) of every
    accelerator of which a table of kernels has stretches (`profiler.collectives.waiting`)."""
    rows = table[table["op"] == "waiting"]
    found = {}
    for name, own in rows.groupby("accelerator"):
        by = own.pivot_table(index=["num_gpus", "batch"], columns="kernel", values="latency_us")
        if not {"own", "slowest"} <= set(by.columns):
            continue
        late, _ = normal_maximum(np.array([float(ranks) for ranks, _ in by.index]))
        own_time, slowest = (by[kernel].to_numpy(float) for kernel in ("own", "slowest"))
        length = own_time * 1e-6
        spread = np.maximum(slowest / own_time - 1.0, 0.0) / late
        columns = np.stack([np.ones(len(length)), 1.0 / length], axis=1)
        if len(length) < LEAST:
            columns[:, 1] = 0.0
        # Of squares that span decades: each length says as much.
        weight = 1.0 / np.maximum(spread**2, 1e-6)
        squares, _ = nnls(columns * weight[:, None], spread**2 * weight)
        found[str(name)] = (float(np.sqrt(squares[0])), float(np.sqrt(squares[1])))
    return found
