"""Fleets that would be offered first: their requests are served until one keeps its promise.

Closed forms rank; what is offered first has been simulated. A fleet that breaks the promise is
dropped and comes back with one engine more, where its accelerators or its cost then rank it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from predictor.errors import InputError
from predictor.models import Model
from predictor.records import dataclass
from predictor.search import EngineOffer, engine_brief
from predictor.serving import Promise, followed, one_by_one
from predictor.timing import Calibration
from reckon.verbs.frugal_fleets import Spent, as_limited

REQUESTS = 2000
"""Served by each finalist, unless stated."""

MOST = 40
"""Finalists of a kind that are served at most."""

GROWN = 4
"""Engines by which a fleet grows at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Engines of one kind that carry the load.

    count     at the peak
    gpus      accelerators at the peak
    used      share of the time in which prompts are read at the peak, by all workers where they are
              read apart
    hours     accelerator-hours over the load's hours if engines come and go with it
    cost      money per hour of the load: of the fleet at its peak, and as it follows the load
    ttft, tpot  at the peak, at the promised shares of the requests [s]
    spent     power and energy; None where that was not asked for
    """

    engine: EngineOffer
    count: int
    gpus: int
    hours: float
    cost: float | None
    cost_scaled: float | None
    ttft: float
    tpot: float
    used: float
    spent: Spent | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A fleet whose requests were served one by one.

    requests  of one engine, at its share of the peak
    figures   latencies [s], as `--json` writes them
    broken    what of the promise was not kept; empty: nothing
    """

    fleet: Fleet
    requests: int
    figures: dict[str, Any]
    broken: str

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "system": self.fleet.engine.cluster.name,
            "engine": engine_brief(self.fleet.engine.plan),
            "engines": self.fleet.count,
            "gpus": self.fleet.gpus,
            "power_limit_w": self.fleet.engine.limit,
            "prefill_power_limit_w": self.fleet.engine.reading,
            "requests": self.requests,
            "kept": not self.broken,
            "broken": self.broken or None,
            **self.figures,
        }


Rank = Callable[[Fleet], tuple[float, ...]]


def offered(
    fleets: list[Fleet],
    rank: Rank,
    grow: Callable[[Fleet, int], Fleet],
    serve: Callable[[Fleet], Trial],
) -> tuple[list[Fleet], list[Trial]]:
    """Fleets by rank, of which the first of either kind (prompts read apart, or by the engines that
    decode) has been served and keeps the promise; all that were served, in turn.

    grow   a fleet with so many engines more than the load needs
    serve  a fleet's requests one by one

    A kind of which none served keeps it is left out. Raises InputError where both are.
    """
    kept: list[Fleet] = []
    trials: list[Trial] = []
    for kind in (False, True):
        own = [fleet for fleet in fleets if fleet.engine.apart == kind]
        some, served = _kept(own, rank, grow, serve)
        kept, trials = kept + some, trials + served
    if not kept:
        last = trials[-1]
        what = f"{last.fleet.count} x {engine_brief(last.fleet.engine.plan)}"
        raise InputError(
            "no fleet keeps the promise when its requests are served one by one: of "
            f"{len(trials)} tried the last, {what}, {last.broken}"
        )
    return sorted(kept, key=rank), trials


def _kept(
    fleets: list[Fleet],
    rank: Rank,
    grow: Callable[[Fleet, int], Fleet],
    serve: Callable[[Fleet], Trial],
) -> tuple[list[Fleet], list[Trial]]:
    """Fleets of one kind, of which the first keeps the promise; empty where none of `MOST` does."""
    heap = [(rank(fleet), number, 0, fleet) for number, fleet in enumerate(fleets)]
    heapq.heapify(heap)
    trials: list[Trial] = []
    while heap and len(trials) < MOST:
        _, number, grown, fleet = heap[0]
        trials.append(serve(fleet))
        if not trials[-1].broken:
            return [entry[-1] for entry in heap], trials
        heapq.heappop(heap)
        if grown < GROWN:
            more = grow(fleets[number], grown + 1)
            heapq.heappush(heap, (rank(more), number, grown + 1, more))
    return [], trials


def trial(
    model: Model,
    fleet: Fleet,
    peak: float,
    promise: Promise,
    calibration: Calibration,
    requests: int,
) -> Trial:
    """Serve requests one by one by one engine of a fleet at its share of the peak."""
    engine, rate = fleet.engine, peak / fleet.count
    known, own = as_limited(engine, rate, calibration), followed(model, engine.plan, requests)
    try:
        served = one_by_one(model, engine.cluster, engine.plan, known, own, rate=rate)
    except InputError as error:
        # An engine that holds requests of mean length may not hold those that are longer.
        return Trial(fleet, requests, {}, f"cannot serve them as lengths vary: {error}")
    first = float(np.quantile(served.ttft, promise.ttft_share))
    each = float(np.quantile(served.tpot, promise.tpot_share))
    broken = [
        f"takes {1e3 * value:.4g} ms {what} instead of {1e3 * limit:.4g}"
        for what, value, limit in (
            ("to the first token", first, promise.ttft),
            ("per token", each, promise.tpot),
        )
        if value > limit
    ]
    figures = {
        "ttft_s_at_share": first,
        "tpot_s_at_share": each,
        **{f"{name}_s": own for name, own in served.summary().items()},
    }
    return Trial(fleet, len(served.arrival), figures, " and ".join(broken))
