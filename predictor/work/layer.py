"""The blocks of a model in order, and its two ends: the list that training and serving share."""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.models import Model, sums_before
from predictor.records import dataclass
from predictor.work import alternating, compressed, delta_rule, mamba, ngrams, shared, short_conv
from predictor.work.attention import attention_block, decode, read
from predictor.work.cores import Reading
from predictor.work.mixture import mixture_block
from predictor.work.primitives import lookup
from predictor.work.worklist import WorkList

LOSS = 4.0
"""Traffic of the loss per logit, beside the logit itself [bytes]: its softmax in fp32 is written
forward and read backward, where the logit's gradient is written."""

WIDENED = 8.0
"""What a loss of PyTorch's own operators adds to that for logits in fewer than 32 bits [bytes]: a
kernel of its own widens them and writes what the loss reads, as its gradient is written and then
narrowed (cross_entropy(logits.float(), target))."""

OVER = (3.0, 2.0)
"""Passes over the logits of a loss that writes its gradient over them, forward and backward: they
are read for their largest and their sum, and read again where the gradient takes their place, which
the backward pass scales where it lies (Transformer Engine 2.0 to 2.14, common/triton/
cross_entropy.py and pytorch/triton/cross_entropy.py: `online_softmax_kernel`,
`cross_entropy_kernel`, `element_mul_kernel`)."""

DRAW = 12.0
"""Traffic of a draw per logit [bytes]: fp32 logits are read and probabilities written by a softmax,
and read again by the draw."""

DIGITS, PAIR = 6.0, 28.0
"""Passes of a radix sort over 32-bit keys with digits of 6 bits (CUB's segmented sort, from
memory), and the traffic of one per key [bytes]: keys are read twice and their 64-bit positions
once, both are written."""

FILTER = {"sorted": DIGITS * PAIR + 82.0, "fused": 16.0}
"""Traffic per fp32 logit of keeping the likeliest tokens alone, beside `DRAW` [bytes]. Sorted:
positions written 8, scaled by the temperature 8, the sort, its softmax 12, running sum 8,
comparison 5, fill 9, scatter back 16; noise 4 and its division 12
(vllm/v1/sample/ops/topk_topp_sampler.py). Fused: read four times (FlashInfer's sampling without a
sort)."""

PENALTIES = 85.0
"""Traffic per fp32 logit of penalties [bytes]: 64-bit counts of a prompt's and of an answer's
tokens and which are above 0, 17 each; repetition 10, frequency 24, presence 17
(vllm/model_executor/layers/utils.py, apply_penalties)."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many blocks of each kind a list counts: those of all layers, or of the mean layer.

    dense, moe  of the mean layer one of each that there is, whose modules are counted apart
    every       mixers and feed-forward blocks of all kinds together
    """

    attention: float
    mamba: float
    delta: float
    conv: float
    dense: float
    moe: float
    every: float


def _every(model: Model) -> float:
    """Mixers and feed-forward blocks of all layers."""
    others = model.mamba_layers + model.delta_layers + model.conv_layers
    return float(model.attention_blocks + others + model.ffn_blocks)


def all_blocks(model: Model) -> Blocks:
    """Blocks of all layers."""
    return Blocks(
        attention=float(model.attention_blocks),
        mamba=float(model.mamba_layers),
        delta=float(model.delta_layers),
        conv=float(model.conv_layers),
        dense=float(model.ffn_blocks - model.moe_layers),
        moe=float(model.moe_layers),
        every=_every(model),
    )


def mean_layer(model: Model) -> Blocks:
    """Blocks per layer."""
    return Blocks(
        attention=model.attention_share,
        mamba=model.mamba_share,
        delta=model.delta_share,
        conv=model.conv_share,
        dense=1.0 if model.has_dense else 0.0,
        moe=1.0,
        every=_every(model) / max(model.layers, 1),
    )


def _kinds(at: WorkList, held: Blocks) -> list[WorkList]:
    """A place for each kind of attention block, which has its part of them; none without any."""
    if not at.model.attends:
        return []
    kinds = at.model.attention_kinds
    if len(kinds) == 1:
        return [at.of(kinds[0][1]).on("layer", held.attention)]
    all_of_them = at.model.attention_blocks
    return [at.of(kind).on("layer", held.attention * n / all_of_them) for n, kind in kinds]


