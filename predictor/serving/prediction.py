"""Assemble an inference prediction: passes over prompts and passes that decode, in one latency.

A static batch starts together and decodes until its last token; at a concurrency, requests follow
each other and share passes (`latency.py`). One code path serves a plan and a batch of plans.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric, shape_of, varying
from predictor.hardware import Cluster
from predictor.memory import ServingMemory, serving_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.apart import (
    apart,
    held_by_worker,
    most_together,
    readers,
    transfer_time,
    worker,
)
from predictor.serving.conserved import conserved
from predictor.serving.encoding import encoding
from predictor.serving.latency import Latencies, latencies, met_at_work
from predictor.serving.meeting import replicas_met
from predictor.serving.offload import riding_along, some_alone
from predictor.serving.own import as_benchmarked
from predictor.serving.parts import COMMUNICATION, TERMS, Pass
from predictor.serving.pass_times import (
    Arriving,
    DeviceTime,
    Work,
    listed,
    making,
    prompt_time,
    software_of,
    told,
)
from predictor.serving.passes import STEPS_LISTED, adapted, prefill_cores
from predictor.serving.spreads import LATE, sigmas
from predictor.serving.whole_passes import decode_pass, mixed_pass, prompt_pass
from predictor.timing import Calibration, EngineParameters

ROUNDS = 4
"""Of the fixed point between how many requests decode and how long they do."""

BREAKDOWN = (*TERMS, "host", "queue", "transfer", "others")
"""Terms of a latency's breakdown; they add up to it. Transfer: of a cache from where the prompt was
read. Others: waiting for the prompts of other requests, and for a pipeline to fill."""


@dataclass(frozen=True, slots=True, eq=False)
class InferencePrediction:
    """What is predicted for a plan or a batch of plans; arrays of the plans' shape.

    latencies   of a request [s], requests per second of a replica
    sigma       log-standard-deviation by metric: 'ttft', 'tpot', 'e2e', 'throughput', and of first
                tokens that come late (`LATE`)
    breakdown   seconds of the end-to-end latency by term of `BREAKDOWN`
    prompts, decoding   passes on the device from which the latencies are made
    reader      memory of an engine that reads prompts apart, where there is one
    arriving    what the engine meets where requests come at a rate of their own
    listed      decode passes of a request up to which each was evaluated by itself
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
    reader: ServingMemory | None = None
    arriving: Arriving | None = None
    listed: int = STEPS_LISTED

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
        q = self.calibration.interval_q
        below, above = self.sigma[metric], self.sigma[LATE if metric == "ttft" else metric]
        return np.asarray(value * np.exp(-q * below)), np.asarray(value * np.exp(q * above))


def predict_inference(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    listed: int = STEPS_LISTED,
) -> InferencePrediction:
    """Predict a plan of serving, or every plan of a batch.

    listed   decode passes of a request up to which each is evaluated by itself; of more,
             `STEPS_LISTED` stand for all (`passes.steps`), so that large batches fit in memory

    With pipeline stages the running sequences are cut into micro-batches, one for each stage:
    prompts fill the pipeline once, and a micro-batch decodes its next token when it has been
    through all stages.

    Raises InputError for data types that the accelerator lacks.
    """
    plan = _placed(plan, cluster)
    own = calibration.serving.of(plan.framework, plan.era)
    load = _load(plan, memory := serving_memory(model, cluster, plan, calibration.run))
    static, running, sequences = load.static, load.running, load.sequences
    most = np.maximum(sequences, 1.0)  # whole prompts; while serving, as many as fill a pass
    full = np.clip(np.floor(plan.chunk / plan.new_tokens), 1.0, most)
    together = np.where(static > 0, most, full)
    held = held_by_worker(model, cluster, plan, calibration.run) if apart(plan).any() else None
    if held is not None:
        read = np.minimum(most_together(plan, held), np.maximum(running, 1.0))
        together = np.where(apart(plan), read, together)
    prompts, passes = read_pass(model, cluster, plan, together, calibration)
    decoding = decode_pass(model, cluster, plan, sequences, calibration, listed)
    work = _work(plan, load, together, passes, prompts, decoding)
    if plan.offload == "weights":
        prompts = _streamed(model, plan, work, prompts, decoding)
        work = _work(plan, load, together, passes, prompts, decoding)
    work = replace(work, making=making(plan, float(model.layers)))
    if np.any(static < 1):
        work = replace(work, single=_one(model, cluster, plan, sequences, calibration),
                       divided=done_together(model, cluster, plan, calibration))  # fmt: skip
    if apart(plan).any():
        work, decoding = handed_over((model, cluster, plan), work, calibration, own, listed)
    raw = conserved(work, own, latencies(work, own))
    sigma = sigmas(prompts, decoding, work, raw, own, calibration, plan.named)
    terms = _breakdown(prompts, decoding, work, raw, own)
    found, terms = as_benchmarked(raw, terms, (model, cluster, plan), calibration.serving)
    return InferencePrediction(
        model=model,
        cluster=cluster,
        plan=plan,
        calibration=calibration,
        parameters=own,
        latencies=found,
        sigma=sigma,
        breakdown=terms,
        memory=memory,
        work=work,
        prompts=prompts,
        decoding=decoding,
        reader=held, listed=listed,
    )  # fmt: skip


