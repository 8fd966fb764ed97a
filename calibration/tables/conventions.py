"""Step times from published rates: from FLOP/s by how their source says that it counts them; of
runs whose size nobody says, by what is usual, since their rate hardly depends on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibration.tables.cells import cell
from calibration.tables.rates import KNOWN
from calibration.tables.words import told_month
from predictor.models import CONVENTIONS, Model, hardware_flop_per_token, model_flop_per_token
from predictor.training import TrainingRequest

METRICS = ("model_tflops_per_gpu", "hw_tflops_per_gpu")
"""FLOP/s of an accelerator, without and with what recomputation repeats [TFLOP/s]."""

IN_ALL = "model_pflops"
"""FLOP/s of all accelerators together [PFLOP/s]."""

SHARES = {"mfu": METRICS[0], "hfu": METRICS[1]}
"""The same as shares of the dense peak, or in per cent of it."""

BY_MATRICES = re.compile(
    r"megatron-|eq\.? ?3|flop_utils|korthikanti|narayanan|maxtext|matmul param"
)
BY_PARAMETERS = re.compile(r"palm|chowdhery|nanogpt|llm-foundry|6 ?\*? ?n\b")
WITHOUT_ATTENTION = re.compile(r"6 ?\*? ?n ?\*? ?d\b")
CAUSAL = re.compile(r"(?<!no )(?<!not )causal")


def convention(told: str) -> str | None:
    """The key of `CONVENTIONS` by which a table says that it counts; None where it does not."""
    text = told.lower()
    if WITHOUT_ATTENTION.search(text) and not BY_MATRICES.search(text):
        return "6nd"
    for rule, name in ((BY_MATRICES, "megatron"), (BY_PARAMETERS, "palm")):
        if rule.search(text):
            causal = f"{name}_causal"
            return causal if CAUSAL.search(text) and causal in CONVENTIONS else name
    return None


COUNTED = {
    "megatron-lm": (("2025-02", "megatron"), ("", "megatron_causal")),
    "megatron-bridge": (("", "megatron_causal"),),
    "nemo": (("2025-07", "megatron"), ("", "megatron_causal")),
    "maxtext": (("2025-06", "megatron"), ("", "megatron_causal")),
    "torchtitan": (("", "megatron"),),
    "llm-foundry": (("", "megatron"),),
    "megatron-deepspeed": (("", "megatron"),),
    "nanotron": (("", "megatron"),),
    "litgpt": (("", "megatron"),),
}
"""How frameworks' own logs count, each until a month: Megatron-LM's num_floating_point_operations
(megatron/training/training.py; half of the attention since the commits of 15 March 2025, as at
cf12e789ee and not at ed7db1d2b3; NVIDIA/Megatron-LM @ d98e8a64dd); torchtitan's parameters without
the embedding and 12 L H Q T (utils.py @ 3e3909a0c1, models/utils.py @ b5bcd76c6); llm-foundry's
flops_per_batch (modeling_mpt.py @ 0085285a95: the embedding only where it is the head, too, the
whole attention); Megatron-DeepSpeed's equation 3 of Narayanan et al.; nanotron's get_flops
(models/llama.py); litgpt counts by PyTorch's FlopCounterMode (both from memory); NeMo's, MaxText's
and Megatron-Bridge's as `CONVENTIONS` says. Others: the definition of the word (PaLM, app. B)."""

COUNTED_ELSEWHERE = "palm"
WITH_AGAIN = ("megatron-deepspeed",)
"""Frameworks whose FLOP/s count what is computed again (BigScience's and EleutherAI's forks, too:
checkpoint_activations_factor 4; megatron/utils.py of bigscience-workshop/Megatron-DeepSpeed)."""

BY_SIXTEEN_BITS = ("torchtitan",)
"""Frameworks whose share is of the peak in 16 bits whatever multiplies (get_peak_flops, torchtitan/
tools/utils.py @ b5bcd76c6)."""

