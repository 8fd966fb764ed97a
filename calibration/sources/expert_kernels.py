"""What the `kernel` of a row says of a mixture's experts: whether they are gated, and whether the
kernel touches the rows of its own rank alone.

Kernels that get the tokens of all ranks (vLLM's and SGLang's fused experts) put all of them in
order, walk over their blocks and size the activations by them, though they multiply those of their
own experts only; others (TensorRT-LLM's, DeepGEMM's behind DeepEP) never see the rest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

NONGATED, OWN = "nongated", "own"


def experts_kernel(nongated: pd.Series, own: pd.Series) -> pd.Series:
    """`kernel` of rows of experts."""
    found = np.where(nongated, np.where(own, f"{NONGATED} {OWN}", NONGATED), np.where(own, OWN, ""))
    return pd.Series(found, nongated.index, dtype=object)


def matrices(table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Matrices of an expert in each row: three where it is gated, else two."""
    return np.where(table["kernel"].str.contains(NONGATED), 2.0, 3.0)


def alone(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each row's kernel sees its own rank's tokens alone."""
    words = table["kernel"]
    return (words.str.split().map(lambda found: OWN in found)).to_numpy(bool)
