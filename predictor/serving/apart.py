"""Prompts read on accelerators of their own: what those workers are, and how long a cache travels.

Workers read prompts and send the cache to the engine that decodes, layer by layer while later
layers are still being computed, so that at least the last layer's part is waited for. Decoding is
then never delayed by prompts; the price is the transfer, and accelerators that cannot help out.

Patel et al. 2024 (Splitwise), section 4.4; Zhong et al. 2024 (DistServe), section 3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import ServingMemory, serving_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.passes import adapted
from predictor.timing import RunParameters
from predictor.work import cache_bytes, state_bytes

HELD = 2.0
"""Prompts whose caches a worker holds: one that it reads, and one that is being sent."""


def apart(plan: ServingPlan) -> Array:
    """Whether prompts are read by workers of their own; of the plans' shape."""
    return np.broadcast_to(np.asarray(plan.prefill_workers) > 0, plan.shape)


def readers(plan: ServingPlan, cluster: Cluster) -> tuple[Cluster, ServingPlan]:
    """The system whose accelerators read the prompts of a plan, or of all plans of a batch, and the
    plan with the data types that these run.

    Raises InputError where another system reads the prompts of some plans and not of others.
    """
    own = np.asarray(plan.prefill_workers) > 0
    if cluster.prefill is None or not own.any():
        return cluster, plan
    if not own.all():
        raise InputError("prefill_system reads prompts of all plans of a batch, or of none")
    return cluster.prefill, adapted(plan, cluster.prefill.accelerator)


def enough_accelerators(plan: ServingPlan, cluster: Cluster) -> Array:
    """Whether each system's network reaches all accelerators that plans take of it."""
    most = cluster.tiers[-1].size
    if cluster.prefill is None:
        return np.asarray(np.asarray(plan.gpus) <= most)
    apart = np.asarray(plan.reading)
    there = apart <= cluster.prefill.tiers[-1].size
    return np.asarray((np.asarray(plan.gpus) - apart <= most) & there)


def worker(plan: ServingPlan) -> ServingPlan:
    """The plan of one worker where prompts are read apart, else the plan itself."""
    own = np.asarray(plan.prefill_workers) > 0
    if not own.any():
        return plan
    return replace(
        plan,
        tp=np.where(own, plan.prefill_tp, plan.tp),
        pp=np.where(own, 1.0, plan.pp),
        dp=np.where(own, plan.prefill_dp, plan.dp),
        ep=np.where(own, plan.prefill_ep, plan.ep),
    )


def holding(plan: ServingPlan) -> ServingPlan:
    """The plan whose memory one worker needs: `HELD` whole prompts for each replica."""
    own = np.asarray(plan.prefill_workers) > 0
    if not own.any():
        return plan
    return replace(
        worker(plan),
        batch=np.where(own, HELD * plan.prefill_dp, plan.batch),
        serving=np.where(own, 0.0, plan.serving),
    )


def held_by_worker(
    model: Model, cluster: Cluster, plan: ServingPlan, run: RunParameters
) -> ServingMemory:
    """Memory of one worker."""
    machines, own = readers(plan, cluster)
    return serving_memory(model, machines, holding(own), run)


def link_rate(plan: ServingPlan, cluster: Cluster) -> Array:
    """Rate at which one accelerator sends its part of a cache [bytes/s]: stated, or that of the
    innermost network that reaches all accelerators of the plan. Between two systems it is that of
    the sender's outermost network, and no more than the accelerators that decode take in."""
    rate: Array = np.asarray(cluster.tiers[-1].rate, float)
    for tier in reversed(cluster.tiers):
        rate = np.where(np.asarray(plan.gpus) <= tier.size, tier.rate, rate)
    if cluster.prefill is not None:
        taken = cluster.tiers[-1].rate * plan.tp * plan.pp / plan.prefill_tp
        rate = np.minimum(cluster.prefill.tiers[-1].rate, taken)
    stated = np.asarray(plan.kv_rate, float)
    return np.broadcast_to(np.where(np.isfinite(stated), stated, rate), plan.shape)


def most_together(plan: ServingPlan, held: ServingMemory) -> Array:
    """Prompts that each replica of a worker reads in one pass: as many as fill it, and no more than
    it holds twice, once being read and once being sent.

    held   memory of one worker (`held_by_worker`)
    """
    room = np.floor(np.asarray(held.sequences) / HELD / plan.prefill_dp)
    return np.asarray(np.maximum(np.minimum(np.floor(plan.chunk / plan.new_tokens), room), 1.0))


def sending_time(model: Model, plan: ServingPlan, cluster: Cluster) -> Array:
    """Time for which the cache of one prompt occupies the link of the replica that read it, every
    accelerator of which sends its own part [s]."""
    rank = worker(plan)
    moved = cache_bytes(model, rank, plan.new_tokens) + state_bytes(model, rank)
    return np.asarray(moved / link_rate(plan, cluster))


def sent_layers(model: Model) -> float:
    """Layers after each of which something of a prompt is sent: those that attend, or where none
    does, the state spaces."""
    return float(model.attention_blocks if model.attends else model.mamba_layers)


def transfer_time(model: Model, plan: ServingPlan, cluster: Cluster, prompt: Numeric) -> Array:
    """Time from the end of a prompt's reading to the arrival of its whole cache [s]; 0 where
    prompts are not read apart.

    prompt   time of reading it, during which all layers but the last are sent [s]

    max(T / L, T - prompt (L - 1) / L) of a transfer that takes T for L layers.
    """
    layers, whole = sent_layers(model), sending_time(model, plan, cluster)
    left = np.maximum(whole / layers, whole - np.asarray(prompt) * (layers - 1.0) / layers)
    return np.asarray(np.where(apart(plan), left, 0.0))
