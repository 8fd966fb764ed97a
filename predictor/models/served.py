"""What engines compute of a family besides what its dimensions say."""

from __future__ import annotations

from predictor.models.model import Model

WIDE_ROUTERS = ("minimax", "minimax_m2", "minimax_text_01")
"""Families whose engines keep the router in 32 bits (vllm/model_executor/models/minimax_m2.py and
minimax_text_01.py: `params_dtype`)."""

WHOLE_RULES = ("minimax_text_01",)
"""Families whose lightning attention is normalised over all heads together, so that ranks add up
their squares (vllm/model_executor/layers/mamba/linear_attn.py, MiniMaxText01RMSNormTP)."""


def has_wide_router(model: Model) -> bool:
    """Whether engines multiply the router in 32 bits."""
    return model.family in WIDE_ROUTERS


def has_whole_rules(model: Model) -> bool:
    """Whether what delta rules put out is normalised over all heads together."""
    return model.family in WHOLE_RULES
