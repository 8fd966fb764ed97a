"""What serving draws: passes over prompts, passes that decode, and what lies between them.

The list of kernels that gives the time gives the arithmetic and the traffic. Prompts count as
products of many rows, decoding as products of a row for each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from predictor.arrays import (
    Array,
    Index,
    Numeric,
    distinct_rows,
    flat,
    mapped,
    shape_of,
    varying,
)
from predictor.catalog import power_setting
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.power import (
    Activity,
    Conditions,
    Powered,
    powered,
    relative_energy,
    unlimited,
)
from predictor.precision import ELEMENT_BYTES
from predictor.records import dataclass
from predictor.serving.apart import worker
from predictor.serving.joint import repeated
from predictor.serving.latency import Latencies, latencies
from predictor.serving.pass_times import decode_time, prompt_time
from predictor.serving.prediction import InferencePrediction
from predictor.timing import widens
from predictor.work import (
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    passing_tokens,
    prefill_attention,
)

PRODUCTS = ("gemm", "moe_gemm")
"""Operators that have weights."""

FLOATS = ("w4a16_mxfp4",)
"""Narrow weights that are floats, beside activations of 16 bits."""

TILE = 128.0
"""Rows of the tiles in which products of 16 bits are made (CUTLASS's usual ones)."""


@dataclass(frozen=True, slots=True, eq=False)
class PassWork:
    """Arithmetic (16-bit equivalents) [FLOP], traffic, bytes on links and bytes of weights that are
    widened on their way, of one accelerator in a pass; share of its time that follows the clock."""

    flop: Array
    bytes: Array
    link: Array
    widened: Array
    core: Array


def _listed(
    operators: list[Operator], plan: ServingPlan, link: Numeric, device: Accelerator
) -> PassWork:
    """Work of a list of operators on an accelerator; stages of a pipeline share it."""
    flop: Array = np.zeros(plan.shape)
    moved: Array = np.zeros(plan.shape)
    made: Array = np.zeros(plan.shape)
    for one in operators:
        flop = flop + np.asarray(one.flop) * one.count * relative_energy(one.dtype)
        moved = moved + np.asarray(one.bytes) * one.count
        if one.op in PRODUCTS and _is_widened(one.dtype, device):
            made = made + _widened(one) * one.count * ELEMENT_BYTES[one.dtype]
    whole = PassWork(flop, moved, np.asarray(link), made, np.zeros(()))
    return _shared(whole, plan.pp)


def _shared(work: PassWork, among: Numeric) -> PassWork:
    """One of as many equal parts."""
    return PassWork(
        work.flop / among, work.bytes / among, work.link / among, work.widened / among, work.core
    )


def _is_widened(dtype: str, device: Accelerator) -> bool:
    """Whether processors widen weights for the matrix units: these take floats of four bits
    themselves where they multiply such (from Blackwell and CDNA 4 on)."""
    return widens(dtype) and not (dtype in FLOATS and "fp4" in device.peak)


def _widened(product: Operator) -> Array:
    """Weights of a product that processors make 16 bits of: all, once for each tile of its rows."""
    rows = np.maximum(product.m, 1e-30)
    return np.asarray(product.flop) / (2.0 * rows) * np.ceil(rows / TILE)


def _sent(
    model: Model, plan: ServingPlan, tokens: Numeric, rows: Numeric, last: Numeric | None = None
) -> Array:
    """Bytes that a rank sends in the collectives of a pass."""
    ranks = pass_groups(plan)
    found: Array = np.zeros(plan.shape)
    for one in pass_collectives(model, plan, tokens, rows, last):
        size = np.asarray(ranks[one.group].size, float)
        twice = 2.0 if one.op == "allreduce" else 1.0
        share = twice * (size - 1.0) / size
        found = found + share * np.asarray(one.bytes) * one.count
    return found


def _bound(work: PassWork, model_peak: Numeric, bandwidth: Numeric) -> PassWork:
    """The same with the share of its time that follows the clock: the arithmetic's part of both
    ideal times."""
    compute, memory = work.flop / model_peak, work.bytes / bandwidth
    share = compute / np.maximum(compute + memory, 1e-30)
    return replace(work, core=np.asarray(share))


def decode_work(found: InferencePrediction, sequences: Numeric) -> PassWork:
    """Work of a pass that decodes `sequences` sequences of a replica at the mean context."""
    model, plan = found.model, found.plan
    tokens = np.asarray(sequences) * (1.0 + plan.drafted)
    context = plan.input_len + 0.5 * plan.output_len
    operators = [
        *layer_operators(model, plan, tokens),
        *end_operators(model, plan, tokens, tokens),
        *decode_attention(model, plan, np.asarray(sequences, float), context),
    ]
    work = _listed(operators, plan, _sent(model, plan, tokens, tokens), found.cluster.accelerator)
    return _bound(work, *_rates(found))


def prompt_work(found: InferencePrediction) -> PassWork:
    """Work of one prompt of a replica, as many read together as the prediction has."""
    model, plan, together = found.model, worker(found.plan), np.asarray(found.work.together)
    tokens = together * plan.new_tokens
    past, last = plan.input_len - plan.new_tokens, passing_tokens(model, plan, tokens)
    operators = [
        *layer_operators(model, plan, tokens, last),
        *end_operators(model, plan, tokens, together),
        *prefill_attention(model, plan, together, plan.new_tokens, past),
    ]
    sent = _sent(model, plan, tokens, together, last)
    work = _listed(operators, plan, sent, found.cluster.accelerator)
    work = _bound(work, *_rates(found))
    return _shared(work, together)


def _rates(found: InferencePrediction) -> tuple[Numeric, Numeric]:
    device = found.cluster.accelerator
    half = device.peak.get("bf16", device.peak.get("fp16", device.peak.get("fp32", np.inf)))
    return half, device.bandwidth


@dataclass(frozen=True, slots=True, eq=False)
class ServingActivity:
    """What one accelerator does in a second of serving, by phase: 'prefill', 'decode', 'idle'; of
    the first two apart what ranks spend in collectives ('decode.exchange'), which meets a limit by
    itself: a rank that waits draws less than its products do.

    share     of the second
    activity  while it lasts
    prompts, passes   a second, of one replica
    """

    share: dict[str, Array]
    activity: dict[str, Activity]
    prompts: Array
    passes: Array


def _tiled(found: InferencePrediction) -> float:
    """1 where a pass multiplies its experts in tiles of 64 tokens, however few each has: with
    scales by block (vLLM, model_executor/layers/fused_moe/fused_moe.py, `get_default_config`,
    from memory)."""
    return float(found.model.is_moe and found.plan.weights == "fp8_block")


def _exchanging(
    found: InferencePrediction, own: Array, steps: Array, first: Array, rest: Array
) -> list[Array]:
    """Shares of the time of reading and of decoding in which ranks talk to each other.

    own, steps    requests and passes per second
    first, rest   shares of the time in which prompts are read, and in which tokens are decoded
    """
    talk = found.parameters.communication
    asking = own * talk * found.work.prompts.communication / found.work.together
    meeting = steps * talk * found.work.decoding.communication
    return [
        np.clip(part / np.maximum(whole, 1e-12), 0.0, 1.0)
        for part, whole in ((asking, first), (meeting, rest))
    ]


EXCHANGE = "exchange"
"""Of a phase: its collectives, in which ranks wait for each other and no kernel multiplies."""


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """Passes of a phase in a second: the work of one, how many there are, rows of their products,
    whether those have a row for each sequence only (1 or 0); shares of their time that are tiles of
    padding, in which the host is at work, and in which ranks talk to each other."""

    phase: str
    work: PassWork
    rate: Array
    rows: Array
    thin: float
    padded: Array
    halted: Array
    talks: Array

    def parts(self, time: Array) -> dict[str, Activity]:
        """Activity of their kernels, and of their collectives where there are any.

        time   of the phase in a second
        """
        each, rate = self.work, self.rate
        alone = np.maximum(1.0 - self.talks, 1e-12)
        found = {
            self.phase: Activity(
                time=np.maximum(time * alone, 1e-12),
                flop=rate * each.flop,
                bytes=rate * each.bytes,
                widened=rate * each.widened,
                rows=self.rows,
                thin=self.thin,
                padded=np.minimum(self.padded / alone, 1.0),
                core=each.core,
                halted=np.minimum(self.halted / alone, 1.0),
            )
        }
        if np.any(self.talks > 0):
            found[f"{self.phase}.{EXCHANGE}"] = Activity(
                np.maximum(time * self.talks, 1e-12), link=rate * each.link, spinning=1.0
            )
        return found


def serving_activity(
    found: InferencePrediction, tokens_per_s: Numeric | None = None
) -> ServingActivity:
    """Activity of a prediction of serving.

    tokens_per_s   generated by the whole engine, where it was measured; None: as predicted

    A static batch reads its prompts and decodes to its end; at a concurrency passes follow each
    other without a gap but the host's; at a rate of arrivals the rest of the time is idle.
    What measured passes take beyond their prediction, experts with scales by block spend on tiles
    that are mostly padding (`_tiled`), all others waiting for the host, which is also where clients
    are answered in the loop of passes: then no kernel keeps the processors busy.
    """
    plan = found.plan
    own = found.latencies.requests_per_s
    if tokens_per_s is not None:
        own = np.asarray(tokens_per_s) / plan.output_len / plan.dp
    sequences = np.asarray(found.work.sequences)
    after = np.maximum(np.asarray(found.work.output_len) - 1.0, 1.0)
    steps = own * after / plan.tokens_per_pass / np.maximum(sequences, 1e-9)
    decode, prompt = decode_work(found, sequences), prompt_work(found)
    # What others read is padding, which is computed, too.
    read = own * repeated(found.work)
    reading = read * prompt_time(found.work, found.parameters) / found.work.together
    decoding = steps * found.latencies.step
    closed = np.asarray(plan.serving, float) * np.isfinite(np.asarray(plan.batch, float))
    if found.arriving:
        closed = np.zeros_like(closed)
    first = np.clip(reading, 0.0, 0.95)
    rest = np.where(closed > 0, 1.0 - first, np.minimum(decoding, 1.0 - first))
    share = {"prefill": first, "decode": rest, "idle": 1.0 - first - rest}
    none = np.zeros(plan.shape)
    unforeseen = 0.0 if tokens_per_s is None else closed * np.clip(1.0 - decoding / rest, 0.0, 1.0)
    rows = sequences * (1.0 + plan.drafted)
    kernels = steps * decode_time(replace(found.work, streamed=0.0), found.parameters)
    padded = unforeseen * _tiled(found)
    waits = _exchanging(found, read, steps, first, rest)
    halted = np.maximum(1.0 - kernels / np.maximum(rest, 1e-12) - padded, 0.0)
    many = np.asarray(found.work.together) * plan.new_tokens
    passes = (
        Passing(
            phase="prefill", work=prompt, rate=read, rows=many, thin=0.0, padded=none, halted=none,
            talks=waits[0],
        ),
        Passing(
            phase="decode", work=decode, rate=steps, rows=rows, thin=1.0, padded=padded + none,
            halted=halted + none, talks=waits[1],
        ),
    )  # fmt: skip
    activity: dict[str, Activity] = {}
    for one in passes:
        activity |= one.parts(share[one.phase])
    share |= {name: np.asarray(part.time) for name, part in activity.items()}
    activity["idle"] = Activity(time=np.maximum(share["idle"], 1e-12), flop=none)
    return ServingActivity(share, activity, np.asarray(own), np.asarray(steps))


def serving_power(found: InferencePrediction, conditions: Conditions) -> Powered:
    """Power of a second of serving under conditions; phases are shares of a second at the board's
    own limits.

    Raises InputError where the accelerator's power is not known, or the conditions cannot be, and
    where prompts are read on accelerators of their own.
    """
    if np.any(np.asarray(found.plan.prefill_workers) > 0):
        raise InputError("power of prompts read on accelerators of their own is not predicted")
    told: list[Any] = [found.plan, found.cluster, found.parameters, found.latencies, found.work]
    told.append(conditions)
    shape = np.broadcast_shapes(*(shape_of(one) for one in told))
    if not shape:
        return _powered(found, conditions)
    values = [np.broadcast_to(value, shape).ravel() for one in told for value in varying(one)]
    first, index = distinct_rows(values)
    plan, cluster, parameters, latencies, work, under = (flat(one, shape, first) for one in told)
    few = replace(
        found, plan=plan, cluster=cluster, parameters=parameters, latencies=latencies, work=work
    )
    return _spread(_powered(few, under), len(first), index.reshape(shape))


def _powered(found: InferencePrediction, conditions: Conditions) -> Powered:
    """Power of a second of plans, each of which is worked out."""
    constants, chassis = power_setting(found.cluster, conditions, found.calibration.power)
    work = serving_activity(found)
    many = np.maximum(work.passes, 1.0)
    pieces = {"prefill": np.maximum(work.prompts / found.work.together, 1e-9), "decode": many}
    pieces["idle"] = np.ones_like(many)
    return powered(work.activity, pieces, constants, chassis, conditions)


def _spread(under: Powered, count: int, index: Index) -> Powered:
    """What is drawn by plans of which some are alike, from that of the distinct ones.

    count   of those
    index   of each plan among them
    """

    def each(value: Numeric) -> Array:
        one = np.asarray(value)
        whole = np.broadcast_to(one, (*one.shape[:-1], count)) if one.ndim else one
        return whole.take(index, axis=-1) if one.ndim else one

    phases = [mapped(one, each) for one in under.phases]
    return replace(mapped(under, each), phases=phases)


def _kernels(under: Powered, phase: str, longer: Mapping[str, Array]) -> Array:
    """How much longer a phase's kernels take by themselves: its collectives follow no clock.

    longer   times of phases, collectives included, over those by themselves
    """
    kernels, talk = (under.work.get(f"{phase}{name}") for name in ("", f".{EXCHANGE}"))
    if kernels is None or talk is None:
        return longer[phase]
    return np.asarray(1.0 + (longer[phase] - 1.0) * (1.0 + np.asarray(talk.time) / kernels.time))


def limited(
    found: InferencePrediction, under: Powered, conditions: Conditions
) -> InferencePrediction:
    """The prediction in the time that conditions leave it; itself where none slow it.

    Passes over prompts and passes that decode take each as much longer as its own work does;
    latencies follow as in `latency.latencies`.
    """
    if not conditions.slows:
        return found
    setting = power_setting(found.cluster, Conditions(), found.calibration.power)
    usual = unlimited(under.work, *setting)
    slower = {
        name: _kernels(under, name, under.longer) / _kernels(under, name, usual)
        for name in ("prefill", "decode")
    }
    work = found.work
    prompts = replace(work.prompts, compute=np.asarray(work.prompts.compute) * slower["prefill"])
    decode = replace(work.decoding, compute=np.asarray(work.decoding.compute) * slower["decode"])
    work = replace(work, prompts=prompts, decoding=decode)
    now, then = (latencies(one, found.parameters) for one in (work, found.work))
    values = {}
    for one in fields(Latencies):
        old, new, own = (getattr(each, one.name) for each in (then, now, found.latencies))
        values[one.name] = np.asarray(own * new / np.where(old > 0, old, 1.0))
    # At a rate of arrivals it is the rate that decides how many requests end.
    if found.arriving:
        values["requests_per_s"] = np.asarray(found.latencies.requests_per_s)
    scale = values["e2e"] / np.maximum(found.latencies.e2e, 1e-15)
    breakdown = {name: value * scale for name, value in found.breakdown.items()}
    return replace(found, work=work, latencies=Latencies(**values), breakdown=breakdown)
