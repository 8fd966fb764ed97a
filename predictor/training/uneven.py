"""Pipelines whose stages are on different accelerators, and replicas that are: layers dealt to
stages, micro-batches to replicas, so that nobody waits longer than need be.

Every stage is the one that a pipeline of its own accelerators alone would have, with as many layers
as it is dealt (`partition`); the schedule is then played with their times event by event, over
links as slow as the slower of two systems. Replicas are those of their own accelerators, and take
micro-batches until all end together (Ryabinin et al. 2023, SWARM, section 3.2, and Tang et al.
2023, FusionAI, deal work to unlike machines by speed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import Memory, memory
from predictor.models import Model
from predictor.plans import LINE, Event, TrainingPlan, partition, timeline
from predictor.timing import Calibration
from predictor.training.completion import TrainingRequest
from predictor.training.decomposition import parts
from predictor.training.prediction import TrainingPrediction, environment_of, predict
from predictor.training.regions import Regions
from predictor.training.step import Step, assemble
from predictor.training.towers import Seen, TowerLayer, tower_layer
from predictor.training.unlike import Kinds
from predictor.units import GB

ACTIVE, STATES = "activations", "layer weights and optimizer"
"""Classes of memory: that differs along a pipeline, as more micro-batches are in flight; of
layers."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one stage, or one replica, is dealt.

    system, accelerator   on which it is
    many      such replicas; 1 of stages
    layers, micro_batches   of the stage; of the replica
    tower     layers of the second tower on the stage
    time      that it works in a step [s]
    memory    of its fullest device, and of the accelerator [bytes]
    binds     the longest term of its time
    """

    system: str
    accelerator: str
    many: int
    layers: int
    micro_batches: int
    time: float
    memory: float
    capacity: float
    binds: str
    tower: int = 0


@dataclass(frozen=True, slots=True)
class Dealt:
    """A step of unlike accelerators.

    by       'stage' or 'replica'
    shares   of each stage, or of replicas that are alike
    slowest  position of the one that the others wait for
    even     the step where layers, or micro-batches, are dealt evenly [s]; inf where that fits
             nowhere
    passes   forward and backward passes, and weights' gradients, of every stage [s]
    hops     transfer and latency between each stage and the next [s]
    towers   share of the work of all stages that is the second tower's; 0 without one
    """

    by: str
    shares: tuple[Share, ...]
    slowest: int
    even: float
    passes: tuple[list[float], list[float], list[float]] = ((), (), ())  # type: ignore[assignment]
    hops: tuple[tuple[float, ...], tuple[float, ...]] = field(default=((), ()))
    towers: float = 0.0

    def timeline(self, plan: TrainingPlan) -> list[Event]:
        """The pipeline event by event, before the framework's factor.

        Raises InputError of replicas, whose pipelines differ.
        """
        if self.by != "stage":
            raise InputError("a timeline is of one pipeline; replicas on several systems have many")
        return timeline(plan.schedule, *self.passes, int(plan.micro_batches), 1, *self.hops)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it; every key carries its unit."""
        return {
            "by": self.by,
            "slowest": self.slowest,
            "even_step_time_s": self.even,
            **({"tower_time_share": self.towers} if self.towers else {}),
            "shares": [
                {
                    "system": one.system,
                    "accelerator": one.accelerator,
                    "many": one.many,
                    "layers": one.layers,
                    **({"tower_layers": one.tower} if self.towers else {}),
                    "micro_batches": one.micro_batches,
                    "time_s": one.time,
                    "memory_gb": one.memory / GB,
                    "capacity_gb": one.capacity / GB,
                    "binds": one.binds,
                }
                for one in self.shares
            ],
        }


