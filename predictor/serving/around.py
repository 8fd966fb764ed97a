"""What is around an engine in a request: its client, its fleet, a trace, what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog import Filler
from predictor.catalog.bench_clients import bench_client
from predictor.catalog.traces import Trace, read_trace
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass, replace
from predictor.serving.clients import VARIATION, Client
from predictor.serving.fleet import FleetSettings
from predictor.serving.prefixes import CacheTier
from predictor.timing import RunParameters
from predictor.units import GB
from predictor.work import adapter_bytes

COLD_START, DRIVE_RATE = 60.0, 6.0
"""Of a replica [s]; of a drive [GB/s]; both from memory."""

FEWEST_REPLAYED = 1000
"""Requests of a session or a fleet that are served one by one where no number is stated."""


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """Client, fleet and promise of a request.

    turns, shared   of sessions: requests of each, tokens with which all prompts begin
    trace           requests to replay
    adapters        that requests ask for; 0: none
    ttft, tpot      promised [s]; inf: not
    """

    client: Client = field(default_factory=Client)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    turns: int = 1
    shared: float = 0.0
    trace: Trace | None = None
    adapters: int = 0
    ttft: float = math.inf
    tpot: float = math.inf

    @property
    def plain(self) -> bool:
        """Whether one engine serves single requests that share nothing."""
        return (
            self.fleet == FleetSettings()
            and self.turns == 1
            and not (self.shared or self.trace or self.adapters or self.client.think)
        )

    @property
    def but_for_adapters(self) -> bool:
        """Whether that is so but for adapters, which passes have whoever asks for them."""
        fleet = replace(self.fleet, slots=0, adapter=0.0)
        return replace(self, adapters=0, fleet=fleet).plain


def fill_client(filler: Filler) -> float:
    """What the client that a request names does by default; returns its mean length over the one
    that is stated."""
    name = filler.values.get("client")
    if name is None:
        return 1.0
    found = bench_client(str(name))
    filler.run(found.defaults)
    if found.mean != 1.0:
        for key in ("input_len", "output_len"):
            if key in filler.values:
                filler.values[key] = max(round(filler.values[key] * found.mean), 1)
    return found.mean


def fill_trace(filler: Filler) -> Trace | None:
    """The trace that a request names; lengths, and the rate of a trace that says when requests
    came, are its means.

    Raises InputError where a length or another load is stated beside it, or none can be known.
    """
    values = filler.values
    if "trace" not in values:
        return None
    for key in ("input_len", "output_len", "batch", "saturated"):
        if values.get(key):
            flag = key.replace("_", "-")
            raise InputError(f"--{flag} is the trace's: give one of --trace and --{flag}")
    trace = read_trace(Path(str(values["trace"])))
    rule = f"mean of {len(trace.input_len)} requests of the trace"
    filler.fill("input_len", round(float(trace.input_len.mean())), rule)
    filler.fill("output_len", round(float(trace.output_len.mean())), rule)
    if not (values.get("rate") or values.get("concurrency")):
        if trace.rate is None:
            raise InputError(f"{values['trace']} does not say when requests came: state --rate or "
                             "--concurrency")  # fmt: skip
        filler.fill("rate", trace.rate, rule)
    filler.fill("simulate", len(trace.input_len), "all requests of the trace")
    return trace


def around_of(
    values: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    run: RunParameters,
    trace: Trace | None,
) -> Around:
    """Client, fleet and promise that a request's values state."""
    client = Client(
        variation=float(values.get("variation", VARIATION)),
        lengths=str(values.get("lengths", "uniform")),
        burstiness=float(values.get("burstiness", 1.0)),
        think=float(values.get("think_s", 0.0)),
        warmup=int(values.get("warmup", 0)),
    )
    replicas = int(values.get("replicas", 1))
    target = float(values.get("replica_target", math.inf))
    most = int(values.get("most_replicas", replicas))
    if most < replicas:
        raise InputError(f"most_replicas {most} is fewer than the {replicas} replicas")
    turns, shared = int(values.get("turns", 1)), float(values.get("shared_prefix", 0))
    connected = turns > 1 or shared > 0 or (trace is not None and bool(trace.pieces))
    tiers = _tiers(values, model, cluster, plan, run)
    adapters = int(values.get("adapters", 0))
    fleet = FleetSettings(
        replicas=replicas,
        most=most,
        target=target,
        cold=float(values.get("cold_start_s", COLD_START)) if math.isfinite(target) else 0.0,
        router=str(values.get("router", "round-robin")),
        think=client.think,
        prefixes=plan.prefix_cache == "on" and connected,
        tiers=tiers,
        slots=int(values.get("adapter_slots", 0)),
        adapter=_adapter_time(model, cluster, plan) if adapters else 0.0,
    )
    return Around(
        client=client,
        fleet=fleet,
        turns=turns,
        shared=shared,
        trace=trace,
        adapters=adapters,
        ttft=float(values.get("slo_ttft_ms", math.inf)) / 1e3,
        tpot=float(values.get("slo_tpot_ms", math.inf)) / 1e3,
    )


def _copies(cluster: Cluster) -> float:
    """Rate of copies from the host to an accelerator [bytes/s]."""
    rate = float(np.asarray(cluster.accelerator.host_bandwidth))
    return rate if math.isfinite(rate) and rate > 0 else 25.0 * GB


def _tiers(
    values: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    run: RunParameters,
) -> tuple[CacheTier, ...]:
    """Where caches of earlier prompts lie beside the device: every rank copies its part."""
    host, drive = (float(values.get(f"cache_{name}_gb", 0.0)) for name in ("host", "drive"))
    if not (host or drive):
        return ()
    one = serving_memory(model, cluster, plan, run)
    length = float(plan.input_len + plan.output_len)
    part = float(np.asarray(one.per_sequence)) / length
    token = part * float(plan.tp * plan.pp)
    rate = float(values.get("cache_drive_gbs", DRIVE_RATE)) * GB
    found = [CacheTier(host * GB / token, part / _copies(cluster))] if host else []
    return (*found, CacheTier(drive * GB / token, token / rate)) if drive else tuple(found)


def _adapter_time(model: Model, cluster: Cluster, plan: ServingPlan) -> float:
    """Time of copying one adapter's part to each accelerator [s]: 16-bit elements."""
    return float(adapter_bytes(model, plan)) / _copies(cluster)
