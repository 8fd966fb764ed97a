"""Searches in a process of their own: started, asked how far they are, and ended.

One at a time: a new search ends the one before. The process loads the calibration once and is kept
for the next search; one that is ended is started anew when it is needed.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.errors import InputError
from predictor.files import finite
from predictor.records import dataclass
from reckon.serve.answers import Answer, command

if TYPE_CHECKING:
    from reckon.verbs.plans import TrainingSearch

POINTS, LISTED = 1500, 12
"""Plans that the page draws, and lists."""


@dataclass(slots=True)
class Search:
    """A search on its way.

    share    of it that is done, 0..1
    answer   when it is done
    error    why there is none
    """

    identity: str
    share: float = 0.0
    answer: Answer | None = None
    error: str | None = None
    cancelled: bool = False
    started: float = field(default_factory=time.monotonic)

    def to_dict(self) -> Answer:
        """As the page asks for it."""
        state = "running"
        if self.cancelled:
            state = "cancelled"
        elif self.error is not None:
            state = "failed"
        elif self.answer is not None:
            state = "done"
        return {
            "id": self.identity,
            "state": state,
            "progress": round(self.share, 3),
            "error": self.error,
            "answer": self.answer,
        }


class Searches:
    """The searcher's process and its searches, of which the last few are kept."""

    KEPT = 8

    def __init__(self, calibration: str) -> None:
        self.calibration = calibration
        self.lock = threading.Lock()
        self.found: dict[str, Search] = {}
        self.process: Any = None
        self.pipe: Any = None
        self.current: Search | None = None

    def ready(self) -> None:
        """Start the process before it is asked."""
        with self.lock:
            self._ready()

    def start(self, fields: Mapping[str, Any], own: Mapping[str, Any]) -> Search:
        """Begin a search; one that runs is ended."""
        with self.lock:
            self._end("another search was started")
            self._ready()
            search = Search(uuid.uuid4().hex)
            self.found[search.identity] = self.current = search
            while len(self.found) > self.KEPT:
                del self.found[next(iter(self.found))]
            self.pipe.send((search.identity, dict(fields), dict(own)))
            return search

    def state(self, identity: str) -> Search | None:
        """How far a search is."""
        with self.lock:
            self._receive()
            return self.found.get(identity)

    def cancel(self, identity: str) -> Search | None:
        """End a search."""
        with self.lock:
            self._receive()
            search = self.found.get(identity)
            if search is not None and search is self.current:
                self._end()
            return search

    def close(self) -> None:
        """End the process."""
        with self.lock:
            self.current = None
            self._stop()

    def _ready(self) -> None:
        if self.process is not None and self.process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, self.calibration), daemon=True)
        self.process.start()
        other.close()

    def _end(self, why: str = "") -> None:
        """End what runs; its process goes with it."""
        if self.current is None:
            return
        self.current.cancelled = True
        self.current.error = why or None
        self.current = None
        self._stop()

    def _stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.join(5)
            self.pipe.close()
        self.process = self.pipe = None

    def _receive(self) -> None:
        """Take in what the process has sent."""
        search = self.current
        try:
            while search is not None and self.pipe is not None and self.pipe.poll():
                identity, kind, content = self.pipe.recv()
                if identity != search.identity:
                    continue
                if kind == "progress":
                    search.share = content
                elif kind == "answer":
                    search.answer, search.share, self.current = content, 1.0, None
                    return
                else:
                    search.error, self.current = content, None
                    return
        except (EOFError, OSError):
            if search is not None:
                search.error, self.current = "the search's process ended", None
            self.process = self.pipe = None


