"""Pictures of a search in one HTML file that opens offline (plotly, optional: `reckon[report]`)."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import InputError
from predictor.files import write_text
from predictor.memory import serving_memory
from predictor.search import brief, engine_brief
from predictor.units import GB
from reckon import __version__
from reckon.verbs.fleets import InferenceSearch
from reckon.verbs.plans import TrainingSearch
from reckon.views.plans import table
from reckon.views.terminal import TERM_NAMES, seconds

MOST_POINTS = 4000
"""Plans behind the Pareto front that are drawn: the best."""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 2em auto; max-width: 72em }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1em }}</style></head>
<body><h1>{title}</h1><p>{lead}</p>
{figures}
<pre>{table}</pre>
<p>reckon {version}</p></body></html>
"""


def _plotly() -> Any:
    """plotly's graph objects. Raises InputError where it is not installed."""
    try:
        import plotly.graph_objects as graphs
    except ImportError:
        raise InputError(
            "--report needs plotly, which is not installed: pip install 'reckon[report]'"
        ) from None
    return graphs


def _page(path: Path, title: str, lead: str, figures: list[Any], text: str) -> None:
    """Write the page; the first figure brings plotly's script along."""
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(figures)
    ]
    page = PAGE.format(
        title=html.escape(title),
        lead=html.escape(lead),
        figures="\n".join(parts),
        table=html.escape(re.sub(r"\x1b\[[0-9;]*m", "", text)),
        version=__version__,
    )
    write_text(path, page)