PEAK = re.compile(
    r"(?:peak|relative to|based on|out of)\D{0,24}?(\d{2,5}(?:\.\d+)?)\s*(t|p)(?:era|eta)?fl?op"
    r"|(\d{2,5}(?:\.\d+)?)\s*(t|p)(?:era|eta)?fl?op\S*\s*(?:\(?[\w-]+\)?\s*)?peak"
)
KIND_OF_PEAK = re.compile(
    r"(bf16|bfloat16|fp16|fp8|float8|fp4|nvfp4)[\s\w()-]{0,24}peak|peak[\s\w(-]{0,24}(bf16|bfloat16|fp16|fp8|float8|fp4|nvfp4)"
)
"""How a source says of which peak its share is."""


def counted_by(framework: str, month: str | None) -> str:
    """The key of `CONVENTIONS` by which a framework's own logs count in a month (YYYY-MM; the last
    where none is known)."""
    periods = COUNTED.get(framework, (("", COUNTED_ELSEWHERE),))
    return next(name for until, name in periods if not until or (month and month <= until))


def _counted(row: Mapping[str, Any], framework: str) -> str:
    """The key of `CONVENTIONS` by which a row counts: as it says, else as its framework does, half
    of the attention where it says that much."""
    said = f"{cell(row, 'flops_convention') or ''} {cell(row, 'metric_said') or ''}".lower()
    if (name := convention(said)) is not None:
        return name
    name = counted_by(framework, told_month(cell(row, "published")))
    causal = f"{name.removesuffix('_causal')}_causal"
    return causal if CAUSAL.search(said) and causal in CONVENTIONS else name


def step_time(row: Mapping[str, Any], request: TrainingRequest) -> float | None:
    """Step time [s] that a row's FLOP/s, or their share of the peak, amount to; None where it
    states none, or not of which peak. How they are counted is as the row says, else as its
    framework counts (`counted_by`)."""
    metric, value = cell(row, "metric"), cell(row, "value")
    if value is None or not float(value) > 0:
        return None
    plan, model = request.plan, request.model
    rate, said = float(value), str(cell(row, "flops_convention") or "")
    told = " ".join((said, str(cell(row, "metric_said") or ""), str(cell(row, "notes") or "")))
    name = _counted(row, plan.framework)
    if metric in SHARES:
        hundredth = rate > 1.0 or "%" in told
        share = _rate(rate * (0.01 if hundredth else 1.0), request, told.lower())
        if share is None:
            return None
        rate, metric = share, SHARES[metric]
    elif metric == IN_ALL:
        rate, metric = 1e3 * rate / float(plan.gpus), METRICS[0]
    if metric not in METRICS:
        return None
    if metric == METRICS[0] and plan.framework in WITH_AGAIN and not _models_own(row):
        metric = METRICS[1]
    if metric == METRICS[0]:
        each = model_flop_per_token(model, plan.seq_len, name)
    else:
        each = hardware_flop_per_token(
            model, plan.seq_len, name, plan.recompute, plan.recompute_share
        )
    flop = float(np.asarray(each * plan.global_batch * plan.seq_len))
    return flop / (rate * 1e12 * float(plan.gpus))


def _models_own(row: Mapping[str, Any]) -> bool:
    """Whether a row says that its FLOP/s are those of the model alone."""
    said = f"{cell(row, 'metric_said')} {cell(row, 'flops_convention')}".lower()
    return "model" in said or "mfu" in said or "excl" in said


def says_how(row: Mapping[str, Any]) -> bool:
    """Whether a row of FLOP/s says how they are counted; True of rows of anything else."""
    if cell(row, "step_time_s") is not None or cell(row, "metric") not in (
        *METRICS,
        *SHARES,
        IN_ALL,
    ):
        return True
    said = f"{cell(row, 'flops_convention') or ''} {cell(row, 'metric_said') or ''}"
    return convention(said) is not None


def why_none(row: Mapping[str, Any]) -> str:
    """Why no step time follows from what a row says that it measured."""
    metric = cell(row, "metric")
    if metric in SHARES and cell(row, "value") is not None:
        return f"of which peak {metric} is a share is not stated: sources differ by a factor of two"
    if metric in ("total_days", "gpu_hours"):
        return f"{metric} without the tokens of the whole run (a column `tokens`, or in the notes)"
    if metric is None or metric in KNOWN:
        return "no step time is stated"
    return (
        f"nothing is known of the metric {metric!r} (SCHEMA: step_time_s, tokens_per_s, mfu, ...)"
    )


