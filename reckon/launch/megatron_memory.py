"""Megatron-LM's arguments for what is kept: recomputation, sharding, gradients, optimizer states,
what the host holds.
"""

from __future__ import annotations

import math
import re

from predictor.errors import InputError
from predictor.plans import OPTIMIZER_WORDS, OPTIMIZERS, meant
from predictor.precision import PRECISIONS
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    number,
    truth,
    whole_number,
)

UNKNOWN = ("mlp_act",)
"""Parts of a layer that Megatron Core does not name."""


def _recompute_says(facts: Facts) -> Flags:
    kind = facts["recompute"]
    if kind == "selective":
        names = [n for n in str(facts["recompute_modules"]).split(",") if n not in UNKNOWN]
        said = {"--recompute-granularity": "selective", "--recompute-modules": " ".join(names)}
        return said if names else {}
    if kind != "full":
        return {}
    share = facts.get("recompute_share", 1)
    found: Flags = {"--recompute-granularity": "full", "--recompute-method": "uniform",
                    "--recompute-num-layers": 1}  # fmt: skip
    if share == 1:
        found["--recompute-num-layers"] = facts.get("recompute_chunk", 1)
    else:
        each = facts["model.layers"] / (facts["pp"] * facts["vpp"])
        found["--recompute-method"] = "block"
        found["--recompute-num-layers"] = math.ceil(share * each - 1e-9)
    return found


def _recompute_means(flags: Flags, facts: Facts) -> Facts:
    kind = str(flags.get("--recompute-granularity", "none")).lower()
    if truth("", flags.get("--recompute-activations", False)):
        # Whatever granularity is stated; a method is then refused (arguments.py, validate_args, of
        # every version that has these flags up to main of 2026-08).
        method = str(flags.get("--recompute-method", "none"))
        if kind == "full" and method.lower() not in ("none", "null"):
            raise InputError(
                f"--recompute-activations makes --recompute-granularity {kind} selective, with "
                f"which Megatron-LM refuses --recompute-method {method}; leave one of them out"
            )
        kind = "selective"
    if kind in ("none", "null"):
        return {"recompute": "none"}
    if kind == "selective":
        modules = str(flags.get("--recompute-modules", "core_attn")).strip("[]").replace(",", " ")
        names = [name.strip("'\"") for name in modules.split()]
        return {"recompute": "selective", "recompute_modules": ",".join(names or ["core_attn"])}
    if kind != "full":
        raise InputError(f"--recompute-granularity {kind}: known are full, selective")
    if facts.get("recompute", kind) != kind:  # another is given beside the line
        return {"recompute": kind}
    if LAYERS in flags and "model.layers" in facts:  # Primus: which of all layers run again
        ids = set(re.findall(r"\d+", str(flags[LAYERS])))
        return {"recompute": "full", "recompute_share": min(len(ids) / facts["model.layers"], 1.0)}
    layers = whole_number("--recompute-num-layers", flags.get("--recompute-num-layers", 1))
    if str(flags.get("--recompute-method", "uniform")).lower() != "block":
        found: Facts = {"recompute": "full", "recompute_share": 1}
        chunk = {"recompute_method": "uniform", "recompute_layers": layers} if layers > 1 else {}
        return found | chunk
    if "model.layers" not in facts:
        raise InputError("--recompute-method block needs --num-layers, or --model")
    if layers == 0:
        return {"recompute": "none"}
    each = facts["model.layers"] / (facts.get("pp", 1) * facts.get("vpp", 1))
    return {"recompute": "full", "recompute_share": min(max(layers / each, 1e-6), 1.0)}


LAYERS = "--recompute-layer-ids"

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


STATE_FLAGS = ("--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")


def _states_says(facts: Facts) -> Flags:
    """Smaller optimizer states than the recipe's: moments first, then the fp32 copy."""
    recipe = PRECISIONS[facts["precision"]].optimizer
    known = {10: ("fp32", "fp32", "bf16"), 8: ("fp32", "bf16", "bf16"),
             6: ("fp16", "bf16", "bf16"), 7: ("fp32", "bf16", "fp8"),
             4: ("fp16", "fp8", "fp8")}  # fmt: skip
    kinds = known.get(facts["optimizer_bytes"])
    if facts["optimizer_bytes"] == recipe or recipe != 12 or kinds is None:
        return {}
    return {
        "--use-precision-aware-optimizer": True,
        **dict(zip(STATE_FLAGS, kinds, strict=True)),
    }