def work(pipe: Any, calibration: str) -> None:
    """The process: searches that come through a pipe, one after the other."""
    import reckon.verbs.plans  # noqa: F401 (what a search needs, before it is asked for)
    from predictor.catalog import load

    known = load(calibration)
    while True:
        try:
            identity, fields, own = pipe.recv()
        except (EOFError, OSError):
            return
        last = 0.0

        def told(share: float, identity: str = identity) -> None:
            nonlocal last
            if time.monotonic() - last > 0.1:
                last = time.monotonic()
                pipe.send((identity, "progress", float(share)))

        try:
            pipe.send((identity, "answer", found(fields, own, known, told)))
        except InputError as error:
            pipe.send((identity, "error", str(error)))
        except Exception as error:
            pipe.send((identity, "error", f"internal error: {type(error).__name__}: {error}"))


SHOWN = ("tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute", "sharding", "schedule",
         "precision")  # fmt: skip
"""Fields of a plan that the page has columns for."""


def _listed(result: TrainingSearch, position: int, fields: Mapping[str, Any]) -> Answer:
    """One plan as the page lists it: its figures, the fields that are `chosen`, others that its
    request needs beside them (`more`), and the command line that predicts it."""
    from predictor.plans import TRAINING_FIELDS

    entry = result.entry(position)
    plan = entry["plan"]
    chosen = {key: plan[key] for key in SHOWN if key in plan}
    if plan.get("schedule") == "1f1b" and plan.get("pp") == 1:
        chosen.pop("schedule", None)
    stated = {name: value for name, value in fields.items()
              if name not in SHOWN and not isinstance(value, list)}  # fmt: skip
    said = {**stated, **{key: value for key, value in chosen.items() if value != 1}}
    more = _unsaid(result, position, said)
    if chosen.get("sharding") == "hsdp":
        chosen["sharding"] = f"hsdp {plan['dp_shard']:g}"
    line = command("train", {**said, **more}, TRAINING_FIELDS)
    return {**entry, "chosen": chosen, "more": more, "command": line}


def _unsaid(result: TrainingSearch, position: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a plan that was found which do not follow from what is said of it."""
    from predictor.catalog import TrainingPlanSpec, parse
    from predictor.plans import request_of
    from predictor.training import complete_training

    inner = result.result
    spec = parse(TrainingPlanSpec, said, "request")
    done = complete_training(
        spec, inner.calibration.run, strict=False, model=inner.model, cluster=inner.cluster
    )
    follows = request_of(done.plan)
    if said.get("cp", 1) == 1:
        said = {**said, "cp_kind": None}  # of one rank
    return {name: value for name, value in result.request(position).items()
            if follows.get(name) != value and name not in said}  # fmt: skip


def found(fields: Mapping[str, Any], own: Mapping[str, Any], known: Any, progress: Any) -> Answer:
    """A search's answer: counts, the best plans, the front, points to draw, and one's own plan.

    Raises InputError.
    """
    from reckon.verbs.plans import MOST_TIES, asked

    start = time.monotonic()
    result = asked(fields, known, "request", compare=dict(own) or None, keep=MOST_TIES,
                   progress=progress, each=False)  # fmt: skip
    inner = result.result
    some = np.unique(np.linspace(0, len(inner) - 1, min(POINTS, len(inner))).round().astype(int))
    front = result.front()
    plans = [_listed(result, position, fields) for position in range(min(LISTED, len(inner)))]
    mine = None
    if result.own is not None:
        one = result.own
        mine = {"step_time": one.step_time, "memory": one.memory, "rank": one.rank,
                "slower": one.slower.value, "tie": one.slower.tie}  # fmt: skip
    counts = inner.counts
    return dict(
        finite(
            {
                "counts": {"enumerated": counts.enumerated, "fitting": counts.fitting,
                           "timed": counts.timed},
                "seconds": time.monotonic() - start,
                "capacity": float(inner.cluster.accelerator.memory),
                "points": {"time": inner.step_time[some].tolist(),
                           "memory": inner.memory[some].tolist()},
                "front": [
                    {"time": float(inner.step_time[at]), "memory": float(inner.memory[at]),
                     "rank": at + 1}
                    for at in front
                ],
                "plans": plans,
                "ties": len(result.ties),
                "ties_asked": result.ties_asked,
                "own": mine,
            }
        )
    )  # fmt: skip
