"""Fills in what a request leaves unstated, by written rules, and reports every field it filled.

The same rules serve users and rows of published tables; none of them looks at a measured value.
Order: model by name; node and network from the catalog; framework defaults; layout; micro-batch;
recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from predictor.catalog import (
    NAMED,
    STORED,
    Assumption,
    Default,
    Filler,
    TrainingPlanSpec,
    complete_cluster,
    conditions_of,
    default_precision,
    named_model,
    note_names,
    parse,
    with_host,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.memory import MEMORY_FRACTION, memory, node_memory
from predictor.models import Model
from predictor.plans import FIT, SCHEDULES, TrainingPlan, V, check, idle, near_multiples
from predictor.power import Conditions
from predictor.precision import PEAK, PRECISIONS
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.choice import CHUNKS, chunks_that_fit, laid_out, micro_batch, undivided
from predictor.training.fitting import (
    LEAST_SHARDED,
    Draft,
    Layout,
    Recomputation,
    again_share,
    inside,
    recomputations,
)
from predictor.training.fleet import Reserve
from predictor.training.habits import (
    AS_LAYERS,
    INTERLEAVED,
    TRAINED_LOAD,
    Habits,
    full_layers,
    habits_of,
    like_habits,
    open_habits,
    own_shown,
    recipe,
    stated_recompute,
    usual_load,
    whole_micro_batch,
)
from predictor.training.learned import gathered, keeps, learned_from
from predictor.training.regions import Regions, take_regions
from predictor.training.reliability import Reliability
from predictor.training.towers import Seen, take_seen
from predictor.training.unlike import Kinds, several
from predictor.training.whole_run import (
    budget_of,
    machines_of,
    reliability_from,
)
from predictor.units import GB
from predictor.variation import (
    SILENT,
    Fault,
    Profile,
    load_of,
    packed_fields,
    take_loads,
    take_packing,
)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRequest:
    """A complete training request.

    tokens   budget to train on, if one was given
    price    of an accelerator for an hour, in any currency, if one was given
    variation  how the machines vary; `NONE`: not asked
    faults   what of the machine is slow, or has failed
    fleet    spares, preemption; None: not asked
    conditions   limits, cooling and prices of power
    seen, eased   images of a second tower; whether stages compute again by the room they have
    regions  in which the accelerators are, where there are several
    kinds    systems of the stages or replicas (`by`) and how many are on each; empty: one system
    idle     what is stated and changes nothing (`plans.idle`)
    stated   the request as it was made; None where it was not completed
    strict   whether it was held to the laws of plans
    """

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    tokens: float | None
    assumed: tuple[Assumption, ...]
    reliability: Reliability
    price: float | None = None
    variation: Profile = SILENT
    faults: tuple[Fault, ...] = ()
    fleet: Reserve | None = None
    conditions: Conditions = field(default_factory=Conditions)
    seen: Seen | None = None
    eased: bool = False
    regions: Regions | None = None
    kinds: Kinds = ()
    by: str = ""
    idle: tuple[str, ...] = ()
    stated: TrainingPlanSpec | None = None
    strict: bool = True

    @property
    def uneven(self) -> bool:
        """Whether stages or replicas are unlike: systems, towers, regions, heat, recomputation."""
        apart = bool(self.kinds) or self.seen is not None or self.regions is not None
        return apart or self.plan.split == "heat" or (self.eased and self.plan.recompute == "full")

    @property
    def single(self) -> str:
        """What is asked that plans as arrays, of a search or a grid, cannot answer, as a request
        says it; empty: nothing."""
        asked = {
            "split heat": self.plan.split == "heat",
            f"{self.by}_systems": bool(self.kinds),
            "images": self.seen is not None,
            "stage_recompute fits": self.eased,
            "regions": self.regions is not None,
            "variation": self.variation != SILENT,
            "faults": bool(self.faults),
        }
        return self.conditions.stated or next((name for name, is_so in asked.items() if is_so), "")


def complete_training(
    spec: TrainingPlanSpec,
    run: RunParameters,
    strict: bool = True,
    model: Model | None = None,
    cluster: Cluster | None = None,
) -> TrainingRequest:
    """Complete a training request.

    spec     what the user or the table states
    run      memory parameters, to judge what fits
    strict   refuse plans that break a law (`plan.check`); published rows are taken as they are
    model, cluster   already loaded, instead of the names in `spec`

    Raises InputError: a needed field is missing, names are unknown, the plan is impossible.
    """
    if open_habits(spec, run):
        plain = _complete(spec, replace(run, habits={}), strict, model, cluster)
        run = replace(run, habits=like_habits(spec, run, plain.plan))
    return _complete(spec, run, strict, model, cluster)


def _complete(
    spec: TrainingPlanSpec,
    run: RunParameters,
    strict: bool,
    model: Model | None,
    cluster: Cluster | None,
) -> TrainingRequest:
    """The same with every habit that own runs show (`complete_training`)."""
    filler = Filler(stated := spec.to_dict(blanks=False))
    values = filler.values
    model = _trainable(model if model is not None else named_model(values))
    filler.need("seq_len", "global_batch")
    unlike = several(values) | take_seen(filler, model) | take_regions(values)
    cluster = cluster if cluster is not None else complete_cluster(filler)
    note_names(filler, cluster)
    cluster = with_host(cluster, values)
    _precision(filler, model, cluster.accelerator)
    habits = habits_of(own_shown(filler, run, model), model, cluster.accelerator)
    if habits.settings.get("sharding") == FIT and "sharding" not in filler.values:
        return _least_sharded(spec, run, strict, model, cluster, habits.label)
    stated_recompute(values, habits)
    filler.run(recipe(values, model, cluster.accelerator, habits))
    filler.run(_shape(values, model, habits.at_once(values.get("pp")) and not strict))  # it did fit
    filler.run(habits.defaults())
    routed, documents = _routed(values, model), take_packing(values)
    filler.run([usual_load(model, habits), *_numbers(values), *learned_from(values)])
    keeps(filler, spec)
    along = habits.settings.get("etp") == AS_LAYERS
    draft = Draft(model, cluster, values, habits.split, not strict, along, habits.whole)
    full_layers(filler, model)
    plan = _laid_out(filler, draft, habits, run, bool(unlike))
    plan = _packed(filler, _loaded(filler, plan, model, routed), documents)
    filler.run(_planned(plan, model, habits))
    enforce_reach(int(plan.gpus), cluster)
    if strict:
        _consistent(plan, values, model)
    filler.run(_host(plan, cluster))
    tokens, price = budget_of(values, float(plan.global_batch * plan.seq_len))
    return TrainingRequest(
        model=model,
        cluster=cluster,
        plan=plan,
        tokens=tokens,
        assumed=tuple(filler.assumed),
        reliability=reliability_from(filler, tokens),
        price=price,
        **machines_of(values, tokens),
        conditions=conditions_of(values),
        idle=idle(plan, stated, model.is_moe),
        stated=spec,
        strict=strict,
        **unlike,
    )


def _trainable(model: Model) -> Model:
    if model.alternating_streams:
        raise InputError(
            f"{model.name} has alternating updates of its residual stream: they are known while "
            "serving only"
        )
    return model


def _least_sharded(
    spec: TrainingPlanSpec,
    run: RunParameters,
    strict: bool,
    model: Model,
    cluster: Cluster,
    label: str,
) -> TrainingRequest:
    """A request completed with the least sharding with which it fits and computes nothing again
    that needs not be; where none does so, with the one that computes least again, or lacks least.

    Raises InputError where the plan is impossible.
    """
    capacity = float(cluster.accelerator.memory) * (MEMORY_FRACTION if strict else 1.0)
    found: list[tuple[tuple[bool, float], str, TrainingRequest]] = []
    for kind in LEAST_SHARDED if (spec.pp or 1) == 1 != spec.gpus else LEAST_SHARDED[:1]:
        own = parse(TrainingPlanSpec, {**spec.to_dict(), "sharding": kind}, "request")
        one = _complete(own, run, strict, model, cluster)
        again = 0.0 if spec.recompute not in (None, FIT) else again_share(one.plan)
        peak = float(memory(model, one.plan, run).peak)
        over = peak > capacity
        found.append(((over, peak if over else again), kind, one))
        if not over and again == 0.0:
            break
    _, kind, one = min(found, key=lambda entry: entry[0])
    rule = f"habit of {label}: the least with which the model fits, before anything runs again"
    assumed = (Assumption("sharding", kind, rule), *one.assumed)
    return replace(one, assumed=assumed, stated=spec)


def restated(request: TrainingRequest, run: RunParameters, **fields: Any) -> TrainingRequest:
    """A completed request as if some of its fields had been stated, too, or otherwise.

    Raises InputError where it cannot be.
    """
    if request.stated is None:
        raise InputError("a request that was not completed cannot be stated otherwise")
    spec = parse(TrainingPlanSpec, {**request.stated.to_dict(), **fields}, "request")
    return complete_training(spec, run, request.strict, request.model, request.cluster)


def _laid_out(
    filler: Filler, draft: Draft, habits: Habits, run: RunParameters, dealt: bool
) -> TrainingPlan:
    """The plan with what its layout, its recomputation and what fits leave open filled in.

    dealt   whether stages or replicas take unequal shares
    """
    values = filler.values
    options = recomputations(draft, habits.recompute)
    chooses = habits.settings.get("sharding") != FIT
    open_ = undivided(filler.assumed, habits)
    if "recompute" not in values or (filler.supposed("recompute") and not draft.published):
        open_ = (*open_, "recompute")  # a recipe's is of its own lengths
    layout, again, divided = laid_out(draft, options, run, open_, chooses)
    if again not in options:
        filler.reopen("recompute", "recompute_modules", "recompute_share")
    why = "ranks that divide the state so that it fits, or where gathering it costs far more"
    for name, value in divided.items():
        filler.refill(name, value, why)
    filler.run(_fitted(layout))
    _whole_replicas(values)
    filler.run(_replicated(draft, habits))
    if "micro_batch" not in values:
        again, at_once = micro_batch(draft, habits, layout, again, options, run, dealt)
        filler.run([at_once])
    filler.run(_again(again, habits, again in options))
    if "vpp" not in values:
        most = chunks_that_fit(draft, layout, again, run)
        filler.run(_interleaved(most, values, habits))
    return draft.plan(layout, again)


def _routed(values: dict[str, Any], model: Model) -> dict[str, Any]:
    """What is stated of the loads of experts, taken out; what fits is judged by the usual load."""
    routed = take_loads(values)
    if not model.is_moe:
        values.pop("expert_load", None)
        return {}
    if routed:
        values["expert_load"] = TRAINED_LOAD
    return routed


def _loaded(
    filler: Filler, plan: TrainingPlan, model: Model, routed: dict[str, Any]
) -> TrainingPlan:
    """The plan with the load that stated loads of experts leave its busiest rank."""
    if not routed:
        return plan
    copies = plan.tokens / plan.tp * model.top_k * plan.etp
    found = load_of(routed, model, float(plan.ep), float(copies))
    filler.assumed.append(found)
    return replace(plan, expert_load=found.value)


def _packed(filler: Filler, plan: TrainingPlan, documents: dict[str, Any]) -> TrainingPlan:
    """The plan with what stated documents make of its sequences."""
    if not documents:
        return plan
    window, several, ranks = (float(v) for v in (plan.seq_len, plan.micro_batch, plan.cp))
    found: dict[str, Any] = packed_fields(
        documents, window, several, ranks, plan.cp_kind == "ulysses"
    )
    rule = f"documents {documents['documents']}, packing {documents.get('packing', 'fixed')}"
    filler.run([Default(name, round(value, 4), rule) for name, value in found.items()])
    return replace(plan, **found)


def _precision(filler: Filler, model: Model, accelerator: Accelerator) -> None:
    usual = default_precision(accelerator)
    if model.quantization is not None:
        method = model.quantization.method
        source = method if method.startswith(NAMED) else f"{STORED} ({method})"
        stored = f"{source}: widened before it is trained, to "
        usual = replace(usual, rule=stored + usual.rule)
    filler.run([usual])
    recipe = PRECISIONS[filler.values["precision"]]
    for dtype in (recipe.linear, recipe.core):
        accelerator.peak_for(PEAK.get(dtype, dtype))


def _shape(values: Mapping[str, Any], model: Model, at_once: bool) -> list[Default]:
    schedule = values.get("schedule", "1f1b")
    return [
        Default(
            "vpp",
            2,
            "a pipeline that folds has two stages on each device",
            when=SCHEDULES[schedule].fold == V,
        ),
        Default(
            "ep_overlap",
            True,
            "forward and backward chunks that run together",
            when=model.is_moe and schedule in ("dualpipe", "dualpipev"),
        ),
        Default("micro_batch", *whole_micro_batch(values), when=at_once),
    ]


def _numbers(values: Mapping[str, Any]) -> list[Default]:
    precision = values["precision"]
    recipe, rule = PRECISIONS[precision], f"precision {precision}"
    return [
        Default("weight_bytes", recipe.weight, rule),
        Default("optimizer_bytes", recipe.optimizer, rule),
        Default("gradient_bytes", 4.0, "gradients accumulate in fp32"),
        Default("reduce_bytes", 4.0, "gradients are reduced in fp32"),
        Default("gather_bytes", *gathered(values, recipe.weight, rule)),
    ]


def _interleaved(most: int, values: Mapping[str, Any], habits: Habits) -> list[Default]:
    folds = habits.settings.get("vpp") == INTERLEAVED and "schedule" not in values
    rule = f"default of {habits.label}: up to {CHUNKS} chunks of layers on a device"
    folded = [Default("vpp", most, rule)] if folds else []
    return [*folded, Default("vpp", 1, "no interleaving unless asked for")]


def _fitted(layout: Layout) -> list[Default]:
    fits = "what fits and costs least, tp inside the node and no narrower than 2,048"
    return [
        Default("tp", layout[0], fits),
        Default("pp", layout[1], fits),
        Default(
            "cp",
            layout[2],
            "ranks that share a sequence: fewer sequences than replicas, or one that fits on none",
            when=layout[2] > 1,
        ),
        Default("cp", 1, "no context parallelism unless asked for"),
    ]


def _again(again: Recomputation, habits: Habits, usual: bool) -> list[Default]:
    """usual: whether the framework's habit is to compute this again."""
    rule = "none, selective or full: first that fits, or what costs least with its micro-batch"
    if habits.recompute != FIT:
        rule = f"default of {habits.label}" if usual else "whole layers: nothing less fits"
    modules = "attention core, or the latents' up-projections"
    share = "fewest eighths of the layers that fit"
    return [
        Default("recompute", again.kind, rule),
        Default("recompute_modules", again.modules, modules, when=again.kind == "selective"),
        Default("recompute_share", again.share, share, when=again.kind == "full"),
    ]


