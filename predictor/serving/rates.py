"""Serving at a rate of random arrivals: how many requests run, and how long each waits.

Requests run in such a number R that as many end as arrive: R = rate x life(R) (Little 1961), where
the life of a request is that of a concurrency of R. Random arrivals find the prompts of others
being read: a mean wait of u / (2 (1 - u)) turns, u = rate x prompt (Pollaczek 1930, for a service
of constant length). A turn is a prompt, or of W workers that read nothing else a Wth of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.passes import EXACT_STEPS
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.timing import Calibration

NODES = 40
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
) -> AtRate:
    """Predict one plan at a mean rate of Poisson arrivals [1/s]."""
    full = predict_inference(
        model, cluster, replace(plan, batch=np.inf, synchrony=0.0), calibration, EXACT_STEPS
    )
    most, top = float(full.requests_per_s), float(full.work.running * full.plan.dp)
    if rate >= most:
        return AtRate(full, most, True)
    nodes = np.unique(np.geomspace(1.0, max(top, 1.0), NODES))
    grid = replace(plan, batch=nodes * plan.dp, synchrony=0.0)
    found = predict_inference(model, cluster, grid, calibration, EXACT_STEPS // len(nodes))
    # A rate below that of one request at a time still keeps one running while it is there.
    ends = np.maximum.accumulate(found.requests_per_s)
    running = float(np.interp(rate, ends, nodes * float(plan.dp)))
    one = predict_inference(
        model, cluster, replace(plan, batch=running, synchrony=0.0), calibration, EXACT_STEPS
    )
    latency = one.latencies
    used = min(rate / float(plan.dp) * float(latency.prompt), 0.999)
    wait = 0.5 * used / (1.0 - used) * float(latency.turn)
    found_latencies = replace(
        latency,
        ttft=latency.ttft + wait,
        e2e=latency.e2e + wait,
        queue=latency.queue + wait,
        requests_per_s=np.asarray(rate / float(plan.dp)),
    )
    breakdown = {**one.breakdown, "queue": one.breakdown["queue"] + wait}
    return AtRate(replace(one, latencies=found_latencies, breakdown=breakdown), most, False)
