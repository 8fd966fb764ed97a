"""Logs and reports as rows in the columns of the tables of runs (`reckon validate`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.errors import InputError
from predictor.models import Model
from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS
from predictor.records import dataclass
from reckon.launch import read_launch
from reckon.launch.dimensions import PREFIX, dimensions, model_of
from reckon.logs.benches import Bench
from reckon.logs.steps import SAME, Figures, Log, figures, series, usual

COLUMNS = {
    "gpus": "num_gpus", "accelerators_per_node": "gpus_per_node", "sharding": "dp_sharding",
    "era": "published",
}  # fmt: skip
"""Keys of a training plan whose column is called otherwise."""

SERVED = {
    "gpus": "num_gpus", "accelerators_per_node": "gpus_per_node", "era": "published",
    "rate": "request_rate", "precision": "weights_precision", "version": "framework_version",
}  # fmt: skip
"""The same of serving plans."""

SIZES = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "head_dim", "num_experts",
    "top_k", "expert_ffn_hidden", "shared_experts", "dense_layers",
)  # fmt: skip
"""Dimensions of a model that are not a catalog's."""

NEEDED = {"accelerator": "--accelerator or --system", "num_gpus": "--gpus",
          "seq_len": "--set seq_len=", "global_batch": "--set global_batch="}  # fmt: skip
"""Columns without which a training run is not predicted, and what says them."""

TOLD = ("gpus", "seq_len", "tp", "pp", "micro_batch")
"""Keys of which it is told where a user says another value than the log."""

SERVED_NEEDED = {"accelerator": "--accelerator or --system", "input_len": "--set input_len=",
                 "output_len": "--set output_len="}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What is said beside a log: it counts instead of what the log says.

    fields   keys of a plan
    model    name, path or mapping; None: as the log says
    system   name or file; None: none
    launch   dialect and text or file of the launch line; both empty: as the log prints it
    source   name of the source in the table
    """

    fields: Mapping[str, Any]
    model: Any = None
    system: str | None = None
    launch: tuple[str, str] = ("", "")
    source: str = "own"


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of a file.

    rows     in the columns of a table of runs
    missing  columns that a prediction needs and nothing says, and what would
    notes    what was found out on the way
    told     what the steps come to; None for a report
    """

    rows: tuple[Mapping[str, Any], ...]
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    told: Figures | None


def rows_of(found: Log | list[Bench], path: Path, given: Given) -> Read:
    """Rows of what a file holds.

    Raises InputError where a training log tells neither a time nor a rate, and for flags that
    cannot be.
    """
    if not isinstance(found, Log):
        return _serving(found, path, given)
    last = _training(found, path, given)
    if not found.earlier:
        return last
    many = [*(_training(one, path, given) for one in found.earlier), last]
    notes = f"{len(many)} jobs of different configurations in one file: a row each", *last.notes
    missing = {name: by for one in many for name, by in one.missing.items()}
    return Read(tuple(row for one in many for row in one.rows), missing, notes, last.told)


def _point(path: Path) -> str:
    """A name for a run: that of its file, and of the folder where that says nothing."""
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    common = (
        "log",
        "out",
        "trainer_state",
        "trainer_log",
        "all_results",
        "train_results",
        "stdout",
        "train",
        "run",
        "result",
        "profile_export",
    )
    name = f"{path.absolute().parent.name}_{stem}" if stem in common else stem
    return re.sub(r"[^\w.-]+", "_", name)


def _month(log: Log) -> str | None:
    stamps = [stamp for step in log.steps if math.isfinite(stamp := step.get("stamp"))]
    if not stamps or stamps[-1] < 1e9:
        return None
    return datetime.fromtimestamp(stamps[-1], UTC).strftime("%Y-%m")


