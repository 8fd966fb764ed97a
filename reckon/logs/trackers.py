"""What trackers of experiments keep: TensorBoard's event files, tables exported from Weights &
Biases, the state of HuggingFace's trainer.

Sources of the forms: TensorFlow `tensorflow/core/util/event.proto`, `framework/summary.proto`,
`framework/tensor.proto` and `lib/io/record_writer.h` (records of length, checksum, data, checksum);
the documentation of Weights & Biases on exports of runs and of charts; huggingface/transformers
`trainer_callback.py` (`TrainerState`), `trainer_utils.py` (`speed_metrics`), `trainer_pt_utils.py`
(`save_metrics`: `train_results.json`, `all_results.json`). From memory where
a field is not in one of these.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from predictor.errors import InputError
from reckon.logs.lines import timed
from reckon.logs.opening import DAMAGED, opened
from reckon.logs.preferences import counted, objective_of
from reckon.logs.steps import SAME, Collected, Log, LoggedStep

TAGS: dict[str, tuple[str, str]] = {
    "iteration-time": ("seconds", "megatron-lm"),
    "iteration_time": ("seconds", "megatron-lm"),
    "lm loss": ("loss", "megatron-lm"),
    "batch-size": ("global_batch", "megatron-lm"),
    "train_step_timing in s": ("seconds", "nemo"),
    "reduced_train_loss": ("loss", "nemo"),
    "global_batch_size": ("global_batch", "nemo"),
    "throughput(tps)": ("tokens_per_s_per_gpu", "torchtitan"),
    "time_metrics/end_to_end(s)": ("seconds", "torchtitan"),
    "loss_metrics/global_avg_loss": ("loss", "torchtitan"),
    "memory/max_active(gib)": ("memory_gib", "torchtitan"),
    "memory/max_reserved(gib)": ("reserved_gib", "torchtitan"),
    "perf/step_time_seconds": ("seconds", "maxtext"),
    "perf/per_device_tokens_per_sec": ("tokens_per_s_per_gpu", "maxtext"),
    "learning/loss": ("loss", "maxtext"),
    "throughput/batches_per_sec": ("batches_per_s", "llm-foundry"),
    "throughput/samples_per_sec": ("samples_per_s", "llm-foundry"),
    "throughput/tokens_per_sec": ("tokens_per_s", "llm-foundry"),
    "throughput/device/tokens_per_sec": ("tokens_per_s_per_gpu", "llm-foundry"),
    "loss/train/total": ("loss", "llm-foundry"),
    "tokens_per_sec": ("tokens_per_s", ""),
    "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", ""),
    "lm_loss": ("loss", ""),
    "step_time_s": ("seconds", ""),
    "step_time": ("seconds", ""),
    "loss": ("loss", ""),
}
"""Names of scalars, without what stands before them, and what they tell of a step; whose they are,
where only one framework calls them so."""

PREFIXES = re.compile(r"^(train|training|trainer|global|metrics|perf)/")
MS = {
    "elapsed_time_per_iteration_ms": "nanotron", "time_per_iteration_ms": "nanotron",
    "iteration_time_ms": "",
}  # fmt: skip
"""Names of step times in milliseconds."""


def quantity(tag: str) -> tuple[str, float, str] | None:
    """What a scalar's name means: quantity, factor, framework; None for others."""
    name = tag.strip().lower()
    for _ in range(3):
        if name in TAGS:
            return TAGS[name][0], 1.0, TAGS[name][1]
        if name in MS:
            return "seconds", 1e-3, MS[name]
        shorter = PREFIXES.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return None


class _Gathered:
    """Scalars of steps, whatever keeps them."""

    def __init__(self) -> None:
        self.steps = Collected()
        self.frameworks: dict[str, int] = {}

    def take(self, tag: str, number: int, value: float, stamp: float | None = None) -> bool:
        """One scalar; whether it says something of a step."""
        means = quantity(tag)
        if means is None or not math.isfinite(value):
            return False
        values = {means[0]: value * means[1]}
        self.steps.add(LoggedStep(number, values if stamp is None else {**values, "stamp": stamp}))
        if means[2]:
            self.frameworks[means[2]] = self.frameworks.get(means[2], 0) + 1
        return True

    def log(self, form: str, broken: int, path: Path, notes: tuple[str, ...] = ()) -> Log:
        """What was gathered. Raises InputError where no scalar says anything of a step."""
        steps = timed(self.steps.ordered(), {})
        if not steps:
            raise InputError(f"{path}: no scalar in it is a step time, a rate or a loss")
        framework = max(self.frameworks, key=lambda k: self.frameworks[k], default="")
        return Log(form, framework, steps, {}, broken=broken, notes=notes)


