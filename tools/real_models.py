"""Training steps and serving passes of models of real size on one GPU, beside what the shipped
calibration says of them: a check, to which nothing is fitted.

    python tools/real_models.py measure --out FOLDER [--device auto] [--seconds 150]
    python tools/real_models.py compare FOLDER=ACCELERATOR ...

Plain loops in bf16 (weights, gradients and moments too) over random tokens, and those of
HuggingFace's transformers where that is installed (`tools.loops`); each for two seconds, with its
power where the device tells it. `compare` runs anywhere.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from predictor import catalog
from predictor.models import Model
from tools import loops

LASTING = 2.0
"""How long each step is repeated [s]."""

MIXTURE = Model(
    name="small-mixture",
    layers=8,
    hidden=2048,
    heads=16,
    kv_heads=4,
    head_dim=128,
    ffn_hidden=4096,
    vocab=32000,
    num_experts=8,
    top_k=2,
    expert_ffn_hidden=4096,
)

STEPS = (
    ("llama3.2-1b", 4, 2048, "single", "none"),
    ("gpt2-774m", 8, 1024, "single", "none"),
    ("llama3.2-1b", 4, 2048, "transformers", "none"),
    ("llama3.2-1b", 1, 8192, "single", "none"),
    ("llama3.2-1b", 16, 512, "single", "none"),
    ("gpt3-1.3b", 4, 2048, "single", "none"),
    ("llama3.2-1b", 8, 2048, "single", "full"),
    ("gpt2-774m", 8, 1024, "transformers", "none"),
    ("llama3.2-3b", 1, 4096, "single", "none"),
    ("small-mixture", 4, 2048, "single", "none"),
    ("llama3.2-1b", 8, 2048, "transformers", "full"),
    ("gpt2-355m", 4, 512, "single", "none"),
    ("llama3.2-3b", 2, 4096, "single", "full"),
    ("gpt2-1.5b", 4, 1024, "single", "none"),
)
"""Model, sequences, their length, whose code, recomputation; the most telling first."""

OTHERS = (
    ("qwen2.5-1.5b", 4, 2048, "transformers", "none"),
    ("llama3.2-1b", 4, 2048, "autocast", "none"),
    ("opt-1.3b", 4, 2048, "transformers", "none"),
    ("llama3.2-1b", 4, 2048, "compiled", "none"),
    ("llama3.2-1b", 4, 2048, "transformers-autocast", "none"),
    ("qwen3-1.7b", 2, 4096, "transformers", "none"),
    ("gpt2-355m", 8, 1024, "transformers", "none"),
    ("qwen2.5-3b", 2, 2048, "single", "none"),
    ("gpt2-774m", 8, 1024, "autocast", "none"),
    ("llama3.2-3b", 4, 2048, "transformers", "full"),
    ("opt-1.3b", 8, 1024, "single", "none"),
    ("qwen3-0.6b", 8, 1024, "transformers", "none"),
    ("qwen2.5-0.5b", 16, 512, "single", "none"),
    ("qwen2.5-1.5b", 1, 16384, "single", "full"),
    ("gpt2-355m", 16, 1024, "transformers-autocast", "none"),
)
"""The same of other models, and of loops that are compiled, or keep weights in fp32 and compute by
autocast; chosen
before any of them had been timed."""

PASSES = (
    ("llama3.2-1b", ((1, 512), (8, 1024), (64, 1024), (1, 8192))),
    ("llama3-8b", ((1, 1024), (16, 1024), (64, 1024), (8, 8192))),
)
"""Model, and (sequences, tokens before) of a prompt and of decoding passes."""


TUNED = (
    ("llama3-8b", 2, 2048, "transformers-lora16", "none"),
    ("llama3.2-3b", 2, 4096, "single-regional-float8", "none"),
    ("qwen3-mixture", 4, 2048, "transformers", "none"),
    ("llama3-8b", 4, 2048, "transformers-lora16-autocast", "full"),
    ("llama3.2-3b", 2, 4096, "single-regional", "none"),
    ("gemma3-1b", 4, 2048, "transformers", "none"),
    ("llama3-8b", 4, 2048, "transformers-lora16-narrow", "none"),
    ("llama3.2-3b", 2, 4096, "single-regional-float8-rowwise", "none"),
    ("qwen2.5-7b", 4, 1024, "transformers-loraqv8-narrow", "none"),
    ("llama3-8b", 1, 4096, "transformers", "full"),
    ("qwen3-1.7b", 4, 2048, "single-regional", "none"),
    ("llama3.2-1b", 8, 512, "transformers-lora64-narrow", "none"),
    ("mistral-7b", 1, 8192, "transformers-lora16-narrow", "full"),
    ("llama3.2-1b", 4, 2048, "single-regional-float8", "none"),
    ("qwen3-mixture", 1, 2048, "transformers", "none"),
    ("gemma2-2b", 2, 2048, "transformers", "none"),
    ("llama3-8b", 1, 8192, "single-regional", "full"),
    ("qwen2.5-0.5b", 1, 512, "transformers-lora16-narrow", "none"),
)
"""The same of adapters, of products in fp8, of layers that are compiled, and of a mixture and of
models with windows as HuggingFace has them; chosen before any of them had been timed."""

SAVED = (
    ("llama3-8b", 2, 2048, "transformers-qlora16-autocast", "none"),
    ("llama3-8b", 2, 2048, "transformers-qlora16-narrow", "none"),
    ("llama3.2-1b", 4, 1024, "transformers-dpo", "none"),
    ("llama3.2-1b", 4, 2048, "zero3cpu", "full"),
    ("llama3.2-1b", 4, 2048, "transformers-muon", "none"),
    ("llama3.2-3b", 4, 4096, "transformers-hosted", "full"),
    ("llama3-8b", 4, 2048, "transformers-qlora16-autocast", "full"),
    ("llama3.2-3b", 2, 2048, "transformers-adam8bit", "none"),
    ("llama3.2-1b", 1, 32768, "zero3cpu", "full"),
    ("llama3-8b", 4, 1024, "transformers-lora16-narrow-dpo", "full"),
    ("llama3.2-1b", 4, 2048, "transformers-adafactor", "none"),
    ("llama3-8b", 2, 2048, "transformers-int8lora16-narrow", "full"),
    ("llama3.2-1b", 4, 1024, "transformers-qlora16-narrow", "none"),
    ("llama3.2-1b", 4, 2048, "zero2cpu", "full"),
    ("llama3.2-1b", 4, 2048, "transformers-lion", "none"),
    ("llama3.2-3b", 1, 8192, "zero3cpu", "full"),
    ("llama3.2-3b", 4, 2048, "transformers-early", "full"),
    ("llama3.2-3b", 2, 4096, "transformers-liger", "none"),
    ("qwen2.5-7b", 4, 2048, "transformers-lora16-narrow-liger", "full"),
)
"""The same of weights in few bits, Liger's kernels, pairs of answers, other optimizers, and states
and activations that stay with the host; chosen before any of them had been timed. Those that leave
something behind in their process come last."""

SETS = {"steps": STEPS, "others": OTHERS, "tuned": TUNED, "saved": SAVED}

TABLES = tuple(f"real_{name}.csv" for name in SETS)
"""What is written of each."""


def named(name: str) -> Model:
    """A model of the catalog, or a mixture."""
    if name == "qwen3-mixture":  # as many layers of it as fit one device while they are trained
        return replace(catalog.model("qwen3-30b-a3b"), name=name, layers=6)
    return MIXTURE if name == MIXTURE.name else catalog.model(name)


TRACED = 20.0
"""Device time of an operator in one step from which a trace tells it [us]."""


def traced(once: Any, device: Any, name: str) -> list[dict[str, Any]]:
    """What the operators of one step took, by name and shape, as PyTorch's profiler has them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        once()
        device.synchronize()
    found = []
    for one in p.key_averages(group_by_input_shape=True):
        took = one.self_device_time_total
        if took >= TRACED and one.device_type == torch.autograd.DeviceType.CPU:
            found.append({"step": name, "operator": one.key, "shapes": str(one.input_shapes)[:160],
                          "calls": one.count, "device_us": round(took, 1)})  # fmt: skip
    return sorted(found, key=lambda one: -float(one["device_us"]))


