"""Real training steps of small transformers: what predictions are checked against, never fitted.

The models are plain PyTorch, one module per operator of the predictor's work list. Their sizes are
not on the ladder that `profiler.suite` measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from predictor.model import Model
from profiler.device import Device
from profiler.operators import DTYPES, rotary, swiglu

WARM_UP_STEPS = 1
LEAST_STEPS = 2
MOST_STEPS = 15


@dataclass(frozen=True, slots=True)
class Check:
    """One training step to time."""

    model: Model
    seq_len: int
    sequences: int
    precision: str


def checks(device: Device) -> list[Check]:
    """The steps to time on a device: GPT and Llama styles, two sizes, each fast data type."""
    scale = 4 if device.is_cuda else 1
    gpt = Model(
        "check-gpt",
        4,
        640 * scale,
        10 * scale,
        10 * scale,
        64,
        2560 * scale,
        10000,
        gated=False,
        activation="gelu",
        norm="layernorm",
        positions="learned",
        max_context=1024,
        tied_embeddings=True,
        bias=True,
    )
    llama = Model("check-llama", 6, 448 * scale, 7 * scale, 7 * scale, 64, 1216 * scale, 6000)
    wide = Model("check-wide", 2, 1152 * scale, 18 * scale, 18 * scale, 64, 3072 * scale, 4000)
    first = device.dtypes[0]
    found = [
        Check(gpt, 192 * scale, 3, first),
        Check(llama, 320 * scale, 2, first),
        Check(wide, 448 * scale, 1, first),
    ]
    if not device.is_cuda and "bf16" in device.dtypes:
        found.append(Check(llama, 320, 2, "bf16"))
    return found


class Attention(nn.Module):
    """Projections and causal attention, with rotary positions where the model has them."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.model = model
        self.qkv = nn.Linear(model.hidden, model.attention_width + 2 * model.kv_width, model.bias)
        self.out = nn.Linear(model.attention_width, model.hidden, model.bias)
        angle = torch.outer(
            torch.arange(seq_len).float(),
            10000.0 ** (-torch.arange(0, model.head_dim, 2).float() / model.head_dim),
        )
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        b, s, _ = x.shape
        model = self.model
        widths = (model.attention_width, model.kv_width, model.kv_width)
        q, k, v = self.qkv(x).split(widths, dim=-1)
        q, k, v = (
            part.view(b, s, part.shape[-1] // model.head_dim, model.head_dim).transpose(1, 2)
            for part in (q, k, v)
        )
        if model.positions == "rope":
            q, k = rotary(q, self.cosine, self.sine), rotary(k, self.cosine, self.sine)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, s, model.attention_width))


class FeedForward(nn.Module):
    """Up projection (and gate), activation, down projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gated = model.gated
        self.up = nn.Linear(model.hidden, model.ffn_in_width, model.bias)
        self.down = nn.Linear(model.ffn_hidden, model.hidden, model.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        y: torch.Tensor = self.up(x)
        return self.down(swiglu(*y.chunk(2, dim=-1)) if self.gated else functional.gelu(y))


def norm(model: Model) -> nn.Module:
    """The model's norm over its hidden size."""
    kind = nn.LayerNorm if model.norm == "layernorm" else nn.RMSNorm
    return kind(model.hidden)


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(model), Attention(model, seq_len)
        self.mlp_norm, self.mlp = norm(model), FeedForward(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder with the dimensions of a `predictor.model.Model`; returns the loss."""

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        learned = model.positions == "learned"
        self.positions = nn.Embedding(seq_len, model.hidden) if learned else None
        self.blocks = nn.ModuleList(Block(model, seq_len) for _ in range(model.layers))
        self.norm = norm(model)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(batch, sequence) token ids and targets -> scalar loss."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(logits, target.flatten())


def step_of(
    check: Check, device: Device, wrap: Callable[[nn.Module], nn.Module]
) -> Callable[[], None]:
    """A call that runs one whole training step: forward, backward, AdamW."""
    torch.manual_seed(0)
    plain = Transformer(check.model, check.seq_len)
    module = wrap(plain.to(device.torch, DTYPES[check.precision]))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    shape = (check.sequences, check.seq_len)
    tokens, target = (
        torch.randint(check.model.vocab, shape, device=device.torch) for _ in range(2)
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(tokens, target).backward()
        optimizer.step()

    return step


def time_step(
    step: Callable[[], None], device: Device, budget: float, count: int | None = None
) -> list[float]:
    """Seconds of steps after a warm-up: `count` steps, or as many as fit the budget (but two)."""
    samples: list[float] = []
    begin = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        step()
    wanted = count or MOST_STEPS

    def another() -> bool:
        spent = time.perf_counter() - begin
        return len(samples) < LEAST_STEPS or spent + samples[-1] < budget

    while len(samples) < wanted and (count or another()):
        if device.is_cuda:
            torch.cuda.synchronize(device.torch)
        start = time.perf_counter()
        step()
        if device.is_cuda:
            torch.cuda.synchronize(device.torch)
        samples.append(time.perf_counter() - start)
    return samples


def row(check: Check, samples: list[float], device: Device, ranks: int) -> dict[str, Any]:
    """A timed step as a row in the form of `training.csv`, with the plan's byte counts."""
    model = check.model
    size = float(torch.empty(0, dtype=DTYPES[check.precision]).element_size())
    p10, median, p90 = np.quantile(samples, [0.1, 0.5, 0.9])
    kind = "dp" if ranks > 1 else "single"
    return {
        "point_id": f"{device.name}_{model.name}_{check.precision}_{kind}{ranks}",
        "source": "profile",
        "accelerator": device.name,
        "gpus_per_node": ranks,
        "num_gpus": ranks,
        "model": model.name,
        "family": "gpt" if not model.gated else "llama",
        "params_b": model.parameters / 1e9,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "gated": int(model.gated),
        "tied_embeddings": int(model.tied_embeddings),
        "seq_len": check.seq_len,
        "precision": check.precision,
        "global_batch": check.sequences * ranks,
        "micro_batch": check.sequences,
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "dp": ranks,
        "sequence_parallel": 0,
        "dp_sharding": "none",
        "recompute": "none",
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "weight_bytes": size,
        "gradient_bytes": size,
        "reduce_bytes": size,
        "optimizer_bytes": 2 * size,
        "metric": "step_time_s",
        "value": float(median),
        "step_time_s": float(median),
        "step_time_p10_s": float(p10),
        "step_time_p90_s": float(p90),
        "steps": len(samples),
        "notes": "forward, backward, AdamW (fused); eager; median",
    }
