"""Logs of a line or a few per step: one table of forms, read as the lines come.

Sources of the forms (read November 2026, as public code and logs have them): NVIDIA/Megatron-LM
`megatron/training/training.py` (`training_log`), its fork AMD-AGI/Primus ('now/mean' pairs),
Megatron-Bridge (`Step Time :` lines), NVIDIA/NeMo documentation of `train_step_timing`,
pytorch/torchtitan `metrics.py`, AI-Hypercomputer/maxtext `metric_logger.py`, microsoft/DeepSpeed
`utils/timer.py`, mosaicml/llm-foundry console logs of Composer, huggingface/nanotron `trainer.py`,
mlcommons/logging `mllog`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from predictor.records import dataclass
from reckon.logs.dumps import Dump
from reckon.logs.steps import Collected, Log, LoggedStep

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
NUMBER = r"([-+]?[\d.,]+(?:[eE][-+]?\d+)?[KMBT]?)"
SUFFIX = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LONGEST = 1_000_000
"""Letters of a line beyond which it is no log's: a configuration that a framework writes on one
line is a tenth of it."""


def value_of(text: str) -> float:
    """A number as logs write it: '5,762', '1.2K', '3.1E-01'. Raises ValueError."""
    plain = text.replace(",", "").rstrip(".")
    scale = SUFFIX.get(plain[-1:], 1.0)
    return float(plain[:-1] if plain[-1:] in SUFFIX else plain) * scale


def stamp_of(line: str) -> float | None:
    """When a line says that it was written [s]."""
    found = STAMP.search(line)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2].replace(',', '.')}").timestamp()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Form:
    """How one framework tells a step in a line.

    name        of the form
    framework   that it is of
    needs       what every such line holds
    number      pattern of the step's number, with the steps planned behind it where they are told;
                empty where lines are not numbered
    told        (quantity, pattern before its number, factor)
    dialect     of the launch line that its arguments are (`reckon.launch`); empty: none
    """

    name: str
    framework: str
    needs: str
    number: str
    told: tuple[tuple[str, str, float], ...]
    dialect: str = ""


FORMS: dict[str, Form] = {
    one.name: one
    for one in (
        Form(
            "megatron", "megatron-lm", "elapsed time per iteration (ms)",
            r"iteration\s+(\d+)\s*/\s*(\d+)",
            (
                ("seconds", r"elapsed time per iteration \(ms\): ", 1e-3),
                ("tokens_per_s_per_gpu", r"tokens per gpu per second \(tgs\): ", 1.0),
                ("tokens_per_s_per_gpu", r"throughput \(token/sec/GPU\): ", 1.0),
                ("tokens_per_s_per_gpu", r"tokens per GPU \(tokens/s/GPU\): ", 1.0),
                ("global_batch", r"global batch size:\s*", 1.0),
                ("samples", r"consumed samples:\s*", 1.0),
                ("loss", r"lm loss: ", 1.0),
            ),
            "megatron",
        ),
        Form(
            "megatron-bridge", "megatron-bridge", "Step Time :", "",
            (("seconds", r"Step Time : ", 1.0),),
            "nemo",
        ),
        Form(
            "nemo", "nemo", "train_step_timing in s", r"global_step\"?[:=]\s*(\d+)",
            (
                ("seconds", r"train_step_timing in s\"?[:=]\s*", 1.0),
                ("global_batch", r"global_batch_size[:=]\s*", 1.0),
                ("samples", r"consumed_samples\"?[:=]\s*", 1.0),
                ("loss", r"reduced_train_loss\"?[:=]\s*", 1.0),
            ),
            "nemo",
        ),
        Form(
            "torchtitan", "torchtitan", "tps:", r"step:\s*(\d+)",
            (
                ("tokens_per_s_per_gpu", r"tps:\s*", 1.0),
                ("memory_gib", r"memory:\s*", 1.0),
                ("loss", r"loss:\s*", 1.0),
            ),
            "torchtitan",
        ),
        Form(
            "maxtext", "maxtext", "completed step:", r"completed step: (\d+)",
            (
                ("seconds", r"seconds: ", 1.0),
                ("tokens_per_s_per_gpu", r"Tokens/s/device: ", 1.0),
                ("loss", r", loss: ", 1.0),
            ),
        ),
        Form(
            "nanotron", "nanotron", "elapsed_time_per_iteration_ms:",
            r"iteration:\s*(\d+)\s*/\s*(\d+)",
            (
                ("seconds", r"elapsed_time_per_iteration_ms: ", 1e-3),
                ("tokens_per_s", r"tokens_per_sec: ", 1.0),
                ("tokens_per_s_per_gpu", r"tokens_per_sec_per_gpu: ", 1.0),
                ("tokens", r"consumed_tokens: ", 1.0),
                ("global_batch", r"global_batch_size: ", 1.0),
                ("loss", r"lm_loss: ", 1.0),
            ),
        ),
        Form(
            "deepspeed", "deepspeed", "CurrSamplesPerSec=",
            r"(?:global_step=|\d+/)(\d+), RunningAvg",
            (
                ("samples_per_s", r"CurrSamplesPerSec=", 1.0),
                ("memory_gib", r"MaxMemAllocated=", 1.0),
            ),
            "deepspeed",
        ),
        Form(
            "llm-foundry", "llm-foundry", "Train ", r"\[batch=(\d+)/(\d+)\]",
            (
                ("batches_per_s", r"Train throughput/batches_per_sec: ", 1.0),
                ("samples_per_s", r"Train throughput/samples_per_sec: ", 1.0),
                ("tokens_per_s", r"Train throughput/tokens_per_sec: ", 1.0),
                ("tokens_per_s_per_gpu", r"Train throughput/device/tokens_per_sec: ", 1.0),
                ("samples", r"Train time/sample: ", 1.0),
                ("tokens", r"Train time/token: ", 1.0),
                ("micro_batch", r"Train trainer/device_train_microbatch_size: ", 1.0),
                ("reserved_gib", r"Train memory/peak_reserved_mem: ", 1e9 / 2**30),
                ("loss", r"Train loss/train/total: ", 1.0),
            ),
        ),
        Form("mllog", "", ":::MLLOG", "", ()),
    )
}  # fmt: skip
"""The forms by name; of two in one log, the one that stands first here counts."""

DUMPED = 100
"""Lines that tell steps, behind which no configuration is looked for."""

MEGATRON_MEMORY = re.compile(r"max reserved: ([\d.]+)")


@dataclass(slots=True)
class _State:
    """One form's steps in a log that is being read."""

    form: Form
    number: re.Pattern[str]
    told: tuple[tuple[str, re.Pattern[str], float], ...]
    seen: Collected = field(default_factory=Collected)
    current: int = 0
    planned: int = 0
    broken: int = 0
    stated: dict[str, Any] = field(default_factory=dict)

    def read(self, line: str) -> LoggedStep | None:
        """The step that a line tells, or one more quantity of the step before."""
        found = self.number.search(line) if self.form.number else None
        if found is not None:
            self.current = int(found[1])
            if found.re.groups > 1 and found[2]:
                self.planned = int(found[2])
        elif not self.form.number:
            self.current += 1
        elif self.form.name != "llm-foundry" or not self.current:
            self.broken += 1
            return None
        values: dict[str, float] = {}
        for name, pattern, scale in self.told:
            if name not in values and (match := pattern.search(line)):
                try:
                    values[name] = value_of(match[1]) * scale
                except ValueError:
                    self.broken += 1
        if not values:
            self.broken += found is not None and self.form.name != "llm-foundry"
            return None
        stamp = stamp_of(line)
        step = LoggedStep(self.current, values if stamp is None else {**values, "stamp": stamp})
        self.seen.add(step)
        return step


