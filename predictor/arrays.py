"""Numbers that are floats, or arrays of one broadcast shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Numeric = float | Array


def filled(value: Numeric, shape: tuple[int, ...]) -> Array:
    """A number as an array of a shape, without copying it."""
    array = np.asarray(value, float)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def distinct_rows(
    columns: Sequence[Array],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Distinct rows of a table.

    columns   at least one, of one length

    Returns the position of the first of each, and for every row which of them it is.
    """
    codes, many = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        if many * len(values) > 2**62:  # count what there is before numbers run out
            known, codes = np.unique(codes, return_inverse=True)
            many = int(known.size)
        codes, many = codes * len(values) + inverse, many * len(values)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse
