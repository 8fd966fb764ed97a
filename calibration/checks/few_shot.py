"""How much a handful of a source's own runs helps to predict its others.

    python -m calibration.checks.few_shot ../shared [--write]

Every source of published runs is left out in turn: of the run parameters, and of the covariance
with which its runs are read (`calibration.runs.prior`). Then k of its runs are drawn at random,
five times, and the others predicted; the same inside groups as a user's runs are (source,
accelerator, family of models). Of runs drawn that contradict one another only the first is learned
from, as `reckon calibrate` asks; the others are predicted like any that is not known.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.runs.apart import Runs, take_apart
from calibration.runs.descent import fit_parameters
from calibration.runs.fit import default_run, read_points
from calibration.runs.levels import fit_levels
from calibration.runs.own import contradictions, suggest
from calibration.runs.prior import Block, block, fit_prior, write_prior
from calibration.tables.sweep import healthy_points
from predictor.arrays import Array, Index, Mask
from predictor.catalog import load
from predictor.timing import Prior, learn
from predictor.units import Z80

KNOWN = (0, 1, 3, 5, 10)
SEEDS = 5
"""Own runs that are known, and draws of each number of them."""
LEAST_SOURCE, LEAST_GROUP = 13, 7
"""Rows of a source, and of a group, from which on they are drawn from."""

PLACE = Path("data/own/training.json")

FOLDS = 6
"""Folds of sources, without each of which the shared parameters of runs are fitted."""

LEVEL = 0.8
"""Share of runs that lie inside an interval."""

SWEPT = 150
"""Rows of each sweep of thousands that are used, evenly spaced."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Runs of one source, or of a group of it, with the prior of the other sources.

    twins   runs that contradict each run, (N, N); none if None
    """

    name: str
    block: Block
    prior: Prior
    twins: Mask | None = None

    def agreeing(self, chosen: Index) -> Index:
        """Of chosen runs, in their order, those that contradict none before them."""
        kept: list[int] = []
        for at in chosen.tolist():
            if self.twins is None or not self.twins[at, kept].any():
                kept.append(at)
        return np.array(kept, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Score:
    """Of predicted runs: mean absolute error, share inside the 80 % interval, its high over low."""

    error: float
    inside: float
    width: float


def published(shared: Path) -> Runs:
    """The development table and some rows of the sweeps beside it, steps only."""
    known = load("default")
    bulk = shared / "bulk" / "training"
    points = read_points([shared / "reference" / "training.csv"], known.run)
    sweeps = (
        read_points([bulk / "vtrain_single_node.csv"], known.run),
        list(healthy_points(bulk / "nanotron_sweep.csv", known.run)),
    )
    for found in sweeps:
        points += found[:: max(1, len(found) // SWEPT)][:SWEPT]
    runs = take_apart(known, points)
    return runs.only(~runs.one_layer)


def blocks_of(runs: Runs) -> dict[str, Block]:
    """Runs of every source under run parameters fitted without it: shared ones without its fold of
    sources, levels without the source."""
    found = {}
    sources = np.unique(runs.source)
    for fold in range(FOLDS):
        held = sources[fold::FOLDS]
        fitted = fit_parameters(runs.only(~np.isin(runs.source, held)), default_run())
        for source in held:
            own = runs.source == source
            run = fit_levels(runs.only(~own), fitted)
            found[str(source)] = block(runs.only(own), run, str(source))
    return found


def groups_of(runs: Runs, source: str) -> list[tuple[str, Index]]:
    """Groups of a source's runs as a user's are: names, and which of its runs."""
    own = np.flatnonzero(runs.source == source)
    points = [runs.points[i] for i in own]
    names = [
        f"{source} {p.request.cluster.accelerator.name} {p.request.model.family}" for p in points
    ]
    return [
        (str(name), np.flatnonzero(np.array(names) == name))
        for name, count in zip(*np.unique(names, return_counts=True), strict=True)
        if count >= LEAST_GROUP
    ]


def shot(one: Drawn, known: int, seed: int, chosen: Index | None = None) -> Score:
    """Predict a source's runs with some of them known.

    chosen   positions of those known; drawn at random if None
    """
    count = len(one.block.residual)
    if chosen is None:
        generator = np.random.default_rng([seed, known])
        chosen = generator.permutation(count)[:known]
    chosen = one.agreeing(np.asarray(chosen, dtype=np.intp))
    rest = np.setdiff1d(np.arange(count), chosen)
    others = one.block.take(rest)
    if known == 0:
        return _score(np.zeros(len(rest)), np.full(len(rest), np.nan), others.residual)
    own = one.block.take(chosen)
    found = learn(one.prior, own.traits, own.residual)
    return _score(*found.correction(others.traits), others.residual)


def _score(correction: Array, sigma: Array, residual: Array) -> Score:
    away = correction - residual
    reach = Z80 * sigma
    return Score(
        float(np.mean(np.abs(np.expm1(away)))),
        float(np.mean(np.abs(away) <= reach)),
        float(np.exp(2.0 * np.median(reach))) if known_all(reach) else np.nan,
    )


def narrowed(drawn: Sequence[Drawn]) -> list[Drawn]:
    """The same with the share by which intervals of one run are narrower (`Prior.early`) that the
    other sources ask for."""
    far = {one.name: beyond(one) for one in drawn}
    return [
        replace(one, prior=replace(one.prior, early=early(
            [away for name, away in far.items() if name != one.name])))
        for one in drawn
    ]  # fmt: skip


def beyond(one: Drawn) -> Array:
    """How many half-widths of their intervals a source's runs lie off, with one of them known."""
    found = []
    for seed in range(SEEDS):
        order = np.random.default_rng([seed, 1]).permutation(len(one.block.residual))
        own, others = one.block.take(order[:1]), one.block.take(order[1:])
        told, sigma = learn(one.prior, own.traits, own.residual).correction(others.traits)
        found.append(np.abs(told - others.residual) / (Z80 * sigma))
    return np.concatenate(found)