MOMENTS: dict[str, int] = {"sgd": 1, "muon": 1, "dist_muon": 1, "lion": 1, "ademamix": 3}
"""Moments of 4 bytes that optimizers keep of a parameter, of those that keep not two (Megatron-LM,
core/optimizer: SGD with momentum; Muon, beside which Adam keeps few; Apertus' AdEMAMix)."""


def _states_means(flags: Flags, facts: Facts) -> Facts:
    if not truth("", flags.get("--use-precision-aware-optimizer", False)):
        moments = MOMENTS.get(str(flags.get("--optimizer", "adam")).lower(), 2)
        usual = PRECISIONS[facts.get("precision", "bf16")].optimizer
        own = meant(flags.get("--optimizer", "adam"), tuple(OPTIMIZERS), OPTIMIZER_WORDS)
        found: Facts = {"optimizer": own} if own not in (None, "adam") else {}
        return found if moments == 2 else {**found, "optimizer_bytes": usual + 4 * (moments - 2)}
    sizes = [DTYPE_BYTES.get(str(flags.get(f, "fp32")).removeprefix("torch.")) for f in STATE_FLAGS]
    for flag, size in zip(STATE_FLAGS, sizes, strict=True):
        if size is None:
            raise InputError(f"{flag} {flags[flag]}: known are {', '.join(DTYPE_BYTES)}")
    return {"optimizer_bytes": sum(size for size in sizes if size)}


GRADIENT_FLAGS = ("--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16")


def _gradients_says(facts: Facts) -> Flags:
    said = (facts["gradient_bytes"], facts["reduce_bytes"])
    if said == (4, 4):
        return {GRADIENT_FLAGS[0]: True}
    if said == (2, 2) and facts["precision"] != "fp16":
        return {GRADIENT_FLAGS[1]: True}
    return {}


def _gradients_means(flags: Flags, facts: Facts) -> Facts:
    """bf16 accumulates in fp32 unless told otherwise, fp16 in fp16 unless told otherwise."""
    wide, narrow = (truth(f, flags.get(f, False)) for f in GRADIENT_FLAGS)
    if wide and narrow:
        raise InputError(f"{GRADIENT_FLAGS[0]} contradicts {GRADIENT_FLAGS[1]}")
    stated = GRADIENT_FLAGS[0] in flags or facts.get("precision") == "fp16"
    size = 2 if narrow or (stated and not wide) else 4
    kept = _fsdp_bytes(FSDP_DTYPES[0], flags, size)
    return {"gradient_bytes": kept, "reduce_bytes": _fsdp_bytes(FSDP_DTYPES[1], flags, kept)}


FSDP_DTYPES = ("--megatron-fsdp-main-grads-dtype", "--megatron-fsdp-grad-comm-dtype")
"""What Megatron-FSDP keeps of gradients, and what it sends; `auto` sends what is kept
(NVIDIA/Megatron-LM @ d98e8a64, megatron/training/arguments.py)."""


def _fsdp_bytes(flag: str, flags: Flags, otherwise: int) -> int:
    said = str(flags.get(flag, "auto")).removeprefix("torch.")
    if said in ("auto", "none", "None") or not truth("", flags.get("--use-megatron-fsdp", False)):
        return otherwise
    if said not in DTYPE_BYTES:
        raise InputError(f"{flag} {said}: known are auto, fp32, fp16, bf16")
    return DTYPE_BYTES[said]


FSDP = {"--use-megatron-fsdp": True, "--use-distributed-optimizer": True}


STRATEGY = "--data-parallel-sharding-strategy"


