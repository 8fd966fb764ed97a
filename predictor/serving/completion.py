"""Fills in what a serving request leaves unstated, by written rules, and reports what it filled.

The same rules serve users and rows of published tables; none of them looks at a measured value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    Assumption,
    Filler,
    ServingPlanSpec,
    complete_cluster,
    named_model,
    period,
    scale_up,
    spelled,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import (
    SERVING_CATEGORIES,
    SERVING_NUMBERS,
    ServingPlan,
    enforce,
    runnable,
    serving_rules,
)
from predictor.serving.checkpoint import fill_stored
from predictor.serving.offload import (
    HOST_BANDWIDTH,
    default_link,
    enforce_host,
    hosts_memory,
)
from predictor.timing import RunParameters
from predictor.units import GB
from predictor.work import SCORED

EXPERTS_ONLY = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
"""Data types of which only checkpoints with narrow experts and 16-bit attention are published
(OpenAI 2025, gpt-oss model card)."""

SYNCHRONY = 0.1
"""Of ten requests that a client sends one after the other, the first meets all others'."""


@dataclass(frozen=True, slots=True, eq=False)
class ServingRequest:
    """A complete serving request.

    rate       requests that arrive per second, at random; None: the plan states the load
    simulate   requests to serve one by one; 0: none
    variation  of lengths: uniform within so much of their mean
    """

    model: Model
    cluster: Cluster
    plan: ServingPlan
    assumed: tuple[Assumption, ...]
    rate: float | None = None
    simulate: int = 0
    variation: float = 0.0


@lru_cache(maxsize=1)
def engines() -> Mapping[str, Any]:
    """The table of engine defaults, `data/defaults/engines.yaml`."""
    return catalog.read_mapping(catalog.data_dir() / "defaults" / "engines.yaml")