def early(far: Sequence[Array]) -> float:
    """`Prior.early` with which four fifths of sources' runs lie inside with one of them known, as a
    mean over sources (a conformal quantile, every source counting alike)."""
    weight = np.concatenate([np.full(len(one), 1.0 / len(one)) for one in far])
    order = np.argsort(whole := np.concatenate(far))
    reach = np.interp(LEVEL, np.cumsum(weight[order]) / weight.sum(), whole[order])
    return float(np.clip(2.0 * (1.0 - reach), 0.0, 1.0))


def known_all(values: Array) -> bool:
    """Whether no value is missing."""
    return bool(np.isfinite(values).all())


def table(drawn: Sequence[Drawn], known: Sequence[int] = KNOWN) -> dict[int, dict[str, Score]]:
    """Scores by number of runs known and by name, the mean over seeds."""
    found: dict[int, dict[str, Score]] = {}
    for k in known:
        row = {}
        for one in drawn:
            if len(one.block.residual) < k + 3:
                continue
            scores = [shot(one, k, seed) for seed in range(SEEDS if k else 1)]
            row[one.name] = Score(
                *(float(np.mean([getattr(s, n) for s in scores])) for n in Score.__slots__)
            )
        found[k] = row
    return found


def chosen_by_suggestion(one: Drawn, known: int) -> Index:
    """Runs of a source that `suggest` asks for, all of its runs being cared about."""
    names = [str(at) for at in range(len(one.block.residual))]
    found = suggest(None, one.prior, one.block.traits, names, known)
    return np.array([int(each.name) for each in found], dtype=np.intp)


