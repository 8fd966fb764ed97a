"""What attention over prompts and documents takes on a GPU, by kernel, forward and backward.

    python tools/attention_sweep.py --out attention.csv [--seconds 60]
    ATTENTION_WINDOWS=1 python tools/attention_sweep.py ...   windows, and heads of 256

FlashAttention-2 and cuDNN's kernel as PyTorch runs them, causal, in bf16, for lengths of 64 to
32,768 tokens, heads as models have them and as tensor parallelism leaves them, whole documents and
second halves of documents (as context parallelism and chunked prompts see them). Kernels wait in
the device's queue while they are timed, so that no launch shows. Rows in the form of the kernel
table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profiler.device import find
from profiler.sweeps import sweep
from profiler.timing import measure

LENGTHS = (512, 2048, 128, 1024, 4096, 256, 8192, 64, 16384, 32768)
"""Tokens of a document, those that tell most first."""

HEADS = (
    (64, 4, 128), (32, 8, 128), (8, 1, 128), (16, 16, 64), (16, 4, 128), (32, 2, 128),
    (32, 32, 128), (40, 40, 128), (12, 12, 64), (96, 96, 128), (16, 1, 128), (64, 8, 128),
    (32, 32, 64),
)  # fmt: skip
"""Query heads, key heads, head size."""

WINDOWED = (
    ((8, 4, 256), 0), ((4, 1, 256), 512), ((32, 8, 128), 4096), ((64, 8, 64), 128),
    ((16, 8, 256), 1024), ((4, 1, 256), 0), ((32, 8, 128), 1024), ((16, 8, 256), 4096),
)  # fmt: skip
"""Heads and the window of a layer (0: none), of models that have windows or heads of 256."""

MOST_TOKENS = 16384
"""Of several documents together."""

SLOWEST = 8e-3
"""A call that would take longer at 250 TFLOP/s is left out [s]."""

EACH = 0.03
"""Time that a measurement may take [s]."""

Call = Callable[[], object]


def flash2(
    shape: tuple[int, int, int], heads: tuple[int, int, int], back: bool, window: int = 0
) -> Call:
    """FlashAttention-2 over documents laid end to end.

    shape   documents, queries and keys of each
    heads   query heads, key heads, head size
    window  keys that a query sees; 0: all before it
    """
    documents, queries, keys = shape
    own, shared, size = heads

    def tensor(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(documents * tokens, count, size, device="cuda", dtype=torch.bfloat16)

    q, k, v = tensor(queries, own), tensor(keys, shared), tensor(keys, shared)
    ends = [torch.arange(documents + 1, device="cuda", dtype=torch.int32) * n
            for n in (queries, keys)]  # fmt: skip
    lengths = {"cum_seq_q": ends[0], "cum_seq_k": ends[1], "max_q": queries, "max_k": keys}
    if window:
        lengths |= {"window_size_left": window - 1, "window_size_right": 0}

    def forward() -> Any:
        return torch.ops.aten._flash_attention_forward(
            query=q, key=k, value=v, **lengths, dropout_p=0.0, is_causal=True,
            return_debug_mask=False,
        )  # fmt: skip

    if not back:
        return forward
    out, total, state, unused, _ = forward()
    given = torch.randn_like(out)
    return lambda: torch.ops.aten._flash_attention_backward(
        grad_out=given, query=q, key=k, value=v, out=out, logsumexp=total, **lengths,
        dropout_p=0.0, is_causal=True, rng_state=state, unused=unused,
    )  # fmt: skip


def cudnn(shape: tuple[int, int, int], heads: tuple[int, int, int], back: bool) -> Call:
    """cuDNN's kernel over sequences of one length; arguments as of `flash2`."""
    documents, queries, _ = shape
    own, shared, size = heads

    def tensor(count: int) -> torch.Tensor:
        return torch.randn(
            documents, queries, count, size, device="cuda", dtype=torch.bfloat16, requires_grad=back
        ).transpose(1, 2)

    q, k, v = tensor(own), tensor(shared), tensor(shared)

    def forward() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=own != shared)

    if not back:
        return forward
    out = forward()
    given = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), given, retain_graph=True)


KERNELS: dict[str, Callable[..., Call]] = {"flash2": flash2, "cudnn": cudnn}


Case = tuple[str, tuple[int, int, int], tuple[int, int, int], bool, int]


def windowed() -> Iterator[Case]:
    """Heads of 256 and layers with windows, as `cases` has them."""
    for documents, length in ((1, 2048), (1, 8192), (4, 4096), (1, 512), (8, 2048), (1, 32768)):
        for heads, window in WINDOWED:
            for back in (False, True):
                yield "flash2", heads, (documents, length, length), back, window


def cases() -> Iterator[Case]:
    """Kernel, heads, shape, direction and window, the most telling first."""
    for heads in HEADS:
        for length in LENGTHS:
            most = max(MOST_TOKENS // length, 1)
            for documents in sorted({1, min(4, most), most} if heads[0] >= 16 else {1}):
                for kernel, back in (
                    ("flash2", False), ("flash2", True), ("cudnn", False), ("cudnn", True)
                ):  # fmt: skip
                    yield kernel, heads, (documents, length, length), back, 0
            if length > 64:
                yield "flash2", heads, (1, length // 2, length), False, 0


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    """Measure while the time lasts."""
    device = find("auto")
    until = time.perf_counter() + seconds
    chosen = windowed if os.environ.get("ATTENTION_WINDOWS") else cases
    for kernel, heads, shape, back, window in chosen():
        if time.perf_counter() > until:
            return
        documents, queries, keys = shape
        own, shared, size = heads
        seen = min(keys - 0.5 * queries, float(window or keys))
        flop = 4.0 * documents * own * size * queries * seen
        if flop * (2.5 if back else 1.0) / 250e12 > SLOWEST:
            continue
        try:
            asked = {"window": window} if window else {}
            calls = [KERNELS[kernel](shape, heads, back, **asked) for _ in range(2)]
            found = measure(calls, device, EACH)
        except RuntimeError as why:
            print(kernel, heads, shape, back, str(why).split("\n")[0][:120], flush=True)
            continue
        yield {
            "accelerator": device.name,
            "op": "attention_backward" if back else "attention_prefill",
            "dtype": "bf16", "kernel": kernel, "batch": documents, "q_len": queries,
            "kv_len": keys, "heads": own, "kv_heads": shared, "head_dim": size, "causal": 1,
            "window": window,
            "latency_us": round(found.median * 1e6, 4), "latency_p10_us": round(found.p10 * 1e6, 4),
            "latency_p90_us": round(found.p90 * 1e6, 4), "samples": found.samples,
            "framework": "pytorch", "framework_version": str(torch.__version__),
        }  # fmt: skip


if __name__ == "__main__":
    sweep(__doc__, rows, 60.0)
