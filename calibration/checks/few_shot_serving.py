"""How much a handful of one's own benchmarks of serving helps to predict its others.

    python -m calibration.checks.few_shot_serving ../shared [--write]

Groups of published benchmarks as a user's are (source, accelerator, engine, model), of an engine
that nothing is known of (the mean of all engines, `--engines known` for the fitted ones, which have
seen the rows): five of its figures drawn at random, the others predicted. The process over what is
left (`calibration.serving.process`) is learned without the source; --write keeps that of all.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.serving.engines import parameters_of, telling
from calibration.serving.fit import read_inference
from calibration.serving.own import adapt_engines
from calibration.serving.process import (
    START,
    Draw,
    benchmarks_of,
    corrections,
    fit_process,
    write_process,
)
from calibration.serving.spreads import CLASSES
from calibration.serving.timed import Timed, published, select, timed, values
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration, Process

KNOWN, SEEDS = 5, 5
"""Figures that are known, and draws of them."""
PLACE = Path("data/own/serving.json")

LEAST, MOST, OF_SOURCE = 10, 36, 3
"""Figures of a group at least, those used at most, and groups of one source."""


def groups(shared: Path, calibration: Calibration) -> list[list[InferencePoint]]:
    """Groups of published benchmarks, doubtful figures and open loops left out."""
    points = read_inference([shared / "reference" / "inference.csv"], calibration.run)
    found: dict[tuple[str, ...], list[InferencePoint]] = defaultdict(list)
    for one in points:
        if one.rate is None and one.named and not one.flagged:
            of = one.request
            key = (one.source, of.cluster.accelerator.name, of.plan.framework, of.model.name)
            found[key].append(one)
    counts: Counter[str] = Counter()
    kept = []
    for name in sorted(found):
        if len(found[name]) >= LEAST and counts[name[0]] < OF_SOURCE:
            counts[name[0]] += 1
            kept.append(found[name][:MOST])
    return kept


def away(found: Timed, calibration: Calibration) -> Array:
    """Absolute relative error of every figure."""
    told = values(found, parameters_of(found, calibration.serving.engines))[0]
    return np.asarray(np.abs(told / published(found) - 1.0))


def unknown(calibration: Calibration) -> Calibration:
    """A calibration in which every engine is the mean of all."""
    mean = calibration.serving.engines["neutral"]
    # Each an object of its own: an engine's eras are told apart by which of them is meant.
    engines = {name: replace(mean) for name in calibration.serving.engines}
    return replace(calibration, serving=replace(calibration.serving, engines=engines))


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A draw: the calibration that learned from the figures known, and the others' times.

    draw      of which the process is learned
    rest      figures to be predicted
    adapted   calibration that knows the others
    """

    draw: Draw
    rest: Timed
    adapted: Calibration


def shots(shared: Path, base: Calibration) -> list[Shot]:
    """Draws from every group, engines learned from `KNOWN` of its figures."""
    made = []
    for group in groups(shared, base):
        found, _ = timed(group, base)
        found = select(found, telling(found))
        count = len(found.points)
        if count < LEAST:
            continue
        for seed in range(SEEDS):
            drawn = np.random.default_rng(seed).permutation(count)
            try:
                own = adapt_engines(base, [found.points[i] for i in drawn[:KNOWN]]).calibration
            except InputError:
                continue  # a source that contradicts itself
            told = values(found, parameters_of(found, own.serving.engines))[0]
            left = np.log(published(found) / told)
            assert own.serving.own is not None
            whole = benchmarks_of(found.points, left, START, own.serving.own.levels)
            rest = select(found, np.isin(np.arange(count), drawn[KNOWN:]))
            draw = Draw(group[0].source, whole, drawn[:KNOWN], drawn[KNOWN:])
            made.append(Shot(draw, rest, own))
    return made


def scores(
    made: Sequence[Shot], processes: Mapping[str, Process], base: Calibration
) -> dict[str, list[tuple[float, ...]]]:
    """By metric, of every draw: mean error with nothing known, with the engine learned, and with
    what is left of the figures known; share inside the interval of 80 %; log of its high over low.

    processes   by source, learned without it
    """
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for one in made:
        serving = one.adapted.serving
        assert serving.own is not None
        process = processes[one.draw.source]
        told = corrections(replace(serving.own, process=process), one.rest)
        before, engine = away(one.rest, base), away(one.rest, one.adapted)
        level = values(one.rest, parameters_of(one.rest, serving.engines))[0]
        after = np.log(level) + told - np.log(published(one.rest))
        reach = base.interval_q * np.array(
            [serving.spread(CLASSES[p.metric], p.kind) for p in one.rest.points]
        )
        metrics = np.array([point.metric for point in one.rest.points])
        columns = (before, engine, np.abs(np.expm1(after)), np.abs(after) <= reach, 2.0 * reach)
        for metric in np.unique(metrics):
            at = metrics == metric
            found[str(metric)].append(tuple(float(column[at].mean()) for column in columns))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print mean errors by metric, with no figure known and with some."""
    parser = argparse.ArgumentParser(description="How much a few benchmarks of one's own help.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--engines", choices=("unknown", "known"), default="unknown")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    base = load("default")
    base = unknown(base) if given.engines == "unknown" else base
    made = shots(given.shared, base)
    draws = [one.draw for one in made]
    processes = {
        source: fit_process([draw for draw in draws if draw.source != source])
        for source in sorted({draw.source for draw in draws})
    }
    found = scores(made, processes, base)
    names = ("k = 0", "engine", "k = 5", "inside", "high/low")
    print(f"{'metric':22} {'draws':>5} " + " ".join(f"{name:>8}" for name in names))
    left_out = {}
    for metric, rows in sorted(found.items()):
        *means, width = np.mean(rows, axis=0)
        parts = " ".join(f"{mean:>8.1%}" for mean in means)
        print(f"{metric:22} {len(rows):>5} {parts} {np.exp(width):>8.2f}")
        left_out[metric] = {
            "draws": len(rows), "before": round(means[0], 4), "after": round(means[2], 4)
        }  # fmt: skip
    if given.write:
        write_process(fit_process(draws), left_out, PLACE)


if __name__ == "__main__":
    main()
