"""A work list in the making: whose work it is, what runs it, and the kernels all blocks have.

Training and serving write the same list. Its forward pass with a cache is serving; with gradients
(`Learning`) every kernel is followed by those of its backward pass. What software differs in, in
data types and in what it joins in one kernel, is stated once (`Software`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import partial

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.models import Model, has_closing_norms
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.records import dataclass, replace
from predictor.work import adapters, casts, written
from predictor.work.primitives import Operator, Small, gemm, streaming
from predictor.work.setting import Learning, Portion, Software

LAYER_MODULES = ("layer", "dense", "moe")
"""Modules that make up the layers, which recomputation repeats."""

QKV = ("attention.qkv", "attention.q_up", "attention.kv_up")
"""Projections to queries, keys and values."""

BLOCK_SCALED = ("fp8_block", "mxfp8", "nvfp4")
"""Data types with a scale for each block of the dimension along which products add up: the gradient
of the weights adds up along another than the other two, so that Transformer Engine narrows inputs
and gradients for both in one kernel, which reads once and writes twice (2.5 to 2.14,
pytorch/module/linear.py and grouped_linear.py: `set_usage(rowwise=True, columnwise=True)`)."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkList:
    """A work list in the making, and where in it the next operators go.

    learning   None: the forward pass only, which keeps nothing
    module     of the operators that are added
    share      how many blocks have them, per unit of the module or in all: their `count`
    operators  the list itself, shared by all places
    """

    model: Model
    software: Software
    portion: Portion
    learning: Learning | None = None
    module: str = "layer"
    share: Numeric = 1.0
    operators: list[Operator] = field(default_factory=list)

    def on(self, module: str, share: Numeric = 1.0) -> WorkList:
        """Another place of the same list."""
        return replace(self, module=module, share=share)

    def of(self, model: Model) -> WorkList:
        """The same place for blocks of one kind of a model (`Model.attention_kinds`)."""
        return self if model is self.model else replace(self, model=model)

    @property
    def unlearned(self) -> WorkList:
        """The same place for what has no gradient, whatever else learns."""
        return replace(self, learning=None)

    @property
    def size(self) -> float:
        """Bytes of an activation element."""
        return self.software.size

    @property
    def linear_dtype(self) -> str:
        """Data type of linear layers here."""
        if self.module in LAYER_MODULES:
            own = self.software.blocks if self.module != "layer" else ""
            return own or self.software.linear
        return self.software.head if self.module == "head" else self.software.core

    @property
    def hidden(self) -> float:
        """Width of the residual stream."""
        return float(self.model.hidden)

    @property
    def kept_rows(self) -> Numeric:
        """Rows that a column-parallel product keeps of its input: its own part of the sequence
        where the rest is gathered again, else all that was gathered."""
        return self.learning.kept_rows if self.learning else 0.0

    @property
    def mask(self) -> float:
        """Bytes of a dropout mask element."""
        return 1.0 if self.learning and self.learning.dropout else 0.0

    def kept(self, saved: Numeric) -> Numeric:
        """Bytes kept for a backward pass: none where there is none."""
        return saved if self.learning else 0.0

    def stretch(self, start: int, forward: float, backward: float) -> None:
        """Say of the operators from `start` on that they take so much longer than what is timed in
        their stead (`Operator.stretch`)."""
        for i, one in enumerate(self.operators[start:], start):
            longer = backward if one.phase == "backward" else forward
            self.operators[i] = replace(one, stretch=longer)

    def stream(
        self,
        name: str,
        op: str,
        variant: str,
        rows: Numeric,
        columns: Numeric,
        streams: Numeric,
        *,
        backward: tuple[str, Numeric] | None = None,
        phase: str = "forward",
        saved: Numeric = 0.0,
        core: bool = False,
        times: Numeric = 1.0,
        alone: bool = False,
        kernels: tuple[Numeric, Numeric] = (1.0, 1.0),
        stretch: tuple[Numeric, Numeric] = (1.0, 1.0),
        worked: float = 0.0,
    ) -> None:
        """A memory-bound kernel, `times` per block, and its gradient's where the list learns.

        streams   bytes per element, read and written together
        backward  variant and bytes per element of the gradient's kernel; None if there is none
        alone     a kernel that nothing is joined with in any software
        kernels   that it is, and its gradient's
        stretch   of it, and of its gradient (`Operator.stretch`)
        worked    as of `streaming`
        """
        parts = [(name, variant, phase, streams, saved, 0)]
        if backward and self.learning:
            parts.append((f"{name}.bwd", backward[0], "backward", backward[1], 0.0, 1))
        for label, kind, when, moved, kept, back in parts:
            self.operators.append(
                streaming(
                    name=label,
                    op=op,
                    variant=kind,
                    phase=when,
                    module=self.module,
                    dtype=self.software.core,
                    rows=rows,
                    columns=columns,
                    bytes_per_element=moved * (1.0 if alone else self.software.traffic),
                    count=self.share * times,
                    saved=self.kept(kept),
                    core=core,
                    kernels=kernels[back],
                    stretch=stretch[back],
                    worked=worked,
                )
            )

    def product(
        self,
        name: str,
        layout: str,
        m: Numeric,
        n: Numeric,
        k: Numeric,
        *,
        phase: str = "forward",
        dtype: str = "",
        batch: Numeric = 1.0,
        out_bytes: float = 0.0,
        saved: Numeric = 0.0,
        core: bool = False,
        groups: Numeric = 1.0,
        times: Numeric = 1.0,
        ready: bool = False,
        turned: bool = False,
    ) -> None:
        """A matrix product; in the core's data type and with its output unless stated. `batch` run
        in one kernel, `groups` beside each other in one each, which narrow what they read in one
        each, too (Transformer Engine 2.5 to 2.13, pytorch/csrc/extensions/cast.cpp:
        `multi_tensor_quantize_impl`). `ready`: both operands have been narrowed before. `turned`:
        what narrows the first writes it once more for the gradient of the weights."""
        dtype = dtype or self.software.core
        narrow = ELEMENT_BYTES[dtype] < ELEMENT_BYTES[self.software.core]
        cast = float(narrow and self.software.casts and not ready)
        again = turned * ELEMENT_BYTES[dtype] / (ELEMENT_BYTES[dtype] + self.size)
        came = casts.come(name, self.software.by_row, self.portion) if self.learning else 0.0
        self.operators.append(
            gemm(
                name=name,
                layout=layout,
                phase=phase,
                module=self.module,
                dtype=self.software.products if dtype == self.software.core else dtype,
                m=m,
                n=n,
                k=k,
                batch=batch * groups,
                out_bytes=out_bytes or self.size,
                count=self.share * times,
                saved=self.kept(saved),
                core=core,
                kernels=groups + cast * (groups - 1.0),
                joined=came - (1.0 - came) * again if cast else float(narrow),
            )
        )

    def linear(
        self,
        name: str,
        columns: Numeric,
        depth: Numeric,
        *,
        saved: Numeric = 0.0,
        bias: bool = False,
        rows: Numeric | None = None,
        groups: Numeric = 1.0,
        adapted: bool = True,
        dtype: str = "",
    ) -> None:
        """y[rows, columns] = x[rows, depth] W, and its two gradients where the list learns; `saved`
        is its input, which is kept as narrow as it is multiplied. Narrow products include the casts
        of their operands, as the kernel tables do.

        rows     the portion's tokens unless stated
        groups   products of that size, each with weights of its own, which run together and fill
                 each other's last waves; the host launches each by itself
        adapted  has an adapter where only adapters are trained; its own weights then have no
                 gradient (Hu et al. 2021, eq. 3)
        """
        m, n, k = (self.portion.tokens if rows is None else rows), columns, depth
        if not dtype and np.any(self._wide > 0.0):
            for place, own in self._of_both_widths():
                place.linear(
                    name, n, k, saved=saved, bias=bias, rows=m, groups=groups, adapted=adapted,
                    dtype=own,
                )  # fmt: skip
            return
        dtype = dtype or self.linear_dtype
        saved = self._kept_input(saved, dtype, adapted, name)
        each = adapters.matrices(name, self.model.gated) if self.software.apart else 1.0
        if self.software.widens and WEIGHT_BYTES[dtype] < ELEMENT_BYTES[dtype]:
            self._widened(name, m, n, k, dtype)
        else:
            turned = self._turned(dtype)
            self.product(
                name, "fwd", m, n / each, k, dtype=dtype, saved=saved / each, groups=groups,
                turned=turned, times=each,
            )  # fmt: skip
        if self.software.converts:
            self._converted(name, m, n, k)
        by_row, learning = self.software.by_row, self.learning
        sizes = m * groups, n * groups, k
        self._beside(name, casts.beside(dtype, self.size, by_row, learning, *sizes))
        if self.learning:
            if 0.0 < self.learning.stored < ELEMENT_BYTES[dtype] and self.module in LAYER_MODULES:
                self._beside(name, casts.widened(self.learning, dtype, each, m, n * groups, k))
            self._gradients(
                learning=self.learning, name=name, m=m, n=n, k=k, dtype=dtype, groups=groups,
                bias=bias, adapted=adapted, each=each,
            )  # fmt: skip

    @property
    def _wide(self) -> Array:
        """Share of the blocks here that multiply in 16 bits although others are narrower."""
        narrow = ELEMENT_BYTES[self.linear_dtype] < self.size and self.module in LAYER_MODULES
        return np.asarray(self.software.wide, float) * narrow

    def _of_both_widths(self) -> tuple[tuple[WorkList, str], tuple[WorkList, str]]:
        """Places for the blocks whose linear layers are narrow and for the wide ones, and the data
        types of both."""
        wide = self._wide
        return (
            (self.on(self.module, self.share * (1.0 - wide)), self.linear_dtype),
            (self.on(self.module, self.share * wide), self.software.core),
        )

    def _turned(self, dtype: str) -> bool:
        """Whether operands are narrowed along both of their dimensions at once: where they are kept
        so for the gradient of the weights, and have scales along the dimension that is added up."""
        learning = self.learning
        return bool(learning and learning.narrow and not learning.frozen and dtype in BLOCK_SCALED)

    def _kept_input(self, saved: Numeric, dtype: str, adapted: bool, name: str) -> Numeric:
        """Of a linear layer's input [bytes]: as narrow as it is multiplied where the framework
        keeps it so; none where nothing that reads it is trained."""
        learning = self.learning
        if learning and not learning.trains(adapted, name in QKV):
            return 0.0
        narrow = learning.narrow if learning else True
        if learning and not narrow and self.software.chains and self._again(name, dtype):
            return 0.0
        return saved * min(ELEMENT_BYTES[dtype] / self.size, 1.0) if narrow else saved

    def _again(self, name: str, dtype: str) -> bool:
        """Whether a compiled graph makes a narrow product's input once more from what the norm or
        the activation before it read, as it casts it (torch.compile with torchao: traces of steps
        on an H200, whose tensors took so much less)."""
        ends = ("attention.qkv", "mlp.up", "mlp.down", "shared.up", "shared.down")
        return ELEMENT_BYTES[dtype] < self.size and name in ends

    def _widened(self, name: str, m: Numeric, n: Numeric, k: Numeric, dtype: str) -> None:
        """Few rows are multiplied with the narrow weights as they are; many after those have been
        widened in memory, or as quickly as then."""
        many = np.where(np.asarray(m) > self.software.many, 1.0, 0.0)
        half = self.software.products
        moved = WEIGHT_BYTES[dtype] + ELEMENT_BYTES[half]
        self.product(name, "fwd", m, n, k, dtype=dtype, times=1.0 - many)
        if not self.software.integers:
            self.stream(f"{name}.widen", "elementwise", "copy", k, n, moved, times=many, alone=True)
        self.product(f"{name}.wide", "fwd", m, n, k, dtype=half, times=many)

    def _converted(self, name: str, m: Numeric, n: Numeric, k: Numeric) -> None:
        """Kernels around products of many rows: inputs from 32 bits to 16, once for each matrix (of
        queries, keys and values; of both sides of a gate), outputs from 16 bits to 32."""
        many = np.where(np.asarray(m) > self.software.many, 1.0, 0.0)
        columns = adapters.matrices(name, self.model.gated) * k + n
        moved = Small("convert", "copy", "forward", m, columns, 6.0, times=many)
        self._beside(name, [moved])

    def _gradients(
        self,
        learning: Learning,
        name: str,
        m: Numeric,
        n: Numeric,
        k: Numeric,
        dtype: str,
        groups: Numeric,
        bias: bool,
        adapted: bool,
        each: float,
    ) -> None:
        """Of a linear layer's input and, unless they are frozen, of its weights; `each` matrices
        add to that of the input one by one."""
        back = partial(self.product, phase="backward", dtype=dtype, groups=groups, times=each)
        back(f"{name}.dgrad", "dgrad", m, k, n / each, turned=self._turned(dtype))
        if each > 1.0:
            self.stream(
                f"{name}.sum.bwd", "elementwise", "add", m, k, 3.0 * self.size, phase="backward",
                times=each - 1.0,
            )  # fmt: skip
        if not learning.frozen:
            # Inputs are kept narrow in both directions, as are gradients since the product before.
            ready = learning.narrow
            back(f"{name}.wgrad", "wgrad", n / each, k, m, out_bytes=4.0, ready=ready)
            if bias:
                self.stream(
                    f"{name}.bias", "elementwise", "bias_grad", m, n, self.size, phase="backward"
                )
        elif adapted:
            self.adapter(name, n, k, m)

    def adapter(self, name: str, n: Numeric, k: Numeric, m: Numeric | None = None) -> None:
        """What is learned beside a linear layer of n columns and depth k (`adapters.adapter`), of
        the portion's tokens unless rows are stated; nothing where `name` has no adapter."""
        learning, sides = self.learning, adapters.matrices(name, self.model.gated)
        if not (learning and learning.frozen and learning.trains(True, name in QKV)):
            return
        rows = self.portion.tokens if m is None else m
        for one in adapters.products(learning, self.size, sides, n, k, rows):
            self.product(
                f"{name}.{one.label}", one.layout, one.m, one.n, one.k, dtype=one.dtype,
                phase="forward" if one.layout == "fwd" else "backward", saved=one.saved,
                out_bytes=one.out_bytes, times=one.times,
            )  # fmt: skip
        self._beside(name, adapters.beside(learning, self.size, sides, n, k, rows))

    def _beside(self, name: str, kernels: Iterable[Small]) -> None:
        """Small kernels beside a linear layer, with which nothing is joined."""
        for one in kernels:
            self.stream(
                f"{name}.{one.label}", "elementwise", one.variant, one.rows, one.columns,
                one.streams, phase=one.phase, saved=one.saved, times=one.times, alone=True,
                stretch=(one.stretch, one.stretch), worked=one.worked,
            )  # fmt: skip

    def norm(self, name: str, rows: Numeric | None = None, width: Numeric | None = None) -> None:
        """A norm over the residual stream, unless other rows and width are stated (`written`)."""
        found = written.norm(self.model.norm, self.software, rows is None and width is None)
        rows = self.portion.rows if rows is None else rows
        width = self.hidden if width is None else width
        kind = self.model.norm
        back = kind if kind == "layernorm" and self.software.persistent else f"{kind}_bwd"
        self.stream(
            name,
            "norm",
            kind,
            rows,
            width,
            found.forward,
            backward=(back, found.backward),
            saved=found.kept * rows * width,
            kernels=found.kernels,
        )

    def closing_norm(self, name: str) -> None:
        """Norm of what a block puts out, where a family has one; engines join it with what follows
        and have it in what they are fitted to."""
        if self.software.norms and has_closing_norms(self.model):
            self.norm(name)

    def residual(self, name: str) -> None:
        """What a block adds to the residual stream, dropped out before where the list says so;
        nothing where the next norm adds it, or where several streams are mixed."""
        if self.software.sums or self.model.streams > 1:
            return
        rows, h, size, mask = self.portion.rows, self.hidden, self.size, self.mask
        forward, backward = written.addition(self.software)
        self.stream(
            name,
            "elementwise",
            "dropout_add" if mask else "add",
            rows,
            h,
            forward + mask,
            backward=("add", backward),
            saved=mask * rows * h,
        )
        if mask:
            self.stream(
                f"{name}.dropout.bwd", "elementwise", "dropout_bwd", rows, h, 2 * size + 1,
                phase="backward",
            )  # fmt: skip

    def activation(
        self,
        name: str,
        columns: Numeric,
        rows: Numeric | None = None,
        beside: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """The activation between the two products of a feed-forward block of inner width
        `columns`; on the portion's tokens unless rows are stated.

        beside   traffic of what goes with it, forward and backward, per element of its output
                 [bytes]
        """
        gated = self.model.gated
        kind = "swiglu" if gated else self.model.activation
        restored = bool(self.learning and self.learning.restores)
        size, reads = written.FULL if restored else self.size, 2.0 if gated else 1.0
        found = written.Small((reads + 1) * size, (2 * reads + 1) * size, kept=reads * size)
        if gated and not self.software.activations:  # silu, then the product, each by itself
            found = replace(found, forward=5.0 * size, backward=8.0 * size)
        if kind == written.SQUARED_RELU and not self.software.activations:
            found = written.squared_relu(size)
        if kind == written.NEW_GELU:
            kind = "gelu"
            if not self.software.rms:
                found = written.gelu(self.software)
        rows = self.portion.tokens if rows is None else rows
        self.stream(
            name, "elementwise", kind, rows, columns, found.forward + beside[0],
            backward=(f"{kind}_bwd", found.backward + beside[1]),
            saved=found.kept * rows * columns * (self.size / size),
            kernels=found.kernels,
        )  # fmt: skip

    def feed_forward(
        self,
        name: str,
        inner: Numeric,
        *,
        saved: Numeric = 0.0,
        bias: bool = False,
        adapted: bool = True,
    ) -> None:
        """Up (and gate), activation, down; `inner` is the width between them on this rank."""
        sides = 2 if self.model.gated else 1
        h, kept = self.hidden, self.size * self.portion.tokens * inner
        self.linear(f"{name}.up", inner * sides, h, saved=saved, bias=bias, adapted=adapted)
        self.activation(f"{name}.activation", inner)
        self.linear(f"{name}.down", h, inner, saved=kept, bias=bias, adapted=adapted)

    def mixed(
        self,
        name: str,
        m: Numeric,
        n: Numeric,
        k: Numeric,
        batch: Numeric,
        *,
        repeated: bool = False,
        saved: Numeric = 0.0,
        weights: bool = False,
    ) -> None:
        """A product of two activations, or (`weights`) of one with a matrix for each of the batch,
        and its gradients; `repeated` where its outcome is not kept and the backward pass computes
        it once more."""
        frozen = bool(weights and self.learning and self.learning.frozen)
        self.product(name, "bmm", m, n, k, batch=batch, saved=0.0 if frozen else saved)
        if not self.learning:
            return
        if repeated:
            self.product(f"{name}.repeat", "bmm", m, n, k, batch=batch, phase="backward")
        self.product(f"{name}.dgrad", "bmm_bwd", m, k, n, batch=batch, phase="backward")
        if not frozen:
            self.product(f"{name}.wgrad", "bmm_bwd", n, k, m, batch=batch, phase="backward")