def _rate(share: float, request: TrainingRequest, told: str) -> float | None:
    """TFLOP/s that a share of an accelerator's peak are; None of narrow precisions where nothing
    says which peak is meant, since sources differ by a factor of two.

    told   what the row says of it, in small letters
    """
    stated = list(PEAK.finditer(told))
    if len(stated) == 1:
        number, unit = (stated[0][1] or stated[0][3]), (stated[0][2] or stated[0][4])
        return share * float(number) * (1e3 if unit == "p" else 1.0)
    kind, plain = request.plan.recipe.peak, ("bf16", "fp16", "fp32", "tf32")
    if kind not in plain:
        found = KIND_OF_PEAK.search(told)
        if found is None and request.plan.framework not in BY_SIXTEEN_BITS:
            return None
        meant = (found[1] or found[2]) if found else "bf16"
        kind = kind if meant in ("fp8", "float8", "fp4", "nvfp4") else "bf16"
    peak = float(np.asarray(request.cluster.accelerator.peak_for(kind)))
    return share * peak / 1e12


OF_DEVICES = ("bigscience_bloom_prequel",)
"""Sources whose memory is all that is taken of a device, driver and communicators included, where
others state what the allocator holds: the chronicle read it off nvidia-smi (train/tr11-176B-ml/
chronicles-prequel.md of bigscience-workshop/bigscience at 9e64ede, lines 86 and 962)."""

OF_TENSORS = ("kempnerforge_mfu", "kempnerforge_moe", "simumax_b200")
"""Sources whose memory is what tensors take, without what the allocator loses: torch's
max_memory_allocated (KempnerForge at 5666d0d, kempnerforge/metrics/memory.py and tracker.py;
SimuMax's real column is called allocated memory by who gathered it)."""


def memory_of(source: str) -> str:
    """What a source's memory is of: 'device', 'tensors' or 'allocator'."""
    if source in OF_DEVICES:
        return "device"
    return "tensors" if source in OF_TENSORS else "allocator"


RATES = (
    "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_day", "total_days", "gpu_hours", IN_ALL,
    *METRICS, *SHARES,
)  # fmt: skip
"""Metrics that hardly depend on how many sequences a step has."""

USUAL_LENGTH = 4096
"""Tokens of a sequence where nobody says: the middle one of the three lengths that nearly all rows
of the shared table have (2,048, 4,096 and 8,192, each some 370 times), or all that the model was
made for."""

ROUNDS, ALONE = 8, 4
"""Micro-batches of a step for each stage of a pipeline, and of a step without one, where nobody
says how many: the median over the 13 sources with pipelines that do say of their own medians, and
the middle one of all rows without (of whose sources half have one)."""


def _of_memory(row: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a row states what memory depends on, and nothing that depends on more."""
    stated = ("memory_gb_per_gpu", "memory_reserved_gb", "peak_gib", "status")
    kept = any(cell(row, name) is not None for name in stated)
    own = kept and cell(row, "metric") in (None, "memory_gb_per_gpu")
    return own and all(fields.get(name) is not None for name in ("seq_len", "micro_batch"))


def usual_size(row: Mapping[str, Any], fields: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Length and number of sequences of a row that states a rate, but not them: fields of a plan.

    fields   of the plan, as the row states them
    """
    if cell(row, "step_time_s") is not None:
        return {}
    if cell(row, "metric") not in RATES and not _of_memory(row, fields):
        return {}
    found: dict[str, Any] = {}
    length = fields.get("seq_len")
    if length is None:
        length = found["seq_len"] = int(min(USUAL_LENGTH, model.max_context or USUAL_LENGTH))
    if fields.get("global_batch") is None and fields.get("gpus") is not None:
        stages = int(fields.get("pp") or 1)
        ranks = int(fields.get("tp") or 1) * stages * int(fields.get("cp") or 1)
        several = int(fields.get("micro_batch") or max(USUAL_LENGTH // int(length), 1))
        replicas = int(fields.get("dp") or max(int(fields["gpus"]) // ranks, 1))
        rounds = ROUNDS * stages if stages > 1 else ALONE
        found["global_batch"] = several * replicas * rounds
    return found
