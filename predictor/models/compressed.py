"""Counts of attention over compressed keys, of keys chosen in blocks, and of residual streams.

DeepSeek-V4 (DeepSeek-AI 2026, sections 2.2 and 2.3) has one key head, whose keys are the values
too. Every layer sees a window of them. Beside it a compressed layer sees keys that stand for
several tokens each, a sum of `choosing_ratio` or `pooling_ratio` tokens' projections weighted
channel by channel by a softmax over them: choosing layers, whose sums overlap (each token is in
two, so that it is projected twice), see those that an indexer with keys of its own chooses; pooling
layers see all.

In DeepSeek-V4.1 few layers make such keys, of sums that do not overlap: layers behind them see the
same ones. The keys of the last layers stand for one token each, and the first of them makes those,
so that a prompt passes the others over its last window alone (DeepSeek-AI 2026, DeepSeek-V4.1;
deepseek_v41 of transformers, modular_deepseek_v41.py @ 0a2080b; vllm/models/deepseek_v41/
decoder_replay_layers.py @ 1ab937d).

Read off deepseek_v4 of transformers (modular_deepseek_v4.py @ 02356fe, 2026) and of vLLM
(vllm/models/deepseek_v4/attention.py @ 0484480, 2026).
"""

from __future__ import annotations

from typing import Any

from predictor.models.chosen import NO_INDEX, SHARED_INDEX

Changes = dict[str, Any]
"""Fields in which a model all of whose layers are of one kind differs from the one they are of."""


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
    sharing_layers: int
    reading_layers: int
    decoder_layers: int
    decoder_choosers: int
    candidates: int
    index_from_keys: bool
    out_groups: int
    out_rank: int
    streams: int
    stream_rank: int

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
        return 2 if self.choosing_layers and not self.index_from_keys else 1

    @property
    def makes_keys(self) -> bool:
        """Whether all layers, which are alike, make the compressed keys that they see."""
        return self.compression > 0 and not self.reading_layers

    @property
    def compressor_width(self) -> int:
        """Columns of a compressor's projections: what is summed, and its weights; of keys of one
        token alone nothing is weighted."""
        if not self.makes_keys:
            return 0
        return self.overlap * self.head_dim * (1 if self.compression == 1 else 2)

    @property
    def index_compressor_width(self) -> int:
        """The same of the compressor of index keys."""
        if not self.makes_keys or not self.choosing_layers or self.index_from_keys:
            return 0
        return 2 * self.overlap * self.index_head_dim

    @property
    def index_key_matrix(self) -> int:
        """Weights of the projection of a compressed key to its index key, in one block."""
        own = self.makes_keys and self.index_from_keys and self.index_heads > 0
        return self.head_dim * self.index_head_dim if own else 0

    @property
    def compressed_whole_matrix(self) -> int:
        """Weights of one block that every tensor-parallel rank holds: projections to latent queries
        and the key, compressors, the indexer."""
        down = self.hidden * (self.q_lora_rank + self.head_dim)
        sums = self.hidden * (self.compressor_width + self.index_compressor_width)
        if not self.choosing_layers or not self.index_heads:
            return down + sums
        sums += self.index_key_matrix
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
        norms = self.q_lora_rank + self.head_dim * (2 if self.makes_keys else 1)
        own = self.index_head_dim if self.makes_keys and self.choosing_layers else 0
        if self.index_from_keys:
            return self.heads, norms + own
        places = (self.compressor_width + self.index_compressor_width) // 2 * self.compression
        return self.heads, norms + places + own

    @property
    def stream_mixes(self) -> int:
        """Numbers that a block computes of each token's streams: how it reads them, how it writes
        to them, how they are mixed; 0 of a single stream."""
        return (2 + self.streams) * self.streams if self.streams > 1 else 0

    @property
    def stream_layer_matrix(self) -> int:
        """Weights that those come from, of the two blocks of a layer; where sums are told channel
        by channel, of these, and of how a block's output is added to each stream."""
        if self.stream_rank:
            return 2 * self.streams * self.hidden * (2 * self.stream_rank + self.streams)
        return 2 * self.streams * self.hidden * self.stream_mixes

    @property
    def stream_sum_matrix(self) -> int:
        """Weights of the last sum of the streams, where the last block does not tell it."""
        own = self.streams > 1 and not self.index_from_keys
        if self.stream_rank:
            return 2 * self.streams * self.hidden * self.stream_rank
        return self.streams**2 * self.hidden if own else 0

    @property
    def stream_norm(self) -> int:
        """Weights of a norm of all streams, of which each block has one, and the last sum."""
        return self.streams * self.hidden if self.stream_rank else 0

    @property
    def stream_matrix(self) -> int:
        """Weights that streams are mixed by, of all layers and of the last sum."""
        return self.layers * self.stream_layer_matrix + self.stream_sum_matrix

    @property
    def compressed_kinds(self) -> tuple[tuple[int, Changes], ...]:
        """Kinds of attention blocks: how many, and what makes all layers such ones. A window alone;
        those that make keys and choose, that read keys and choose, that read both; that pool; and
        of the decoder's the first, those that choose anew, and the others."""
        every = self.layers
        candidates = 0 if self.decoder_layers else self.candidates
        alike: Changes = {"choosing_layers": every, "pooling_layers": 0, "sharing_layers": 0,
                          "reading_layers": 0, **NO_DECODER, "candidates": candidates}  # fmt: skip
        reads = {**alike, "reading_layers": every}
        plain = {**alike, "choosing_layers": 0, **NO_INDEX}
        single, choosers = {"choosing_ratio": 1}, max(self.decoder_choosers - 1, 0)
        reading, sharing = self.reading_layers, self.sharing_layers
        own = min(self.decoder_layers, 1)
        found: tuple[tuple[int, Changes], ...] = (
            (every - self.choosing_layers - self.pooling_layers - self.decoder_layers, plain),
            (self.choosing_layers - reading, alike),
            (reading - sharing, reads),
            (sharing, {**reads, **SHARED_INDEX}),
            (self.pooling_layers, {**plain, "pooling_layers": every}),
            (own, {**alike, **single}),
            (choosers, {**reads, **single, "candidates": self.candidates}),
            (self.decoder_layers - own - choosers, {**reads, **single, **SHARED_INDEX}),
        )
        return tuple((count, changes) for count, changes in found if count)

    @property
    def prompt_parts(self) -> tuple[Changes, Changes]:
        """What makes a model its first layers, which every token of a prompt passes, and the
        others, the decoder's."""
        first = self.layers - self.decoder_layers
        last: Changes = {"choosing_layers": 0, "pooling_layers": 0, "reading_layers": 0,
                         "sharing_layers": 0, "ngram_layers": 0}  # fmt: skip
        return {"layers": first, **NO_DECODER}, {"layers": self.decoder_layers, **last}


NO_DECODER: Changes = {"decoder_layers": 0, "decoder_choosers": 0, "candidates": 0}
"""What a model has not whose prompts pass all layers."""
