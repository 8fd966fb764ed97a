"""How much a handful of one's own benchmarks of serving helps to predict its others.

    python -m calibration.checks.few_shot_serving ../shared

Groups of published benchmarks as a user's are (source, accelerator, engine, model), of an engine
that nothing is known of (the mean of all engines, `--engines known` for the fitted ones, which have
seen the rows): five of its figures drawn at random, the others predicted.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.serving.engines import parameters_of, telling
from calibration.serving.fit import read_inference
from calibration.serving.own import adapt_engines
from calibration.serving.timed import Timed, published, select, timed, values
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration

KNOWN, SEEDS = 5, 2
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
    engines = dict.fromkeys(calibration.serving.engines, mean)
    return replace(calibration, serving=replace(calibration.serving, engines=engines))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print mean errors by metric, with no figure known and with some."""
    parser = argparse.ArgumentParser(description="How much a few benchmarks of one's own help.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--engines", choices=("unknown", "known"), default="unknown")
    given = parser.parse_args(arguments)
    base = load("default")
    base = unknown(base) if given.engines == "unknown" else base
    scores: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for group in groups(given.shared, base):
        found, _ = timed(group, base)
        found = select(found, telling(found))
        count = len(found.points)
        if count < LEAST:
            continue
        for seed in range(SEEDS):
            drawn = np.random.default_rng(seed).permutation(count)
            rest = select(found, np.isin(np.arange(count), drawn[KNOWN:]))
            try:
                own = adapt_engines(base, [found.points[i] for i in drawn[:KNOWN]]).calibration
            except InputError:
                continue  # a source that contradicts itself
            before, after = away(rest, base), away(rest, own)
            metrics = np.array([point.metric for point in rest.points])
            for metric in np.unique(metrics):
                at = metrics == metric
                scores[str(metric)].append((float(before[at].mean()), float(after[at].mean())))
    print(f"{'metric':22} {'draws':>5} {'k = 0':>7} {'k = 5':>7}")
    for metric, rows in sorted(scores.items()):
        means = np.mean(rows, axis=0)
        print(f"{metric:22} {len(rows):>5} {means[0]:>7.1%} {means[1]:>7.1%}")


if __name__ == "__main__":
    main()
