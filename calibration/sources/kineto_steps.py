"""What a trace says of the steps that it recorded: where their time went on the device.

Every kernel has a class, told by the calls around it, else by its own name. Kernels of several
streams may run at once: what the device was busy with is the union of their times. Communication is
hidden while anything else runs, and exposed while nothing does. While nothing runs at all the
device is idle: until the call that launched the next kernel returned it waited for the host, and
for other reasons from then on (a dependency, another rank, the launch itself).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from calibration.sources.kineto_calls import EXCHANGES, Calls, is_call
from calibration.sources.kineto_file import DEVICE_EVENTS, Event, TraceFile
from predictor.arrays import Array, Index
from predictor.errors import InputError

MICRO = 1e-6

STEP = re.compile(r"ProfilerStep#\d+")

CLASSES = (
    ("communication", r"^(nccl|rccl|gloo)|record_param_comms|^_?c10d(_functional)?::"),
    ("transfer", r"Memcpy (HtoD|DtoH)"),
    ("optimizer", r"^Optimizer\.step|_fused_adam|_fused_sgd|_fused_adagrad"),
    ("attention", r"attention|flash|fmha"),
    ("loss", r"cross_entropy|nll_loss|NllLoss|LogSoftmax|log_softmax|mse_loss|MseLoss"),
    ("convolution", r"[Cc]onv(olution|[123]d|_)|implicit_gemm|wgrad|dgrad"),
    ("norm", r"[Nn]orm"),
    ("embedding", r"[Ee]mbedding|index_select"),
    ("softmax", r"[Ss]oftmax"),
    (
        "gemm",
        r"aten::(mm|bmm|addmm|baddbmm|linear|matmul|einsum)$|_mm$|_addmm_|[Gg]emm|cutlass|Cijk|nvjet",
    ),
    ("elementwise", r"^aten::|elementwise|reduce_kernel|Memcpy|Memset|Copy|triton_poi|triton_red"),
)
"""Class of a kernel by the name of a call around it or by its own: the first that matches any. The
direction of a convolution stands in the name of its kernel only."""

OTHER = "other"

_KNOWN: dict[str, str] = {}


def _class(name: str) -> str:
    """Class by one name; OTHER if it says nothing."""
    if name not in _KNOWN:
        found = (label for label, pattern in CLASSES if re.search(pattern, name))
        _KNOWN[name] = next(found, OTHER)
    return _KNOWN[name]


ORDER = {label: position for position, (label, _) in enumerate(CLASSES)}


def class_of(names: list[str]) -> str:
    """Class of a kernel by its names, those of the calls around it from the inside out; the most
    telling one counts."""
    return min((_class(name) for name in names), key=lambda c: ORDER.get(c, len(ORDER)))


@dataclass(frozen=True, slots=True, eq=False)
class Anatomy:
    """Where the time of a trace went. Seconds; of the mean step unless said otherwise.

    steps        steps recorded; 1 if none was marked
    marked       whether the trace marks steps (ProfilerStep)
    step_time    from the start of the first to the end of the last, over their number; where the
                 host marks steps faster than the device works them off, the device's `window`
    marks        start and end of each, microseconds as in the trace
    window       from the first kernel of a step to the end of the last one, over the steps
    kernel_time  sum over all kernels; by class in `classes`, their number in `counts`
    compute      during which something other than communication ran
    communication, exposed   during which it ran; while nothing else did
    host_idle    nothing ran, and the next kernel was not launched yet
    other_idle   nothing ran, for another reason
    gaps         number of idle gaps
    streams      device and stream -> seconds of kernels, of the whole trace
    on_host      whether the host itself computed
    whole        seconds of all kernels of the whole trace, within steps or not
    """

    steps: int
    marked: bool
    step_time: float
    marks: tuple[tuple[float, float], ...]
    window: float
    kernel_time: float
    classes: dict[str, float]
    counts: dict[str, float]
    compute: float
    communication: float
    exposed: float
    host_idle: float
    other_idle: float
    gaps: float
    streams: dict[str, float]
    on_host: bool
    whole: float
    spans: list[Span] = field(default_factory=list)

    @property
    def together(self) -> float:
        """Time saved by kernels that ran at the same time, communication apart [s]."""
        own = self.kernel_time - self.classes.get("communication", 0.0)
        return max(own - self.compute, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; every duration carries its unit."""
        plain = ("steps", "marked", "gaps", "on_host", "counts")
        left = ("spans", "marks")
        found = {own.name: getattr(self, own.name) for own in fields(self) if own.name not in left}
        times = [(end - start) * MICRO for start, end in self.marks]
        return {
            "step_times_s": times,
            **{name if name in plain else f"{name}_s": value for name, value in found.items()},
        }


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel (on a host, one call): microseconds as in the trace, and where it ran.

    time             its own; `lasts` with the calls within it
    begun, launched  when the call that launched it began, and had returned; NaN if unknown
    """

    name: str
    label: str
    stream: str
    start: float
    time: float
    lasts: float
    begun: float
    launched: float


def _spans(trace: TraceFile, calls: Calls) -> tuple[list[Span], bool]:
    """All kernels of a trace in the order of their start, and whether the host ran them."""
    on_device = [event for event in trace.events if event["cat"] in DEVICE_EVENTS]
    found = []
    for event in on_device:
        launch = calls.launch.get(event["args"].get("correlation"))
        names = [event["name"], *(call["name"] for call in calls.around(event))]
        own = class_of(names[:1])
        label = own if own in ("communication", "transfer") else class_of(names)
        call = (np.nan, np.nan) if launch is None else (launch["ts"], _end(launch))
        stream = f"device {event['args'].get('device')} stream {event['args'].get('stream')}"
        times = (event["ts"], event["dur"], event["dur"])
        found.append(Span(event["name"], label, stream, *times, *call))
    if not on_device:
        found = _host_spans(trace, calls)
    return sorted(found, key=lambda span: span.start), not on_device


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _host_spans(trace: TraceFile, calls: Calls) -> list[Span]:
    """The calls of a host, each without those within it: their times add up to what the threads
    were busy with, and a collective to what its own thread was."""
    events = [event for event in trace.events if id(event) in calls.parent and is_call(event)]
    own = calls.own_time(events)
    found = []
    for event in events:
        exchange = event["name"].startswith(EXCHANGES)
        if event["cat"] != "cpu_op" and not exchange:
            continue
        label = class_of([call["name"] for call in calls.up(event)])
        if _class(event["name"]) == "communication":
            label = "communication"
        # The call that hands it to the thread of the library waits, but is not the work itself.
        handing = label == "communication" and not exchange
        stream = f"thread {event.get('tid')}"
        times = (event["ts"], 0.0 if handing else own[id(event)], event["dur"])
        found.append(Span(event["name"], label, stream, *times, event["ts"], event["ts"]))
    return found


Intervals = tuple[Array, Array]
"""Starts and ends, disjoint and in order."""


def _union(starts: Array, ends: Array) -> Intervals:
    """Disjoint intervals that cover the same time, in order."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def _without(union: Intervals, hole: Intervals) -> Intervals:
    """What of one union of intervals lies outside another."""
    cuts = np.unique(np.concatenate((*union, *hole)))
    middle = 0.5 * (cuts[1:] + cuts[:-1])

    def covers(found: Intervals) -> npt.NDArray[np.bool_]:
        at = np.searchsorted(found[0], middle, side="right") - 1
        if not len(found[0]):
            return np.zeros(len(middle), bool)
        return np.asarray((at >= 0) & (middle < found[1][np.maximum(at, 0)]))

    kept = covers(union) & ~covers(hole)
    return _union(cuts[:-1][kept], cuts[1:][kept])


