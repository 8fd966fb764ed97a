"""Kernels and collectives inside the layers of a step, timed one by one.

They depend on a few fields of a plan alone (`plan.LAYER_FIELDS`), so that plans that differ in the
rest share them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, distinct_rows, filled, flat, varying
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model
from predictor.plans import (
    CATEGORY_FIELDS,
    LAYER_FIELDS,
    NUMERIC_FIELDS,
    TrainingPlan,
    shown_beside,
)
from predictor.records import dataclass, replace
from predictor.timing import (
    Calibration,
    Timing,
    TrainingList,
    training_times_together,
)
from predictor.training.calls import calls
from predictor.training.exchange import KIND, Exchange, Network, Slot
from predictor.work import (
    PASSES,
    Collective,
    Operator,
    captured,
    groups,
    step_collectives,
    step_operators,
)

INSIDE = ("tp", "cp", "ep", "etp", "tables")
"""Groups whose ranks talk inside a layer."""


LAYERS = 12_000
"""Numbers, about, in the layers of a single plan."""


def weight_share(operator: Operator) -> float:
    """Share of a kernel's time that goes into gradients of weights."""
    return 1.0 if operator.variant in ("wgrad", "bias_grad") else 0.0


def kernel_class(operator: Operator, attention: str, architecture: str) -> str:
    """Class of a kernel: those whose time in a step differs from that by itself for one reason.
    Products ('gemm.ARCHITECTURE', for the clock that each sustains), fused attention
    ('attention', 'attention.triton') and those that stream memory ('stream')."""
    if operator.op == "gemm":
        return f"gemm.{architecture}"
    if operator.op.startswith("attention"):
        return "attention.triton" if attention == "triton" else "attention"
    return "stream"


def distinct(
    plan: TrainingPlan, others: Sequence[Array] = ()
) -> tuple[TrainingPlan, npt.NDArray[np.intp]]:
    """Plans with distinct layers, and for every plan the index of its own among them: they differ
    in the fields of layers, in how far apart the ranks lie that talk inside one, in whether there
    is another rank at all, which says what software adds (`environment_of`), in autocast, or in
    weights that come narrow.

    others   what else tells plans apart: numbers of their machines (`arrays.varying`)
    """
    shape = plan.shape
    if not shape:
        return plan, np.zeros((), dtype=np.intp)
    ranks = groups(plan)
    apart = [ranks[name].stride for name in INSIDE]
    # What is one number is the same for all.
    told = [*(getattr(plan, name) for name in LAYER_FIELDS), *apart, plan.lone, plan.autocast]
    told.append(plan.sent_narrow)
    told += others
    columns = [np.broadcast_to(value, shape).ravel() for value in told if np.ndim(value)]
    first, inverse = distinct_rows(columns or [np.zeros(math.prod(shape))])
    return flat(plan, shape, first), inverse.reshape(shape)


AROUND = (
    "pp",
    "dp",
    "global_batch",
    "vpp",
    "dp_shard",
    "first_layers",
    "last_layers",
    "inner_layers",
    "recompute_chunk",
    "loader_rate",
    "handed_rate",
    "pipeline_fill",
    "useful",
)
"""Numbers that say how layers are put together, and of layers no more than `_told_apart`."""


def _told_apart(plan: TrainingPlan) -> Iterator[Hashable]:
    """What tells the layers of single plans apart, as `distinct` does those of a batch."""
    ranks = groups(plan)
    yield bool(plan.lone)
    yield from inner_categories(plan).values()
    numbers = (getattr(plan, name) for name in NUMERIC_FIELDS if name not in AROUND)
    for number in (*numbers, *(ranks[name].stride for name in INSIDE)):
        yield None if number != number else float(number)


def layers_of(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration
) -> tuple[LayerParts, npt.NDArray[np.intp]]:
    """Layers of a plan, or those that are distinct in a batch, and which of them each plan has.
    Single plans whose layers are alike share them, as those of a batch do."""
    if not plan.shape and not varying(cluster):
        of = model, cluster, *_told_apart(plan)
        on = model, cluster, plan, calibration
        return calibration.once(of, lambda: layer_parts(*on), LAYERS), np.zeros((), np.intp)
    machines, base, index = distinct_layers(cluster, plan)
    return layer_parts(model, machines, base, calibration), index


