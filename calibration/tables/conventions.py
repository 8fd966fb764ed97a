"""Step times from published rates: from FLOP/s by how their source says that it counts them; of
runs whose size nobody says, by what is usual, since their rate hardly depends on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibration.tables.cells import cell
from predictor.models import CONVENTIONS, Model, hardware_flop_per_token, model_flop_per_token
from predictor.training import TrainingRequest

METRICS = ("model_tflops_per_gpu", "hw_tflops_per_gpu")
"""FLOP/s of an accelerator, without and with what recomputation repeats [TFLOP/s]."""

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


def step_time(row: Mapping[str, Any], request: TrainingRequest) -> float | None:
    """Step time [s] that a row's FLOP/s, or their share of the peak, amount to; None where it
    states none, or not how they are counted."""
    metric, value = cell(row, "metric"), cell(row, "value")
    if metric in SHARES and value is not None:
        metric, value = SHARES[metric], _rate(float(value), request)
    name = convention(str(cell(row, "flops_convention") or ""))
    if metric not in METRICS or not value or name is None:
        return None
    plan, model = request.plan, request.model
    if metric == METRICS[0]:
        each = model_flop_per_token(model, plan.seq_len, name)
    else:
        each = hardware_flop_per_token(
            model, plan.seq_len, name, plan.recompute, plan.recompute_share
        )
    flop = float(np.asarray(each * plan.global_batch * plan.seq_len))
    return flop / (float(value) * 1e12 * float(plan.gpus))


def _rate(share: float, request: TrainingRequest) -> float | None:
    """TFLOP/s that a share of an accelerator's peak are; None of narrow precisions, where sources
    differ in which peak they mean."""
    kind = request.plan.recipe.peak
    if kind not in ("bf16", "fp16", "fp32", "tf32"):
        return None
    peak = float(np.asarray(request.cluster.accelerator.peak_for(kind)))
    return share * (1.0 if share <= 1.0 else 0.01) * peak / 1e12


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


RATES = ("tokens_per_s", "tokens_per_s_per_gpu", *METRICS, *SHARES)
"""Metrics that hardly depend on how many sequences a step has."""

USUAL_LENGTH = 4096
"""Tokens of a sequence where nobody says: the middle one of the three lengths that nearly all rows
of the shared table have (2,048, 4,096 and 8,192, each some 370 times), or all that the model was
made for."""

ROUNDS, ALONE = 8, 4
"""Micro-batches of a step for each stage of a pipeline, and of a step without one, where nobody
says how many: the median over the 13 sources with pipelines that do say of their own medians, and
the middle one of all rows without (of whose sources half have one)."""


def usual_size(row: Mapping[str, Any], fields: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Length and number of sequences of a row that states a rate, but not them: fields of a plan.

    fields   of the plan, as the row states them
    """
    if cell(row, "metric") not in RATES or cell(row, "step_time_s") is not None:
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