def suggested(drawn: Sequence[Drawn], known: Sequence[int] = KNOWN[1:]) -> list[str]:
    """Lines: errors with runs that were suggested beside those with runs drawn at random."""
    lines = [f"{'suggested':10} {'k':>3} {'n':>4} {'asked':>7} {'random':>7}"]
    for k in known:
        able = [one for one in drawn if len(one.block.residual) >= k + 3]
        asked = [shot(one, k, 0, chosen_by_suggestion(one, k)).error for one in able]
        by_lot = [
            float(np.mean([shot(one, k, seed).error for seed in range(SEEDS)])) for one in able
        ]
        lines.append(
            f"{'':10} {k:>3} {len(able):>4} {np.mean(asked):>7.1%} {np.mean(by_lot):>7.1%}"
        )
    return lines


LARGER = 4.0
"""How many times the accelerators of the largest run known a run has that is called larger."""


@dataclass(frozen=True, slots=True)
class Larger:
    """Mean errors of larger runs: with none known, with small ones drawn at random, with small ones
    that `suggest` asks for; and with the one factor known that suits the larger runs best, which is
    what any level carried to them could bring at most."""

    none: float
    drawn: float
    asked: float
    level: float


def scaled(drawn: Sequence[Drawn], sizes: Mapping[str, Array], known: int = 3) -> dict[str, Larger]:
    """Errors of runs at least `LARGER` times the accelerators of those known, which are of the
    smaller half; by name, the mean over draws. Those asked for are no larger than those drawn.

    sizes   accelerators of every run, by name of the source or group
    """
    found = {}
    for one in drawn:
        gpus = sizes[one.name]
        small = np.flatnonzero(gpus <= np.median(gpus))
        scores = []
        for seed in range(SEEDS):
            own = one.agreeing(np.random.default_rng(seed).permutation(small))[:known]
            large = np.flatnonzero(gpus >= LARGER * gpus[own].max())
            if len(own) < known or len(large) < 3:
                continue
            others, able = one.block.take(large), small[gpus[small] <= gpus[own].max()]
            names = [str(at) for at in able]
            asked = suggest(None, one.prior, one.block.take(able).traits, names, known,
                            others.traits)  # fmt: skip
            chosen = one.agreeing(np.array([int(each.name) for each in asked], dtype=np.intp))
            missed = [_missed(one, at, others) for at in (None, own, chosen)]
            scores.append([*missed, levelled(others.residual)])
        if scores:
            found[one.name] = Larger(*np.mean(scores, axis=0).tolist())
    return found


def _missed(one: Drawn, known: Index | None, others: Block) -> float:
    """Mean error of runs with others known."""
    told = np.zeros(len(others.residual))
    if known is not None:
        own = one.block.take(known)
        told, _ = learn(one.prior, own.traits, own.residual).correction(others.traits)
    return float(np.mean(np.abs(np.expm1(told - others.residual))))


def levelled(residual: Array) -> float:
    """Mean error of runs of which the factor is known that makes it least: the median of measured
    over predicted, each weighted by predicted over measured."""
    order = np.sort(residual)
    share = np.cumsum(np.exp(-order))
    best = order[np.searchsorted(share, 0.5 * share[-1])]
    return float(np.mean(np.abs(np.expm1(best - residual))))


def scaled_lines(title: str, found: Mapping[str, Larger]) -> list[str]:
    """A line: the mean of `scaled`."""
    mean = mean_larger(found)
    drawn, asked, level = (getattr(mean, n) / mean.none - 1.0 for n in ("drawn", "asked", "level"))
    return [
        f"small runs seen, {LARGER:g} x larger predicted, {len(found)} {title}: {mean.none:.1%} "
        f"with none, {mean.drawn:.1%} with 3 ({drawn:+.0%}), {mean.asked:.1%} with 3 that are "
        f"asked for ({asked:+.0%}), {mean.level:.1%} with their own level known ({level:+.0%})"
    ]


def mean_larger(found: Mapping[str, Larger]) -> Larger:
    """Means of `scaled` over names."""
    own = list(found.values())
    return Larger(
        *(float(np.mean([getattr(one, name) for one in own])) for name in Larger.__slots__)
    )


