"""A gated short convolution in attention's place (Liquid AI 2025, LFM2).

Channels are gated, convolved over the last `conv_taps` tokens, each by itself, and gated again:
C * conv(B * x), where B, C and x are projected at once (transformers 5.24.0, modeling_lfm2.py;
vllm/model_executor/layers/mamba/short_conv.py). A sequence keeps its last tokens, however long it
is.
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.work.worklist import WorkList


def state_bytes(model: Model, tp: Numeric, half: float) -> Numeric:
    """What one block on one rank keeps of a sequence [bytes], of `half` bytes an element."""
    return half * (model.conv_taps - 1.0) * model.hidden / tp


def conv_block(at: WorkList) -> None:
    """Norm, projections, gates, convolution and residual of one block."""
    tokens, size, h = at.portion.tokens, at.size, at.hidden
    own = h / at.portion.tp
    at.norm("conv.norm")
    at.linear("conv.in", 3.0 * own, h, saved=size * at.kept_rows * h)
    for name, variant, moved in (
        ("conv.gate_in", "gate", 3.0),
        ("conv.conv", "conv", 2.0),
        ("conv.gate_out", "gate", 3.0),
    ):
        back = 5.0 if variant == "gate" else 4.0  # a gate reads gradient and inputs, writes two
        at.stream(
            name,
            "elementwise",
            variant,
            tokens,
            own,
            moved * size,
            backward=(variant, back * size),
            saved=size * tokens * own,
        )
    at.linear("conv.out", h, own, saved=size * tokens * own)
    at.closing_norm("conv.closing_norm")
    at.residual("conv.residual")
