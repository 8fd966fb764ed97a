"""What the operators of PyTorch compute and move, from the inputs that a trace records.

Signatures: aten/src/ATen/native/native_functions.yaml. Traffic is counted as
`predictor.work` counts it: every operand once, weights of norms neglected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class LeftOut(Exception):
    """Why a call becomes no row."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: its inputs as the trace records them, and what it launched.

    dims, types, strides   of each input; strides are missing from older traces
    values                 of inputs that are no tensors, as text; missing from older traces
    kernels                names of what ran on the device
    backward               inside the backward pass
    """

    name: str
    dims: list[Any]
    types: list[str]
    strides: list[Any] | None
    values: list[str]
    kernels: tuple[str, ...]
    backward: bool


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input: its shape, the strides where they were recorded, data type, bytes per element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    size: float

    @property
    def elements(self) -> float:
        """Elements of the whole shape."""
        return float(math.prod(self.shape))

    @property
    def bytes(self) -> float:
        """In memory: along an expanded axis (stride 0) there is one element only."""
        steps = self.strides or (1,) * len(self.shape)
        return self.size * math.prod(n for n, step in zip(self.shape, steps, strict=True) if step)


TYPES = {
    "float": ("fp32", 4.0),
    "half": ("fp16", 2.0),
    "bfloat16": ("bf16", 2.0),
    "double": ("fp64", 8.0),
    "float8_e4m3fn": ("fp8", 1.0),
    "float8_e4m3fnuz": ("fp8", 1.0),
    "float8_e5m2": ("fp8", 1.0),
    "float8_e5m2fnuz": ("fp8", 1.0),
    "long int": ("int64", 8.0),
    "long": ("int64", 8.0),
    "int": ("int32", 4.0),
    "short": ("int16", 2.0),
    "signed char": ("int8", 1.0),
    "char": ("int8", 1.0),
    "unsigned char": ("uint8", 1.0),
    "byte": ("uint8", 1.0),
    "bool": ("bool", 1.0),
}
"""Data type and bytes of an element, by the name of the C++ type (less 'c10::') or of the NCCL
type, in small letters."""


def _type(name: str) -> tuple[str, float]:
    try:
        return TYPES[name.removeprefix("c10::").lower()]
    except KeyError:
        raise LeftOut(f"data type {name!r} is not known") from None


def tensor(call: Call, position: int) -> Tensor:
    """An input that must be a tensor."""
    kind = call.types[position]
    if kind == "TensorList":
        raise LeftOut("the data types of lists of tensors are not recorded")
    strides = tuple(call.strides[position]) if call.strides else None
    return Tensor(tuple(call.dims[position]), strides, *_type(kind))


def is_tensor(call: Call, position: int) -> bool:
    """Whether an optional input was given, as a tensor."""
    return position < len(call.types) and call.types[position] not in ("", "Scalar")


def flag(call: Call, position: int) -> bool:
    """A recorded truth value."""
    if position >= len(call.values) or call.values[position] not in ("True", "False"):
        raise LeftOut(f"operator {call.name}: the values of its flags were not recorded")
    return call.values[position] == "True"


TF32 = re.compile("tf32|tensorop|s1688")
"""In the name of a kernel that multiplies fp32: it runs on the tensor cores, in tf32."""

LETTERS = re.compile("(?:_|^)(tn|nn|nt)(?:_|$)|Cijk_(Alik_Bljk|Ailk_Bljk|Ailk_Bjlk)")
LAYOUTS = {
    "tn": "fwd",
    "nn": "dgrad",
    "nt": "wgrad",
    "Alik_Bljk": "fwd",
    "Ailk_Bljk": "dgrad",
    "Ailk_Bjlk": "wgrad",
}
"""Direction of a linear layer by how its operands lie in memory, as cuBLAS and Tensile name it in
their kernels: y = x W^T (tn), dx = dy W (nn), dW = dy^T x (nt)."""


def _layout(call: Call, a: Tensor, b: Tensor) -> str:
    """Direction of a product from the strides of its operands, else from its kernel's name."""
    if a.strides and b.strides:
        if a.strides[-1] != 1 and b.strides[-1] == 1:
            return "wgrad"
        return "fwd" if b.strides[-1] != 1 else "dgrad"
    found = [letters for name in call.kernels if (letters := LETTERS.search(name))]
    return LAYOUTS[found[0][1] or found[0][2]] if found else ""