def _dense_places(at: WorkList, held: Blocks) -> list[WorkList]:
    """A place for each kind of dense feed-forward block."""
    kinds = at.model.dense_kinds
    if not held.dense:
        return []
    if len(kinds) == 1:
        return [at.on("dense", held.dense)]
    every = sum(n for n, _ in kinds)
    return [at.of(one).on("dense", held.dense * n / every) for n, one in kinds]


def _layer_input(at: WorkList) -> None:
    """What a layer adds of its own embedding of the token: the residual stream gates it, and it is
    projected, normed and added (Gemma 3n, Gemma 4: transformers, modeling_gemma4.py). Every
    tensor-parallel rank does all of it, on its part of the sequence."""
    width, h, size = float(at.model.layer_inputs), at.hidden, at.size
    rows = at.portion.rows
    at.linear("input.gate", width, h, rows=rows, saved=size * rows * h, adapted=False)
    at.activation("input.activation", width, rows=rows)
    at.linear("input.project", h, width, rows=rows, saved=size * rows * width, adapted=False)
    at.norm("input.norm")
    if not at.model.alternating_streams:  # else it is added to several
        at.residual("input.residual")


def _chosen_residual(at: WorkList) -> None:
    """What a block reads: the embedding, the sums of the blocks of layers before, and the sum of
    its own so far, weighted by a query of its own (attention residuals of Kimi K3: moonshotai,
    configuration key `attn_res_block_size`; ggml-org/llama.cpp pull request 26185, 2026). Every
    rank does all of it, in one kernel that reads each once. Gradients read them once more, and add
    to the gradient of each."""
    before = sums_before(at.model)
    at.stream(
        "residual.choose",
        "elementwise",
        "add",
        at.portion.rows,
        at.hidden,
        (before + 3.0) * at.size,
        alone=True,
        backward=("add", (3.0 * before + 7.0) * at.size),
        saved=at.size * at.portion.rows * at.hidden,
    )


def layer_blocks(at: WorkList, held: Blocks, reading: Reading | None) -> None:
    """All blocks; what attends and scans only where sequences are read.

    Attention and MLP may stand side by side, x + attention(norm(x)) + mlp(norm(x)), behind one norm
    or two (Wang & Komatsuzaki 2021, GPT-J; Chowdhery et al. 2022, section 2); so may attention and
    a state space, behind one (Falcon-H1).
    """
    model = at.model
    if model.residual_block:
        _chosen_residual(at.on("layer", held.every))
    if model.streams > 1:
        compressed.streams(at.on("layer", held.every))
    if model.ngram_layers:
        share = held.attention * model.ngram_layers / model.attention_blocks
        ngrams.added(at.on("layer", share))
    for place in _kinds(at, held):
        attention_block(place, reading)
    if model.is_hybrid:
        mamba.mamba_block(at.on("layer", held.mamba), reading)
    if model.delta_layers:
        delta_rule.delta_block(at.on("layer", held.delta), reading)
    if model.conv_layers:
        short_conv.conv_block(at.on("layer", held.conv))
    for dense in _dense_places(at, held):
        own = model.parallel != "shared_norm"  # else attention's norm serves both, and is kept
        if own:
            dense.norm("mlp.norm")
        saved = dense.size * dense.kept_rows * dense.hidden * own
        inner = dense.model.ffn_hidden / dense.portion.tp
        dense.feed_forward("mlp", inner, saved=saved, bias=model.bias)
        if model.shared_blocks:
            width = dense.model.ffn_in_width / dense.portion.tp
            shared.adapted(dense, "mlp.own", width, dense.hidden)
            shared.left(dense)
        dense.closing_norm("mlp.closing_norm")
        dense.residual("mlp.residual")
    if model.is_moe:
        mixture_block(at.on("moe", held.moe))
    if model.layer_inputs:
        _layer_input(at.on("layer", held.attention))
    if model.alternating_streams:
        alternating.layer(at.on("layer", held.attention))