def accelerators(runs: Runs, sources: Iterable[str]) -> dict[str, Array]:
    """Accelerators of every run of sources, and of their groups, by their names."""
    found = {}
    for source in sources:
        points = runs.only(runs.source == source).points
        own = np.array([float(point.request.plan.gpus) for point in points])
        found[source] = own
        found |= {name: own[rows] for name, rows in groups_of(runs, source)}
    return found


def report(title: str, found: dict[int, dict[str, Score]]) -> list[str]:
    """Lines of a table: macro error, coverage and width by number of runs known."""
    lines = [f"{title:10} {'k':>3} {'n':>4} {'error':>7} {'inside':>7} {'high/low':>9}"]
    for k, row in found.items():
        means = [np.mean([getattr(s, n) for s in row.values()]) for n in Score.__slots__]
        lines.append(
            f"{'':10} {k:>3} {len(row):>4} {means[0]:>7.1%} {means[1]:>7.1%} {means[2]:>9.2f}"
        )
    return lines


def told(found: dict[int, dict[str, Score]]) -> dict[str, dict[str, float]]:
    """Macro figures of a table by number of runs known, as the prior's file keeps them."""
    return {
        str(k): {
            n: round(float(np.mean([getattr(s, n) for s in row.values()])), 4)
            for n in Score.__slots__
            if k
        }
        or {"error": round(float(np.mean([s.error for s in row.values()])), 4)}
        for k, row in found.items()
    }


def left_out(runs: Runs, blocks: dict[str, Block]) -> tuple[Prior, list[Drawn], list[Drawn]]:
    """The prior of all sources; sources and groups, each with the prior of the others."""
    whole = fit_prior(list(blocks.values()))
    found: list[Drawn] = []
    for name, one in blocks.items():
        if len(one.residual) < LEAST_SOURCE and not groups_of(runs, name):
            continue
        prior = fit_prior([b for other, b in blocks.items() if other != name], whole, steps=12)
        twins = contradictions(runs.only(runs.source == name).points)
        found.append(Drawn(name, one, prior, twins))
    told = early([beyond(one) for one in found])
    found = narrowed(found)
    sources = [one for one in found if len(one.block.residual) >= LEAST_SOURCE]
    groups = [
        replace(one, name=label, block=one.block.take(rows), twins=_among(one.twins, rows))
        for one in found for label, rows in groups_of(runs, one.name)
    ]  # fmt: skip
    return replace(whole, early=told), sources, groups


def _among(twins: Mask | None, rows: Index) -> Mask | None:
    """Which of some runs contradict each other."""
    return None if twins is None else twins[np.ix_(rows, rows)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print the table; with --write keep the prior of all sources."""
    parser = argparse.ArgumentParser(description="How much a few runs of one's own help.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    runs = published(given.shared)
    blocks = blocks_of(runs)
    whole, sources, groups = left_out(runs, blocks)
    by_source, by_group = table(sources), table(groups)
    print("\n".join([*report("sources", by_source), *report("groups", by_group)]))
    print("\n".join(suggested(sources)))
    sizes = accelerators(runs, blocks)
    larger = {"sources": scaled(sources, sizes), "groups": scaled(groups, sizes)}
    print("\n".join(line for name, own in larger.items() for line in scaled_lines(name, own)))
    worst = {
        name: max(by_source[k][name].error for k in KNOWN[2:] if name in by_source[k])
        - by_source[0][name].error
        for name in by_source[0]
    }
    for name, more in sorted(worst.items(), key=lambda pair: -pair[1]):
        if more > 0:
            print(f"worse with 3 runs or more than with none: {name} {more:+.1%}")
    if given.write:
        figures = {"sources": by_source, "groups": by_group}
        kept: dict[str, Any] = {name: told(found) for name, found in figures.items()}
        for name, own in larger.items():
            mean = {n: round(getattr(mean_larger(own), n), 4) for n in Larger.__slots__}
            kept[name]["larger"] = {
                "before": mean["none"], "after": mean["drawn"], "asked": mean["asked"],
                "level": mean["level"],
            }  # fmt: skip
        write_prior(whole, kept, PLACE)


if __name__ == "__main__":
    main()
