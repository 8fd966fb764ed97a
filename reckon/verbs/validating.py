"""`reckon validate`: a score that anyone can reproduce."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    with seldom_collected():
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


SELDOM = 100_000
"""New objects after which garbage in cycles is looked for: among the arrays of a table's batches
there is next to none, and looking every 700 takes a seventh of the time."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Garbage in cycles is looked for less often meanwhile, if at all."""
    first, *others = gc.get_threshold()
    gc.set_threshold(first and max(first, SELDOM), *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


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