def by_stage(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    seen: Seen | None = None,
    links: Sequence[Cluster] = (),
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose stages are on several systems, `plan.pp` in all, or hold a second tower.

    seen   images of a sequence; None: text alone
    links  systems joined as each kind and the next are; none: as the slower of both is in itself

    Raises InputError for pipelines that fold or interleave, and for documents packed unevenly.
    """
    if plan.pipeline.fold != LINE or float(plan.vpp) > 1 or float(plan.attention_cv) > 0:
        raise InputError(
            "stage_systems and images are of plain pipelines (1f1b, gpipe, zb-h1; vpp 1) of even "
            "micro-batches"
        )
    tables = {id(one): _table(model, one, plan, calibration) for one, _ in kinds}
    clusters = [cluster for cluster, many in kinds for _ in range(many)]
    tower = [tower_layer(model, one, plan, calibration, seen) for one in clusters] if seen else []
    rows = [tables[id(one)] for one in clusters]
    line = _Line(
        plan, clusters, rows, tower, model.layers, _hops(model, kinds, plan, calibration, links)
    )
    even = line.even()
    try:
        counts = partition(line.holding, line.items, len(clusters))
    except InputError:  # told as what it needs, like any plan that does not fit
        counts = partition(line.time, line.items, len(clusters))
    counts = _unless_better(line, counts, even)
    return line.prediction(counts, even, calibration)


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
    if any(held > most for held, most in zip(line.held(even), line.capacity(), strict=True)):
        return counts
    return min((counts, even), key=lambda one: line.total(one)[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Stages of one system with 1, 2, ... layers; arrays (3, layers): first, inner, last."""

    step: Step
    memory: Memory
    prediction: TrainingPrediction
    factor: float
    loading: float

    @property
    def stage(self) -> Array:
        """Time of one micro-batch [s]."""
        of = self.step.passes
        return np.asarray(of.forward + of.backward + of.weights)


def _table(model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration) -> _Table:
    counts = np.arange(1.0, model.layers + 1.0)
    wide = replace(plan, first_layers=counts, last_layers=counts, inner_layers=counts)
    found, _ = parts(model, cluster, wide, calibration)
    using = environment_of(cluster, plan, calibration.run)
    return _Table(
        step=assemble(found, calibration.run, using),
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
    """

    plan: TrainingPlan
    clusters: list[Cluster]
    tables: list[_Table]
    tower: list[TowerLayer]
    layers: int
    crossings: dict[int, tuple[float, float]]

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
        whole = np.broadcast_to(value, self.tables[stage].stage.shape)
        if not own.layers:
            return 0.0
        first, inner, last = (float(one) for one in whole[:, own.layers - 1])
        if self.stages == 1:
            return last  # of one stage in all, which has both ends
        if own.embeds and own.heads:
            return first + last - inner
        return first if own.embeds else last if own.heads else inner

    def time(self, stage: int, begin: int, end: int) -> float:
        """Of one micro-batch [s]."""
        return sum(one[stage] for one in self._passes([(stage, self._held(begin, end))]))

    def holding(self, stage: int, begin: int, end: int) -> float:
        """The same; inf where the stage does not hold so many layers."""
        own = self._held(begin, end)
        if sum(self.classes(stage, own).values()) > self.capacity()[stage]:
            return np.inf
        return self.time(stage, begin, end)

    def capacity(self) -> list[float]:
        """Memory of each stage's accelerator [bytes]."""
        return [float(np.asarray(one.accelerator.memory)) for one in self.clusters]

    def classes(self, stage: int, own: _Held) -> dict[str, float]:
        """Memory of a stage by class [bytes], with the micro-batches that are in flight there."""
        table, plan = self.tables[stage].memory, self.plan
        p, m = float(plan.pp), plan.micro_batches
        found = {name: self._of(value, stage, own) for name, value in table.classes.items()}
        found["context"] = float(table.classes["context"].flat[0])
        flying = float(plan.pipeline.held(np.asarray(p - stage), p, m, 1.0))
        # The table has a first stage's, an inner one's behind it, and a last one's.
        at = 0.0 if own.embeds and self.stages > 1 else p - 1.0 if own.heads else 1.0
        listed = float(plan.pipeline.held(np.asarray(p - at), p, m, 1.0))
        lost = float(np.max(table.classes["fragmentation"])) / max(
            float(np.max(_together(table.classes))), 1e-30
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
        found = []
        for number, name in enumerate(("forward", "backward", "weights")):
            every = {}
            for stage, own in chosen:
                value: Array = getattr(self.tables[stage].step.passes, name)
                more = own.tower * self.tower[stage].passes[number] if own.tower else 0.0
                every[stage] = self._of(value, stage, own) + more
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
        """Figures of a stage by term: `terms` of a micro-batch, or `ends` of a step."""
        values: dict[str, Array] = getattr(self.tables[stage].step, of)
        found = {name: self._of(value, stage, own) for name, value in values.items()}
        if own.tower:
            for name, value in getattr(self.tower[stage], of).items():
                found[name] += own.tower * value
        return found

    def ends(self, counts: list[int]) -> dict[str, float]:
        """Reduction of gradients and update, of the stage that takes longest with both [s]."""
        every = [self._terms(s, own, "ends") for s, own in enumerate(self.spans(counts))]
        return max(every, key=lambda one: sum(one.values()))

    def total(self, counts: list[int]) -> tuple[float, float, float]:
        """The step before loading; its pipeline without links; what links add [s]."""
        passes, m = self.passes(counts), int(self.plan.micro_batches)
        busy = timeline(self.plan.schedule, *passes, m)[-1].end
        waits = timeline(self.plan.schedule, *passes, m, 1, *self.hops())[-1].end - busy
        ends = sum(self.ends(counts).values())
        # No software slows a link (`step.assemble`).
        return self.tables[0].factor * (busy + ends) + waits, busy, waits

    def breakdown(self, counts: list[int], slowest: int) -> dict[str, float]:
        """Seconds by term; they add up to the step."""
        m, own = float(self.plan.micro_batches), self.spans(counts)[slowest]
        found = {name: m * value for name, value in self._terms(slowest, own, "terms").items()}
        whole, busy, waits = self.total(counts)
        found["bubble"] = busy - sum(found.values())
        found["pp_communication"] += waits
        found |= self.ends(counts)
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
                )
            )
        return tuple(found)

    def prediction(
        self, counts: list[int], even: list[int], calibration: Calibration
    ) -> tuple[TrainingPrediction, Dealt]:
        """The whole step with layers as they are dealt."""
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
            even=self.total(even)[0] + terms["data_loading"],
            passes=self.passes(counts),
            hops=self.hops(),
            towers=encoding / sum(one.time for one in shares),
        )
        found = _told(
            self.tables[slowest].prediction,
            replace(self.clusters[tight], name=_named(self.clusters)),
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
        return Memory(classes, present, peak, peak - own["context"], np.zeros(()))


def _together(classes: dict[str, Array]) -> Array:
    """All that the allocator may lose a part of [bytes]."""
    apart = ("fragmentation", "context")
    return sum((v for name, v in classes.items() if name not in apart), np.zeros(()))


def _named(clusters: Sequence[Cluster]) -> str:
    return " + ".join(dict.fromkeys(one.name for one in clusters))


def _told(
    base: TrainingPrediction,
    cluster: Cluster,
    terms: dict[str, float],
    need: Memory,
    devices: Sequence[tuple[Cluster, float]],
    calibration: Calibration,
) -> TrainingPrediction:
    """A prediction as that of one system, with the step of several.

    devices   accelerators of each system, for the peak of which a step uses a part
    """
    step = np.asarray(sum(terms.values()))
    reach = np.exp(calibration.interval_q * base.sigma)
    linear = base.plan.recipe.peak
    peaks = np.array([float(np.asarray(c.accelerator.peak_for(linear))) for c, _ in devices])
    weights = np.array([many for _, many in devices])
    return replace(
        base,
        cluster=cluster,
        step_time=step,
        low=step / reach,
        high=step * reach,
        breakdown={name: np.asarray(value) for name, value in terms.items()},
        memory=need,
        p_oom=need.probability_over(cluster.accelerator.memory, calibration.run.memory_sigma),
        peak=float((peaks * weights).sum() / weights.sum()),
    )


def by_replica(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    far: Cluster | None = None,
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose replicas are on several systems, `plan.dp` in all.

    far   the system over whose links gradients are reduced; None: each system's own

    All reduce their gradients as fast as the slowest network of them does, and end together.
    """
    whole = round(float(plan.global_batch / plan.micro_batch))
    replicas = int(plan.dp)
    if whole < replicas:
        raise InputError(f"{whole} micro-batches are fewer than the {replicas} replicas")
    counts = np.arange(1.0, whole - replicas + 2.0)
    wide = replace(plan, global_batch=counts * plan.dp * plan.micro_batch)
    found = [predict(model, cluster, wide, calibration) for cluster, _ in kinds]
    ends = [f.breakdown["dp_communication"] + f.breakdown["optimizer"] for f in found]
    own = [np.asarray(f.step_time - e) for f, e in zip(found, ends, strict=True)]
    reduced = found if far is None else [predict(model, far, wide, calibration)]
    ends = [f.breakdown["dp_communication"] + f.breakdown["optimizer"] for f in reduced]
    many = [count for _, count in kinds]
    dealt = _dealt(own, many, whole)
    even = np.ceil(whole / replicas)

    def step(each: Sequence[float]) -> float:
        pace = max(float(own[k][int(n) - 1]) for k, n in enumerate(each))
        return pace + max(float(end.max()) for end in ends)

    slowest = max(range(len(kinds)), key=lambda k: float(own[k][dealt[k] - 1]))
    at = int(dealt[slowest]) - 1
    base = predict(model, kinds[slowest][0], plan, calibration)
    terms = {name: float(value[at]) for name, value in found[slowest].breakdown.items()}
    longest = max(range(len(ends)), key=lambda k: float(ends[k].max()))
    for name in ("dp_communication", "optimizer"):
        terms[name] = float(reduced[longest].breakdown[name].max())
    capacity = [float(np.asarray(one.accelerator.memory)) for one, _ in kinds]
    needs = [predict(model, one, plan, calibration).memory for one, _ in kinds]
    tight = max(range(len(kinds)), key=lambda k: float(needs[k].peak) / capacity[k])
    shares = tuple(
        Share(
            system=cluster.name,
            accelerator=cluster.accelerator.name,
            many=count,
            layers=model.layers,
            micro_batches=int(dealt[k]),
            time=float(own[k][dealt[k] - 1]),
            memory=float(needs[k].peak),
            capacity=capacity[k],
            binds=_longest(found[k], dealt[k] - 1),
        )
        for k, (cluster, count) in enumerate(kinds)
    )
    devices = [(one, count * float(plan.tp * plan.cp * plan.pp)) for one, count in kinds]
    cluster = replace(kinds[tight][0], name=_named([one for one, _ in kinds]))
    told = _told(base, cluster, terms, needs[tight], devices, calibration)
    return told, Dealt("replica", shares, slowest, step([even] * len(kinds)))


def _longest(found: TrainingPrediction, at: int) -> str:
    """The longest term of a replica's own time."""
    terms = {k: float(v[at]) for k, v in found.breakdown.items()}
    for name in ("dp_communication", "optimizer"):
        del terms[name]
    return max(terms, key=lambda name: terms[name])


def _dealt(time: list[Array], many: list[int], whole: int) -> list[int]:
    """Micro-batches of a replica of each kind, so that the last to end ends first: the least of the
    times of 1, 2, ... micro-batches within which the replicas do all; those that are too many are
    left off the slowest."""
    paces = np.unique(np.concatenate(time))
    low, high = 0, len(paces) - 1

    def taken(pace: float) -> list[int]:
        return [max(int(np.searchsorted(own, pace * (1 + 1e-12), "right")), 1) for own in time]

    while low < high:
        middle = (low + high) // 2
        done = sum(n * count for n, count in zip(taken(float(paces[middle])), many, strict=True))
        low, high = (low, middle) if done >= whole else (middle + 1, high)
    return taken(float(paces[low]))


def by_region(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration, regions: Regions
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose accelerators are in several regions, as many in each.

    Raises InputError where neither stages nor replicas divide among the regions.
    """
    many, found = len(regions.names), []
    size = plan.recipe.activation if np.isnan(plan.handed_bytes) else plan.handed_bytes
    if regions.crossing != "replicas" and int(plan.pp) % many == 0:
        way = regions.order(float(size * plan.tokens * model.hidden / plan.tp))
        kinds = [(regions.linked(cluster, r, r), int(plan.pp) // many) for r in way]
        links = [regions.linked(cluster, a, b) for a, b in pairwise(way)]
        found.append(by_stage(model, kinds, plan, calibration, links=links))
    if regions.crossing != "pipelines" and int(plan.dp) % many == 0:
        far = regions.linked(cluster, *regions.slowest(1e6))
        kinds = [(regions.linked(cluster, r, r), int(plan.dp) // many) for r in range(many)]
        found.append(by_replica(model, kinds, plan, calibration, far))
    if not found:
        raise InputError(
            f"{many} regions divide neither pp {int(plan.pp)} nor dp {int(plan.dp)} (crossing "
            f"{regions.crossing})"
        )
    return min(found, key=lambda one: float(one[0].step_time))


def dealt_step(
    request: TrainingRequest, calibration: Calibration
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a request of several systems, or of images."""
    model, plan, seen = request.model, request.plan, request.seen
    if request.regions is not None:
        if request.kinds or seen:
            raise InputError("regions are of one system and of text; leave them or the others out")
        return by_region(model, request.cluster, plan, calibration, request.regions)
    if request.by == "replica":
        return by_replica(model, request.kinds, plan, calibration)
    kinds = request.kinds or ((request.cluster, int(plan.pp)),)
    return by_stage(model, kinds, plan, calibration, seen)
