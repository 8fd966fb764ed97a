"""Builds runnable PyTorch calls for the operators of the predictor's work list.

Every builder does what `predictor.work` counts: the same shapes, the same reads and writes.
Data is random; outputs are allocated by the call, as a training step does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from predictor.work import Operator

Call = Callable[[], object]

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


NARROW = ("fp8", "int8")
"""Types of products only; everything around them stays in 16 bits."""

ROTARY_HEAD = 64
"""Size of a head that is rotated: the pairs of one do not touch those of another."""


POOL = 2**22
"""Random numbers that operands are filled from, over and over: more than any cache of a core."""


@lru_cache(maxsize=8)
def _pool(device: str, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers to copy from."""
    return torch.randn(POOL, device=device, dtype=dtype)


SHARP = 16.0
"""Numbers in a narrow type are this many times as far apart as the pool's."""


def _numbers(device: str, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Normally distributed data: a copy of a pool, which is much faster than new numbers."""
    wide = dtype if dtype in DTYPES.values() else torch.bfloat16
    pool = _pool(device, wide)
    repeats = -(-size // pool.numel())
    made = (pool.repeat(repeats) if repeats > 1 else pool)[:size].clone()
    return made if wide == dtype else (made * SHARP).to(dtype)


@dataclass(slots=True)
class Arena:
    """Memory larger than the last-level cache, handed out piece after piece, round and round: what
    comes next was last touched so long ago that the cache holds it no more."""

    data: torch.Tensor
    at: int = 0

    def take(self, size: int) -> torch.Tensor:
        """The next `size` elements."""
        if self.at + size > self.data.numel():
            self.at = 0
        found = self.data[self.at : self.at + size]
        self.at += -(-size // ALIGNED) * ALIGNED
        return found


ALIGNED = 2048
"""Elements to whose multiple pieces of an arena are rounded: a page, as allocators give."""


@lru_cache(maxsize=8)
def _arena(device: str, dtype: torch.dtype, elements: int) -> Arena:
    return Arena(_numbers(device, dtype, elements))


@dataclass(slots=True)
class Place:
    """Where and in what type tensors are made.

    What a pass reads anew (weights, cached keys and values) comes from an `Arena` of `cold` bytes,
    0 for memory of its own, as has what one call takes beyond half of them. What kernels hand to
    each other is made `sets` times at most, and used again by calls built after that.
    """

    device: str
    dtype: torch.dtype
    cold: float = 0.0
    sets: int = 1
    taken: float = 0.0
    kept: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    turn: int = 0
    made: int = 0

    def next_call(self) -> None:
        """What is asked for from here on belongs to another call."""
        self.turn, self.made, self.taken = self.turn + 1, 0, 0.0

    def random(self, *shape: int, gradient: bool = False) -> torch.Tensor:
        """Data that the kernel before has just written."""
        key = (self.turn % self.sets, self.made)
        self.made += 1
        if key not in self.kept:
            made = _numbers(self.device, self.dtype, math.prod(shape))
            self.kept[key] = made.view(shape).requires_grad_(gradient)
        return self.kept[key]

    def stored(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Data that no kernel before has touched in this pass: weights, cached keys."""
        own = dtype or self.dtype
        size, width = math.prod(shape), own.itemsize
        self.taken += size * width
        if self.taken > 0.5 * self.cold:  # or pieces of one call might lie upon each other
            return _numbers(self.device, own, size).view(shape)
        return _arena(self.device, own, int(self.cold / width)).take(size).view(shape)


def _backward(output: torch.Tensor, *inputs: torch.Tensor) -> Call:
    """A call of the backward pass alone, on a graph that is kept."""
    gradient = torch.randn_like(output)

    def call() -> object:
        return torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    return call


def _quantised(x: torch.Tensor, dtype: torch.dtype, most: float) -> tuple[torch.Tensor, Any]:
    """A tensor in a narrow type by one scale for the whole, and that scale."""
    scale = x.abs().amax().float() / most
    return (x / scale.to(x.dtype)).clamp(-most, most).to(dtype), scale


def narrow_product(dtype: str, place: Place, m: int, n: int, k: int) -> Call:
    """y = x W^T with 16-bit activations, which are quantised on the way, as a linear layer in
    fp8 or int8 does.

    Raises KeyError for another type; PyTorch raises where the device cannot.
    """
    x = place.random(m, k)
    weight_scale = torch.full((), 1.0 / SHARP, device=place.device)
    if dtype == "fp8":
        kept = place.stored(n, k, dtype=torch.float8_e4m3fn)

        def call() -> object:
            own, scale = _quantised(x, torch.float8_e4m3fn, 448.0)
            return torch._scaled_mm(own, kept.t(), scale, weight_scale, out_dtype=torch.bfloat16)

        return call
    if dtype != "int8":
        raise KeyError(dtype)
    kept = place.stored(n, k, dtype=torch.int8)

    def product() -> object:
        own, scale = _quantised(x, torch.int8, 127.0)
        return (torch._int_mm(own, kept.t()) * (scale * weight_scale)).to(torch.bfloat16)

    return product


def _gemm(operator: Operator, place: Place) -> Call:
    m, n, k, batch = (int(getattr(operator, axis)) for axis in ("m", "n", "k", "batch"))
    if operator.dtype in NARROW:
        if operator.variant != "fwd":
            raise KeyError(operator.variant)
        return narrow_product(operator.dtype, place, m, n, k)
    if operator.variant.startswith("bmm"):
        a, b = place.random(batch, m, k), place.random(batch, k, n)
        return lambda: torch.bmm(a, b)
    if operator.variant == "fwd":
        x, w = place.random(m, k), place.stored(n, k)
        return lambda: functional.linear(x, w)
    if operator.variant == "dgrad":
        dy, w = place.random(m, k), place.stored(k, n)
        return lambda: torch.mm(dy, w)
    dy, x = place.random(k, m), place.random(k, n)
    return lambda: torch.mm(dy.t(), x)


def attention_heads(operator: Operator, heads: int) -> tuple[int, int]:
    """Sequences and heads whose product is the operator's batch."""
    batch = int(operator.batch)
    own = math.gcd(batch, heads)
    return batch // own, own


def _attention(operator: Operator, place: Place, heads: int) -> Call:
    sequences, own = attention_heads(operator, heads)
    backward = operator.op == "attention_backward"
    shape = (sequences, own, int(operator.m), int(operator.k))
    q, k, v = (place.random(*shape, gradient=backward) for _ in range(3))

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return _backward(forward(), q, k, v) if backward else forward


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated activation, as two kernels."""
    return functional.silu(gate) * up


def rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, two halves of the last axis rotated into each other."""
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "squared_relu": lambda value: functional.relu(value).square(),
}


