"""Logs of a line or a few per step, read as the lines come (`reckon.logs.forms`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from predictor.errors import InputError
from predictor.records import dataclass
from reckon.launch import read_launch
from reckon.logs.bars import Bars, trainer_line
from reckon.logs.dumps import STARTS, Dump
from reckon.logs.forms import FORMS, NUMBER, Form
from reckon.logs.labels import Labels
from reckon.logs.preferences import each_of, in_sequences
from reckon.logs.steps import Collected, Log, LoggedStep

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
SUFFIX = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LONGEST = 1_000_000
"""Letters of a line beyond which it is no log's: a configuration that a framework writes on one
line is a tenth of it."""


EXACT = re.compile(r"[\d,]+(?:\.0*)?")
"""A count of which no digit was left out, so that what two lie apart is known: not '1.02e+5'."""


def value_of(text: str) -> float:
    """A number as logs write it: '5,762', '1.2K', '3.1E-01'. Raises ValueError, for one that no
    float holds, too."""
    plain = text.replace(",", "").rstrip(".")
    scale = SUFFIX.get(plain[-1:], 1.0)
    found = float(plain[:-1] if plain[-1:] in SUFFIX else plain) * scale
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def stamp_of(line: str) -> float | None:
    """When a line says that it was written [s]."""
    found = STAMP.search(line)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2].replace(',', '.')}").timestamp()
    except ValueError:
        return None


NEEDED = re.compile("|".join(re.escape(text) for form in FORMS.values() for text in form.needs))
"""What lines that tell a step hold; most lines of a log hold none of it."""

DUMPED = 100
"""Lines that tell steps, behind which no configuration is looked for but one that begins anew."""

MEMORY = (
    ("reserved_gib", re.compile(r"max reserved: ([\d.]+)"), 2.0**20 / 2**30),
    ("reserved_gib", re.compile(r"mem-max-reserved-gigabytes: ([\d.]+)"), 1e9 / 2**30),
    ("memory_gib", re.compile(r"mem-max-allocated-gigabytes: ([\d.]+)"), 1e9 / 2**30),
    ("reserved_gib", re.compile(r"'memory/device_reserved \(GiB\)': '?([\d.]+)"), 1.0),
    ("memory_gib", re.compile(r"'memory/max_allocated \(GiB\)': '?([\d.]+)"), 1.0),
)
"""Peaks that lines beside those of steps tell [GiB]: Megatron-LM's (MiB), Megatron-Bridge's
(`train_utils.py` @ 031e7de6: 1e9 bytes, of the first stage), axolotl's (`utils/bench.py`)."""

PEAK = re.compile("max reserved|gigabytes: |memory/")
"""What lines hold that tell one of them."""


@dataclass(slots=True)
class _State:
    """One form's steps in a log that is being read."""

    form: Form
    number: re.Pattern[str]
    counted: re.Pattern[str]
    told: tuple[tuple[str, re.Pattern[str], float], ...]
    seen: Collected = field(default_factory=Collected)
    current: int = 0
    planned: int = 0
    broken: int = 0
    stated: dict[str, Any] = field(default_factory=dict)
    bars: Bars = field(default_factory=Bars)

    def read(self, line: str) -> LoggedStep | None:
        """The step that a line tells, or one more quantity of the step before."""
        found = self.number.search(line) if self.form.number else None
        if found is not None:
            self.current = int(found[1])
            if found.re.groups > 1 and found[2]:
                self.planned = int(found[2])
            if count := self.counted.search(line):
                self.planned = int(count[2]) - int(count[1]) + self.current
        elif not self.form.number:
            self.current += 1
        elif self.form.name != "llm-foundry" or not self.current:
            self.broken += 1
            return None
        values: dict[str, float] = {}
        for name, pattern, scale in self.told:
            if name not in values and (match := pattern.search(line)):
                if name == "samples" and not EXACT.fullmatch(match[1].rstrip(",.")):
                    continue
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


def _read_bar(state: _State, line: str) -> LoggedStep | None:
    """A line of a progress bar: of several, that counts which has run for longest."""
    return _paced(state, state.bars.feed(line))


def _read_trainer_log(state: _State, line: str) -> LoggedStep | None:
    """A line of LLaMA-Factory's log: steps and whole seconds gone, as a bar tells them."""
    told = trainer_line(line)
    if told is None:
        state.broken += 1
        return None
    done, total, gone, values = told
    for key, name in (("vram_allocated", "memory_gib"), ("vram_reserved", "reserved_gib")):
        if isinstance(values.get(key), int | float):
            state.stated[name] = max(float(values[key]), state.stated.get(name, 0.0))
    step = _paced(state, state.bars.look(done, total, gone, again=True))
    if step is None and done == total == state.planned:
        step = LoggedStep(done, {})  # of the last step the number alone is known
        state.seen.add(step)
    return step


def _paced(state: _State, found: tuple[int, LoggedStep] | None) -> LoggedStep | None:
    """The step that a bar tells, where it is that of the training."""
    if found is None or found[0] != state.bars.total:
        return None
    total, step = found
    if total != state.planned:
        state.planned, state.seen = total, Collected()
    state.seen.add(step)
    return step


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


