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
