"""The kernels of transformers that a profile may time, in training and in serving: the predictor's
work lists of the models that the user names, or of a ladder of widths, for several batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor import catalog
from predictor.models import Model
from predictor.plans import ServingPlan, TrainingPlan
from predictor.precision import PRECISIONS
from predictor.work import (
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    step_operators,
    streaming,
    update_operators,
)
from profiler.device import Device
from profiler.operators import NARROW, buildable

WIDTHS = (256, 1024, 512, 1536, 768, 384, 2048, 3072)
"""Hidden sizes of the ladder, in the order of the rounds (GPUs add larger ones)."""

GPU_WIDTHS = (1024, 4096, 2048, 8192, 5120, 12288)
"""The same of a GPU: hidden sizes from GPT-2 to GPT-3."""

TOKENS = ((256, 4), (512, 1), (1024, 2), (128, 2))
"""(sequence length, sequences) of a round's micro-batches."""

GPU_TOKENS = ((2048, 2), (4096, 1), (1024, 8))
"""The same of a GPU."""

DECODE_BATCHES = (1, 4, 16, 64)
"""Sequences that a decoding pass adds a token to."""

DECODE_KEYS = (128, 512, 2048)
"""Tokens in their caches."""

SERVING = "bf16"
"""Data type of the candidates of serving, where the device computes in it."""


def serving_type(types: Sequence[str]) -> str:
    """Data type of serving on a device that computes in these: the first of them where it lacks
    `SERVING`."""
    return SERVING if SERVING in types else types[0]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One operator to time; `heads` splits an attention's batch into sequences and heads, `width`
    is the hidden size of its model; `mode` how it is launched (`MODES`)."""

    operator: Operator
    heads: int
    width: float
    mode: str = "eager"

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


def eager_plan(
    seq_len: int, sequences: int, precision: str, fused_norm: bool = False
) -> TrainingPlan:
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
        fused_norm=fused_norm,
        grad_clip=False,
        vocab_multiple=1.0,
        weight_bytes=recipe.weight,
        gradient_bytes=recipe.weight,
        optimizer_bytes=2 * recipe.weight,
    )


ALWAYS = 8
"""Cases that no budget leaves out: a norm, the three products of a projection, attention."""


def named_models(names: Sequence[str]) -> list[Model]:
    """Models that a user named: catalog names or files.

    Raises InputError with the nearest name.
    """
    return [catalog.model(name) for name in names]


def ladder(device: Device) -> list[Model]:
    """The default set of models."""
    widths = GPU_WIDTHS if device.on_gpu else WIDTHS
    return [ladder_model(width, style) for width in widths for style in ("gpt", "llama")]


def cases(device: Device, models: Sequence[Model] = (), dtypes: Sequence[str] = ()) -> list[Case]:
    """All that could be measured, each once; the first `ALWAYS` are what any device needs.

    models   whose kernels they are; the ladder's where none is named
    dtypes   all of the device's unless stated
    """
    types = tuple(dtypes) or device.dtypes
    batches = GPU_TOKENS if device.on_gpu else TOKENS
    chosen = list(models) or ladder(device)
    first = types[0]
    found: dict[tuple[object, ...], Case] = {}

    def add(operators: list[Operator], heads: int, width: float) -> None:
        for operator in operators:
            if buildable(operator):
                case = Case(operator, heads, width)
                found.setdefault(case.key, case)

    for model in chosen:
        for seq_len, sequences in batches:
            for precision in types:
                if precision in NARROW:
                    plan = eager_plan(seq_len, sequences, "bf16")
                    listed = [
                        replace(o, dtype=precision)
                        for o in step_operators(model, plan)
                        if o.op == "gemm" and o.variant == "fwd"
                    ]
                else:
                    plan = eager_plan(seq_len, sequences, precision, device.fuses_norms)
                    listed = step_operators(model, plan)
                if precision == first:
                    listed += update_operators(plan, float(model.parameters))
                    listed += _softmax(model, plan)
                add(listed, model.heads, model.hidden)
    served = serving_type(types)
    for model in chosen:
        for batch in DECODE_BATCHES:
            add(_decoding(model, batch, served), model.heads, model.hidden)
    return list(found.values())


def _decoding(model: Model, batch: int, dtype: str) -> list[Operator]:
    """Kernels of a pass that adds one token to each sequence."""
    plan = ServingPlan(batch=float(batch), input_len=1.0, output_len=1.0, weights=dtype, kv=dtype)
    found = layer_operators(model, plan, float(batch))
    found += [o for o in end_operators(model, plan, float(batch), float(batch)) if o.op == "gemm"]
    for keys in DECODE_KEYS:
        found += decode_attention(model, plan, float(batch), float(keys))
    return found


def _softmax(model: Model, plan: TrainingPlan) -> list[Operator]:
    """Softmax over scores, which fused attention hides but unfused attention needs."""
    rows = float(plan.micro_batch * model.heads * plan.seq_len)
    size, dtype = plan.recipe.activation, plan.recipe.core
    return [
        streaming(
            name="softmax",
            op="softmax",
            variant=variant,
            phase=phase,
            module="layer",
            dtype=dtype,
            rows=rows,
            columns=plan.seq_len,
            bytes_per_element=n,
        )
        for variant, phase, n in (("fwd", "forward", 2 * size), ("bwd", "backward", 3 * size))
    ]