def _decode(operator: Operator, place: Place, heads: int) -> Call:
    """One new token of each sequence over its cache."""
    kv_heads = max(heads // int(operator.m), 1)
    sequences, keys, d = int(operator.batch) // kv_heads, int(operator.n), int(operator.k)
    q = place.random(sequences, heads, 1, d)
    k, v = (place.stored(sequences, kv_heads, keys, d) for _ in range(2))
    grouped = kv_heads < heads
    return lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)


def _experts(operator: Operator, place: Place) -> Call:
    """Gated experts one after the other, each on its own tokens."""
    if operator.variant != "fwd":
        raise KeyError(operator.variant)
    m, n, k, experts = (int(getattr(operator, axis)) for axis in ("m", "n", "k", "batch"))
    x = [place.random(m, k) for _ in range(experts)]
    up = [place.stored(2 * n, k) for _ in range(experts)]
    down = [place.stored(k, n) for _ in range(experts)]

    def call() -> object:
        return [
            functional.linear(swiglu(*functional.linear(one, a).chunk(2, dim=-1)), b)
            for one, a, b in zip(x, up, down, strict=True)
        ]

    return call


def _elementwise(operator: Operator, place: Place) -> Call:
    rows, columns = int(operator.m), int(operator.n)
    kind = operator.variant.removesuffix("_bwd")
    backward = operator.variant.endswith("_bwd")
    if kind == "swiglu":  # both sides come from one product, and their gradients go back to it
        sides = place.random(rows, 2 * columns, gradient=backward)

        def gated() -> torch.Tensor:
            return swiglu(*sides.chunk(2, dim=-1))

        return _backward(gated(), sides) if backward else gated
    x = place.random(rows, columns, gradient=backward)
    if kind in ACTIVATIONS:
        function = ACTIVATIONS[kind]
        return _backward(function(x), x) if backward else lambda: function(x)
    if kind == "rope":
        cosine, sine = (place.random(rows, ROTARY_HEAD) for _ in range(2))

        def rotated() -> torch.Tensor:
            # As attention wants it: heads first, strided over what the projection wrote.
            heads = x.view(rows, columns // ROTARY_HEAD, ROTARY_HEAD).transpose(0, 1)
            return rotary(heads, cosine, sine)

        return rotated
    if kind == "bias_grad":
        return lambda: x.sum(0)
    if kind == "add":
        y = place.random(rows, columns)
        return lambda: x + y
    raise KeyError(kind)


def _norm(operator: Operator, place: Place) -> Call:
    rows, columns = int(operator.m), int(operator.n)
    backward = operator.variant.endswith("_bwd")
    x = place.random(rows, columns, gradient=backward)
    weight = place.random(columns, gradient=backward)
    if operator.variant.startswith("rmsnorm"):
        output = functional.rms_norm(x, (columns,), weight)
        if backward:
            return _backward(output, x, weight)
        return lambda: functional.rms_norm(x, (columns,), weight)
    bias = place.random(columns, gradient=backward)
    if backward:
        return _backward(functional.layer_norm(x, (columns,), weight, bias), x, weight, bias)
    return lambda: functional.layer_norm(x, (columns,), weight, bias)


def _softmax(operator: Operator, place: Place) -> Call:
    backward = operator.variant == "bwd"
    x = place.random(int(operator.m), int(operator.n), gradient=backward)
    if backward:
        return _backward(functional.softmax(x, -1), x)
    return lambda: functional.softmax(x, -1)


def _embedding(operator: Operator, place: Place) -> Call:
    tokens, width, vocab = int(operator.m), int(operator.n), int(operator.k)
    backward = operator.variant == "bwd"
    table = place.random(vocab, width, gradient=backward)
    index = torch.randint(vocab, (tokens,), device=place.device)
    if backward:
        return _backward(functional.embedding(index, table), table)
    return lambda: functional.embedding(index, table)


def _loss(operator: Operator, place: Place) -> Call:
    tokens, vocab = int(operator.m), int(operator.n)
    backward = operator.variant == "bwd"
    logits = place.random(tokens, vocab, gradient=backward)
    target = torch.randint(vocab, (tokens,), device=place.device)

    def forward() -> torch.Tensor:
        return functional.cross_entropy(logits.float(), target)

    return _backward(forward(), logits) if backward else forward


def _optimizer(operator: Operator, place: Place) -> Call:
    size = int(operator.m)
    pieces = max(1, min(8, size // 65536))
    # Parameter, gradient and two moments are read, and all but the gradient written.
    narrow = float(operator.bytes) < 7 * 4 * size
    place = replace(place, dtype=torch.bfloat16) if narrow else place
    parameters = [torch.nn.Parameter(place.random(size // pieces)) for _ in range(pieces)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True).step


ELEMENTWISE = (*ACTIVATIONS, "swiglu", "rope", "bias_grad", "add")

BUILDERS: dict[str, Callable[[Operator, Place], Call]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "norm": _norm,
    "softmax": _softmax,
    "embedding": _embedding,
    "loss": _loss,
    "optimizer": _optimizer,
    "moe_gemm": _experts,
}


def buildable(operator: Operator) -> bool:
    """Whether eager PyTorch runs an operator as one (dropout masks it does not)."""
    if operator.op == "elementwise":
        return operator.variant.removesuffix("_bwd") in ELEMENTWISE
    if operator.op == "moe_gemm":
        return operator.variant == "fwd"
    return operator.op in BUILDERS or operator.op.startswith("attention")


MOST_SETS = 4
"""Copies of what kernels hand to each other."""

MOST_CALLS = 512
"""Calls that read different weights."""

BEYOND = 2.0
"""Size of what is read in turn over the cache's, so that nothing of it stays."""


def _build(operator: Operator, place: Place, heads: int) -> Call:
    torch.backends.cuda.matmul.allow_tf32 = operator.dtype == "tf32"
    if operator.op == "attention_decode":
        return _decode(operator, place, heads)
    if operator.op.startswith("attention"):
        return _attention(operator, place, heads)
    return BUILDERS[operator.op](operator, place)


def build(operator: Operator, device: str, heads: int) -> Call:
    """A call that runs the operator once on random data.

    Raises KeyError for operators that eager PyTorch does not run as one (dropout masks).
    """
    return builds(operator, device, heads, 0.0, 1)[0][0]


def builds(
    operator: Operator, device: str, heads: int, cache: float, most: int = MOST_CALLS
) -> tuple[list[Call], bool]:
    """Calls to be run in turn, so that each finds in the cache what it does in a pass: weights and
    cached keys come from memory, for between two uses of a layer's all other layers' are read.

    cache   size of the last-level cache [bytes]
    most    calls

    Returns the calls, and whether what they read anew is larger than the cache.
    Raises KeyError as `build` does.
    """
    size = max(float(operator.bytes), 1.0)
    sets = int(min(max(math.ceil(BEYOND * cache / size), 1), MOST_SETS, most))
    dtype = DTYPES.get(operator.dtype, torch.bfloat16)
    place = Place(device, dtype, BEYOND * cache, sets)
    calls = [_build(operator, place, heads)]
    anew = place.taken
    wanted = max(sets, math.ceil(BEYOND * cache / anew)) if anew else sets
    for _ in range(min(wanted, most) - 1):
        place.next_call()
        calls.append(_build(operator, place, heads))
    return calls, len(calls) * (anew or size) >= cache
