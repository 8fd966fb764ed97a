"""`reckon validate`: a score that anyone can reproduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration.checks.scoreboard import FOLDS, refold, score
from calibration.checks.scored import summary
from predictor.catalog import load
from predictor.errors import unknown
from predictor.timing import Calibration


def validate(
    points: str | Path | Sequence[str | Path],
    calibration: str | Path | Calibration = "default",
    folds: str | None = None,
) -> dict[str, Any]:
    """Predict every row of published tables and compare.

    points       tables of training, inference or kernel points (.csv, .csv.gz, .parquet)
    calibration  name, folder or `Calibration`
    folds        'source', 'model' or 'accelerator': what was fitted to such points is refitted
                 without each group, and scored on it

    Returns the content of `--json`. Raises InputError for files that are no such tables.
    """
    if folds is not None and folds not in FOLDS:
        raise unknown("folds", folds, FOLDS)
    paths = [points] if isinstance(points, str | Path) else list(points)
    known = load(calibration)
    with _bar() as advance:
        scores = score([Path(path) for path in paths], known, advance)
    if folds:
        scores = refold(scores, known, folds)
    return {
        "schema_version": 1,
        "calibration": known.name,
        "folds": folds,
        **summary(scores, known.interval_level),
    }


class _bar:
    """A progress bar on stderr, shown on terminals only."""

    def __enter__(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self.progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self.progress.start()
        task = self.progress.add_task("validating")
        return lambda done, total: self.progress.update(task, completed=done, total=total)

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def report(result: dict[str, Any]) -> None:
    """Print the score by source, and what was skipped and why."""
    from reckon.views.terminal import grid

    rows = [
        [
            group["source"],
            str(group["n"]),
            _percent(group["mape"]),
            _percent(group["median_ape"]),
            "" if group["bias"] is None else f"{group['bias']:+.3f}",
            _percent(group["coverage"]),
            "fitted" if group["in_sample"] else "",
        ]
        for group in result["groups"]
    ]
    columns = ["source", "n", "MAPE", "median", "bias", "covered", ""]
    if rows:
        print(grid(columns, rows))
    print(
        f"\n{result['n_predicted']} of {result['n_points']} rows predicted with "
        f"{result['calibration']}: MAPE {_percent(result['mape']) or '-'}, median "
        f"{_percent(result['median_ape']) or '-'}, macro over sources "
        f"{_percent(result['macro_mape']) or '-'}; {result['interval_level']:.0%} interval covers "
        f"{_percent(result['interval_coverage']) or '-'}"
    )
    if "inference" in result:
        table = [
            [
                name,
                str(own["n"]),
                _percent(own["mape"]),
                _percent(own["macro_mape"]),
                _percent(own["coverage"]),
                _percent(own["with_flagged"]["mape"]),
            ]
            for name, own in result["inference"].items()
        ]
        columns = ["inference", "n", "MAPE", "macro", "covered", "MAPE with flagged rows"]
        print("\n" + grid(columns, table))
    memory = result["memory"]
    if memory["n"]:
        print(f"peak memory: MAPE {_percent(memory['mape'])} over {memory['n']} rows")
    if memory["oom_accuracy"] is not None:
        print(
            f"out of memory or not: {_percent(memory['oom_accuracy'])} of rows right; of those "
            f"that ran out {_percent(memory['oom_recall']) or '-'} said to, of those said to "
            f"{_percent(memory['oom_precision']) or '-'} ran out"
        )
    reasons = Counter(row["reason"] for row in result["skipped"])
    if reasons:
        print()
        print(grid(["skipped, because", "n"], [[k, str(v)] for k, v in reasons.most_common()]))