def _timed(
    check: Any, device: Any, whose: str, recompute: str, told: Any, seen: list[dict[str, Any]]
) -> dict[str, Any]:
    """The row of a step, with what a sensor tells and the memory that it took; what its operators
    took is added to `seen`."""
    import torch

    from profiler import step
    from profiler.sensors import sustained
    from profiler.timing import Sample

    once = loops.once(check, device, whose, recompute)
    once()
    device.synchronize()
    if device.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    found = sustained(once, device, told, LASTING) if told is not None else {}
    samples = [Sample(found["call_s"], 0.0)] if found else step.time_step(once, device, LASTING)
    row = step.row(check, samples, device, step.Layout(whose)) | {"head_dim": check.model.head_dim}
    row |= loops.stated(whose, recompute) | found
    row["point_id"] += f"_{recompute}"
    if device.on_gpu:
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        row["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        seen += traced(once, device, f"{check.model.name}_{whose}_{recompute}")
    return row


def steps(
    device: Any,
    until: float,
    chosen: tuple[tuple[str, int, int, str, str], ...] = STEPS,
    seen: list[dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Time the steps while there is time; those that do not fit its memory are left out. What
    operators took is added to `seen`."""
    import torch

    from profiler import step
    from profiler.sensors import sensor

    told = sensor(device)
    for name, sequences, length, whose, recompute in chosen:
        if time.perf_counter() > until:
            return
        check = step.Check(named(name), length, sequences, "bf16")
        try:
            yield _timed(check, device, whose, recompute, told, [] if seen is None else seen)
        except torch.OutOfMemoryError:
            print("does not fit:", name, sequences, length, flush=True)
        except Exception as why:  # of somebody else's code: what it costs is this row
            print("fails:", name, whose, str(why).split("\n")[0][:300], flush=True)
        torch.compiler.reset()
        gc.collect()  # what was checkpointed holds itself
        if device.on_gpu:
            torch.cuda.empty_cache()


def passes(device: Any, until: float) -> Iterator[dict[str, Any]]:
    """Time prompts, and decoding passes launched one by one and as a captured graph."""
    import torch

    from profiler import serving, step
    from profiler.timing import timed

    with torch.no_grad():
        for name, shapes in PASSES:
            longest = max(length for _, length in shapes) + 64
            check = step.Check(named(name), longest, 1, "bf16")
            module = step.module_of(check, device).eval()
            for sequences, length in shapes:
                if time.perf_counter() > until:
                    return
                caches: list[Any] = []
                if device.on_gpu:
                    torch.cuda.empty_cache()
                caches += serving.empty_cache(check.model, sequences, length + 1, check, device)
                shape = (sequences, length)
                prompt = torch.randint(check.model.vocab, shape, device=device.torch)
                new = prompt[:, :1].contiguous()

                later = partial(module.serve, new, caches, length)
                calls = {"ttft_ms": partial(module.serve, prompt, caches, 0), "tpot_ms": later}
                for metric, call in calls.items():
                    call()
                    samples = [timed(call, device) for _ in range(9)]
                    row = serving.row(check, device, sequences, length, metric, samples)
                    yield row | {"execution": "eager"}
                if device.on_gpu:
                    side = torch.cuda.Stream()
                    with torch.cuda.stream(side):
                        later()
                    device.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        later()
                    graph.replay()
                    samples = [timed(graph.replay, device) for _ in range(15)]
                    row = serving.row(check, device, sequences, length, "tpot_ms", samples)
                    yield row | {"execution": "graphs", "point_id": row["point_id"] + "_graph"}
                    graph = None
            module = None


def measure(out: Path, spec: str, seconds: float, chosen: str) -> None:
    """Write the table of those steps, and of passes beside the first, whole, as rows come."""
    from profiler.device import find

    device = find(spec)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    first = chosen == "steps"
    seen: list[dict[str, Any]] = []
    timed = [(partial(steps, chosen=SETS[chosen], seen=seen), 0.65 if first else 1.0, chosen)]
    for what, share, name in timed + [(passes, 1.0, "passes")] * first:
        rows = []
        for row in what(device, begin + share * seconds):
            rows.append(row)
            print(f"{time.perf_counter() - begin:6.1f}", row["point_id"], f"{row['value']:.5g}",
                  flush=True)  # fmt: skip
            for table, place in ((rows, f"real_{name}.csv"), (seen, "operators.csv")):
                part = out / f"{place}.part"
                pd.DataFrame(table).to_csv(part, index=False)
                part.replace(out / place)


def compare(folder: Path, accelerator: str) -> None:
    """Print measured step times [s], predicted over measured ones, and whether they lie inside."""
    from predictor.catalog import load
    from reckon.verbs.validating import validate

    found = [path for path in map(folder.joinpath, TABLES) if path.exists()]
    table = pd.concat([pd.read_csv(path) for path in found]).assign(accelerator=accelerator)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "steps.csv"
        table.to_csv(path, index=False)
        points = validate(path, load("default"))["points"]
    for point in points:
        ratio = point["predicted"] / point["published"]
        inside = "inside" if point["low"] <= point["published"] <= point["high"] else ""
        print(f"{point['point_id']:75s} {point['published']:8.4f} {ratio:6.2f} {inside}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("measure")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="auto")
    one.add_argument("--seconds", type=float, default=150.0)
    one.add_argument("--set", choices=SETS, default="steps", dest="chosen")
    two = verbs.add_parser("compare")
    two.add_argument("folders", nargs="+")
    asked = parser.parse_args()
    if asked.verb == "measure":
        measure(asked.out, asked.device, asked.seconds, asked.chosen)
    else:
        for pair in asked.folders:
            where, _, name = pair.partition("=")
            compare(Path(where), name)