def records(stream: BinaryIO) -> Iterator[bytes]:
    """Records of an event file: length (8 bytes), its checksum (4), data, its checksum (4); the
    last one may be cut off."""
    while len(head := stream.read(12)) == 12:
        (length,) = struct.unpack("<Q", head[:8])
        if length > 1 << 30:
            return
        data = stream.read(length)
        if len(data) < length or len(stream.read(4)) < 4:
            return
        yield data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def message(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protocol buffer: number, and an integer or bytes.

    Raises IndexError or ValueError where it is cut off or of a kind that is not used here.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, number = key & 7, key >> 3
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"kind {kind} of a field")
        if at + size > len(data):
            raise IndexError(at)
        yield number, data[at : at + size]
        at += size


def scalar_of(value: bytes) -> tuple[str, float] | None:
    """Tag and number of a value of a summary; None where it holds no scalar."""
    tag, number = "", None
    for key, content in message(value):
        if key == 1:
            tag = content.decode("utf-8", "replace")
        elif key == 2:
            number = struct.unpack("<f", content)[0]
        elif key == 8:
            number = _tensor(content)
    return None if number is None else (tag, float(number))


def _tensor(data: bytes) -> float | None:
    """The number of a tensor of one element, of 32 or 64 bits."""
    found = dict(message(data))
    for key, form in ((5, "<f"), (6, "<d"), (4, None)):
        content = found.get(key)
        if content is None:
            continue
        if form is None:
            form = "<d" if found.get(1) == 2 else "<f"
        if len(content) == struct.calcsize(form):
            return float(struct.unpack(form, content)[0])
    return None


def read_events(path: Path) -> Log:
    """Scalars of a TensorBoard event file; a record that is broken costs itself."""
    gathered, broken = _Gathered(), 0
    with path.open("rb") as stream:
        for record in records(stream):
            try:
                fields = list(message(record))
                step = next((int(v) for k, v in fields if k == 2), 0)
                wall = next((struct.unpack("<d", v)[0] for k, v in fields if k == 1), None)
                for _, summary in (pair for pair in fields if pair[0] == 5):
                    for _, value in (pair for pair in message(summary) if pair[0] == 1):
                        told = scalar_of(value)
                        if told is not None:
                            gathered.take(told[0], step, told[1], wall)
            except (IndexError, ValueError, struct.error, TypeError):
                broken += 1
    return gathered.log("tensorboard", broken, path)


STEP_COLUMNS = ("_step", "step", "trainer/global_step", "global_step", "train/global_step")


def read_history(path: Path) -> Log:
    """A table exported from Weights & Biases: a run's history with a column per scalar, or a chart
    with columns 'RUN - scalar', of which the first run counts.

    Raises InputError where no column is a step, or none says anything of one.
    """
    gathered, broken = _Gathered(), 0
    with opened(path) as stream:
        mark, head = _head(path, stream.readline())
        table = csv.reader(stream, delimiter=mark)
        lower = [name.lower() for name in head]
        at = next(lower.index(name) for name in STEP_COLUMNS if name in lower)
        columns, notes = _columns(head)
        clock = next((lower.index(n) for n in ("_timestamp", "timestamp") if n in lower), None)
        try:
            for row in table:
                try:
                    number = int(_figure(row[at], mark))
                    stamp = _figure(row[clock], mark) if clock is not None and row[clock] else None
                    for index, tag in columns.items():
                        if row[index].strip() not in ("", "NaN"):
                            gathered.take(tag, number, _figure(row[index], mark), stamp)
                except (ValueError, IndexError, OverflowError):
                    broken += 1
        except (csv.Error, *DAMAGED) as error:
            notes = (*notes, f"the file ends early: {error}")
    return gathered.log("wandb", broken, path, notes)


def _head(path: Path, line: str) -> tuple[str, list[str]]:
    """What divides the columns of a table, and their names.

    Raises InputError where none of them is a step.
    """
    for mark in (",", ";", "\t"):
        head = [name.strip() for name in next(csv.reader([line], delimiter=mark), [])]
        if any(name.lower() in STEP_COLUMNS for name in head):
            return mark, head
    raise InputError(f"{path}: no column of steps ({', '.join(STEP_COLUMNS)})")


def _figure(text: str, mark: str) -> float:
    """A number; where semicolons divide columns, a comma may stand for the point."""
    return float(text.replace(",", ".") if mark == ";" else text)


