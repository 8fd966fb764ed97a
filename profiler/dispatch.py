"""Host time of an operator beside its kernel: modules, views, PyTorch's dispatcher, autograd.

On a CPU nothing of it hides behind kernels, which the same thread runs; on a GPU kernels hide
behind it where they are shorter. It is what whole passes of models take, so small that their
kernels are as good as empty, less what their kernels take one by one (on a GPU: nothing), per
operator of the predictor's work lists. Such a model is none of those that are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.work import (
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    step_operators,
    update_operators,
)
from profiler.cases import Case, eager_plan, ladder_model, serving_type
from profiler.device import Device
from profiler.operators import build
from profiler.output import SPLIT
from profiler.parallel import laid_out
from profiler.serving import empty_cache, generate
from profiler.step import Check, OneStep, module_of, step_of, time_step
from profiler.suite import Allowance, row
from profiler.timing import (
    LEAST_SAMPLES,
    Measured,
    Sample,
    calmest,
    measure,
    summary,
    waited_share,
)

WIDTH, LAYERS, VOCAB = 64, 6, 256
"""Of the models: one head, matrices of 8 to 64 kB."""

TOKENS, DECODED = 16, 12
"""In a prompt or a training step; decoded after the prompt."""

PASSES = 4
"""Of each model."""

LEAST = 1e-7
"""Of all operators together [s], where nothing is left."""

KERNEL_SECONDS = 2e-3
"""Spent on each kernel by itself."""


Barrier = Callable[[], None]
Agree = Callable[[bool], bool]


def small_model(style: str) -> Model:
    """A model whose kernels are as good as empty, 'gpt' or 'llama' as `cases.ladder_model`."""
    made = ladder_model(WIDTH, style)
    return replace(made, name=f"small-{style}", layers=LAYERS, vocab=VOCAB)


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A pass or a step to time, and the operators that it consists of with how often."""

    call: Callable[[], list[Sample]]
    operators: list[tuple[Operator, float]]
    heads: int


def _serving(model: Model, device: Device) -> Whole:
    dtype = serving_type(device.dtypes)
    check = Check(model, TOKENS + DECODED, 1, dtype)
    module = module_of(check, device).eval()
    prompt = torch.randint(model.vocab, (1, TOKENS), device=device.torch)
    caches = empty_cache(model, 1, TOKENS + DECODED, check, device)
    plan = ServingPlan(
        batch=1.0, input_len=float(TOKENS), output_len=float(DECODED), weights=dtype, kv=dtype
    )
    operators = layer_operators(model, plan, 1.0) + end_operators(model, plan, 1.0, 1.0)
    operators += decode_attention(model, plan, 1.0, TOKENS + 0.5 * DECODED)

    def call() -> list[Sample]:
        return generate(module, prompt, caches, DECODED, device)[1][1:]

    return Whole(call, [(o, float(o.count)) for o in operators], model.heads)


def _training(model: Model, device: Device) -> Whole:
    check = Check(model, TOKENS, 1, device.dtypes[0])
    return _steps(check, device, step_of(check, device, module_of(check, device)))


def _split(model: Model, device: Device) -> Whole:
    """Steps as tensor-parallel ranks take them, on distributed tensors, each rank by itself."""
    check = Check(model, TOKENS, 1, device.dtypes[0])
    mesh = init_device_mesh(device.kind, (dist.get_world_size(), 1), mesh_dim_names=("all", "own"))
    return _steps(check, device, laid_out(check, device, "tp", mesh["own"]))


def _steps(check: Check, device: Device, step: OneStep) -> Whole:
    model, precision = check.model, check.precision
    plan = eager_plan(TOKENS, 1, precision)
    operators = step_operators(model, plan) + update_operators(plan, float(model.parameters))
    blocks = {"layer": float(model.layers), "dense": float(model.layers)}

    def call() -> list[Sample]:
        return time_step(step, device, 0.0, DECODED)

    counted = [(o, float(o.count) * blocks.get(o.module, 1.0)) for o in operators]
    return Whole(call, [(o, count) for o, count in counted if count], model.heads)


KINDS: dict[str, Callable[[Model, Device], Whole]] = {
    "serving": _serving,
    "training": _training,
    SPLIT: _split,
}
"""Passes that decode; training steps, whose backward pass autograd launches; the same on
distributed tensors."""

ALONE = (("serving", "gpt"), ("serving", "llama"), ("training", "gpt"), ("training", "llama"))
TOGETHER = ((SPLIT, "llama"), ("training", "gpt"), (SPLIT, "gpt"), ("training", "llama"))
"""What one process measures, and what each of several ranks does, in this order."""


def host_time(whole: Whole, device: Device, barrier: Barrier = lambda: None) -> Measured:
    """Host time per operator of a pass [s], and its spread between passes.

    barrier   called before the kernels and before the passes, where ranks measure together
    """
    barrier()
    # The least, for what else runs here only adds to it.
    timed = [
        (count, measure([build(o, device.torch, whole.heads)], device, KERNEL_SECONDS))
        for o, count in ([] if device.on_gpu else whole.operators)
    ]
    kernels = sum(count * timing.p10 for count, timing in timed)
    delayed = max((timing.waited for _, timing in timed), default=0.0)
    launched = sum(count for _, count in whole.operators)
    barrier()
    samples = calmest([sample for _ in range(PASSES) for sample in whole.call()], LEAST_SAMPLES)
    each = [max(sample.seconds - kernels, LEAST) / launched for sample in samples]
    return summary(each, max(delayed, waited_share(samples)))


def host_times(
    device: Device,
    budget: Allowance,
    wanted: Sequence[tuple[str, str]] = ALONE,
    barrier: Barrier = lambda: None,
    agree: Agree = bool,
) -> Iterator[dict[str, Any]]:
    """Rows of the kernel table: host time per operator of kinds of pass in styles of model, the
    first in any case, the others while the budget lasts.

    agree   makes all ranks decide as rank 0 does
    """
    blank = Operator(
        name="dispatch",
        op="dispatch",
        variant="",
        phase="forward",
        module="layer",
        dtype="",
        m=1.0,
        n=1.0,
    )
    for kind, style in wanted:
        whole = KINDS[kind](small_model(style), device)
        found = host_time(whole, device, barrier)
        dtype = whole.operators[0][0].dtype
        operator = replace(blank, variant=f"{kind}.{style}", dtype=dtype)
        yield row(Case(operator, 1, WIDTH), found, device, "warm", device.conditions())
        if not agree(budget.left > 0):
            return
