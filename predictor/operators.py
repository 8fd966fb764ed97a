"""The work list: which kernels one training step of a model under a plan runs.

Timing, memory, the profiler and the calibration all read this one list, so nothing is counted
twice or in two ways. Its length depends on the model and on the plan's categories only; what a
plan does not do has count 0. All dimensions broadcast over a batch of plans.

Equations: Narayanan et al. 2021 (matrix shapes under tensor parallelism); Korthikanti et al. 2022
(activation bytes, sequence parallelism); Dao 2023 (attention without the score matrix).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.hardware import Numeric
from predictor.model import Model
from predictor.plan import TrainingPlan
from predictor.precision import ELEMENT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One kernel: what it computes, how often, and what it leaves behind.

    op       'gemm', 'attention_prefill', 'attention_backward', 'norm', 'elementwise', 'softmax',
             'embedding', 'loss', 'optimizer'
    variant  of the op: layout of a product ('fwd', 'dgrad', 'wgrad', 'bmm', 'bmm_bwd'), kind of
             an elementwise kernel ('gelu', 'add', ...), direction of the others
    phase    'forward', 'recompute', 'backward' or 'update'
    module   'layer' (count is per layer and micro-batch), 'embedding' and 'head' (per
             micro-batch), 'update' (per step)
    m, n, k, batch   product: C[m,n] = A[m,k] B[k,n], `batch` of them; attention: query length,
             key length, head size, sequences x heads; the rest: rows, columns
    flop     arithmetic [FLOP]
    bytes    least traffic to and from memory [bytes]
    count    executions per unit of `module`
    saved    bytes kept from the forward to the backward pass
    core     belongs to the attention core, which selective recomputation repeats
    """

    name: str
    op: str
    variant: str
    phase: str
    module: str
    dtype: str
    m: Numeric
    n: Numeric
    k: Numeric = 1.0
    batch: Numeric = 1.0
    flop: Numeric = 0.0
    bytes: Numeric = 0.0
    count: Numeric = 1.0
    saved: Numeric = 0.0
    core: bool = False


def gemm(
    name: str,
    layout: str,
    phase: str,
    module: str,
    dtype: str,
    m: Numeric,
    n: Numeric,
    k: Numeric,
    *,
    batch: Numeric = 1.0,
    out_bytes: float = 2.0,
    saved: Numeric = 0.0,
    core: bool = False,
) -> Operator:
    """A matrix product C[m,n] = A[m,k] B[k,n], `batch` times, `out_bytes` per element of C."""
    size = ELEMENT_BYTES[dtype]
    flop = 2.0 * m * n * k * batch
    moved = (size * (m * k + k * n) + out_bytes * m * n) * batch
    return Operator(
        name, "gemm", layout, phase, module, dtype, m, n, k, batch, flop, moved, 1.0, saved, core
    )


def streaming(
    name: str,
    op: str,
    variant: str,
    phase: str,
    module: str,
    dtype: str,
    rows: Numeric,
    columns: Numeric,
    bytes_per_element: Numeric,
    *,
    saved: Numeric = 0.0,
    core: bool = False,
) -> Operator:
    """A kernel that streams rows x columns elements, reads and writes together
    `bytes_per_element`."""
    moved = rows * columns * bytes_per_element
    return Operator(
        name, op, variant, phase, module, dtype, rows, columns, bytes=moved, saved=saved, core=core
    )