def distinct_layers(
    cluster: Cluster, plan: TrainingPlan
) -> tuple[Cluster, TrainingPlan, npt.NDArray[np.intp]]:
    """The plans of a batch whose layers are distinct, and their machines; which each plan has."""
    base, index = distinct(plan, varying(cluster))
    _, first = np.unique(index, return_index=True)
    return flat(cluster, plan.shape, first), base, index


Layers = tuple["LayerParts", npt.NDArray[np.intp]]
"""Distinct layers of a batch of plans, and which of them each plan has."""


@dataclass(frozen=True, slots=True, eq=False)
class Worklist:
    """Operators of a layer and the ends, timed; arrays of (operators, base shape)."""

    operators: tuple[Operator, ...]
    timing: Timing


def _inside(
    collectives: Iterable[Collective],
    work: Worklist,
    plan: TrainingPlan,
    network: Network,
    chunked: Mapping[str, Array] | None = None,
) -> dict[tuple[Slot, int], Exchange]:
    """Collectives inside a stage, those that the plan has.

    chunked  time of those that overlap with what they serve, by name (`_chunked`)
    """
    places: dict[str, list[int]] = {}
    for index, operator in enumerate(work.operators):
        places.setdefault(operator.name, []).append(index)
    shape, architecture = plan.shape, network.cluster.accelerator.architecture
    found: dict[tuple[Slot, int], Exchange] = {}
    taken: dict[Slot, int] = {}
    for collective in collectives:
        size = np.asarray(network.ranks[collective.group].size)
        if not np.any(np.asarray(collective.count) * (size > 1)):
            continue
        window: Numeric = 0.0
        behind = ""
        if collective.behind == PASSES:
            behind = PASSES
        elif collective.behind:
            at = places[collective.behind]
            window = _mean_time(work, at)
            behind = kernel_class(work.operators[at[0]], plan.attention, architecture)
        kind = KIND.get(collective.group, collective.group)
        slot = Slot(kind, collective.op, collective.module, behind)
        taken[slot] = taken.get(slot, -1) + 1
        one = network.exchange(collective, window, shape)
        if chunked and collective.name in chunked:
            one = replace(one, time=filled(chunked[collective.name], shape))
        found[(slot, taken[slot])] = one
    return found


def _mean_time(work: Worklist, places: list[int]) -> Array:
    """Time of one execution of operators of one name [s]: of their mean, where layers are of
    several kinds."""
    if len(places) == 1:
        return np.asarray(work.timing.time[places[0]])
    times = [np.asarray(work.timing.time[at]) for at in places]
    counts = [np.asarray(work.operators[at].count) for at in places]
    whole = sum(n * t for n, t in zip(counts, times, strict=True))
    return np.asarray(whole / np.maximum(sum(counts), 1e-12))


TRAVEL = {"forward": "", "recompute": ".again", "backward": ".bwd"}
"""What names of dispatches and combines end with, by phase."""

AMONG_EXPERTS = ("moe.up", "moe.down", "moe.activation", "moe.sort", "moe.unsort", "moe.bias")
"""How names of kernels begin that work on what has come to a rank's experts."""


def _by_phase(work: Worklist, shape: tuple[int, ...]) -> dict[str, Array]:
    """Seconds of the experts by phase, of one mixture."""
    found = dict.fromkeys(TRAVEL, np.zeros(shape))
    for position, one in enumerate(work.operators):
        if one.name.startswith(AMONG_EXPERTS):
            found[one.phase] = found[one.phase] + work.timing.time[position] * one.count
    return found


def kernels_listed(
    operators: Sequence[Operator], plan: TrainingPlan, accelerator: Accelerator
) -> TrainingList:
    """Operators of plans on an accelerator, that are to be timed."""
    host = accelerator.host_time(plan.tp)
    return TrainingList(operators, plan.shape, host=host, plain=not plan.fused)


def _timed(
    operators: Sequence[Operator],
    plan: TrainingPlan,
    accelerator: Accelerator,
    calibration: Calibration,
) -> Timing:
    """Times of the operators of plans on an accelerator."""
    listed = kernels_listed(operators, plan, accelerator)
    (found,) = training_times_together([listed], accelerator, calibration)
    return found