MLLOG_FIELDS = {"global_batch_size": "global_batch", "max_sequence_length": "seq_len"}


def _read_mllog(state: _State, line: str) -> LoggedStep | None:
    """A line of MLPerf's log: settings, throughputs, losses with the samples so far."""
    try:
        event: Mapping[str, Any] = json.loads(line.partition(":::MLLOG")[2])
        key, value = str(event["key"]), event.get("value")
        about = event.get("metadata") or {}
        stamp = float(event["time_ms"]) / 1e3
    except (ValueError, KeyError, TypeError):
        state.broken += 1
        return None
    if key in MLLOG_FIELDS and isinstance(value, int | float):
        state.stated[MLLOG_FIELDS[key]] = value
    values: dict[str, float] = {}
    if key == "tracked_stats" and isinstance(value, Mapping):
        names = {"throughput": "samples_per_s", "train_step_time": "seconds"}
        values = {own: float(value[name]) for name, own in names.items() if name in value}
    elif key in ("train_loss", "block_start") and isinstance(about, Mapping):
        told = about.get("samples_count", about.get("first_epoch_num"))
        if isinstance(told, int | float):
            values = {"samples": float(told)}
        if isinstance(value, int | float):
            values["loss"] = float(value)
    if not values:
        return None
    state.current += 1
    step = LoggedStep(state.current, {**values, "stamp": stamp})
    state.seen.add(step)
    return step