def reading_cores(at: WorkList, held: Blocks, reading: Reading) -> None:
    """What attends and scans while sequences are read, by itself."""
    model = at.model
    for place in _kinds(at, held):
        read(place, reading)
    if model.is_hybrid:
        mamba.scan(at.on("layer", held.mamba), reading.sequences * reading.query, reading.query)
    if model.delta_layers:
        delta_rule.read(at.on("layer", held.delta), reading)


def decoding_cores(
    at: WorkList, held: Blocks, sequences: Numeric, keys: Numeric, guessed: Numeric
) -> None:
    """The same while each of `sequences` sequences gets `guessed` tokens behind `keys` others."""
    model = at.model
    for place in _kinds(at, held):
        decode(place, sequences, keys, guessed)
    if model.is_hybrid:
        mamba.update(at.on("layer", held.mamba), sequences * guessed)
    if model.delta_layers:
        delta_rule.update(at.on("layer", held.delta), sequences * guessed)


def embedding(at: WorkList) -> None:
    """Look-up of rows; its backward pass clears a whole table of gradients and adds to it."""
    rows, vocab, size = at.portion.tokens, at.portion.vocab, at.size
    h = float(at.model.embedding_width)
    table = size * vocab * h
    found = [("embedding", "fwd", 2 * size * rows * h, at.mask * at.portion.rows * at.hidden)]
    if at.learning and not at.learning.frozen:
        found.append(("embedding.bwd", "bwd", 3 * size * rows * h + table, 0.0))
    for name, variant, moved, saved in found:
        at.operators.append(
            lookup(
                name=name, variant=variant, module=at.module, dtype=at.software.core, rows=rows,
                columns=h, table=vocab, moved=moved, saved=at.kept(saved),
            )
        )  # fmt: skip
    if at.model.layer_inputs:
        _layer_inputs(at)
    if at.model.alternating_streams:
        alternating.ends(at, "altup.start")


def _layer_inputs(at: WorkList) -> None:
    """Inputs of all layers: the embedding projected, normed, and added to those looked up."""
    width, rows = float(at.model.layers * at.model.layer_inputs), at.portion.rows
    saved = at.size * rows * at.hidden
    at.linear("inputs.project", width, at.hidden, rows=rows, saved=saved, adapted=False)
    at.norm("inputs.norm", rows, width)
    at.stream("inputs.add", "elementwise", "add", rows, width, 3 * at.size)


def head(at: WorkList, rows: Numeric) -> None:
    """Final norm, output projection of `rows` rows, and the loss; or, where nothing is learned, the
    draw of the next tokens, from all logits on every rank."""
    vocab, h, size = at.portion.vocab, at.hidden, at.size
    if at.model.alternating_streams:
        alternating.ends(at, "altup.end")
    at.norm("final.norm")
    saved = size * at.kept_rows * h
    at.linear("head", vocab, h, rows=rows, saved=saved, adapted=False)
    if at.learning is None:
        at.stream("sample", "softmax", "fwd", rows, float(at.model.vocab), DRAW)
        return
    logits = at.learning.logits * rows * vocab
    loss = size + LOSS + (WIDENED if size < 4 and not at.software.chains else 0.0)
    for name, op, over, ahead, back in (
        ("loss", "loss", 1.0 - at.learning.overwritten, loss, loss),
        ("loss.over", "softmax", at.learning.overwritten, OVER[0] * size, OVER[1] * size),
    ):
        kept = logits * over
        at.stream(
            name, op, "fwd", rows, vocab, ahead, backward=("bwd", back), saved=kept, times=over
        )


def filtered_draw(at: WorkList, rows: Numeric, sampler: str, penalised: bool) -> None:
    """What drawing from the likeliest tokens alone adds, on every rank, to the draw of `rows` rows:
    finding them (`FILTER`), and penalties on tokens that were there before."""
    vocab = float(at.model.vocab)
    if penalised:
        at.stream("penalties", "softmax", "fwd", rows, vocab, PENALTIES)
    at.stream("filter", "softmax", "fwd", rows, vocab, FILTER[sampler])
