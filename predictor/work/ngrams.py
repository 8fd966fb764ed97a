"""Tables of n-grams: rows that are looked up for each token, projected, and added to the residual
streams as far as they match them (DeepSeek-V4.1, Engram).

Tensor-parallel ranks divide the rows that a token finds, each of which has a part of the table to
itself, and gather what they found; every rank projects all of it (vllm/models/deepseek_v41/common/
engram.py @ 0e20557: `ParallelEngramEmbedding`, `ReplicatedLinear`). Hashes of tokens are whole
numbers of a few bytes each and are not counted.

While training, all devices divide the tables, an all-to-all brings each the rows that its tokens
find, and another takes the gradients back (Cheng et al. 2026, arXiv 2601.07372, section 2.5 and
figure 2a). A rank projects what its own part of the sequence found.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.precision import WEIGHT_BYTES
from predictor.work.primitives import Collective, lookup
from predictor.work.recompute import region_repeats
from predictor.work.worklist import WorkList

LOOKUP = "ngrams.lookup"
"""Name of the kernel that reads rows of a table."""


def row_bytes(weights: str) -> float:
    """Of an element of a table [bytes], by the data type of the model's narrowest weights: where
    these have fewer than 16 bits, checkpoints have tables in 8, with a scale of one byte for each
    32 (transformers, modular_deepseek_v41.py @ 0a2080b: `DeepseekV41EngramEmbedding`)."""
    return 2.0 if WEIGHT_BYTES[weights] >= 2.0 else 1.0 + 1.0 / 32.0


def table_bytes(model: Model, weights: str) -> float:
    """All tables [bytes]."""
    return row_bytes(weights) * model.ngram_parameters


def added(at: WorkList) -> None:
    """What one layer looks up and adds: rows read and written in 16 bits, their projection to keys
    and a value, and one kernel that reads both and the streams, and writes these. What belongs to
    the embedding is projected to its width and added to it. Gradients are added to the rows (both
    read, one written); each kernel's reads what it read and a gradient, and writes a gradient for
    each."""
    model, rows, size, h = at.model, at.portion.rows, at.size, at.hidden
    found, streams = float(model.ngram_found), float(max(model.streams, 1))
    _looked_up(at)
    saved = size * rows * found
    columns = float(model.ngram_columns)
    at.linear("ngrams.project", columns, found, rows=rows, saved=saved, adapted=False)
    if model.ngram_embedding:
        at.stream("ngrams.add", "elementwise", "add", rows, h, 3.0 * size, alone=True,
                  backward=("add", 3.0 * size))  # fmt: skip
        return
    moved: Numeric = (3.0 * streams + 1.0) * size
    back: Numeric = (5.0 * streams + 2.0) * size
    if model.ngram_taps:  # a norm of what is added, and a convolution of it beside it
        at.stream(
            "ngrams.conv", "elementwise", "other", rows, h, 2.0 * streams * size,
            backward=("other", 3.0 * streams * size), saved=streams * size * rows * h,
        )  # fmt: skip
        moved, back = moved + 2.0 * streams * size, back + 3.0 * streams * size
    kept = size * rows * (columns + streams * h)
    at.stream("ngrams.add", "elementwise", "add", rows, h, moved, alone=True,
              backward=("add", back), saved=kept)  # fmt: skip


def _looked_up(at: WorkList) -> None:
    """Rows of the tables that this rank looks up, its own and others' tokens' alike, and the sums
    of their gradients."""
    model, tokens, size, tp = at.model, at.portion.tokens, at.size, at.portion.tp
    own = float(model.ngram_found) / tp
    kinds = [(LOOKUP, "fwd", row_bytes(at.software.experts) + size)]
    if at.learning and not at.learning.frozen:
        kinds.append((f"{LOOKUP}.bwd", "bwd", 3.0 * size))
    for name, variant, moved in kinds:
        at.operators.append(
            lookup(
                name=name, variant=variant, module=at.module, dtype=at.software.core, rows=tokens,
                columns=own, table=float(model.ngram_rows / model.ngram_layers) / tp,
                moved=tokens * own * moved, count=at.share,
            )
        )  # fmt: skip


def exchanged(model: Model, plan: TrainingPlan) -> list[Collective]:
    """The way of rows to the tokens of a micro-batch that find them, and of their gradients back;
    tensor-parallel ranks that have all tokens gather what each was sent."""
    if not model.ngram_layers:
        return []
    every = plan.recipe.activation * plan.tokens * float(model.ngram_found)
    share, repeats = model.ngram_layers / model.layers, region_repeats("layer", plan)
    plain = np.where(plan.sequence_parallel > 0, 0.0, 1.0)
    passes: list[tuple[str, str, Numeric]] = [("forward", "", share)]
    passes += [] if repeats is None else [("recompute", ".again", share * repeats)]
    found = []
    for phase, again, count in passes:
        sent = (f"ngrams.rows{again}", "alltoall", phase, "layer", "tables", every / plan.tp)
        gathered = (f"ngrams.gather{again}", "allgather", phase, "layer", "tp", every)
        found += [Collective(*sent, count), Collective(*gathered, count * plain)]
    back = ("ngrams.rows.bwd", "alltoall", "backward", "layer", "tables", every / plan.tp)
    return [*found, Collective(*back, 0.0 if plan.frozen else share)]
