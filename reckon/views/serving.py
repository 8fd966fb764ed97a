"""What the terminal shows of serving: latencies, throughput, memory, what holds it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.serving import FleetSettings, Mixture, Served
from predictor.units import GB, GIB
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import ServingSweep
from reckon.views.terminal import (
    bar,
    four,
    grid,
    power_cells,
    seconds,
    short,
    show_assumed,
    show_idle,
    show_reach,
    strong,
    with_interval,
    with_time,
)

TERM_NAMES = {
    "linear": "linear layers",
    "experts": "experts",
    "attention": "attention",
    "elementwise": "norms and elementwise",
    "head": "embedding and head",
    "tp_communication": "tensor-parallel comm.",
    "ep_communication": "expert-parallel comm.",
    "pp_communication": "pipeline transfers",
    "host_transfer": "weights and cache at the host",
    "host": "host and gaps",
    "queue": "queue",
    "transfer": "end of the cache's transfer",
    "others": "prompts of others",
}


def _gib(gigabytes: float) -> str:
    return f"{gigabytes * GB / GIB:.1f}"


def _load(result: ServingResult) -> str:
    plan, replicas = result.request.plan, result.request.around.fleet.replicas
    many = float(plan.batch)
    if replicas > 1:
        own = replace(result.request, around=replace(result.request.around, fleet=FleetSettings()))
        return f"{_load(replace(result, request=own))} to {replicas} replicas (one of them below)"
    if result.request.rate is not None:
        return f"{result.request.rate:g} requests/s"
    if not float(plan.serving):
        return f"batch {many:g}"
    return f"{many:g} clients" if math.isfinite(many) else "as many requests as fit"


def _machines(result: ServingResult) -> str:
    """Accelerators and their systems: those that decode, and those of another that read prompts."""
    own, plan = result.batch.cluster, result.request.plan
    apart = round(float(plan.reading)) if own.prefill else 0
    parts = [(result.gpus - apart, own), *([(apart, own.prefill)] if own.prefill else [])]
    return " + ".join(f"{n} x {one.accelerator.name} ({one.name})" for n, one in parts)


def _show_shortfalls(result: ServingResult) -> None:
    """What keeps a plan from being served: memory, or more requests than it can."""
    memory = result.memory
    if memory["shortfall_gb"] > 0:
        print(
            f"{strong('does not fit', '1;31')}: needs {_gib(memory['total_gb'])} GiB of "
            f"{_gib(memory['capacity_gb'])} GiB, {_gib(memory['shortfall_gb'])} GiB too much; the "
            f"largest batch that fits is {memory['largest_batch']}; more tp or pp, narrower "
            "weights or cache would help"
        )
    if (missing := memory.get("prefill_worker_shortfall_gb", 0.0)) > 0:
        print(
            f"{strong('does not fit', '1;31')}: a prefill worker needs {_gib(missing)} GiB more; "
            "more prefill_tp or prefill_dp would help"
        )
    if result.saturated:
        print(
            f"{strong('saturated', '1;31')}: {result.most:.3g} requests/s is the most that can be "
            "served; the queue grows without end, latencies are those without it"
        )


def _show_memory(memory: Mapping[str, Any]) -> None:
    """Memory against what there is, and what fills it."""
    share = memory["total_gb"] / memory["capacity_gb"]
    print(
        f"memory       {bar(share, 20)}  {memory['total_gb'] * GB / GIB:.1f} of "
        f"{memory['capacity_gb'] * GB / GIB:.1f} GiB, at most {memory['largest_batch']} sequences"
    )
    held = ", ".join(
        f"{name} {size * GB / GIB:.1f}" for name, size in memory["classes"].items() if size > 0.05
    )
    print(f"             GiB: {held}\n")


def _show_longest(result: ServingResult, top: int) -> None:
    """The operators that take longest, of prompts and of new tokens."""
    longest = [
        [
            line.name,
            phase,
            seconds(float(line.time)),
            line.bound,
            f"{line.intensity:.2g}" if line.intensity else "",
            line.pedigree,
        ]
        for phase in ("prefill", "decode")
        for own, line in [pair for pair in result.operators if pair[0] == phase][:top]
        if own == phase
    ]
    columns = ["longest operators", "phase", "per pass", "bound", "compute/memory", "known"]
    print(grid(columns, longest, 2))


def show_serving(result: ServingResult, top: int = 6) -> None:
    """Print one prediction."""
    inputs, plan = result.inputs(), result.request.plan
    layout = " ".join(
        f"{name} {inputs[name]:g}" for name in ("tp", "pp", "dp", "ep") if inputs[name] > 1
    )
    print(
        f"{strong(inputs['model'])} on {_machines(result)}, {layout or 'one rank'}, "
        f"{inputs['weights']}, {inputs['kv']} cache, {_load(result)}, "
        f"{float(plan.input_len):g} tokens in, {float(plan.output_len):g} out"
    )
    _show_shortfalls(result)
    level = result.batch.calibration.interval_level
    per_gpu = result.output_tokens_per_s.value / result.gpus
    rows = [
        ["first token", with_time(result.ttft), f"{level:.0%} interval"],
        ["per token", with_time(result.tpot), "after the first"],
        ["request", with_interval(result.e2e, "s"), f"{result.requests_per_s:.3g} requests/s"],
        [
            "throughput",
            with_interval(result.output_tokens_per_s, "tokens/s"),
            f"{per_gpu:,.{0 if per_gpu >= 10 else 2}f} per GPU",
        ],
    ]
    print(grid(["", "", ""], rows, left=3))
    if result.instead is not None:
        print(
            f"latencies are means of {result.instead.requests:,} requests served one by one, since "
            f"the closed forms are not checked there: {'; '.join(result.instead.because)}\n"
        )
    if result.mixture is not None:
        _show_mixture(result.mixture)
    if result.served is not None:
        _show_served(result, result.served)
    _show_memory(result.memory)
    total = result.e2e.value
    terms = [
        [TERM_NAMES[name], seconds(value), f"{value / total:.1%}", bar(max(value, 0) / total, 20)]
        for name, value in result.breakdown.items()
        if abs(value) > 1e-9
    ]
    print(grid(["time of a request", "", "share", ""], terms), end="\n\n")
    if result.sending is not None:
        print(
            f"a prompt's cache is sent for {seconds(result.sending)}, layer by layer while the "
            f"prompt is read; the end is waited for\n"
        )
    _show_longest(result, top)
    show_assumed(result.request.assumed)
    plan = result.request.plan
    show_reach(result.request.model, float(plan.input_len + plan.output_len))
    show_idle(result.request.idle)


def _show_mixture(found: Mixture) -> None:
    """What all releases that the engine may be predict, and which fact to state."""
    names = {"ttft": "first token", "tpot": "per token", "e2e": "request"}
    told = ", ".join(
        f"{names[metric]} {seconds(value)} ({seconds(low)} to {seconds(high)})"
        for metric, (value, low, high) in found.values.items()
    )
    print(f"\nof {len(found.releases)} releases, {', '.join(found.releases)}: {told}")
    for one in found.doubts[:3]:
        values = " or ".join(f"{value:g}" if isinstance(value, float) else value
                             for value in one.values)  # fmt: skip
        print(f"stating {one.field} ({values}) would decide {one.moves:.0%}")


def _show_served(result: ServingResult, served: Served) -> None:
    """Percentiles of the requests that were served one by one, and what their fleet did."""
    names = {"ttft": "first token", "tpot": "per token", "e2e": "request", "itl": "between tokens"}
    keys = ("mean", "p50", "p90", "p95", "p99")
    rows = [
        [names[name], *(seconds(own[key]) for key in keys)]
        for name, own in served.summary().items()
    ]
    ranks, replicas = round(float(result.request.plan.dp)), result.request.around.fleet.replicas
    of = f" by {replicas} replicas" if replicas > 1 else ""
    each = ""
    if served.replicas > 1:
        of, each = f"{of}, of {served.replicas} data-parallel ranks that meet", " of each"
    elif ranks > 1:
        of += f", of one of {ranks} data-parallel ranks that are alike"
    print(
        f"\n{len(served.arrival)} requests one by one{of}: {served.requests_per_s:.3g} "
        f"requests/s{each}, {served.preempted} preempted"
    )
    print(grid(["", *(key.upper() if key != "mean" else key for key in keys)], rows))
    around, fleet = result.request.around, result.fleet
    if math.isfinite(around.ttft) or math.isfinite(around.tpot):
        share = served.attained(around.ttft, around.tpot)
        print(
            f"{share:.1%} of the requests meet what was promised: a goodput of "
            f"{share * served.requests_per_s * ranks:.3g} requests/s"
            f"{f' of all {ranks}' if ranks > 1 else ''}"
        )
    if fleet is not None:
        print(
            f"{fleet.cached:.1%} of the prompts' tokens were cached; at most {fleet.replicas} "
            f"replicas, {fleet.seconds / 3600.0:.3g} replica-hours"
        )
    print()


def show_serving_sweep(found: ServingSweep) -> None:
    """Print a sweep, one row per combination."""
    names = {"precision": "weights", "kv_precision": "kv", "concurrency": "batch"}
    rows = []
    more, drawn = power_cells(found.predictions)
    for result, stated, watts in zip(found.predictions, found.stated, drawn, strict=True):
        inputs = {**stated, **result.inputs()}
        rows.append(
            [
                *(short(inputs.get(names.get(name, name), "")) for name in found.varying),
                four(result.ttft.value * 1e3),
                four(result.tpot.value * 1e3),
                f"{four(result.tpot.low * 1e3)}..{four(result.tpot.high * 1e3)}",
                four(result.e2e.value),
                f"{result.output_tokens_per_s.value / result.gpus:,.0f}",
                *watts,
                f"{result.memory['total_gb'] * GB / GIB:.1f}" + (" " if result.fits else "!"),
            ]
        )
    columns = ["TTFT ms", "TPOT ms", "interval", "request s", "tokens/s/GPU", *more, "GiB"]
    print(grid([*found.varying, *columns], rows, left=len(found.varying)))
    if any(not result.fits for result in found.predictions):
        print("! does not fit")
    for combination, reason in found.refused:
        named = ", ".join(f"{key}={value}" for key, value in combination.items())
        print(f"{named}: {reason}")
