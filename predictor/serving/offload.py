"""Weights and cache in the host's memory: what a pass waits for when they do not fit the device.

Every pass streams the weights of all layers over the host's link while the layer before is computed
on the device; the host's processors do the attention of what decodes, where the cache lies. All
three overlap, so that a pass takes as long as the slowest, and prompts ride along in the device's
idle time: an upper bound of the throughput, the higher the more sequences share a stream.

Yuan et al. 2025 (MoE-Lens, arXiv 2504.09345), section 4; Sheng et al. 2023 (FlexGen), section 4.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.memory import node_memory, weight_bytes
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.parts import COMPUTE, Pass
from predictor.work import read_bytes, state_bytes, table_bytes

LINKS = ((2022.0, 25e9), (np.inf, 55e9))
"""Year before which an accelerator came, and what copies from its host reach [bytes/s]: 25 of
PCIe 4's 32 GB/s, 55 of PCIe 5's 64 (NVIDIA nvbandwidth on A100 and H100)."""

HOST_BANDWIDTH = 200e9
"""Of a server's memory [bytes/s]: eight channels of DDR4-3200."""


def default_link(accelerator: Accelerator) -> float:
    """Rate of copies from the host [bytes/s], by the accelerator's year."""
    year = float(np.nan_to_num(np.asarray(accelerator.year, float), nan=np.inf))
    return next(rate for before, rate in LINKS if year < before or before == np.inf)


def hosts_memory(cluster: Cluster, gpus: Numeric) -> Array:
    """Memory of the hosts of so many accelerators [bytes]: whole nodes."""
    return np.asarray(node_memory(cluster) * np.ceil(gpus / cluster.accelerators_per_node))


def stream_time(model: Model, plan: ServingPlan) -> Array:
    """Time to stream the weights of one rank once [s]."""
    return np.asarray(weight_bytes(model, plan) / plan.host_link)


def attention_time(model: Model, plan: ServingPlan, sequences: Numeric, context: Numeric) -> Array:
    """Time in which the host reads the cache of `sequences` sequences of one replica, of `context`
    tokens each, and reads and writes their states [s]; the ranks of the plan share the host's
    memory. Of chosen keys it reads what an indexer leaves."""
    read = read_bytes(model, plan, context)
    moved = sequences * (read + 2.0 * state_bytes(model, plan)) / plan.pp
    return np.asarray(moved / (plan.host_bandwidth / plan.gpus))


def with_prompts(found: Pass, model: Model, plan: ServingPlan, passes: Numeric) -> Pass:
    """Passes over prompts whose weights are streamed: what the stream takes beyond the device's own
    time. Where others decode, their passes stream already."""
    if plan.offload != "weights":
        return found
    alone = np.asarray(plan.serving) < 1
    stream = np.where(alone, passes * stream_time(model, plan), 0.0)
    waited = np.maximum(stream - found.compute, 0.0)
    return replace(found, terms={**found.terms, "host_transfer": waited})


def with_decoding(
    found: Pass, model: Model, plan: ServingPlan, sequences: Numeric, context: Numeric
) -> Pass:
    """A pass that decodes, with attention on the host and streamed weights.

    context   cached tokens of each of `sequences` sequences
    """
    if plan.offload != "weights":
        return found
    terms = {**found.terms, "attention": np.zeros_like(found.compute)}
    device = sum((terms[name] for name in COMPUTE), np.zeros_like(found.compute))
    host = attention_time(model, plan, sequences, context)
    slowest = np.maximum(stream_time(model, plan), host)
    terms["host_transfer"] = np.maximum(slowest - device, 0.0)
    lines = tuple(line for line in found.lines if not line.op.startswith("attention"))
    return replace(found, terms=terms, lines=lines)


def riding_along(prompts: Pass, decoding: Pass, plan: ServingPlan, each: Numeric) -> Pass:
    """Prompts less what the device does of them while it would wait for the host.

    each   passes that decode, per prompt
    """
    if plan.offload != "weights":
        return prompts
    idle = decoding.terms["host_transfer"] * each
    left = np.maximum(1.0 - idle / np.maximum(prompts.compute, 1e-12), 0.0)
    shared = np.asarray(plan.serving) > 0
    return prompts.times(np.where(shared, left, 1.0))


def some_alone(
    prompts: Pass, riding: Pass, model: Model, plan: ServingPlan, passes: Numeric, alone: Numeric
) -> Pass:
    """Prompts of which a share finds nobody decoding, whose stream they could ride on.

    riding   the same of those that do
    passes   over prompts; `alone`: the share, 0..1
    """
    if plan.offload != "weights":
        return prompts
    by_itself = with_prompts(prompts, model, replace(plan, serving=0.0), passes)
    share = np.where(np.asarray(plan.serving) > 0, alone, 0.0)
    return riding.times(1.0 - share).plus(by_itself.times(share))


def enforce_host(model: Model, plan: ServingPlan) -> None:
    """Raise InputError where the host's memory does not hold what one plan leaves there."""
    if plan.offload == "none":
        return
    what, need = "weights", float(weight_bytes(model, plan) * plan.gpus)
    if plan.offload == "ngrams":
        if not model.ngram_layers:
            raise InputError(f"offload ngrams: {model.name} has no tables of n-grams")
        copies = float(plan.gpus / plan.tp)  # one for the ranks that divide it
        what, need = "tables of n-grams", table_bytes(model, plan.weights) * copies
    if float(plan.host_memory) < need:
        raise InputError(
            f"host_memory_gb {float(plan.host_memory) / 1e9:g} is less than the {what} of "
            f"{model.name}, {need / 1e9:.0f} GB: {(need - float(plan.host_memory)) / 1e9:.0f} GB "
            "are missing"
        )
