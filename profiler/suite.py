"""What to measure, in which order, within a time budget.

The shapes are those of transformers: the predictor's work list for a ladder of model sizes and
batch sizes. Rounds go from coarse to fine, so that whatever the budget, every kind of operator
has been seen. The models of the check steps (`profiler.step`) are not on the ladder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from predictor.model import Model
from predictor.operators import Operator, step_operators, streaming, update_operators
from predictor.plan import TrainingPlan
from predictor.precision import PRECISIONS
from predictor.schema import KERNEL_SCHEMA_VERSION
from profiler.device import Device
from profiler.operators import attention_heads, build
from profiler.timing import Timing, measure

WIDTHS = (256, 1024, 512, 1536, 768, 384, 2048, 3072)
"""Hidden sizes of the ladder, in the order of the rounds (GPUs add larger ones)."""

CUDA_WIDTHS = (1024, 4096, 2048, 8192, 5120, 12288)

TOKENS = ((256, 4), (512, 1), (1024, 2), (128, 2))
"""(sequence length, sequences) of a round's micro-batches."""

CUDA_TOKENS = ((2048, 2), (4096, 1), (1024, 8))

COPY_BYTES = tuple(2.0**power for power in range(12, 30))
"""Sizes of the memory-copy sweep, which finds the bandwidths of memory and cache."""

LONGEST_CALL = 0.15
"""Kernels that would take longer than this are skipped [s]."""


