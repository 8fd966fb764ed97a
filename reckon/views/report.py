"""Pictures of a search in one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.memory import serving_memory
from predictor.search import brief, engine_brief
from predictor.units import GIB
from predictor.variation import NONE
from reckon.verbs.offers import InferenceSearch
from reckon.verbs.plans import TrainingSearch
from reckon.views import variation
from reckon.views.fleets import limit_brief
from reckon.views.page import marked
from reckon.views.pictures import COLOURS, GREY, LOG, Chart, assumptions, table, write_page
from reckon.views.terminal import TERM_NAMES, four, seconds

MOST_POINTS = 3000
"""Plans behind the Pareto front that are drawn."""

VARIANTS = 5
"""Plans with another choice that are taken apart beside the best."""

BEYOND = 20.0
"""Times per token are drawn up to so many times the least."""


def write_training(path: Path, found: TrainingSearch, top: int = 10, command: str = "") -> None:
    """Pictures of `reckon plan train`: the front, how sure the order is, time and memory of plans
    that differ.

    path      of the HTML file
    top       plans that are listed
    command   that was given, for the page

    Raises InputError where the file cannot be written.
    """
    counts, result = found.result.counts, found.result
    shown = list(range(min(top, len(result))))
    differing = _differing(found)
    charts = [_front(found), _order(found, shown), *_apart(found, differing)]
    if found.saving:
        charts.insert(2, _energy(found))
    if result.machines.name != NONE:
        charts += variation.pictures(found)
    lead = (
        f"{counts.enumerated:,} plans, {counts.possible:,} possible, {counts.fitting:,} fit, "
        f"{counts.timed:,} timed."
    )
    if found.own is not None:
        lead += (
            f" Yours takes {seconds(found.own.step_time)}, the best "
            f"{seconds(float(result.step_time[0]))}."
        )
    write_page(
        path,
        f"Plans for {result.model.name} on {result.cluster.name}",
        lead,
        charts,
        [_plans(found, shown), *assumptions(result.assumed, command)],
    )


def _front(found: TrainingSearch) -> Chart:
    """Step time against peak memory: the plans, the front of each number of GPUs, one's own."""
    result = found.result
    some = np.unique(np.linspace(0, len(result) - 1, min(MOST_POINTS, len(result))).astype(int))
    data: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "markers", "name": "plans", "x": result.step_time[some],
         "y": result.memory[some] / GIB, "marker": {"size": 4, "color": GREY, "opacity": 0.5},
         "hoverinfo": "skip"}
    ]  # fmt: skip
    fronts = np.unique(result.gpus[result.frontier])
    for number, count in enumerate(fronts):
        own = [at for at in found.front() if result.gpus[at] == count]
        own.sort(key=lambda at: result.step_time[at])
        colour = COLOURS[number % len(COLOURS)]
        data.append(
            {"type": "scatter", "mode": "lines+markers", "name": f"front, {count:g} GPUs",
             "x": result.step_time[own], "y": result.memory[own] / GIB,
             "line": {"shape": "hv", "color": colour}, "marker": {"size": 7, "color": colour},
             "text": [brief(result.plan(at)) for at in own],
             "hovertemplate": "%{x:.4g} s, %{y:.1f} GiB<br>%{text}<extra></extra>"}
        )  # fmt: skip
    if found.own is not None:
        data.append(
            {"type": "scatter", "mode": "markers+text", "name": "yours", "text": ["yours"],
             "x": [found.own.step_time], "y": [found.own.memory / GIB],
             "textposition": "top center",
             "marker": {"size": 13, "symbol": "diamond", "color": COLOURS[1]}}
        )  # fmt: skip
    capacity = float(result.cluster.accelerator.memory) / GIB
    layout = {
        "height": 440,
        "xaxis": {"title": {"text": "step time, s"}, **LOG, "dtick": "D2"},
        "yaxis": {"title": {"text": "peak memory, GiB"}, "rangemode": "tozero"},
        **marked("y", capacity, "capacity"),
    }
    return Chart("Step time against memory", data, layout)


