"""Fills in what a request leaves unstated, by written rules, and reports every field it filled.

The same rules serve users and rows of published tables; none of them looks at a measured value.
Order: model by name; node and network from the catalog; framework defaults; layout; micro-batch;
recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    STORED,
    Assumption,
    Filler,
    TrainingPlanSpec,
    complete_cluster,
    framework_settings,
    named_model,
    scale_up,
    spelled,
    with_host,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.memory import memory, node_memory
from predictor.models import Model
from predictor.plans import (
    CATEGORY_FIELDS,
    FIT,
    SCHEDULES,
    SHARDINGS,
    TrainingPlan,
    V,
    check,
    stack,
)
from predictor.precision import PEAK, PRECISIONS
from predictor.timing import RunParameters
from predictor.training.reliability import Reliability
from predictor.units import GB


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRequest:
    """A complete training request.

    tokens   budget to train on, if one was given
    price    of an accelerator for an hour, in any currency, if one was given
    """

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    tokens: float | None
    assumed: tuple[Assumption, ...]
    reliability: Reliability
    price: float | None = None


def _precision(filler: Filler, model: Model, accelerator: Accelerator) -> str:
    best = next((d for d in ("bf16", "fp16", "fp32") if d in accelerator.peak), "bf16")
    rule = "bf16 where the accelerator has it, else fp16, else fp32"
    if model.quantization is not None:
        rule = f"{STORED} ({model.quantization.method}): widened before it is trained, to {rule}"
    precision = filler.fill("precision", best, rule)
    recipe = PRECISIONS[precision]
    for dtype in (recipe.linear, recipe.core):
        accelerator.peak_for(PEAK.get(dtype, dtype))
    return str(precision)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _layouts(model: Model, per_node: int, values: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Possible (tp, pp), fewest GPUs per replica first and TP before PP, TP inside the node."""
    if SHARDINGS[values["sharding"]].weights:
        values = {"tp": 1, "pp": 1, **values}  # sharded weights stand in for model parallelism
    powers = [2**i for i in range(20) if 2**i <= per_node and model.heads % 2**i == 0]
    tps = [values["tp"]] if "tp" in values else [t for t in powers if model.ffn_hidden % t == 0]
    pps = [values["pp"]] if "pp" in values else _divisors(model.layers)
    pairs = [(tp, pp) for tp in tps for pp in pps]
    gpus, cp = values.get("gpus"), values.get("cp", 1)
    if gpus is not None:
        pairs = [(tp, pp) for tp, pp in pairs if gpus % (tp * pp * cp) == 0]
    return sorted(pairs, key=lambda pair: (pair[0] * pair[1], -pair[0]))