class _Layers:
    """Collects the operators of one layer and of the model's two ends for one micro-batch."""

    def __init__(self, model: Model, plan: TrainingPlan) -> None:
        self.model, self.plan = model, plan
        self.size, self.dtype = plan.recipe.activation, plan.recipe.core
        self.tokens = plan.tokens
        # Between the tensor-parallel blocks activations are whole, or split along the sequence.
        self.rows = self.tokens / np.where(plan.sequence_parallel > 0, plan.tp, 1.0)
        self.hidden = float(model.hidden)
        self.mask = 1.0 if plan.dropout else 0.0  # bytes of a dropout mask element
        self.operators: list[Operator] = []

    def stream(
        self,
        name: str,
        op: str,
        variant: str,
        phase: str,
        module: str,
        rows: Numeric,
        columns: Numeric,
        bytes_per_element: float,
        saved: Numeric = 0.0,
        core: bool = False,
    ) -> None:
        self.operators.append(
            streaming(
                name,
                op,
                variant,
                phase,
                module,
                self.dtype,
                rows,
                columns,
                bytes_per_element,
                saved=saved,
                core=core,
            )
        )

    def linear(
        self,
        name: str,
        columns: Numeric,
        depth: Numeric,
        saved: Numeric,
        bias: bool,
        module: str = "layer",
    ) -> None:
        """y[tokens, columns] = x[tokens, depth] W and its two gradients; `saved` is its input."""
        dtype = self.plan.recipe.linear if module == "layer" else self.dtype
        m, n, k, size = self.tokens, columns, depth, self.size
        self.operators += [
            gemm(name, "fwd", "forward", module, dtype, m, n, k, out_bytes=size, saved=saved),
            gemm(f"{name}.dgrad", "dgrad", "backward", module, dtype, m, k, n, out_bytes=size),
            gemm(f"{name}.wgrad", "wgrad", "backward", module, dtype, n, k, m, out_bytes=4.0),
        ]
        if bias:
            self.stream(f"{name}.bias", "elementwise", "bias_grad", "backward", module, m, n, size)

    def norm(self, name: str, module: str = "layer") -> None:
        kind, rows, h, size = self.model.norm, self.rows, self.hidden, self.size
        self.stream(name, "norm", kind, "forward", module, rows, h, 2 * size, size * rows * h)
        self.stream(f"{name}.bwd", "norm", f"{kind}_bwd", "backward", module, rows, h, 3 * size)

    def residual(self, name: str) -> None:
        rows, h, size, mask = self.rows, self.hidden, self.size, self.mask
        kind = "dropout_add" if self.plan.dropout else "add"
        self.stream(
            name, "elementwise", kind, "forward", "layer", rows, h, 3 * size + mask, mask * rows * h
        )
        self.stream(f"{name}.bwd", "elementwise", "add", "backward", "layer", rows, h, 3 * size)
        if self.plan.dropout:
            self.stream(
                f"{name}.dropout.bwd",
                "elementwise",
                "dropout_bwd",
                "backward",
                "layer",
                rows,
                h,
                2 * size + 1,
            )

    def rope(self, columns: Numeric) -> None:
        if self.model.positions != "rope":
            return
        passes = 1 if self.plan.fused else 3  # unfused: two products, a rotation and a sum
        for suffix, phase in (("", "forward"), (".bwd", "backward")):
            self.stream(
                f"attention.rope{suffix}",
                "elementwise",
                "rope",
                phase,
                "layer",
                self.tokens,
                columns,
                2 * self.size * passes,
            )

    def flash_attention(self, heads: Numeric, kv_heads: Numeric) -> None:
        plan, d, size = self.plan, float(self.model.head_dim), self.size
        batch, query, key = plan.micro_batch * heads, plan.seq_len / plan.cp, plan.seq_len
        flop = 0.5 * 4.0 * batch * query * key * d  # causal: half of the score matrix
        moved = size * self.tokens * d * (2 * heads + 2 * kv_heads * plan.cp)
        saved = size * self.tokens * d * (2 * heads + 2 * kv_heads) + 4.0 * self.tokens * heads
        self.operators += [
            Operator(
                "attention",
                "attention_prefill",
                "flash2" if plan.attention == "triton" else plan.attention,
                "forward",
                "layer",
                self.dtype,
                query,
                key,
                d,
                batch,
                flop,
                moved,
                saved=saved,
                core=True,
            ),
            Operator(
                "attention.bwd",
                "attention_backward",
                "flash2" if plan.attention == "triton" else plan.attention,
                "backward",
                "layer",
                self.dtype,
                query,
                key,
                d,
                batch,
                2.5 * flop,
                2.0 * moved,
                core=True,
            ),
        ]

    def unfused_attention(self, heads: Numeric, kv_heads: Numeric) -> None:
        plan, d, size = self.plan, float(self.model.head_dim), self.size
        batch, query, key = plan.micro_batch * heads, plan.seq_len / plan.cp, plan.seq_len
        rows, kv = batch * query, size * self.tokens * d * kv_heads

        def product(
            name: str,
            layout: str,
            phase: str,
            m: Numeric,
            n: Numeric,
            k: Numeric,
            saved: Numeric = 0.0,
        ) -> None:
            self.operators.append(
                gemm(
                    name,
                    layout,
                    phase,
                    "layer",
                    self.dtype,
                    m,
                    n,
                    k,
                    batch=batch,
                    out_bytes=size,
                    saved=saved,
                    core=True,
                )
            )

        def elementwise(
            name: str,
            op: str,
            variant: str,
            phase: str,
            bytes_per_element: float,
            saved: Numeric = 0.0,
        ) -> None:
            self.stream(
                name, op, variant, phase, "layer", rows, key, bytes_per_element, saved, core=True
            )

        product(
            "attention.scores",
            "bmm",
            "forward",
            query,
            key,
            d,
            saved=size * self.tokens * d * heads + kv,
        )
        elementwise("attention.softmax", "softmax", "fwd", "forward", 2 * size, size * rows * key)
        if plan.dropout:
            elementwise(
                "attention.dropout",
                "elementwise",
                "dropout",
                "forward",
                2 * size + 1,
                (size + 1) * rows * key,
            )
        product("attention.context", "bmm", "forward", query, d, key, saved=kv)
        product("attention.context.dgrad", "bmm_bwd", "backward", query, key, d)
        product("attention.context.wgrad", "bmm_bwd", "backward", key, d, query)
        if plan.dropout:
            elementwise(
                "attention.dropout.bwd", "elementwise", "dropout_bwd", "backward", 2 * size + 1
            )
        elementwise("attention.softmax.bwd", "softmax", "bwd", "backward", 3 * size)
        product("attention.scores.dgrad", "bmm_bwd", "backward", query, d, key)
        product("attention.scores.wgrad", "bmm_bwd", "backward", key, d, query)

    def activation(self, columns: Numeric) -> None:
        kind = "swiglu" if self.model.gated else self.model.activation
        reads = 2.0 if self.model.gated else 1.0
        streams = (reads + 1, 2 * reads + 1)
        if self.model.gated and not self.plan.fused:
            streams = (5.0, 8.0)  # silu, then the product, each a kernel of its own
        rows, size = self.tokens, self.size
        self.stream(
            "mlp.activation",
            "elementwise",
            kind,
            "forward",
            "layer",
            rows,
            columns,
            streams[0] * size,
            reads * size * rows * columns,
        )
        self.stream(
            "mlp.activation.bwd",
            "elementwise",
            f"{kind}_bwd",
            "backward",
            "layer",
            rows,
            columns,
            streams[1] * size,
        )

    def layer(self) -> None:
        """One transformer layer."""
        model, plan, size, h = self.model, self.plan, self.size, self.hidden
        heads = model.heads / plan.tp
        kv_heads = np.maximum(model.kv_heads / plan.tp, 1.0)  # replicated where tp > kv_heads
        q_width, kv_width = heads * model.head_dim, kv_heads * model.head_dim
        ffn = model.ffn_hidden / plan.tp
        self.norm("attention.norm")
        self.linear(
            "attention.qkv",
            q_width + 2 * kv_width,
            h,
            size * self.rows * h,
            model.bias or model.qkv_bias,
        )
        self.rope(q_width + kv_width)
        flash = plan.attention != "unfused"
        (self.flash_attention if flash else self.unfused_attention)(heads, kv_heads)
        # Flash attention has saved its output, which is the input of the projection.
        self.linear(
            "attention.out", h, q_width, 0.0 if flash else size * self.tokens * q_width, model.bias
        )
        self.residual("attention.residual")
        self.norm("mlp.norm")
        self.linear("mlp.up", ffn * (2 if model.gated else 1), h, size * self.rows * h, model.bias)
        self.activation(ffn)
        self.linear("mlp.down", h, ffn, size * self.tokens * ffn, model.bias)
        self.residual("mlp.residual")

    def recomputation(self) -> None:
        """The forward kernels of a layer that run once more before its backward pass."""
        for operator in list(self.operators):
            count = repeats(operator, self.plan)
            if operator.phase == "forward" and count is not None:
                self.operators.append(
                    replace(
                        operator,
                        name=f"{operator.name}.again",
                        phase="recompute",
                        count=count,
                        saved=0.0,
                    )
                )

    def embedding(self, vocab: Numeric) -> None:
        """Look-up of rows; its backward pass clears a whole table of gradients and adds to it."""
        rows, h, size = self.tokens, self.hidden, self.size
        table = size * vocab * h
        for name, variant, phase, moved, saved in (
            ("embedding", "fwd", "forward", 2 * size * rows * h, self.mask * self.rows * h),
            ("embedding.bwd", "bwd", "backward", 3 * size * rows * h + table, 0.0),
        ):
            self.operators.append(
                Operator(
                    name,
                    "embedding",
                    variant,
                    phase,
                    "embedding",
                    self.dtype,
                    rows,
                    h,
                    vocab,
                    bytes=moved,
                    saved=saved,
                )
            )

    def ends(self) -> None:
        """Embedding on the first stage; final norm, output projection and loss on the last."""
        tokens, h, size = self.tokens, self.hidden, self.size
        vocab = self.plan.vocab_share(self.model.vocab)
        self.embedding(vocab)
        self.norm("final.norm", "head")
        self.linear("head", vocab, h, size * self.rows * h, False, "head")
        self.stream(
            "loss",
            "loss",
            "fwd",
            "forward",
            "head",
            tokens,
            vocab,
            size + 4,
            (size + 4) * tokens * vocab,
        )
        self.stream("loss.bwd", "loss", "bwd", "backward", "head", tokens, vocab, size + 4)


