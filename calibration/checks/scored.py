"""Scored rows, and what they come to: figures by metric and source, coverage, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from calibration.serving.timed import Timed
from calibration.tables.runs import Point, Skipped
from calibration.variation.ratios import Configuration

DISTANCES = ("ks", "ks_pooled")
"""Metrics that are an error themselves: published as 0."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One predicted row."""

    point_id: str
    source: str
    metric: str
    published: float
    predicted: float
    low: float
    high: float
    in_sample: bool
    model: str = ""
    accelerator: str = ""
    sigma_operators: float = 0.0
    kind: str = ""
    tp: int = 0
    flagged: bool = False
    moe: bool = False
    untimed: bool = False
    framework: str = ""

    @property
    def log_error(self) -> float:
        """log(predicted / published); of a distance between distributions, log(1 + distance), so
        that the distance is the relative error."""
        if self.metric in DISTANCES:
            return float(np.log1p(self.predicted))
        return float(np.log(self.predicted / self.published))


INSIDE = (
    "sigma_operators", "model", "accelerator", "kind", "tp", "flagged", "moe", "untimed",
    "framework",
)  # fmt: skip
"""Fields of a row that a report does not show."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Predicted and stated peak memory of one row [bytes], and whether it ran out."""

    predicted: float
    stated: float
    p_oom: float
    status: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Everything that was scored, skipped, and known of memory; `points` are the training runs
    among the scored rows, `inference` the runs of inference, timed, `ratios` the configurations
    whose steps were scored, `power` tables of power, `noted` rows that say one thing twice, and
    what counts of them."""

    kind: str
    rows: list[Scored]
    skipped: list[Skipped]
    memory: list[MemoryRow]
    total: int
    points: list[Point] = field(default_factory=list)
    inference: Timed | None = None
    ratios: list[Configuration] = field(default_factory=list)
    power: list[pd.DataFrame] = field(default_factory=list)
    noted: list[Skipped] = field(default_factory=list)


def _figures(rows: list[Scored]) -> dict[str, float | int | None]:
    """MAPE, median, ninetieth percentile and bias over rows; null where there are none."""
    if not rows:
        return {"n": 0, "mape": None, "median_ape": None, "p90_ape": None, "bias": None}
    logs = np.array([row.log_error for row in rows])
    share = np.abs(np.expm1(logs))
    return {
        "n": len(rows),
        "mape": float(share.mean()),
        "median_ape": float(np.median(share)),
        "p90_ape": float(np.quantile(share, 0.9)),
        "bias": float(logs.mean()),
    }


def _coverage(rows: list[Scored]) -> float | None:
    inside = [row.low <= row.published <= row.high for row in rows if row.metric not in DISTANCES]
    return float(np.mean(inside)) if inside else None


def _by_source(rows: list[Scored]) -> list[dict[str, Any]]:
    """Figures of each source: of its rows that no fit saw, if it has any."""
    groups = []
    for source in sorted({row.source for row in rows}):
        own = [row for row in rows if row.source == source]
        out = [row for row in own if not row.in_sample]
        figures = _figures(out or own)
        groups.append(
            {
                "source": source,
                "n": len(own),
                "mape": figures["mape"],
                "median_ape": figures["median_ape"],
                "bias": figures["bias"],
                "coverage": _coverage(out or own),
                "in_sample": not out,
            }
        )
    return groups


def summary(scores: Scores, level: float) -> dict[str, Any]:
    """The content of `reckon validate --json`."""
    fresh = [row for row in scores.rows if not row.in_sample]
    metrics = sorted({row.metric for row in scores.rows})
    values = [row for row in scores.rows if row.metric not in DISTANCES]
    groups = _by_source(values)
    sure = [row for row in values if not row.flagged]
    held: list[Any] = [group["mape"] for group in groups if not group["in_sample"]]
    figures = _figures(fresh if len(metrics) == 1 else [])
    widths = [row.high / row.low for row in values]
    return {
        "kind": scores.kind,
        "n_points": scores.total,
        "n_predicted": len(scores.rows),
        "mape": figures["mape"],
        "median_ape": figures["median_ape"],
        "p90_ape": figures["p90_ape"],
        "bias": figures["bias"],
        "macro_mape": float(np.mean(held)) if held else None,
        "in_sample_mape": _figures([row for row in values if row.in_sample])["mape"],
        "by_metric": {
            metric: _figures([row for row in fresh if row.metric == metric]) for metric in metrics
        },
        "interval_level": level,
        "interval_coverage": _coverage(fresh or scores.rows),
        "median_width": float(np.median(widths)) if widths else None,
        "groups": groups,
        **({} if len(sure) == len(values) else {"without_doubtful": _by_source(sure)}),
        "skipped": [asdict(row) for row in scores.skipped],
        "noted": [asdict(row) for row in scores.noted],
        "points": [
            {key: value for key, value in asdict(row).items() if key not in INSIDE}
            for row in scores.rows
        ],
        "memory": _memory(scores.memory),
        **({"inference": targets(scores.rows)} if scores.inference is not None else {}),
    }


class Judged(Protocol):
    """A run of inference, scored or not."""

    @property
    def metric(self) -> str:
        """What it states."""

    @property
    def kind(self) -> str:
        """Kind of run."""


TARGETS: dict[str, Callable[[Judged], bool]] = {
    "tpot": lambda row: row.metric == "tpot_s" and row.kind != "open",
    "static e2e": lambda row: row.metric == "e2e_s" and row.kind == "static",
    "prefill or batch-1 ttft": lambda row: (
        row.metric == "ttft_s" and row.kind not in ("serving", "open")
    ),
    "ttft under concurrency": lambda row: row.metric == "ttft_s" and row.kind == "serving",
    "max throughput": lambda row: row.kind == "saturated",
    "throughput, other": lambda row: (
        row.metric.endswith("per_s") and row.kind not in ("saturated", "open")
    ),
    "open loop, ttft": lambda row: row.metric == "ttft_s" and row.kind == "open",
    "open loop, other": lambda row: row.metric != "ttft_s" and row.kind == "open",
}
"""What inference is judged by."""


REPORTED_APART = ("mlperf_inference_v4.1",)
"""Sources that state neither layout nor batch."""


def targets(rows: list[Scored]) -> dict[str, Any]:
    """Figures of each target: over rows without a flag, macro-averaged over sources, with the
    flagged rows, and by source, accelerator and tensor-parallel size."""
    found = {}
    for name, belongs in TARGETS.items():
        whole = [row for row in rows if row.kind and belongs(row)]
        own = [row for row in whole if not row.flagged and row.source not in REPORTED_APART]
        if not whole:
            continue

        def split(field: str, own: list[Scored] = own) -> dict[str, Any]:
            parts = sorted({getattr(row, field) for row in own})
            return {
                str(part): {**_figures(mine), "coverage": _coverage(mine)}
                for part in parts
                for mine in ([row for row in own if getattr(row, field) == part],)
            }

        by_source = split("source")
        errors = [figures["mape"] for figures in by_source.values()]
        found[name] = {
            **_figures(own),
            "macro_mape": float(np.mean(errors)) if errors else None,
            "coverage": _coverage(own),
            "with_flagged": _figures(whole),
            "by_source": by_source,
            "by_accelerator": split("accelerator"),
            "by_tp": split("tp"),
        }
    return found


def _memory(rows: list[MemoryRow]) -> dict[str, Any]:
    """Error of peak memory where stated, of rows and by source; accuracy, recall and precision of
    out-of-memory."""
    stated = [row for row in rows if np.isfinite(row.stated) and row.status != "OOM"]
    errors = [abs(row.predicted / row.stated - 1.0) for row in stated]
    sources: dict[str, list[float]] = {}
    for row, error in zip(stated, errors, strict=True):
        sources.setdefault(row.source, []).append(error)
    by_source = {name: float(np.mean(own)) for name, own in sorted(sources.items())}
    labelled = [row for row in rows if row.status in ("OOM", "Success")]
    says = [row.p_oom > 0.5 for row in labelled]
    is_oom = [row.status == "OOM" for row in labelled]
    hits = sum(a and b for a, b in zip(says, is_oom, strict=True))
    right = sum(a == b for a, b in zip(says, is_oom, strict=True))
    return {
        "n": len(stated),
        "mape": float(np.mean(errors)) if errors else None,
        "macro_mape": float(np.mean(list(by_source.values()))) if by_source else None,
        "by_source": by_source,
        "oom_accuracy": right / len(labelled) if labelled else None,
        "oom_recall": hits / sum(is_oom) if any(is_oom) else None,
        "oom_precision": hits / sum(says) if any(says) else None,
    }
