"""What tables of training measured, by the words people have for it: a step's time, tokens, samples
or FLOPs in it, in a column of its own or as `metric` and `value`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from calibration.tables.cells import cell, plain_number

ONE = r"(gpu|gcd|device|chip|npu|hpu|xpu|dcu|card|accelerator)s?"
SECOND = r"(s(ec(ond)?s?)?)"
TOKENS, SEQUENCES = r"tok(en)?s?", r"(sample|sequence|seq|example)s?"
STEP = r"(global|training|optimizer|train)?(step|iteration|iter|it|update)"

WORDS = (
    (rf"{TOKENS}/({SECOND}/{ONE}|{ONE}/{SECOND})(?![a-z])", "tokens_per_s_per_gpu"),
    (r"tgs(?![a-z])", "tokens_per_s_per_gpu"),
    (rf"{TOKENS}/{SECOND}(?![/a-z])", "tokens_per_s"),
    (rf"{TOKENS}/day(?![/a-z])", "tokens_per_day"),
    (rf"{SEQUENCES}/({SECOND}/{ONE}|{ONE}/{SECOND})(?![a-z])", "samples_per_s_per_gpu"),
    (rf"{SEQUENCES}/{SECOND}(?![/a-z])", "samples_per_s"),
    (rf"(ms|milliseconds?)/{STEP}(?![a-z])", "step_time_ms"),
    (rf"{SECOND}/{STEP}(?![a-z])", "step_time_s"),
    (rf"{STEP}s?/{SECOND}(?![/a-z])", "steps_per_s"),
    (rf"({STEP}(time|latency|duration)|(elapsed)?time/{STEP})[(,\[]?(in)?(ms|milliseconds?)[)\]]?$",
     "step_time_ms"),
    (rf"({STEP}(time|latency|duration)|(elapsed)?time/{STEP})([(,\[]?(in)?{SECOND}[)\]]?)?$",
     "step_time_s"),
    (r"(mfu|modelfl?ops?utili[sz]ation)", "mfu"),
    (r"(hfu|hardwarefl?ops?utili[sz]ation)", "hfu"),
    (rf"(hw|hardware)(tfl?op/?s?|teraflop/?s?)(/{SECOND})?/{ONE}", "hw_tflops_per_gpu"),
    (rf"(model|achieved)?(tfl?op/?s?|teraflop/?s?)(/{SECOND})?/{ONE}", "model_tflops_per_gpu"),
    (rf"(model|achieved)?(pfl?op/?s?|petaflop/?s?)(/{SECOND})?(?![/a-z])", "model_pflops"),
    (rf"(model|achieved)?(tfl?op/?s?|teraflop/?s?)(/{SECOND})?(?![/a-z])", "model_tflops_per_gpu"),
    (r"(total|training|wallclock)?(days?)(?![/a-z])", "total_days"),
    (rf"({ONE}|accelerator)-?hours?(?![/a-z])", "gpu_hours"),
)  # fmt: skip
"""Words of a table of training and what was measured, the first that is found; blanks, underscores
and dashes do not count, and 'per' is a stroke. FLOP/s of which nobody says whose are an
accelerator's in 10^12, and those of all in 10^15."""

KNOWN = (*dict.fromkeys(name for _, name in WORDS), "memory_gb_per_gpu")
"""What a table of training may have measured."""


def metric_of(said: object) -> str | None:
    """What was measured, as a table says it ('Tokens/s/GPU', 'MFU (%)'); words that are not known
    stay as they are."""
    text = str(said or "").strip().lower()
    if text in KNOWN:
        return text
    text = re.sub(r"[\s_-]*(?:(?<![a-z])per(?![a-z])|/)[\s_-]*", "/", text)
    text = re.sub(r"[\s_-]", "", text)
    found = next((name for words, name in WORDS if re.search(rf"(?<![a-z]){words}", text)), None)
    return found or (str(said) if said is not None else None)


def measured(row: Mapping[str, Any]) -> tuple[str | None, Any]:
    """Metric and value of a row of training: as it states them, else the first of `KNOWN` of which
    it has a column ('MFU (%)', 'tokens/s/GPU')."""
    metric, value = metric_of(cell(row, "metric")), cell(row, "value")
    if value is not None or cell(row, "step_time_s") is not None:
        return metric, value
    found: dict[str, float] = {}
    for key in row:
        name = metric_of(key)
        number = plain_number(row[key]) if name in KNOWN else None
        if name is not None and number is not None and number > 0:
            found.setdefault(name, number)
    found.pop("memory_gb_per_gpu", None)
    return next(((name, found[name]) for name in KNOWN if name in found), (metric, value))


TRAINED = re.compile(
    r"(\d[\d.,]*)\s*(trillion|billion|million|[tbm])[ -]*(training[ -])?tok(en)?s?\b", re.IGNORECASE
)
"""How notes say on how many tokens a model was trained."""

MANY = {"t": 1e12, "b": 1e9, "m": 1e6}


def tokens_of(row: Mapping[str, Any]) -> float | None:
    """Tokens of the whole run of a row, by its column `tokens`, else its notes; None without."""
    stated = plain_number(row.get("tokens"))
    if stated is not None:
        return stated
    found = TRAINED.search(str(cell(row, "notes") or ""))
    return float(found[1].replace(",", "")) * MANY[found[2][0].lower()] if found else None


def seconds(
    row: Mapping[str, Any], metric: str | None, value: Any, sizes: tuple[float, float, float]
) -> float | None:
    """Step time [s] by another unit, a throughput or the time of a whole run, which is exact; None
    for other metrics.

    sizes   sequences of a step, tokens of each, accelerators
    """
    if value is None or not float(value) > 0:
        return None
    number, (batch, length, gpus) = float(value), sizes
    tokens, run = batch * length, tokens_of(row)
    steps = run / tokens if run else math.nan
    found = {
        "step_time_s": number,
        "step_time_ms": number / 1e3,
        "steps_per_s": 1.0 / number,
        "samples_per_s": batch / number,
        "samples_per_s_per_gpu": batch / (number * gpus),
        "tokens_per_s": tokens / number,
        "tokens_per_s_per_gpu": tokens / (number * gpus),
        "tokens_per_day": 86400.0 * tokens / number,
        "total_days": 86400.0 * number / steps,
        "gpu_hours": 3600.0 * number / gpus / steps,
    }.get(str(metric))
    return found if found is not None and math.isfinite(found) else None
