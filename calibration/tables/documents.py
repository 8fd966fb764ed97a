"""Rows of attention over packed documents: what one of them takes, forward.

DistCA's profile is of Qwen3-235B's attention, 64 heads of 128 with 4 of keys and values, divided
over `tp` ranks, over documents of one length, of whose queries each of `cp` ranks has a share that
sees half as many keys as the whole on average (github.com/hao-ai-lab/distca at 039f2e4: the heads
in distca/timemodule/compute.py, which reads the table; the call in distca/profiling/modal-scripts/
attn-prof.py, FlashAttention-2 over documents of varying length of `vllm_flash_attn`; the script
divides what many documents take by their number).

The times say so too: from 8 to 64 heads they are as the heads, where one document alone leaves
multiprocessors idle. So a document is a share of a full device, bent where it is short, beside
what a host does for it:

    t = (c^j + w^j)^(1/j),  w = 4 h d A / (peak efficiency) (1 + short / keys)

of A pairs of a query and a key that it sees, h heads of d. What is linear in the length is as much
as what is quadratic at `short` keys. The four constants are fitted to the table
(`calibration.variation.documents`), and ship with what they miss where they were not fitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.arrays import Array, Numeric
from predictor.timing import Calibration

DOCUMENT_KEY = "document_tokens"
"""A column that only tables of attention by document have."""

TIME_KEY = "ms_per_document"
COLUMNS = (DOCUMENT_KEY, "cp", "tp", TIME_KEY)
"""Of such a table, each a number above 0."""

ACCELERATOR = "H100-SXM5-80GB"
HEADS, HEAD_DIM = 64.0, 128.0
"""Of the attention that the tables time, as they say."""

FILE = ("variation", "documents.json")


@dataclass(frozen=True, slots=True)
class DocumentKernel:
    """Attention of one of many packed documents.

    call        of a host for each [s]
    efficiency  of matrix units over their peak, of long documents
    short       keys at which what is linear is as much as what is quadratic
    joint       power by which the host's time and the device's come together: 1 in series, large
                where the longer one hides the other
    sigma       log-standard-deviation of what it misses of lengths that were left out, and of
                divisions of the sequence that were
    """

    call: float
    efficiency: float
    short: float
    joint: float
    sigma: tuple[float, float] = (0.1, 0.1)

    def time(self, tokens: Numeric, cp: Numeric, tp: Numeric) -> Array:
        """Forward pass over one document by one rank [s]; broadcast shape."""
        queries = np.asarray(tokens, float) / cp
        keys = 0.5 * np.asarray(tokens, float) * (1.0 + 1.0 / np.asarray(cp, float))
        seen = queries * (keys - 0.5 * queries)
        peak = catalog.accelerator(ACCELERATOR).peak_for("bf16")
        work = 4.0 * HEADS / tp * HEAD_DIM * seen / (peak * self.efficiency)
        work = work * (1.0 + self.short / keys)
        return np.asarray((self.call**self.joint + work**self.joint) ** (1.0 / self.joint))


def shipped() -> tuple[DocumentKernel, frozenset[tuple[float, float, float]]]:
    """The kernel that ships, and the tokens, `cp` and `tp` of the rows that it was fitted to."""
    return _shipped(catalog.data_dir().joinpath(*FILE))


@lru_cache(maxsize=4)
def _shipped(path: Path) -> tuple[DocumentKernel, frozenset[tuple[float, float, float]]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    sigma = {"sigma": tuple(content["kernel"]["sigma"])}
    return DocumentKernel(**content["kernel"] | sigma), frozenset(map(tuple, content["fitted_to"]))


def plan_of(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Tokens of a row's document, and the ranks that divide it and its heads."""
    return float(row[DOCUMENT_KEY]), float(row["cp"]), float(row["tp"])


def document_attention(row: Mapping[Any, Any], _: Calibration) -> tuple[float, float, bool]:
    """Time of a document's attention, forward [s], its log-standard-deviation, and whether the
    kernel was fitted to the row."""
    kernel, fitted = shipped()
    plan = plan_of(row)
    known, apart = kernel.sigma
    divided = plan[1] in {cp for _, cp, _ in fitted}
    return float(kernel.time(*plan)), known if divided else apart, plan in fitted