SHARDING = Cases(
    ("sharding",),
    (
        (("none",), {"--use-distributed-optimizer": False}),
        (("zero1",), {"--use-distributed-optimizer": True}),
        (("zero2",), {**FSDP, STRATEGY: "optim_grads"}),
        (("fsdp",), {**FSDP, STRATEGY: "optim_grads_params"}),
        (("zero3",), {**FSDP, STRATEGY: "optim_grads_params"}),
        (("hsdp",), {**FSDP, STRATEGY: "optim_grads_params"}),
        (("zero1",), {**FSDP, STRATEGY: "optim"}),
        (("none",), {**FSDP, STRATEGY: "no_shard"}),
        (("none",), FSDP),
        (("fsdp",), {"--use-torch-fsdp2": True}),
        (("fsdp",), {"--use-torch-fsdp2": True, "--use-distributed-optimizer": False}),
    ),
)


ZERO = Derived(
    ("@zero",),
    lambda facts: {},
    lambda flags, facts: {"sharding": f"zero{flags['@zero']}"} if "@zero" in flags else {},
)
"""ZeRO 2 and 3 of Megatron-DeepSpeed."""


REPLICAS = "--num-distributed-optimizer-instances"


def _replicas_says(facts: Facts) -> Flags:
    if facts["sharding"] != "hsdp" or not facts.get("dp_shard"):
        return {}
    return {REPLICAS: round(facts["dp"] / facts["dp_shard"])}


def _replicas_means(flags: Flags, facts: Facts) -> Facts:
    copies = whole_number(REPLICAS, flags.get(REPLICAS, 1))
    if copies <= 1 or facts.get("sharding") != "fsdp":
        return {}
    if "gpus" not in facts:
        raise InputError(f"{REPLICAS} {copies}: needs the number of accelerators (--nnodes, ...)")
    dp = facts["gpus"] // int(facts["tp"] * facts["pp"] * facts["cp"])
    if not dp or dp % copies:
        raise InputError(f"{REPLICAS} {copies} does not divide the {dp} data-parallel ranks")
    return {"sharding": "hsdp", "dp_shard": dp // copies}


OFFLOAD_FLAGS = ("--optimizer-cpu-offload", "--optimizer-offload-fraction")


def _offload_says(facts: Facts) -> Flags:
    """Optimizer states that the host keeps and updates."""
    share = facts.get("offload_optimizer", 0)
    if not share or facts["offload_to"] != "cpu":
        return {}
    return {OFFLOAD_FLAGS[0]: True, OFFLOAD_FLAGS[1]: share}


def _offload_means(flags: Flags, facts: Facts) -> Facts:
    if not truth(OFFLOAD_FLAGS[0], flags.get(OFFLOAD_FLAGS[0], False)):
        return {"offload_optimizer": 0}
    return {"offload_optimizer": number(OFFLOAD_FLAGS[1], flags.get(OFFLOAD_FLAGS[1], 1))}


RECOMPUTE = Derived(
    (
        "--recompute-activations",
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-modules",
        LAYERS,
    ),
    _recompute_says,
    _recompute_means,
    off=(("--recompute-granularity", "null"),),
    fields=("recompute", "recompute_modules", "recompute_share"),
    needs=("pp", "vpp"),
)
"""What runs twice."""


STATE: tuple[Entry, ...] = (
    Cases(
        ("weight_bytes", "gather_bytes"),
        (((1, 1), {"--fp8-param-gather": True}), ((None, None), {})),
    ),
    SHARDING,
    ZERO,
    Derived(
        (REPLICAS,),
        _replicas_says,
        _replicas_means,
        fields=("sharding", "dp_shard"),
        needs=("tp", "pp", "cp", "dp"),
    ),
    Derived(GRADIENT_FLAGS, _gradients_says, _gradients_means, off=((GRADIENT_FLAGS[0], False),)),
    Derived(
        ("--use-precision-aware-optimizer", "--optimizer", *STATE_FLAGS),
        _states_says,
        _states_means,
    ),
)
"""What is stored of weights, gradients and optimizer, and what the replicas divide among them."""


OFFLOAD = Derived(
    OFFLOAD_FLAGS,
    _offload_says,
    _offload_means,
    off=((OFFLOAD_FLAGS[0], False),),
    fields=("offload_optimizer", "offload_to"),
)
"""Optimizer states that the host keeps."""
