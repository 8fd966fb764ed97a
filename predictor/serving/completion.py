"""Fills in what a serving request leaves unstated, by written rules, and reports what it filled.

The same rules serve users and rows of published tables; none of them looks at a measured value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from predictor.catalog import (
    Assumption,
    Default,
    Engine,
    Filler,
    ServingPlanSpec,
    Setting,
    complete_cluster,
    conditions_of,
    default_precision,
    engine_named,
    named_model,
    note_names,
    ported,
    spelled,
    system,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model
from predictor.plans import (
    ServingPlan,
    enforce,
    idle,
    runnable,
    serving_rules,
)
from predictor.power import Conditions
from predictor.precision import WIDE
from predictor.records import dataclass
from predictor.serving.apart import enough_accelerators
from predictor.serving.around import FEWEST_REPLAYED, Around, around_of, fill_client, fill_trace
from predictor.serving.checkpoint import fill_weights
from predictor.serving.clients import VARIATION, of_one_length
from predictor.serving.fitting import Draft, first_fit, layouts, read_apart
from predictor.serving.images import take_images
from predictor.serving.offload import HOST_BANDWIDTH, default_link, enforce_host
from predictor.timing import Calibration, RunParameters
from predictor.units import GB
from predictor.variation import load_of, take_loads
from predictor.work import SCORED

EXPERTS_ONLY = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
"""Data types of which only checkpoints with narrow experts and 16-bit attention are published
(OpenAI 2025, gpt-oss model card)."""

ROUNDS = 10.0
"""Requests that each client of public benchmarks sends (InferenceX's scripts)."""

SPREAD_RULE = "lengths vary: of a client's requests the first meets all others'"


@dataclass(frozen=True, slots=True, eq=False)
class ServingRequest:
    """A complete serving request.

    rate       requests that arrive per second, at random; None: the plan states the load
    simulate   requests to serve one by one; 0: none
    around     its client, fleet and promise
    conditions   limits, cooling and prices of power
    idle       what is stated and changes nothing (`plans.idle`)
    guessed    whether nobody says in what the weights are, neither the request nor a checkpoint
    stated     the request as it was made; None where it was not completed
    """

    model: Model
    cluster: Cluster
    plan: ServingPlan
    assumed: tuple[Assumption, ...]
    rate: float | None = None
    simulate: int = 0
    around: Around = field(default_factory=Around)
    conditions: Conditions = field(default_factory=Conditions)
    idle: tuple[str, ...] = ()
    guessed: bool = False
    stated: ServingPlanSpec | None = None

    def sure(self, calibration: Calibration) -> Calibration:
        """The calibration, as sure as it is of such a request."""
        return _unsaid(calibration) if self.guessed else calibration

    @property
    def variation(self) -> float:
        """Of lengths, where requests are served one by one."""
        return self.around.client.variation


def complete_serving(
    spec: ServingPlanSpec,
    run: RunParameters,
    strict: bool = True,
    model: Model | None = None,
    cluster: Cluster | None = None,
    laid: tuple[int, int] | None = None,
    ran: bool = False,
) -> ServingRequest:
    """Complete a serving request.

    spec     what the user or the table states
    run      memory parameters, to judge what fits
    strict   refuse plans that break a law; published rows are taken as they are
    model, cluster   already loaded, instead of the names in `spec`
    laid     tp and dp for which an engine's defaults are asked; if None as stated, and asked again
             where the layout that comes of those has others
    ran      of a run that there was, which therefore fitted

    Raises InputError: a needed field is missing, names are unknown, the plan is impossible.
    """
    filler = Filler(stated := spec.to_dict(blanks=False))
    values = filler.values
    model = model if model is not None else named_model(values)
    cluster = _readers(values, cluster if cluster is not None else complete_cluster(filler))
    note_names(filler, cluster, unless=("dp", "tp", "pp"))
    trace, accelerator = fill_trace(filler), cluster.accelerator
    _asked(filler, model)
    _scores(model, accelerator)
    guessed = fill_weights(filler, model, accelerator, ran)
    asked = _engine(filler, _precision(filler, accelerator), model, cluster, laid)
    model = _seeing(model, str(values.get("windows", "model")))
    filler.run(_cache(values["precision"], model, accelerator))
    routed = _requests(filler, accelerator)
    draft = Draft(model, cluster, values)
    plan = draft.plan(*first_fit(draft, layouts(draft), run))
    if laid is None and _otherwise(*asked, plan):
        laid = (int(plan.tp), int(plan.dp))
        return complete_serving(spec, run, strict, model, cluster, laid=laid, ran=ran)
    if routed and model.is_moe:
        filler.assumed.append(load_of(routed, model, float(plan.ep)))
        plan = replace(plan, expert_load=filler.assumed[-1].value)
    filler.run(_fitted(plan, model))
    filler.run(_host(plan, cluster, values))
    if strict:
        _lawful(plan, values, model, cluster)
    around = around_of(values, model, cluster, plan, run, trace)
    return ServingRequest(
        model=model,
        cluster=cluster,
        plan=plan,
        assumed=tuple(filler.assumed),
        rate=values.get("rate"),
        simulate=_simulable(plan, values, around),
        around=around,
        conditions=conditions_of(values),
        idle=idle(plan, stated, model.is_moe),
        guessed=guessed,
        stated=spec,
    )


@lru_cache(maxsize=8)
def _unsaid(calibration: Calibration) -> Calibration:
    return replace(calibration, serving=calibration.serving.unsaid())


def _asked(filler: Filler, model: Model) -> None:
    """Lengths of requests, what their clients do, their images, and how many there are."""
    filler.need("input_len", "output_len")
    fill_client(filler)
    if filler.values.get("lengths") == "exponential":
        filler.values["variation"] = 1.0  # whatever is stated: that of the distribution
    take_images(filler, model)
    _load(filler)


def _seeing(model: Model, windows: str) -> Model:
    """The model, seeing all that is cached where its window is not set."""
    if windows != "unset" or not model.windowed_share:
        return model
    if len(model.attention_kinds) > 1:
        raise InputError(f"windows=unset: {model.name}'s windowed layers have heads of their own")
    return replace(model, sliding_window=0)


def _readers(values: dict[str, Any], cluster: Cluster) -> Cluster:
    """The system with the one whose accelerators read prompts for it, where that is stated."""
    if "prefill_system" not in values:
        return cluster
    if not values.get("prefill_workers"):
        raise InputError("prefill_system needs prefill_workers: so many engines on it read prompts")
    return replace(cluster, prefill=system(values.pop("prefill_system")))


def _simulable(plan: ServingPlan, values: Mapping[str, Any], around: Around) -> int:
    """Requests to serve one by one: as many as stated, or some where nothing else can tell. Those
    of a static batch ask for adapters as any pass does."""
    static, stated = not float(plan.serving), int(values.get("simulate", 0))
    plain = around.plain or (static and around.but_for_adapters)
    plain = plain and around.ttft == around.tpot == math.inf  # how many keep a promise
    asked = stated or (0 if plain else FEWEST_REPLAYED)
    if asked and static:
        what = (
            "--simulate" if stated else "what is stated of clients, sessions, promises or replicas"
        )
        raise InputError(f"{what} needs requests that follow each other: --concurrency or --rate")
    return asked


def _scores(model: Model, accelerator: Accelerator) -> None:
    if model.is_sparse and not model.index_block and SCORED not in accelerator.peak:
        raise InputError(
            f"{model.name} scores cached keys in {SCORED}, which {accelerator.name} does not "
            "multiply"
        )


def _precision(filler: Filler, accelerator: Accelerator) -> str:
    """The precision as the accelerator has it, filled in; returns what was stated or usual."""
    values, usual = filler.values, default_precision(accelerator)
    filler.run([usual])
    if values["precision"] == "bf16" and "bf16" not in accelerator.peak:
        values["precision"] = usual.value
    stated = str(values["precision"])
    own = runnable(stated, accelerator)
    if own != stated:
        rule = f"{accelerator.name} does not multiply {stated}: widened when read"
        filler.assumed.append(Assumption("precision", own, rule))
        values["precision"] = own
    return stated


def _requests(filler: Filler, accelerator: Accelerator) -> dict[str, Any]:
    """How requests come, what is cached and how caches travel; returns the loads of experts where
    they are stated otherwise than as a number."""
    values = filler.values
    routed = take_loads(values)
    filler.run([_together(values)])
    filler.run([one for one in REQUEST_DEFAULTS if not (routed and one.field == "expert_load")])
    _offload(filler, accelerator)
    if "spacing_s" in values:
        values["spacing"] = values.pop("spacing_s")
    if "kv_gbs" in values:
        values["kv_rate"] = values.pop("kv_gbs") * GB
    filler.run(_apart(values))
    return routed


def _ranks(values: Mapping[str, Any]) -> tuple[int, int]:
    """tp and dp as stated, or as the other sizes leave them."""
    stages, gpus = int(values.get("pp", 1)), int(values.get("gpus", 0)) - read_apart(values)
    tp = int(values.get("tp", max(gpus // (stages * int(values.get("dp", 1))), 1)))
    return tp, int(values.get("dp", max(gpus // (tp * stages), 1)))


def _otherwise(engine: Engine, where: Setting, plan: ServingPlan) -> bool:
    """Whether the engine may do anything else by default on a plan's ranks."""
    there = replace(where, tp=int(plan.tp), dp=int(plan.dp))
    return engine.ranked(there) != engine.ranked(where)


def _engine(
    filler: Filler,
    stated: str,
    model: Model,
    cluster: Cluster,
    laid: tuple[int, int] | None,
) -> tuple[Engine, Setting]:
    """What the engine does by default, of its release or its era.

    stated   precision of the checkpoint
    laid     tp and dp; as the request states or leaves them if None
    """
    values, accelerator = filler.values, cluster.accelerator
    framework = spelled(filler.fill("framework", "neutral", "no engine was named"))
    values["framework"] = framework = ported(framework, accelerator.vendor)
    engine = engine_named(framework)
    version = str(values.pop("version", ""))
    if version:
        values["era"] = engine.month(version)
    tp, dp = laid or _ranks(values)
    where = Setting(
        accelerator=accelerator,
        model=model,
        weights=stated,
        tp=tp,
        dp=dp,
        drafted=int(values.get("drafted", 0)),
    )
    release = values.get("era"), version
    if read_apart(values):
        tp, dp = values.get("prefill_tp", values.get("tp", 1)), values.get("prefill_dp", 1)
        filler.run(read_by(engine, where, cluster, (tp, dp), *release))
    filler.run(engine.defaults(where, *release))
    values.setdefault("era", "neutral")
    return engine, where


READ = ("chunk", "prompt_graphs")
"""What only passes over prompts have: as workers on their own ranks do, where these read them."""


def read_by(
    engine: Engine,
    where: Setting,
    cluster: Cluster,
    ranks: tuple[int, int],
    era: str | None,
    version: str,
) -> list[Default]:
    """What an engine does by default with the prompts that workers of so many ranks (tp and dp)
    read apart."""
    tp, dp = ranks
    there = replace(where, accelerator=cluster.readers.accelerator, tp=int(tp), dp=int(dp))
    return [one for one in engine.defaults(there, era, version) if one.field in READ]


def _cache(own: str, model: Model, accelerator: Accelerator) -> list[Default]:
    """Data types of the cache where the engine does not narrow it, and what of the model is narrow.

    own   precision that the accelerator multiplies
    """
    half = own if own in WIDE else accelerator.wide
    return [
        Default("kv_precision", half, "as the rest of the attention"),
        Default(
            "narrowed",
            "experts",
            f"{own} checkpoints are narrow in the experts alone",
            when=model.is_moe and own in EXPERTS_ONLY,
        ),
    ]


REQUEST_DEFAULTS = (
    Default("cached", 0.0, "no prefix is cached unless stated"),
    Default("expert_load", 1.0, "tokens spread evenly over experts unless stated"),
)
"""Of requests, where nothing else is known."""


def _together(values: Mapping[str, Any]) -> Default:
    """How many of the clients of a closed loop send together.

    Where prompts come first and answers are of one length, requests decode together and end
    together, and their clients send the next ones together: a spread of one in a hundred undoes it
    (as requests served one by one do, `events.serve`), where it is one of whole tokens. Where
    prompts ride along, those of one length that return together are counted by their passes
    (`latency`).
    """
    clients = float(values["batch"])
    alike = bool(of_one_length(values.get("variation", VARIATION), values["output_len"]))
    alike = alike and values.get("lengths", "uniform") == "uniform"
    closed = values["serving"] and 1.0 < clients < np.inf
    if not (alike and closed and values.get("batching") in ("apart", "waiting")):
        rounds = max(float(values.get("rounds", ROUNDS)), 1.0)
        return Default("synchrony", 1.0 / rounds, SPREAD_RULE)
    return Default("synchrony", 1.0, "answers of one length end together: all send together")


def _apart(values: Mapping[str, Any]) -> list[Default]:
    rule = "that of the engine that decodes, where it is stated, else 1"
    read = bool(values.get("prefill_workers"))
    return [
        Default("prefill_tp", values.get("tp", 1), rule, when=read),
        Default("prefill_dp", 1, "its ranks split the attention unless stated", when=read),
    ]


def _fitted(plan: ServingPlan, model: Model) -> list[Default]:
    fits = "the smallest tp x pp that holds the weights and a sequence, tp first, inside the node"
    spread = "all ranks where attention is replicated, else 1"
    return [
        Default("tp", int(plan.tp), fits),
        Default("pp", int(plan.pp), fits),
        Default("dp", int(plan.dp), "gpus / (tp x pp)"),
        Default("ep", int(plan.ep), spread, when=model.is_moe),
        Default("gpus", int(plan.gpus), "tp x pp x dp, and those that read prompts apart"),
    ]


def _host(plan: ServingPlan, cluster: Cluster, values: Mapping[str, Any]) -> list[Default]:
    if plan.offload == "none" or "host_memory" in values:
        return []
    unknown = "; the catalog does not say what those have"
    rule = "of the nodes that the plan takes" + (unknown if np.isnan(cluster.host_memory) else "")
    return [Default("host_memory_gb", round(float(plan.host_memory) / GB), rule)]


def _lawful(plan: ServingPlan, values: Mapping[str, Any], model: Model, cluster: Cluster) -> None:
    """Raises InputError for a plan that breaks a law, or whose engine does not run there."""
    name, device = values["framework"], cluster.accelerator
    only = engine_named(name).only
    if device.vendor and only not in ("", device.vendor):
        raise InputError(
            f"{name} runs on {only}'s accelerators alone, not on {device.name}; state another "
            "--framework, or none"
        )
    _consistent(plan, values)
    enforce(serving_rules(plan, model, cluster.accelerator.vendor), plan)
    enforce_host(model, plan)
    _reachable(plan, cluster)


def _consistent(plan: ServingPlan, values: Mapping[str, Any]) -> None:
    if int(plan.gpus) != values["gpus"]:
        raise InputError(
            f"gpus {values['gpus']} is not tp {int(plan.tp)} x pp {int(plan.pp)} x dp "
            f"{int(plan.dp)}"
            + (" + prefill_workers x prefill_tp x prefill_dp" if read_apart(values) else "")
            + f" = {int(plan.gpus)}"
        )


def _reachable(plan: ServingPlan, cluster: Cluster) -> None:
    if enough_accelerators(plan, cluster):
        return
    if cluster.prefill is not None:
        raise InputError(
            f"{cluster.name} or {cluster.prefill.name}, on which prompts are read, has no network "
            "that reaches as many accelerators as the plan takes of it"
        )
    raise InputError(
        f"{cluster.name} has no network beyond {cluster.tiers[-1].size:g} accelerators, "
        f"the plan needs {int(plan.gpus)}"
    )


def _offload(filler: Filler, accelerator: Accelerator) -> None:
    """The host that holds weights and cache, where one does."""
    values = filler.values
    if values.get("offload", "none") == "none":
        return
    if "host_memory_gb" in values:
        values["host_memory"] = values.pop("host_memory_gb") * GB
    for key, name, usual, rule in (
        ("host_bandwidth_gbs", "host_bandwidth", HOST_BANDWIDTH, "eight channels of DDR4-3200"),
        ("host_link_gbs", "host_link", default_link(accelerator), "copies over PCIe of its year"),
    ):
        if key in values:
            values[name] = values.pop(key) * GB
        filler.fill(name, usual, rule)


def _load(filler: Filler) -> None:
    """How many requests there are at a time: a static batch, a concurrency, as many as fit, or as
    many as a rate of arrivals leaves running."""
    values = filler.values
    kinds = ("batch", "concurrency", "saturated", "rate")
    named = [name for name in kinds if values.get(name)]
    if len(named) > 1:
        raise InputError(f"give one of --{' and --'.join(named)}, not both")
    if values.pop("saturated", None) or "rate" in values:
        values["batch"], values["serving"] = np.inf, 1.0
    elif "concurrency" in values:
        values["batch"], values["serving"] = float(values.pop("concurrency")), 1.0
    else:
        values["serving"] = 0.0
        values["batch"] = float(filler.fill("batch", 1, "one request unless stated"))
