"""Time of a training step's operators: attention takes no longer than in the kernels before.

Most attention over prompts was timed inside serving engines, whose kernels read their keys through
tables of pages and put them into the cache: 9 us on H100 for however short a prompt, of which
training has nothing. FlashAttention-2 was timed without (arXiv 2509.22832), and the kernels after
it are not slower on the same accelerator, so that it bounds them; they are much faster from 1,024
tokens on (Shah et al. 2024, figures 5 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Accelerator
from predictor.timing.calibration import Calibration
from predictor.timing.kernels import Timing, operator_times
from predictor.work import Operator

NEWEST, BEFORE = "flash", "flash2"
"""Kernels of attention: today's, and the one that bounds it."""


def training_times(
    operators: Sequence[Operator],
    accelerator: Accelerator,
    calibration: Calibration,
    shape: tuple[int, ...],
    host: Numeric | None = None,
) -> Timing:
    """Time one execution of each operator of a training step, as `operator_times` at sustained
    clocks, with attention no slower than that of FlashAttention-2 where it was measured on the
    accelerator's architecture."""
    every = list(operators)
    found = operator_times(every, accelerator, calibration, shape, sustained=True, host=host)
    at = [i for i, one in enumerate(every) if _bounded(one, accelerator, calibration)]
    if not at:
        return found
    older = [replace(every[i], variant=BEFORE) for i in at]
    other = operator_times(older, accelerator, calibration, shape, sustained=True, host=host)
    sooner = other.time < found.time[at]
    found.time[at] = np.where(sooner, other.time, found.time[at])
    found.sigma[at] = np.where(sooner, np.maximum(other.sigma, found.sigma[at]), found.sigma[at])
    found.bound[at] = np.where(sooner, other.bound, found.bound[at])
    found.measured[at] = np.where(sooner, other.measured, found.measured[at])
    return found


def _bounded(operator: Operator, accelerator: Accelerator, calibration: Calibration) -> bool:
    if operator.variant != NEWEST or not operator.op.startswith("attention"):
        return False
    kind = f"{operator.op}.{BEFORE}"
    known = calibration.resolve(kind, operator.dtype, accelerator)
    return known.model is not None and known.model.kind == kind and not known.relatives
