"""A product of matrices for tests that need any operator."""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.work.primitives import Operator, gemm


def matmul(dtype: str, m: Numeric, n: Numeric, k: Numeric, name: str = "x") -> Operator:
    """A forward product of `m` x `k` by `k` x `n` in a layer."""
    given = {"name": name, "layout": "fwd", "phase": "forward", "module": "layer"}
    return gemm(**given, dtype=dtype, m=m, n=n, k=k)
