"""Requests served one by one, as a check of closed forms: which tables, arrivals and lengths."""

from __future__ import annotations

from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.apart_events import serve_apart
from predictor.serving.events import Served, poisson, serve, spread_lengths
from predictor.serving.reading import VARIATION, read_table
from predictor.serving.tables import pass_table
from predictor.timing import Calibration


def one_by_one(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    requests: int,
    variation: float = VARIATION,
    rate: float | None = None,
    clients: int = 0,
) -> Served:
    """Serve requests by one replica of a plan, their prompts apart where the plan says so.

    requests   how many, of the replica
    variation  of lengths: uniform within so much of their mean
    rate       at which requests of all replicas arrive at random [1/s]; None: `clients` of the
               replica send the next one when they have the answer to the last

    Raises InputError where the cache holds no request.
    """
    own, replicas = float(plan.prefill_workers) > 0, round(float(plan.dp))
    # Workers read the prompts of all replicas, of which one is followed.
    count = requests * replicas if own and rate is not None else requests
    given, made = (
        spread_lengths(float(mean), count, variation, seed)
        for seed, mean in ((1, plan.input_len), (2, plan.output_len))
    )
    longest = (float(given.max()), float(made.max()))
    table = pass_table(model, cluster, plan, calibration, longest)
    arrivals = None
    if rate is not None:
        arrivals = poisson(rate if own else rate / replicas, count)
    if not own:
        return serve(table, given, made, arrivals, clients)
    reading = read_table(model, cluster, plan, calibration, variation)
    return serve_apart(reading, table, given, made, arrivals, clients)
