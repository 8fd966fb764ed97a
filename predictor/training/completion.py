"""Fills in what a request leaves unstated, by written rules, and reports every field it filled.

The same rules serve users and rows of published tables; none of them looks at a measured value.
Order: model by name; node and network from the catalog; framework defaults; layout; micro-batch;
recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    NAMED,
    STORED,
    Assumption,
    Default,
    Filler,
    TrainingPlanSpec,
    complete_cluster,
    conditions_of,
    dated,
    default_precision,
    framework_settings,
    named_model,
    note_names,
    recipe_facts,
    settings_of,
    spelled,
    with_host,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.memory import node_memory
from predictor.models import Model
from predictor.plans import FIT, SCHEDULES, TrainingPlan, V, check, near_multiples
from predictor.power import Conditions
from predictor.precision import PEAK, PRECISIONS
from predictor.timing import RunParameters
from predictor.training.fitting import (
    Draft,
    Recomputation,
    first_fit,
    layouts,
    recomputations,
)
from predictor.training.fleet import Fleet
from predictor.training.reliability import Reliability
from predictor.units import GB
from predictor.variation import (
    NONE,
    SILENT,
    Fault,
    Profile,
    faults,
    load_of,
    packed_fields,
    profile,
    take_loads,
    take_packing,
)

TRAINED_LOAD = 1.1
"""Tokens of the busiest rank over the mean where nothing balances experts by force: Fedus et al.
2021 drop under 1 % of tokens at a capacity of 1.25 per expert; a rank averages over several."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRequest:
    """A complete training request.

    tokens   budget to train on, if one was given
    price    of an accelerator for an hour, in any currency, if one was given
    variation  how the machines vary; `NONE`: not asked
    faults   what of the machine is slow, or has failed
    fleet    spares, preemption; None: not asked
    conditions   limits, cooling and prices of power
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
    fleet: Fleet | None = None
    conditions: Conditions = field(default_factory=Conditions)


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
    filler = Filler(spec.model_dump())
    values = filler.values
    model = model if model is not None else named_model(values)
    cluster = cluster if cluster is not None else complete_cluster(filler)
    note_names(filler, cluster)
    cluster = with_host(cluster, values)
    filler.need("seq_len", "global_batch")
    _precision(filler, model, cluster.accelerator)
    habits = _habits(filler, model)
    _stated_recompute(values, habits)
    filler.run(_recipe(values, model, cluster.accelerator))
    filler.run(_shape(values, model, habits.settings.get("micro_batch") == WHOLE))
    filler.run(habits.defaults())
    routed, documents = _routed(values, model), take_packing(values)
    filler.run(_numbers(values, model, cluster))
    draft = Draft(model, cluster, values, habits.split)
    candidates = layouts(draft)
    _full_layers(filler, model)
    layout, again = first_fit(draft, candidates, recomputations(draft, habits.recompute), run)
    filler.run(_fitted(layout, again, habits))
    _whole_replicas(values)
    filler.run(_replicated(draft, habits))
    plan = draft.plan(*layout, again)
    plan = _packed(filler, _loaded(filler, plan, model, routed), documents)
    filler.run(_planned(plan, model))
    _reachable(plan, cluster)
    if strict:
        _consistent(plan, values)
        check(plan, model)
    filler.run(_host(plan, cluster))
    tokens, price = _whole_run(values)
    trust = _reliability(filler) if tokens is not None else reliability_of(reliability_defaults())
    return TrainingRequest(
        model=model,
        cluster=cluster,
        plan=plan,
        tokens=tokens,
        assumed=tuple(filler.assumed),
        reliability=trust,
        price=price,
        **_machines(values, tokens),
        conditions=conditions_of(values),
    )


FLEET = (
    "spares",
    "repair_hours",
    "preempted_hours",
    "returned_hours",
    "preempted_group",
    "elastic",
)
"""Fields of a fleet; a run has one where any is stated."""


def _machines(values: Mapping[str, Any], tokens: float | None) -> dict[str, Any]:
    """How the machines of a run vary, what of them is slow, what stands by."""
    return {
        "variation": profile(values.get("variation", NONE)),
        "faults": faults(values.get("faults", NONE)),
        "fleet": _fleet(values, tokens),
    }


def _fleet(values: Mapping[str, Any], tokens: float | None) -> Fleet | None:
    stated = [name for name in FLEET if name in values]
    if not stated:
        return None
    if tokens is None:
        raise InputError(f"{stated[0]} is of a whole run; give --tokens too")
    return Fleet(
        spares=int(values.get("spares", 0)),
        repair=3600.0 * values.get("repair_hours", 24.0),
        every=3600.0 * values.get("preempted_hours", np.inf),
        returned=3600.0 * values.get("returned_hours", 1.0),
        group=max(float(values.get("preempted_group", 1.0)), 1.0),
        elastic=bool(values.get("elastic", False)),
    )


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


def _whole_run(values: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Tokens of a run and its price per accelerator and hour, where stated."""
    tokens, price = values.get("tokens"), values.get("price_per_gpu_hour")
    if price is not None and tokens is None:
        raise InputError("--price-per-gpu-hour is of a whole run; give --tokens too")
    return tokens, price


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


