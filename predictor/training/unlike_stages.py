"""Pipelines whose stages are on different accelerators: layers dealt so that nobody waits for long.

Every stage is the one that a pipeline of its own accelerators alone would have, with as many layers
as it is dealt (`partition`); the schedule is then played with their times event by event, over
links as slow as the slower of two systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from itertools import accumulate, pairwise

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import MEMORY_FRACTION, Memory, memory
from predictor.models import Model
from predictor.plans import LINE, TrainingPlan, partition, timeline
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.training.dealt import Dealt, Share, named, together, told
from predictor.training.decomposition import COMPUTE_TERMS, parts
from predictor.training.prediction import TrainingPrediction, predict
from predictor.training.software import environment_of
from predictor.training.step import Step, assemble
from predictor.training.towers import Seen, TowerLayer, tower_layer
from predictor.training.unlike import Kinds

EASED = (0.0, 0.25, 0.5, 0.75)
"""Shares of its layers that a stage may compute again where it need not do so with all of them."""

ACTIVE, STATES = "activations", "layer weights and optimizer"
"""Classes of memory: that differs along a pipeline, as more micro-batches are in flight; of
layers."""


def by_stage(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    seen: Seen | None = None,
    links: Sequence[Cluster] = (),
    slower: Sequence[float] = (),
    eased: bool = False,
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose stages are on several systems, `plan.pp` in all, hold a second tower, or
    compute again no more than their memory asks for.

    seen   images of a sequence; None: text alone
    slower  how much longer each stage computes than its system would; none: no longer
    links  systems joined as each kind and the next are; none: as the slower of both is in itself
    eased  whether stages compute again as few of their layers as they have room for

    Raises InputError for pipelines that fold or interleave, and for documents packed unevenly.
    """
    if plan.pipeline.fold != LINE or float(plan.vpp) > 1 or float(plan.attention_cv) > 0:
        raise InputError(
            "stage_systems, stage_recompute, images and split heat are of plain pipelines (1f1b, "
            "gpipe, zb-h1; vpp 1) of even micro-batches"
        )
    line = _line(model, kinds, plan, calibration, seen, links, slower)
    even = line.total(line.even())[0]
    if eased:
        shares = (one for one in EASED if one < plan.recompute_share)
        plans = [
            replace(plan, recompute_share=np.asarray(one), recompute="full" if one else "none")
            for one in shares
        ]
        easier = [_line(model, kinds, one, calibration, seen, links, slower) for one in plans]
        line, counts = _easiest([*easier, line])
        return line.prediction(counts, even, 0.0, calibration)
    counts = _dealt(line)
    cool = counts if not slower else _dealt(replace(line, slower=[1.0] * line.stages))
    return line.prediction(counts, even, line.total(cool)[0], calibration)


def _line(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    seen: Seen | None,
    links: Sequence[Cluster],
    slower: Sequence[float],
) -> _Line:
    """Stages of a plan in their order; arguments as of `by_stage`."""
    tables: dict[tuple[object, ...], _Table] = {}
    for one, _ in kinds:
        if _alike(one) not in tables:
            tables[_alike(one)] = _table(model, one, plan, calibration)
    clusters = [cluster for cluster, many in kinds for _ in range(many)]
    tower = [tower_layer(model, one, plan, calibration, seen) for one in clusters] if seen else []
    rows = [tables[_alike(one)] for one in clusters]
    hops = _hops(model, kinds, plan, calibration, links)
    paces = list(slower) or [1.0] * len(clusters)
    return _Line(plan, clusters, rows, tower, model.layers, hops, paces)


