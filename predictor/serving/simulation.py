"""Requests served one by one: which tables, arrivals and lengths."""

from __future__ import annotations

from dataclasses import replace

from predictor.arrays import Array
from predictor.catalog.traces import Trace
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.apart_events import serve_apart
from predictor.serving.around import Around
from predictor.serving.clients import Client, arrivals, spread_lengths
from predictor.serving.events import Served, serve
from predictor.serving.fleet import FleetServed, serve_fleet
from predictor.serving.lockstep import serve_together
from predictor.serving.meeting import replicas_met
from predictor.serving.reading import read_table
from predictor.serving.tables import pass_table
from predictor.serving.workload import Workload, of_trace, sessions, with_adapters
from predictor.timing import Calibration


def one_by_one(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    requests: int,
    client: Client | None = None,
    rate: float | None = None,
    clients: int = 0,
) -> Served:
    """Serve requests by one replica of a plan, their prompts apart where the plan says so; by all
    replicas where they wait for each other.

    requests   how many, of each replica that serves (`followed`)
    client     their lengths, and the times between arrivals
    rate       at which requests of all replicas arrive [1/s]; None: `clients` of the replica send
               the next one when they have the answer to the last

    Raises InputError where the cache holds no request.
    """
    client = client or Client()
    own, replicas = float(plan.prefill_workers) > 0, round(float(plan.dp))
    # Workers read the prompts of all replicas, of which one is followed.
    meet = not own and bool(replicas_met(plan, model.is_moe) > 1)
    every = meet or (own and rate is not None)
    count = requests * replicas if every else requests
    given, made = _lengths(plan, client, count)
    longest = (float(given.max()), float(made.max()))
    table = pass_table(model, cluster, plan, calibration, longest)
    came = None
    if rate is not None:
        came = arrivals(rate if every else rate / replicas, count, client.burstiness)
    if not own:
        return (serve_together if meet else serve)(table, given, made, came, clients)
    reading = read_table(model, cluster, plan, calibration, client.variation)
    return serve_apart(reading, table, given, made, came, clients)


FOLLOWED = 8
"""Replicas that wait for each other of which each serves all that are asked for; of more, fewer."""

WAVES = 4
"""Requests that each client sends at least, as far as so many are asked for."""


def followed(model: Model, plan: ServingPlan, requests: int, clients: int = 0) -> int:
    """Requests of each replica that serves, where so many are asked for: of many replicas that wait
    for each other fewer, so that in all they are no more than those of `FOLLOWED`.

    clients   of a replica
    """
    replicas = int(replicas_met(plan, model.is_moe))
    each = requests * FOLLOWED // max(replicas, FOLLOWED)
    return max(each, min(requests, WAVES * clients), 1)


def _lengths(plan: ServingPlan, client: Client, count: int) -> tuple[Array, Array]:
    """Lengths of prompts and answers."""
    given, made = (
        spread_lengths(float(mean), count, client.variation, seed, client.lengths)
        for seed, mean in ((1, plan.input_len), (2, plan.output_len))
    )
    return given, made


def with_fleet(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    requests: int,
    around: Around,
    rate: float | None = None,
    clients: int = 0,
) -> FleetServed:
    """Serve requests by replicas behind a router, with sessions, cached prefixes and adapters as
    `around` has them.

    requests   how many, of all replicas
    rate       at which sessions, or requests, arrive at all replicas [1/s]; None: `clients`, who
               send one session after the other

    Raises InputError where prompts are read apart, or the cache holds no request.
    """
    if float(plan.prefill_workers) > 0:
        raise InputError("sessions, traces and routers are of engines that read their own prompts")
    work = _workload(plan, around, requests, rate)
    longest = (float(work.input_len.max()), float(work.output_len.max()))
    table = pass_table(model, cluster, plan, calibration, longest)
    return serve_fleet(table, work, around.fleet, clients)


def _replayed(trace: Trace, replicas: int, client: Client, rate: float | None) -> Trace:
    """The requests of a trace that one of several replicas gets, in turn; as fast as a rate says
    where one is stated, in their own rhythm where the trace has one [1/s]."""
    count = len(trace.input_len)
    came = trace.arrival
    if rate is None:
        came = None
    elif came is None or trace.rate is None:
        came = arrivals(rate, count, client.burstiness)
    else:
        came = came * (trace.rate / rate)
    return Trace(
        None if came is None else came[::replicas],
        trace.input_len[::replicas],
        trace.output_len[::replicas],
        trace.pieces[::replicas],
    )


def _workload(plan: ServingPlan, around: Around, requests: int, rate: float | None) -> Workload:
    client, replicas = around.client, round(float(plan.dp))
    if around.trace is not None:
        work = of_trace(_replayed(around.trace, replicas, client, rate))
    else:
        count = max(requests // around.turns, 1) * around.turns
        given, made = _lengths(plan, client, count)
        begins = count // around.turns
        came = None
        if rate is not None:
            came = arrivals(rate / replicas / around.turns, begins, client.burstiness)
        work = sessions(given, made, came, around.turns, around.shared)
    if around.adapters:
        work = replace(work, adapter=with_adapters(around.adapters, work.count))
    return work
