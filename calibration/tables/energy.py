"""Rows of tables of served energy as requests: what they state under other names than tables of
inference do, and what their sources' setups say where the table does not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from calibration.tables.cells import UNREAD, cell
from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Skipped
from predictor import catalog
from predictor.errors import InputError
from predictor.timing import RunParameters

TASKS = {
    "gpqa": 250.0,
    "lm-arena-chat": 250.0,
    "sourcegraph-fim": 1700.0,
    "image-chat": 1000.0,
    "video-chat": 1700.0,
    "llm-chat": 150.0,
    "llm-code": 150.0,
    "mllm-chat": 600.0,
    "offline batch": 256.0,
    "chat": 100.0,
    "chat-concise": 100.0,
    "instruct": 60.0,
    "instruct-concise": 60.0,
}
"""Mean prompt of a task [tokens], which the tables leave out. Where prompts are read between passes
that decode, the mean time between tokens exceeds the median one by them: lm-arena-chat (each turn
is sent with all before it), sourcegraph-fim (prefix and suffix of files), image-chat and video-chat
(32 frames; ml-energy/benchmark, mlenergy/llm/datasets.py of 2025-12) are what this excess takes on
dense models of H100 at the predicted rate of prompts, median over rows of 32 requests and more;
their power had no part in it. gpqa: questions with four answers; the others from memory."""

DROPPED = (
    r"-(instruct|thinking|it|chat|hf|2507|2407|0528|fp8|bf16|vl|v0\.[13]|1\.1|8k|4k|128k"
    r"|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8)(?=-|$)"
)
"""What names of checkpoints add to the dimensions' own."""

SPELLED = (
    (r"^(meta|nvidia)-", ""),
    (r"^llama-(?=[234])", "llama"),
    (r"^gemma-([23])", r"gemma\1"),
    (r"^codegemma-(2|7)b", r"gemma-\1b"),
    (r"^codellama-(7|13|70)b", r"llama2-\1b"),
    (r"^deepseek-v3\.1", "deepseek-v3"),
    (r"^qwen3-coder-30b", "qwen3-30b"),
    (r"^mistral-nemo", "mistral-nemo-12b"),
    (r"^mistral-large", "mistral-large-123b"),
    (r"\s*\(.*\)$", ""),
)
"""Checkpoints' names as the catalog spells them."""

RELEASED = "as released"
"""What a source says of a precision that the name of the checkpoint tells."""

NARROW = r"(?i)-(fp8|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8)(?=-|$)"
"""What names of checkpoints say of their weights."""

TUNED = (
    (
        r"(vicuna|koala|alpaca|baize|billa|xgen|h2ogpt|gpt4all|camel|manticore|llama)\S*?-v?2?-?7b.*",
        "llama1-7b",
    ),
    (r"(vicuna|koala|alpaca|camel|gpt4all|manticore|llama)\S*?-13b.*", "llama1-13b"),
    (r"(dolly-v2|oasst-sft-1-pythia)-12b", "pythia-12b"),
    (r"redpajama-incite-7b.*", "pythia-6.9b"),
    (r"phoenix-inst-chat-7b", "bloom-7b1"),
)
"""Checkpoints of 2023, tuned from others, and the catalog's dimensions of those."""

ACCELERATORS = {"B200": "B200-SXM-180GB", "A100-80GB": "A100-SXM4-80GB"}

UNSTATED = {
    "A100 (variant not stated)": "A100-SXM4-40GB",
    "V100 (variant not stated)": "V100-SXM2-32GB",
}
"""What the first sweep of ML.ENERGY leaves open: A100 as in its second one; 26 GB of weights of 13B
models do not fit a V100 of 16."""

FRAMEWORKS = {"mlenergy_v1": "huggingface"}
"""Engines of sources whose rows do not name one."""

ERAS = {
    "mlenergy_v1": "2023-07",
    "mlenergy_v3": "2025-10",
    "mlenergy_v2": "2024-08",
    "nlr_offline": "2025-06",
}
"""Months of the engines that the sources ran."""

REFUSED = {
    "tokenpowerbench": "runs of seconds, accelerators that idle included",
    "chuyishang": "the requests at a time are not stated",
}
"""Sources that cannot be predicted, and why."""


