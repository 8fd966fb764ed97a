"""Works on a chunk of a grid: its cells in, one row of figures for each out."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from predictor.catalog import load
from predictor.errors import InputError
from predictor.plans import (
    CATEGORY_FIELDS,
    NUMERIC_FIELDS,
    SERVING_CATEGORIES,
    SERVING_NUMBERS,
    TrainingPlan,
)
from predictor.serving import BREAKDOWN
from predictor.timing import Calibration
from predictor.training import TERMS
from predictor.units import GB
from reckon import __version__
from reckon.sweeping.grid import Cell, Chunk
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import predict_each_serving
from reckon.verbs.training import predict_each

Row = dict[str, Any]

COMMON = {
    "cell": "string", "verb": "string", "request": "string", "status": "string",
    "reason": "string", "model": "string", "system": "string", "accelerator": "string",
    "gpus": "int64", "calibration": "string", "version": "string", "fits": "bool",
    "memory_gb": "double", "power_w": "double", "power_low_w": "double", "power_high_w": "double",
    "energy_per_token_j": "double",
}  # fmt: skip
"""Columns that every row has: status is 'ok', 'does not fit' or 'refused' (with its reason),
request the cell's own fields as JSON."""

TRAINING = {
    "step_time_s": "double", "step_time_low_s": "double", "step_time_high_s": "double",
    "tokens_per_s": "double", "mfu": "double", "p_oom": "double", "training_days": "double",
    "cost": "double", "runner_up": "double", "energy_per_sample_j": "double",
    **{f"{term}_s": "double" for term in TERMS},
}  # fmt: skip

SERVING = {
    **{
        f"{name}{end}_s": "double"
        for name in ("ttft", "tpot", "e2e")
        for end in ("", "_low", "_high")
    },
    "output_tokens_per_s": "double", "requests_per_s": "double",
    **{f"{term}_s": "double" for term in BREAKDOWN},
}  # fmt: skip

FLEET = {
    "engines": "int64", "gpus_per_engine": "int64", "ttft_s": "double", "tpot_s": "double",
    "most_requests_per_s_per_engine": "double", "prompts_read_share": "double",
    "gpu_hours_following_load": "double", "cost_per_hour": "double",
    "cost_per_hour_following_load": "double", "runner_up": "double", "other_gpus": "int64",
    "why": "string",
}  # fmt: skip
"""Figures of a fleet, as `plan infer --json` names them."""


def columns(verb: str) -> dict[str, str]:
    """Columns of a dataset with their types, the same in every file."""
    if verb.endswith("infer"):
        plan = {**dict.fromkeys(SERVING_NUMBERS, "double"),
                **dict.fromkeys(SERVING_CATEGORIES, "string")}  # fmt: skip
        own = SERVING if verb == "predict infer" else FLEET
        return {**COMMON, "rate": "double", **plan, **own}
    kinds = {f: type(TrainingPlan.__dataclass_fields__[f].default) for f in CATEGORY_FIELDS}
    plan = {**dict.fromkeys(NUMERIC_FIELDS, "double"),
            **{f: "bool" if kind is bool else "string" for f, kind in kinds.items()}}  # fmt: skip
    return {**COMMON, "tokens": "double", **plan, **TRAINING}


@lru_cache(maxsize=4)
def _calibration(name: str) -> Calibration:
    return load(name)


def work(verb: str, calibration: str, chunk: Chunk) -> list[Row]:
    """Figures of every cell of a chunk, one row each.

    Runs anywhere that reckon is installed and finds the calibration.
    """
    known = _calibration(calibration)
    requests = [cell.fields for cell in chunk.cells]
    found: list[Any]
    if verb == "predict train":
        found = predict_each(requests, known, "cell")
    elif verb == "predict infer":
        found = predict_each_serving(requests, known, "cell")
    elif verb == "plan train":
        found = [_searched(fields, known) for fields in requests]
    else:
        found = [_fleet(fields, calibration) for fields in requests]
    rows = []
    for cell, one in zip(chunk.cells, found, strict=True):
        start = _start(cell, verb, known.name)
        if isinstance(one, InputError):
            rows.append({**start, "status": "refused", "reason": str(one)})
        else:
            figures = one if isinstance(one, dict) else _figures(one)
            status = "ok" if figures["fits"] else "does not fit"
            rows.append({**start, **figures, "status": status})
    return rows