def _batch_divides(values: Mapping[str, Any], tp: int, pp: int) -> bool:
    gpus = values.get("gpus")
    if gpus is None:
        return True
    ranks = gpus // (tp * pp * values.get("cp", 1)) * values.get("micro_batch", 1)
    return bool(values["global_batch"] % ranks == 0)


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
    cluster = with_host(cluster, values)
    for field in ("seq_len", "global_batch"):
        if field not in values:
            raise InputError(f"give --{field.replace('_', '-')}: it has no default")
    precision = _precision(filler, model, cluster.accelerator)
    recipe = PRECISIONS[precision]

    framework = spelled(filler.fill("framework", "neutral", "no framework was named"))
    values["framework"] = framework
    settings, label = framework_settings(framework, values.get("era"))
    filler.values.setdefault("era", "neutral")
    filler.fill("cp", 1, "no context parallelism unless asked for")
    pipeline = SCHEDULES[values.get("schedule", "1f1b")]
    if pipeline.fold == V:
        filler.fill("vpp", 2, "a pipeline that folds has two stages on each device")
    filler.fill("vpp", 1, "no interleaving unless asked for")
    if model.is_moe and values.get("schedule") in ("dualpipe", "dualpipev"):
        filler.fill("ep_overlap", True, "forward and backward chunks that run together")
    filler.fill("micro_batch", 1, "one sequence unless stated")
    split = settings.pop("sequence_parallel", False)
    recompute = settings.pop("recompute", FIT)
    if values.get("recompute") == FIT:
        recompute = values.pop("recompute")
    means = settings.pop("means")
    if values.get("recompute") in means:
        values["recompute"] = means[values["recompute"]]
    for field, value in settings.items():
        filler.fill(field, value, f"default of {label}")
    if not model.is_moe:
        values.pop("expert_load", None)
    else:
        filler.fill("expert_load", TRAINED_LOAD, "routers trained to balance (Fedus et al. 2021)")
    rule = f"precision {precision}"
    filler.fill("weight_bytes", recipe.weight, rule)
    filler.fill("optimizer_bytes", recipe.optimizer, rule)
    filler.fill("gradient_bytes", 4.0, "gradients accumulate in fp32")
    filler.fill("reduce_bytes", 4.0, "gradients are reduced in fp32")
    filler.fill("gather_bytes", recipe.weight, rule)

    if values.get("sharding") == "hsdp":
        filler.fill("dp_shard", cluster.accelerators_per_node, "shard inside the node")

    def plan_of(tp: int, pp: int, chosen: str, share: float, modules: str) -> TrainingPlan:
        ranks = tp * pp * values["cp"]
        dp = values.get("dp", max(values.get("gpus", ranks) // ranks, 1))
        parallel = values.get("sequence_parallel", tp > 1 if split == "tp" else split)
        taken = {
            name: values[name]
            for name in (*CATEGORY_FIELDS, *_PLAN_NUMBERS)
            if name in values and name not in ("recompute", "recompute_modules")
        }
        ep, etp = _experts(model, values, tp, ranks // pp * dp, scale_up(cluster))
        return TrainingPlan(
            tp=float(tp),
            pp=float(pp),
            dp=float(dp),
            ep=float(ep),
            etp=float(etp),
            recompute=chosen,
            recompute_modules=modules,
            recompute_share=share,
            sequence_parallel=float(parallel),
            **taken,
        )

    candidates = (
        [(values["tp"], values["pp"])]
        if "tp" in values and "pp" in values
        else [
            pair
            for pair in _layouts(model, cluster.accelerators_per_node, values)
            if _batch_divides(values, *pair)
        ]
    )
    if not candidates:
        raise InputError(
            "no tp and pp inside a node divide the heads, the layers, the GPUs and the global "
            "batch; state --tp and --pp"
        )
    _full_layers(filler, model)
    stated = values.get("recompute", recompute)
    modules = values.get("recompute_modules", "core_attn")
    if stated != FIT:
        options = [(str(stated), float(values.get("recompute_share", 1.0)), modules)]
    else:
        latent = [("selective", 1.0, "mla_up_proj")] if model.is_latent else []
        full = [("full", share, modules) for share in SHARES]
        options = [("none", 1.0, modules), *latent, ("selective", 1.0, modules), *full]
    (tp, pp), (chosen, share, modules) = _first_fit(
        candidates, options, plan_of, model, cluster, run
    )
    fits = "the smallest tp x pp that fits, tp first and inside the node"
    filler.fill("tp", tp, fits)
    filler.fill("pp", pp, fits)
    filler.fill(
        "recompute",
        chosen,
        f"default of {label}" if recompute != FIT else "none, selective or full: first that fits",
    )
    if chosen == "selective":
        filler.fill("recompute_modules", modules, "attention core, or the latents' up-projections")
    if chosen == "full":
        filler.fill("recompute_share", share, "fewest eighths of the layers that fit")
    if "dp" not in values:
        ranks = values["tp"] * values["pp"] * values["cp"]
        if values.get("gpus", ranks) % ranks:
            raise InputError(
                f"gpus {values['gpus']} is not a multiple of tp {tp} x pp {pp} x cp "
                f"{values['cp']} = {ranks}"
            )
        filler.fill("dp", values.get("gpus", ranks) // ranks, "gpus / (tp x pp x cp)")
    filler.fill("sequence_parallel", tp > 1 if split == "tp" else split, f"default of {label}")
    plan = plan_of(tp, pp, chosen, share, modules)
    if model.is_moe:
        filler.fill(
            "ep", int(plan.ep), "most ranks of the scale-up domain that share out the experts"
        )
        filler.fill("etp", int(plan.etp), "tp where ep x tp divides a stage's ranks, else 1")
    filler.fill("gpus", int(plan.gpus), "tp x pp x cp x dp")
    reach = cluster.tiers[-1].size
    if int(plan.gpus) > reach:
        raise InputError(
            f"{cluster.name} has no network beyond {reach:g} accelerators, the plan needs "
            f"{int(plan.gpus)}; state one with --set inter_link_gbps=400"
        )
    if strict:
        if int(plan.gpus) != values["gpus"]:
            raise InputError(
                f"gpus {values['gpus']} is not tp {tp} x pp {pp} x cp {values['cp']} x dp "
                f"{values['dp']} = {int(plan.gpus)}"
            )
        check(plan, model)
    away = max(float(plan.offload_activations), float(plan.offload_optimizer))
    if away > 0 and plan.offload_to == "cpu" and np.isnan(cluster.host_memory):
        known = f"the catalog does not say what hosts of {cluster.name} have"
        filler.fill("host_memory_gb", round(node_memory(cluster) / GB), f"of a node; {known}")
    tokens, price = values.get("tokens"), values.get("price_per_gpu_hour")
    if price is not None and tokens is None:
        raise InputError("--price-per-gpu-hour is of a whole run; give --tokens too")
    trust = _reliability(filler) if tokens is not None else reliability_of(reliability_defaults())
    return TrainingRequest(model, cluster, plan, tokens, tuple(filler.assumed), trust, price)


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


def _experts(
    model: Model, values: Mapping[str, Any], tp: int, ranks: int, domain: int
) -> tuple[int, int]:
    """Expert parallelism and expert tensor parallelism of a stage of `ranks` accelerators: as
    stated; else the experts are divided among the ranks of a scale-up `domain` as far as both
    numbers allow (among those of the stage where weights are sharded, since what is divided need
    not be gathered), and split as the rest of the layer is where that divides the stage (Megatron
    Core's default)."""
    if not model.is_moe:
        return int(values.get("ep", 1)), int(values.get("etp", 1))
    reach = ranks if SHARDINGS[values["sharding"]].weights else domain
    near = max(d for d in _divisors(math.gcd(model.num_experts, ranks)) if d <= reach)
    ep = int(values.get("ep", near))
    return ep, int(values.get("etp", tp if ranks % (ep * tp) == 0 else 1))


_PLAN_NUMBERS = (
    "micro_batch",
    "global_batch",
    "seq_len",
    "cp",
    "vpp",
    "dp_shard",
    "first_layers",
    "last_layers",
    "recompute_chunk",
    "offload_activations",
    "offload_optimizer",
    "loader_rate",
    "weight_bytes",
    "gradient_bytes",
    "reduce_bytes",
    "gather_bytes",
    "optimizer_bytes",
    "logit_bytes",
    "vocab_multiple",
    "expert_load",
    "routed_nodes",
    "lora_rank",
)

TRAINED_LOAD = 1.1
"""Tokens of the busiest rank over the mean where nothing balances experts by force: Fedus et al.
2021 drop under 1 % of tokens at a capacity of 1.25 per expert; a rank averages over several."""

SHARES = tuple(eighth / 8 for eighth in range(1, 9))
"""Shares of the layers among which the least recomputation that fits is sought."""


def _first_fit(
    candidates: list[tuple[int, int]],
    options: list[tuple[str, float, str]],
    plan_of: Any,
    model: Model,
    cluster: Cluster,
    run: RunParameters,
) -> tuple[tuple[int, int], tuple[str, float, str]]:
    """The first layout, and for it the first recomputation, whose peak memory fits.

    Where nothing fits: the last layout with the last option (the user sees by how much).
    """
    if len(candidates) == 1 and len(options) == 1:
        return candidates[0], options[0]
    capacity = cluster.accelerator.memory
    fits = []
    # Options that differ in numbers only are judged together.
    for _, alike in groupby(options, key=lambda option: (option[0], option[2])):
        several = list(alike)
        batch = stack([plan_of(tp, pp, *option) for tp, pp in candidates for option in several])
        peaks = memory(model, batch, run).peak.reshape(len(candidates), len(several))
        fits.append(np.asarray(peaks <= capacity))
    table = np.concatenate(fits, axis=1)  # (layouts, options)
    if not table.any():
        return candidates[-1], options[-1]
    layout = int(np.argmax(table.any(axis=1)))
    return candidates[layout], options[int(np.argmax(table[layout]))]
