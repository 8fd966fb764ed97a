"""Real training steps of small transformers: what predictions are checked against, never fitted.

Their sizes are not on the ladder that `profiler.suite` measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from predictor.models import Model
from profiler import huggingface
from profiler.device import Device
from profiler.models import Transformer
from profiler.operators import DTYPES
from profiler.timing import Sample, calmest, summary, timed, waited_share

WARM_UP_STEPS = 1
LEAST_STEPS = 2
MOST_STEPS = 15
"""Steps that are not timed, that are at least, and at most."""


@dataclass(frozen=True, slots=True)
class Check:
    """One training step to time."""

    model: Model
    seq_len: int
    sequences: int
    precision: str

    def within(self, seconds: float) -> Check:
        """The same, or its shortest form where no time is left: one layer, half a sequence."""
        if seconds > 0:
            return self
        model = replace(self.model, name=f"{self.model.name}-short", layers=1)
        return Check(model, self.seq_len // 2, 1, self.precision)


def _checked(scale: int) -> tuple[Model, Model, Model, Model]:
    """Small GPT, Llama, a wide one and a mixture of experts, none of which is fitted to."""
    gpt = Model(
        name="check-gpt",
        layers=4,
        hidden=640 * scale,
        heads=10 * scale,
        kv_heads=10 * scale,
        head_dim=64,
        ffn_hidden=2560 * scale,
        vocab=10000,
        gated=False,
        activation="gelu",
        norm="layernorm",
        positions="learned",
        max_context=1024,
        tied_embeddings=True,
        bias=True,
    )
    llama = Model(
        name="check-llama",
        layers=6,
        hidden=448 * scale,
        heads=7 * scale,
        kv_heads=7 * scale,
        head_dim=64,
        ffn_hidden=1216 * scale,
        vocab=6000,
    )
    wide = Model(
        name="check-wide",
        layers=2,
        hidden=1152 * scale,
        heads=18 * scale,
        kv_heads=18 * scale,
        head_dim=64,
        ffn_hidden=3072 * scale,
        vocab=4000,
    )
    mixture = Model(
        name="check-moe",
        layers=3,
        hidden=576 * scale,
        heads=9 * scale,
        kv_heads=9 * scale,
        head_dim=64,
        ffn_hidden=704 * scale,
        vocab=5000,
        num_experts=4,
        top_k=2,
        expert_ffn_hidden=704 * scale,
    )
    return gpt, llama, wide, mixture


def checks(device: Device) -> list[Check]:
    """The steps to time on a device: GPT and Llama styles, two sizes, each fast data type."""
    scale = 4 if device.on_gpu else 1
    gpt, llama, wide, mixture = _checked(scale)
    first = device.dtypes[0]
    found = [
        Check(gpt, 192 * scale, 3, first),
        Check(llama, 320 * scale, 2, first),
        Check(wide, 448 * scale, 1, first),
        Check(mixture, 256 * scale, 2, first),
        Check(gpt, 640 * scale, 1, first),
        Check(llama, 96 * scale, 5, first),
    ]
    if not device.on_gpu and "bf16" in device.dtypes:
        found.append(Check(llama, 320, 2, "bf16"))
    return found


OneStep = Callable[[], object]


def module_of(check: Check, device: Device) -> Transformer:
    """The model of a check on its device, random weights."""
    torch.manual_seed(0)
    with torch.device(device.torch):  # large matrices are drawn sooner where they stay
        made = Transformer(check.model, check.seq_len)
    return made.to(device.torch, DTYPES[check.precision])


def step_of(
    check: Check, device: Device, module: nn.Module, sequences: int | None = None
) -> OneStep:
    """A call that runs one whole training step: forward, backward, AdamW.

    module      takes tokens and targets, returns the loss
    sequences   of this rank, those of the check unless stated
    """
    # One fused optimizer cannot mix whole tensors with those that ranks share.
    types: dict[type, list[nn.Parameter]] = {}
    for parameter in filter(lambda one: one.requires_grad, module.parameters()):
        types.setdefault(type(parameter.data), []).append(parameter)
    optimizers = [torch.optim.AdamW(own, lr=1e-4, fused=True) for own in types.values()]
    shape = (sequences or check.sequences, check.seq_len)
    tokens, target = (
        torch.randint(check.model.vocab, shape, device=device.torch) for _ in range(2)
    )

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        module(tokens, target).backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def time_step(
    step: OneStep, device: Device, budget: float, count: int | None = None
) -> list[Sample]:
    """Steps after a warm-up: `count` of them, or as many as fit the budget (but two)."""
    samples: list[Sample] = []
    begin = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        step()
    wanted = count or MOST_STEPS

    def another() -> bool:
        spent = time.perf_counter() - begin
        return len(samples) < LEAST_STEPS or spent + samples[-1].seconds < budget

    while len(samples) < wanted and (count or another()):
        samples.append(timed(step, device))
    return samples


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks share a step: `kind` names it in point ids; `sharding` as `dp_sharding` has it."""

    kind: str
    dp: int = 1
    tp: int = 1
    sharding: str = "none"