@dataclass(frozen=True, slots=True)
class Habits:
    """What a framework does where nothing is stated.

    label      the framework, and until when it did so
    settings   of plan fields
    split      sequence parallelism: yes or no, or 'tp': where tp divides
    recompute  a kind of recomputation, or `FIT`
    means      what its own words for recomputation mean
    """

    label: str
    settings: Mapping[str, Any]
    split: bool | str
    recompute: str
    means: Mapping[str, str]

    def defaults(self) -> list[Default]:
        """Fields of a plan that it sets."""
        rule = f"default of {self.label}"
        found = self.settings.items()
        return [Default(field, value, rule) for field, value in found if value != WHOLE]


def _habits(filler: Filler, model: Model) -> Habits:
    framework = spelled(filler.fill("framework", "neutral", "no framework was named"))
    filler.values["framework"] = framework
    settings, label = framework_settings(framework, filler.values.get("era"), model, filler.values)
    filler.values.setdefault("era", "neutral")
    split, means = settings.pop("sequence_parallel", False), settings.pop("means")
    usual = settings.pop("recompute", FIT)
    asked = filler.values.get("recompute") == FIT
    if settings.get("reshard") == WITHOUT_PP:
        settings["reshard"] = int(filler.values.get("pp") or 1) == 1
    return Habits(
        label=label,
        settings=settings,
        split=split,
        recompute=FIT if asked else usual,
        means=means,
    )


def _recipe(values: Mapping[str, Any], model: Model, accelerator: Accelerator) -> Iterator[Default]:
    """What the framework's published recipe for this model, accelerator and precision sets, where
    the plan can be of that recipe."""
    task = "lora" if str(values.get("trained", "")).startswith("lora") else "pretrain"
    facts = recipe_facts(
        framework=values["framework"],
        era=None if values["era"] == "neutral" else dated(values["era"]),
        model=model.name,
        task="sft" if model.name.endswith("-sft") else task,
        accelerator=accelerator.name,
        precision=values["precision"],
    )
    pipelined = "pp" in values
    for fact in facts:
        if fact.field in values:
            continue
        found = settings_of(fact, model.layers, pipelined)
        if _of_recipe(fact.field, found, values, model):
            for field, value in found.items():
                yield Default(field, value, f"recipe in {fact.source}")


