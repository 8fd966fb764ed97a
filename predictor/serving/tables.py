"""Times of passes of one plan, as tables that the analytical model fills once: what the engine that
serves requests one by one looks up at every event."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.latency import (
    DeviceTime,
    Work,
    decode_time,
    listed,
    prompt_time,
    software_of,
)
from predictor.serving.offload import with_decoding
from predictor.serving.parts import Pass
from predictor.serving.passes import adapted, body, decode_cores
from predictor.serving.prediction import products, prompt_pass, slack
from predictor.timing import Calibration, EngineParameters

ENTRIES = 9
"""Contexts, and lengths of prompts, at which the tables are filled."""


@dataclass(frozen=True, slots=True, eq=False)
class PassTable:
    """Times of passes of one plan, per attention replica [s].

    running, contexts   nodes of `decode`: sequences, mean cached tokens of each
    decode              (running, contexts): wall time of decoding one token of each
    slack               (running): time by which its products wait for weights, and the host's
    linear              of a prompt's time, that of products, per token
    lengths             nodes of prompts: new tokens
    prompt, alone       what one more prompt of that length costs; a pass over it alone
    pool                cached tokens that there is room for
    """

    running: list[float]
    contexts: list[float]
    decode: list[list[float]]
    lengths: list[float]
    prompt: list[float]
    alone: list[float]
    pool: float
    plan: ServingPlan
    own: EngineParameters
    slack: list[float]
    linear: float

    def decoding(self, sequences: int, context: float) -> float:
        """Wall time of decoding one token of each, between the nodes linear [s]."""
        row, right = between(self.running, float(sequences))
        column, up = between(self.contexts, context)
        low = self.decode[row]
        last = column + 1 if up else column
        below = low[column] + up * (low[last] - low[column])
        if not right:
            return below
        high = self.decode[row + 1]
        above = high[column] + up * (high[last] - high[column])
        return below + right * (above - below)

    def sharing(self, sequences: int, tokens: float) -> float:
        """What a pass over so many new tokens of prompts saves that decodes, too [s]
        (`latency.riding`)."""
        row, right = between(self.running, float(sequences))
        last = row + 1 if right else row
        slack = self.slack[row] + right * (self.slack[last] - self.slack[row])
        return min(slack, self.linear * tokens) + self.host

    @property
    def host(self) -> float:
        """Host time of a pass that nothing hides [s]."""
        if self.plan.scheduling == "overlapped":
            return 0.0
        return self.plan.launching * float(self.own.step)

    def prompts(self, tokens: float, alone: bool) -> float:
        """What reading a prompt, or a part of one, costs [s]."""
        table = self.alone if alone else self.prompt
        at, right = between(self.lengths, tokens)
        if tokens < self.lengths[0] and not alone:
            return table[0] * tokens / self.lengths[0]
        last = at + 1 if right else at
        return table[at] + right * (table[last] - table[at])


def between(nodes: list[float], value: float) -> tuple[int, float]:
    """Node below a value, and how far the value is on the way to the next, 0..1."""
    at = bisect_right(nodes, value) - 1
    if at < 0:
        return 0, 0.0
    if at >= len(nodes) - 1:
        return len(nodes) - 1, 0.0
    low = nodes[at]
    return at, (value - low) / (nodes[at + 1] - low)


def _prompts(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    lengths: Array,
    most: float,
) -> tuple[list[list[float]], float]:
    """Seconds of a prompt of each length, as many together as a pass takes and one alone; and
    seconds of products that a token of the longest takes."""
    own = calibration.serving.of(plan.framework, plan.era)
    each = replace(plan, input_len=lengths, cached=0.0, batch=np.full(len(lengths), most))
    each = replace(each, tiles=plan.tiles * lengths / plan.input_len)  # as parts of prompts have
    together = np.clip(np.floor(plan.chunk / lengths), 1.0, most)
    costs, linear = [], 0.0
    for many in (together, np.ones_like(lengths)):
        found, passes = prompt_pass(model, cluster, each, many, calibration)
        linear = linear or float((products(found) / (many * lengths))[-1])
        work = DeviceTime(found.compute, found.communication, found.kernels, passes)
        whole = prompt_time(replace(pass_work(found, many, plan), prompts=work), own)
        costs.append((whole / many / np.minimum(plan.working, many)).tolist())
    return costs, linear


def pass_table(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    longest: tuple[float, float] | None = None,
) -> PassTable:
    """Tables of one plan.

    longest   longest prompt and longest output [tokens]; those of the plan unless stated

    Raises InputError where the cache holds no sequence.
    """
    plan = adapted(plan, cluster.accelerator)
    own = calibration.serving.of(plan.framework, plan.era)
    given, made = longest or (float(plan.input_len), float(plan.output_len))
    most = float(np.minimum(plan.max_batch, plan.sequences))
    memory = serving_memory(model, cluster, plan, calibration.run)
    pool = float(memory.sequences / plan.dp) * float(plan.input_len + plan.output_len)
    if pool < given + made:
        raise InputError(
            f"the cache has room for {pool:.0f} tokens, less than one request of {given:.0f} + "
            f"{made:.0f}"
        )
    running = np.unique(np.append(2.0 ** np.arange(0, np.ceil(np.log2(max(most, 2.0)))), most))
    contexts = np.linspace(0.0, given + made, ENTRIES) + 1.0
    # Stages hold their own micro-batches of the running sequences.
    split = np.maximum(np.minimum(plan.working, running), 1.0)
    sequences = running / split
    wide = replace(plan, batch=running * plan.dp)
    captured = plan.captured(sequences)
    tokens = plan.rows(sequences) * (1.0 + plan.drafted)
    layers = body(
        model, cluster, wide, tokens, tokens, calibration, captured=captured, sustained=False
    )
    wide_products = products(layers)
    decode = np.empty((len(running), ENTRIES))
    for column, context in enumerate(contexts):
        keys, ones = np.full((1, len(running)), context), np.ones((1, len(running)))
        cores = decode_cores(model, cluster, wide, sequences, keys, ones, calibration)
        # A pass that adds several tokens counts as so many passes.
        both = with_decoding(layers.plus(cores), model, wide, sequences, context)
        one = replace(pass_work(both, sequences, plan), listed=listed(plan, context))
        passes = decode_time(one, own)
        decode[:, column] = passes / plan.tokens_per_pass
    lengths = np.unique(np.round(np.geomspace(16.0, max(given, 32.0), ENTRIES)))
    costs, linear = _prompts(model, cluster, plan, calibration, lengths, most)
    return PassTable(
        running=running.tolist(),
        contexts=contexts.tolist(),
        decode=decode.tolist(),
        lengths=lengths.tolist(),
        prompt=costs[0],
        alone=costs[1],
        pool=pool,
        plan=plan,
        own=own,
        slack=(own.decode * slack(wide_products, sequences * linear)).tolist(),
        linear=float(own.prefill) * linear,
    )


def pass_work(found: Pass, sequences: Array, plan: ServingPlan) -> Work:
    """A pass as the arithmetic of latencies takes it."""
    device = DeviceTime(found.compute, found.communication, found.kernels)
    return Work(
        prompts=device,
        together=1.0,
        decoding=device,
        captured=plan.captured(sequences),
        sequences=sequences,
        fill=0.0,
        running=sequences,
        clients=sequences,
        static=0.0,
        new_tokens=plan.new_tokens,
        output_len=plan.output_len,
        **software_of(plan),
    )
