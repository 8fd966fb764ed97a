"""Inference: what binds each product by accelerator and phase, and latency against memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.catalog import processor, relative
from predictor.errors import InputError
from predictor.models import Model
from predictor.timing import Shapes, hierarchy
from reckon.explore import explore
from reckon.studies.sweep import bound_figure, figures, saturation
from reckon.views.page import Figure, Result, Series


def products(model: Model, sequences: int, new: int, past: int) -> list[tuple[str, list[float]]]:
    """Matrix products of one layer: name and m, n, k, batch.

    sequences   in the pass; each with `new` tokens behind `past` cached ones
    """
    tokens, keys = float(sequences * new), float(past + new)
    width = model.heads * model.head_dim
    return [
        ("query, key, value", [tokens, width + 2.0 * model.kv_width, model.hidden, 1.0]),
        ("scores", [float(new), keys, model.head_dim, float(sequences * model.heads)]),
        ("context", [float(new), model.head_dim, keys, float(sequences * model.heads)]),
        ("output", [tokens, float(model.hidden), width, 1.0]),
        (
            "up and gate",
            [tokens, (2.0 if model.gated else 1.0) * model.ffn_hidden, model.hidden, 1.0],
        ),
        ("down", [tokens, float(model.hidden), model.ffn_hidden, 1.0]),
    ]


def bounds(parameters: Mapping[str, Any]) -> pd.DataFrame:
    """What binds every product, by the hierarchical roofline.

    parameters   `model`, `processors` (designs, whose relatives are the accelerators), `dtype`,
                 `phases`: name -> sequences, new, past
    """
    model, rows = catalog.model(parameters["model"]), []
    dtype = parameters.get("dtype", "fp16")
    for design in parameters["processors"]:
        machine = relative(processor(design))
        for phase, own in parameters["phases"].items():
            listed = products(model, int(own["sequences"]), int(own["new"]), int(own["past"]))
            m, n, k, batch = (
                np.array(column) for column in zip(*(s for _, s in listed), strict=True)
            )
            moved = 2.0 * batch * (m * k + k * n + m * n)
            flop = 2.0 * m * n * k * batch
            found = hierarchy(
                Shapes(
                    op="gemm",
                    dtype=dtype,
                    variants=("fwd",),
                    variant=np.zeros(len(m)),
                    m=m,
                    n=n,
                    k=k,
                    batch=batch,
                    flop=flop,
                    bytes=moved,
                ),
                machine,
            )
            ridge = float(machine.peak_for(dtype)) / float(machine.bandwidth)
            for at, (name, _) in enumerate(listed):
                rows.append(
                    {
                        "accelerator": machine.name,
                        "phase": phase,
                        "product": name,
                        "m": m[at],
                        "n": n[at],
                        "k": k[at],
                        "batch": batch[at],
                        "flop_per_byte": flop[at] / moved[at],
                        "ridge": ridge,
                        "plain roofline": "compute" if flop[at] / moved[at] > ridge else "memory",
                        "bound": found.names[at],
                        "time_us": 1e6 * found.time[at],
                    }
                )
    return pd.DataFrame(rows)


def _bound_figures(table: pd.DataFrame) -> list[Figure]:
    """Of each machine, the time of every product by what binds it."""
    drawn = []
    names = list(dict.fromkeys(table["bound"]))
    for machine, own in table.groupby("accelerator", sort=False):
        labels = [
            f"{phase}<br>{name}" for phase, name in zip(own["phase"], own["product"], strict=True)
        ]
        drawn.append(
            Figure(
                f"What binds each product of a layer: {machine}",
                "phase and product",
                "microseconds (roofline)",
                [
                    Series(
                        name,
                        [
                            label
                            for label, bound in zip(labels, own["bound"], strict=True)
                            if bound == name
                        ],
                        list(own["time_us"][own["bound"] == name]),
                        "bar",
                        group=number,
                    )
                    for number, name in enumerate(names)
                ],
                log_y=True,
                stacked=True,
                order=labels,
            )
        )
    return drawn


def _bound_facts(table: pd.DataFrame) -> dict[str, Any]:
    """How many products each resource binds, by phase and machine; and a plain roofline's say."""
    facts: dict[str, Any] = {}
    for phase, own in table.groupby("phase", sort=False):
        told = [
            f"{machine}: " + ", ".join(f"{n} by {b}" for b, n in part.value_counts().items())
            for machine, part in own.groupby("accelerator", sort=False)["bound"]
        ]
        facts[f"bound_{str(phase).split(',')[0].replace(' ', '_')}"] = "; ".join(told)
    plain = (table["bound"] == "compute") == (table["plain roofline"] == "compute")
    facts["agree"] = f"{int(plain.sum())} of {len(plain)}"
    return facts


def run(parameters: Mapping[str, Any]) -> Result:
    """Bound types, then latency over memory technologies and over bandwidth.

    parameters   `bounds`, `memories` and `bandwidths` (grids of workload serving), `figures`
                 (lists by grid)
    """
    table = bounds(parameters["bounds"])
    drawn = _bound_figures(table)
    tables = {"Bound of every product": table}
    facts: dict[str, Any] = {}
    for key in ("memories", "bandwidths"):
        content = parameters[key]
        if not isinstance(content, Mapping):
            raise InputError(f"inference: {key}: expected a grid and figures")
        found = explore(content["grid"])
        x, series = content["x"], content.get("series", [])
        rested = saturation(found.table, x, "e2e_s", series, True)
        drawn += figures(found.table, content["figures"])
        drawn.append(bound_figure(found.table, x, content["figures"][0]["x_title"], series))
        kept = [
            *found.grid.axes, "memory_bandwidth_gbs", "e2e_s", "low_s", "high_s", "ttft_ms",
            "tpot_ms", "bottleneck", "fits", "memory_gib",
        ]  # fmt: skip
        tables[f"Saturation, {key}"] = rested
        tables[f"Latency, {key}"] = found.table[
            list(dict.fromkeys(n for n in kept if n in found.table))
        ]
        facts[f"{key}_saturate"] = "; ".join(
            f"{c}: {s if isinstance(s, str) else format(s, ',.0f')}"
            for c, s in zip(rested["curve"], rested["saturates at"], strict=True)
        )
        facts[f"{key}_gain"] = (
            f"{rested['gain first to last'].min():.1f} to {rested['gain first to last'].max():.1f}"
        )
        facts[f"{key}_binds"] = ", ".join(sorted(set(rested["binds last"])))
    return Result(drawn, tables, facts | _bound_facts(table))
