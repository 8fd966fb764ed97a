"""Tables of n-grams: rows that are looked up for each token, projected, and added to the residual
streams as far as they match them (DeepSeek-V4.1, Engram).

Tensor-parallel ranks divide the rows that a token finds, each of which has a part of the table to
itself, and gather what they found; every rank projects all of it (vllm/models/deepseek_v41/common/
engram.py @ 0e20557: `ParallelEngramEmbedding`, `ReplicatedLinear`). Hashes of tokens are whole
numbers of a few bytes each and are not counted.
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.precision import WEIGHT_BYTES
from predictor.work.primitives import Operator
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
    the embedding is projected to its width and added to it."""
    model, tokens, size, tp = at.model, at.portion.tokens, at.size, at.portion.tp
    found, streams = float(model.ngram_found), float(max(model.streams, 1))
    own = found / tp
    at.operators.append(
        Operator(
            name=LOOKUP,
            op="embedding",
            variant="fwd",
            phase="forward",
            module=at.module,
            dtype=at.software.core,
            m=tokens,
            n=own,
            k=float(model.ngram_rows / model.ngram_layers) / tp,
            bytes=tokens * own * (row_bytes(at.software.experts) + size),
            count=at.share,
        )
    )
    at.linear("ngrams.project", float(model.ngram_columns), found, adapted=False)
    if model.ngram_embedding:
        at.stream("ngrams.add", "elementwise", "add", tokens, at.hidden, 3.0 * size, alone=True)
        return
    moved: Numeric = (3.0 * streams + 1.0) * size
    if model.ngram_taps:  # a norm of what is added, and a convolution of it beside it
        at.stream("ngrams.conv", "elementwise", "other", tokens, at.hidden, 2.0 * streams * size)
        moved = moved + 2.0 * streams * size
    at.stream("ngrams.add", "elementwise", "add", tokens, at.hidden, moved, alone=True)