def _energy(found: TrainingSearch) -> Chart:
    """Step time against energy: the Pareto front of plans under limits of power."""
    front, result = found.saving, found.result
    told = [
        f"{brief(result.plan(one.position))}, "
        + ("own limit" if one.limit is None else f"{one.limit:g} W")
        for one in front
    ]
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": "front",
         "x": [one.step_time for one in front], "y": [one.energy / 1e3 for one in front],
         "line": {"shape": "hv", "color": COLOURS[0]}, "marker": {"size": 7},
         "text": told, "hovertemplate": "%{x:.4g} s, %{y:.4g} kJ<br>%{text}<extra></extra>"}
    ]  # fmt: skip
    layout = {
        "height": 380,
        "xaxis": {"title": {"text": "step time, s"}},
        "yaxis": {"title": {"text": "energy of a sample, kJ"}},
        "showlegend": False,
    }
    note = "The best plans, each under its own and lower limits of power."
    return Chart("Step time against energy", data, layout, note)


def _order(found: TrainingSearch, shown: Sequence[int]) -> Chart:
    """How much slower than the best plans are, with the interval of the ratio: what reaches 1 is a
    tie."""
    rows = [
        (f"{at + 1}: {brief(found.result.plan(at))}", own)
        for at, own in zip(shown, found.ratios(list(shown)), strict=True)
    ]
    if found.own is not None:
        rows.append((f"yours: {found.own.label}", found.own.slower))
    values = [100 * (own.value - 1) for _, own in rows]
    error = {
        "type": "data", "symmetric": False, "thickness": 3, "width": 0, "color": COLOURS[0],
        "array": [100 * (own.high - own.value) for _, own in rows],
        "arrayminus": [100 * (own.value - own.low) for _, own in rows],
    }  # fmt: skip
    level = found.result.calibration.interval_level
    data = [
        {"type": "scatter", "mode": "markers", "x": values, "y": [label for label, _ in rows],
         "error_x": error, "marker": {"size": 9, "color": COLOURS[0]}, "showlegend": False}
    ]  # fmt: skip
    layout = {
        "height": 130 + 34 * len(rows),
        "xaxis": {"title": {"text": "step time over the best's, %"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "type": "category"},
    }
    note = f"Bars are {level:.0%} intervals of the ratio; what reaches 0 ties with the best."
    return Chart("How sure the order is", data, layout, note)


def _differing(found: TrainingSearch) -> list[tuple[str, Any]]:
    """Plans that are worth taking apart: the best, and the best with another value of a choice,
    those that cost most; not ten that are the same but for a word."""
    result = found.result
    positions = [0]
    for one in sorted(found.alternatives, key=lambda one: -one.ratio.value):
        if one.position not in positions and len(positions) <= VARIANTS:
            positions.append(one.position)
    rows = [(f"{at + 1}: {brief(result.plan(at))}", found.prediction(at)) for at in positions]
    return rows


def _apart(found: TrainingSearch, rows: Sequence[tuple[str, Any]]) -> list[Chart]:
    """Time and memory of plans, part by part."""
    labels = [label for label, _ in rows]
    times = {
        name: [float(one.breakdown[term]) for _, one in rows] for term, name in TERM_NAMES.items()
    }
    fullest = []
    for _, one in rows:
        classes = {name: np.asarray(v, float) for name, v in one.memory.classes.items()}
        total = np.where(one.memory.present, sum(classes.values()), -1.0)
        stage = int(np.argmax(total))
        fullest.append({name: float(value[stage]) / GIB for name, value in classes.items()})
    memory = {name: [one[name] for one in fullest] for name in fullest[0]}
    capacity = float(found.result.cluster.accelerator.memory) / GIB
    held = _bars("Memory of the fullest stage", labels, memory, "GiB")
    return [
        _bars("Where the time goes, for plans that differ", labels, times, "s"),
        Chart(held.title, held.data, {**held.layout, **marked("x", capacity, "capacity")}),
    ]


def _bars(
    title: str, labels: Sequence[str], stacks: Mapping[str, Sequence[float]], unit: str
) -> Chart:
    """Horizontal stacked bars, the first label on top."""
    shown = {name: values for name, values in stacks.items() if any(v > 0 for v in values)}
    data = [
        {"type": "bar", "orientation": "h", "y": list(labels), "x": list(values), "name": name,
         "marker": {"color": COLOURS[number % len(COLOURS)],
                    "opacity": 1.0 if number < len(COLOURS) else 0.55}}
        for number, (name, values) in enumerate(shown.items())
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "height": 170 + 34 * len(labels),
        "xaxis": {"title": {"text": unit}},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "legend": {"orientation": "h", "y": -0.3},
    }
    return Chart(title, data, layout)


def _plans(found: TrainingSearch, shown: Sequence[int]) -> str:
    """The best plans, with their intervals."""
    rows = []
    for entry in found.entries(list(shown)):
        step = entry["step_time_s"]
        rows.append(
            [entry["rank"], brief(found.result.plan(entry["rank"] - 1)), entry["gpus"],
             four(step["value"]), f"{four(step['low'])} to {four(step['high'])}",
             f"{entry['over_best']['value'] - 1:+.1%}{' =' if entry['tie_with_best'] else ''}",
             f"{entry['tokens_per_s_per_gpu']:,.0f}", f"{entry['peak_gb'] * 1e9 / GIB:.1f}"]
        )  # fmt: skip
    columns = ["#", "plan", "GPUs", "step s", "interval", "over the best", "tok/s/GPU", "GiB"]
    return f"<h2>Best plans</h2>{table(columns, rows, wrap=1)}"


def write_inference(path: Path, found: InferenceSearch, top: int = 10, command: str = "") -> None:
    """Pictures of `reckon plan infer`: throughput against latency, fleets against the promise,
    memory, the load.

    path      of the HTML file
    top       fleets that are listed
    command   that was given, for the page

    Raises InputError where the file cannot be written.
    """
    fleets = found.shown(top)
    labels = [
        f"{n}: {f.count} x {engine_brief(f.engine.plan)}, {f.engine.cluster.accelerator.name}"
        for n, f in enumerate(fleets, start=1)
    ]
    charts = [_curves(found), _held(found, fleets, labels)]
    if len({fleet.gpus for fleet in fleets}) > 1:
        charts.insert(1, _bars("Fleets", labels, {"GPUs": [float(f.gpus) for f in fleets]}, "GPUs"))
    if found.saving:
        charts.append(_saving(found))
    if len(found.load.rates) > 1:
        charts.append(_load(found))
    rows = [
        [label, fleet.gpus, seconds(fleet.ttft), seconds(fleet.tpot),
         "" if fleet.spent is None else f"{fleet.spent.power:.0f}",
         "" if fleet.spent is None else four(fleet.spent.energy / found.output_len)]
        for label, fleet in zip(labels, fleets, strict=True)
    ]  # fmt: skip
    share = f"{found.promise.tpot_share:.0%} of requests"
    names = ["fleet", "GPUs", "first token", f"per token ({share})", "W per GPU", "J per token"]
    listed = table(names, rows)
    write_page(
        path,
        f"Fleets for {found.model.name}",
        f"{found.load.peak:g} requests/s at the peak, {found.input_len:g} tokens in, "
        f"{found.output_len:g} out. Why: {found.reason}.",
        charts,
        [f"<h2>Fleets</h2>{listed}", *assumptions((), command)],
    )


def _curves(found: InferenceSearch) -> Chart:
    """Throughput against time per token: engines, their front, the promise. Beyond what an engine
    carries its latency has no bound; what lies far out is not drawn."""
    best = found.front
    least = min((slow for _, slow, _ in best if np.isfinite(slow)), default=np.nan)
    most = BEYOND * least
    if np.isfinite(found.promise.tpot):
        most = max(most, 2.0 * found.promise.tpot)
    data: list[dict[str, Any]] = []
    for engine in found.found.engines[:120]:
        rate, _, tpot = (np.asarray(column, float) for column in engine.curve)
        inside = np.isfinite(tpot) & (tpot <= most)
        data.append(
            {"type": "scatter", "mode": "lines", "x": 1e3 * tpot[inside], "showlegend": False,
             "y": (rate * found.output_len / engine.gpus)[inside], "opacity": 0.35,
             "line": {"color": GREY, "width": 1}, "hoverinfo": "skip"}
        )  # fmt: skip
    inside_front = [one for one in best if one[1] <= most]
    data.append(
        {"type": "scatter", "mode": "lines+markers", "name": "front",
         "x": [1e3 * slow for _, slow, _ in inside_front],
         "y": [gain for gain, _, _ in inside_front],
         "line": {"color": COLOURS[0]}, "marker": {"size": 7},
         "text": [f"{engine_brief(e.plan)} on {e.cluster.accelerator.name}"
                  for _, _, e in inside_front],
         "hovertemplate": "%{x:.3g} ms, %{y:.4g} tokens/s/GPU<br>%{text}<extra></extra>"}
    )  # fmt: skip
    layout: dict[str, Any] = {
        "height": 440,
        "xaxis": {"title": {"text": "time per token, ms"}, **LOG, "dtick": "D2"},
        "yaxis": {"title": {"text": "output tokens/s per GPU"}, "rangemode": "tozero"},
        "showlegend": False,
    }
    if np.isfinite(found.promise.tpot):
        promised = marked("x", float(np.log10(1e3 * found.promise.tpot)), "promise")
        shape = {**promised["shapes"][0], "x0": 1e3 * found.promise.tpot,
                 "x1": 1e3 * found.promise.tpot}  # fmt: skip
        layout |= {**promised, "shapes": [shape]}
    return Chart("Throughput against latency", data, layout)


def _saving(found: InferenceSearch) -> Chart:
    """Time against energy per token: the front of the best engines under limits of power."""
    front = found.saving
    told = [
        f"{engine_brief(one.engine.plan)} on {one.engine.cluster.accelerator.name}, limit "
        f"{limit_brief(one.engine)} W"
        for one in front
    ]
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": "front",
         "x": [1e3 * one.tpot for one in front], "y": [one.energy for one in front],
         "line": {"shape": "hv", "color": COLOURS[0]}, "marker": {"size": 7}, "text": told,
         "hovertemplate": "%{x:.3g} ms, %{y:.4g} J<br>%{text}<extra></extra>"}
    ]  # fmt: skip
    layout = {
        "height": 380,
        "xaxis": {"title": {"text": "time per token, ms"}, **LOG, "dtick": "D2"},
        "yaxis": {"title": {"text": "energy of a token, J"}, **LOG},
        "showlegend": False,
    }
    return Chart("Time against energy per token", data, layout)


def _held(found: InferenceSearch, fleets: Sequence[Any], labels: Sequence[str]) -> Chart:
    """Memory of an accelerator of each fleet."""
    held = []
    for fleet in fleets:
        engine = fleet.engine
        memory = serving_memory(found.model, engine.cluster, engine.plan, found.calibration.run)
        held.append({name: float(value) / GIB for name, value in memory.classes.items()})
    stacks = {name: [one[name] for one in held] for name in held[0]}
    what = "Memory of a GPU that decodes" if any(f.engine.apart for f in fleets) else "Memory"
    return _bars(what, labels, stacks, "GiB")


def _load(found: InferenceSearch) -> Chart:
    """The load over the day, and the most that the fleet carries."""
    fleet = found.fleets[0]
    most = float(fleet.engine.rate * fleet.count)
    data = [
        {"type": "scatter", "x": found.load.hours, "y": found.load.rates, "name": "load",
         "line": {"shape": "hv", "color": COLOURS[0]}}
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "hour"}},
        "yaxis": {"title": {"text": "requests/s"}, "rangemode": "tozero"},
        **marked("y", most, "the fleet's most"),
    }
    return Chart("Load", data, layout)
