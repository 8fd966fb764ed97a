"""Megatron-DeepSpeed and older Megatron-LM: flags that today's Megatron-LM has under another name,
or has not, translated to those it has.
"""

from __future__ import annotations

from predictor.errors import InputError
from reckon.launch.table import Flags, number, truth, whole_number

RENAMED = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-granularity": "--recompute-granularity",
    "--ds-sequence-parallel-size": "--context-parallel-size",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--num-key-value-heads": "--num-query-groups",
    "--squared-relu-activation": "--squared-relu",
}
"""Old names, and today's (microsoft/Megatron-DeepSpeed megatron/arguments.py; NVIDIA/Megatron-LM
2.x)."""

CHECKPOINTS = ("--checkpoint-activations", "--deepspeed-activation-checkpointing")

POSITIONS = {"rotary": "rope", "alibi": "alibi", "absolute": "learned_absolute"}


def translated(flags: Flags) -> tuple[Flags, list[str]]:
    """Flags with today's names, and what was found out.

    Raises InputError for experts that differ from layer to layer.
    """
    found: Flags = {RENAMED.get(name, name): value for name, value in flags.items()}
    notes: list[str] = []
    _experts(found, notes)
    if "--use-rotary-position-embeddings" not in found and truth(
        "", found.pop("--use-rotary-position-embedding", False)
    ):
        found["--use-rotary-position-embeddings"] = True
    said = (
        str(found.get("--position-embedding-type", ""))
        .lower()
        .removeprefix("positionembeddingtype.")
    )
    if said in POSITIONS:
        found["--position-embedding-type"] = POSITIONS[said]
    if any(_set(found.pop(flag, False)) for flag in CHECKPOINTS):
        found.setdefault("--recompute-granularity", "full")
        found.setdefault("--recompute-method", "uniform")
        layers = found.pop("--checkpoint-num-layers", 1)
        found.setdefault("--recompute-num-layers", layers)
    if "--recompute-method" in found and "--recompute-granularity" not in found:
        found["--recompute-granularity"] = "full"  # as older versions meant it
    _zero(found, notes)
    _idle(found)
    if "--pad-vocab-size-to" in found and "--vocab-size" not in found:
        found["--vocab-size"] = found.pop("--pad-vocab-size-to")
        notes.append(f"vocabulary {found['--vocab-size']}, to which it is padded")
    return found, notes


IDLE = (
    ("--data-parallel-sharding-strategy", "--use-megatron-fsdp", ("true", "1")),
    ("--moe-flex-dispatcher-backend", "--moe-token-dispatcher-type", ("flex",)),
    ("--moe-enable-deepep", "--moe-token-dispatcher-type", ("flex",)),
    ("--recompute-method", "--recompute-granularity", ("full",)),
    ("--recompute-num-layers", "--recompute-granularity", ("full",)),
    ("--recompute-modules", "--recompute-granularity", ("selective",)),
    ("--fp8-recipe", "--fp8-format", ("hybrid", "e4m3")),
)
"""Flags that say something only where another has one of some values: configurations write both
out whether it has or not."""


def _idle(found: Flags) -> None:
    """Take out flags that say nothing."""
    for flag, other, values in IDLE:
        off = flag in found and str(found.get(other, "none")).lower() not in values
        if off and not (other == "--recompute-granularity" and other not in found):
            del found[flag]


def _set(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1"))


def _experts(found: Flags, notes: list[str]) -> None:
    """`--num-experts 64 64 128`: experts layer by layer; 1 means none."""
    words = str(found.get("--num-experts", "")).split()
    if len(set(words)) > 1:
        raise InputError(
            f"--num-experts {' '.join(words[:4])} ...: layers with different numbers of experts "
            "(a residual pyramid) are not predicted"
        )
    if words:
        found["--num-experts"] = words[0]
    if words and words[0] == "1":
        del found["--num-experts"]
        notes.append("--num-experts 1: a dense model")


def _zero(found: Flags, notes: list[str]) -> None:
    """ZeRO of a line that runs under DeepSpeed."""
    if "--no-pipeline-parallel" in found and _set(found.pop("--no-pipeline-parallel")):
        found["--pipeline-model-parallel-size"] = 1
    stage = found.pop("--zero-stage", found.pop("zero_optimization.stage", None))
    if stage is None or "--use-distributed-optimizer" in found:
        return
    level = whole_number("--zero-stage", stage)
    if level == 1:
        found["--use-distributed-optimizer"] = True
    elif level in (2, 3):
        found["@zero"] = level
    elif level:
        raise InputError(f"--zero-stage {stage}: known are 0, 1, 2, 3")
    if "--train-tokens" in found:
        number("--train-tokens", found["--train-tokens"])
    notes.append(f"ZeRO stage {level} of DeepSpeed")
