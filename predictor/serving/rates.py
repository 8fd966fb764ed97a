"""Serving at a rate of random arrivals: how many requests run, and how long each waits.

Requests run in such a number R that as many end as arrive: R = rate x life(R + 1) (Little 1961),
where the life of a request is that of a concurrency of R + 1: it meets R others, as many as there
are at any time, since arrivals at random see averages (Wolff 1982). They find the prompts of others
being read: a mean wait of u / (2 (1 - u)) turns, u = rate x prompt (Pollaczek 1930, for a service
of constant length), a turn being a prompt; before workers that read nothing else that of `reading`.

Under a limit of power passes take longer, so that fewer end and more run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.apart_rates import ReadApart, read_under
from predictor.serving.clients import VARIATION
from predictor.serving.pass_times import Arriving, most_sent
from predictor.serving.passes import EXACT_STEPS
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.prompts import idle_share
from predictor.timing import Calibration

CONCURRENCIES = 40
"""Concurrencies at which the life of a request is evaluated to find the one of a rate."""


NEARLY = 0.98
"""Of the most requests that a server can send, those at which it is shown where more arrive."""

Slowed = Callable[[InferencePrediction], InferencePrediction]
"""A prediction in the time that limits of power leave it (`power.limited`)."""


@dataclass(frozen=True, slots=True, eq=False)
class AtRate:
    """A prediction at a rate of arrivals.

    most_requests_per_s   rate beyond which the queue grows without end
    saturated             whether the rate is beyond; latencies are then those of a full engine,
                          without the queue before it
    """

    prediction: InferencePrediction
    most_requests_per_s: float
    saturated: bool


class Rates:
    """One plan at any mean rate of Poisson arrivals: what all rates share is predicted once.

    Lengths of requests are uniform within `variation` of the mean (which matters where prompts are
    read apart, one by one). Where limits of power slow an engine (`slowed`), fewer can end, more
    run and prompts wait longer for their turn; what is predicted of as many as run is still without
    them, for the caller to put under its conditions.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        plan: ServingPlan,
        calibration: Calibration,
        variation: float = VARIATION,
        slowed: Slowed = lambda found: found,
    ) -> None:
        self._given, self._plan, self._slowed = (model, cluster, calibration), plan, slowed
        full = self._together(np.inf, EXACT_STEPS)
        self._full = replace(full, arriving=Arriving(full.work, np.zeros(()), 1.0))
        held = slowed(self._full)
        self.most = float(held.requests_per_s)
        """Requests per second beyond which the queue grows without end."""
        sent = float(plan.dp) * float(most_sent(full.work))
        self._sending = sent < self.most
        self.most = min(self.most, sent)
        self._apart: ReadApart | None = None
        if float(plan.prefill_workers) > 0:
            limits = held is not self._full
            self._apart = read_under(
                self._given, plan, variation, self._lives[1:] if limits else None
            )
            self.most = min(self.most, float(plan.prefill_workers) * self._apart.held.most)

    def at(self, rate: float) -> AtRate:
        """The plan at a rate [1/s]."""
        if rate >= self.most:
            # A server that sends no more leaves the engine room.
            full = self.at(NEARLY * self.most).prediction if self._sending else self._full
            return AtRate(full, self.most, True)
        running = float(np.interp(rate, *self._ends))
        one = self._together(running, EXACT_STEPS)
        held = self._held(one)
        arriving = self._arriving(one, held, rate)
        one = replace(self._waiting(one, held, rate), arriving=arriving)
        return AtRate(one, self.most, False)

    def _together(self, clients: Numeric, steps: int) -> InferencePrediction:
        """The plan where so many requests run."""
        model, cluster, calibration = self._given
        own = replace(self._plan, batch=clients, synchrony=0.0)
        return predict_inference(model, cluster, own, calibration, steps)

    @cached_property
    def _lives(self) -> tuple[Array, InferencePrediction, InferencePrediction]:
        """Numbers of requests of a replica, what is predicted of so many, and the same in the time
        that limits leave them."""
        top = float(self._full.work.running * self._plan.dp)
        nodes = np.unique(np.geomspace(1.0, max(top, 1.0), CONCURRENCIES))
        found = self._together(nodes * self._plan.dp, EXACT_STEPS // len(nodes))
        return nodes, found, self._held(found)

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        """Requests that end per second, and how many run meanwhile."""
        nodes, found, held = self._lives
        # As many as are met, of those that run with the one that meets them.
        met = 1.0 if self._apart is not None else (nodes - 1.0) / nodes
        ending = found.requests_per_s * met
        # By Little's law as many fewer as their lives are longer.
        ending = ending * (found.latencies.e2e / held.latencies.e2e)
        last = max(self.most, float(ending[-1]))
        ends = np.append(np.maximum.accumulate(ending)[:-1], last)
        return ends, nodes * float(self._plan.dp)

    def _held(self, found: InferencePrediction) -> InferencePrediction:
        """As many as run all the time, in the time that limits leave them. Where prompts are read
        apart that of reading is part of it."""
        every = 0.0 if float(self._plan.prefill_workers) <= 0 else 1.0
        return self._slowed(replace(found, arriving=Arriving(found.work, np.zeros(()), every)))

    def _arriving(
        self, one: InferencePrediction, held: InferencePrediction, rate: float
    ) -> Arriving:
        """What passes have on average at a rate, of as many as a request meets.

        held   of a request, in the time that limits leave it
        """
        if self._apart is not None:
            return self._apart.arriving(one, held, np.asarray(rate))
        return arriving_at(
            held,
            np.asarray(rate / float(self._plan.dp)),
            lambda running: self._together(running * self._plan.dp, EXACT_STEPS),
            self._held,
        )

    def _waiting(
        self, one: InferencePrediction, held: InferencePrediction, rate: float
    ) -> InferencePrediction:
        """What is predicted of as many as run, with what they wait at a rate.

        held   the same in the time that limits leave it
        """
        latency = one.latencies
        if self._apart is not None:
            # Workers take up nothing else: their own queue stands in place of that at a
            # concurrency.
            met = self._apart.free.at(rate, float(self._plan.prefill_workers))
            wait = float(met.wait - latency.queue)
            read = float(met.wait + met.read + self._apart.table.request - latency.ttft)
            return _at_rate(one, rate, wait, read - wait)
        prompt = float(held.latencies.prompt)
        used = min(rate / float(self._plan.dp) * prompt, 0.999)
        wait = 0.5 * used / (1.0 - used) * float(latency.turn)
        return _at_rate(one, rate, wait, 0.0)


def arriving_at(
    held: InferencePrediction,
    rate: Array,
    running: Callable[[Array], InferencePrediction],
    slowed: Slowed,
) -> Arriving:
    """What passes have on average on engines at a rate of each replica [1/s].

    held     of a request that meets as many as there are, in the time that limits leave it
    running  predicts as many of a replica as run all the time
    slowed   those in the time that limits leave them
    """
    told = held.latencies
    alone = idle_share(held.work, held.parameters, rate)
    lasts = 1.0 - alone * (1.0 + rate * told.prompt)
    most = np.asarray(held.work.running, float)
    mean = rate * (told.e2e - told.ttft) / np.maximum(lasts, 1e-9)
    passes = running(np.clip(mean, np.minimum(1.0, most), most))
    own = slowed(passes)
    return Arriving(passes.work, idle_share(own.work, own.parameters, rate))


def predict_rate(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    rate: float,
    calibration: Calibration,
    variation: float = VARIATION,
    slowed: Slowed = lambda found: found,
) -> AtRate:
    """Predict one plan at one mean rate of Poisson arrivals [1/s], as `Rates` does at several."""
    return Rates(model, cluster, plan, calibration, variation, slowed).at(rate)


def _at_rate(
    one: InferencePrediction, rate: float, wait: float, slower: float
) -> InferencePrediction:
    """A prediction at a concurrency as that of a rate of arrivals: so much more of waiting for a
    turn, and of reading together with the prompts of others [s]."""
    old = one.latencies
    found = replace(
        old,
        ttft=old.ttft + wait + slower,
        e2e=old.e2e + wait + slower,
        queue=old.queue + wait,
        requests_per_s=np.asarray(rate / float(one.plan.dp)),
    )
    parts = {"queue": one.breakdown["queue"] + wait, "others": one.breakdown["others"] + slower}
    return replace(one, latencies=found, breakdown={**one.breakdown, **parts})
