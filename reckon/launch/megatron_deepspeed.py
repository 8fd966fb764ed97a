"""Megatron-DeepSpeed and older Megatron-LM: flags that today's Megatron-LM has under another name,
or has not, translated to those it has.
"""

from __future__ import annotations

import re

from predictor.errors import InputError
from reckon.launch.launcher import NODES, PER_NODE
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
    "--moe-num-experts": "--num-experts",
    "--moe-top-k": "--moe-router-topk",
    "--moe-intermediate-size": "--moe-ffn-hidden-size",
}
"""Old names, and today's (microsoft/Megatron-DeepSpeed megatron/arguments.py; NVIDIA/Megatron-LM
2.x; stanford-futuredata/Megatron-LM @ megablocks; Ascend/MindSpeed-LLM @ c77308a)."""

SPLIT_CONTEXT = {"ulysses_cp_algo": "a2a", "megatron_cp_algo": "p2p"}
"""`--context-parallel-algo` of MindSpeed-LLM, and what Megatron-LM calls it."""

CHECKPOINTS = ("--checkpoint-activations", "--deepspeed-activation-checkpointing")

POSITIONS = {"rotary": "rope", "alibi": "alibi", "absolute": "learned_absolute"}


def translated(flags: Flags) -> tuple[Flags, list[str]]:
    """Flags with today's names, and what was found out.

    Raises InputError for experts that differ from layer to layer.
    """
    found: Flags = {RENAMED.get(name, name): value for name, value in flags.items()}
    notes: list[str] = []
    _experts(found, notes)
    _mixture(found, bool(DEEPSPEED & set(flags)))
    _own(found)
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


DEEPSPEED = {"--deepspeed", "--deepspeed-config", "--zero-stage", "--moe-expert-parallel-size",
             "--expert-interval", "--deepspeed-mpi", "--no-pipeline-parallel"}  # fmt: skip
"""Flags of Megatron-DeepSpeed's alone."""


def _mixture(found: Flags, deepspeed: bool) -> None:
    """Experts of Megatron-DeepSpeed: one a token in every second layer, unless told; a layer may
    keep its dense block beside them (megatron/arguments.py: `--topk`, `--expert-interval`,
    `--mlp-type residual`)."""
    every = found.pop("--expert-interval", 2)
    residual = str(found.pop("--mlp-type", "standard")).lower() == "residual"
    if not deepspeed or "--num-experts" not in found:
        return
    found.setdefault("--moe-router-topk", 1)
    found.setdefault("--moe-layer-freq", every)
    hidden = str(found.get("--hidden-size", ""))
    wide = found.get("--ffn-hidden-size", 4 * int(hidden) if hidden.isdigit() else None)
    if residual and wide is not None:
        found.setdefault("--moe-shared-expert-intermediate-size", wide)


def _own(found: Flags) -> None:
    """Flags of copies of Megatron-LM, whose meaning other flags have today: one head of keys
    (bigcode-project/Megatron-LM), leading dense layers, shared experts, and how a context is split
    (Ascend/MindSpeed-LLM)."""
    if str(found.pop("--attention-head-type", "")).lower() == "multiquery":
        found |= {"--group-query-attention": True, "--num-query-groups": 1}
    algorithm = SPLIT_CONTEXT.get(str(found.get("--context-parallel-algo", "")))
    if algorithm is not None:
        del found["--context-parallel-algo"]
        found.setdefault("--cp-comm-type", algorithm)
    if str(found.get("--moe-layer-freq", "")) == "-1":
        found["--moe-layer-freq"] = 1
    counts = [str(found.get(flag, "")) for flag in ("--first-k-dense-replace", "--num-layers")]
    if all(map(str.isdigit, counts)) and str(found.get("--moe-layer-freq", 1)) == "1":
        dense, layers = map(int, counts)
        del found["--first-k-dense-replace"]
        if "--num-experts" in found and dense < layers:
            found["--moe-layer-freq"] = f"([0]*{dense}+[1]*{layers - dense})" if dense else 1
    _idle_layers(found)
    if _set(found.get("--moe-expert-model-parallelism", False)) and {NODES, PER_NODE} <= set(found):
        del found["--moe-expert-model-parallelism"]  # megablocks: over all replicas
        ranks = int(str(found[NODES])) * int(str(found[PER_NODE]))
        for degree in ("--tensor-model-parallel-size", "--pipeline-model-parallel-size"):
            ranks //= max(whole_number(degree, found.get(degree, 1)), 1)
        found.setdefault("--expert-model-parallel-size", max(ranks, 1))
    shared, width = (
        str(found.get("--n-shared-experts", "")),
        str(found.get("--moe-ffn-hidden-size")),
    )
    if shared.isdigit() and width.isdigit():
        del found["--n-shared-experts"]
        found.setdefault("--moe-shared-expert-intermediate-size", int(shared) * int(width))


def _idle_layers(found: Flags) -> None:
    """Layers at the end that do nothing, so that stages are alike (MindSpeed-LLM)."""
    idle = {int(n) for n in re.findall(r"\d+", str(found.get("--noop-layers", "")))}
    layers = str(found.get("--num-layers", ""))
    if "--num-layers-per-virtual-pipeline-stage" in found:
        return
    if not idle or not layers.isdigit() or idle != set(range(int(layers) - len(idle), int(layers))):
        return
    del found["--noop-layers"]
    found["--num-layers"] = int(layers) - len(idle)
    stages = whole_number("--pp", found.get("--pipeline-model-parallel-size", 1))
    if stages > 1 and int(layers) % stages == 0 and len(idle) < int(layers) // stages:
        found.setdefault("--decoder-last-pipeline-num-layers", int(layers) // stages - len(idle))


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