def repeats(operator: Operator, plan: TrainingPlan) -> Numeric | None:
    """How often recomputation runs a forward kernel of a layer again; None if never."""
    if plan.recompute == "full":
        return plan.recompute_share
    if plan.recompute == "selective" and operator.core:
        return 1.0
    if plan.recompute == "per_op" and not operator.core:
        return 0.5 if operator.op == "gemm" else 1.0
    return None


def step_operators(model: Model, plan: TrainingPlan) -> list[Operator]:
    """Kernels of one micro-batch on one rank: a layer (forward, backward, what is recomputed),
    the embedding, the output projection and the loss.

    model  a dense model (mixtures of experts and latent attention are refused by `training`).
    plan   one plan or a batch.
    """
    layers = _Layers(model, plan)
    layers.layer()
    layers.recomputation()
    layers.ends()
    return layers.operators


def update_operators(plan: TrainingPlan, parameters: Numeric) -> list[Operator]:
    """Kernels of the optimizer step on one rank.

    parameters   parameters that this rank updates, float or array.

    Adam reads the gradient, the moments and the master copy (the weight itself where there is no
    other) and writes the last three and the weight. With clipping, the norm reads the gradients
    and the scaling reads and writes them. Clearing writes them.
    """
    grads, states = plan.gradient_bytes, plan.optimizer_bytes
    own_master = np.where(states < 12, plan.weight_bytes, 0.0)
    adam = grads + 2 * states + own_master + plan.weight_bytes
    clipping = grads * (4 if plan.grad_clip else 1)
    tags = ("update", "update", "fp32", parameters, 1.0)
    return [
        streaming("optimizer", "optimizer", "adam", *tags, adam),
        streaming("gradient.clip", "elementwise", "add", *tags, clipping),
    ]