def plan_of(log: Log, given: Given) -> tuple[dict[str, Any], Model | None, list[str]]:
    """Keys of a plan that a log and its user say, the model, and notes."""
    notes = list(log.notes)
    own = dict(given.fields)
    model = catalog.model(given.model) if given.model is not None else None
    fields, model = _launched(log, given, model, notes)
    if model is None:
        model = _printed(log, notes)
    stated = {key: value for key, value in log.stated.items() if not key.startswith(PREFIX)}
    for name in ("reserved_gib", "memory_gib"):
        stated.pop(name, None)
    framework = {"framework": log.framework} if log.framework else {}
    known = {**framework, **stated, **fields, **own}
    notes += _overruled(own, {**stated, **fields})
    if "accelerator" in known and given.system is None:
        known["accelerator"] = _accelerator(str(known["accelerator"]), notes)
    if "gpus" not in known and "dp" in known:
        ranks = [number_or_nan(known.get(name) or 1) for name in ("dp", "tp", "pp", "cp")]
        if math.isfinite(math.prod(ranks)):
            known["gpus"] = round(math.prod(ranks))
    return {k: v for k, v in known.items() if v is not None}, model, notes


def _launched(
    log: Log, given: Given, model: Model | None, notes: list[str]
) -> tuple[dict[str, Any], Model | None]:
    """What a launch line says, the user's or that which the log prints, and the model: the one that
    is known, else the line's. Notes are added.

    Raises InputError for a line of the user's that cannot be read.
    """
    dialect, text = given.launch if given.launch[0] else log.launch
    if not dialect:
        return {}, model
    try:
        launch = read_launch(dialect, text, model, dict(given.fields))
    except InputError as error:
        if given.launch[0]:
            raise
        notes.append(f"the arguments that it prints: {error}")
        return {}, model
    notes += launch.notes
    return dict(launch.fields), model or launch.model


def _printed(log: Log, notes: list[str]) -> Model | None:
    """The model whose sizes a log prints, if it does. Notes are added."""
    sizes = {key: value for key, value in log.stated.items() if key.startswith(PREFIX)}
    if not sizes:
        return None
    try:
        model, told = model_of(sizes)
    except InputError as error:
        notes.append(str(error))
        return None
    notes += told
    return model


def _overruled(own: Mapping[str, Any], logged: Mapping[str, Any]) -> list[str]:
    """Notes of what the user says otherwise than the log does."""
    found = []
    for key in TOLD:
        here, there = own.get(key), logged.get(key)
        if None not in (here, there) and str(here) != str(there):
            found.append(f"{key} is {here}, as you say; the log says {there}")
    return found


def _accelerator(written: str, notes: list[str]) -> str | None:
    """The catalog's name of an accelerator as a driver calls it; None where there is none."""
    try:
        return catalog.accelerator(written).name
    except InputError as error:
        notes.append(f"accelerator {written}: {error}")
        return None


def model_columns(model: Model) -> dict[str, Any]:
    """A model's columns: its name where it is a catalog's, else its dimensions too."""
    if model.name in catalog.rows("models"):
        known = dimensions(catalog.model(model.name))
        if known == dimensions(model):
            return {"model": model.name}
    row = asdict(model)
    sizes = {key: row[key] for key in SIZES if row.get(key)}
    return {"model": model.name, **sizes, "gated": int(model.gated),
            "tied_embeddings": int(model.tied_embeddings)}  # fmt: skip


def _machine(given: Given) -> dict[str, Any]:
    """Columns of the machine that the user names."""
    if given.system is None:
        return {}
    cluster = catalog.system(given.system)
    return {"system": given.system, "accelerator": cluster.accelerator.name,
            "gpus_per_node": int(cluster.accelerators_per_node)}  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _training(log: Log, path: Path, given: Given) -> Read:
    fields, model, notes = plan_of(log, given)
    log = _of_one_batch(log, fields, given.fields, notes)
    _derived(log, fields, notes)
    metric, told = measured(log, path, fields)
    columns = {COLUMNS.get(k, k): _plain(v) for k, v in fields.items() if k in TRAINING_FIELDS}
    row: dict[str, Any] = {
        "point_id": _point(path),
        "source": given.source,
        "source_title": f"a log of {log.form}",
        "source_locator": str(path),
        **({} if _month(log) is None else {"published": _month(log)}),
        **columns,
        **(model_columns(model) if model is not None else {}),
        **_machine(given),
        "metric": metric,
        "value": told.median,
    }
    if metric == "step_time_s":
        row |= {"step_time_s": told.median, "step_time_derivation": "median of the steps"}
    row |= _memory(log)
    row |= {"steps": told.steps, "step_spread": told.spread, "step_p95_ratio": told.slowest,
            "stalls": told.stalls, "notes": "; ".join(notes)}  # fmt: skip
    missing = {name: by for name, by in NEEDED.items() if row.get(name) in (None, "")}
    if "dp" in row and "num_gpus" in row:
        missing.pop("num_gpus", None)
    if "model" not in row:
        missing = {"model": "--model", **missing}
    if log.broken:
        notes.append(f"{log.broken} broken lines left out")
    return Read((row,), missing, tuple(notes), told)


