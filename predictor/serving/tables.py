"""Times of passes of one plan, as tables that the analytical model fills once: what the engine that
serves requests one by one looks up at every event."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import field, replace
from itertools import pairwise

import numpy as np

from predictor.arrays import Array, take
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.meeting import replicas_met
from predictor.serving.offload import stream_time, with_decoding
from predictor.serving.parts import Pass
from predictor.serving.pass_times import (
    DeviceTime,
    Work,
    decode_time,
    launch_wait,
    listed,
    prompt_time,
    software_of,
    told,
)
from predictor.serving.passes import adapted, body, decode_cores, prefill_cores
from predictor.serving.prediction import done_together
from predictor.serving.prompts import mixed_time
from predictor.serving.whole_passes import mixed_pass, prompt_pass
from predictor.timing import Calibration, EngineParameters

PER_DOUBLING = 4
"""Numbers of running sequences, in each doubling, at which the tables are filled: kernels take
steps (tiles, graphs that are padded) between one doubling and the next."""

NEAR_MEAN = np.array([0.9, 0.95, 1.0, 1.05, 1.1])
"""Prompts over their mean at which they are filled beside `ENTRIES` far apart."""

ENTRIES = 9
"""Contexts, and lengths of prompts, at which the tables are filled."""


@dataclass(frozen=True, slots=True, eq=False)
class PassTable:
    """Times of passes of one plan, per attention replica [s].

    running, contexts   nodes of `decode`: sequences, mean cached tokens of each
    decode              (running, contexts): wall time of decoding one token of each
    lengths             nodes of prompts: new tokens
    prompt, alone       what one more prompt of that length costs; a pass over it alone
    core                attention within a prompt of that length
    tokens, beside      nodes of new tokens in a pass that decodes, too; (running, tokens): what
                        these add to it without the attention among them
    slack               (running, tokens): for how long such a pass waits for launches, in which
                        that attention hides; none where it is empty
    pool                cached tokens that there is room for
    meeting, divided    replicas whose passes are as long as the longest of them, and the share of
                        what prompts take that they do together (`Work`)
    stream              time of a pass over prompts alone at least, weights coming from the host [s]
    """

    running: list[float]
    contexts: list[float]
    decode: list[list[float]]
    lengths: list[float]
    prompt: list[float]
    alone: list[float]
    core: list[float]
    tokens: list[float]
    beside: list[list[float]]
    pool: float
    plan: ServingPlan
    own: EngineParameters
    slack: list[list[float]] = field(default_factory=list)
    meeting: int = 1
    divided: float = 0.0
    stream: float = 0.0

    def hiding(self) -> Lookup:
        """Of the time in which attention within prompts hides in a pass that decodes [s]."""
        none = [[0.0] * len(self.tokens)] * len(self.running)
        return Lookup(self.slack or none, self.running, self.tokens)

    def lookups(self) -> tuple[Lookup, Lookup]:
        """Of wall times of decoding one token of each at a mean context, and of what new tokens of
        prompts add to that without the attention among them [s]."""
        return (
            Lookup(self.decode, self.running, self.contexts),
            Lookup(self.beside, self.running, self.tokens),
        )

    def cores(self, length: float) -> float:
        """Time of the attention within a prompt of so many tokens [s]."""
        if length < self.lengths[0]:
            return self.core[0] * length / self.lengths[0]
        return _along(self.core, self.lengths, length)

    def prompts(self, tokens: float, alone: bool) -> float:
        """What reading a prompt, or a part of one, costs [s]."""
        table = self.alone if alone else self.prompt
        if tokens < self.lengths[0] and not alone:
            return table[0] * tokens / self.lengths[0]
        return _along(table, self.lengths, tokens)


class Lookup:
    """Values of a table at whole rows and any column, linear between its nodes. What a row is
    between is found once for each: engines look up few rows, many thousand times.

    rows, columns   rising nodes
    """

    __slots__ = ("_columns", "_known", "_rows", "_values", "_widths")

    def __init__(self, values: list[list[float]], rows: list[float], columns: list[float]) -> None:
        self._values, self._rows, self._columns = values, rows, columns
        # Beyond the last node, nothing is added to it.
        self._widths = [*(high - low for low, high in pairwise(columns)), math.inf]
        self._known: dict[int, _Row] = {}

    def at(self, row: int, column: float) -> float:
        """The value."""
        found = self._known.get(row)
        if found is None:
            found = self._known[row] = self._row(row)
        below, rises, right, above, ascents = found
        at = bisect_right(self._columns, column) - 1
        if at < 0:
            at, part = 0, 0.0
        else:
            part = (column - self._columns[at]) / self._widths[at]
        value = below[at] + part * rises[at]
        if not right:
            return value
        return value + right * (above[at] + part * ascents[at] - value)

    def _row(self, row: int) -> _Row:
        at, right = between(self._rows, float(row))
        below, above = (self._values[i] for i in (at, min(at + 1, len(self._rows) - 1)))
        return below, _rises(below), right, above, _rises(above)


_Row = tuple[list[float], list[float], float, list[float], list[float]]
"""Values of the node below a row, and what follows each adds; how far the row is on the way to the
next node, 0..1; the same of that one."""


def _rises(values: list[float]) -> list[float]:
    """What the next value adds to each, nothing after the last."""
    return [*(high - low for low, high in pairwise(values)), 0.0]


def _along(values: list[float], nodes: list[float], at: float) -> float:
    """Value between nodes, linear."""
    row, right = between(nodes, at)
    if not right:
        return values[row]
    return values[row] + right * (values[row + 1] - values[row])


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
) -> list[list[float]]:
    """Seconds of a prompt of each length, as many together as a pass takes and one alone; and of
    the attention within it."""
    own = calibration.serving.of(plan.framework, plan.era)
    each = replace(plan, input_len=lengths, cached=0.0, batch=np.full(len(lengths), most))
    each = replace(each, tiles=plan.tiles * lengths / plan.input_len)  # as parts of prompts have
    together = np.clip(np.floor(plan.chunk / lengths), 1.0, most)
    costs = []
    for many in (together, np.ones_like(lengths)):
        found, passes = prompt_pass(model, cluster, each, many, calibration)
        work = DeviceTime(found.compute, found.communication, found.kernels, passes)
        whole = prompt_time(replace(pass_work(found, many, plan), prompts=work), own)
        costs.append((whole / many / np.minimum(plan.working, many)).tolist())
    cores = prefill_cores(
        model, cluster, each, np.ones_like(lengths), lengths, 0.0, calibration, sustained=True
    )
    return [*costs, (own.prefill * cores.compute / plan.working).tolist()]


def _decode(
    model: Model,
    cluster: Cluster,
    wide: ServingPlan,
    sequences: Array,
    layers: Pass,
    calibration: Calibration,
    contexts: Array,
) -> Array:
    """Wall time of decoding one token of each, (running, contexts) [s]; plans, sequences and layers
    as `_beside` takes them. A pass that adds several tokens counts as so many passes."""
    own = calibration.serving.of(wide.framework, wide.era)
    found = np.empty((len(sequences), len(contexts)))
    for column, context in enumerate(contexts):
        keys, ones = np.full((1, len(sequences)), context), np.ones((1, len(sequences)))
        cores = decode_cores(model, cluster, wide, sequences, keys, ones, calibration)
        both = with_decoding(layers.plus(cores), model, wide, sequences, context)
        one = replace(
            pass_work(both, sequences, wide), listed=listed(wide, context), told=told(wide, context)
        )
        found[:, column] = decode_time(one, own) / wide.tokens_per_pass
    return found


def _beside(
    model: Model,
    cluster: Cluster,
    wide: ServingPlan,
    sequences: Array,
    layers: Pass,
    calibration: Calibration,
    tokens: Array,
) -> tuple[Array, Array]:
    """What new tokens of prompts add to a pass that decodes, without the attention among them, and
    how long such a pass waits for launches, (running, tokens) [s].

    wide, sequences, layers   plans of as many as run; of a stage's micro-batch; their layers in a
                              pass that decodes
    """
    own, shape = calibration.serving.of(wide.framework, wide.era), (1, len(sequences))
    middle = np.full(shape, float(wide.input_len + 0.5 * wide.output_len))
    cores = decode_cores(model, cluster, wide, sequences, middle, np.ones(shape), calibration)
    step = decode_time(replace(pass_work(layers.plus(cores), sequences, wide), drafting=0.0), own)
    # Every number of tokens beside every number of sequences, as one batch.
    again = np.tile(np.arange(len(sequences)), len(tokens))
    many, each, fresh = take(wide, again), sequences[again], np.repeat(tokens, len(sequences))
    found, count = mixed_pass(model, cluster, many, fresh, each, calibration)
    one = DeviceTime(found.compute, found.communication, found.kernels, count)
    work = replace(pass_work(found, each, many), single=one)
    added = mixed_time(work, own) - count * step[again]
    slack = launch_wait(one, work, own)
    rows = (len(tokens), len(sequences))
    return added.reshape(rows).T, np.broadcast_to(slack, added.shape).reshape(rows).T


def _lengths(plan: ServingPlan, longest: float) -> Array:
    """Lengths of prompts at which they are filled, the mean's close together; beyond a pass those
    that fill theirs, of which all parts of prompts but the last are."""
    most, chunk = max(longest, 32.0), float(plan.chunk)
    close = np.clip(NEAR_MEAN * float(plan.new_tokens), 16.0, most)
    found = np.round([*np.geomspace(16.0, most, ENTRIES), *close])
    if chunk < most:
        found = np.append(np.where(found > chunk, np.ceil(found / chunk) * chunk, found), chunk)
    return np.unique([*found, *_captured(plan, min(most, chunk))])


def _captured(plan: ServingPlan, most: float) -> list[float]:
    """Tokens up to which passes with prompts run in captured pieces, and one more."""
    limit = float(plan.prompt_graphs)
    return [one for one in (limit, limit + 1.0) if limit > 0.0 and one <= most]


def _fresh(plan: ServingPlan) -> Array:
    """New tokens of passes that decode, too, at which they are filled."""
    most = max(float(plan.chunk), 2.0)
    # Most passes have one prompt, or two: kernels take steps that nodes far apart miss.
    usual = np.minimum(np.array([1.0, 2.0]) * float(plan.new_tokens), most)
    found = np.round([*np.geomspace(1.0, most, ENTRIES), *usual])
    return np.unique([*found, *_captured(plan, most)])


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
    streams = plan.offload == "weights"
    given, made = longest or (float(plan.input_len), float(plan.output_len))
    most = max(float(np.minimum(plan.max_batch, plan.sequences)), 1.0)
    memory = serving_memory(model, cluster, plan, calibration.run)
    pool = float(memory.sequences / plan.dp) * float(plan.input_len + plan.output_len)
    if pool < given + made:
        raise InputError(
            f"the cache has room for {pool:.0f} tokens, less than one request of {given:.0f} + "
            f"{made:.0f}"
        )
    doublings = np.arange(0.0, np.log2(most), 1.0 / PER_DOUBLING)
    running = np.unique([*np.round(2.0**doublings), most])
    contexts = np.linspace(0.0, given + made, ENTRIES) + 1.0
    # Stages hold their own micro-batches of the running sequences.
    split = np.minimum(plan.working, running)
    sequences = running / split
    wide = replace(plan, batch=running * plan.dp)
    captured = plan.captured(sequences)
    tokens = plan.rows(sequences) * (1.0 + plan.drafted)
    layers = body(
        model, cluster, wide, tokens, tokens, calibration, captured=captured, sustained=False
    )
    decode = _decode(model, cluster, wide, sequences, layers, calibration, contexts)
    lengths, fresh = _lengths(plan, given), _fresh(plan)
    prompt, alone, core = _prompts(model, cluster, plan, calibration, lengths, most)
    beside, slack = _beside(model, cluster, wide, sequences, layers, calibration, fresh)
    return PassTable(
        running=running.tolist(),
        contexts=contexts.tolist(),
        decode=decode.tolist(),
        lengths=lengths.tolist(),
        prompt=prompt,
        alone=alone,
        core=core,
        tokens=fresh.tolist(),
        beside=(beside / split[:, None]).tolist(),
        slack=(slack / split[:, None]).tolist(),
        pool=pool,
        plan=plan,
        own=own,
        meeting=round(float(replicas_met(plan, model.is_moe))),
        divided=float(done_together(model, cluster, plan, calibration)),
        stream=float(own.communication * stream_time(model, plan)) if streams else 0.0,
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