def _chunked(
    model: Model,
    work: Worklist,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration,
) -> dict[str, Array]:
    """Where tokens go to their experts in parts: what of dispatch and combine shows, by their
    names, all of it as the dispatch's; of plans that overlap them in no other way.

    Experts and collectives of a part are those of a rank with so much less to do.
    """
    parts = np.asarray(plan.expert_chunks, float)
    if not np.any(parts > 1) or not model.is_moe or plan.ep_overlap:
        return {}
    shape = plan.shape
    small = replace(plan, expert_load=plan.expert_load / parts)
    operators = step_operators(model, small)
    timing = _timed(operators, small, cluster.accelerator, calibration)
    whole, part = (_by_phase(one, shape) for one in (work, Worklist(tuple(operators), timing)))
    network, found = Network.of(small, cluster, calibration), {}
    called = {c.name: c for c in step_collectives(model, small)}
    for phase, end in TRAVEL.items():
        there, back = (called.get(f"moe.{way}{end}") for way in ("dispatch", "combine"))
        if there is None or back is None:
            continue
        travel = sum(network.exchange(c, 0.0, shape).time for c in (there, back))
        found[there.name] = shown_beside(travel, part[phase], whole[phase], parts)
        found[back.name] = np.zeros(shape)
    return found


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Kernels and collectives of layers and ends, as of `Parts`; arrays of base shape. Spreads of
    families are the means of their operators', by how long each lasts in a model."""

    work: dict[tuple[str, str, str], Array]
    weights: dict[tuple[str, str], Array]
    families: dict[tuple[str, str, str], Array]
    launches: dict[str, Array]
    kernels: dict[str, Array]
    hops: dict[str, Array]
    inside: dict[tuple[Slot, int], Exchange]
    sigmas: dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """What of a step depends on `plan.LAYER_FIELDS` and on the categories of its layers alone.

    base    one plan of each distinct set of those fields
    listed  the operators behind it
    """

    base: TrainingPlan
    listed: Worklist
    times: LayerTimes


STEP_CATEGORIES = (
    "sharding",
    "schedule",
    "split",
    "grad_overlap",
    "param_overlap",
    "p2p_overlap",
    "reshard",
    "reduce_last",
    "flat_copies",
    "sums_apart",
    "grad_clip",
    "optimizer",
    "update_early",
)
"""Categories of a plan that change nothing inside a layer, but for autocast."""


def inner_categories(plan: TrainingPlan) -> dict[str, Hashable]:
    """Categories on which the layers of a plan depend, or of a batch; and whether any is under
    autocast, which its sharding, its framework and the bytes of its weights say together, or has
    weights that come narrow, which its sharding and the bytes gathered say."""
    found = {name: getattr(plan, name) for name in CATEGORY_FIELDS if name not in STEP_CATEGORIES}
    both = {name: bool(getattr(plan, name).any()) for name in ("autocast", "sent_narrow")}
    return {**found, **both}


COLLECTIVE_CATEGORIES = ("rank_order", "tp_overlap", "tp_async_backward", "ep_overlap")
"""Categories that change a layer's collectives alone, none of its kernels."""


ENDS = ("embedding", "head")
"""Modules that a model has once."""


def _hops(
    inside: dict[tuple[Slot, int], Exchange], none: dict[str, Array], base: TrainingPlan
) -> dict[str, Array]:
    """Steps of the tensor-parallel rings by module."""
    hops = dict(none)
    for (slot, _), exchange in inside.items():
        if slot.kind == "tp":
            rounds = 2.0 if slot.op == "allreduce" else 1.0
            hops[slot.place] = hops[slot.place] + rounds * exchange.count * (base.tp - 1.0)
    return hops


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class LayerKernels:
    """Kernels of layers and ends, timed and added up: the same for plans that differ in
    `COLLECTIVE_CATEGORIES` alone.

    network   under the ranks of `base`
    the rest  as of `LayerTimes`
    """

    base: TrainingPlan
    listed: Worklist
    network: Network
    work: dict[tuple[str, str, str], Array]
    weights: dict[tuple[str, str], Array]
    families: dict[tuple[str, str, str], Array]
    launches: dict[str, Array]
    kernels: dict[str, Array]
    sigmas: dict[str, Array]


