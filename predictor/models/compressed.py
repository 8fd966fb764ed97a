"""Counts of attention over compressed keys, of keys chosen in blocks, and of residual streams.

DeepSeek-V4 (DeepSeek-AI 2026, sections 2.2 and 2.3) has one key head, whose keys are the values
too. Every layer sees a window of them. Beside it a compressed layer sees keys that stand for
several tokens each, a sum of `choosing_ratio` or `pooling_ratio` tokens' projections weighted
channel by channel by a softmax over them: choosing layers, whose sums overlap (each token is in
two, so that it is projected twice), see those that an indexer with keys of its own chooses; pooling
layers see all.

Read off deepseek_v4 of transformers (modular_deepseek_v4.py @ 02356fe, 2026) and of vLLM
(vllm/models/deepseek_v4/attention.py @ 0484480, 2026).
"""

from __future__ import annotations


class Compressed:
    """The part of a model that its compressed attention is: fields as `Model` has them."""

    __slots__ = ()

    layers: int
    hidden: int
    heads: int
    head_dim: int
    q_lora_rank: int
    qk_rope_head_dim: int
    sliding_window: int
    index_heads: int
    index_head_dim: int
    choosing_layers: int
    choosing_ratio: int
    pooling_layers: int
    pooling_ratio: int
    out_groups: int
    out_rank: int
    streams: int

    @property
    def is_compressed(self) -> bool:
        """Whether attention sees a window and keys that stand for several tokens."""
        return self.out_groups > 0

    @property
    def compression(self) -> int:
        """Tokens that a compressed key stands for, where all layers are alike; 0: there are none
        beside the window."""
        if self.choosing_layers:
            return self.choosing_ratio
        return self.pooling_ratio if self.pooling_layers else 0

    @property
    def overlap(self) -> int:
        """Compressed keys that a token is part of."""
        return 2 if self.choosing_layers else 1

    @property
    def compressor_width(self) -> int:
        """Columns of a compressor's projections: what is summed, and its weights."""
        return 2 * self.overlap * self.head_dim if self.compression else 0

    @property
    def index_compressor_width(self) -> int:
        """The same of the compressor of index keys."""
        return 2 * self.overlap * self.index_head_dim if self.choosing_layers else 0

    @property
    def compressed_whole_matrix(self) -> int:
        """Weights of one block that every tensor-parallel rank holds: projections to latent queries
        and the key, compressors, the indexer."""
        down = self.hidden * (self.q_lora_rank + self.head_dim)
        sums = self.hidden * (self.compressor_width + self.index_compressor_width)
        if not self.choosing_layers:
            return down + sums
        index = self.q_lora_rank * self.index_heads * self.index_head_dim
        return down + sums + index + self.hidden * self.index_heads

    @property
    def compressed_matrix(self) -> int:
        """Weights of the projections of one block, where all are alike: those of all ranks,
        queries, and the output by groups and together."""
        width = self.heads * self.head_dim
        out = width * self.out_rank + self.out_groups * self.out_rank * self.hidden
        return self.compressed_whole_matrix + self.q_lora_rank * width + out

    @property
    def compressed_vectors(self) -> tuple[int, int]:
        """Vectors of one block beside its norm, (split by TP, whole on every rank): a sink for each
        head; norms of latents and keys; what is added to a compressor's weights by position."""
        norms = self.q_lora_rank + self.head_dim * (2 if self.compression else 1)
        places = (self.compressor_width + self.index_compressor_width) // 2 * self.compression
        own = self.index_head_dim if self.choosing_layers else 0
        return self.heads, norms + places + own

    @property
    def stream_mixes(self) -> int:
        """Numbers that a block computes of each token's streams: how it reads them, how it writes
        to them, how they are mixed; 0 of a single stream."""
        return (2 + self.streams) * self.streams if self.streams > 1 else 0

    @property
    def stream_layer_matrix(self) -> int:
        """Weights that those come from, of the two blocks of a layer."""
        return 2 * self.streams * self.hidden * self.stream_mixes

    @property
    def stream_sum_matrix(self) -> int:
        """Weights of the last sum of the streams."""
        return self.streams**2 * self.hidden if self.streams > 1 else 0

    @property
    def stream_matrix(self) -> int:
        """Weights that streams are mixed by, of all layers and of the last sum."""
        return self.layers * self.stream_layer_matrix + self.stream_sum_matrix