def product(first: int, transposed: bool = False) -> Callable[[Call], dict[str, Any]]:
    """A matrix product whose factors are inputs `first` and the next; `transposed`: of the second
    one (aten::linear)."""

    def row(call: Call) -> dict[str, Any]:
        a, b = tensor(call, first), tensor(call, first + 1)
        if transposed:
            turned = b.strides[::-1] if b.strides else None
            b = Tensor(b.shape[::-1], turned, b.dtype, b.size)
            a = Tensor((math.prod(a.shape[:-1]), a.shape[-1]), a.strides, a.dtype, a.size)
        (*batches, m, k), (*_, depth, n) = a.shape, b.shape
        if k != depth or not min(m, n, k, *batches):
            raise LeftOut(f"operator {call.name}: empty or unequal factors")
        dtype = a.dtype
        if dtype == "fp32" and any(TF32.search(name) for name in call.kernels):
            dtype = "tf32"
        batch = float(math.prod(batches))
        layout = _layout(call, a, b)
        if batches:
            layout = "bmm_bwd" if call.backward else "bmm"
        return {
            "op": "gemm",
            "dtype": dtype,
            "m": float(m),
            "n": float(n),
            "k": float(k),
            "batch": batch,
            "layout": layout,
        }

    return row


def attention(
    query: int, causal: int, kernel: str, mask: int | None = None
) -> Callable[[Call], dict[str, Any]]:
    """Fused attention on [batch, heads, length, head size]: positions of the query (key and value
    follow), of `is_causal` and of a mask, which may be absent."""

    def row(call: Call) -> dict[str, Any]:
        q, k = tensor(call, query), tensor(call, query + 1)
        if mask is not None and is_tensor(call, mask):
            raise LeftOut("attention under a mask")
        batch, heads, q_len, head_dim = q.shape
        return {
            "op": "attention_backward" if "backward" in call.name else "attention_prefill",
            "dtype": q.dtype,
            "batch": float(batch),
            "q_len": float(q_len),
            "kv_len": float(k.shape[2]),
            "heads": float(heads),
            "kv_heads": float(k.shape[1]),
            "head_dim": float(head_dim),
            "causal": float(flag(call, causal)),
            "kernel": kernel,
        }

    return row


def streaming(
    op: str, kernel: str, reads: tuple[int, ...], mask: float = 0.0, widens: int | None = None
) -> Callable[[Call], dict[str, Any]]:
    """A memory-bound operator: reads the tensors among the inputs `reads`, and writes one of their
    common shape and widest type, or its first input where its name ends in '_'.

    mask     bytes per element that it writes besides
    widens   position of a flag that makes the output fp32
    """

    def row(call: Call) -> dict[str, Any]:
        inputs = [tensor(call, i) for i in reads if is_tensor(call, i)]
        if widens is not None and call.values[widens : widens + 1] == ["True"]:
            raise LeftOut(f"operator {call.name}: its output is of another type")
        largest = max(inputs, key=lambda one: (one.elements, one.size))
        written = tensor(call, 0) if call.name.endswith("_") else largest
        if not written.elements:
            raise LeftOut(f"operator {call.name}: no elements")
        moved = sum(one.bytes for one in inputs) + (written.size + mask) * written.elements
        columns = float(written.shape[-1]) if written.shape else 1.0
        return {
            "op": op,
            "dtype": written.dtype,
            "kernel": kernel,
            "m": written.elements / columns,
            "n": columns,
            "message_bytes": moved,
        }

    return row


def embedding(call: Call) -> dict[str, Any]:
    """Look-up of rows (weight, indices), and its backward pass (gradient, indices, size of the
    table), which clears a table of gradients and adds to it."""
    backward = call.name.endswith("backward")
    values, indices = tensor(call, 0), tensor(call, 1)
    width, rows = float(values.shape[-1]), indices.elements
    moved = values.size * width * rows * (3 if backward else 2)
    if backward:
        if len(call.values) <= 2:
            raise LeftOut(f"operator {call.name}: the size of its table was not recorded")
        moved += values.size * width * float(call.values[2])
    return {
        "op": "embedding",
        "dtype": values.dtype,
        "kernel": "bwd" if backward else "fwd",
        "m": rows,
        "n": width,
        "message_bytes": moved,
    }


def _elementwise(names: str, reads: tuple[int, ...]) -> dict[str, Callable[[Call], dict[str, Any]]]:
    """Operators of these names and their in-place forms; a backward pass is named 'X_bwd'."""
    return {
        f"aten::{name}{suffix}": streaming("elementwise", name.replace("_backward", "_bwd"), reads)
        for name in names.split()
        for suffix in ("", "_")
    }


