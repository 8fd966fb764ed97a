"""What the laws of every kernel count with: sizes that cannot stand in for each other, models that
have them, and what kernels of each kind do by definition."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.work.primitives import Operator

B, S, TP = 3, 1280, 2
T = B * S
"""Sequences of a micro-batch, tokens of each, tensor-parallel ranks; tokens in all."""

OWN = T // TP
"""Tokens of a rank between the blocks, where sequences are parallel too."""

H, HEADS, KV, D, FFN, V = 640, 12, 4, 48, 1792, 3072

DENSE = Model(
    name="dense", layers=5, hidden=H, heads=HEADS, kv_heads=KV, head_dim=D, ffn_hidden=FFN, vocab=V
)
PLAIN = replace(DENSE, gated=False, activation="gelu", norm="layernorm", bias=True)


class Count(NamedTuple):
    """Of one execution: arithmetic [FLOP], traffic and what is kept [bytes]."""

    flop: float
    bytes: float
    saved: float = 0.0


def product(
    m: float, n: float, k: float, saved: float = 0.0, out: float = 2, batch: float = 1
) -> Count:
    """Operands of 16 bits once, the outcome once."""
    return Count(2 * m * n * k * batch, (2 * m * k + 2 * k * n + out * m * n) * batch, saved)


def stream(rows: float, columns: float, each: float, saved: float = 0.0) -> Count:
    """So many bytes for each element of rows x columns."""
    return Count(0.0, rows * columns * each, saved)


def layer(name: str, m: float, n: float, k: float, saved: float = 0.0) -> dict[str, Count]:
    """A linear layer, the gradients of its input and of its weights, these summed up in fp32."""
    return {
        name: product(m, n, k, saved),
        f"{name}.dgrad": product(m, k, n),
        f"{name}.wgrad": product(n, k, m, out=4),
    }


def norm(name: str, rows: float, width: float) -> dict[str, Count]:
    """Read and written; backward its input and gradient read, and a gradient written."""
    kept = 2 * rows * width
    return {name: stream(rows, width, 4, kept), f"{name}.bwd": stream(rows, width, 6)}


def residual(name: str, rows: float) -> dict[str, Count]:
    """Two read and one written, both ways."""
    return {name: stream(rows, H, 6), f"{name}.bwd": stream(rows, H, 6)}


def swiglu(name: str, rows: float, width: float) -> dict[str, Count]:
    """Gate and value read, one written, both kept; backward three read and two written."""
    kept = 2 * 2 * rows * width
    return {name: stream(rows, width, 6, kept), f"{name}.bwd": stream(rows, width, 10)}


def trained(**fields: object) -> TrainingPlan:
    given = {"tp": float(TP), "pp": 1.0, "dp": 1.0, "micro_batch": float(B), "global_batch": 12.0}
    given |= {"seq_len": float(S), "sequence_parallel": 1.0, "vocab_multiple": 1.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def served(**fields: object) -> ServingPlan:
    given = {"batch": 2.0, "input_len": 1024.0, "output_len": 128.0, "tp": float(TP), **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def check(found: list[Operator], expected: dict[str, Count], prefix: tuple[str, ...]) -> None:
    """All kernels of those names, and no other, count what is expected."""
    own = {o.name: o for o in found if o.name.startswith(prefix) and o.name not in CORES}
    assert set(own) == set(expected)
    for name, count in expected.items():
        operator = own[name]
        told = [float(np.max(v)) for v in (operator.flop, operator.bytes, operator.saved)]
        assert told == pytest.approx(list(count)), name


CORES = ("attention", "attention.bwd")
"""What attends is counted in `test_counts_by_hand`."""

STATES, GROUPS, CHANNELS, WIDE = 16, 4, 10, 32
"""Of state-space blocks: state, groups, heads, channels of each."""

HYBRID = replace(
    DENSE, layers=8, attention_layers=1, mamba_layers=4, mamba_heads=CHANNELS,
    mamba_head_dim=WIDE, mamba_state=STATES, mamba_groups=GROUPS,
)  # fmt: skip

EXPERTS, TOP, INNER, SHARED = 24, 3, 448, 320

MIXED = replace(
    DENSE, num_experts=EXPERTS, top_k=TOP, expert_ffn_hidden=INNER,
    shared_expert_ffn_hidden=SHARED, shared_experts=1,
)  # fmt: skip

RANK, LATENT, NOPE, ROPE, VALUE = 384, 320, 96, 32, 80

LATENTS = replace(
    DENSE, kv_heads=HEADS, q_lora_rank=RANK, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE,
    qk_rope_head_dim=ROPE, v_head_dim=VALUE,
)  # fmt: skip

CHOSEN, INDEX, SMALL = 512, 6, 40

SPARSE = replace(LATENTS, index_topk=CHOSEN, index_heads=INDEX, index_head_dim=SMALL)