def _easiest(lines: list[_Line]) -> tuple[_Line, list[int]]:
    """Stages that compute again as few layers as each has room for, and the deal of layers with
    which the step is shortest then.

    lines   the same stages, each time with more computed again; the last as stated

    A stage's memory is its own, so that the best choice for each is the best for all: the exact
    partition of the least times (OmniBal, arXiv 2407.20761, gives recomputation back by rounds).
    """
    last = lines[-1]
    rooms = [*([MEMORY_FRACTION] * (len(lines) - 1)), 1.0]
    times = [one.remembered(room) for one, room in zip(lines, rooms, strict=True)]

    def least(stage: int, begin: int, end: int) -> float:
        return min(time(stage, begin, end) for time in times)

    def chosen(counts: list[int]) -> _Line:
        ends = list(accumulate(counts))
        best = []
        for stage, (end, many) in enumerate(zip(ends, counts, strict=True)):
            own = [time(stage, end - many, end) for time in times]
            best.append(lines[int(np.argmin(own))] if np.isfinite(min(own)) else last)
        return replace(
            last,
            tables=[one.tables[stage] for stage, one in enumerate(best)],
            tower=[one.tower[stage] for stage, one in enumerate(best)] if last.tower else [],
            again=[float(one.plan.recompute_share) for one in best],
        )

    try:
        counts = partition(least, last.items, last.stages)
    except InputError:  # told as what it needs, like any plan that does not fit
        counts = _dealt(last)
    deals = [(chosen(one), one) for one in (counts, last.even())]
    return min(deals, key=lambda deal: (not deal[0].fits(deal[1]), deal[0].total(deal[1])[0]))


def _dealt(line: _Line) -> list[int]:
    """Layers of each stage with which the step is shortest."""
    try:
        counts = partition(line.remembered(), line.items, line.stages)
    except InputError:  # told as what it needs, like any plan that does not fit
        counts = partition(line.time, line.items, line.stages)
    return _unless_better(line, counts, line.even())


def _alike(cluster: Cluster) -> tuple[object, ...]:
    """What two systems share whose stages take as long and hold as much."""
    links = tuple(tuple(getattr(tier, one.name) for one in fields(tier)) for tier in cluster.tiers)
    host = cluster.accelerators_per_node, cluster.host_memory
    return id(cluster.accelerator), *host, links


def _hops(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    links: Sequence[Cluster],
) -> dict[int, tuple[float, float]]:
    """Transfer and latency from the last stage on each kind of system to the next [s]."""
    found, last = {}, -1
    for (_, many), link in zip(kinds, links, strict=False):
        last += many
        of = predict(model, link, plan, calibration).passes
        found[last] = float(np.max(of.transfer)), float(np.max(of.latency))
    return found


