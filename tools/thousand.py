"""Some thousand predictions, written down, and compared with those of another revision.

    python tools/thousand.py record FILE.json.gz      # of the code on the path
    python tools/thousand.py compare BEFORE AFTER [--tolerance 1e-9] [--top 20]

Only what users call is called (`reckon.predict_train`, `predict_infer`, `search`, `search_infer`,
`validate`, `explore`), so that the rooms behind it may be rebuilt: `make thousand AGAINST=REV`
records a worktree of REV and the present one, and says which predictions moved.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 20261122
TRAINING, SERVING = 330, 330
ROWS = 40
"""Every so many rows of a published table are predicted too."""

MODELS = (
    "gpt2-1.5b gpt3-13b gpt3-175b llama2-7b llama2-70b llama3-8b llama3-70b llama3.1-405b "
    "mixtral-8x7b mixtral-8x22b qwen3-8b qwen3-30b-a3b qwen3-235b-a22b deepseek-v3 "
    "deepseek-v2-lite "
    "gpt-oss-20b gpt-oss-120b gemma2-9b gemma3-12b falcon-40b gpt-neox-20b nemotron-h-8b "
    "nemotron-3-nano-30b-a3b llama4-scout-17b-16e bloom-7b1 phi-3-medium mpt-7b kimi-k2"
).split()
SERVED = [*MODELS, "qwen3-next-80b-a3b", "deepseek-v3.2", "glm-5"]
SYSTEMS = (
    "DGX-A100-80GB DGX-H100 DGX-H200 DGX-B200 GB200-NVL72 MI300X-8x MI355X-8x Vista-GH200 "
    "Perlmutter-GPU L40S-8x-PCIe DGX-1V TPU-v5p-pod Gaudi2-HLS2 MI250X-4x HGX-H20 RTX4090-8x-PCIe"
).split()
CALIBRATIONS = ("default", "default", "default", "kernels-only", "none")
FRAMEWORKS = (
    None,
    None,
    "megatron-lm",
    "nemo",
    "torchtitan",
    "llm-foundry",
    "deepspeed",
    "maxtext",
)
ENGINES = (None, None, "vllm", "sglang", "tensorrt-llm", "llama.cpp", "fastertransformer")


def training_requests(generator: random.Random) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Model, system, plan and calibration of `TRAINING` requests, many of them impossible."""
    pick = generator.choice
    for _ in range(TRAINING):
        tp, pp, dp = pick((1, 1, 2, 4, 8)), pick((1, 1, 1, 2, 4, 8)), pick((1, 2, 4, 8, 16, 64))
        plan: dict[str, Any] = {"gpus": tp * pp * dp, "tp": tp, "pp": pp}
        plan["global_batch"] = dp * pick((1, 4, 8, 16)) * pick((1, 1, 2))
        plan["seq_len"] = pick((1024, 2048, 4096, 8192, 32768))
        options: dict[str, tuple[Any, ...]] = {
            "precision": ("bf16", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4"),
            "recompute": ("none", "selective", "full", "per_op", "fit"),
            "sharding": ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
            "schedule": ("1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe"),
            "attention": ("flash", "flash2", "unfused", "triton"),
            "micro_batch": (1, 2, 4),
            "ep": (1, 2, 4, 8),
            "cp": (2, 4),
            "vpp": (2, 3),
            "tp_overlap": (True, False),
            "ep_overlap": (True, False),
            "trained": ("all", "lora", "lora_qkv"),
            "expert_load": (1.0, 1.05, 1.5),
            "dispatch": ("copies", "once"),
            "offload_optimizer": (0.0, 1.0),
            "offload_activations": (0.5,),
            "split": ("slots", "cost"),
            "fused": (True, False),
            "dropout": (True, False),
            "tokens": (1e12,),
        }
        for name, values in options.items():
            if generator.random() < 0.18:
                plan[name] = pick(values)
        framework = pick(FRAMEWORKS)
        if framework:
            plan.update(framework=framework, era=pick(("2021-06", "2023-06", "2025-03")))
        yield pick(MODELS), pick(SYSTEMS), plan, pick(CALIBRATIONS)


def serving_requests(generator: random.Random) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """The same of `SERVING` serving requests."""
    pick = generator.choice
    for _ in range(SERVING):
        tp, pp, dp = pick((1, 2, 4, 8, 8)), pick((1, 1, 1, 1, 2)), pick((1, 1, 1, 2, 8))
        plan: dict[str, Any] = {"gpus": tp * pp * dp, "tp": tp, "pp": pp, "dp": dp}
        plan["input_len"], plan["output_len"] = pick((128, 1024, 4096, 30000)), pick((2, 128, 1024))
        name, values = pick(
            (("batch", (1, 8, 64, 256)), ("concurrency", (4, 32, 512)), ("saturated", (True,)),
             ("rate", (0.2, 2.0)))
        )  # fmt: skip
        plan[name] = pick(values)
        options: dict[str, tuple[Any, ...]] = {
            "precision": ("bf16", "fp8", "fp8_block", "nvfp4", "int4_wo", "int8_wo", "sq"),
            "kv_precision": ("bf16", "fp8", "int8"),
            "ep": (2, 8),
            "cached": (0.5,),
            "chunk": (512, 2048),
            "drafted": (3,),
            "synchrony": (1.0,),
            "offload": ("weights", "cache"),
            "expert_load": (1.3,),
        }
        for key, choices in options.items():
            if generator.random() < 0.15:
                plan[key] = pick(choices)
        framework = pick(ENGINES)
        if framework:
            plan.update(framework=framework, era=pick(("2023-06", "2024-09", "2025-09")))
        yield pick(SERVED), pick(SYSTEMS), plan, pick(CALIBRATIONS)


SEARCHES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gpt3-175b", "dgx-a100-80gb", {"gpus": 512, "global_batch": 512, "seq_len": 2048}),
    ("llama3-8b", "dgx-h100", {"gpus": 64, "global_batch": 256, "seq_len": 8192}),
    ("mixtral-8x7b", "dgx-h100", {"gpus": 128, "global_batch": 256, "seq_len": 4096}),
    ("llama3-70b", "mi300x-8x", {"gpus": 64, "global_batch": 128, "seq_len": 4096}),
)
FLEETS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama3-8b", "dgx-h100", {"input_len": 1024, "output_len": 256}, {"ttft": 1.0, "tpot": 0.04}),
    ("llama3-70b", "dgx-h200", {"input_len": 4096, "output_len": 256}, {"ttft": 2.0, "tpot": 0.05}),
)
GRIDS: tuple[dict[str, Any], ...] = (
    {
        "workload": "training",
        "model": "llama3-8b",
        "system": "dgx-h100",
        "plan": {"gpus": 64, "tp": 2, "global_batch": 128, "seq_len": 8192},
        "sweep": {
            "plan.micro_batch": [1, 2, 4],
            "machine.memory_bandwidth_gbs": [1000, 3350, 8000],
            "machine.scale_out_gbs": [12.5, 50],
        },
    },
    {
        "workload": "serving",
        "model": "llama3-70b",
        "system": "dgx-h200",
        "plan": {"gpus": 8, "tp": 8, "input_len": 1024, "output_len": 128},
        "sweep": {"plan.batch": [1, 16, 128], "machine.bf16_tflops": [500, 989, 2000]},
    },
    {
        "workload": "training",
        "model": "llama3-8b",
        "system": "dgx-h100",
        "plan": {"gpus": 32, "global_batch": 64, "seq_len": 4096},
        "plans": "best",
        "sweep": {"machine.memory_gb": [40, 80], "system": ["dgx-h100", "dgx-a100-80gb"]},
    },
)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float | str]]:
    """The numbers and words in a result, with where they stand; operators only by their sum."""
    if isinstance(value, dict):
        for key in sorted(value):
            if key not in ("rule", "reason", "provenance"):
                yield from numbers(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        if path.endswith(".operators"):
            yield f"{path}.n", float(len(value))
            yield f"{path}.time_s", math.fsum(one["time_s"] for one in value)
        elif path.endswith(".assumed"):
            yield f"{path}.n", float(len(value))
        else:
            for index, one in enumerate(value):
                yield from numbers(one, f"{path}[{index}]")
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        yield path, str(value)
    elif isinstance(value, (int, float)):
        yield path, float(value)


def told(name: str, call: Any) -> dict[str, Any]:
    """The result of a call, or that it was refused."""
    from reckon import InputError

    try:
        return dict(numbers(call()))
    except InputError:
        return {"refused": "True"}
    except Exception as error:  # a defect, recorded as one
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return {"failed": type(error).__name__}


def sampled(table: Path, folder: Path, every: int) -> Path:
    """Every so many rows of a table, as a table."""
    import pandas as pd

    path = folder / f"{table.name.split('.')[0]}-{every}.csv"
    pd.read_csv(table, low_memory=False).iloc[::every].to_csv(path, index=False)
    return path


def recorded(shared: Path, reference: Path) -> dict[str, dict[str, Any]]:
    """All predictions by name. `reference` is the training table that is sampled."""
    import reckon

    found: dict[str, dict[str, Any]] = {}
    generator = random.Random(SEED)
    for kind, requests, verb in (
        ("train", training_requests(generator), reckon.predict_train),
        ("infer", serving_requests(generator), reckon.predict_infer),
    ):
        for index, (model, system, plan, calibration) in enumerate(requests):
            name = f"{kind}-{index:03d} {model} {system} {calibration} {plan}"
            found[name] = told(
                name,
                lambda: verb(model, system, plan, calibration).to_dict(),  # noqa: B023
            )
    for model, system, plan in SEARCHES:
        name = f"search-train {model} {system}"
        found[name] = told(name, lambda: reckon.search(model, system, plan).to_dict(10))  # noqa: B023
    for model, system, plan, promise in FLEETS:
        name = f"search-infer {model} {system}"
        call = lambda: reckon.search_infer(model, system, plan, 5.0, **promise)  # noqa: B023, E731
        found[name] = told(name, lambda: call().to_dict(10))  # noqa: B023
    for index, grid in enumerate(GRIDS):
        for row, point in enumerate(explored(grid)):
            found[f"explore-{index} {row}"] = dict(numbers(point))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tables = [
            (reference, 5),
            (shared / "reference/inference.csv", ROWS),
            (shared / "bulk/inference/serving_runs.csv.gz", ROWS),
        ]
        for table, every in tables:
            if not table.is_file():
                continue
            part = sampled(table, here, every)
            for calibration in ("default", "kernels-only"):
                scored = reckon.validate(part, calibration)
                for point in scored["points"]:
                    key = f"row {calibration} {point['point_id']} {point['metric']}"
                    kept = {k: point[k] for k in ("published", "predicted", "low", "high")}
                    found[key] = dict(numbers(kept))
    return found


def explored(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of an exploration."""
    from reckon.explore import explore, read_grid

    return explore(read_grid(grid)).table.to_dict("records")


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two recorded values agree."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=tolerance) or (a != a and b != b)
    return bool(a == b)


def compare(before: dict[str, Any], after: dict[str, Any], tolerance: float, top: int) -> int:
    """Print which predictions moved, by the quantity and by how much; returns how many did."""
    moved: list[tuple[float, str, str]] = []
    kinds: Counter[str] = Counter()
    for name in sorted(set(before) | set(after)):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            moved.append((math.inf, name, "only " + ("after" if old is None else "before")))
            continue
        worst, where = 0.0, ""
        for key in old.keys() | new.keys():
            a, b = old.get(key), new.get(key)
            if close(a, b, tolerance):
                continue
            size = math.inf
            if isinstance(a, float) and isinstance(b, float) and a and b and a * b > 0:
                size = abs(math.log(b / a))
            if size > worst or not where:
                worst, where = size, f"{key}: {a} -> {b}"
        if where:
            moved.append((worst, name, where))
            kinds[name.split(" ")[0].split("-")[0]] += 1
    moved.sort(key=lambda one: -one[0])
    print(
        f"{len(before)} before, {len(after)} after; {len(moved)} moved by more than {tolerance:g}"
    )
    for kind, count in kinds.most_common():
        print(f"  {kind:8} {count}")
    for size, name, where in moved[:top]:
        print(f"  {size:9.3g}  {name[:150]}\n             {where[:150]}")
    return len(moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    record = verbs.add_parser("record")
    record.add_argument("out", type=Path)
    record.add_argument("--shared", type=Path, default=Path("../shared"))
    record.add_argument("--reference", type=Path, default=Path("data/reference/training.csv"))
    against = verbs.add_parser("compare")
    against.add_argument("before", type=Path)
    against.add_argument("after", type=Path)
    against.add_argument("--tolerance", type=float, default=1e-9)
    against.add_argument("--top", type=int, default=20)
    given = parser.parse_args()
    if given.verb == "record":
        found = recorded(given.shared, given.reference)
        with gzip.open(given.out, "wt", encoding="utf-8") as file:
            json.dump(found, file)
        refused = sum("refused" in one for one in found.values())
        print(f"{len(found)} predictions, {refused} of them refusals, in {given.out}")
        return
    before, after = (
        json.loads(gzip.decompress(p.read_bytes())) for p in (given.before, given.after)
    )
    sys.exit(1 if compare(before, after, given.tolerance, given.top) else 0)


if __name__ == "__main__":
    main()
