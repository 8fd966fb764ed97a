"""Experts in chunks: tokens are dispatched, worked on and combined in n parts that overlap.

While the experts work on one part, the next is on its way to them and the one before on its way
back (EPS-MoE: Qian et al. 2024, arXiv 2410.12247, section 3; FasterMoE: He et al. 2022). Both ways
share a rank's link, so that a part takes the longer of what travels and what is computed.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric


def in_chunks(travel: Numeric, work: Numeric, chunks: Numeric) -> Array:
    """Time of all parts [s]: the first travels and is worked on, each further one adds the longer
    of both.

    travel   of one part, there and back, with the latency of its collectives [s]
    work     of the experts on one part, with the launches of its kernels [s]
    chunks   parts; 1: one after the other, as without any
    """
    longer = np.maximum(np.asarray(travel), work)
    return np.asarray(travel + work + (np.asarray(chunks) - 1.0) * longer)


def shown_beside(travel: Numeric, part: Numeric, whole: Numeric, chunks: Numeric) -> Array:
    """What of the travel shows beside experts that work in parts [s]: at least that of one part,
    which has nothing to hide behind.

    travel   of one part, as `in_chunks` has it [s]
    part     of the experts on one part [s]; no part of a product is quicker than its share of it,
             whatever tables of sizes that were timed apart say
    whole    of the experts on all at once [s]
    """
    work = np.maximum(part, np.asarray(whole) / chunks)
    return np.asarray(in_chunks(travel, work, chunks) - whole)