@dataclass(slots=True)
class Budget:
    """Seconds to spend; `left` counts down on the wall clock."""

    seconds: float
    begin: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return self.begin + self.seconds - time.perf_counter()


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One operator to time; `heads` splits an attention's batch into sequences and heads."""

    operator: Operator
    heads: int
    round: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for cases that time the same thing."""
        o = self.operator
        return (o.op, o.variant, o.dtype, *(float(x) for x in (o.m, o.n, o.k, o.batch)))


def ladder_model(width: int, style: str) -> Model:
    """A model of the ladder: 'gpt' (norm with bias, gelu) or 'llama' (gated, grouped heads)."""
    head = 64 if width < 4096 else 128
    heads = width // head
    gpt = style == "gpt"
    return Model(
        name=f"{style}-{width}",
        layers=1,
        hidden=width,
        heads=heads,
        kv_heads=heads if gpt else max(heads // 4, 1),
        head_dim=head,
        ffn_hidden=4 * width if gpt else 64 * round(width * 8 / 3 / 64),
        vocab=8192 if width < 4096 else 32768,
        gated=not gpt,
        activation="gelu" if gpt else "silu",
        norm="layernorm" if gpt else "rmsnorm",
        positions="learned" if gpt else "rope",
        bias=gpt,
    )


def eager_plan(seq_len: int, sequences: int, precision: str) -> TrainingPlan:
    """The plan of a plain PyTorch loop on one device."""
    recipe = PRECISIONS[precision]
    return TrainingPlan(
        tp=1.0,
        pp=1.0,
        dp=1.0,
        micro_batch=float(sequences),
        global_batch=float(sequences),
        seq_len=float(seq_len),
        precision=precision,
        sharding="none",
        fused=False,
        grad_clip=False,
        vocab_multiple=1.0,
        weight_bytes=recipe.weight,
        gradient_bytes=recipe.weight,
        optimizer_bytes=2 * recipe.weight,
    )


ALWAYS = 8
"""Cases that no budget leaves out: a norm, the three products of a projection, attention."""


def cases(device: Device) -> Iterator[Case]:
    """Cases in the order of their worth, each once."""
    widths = CUDA_WIDTHS if device.is_cuda else WIDTHS
    batches = CUDA_TOKENS if device.is_cuda else TOKENS
    seen: set[tuple[object, ...]] = set()
    for level, (turn, width) in enumerate(
        (turn, width) for turn in range(len(batches)) for width in widths
    ):
        seq_len, sequences = batches[(turn + level) % len(batches)]
        for precision in device.dtypes:
            for style in ("gpt", "llama"):
                model = ladder_model(width, style)
                plan = eager_plan(seq_len, sequences, precision)
                found = step_operators(model, plan)
                if precision == device.dtypes[0]:
                    found += update_operators(plan, float(model.parameters))
                    found += _softmax(model, plan)
                for operator in found:
                    case = Case(operator, model.heads, level)
                    if case.key not in seen:
                        seen.add(case.key)
                        yield case


def _softmax(model: Model, plan: TrainingPlan) -> list[Operator]:
    """Softmax over scores, which fused attention hides but unfused attention needs."""
    rows = float(plan.micro_batch * model.heads * plan.seq_len)
    size, dtype = plan.recipe.activation, plan.recipe.core
    return [
        streaming("softmax", "softmax", variant, phase, "layer", dtype, rows, plan.seq_len, n)
        for variant, phase, n in (("fwd", "forward", 2 * size), ("bwd", "backward", 3 * size))
    ]


def row(case: Case, timing: Timing, device: Device, cache: str) -> dict[str, Any]:
    """A measured case as a row of the kernel table."""
    o = case.operator
    common: dict[str, Any] = {
        "source": "profile",
        "accelerator": device.name,
        "op": o.op,
        "dtype": o.dtype,
        "latency_us": timing.median * 1e6,
        "latency_p10_us": timing.p10 * 1e6,
        "latency_p90_us": timing.p90 * 1e6,
        "samples": timing.samples,
        "cache": cache,
        "mode": "eager",
        "ranks_per_host": device.ranks,
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "schema_version": KERNEL_SCHEMA_VERSION,
    }
    if o.op.startswith("attention"):
        sequences, heads = attention_heads(o, case.heads)
        return common | {
            "batch": float(sequences),
            "heads": float(heads),
            "kv_heads": float(heads),
            "q_len": float(o.m),
            "kv_len": float(o.n),
            "head_dim": float(o.k),
            "causal": 1.0,
        }
    found = common | {"m": float(o.m), "n": float(o.n), "k": float(o.k), "batch": float(o.batch)}
    if o.op == "gemm":
        return found | {"layout": o.variant}
    return found | {"kernel": o.variant, "message_bytes": float(o.bytes)}


def _calls(case: Case, device: Device) -> tuple[list[Callable[[], object]], str]:
    """Calls on enough copies of the data to leave the cache cold, and whether they do."""
    size = float(np.asarray(case.operator.bytes))
    copies = int(np.clip(np.ceil(2 * device.cache_bytes / max(size, 1.0)), 1, 4))
    made = [build(case.operator, device.torch, case.heads) for _ in range(copies)]
    return made, "cold" if copies * size >= device.cache_bytes else "warm"


def run(
    device: Device,
    budget: Budget,
    progress: Callable[[str], None] = lambda text: None,
    barrier: Callable[[], None] = lambda: None,
    order: Iterator[Case] | None = None,
) -> Iterator[dict[str, Any]]:
    """Time cases until the budget is spent, a row of the kernel table for each; the first
    `ALWAYS` in any case, without which a device has neither a peak nor a bandwidth.

    barrier   called before each case, where several ranks measure at the same time
    """
    rate: dict[str, float] = {}
    for position, case in enumerate(order or cases(device)):
        if budget.left <= 0 and position >= ALWAYS:
            break
        o = case.operator
        guess = float(np.asarray(o.flop)) / rate.get(o.dtype, 5e10)
        guess += float(np.asarray(o.bytes)) / 5e9
        if position >= ALWAYS and guess > min(LONGEST_CALL, budget.left / 4):
            continue
        try:
            calls, cache = _calls(case, device)
        except KeyError:
            continue
        barrier()
        progress(f"{o.op} {o.dtype}")
        timing = measure(calls, device, min(0.05, max(budget.left, 0.0)))
        if o.op == "gemm":
            rate[o.dtype] = max(rate.get(o.dtype, 0.0), float(o.flop) / timing.median)
        yield row(case, timing, device, cache)


def copies(device: Device, budget: Budget) -> Iterator[dict[str, Any]]:
    """Memory copies over a range of sizes, and the time of an empty kernel."""
    one = torch.zeros(1, device=device.torch)
    for name, size in [("launch", 0.0), *(("memcpy", size) for size in COPY_BYTES)]:
        if budget.left <= 0 or size > 0.1 * float(device.facts["memory_gb"]) * 1e9:
            break
        if name == "launch":
            timing = measure([lambda: one.add_(1.0)], device, 0.05)
        else:
            elements = int(size // 4)
            source = torch.randn(elements, device=device.torch)
            target = torch.empty_like(source)
            timing = measure([partial(target.copy_, source)], device, 0.05)
        operator = streaming(name, "memcpy", "", "forward", "layer", "fp32", size / 4, 1.0, 8.0)
        yield row(Case(replace(operator, op=name), 1, 0), timing, device, "warm")