def _length(union: Intervals) -> float:
    return float(np.sum(union[1] - union[0]))


def _marks(trace: TraceFile) -> list[tuple[float, float]]:
    """Steps that a trace marks: start and end, in order."""
    return sorted(
        (event["ts"], _end(event))
        for event in trace.events
        if event["cat"] == "user_annotation" and STEP.fullmatch(event["name"])
    )


def _by_label(spans: Sequence[Span]) -> tuple[dict[str, float], dict[str, float]]:
    """Time and number of spans by what they do."""
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, float] = defaultdict(float)
    for span in spans:
        times[span.label] += span.time
        counts[span.label] += 1.0
    return times, counts


def _within(marks: Sequence[tuple[float, float]], begun: Array) -> Index:
    """Positions of what was begun within the steps that are marked; of all where none is."""
    if not marks:
        return np.arange(len(begun))
    first, last = np.array(marks).T
    at = np.searchsorted(first, begun, side="right") - 1
    return np.flatnonzero((at >= 0) & (begun <= last[np.maximum(at, 0)]))


def _streams(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds that each stream was busy."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        found[span.stream] += span.time
    return {name: time * MICRO for name, time in found.items()}


def anatomy(trace: TraceFile, calls: Calls, where: str) -> Anatomy:
    """Take the recorded steps of a trace apart.

    Raises InputError where nothing ran.
    """
    spans, on_host = _spans(trace, calls)
    if not spans:
        raise InputError(f"{where} holds neither kernels nor operator calls")
    marks = _marks(trace)
    start = np.array([span.start for span in spans])
    end = start + np.array([span.lasts for span in spans])
    launched = np.array([span.launched for span in spans])
    begun = np.array([span.begun for span in spans])
    begun = np.where(np.isnan(begun), start, begun)
    steps = len(marks) or 1
    chosen = _within(marks, begun)
    if not len(chosen):
        raise InputError(f"{where}: no kernel was launched within the steps that it marks")
    talking = np.array([span.label == "communication" for span in spans])
    busy = _union(start[chosen], end[chosen])
    own = chosen[~talking[chosen]]
    computing = _union(start[own], end[own])
    other = chosen[talking[chosen]]
    exchanging = _union(start[other], end[other])
    if on_host:
        # A call may hold one that waits for a collective, and does nothing meanwhile.
        waits = [i for i in other if spans[i].time == 0.0]
        computing = _without(computing, _union(start[waits], end[waits]))
    all_busy, compute = _length(busy), _length(computing)
    host_idle, other_idle, gaps = _idle(busy, start[chosen], launched[chosen])
    if on_host:  # between calls, the interpreter runs
        total = sum(b - a for a, b in marks) if marks else float(busy[1][-1] - busy[0][0])
        host_idle, other_idle = max(total - all_busy, 0.0), 0.0
    window = float(busy[1][-1] - busy[0][0])
    classes, counts = _by_label([spans[position] for position in chosen])
    each = MICRO / steps
    recorded = (marks[-1][1] - marks[0][0]) if marks else window
    if not on_host:
        # Marks are the host's: a queue that fills while they last leaves work behind the last one.
        recorded = max(recorded, window)
    return Anatomy(
        steps=steps,
        marked=bool(marks),
        step_time=float(recorded) * each,
        marks=tuple(marks) or ((float(busy[0][0]), float(busy[1][-1])),),
        window=window * each,
        kernel_time=sum(classes.values()) * each,
        classes={name: classes[name] * each for name in sorted(classes, key=_rank)},
        counts={name: counts[name] / steps for name in sorted(counts, key=_rank)},
        compute=compute * each,
        communication=_length(exchanging) * each,
        exposed=(all_busy - compute) * each,
        host_idle=host_idle * each,
        other_idle=other_idle * each,
        gaps=gaps / steps,
        streams=_streams(spans),
        on_host=on_host,
        whole=sum(span.time for span in spans) * MICRO,
        spans=spans,
    )


def _rank(name: str) -> int:
    return ORDER.get(name, len(ORDER))


def _idle(busy: Intervals, start: Array, launched: Array) -> tuple[float, float, int]:
    """Time between the busy intervals until the next kernel had been launched, and the rest; and
    the number of such gaps."""
    begins, ends = busy[0][1:], busy[1][:-1]
    if not len(begins):
        return 0.0, 0.0, 0
    # Of kernels that begin together, the one whose launch returned last ended the wait.
    order = np.argsort(start, kind="stable")
    at = np.searchsorted(start[order], begins)
    ready = np.nan_to_num(launched[order][at], nan=-np.inf)
    late = np.clip(np.minimum(ready, begins) - ends, 0.0, None)
    return float(late.sum()), float((begins - ends - late).sum()), len(begins)