def _of_one_batch(
    log: Log, fields: dict[str, Any], given: Mapping[str, Any], notes: list[str]
) -> Log:
    """A log's steps of the batch that most of those that count have, the later of two such: while
    a batch is ramped up, others take other times. That batch goes into `fields`; what the user
    says of it counts, and what differs from it is noted."""
    told = np.array([step.get("global_batch") for step in log.steps])
    batches = series(log.steps, "global_batch")
    if not batches.size:
        return log
    most = usual(batches)
    with np.errstate(invalid="ignore"):
        other = np.isfinite(told) & (np.abs(told / most - 1.0) >= SAME)
    if other.any():
        notes.append(f"steps of {most} sequences count; {int(other.sum())} of other batches do not")
        kept = tuple(step for step, out in zip(log.steps, other, strict=True) if not out)
        log = replace(log, steps=kept)
    said = number_or_nan(fields.get("global_batch"))
    if abs(said / most - 1.0) < SAME:
        return log
    if given.get("global_batch") is not None:
        notes.append(f"a step is of {said:g} sequences, as you say; its lines say {most}")
        return log
    fields["global_batch"] = most
    return log


def _derived(log: Log, fields: dict[str, Any], notes: list[str]) -> None:
    """Sizes that follow from what steps tell."""
    rates = series(log.steps, "tokens_per_s"), series(log.steps, "tokens_per_s_per_gpu")
    if "gpus" not in fields and rates[0].size and rates[0].size == rates[1].size:
        fields["gpus"] = round(float(np.median(rates[0]) / np.median(rates[1])))
        notes.append(f"{fields['gpus']} accelerators: tokens/s over those of each")
    if "seq_len" not in fields:
        last = next((s for s in reversed(log.steps) if s.get("tokens") > 0), None)
        if last is not None and last.get("samples") > 0:
            fields["seq_len"] = round(last.get("tokens") / last.get("samples"))
            notes.append(f"sequences of {fields['seq_len']}: tokens over samples so far")
    told = series(log.steps, "batch_tokens")
    tokens = float(np.median(told)) if told.size else number_or_nan(fields.get("batch_tokens"))
    length = number_or_nan(fields.get("seq_len"))
    if tokens > 0 and length > 0 and "global_batch" not in fields:
        fields["global_batch"] = round(tokens / length)
        notes.append(
            f"a step is of {fields['global_batch']} sequences: its tokens over their length"
        )
    if "micro_batch" not in fields and (told := series(log.steps, "micro_batch")).size:
        fields["micro_batch"] = round(float(np.median(told)))


def times(log: Log, fields: Mapping[str, Any]) -> np.ndarray:
    """Times of the steps that count [s], (n,): as told, or by rates where the plan says how much
    work a step is; empty where neither does."""
    told = series(log.steps, "seconds")
    if told.size:
        return told
    batch, length, gpus = (
        number_or_nan(fields.get(k)) for k in ("global_batch", "seq_len", "gpus")
    )
    works = {
        "samples_per_s": batch,
        "tokens_per_s": batch * length,
        "tokens_per_s_per_gpu": batch * length / gpus if gpus else math.nan,
    }
    for name, work in works.items():
        rates = series(log.steps, name)
        if rates.size and math.isfinite(work):
            with np.errstate(over="ignore"):
                found = np.asarray(work / rates)
            return found[np.isfinite(found)]
    return told


