"""Collects the operators of one micro-batch: linear layers, norms, residuals, elementwise kernels.

The blocks of a model (`attention`, `mixture`, `mamba`) are written in these terms.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.work.primitives import Operator, gemm, streaming

QKV = ("attention.qkv", "attention.q_up", "attention.kv_up")
"""Projections to queries, keys and values."""


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """A work list in the making, and where in it the next operators go.

    module     of the operators that are added
    share      of the module's layers that have them: their `count`
    operators  the list itself, shared by all places
    """

    model: Model
    plan: TrainingPlan
    module: str = "layer"
    share: Numeric = 1.0
    operators: list[Operator] = field(default_factory=list)

    def on(self, module: str, share: Numeric = 1.0) -> Layers:
        """Another place of the same list."""
        return replace(self, module=module, share=share)

    @property
    def size(self) -> float:
        """Bytes of an activation element."""
        return self.plan.recipe.activation

    @property
    def dtype(self) -> str:
        """Data type of everything but the linear layers."""
        return self.plan.recipe.core

    @property
    def linear_dtype(self) -> str:
        """Data type of linear layers here; the output projection keeps the core's."""
        return self.plan.recipe.linear if self.module in ("layer", "dense", "moe") else self.dtype

    @property
    def tokens(self) -> Numeric:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.plan.tokens

    @property
    def split_tokens(self) -> Numeric:
        """The same divided among the tensor-parallel ranks."""
        return self.plan.tokens / self.plan.tp

    @property
    def rows(self) -> Numeric:
        """Tokens between the tensor-parallel blocks: whole, or split along the sequence."""
        return self.tokens / np.where(self.plan.sequence_parallel > 0, self.plan.tp, 1.0)

    @property
    def kept_rows(self) -> Numeric:
        """Rows that a column-parallel product keeps of its input: its own part of the sequence
        where the rest is gathered again, else all that was gathered."""
        return self.rows if self.plan.tp_regather else self.tokens

    @property
    def hidden(self) -> float:
        """Width of the residual stream."""
        return float(self.model.hidden)

    @property
    def mask(self) -> float:
        """Bytes of a dropout mask element."""
        return 1.0 if self.plan.dropout else 0.0

    def stream(
        self,
        name: str,
        op: str,
        variant: str,
        phase: str,
        rows: Numeric,
        columns: Numeric,
        bytes_per_element: Numeric,
        saved: Numeric = 0.0,
        *,
        core: bool = False,
        times: Numeric = 1.0,
    ) -> None:
        """A memory-bound kernel, `times` per layer."""
        self.operators.append(
            streaming(
                name,
                op,
                variant,
                phase,
                self.module,
                self.dtype,
                rows,
                columns,
                bytes_per_element,
                count=self.share * times,
                saved=saved,
                core=core,
            )
        )

    def product(
        self,
        name: str,
        layout: str,
        phase: str,
        m: Numeric,
        n: Numeric,
        k: Numeric,
        *,
        dtype: str = "",
        batch: Numeric = 1.0,
        out_bytes: float = 0.0,
        saved: Numeric = 0.0,
        core: bool = False,
        groups: Numeric = 1.0,
    ) -> None:
        """A matrix product; in the core's data type and with its output unless stated. `batch` run
        in one kernel, `groups` beside each other in one each."""
        self.operators.append(
            gemm(
                name,
                layout,
                phase,
                self.module,
                dtype or self.dtype,
                m,
                n,
                k,
                batch=batch * groups,
                out_bytes=out_bytes or self.size,
                count=self.share,
                saved=saved,
                core=core,
                kernels=groups,
            )
        )

    def linear(
        self,
        name: str,
        columns: Numeric,
        depth: Numeric,
        saved: Numeric,
        bias: bool = False,
        *,
        rows: Numeric | None = None,
        groups: Numeric = 1.0,
        adapted: bool = True,
        dtype: str = "",
    ) -> None:
        """y[rows, columns] = x[rows, depth] W and its two gradients; `saved` is its input, which
        is kept as narrow as it is multiplied. Narrow products include the casts of their operands,
        as the kernel tables do.

        rows     the micro-batch's tokens unless stated
        groups   products of that size, each with weights of its own, which run together and fill
                 each other's last waves; the host launches each by itself
        adapted  has an adapter where only adapters are trained; its own weights then have no
                 gradient (Hu et al. 2021, eq. 3)
        """
        m, n, k = (self.tokens if rows is None else rows), columns, depth
        dtype = dtype or self.linear_dtype
        saved = saved * min(ELEMENT_BYTES[dtype] / self.size, 1.0)

        self.product(name, "fwd", "forward", m, n, k, dtype=dtype, saved=saved, groups=groups)
        self.product(f"{name}.dgrad", "dgrad", "backward", m, k, n, dtype=dtype, groups=groups)
        if not self.plan.frozen:
            self.product(
                f"{name}.wgrad",
                "wgrad",
                "backward",
                n,
                k,
                m,
                dtype=dtype,
                out_bytes=4.0,
                groups=groups,
            )
            if bias:
                self.stream(f"{name}.bias", "elementwise", "bias_grad", "backward", m, n, self.size)
        elif adapted and (self.plan.trained == "lora" or name in QKV):
            self._adapter(name, m, n, k)

    def _adapter(self, name: str, m: Numeric, n: Numeric, k: Numeric) -> None:
        """y += (x A) B with A[k, r] and B[r, n], in 16 bits, and the gradients of both."""
        rank, size = self.plan.lora_rank, self.size
        for part, columns, depth in (("a", rank, k), ("b", n, rank)):
            label = f"{name}.lora_{part}"
            saved = size * m * rank if part == "b" else 0.0
            self.product(label, "fwd", "forward", m, columns, depth, saved=saved)
            self.product(f"{label}.dgrad", "dgrad", "backward", m, depth, columns)
            self.product(f"{label}.wgrad", "wgrad", "backward", columns, depth, m, out_bytes=4.0)
        self.stream(f"{name}.lora_add", "elementwise", "add", "forward", m, n, 3 * size)
        self.stream(f"{name}.lora_add.bwd", "elementwise", "add", "backward", m, k, 3 * size)

    def norm(self, name: str, rows: Numeric | None = None, width: Numeric | None = None) -> None:
        """A norm over the residual stream, unless other rows and width are stated.

        An RMS norm that nothing fuses is the kernels of its definition in fp32 (Touvron et al.
        2023, their code): casts both ways, square, mean, product, weight; backward the weight's
        gradient, two products and a sum for the mean, one for the square, and an addition.
        """
        rows = self.rows if rows is None else rows
        width = self.hidden if width is None else width
        kind, size = self.model.norm, self.size
        forward, backward = 2 * size, 3 * size
        if kind == "rmsnorm" and not self.plan.fused:
            casts = 2 * (size + 4.0) if size < 4 else 0.0
            forward, backward = casts + 5 * 4.0 + 2 * size, casts + 10 * 4.0 + 6 * size
        self.stream(name, "norm", kind, "forward", rows, width, forward, size * rows * width)
        self.stream(f"{name}.bwd", "norm", f"{kind}_bwd", "backward", rows, width, backward)

    def residual(self, name: str) -> None:
        """What a block adds to the residual stream, dropped out before where the plan says so."""
        rows, h, size, mask = self.rows, self.hidden, self.size, self.mask
        kind = "dropout_add" if self.plan.dropout else "add"
        self.stream(name, "elementwise", kind, "forward", rows, h, 3 * size + mask, mask * rows * h)
        self.stream(f"{name}.bwd", "elementwise", "add", "backward", rows, h, 3 * size)
        if self.plan.dropout:
            self.stream(
                f"{name}.dropout.bwd",
                "elementwise",
                "dropout_bwd",
                "backward",
                rows,
                h,
                2 * size + 1,
            )

    def activation(self, name: str, columns: Numeric, rows: Numeric | None = None) -> None:
        """The activation between the two products of a feed-forward block of inner width
        `columns`; on the micro-batch's tokens unless rows are stated."""
        gated = self.model.gated
        kind = "swiglu" if gated else self.model.activation
        reads = 2.0 if gated else 1.0
        streams = (reads + 1, 2 * reads + 1)
        if gated and not self.plan.fused:
            streams = (5.0, 8.0)  # silu, then the product, each a kernel of its own
        rows, size = (self.tokens if rows is None else rows), self.size
        self.stream(
            name,
            "elementwise",
            kind,
            "forward",
            rows,
            columns,
            streams[0] * size,
            reads * size * rows * columns,
        )
        self.stream(
            f"{name}.bwd",
            "elementwise",
            f"{kind}_bwd",
            "backward",
            rows,
            columns,
            streams[1] * size,
        )

    def feed_forward(
        self, name: str, ffn: Numeric, saved: Numeric, bias: bool, adapted: bool = True
    ) -> None:
        """Up (and gate), activation, down; `ffn` is the inner width on this rank."""
        sides = 2 if self.model.gated else 1
        h = self.hidden
        self.linear(f"{name}.up", ffn * sides, h, saved, bias, adapted=adapted)
        self.activation(f"{name}.activation", ffn)
        self.linear(f"{name}.down", h, ffn, self.size * self.tokens * ffn, bias, adapted=adapted)
