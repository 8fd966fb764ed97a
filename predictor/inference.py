"""Assemble an inference prediction: passes over prompts and passes that decode, in one latency.

A static batch starts together and decodes until its last token; at a concurrency, requests follow
each other and share passes (`serving.py`). One code path serves a plan and a batch of plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.efficiency import Calibration
from predictor.hardware import Array, Cluster, Numeric
from predictor.latency import Device, Latencies, Work, latencies, prompt_time
from predictor.model import Model
from predictor.passes import TERMS, Pass, adapted, body, decode_cores, prefill_cores, steps
from predictor.serving_memory import ServingMemory, serving_memory
from predictor.serving_parameters import EngineParameters, ServingParameters
from predictor.serving_plan import ServingPlan, unserved

BREAKDOWN = (*TERMS, "host", "queue", "others")
"""Terms of a latency's breakdown; they add up to it. Others: waiting for the prompts of other
requests, and for a pipeline to fill."""


@dataclass(frozen=True, slots=True, eq=False)
class InferencePrediction:
    """What is predicted for a plan or a batch of plans; arrays of the plans' shape.

    latencies   of a request [s], requests per second of a replica
    sigma       log-standard-deviation by metric: 'ttft', 'tpot', 'e2e', 'throughput'
    breakdown   seconds of the end-to-end latency by term of `BREAKDOWN`
    prompts, decoding   passes on the device from which the latencies are made
    """

    model: Model
    cluster: Cluster
    plan: ServingPlan
    calibration: Calibration
    parameters: EngineParameters
    latencies: Latencies
    sigma: dict[str, Array]
    breakdown: dict[str, Array]
    memory: ServingMemory
    work: Work
    prompts: Pass
    decoding: Pass

    @property
    def requests_per_s(self) -> Array:
        """Requests per second of the whole engine, all replicas together."""
        return np.asarray(self.latencies.requests_per_s * self.plan.dp)

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


def predict_inference(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    parameters: ServingParameters,
) -> InferencePrediction:
    """Predict a plan of serving, or every plan of a batch.

    With pipeline stages the running sequences are cut into micro-batches, one for each stage:
    prompts fill the pipeline once, and a micro-batch decodes its next token when it has been
    through all stages.

    Raises InputError for data types that the accelerator lacks and models that are not served.
    """
    unserved(model)
    plan = adapted(plan, cluster.accelerator)
    own = parameters.of(plan.framework, plan.era)
    shape = plan.shape
    memory = serving_memory(model, cluster, plan, calibration.run)
    clients = np.broadcast_to(np.asarray(plan.sequences, float), shape)
    room = memory.sequences if plan.admission == "whole" else memory.admitted
    static = 1.0 - np.broadcast_to(np.asarray(plan.serving, float), shape)
    limit = np.where(static > 0, np.inf, plan.max_batch)
    most = np.maximum(np.minimum(room / plan.dp, limit), 1.0)
    running = np.minimum(clients, most)
    m = np.maximum(np.minimum(plan.pp, running), 1.0)
    sequences = running / m
    # While serving, prompts come as many as fill a pass.
    together = np.clip(np.floor(plan.chunk / plan.new_tokens), 1.0, sequences)
    together = np.where(static > 0, sequences, together)
    prompts, passes = prompt_pass(model, cluster, plan, together, calibration)
    decoding = decode_pass(model, cluster, plan, sequences, calibration)
    work = Work(
        prompts=Device(prompts.compute, prompts.communication, prompts.kernels, passes),
        together=together,
        decoding=Device(decoding.compute, decoding.communication, decoding.kernels),
        captured=float(plan.execution == "graph"),
        sequences=sequences,
        fill=np.where(static > 0, (m - 1.0) / plan.pp, 1.0 / m - 1.0),
        running=running,
        clients=clients,
        static=static,
        new_tokens=np.broadcast_to(plan.new_tokens, shape),
        output_len=np.broadcast_to(plan.output_len, shape),
        chunk=plan.chunk,
        synchrony=plan.synchrony,
    )
    found = latencies(work, own)
    sigma = {
        "ttft": spread_of(prompts, found.ttft, own.prefill, parameters.spread("ttft")),
        "tpot": spread_of(decoding, found.step, own.decode, parameters.spread("tpot")),
    }
    share = np.clip(1.0 - found.ttft / found.e2e, 0.0, 1.0)
    ends = np.hypot((1.0 - share) * sigma["ttft"], share * sigma["tpot"])
    sigma["e2e"] = np.maximum(ends, parameters.spread("e2e"))
    sigma["throughput"] = np.maximum(ends, parameters.spread("throughput"))
    return InferencePrediction(
        model,
        cluster,
        plan,
        calibration,
        own,
        found,
        sigma,
        _breakdown(prompts, decoding, work, found, own),
        memory,
        work,
        prompts,
        decoding,
    )


def _breakdown(
    prompts: Pass, decoding: Pass, work: Work, found: Latencies, own: EngineParameters
) -> dict[str, Array]:
    """Seconds of a request's end-to-end latency by term of `BREAKDOWN`: its own prompt's passes,
    its own decoding; the queue, what the prompts of others add, and the host's share."""
    after = np.maximum(work.output_len - 1.0, 0.0)
    static = np.asarray(work.static) > 0
    share = np.where(static, 1.0, 1.0 / work.together)
    parts = {}
    for name in TERMS:
        talk = name.endswith("communication")
        parts[name] = np.asarray(
            share * prompts.terms[name] * (own.communication if talk else own.prefill)
            + after * decoding.terms[name] * (own.communication if talk else own.decode)
        )
    device: Array = np.asarray(sum(parts.values()))
    single = own.request + share * prompt_time(work, own) + after * found.step
    parts["host"] = np.asarray(single - device)
    parts["queue"] = found.queue
    parts["others"] = np.asarray(found.e2e - single - found.queue)
    return parts


def spread_of(work: Pass, total: Array, factor: Numeric, run: float) -> Array:
    """sigma² = Σ over families (share of the time x sigma)² + sigma_run²."""
    variance: Array = np.full(np.shape(total), run**2)
    for time, sigma in work.families.values():
        variance = variance + (np.minimum(factor * time / total, 1.0) * sigma) ** 2
    return np.asarray(np.sqrt(variance))
