"""What is computed: the dimensions of a language model and its parameter counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Dimensions are plain integers; parameter counts are derived from them and never stored.
    Dense GPT and Llama styles are predicted; mixtures of experts and latent attention are
    described (and counted) so that a catalog can hold them.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated: bool = True
    activation: str = "silu"
    norm: str = "rmsnorm"  # rmsnorm | layernorm
    positions: str = "rope"  # rope | learned | alibi | none
    max_context: int = 0
    tied_embeddings: bool = False
    bias: bool = False  # biases in the linear layers
    qkv_bias: bool = False
    family: str = ""
    num_experts: int = 0
    top_k: int = 0
    expert_ffn_hidden: int = 0
    shared_experts: int = 0
    shared_expert_ffn_hidden: int = 0
    dense_layers: int = 0  # leading layers without experts
    moe_every_n: int = 1
    q_lora_rank: int = 0
    kv_lora_rank: int = 0  # > 0: multi-head latent attention
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    mtp_layers: int = 0
    sliding_window: int = 0
    sliding_pattern: str = ""

    @property
    def is_moe(self) -> bool:
        """Whether feed-forward blocks are mixtures of experts."""
        return self.num_experts > 0

    @property
    def is_latent(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def attention_width(self) -> int:
        """Width of the concatenated query heads (equal to `hidden` in most models)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the concatenated key heads."""
        return self.kv_heads * self.head_dim

    @property
    def ffn_in_width(self) -> int:
        """Output width of the first feed-forward projection (gate and up together)."""
        return self.ffn_hidden * (2 if self.gated else 1)

    @property
    def attention_matrix(self) -> int:
        """Weights of the attention projections of one layer."""
        if self.is_latent:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            query = (
                self.q_lora_rank * (self.hidden + self.heads * qk)
                if self.q_lora_rank
                else self.hidden * self.heads * qk
            )
            key_value = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
            key_value += self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
            return query + key_value + self.heads * self.v_head_dim * self.hidden
        return self.hidden * (2 * self.attention_width + 2 * self.kv_width)

    @property
    def dense_ffn_matrix(self) -> int:
        """Weights of one dense feed-forward block."""
        return self.hidden * (self.ffn_in_width + self.ffn_hidden)

    @property
    def moe_layers(self) -> int:
        """Number of layers whose feed-forward block is a mixture of experts."""
        if not self.is_moe:
            return 0
        return (self.layers - self.dense_layers) // max(self.moe_every_n, 1)

    def _expert_matrix(self, experts: int) -> int:
        """Weights of a mixture layer, counting `experts` routed experts of it."""
        sides = 3 if self.gated else 2
        shared_ffn = self.shared_expert_ffn_hidden or self.expert_ffn_hidden
        return (
            self.hidden * self.num_experts  # router
            + sides * self.hidden * self.expert_ffn_hidden * experts
            + sides * self.hidden * shared_ffn * self.shared_experts
        )

    def matrix_parameters(self, active: bool = False) -> int:
        """Weights of all layers' matrices; with `active`, only those that a token touches."""
        total = self.layers * self.attention_matrix
        total += (self.layers - self.moe_layers) * self.dense_ffn_matrix
        if self.is_moe:
            total += self.moe_layers * self._expert_matrix(
                self.top_k if active else self.num_experts
            )
        return total

    @property
    def layer_vectors(self) -> tuple[int, int]:
        """Norm and bias parameters of one dense layer: (split by TP, whole on every rank)."""
        norm = 2 * self.hidden * (2 if self.norm == "layernorm" else 1)
        qkv = self.attention_width + 2 * self.kv_width
        if self.bias:
            return qkv + self.ffn_in_width, norm + 2 * self.hidden
        return (qkv if self.qkv_bias else 0), norm

    @property
    def vector_parameters(self) -> int:
        """Norm and bias parameters of all layers, the final norm included."""
        final = self.hidden * (2 if self.norm == "layernorm" else 1)
        return self.layers * sum(self.layer_vectors) + final

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, and learned positions where the model has them."""
        positions = self.max_context * self.hidden if self.positions == "learned" else 0
        return self.vocab * self.hidden + positions

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection that are its own (0 where tied)."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return (
            self.matrix_parameters()
            + self.vector_parameters
            + self.embedding_parameters
            + self.head_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches (all of them in a dense model)."""
        return self.parameters - self.matrix_parameters() + self.matrix_parameters(active=True)
