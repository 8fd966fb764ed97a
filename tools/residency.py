"""How much of a layer's weights a GPU's last-level cache still holds when their turn comes again.

    python tools/residency.py --out residency.csv [--seconds 30]

Linear layers of few tokens are timed while several copies of their weights are read in turn, from
captured graphs, so that no launch shows: one copy is a benchmark that finds its weights where it
left them, many are an engine, which reads all other layers' in between. A row for each number of
tokens, size and number of copies: microseconds of one product, median and tenth percentile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from profiler.sweeps import sweep

TOKENS = (1, 16, 128)
MEGABYTES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
WIDTH = 4096
"""Tokens, sizes of the weights (2**20 bytes in bf16), copies read in turn, and what a token is."""

MOST_BYTES = 2**30
"""Of all copies together."""

CALLS, REPLAYS = 24, 9
"""Products in a graph, at least; how often it is timed."""


def microseconds(tokens: int, rows: int, copies: int) -> tuple[float, float]:
    """Median and tenth percentile of a product of `tokens` with weights (`rows`, WIDTH) [us]."""
    x = torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(copies, rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    calls = copies * -(-CALLS // copies)

    def run() -> None:
        for number in range(calls):
            functional.linear(x, weights[number % copies])

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    spent = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        spent.append(begin.elapsed_time(end) * 1e3 / calls)
    return float(np.median(spent[1:])), float(np.quantile(spent[1:], 0.1))


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    """All sizes while the time lasts, those of fewer tokens first."""
    until = time.perf_counter() + seconds
    found = torch.cuda.get_device_properties(0)
    for tokens in TOKENS:
        for size in MEGABYTES:
            for copies in COPIES:
                if size * 2**20 * copies > MOST_BYTES:
                    break
                if time.perf_counter() > until:
                    return
                median, p10 = microseconds(tokens, size * 2**20 // (2 * WIDTH), copies)
                yield {
                    "gpu": found.name, "l2_mb": found.L2_cache_size / 1e6, "dtype": "bf16",
                    "m": tokens, "n": size * 2**20 // (2 * WIDTH), "k": WIDTH, "copies": copies,
                    "latency_us": round(median, 4), "latency_p10_us": round(p10, 4),
                    "torch": str(torch.__version__),
                }  # fmt: skip


if __name__ == "__main__":
    sweep(__doc__, rows, 30.0)
