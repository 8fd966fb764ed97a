"""Counts of multi-head latent attention (DeepSeek-AI 2024): sizes of heads, and ways to latents."""

from __future__ import annotations


class Latents:
    """The part of a model that its latents are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    head_dim: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int

    @property
    def is_latent(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def qk_dim(self) -> int:
        """Size of a query or key head as attention multiplies it."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def v_dim(self) -> int:
        """Size of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def latent_down_matrix(self) -> int:
        """Weights of the projections to latent queries, keys and values; 0 without them. Every
        tensor-parallel rank holds them whole."""
        if not self.is_latent:
            return 0
        return self.hidden * (self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim)
