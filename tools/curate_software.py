"""Rebuild `data/software/recipes.csv`: what published training recipes set, by release, model,
accelerator and precision, from the shared table of facts about software, and from what was read
beside it (`data/software/recipes_read.csv`), which holds where both say something.

    python tools/curate_software.py ../shared [--out data]

Run by `make catalogs`. Values become those of plan fields; how, stands here: `full 10` is layers
of each virtual stage that run again, `fsdp 40` layers whose activations the host keeps.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"

FRAMEWORKS = {"nemo 2 perf scripts": "nemo", "megatron-bridge perf recipes": "megatron-bridge"}

MODELS = {
    "llama3-8b": "llama3-8b llama3.1-8b",
    "llama3-70b": "llama3-70b llama3.1-70b llama3.3-70b",
    "llama31-405b": "llama3.1-405b",
    "llama4-e16": "llama4-scout",
    "llama4-e128": "llama4-maverick",
    "nemotron4-15b": "nemotron-4-15b nemotron4-15b",
    "nemotron4-340b": "nemotron-4-340b nemotron4-340b",
    "nemotron3-8b": "nemotron-3-8b nemotron3-8b",
    "nemotron3-22b": "nemotron-3-22b nemotron3-22b",
    "nemotron-3-nano": "nemotron-3-nano nemotron3-nano",
    "nemotron-3-super": "nemotron-3-super nemotron3-super",
    "nemotron-3-ultra": "nemotron-3-ultra nemotron3-ultra",
    "nemotronh-8b": "nemotron-h-8b nemotronh-8b",
    "nemotronh-47b": "nemotron-h-47b nemotronh-47b",
    "nemotronh-56b": "nemotron-h-56b nemotronh-56b",
}
"""How models of that name begin in the catalog and in tables, where not as the recipe writes it."""

TASKS = {"pretrain": "pretrain", "pre_train": "pretrain", "lora": "lora", "sft": "sft"}

PRECISIONS = {
    "bf16": "bf16", "fp8": "fp8", "fp8_cs": "fp8", "fp8_ds": "fp8", "fp8_block": "fp8_block",
    "fp8_sc": "fp8_block", "fp8_mx": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip

SCOPES = {
    "attn": "attention",
    "mlp": "mlp",
    "mamba": "mamba",
    "moe_router": "router",
    "moe_preprocess": "router",
}
"""Parts of a layer that Transformer Engine's graphs capture, and what a plan calls them."""


DISPATCHERS = {"deepep": "20", "hybridep": "32"}
"""Processors of kernels that send tokens once in recipes of Megatron-Bridge
(perf_recipes/_common.py @ v0.6.0; DeepEP's are its default)."""


def month(text: str) -> str:
    """'v0.2.0 (25.11)' -> '2025-11'."""
    found = re.search(r"(\d\d)\.(\d\d)\)?$", text)
    if found is None:
        raise ValueError(f"no release in {text!r}")
    return f"20{found[1]}-{found[2]}"


def _graphs(value: str) -> dict[str, str]:
    if value in ("none", "off"):
        return {"cuda_graphs": "none"}
    if "full_iteration" in value:
        return {"cuda_graphs": "step"}
    if "scope full layer" in value or "default scope" in value:
        return {"cuda_graphs": "layers"}
    scopes = value.removeprefix("transformer_engine: ").split("+")
    return {"cuda_graphs": ",".join(sorted({SCOPES[scope] for scope in scopes}))}


def _recompute(value: str) -> dict[str, str]:
    if value.startswith("none"):
        return {"recompute": "none"}
    if found := re.search(r"block: (\d+) layers", value):
        return {"recompute": f"full {found[1]}"}
    modules = value.removeprefix("selective: ").split("+")
    return {"recompute": f"selective {','.join(sorted(modules))}"}


def _sharding(value: str) -> dict[str, str]:
    kind = "zero1" if value.startswith("zero1") else "fsdp"
    layers = re.search(r"activations of (\d+) layers offloaded", value)
    return {"sharding": f"{kind} {layers[1]}" if layers else kind}


def _number(field: str, value: str) -> dict[str, str]:
    return {field: value} if value.isdigit() else {}


def settings(field: str, value: str) -> dict[str, str]:
    """A fact as fields of a plan; of two batches of a recipe ('V1: ...; V2: ...'), the larger."""
    value = value.split("V2: ")[-1]
    if field == "cuda_graph":
        return _graphs(value)
    if field == "recompute":
        return _recompute(value)
    if field == "sharding":
        return _sharding(value)
    if field == "ep_overlap" and value.split(",")[0] in ("on", "off"):
        return {"ep_overlap": str(int(value.startswith("on")))}
    if field == "moe_dispatch" and value == "alltoall":
        return {"dispatch": "copies"}
    if field == "moe_dispatch" and value in DISPATCHERS:
        return {"dispatch": "once", "dispatch_processors": DISPATCHERS[value]}
    if field == "expert_tensor_parallel":
        return _number("etp", value)
    if field == "virtual_pipeline":
        return _number("vpp", value)
    if field == "micro_batch":
        return _number("micro_batch", value)
    return {}


def rows(table: Path) -> Iterator[list[str]]:
    """Rows of the recipes, one for each field of a fact."""
    with table.open(newline="", encoding="utf-8") as stream:
        for fact in csv.DictReader(stream):
            found = re.match(r"([\w.\-]+) (\w+); (.*)$", fact["applies_to"])
            if fact["framework"] not in FRAMEWORKS or not found or found[2] not in TASKS:
                continue
            name = found[1].replace("_", "-")
            where = [re.match(r"(\w+)(?: x\d+)? (\S+)$", one) for one in found[3].split(", ")]
            places = " ".join(
                f"{one[1]}:{precision}"
                for one in where
                if one
                for precision in sorted({PRECISIONS[p] for p in one[2].split("/")})
            )
            for field, value in settings(fact["field"], fact["value"]).items():
                yield [
                    FRAMEWORKS[fact["framework"]],
                    month(fact["from"]),
                    month(fact["to"]),
                    MODELS.get(name, name),
                    TASKS[found[2]],
                    places,
                    field,
                    value,
                    fact["source"],
                ]


COLUMNS = (
    "framework", "from", "until", "models", "task", "where", "field", "value", "source",
)  # fmt: skip


SAID = slice(len(COLUMNS) - 2)
"""Columns that say whose setting it is, and of which field: all but its value and source."""


def joined(found: Iterable[list[str]], beside: Path) -> list[tuple[str, ...]]:
    """Rows of the table and those that were read beside it, in order."""
    with beside.open(newline="", encoding="utf-8") as stream:
        read = {tuple(row) for row in csv.reader(stream)} - {COLUMNS}
    told = {row[SAID] for row in read}
    return sorted(read | {tuple(row) for row in found if tuple(row[SAID]) not in told})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--out", type=Path, default=DATA)
    given = parser.parse_args()
    table = given.shared / "reference" / "software" / "training_software.csv"
    path = given.out / "software" / "recipes.csv"
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".part")
    with fresh.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(joined(rows(table), DATA / "software" / "recipes_read.csv"))
    fresh.replace(path)


if __name__ == "__main__":
    main()
