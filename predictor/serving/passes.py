"""How long one pass of a served model takes on the device: kernels and collectives, by term.

A pass over prompts and a pass that decodes are timed by the same function from their work lists;
what does not differ between plans of a batch is timed once (`_distinct`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, distinct_rows, flat, identity, in_order, varying
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model
from predictor.plans import ServingPlan, runnable, shown_beside
from predictor.records import dataclass
from predictor.serving.calls import communication
from predictor.serving.equivalents import no_slower_than_others, whole_experts
from predictor.serving.kernels import as_run, beside_routed
from predictor.serving.modules import launches, started
from predictor.serving.parts import TERMS, Line, Pass
from predictor.timing import (
    BOUNDS,
    Calibration,
    Timing,
    operator_times,
    padded,
    peak_of,
)
from predictor.work import (
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    prefill_attention,
)

STEPS_LISTED = 8
"""Nodes of the Gauss-Legendre rule that sums decode passes over a growing context; the time of
attention bends so little that the sum over 2,048 single steps agrees to 0.1 %."""

GROUPED = "deepgemm"
"""Library of the experts behind DeepEP (sgl-project/sglang, layers/moe/ep_moe/layer.py), and of
those over buffers."""

TIMED_WITH = {"tuned": "trtllm", "openai": "vllm", "generated": "sglang"}
"""Library whose tables have the kernels of experts (`NARROW_EXPERTS`) that another engine runs:
FlashInfer's CUTLASS kernels are TensorRT-LLM's, which alone were tuned as they are in an engine;
OpenAI's triton_kernels were timed through vLLM, those that NVIDIA generates for Blackwell through
SGLang (flashinfer_trtllm; TensorRT-LLM's collector gives them the tokens of half the experts;
collector/*/collect_moe.py of ai-dynamo/aiconfigurator @ 095f58a)."""

WITHIN = ("bmm", "scan", "recurrence")
"""Variants of operators that are parts of attention, or of what takes its place."""

EXACT_STEPS = 4096
"""Steps of a request up to which a prediction evaluates every single one; large spaces of plans
are integrated by the rule from `STEPS_LISTED` on."""


Index = npt.NDArray[np.intp]
Builder = Callable[[ServingPlan, list[Numeric]], list[Operator]]


def term_of(operator: Operator) -> str:
    """Term of the breakdown that an operator belongs to."""
    if operator.op.startswith("attention") or operator.variant in WITHIN:
        return "attention"
    if operator.module in ("embedding", "head"):
        return "head"
    if operator.op == "moe_gemm":
        return "experts"
    return "linear" if operator.op == "gemm" else "elementwise"


def _distinct(values: list[Array], shape: tuple[int, ...]) -> tuple[Index, Index]:
    """Positions (in the flattened `shape`) of the distinct combinations of `values`, and for each
    place of `shape` which of them it has."""
    told = [np.broadcast_to(value, shape).ravel() for value in values if np.ndim(value)]
    first, inverse = distinct_rows(told or [np.zeros(math.prod(shape))])
    return first, inverse.reshape(shape)


def _kernels(
    build: Builder,
    plan: ServingPlan,
    own: list[Numeric],
    shared: list[Numeric],
    weights: Array | None,
    accelerator: Accelerator,
    calibration: Calibration,
    sustained: bool,
) -> Pass:
    """Time the operators that `build` makes of a plan and the quantities `own`.

    own      quantities of the plans' shape, or of (K, *shape) where `weights` are given
    shared   fields of the plan on which the operators depend
    weights  (K, *shape): executions at each of K contexts, over which times are added up
    """
    base = _base(plan, own, shared, weights, accelerator)
    operators = build(base.plan, base.own)
    host = base.accelerator.host_time(1.0) * plan.launching
    library = {"": plan.library}
    if plan.narrow and plan.narrow_experts in TIMED_WITH:
        library["moe_gemm"] = TIMED_WITH[plan.narrow_experts]
    if plan.exchange == "deepep":
        library["moe_gemm"] = GROUPED

    def timed(listed: list[Operator], library: Mapping[str, str] = library) -> Timing:
        return operator_times(
            padded(listed, base.accelerator),
            base.accelerator,
            calibration,
            base.within,
            sustained,
            library,
            host,
        )

    timing = no_slower_than_others(operators, plan, timed)
    if plan.in_buffers:
        grouped = {**library, "moe_gemm": GROUPED}
        timing = whole_experts(operators, timing, lambda few: timed(few, grouped), base.plan)
    # Passes over prompts are eager but for what runs in pieces (`whole_passes`).
    found = _added(operators, timing, plan, base, sustained or plan.execution != "graph")

    def spread(value: Array) -> Array:
        return np.asarray(value)[base.index] if plan.shape else np.asarray(value)

    return Pass(
        {name: spread(value) for name, value in found.terms.items()},
        spread(found.kernels),
        {name: (spread(time), spread(s)) for name, (time, s) in found.families.items()},
        found.lines,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """Plans that differ in what operators depend on, and for each of all plans the `index` of its
    own among them; the same of their quantities, accelerator and executions.

    within   shape of the operators' times: contexts, if any, and plans
    """

    plan: ServingPlan
    own: list[Numeric]
    accelerator: Accelerator
    execute: Array | None
    within: tuple[int, ...]
    index: npt.NDArray[np.intp]


def _base(
    plan: ServingPlan,
    own: list[Numeric],
    shared: list[Numeric],
    weights: Array | None,
    accelerator: Accelerator,
) -> _Base:
    """The distinct ones of a batch of plans; arguments as `_kernels` takes them."""
    shape = plan.shape
    lead = () if weights is None else weights.shape[:1]
    if shape:
        ends = [np.asarray(v, float) for v in own]
        if weights is not None:
            ends = [end for v in ends for end in (v[0], v[-1])]
        told = [*(np.asarray(v, float) for v in shared), *varying(accelerator), *ends]
        first, index = _distinct(told, shape)
        accelerator, base = flat(accelerator, shape, first), flat(plan, shape, first)
        count = len(first)
        quantities: list[Numeric] = [
            np.broadcast_to(v, (*lead, *shape)).reshape(*lead, -1)[..., first] for v in own
        ]
        within: tuple[int, ...] = (*lead, count)
        execute = None if weights is None else weights.reshape(*lead, -1)[..., first]
    else:
        base, quantities, within, execute = plan, own, lead, weights
        index = np.zeros((), dtype=np.intp)
    return _Base(
        plan=base,
        own=quantities,
        accelerator=accelerator,
        execute=execute,
        within=within,
        index=index,
    )


def _added(
    operators: list[Operator], timing: Timing, plan: ServingPlan, base: _Base, eager: bool
) -> Pass:
    """The pass that timed operators make, of the distinct plans.

    eager   whether the host launches its kernels one by one
    """
    execute, accelerator = base.execute, base.accelerator
    zero = np.zeros(base.within if execute is None else base.within[1:])
    terms = dict.fromkeys(TERMS, zero)
    kernels = zero
    families: dict[str, tuple[Array, Array]] = {}
    lines: list[Line] = []
    alone = [
        as_run(timing.time[position], operator, base.plan, accelerator)
        for position, operator in enumerate(operators)
    ]
    times = beside_routed(operators, alone, base.plan, accelerator)
    for position, operator in enumerate(operators):
        each, launched = times[position], started(times[position], alone[position])
        launched = launched * launches(operator, base.plan, eager)
        if execute is not None:
            each, launched = in_order(each * execute), launched[0]
            passes: Numeric = in_order(execute)
        else:
            passes = 1.0
        spent = each * operator.count
        name = term_of(operator)
        terms[name] = terms[name] + spent
        kernels = kernels + operator.count * passes * launched
        sigma = timing.sigma[position]
        sigma = sigma.max(axis=0) if execute is not None else sigma
        family = timing.family[position]
        before, most = families.get(family, (zero, zero))
        families[family] = (before + spent, np.maximum(most, sigma))
        if not plan.shape and np.any(np.asarray(operator.count) > 0):
            bound = timing.bound[position]
            lines.append(
                Line(
                    name=operator.name,
                    op=operator.op,
                    count=float(np.mean(np.asarray(operator.count))) * float(np.sum(passes)),
                    time=spent,
                    bound=BOUNDS[int(bound if not bound.ndim else bound.flat[bound.size // 2])],
                    intensity=_intensity(operator, accelerator),
                    pedigree=timing.pedigree[position],
                )
            )
    whole = {name: (time + zero, sigma + zero) for name, (time, sigma) in families.items()}
    return Pass(terms, np.asarray(kernels + zero), whole, tuple(lines))


def _intensity(operator: Operator, accelerator: Accelerator) -> float:
    """Time of the arithmetic at the peak rate over time of the traffic at the full bandwidth."""
    if not np.any(operator.flop):
        return 0.0
    compute = np.asarray(operator.flop) / peak_of(operator.dtype, accelerator)
    return float(np.mean(compute / (np.asarray(operator.bytes) / accelerator.bandwidth)))


PLAN_NUMBERS, NUMBERS_KEPT = 100, 200_000
"""Numbers, about, in a plan and its pass; and in those of a batch whose passes are kept for when
the same are asked for again, as searches, limits of power and rates do."""


def _once(
    what: tuple[Hashable, ...],
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    told: Sequence[Numeric | None],
    calibration: Calibration,
    make: Callable[[], Pass],
) -> Pass:
    """A pass over quantities that are `told`, made once for the same plans on the same machine. How
    many workers read prompts beside an engine is nothing to its passes."""
    own = PLAN_NUMBERS * math.prod(plan.shape) + sum(np.asarray(one).size for one in told)
    if own > NUMBERS_KEPT or varying(cluster):
        return make()
    numbers = [None if one is None else np.asarray(one, float) for one in told]
    each = [None if one is None else (one.shape, one.tobytes()) for one in numbers]
    alone = identity(replace(plan, prefill_workers=0.0))
    return calibration.once((*what, model, cluster, alone, *each), make, own)


def body(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    tokens: Numeric,
    rows: Numeric,
    calibration: Calibration,
    *,
    captured: Numeric,
    sustained: bool,
    last: Numeric | None = None,
) -> Pass:
    """A pass over `tokens` tokens of one replica that yields `rows` rows of logits, without the
    attention cores; floats or arrays of the plans' shape. `last` of them pass the decoder's layers,
    all unless stated."""
    told = tokens, rows, captured, last
    make = partial(
        _body, model=model, cluster=cluster, plan=plan, tokens=tokens, rows=rows,
        calibration=calibration, captured=captured, sustained=sustained, last=last,
    )  # fmt: skip
    return _once(("body", sustained), model, cluster, plan, told, calibration, make)


def _body(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    tokens: Numeric,
    rows: Numeric,
    calibration: Calibration,
    captured: Numeric,
    *,
    sustained: bool,
    last: Numeric | None,
) -> Pass:
    """What `body` answers."""
    layers = layers_of(model, cluster, plan, tokens, calibration, sustained, last)
    ends = _kernels(
        build=lambda p, q: end_operators(model, p, q[0], q[1]),
        plan=plan,
        own=[tokens, rows],
        shared=[plan.tp],
        weights=None,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=sustained,
    )
    moved = pass_collectives(model, plan, tokens, rows, last)
    talk = communication(moved, plan, cluster, calibration, captured)
    # Passes that decode have too few tokens to cut.
    if sustained and np.any(np.asarray(plan.expert_chunks) > 1) and model.is_moe:
        small = replace(plan, expert_load=plan.expert_load / plan.expert_chunks)
        fewer = pass_collectives(model, small, tokens, rows, last)
        part = layers_of(model, cluster, small, tokens, calibration, sustained, last)
        part = part.plus(communication(fewer, small, cluster, calibration, captured))
        talk = _overlapped(talk, layers, part, plan.expert_chunks)
    return layers.plus(ends).plus(talk)


def _overlapped(talk: Pass, layers: Pass, part: Pass, chunks: Numeric) -> Pass:
    """Communication of a pass where tokens go to their experts in parts: what of it shows beside
    the experts. Collectives and experts of a part are those of ranks with so much less to do."""
    name = "ep_communication"
    beside = shown_beside(
        part.terms[name], part.terms["experts"], whole=layers.terms["experts"], chunks=chunks
    )
    shown = np.where(np.asarray(chunks) > 1, beside, talk.terms[name])
    return replace(talk, terms={**talk.terms, name: shown})


def layers_of(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    tokens: Numeric,
    calibration: Calibration,
    sustained: bool,
    last: Numeric | None = None,
) -> Pass:
    """Kernels of the layers over `tokens` tokens, of the decoder's over `last`, without the
    attention cores. Whose experts have more rows, with as many of them to read, is no quicker than
    with even loads, whatever tables of even loads say of rows and experts that never met there."""
    given = (calibration, sustained, last)
    own = _layers_of(model, cluster, plan, tokens, *given)
    if not (model.is_moe and np.any(np.asarray(plan.expert_load) > 1.0)):
        return own
    even = replace(plan, expert_load=np.minimum(plan.expert_load, 1.0))
    return own.at_least(_layers_of(model, cluster, even, tokens, *given))


def _layers_of(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    tokens: Numeric,
    calibration: Calibration,
    sustained: bool,
    last: Numeric | None,
) -> Pass:
    """The kernels of `layers_of` at the plan's loads of experts."""
    layout: list[Numeric] = [plan.tp, plan.dp, plan.ep, plan.expert_load]
    layout += [plan.adapters, plan.adapter_rank]
    return _kernels(
        build=lambda p, q: layer_operators(model, p, *q),
        plan=plan,
        own=[tokens] if last is None else [tokens, last],
        shared=layout,
        weights=None,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=sustained,
    )


def decode_cores(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    sequences: Numeric,
    contexts: Array,
    weights: Array,
    calibration: Calibration,
) -> Pass:
    """Attention of decode passes of `sequences` sequences, added up over contexts.

    contexts, weights   (K, *shape): cached tokens, and how many passes find as many
    """
    shape = plan.shape
    many = np.broadcast_to(sequences, (len(contexts), *shape))
    make = partial(
        _kernels,
        build=lambda p, q: decode_attention(model, p, q[0], q[1]),
        plan=plan,
        own=[many, contexts],
        shared=[plan.tp, in_order(weights)],
        weights=weights,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=False,
    )
    told = sequences, contexts, weights
    return _once(("decode",), model, cluster, plan, told, calibration, make)


def prefill_cores(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    sequences: Numeric,
    query: Numeric,
    past: Numeric,
    calibration: Calibration,
    *,
    sustained: bool,
) -> Pass:
    """Attention of `query` new tokens of each of `sequences` prompts behind `past` cached ones."""
    own = [sequences, query, past]
    make = partial(
        _kernels,
        build=lambda p, q: prefill_attention(model, p, q[0], q[1], q[2]),
        plan=plan,
        own=own,
        shared=[plan.tp],
        weights=None,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=sustained,
    )
    return _once(("prefill", sustained), model, cluster, plan, own, calibration, make)


def steps(plan: ServingPlan, listed: int = STEPS_LISTED) -> tuple[Array, Array]:
    """Contexts that the decode passes of a request find, and how many find each, (K, *shape).

    listed   decode passes up to which each is listed by itself; of more, `STEPS_LISTED` stand for
             all

    A request of n output tokens makes n - 1 decode passes (one at least is counted, so that a pass
    has a time), the i-th over input + i tokens. Those that are not listed are integrated from 1/2
    to n - 1/2 (Gauss-Legendre, exact to degree 2 `STEPS_LISTED` - 1). Which it is, a plan's own
    length decides, whatever other plans of the batch have.
    """
    shape = plan.shape
    count = np.maximum(np.broadcast_to(plan.output_len, shape) - 1.0, 1.0)
    start = np.broadcast_to(plan.input_len, shape)
    single = count <= listed
    longest = int(np.max(count, where=single, initial=1.0))
    index = np.arange(1.0, (longest if single.all() else max(longest, STEPS_LISTED)) + 1.0)
    index = index.reshape(-1, *(1,) * len(shape))
    contexts, weights = start + np.minimum(index, count), np.where(index <= count, 1.0, 0.0)
    if single.all():
        return contexts, weights
    nodes, shares = np.polynomial.legendre.leggauss(STEPS_LISTED)
    more = (0, len(index) - STEPS_LISTED)  # for plans that are listed
    spot = np.pad(0.5 * (nodes + 1.0), more, constant_values=1.0).reshape(index.shape)
    share = np.pad(0.5 * shares, more).reshape(index.shape)
    integrated = start + 0.5 + spot * count
    return np.where(single, contexts, integrated), np.where(single, weights, share * count)


def adapted(plan: ServingPlan, accelerator: Accelerator) -> ServingPlan:
    """The plan with the data type that the accelerator runs in place of the one that it lacks."""
    own = runnable(plan.weights, accelerator)
    if (own, accelerator.wide) == (plan.weights, plan.wide):
        return plan
    return replace(plan, weights=own, wide=accelerator.wide)
