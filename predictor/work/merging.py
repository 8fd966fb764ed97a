"""What ranks that meet their keys block by block run beside attention: partial outcomes are merged,
gradients added up, keys and values copied to where they travel from (Liu et al. 2023, section 3),
as PyTorch's context parallelism does it (torch/distributed/tensor/experimental/_attention.py of
2.6 to 2.9, _context_parallel/_attention.py of 2.10 to 2.13: the same code).

Counts are those of the rank whose every later block is all queries and half of the keys: the last
one, which has most to merge and for which the others wait. Statistics of the softmax, an element
for each row of a head, are left out.

Transformer Engine's ring merges in 16 bits with a kernel a block (context_parallel.py of 2.9: 10
bytes per element of queries forward and 10 backward, 12 more for every later block), which is not
counted: it is in what its runs are fitted to.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.records import dataclass
from predictor.work.worklist import WorkList


@dataclass(frozen=True, slots=True)
class Pass:
    """Bytes through memory per element of queries, or of the outcome, and per element of keys and
    values: of a pass, and once more for every block after the first; kernels, likewise; and what
    they take over as many bytes of one type (`Operator.stretch`)."""

    queries: tuple[float, float]
    keys: tuple[float, float]
    kernels: tuple[float, float] = (2.0, 1.0)
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class Merging:
    """What a piece of software adds, forward and backward."""

    forward: Pass
    backward: Pass


APART = Merging(
    forward=Pass(queries=(12.0, 38.0), keys=(4.0, 4.0), kernels=(4.0, 10.0), stretch=1.4),
    backward=Pass(queries=(20.0, 10.0), keys=(32.0, 25.0), kernels=(11.0, 7.0), stretch=1.5),
)
"""Operator by operator.

Forward: an outcome in 16 bits is read and written in 32 (6 bytes), at the end read in 32 and
written in 16 (6). Merging one reads two of 32 bits and writes their difference (12), scales it (8)
and subtracts it from one (12). Keys and values are made contiguous (4), and laid into one buffer
after every block but the last, whether it is sent or not (4).
Backward: of queries zeros are written (4), each block's gradient added (10), the sum narrowed (6);
of keys and values the same, but that a later block's is added to a half (5) which is joined with
the other again (8), and all of them laid into one buffer (8) after every block; and what they are
forward (4 and 4).

Operators of two types, of rows that are strided or of a half of them take longer than sums of one
type: 1.36 to 1.48 times forward, 1.37 to 1.72 backward (4,096 to 32,768 tokens, 2 to 8 ranks on an
H200: `data/measurements/h200-sxm-5`)."""

COMPILED = Merging(
    forward=Pass(queries=(-4.0, 10.0), keys=(4.0, 0.0)),
    backward=Pass(queries=(-4.0, 10.0), keys=(16.0, 9.0)),
)
"""The same code in a compiled graph, where what goes over elements one by one is one kernel: a
merge, or a sum, reads 32 and 16 bits and writes 32 (10 bytes), the first one reads and the last
one writes 16 instead (-4); what is laid out to be sent is written there at once: keys and values
(4), their first gradients (6), a half of the later ones with what came (10), the other half of it
alone (8); these are narrowed in the end (6)."""


def merged(at: WorkList, blocks: Numeric, rows: Numeric, queries: Numeric, keys: Numeric) -> None:
    """Kernels beside attention over `blocks` blocks of keys, where there are several.

    rows      query tokens of this rank, of all sequences
    queries   elements of the outcome of one token, in all heads of this rank
    keys      elements of its keys and values, in the heads that travel
    """
    if not np.any(np.asarray(blocks) > 1.0):
        return
    how = COMPILED if at.software.chains else APART
    later = np.maximum(np.asarray(blocks, float) - 1.0, 0.0)
    several = at.on(at.module, at.share * np.where(later > 0.0, 1.0, 0.0))
    passes = [("", "forward", how.forward)]
    if at.learning:
        passes.append((".bwd", "backward", how.backward))
    for suffix, phase, one in passes:
        moved = queries * (one.queries[0] + later * one.queries[1])
        moved = moved + keys * (one.keys[0] + later * one.keys[1])
        several.stream(
            f"attention.merge{suffix}", "elementwise", "add", rows, queries + keys,
            np.maximum(moved, 0.0) / (queries + keys), phase=phase, alone=True,
            kernels=(one.kernels[0] + later * one.kernels[1], 1.0), stretch=(one.stretch, 1.0),
        )  # fmt: skip
