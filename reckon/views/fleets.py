"""What the terminal shows of a search for a fleet."""

from __future__ import annotations

import math

from predictor.search import EngineOffer, engine_brief
from predictor.units import GIB
from reckon.verbs.finalists import Fleet
from reckon.verbs.offers import InferenceSearch
from reckon.views.terminal import four, grid, seconds, strong

FRONT = 8
"""Points of the Pareto front that are listed."""


def _show_fleets(found: InferenceSearch, top: int) -> None:
    """The best fleets, one a line."""
    varying = len(found.load.rates) > 1
    priced = found.fleets[0].cost is not None
    rows = []
    fleets = found.shown(top)
    powered = any(fleet.spent is not None for fleet in fleets)
    held = any(limit_brief(fleet.engine) != OWN for fleet in fleets)
    for number, fleet in enumerate(fleets, start=1):
        engine = fleet.engine
        rows.append(
            [
                str(number),
                engine.cluster.machines,
                engine_brief(engine.plan),
                str(fleet.gpus),
                f"{fleet.count} x {engine.gpus:g}",
                seconds(fleet.ttft),
                seconds(fleet.tpot),
                four(engine.rate),
                f"{engine.running:.0f}",
                f"{engine.memory / GIB:.1f}",
                *([limit_brief(engine)] if held else []),
                *(_spent(fleet, found.output_len) if powered else []),
                *([f"{fleet.cost:,.2f}"] if fleet.cost is not None else []),
                *([f"{fleet.hours:,.0f}"] if varying else []),
                *(
                    [f"{fleet.cost_scaled:,.2f}"]
                    if varying and fleet.cost_scaled is not None
                    else []
                ),
            ]
        )
    columns = ["#", "accelerator", "engine", "GPUs", "engines", "TTFT", "TPOT", "req/s", "running"]
    columns += ["GiB", *(["limit W"] if held else [])]
    columns += ["W", "J/token"] if powered else []
    columns += [*(["cost/h"] if priced else []), *(["GPU-h scaled"] if varying else [])]
    columns += ["cost/h scaled"] if varying and priced else []
    print(grid(columns, rows, left=3))


def show_inference(found: InferenceSearch, top: int) -> None:
    """Print a search."""
    load, promise = found.load, found.promise
    varying = len(load.rates) > 1
    hours = f", {len(load.rates)} hours, mean {load.rates.mean():.4g}" if varying else ""
    print(
        f"{strong(found.model.name)}, {load.peak:.4g} requests/s{hours}, "
        f"{found.input_len:g} tokens in and {found.output_len:g} out"
    )
    terms = [
        f"{name} at most {seconds(limit)} for {share:.4g} of requests"
        for name, limit, share in (
            ("first token", promise.ttft, promise.ttft_share),
            ("time per token", promise.tpot, promise.tpot_share),
        )
        if math.isfinite(limit)
    ]
    print(f"promise: {'; '.join(terms) or 'none'}")
    counts = found.found
    print(
        f"{counts.enumerated:,} ways to serve: {counts.possible:,} possible, "
        f"{counts.fitting:,} fit, {counts.keeping:,} keep the promise\n"
    )
    _show_fleets(found, top)
    shares = f"{promise.ttft_share:.0%} and {promise.tpot_share:.0%}"
    print(f"TTFT and TPOT of {shares} of the requests at the peak; req/s: most that one carries")
    print(f"why: {found.reason}\n")
    front = found.front
    step = max(1, math.ceil(len(front) / FRONT))
    print(strong("throughput against latency"))
    table = [
        [f"{gain:,.0f}", seconds(slow), engine.cluster.machines, engine_brief(engine.plan)]
        for gain, slow, engine in front[::step]
    ]
    print(grid(["output tok/s/GPU", "TPOT", "accelerator", "engine"], table, left=0))
    if found.saving:
        print(f"\n{_saving(found)}")
    print(f"\n{_served(found)}")


OWN = "own"
"""Limit of power of accelerators as they are."""


def limit_brief(engine: EngineOffer) -> str:
    """Limits of power of an engine's accelerators in a few words [W]."""
    own = OWN if engine.limit is None else f"{engine.limit:g}"
    return own if engine.reading is None else f"{own}, prefill {engine.reading:g}"


def _saving(found: InferenceSearch) -> str:
    """The Pareto front of time per token and energy per token."""
    front = found.saving
    step = max(1, math.ceil(len(front) / FRONT))
    rows = [
        [
            seconds(one.tpot),
            four(one.energy),
            limit_brief(one.engine),
            four(one.rate),
            one.engine.cluster.machines,
            engine_brief(one.engine.plan),
        ]
        for one in front[::step]
    ]
    names = ["TPOT", "J/token", "limit W", "req/s", "accelerator", "engine"]
    return f"{strong('energy against latency')}\n{grid(names, rows, left=0)}"


def _spent(fleet: Fleet, tokens: float) -> list[str]:
    """Watts of an accelerator at the peak, and energy of an output token."""
    own = fleet.spent
    return ["", ""] if own is None else [f"{own.power:.0f}", four(own.energy / tokens)]


def _served(found: InferenceSearch) -> str:
    """What came of requests served one by one: by the first fleet, and by those dropped for it."""
    best = found.simulated
    lines = [
        f"{best.requests:,} requests served one by one by an engine of the first: "
        f"first token {seconds(best.figures['ttft_s_at_share'])}, time per token "
        f"{seconds(best.figures['tpot_s_at_share'])} at the same shares (the rest are not "
        "simulated, but the best of the other kind)"
    ]
    for one in found.trials:
        if one.broken:
            engine = one.fleet.engine
            where = f"{engine_brief(engine.plan)} on {engine.cluster.machines}"
            lines.append(f"dropped, served so: {one.fleet.count} x {where} {one.broken}")
    return "\n".join(lines)