def _replica(values: Mapping[str, Any]) -> int:
    return int(values["tp"] * values["pp"] * values["cp"])


def _whole_replicas(values: Mapping[str, Any]) -> None:
    ranks = _replica(values)
    if "dp" not in values and values.get("gpus", ranks) % ranks:
        raise InputError(
            f"gpus {values['gpus']} is not a multiple of tp {values['tp']} x pp {values['pp']} x "
            f"cp {values['cp']} = {ranks}; nearest {near_multiples(values['gpus'], ranks)}"
        )


def _fewest(values: Mapping[str, Any]) -> int:
    """Replicas of a run of which only the layout is stated: one, or as many as its experts need."""
    experts = int(values.get("ep", 1)) * int(values.get("etp", 1))
    return experts // math.gcd(experts, int(values["tp"] * values["cp"]))


def _replicated(draft: Draft, habits: Habits) -> list[Default]:
    values = draft.values
    ranks, split = _replica(values), draft.sequence_parallel(values["tp"])
    replicas = values["gpus"] // ranks if "gpus" in values else _fewest(values)
    node = draft.cluster.accelerators_per_node
    shards = inside(node, values["tp"], values["cp"], values.get("dp", replicas))
    hybrid = values["sharding"] == "hsdp"
    return [
        Default("dp", replicas, "gpus / (tp x pp x cp)"),
        Default("dp_shard", shards, "shard inside the node", when=hybrid),
        Default("sequence_parallel", split, f"default of {habits.label}"),
    ]


