"""Who waits for whom in a job of which several ranks were traced.

A collective ends on all of its ranks at about the same time, and begins on each when that rank
arrives: the rank on which it lasts least came last, and the others waited for it, as long as it
lasts longer on them. No clocks need agree. Had the last one come with the next to last, all ranks
would have saved the time between these two; over a step this is what the job gains without it, as
long as nothing else becomes the longest path.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.sources.kineto_calls import EXCHANGES
from calibration.sources.kineto_file import DEVICE_EVENTS, Event, TraceFile, load
from calibration.sources.kineto_steps import MICRO, STEP
from predictor.arrays import Array
from predictor.errors import InputError

TALK = re.compile(r"^(nccl|rccl)(Dev)?Kernel", re.IGNORECASE)
PAIRS = re.compile(r"send|recv", re.IGNORECASE)
"""Messages from one rank to another are no meeting of all."""

GROUP = ("Process Group Ranks", "Process Group Name")
"""Arguments that tell the groups of ranks apart."""

Meeting = tuple[str, str]
"""Group and name of a collective."""


@dataclass(frozen=True, slots=True)
class Waits:
    """One rank among those that were traced; seconds of the mean step.

    rank     its number
    waited   that it waited for others in collectives
    last     share of its collectives to which it came last
    gain     that all would have saved, had it come with the next to last
    """

    rank: int
    waited: float
    last: float
    gain: float


@dataclass(frozen=True, slots=True)
class Traced:
    """Who waits for whom: ranks in their order, collectives of a step, mean step [s]."""

    ranks: tuple[Waits, ...]
    collectives: float
    step: float


def _number(trace: TraceFile, position: int) -> int:
    """The rank that a trace says it is of, else its position among the files."""
    told = trace.header.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) else position


def _steps(trace: TraceFile) -> list[tuple[float, float]]:
    """Start and end of each step that a trace marks."""
    return sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in trace.events
        if event["cat"] == "user_annotation" and STEP.fullmatch(event["name"])
    )


def _is_meeting(event: Event) -> bool:
    name = event["name"]
    if event["cat"] in DEVICE_EVENTS:
        return bool(TALK.match(name)) and not PAIRS.search(name)
    return name.startswith(EXCHANGES[1:]) and not PAIRS.search(name)


def meetings(trace: TraceFile) -> dict[Meeting, Array]:
    """How long each collective lasted on a rank [us], in the order of its calls."""
    found = defaultdict(list)
    for event in sorted(filter(_is_meeting, trace.events), key=lambda event: event["ts"]):
        group = " ".join(str(event["args"][key]) for key in GROUP if key in event["args"])
        kind = str(event["args"].get("Collective name", event["name"]))
        found[group, kind].append(float(event["dur"]))
    return {key: np.array(times) for key, times in found.items()}


def traced(folder: Path) -> Traced:
    """Ranks whose traces lie in a folder.

    Raises InputError for fewer than two, two of the same rank, and ranks that did not take part
    in the same collectives.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of traces, one a rank")
    paths = sorted(one for one in folder.iterdir() if one.name.endswith((".json", ".json.gz")))
    if len(paths) < 2:
        raise InputError(f"{folder} holds {len(paths)} traces; give those of two ranks or more")
    traces = [load(path) for path in paths]
    numbers = [_number(trace, position) for position, trace in enumerate(traces)]
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise InputError(f"{folder}: two traces are of rank {twice}; give one of each")
    marks = [_steps(trace) for trace in traces]
    steps = len(marks[0]) or 1
    found = waits(numbers, [meetings(trace) for trace in traces], str(folder))
    if not found:
        raise InputError(f"{folder}: no collective has two of these ranks")
    lasted = [own[-1][1] - own[0][0] for own in marks if own]
    own = [
        Waits(one.rank, one.waited * MICRO / steps, one.last, one.gain * MICRO / steps)
        for one in found[0]
    ]
    step = float(np.mean(lasted)) * MICRO / steps if lasted else np.nan
    return Traced(tuple(own), found[1] / steps, step)


def waits(
    numbers: Sequence[int], each: Sequence[dict[Meeting, Array]], where: str
) -> tuple[list[Waits], float] | None:
    """Ranks of collectives that lasted `each` so long [us], times of all in us, and how many
    collectives two or more of them took part in; None where there was none."""
    ranks = len(numbers)
    waited, gain, last, many = (np.zeros(ranks) for _ in range(4))
    whole = 0
    for key in dict.fromkeys(key for own in each for key in own):
        present = [at for at, own in enumerate(each) if key in own]
        if len(present) < 2:
            continue
        counts = {len(each[at][key]) for at in present}
        if len(counts) > 1:
            raise InputError(
                f"{where}: ranks were recorded over {min(counts)} to {max(counts)} calls of "
                f"{key[1]}; record the same steps on all"
            )
        times = np.stack([each[at][key] for at in present])
        order = np.sort(times, axis=0)
        came = np.argmin(times, axis=0)
        waited[present] += (times - order[0]).sum(axis=1)
        whole += times.shape[1]
        for row, at in enumerate(present):
            own = came == row
            gain[at] += (order[1] - order[0])[own].sum()
            last[at] += own.sum()
            many[at] += times.shape[1]
    if not whole:
        return None
    share = last / np.maximum(many, 1.0)
    found = [
        Waits(number, float(waited[at]), float(share[at]), float(gain[at]))
        for at, number in enumerate(numbers)
    ]
    return sorted(found, key=lambda one: one.rank), float(whole)
