"""Latencies as one's own benchmarks say they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.latency import Latencies
from predictor.timing import ServingParameters, key_of, sizes_of


def as_benchmarked(
    found: Latencies,
    breakdown: dict[str, Array],
    of: tuple[Model, Cluster, ServingPlan],
    parameters: ServingParameters,
) -> tuple[Latencies, dict[str, Array]]:
    """Latencies and their breakdown, corrected by what is left of one's own benchmarks of the same
    engine, model and accelerator; as they are where there are none."""
    model, cluster, plan = of
    known = parameters.own
    key = key_of(plan.framework, model.name, cluster.accelerator.name, plan.weights, plan.narrowed)
    if known is None or key not in known.keys:
        return found, breakdown
    sizes = sizes_of(plan.batch, plan.input_len, plan.output_len, plan.tp)
    factor = {
        metric: np.exp(known.correction(key, metric, sizes))
        for metric in ("ttft", "tpot", "e2e", "throughput")
    }
    made = replace(
        found,
        ttft=np.asarray(found.ttft * factor["ttft"]),
        tpot=np.asarray(found.tpot * factor["tpot"]),
        e2e=np.asarray(found.e2e * factor["e2e"]),
        requests_per_s=np.asarray(found.requests_per_s / factor["throughput"]),
    )
    return made, {name: np.asarray(term * factor["e2e"]) for name, term in breakdown.items()}