def _columns(head: list[str]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Columns that say something of a step, by their scalar's name, and what is left out."""
    found: dict[int, str] = {}
    runs: list[str] = []
    for index, name in enumerate(head):
        if name.endswith(("__MIN", "__MAX")):
            continue
        run, dash, tag = name.rpartition(" - ")
        if dash and quantity(tag):
            runs.append(run)
            if run == runs[0]:
                found[index] = tag
        elif quantity(name):
            found[index] = name
    several = dict.fromkeys(runs)
    notes = (f"a chart of {len(several)} runs, of which {runs[0]} counts",) if several else ()
    return found, notes if len(several) > 1 else ()


WHOLE_RUN = (
    "the mean over the whole run, its first steps included; of a run that was resumed it would be "
    "too short"
)
"""What is to be said of a time that the trainer tells once."""


def read_trainer_state(path: Path, content: Mapping[str, Any]) -> Log:
    """`trainer_state.json` of HuggingFace's trainer: the whole run's rates, losses of steps.

    The trainer times no step by itself; `train_runtime` holds the first, slow ones, too. Where it
    counts tokens, every entry has it, and tells the steps behind the entry before.
    """
    seen = Collected()
    stated: dict[str, Any] = {}
    notes: list[str] = []
    broken = 0
    before, since = 0, 0.0
    batch = content.get("train_batch_size")
    if isinstance(batch, int) and batch > 0:
        stated["micro_batch"] = batch
    for entry in content.get("log_history") or []:
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            broken += 1
            continue
        if (loss := _finite(entry.get("loss"))) is not None:
            seen.add(LoggedStep(entry["step"], {"loss": loss}))
        samples, gone = (
            _finite(entry.get(name)) for name in ("train_samples_per_second", "train_runtime")
        )
        step = entry["step"]
        if step and samples and not gone:
            seen.add(LoggedStep(step, {"samples_per_s": samples}))
            notes = [ROUGH, WHOLE_RUN]
        if not (gone and step):
            continue
        if samples:
            stated["global_batch"] = round(samples * gone / step)
        if since < gone and before < step:
            # Rates are rounded to three digits behind the point; a time of minutes is exact.
            seen.add(LoggedStep(step, {"seconds": (gone - since) / (step - before)}))
            notes = [] if before else [WHOLE_RUN]
        before, since = step, gone
    planned = content.get("max_steps")
    if not seen.steps:
        raise InputError(f"{path}: its log_history tells no step")
    log = Log("trainer-state", "huggingface", seen.ordered(), stated, broken=broken,
              notes=tuple(notes), planned=int(planned or 0))  # fmt: skip
    entries = [str(one) for one in content.get("log_history") or []]
    return counted(log, next(filter(None, map(objective_of, entries)), None))


ROUNDED = 5.1e-4
"""By how much a rate of the trainer is off, of three digits behind the point."""

ROUGH = (
    "it tells the steps per second to three digits alone, too few to know how many there were: the "
    "time of a step follows from the sequences per second and those of a step"
)
"""What is to be said of a summary by which a step is not known."""


def ended(told: Mapping[str, float], steps: int = 0, planned: int = 0) -> dict[str, Any] | None:
    """The figures that the trainer tells when it ends (`train_runtime` [s] and rates), as its state
    keeps them; None where they tell no step.

    steps, planned   that were taken and are to be, where something else tells them; else they
                     follow from the rate, where that is known to `SAME`
    """
    runtime, rate = told.get("train_runtime", 0.0), told.get("train_steps_per_second", 0.0)
    samples = told.get("train_samples_per_second", 0.0)
    exact = bool(steps) or ROUNDED * runtime < 0.5 or SAME * rate > ROUNDED
    steps = steps or round(runtime * rate)
    if exact and steps and runtime > 0:
        return {"log_history": [{**told, "step": steps}], "max_steps": planned}
    if exact or not samples > 0:
        return None
    entry = {"step": max(steps, 1), "train_samples_per_second": samples}
    return {"log_history": [entry], "max_steps": planned}


def results(content: Any) -> dict[str, Any] | None:
    """`train_results.json` or `all_results.json` of HuggingFace's scripts as the trainer's state;
    None where a content is none."""
    if not isinstance(content, dict) or "train_runtime" not in content:
        return None
    told = {key: number for key, value in content.items() if (number := _finite(value)) is not None}
    return ended(told)


def _finite(value: Any) -> float | None:
    """A number that a trainer logs, as text or not; None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def trainer_state(path: Path) -> dict[str, Any] | None:
    """The content of a `trainer_state.json`, or what a file of its results says as such; None where
    a file is none."""
    try:
        with opened(path) as stream:
            content = json.load(stream)
    except (*DAMAGED, ValueError, RecursionError):
        return None
    if isinstance(content, dict) and "log_history" in content:
        return content
    return results(content)
