"""Models derived from others: backward passes of attention, layouts of the backward products."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace

import numpy as np

from predictor.hardware import Accelerator
from predictor.timing import ANY, EfficiencyModel, Shapes, ideal

Models = MutableMapping[tuple[str, str, str], EfficiencyModel]
"""Keyed as in the calibration; what is derived is added."""

ONLY_SERVED = ("kv8", "paged")
"""Kernels over caches, which training does not have."""

TYPICAL = (4096.0, 8192.0, 16384.0)
"""Lengths of training sequences at which forward and backward passes of attention are compared."""


def _typical_time(model: EfficiencyModel, op: str, accelerator: Accelerator) -> np.ndarray:
    """log time per FLOP of causal attention over `TYPICAL` lengths, beyond its ideal."""
    s = np.array(TYPICAL)
    one, steps = np.ones(len(s)), 2.5 if op == "attention_backward" else 1.0
    heads, d = 32.0 * one, 128.0 * one
    flop, moved = steps * 2.0 * heads * s**2 * d, steps * 8.0 * s * heads * d
    shapes = Shapes(
        op=op,
        dtype="bf16",
        variants=(model.kind.partition(".")[2] or "flash",),
        variant=0.0 * one,
        m=s,
        n=s,
        k=d,
        batch=heads,
        flop=flop,
        bytes=moved,
    )
    return model.inefficiency(ideal(shapes, accelerator).features)


def derive_backward(models: Models, accelerators: Mapping[str, Accelerator]) -> None:
    """Give the backward pass of attention to every kernel and place with a forward pass alone.

    Where both are known, the backward pass is slower than 2.5 forward passes by the mean
    difference of y over `TYPICAL` sequences; that difference shifts the other forward models.
    """
    name, other_name = "attention_prefill", "attention_backward"
    forward = {
        key: model
        for key, model in models.items()
        if key[0].startswith(name) and key[0].partition(".")[2] not in ONLY_SERVED
    }
    both = [
        (model, models[(key[0].replace(name, other_name), *key[1:])])
        for key, model in forward.items()
        if (key[0].replace(name, other_name), *key[1:]) in models and not key[2].startswith(ANY)
    ]
    if not both:
        return
    gaps = []
    for model, other in both:
        device = accelerators[model.accelerator]
        gaps.append(_typical_time(other, other_name, device) - _typical_time(model, name, device))
    shift = float(np.mean(gaps))
    for (kind, dtype, place), model in forward.items():
        key = (kind.replace(name, other_name), dtype, place)
        if key in models:
            continue
        models[key] = replace(
            model,
            kind=key[0],
            latency=2 * model.latency,
            offsets={variant: shift + own for variant, own in model.offsets.items()},
            sigma=max(model.sigma, 0.15),
            keys=np.empty(0),
        )


def derive_layouts(models: Models) -> None:
    """Give the layouts of the backward products to accelerators on which only the forward layout
    was measured: the mean difference of y between layouts within the accelerators that have all.
    """
    for kind in ("gemm", "bmm"):
        own = [
            model
            for key, model in models.items()
            if key[0] == kind and not key[2].startswith(ANY) and len(model.offsets) > 1
        ]
        if not own:
            continue
        forward = "fwd" if kind == "gemm" else "bmm"
        steps: dict[str, list[float]] = {}
        for model in own:
            for name, offset in model.offsets.items():
                steps.setdefault(name, []).append(offset - model.offsets.get(forward, 0.0))
        typical = {name: float(np.mean(values)) for name, values in steps.items()}
        for key, model in models.items():
            if key[0] == kind and (key[2].startswith(ANY) or len(model.offsets) == 1):
                base = model.offsets.get(forward, 0.0)
                offsets = {name: base + step for name, step in typical.items()}
                models[key] = replace(model, offsets=offsets)
