"""Rows of MLPerf Inference: data sets that their benchmarks name, and settings of submissions that
their summaries leave out.

A benchmark fixes its data set, hence the mean prompt; a summary states the mean answer (tokens per
sample of the accuracy run), neither precision nor layout. Benchmarks whose answers beams search for
are not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.tables.cells import cell
from predictor import catalog
from predictor.errors import InputError
from predictor.models import Model
from predictor.precision import WEIGHT_BYTES

LENGTHS: dict[str, tuple[float, float]] = {
    "llama2-70b": (221.0, 294.45),
    "mixtral-8x7b": (340.0, 144.84),
    "llama3.1-405b": (9400.0, 684.68),
    "llama3.1-8b": (778.0, 73.0),
    "deepseek-r1": (800.0, 3880.0),
}
"""Mean prompt and answer [tokens]: OpenOrca as its 24,576 prompts were counted in public (221.3)
and the answers that the reference implementation demands (294.45; Mixtral's 144.84, whose prompts
are OpenOrca's for a third, for a third GSM8K's behind worked examples, some 640 tokens (657 of the
one that mlcommons/inference_results_v4.1, closed/NVIDIA/code/mixtral-8x7b/tensorrt/
preprocess_data.py @ 198fc467, shows), and MBXP's, functions with their docstrings, taken for 160);
LongBench, RULER and GovReport
(mlcommons.org, llm-inference-v5, 2025-04: 9,400 and 680); CNN/DailyMail (mlcommons.org,
small-llm-inference-5-1, 2025-09: 778 and 73); five reasoning sets (mlcommons.org, 2025-09: 3,880;
their prompts from memory). Figures of mlcommons.org from memory of these pages."""

BEAMS = ("gptj", "gpt-j")
"""Benchmarks whose answers are found by a search with four beams (rules of v3.1)."""

ROOM = 0.6
"""Most of an engine's memory that submissions give to weights, where more accelerators are at hand:
Llama 2 70B in 8 bits runs on two H100 or one H200, Mixtral 8x7B on one H100 (v4.1, closed/NVIDIA/
configs)."""

LONG, ROOM_OF_LONG = 2000.0, 0.4
"""Prompts from this length on [tokens], whose cache wants more: Llama 3.1 405B in 4 bits runs on
four B200 or two GB300, in 8 bits on eight H200 (v5.1, closed/NVIDIA and closed/HPE configs)."""

MOST = 8
"""Accelerators of a node."""

SCALED = ("deepseek",)
"""Families whose fp8 checkpoints are scaled in blocks of 128, and of which every accelerator of a
node keeps whole attention and an eighth of the experts (v5.1, closed/NVIDIA and closed/HPE configs
of deepseek-r1: moe_expert_parallelism 8, enable_attention_dp)."""

PRECISIONS = (("blackwell", "nvfp4"), ("cdna4", "mxfp4"))
"""Narrowest data type for which an architecture has units and submissions have checkpoints; of
others fp8 where there are units for it (closed division: NVIDIA's since v3.1, AMD's since v4.1)."""


def is_mlperf(source: str) -> bool:
    """Whether a source is a round of MLPerf Inference."""
    return source.startswith("mlperf_inference")


def lengths(benchmark: str) -> tuple[float | None, float | None]:
    """Mean prompt and answer [tokens] of a benchmark, or of the model that it is named for.

    Raises InputError where beams search for its answers.
    """
    name = benchmark.lower()
    if name.startswith(BEAMS):
        raise InputError("answers that beams search for are not predicted")
    return next((LENGTHS[one] for one in LENGTHS if name.startswith(one)), (None, None))


def settings(row: Mapping[Any, Any], model: Model, accelerator: str) -> dict[str, Any]:
    """Precision and layout of a submission, unless its row states them."""
    device, gpus = catalog.accelerator(accelerator), int(cell(row, "num_gpus") or 1)
    eight = "fp8_block" if model.name.startswith(SCALED) else "fp8"
    usual = next((t for a, t in PRECISIONS if device.architecture.startswith(a)), eight)
    precision = usual if "fp8" in device.peak else "bf16"
    found: dict[str, Any] = {}
    if cell(row, "weights_precision") is None:
        found["precision"] = precision
    if cell(row, "tp") is None:
        weights, tp = model.parameters * WEIGHT_BYTES[precision], 1
        prompt = cell(row, "input_len") or lengths(model.name)[0] or 0.0
        room = (ROOM if float(prompt) < LONG else ROOM_OF_LONG) * device.memory
        while tp * room < weights and gpus % (2 * tp) == 0 and tp < MOST:
            tp *= 2
        # Replicas of a dense model are one plan; those of a mixture would share its experts.
        found |= {"tp": tp, "pp": 1, "dp": 1 if model.is_moe else gpus // tp}
        if model.name.startswith(SCALED) and gpus % MOST == 0:
            found |= {"tp": 1, "dp": MOST, "ep": MOST}
    return found


def engines(row: Mapping[Any, Any], ranks: float) -> int:
    """Engines of so many ranks that a submission ran beside each other, whose rates it adds up; 1
    where the row states its layout."""
    if not is_mlperf(str(row.get("source", ""))) or cell(row, "tp") is not None:
        return 1
    return max(int(cell(row, "num_gpus") or 1) // int(ranks), 1)