class Follower:
    """Reads the lines of one log as they come, whatever its form.

    form   the form, where it is known; else that of the first lines that one knows
    """

    def __init__(self, form: str = "") -> None:
        forms = [FORMS[form]] if form else [*FORMS.values()]
        self._states = [_state(one) for one in forms]
        self.dump = Dump()
        self._told = 0

    def feed(self, line: str) -> LoggedStep | None:
        """The step that a line tells; None for others, and for those of a form that stands
        behind one that was seen."""
        if len(line) > LONGEST:
            return None
        text = COLOUR.sub("", line)
        if self._told < DUMPED:
            self.dump.feed(text)
        for state in self._states:
            if state.form.needs not in text and not (
                state.form.name == "llm-foundry" and "[batch=" in text
            ):
                if state.form.name == "megatron" and (match := MEGATRON_MEMORY.search(text)):
                    self.dump.note_memory(float(match[1]) / 1024.0)
                continue
            step = _read_mllog(state, text) if state.form.name == "mllog" else state.read(text)
            if step is not None:
                self._told += 1
                return step if state is self._leading() else None
        return None

    def _leading(self) -> _State:
        return next((one for one in self._states if one.seen.steps), self._states[0])

    @property
    def form(self) -> str:
        """The log's form; empty while no step was seen."""
        leading = self._leading()
        return leading.form.name if leading.seen.steps else ""

    @property
    def planned(self) -> int:
        """Steps that the run is to take; 0 where it does not say."""
        return self._leading().planned

    def log(self) -> Log:
        """What was read so far."""
        leading = self._leading()
        form = leading.form
        steps = leading.seen.ordered()
        stated = {**self.dump.said(), **leading.stated}
        launch = self.dump.launch(form.dialect)
        return Log(
            form=form.name,
            framework=form.framework,
            steps=timed(steps, stated),
            stated=stated,
            launch=launch,
            broken=leading.broken,
            notes=tuple(self.dump.notes),
            planned=leading.planned,
        )


def _state(form: Form) -> _State:
    patterns = tuple((name, re.compile(text + NUMBER), scale) for name, text, scale in form.told)
    return _State(form, re.compile(form.number or r"(?!)"), patterns)


def timed(steps: tuple[LoggedStep, ...], stated: dict[str, Any]) -> tuple[LoggedStep, ...]:
    """Steps with what follows from two that are told: sequences of a step and of one another,
    the time of one from rates, or from samples and stamps."""
    found: list[LoggedStep] = []
    before: LoggedStep | None = None
    for step in steps:
        values = dict(step.values)
        if "batches_per_s" in values and "samples_per_s" in values and values["batches_per_s"]:
            values.setdefault("global_batch", values["samples_per_s"] / values["batches_per_s"])
        values |= dict(_between(before, step, stated))
        batch = values.get("global_batch", stated.get("global_batch"))
        if "seconds" not in values and batch and values.get("samples_per_s"):
            values["seconds"] = float(batch) / values["samples_per_s"]
        found.append(LoggedStep(step.number, values))
        before = step
    return tuple(found)


def _between(
    before: LoggedStep | None, step: LoggedStep, stated: dict[str, Any]
) -> Iterator[tuple[str, float]]:
    """Quantities that follow from how far two steps lie apart."""
    if before is None:
        return
    gone = step.number - before.number
    samples = step.get("samples") - before.get("samples")
    if samples > 0 and "global_batch" not in step.values and "global_batch" not in stated:
        yield "global_batch", samples / gone
    timed = {"seconds", "samples_per_s"} & set(step.values)
    passed = step.get("stamp") - before.get("stamp")
    if samples > 0 and not timed and passed > 0 and stated.get("global_batch"):
        yield "seconds", passed * float(stated["global_batch"]) / samples
