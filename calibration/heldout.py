"""Errors on what was left out of a fit, of kernels and links alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on points outside the fit: mean and median absolute error, mean log error, count."""

    mape: float
    median: float
    bias: float
    points: int


def errors(predicted: np.ndarray, measured: np.ndarray) -> HeldOut:
    """Absolute relative errors and log bias of predictions."""
    ratio = np.log(predicted / measured)
    share = np.abs(np.expm1(ratio))
    return HeldOut(float(share.mean()), float(np.median(share)), float(ratio.mean()), len(measured))
