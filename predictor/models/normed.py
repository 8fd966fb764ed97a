"""Norms of a family besides those that every block begins with."""

from __future__ import annotations

from predictor.models.model import Model

HEAD_NORMS = (
    "qwen3", "gemma3", "gemma4", "afmoe", "trinity", "beam", "flint", "hy_v3", "kolibri", "lfm2",
    "lfm3", "mellum", "sarvam_moe",
)  # fmt: skip
"""How families begin whose queries and keys are normalised head by head (Qwen Team 2025, arXiv
2505.09388, section 2; Gemma Team 2025, arXiv 2503.19786, section 2; transformers,
modeling_qwen3.py, modeling_qwen3_next.py, modeling_gemma3.py: `q_norm`, `k_norm`; of 2026:
transformers 5.24.0, modeling_afmoe.py and so on)."""

WHOLE_NORMS = ("minimax", "minimax_m2", "olmo2")
"""Families whose queries and keys are normalised over all heads together, so that tensor-parallel
ranks add up their squares first (vllm/model_executor/models/minimax_m2.py: MiniMaxText01RMSNormTP;
Team OLMo 2024, arXiv 2501.00656, section 3)."""

CLOSING_NORMS = (
    "gemma2", "gemma3", "gemma4", "afmoe", "trinity", "beam", "kolibri", "lfm3", "muse",
)  # fmt: skip
"""How families begin whose blocks end with a norm, too, before the residual (Gemma Team 2024, arXiv
2408.00118, section 2: post-norm and pre-norm; transformers, modeling_gemma3.py:
`post_attention_layernorm`, `post_feedforward_layernorm`)."""

SELECTED_NORMS = ("jamba", "falcon_mamba")
"""Families with a norm of each of the step sizes, B and C that Mamba-1 projects (Lieber et al.
2024, arXiv 2403.19887, section 3.2; Zuo et al. 2024, arXiv 2410.05355, section 2)."""


def has_head_norms(model: Model) -> bool:
    """Whether queries and keys are normalised head by head."""
    return model.family.startswith(HEAD_NORMS)


def has_whole_norms(model: Model) -> bool:
    """Whether queries and keys are normalised over all heads together."""
    return model.family in WHOLE_NORMS


def has_closing_norms(model: Model) -> bool:
    """Whether what a block puts out is normalised before it is added."""
    return model.family.startswith(CLOSING_NORMS)


def has_selected_norms(model: Model) -> bool:
    """Whether what a state space projects for itself is normalised."""
    return model.family in SELECTED_NORMS