def _layouts(model: Model, cluster: Cluster, values: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Possible (tp, pp), fewest accelerators first: tp inside the node, then stages."""
    node = scale_up(cluster)
    powers = [2**i for i in range(8) if 2**i <= node and model.heads % 2**i == 0]
    tps = [int(values["tp"])] if "tp" in values else powers
    pps = [int(values["pp"])] if "pp" in values else [1, 2, 4, 8, 16]
    pairs = [(tp, pp) for tp in tps for pp in pps if pp == 1 or tp == max(tps)]
    gpus = values.get("gpus")
    if gpus is not None:
        gpus -= _read_apart(values)
        dp = values.get("dp")
        if dp is not None or ("tp" not in values and "pp" not in values):
            pairs = [(tp, pp) for tp, pp in pairs if tp * pp * (dp or 1) == gpus]
        else:
            pairs = [(tp, pp) for tp, pp in pairs if gpus % (tp * pp) == 0]
    return sorted(pairs, key=lambda pair: (pair[0] * pair[1], -pair[0]))


def _read_apart(values: Mapping[str, Any]) -> int:
    """Accelerators that read prompts and nothing else."""
    return int(values.get("prefill_workers", 0) * values.get("prefill_tp", 1))


def complete_serving(
    spec: ServingPlanSpec,
    run: RunParameters,
    strict: bool = True,
    model: Model | None = None,
    cluster: Cluster | None = None,
) -> ServingRequest:
    """Complete a serving request.

    spec     what the user or the table states
    run      memory parameters, to judge what fits
    strict   refuse plans that break a law; published rows are taken as they are
    model, cluster   already loaded, instead of the names in `spec`

    Raises InputError: a needed field is missing, names are unknown, the plan is impossible.
    """
    filler = Filler(spec.model_dump())
    values = filler.values
    model = model if model is not None else named_model(values)
    cluster = cluster if cluster is not None else complete_cluster(filler)
    accelerator = cluster.accelerator
    for field in ("input_len", "output_len"):
        if field not in values:
            raise InputError(f"give --{field.replace('_', '-')}: it has no default")
    if model.is_sparse and SCORED not in accelerator.peak:
        raise InputError(
            f"{model.name} scores cached keys in {SCORED}, which {accelerator.name} does not "
            "multiply"
        )
    _load(filler)
    fill_stored(filler, model, accelerator)
    best = next((d for d in ("bf16", "fp16", "fp32") if d in accelerator.peak), "bf16")
    filler.fill("precision", best, "bf16 where the accelerator has it, else fp16, else fp32")
    if values["precision"] == "bf16" and "bf16" not in accelerator.peak:
        values["precision"] = best
    own = runnable(values["precision"], accelerator)
    stated = values["precision"]
    if own != values["precision"]:
        rule = f"{accelerator.name} does not multiply {values['precision']}: widened when read"
        filler.assumed.append(Assumption("precision", own, rule))
        values["precision"] = own
    framework = spelled(filler.fill("framework", "neutral", "no engine was named"))
    values["framework"] = framework
    chosen, label = period(engines(), framework, values.get("era"))
    narrow = chosen.get("narrow_cache", ())
    if "fp4" in accelerator.peak:
        narrow = [*narrow, *chosen.get("narrow_cache_fp4", ())]
        if model.is_sparse:
            narrow = [*narrow, *chosen.get("narrow_cache_sparse_fp4", ())]
    if stated in narrow and "fp8" in accelerator.peak:
        filler.fill("kv_precision", "fp8", f"{label} keeps an fp8 cache beside {stated} weights")
    half = own if own in ("bf16", "fp16", "fp32") else best
    filler.fill("kv_precision", half, "as the rest of the attention")
    if model.is_moe and own in EXPERTS_ONLY:
        filler.fill("narrowed", "experts", f"{own} checkpoints are narrow in the experts alone")
    values.setdefault("era", "neutral")
    for field, value in chosen["settings"].items():
        filler.fill(field, value, f"default of {label}")
    filler.fill("synchrony", SYNCHRONY, "lengths vary, and ten requests of a client are averaged")
    filler.fill("cached", 0.0, "no prefix is cached unless stated")
    filler.fill("expert_load", 1.0, "tokens spread evenly over experts unless stated")

    if values.get("offload", "none") != "none":
        _offload(filler, accelerator)
    if "kv_gbs" in values:
        values["kv_rate"] = values.pop("kv_gbs") * GB
    if values.get("prefill_workers"):
        rule = "that of the engine that decodes, where it is stated, else 1"
        filler.fill("prefill_tp", values.get("tp", 1), rule)

    def plan_of(tp: int, pp: int) -> ServingPlan:
        own = values["gpus"] - _read_apart(values) if "gpus" in values else tp * pp
        dp = values.get("dp", max(own // (tp * pp), 1))
        ep = values.get("ep", tp * dp if model.is_moe and dp > 1 else 1)
        taken = {
            name: values[name]
            for name in (*SERVING_CATEGORIES, *SERVING_NUMBERS)
            if name in values and name not in ("tp", "pp", "dp", "ep", "batch")
        }
        if "offload" in taken and taken["offload"] != "none":
            gpus = tp * pp * dp + _read_apart(values)
            taken.setdefault("host_memory", float(hosts_memory(cluster, gpus)))
        return ServingPlan(
            batch=values["batch"],
            tp=float(tp),
            pp=float(pp),
            dp=float(dp),
            ep=float(ep),
            serving=float(values["serving"]),
            weights=values["precision"],
            kv=values["kv_precision"],
            **{k: v for k, v in taken.items() if k not in ("serving", "weights", "kv")},
        )

    candidates = _layouts(model, cluster, values)
    if not candidates:
        if apart := _read_apart(values):
            raise InputError(
                f"prefill_workers take {apart} of {values['gpus']} accelerators, and no tp and pp "
                "divide what is left; state more gpus, fewer workers or another prefill_tp"
            )
        raise InputError("no tp and pp divide the heads and the GPUs; state --tp and --pp")
    tp, pp = candidates[-1]
    for pair in candidates:
        plan = plan_of(*pair)
        room = serving_memory(model, cluster, plan, run)
        if float(room.admitted) >= 1.0:
            tp, pp = pair
            break
    rule = "the smallest tp x pp that holds the weights and a sequence, tp first, inside the node"
    filler.fill("tp", tp, rule)
    filler.fill("pp", pp, rule)
    plan = plan_of(tp, pp)
    filler.fill("dp", int(plan.dp), "gpus / (tp x pp)")
    if model.is_moe:
        filler.fill("ep", int(plan.ep), "all ranks where attention is replicated, else 1")
    filler.fill("gpus", int(plan.gpus), "tp x pp x dp, and those that read prompts apart")
    if plan.offload != "none" and "host_memory" not in values:
        known = "the catalog does not say what those have"
        rule = "of the nodes that the plan takes" + (
            f"; {known}" if np.isnan(cluster.host_memory) else ""
        )
        filler.fill("host_memory_gb", round(float(plan.host_memory) / GB), rule)
    if strict:
        if int(plan.gpus) != values["gpus"]:
            raise InputError(
                f"gpus {values['gpus']} is not tp {tp} x pp {pp} x dp {int(plan.dp)}"
                + (" + prefill_workers x prefill_tp" if _read_apart(values) else "")
                + f" = {int(plan.gpus)}"
            )
        enforce(serving_rules(plan, model), plan)
        enforce_host(model, plan)
        if int(plan.gpus) > cluster.tiers[-1].size:
            raise InputError(
                f"{cluster.name} has no network beyond {cluster.tiers[-1].size:g} accelerators, "
                f"the plan needs {int(plan.gpus)}"
            )
    if values.get("simulate") and not float(plan.serving):
        raise InputError(
            "--simulate needs requests that follow each other: --concurrency or --rate"
        )
    return ServingRequest(
        model,
        cluster,
        plan,
        tuple(filler.assumed),
        values.get("rate"),
        int(values.get("simulate", 0)),
        float(values.get("variation", 0.1)),
    )


def _offload(filler: Filler, accelerator: Accelerator) -> None:
    """The host that holds weights and cache."""
    values = filler.values
    if "host_memory_gb" in values:
        values["host_memory"] = values.pop("host_memory_gb") * GB
    for key, field, usual, rule in (
        ("host_bandwidth_gbs", "host_bandwidth", HOST_BANDWIDTH, "eight channels of DDR4-3200"),
        ("host_link_gbs", "host_link", default_link(accelerator), "copies over PCIe of its year"),
    ):
        if key in values:
            values[field] = values.pop(key) * GB
        filler.fill(field, usual, rule)


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
