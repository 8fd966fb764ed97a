"""What kernels take where nothing like them was measured: numbers with a source."""

from __future__ import annotations

from predictor.records import dataclass

ANY = "*"

PLAIN = "plain"
"""In place of a kernel library: PyTorch's own operators, one after the other. Behind the name of a
kind (`norm.fwd@plain`): what they take, where anybody timed them."""

PLAIN_OPS = ("norm", "elementwise", "loss", "embedding")
"""Operators that frameworks have kernels of their own for, and plain PyTorch has not."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Efficiency used where nothing has been measured: a number with a source.

    efficiency  share of the ideal rate
    latency     [s]
    sigma       log-standard-deviation
    """

    efficiency: float
    latency: float
    sigma: float
    source: str


_GEMM_SOURCE = "large bf16 products reach 0.7-0.85 of peak on A100 and H100, NVIDIA cuBLAS docs"
_STREAM_SOURCE = "STREAM-like kernels reach 0.83-0.91 of HBM bandwidth, te42kyfo/gpu-benches"

DEFAULTS: dict[str, Constant] = {
    "gemm": Constant(0.72, 3e-6, 0.25, _GEMM_SOURCE),
    "bmm": Constant(0.6, 3e-6, 0.3, _GEMM_SOURCE),
    "moe_gemm": Constant(0.5, 8e-6, 0.35, _GEMM_SOURCE + "; groups fill tiles less"),
    "attention_prefill": Constant(0.55, 5e-6, 0.3, "Dao 2023, fig. 5: 50-73 % of peak forward"),
    "attention_backward": Constant(0.45, 8e-6, 0.3, "Dao 2023, fig. 6: up to 63 % backward"),
    "loss": Constant(0.25, 5e-6, 0.4, "five passes over fp32 logits against one ideal one"),
    "optimizer": Constant(0.7, 5e-6, 0.3, _STREAM_SOURCE),
    ANY: Constant(0.8, 3e-6, 0.3, _STREAM_SOURCE),
}
