"""How long one pass of a served model takes on the device: kernels and collectives, by term.

A pass over prompts and a pass that decodes are timed by the same function from their work lists;
what does not differ between plans of a batch is timed once (`_distinct`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, flat, in_order, varying
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model, Tower, around_layers, encoder
from predictor.plans import NATIVE, ServingPlan, in_chunks, runnable
from predictor.serving.kernels import as_run, beside_routed
from predictor.timing import (
    BOUNDS,
    Calibration,
    Timing,
    collective_time,
    operator_times,
    peak_of,
)
from predictor.work import (
    Collective,
    Group,
    Operator,
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    prefill_attention,
)

COMPUTE = ("linear", "experts", "attention", "elementwise", "head")
COMMUNICATION = ("tp_communication", "ep_communication", "pp_communication", "host_transfer")
TERMS = (*COMPUTE, *COMMUNICATION)
"""Terms of a pass on the device; they add up to its time there."""

CUSTOM_LIMIT = 8 * 2.0**20
"""Largest message that engines give to their one-kernel all-reduce [bytes] (vLLM's and
TensorRT-LLM's custom all-reduce); larger ones go to NCCL."""

STEPS_LISTED = 8
"""Nodes of the Gauss-Legendre rule that sums decode passes over a growing context; the time of
attention bends so little that the sum over 2,048 single steps agrees to 0.1 %."""

THROUGHPUT, LOW_LATENCY = "alltoall.deepep_", "alltoall.deepep_ll_"
"""DeepEP's exchanges of tokens, by what they are made for."""

GROUPED = "deepgemm"
"""Library of the experts behind DeepEP (sgl-project/sglang, layers/moe/ep_moe/layer.py)."""

WITHIN = ("bmm", "scan", "recurrence")
"""Variants of operators that are parts of attention, or of what takes its place."""

EXACT_STEPS = 4096
"""Steps of a request up to which a prediction evaluates every single one; large spaces of plans
are integrated by the rule from `STEPS_LISTED` on."""


Index = npt.NDArray[np.intp]
Builder = Callable[[ServingPlan, list[Numeric]], list[Operator]]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One operator of a pass, of a single plan: executions, seconds of all of them, what bounds
    it, by how much ideal compute time exceeds ideal memory time (a ratio), how it is known."""

    name: str
    op: str
    count: float
    time: Array
    bound: str
    intensity: float
    pedigree: str


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Device time of a pass by term of `TERMS` [s], kernels launched, seconds and sigma by family
    of the fits; arrays of the plans' shape. `lines` lists its operators where there is one plan."""

    terms: dict[str, Array]
    kernels: Array
    families: dict[str, tuple[Array, Array]]
    lines: tuple[Line, ...] = ()

    @property
    def compute(self) -> Array:
        """Kernels of the model [s]."""
        return np.asarray(sum(self.terms[name] for name in COMPUTE))

    @property
    def communication(self) -> Array:
        """Collectives [s]."""
        return np.asarray(sum(self.terms[name] for name in COMMUNICATION))

    def plus(self, other: Pass) -> Pass:
        """Both passes, one after the other."""
        families = dict(self.families)
        for name, (time, sigma) in other.families.items():
            known = families.get(name)
            pair = (time, sigma)
            families[name] = (
                pair
                if known is None
                else (
                    known[0] + time,
                    np.maximum(known[1], sigma),
                )
            )
        return Pass(
            {name: self.terms[name] + other.terms[name] for name in TERMS},
            self.kernels + other.kernels,
            families,
            self.lines + other.lines,
        )

    def times(self, factor: Numeric) -> Pass:
        """The same pass, `factor` times."""
        return Pass(
            {name: value * factor for name, value in self.terms.items()},
            self.kernels * factor,
            {name: (time * factor, sigma) for name, (time, sigma) in self.families.items()},
            tuple(
                replace(line, time=line.time * factor, count=line.count * float(factor))
                for line in self.lines
            ),
        )


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
    codes = np.zeros(int(np.prod(shape)), dtype=np.int64)
    for value in values:
        if np.ndim(value):
            _, inverse = np.unique(np.broadcast_to(value, shape).ravel(), return_inverse=True)
            codes = codes * (int(inverse.max()) + 1) + inverse
            _, codes = np.unique(codes, return_inverse=True)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
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
    host = base.accelerator.dispatch * (NATIVE if plan.execution == "native" else 1.0)
    library = {"": plan.library}
    if plan.exchange == "deepep":
        library["moe_gemm"] = GROUPED
    timing = operator_times(
        operators, base.accelerator, calibration, base.within, sustained, library, host
    )
    found = _added(operators, timing, plan, base)

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


def _added(operators: list[Operator], timing: Timing, plan: ServingPlan, base: _Base) -> Pass:
    """The pass that timed operators make, of the distinct plans."""
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
        each = times[position]
        if execute is not None:
            each = in_order(each * execute)
            passes: Numeric = in_order(execute)
        else:
            passes = 1.0
        spent = each * operator.count
        name = term_of(operator)
        terms[name] = terms[name] + spent
        kernels = kernels + operator.count * passes
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


def _call(
    one: Collective,
    group: Group,
    plan: ServingPlan,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time of one call of a collective [s] and its log-standard-deviation."""
    if one.op.startswith(THROUGHPUT):
        return _exchanged(one, group, cluster, calibration, captured)
    time, sigma = collective_time(one.op, one.bytes, group, cluster, calibration, one.copies)
    if one.op == "allreduce" and plan.allreduce == "custom":
        inside = cluster.tiers[0].size
        near = Group(np.minimum(group.size, inside), group.stride)
        small, spread = _own_allreduce(
            one.bytes, near, plan.library, cluster, calibration, captured
        )
        taken = (np.asarray(one.bytes) <= CUSTOM_LIMIT) & (np.asarray(group.size) <= inside)
        time = np.where(taken, np.minimum(small, time), time)
        sigma = np.where(taken, spread, sigma)
    return time, sigma


def _communication(
    found: list[Collective],
    plan: ServingPlan,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> Pass:
    """Time the collectives of a pass; small all-reduces inside a node are the engine's own kernels
    where the plan says so, as they run inside or outside a captured graph (`captured` 1 or 0)."""
    shape = plan.shape
    zero = np.zeros(shape)
    terms = dict.fromkeys(TERMS, zero)
    kernels = zero
    families: dict[str, tuple[Array, Array]] = {}
    ranks = pass_groups(plan)
    known: dict[Hashable, tuple[Array, Array]] = {}
    for one in found:
        group = ranks[one.group]
        if not np.any(np.asarray(one.count) * (np.asarray(group.size) > 1)):
            continue
        if one.call not in known:
            known[one.call] = _call(one, group, plan, cluster, calibration, captured)
        time, sigma = known[one.call]
        name = "pp" if one.op == "p2p" else ("ep" if one.name.startswith("moe.") else "tp")
        if one.name == "moe.reduce":
            name = "tp"
        spent = np.broadcast_to(time * one.count, shape)
        terms[f"{name}_communication"] = terms[f"{name}_communication"] + spent
        kernels = kernels + np.where(np.asarray(group.size) > 1, one.count, 0.0)
        before, most = families.get(one.op, (zero, zero))
        families[one.op] = (before + spent, np.maximum(most, sigma))
    return Pass(terms, kernels, families)


def _own_allreduce(
    moved: Numeric,
    group: Group,
    library: str,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time and spread of an engine's own all-reduce, inside captured graphs or outside."""
    whose = "" if library == "neutral" else f".{library}"
    return _either(
        lambda: collective_time(f"allreduce.custom{whose}", moved, group, cluster, calibration),
        lambda: collective_time(
            f"allreduce.custom-eager{whose}", moved, group, cluster, calibration
        ),
        captured,
    )


def _exchanged(
    one: Collective, group: Group, cluster: Cluster, calibration: Calibration, captured: Numeric
) -> tuple[Array, Array]:
    """Time and spread of DeepEP's exchange: inside captured graphs its kernels for low latency, by
    which every copy of a token goes by itself."""
    quick = one.op.replace(THROUGHPUT, LOW_LATENCY)
    return _either(
        lambda: collective_time(quick, one.bytes, group, cluster, calibration),
        lambda: collective_time(one.op, one.bytes, group, cluster, calibration, one.copies),
        captured,
    )


def _either(
    within: Callable[[], tuple[Array, Array]],
    outside: Callable[[], tuple[Array, Array]],
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time and spread of a kernel inside captured graphs or outside (`captured` 1 or 0)."""
    inside = np.asarray(captured) > 0
    if np.all(inside):
        return within()
    if not np.any(inside):
        return outside()
    (one, sigma), (other, wider) = within(), outside()
    return np.where(inside, one, other), np.where(inside, sigma, wider)


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
) -> Pass:
    """A pass over `tokens` tokens of one replica that yields `rows` rows of logits, without the
    attention cores; floats or arrays of the plans' shape."""
    layers = _layers(model, cluster, plan, tokens, calibration, sustained)
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
    moved = pass_collectives(model, plan, tokens, rows)
    talk = _communication(moved, plan, cluster, calibration, captured)
    # Passes that decode have too few tokens to cut.
    if sustained and np.any(np.asarray(plan.expert_chunks) > 1) and model.is_moe:
        small = replace(plan, expert_load=plan.expert_load / plan.expert_chunks)
        part = _layers(model, cluster, small, tokens, calibration, sustained).plus(
            _communication(
                pass_collectives(model, small, tokens, rows), small, cluster, calibration, captured
            )
        )
        talk = _overlapped(talk, layers, part, plan.expert_chunks)
    return layers.plus(ends).plus(talk)


def _overlapped(talk: Pass, layers: Pass, part: Pass, chunks: Numeric) -> Pass:
    """Communication of a pass where tokens go to their experts in parts: what of it shows beside
    the experts. Collectives and experts of a part are those of ranks with so much less to do."""
    name = "ep_communication"
    whole = in_chunks(part.terms[name], part.terms["experts"], chunks)
    shown = np.where(
        np.asarray(chunks) > 1, np.maximum(whole - layers.terms["experts"], 0.0), talk.terms[name]
    )
    return replace(talk, terms={**talk.terms, name: shown})


def _layers(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    tokens: Numeric,
    calibration: Calibration,
    sustained: bool,
) -> Pass:
    """Kernels of the layers over `tokens` tokens, without the attention cores."""
    layout: list[Numeric] = [plan.tp, plan.dp, plan.ep, plan.expert_load]
    layout += [plan.adapters, plan.adapter_rank]
    return _kernels(
        build=lambda p, q: layer_operators(model, p, q[0]),
        plan=plan,
        own=[tokens],
        shared=layout,
        weights=None,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=sustained,
    )


def encoding(
    model: Model, cluster: Cluster, plan: ServingPlan, tiles: Numeric, calibration: Calibration
) -> Pass:
    """The second tower over so many tiles of one replica, with what is before and behind its
    layers at their pace. It is in 16 bits, and as divided as the language model where that divides
    its heads, else on every rank whole (vLLM's and SGLang's towers)."""
    tower = model.tower
    assert tower is not None
    own, one = encoder(tower), tower_plan(plan, tower)
    some = np.asarray(tiles) > 0
    tiles = np.where(some, tiles, 1.0)
    tokens = tiles * float(tower.patches)
    cores = prefill_cores(
        own, cluster, one, tiles, float(tower.patches), 0.0, calibration, sustained=True
    )
    moved = [c for c in pass_collectives(own, one, tokens, 0.0) if c.name.split(".")[0] in INSIDE]
    talk = _communication(moved, one, cluster, calibration, 0.0)
    layers = _layers(own, cluster, one, tokens, calibration, True)
    more = 1.0 + around_layers(tower, model.hidden) / tower.layers
    return layers.plus(cores).plus(talk).times(np.where(some, more, 0.0))


INSIDE = ("attention", "mlp")
"""First parts of the names of collectives inside layers."""


def tower_plan(plan: ServingPlan, tower: Tower) -> ServingPlan:
    """The plan of a second tower."""
    whole = tower.heads % np.maximum(np.asarray(plan.tp), 1.0) == 0
    return replace(
        plan,
        tp=np.where(whole, plan.tp, 1.0),
        dp=1.0,
        ep=1.0,
        adapters=0.0,
        weights=plan.half,
        narrowed="linear",
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
    return _kernels(
        build=lambda p, q: decode_attention(model, p, q[0], q[1]),
        plan=plan,
        own=[many, contexts],
        shared=[plan.tp, in_order(weights)],
        weights=weights,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=False,
    )


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
    return _kernels(
        build=lambda p, q: prefill_attention(model, p, q[0], q[1], q[2]),
        plan=plan,
        own=[sequences, query, past],
        shared=[plan.tp],
        weights=None,
        accelerator=cluster.accelerator,
        calibration=calibration,
        sustained=sustained,
    )


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
    runnable(plan.half, accelerator)
    return plan if own == plan.weights else replace(plan, weights=own)