OPERATORS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "aten::mm": product(0),
    "aten::bmm": product(0),
    "aten::addmm": product(1),
    "aten::baddbmm": product(1),
    "aten::_addmm_activation": product(1),
    "aten::_scaled_mm": product(0),
    "aten::linear": product(0, transposed=True),
    "aten::_scaled_dot_product_flash_attention": attention(0, 4, "flash2"),
    "aten::_scaled_dot_product_flash_attention_backward": attention(1, 11, "flash2"),
    "aten::_scaled_dot_product_efficient_attention": attention(0, 6, "efficient", mask=3),
    "aten::_scaled_dot_product_efficient_attention_backward": attention(1, 11, "efficient", mask=4),
    "aten::_scaled_dot_product_cudnn_attention": attention(0, 6, "cudnn", mask=3),
    "aten::_scaled_dot_product_cudnn_attention_backward": attention(1, 14, "cudnn", mask=8),
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention(0, 4, ""),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention(1, 7, ""),
    "aten::native_layer_norm": streaming("norm", "layernorm", (0,)),
    "aten::native_layer_norm_backward": streaming("norm", "layernorm_bwd", (0, 1)),
    "aten::_fused_rms_norm": streaming("norm", "rmsnorm", (0,)),
    "aten::_fused_rms_norm_backward": streaming("norm", "rmsnorm_bwd", (0, 1)),
    "aten::_softmax": streaming("softmax", "fwd", (0,), widens=2),
    "aten::_softmax_backward_data": streaming("softmax", "bwd", (0, 1)),
    "aten::_log_softmax": streaming("softmax", "fwd", (0,), widens=2),
    "aten::_log_softmax_backward_data": streaming("softmax", "bwd", (0, 1)),
    "aten::cross_entropy_loss": streaming("loss", "fwd", (0,)),
    "aten::embedding": embedding,
    "aten::embedding_dense_backward": embedding,
    "aten::native_dropout": streaming("elementwise", "dropout", (0,), mask=1.0),
    "aten::native_dropout_backward": streaming("elementwise", "dropout_bwd", (0, 1)),
    "aten::copy_": streaming("elementwise", "copy", (1,)),
    **_elementwise("gelu silu relu sigmoid tanh exp log neg sqrt rsqrt clamp clamp_min", (0,)),
    **_elementwise("add sub mul div", (0, 1)),
    **_elementwise("gelu_backward silu_backward sigmoid_backward tanh_backward", (0, 1)),
    "aten::threshold_backward": streaming("elementwise", "relu_bwd", (0, 1)),
}
"""The row of a call, by the operator's name. A call is read at the outermost of these, so that the
parts it is made of are not counted beside it."""

COLLECTIVES = {
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allgather": "allgather",
    "all_gather": "allgather",
    "allgather_base": "allgather",
    "_allgather_base": "allgather",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter": "reducescatter",
    "reduce_scatter_base": "reducescatter",
    "_reduce_scatter_base": "reducescatter",
    "reduce_scatter_tensor": "reducescatter",
    "all_to_all": "alltoall",
    "all_to_allv": "alltoall",
    "broadcast": "broadcast",
    "send": "p2p",
}
"""Project's name of a collective by the one that c10d records. What was coalesced is not among
them: its kernel states one part of it."""


def collective(args: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The row of a collective from what c10d states of it, and its ranks ([] if not stated).

    Raises LeftOut where it states too little.
    """
    name = args.get("Collective name")
    if name is None or "dtype" not in args:
        raise LeftOut("collectives whose size was not recorded")
    if name not in COLLECTIVES:
        raise LeftOut(f"collective {name}: no row for it")
    op = COLLECTIVES[name]
    dtype, size = _type(str(args["dtype"]))
    elements = args.get("Out msg nelems" if op == "allgather" else "In msg nelems")
    group = args.get("Group size")
    if not isinstance(elements, int) or not isinstance(group, int):
        raise LeftOut("collectives whose size was not recorded")
    if group < 2:
        raise LeftOut("collectives of one rank alone")
    if elements < 1:
        raise LeftOut("collectives of no bytes")
    try:
        ranks = [int(rank) for rank in json.loads(args.get("Process Group Ranks", "[]"))]
    except (TypeError, ValueError):
        ranks = []  # long lists are shortened to '[0, 1, ...]'
    row = {
        "op": op,
        "dtype": dtype,
        "message_bytes": elements * size,
        "num_gpus": 2.0 if op == "p2p" else float(group),
    }
    whole = len(ranks) == group and op != "p2p"  # of a group, who sends to whom is not stated
    return row, ranks if whole else []


def communicated(name: str, args: dict[str, Any], group: int) -> dict[str, Any]:
    """The row of a collective from its library's annotation ('nccl:all_reduce'), which states the
    tensor that goes in, among `group` ranks.

    Raises LeftOut where it states too little.
    """
    op = COLLECTIVES.get(name.partition(":")[2].removeprefix("_"))
    if op is None or op == "p2p":
        raise LeftOut(f"collective {name}: no row for it")
    if group < 2:
        raise LeftOut("collectives of one rank alone")
    if not args.get("Input Dims") or not args.get("Input type"):
        raise LeftOut("collectives whose size was not recorded")
    dtype, size = _type(str(args["Input type"][0]))
    moved = size * math.prod(args["Input Dims"][0]) * (group if op == "allgather" else 1)
    if not moved:
        raise LeftOut("collectives of no bytes")
    return {"op": op, "dtype": dtype, "message_bytes": moved, "num_gpus": float(group)}