def _bars(
    graphs: Any, labels: list[str], stacks: dict[str, list[float]], title: str, unit: str
) -> Any:
    """Horizontal stacked bars, the first label on top."""
    figure = graphs.Figure()
    for name, values in stacks.items():
        if any(value > 0 for value in values):
            figure.add_bar(y=labels, x=values, name=name, orientation="h")
    figure.update_layout(
        barmode="stack", title=title, xaxis_title=unit, height=220 + 32 * len(labels)
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def write_training(path: Path, found: TrainingSearch, top: int = 10) -> None:
    """Pictures of `reckon plan train`: Pareto front, time breakdown, memory.

    path   of the HTML file
    top    plans that get bars
    """
    graphs = _plotly()
    result = found.result
    shown = list(range(min(top, len(result))))
    labels = [f"{at + 1}: {brief(result.plan(at))}" for at in shown]
    front = graphs.Figure()
    some = np.arange(min(MOST_POINTS, len(result)))
    front.add_scattergl(
        x=result.step_time[some],
        y=result.memory[some] / GB,
        mode="markers",
        name="plans",
        marker={"size": 5, "color": "lightgrey"},
        text=[f"rank {at + 1}, {result.gpus[at]:g} GPUs" for at in some],
    )
    for count in np.unique(result.gpus[result.frontier]):
        own = [at for at in found.front() if result.gpus[at] == count]
        own.sort(key=lambda at: result.step_time[at])
        front.add_scatter(
            x=result.step_time[own],
            y=result.memory[own] / GB,
            mode="lines+markers",
            name=f"{count:g} GPUs, Pareto front",
            text=[brief(result.plan(at)) for at in own],
        )
    capacity = float(result.cluster.accelerator.memory) / GB
    front.add_hline(y=capacity, line_dash="dash", annotation_text="capacity")
    front.update_layout(
        title="Step time against memory", xaxis_title="step time, s", yaxis_title="peak memory, GB"
    )
    front.update_xaxes(type="log")
    predictions = [found.prediction(at) for at in shown]
    times = {
        name: [float(one.breakdown[term]) for one in predictions]
        for term, name in TERM_NAMES.items()
    }
    fullest = []
    for one in predictions:
        classes = {name: np.asarray(v, float) for name, v in one.memory.classes.items()}
        total = np.where(one.memory.present, sum(classes.values()), -1.0)
        stage = int(np.argmax(total))
        fullest.append({name: float(value[stage]) / GB for name, value in classes.items()})
    memory = {name: [one[name] for one in fullest] for name in fullest[0]}
    bars = _bars(graphs, labels, memory, "Memory of the fullest stage", "GB")
    bars.add_vline(x=capacity, line_dash="dash", annotation_text="capacity")
    counts = result.counts
    _page(
        path,
        f"Plans for {result.model.name} on {result.cluster.name}",
        f"{counts.enumerated:,} plans, {counts.possible:,} possible, {counts.fitting:,} fit.",
        [front, _bars(graphs, labels, times, "Time of a step", "s"), bars],
        table(found, shown),
    )


def write_inference(path: Path, found: InferenceSearch, top: int = 10) -> None:
    """Pictures of `reckon plan infer`: throughput against latency, fleets, memory, the load.

    path   of the HTML file
    top    fleets that get bars
    """
    graphs = _plotly()
    front = graphs.Figure()
    for engine in found.found.engines[:200]:
        rate, _, tpot = engine.curve
        front.add_scatter(
            x=1e3 * tpot,
            y=rate * found.output_len / engine.gpus,
            mode="lines",
            line={"color": "lightgrey", "width": 1},
            name=f"{engine_brief(engine.plan)} on {engine.cluster.accelerator.name}",
            showlegend=False,
        )
    best = found.front
    front.add_scatter(
        x=[1e3 * slow for _, slow, _ in best],
        y=[gain for gain, _, _ in best],
        mode="lines+markers",
        name="Pareto front",
        text=[f"{engine_brief(e.plan)} on {e.cluster.accelerator.name}" for _, _, e in best],
    )
    if np.isfinite(found.promise.tpot):
        front.add_vline(x=1e3 * found.promise.tpot, line_dash="dash", annotation_text="promise")
    front.update_layout(
        title="Throughput against latency",
        xaxis_title=f"time per token, ms ({found.promise.tpot_share:.0%} of requests)",
        yaxis_title="output tokens/s per GPU",
    )
    front.update_xaxes(type="log")
    fleets = found.fleets[:top]
    labels = [
        f"{n}: {f.count} x {engine_brief(f.engine.plan)}, {f.engine.cluster.accelerator.name}"
        for n, f in enumerate(fleets, start=1)
    ]
    figures = [front]
    sizes = {"GPUs": [float(fleet.gpus) for fleet in fleets]}
    figures.append(_bars(graphs, labels, sizes, "Fleets", "GPUs"))
    held = []
    for fleet in fleets:
        engine = fleet.engine
        memory = serving_memory(found.model, engine.cluster, engine.plan, found.calibration.run)
        held.append({name: float(value) / GB for name, value in memory.classes.items()})
    stacks = {name: [one[name] for one in held] for name in held[0]}
    what = "Memory of a GPU that decodes" if any(f.engine.apart for f in fleets) else "Memory"
    figures.append(_bars(graphs, labels, stacks, what, "GB"))
    if len(found.load.rates) > 1:
        load = graphs.Figure()
        load.add_scatter(x=found.load.hours, y=found.load.rates, name="load", line={"shape": "hv"})
        most = fleets[0].engine.rate
        load.add_hline(
            y=most * fleets[0].count, line_dash="dash", annotation_text="the fleet's most"
        )
        load.update_layout(title="Load", xaxis_title="hour", yaxis_title="requests/s")
        figures.append(load)
    text = "\n".join(
        f"{label}: {fleet.gpus} GPUs, TTFT {seconds(fleet.ttft)}, TPOT {seconds(fleet.tpot)}"
        for label, fleet in zip(labels, fleets, strict=True)
    )
    lead = f"{found.load.peak:g} requests/s at the peak, {found.input_len:g} tokens in, "
    _page(
        path,
        f"Fleets for {found.model.name}",
        f"{lead}{found.output_len:g} out. Why: {found.reason}.",
        figures,
        text,
    )
