"""Numbers that are floats, or arrays of one broadcast shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Numeric = float | Array


def filled(value: Numeric, shape: tuple[int, ...]) -> Array:
    """A number as an array of a shape, without copying it."""
    array = np.asarray(value, float)
    return array if array.shape == shape else np.broadcast_to(array, shape)