def _placed(plan: ServingPlan, cluster: Cluster) -> ServingPlan:
    """The plan as the accelerator runs it; one for each machine of a batch."""
    if varying(cluster):
        machines = np.broadcast_shapes(plan.shape, shape_of(cluster))
        plan = replace(plan, tp=np.broadcast_to(plan.tp, machines))
    return adapted(plan, cluster.accelerator)


def read_pass(
    model: Model, cluster: Cluster, plan: ServingPlan, prompts: Numeric, calibration: Calibration
) -> tuple[Pass, Array]:
    """`prompt_pass` where prompts are read: by workers of their own, or by the engine."""
    machines, reader = readers(plan, cluster)
    return prompt_pass(model, machines, worker(reader), prompts, calibration)


def _one(
    model: Model, cluster: Cluster, plan: ServingPlan, sequences: Array, calibration: Calibration
) -> DeviceTime:
    """The passes over one prompt: by itself, where prompts have passes of their own, else beside
    `sequences` sequences that are decoded in these, too."""
    if plan.batching != "mixed":
        alone, passes = read_pass(model, cluster, plan, np.ones(plan.shape), calibration)
        return replace(_device(alone), passes=passes)
    fresh = np.broadcast_to(plan.new_tokens, plan.shape)
    found, count = mixed_pass(model, cluster, plan, fresh, sequences, calibration)
    past, one = plan.input_len - plan.new_tokens, np.ones(plan.shape)
    cores = prefill_cores(
        model, cluster, plan, one, plan.new_tokens, past, calibration, sustained=True
    )
    # One kernel attends for prompts and for the sequences that decode.
    found = found.plus(replace(cores, kernels=np.zeros(np.shape(cores.kernels))))
    if np.any(plan.tiles):
        images = plan.tiles * plan.new_tokens / plan.input_len
        found = found.plus(encoding(model, cluster, plan, images, calibration))
    return replace(_device(found), passes=count)


def _streamed(model: Model, plan: ServingPlan, work: Work, prompts: Pass, decoding: Pass) -> Pass:
    """Passes over the prompts of `work` whose weights come from the host."""
    each = plan.output_len / plan.tokens_per_pass / work.running * work.together
    riding = riding_along(prompts, decoding, plan, each)
    alone = 1.0 - met_at_work(work)
    return some_alone(prompts, riding, model, plan, work.prompts.passes, alone)


def handed_over(
    of: tuple[Model, Cluster, ServingPlan],
    work: Work,
    calibration: Calibration,
    own: EngineParameters,
    listed: int,
    slower: Numeric = 1.0,
) -> tuple[Work, Pass]:
    """The work where caches travel from workers that read prompts: what waits for prompts or
    travels does not decode.

    work     whose `sequences` are all that run
    slower   time of kernels of passes that decode over that by themselves
    """
    model, cluster, plan = of
    running, sequences = work.running, work.sequences
    each = prompt_time(work, own) / work.together
    work = replace(work, transfer=transfer_time(model, plan, cluster, each))
    for _ in range(ROUNDS):
        one = latencies(work, own)
        share = (one.e2e - one.ttft) * one.requests_per_s / running
        share = np.where(apart(plan), np.clip(share, 1.0 / sequences, 1.0), 1.0)
        decoding = decode_pass(model, cluster, plan, sequences * share, calibration, listed)
        device = _device(decoding)
        device = replace(device, compute=device.compute * slower)
        work = replace(work, decoding=device, sequences=sequences * share)
    return work, decoding


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """Requests of one replica at a time; arrays of the plans' shape.

    clients    that send them; inf where there are always more
    running    that are in the engine, as the memory and its limits allow
    static     1 where they come as one batch, else 0
    started    of a batch, whose prompts are read before any other ends
    batches    micro-batches that they are cut into
    sequences  of each that decode at a time
    """

    clients: Array
    running: Array
    static: Array
    started: Array
    batches: Array
    sequences: Array


def _load(plan: ServingPlan, memory: ServingMemory) -> _Load:
    shape = plan.shape
    clients = np.broadcast_to(np.asarray(plan.sequences, float), shape)
    room = memory.sequences if plan.admission == "whole" else memory.admitted
    static = 1.0 - np.broadcast_to(np.asarray(plan.serving, float), shape)
    limit = np.where(static > 0, np.inf, plan.max_batch)
    # Where not even one sequence fits, the time is that of a device with more memory.
    room = np.where(room < plan.dp, np.inf, room / plan.dp)
    most = np.minimum(room, np.where(np.isfinite(clients), limit, plan.max_batch))
    running = np.minimum(clients, most)
    batches = np.maximum(np.minimum(plan.working, running), 1.0)
    entered = memory.sequences if plan.admission == "whole" else memory.entered
    started = np.minimum(clients, np.maximum(running, entered / plan.dp))
    return _Load(
        clients=clients,
        running=running,
        static=static,
        started=started,
        batches=batches,
        sequences=np.minimum(running / batches, np.where(static > 0, np.inf, _decoding(plan))),
    )