def layer_kernels(
    model: Model,
    cluster: Cluster,
    base: TrainingPlan,
    calibration: Calibration,
    timing: Timing | None = None,
    operators: Sequence[Operator] = (),
) -> LayerKernels:
    """Time the kernels of layers and ends of plans; arguments as of `layer_parts`, and operators
    where they are known."""
    operators = operators or step_operators(model, base)
    accelerator, shape = cluster.accelerator, base.shape
    if timing is None:
        timing = _timed(operators, base, accelerator, calibration)
    classes = [kernel_class(one, base.attention, accelerator.architecture) for one in operators]
    modules = [one.module for one in operators]
    places = list(zip(operators, classes, timing.family, strict=True))
    work = _Sums([(one.module, one.phase, own) for one, own, _ in places], shape)
    families = _Sums([(one.module, family, own) for one, own, family in places], shape)
    late = [(one.module, own) for one, own, _ in places if weight_share(one)]
    weights = _Sums(late, shape)
    spent, doubts = _Sums(timing.family, shape), _Sums(timing.family, shape)
    launches, kernels = _Sums(modules, shape), _Sums(modules, shape)
    for position, (operator, own, family) in enumerate(places):
        time = filled(timing.time[position] * operator.count, shape)
        work.add((operator.module, operator.phase, own), time)
        families.add((operator.module, family, own), time)
        if share := weight_share(operator):
            weights.add((operator.module, own), share * time)
        often = time * (1.0 if operator.module in ENDS else model.layers)
        spent.add(family, often)
        doubts.add(family, often * timing.sigma[position])
        alone = 0.0 if captured(operator, base.captured) else 1.0
        launches.add(operator.module, alone * calls(operator, base) * operator.count)
        more = operator.kernels - 1.0
        if np.ndim(more) or more:
            kernels.add(operator.module, alone * operator.count * more)
    return LayerKernels(
        base=base,
        listed=Worklist(tuple(operators), timing),
        network=Network.of(base, cluster, calibration),
        work=work.whole(),
        weights=weights.whole(),
        families=families.whole(),
        launches=launches.whole(),
        kernels=kernels.whole(),
        sigmas=doubts.over(spent),
    )


class _Sums(Generic[K]):
    """Sums over operators by key, in the order in which they are added."""

    def __init__(self, keys: Iterable[K], shape: tuple[int, ...]) -> None:
        self.places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self.table = np.zeros((len(self.places), *shape))

    def add(self, key: K, value: Numeric) -> None:
        """Add to the sum of a key."""
        self.table[self.places[key]] += value

    def whole(self) -> dict[K, Array]:
        """All sums."""
        return {key: self.table[place, ...] for key, place in self.places.items()}

    def over(self, other: _Sums[K]) -> dict[K, Array]:
        """All sums over those of another one of the same keys."""
        ratio = self.table / np.maximum(other.table, 1e-30)
        return {key: ratio[place, ...] for key, place in self.places.items()}


def layer_parts(
    model: Model,
    cluster: Cluster,
    base: TrainingPlan,
    calibration: Calibration,
    timing: Timing | None = None,
    known: LayerKernels | None = None,
) -> LayerParts:
    """Time the layers and ends of plans, kernel by kernel and collective by collective.

    cluster  one, or one for each plan of the batch
    base     a plan, or a batch that differs in `plan.LAYER_FIELDS` or machines (`distinct`)
    timing   of the kernels, where it is known
    known    the kernels, where they are known from plans that differ in `COLLECTIVE_CATEGORIES`
             alone, but for `rank_order`
    """
    at = known or layer_kernels(model, cluster, base, calibration, timing)
    chunked = _chunked(model, at.listed, base, cluster, calibration)
    called = step_collectives(model, base)
    inside = _inside(called, at.listed, base, at.network, chunked)
    none = dict.fromkeys(at.launches, np.zeros(base.shape))
    times = LayerTimes(
        work=at.work,
        weights=at.weights,
        families=at.families,
        launches=at.launches,
        kernels=at.kernels,
        hops=_hops(inside, none, base),
        inside=inside,
        sigmas=at.sigmas,
    )
    return LayerParts(base, at.listed, times)
