"""What several copies of the residual stream and a learned residual add to a layer (Gemma 3n), as
vLLM computes them (0.33, model_executor/models/gemma3n.py): every tensor-parallel rank predicts and
corrects all copies; the low-rank product beside attention is divided and added up.
"""

from __future__ import annotations

from predictor.work.worklist import WorkList


def layer(at: WorkList) -> None:
    """Predictions before the blocks: a norm, a router of a few columns, a product of each token's
    copies with a matrix of its own (copies read and written), and their sum (two read, one
    written). Corrections behind them: norm and router again, one kernel that reads the copies and
    the outcome and writes the copies. What the layer's own input adds goes to all copies but one.
    The low-rank product, its norm and its addition."""
    n, h, rows, size = float(at.model.alternating_streams), at.hidden, at.portion.rows, at.size
    for name in ("predict", "correct"):
        at.stream(f"altup.{name}_norm", "norm", at.model.norm, rows, h, 2.0 * size)
        at.linear(f"altup.{name}_router", n, h, rows=rows, adapted=False)
    at.stream("altup.predict", "elementwise", "add", rows, h, 5.0 * n * size, alone=True,
              kernels=(2.0, 2.0))  # fmt: skip
    at.stream("altup.correct", "elementwise", "add", rows, h, (2.0 * n + 1.0) * size, alone=True)
    if at.model.layer_inputs:
        added = (2.0 * n - 1.0) * size
        at.stream("altup.inputs", "elementwise", "add", rows, h, added, alone=True)
    if rank := float(at.model.laurel_rank):
        own = rank / at.portion.tp
        at.linear("laurel.left", own, h, adapted=False)
        at.linear("laurel.right", h, own, adapted=False)
        at.stream("laurel.norm", "norm", at.model.norm, rows, h, 2.0 * size)
        at.stream("laurel.add", "elementwise", "add", rows, h, 3.0 * size)


def ends(at: WorkList, name: str) -> None:
    """The other copies out of the embedding ('altup.start'), or together again ('altup.end'): a
    product of the model's width for each, which is scaled to the first one's length (read for its
    length, read and written again), and, at the end, their mean."""
    n, h, rows, size = float(at.model.alternating_streams), at.hidden, at.portion.rows, at.size
    at.linear(name, h, h, rows=rows, groups=n - 1.0, adapted=False)
    moved = 3.0 * (n - 1.0) + (n + 1.0 if name == "altup.end" else 1.0)
    at.stream(f"{name}_scale", "elementwise", "add", rows, h, moved * size, alone=True)