def number_or_nan(value: Any) -> float:
    """A number, NaN for anything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def measured(log: Log, path: Path, fields: Mapping[str, Any]) -> tuple[str, Figures]:
    """What a log measures, and its figures: the time of a step, else tokens per second.

    Raises InputError where it tells neither.
    """
    found = times(log, fields)
    if found.size:
        return "step_time_s", figures(found)
    for metric in ("tokens_per_s", "tokens_per_s_per_gpu"):
        values = series(log.steps, metric)
        if values.size:
            return metric, figures(values, inverse=True)
    count = len(log.steps)
    if series(log.steps, "samples_per_s").size:
        raise InputError(
            f"{path}: its {count} steps tell sequences per second alone; say how many a step has "
            "(--set global_batch=)"
        )
    more = ""
    if log.form == "trainer-state":
        more = "; the trainer writes its time when it ends: give what it prints (its progress bar)"
    raise InputError(f"{path}: its {count} steps tell neither a time nor tokens per second{more}")


def _memory(log: Log) -> dict[str, Any]:
    """Peak memory [GiB]: what the allocator reserved, where the log says it."""
    found: dict[str, Any] = {}
    for name, column in (
        ("reserved_gib", "memory_reserved_gb"),
        ("memory_gib", "memory_gb_per_gpu"),
    ):
        peak = log.stated.get(name)
        if peak is None and (told := series(log.steps, name)).size:
            peak = float(told.max())
        if peak is not None:
            found[column] = float(peak)
    return found


def _serving(benches: list[Bench], path: Path, given: Given) -> Read:
    notes: list[str] = []
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    fields = dict(given.fields)
    model = catalog.model(given.model) if given.model is not None else None
    if given.launch[0]:
        launch = read_launch(*given.launch, model, fields)
        fields = {**launch.fields, **fields}
        model, notes = model or launch.model, [*notes, *launch.notes]
    own = {SERVED.get(k, k): _plain(v) for k, v in fields.items() if k in SERVING_FIELDS}
    for index, bench in enumerate(benches):
        stated = dict(bench.stated)
        if "accelerator" in stated:
            stated["accelerator"] = _accelerator(str(stated["accelerator"]), notes)
        named = model or _named(stated.get("model"), notes)
        base: dict[str, Any] = {
            "source": given.source,
            "source_title": f"a report of {bench.form}",
            "source_locator": str(path),
            **{key: _plain(v) for key, v in stated.items() if v is not None},
            **(model_columns(named) if named is not None else {}),
            **own,
            **_machine(given),
        }
        ranks = [int(base.get(name) or 1) for name in ("tp", "pp", "dp")]
        if not any(base.get(name) for name in ("num_gpus", "tp", "pp", "dp", "ep")):
            notes.append("accelerators are not said: one is taken (--gpus, --set tp=)")
        base.setdefault("num_gpus", math.prod(ranks))
        base.setdefault("tp", base["num_gpus"])
        missing |= {n: by for n, by in SERVED_NEEDED.items() if base.get(n) in (None, "")}
        if named is None:
            missing = {"model": "--model", **missing}
        if base.get("concurrency") is None and base.get("request_rate") is None:
            missing["concurrency"] = "--set concurrency= or --set rate="
        name = _point(path) + (f"_{index}" if len(benches) > 1 else "")
        for metric, value in bench.values.items():
            told = (*bench.notes, *(("median alone",) if metric in bench.median else ()))
            rows.append({"point_id": f"{name}_{metric.split('_')[0]}", **base, "metric": metric,
                         "value": value, "notes": "; ".join(told)})  # fmt: skip
    return Read(tuple(rows), missing, tuple(dict.fromkeys(notes)), None)


def _named(written: Any, notes: list[str]) -> Model | None:
    """The catalog's model of a name in a report; None where there is none."""
    if not written:
        return None
    try:
        return catalog.model(str(written))
    except InputError as error:
        notes.append(f"model {written}: {error}")
        return None