def _planned(plan: TrainingPlan, model: Model, habits: Habits) -> list[Default]:
    near = "most ranks of the scale-up domain that share out the experts"
    split = "tp where ep is stated and that divides a stage's ranks, else 1"
    if habits.settings.get("etp") == AS_LAYERS:
        split = f"default of {habits.label}: tp, where that divides a stage's ranks"
    return [
        Default("ep", int(plan.ep), near, when=model.is_moe),
        Default("etp", int(plan.etp), split, when=model.is_moe),
        Default("gpus", int(plan.gpus), "tp x pp x cp x dp"),
    ]


def enforce_reach(gpus: float, cluster: Cluster) -> None:
    """Raise InputError where no network joins so many accelerators."""
    reach = cluster.tiers[-1].size
    if gpus > reach:
        raise InputError(
            f"{cluster.name} has no network beyond {reach:g} accelerators, the plan needs "
            f"{gpus:g}; state one with --set inter_link_gbps=400"
        )


SOLE = {"none", "layers", "step"}
"""Of `CUDA_GRAPHS`, what holds all or nothing."""


def _consistent(plan: TrainingPlan, values: Mapping[str, Any], model: Model) -> None:
    if len(plan.captured) > 1 and (alone := SOLE & set(plan.captured)):
        raise InputError(f"cuda_graphs {plan.cuda_graphs}: {min(alone)} goes with nothing else")
    if int(plan.gpus) != values["gpus"]:
        raise InputError(
            f"gpus {values['gpus']} is not tp {values['tp']} x pp {values['pp']} x cp "
            f"{values['cp']} x dp {values['dp']} = {int(plan.gpus)}"
        )
    check(plan, model)


def _host(plan: TrainingPlan, cluster: Cluster) -> list[Default]:
    shares = plan.offload_activations, plan.offload_optimizer, plan.offload_weights
    away = max(map(float, shares))
    rule = f"of a node; the catalog does not say what hosts of {cluster.name} have"
    size = round(node_memory(cluster) / GB)
    open_ = away > 0 and plan.offload_to == "cpu" and np.isnan(cluster.host_memory)
    return [Default("host_memory_gb", size, rule, when=bool(open_))]