BAR_ALONE = "a progress bar and no loss beside it: taken for that of a training run"

BOTH = "megatron-bridge"
"""Form of a framework that tells its steps in Megatron-LM's lines, too (`train_utils.py`)."""

READERS = {"mllog": _read_mllog, "trainer-bar": _read_bar, "trainer-log": _read_trainer_log}
"""Forms whose lines are read in a way of their own."""


class Follower:
    """Reads the lines of one log as they come, whatever its form.

    form      the form, where it is known; else that of the first lines that one knows
    earlier   logs of jobs of other configurations that the file tells before this one
    line      the last line, without colours and what its launcher wrote before it
    """

    def __init__(self, form: str = "") -> None:
        self._forms = [FORMS[form]] if form else [*FORMS.values()]
        self._states = [_state(one) for one in self._forms]
        self.dump = Dump()
        self.earlier: list[Log] = []
        self.line = ""
        self._labels = Labels()
        self._anew: Dump | None = None
        self._told = 0
        self._loss = False

    def feed(self, line: str) -> LoggedStep | None:
        """The step that a line tells; None for others, and for those of a form that stands
        behind one that was seen."""
        if len(line) > LONGEST:
            self.line = ""
            return None
        text = COLOUR.sub("", line) if "\x1b" in line else line
        voice, self.line = self._labels.apart(text)
        self._configure(self.line, voice)
        self._loss = self._loss or "'loss':" in text
        if PEAK.search(text):
            self._note_memory(text)
        if NEEDED.search(text) is None:
            return None
        for place, form in enumerate(self._forms):
            if not form.knows(text):
                continue
            if self._anew is not None and form.name not in READERS:
                self._settle()
            state = self._states[place]
            own = READERS.get(form.name)
            step = own(state, self.line) if own else state.read(text)
            if step is not None:
                self._told += 1
                return step if state is self._leading() else None
        return None

    def _note_memory(self, text: str) -> None:
        """Take the peaks that a line tells."""
        for name, pattern, scale in MEMORY:
            if match := pattern.search(text):
                try:
                    self.dump.note_memory(name, value_of(match[1]) * scale)
                except ValueError:
                    continue

    def _configure(self, text: str, voice: str) -> None:
        """Take what a line says of the run's configuration."""
        if self._told and self._anew is None and any(start in text for start in STARTS):
            self._anew = Dump()
        if self._anew is not None:
            self._anew.feed(text, voice)
        elif self._told < DUMPED:
            self.dump.feed(text, voice)

    def _settle(self) -> None:
        """A step comes behind a configuration that was told anew: a job that was resumed, or,
        where another plan is told, another job."""
        anew, self._anew = self._anew, None
        assert anew is not None
        dialect = self._leading().form.dialect
        if _plan(anew, dialect) == _plan(self.dump, dialect):
            return
        self.earlier.append(self.log())
        self._states = [_state(one) for one in self._forms]
        self.dump, self._told = anew, 0

    def _leading(self) -> _State:
        return next((one for one in self._states if one.seen.steps), self._states[0])

    @property
    def form(self) -> str:
        """The log's form; empty while no step was seen."""
        leading = self._leading()
        return leading.form.name if leading.seen.steps else ""

    @property
    def told(self) -> int:
        """Lines of this job so far that tell of a step."""
        return self._told

    def stated(self) -> dict[str, Any]:
        """Keys of a plan that the log itself says, outside a launch line's arguments."""
        return {**self.dump.said(), **self._leading().stated}

    @property
    def planned(self) -> int:
        """Steps that the run is to take; 0 where it does not say."""
        return self._leading().planned

    def log(self) -> Log:
        """What was read so far."""
        leading = self._leading()
        form = leading.form
        steps = leading.seen.ordered()
        stated = self.stated()
        launch = self.dump.launch(form.dialect)
        alone = form.name == "trainer-bar" and not self._loss
        own = (form.note,) if form.note and steps else ()
        notes = (*self.dump.notes, *own, *((BAR_ALONE,) if alone else ()))
        told = {one.form.name: one.form.framework for one in self._states if one.seen.steps}
        return Log(
            form=form.name,
            framework=told.get(BOTH, form.framework) if form.name == "megatron" else form.framework,
            steps=timed(in_sequences(steps, each_of(stated)), stated),
            stated=stated,
            launch=launch,
            broken=leading.broken,
            notes=notes,
            planned=leading.planned,
            earlier=tuple(self.earlier),
        )


def _plan(dump: Dump, dialect: str) -> str:
    """What a configuration says of a plan, as text: what else is in it (paths, seeds, steps) makes
    no other job of it."""
    said = {key: value for key, value in dump.said().items() if not key.endswith("_gib")}
    _, text = dump.launch(dialect)
    try:
        launch = read_launch(dialect, text) if text else None
    except InputError:
        return repr((said, text))
    return repr((said, launch and (launch.fields, launch.model)))


def _state(form: Form) -> _State:
    patterns = tuple((name, re.compile(text + NUMBER), scale) for name, text, scale in form.told)
    number, counted = (re.compile(text or r"(?!)") for text in (form.number, form.counted))
    return _State(form, number, counted, patterns)


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
