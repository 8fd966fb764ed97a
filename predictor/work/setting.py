"""Whose work a list is and what runs it: software, a rank's portion, and what is learned."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.records import dataclass

MANY_ROWS, INTEGER_ROWS = 64.0, 128.0
"""Rows beyond which engines without kernels of their own for narrow weights widen a matrix in
memory before they multiply it (ggml's cuBLAS path); and rows of a tile of kernels that multiply
integers (ggml's mul_mat_q where there are matrix units, `get_mmq_x_max_host`), which read a matrix
once for each. Beyond one they are taken to be as quick as 16-bit products of widened weights, in
place of which they became the default: twice the rate, and a scale for every 32 elements that is
multiplied and added up beside the matrix unit. Nobody timed them here."""


@dataclass(frozen=True, slots=True)
class Software:
    """What runs a list: its data types, and what it joins in one kernel.

    core       data type of attention and of what moves between kernels
    size       bytes of an activation element
    linear     data type of the layers' linear projections
    blocks     of those of feed-forward blocks outside routed experts; '': as `linear`
    wide       share of the layers whose projections are in `core` all the same
    experts    of the products of routed experts
    head       of the output projection
    products   of products in `core` as the matrix unit runs them: how they are added up
    cache      bytes of a cached key or value element; 0 where nothing is cached
    attention  kernels of attention over prompts, of `plans.ATTENTIONS`
    chains     rotary encoding is a single kernel, and the loss reads what the output projection
               wrote
    activations   gated activations and squared ReLUs are single kernels
    rms        RMS norms and GPT-2's GELU are single kernels
    sums       what blocks add to the residual stream is added by the next norm, what shared experts
               add by the kernel that brings the others' outcome back
    latents    latent queries, keys and values are projected in one product
    direct     tokens travel to a rank once, whatever its experts, and are put in their order there
    ordered    rows are put in order of their experts, and back, by kernels of their own
    experts_joined   both products of all experts and the activation between them are one kernel
    traffic    of small kernels over what it would be were they joined
    scores     bytes per attention score that goes through memory beside the products
    converts   what products of many rows read is narrowed from 32 bits, and what they write
               widened, by kernels of their own, once for each matrix
    widens     narrow weights are widened in memory before many rows are multiplied
    integers   where they would be, many rows are multiplied by them as they are
    by_row     operands of narrow products have scales by row and column (`Precision.by_row`)
    clamps     what experts' activations read is clamped by kernels of their own
    norms      norms of queries and keys head by head, and of what blocks put out, are kernels of
               their own; else they are in what was fitted
    persistent gradients of layer norms come at the rate of layer norms
    state      bytes of an element of the state of a scan or a delta rule
    casts      inputs of narrow products are narrowed by a kernel before each, not by the norm or
               activation that made them
    stream     bytes of an element of the residual stream, where more than `size` (autocast)
    apart      every matrix of a model's own code is multiplied by itself
    masked     windows are masks that no kernel skips
    merges_apart   blocks of attention are merged operator by operator, in 32 bits
    repeats    keys and values travel between ranks once for each query head
    short      prompts over chosen keys that are read as any others (`plans.SHORT_PROMPTS`)
    """

    core: str
    size: float
    linear: str
    experts: str
    head: str
    products: str
    cache: float = 0.0
    attention: str = "flash"
    chains: bool = True
    activations: bool = True
    rms: bool = True
    sums: bool = False
    latents: bool = False
    direct: bool = False
    ordered: bool = True
    experts_joined: bool = False
    traffic: float = 1.0
    scores: float = 0.0
    widens: bool = False
    integers: bool = False
    converts: bool = False
    casts: bool = True
    by_row: bool = False
    clamps: bool = False
    looped: bool = False
    norms: bool = False
    persistent: bool = False
    state: float = 4.0
    blocks: str = ""
    wide: Numeric = 0.0
    stream: Numeric = 0.0
    apart: bool = False
    masked: bool = False
    merges_apart: bool = False
    repeats: bool = False
    short: str = "dense"

    @property
    def many(self) -> float:
        """Rows beyond which a product's weights are widened in memory, or as if they were."""
        return INTEGER_ROWS if self.integers else MANY_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """What one rank has of the work; floats or arrays of the plans' shape.

    tp        ranks that split heads and inner widths
    ep, etp   ranks among which experts are divided, and ranks that split each
    tokens    that the linear layers multiply
    rows      tokens between the blocks: all, or those of the rank where they are split
    routed    tokens for which the rank chooses experts
    received  token copies that its experts work on
    busy      of its experts, those that have tokens
    vocab     its rows of the vocabulary
    idle      token copies of other ranks that its experts' kernels walk over, per copy of its own
    buffered  rows of the buffers that its experts' products go over; 0: the copies that came
    turn      experts that are dealt in turn (`plans.copies.distinct_share`); NaN: any are chosen
    """

    tp: Numeric
    ep: Numeric
    etp: Numeric
    tokens: Numeric
    rows: Numeric
    routed: Numeric
    received: Numeric
    busy: Numeric
    vocab: Numeric
    idle: Numeric = 0.0
    buffered: Numeric = 0.0
    turn: Numeric = np.nan


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """What a list has that trains.

    trained     of `plans.TRAINED`: all parameters, or adapters of `rank` beside frozen ones
    dropout     whether what blocks add is dropped out
    kept_rows   rows that a column-parallel product keeps of its input
    logits      bytes kept per logit
    narrow      whether inputs of narrow products are kept as narrow
    stored      bytes of a weight that is not trained; 0: as it is multiplied
    in_eight    whether such weights are multiplied in 8 bits (LLM.int8)
    restores    whether products with them give what they put out the data type of a wide input
    overwritten 1 where the loss writes its gradient over the logits, 0 where it is built from
                kernels that keep more
    index       whether what chooses keys learns
    style       how adapters are run, of `plans.ADAPTER_STYLES`
    sent_narrow 1 where sharded weights are gathered as narrow as they are multiplied
    """

    trained: str
    rank: Numeric
    dropout: bool
    kept_rows: Numeric
    logits: Numeric
    narrow: bool = True
    stored: float = 0.0
    in_eight: bool = False
    restores: bool = False
    overwritten: Numeric = 0.0
    index: bool = False
    style: str = "joined"
    sent_narrow: Numeric = 0.0

    def trains(self, adapted: bool, qkv: bool) -> bool:
        """Whether something beside a product is trained that reads its input: its weights, or an
        adapter of it where it may have one."""
        return not self.frozen or (adapted and (self.trained == "lora" or qkv))

    @property
    def frozen(self) -> bool:
        """Whether the model's own weights stay as they are."""
        return self.trained != "all"
