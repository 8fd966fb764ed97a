"""`reckon watch`: a job that runs, against what was predicted of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration
from reckon.logs import Follower
from reckon.logs.following import Expected, Tail, Watched
from reckon.logs.lines import timed
from reckon.logs.rows import Given, number_or_nan, plan_of
from reckon.verbs.judging import predicted, understood
from reckon.verbs.results import Prediction

CHECKED = 1.0
"""Seconds between looks at a file that does not grow."""


def expected_of(
    plan: str | None, fields: Mapping[str, Any], calibration: str | Path | Calibration
) -> Expected:
    """What is expected of a job.

    plan   a run file, a launch line or its script; None: nothing but what `fields` say

    Raises InputError where it cannot be predicted.
    """
    if plan is None and "model" not in fields:
        return Expected()
    asked = fields if plan is None else understood(plan, fields)[0]
    result = predicted(asked, load(calibration))
    if not isinstance(result, Prediction):
        raise InputError("watch follows training; a benchmark of serving ends by itself")
    of = result.request.plan
    step, tokens = result.step_time, float(of.global_batch * of.seq_len)
    budget, price = result.request.tokens, result.request.price
    return Expected(
        step=step.value,
        low=step.low,
        high=step.high,
        steps=math.ceil(budget / tokens) if budget else 0,
        price=price * float(of.gpus) if price else math.nan,
        tokens=tokens,
        gpus=float(of.gpus),
        batch=float(of.global_batch),
    )


def watch(
    log: str | Path,
    plan: str | None = None,
    fields: Mapping[str, Any] | None = None,
    calibration: str | Path | Calibration = "default",
    once: bool = False,
    patience: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Follow a log: what changes, as it changes, and a summary at the end.

    log        a log of training, which may not be there yet
    plan       what to hold it against: a run file, a launch line or its script
    fields     keys of a plan beside it
    once       read what is there and end
    patience   end when no step came for so many seconds; None: go on until the last step

    Yields events: a name, a line of text, and the figures so far; the last is 'end', whose `status`
    is 0 (as predicted) or 1 (outside its interval, drifting, slow, or stalled). Raises InputError
    for a log that is not there with `once`, and for a plan that cannot be predicted.
    """
    path = Path(log)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the log in it")
    if once and not path.is_file():
        raise InputError(f"no such file: {path}")
    found = Watched(expected_of(plan, dict(fields or {}), calibration))
    follower, tail = Follower(), Tail(path)
    begun = seen = clock()
    if not path.is_file():
        yield {**found.waiting(), "text": f"no such file yet: {path}; it is waited for"}
    while True:
        grown = False
        for kind, text in tail.read():
            if kind != "line":
                yield from found.restart(kind)
                continue
            events = _take(found, follower, text, clock())
            grown = grown or events is not None
            yield from events or []
        if grown:
            seen = clock()
        if once or found.done:
            break
        yield from found.wait(clock())
        if patience is not None and clock() - max(seen, begun) > patience:
            break
        sleep(CHECKED)
    for _, text in tail.close():
        yield from _take(found, follower, text, clock()) or []
    told = f"{len(found.seconds)} steps"
    if found.expected.step > 0 and found.inside is None:
        told += ", too few to judge"
    if not follower.form:
        told = "no step of a form that is known was seen"
    status = found.status if found.seconds else 1
    yield {"event": "end", "text": told, **found.summary(), "status": status,
           "form": follower.form}  # fmt: skip


def _take(found: Watched, follower: Follower, text: str, now: float) -> list[dict[str, Any]] | None:
    """What a line changes; None where it tells no step."""
    before = len(follower.earlier)
    step = follower.feed(text)
    if step is None:
        return None
    events = found.another() if len(follower.earlier) > before else []
    if follower.told == 1 and not found.expected.step > 0:
        found.expected = _with_work(found.expected, follower)
    if not step.get("seconds") > 0:
        told = (step,) if found.before is None or events else (found.before, step)
        found.before, step = step, timed(told, follower.stated())[-1]
    if follower.planned and not found.expected.steps:
        found.expected = replace(found.expected, steps=follower.planned)
    return events + found.feed(step, now)


def _with_work(expected: Expected, follower: Follower) -> Expected:
    """What is expected, with what a step does as the log tells its configuration."""
    fields, _, _ = plan_of(follower.log(), Given({}))
    batch, length, gpus = (
        number_or_nan(fields.get(key)) for key in ("global_batch", "seq_len", "gpus")
    )
    return replace(expected, tokens=batch * length, gpus=gpus, batch=batch)
