"""Products of an update that makes a momentum orthogonal (Muon: Jordan 2024; Liu et al. 2025, arXiv
2502.16982, algorithm 1): five steps of Newton and Schulz for each matrix of the layers, in 16 bits.
Embedding, output projection and vectors are left to Adam.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.work.primitives import Operator, gemm
from predictor.work.worklist import LAYER_MODULES

STEPS = 5.0
"""Of Newton and Schulz (Jordan 2024; Megatron Core's muon_num_ns_steps)."""

EXPERTS = ("moe.up", "moe.down")


def matrices(
    operators: Iterable[Operator], model: Model, plan: TrainingPlan, held: Mapping[str, Array]
) -> list[tuple[Numeric, Numeric, Array]]:
    """Rows and columns of the layers' matrices on a rank, the fewer first, and how many a stage has
    of each, (3, *batch): what is projected together is one.

    operators   of a micro-batch
    held        executions of each module on a stage (`plans.blocks`)
    """
    found = []
    for one in operators:
        inside = one.module in LAYER_MODULES and one.phase == "forward"
        if not inside or one.op != "gemm" or one.variant != "fwd" or ".lora_" in one.name:
            continue
        many: Numeric = one.count
        if one.name in EXPERTS:
            many = many * model.num_experts / plan.ep
        sides = np.minimum(one.n, one.k), np.maximum(one.n, one.k)
        found.append((*sides, np.asarray(held[one.module] * many)))
    return found


def newton_schulz(rows: Numeric, columns: Numeric, dtype: str) -> list[Operator]:
    """Products of one matrix X in one of the steps: A = X Xt, A A, and B X."""
    shapes = (("gram", rows, rows, columns), ("square", rows, rows, rows),
              ("apply", rows, columns, rows))  # fmt: skip
    return [
        gemm(f"muon.{name}", "fwd", "update", "update", dtype, m=m, n=n, k=k)
        for name, m, n, k in shapes
    ]
