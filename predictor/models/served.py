"""What engines compute of a family besides what its dimensions say."""

from __future__ import annotations

from predictor.models.model import Model

WHOLE_NORMS = ("minimax", "minimax_m2", "olmo2")
"""Families whose queries and keys are normalised over all heads together, so that tensor-parallel
ranks add up their squares first (vllm/model_executor/models/minimax_m2.py: MiniMaxText01RMSNormTP;
Team OLMo 2024, arXiv 2501.00656, section 3)."""

WIDE_ROUTERS = ("minimax", "minimax_m2")
"""Families whose engines keep the router in 32 bits (the same file, `params_dtype`)."""


def has_whole_norms(model: Model) -> bool:
    """Whether queries and keys are normalised over all heads together."""
    return model.family in WHOLE_NORMS


def has_wide_router(model: Model) -> bool:
    """Whether engines multiply the router in 32 bits."""
    return model.family in WIDE_ROUTERS
