"""What a rank holds for a while of weights that ranks divide, and of their gradients."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.plans import SHARDINGS, ZERO, Stages, TrainingPlan

LIVE, BUCKET = 1e9, 5e8
"""Weights that DeepSpeed's third stage keeps gathered, as they are used again soon where the
forward pass turns, and gradients that it reduces at a time, of which a buffer is there from the
start (`stage3_max_live_parameters`, `stage3_max_reuse_distance` and `reduce_bucket_size` of
runtime/zero/config.py @ edaa72212; `bucket.buffer` of stage3.py)."""


def gathered_bytes(plan: TrainingPlan, piece: Numeric, at: Stages) -> Numeric:
    """Layers whose sharded weights are gathered [bytes]: two (one in use, one prefetched; all of
    them where they are kept for the backward pass), and one layer's unreduced gradients (those of
    all, as they are reduced, where several micro-batches add up before: FSDP2's
    `unsharded_accumulated_grad`). Where they travel in a flat buffer (`flat_copies`), that of the
    layer before is there while a layer's own gradients come (PyTorch's _fsdp_param_group.py,
    post_backward: `reduce_scatter_state`). DeepSpeed goes by numbers of parameters instead.

    piece   parameters of a layer on a rank
    """
    if not SHARDINGS[plan.sharding].weights:
        return 0.0
    piped = plan.accumulates & (np.asarray(plan.pp) > 1)
    gathered = piece * (2.0 if plan.reshard else np.maximum(at.layers, 2.0))
    unreduced = piece * np.where(piped, np.maximum(at.layers, 1.0), 1.0)
    if plan.framework in ZERO:
        whole = piece * at.layers
        gathered = np.maximum(gathered, np.minimum(LIVE, whole))
        unreduced = np.maximum(unreduced, np.minimum(BUCKET, whole))
    trained = plan.reduce_bytes * unreduced
    if plan.flat_copies:
        trained = trained + plan.recipe.activation * piece
    return gathered * plan.gather_bytes + (0.0 if plan.frozen else trained)
