"""Rows of attention over single documents as kernels: forward and backward together.

DistCA's profile times fused attention of 32 heads of 128 with 8 of keys and values, divided over
`tp` ranks, over one document by itself, whose queries `cp` ranks share so that each sees as many
keys (github.com/hao-ai-lab/distca at 039f2e4, profiling/data/compute-attn-H100.csv).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor import catalog
from predictor.timing import Calibration, training_times
from predictor.work import Operator

DOCUMENT_KEY = "document_tokens"
"""A column that only tables of attention by document have."""

ACCELERATOR = "H100-SXM5-80GB"
HEADS, KV_HEADS, HEAD_DIM, ELEMENT = 32.0, 8.0, 128.0, 2.0


def document_attention(row: Mapping[Any, Any], calibration: Calibration) -> tuple[float, float]:
    """Time of a document's attention, forward and backward [s], and its log-standard-deviation."""
    length, cp, tp = (float(row[key]) for key in (DOCUMENT_KEY, "cp", "tp"))
    heads, keys = HEADS / tp, max(KV_HEADS / tp, 1.0)
    queries = length / cp
    flop = 2.0 * heads * queries * 2.0 * HEAD_DIM * (length + 1.0) / 2.0
    moved = 2.0 * HEAD_DIM * ELEMENT * (queries * heads + length * keys)
    operators = [
        Operator(
            name=op,
            op=op,
            variant="flash",
            phase="forward",
            module="layer",
            dtype="bf16",
            m=queries,
            n=length,
            k=HEAD_DIM,
            batch=heads,
            flop=work * flop,
            bytes=traffic * moved,
            core=True,
            sharing=heads / keys,
        )
        for op, work, traffic in (("attention_prefill", 1.0, 1.0), ("attention_backward", 2.5, 2.0))
    ]
    timing = training_times(operators, catalog.accelerator(ACCELERATOR), calibration, ())
    return float(timing.time.sum()), float(np.max(timing.sigma))
