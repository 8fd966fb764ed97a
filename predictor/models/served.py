"""What engines compute of a family besides what its dimensions say."""

from __future__ import annotations

from predictor.models.model import Model

WIDE_ROUTERS = ("minimax", "minimax_m2")
"""Families whose engines keep the router in 32 bits (vllm/model_executor/models/minimax_m2.py,
`params_dtype`)."""


def has_wide_router(model: Model) -> bool:
    """Whether engines multiply the router in 32 bits."""
    return model.family in WIDE_ROUTERS
