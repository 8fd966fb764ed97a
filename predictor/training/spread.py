"""How sure a step is: of its kernels and links, and of the run itself."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.training.step import Step

COMMON = 0.7
"""Share of the spread of a fit of kernels that a step shows, whose shapes' errors are correlated in
part. Of what products err by on an accelerator left out of their fit half is common to all its
shapes (rms of means over rms: 0.49 over 56 fits); of three shapes that take as long as each other
sqrt(0.49² + (1 - 0.49²) / 3) = 0.7 is left. Attention left out has more in common (0.9), shapes of
measured accelerators less (0.1). Of runs left out with their source, 0.3 to 0.7 score better than
1 does."""


def family_errors(step: Step, factor: Numeric) -> dict[str, Array]:
    """What the fit of each family adds to the log-standard-deviation of a step: c × share of the
    step × sigma, c = `COMMON` of kernels, 1 of links: a network is as slow for all messages."""
    neutral = step.step_time / factor
    return {
        family: np.asarray(
            (COMMON if family in step.kernels else 1.0) * time / neutral * step.sigmas[family]
        )
        for family, time in step.families.items()
    }


def host_error(step: Step, factor: Numeric) -> Array:
    """What the host adds to it: the share of the launches that are waited for times their doubt. A
    step behind whose device the host has time to spare has none."""
    return np.asarray(step.doubt * step.launches / (step.step_time / factor))


def interval(step: Step, factor: Numeric, spread: float, host: bool = True) -> Array:
    """sigma² = Σ `family_errors`² + spread² of the run itself + `host_error`², unless what the host
    takes is learned elsewhere."""
    variance: Array = np.asarray(spread**2)
    if host:
        variance = variance + host_error(step, factor) ** 2
    for error in family_errors(step, factor).values():
        variance = variance + error**2
    return np.asarray(np.sqrt(variance))
