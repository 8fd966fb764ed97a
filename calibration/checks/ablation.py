"""What the parts of a prediction are worth that come of what nobody states: the same published runs
predicted with each of them taken out, every source left out of every fit in turn.

    python -m calibration.checks.ablation data/reference/training.csv [--rows 12]

- facts off: every framework does what an unnamed one of today does (`data/defaults/
  frameworks.yaml`), in all years, and no recipe is known (`data/software/recipes.csv`). Words and
  levels of frameworks stay. Predicted by a process of its own, with a folder of data of its own.
- interval terms off: one spread for all runs, without that of their operators and without one of
  mixtures of experts.
- distribution: what a plan leaves open is one value, not several. Of some rows of each source it is
  a mixture of that value and of others, by shares that are fitted to the other sources, and the
  interval has a term for each doubt (`unstated`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.checks.unstated import ablation, changes, each_alike, interval_score
from calibration.runs.apart import Runs, take_apart
from calibration.runs.fit import default_run, left_out, read_points
from calibration.sources.hiding import sampled
from calibration.spread import Residual, run_sigma, with_spread
from calibration.tables.runs import Point
from predictor import catalog
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.files import write_text
from predictor.plans import UNNAMED
from predictor.timing import Calibration

FRAMEWORKS, RECIPES = Path("defaults/frameworks.yaml"), Path("software/recipes.csv")
"""Facts about software, in a folder of data."""

MODULE = "calibration.checks.ablation"
"""This file, as Python runs it."""

Residuals = Mapping[str, Residual]
"""Errors of runs by their points."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How a variant does, as means over sources but for the median: error of rows, share inside the
    interval, its score on the log scale (less is better), high over low."""

    rows: int
    error: float
    median: float
    inside: float
    score: float
    width: float


def same_for_all(table: Mapping[str, Any]) -> dict[str, Any]:
    """Frameworks that all do, in every year, what the unnamed one does last; what they call it
    stays, their recipes are gone.

    table   of `data/defaults/frameworks.yaml`
    """
    settings = table[UNNAMED][-1]["settings"]
    evidence = "an ablation: what an unnamed framework does"
    return {
        name: [{"settings": settings, "means": periods[-1].get("means", {}), "evidence": evidence}]
        for name, periods in table.items()
    }


def without_facts(folder: Path) -> Path:
    """A folder of data as the shipped one, where nothing is known of software by itself.

    folder   an empty one, in which links to the shipped files are made
    """
    shipped = catalog.data_dir()
    apart = {path.parts[0] for path in (FRAMEWORKS, RECIPES)}
    for place in (shipped, *(shipped / name for name in sorted(apart))):
        own = folder / place.relative_to(shipped)
        own.mkdir(exist_ok=True)
        for path in place.iterdir():
            changed = path.relative_to(shipped) in (FRAMEWORKS, RECIPES)
            if not changed and not (place == shipped and path.name in apart):
                (own / path.name).symlink_to(path.resolve())
    table = catalog.read_mapping(shipped / FRAMEWORKS)
    write_text(folder / FRAMEWORKS, json.dumps(same_for_all(table)))  # YAML reads JSON
    with (shipped / RECIPES).open(newline="", encoding="utf-8") as stream:
        header = next(csv.reader(stream))
    write_text(folder / RECIPES, ",".join(header) + "\n")
    return folder


def held_out(runs: Runs) -> dict[str, Residual]:
    """Errors of runs, each source left out of the fit of a run's parameters; doubtful ones are
    fitted to by none."""
    known = np.array([not point.doubtful for point in runs.points])
    found = left_out(runs, default_run(), known=known)
    return {point.point_id: one for point, one in zip(runs.points, found, strict=True)}


@contextmanager
def elsewhere(table: Path, calibration: str, data: Path) -> Iterator[Callable[[], Residuals]]:
    """`held_out` of a table's points, by a process that reads another folder of data: what waits
    for it. It works meanwhile, and is ended with the context.

    Raises InputError, when waited for, with what the process says where it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "residuals.json"
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(table), "--calibration", calibration,
             "--residuals", str(out)],
            env={**os.environ, "RECKON_DATA": str(data)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

        def ended() -> Residuals:
            _, said = process.communicate()
            if process.returncode:
                raise InputError(f"predictions with {data} failed: {said.strip()[-500:]}")
            kept = json.loads(out.read_text(encoding="utf-8"))
            return {name: Residual(**fields) for name, fields in kept.items()}

        try:
            yield ended
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def plain(found: Sequence[Residual]) -> list[Residual]:
    """Residuals of which nothing is known but their error and source."""
    return [replace(one, sigma=0.0, moe=False) for one in found]


def spreads_left_out(found: Sequence[Residual], calibration: Calibration, terms: bool) -> Array:
    """Log-standard-deviation of every run's interval, its source left out of the fit.

    terms   whether operators and mixtures have their own part of it
    """
    q, level = calibration.interval_q, calibration.interval_level
    sigma = np.zeros(len(found))
    for source in sorted({one.source for one in found}):
        rest = [one for one in found if one.source != source]
        fitted = with_spread(calibration.run, rest, q, level) if terms else None
        alone = 0.0 if terms else run_sigma(plain(rest), q, level)
        for at, one in enumerate(found):
            if one.source == source:
                own = fitted.spread(one.moe, one.framework, untimed=one.untimed) if fitted else 0.0
                sigma[at] = np.hypot(one.sigma, own) if fitted else alone
    return sigma


def figures(found: Sequence[Residual], sigma: Array, q: float) -> Figures:
    """How predictions do whose errors and spreads these are."""
    error = np.array([one.error for one in found])
    weight = each_alike(np.array([one.source for one in found]))
    weight = weight / weight.sum()
    share = np.abs(np.expm1(error))
    return Figures(
        rows=len(found),
        error=float(weight @ share),
        median=float(np.median(share)),
        inside=float(weight @ (np.abs(error) <= q * sigma)),
        score=float(weight @ interval_score(error, sigma)),
        width=float(np.median(np.exp(2.0 * q * sigma))),
    )


def variants(known: Residuals, bare: Residuals, calibration: Calibration) -> dict[str, Figures]:
    """Figures by variant, of the runs that all of them predict.

    known, bare   with and without facts about software
    """
    both = [name for name in known if name in bare]
    q = calibration.interval_q
    found = {}
    for label, errors, terms in (
        ("as shipped", known, True),
        ("facts off", bare, True),
        ("interval terms off", known, False),
        ("facts and interval terms off", bare, False),
    ):
        rows = [errors[name] for name in both]
        found[label] = figures(rows, spreads_left_out(rows, calibration, terms), q)
    return found


def distribution(runs: Runs, known: Residuals, calibration: Calibration) -> dict[str, float]:
    """`unstated.ablation` of some runs: error and score of one value and of a mixture.

    known   errors of those runs and of others
    """
    doubt, _ = changes(runs, calibration)
    own = [known[point.point_id] for point in runs.points]
    error = np.array([one.error for one in own])
    sigma = np.array([one.sigma for one in own])
    moe = [one.moe for one in own]
    return {"rows": float(len(own)), **ablation(error, sigma, doubt, runs.source, moe)}


def some(points: Sequence[Point], each: int) -> list[Point]:
    """At most so many points of each source, the same ones every time."""
    named = {point.point_id: point for point in points}
    rows = [{"source": point.source, "point_id": point.point_id} for point in points]
    return [named[str(row["point_id"])] for row in sampled(rows, each)]


def tables(table: Path, name: str, calibration: Calibration, each: int) -> str:
    """The ablation of a table of training runs, as Markdown.

    name   of the calibration
    each   rows of each source of which what is open is varied; 0: none

    Raises InputError where the table is none, or nothing of it can be predicted.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        elsewhere(table.resolve(), name, without_facts(Path(folder))) as ended,
    ):
        runs = take_apart(calibration, read_points([table], calibration.run))
        known = held_out(runs)
        bare = ended()
    lines = [
        "| variant | rows | mean over sources | median row | inside the 80 % interval, mean over "
        "sources | interval score | high/low |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {label} | {one.rows:,} | {one.error:.1%} | {one.median:.1%} | {one.inside:.0%} | "
        f"{one.score:.3f} | {one.width:.2f} |"
        for label, one in variants(known, bare, calibration).items()
    ]
    if not each:
        return "\n".join(lines)
    kept = {point.point_id for point in some(runs.points, each)}
    mask = np.array([point.point_id in kept for point in runs.points])
    one = distribution(runs.only(mask), known, calibration)
    return "\n".join([
        *lines,
        "",
        f"Of {one['rows']:.0f} of these rows, at most {each} of a source: with one value for what "
        f"is open {one['error as assumed']:.1%}, with a distribution "
        f"{one['error of the mixture']:.1%}; score of their intervals {one['interval score']:.3f} "
        f"and {one['interval score with terms']:.3f}.",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: the ablation as a table, or the errors alone into a file."""
    parser = argparse.ArgumentParser(description="What is it worth to know about software?")
    parser.add_argument("table", type=Path)
    parser.add_argument("--calibration", default="default")
    parser.add_argument("--rows", type=int, default=12, help="of each source that are varied")
    parser.add_argument("--residuals", type=Path, help="write the errors as shipped, and end")
    given = parser.parse_args(arguments)
    if given.rows < 0:
        parser.error(f"--rows {given.rows}: at least none")
    try:
        calibration = catalog.load(given.calibration)
        if given.residuals is None:
            print(tables(given.table, given.calibration, calibration, given.rows))
            return
        found = held_out(take_apart(calibration, read_points([given.table], calibration.run)))
    except InputError as error:
        parser.error(str(error))
    write_text(given.residuals, json.dumps({name: asdict(one) for name, one in found.items()}))


if __name__ == "__main__":
    main()