def _decoding(plan: ServingPlan) -> Array:
    """Sequences that decode at a time at most: where prompts ride along, no more of these begin in
    a pass than it has room for, and each leaves after as many passes as it takes; the others that
    are let in wait for theirs."""
    if plan.batching != "mixed" or apart(plan).any():
        return np.full(plan.shape, np.inf)
    passes = np.maximum(plan.output_len - 1.0, 1.0) / plan.tokens_per_pass
    most = passes * plan.chunk / plan.new_tokens
    return np.asarray(np.broadcast_to(np.maximum(most, 1.0), plan.shape))


def _device(one: Pass) -> DeviceTime:
    return DeviceTime(one.compute, one.communication, one.kernels)


def _work(
    plan: ServingPlan,
    load: _Load,
    together: Array,
    passes: Numeric,
    prompts: Pass,
    decoding: Pass,
) -> Work:
    """What the latencies of a plan are made of.

    together   prompts that are read at once, in so many passes
    """
    shape, static, m = plan.shape, load.static, load.batches
    context = np.asarray(plan.input_len) + 0.5 * np.asarray(plan.output_len)
    following = np.minimum(passes, plan.window)
    return Work(
        prompts=DeviceTime(prompts.compute, prompts.communication, prompts.kernels, passes),
        together=together,
        decoding=_device(decoding),
        captured=plan.captured(load.sequences),
        sequences=load.sequences,
        # Prompts that are read apart have no pipeline to follow each other through.
        fill=np.where(
            apart(plan),
            1.0,
            np.where(static > 0, (m + (plan.pp - 1.0) / following) / plan.pp, 1.0 / m),
        )
        - 1.0,
        running=load.running,
        clients=load.clients,
        static=static,
        started=np.where(static > 0, load.started, 0.0),
        new_tokens=np.broadcast_to(plan.new_tokens, shape),
        output_len=np.broadcast_to(plan.output_len, shape),
        workers=np.broadcast_to(plan.prefill_workers * plan.prefill_dp / plan.dp, shape),
        shared=np.broadcast_to(plan.prefill_workers * plan.prefill_dp, shape),
        apart=float(plan.batching != "mixed"),
        hold=float(plan.batching == "waiting"),
        polling=plan.polling,
        listed=listed(plan, context),
        told=told(plan, context),
        meeting=replicas_met(plan, prompts.terms["experts"] > 0.0),
        **software_of(plan),
    )


def done_together(
    model: Model, cluster: Cluster, plan: ServingPlan, calibration: Calibration
) -> Array:
    """Share of a pass over one prompt that replicas do together where they wait for each other:
    experts, and the exchange with them."""
    alone = not model.is_moe or not np.any(np.asarray(plan.dp) > 1)
    if plan.replica_passes != "waiting" or alone:
        return np.zeros(plan.shape)
    found, _ = read_pass(model, cluster, plan, np.ones(plan.shape), calibration)
    ours = found.terms["experts"] + found.terms["ep_communication"]
    return np.asarray(ours / np.maximum(found.compute + found.communication, 1e-12))


def _breakdown(
    prompts: Pass, decoding: Pass, work: Work, found: Latencies, own: EngineParameters
) -> dict[str, Array]:
    """Seconds of a request's end-to-end latency by term of `BREAKDOWN`: its own prompt's passes,
    its own decoding; the queue, what the prompts of others add, and the host's share."""
    after = np.maximum(work.output_len - 1.0, 0.0) / work.per_pass
    static = np.asarray(work.static) > 0
    share = np.where(static, 1.0, 1.0 / work.together)
    parts = {}
    for name in TERMS:
        talk = name in COMMUNICATION
        parts[name] = np.asarray(
            share * prompts.terms[name] * (own.communication if talk else own.prefill)
            + after * decoding.terms[name] * (own.communication if talk else own.decode)
        )
    device: Array = np.asarray(sum(parts.values()))
    single = (
        np.where(static, 0.0, work.launching * own.request)
        + share * prompt_time(work, own)
        + after * found.step
    )
    parts["host"] = np.asarray(single - device)
    parts["queue"] = found.queue
    moved = np.where(after > 0, work.transfer, 0.0)
    parts["transfer"] = np.asarray(moved + np.zeros_like(found.e2e))
    others = found.e2e - single - found.queue - moved
    # Alone among replicas that share experts, a prompt takes less than where all read.
    own_share = np.where(others < 0, (single + others) / np.maximum(single, 1e-12), 1.0)
    parts |= {name: np.asarray(parts[name] * own_share) for name in (*TERMS, "host")}
    parts["others"] = np.asarray(np.maximum(others, 0.0))
    return parts
