"""What the uses of shared blocks add to attention and feed-forward blocks (Zamba2: Glorioso et al.
2024, arXiv 2411.15242, section 2; vllm/model_executor/models/zamba2.py).

The token's embedding stands beside the residual stream before the norm of attention; the
feed-forward block sees what attention puts out alone; a matrix of each use takes what that puts out
to the residual stream. Each use has adapters of its own.
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.work.worklist import WorkList


def entered(at: WorkList) -> None:
    """The residual stream and the embedding side by side, and the norm of both; their gradients are
    added to those of each."""
    wide, rows = float(at.model.attention_input), at.portion.rows
    moved = 2.0 * at.size
    at.stream("attention.beside", "elementwise", "copy", rows, wide, moved, backward=("add", moved))
    at.norm("attention.norm", rows, wide)


def adapted(
    at: WorkList, name: str, columns: Numeric, depth: Numeric, outcomes: float = 1.0
) -> None:
    """Adapters of `outcomes` projections to `columns` each of a rank, added to what these put out;
    ranks divide the few channels, too."""
    rank, size, tokens = float(at.model.shared_rank), at.size, at.portion.tokens
    at.linear(f"{name}_down", outcomes * rank / at.portion.tp, depth, adapted=False)
    kept = outcomes * size * tokens * rank
    at.linear(f"{name}_up", columns, rank, saved=kept, groups=outcomes, adapted=False)
    at.stream(f"{name}_add", "elementwise", "add", tokens, outcomes * columns, 3.0 * size)


def left(at: WorkList) -> None:
    """The matrix of each use, which every rank has whole for its part of the sequence."""
    h, rows = at.hidden, at.portion.rows
    at.linear("mlp.use", h, h, rows=rows, saved=at.size * rows * h, adapted=False)
