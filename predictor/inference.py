"""Assemble an inference prediction: passes over prompts and passes that decode, in one latency.

A static batch starts together and decodes until its last token; at a concurrency, requests follow
each other and share passes (`serving.py`). One code path serves a plan and a batch of plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.efficiency import Calibration
from predictor.hardware import Array, Cluster, Numeric
from predictor.model import Model
from predictor.passes import TERMS, Pass, adapted, body, decode_cores, prefill_cores, steps
from predictor.serving_memory import ServingMemory, serving_memory
from predictor.serving_parameters import EngineParameters, ServingParameters
from predictor.serving_plan import ServingPlan, unserved

BREAKDOWN = (*TERMS, "host", "bubble", "queue")
"""Terms of a latency's breakdown; they add up to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Passes of a request's life, on the device, before an engine's parameters act.

    prefill         passes over the prompts of one micro-batch, added up
    prefill_passes  how many those are
    decode          one pass that decodes, averaged over the growing context
    """

    prefill: Pass
    prefill_passes: Array
    decode: Pass


@dataclass(frozen=True, slots=True, eq=False)
class InferencePrediction:
    """What is predicted for a plan or a batch of plans; arrays of the plans' shape.

    ttft, tpot, e2e   time to first token, mean time per output token after it, whole request [s]
    sigma             log-standard-deviation of each of these and of the throughput
    breakdown         seconds of the end-to-end latency by term of `BREAKDOWN`
    running           sequences that are decoded at a time, of all replicas
    """

    model: Model
    cluster: Cluster
    plan: ServingPlan
    calibration: Calibration
    parameters: EngineParameters
    ttft: Array
    tpot: Array
    e2e: Array
    requests_per_s: Array
    running: Array
    sigma: dict[str, Array]
    breakdown: dict[str, Array]
    memory: ServingMemory
    work: Work

    @property
    def output_tokens_per_s(self) -> Array:
        """Generated tokens per second of the whole engine."""
        return np.asarray(self.requests_per_s * self.plan.output_len)

    @property
    def total_tokens_per_s(self) -> Array:
        """Prompt and generated tokens per second."""
        return np.asarray(self.requests_per_s * (self.plan.input_len + self.plan.output_len))

    def interval(self, metric: str, value: Array) -> tuple[Array, Array]:
        """Bounds of the calibration's interval around a metric's value."""
        reach = np.exp(self.calibration.interval_q * self.sigma[metric])
        return np.asarray(value / reach), np.asarray(value * reach)


def prompt_pass(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    prompts: Numeric,
    calibration: Calibration,
) -> tuple[Pass, Array]:
    """Passes over `prompts` prompts of one replica together, in parts of at most `plan.chunk` new
    tokens, and how many passes those are."""
    shape = plan.shape
    tokens = np.broadcast_to(prompts * plan.new_tokens, shape)
    count = np.maximum(np.ceil(tokens / plan.chunk), 1.0)
    # Logits are made of the last token of each prompt, in the pass that reads it.
    linear = body(
        model,
        cluster,
        plan,
        tokens / count,
        np.maximum(prompts / count, 1.0),
        calibration,
        captured=False,
        sustained=True,
    ).times(count)
    past = plan.input_len - plan.new_tokens
    cores = prefill_cores(
        model, cluster, plan, prompts, plan.new_tokens, past, calibration, sustained=True
    )
    return linear.plus(cores), np.asarray(count)


def decode_pass(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    sequences: Numeric,
    calibration: Calibration,
) -> Pass:
    """One pass that decodes `sequences` sequences of one replica, averaged over the contexts from
    the first token after the prompt to the last."""
    captured = plan.execution == "graph"
    linear = body(
        model,
        cluster,
        plan,
        sequences,
        sequences,
        calibration,
        captured=captured,
        sustained=False,
    )
    contexts, weights = steps(plan)
    cores = decode_cores(model, cluster, plan, sequences, contexts, weights, calibration)
    return linear.plus(cores.times(1.0 / weights.sum(axis=0)))


def host_bound(device: Numeric, kernels: Numeric, launch: Numeric) -> Array:
    """Time by which launching kernels one by one exceeds running them [s]."""
    return np.asarray(np.maximum(launch * kernels - device, 0.0))


def decode_time(work: Pass, plan: ServingPlan, sequences: Numeric, own: EngineParameters) -> Array:
    """Wall time of one pass that decodes [s]."""
    device = own.decode * work.compute + own.communication * work.communication
    if plan.execution == "graph":
        device = device + own.gap * work.kernels
    else:
        device = device + host_bound(device, work.kernels, own.launch)
    return np.asarray(device + own.step + own.sequence * sequences)


def prefill_time(work: Pass, passes: Numeric, own: EngineParameters) -> Array:
    """Wall time of `passes` passes over prompts [s]."""
    device = own.prefill * work.compute + own.communication * work.communication
    return np.asarray(device + host_bound(device, work.kernels, own.launch) + passes * own.step)


def predict_static(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    parameters: ServingParameters,
) -> InferencePrediction:
    """Predict a batch of requests that start together and end together.

    With pipeline stages a batch is cut into micro-batches, one for each stage: prompts fill the
    pipeline once, and a micro-batch decodes its next token when it has been through all stages.

    Raises InputError for data types that the accelerator lacks and models that are not served.
    """
    unserved(model)
    plan = adapted(plan, cluster.accelerator)
    own = parameters.of(plan.framework, plan.era)
    shape = plan.shape
    m = plan.micro_batches
    sequences = plan.sequences / m
    prompts, passes = prompt_pass(model, cluster, plan, sequences, calibration)
    decoding = decode_pass(model, cluster, plan, sequences, calibration)
    fill = (m - 1.0) / plan.pp
    one = prefill_time(prompts, passes, own)
    ttft = np.broadcast_to(one * (1.0 + fill) + own.request, shape)
    tpot = np.broadcast_to(decode_time(decoding, plan, sequences, own), shape)
    after = np.maximum(plan.output_len - 1.0, 0.0)
    e2e = np.asarray(ttft + after * tpot)
    breakdown = {}
    for name in TERMS:
        talk = name.endswith("communication")
        breakdown[name] = np.asarray(
            prompts.terms[name] * (own.communication if talk else own.prefill)
            + after * decoding.terms[name] * (own.communication if talk else own.decode)
        )
    breakdown["bubble"] = np.asarray(one * fill)
    breakdown["queue"] = np.zeros(shape)
    breakdown["host"] = np.asarray(e2e - sum(breakdown.values(), np.zeros(shape)))
    sigma = {
        "ttft": spread_of(prompts, ttft, own, parameters.spread("ttft")),
        "tpot": spread_of(decoding, tpot, own, parameters.spread("tpot")),
    }
    share = after * tpot / e2e
    sigma["e2e"] = np.hypot((1.0 - share) * sigma["ttft"], share * sigma["tpot"])
    sigma["throughput"] = sigma["e2e"]
    return InferencePrediction(
        model,
        cluster,
        plan,
        calibration,
        own,
        np.asarray(ttft),
        np.asarray(tpot),
        e2e,
        np.asarray(plan.batch / e2e),
        np.broadcast_to(plan.batch, shape),
        sigma,
        breakdown,
        serving_memory(model, cluster, plan, calibration.run),
        Work(prompts, passes, decoding),
    )


def spread_of(work: Pass, total: Array, own: EngineParameters, run: float) -> Array:
    """sigma² = Σ over families (share of the time x sigma)² + sigma_run²."""
    variance: Array = np.full(np.shape(total), run**2)
    for time, sigma in work.families.values():
        variance = variance + (np.minimum(time / total, 1.0) * sigma) ** 2
    return np.asarray(np.sqrt(variance))