def catalog_name(checkpoint: str) -> str:
    """Name of the catalog's model behind that of a checkpoint.

    Raises InputError where there is none.
    """
    name = checkpoint.rpartition("/")[2].lower()
    for pattern, like in TUNED:
        if re.fullmatch(pattern, name):
            return like
    for _ in range(3):
        name = re.sub(DROPPED, "", name)
    for pattern, put in SPELLED:
        name = re.sub(pattern, put, name)
    try:
        return str(catalog.find("models", name)["name"])
    except InputError:
        return str(catalog.model(checkpoint).name)


def accelerators(row: Mapping[Any, Any]) -> int:
    """Accelerators of a row; 0 where it does not state them."""
    return int(cell(row, "n_gpus") or cell(row, "num_gpus") or 0)


def _weights(row: Mapping[Any, Any]) -> str:
    """Data type of a row's weights: as it says, else as its checkpoint is called, else 16 bits."""
    said = cell(row, "precision") or cell(row, "weights_precision")
    if said is not None and str(said).lower() != RELEASED:
        return str(said)
    told = re.search(NARROW, str(cell(row, "model")))
    return told[1].lower() if told else "bf16"


def _engine(row: Mapping[Any, Any]) -> str:
    """Engine that a row states; vLLM where it states none."""
    return str(cell(row, "engine") or cell(row, "framework") or "vllm")


def _load(row: Mapping[Any, Any], source: str) -> dict[str, Any] | None:
    """Requests of a row: a rate at which they arrive, which decides how many run where it is
    stated; so many at a time; all at once. None where nothing is stated."""
    rate, batch = cell(row, "request_rate"), cell(row, "batch") or cell(row, "concurrency")
    most = cell(row, "max_num_seqs")
    if rate is not None and 0.0 < float(rate) < math.inf:
        return {"request_rate": rate, "max_batch": most}
    if batch is None:
        return None if rate is None else {"max_batch": most}
    return {
        "batch": most or batch,
        "concurrency": None if source in FRAMEWORKS else max(round(float(batch)), 1),
        "batch_counts": "most",
    }


def energy_point(
    row: Mapping[Any, Any], number: int, run: RunParameters
) -> InferencePoint | Skipped:
    """A row of a table of served energy as a point of inference (its value is the measured rate of
    generated tokens), or the reason why it is none.

    number   of the row in its table
    """
    source = str(cell(row, "source") or "")
    point_id = f"{source}:{number}"
    if (unread := cell(row, UNREAD)) is not None:
        return Skipped(point_id, source, str(unread))
    if source in REFUSED:
        return Skipped(point_id, source, REFUSED[source])
    try:
        name = catalog_name(str(cell(row, "model")))
    except InputError as error:
        return Skipped(point_id, source, str(error))
    task = str(cell(row, "task"))
    given = cell(row, "input_len") or TASKS.get(task)
    made = cell(row, "output_len") or cell(row, "max_output_tokens")
    gpus = accelerators(row)
    if not gpus:
        return Skipped(point_id, source, "the number of accelerators is not stated")
    load = _load(row, source)
    if given is None or made is None or load is None:
        return Skipped(point_id, source, "lengths or requests at a time are not stated")
    tp, ep, dp = (cell(row, key) for key in ("tp", "ep", "dp"))
    if dp is not None and float(dp) <= 1:
        dp = None
    spread = ep is not None and float(ep) > 1
    stated = {
        "point_id": point_id,
        "source": source,
        "accelerator": {**ACCELERATORS, **UNSTATED}.get(
            str(row["accelerator"]), row["accelerator"]
        ),
        "gpus_per_node": cell(row, "gpus_per_node") or 8,
        "num_gpus": gpus,
        "model": name,
        "tp": tp if tp is not None and not spread else (None if spread else gpus),
        "pp": cell(row, "pp"),
        "ep": ep if spread else None,
        "dp": dp,
        "weights_precision": _weights(row),
        "input_len": given,
        "output_len": max(round(float(made)), 1),
        "framework": FRAMEWORKS.get(source) or _engine(row),
        "framework_version": cell(row, "framework_version") or cell(row, "engine_version"),
        "published": ERAS.get(source) or cell(row, "published") or "2025-06",
        "metric": "output_tokens_per_s",
        "value": cell(row, "output_tok_s") or 1.0,
        **load,
    }
    return inference_point({k: v for k, v in stated.items() if v is not None}, run)
