"""`reckon check`, `compare` and `watch`: verbs of runs that are about to start, or run."""

from __future__ import annotations

import json as encoding
import sys
from pathlib import Path
from typing import Any

import click

from reckon.console.flags import (
    argument,
    calibration_option,
    json_option,
    option,
    settings,
    settings_option,
    switch,
)
from reckon.console.measuring import told
from reckon.console.runs import number_of

BESIDE = (
    option("model", "Where they do not say it.", "NAME|FILE"),
    option("system", "What they run on.", "NAME|FILE"),
    option("gpus", "Accelerators in all.", "N", int),
    settings_option(),
)
"""Flags that say what a line does not."""


def fields_of(given: dict[str, Any]) -> dict[str, Any]:
    """Keys of a plan among flags, taken out of them."""
    said = {key: number_of(value) for key, value in settings(given.pop("set")).items()}
    own = {name: given.pop(name) for name in ("model", "system", "gpus")}
    return {**said, **{name: value for name, value in own.items() if value is not None}}


@click.command(
    epilog="Example: reckon check run.sh --system dgx-h100",
    params=[
        argument("line", "RUN", type=str),
        *BESIDE,
        calibration_option(),
        json_option(),
    ],
)
def check(line: str, calibration: str, json: str | None, **given: Any) -> int:
    """Judge a run before it starts: understood, does it fit, how long, what would help.

    RUN: a script, a run file (.yaml), or a launch line of training or of an engine. Exit status: 0
    fits, 1 doubtful, 2 wrong input or does not fit.
    """
    from reckon.verbs.judging import check as judge
    from reckon.views.judged import show_judged

    found = judge(line, fields_of(given), calibration)
    told(found.to_dict() if json else {}, json, lambda _: show_judged(found))
    return found.status


@click.command(
    epilog="Example: reckon compare a.yaml b.yaml",
    params=[
        argument("first", "A", type=str),
        argument("second", "B", type=str),
        *BESIDE,
        calibration_option(),
        json_option(),
    ],
)
def compare(first: str, second: str, calibration: str, json: str | None, **given: Any) -> int:
    """Two runs against each other, term by term: the ratio with its own interval.

    A, B: results (predict --json), run files, launch lines, or logs.
    """
    from reckon.verbs.contrasting import compare as contrast
    from reckon.views.contrasted import show_contrast

    found = contrast(first, second, fields_of(given), calibration)
    return told(found.to_dict() if json else {}, json, lambda _: show_contrast(found))


@click.command(
    epilog="Example: reckon watch train.log --plan run.yaml",
    params=[
        argument("log", "LOG", type=Path),
        option("plan", "Run file, launch line or its script.", "RUN"),
        *BESIDE,
        switch("once", "Read what is there and end."),
        option("patience", "End after so long without a step.", "SECONDS", float),
        option("trace", "A trace of a step, to explain the gap.", "FILE", Path),
        calibration_option(),
        switch("json", "A line of JSON for every change."),
    ],
)
def watch(log: Path, json: bool, trace: Path | None, **given: Any) -> int:
    """Follow a job's log against its prediction: inside or outside, drift, stalls, the end.

    Exit status, for an epilogue: 0 as predicted; 1 outside, drifting, slow or stalled.
    """
    from reckon.verbs.watching import watch
    from reckon.views.watched import show_event

    fields = fields_of(given)
    status = 1
    for event in watch(log, fields=fields, **given):
        status = int(event.get("status", status))
        if json:
            print(encoding.dumps(event), flush=True)
        else:
            show_event(event, sys.stdout)
    if trace is not None:
        _explain(trace, given, fields)
    return status


def _explain(trace: Path, given: dict[str, Any], fields: dict[str, Any]) -> None:
    """A recorded step beside its prediction, term by term."""
    from reckon.verbs.judging import understood
    from reckon.verbs.tracing import explain
    from reckon.views.trace import show_trace

    asked = understood(given["plan"], fields)[0] if given["plan"] else fields
    show_trace(explain(trace, asked, given["calibration"], None))