def _unless_better(line: _Line, counts: list[int], even: list[int]) -> list[int]:
    """The even deal where links or the ends of a step make it the faster one, and it fits."""
    if not line.fits(even):
        return counts
    return min((counts, even), key=lambda one: line.total(one)[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Stages of one system with 1, 2, ... layers; arrays of `shape`: first, inner, last."""

    step: Step
    memory: Memory
    prediction: TrainingPrediction
    factor: float
    loading: float
    shape: tuple[int, ...]


def _table(model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration) -> _Table:
    counts = np.arange(1.0, model.layers + 1.0)
    wide = replace(plan, first_layers=counts, last_layers=counts, inner_layers=counts)
    found, _ = parts(model, cluster, wide, calibration)
    using = environment_of(cluster, plan, calibration.run)
    step = assemble(found, calibration.run, using)
    passes = step.passes
    return _Table(
        step=step,
        shape=np.shape(passes.forward + passes.backward + passes.weights),
        memory=memory(model, wide, calibration.run),
        prediction=predict(model, cluster, plan, calibration),
        factor=float(using.factor),
        loading=float(found.loading.flat[0]),
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """What a stage holds: layers of the second tower, of the language model, and its ends."""

    tower: int
    layers: int
    embeds: bool
    heads: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Stages in their order, each with the table of its system.

    tower   a layer of the second tower on each stage; empty without one
    layers  of the language model
    crossings  transfer and latency behind stages after which a link of its own comes
    slower  how much longer each computes
    again   share of its layers that each computes again; empty: as the plan says
    """

    plan: TrainingPlan
    clusters: list[Cluster]
    tables: list[_Table]
    tower: list[TowerLayer]
    layers: int
    crossings: dict[int, tuple[float, float]]
    slower: list[float]
    again: list[float] = field(default_factory=list)
    _totals: dict[tuple[int, ...], tuple[float, float, float]] = field(
        default_factory=dict, init=False
    )

    @property
    def before(self) -> int:
        """Layers of the second tower, which come first."""
        return self.tower[0].many if self.tower else 0

    @property
    def items(self) -> int:
        """Layers of both towers."""
        return self.before + self.layers

    def even(self) -> list[int]:
        """The language model's layers dealt evenly, the tower with the first of them (Megatron
        Core's encoder on the first stage)."""
        counts = partition(lambda stage, begin, end: float(end - begin), self.layers, self.stages)
        return [counts[0] + self.before, *counts[1:]]

    @property
    def stages(self) -> int:
        """Stages."""
        return len(self.tables)

    def _held(self, begin: int, end: int) -> _Held:
        tower = max(min(end, self.before) - begin, 0)
        layers = end - begin - tower
        return _Held(tower, layers, layers > 0 and begin <= self.before, end == self.items)

    def spans(self, counts: list[int]) -> list[_Held]:
        """What each stage holds of so many items each."""
        ends = list(accumulate(counts))
        return [self._held(end - many, end) for end, many in zip(ends, counts, strict=True)]

    def _of(self, value: Array, stage: int, own: _Held) -> float:
        """A figure of the language model's part of a stage, of a table's (3, layers)."""
        if not own.layers:
            return 0.0
        whole, shape = value, self.tables[stage].shape
        if np.shape(value) != shape:
            whole = np.broadcast_to(value, shape)
        first, inner, last = (float(one) for one in whole[:, own.layers - 1])
        if self.stages == 1:
            return last  # of one stage in all, which has both ends
        if own.embeds and own.heads:
            return first + last - inner
        return first if own.embeds else last if own.heads else inner

    def time(self, stage: int, begin: int, end: int) -> float:
        """Of one micro-batch [s]."""
        return sum(one[stage] for one in self._passes([(stage, self._held(begin, end))]))

    def holding(self, stage: int, begin: int, end: int, room: float = 1.0) -> float:
        """The same; inf where so much of the stage's memory does not hold so many layers."""
        own = self._held(begin, end)
        if sum(self.classes(stage, own).values()) > room * self.capacity()[stage]:
            return np.inf
        return self.time(stage, begin, end)

    def fits(self, counts: list[int]) -> bool:
        """Whether every stage holds what it is dealt."""
        return all(
            held <= most for held, most in zip(self.held(counts), self.capacity(), strict=True)
        )

    def remembered(self, room: float = 1.0) -> Callable[[int, int, int], float]:
        """`holding`, looked up where the same stage held as much before."""
        known: dict[tuple[int, _Held], float] = {}

        def found(stage: int, begin: int, end: int) -> float:
            own = stage, self._held(begin, end)
            if own not in known:
                known[own] = self.holding(stage, begin, end, room)
            return known[own]

        return found

    def capacity(self) -> list[float]:
        """Memory of each stage's accelerator [bytes]."""
        return [float(np.asarray(one.accelerator.memory)) for one in self.clusters]

    def classes(self, stage: int, own: _Held) -> dict[str, float]:
        """Memory of a stage by class [bytes], with the micro-batches that are in flight there."""
        table, plan = self.tables[stage].memory, self.plan
        p, m = float(plan.pp), plan.filled
        found = {name: self._of(value, stage, own) for name, value in table.classes.items()}
        found["context"] = float(table.classes["context"].flat[0])
        flying = float(plan.pipeline.held(np.asarray(p - stage), p, m, 1.0))
        # The table has a first stage's, an inner one's behind it, and a last one's.
        at = 0.0 if own.embeds and self.stages > 1 else p - 1.0 if own.heads else 1.0
        listed = float(plan.pipeline.held(np.asarray(p - at), p, m, 1.0))
        lost = float(np.max(table.classes["fragmentation"])) / max(
            float(np.max(together(table.classes))), 1e-30
        )
        found[ACTIVE] *= flying / max(listed, 1e-30)
        if own.tower:
            found[STATES] += own.tower * self.tower[stage].state
            found[ACTIVE] += own.tower * flying * self.tower[stage].activations
        whole = sum(found.values()) - found["fragmentation"] - found["context"]
        found["fragmentation"] = lost * whole
        return found

    def held(self, counts: list[int]) -> list[float]:
        """Memory of each stage [bytes]."""
        return [sum(self.classes(s, own).values()) for s, own in enumerate(self.spans(counts))]

    def passes(self, counts: list[int]) -> tuple[list[float], list[float], list[float]]:
        """Passes of every stage [s]."""
        found = self._passes(list(enumerate(self.spans(counts))))
        one, two, three = ([each[s] for s in range(self.stages)] for each in found)
        return one, two, three

    def _passes(self, chosen: list[tuple[int, _Held]]) -> list[dict[int, float]]:
        paces = {stage: self._pace(stage, own) for stage, own in chosen}
        found = []
        for number, name in enumerate(("forward", "backward", "weights")):
            every = {}
            for stage, own in chosen:
                value: Array = getattr(self.tables[stage].step.passes, name)
                more = own.tower * self.tower[stage].passes[number] if own.tower else 0.0
                every[stage] = paces[stage] * (self._of(value, stage, own) + more)
            found.append(every)
        return found

    def hops(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Transfer and latency between each stage and the next, those of the slower side [s]."""
        found = []
        for name in ("transfer", "latency"):
            own = [float(np.max(getattr(one.step.passes, name))) for one in self.tables]
            found.append([max(pair) for pair in pairwise(own)])
        for stage, hop in self.crossings.items():
            found[0][stage], found[1][stage] = hop
        return tuple(found[0]), tuple(found[1])

    def _terms(self, stage: int, own: _Held, of: str) -> dict[str, float]:
        """Figures by term: `terms` and `attention` of a micro-batch, or `ends` of a step."""
        values: dict[str, Array] = getattr(self.tables[stage].step, of)
        found = {name: self._of(value, stage, own) for name, value in values.items()}
        if own.tower:
            for name, value in getattr(self.tower[stage], of).items():
                found[name] += own.tower * value
        if of != "ends":
            found |= {name: self.slower[stage] * found[name] for name in COMPUTE_TERMS}
        return found

    def _pace(self, stage: int, own: _Held) -> float:
        """How much longer its passes take, of which collectives are as long as ever."""
        if self.slower[stage] == 1.0:
            return 1.0
        terms = self._terms(stage, own, "terms")
        whole, slowed = sum(terms.values()), sum(terms[name] for name in COMPUTE_TERMS)
        return whole / (whole - slowed + slowed / self.slower[stage])

    def ends(self, counts: list[int]) -> dict[str, float]:
        """Reduction of gradients and update, of the stage that takes longest with both [s]."""
        every = [self._terms(s, own, "ends") for s, own in enumerate(self.spans(counts))]
        return max(every, key=lambda one: sum(one.values()))

    def once(self) -> float:
        """What hosts do once a step [s]."""
        return max(float(np.max(table.step.once)) for table in self.tables)

    def total(self, counts: list[int]) -> tuple[float, float, float]:
        """The step before loading; its pipeline without links; what links add [s]. Played once."""
        if (played := tuple(counts)) not in self._totals:
            self._totals[played] = self._total(counts)
        return self._totals[played]

    def _total(self, counts: list[int]) -> tuple[float, float, float]:
        passes, m, fills = self.passes(counts), int(self.plan.micro_batches), int(self.plan.fills)
        busy = timeline(self.plan.schedule, *passes, m, fills=fills)[-1].end
        waits = timeline(self.plan.schedule, *passes, m, 1, *self.hops(), fills)[-1].end - busy
        ends = sum(self.ends(counts).values()) + self.once()
        # No software slows a link (`step.assemble`).
        return self.tables[0].factor * (busy + ends) + waits, busy, waits

    def breakdown(self, counts: list[int], slowest: int) -> dict[str, float]:
        """Seconds by term; they add up to the step."""
        m, own = float(self.plan.micro_batches), self.spans(counts)[slowest]
        found = {name: m * value for name, value in self._terms(slowest, own, "terms").items()}
        whole, busy, waits = self.total(counts)
        found["bubble"] = busy - sum(found.values())
        found["pp_communication"] += waits
        ends, longer = self.ends(counts), self.tables[slowest].factor - 1.0
        found |= ends
        found["host"] += self.once()
        for name, value in self._terms(slowest, own, "attention").items():
            found[name] += longer * m * value
        found["optimizer"] += longer * ends["optimizer"]
        found["host"] += longer * self.once()
        found["framework"] = whole - sum(found.values())
        found["data_loading"] = max(self.tables[slowest].loading - whole, 0.0)
        return found

    def shares(self, counts: list[int]) -> tuple[Share, ...]:
        """What every stage is dealt."""
        m, passes = int(self.plan.micro_batches), self.passes(counts)
        found = []
        for stage, own in enumerate(self.spans(counts)):
            cluster, terms = self.clusters[stage], self._terms(stage, own, "terms")
            found.append(
                Share(
                    system=cluster.name,
                    accelerator=cluster.accelerator.name,
                    many=1,
                    layers=own.layers,
                    micro_batches=m,
                    time=m * sum(each[stage] for each in passes),
                    memory=sum(self.classes(stage, own).values()),
                    capacity=self.capacity()[stage],
                    binds=max(terms, key=lambda name: terms[name]),
                    tower=own.tower,
                    again=self.again[stage] if self.again else np.nan,
                )
            )
        return tuple(found)

    def prediction(
        self, counts: list[int], even: float, cool: float, calibration: Calibration
    ) -> tuple[TrainingPrediction, Dealt]:
        """The whole step with layers as they are dealt; beside it one with an even deal, and one
        where no place is hot, before loading [s]."""
        shares = self.shares(counts)
        slowest = max(range(len(shares)), key=lambda stage: shares[stage].time)
        terms = self.breakdown(counts, slowest)
        tight = max(range(len(shares)), key=lambda s: shares[s].memory / shares[s].capacity)
        m, spans = float(self.plan.micro_batches), self.spans(counts)
        encoding = sum(
            m * own.tower * sum(self.tower[stage].passes)
            for stage, own in enumerate(spans)
            if own.tower
        )
        dealt = Dealt(
            by="stage",
            shares=shares,
            slowest=slowest,
            even=even + terms["data_loading"],
            cool=cool + terms["data_loading"],
            passes=self.passes(counts),
            hops=self.hops(),
            towers=encoding / sum(one.time for one in shares),
        )
        found = told(
            self.tables[slowest].prediction,
            replace(self.clusters[tight], name=named(self.clusters)),
            terms,
            self._memory(tight, spans[tight]),
            [(one, float(self.plan.tp * self.plan.cp * self.plan.dp)) for one in self.clusters],
            calibration,
        )
        return found, dealt

    def _memory(self, stage: int, held: _Held) -> Memory:
        """Memory of one stage, as that of the kind that it is."""
        kind, own = 0 if stage == 0 else 2 if held.heads else 1, self.classes(stage, held)
        present = np.arange(3) == kind
        classes = {name: np.where(present, value, 0.0) for name, value in own.items()}
        peak = np.asarray(sum(own.values()))
        reserved = peak - own["context"]
        tensors = reserved - own["fragmentation"]
        return Memory(classes, present, peak, reserved, tensors, np.zeros(()))