def _of_recipe(
    field: str, found: Mapping[str, Any], values: Mapping[str, Any], model: Model
) -> bool:
    """Whether a plan with what is stated of it can have a recipe's setting."""
    pp = int(values.get("pp") or 1)
    if field in ("ep_overlap", "dispatch", "etp"):
        return model.is_moe
    if field == "vpp":
        even = model.layers % (pp * int(found["vpp"])) == 0
        return pp > 1 and even and "schedule" not in values
    if field == "micro_batch":
        return _whole_share(values) % int(found["micro_batch"]) == 0
    if field == "sharding":
        return found["sharding"] != "fsdp" or pp == 1
    return True


WITHOUT_PP, WHOLE = "without_pp", "whole"
"""Habits of dropping gathered weights where there is no pipeline, and of taking all of a rank's
sequences of a step at once."""


def _whole_share(values: Mapping[str, Any]) -> int:
    """Sequences of a step on one data-parallel rank, at least one."""
    ranks = math.prod(int(values.get(name) or 1) for name in ("tp", "pp", "cp"))
    replicas = int(values.get("dp") or max(int(values.get("gpus") or ranks) // ranks, 1))
    return max(int(values["global_batch"]) // replicas, 1)


def _shape(values: Mapping[str, Any], model: Model, at_once: bool) -> list[Default]:
    schedule = values.get("schedule", "1f1b")
    return [
        Default("cp", 1, "no context parallelism unless asked for"),
        Default(
            "vpp",
            2,
            "a pipeline that folds has two stages on each device",
            when=SCHEDULES[schedule].fold == V,
        ),
        Default("vpp", 1, "no interleaving unless asked for"),
        Default(
            "ep_overlap",
            True,
            "forward and backward chunks that run together",
            when=model.is_moe and schedule in ("dualpipe", "dualpipev"),
        ),
        Default("micro_batch", _whole_share(values), "a rank's sequences at once", when=at_once),
        Default("micro_batch", 1, "one sequence unless stated"),
    ]


def _stated_recompute(values: dict[str, Any], habits: Habits) -> None:
    """Recomputation in the framework's own words; `FIT` leaves it open."""
    if values.get("recompute") == FIT:
        del values["recompute"]
    if values.get("recompute") in habits.means:
        values["recompute"] = habits.means[values["recompute"]]


def _numbers(values: Mapping[str, Any], model: Model, cluster: Cluster) -> list[Default]:
    precision = values["precision"]
    recipe, rule = PRECISIONS[precision], f"precision {precision}"
    trained = "routers trained to balance (Fedus et al. 2021)"
    hybrid = values.get("sharding") == "hsdp"
    return [
        Default("expert_load", TRAINED_LOAD, trained, when=model.is_moe),
        Default("weight_bytes", recipe.weight, rule),
        Default("optimizer_bytes", recipe.optimizer, rule),
        Default("gradient_bytes", 4.0, "gradients accumulate in fp32"),
        Default("reduce_bytes", 4.0, "gradients are reduced in fp32"),
        Default("gather_bytes", recipe.weight, rule),
        Default("dp_shard", cluster.accelerators_per_node, "shard inside the node", when=hybrid),
    ]


def _fitted(layout: tuple[int, int], again: Recomputation, habits: Habits) -> list[Default]:
    fits = "the smallest tp x pp that fits, tp first and inside the node"
    first = "none, selective or full: first that fits"
    usual = f"default of {habits.label}" if habits.recompute != FIT else first
    modules = "attention core, or the latents' up-projections"
    share = "fewest eighths of the layers that fit"
    return [
        Default("tp", layout[0], fits),
        Default("pp", layout[1], fits),
        Default("recompute", again.kind, usual),
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


def _replicated(draft: Draft, habits: Habits) -> list[Default]:
    values = draft.values
    ranks, split = _replica(values), draft.sequence_parallel(values["tp"])
    return [
        Default("dp", values.get("gpus", ranks) // ranks, "gpus / (tp x pp x cp)"),
        Default("sequence_parallel", split, f"default of {habits.label}"),
    ]


def _planned(plan: TrainingPlan, model: Model) -> list[Default]:
    near = "most ranks of the scale-up domain that share out the experts"
    split = "tp where ep x tp divides a stage's ranks, else 1"
    return [
        Default("ep", int(plan.ep), near, when=model.is_moe),
        Default("etp", int(plan.etp), split, when=model.is_moe),
        Default("gpus", int(plan.gpus), "tp x pp x cp x dp"),
    ]


def _reachable(plan: TrainingPlan, cluster: Cluster) -> None:
    reach = cluster.tiers[-1].size
    if int(plan.gpus) > reach:
        raise InputError(
            f"{cluster.name} has no network beyond {reach:g} accelerators, the plan needs "
            f"{int(plan.gpus)}; state one with --set inter_link_gbps=400"
        )


def _consistent(plan: TrainingPlan, values: Mapping[str, Any]) -> None:
    if int(plan.gpus) != values["gpus"]:
        raise InputError(
            f"gpus {values['gpus']} is not tp {values['tp']} x pp {values['pp']} x cp "
            f"{values['cp']} x dp {values['dp']} = {int(plan.gpus)}"
        )


def _host(plan: TrainingPlan, cluster: Cluster) -> list[Default]:
    away = max(float(plan.offload_activations), float(plan.offload_optimizer))
    rule = f"of a node; the catalog does not say what hosts of {cluster.name} have"
    size = round(node_memory(cluster) / GB)
    open_ = away > 0 and plan.offload_to == "cpu" and np.isnan(cluster.host_memory)
    return [Default("host_memory_gb", size, rule, when=bool(open_))]


def _full_layers(filler: Filler, model: Model) -> None:
    """What Megatron's method and number of layers mean for full recomputation: a share of the
    layers (block), or layers per kept input (uniform)."""
    values = filler.values
    given = [name for name in ("recompute_method", "recompute_layers") if name in values]
    if not given:
        return
    if values.get("recompute") != "full":
        raise InputError(f"{given[0]} is of full recomputation; say --recompute full")
    number = values.get("recompute_layers", 1)
    if values.get("recompute_method", "block") == "uniform":
        filler.fill("recompute_chunk", number, "layers per kept input")
        return
    if "pp" not in values:
        raise InputError("recompute_layers counts layers of a stage; state --pp")
    share = min(number * values["pp"] * values["vpp"] / model.layers, 1.0)
    filler.fill("recompute_share", share, f"{number} layers of each (virtual) stage")


@lru_cache(maxsize=1)
def reliability_defaults() -> Mapping[str, Any]:
    """How jobs fail and come back, `data/defaults/reliability.yaml`."""
    return catalog.read_mapping(catalog.data_dir() / "defaults" / "reliability.yaml")


def reliability_of(stated: Mapping[str, Any]) -> Reliability:
    """Reliability from values with units in their keys."""
    return Reliability(
        mtbf=3600.0 * stated["mtbf_hours"],
        sigma=stated["sigma"],
        restart=stated["restart_s"],
        storage=1e9 * stated["storage_gbs"],
        blocking=stated["checkpoint_blocking"],
        interval=stated.get("checkpoint_interval_s", np.nan),
    )


def _reliability(filler: Filler) -> Reliability:
    """As stated, and the defaults for the rest; an MTBF that is stated has no spread."""
    known = reliability_defaults()
    given = "mtbf_hours" in filler.values
    rules = {
        "mtbf_hours": "geometric mean of five published fleets",
        "restart_s": "five minutes to notice, five to initialise",
        "storage_gbs": "as published runs write, per accelerator",
        "checkpoint_blocking": "training waits for checkpoints",
    }
    stated = {name: filler.fill(name, known[name], rule) for name, rule in rules.items()}
    stated["sigma"] = 0.0 if given else known["sigma"]
    stated["checkpoint_interval_s"] = filler.values.get("checkpoint_interval_s", np.nan)
    return reliability_of(stated)
