"""Real passes of serving: a prompt, and decoding with a cache. Checks, never fitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from predictor.models import Model
from profiler.cases import serving_type
from profiler.device import Device
from profiler.models import Cache, Transformer
from profiler.operators import DTYPES
from profiler.step import Check, checks, dimensions, module_of
from profiler.timing import Sample, calmest, summary, timed, waited_share

WARM_UP = 1
PASSES = 9
LEAST_PASSES = 2
"""Passes that are not timed, that are where there is time, and at least."""

SHAPES = ((1, 384), (4, 192), (8, 96))
"""(sequences, tokens of a prompt); each then decodes some tokens."""

DECODED = 12
"""Tokens that are decoded behind each prompt."""


def empty_cache(
    model: Model, sequences: int, longest: int, check: Check, device: Device
) -> list[Cache]:
    """Room for keys and values of all layers."""
    shape = (sequences, model.kv_heads, longest, model.head_dim)
    dtype = DTYPES[check.precision]
    return [
        (
            torch.empty(shape, dtype=dtype, device=device.torch),
            torch.empty(shape, dtype=dtype, device=device.torch),
        )
        for _ in range(model.layers)
    ]


@torch.no_grad()
def generate(
    module: Transformer, tokens: torch.Tensor, caches: list[Cache], count: int, device: Device
) -> tuple[torch.Tensor, list[Sample]]:
    """Read prompts and add `count` tokens to each, the likeliest ones.

    Returns all tokens, and the times of the prompts' pass and of every pass that decodes.
    """
    samples = []
    at, new = 0, tokens

    def one() -> None:
        nonlocal new
        new = module.serve(new, caches, at).argmax(-1, keepdim=True)

    for _ in range(count):
        read = new.shape[1]
        samples.append(timed(one, device))
        at += read
        tokens = torch.cat((tokens, new), dim=1)
    return tokens, samples


def serving_checks(device: Device) -> list[Check]:
    """Models to serve: those of the training checks without experts, in the type of serving."""
    dense = [check for check in checks(device) if not check.model.num_experts]
    gpt, llama = dense[0], dense[1]
    dtype = serving_type(device.dtypes)
    return [Check(one.model, 512, n, dtype) for one in (gpt, llama) for n, _ in SHAPES[:1]]


def passes(device: Device, seconds: float) -> Iterator[dict[str, Any]]:
    """Time prompts and decoding passes of the checks, rows in the form of `inference.csv`; the
    first in any case, the others while the time lasts."""
    any_yet = False
    until = time.perf_counter() + seconds
    for check in serving_checks(device):
        module = module_of(check, device).eval()
        for sequences, length in SHAPES:
            if any_yet and time.perf_counter() > until:
                return
            prompt = torch.randint(check.model.vocab, (sequences, length), device=device.torch)
            caches = empty_cache(check.model, sequences, length + DECODED, check, device)
            first: list[Sample] = []
            later: list[Sample] = []
            for turn in range(WARM_UP + PASSES):
                _, times = generate(module, prompt, caches, DECODED, device)
                if turn >= WARM_UP:
                    first.append(times[0])
                    later += times[1:]
                if time.perf_counter() > until and len(first) >= LEAST_PASSES:
                    break
            for metric, samples in (("ttft_ms", first), ("tpot_ms", later)):
                yield row(check, device, sequences, length, metric, samples)
            any_yet = True


def row(
    check: Check, device: Device, sequences: int, length: int, metric: str, samples: list[Sample]
) -> dict[str, Any]:
    """A timed pass as a row in the form of `inference.csv`."""
    model = check.model
    used = calmest(samples, LEAST_PASSES)
    timing = summary([sample.seconds * 1e3 for sample in used], waited_share(used))
    name = f"{device.name}_{model.name}_{check.precision}_{sequences}x{length}_{metric[:4]}"
    return {
        "point_id": name,
        "source": "profile",
        "accelerator": device.name,
        "gpus_per_node": 1,
        "num_gpus": 1,
        "model": model.name,
        "family": "llama" if model.gated else "gpt",
        **dimensions(model),
        "weights_precision": check.precision,
        "kv_precision": check.precision,
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "batch": sequences,
        "input_len": length,
        "output_len": DECODED,
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "metric": metric,
        "value": timing.median,
        "value_p10": timing.p10,
        "value_p90": timing.p90,
        "samples": timing.samples,
        "waited": timing.waited,
        "notes": "one pass; eager; median",
    }
