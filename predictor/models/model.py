"""What is computed: the dimensions of a language model and its parameter counts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from predictor.models.alternating import Alternating
from predictor.models.chosen import NO_INDEX, SHARED_INDEX, ChosenKeys
from predictor.models.compressed import Compressed
from predictor.models.convolution import ShortConvolution
from predictor.models.delta import DeltaRule
from predictor.models.ends import Ends
from predictor.models.feed_forward import FeedForward, widths
from predictor.models.latents import Latents
from predictor.models.mixture import Mixture
from predictor.models.quantization import Quantization
from predictor.models.shared import SharedBlocks
from predictor.models.state_space import StateSpace
from predictor.models.tables import Tables
from predictor.models.tower import Tower
from predictor.models.windows import Windows
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Model(
    StateSpace,
    SharedBlocks,
    Latents,
    Ends,
    DeltaRule,
    ShortConvolution,
    FeedForward,
    Mixture,
    ChosenKeys,
    Compressed,
    Tables,
    Windows,
    Alternating,
):
    """A decoder-only transformer.

    Dimensions are plain integers; parameter counts are derived from them and never stored.
    A layer is an attention block and a feed-forward block, dense or a mixture of experts. In a
    hybrid (`mamba_layers` > 0) each layer is one block: attention, state space or feed-forward;
    with `mamba_beside` it is attention and a state space side by side, and feed-forward.

    output_gate       attention's output is multiplied by a gate, projected beside the queries and
                      as wide (Qwen3-Next)
    delta_layers      layers whose attention is a gated delta rule (Yang et al. 2024, arXiv
                      2412.06464), which keeps a state of delta_key_dim x delta_value_dim for each
                      of `delta_value_heads`
    delta_gate_rank   > 0: the rule forgets each channel of a key by itself, and its decays and its
                      output's gate are projected through so many channels (Kimi Team 2025, arXiv
                      2510.26692, KDA); with `delta_whole_gate` the gate is projected at once, with
                      `delta_whole_decay` the decays are (Ling 3.0)
    delta_fixed       the rule forgets at a fixed rate per head and corrects nothing, without a
                      convolution: lightning attention (Qin et al. 2024, arXiv 2401.04658)
    conv_layers       layers whose attention is a gated convolution over `conv_taps` tokens (LFM2)
    residual_block    > 0: each block's input is chosen, by attention, among the embedding and the
                      sums of so many layers each (Kimi K3, attention residuals)
    index_topk        > 0: attention over that many cached keys, which an indexer of `index_heads` x
                      `index_head_dim` chooses (DeepSeek-AI 2025, DeepSeek-V3.2)
    index_block       > 0: keys are chosen in blocks of so many, for each group of query heads that
                      share a key head by an index head of its own (MiniMax-M3)
    index_pool        > 0: an index key stands for so many tokens, which are chosen together
                      (GLM-5.3-Flash)
    sharing_layers    layers that see what an earlier one's indexer chose (GLM-5.2)
    whole_layers      leading layers that see all keys beside those that choose (MiniMax-M3)
    choosing_layers   layers that choose `index_topk` among keys which stand for `choosing_ratio`
                      tokens each; `pooling_layers` see all of those that stand for `pooling_ratio`
                      (DeepSeek-V4: `models.compressed`)
    reading_layers    of the choosing layers those that see keys which an earlier one made; what the
                      last `sharing_layers` of them see, one chose, too (DeepSeek-V4.1)
    decoder_layers    last so many layers, which see keys of one token each that the first of them
                      makes, so that prompts pass them over their last window alone
                      (DeepSeek-V4.1); `decoder_choosers` choose anew, the first among all keys, the
                      others among the `candidates` of its choice
    index_means       index keys are means, and index heads count alike: nothing is projected for
                      their weights (Qwen4-Exp)
    index_from_keys   index keys are projected from compressed ones, whose sums do not overlap
                      (DeepSeek-V4.1)
    ngram_layers      layers that add what `ngram_lookups` rows of `ngram_width` say of a token and
                      those before it, of `ngram_rows` in all (DeepSeek-V4.1), through a convolution
                      of `ngram_taps`, if any (Qwen4-Exp); with `ngram_embedding` they are one
                      table, which is added to the embedding (LongCat-Flash-Lite)
    out_groups        > 0: the output of so many groups of heads is projected to `out_rank` each
                      before it is projected together (DeepSeek-V4)
    streams           > 1: residual streams (DeepSeek-V4; hyper-connections: Xie et al. 2026), whose
                      sums are told channel by channel through `stream_rank` others, if any
                      (Qwen4-Exp)
    expert_hidden     width at which tokens enter the experts; 0: `hidden` (else they are projected
                      to it and back)
    attention_layers  of a hybrid; 0: every layer
    heads             of attention; of a model without any, of its state spaces
    mamba_state       size of the state per channel; heads x head_dim channels, states shared
                      within each of `mamba_groups`
    mamba_rank        > 0: a selective scan (Mamba-1: Gu and Dao 2023, arXiv 2312.00752), whose
                      heads are single channels with decays of their own, and whose step sizes are
                      projected through so many channels
    mamba_chunk       tokens of a chunk of Mamba-2's scan
    mamba_beside      attention and a state space side by side in each layer, behind one norm, and a
                      feed-forward block (Falcon-H1: arXiv 2507.22448)
    shared_blocks     > 0: attention and feed-forward blocks are so many, which take turns, and see
                      the token's embedding, too; each use has a matrix of its own behind them and
                      adapters of `shared_rank` (Zamba2), with `shared_queries` on queries, keys and
                      values as well
    window_heads      query heads of layers with a sliding window, their key heads and head size,
                      where they differ from the full layers' (0: alike; MiMo-V2, Step 3.5, Gemma 4)
    head_gate         attention's output is multiplied by one gate per head (Step 3.5)
    values_are_keys   full layers project no values: the projected keys are those (Gemma 4)
    borrowing_layers  last so many layers, which attend to the keys and values of the last layer of
                      their kind before them and have none of their own (Gemma 3n, Gemma 4)
    borrowing_ffn_hidden  inner width of their feed-forward blocks; 0: as the others'
    bare_layers       layers without attention (Nemotron Super: Bercovich et al. 2025, arXiv
                      2505.00949)
    ffn_widths        inner widths of the dense feed-forward blocks where they differ, as '49 x
                      28672, 6 x 14336'; `ffn_hidden` is the widest
    layer_inputs      width of an embedding that each layer adds on its own (Gemma 3n, Gemma 4)
    alternating_streams  > 0: so many copies of the residual stream, of which the blocks see one
                      (Gemma 3n), and a product of `laurel_rank` beside attention, if any
    quantization      how the checkpoint stores its weights, where its file says so
    causal            a token sees none behind it; else all see all (encoders)
    looped            sequences attend one after the other, each by calls of its own
    tower             encoder of images or sound beside it, where it has one
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
    expert_bias: bool = False  # biases in the experts
    parallel: str = ""  # attention and MLP side by side, behind a 'shared_norm' or 'own_norms'
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
    expert_hidden: int = 0
    attention_layers: int = 0
    mamba_layers: int = 0
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state: int = 0
    mamba_groups: int = 0
    mamba_rank: int = 0
    mamba_chunk: int = 128
    mamba_beside: bool = False
    shared_blocks: int = 0
    shared_rank: int = 0
    shared_queries: bool = False
    output_gate: bool = False
    delta_layers: int = 0
    delta_key_heads: int = 0
    delta_value_heads: int = 0
    delta_key_dim: int = 0
    delta_value_dim: int = 0
    delta_conv: int = 4  # tokens that the short convolution sees
    delta_gate_rank: int = 0
    delta_whole_gate: bool = False
    delta_whole_decay: bool = False
    delta_fixed: bool = False
    conv_layers: int = 0
    conv_taps: int = 0
    residual_block: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_block: int = 0
    index_pool: int = 0
    sharing_layers: int = 0
    whole_layers: int = 0
    choosing_layers: int = 0
    choosing_ratio: int = 0
    pooling_layers: int = 0
    pooling_ratio: int = 0
    reading_layers: int = 0
    decoder_layers: int = 0
    decoder_choosers: int = 0
    candidates: int = 0
    index_from_keys: bool = False
    index_means: bool = False
    ngram_layers: int = 0
    ngram_rows: int = 0
    ngram_lookups: int = 0
    ngram_width: int = 0
    ngram_taps: int = 0
    ngram_embedding: bool = False
    out_groups: int = 0
    out_rank: int = 0
    streams: int = 0
    stream_rank: int = 0
    window_heads: int = 0
    window_kv_heads: int = 0
    window_head_dim: int = 0
    head_gate: bool = False
    values_are_keys: bool = False
    borrowing_layers: int = 0
    borrowing_ffn_hidden: int = 0
    bare_layers: int = 0
    ffn_widths: str = ""
    layer_inputs: int = 0
    alternating_streams: int = 0
    laurel_rank: int = 0
    quantization: Quantization | None = None
    causal: bool = True
    looped: bool = False
    tower: Tower | None = None

    @property
    def is_hybrid(self) -> bool:
        """Whether some blocks are state spaces."""
        return self.mamba_layers > 0

    @property
    def attends(self) -> bool:
        """Whether some blocks attend: not where all are state spaces."""
        return bool(self.attention_layers) or not self.is_hybrid

    @property
    def untimed(self) -> bool:
        """Whether it sees chosen or compressed keys, or chosen sums, in kernels nobody timed."""
        return self.is_sparse or self.is_compressed or bool(self.residual_block)

    @property
    def attention_blocks(self) -> int:
        """Number of attention blocks, those of delta rules and convolutions aside."""
        if self.is_hybrid:
            return self.attention_layers
        return self.layers - self.delta_layers - self.conv_layers - self.bare_layers

    def _share(self, blocks: int) -> float:
        return blocks / max(self.layers, 1)

    @property
    def attention_share(self) -> float:
        """Attention blocks per layer."""
        return self._share(self.attention_blocks)

    @property
    def mamba_share(self) -> float:
        """State-space blocks per layer."""
        return self._share(self.mamba_layers)

    @property
    def delta_share(self) -> float:
        """Delta rules per layer."""
        return self._share(self.delta_layers)

    @property
    def moe_share(self) -> float:
        """Mixtures of experts per layer."""
        return self._share(self.moe_layers)

    @property
    def dense_share(self) -> float:
        """Dense feed-forward blocks per layer."""
        return self._share(self.ffn_blocks - self.moe_layers)

    @property
    def borrows(self) -> bool:
        """Whether all attention blocks borrow keys and values: a kind of `attention_kinds`."""
        return 0 < self.layers <= self.borrowing_layers

    @property
    def attention_kinds(self) -> tuple[tuple[int, Model], ...]:
        """Kinds of attention blocks: how many there are, and a model all of whose attention is of
        that kind. One, the model itself, unless windowed layers have other heads, or layers borrow
        keys and values, or full ones project no values, or layers compress keys or choose them in
        different ways."""
        if self.is_compressed or self.whole_layers or self.sharing_layers:
            return _sparse_kinds(self)
        if self.borrows or not (self.window_heads or self.window_kv_heads or self.window_head_dim
                or self.borrowing_layers or self.values_are_keys):  # fmt: skip
            return ((self.attention_blocks, self),)
        return _kinds(self)

    @property
    def attention_width(self) -> int:
        """Width of the concatenated query heads (equal to `hidden` in most models)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the concatenated key heads."""
        return self.kv_heads * self.head_dim

    @property
    def kv_head_columns(self) -> int:
        """Columns of the projections to one key head and its values."""
        if self.borrows:
            return 0
        return self.qk_dim if self.values_are_keys else self.qk_dim + self.v_dim

    @property
    def attention_matrix(self) -> int:
        """Weights of the projections of one attention block, where all are alike."""
        if self.is_compressed:
            return self.compressed_matrix
        if self.is_latent:
            query = (self.q_lora_rank or self.hidden) * self.heads * self.qk_dim
            key_value = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_dim)
            out = self.heads * self.v_dim * self.hidden * (2 if self.output_gate else 1)
            out += self.heads * self.hidden * self.head_gate
            return self.latent_down_matrix + self.index_matrix + query + key_value + out
        gates = self.attention_width if self.output_gate else self.heads * self.head_gate
        outcome, keys = self.heads * self.v_dim, self.kv_heads * self.kv_head_columns
        index = self.index_matrix if self.index_block or self.index_means else 0
        inward = self.attention_input * (self.attention_width + gates + keys)
        return inward + self.hidden * outcome + index

    @property
    def attention_matrices(self) -> int:
        """Weights of the projections of all attention blocks."""
        return sum(blocks * one.attention_matrix for blocks, one in self.attention_kinds)

    @property
    def dense_kinds(self) -> tuple[tuple[int, Model], ...]:
        """Kinds of dense feed-forward blocks: how many, and a model all of which are that kind."""
        dense, wide = self.ffn_blocks - self.moe_layers, self.borrowing_layers
        if self.ffn_widths:
            return _of_widths(self)
        if not self.borrowing_ffn_hidden or not wide:
            return ((dense, self),)
        return ((dense - wide, self), (wide, _wide(self)))

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """Inner widths of them, the widest first; none without any."""
        kinds = [one.ffn_hidden for blocks, one in self.dense_kinds if blocks]
        return tuple(sorted(set(kinds), reverse=True))

    def matrix_parameters(self, active: bool = False) -> int:
        """Weights of all layers' matrices; with `active`, only those that a token touches, shared
        ones as often as it does."""
        experts = self.top_k if active else self.num_experts
        mixture = self.router_matrix + self.shared_matrix + experts * self.expert_matrix
        dense = sum(blocks * one.dense_ffn_matrix for blocks, one in self.dense_kinds)
        turns = self.attention_matrices + dense
        if self.shared_blocks:
            turns = turns if active else turns // self.attention_layers * self.shared_blocks
            turns += self.attention_layers * (self.use_matrix + self.use_adapters)
        return (
            turns
            + self.mamba_layers * self.mamba_matrix
            + self.delta_layers * self.delta_matrix
            + self.conv_layers * self.conv_matrix
            + self.moe_layers * mixture
            + self.layers * self.layer_input_matrix
            + self.input_projection
            + self.stream_matrix
            + self.alternating_matrix
            + self.ngram_layers * self.ngram_matrix
        )

    @property
    def mamba_norm(self) -> int:
        """Those of a state space's; none beside attention, whose norm serves both."""
        return 0 if self.mamba_beside else self.norm_parameters

    @property
    def mamba_vectors(self) -> int:
        """Norms of all state spaces, and the final one."""
        return self.mamba_layers * self.mamba_norm + self.norm_parameters

    @property
    def mixer_vectors(self) -> tuple[int, int]:
        """Norm and bias parameters of an attention block: (split by TP, whole on every rank)."""
        if self.is_compressed:
            return self.compressed_vectors[0], self.norm_parameters + self.compressed_vectors[1]
        if self.is_latent:
            return 0, self.norm_parameters + self.q_lora_rank + self.kv_lora_rank
        qkv = self.attention_width + self.kv_heads * self.kv_head_columns
        if self.bias:
            return qkv, self.norm_parameters + self.hidden
        norm = self.norm_parameters * self.attention_input // self.hidden
        return (qkv if self.qkv_bias else 0), norm

    @property
    def vector_parameters(self) -> int:
        """Norm and bias parameters of all layers, the final norm included."""
        mixers = sum(blocks * sum(one.mixer_vectors) for blocks, one in self.attention_kinds)
        if self.shared_blocks:  # norms of the residual stream and the embedding, and of one alone
            return self.shared_blocks * 3 * self.norm_parameters + self.mamba_vectors
        if self.layer_inputs:
            mixers += self.layers * self.norm_parameters
        return (
            mixers
            + (self.ffn_blocks - self.moe_layers) * sum(self.ffn_vectors)
            + self.moe_layers * self.norm_parameters
            + self.moe_layers * self.num_experts * sum(self.expert_vectors)
            + self.mamba_vectors
            + (self.delta_layers + self.conv_layers) * self.norm_parameters
            + self.ngram_layers * self.ngram_vectors
            + (2 * self.layers + 1) * self.stream_norm
        )

    @property
    def parameters(self) -> int:
        """All parameters."""
        return (
            self.matrix_parameters()
            + self.vector_parameters
            + self.embedding_parameters
            + self.head_parameters
            + self.ngram_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches (all of them in a dense model)."""
        idle = self.moe_layers * (self.num_experts - self.top_k) * sum(self.expert_vectors)
        idle += self.ngram_parameters - self.ngram_touched
        rest = self.parameters - self.matrix_parameters() - idle
        return rest + self.matrix_parameters(active=True)


PLAIN: dict[str, Any] = {
    "window_heads": 0, "window_kv_heads": 0, "window_head_dim": 0, "borrowing_layers": 0,
    "borrowing_ffn_hidden": 0, "sliding_pattern": "",
}  # fmt: skip
"""What a model of one kind of attention has not."""


@lru_cache(maxsize=256)
def _kinds(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `Model.attention_kinds`: full layers, windowed ones, and those of both that borrow."""
    whole = replace(model, **PLAIN, sliding_window=0)
    windowed = replace(
        model,
        **PLAIN,
        heads=model.window_heads or model.heads,
        kv_heads=model.window_kv_heads or model.kv_heads,
        head_dim=model.window_head_dim or model.head_dim,
        values_are_keys=False,
    )
    own = model.layers - model.borrowing_layers
    found = []
    for kind, full in ((whole, True), (windowed, False)):
        counts = [model.full_layers(n) if full else n - model.full_layers(n)
                  for n in (own, model.layers)]  # fmt: skip
        found.append((counts[0], kind))
        found.append((counts[1] - counts[0], replace(kind, borrowing_layers=model.layers)))
    return tuple((count, kind) for count, kind in found if count)


@lru_cache(maxsize=256)
def _wide(model: Model) -> Model:
    """The feed-forward blocks of a model's borrowing layers."""
    return replace(model, ffn_hidden=model.borrowing_ffn_hidden, borrowing_ffn_hidden=0)


@lru_cache(maxsize=256)
def _of_widths(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `Model.dense_kinds`, of a model that states widths."""
    return tuple(
        (count, replace(model, ffn_hidden=width, ffn_widths=""))
        for count, width in widths(model.ffn_widths)
    )


@lru_cache(maxsize=256)
def _sparse_kinds(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `Model.attention_kinds`: layers with a window or all keys, that choose, that pool."""
    if model.sharing_layers and not model.is_compressed:
        choosing = model.attention_blocks - model.sharing_layers
        alike = replace(model, **SHARED_INDEX)
        return ((choosing, replace(model, sharing_layers=0)), (model.sharing_layers, alike))
    if not model.is_compressed:
        whole = replace(model, whole_layers=0, index_block=0, **NO_INDEX)
        choosing = model.attention_blocks - model.whole_layers
        return ((model.whole_layers, whole), (choosing, replace(model, whole_layers=0)))
    return tuple((count, replace(model, **changes)) for count, changes in model.compressed_kinds)