def _start(cell: Cell, verb: str, calibration: str) -> Row:
    names = {name: _name(cell.fields.get(name)) for name in ("model", "system", "accelerator")}
    return {
        "cell": cell.identity,
        "verb": verb,
        "request": json.dumps(cell.fields, ensure_ascii=False),
        **names,
        "calibration": calibration,
        "version": __version__,
    }


def _name(value: Any) -> str | None:
    return value.get("name") if isinstance(value, dict) else value


def _figures(result: Prediction | ServingResult) -> Row:
    inputs = {k: v for k, v in result.inputs().items() if k != "accelerators_per_node"}
    if isinstance(result, ServingResult):
        row = {**inputs, "fits": result.fits, "memory_gb": result.memory["total_gb"]}
        for name in ("ttft", "tpot", "e2e"):
            interval = getattr(result, name)
            row |= {f"{name}_s": interval.value, f"{name}_low_s": interval.low,
                    f"{name}_high_s": interval.high}  # fmt: skip
        row["output_tokens_per_s"] = result.output_tokens_per_s.value
        row["requests_per_s"] = result.requests_per_s
    else:
        time, days = result.step_time, result.training_days()
        row = {
            **inputs,
            "fits": result.fits,
            "memory_gb": result.peak_memory / GB,
            "step_time_s": time.value,
            "step_time_low_s": time.low,
            "step_time_high_s": time.high,
            "tokens_per_s": result.tokens_per_s,
            "mfu": result.mfu()["megatron"],
            "p_oom": result.p_oom,
            "training_days": days.value if days else None,
        }
    power = None if result.power is None else result.power.to_dict()
    terms = {f"{term}_s": value for term, value in result.breakdown.items()}
    return {**row, **_drawn(power), **terms}


def _drawn(power: dict[str, Any] | None) -> Row:
    """Watts of an accelerator with their interval, and energy of a sample or a token; nothing where
    they are not known."""
    if power is None:
        return {}
    watts = power["power_w"]
    row = {"power_w": watts["value"], "power_low_w": watts["low"], "power_high_w": watts["high"]}
    names = ("energy_per_sample_j", "energy_per_token_j")
    return {**row, **{name: power[name]["value"] for name in names if name in power}}


def _searched(fields: dict[str, Any], calibration: Calibration) -> Row | InputError:
    """Figures of the best plan of a cell; `runner_up` is the next one's time or cost over it."""
    from reckon.verbs.plans import asked

    try:
        found = asked(fields, calibration, "cell", keep=2)
        (best,) = found.entries([0])
    except InputError as error:
        return error
    score, cluster = found.result.score, found.result.cluster
    plan = {k: v for k, v in best["plan"].items() if k in (*NUMERIC_FIELDS, *CATEGORY_FIELDS)}
    time = best["step_time_s"]
    return {
        **plan,
        "system": cluster.name,
        "accelerator": cluster.accelerator.name,
        "gpus": best["gpus"],
        "fits": True,
        "memory_gb": best["peak_gb"],
        "step_time_s": time["value"],
        "step_time_low_s": time["low"],
        "step_time_high_s": time["high"],
        "tokens_per_s": best["tokens_per_s_per_gpu"] * best["gpus"],
        "training_days": best["training_days"],
        "cost": best["cost"],
        "runner_up": float(score[1] / score[0]) if len(score) > 1 else None,
        **_drawn(best["power"]),
        **{f"{term}_s": value for term, value in found.winner.breakdown.items()},
    }


def _fleet(fields: dict[str, Any], calibration: str) -> Row | InputError:
    """Figures of the best fleet of a cell; `runner_up` is the GPUs or the cost of the next one over
    its own, `other_gpus` the GPUs of the best that reads prompts the other way."""
    from reckon.verbs.fleets import asked

    try:
        found = asked(fields, calibration, "cell")
    except InputError as error:
        return error
    best = found.entry(*found.shown(1))
    key = "cost_per_hour" if found.objective == "cost" else "gpus"
    next_one = found.entry(found.fleets[1])[key] if len(found.fleets) > 1 else None
    kept = {name: best[name] for name in FLEET if name in best}
    return {
        **best["plan"],
        **kept,
        **_drawn(best["power"]),
        "system": best["system"],
        "accelerator": best["accelerator"],
        "gpus": best["gpus"],
        "fits": True,
        "memory_gb": best["memory_gb"],
        "rate": found.load.peak,
        "runner_up": None if next_one is None else next_one / best[key],
        "other_gpus": None if found.contrast is None else found.contrast.other.gpus,
        "why": found.reason,
    }
