"""Numbers that are floats, or arrays of one broadcast shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Numeric = float | Array