ALONE = Layout("single")
STRANGER = Layout("transformers")
"""On one device: the model of `profiler.models`, and that of HuggingFace's transformers."""


def _strange_module(check: Check, device: Device) -> nn.Module:
    return huggingface.causal(check.model, check.seq_len, check.precision, device)


def kinds(device: Device) -> list[tuple[Check, Layout, Callable[[Check, Device], nn.Module]]]:
    """The steps of one device, which layout they have and what makes their model; those of a
    stranger's code where it is installed."""
    own = checks(device)
    found: list[tuple[Check, Layout, Callable[[Check, Device], nn.Module]]] = [
        (check, ALONE, module_of) for check in own
    ]
    if huggingface.available():
        found[2:2] = [(check, STRANGER, _strange_module) for check in own[:2]]
    return found


def dimensions(model: Model) -> dict[str, int]:
    """A model's dimensions, by the names of the reference tables."""
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "gated": int(model.gated),
        "tied_embeddings": int(model.tied_embeddings),
    }


def row(
    check: Check, samples: Sequence[Sample], device: Device, layout: Layout = ALONE, notes: str = ""
) -> dict[str, Any]:
    """A timed step as a row in the form of `training.csv`, with the plan's byte counts."""
    model = check.model
    size = float(torch.empty(0, dtype=DTYPES[check.precision]).element_size())
    used = calmest(samples, LEAST_STEPS)
    timing = summary([sample.seconds for sample in used], waited_share(used))
    ranks = layout.dp * layout.tp
    shape = f"{check.sequences}x{check.seq_len}"
    return {
        "point_id": f"{device.name}_{model.name}_{check.precision}_{shape}_{layout.kind}{ranks}",
        "source": "profile",
        "accelerator": device.name,
        "gpus_per_node": ranks,
        "num_gpus": ranks,
        "model": model.name,
        "family": "llama" if model.gated else "gpt",
        "params_b": model.parameters / 1e9,
        **dimensions(model),
        "num_experts": model.num_experts or None,
        "top_k": model.top_k or None,
        "expert_ffn_hidden": model.expert_ffn_hidden or None,
        "seq_len": check.seq_len,
        "precision": check.precision,
        "global_batch": check.sequences * layout.dp,
        "micro_batch": check.sequences,
        "tp": layout.tp,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "dp": layout.dp,
        "sequence_parallel": 0,
        "dp_sharding": layout.sharding,
        "recompute": "none",
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "weight_bytes": size,
        "gradient_bytes": size,
        "reduce_bytes": size,
        "gather_bytes": size,
        "optimizer_bytes": 2 * size,
        "metric": "step_time_s",
        "value": timing.median,
        "step_time_s": timing.median,
        "step_time_p10_s": timing.p10,
        "step_time_p90_s": timing.p90,
        "steps": timing.samples,
        "waited": timing.waited,
        "load_average": device.conditions()["load_average"],
        "notes": notes or "forward, backward, AdamW (fused); eager; median",
    }
