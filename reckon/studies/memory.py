"""Memory of published training runs under each recomputation, beside the published values."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from predictor import catalog
from predictor.errors import InputError
from predictor.memory import memory
from predictor.plans import TrainingPlan
from predictor.timing import RunParameters
from predictor.units import GIB
from reckon.views.page import Figure, Result, Series

MODES: dict[str, dict[str, Any]] = {
    "none": {"recompute": "none", "sequence_parallel": 0.0},
    "sequence parallel": {"recompute": "none", "sequence_parallel": 1.0},
    "selective": {"recompute": "selective", "sequence_parallel": 0.0},
    "sequence parallel + selective": {"recompute": "selective", "sequence_parallel": 1.0},
    "full": {"recompute": "full", "sequence_parallel": 0.0},
}
PUBLISHED = {
    "none": "activations_none_GiB",
    "sequence parallel + selective": "activations_seq+selective_GiB",
}
SHARES = {
    "none": "none",
    "sequence parallel": "seq",
    "selective": "sel",
    "sequence parallel + selective": "seqsel",
    "full": "full",
}


def published() -> dict[tuple[str, str], float]:
    """Published bytes and percentages by model and quantity (Korthikanti et al. 2022)."""
    path = catalog.data_dir() / "reference" / "memory_korthikanti.csv"
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return {
                (row["model"], row["quantity"]): float(row["published"])
                for row in csv.DictReader(stream)
            }
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _modes(name: str, own: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One model under every mode of `MODES`, beside what is published."""
    known, model = published(), catalog.model(own["model"])
    sizes: dict[str, Any] = {key: float(value) for key, value in own.items() if key != "model"}
    # One stage in all is of the kind 'last'; of several, the first holds most.
    stage = 2 if own["pp"] == 1 else 0
    baseline = 0.0
    for mode, changes in MODES.items():
        plan = TrainingPlan(
            **sizes,
            dp=1.0,
            precision="fp16",
            attention="unfused",
            dropout=True,
            sharding="none",
            **changes,
        )
        classes = memory(model, plan, RunParameters()).classes
        kept = float(classes["activations"][stage]) / GIB
        baseline = baseline or kept
        told = known.get((name, PUBLISHED.get(mode, "")))
        states = float(classes["layer weights and optimizer"][stage]) / GIB
        yield {
            "model": name,
            "recomputation": mode,
            "activations_gib": kept,
            "published_gib": told,
            "error": None if told is None else kept / told - 1.0,
            "percent_of_none": 100.0 * kept / baseline,
            "published_percent": known.get((name, f"activation_pct_of_TP_baseline_{SHARES[mode]}")),
            "weights_and_optimizer_gib": states,
            "published_weights_gib": known.get((name, "params_and_optimizer_GiB")),
        }


def run(parameters: Mapping[str, Any]) -> Result:
    """Predict every model under every mode of `MODES`.

    parameters   `models`: label -> model, tp, pp, vpp, micro_batch, global_batch, seq_len;
                 `device_gib`
    """
    table = pd.DataFrame(
        [row for name, own in parameters["models"].items() for row in _modes(name, own)]
    )
    exact = table.dropna(subset=["published_gib"])
    shares = table.dropna(subset=["published_percent"])
    percent = (shares["percent_of_none"] - shares["published_percent"]).abs()
    fits = table["activations_gib"] + table["weights_and_optimizer_gib"]
    facts = {
        "count": len(exact),
        "worst": f"{100 * exact['error'].abs().max():.3f} %",
        "worst_points": f"{percent.max():.1f}",
        "fit": "; ".join(
            f"{mode}: {', '.join(some) or 'none'}"
            for mode in MODES
            for some in [
                list(
                    table["model"][
                        (table["recomputation"] == mode) & (fits <= parameters["device_gib"])
                    ]
                )
            ]
        ),
    }
    return Result(_figures(table, parameters["device_gib"]), {"Memory by model": table}, facts)


def _figures(table: pd.DataFrame, device: float) -> list[Figure]:
    source = "Published: Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7."
    labels = [list(table["model"]), list(table["recomputation"])]

    def points(column: str, values: pd.Series) -> Series:
        told = table[column].notna()
        where = [list(table["model"][told]), list(table["recomputation"][told])]
        return Series("published", where, list(values[told]), "point", group=3)

    state = "weights_and_optimizer_gib"
    total = table["published_gib"] + table["published_weights_gib"]
    stack = [
        Series("weights, gradients, optimizer", labels, list(table[state]), "bar"),
        Series("activations", labels, list(table["activations_gib"]), "bar"),
        points("published_gib", total),
    ]
    lines = [
        Series("predicted", labels, list(table["percent_of_none"]), "bar"),
        points("published_percent", table["published_percent"]),
    ]
    return [
        Figure(
            "Memory of the fullest stage", "model and recomputation", "GiB per GPU", stack,
            stacked=True, source=source, line_at=(device, f"A100: {device:g} GiB"),
        ),
        Figure(
            "Activations, as a share of those of tensor parallelism alone",
            "model and recomputation", "per cent",
            lines, source=source,
        ),
    ]  # fmt: skip
