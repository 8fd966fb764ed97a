"""Serving at a rate of random arrivals: how many requests run, and how long each waits.

Requests run in such a number R that as many end as arrive: R = rate x life(R + 1) (Little 1961),
where the life of a request is that of a concurrency of R + 1: it meets R others, as many as there
are at any time, since arrivals at random see averages (Wolff 1982). They find the prompts of others
being read: a mean wait of u / (2 (1 - u)) turns, u = rate x prompt (Pollaczek 1930, for a service
of constant length), a turn being a prompt; before workers that read nothing else that of `reading`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.clients import VARIATION
from predictor.serving.passes import EXACT_STEPS
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.reading import read_table
from predictor.timing import Calibration

CONCURRENCIES = 40
"""Concurrencies at which the life of a request is evaluated to find the one of a rate."""


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


def predict_rate(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    rate: float,
    calibration: Calibration,
    variation: float = VARIATION,
) -> AtRate:
    """Predict one plan at a mean rate of Poisson arrivals [1/s], their lengths uniform within
    `variation` of the mean (which matters where prompts are read apart, one by one)."""
    full = predict_inference(
        model, cluster, replace(plan, batch=np.inf, synchrony=0.0), calibration, EXACT_STEPS
    )
    most, top = float(full.requests_per_s), float(full.work.running * full.plan.dp)
    before = None
    if float(plan.prefill_workers) > 0:
        table = read_table(model, cluster, plan, calibration, variation)
        before = table.queue()
        most = min(most, float(plan.prefill_workers) * before.most)
    if rate >= most:
        return AtRate(full, most, True)
    nodes = np.unique(np.geomspace(1.0, max(top, 1.0), CONCURRENCIES))
    grid = replace(plan, batch=nodes * plan.dp, synchrony=0.0)
    found = predict_inference(model, cluster, grid, calibration, EXACT_STEPS // len(nodes))
    # As many as are met, of those that run with the one that meets them.
    ending = found.requests_per_s * (1.0 if before is not None else (nodes - 1.0) / nodes)
    ends = np.append(np.maximum.accumulate(ending)[:-1], max(most, float(ending[-1])))
    running = float(np.interp(rate, ends, nodes * float(plan.dp)))
    one = predict_inference(
        model, cluster, replace(plan, batch=running, synchrony=0.0), calibration, EXACT_STEPS
    )
    latency = one.latencies
    if before is not None:
        # Workers take up nothing else: their own queue stands in place of the one at a concurrency.
        met = before.at(rate, float(plan.prefill_workers))
        wait = float(met.wait - latency.queue)
        slower = float(met.wait + met.read + table.request - latency.ttft) - wait
        return AtRate(_at_rate(one, rate, wait, slower), most, False)
    used = min(rate / float(plan.dp) * float(latency.prompt), 0.999)
    wait = 0.5 * used / (1.0 - used) * float(latency.turn)
    return AtRate(_at_rate(one, rate, wait, 0.0), most, False)


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
