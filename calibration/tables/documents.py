"""Rows of attention over single documents as kernels: a forward pass, called and waited for.

DistCA's profile is of Qwen3-235B's attention, 64 heads of 128 with 4 of keys and values, divided
over `tp` ranks, over one document by itself, of whose queries each of `cp` ranks has a share that
sees half as many keys as the whole on average (github.com/hao-ai-lab/distca at 039f2e4: the heads
in distca/timemodule/compute.py, which reads the table; the call in distca/profiling/modal-scripts/
attn-prof.py). What is called is FlashAttention-2's forward pass over documents of varying length
(`vllm_flash_attn`), between two events on an idle device, so that it includes the host's way to the
launch; the largest lengths are passed as tensors on the device, each of which the host reads back
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor import catalog
from predictor.timing import Calibration, operator_times
from predictor.work import Operator

DOCUMENT_KEY = "document_tokens"
"""A column that only tables of attention by document have."""

ACCELERATOR = "H100-SXM5-80GB"
HEADS, KV_HEADS, HEAD_DIM, ELEMENT = 64.0, 4.0, 128.0, 2.0
"""Of the attention that the tables time, as they say; bytes of an element."""

CALLS = 3
"""Of the host within a measurement: the two lengths are read back, the kernel is launched."""


def document_attention(row: Mapping[Any, Any], calibration: Calibration) -> tuple[float, float]:
    """Time of a document's attention, forward [s], and its log-standard-deviation."""
    length, cp, tp = (float(row[key]) for key in (DOCUMENT_KEY, "cp", "tp"))
    heads, keys = HEADS / tp, max(KV_HEADS / tp, 1.0)
    queries, cached = length / cp, 0.5 * length * (1.0 + 1.0 / cp)
    operator = Operator(
        name="attention",
        op="attention_prefill",
        variant="flash2",
        phase="forward",
        module="layer",
        dtype="bf16",
        m=queries,
        n=cached,
        k=HEAD_DIM,
        batch=heads,
        flop=2.0 * heads * queries * 2.0 * HEAD_DIM * (length + 1.0) / 2.0,
        bytes=2.0 * HEAD_DIM * ELEMENT * (queries * heads + cached * keys),
        core=True,
        sharing=heads / keys,
    )
    timing = operator_times([operator], catalog.accelerator(ACCELERATOR), calibration, ())
    host = CALLS * calibration.run.host_per_kernel
    return host + float(timing.time.sum()), float(np.max(timing.sigma))
