"""Whose kernel a row of a collective times: NCCL's, or one of an engine's own. Such rows say it in
`kernel`; tables call the same kernel by several names (`known`), and state the exchange of a
mixture's tokens by its sizes instead of its bytes.

Operations of the exchange, as `predictor.timing.collective_time` takes them after 'alltoall.':

deepep_dispatch, deepep_combine          DeepEP's kernels for throughput: a token goes once to each
                                         rank, or node, that needs it
deepep_ll_dispatch, deepep_ll_combine    its kernels for low latency: every copy goes by itself
nvlink_prepare, nvlink_dispatch, ...     TensorRT-LLM's within one NVLink domain ('NVLinkTwoSided')
one_sided_dispatch, one_sided_combine    the same in one kernel each ('NVLinkOneSided')
"""

from __future__ import annotations

import numpy as np
import pandas as pd

CUSTOM = "custom"
CUSTOM_LIMIT = 8.0 * 2**20
"""Largest message that the engines give to their own all-reduce [bytes]; NCCL takes over there."""

OWN_ALLREDUCE = "customallreduce|_custom_|trtllm"
"""What names of engines' own all-reduces have in them."""

EXCHANGES = (
    ("deepep_normal_", "deepep_"),
    ("deepep_ll_", "deepep_ll_"),
    ("NVLinkOneSided_alltoall_", "one_sided_"),
    ("NVLinkTwoSided_alltoall_", "nvlink_"),
)
"""Beginnings of kernels' names in tables, and here."""

DOMAIN = ("one_sided_", "nvlink_")
"""Exchanges within one domain of a scale-up network, however many hosts it has."""

ALONE = ("deepep_ll_",)
"""Exchanges in which every copy of a token travels by itself."""

SENT = {"fp8": 1.0 + 4.0 / 128.0, "nvfp4": 0.5 + 1.0 / 16.0, "bf16": 2.0, "bfloat16": 2.0}
"""Bytes of an element on its way to the experts, scales included."""

BACK = 2.0
"""The same on the way back, where sums are in 16 bits."""

ROUTES = 8.0
"""Bytes per chosen expert of what ranks tell each other beforehand: its number and its weight."""


def known(table: pd.DataFrame) -> pd.DataFrame:
    """A checked table whose engines' collectives go by the names above, with their bytes."""
    reduces = table["op"].eq("allreduce") & table["kernel"].str.lower().str.contains(OWN_ALLREDUCE)
    moves = table["op"].eq("alltoall")
    if not (reduces | moves).any():
        return table
    taken = reduces & (table["message_bytes"] <= CUSTOM_LIMIT)
    eager = table["kernel"].str.endswith("_eager")
    mode = table["mode"].mask(taken & eager, "eager").mask(taken & ~eager, "graph")
    kernel = table["kernel"].mask(reduces, "").mask(taken, CUSTOM)
    for before, after in EXCHANGES:
        own = moves & kernel.str.startswith(before)
        kernel = kernel.mask(own, after + kernel.str.slice(len(before)))
    inside = moves & kernel.str.startswith(DOMAIN)
    nodes = table["num_nodes"].mask(inside, 1.0)
    table = table.assign(kernel=kernel, mode=mode, num_nodes=nodes)
    table = table.assign(message_bytes=_bytes(table, moves & is_exchange(table)))
    return table.assign(kernel=table["kernel"].str.removesuffix("_low_precision"))


def is_exchange(table: pd.DataFrame) -> pd.Series:
    """Rows that time an exchange of a mixture's tokens by a kernel made for it."""
    return table["op"].eq("alltoall") & table["kernel"].str.startswith(
        tuple(after for _, after in EXCHANGES)
    )


def _bytes(table: pd.DataFrame, rows: pd.Series) -> pd.Series:
    """Bytes that a rank sends, every copy of a token counted, where they are not stated."""
    open_ = rows & ~(table["message_bytes"] > 0)
    if not open_.any():
        return table["message_bytes"]
    size = table["dtype"].map(SENT).fillna(BACK)
    size = size.mask(table["kernel"].str.endswith("combine"), BACK)
    copies = table["m"] * table["topk"]
    sent = copies * table["k"] * size
    sent = sent.mask(table["kernel"].str.endswith("prepare"), copies * ROUTES)
    return table["message_bytes"].mask(open_, sent)


def copies(table: pd.DataFrame) -> np.ndarray:
    """Copies of a token among ranks of which those to one domain share the way, per row; 1 where
    none does."""
    alone = ~is_exchange(table) | table["kernel"].str.startswith(ALONE)
    return np.where(alone, 1.0, table["topk"].fillna(1.0).clip(lower=1.0)).astype(float)
