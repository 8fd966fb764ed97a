"""Fits how far back-to-back work is slowed under a power cap."""

from __future__ import annotations

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.timing import Throttle


def fit_throttle(burst: pd.DataFrame, sustained: pd.DataFrame, name: str) -> Throttle:
    """Slowdown of back-to-back work under the power cap, from shapes measured both ways.

    burst, sustained   kernel rows of one accelerator and library, matched by shape

    log(t_sustained / t_burst) = gamma max(0, log(u / start)) / (1 + t_burst / fade), u the burst's
    share of peak; least absolute deviation over a grid of (start, fade), gamma in closed form.
    """
    accelerator = catalog.accelerator(name)
    pairs = burst.merge(sustained, on=["m", "n", "k"], suffixes=("", "_long"))
    time = pairs["latency_us"].to_numpy(float) * 1e-6
    flop = 2.0 * (pairs["m"] * pairs["n"] * pairs["k"]).to_numpy(float)
    share = flop / time / accelerator.peak["bf16"]
    slow = np.log(pairs["latency_us_long"].to_numpy(float) / pairs["latency_us"].to_numpy(float))
    busy = (share > 0.2) & (time > 20e-6) & (np.abs(slow) < 0.5)
    time, share, slow = time[busy], share[busy], slow[busy]
    watts = float(accelerator.power / accelerator.peak["bf16"])
    best = (np.inf, Throttle(1.0, 0.0, 1.0, watts))
    for start in np.arange(0.25, 0.71, 0.05):
        excess = np.log(np.maximum(share / start, 1.0))
        for fade in (1e-3, 2e-3, 5e-3, 10e-3, 1.0):
            shape = excess / (1.0 + time / fade)
            gamma = float(max((shape @ slow) / max(shape @ shape, 1e-12), 0.0))
            loss = float(np.abs(slow - gamma * shape).mean())
            if loss < best[0]:
                best = (loss, Throttle(float(start), gamma, fade, watts))
    return best[1]
