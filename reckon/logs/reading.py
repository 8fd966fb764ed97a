"""Files of runs, whatever their form: told by what they hold, and read in one pass."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from predictor.errors import InputError
from reckon.logs.benches import BENCHES, Bench, read_report
from reckon.logs.forms import FORMS
from reckon.logs.lines import Follower
from reckon.logs.opening import DAMAGED, check_there, opened
from reckon.logs.preferences import counted
from reckon.logs.printed import Printed
from reckon.logs.steps import Log, series
from reckon.logs.trackers import read_events, read_history, read_trainer_state, trainer_state

FORMATS = (*FORMS, "trainer-state", "tensorboard", "wandb", *(name for name, _, _ in BENCHES))
"""Names of the forms that are read; aiperf's reports are those of genai-perf."""

TABLE = re.compile(r"\.(csv|tsv)(\.gz)?$")
"""How the name of a tracker's table ends."""

WHOLE = 64 << 20
"""Bytes up to which a file of JSON is read whole."""

PIECE = 1 << 16
"""Letters of a line that are read at a time."""


def lines(stream: IO[str]) -> Iterator[str]:
    """Lines of a log, those that a progress bar rewrites among them, and of a line that does not
    end no more than a piece at a time."""
    rest = ""
    while piece := stream.read(PIECE):
        piece += stream.read(1) if piece.endswith("\r") else ""
        parts = (rest + piece).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        rest = parts.pop()
        yield from parts
        if len(rest) > 4 * PIECE:
            yield rest
            rest = ""
    if rest:
        yield rest


def read_log(path: str | Path, form: str = "") -> Log | list[Bench]:
    """Read a file of a run.

    path   a log, possibly large (.gz too); a table or event file of a tracker; a report
    form   name of its form, one of `FORMATS`; found out if empty

    Returns a `Log`, or the reports that the file holds. Raises InputError where nothing in it can
    be read.
    """
    place = Path(path)
    if form and form not in FORMATS:
        raise InputError(f"unknown form {form!r}; known: {', '.join(FORMATS)}")
    check_there(place)
    if form == "tensorboard" or (not form and "tfevents" in place.name):
        return read_events(place)
    if form == "wandb" or (not form and TABLE.search(place.name)):
        return read_history(place)
    if not form or form not in FORMS:
        found = _structured(place)
        if found is not None:
            return found
    printed = Printed()
    try:
        with opened(place) as stream:
            follower = Follower(form if form in FORMS else "")
            for line in lines(stream):
                follower.feed(line)
                printed.feed(follower.line)
    except DAMAGED as error:  # a damaged archive: what was read so far counts
        follower.dump.notes.append(f"the file ends early: {error}")
    log = follower.log()
    bar = log.form == "trainer-bar" and not form
    if log.steps and not bar and (not form or form in FORMS):
        return log
    if reports := printed.reports():
        return reports
    state = printed.trainer(_pace(log))
    if state is not None:
        found = counted(read_trainer_state(place, state), log.stated.get("learns_from"))
        return replace(found, stated={**found.stated, **log.stated})
    if bar and log.steps:
        return log
    raise InputError("; ".join([f"{place}: no step and no report in it is of a form that is known "
                                f"({', '.join(FORMATS)})", *log.notes]))  # fmt: skip


def _pace(log: Log) -> float:
    """Seconds of a step as a log tells them; NaN where it tells none."""
    told = series(log.steps, "seconds")
    return float(np.median(told)) if told.size else math.nan


def _structured(path: Path) -> Log | list[Bench] | None:
    """What a file of JSON, or of a JSON object in every line, holds; None for other files."""
    if path.stat().st_size > WHOLE:
        return None
    with opened(path) as stream:
        try:
            start = stream.read(4096).lstrip()[:1]
        except DAMAGED:
            return None
    if start not in ("{", "["):
        return None
    state = trainer_state(path)
    if state is not None:
        return read_trainer_state(path, state)
    reports = [found for one in _objects(path) if (found := read_report(one)) is not None]
    return reports or None


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of a file: the whole, its list, or one in each line; broken ones are left
    out."""
    with opened(path) as stream:
        text = stream.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = []
        for line in text.splitlines():
            try:
                content.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    for one in content if isinstance(content, list) else [content]:
        if isinstance(one, dict):
            yield one
