"""How far runs lie from their predictions: the spread that an interval needs, by conformal means.

Runs of mixtures of experts have a spread of their own: the code of experts differs from framework
to framework and from release to release far more than that of dense models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.plans import MAKERS
from predictor.timing import RunParameters

LEAST_SOURCES = 3
"""Sources of mixtures below which these share the spread of all runs."""


MOST_CARRIED = 3.0
"""By how much a spread is widened, or narrowed, at most for sources that it has not seen."""

LEAST_PLANS = 5
"""Plans of a source below which it says nothing about the spread between plans."""

NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One predicted run: log(predicted / measured), the operators' part of its spread, its source,
    and whether its model is a mixture of experts.

    setting    what plans that are held against each other have in common; '' where not known
    plan       what tells them apart
    framework  '' where not known
    untimed    whether its model has attention that nobody timed (`Model.untimed`)
    """

    error: float
    sigma: float
    source: str
    moe: bool = False
    setting: str = ""
    plan: str = ""
    framework: str = ""
    untimed: bool = False


def run_sigma(found: Sequence[Residual], q: float, level: float) -> float:
    """The run's own log-standard-deviation with which `level` of the points, every source counting
    alike, lie inside exp(+-q sigma) (split conformal prediction, Lei et al. 2018)."""
    sources, counts = np.unique([r.source for r in found], return_counts=True)
    share = dict(zip(sources, 1.0 / counts / len(sources), strict=True))
    weight = np.array([share[r.source] for r in found])
    # A point is inside once sigma_run² reaches (error / q)² - sigma_operators².
    needed = np.array([max((r.error / q) ** 2 - r.sigma**2, 0.0) for r in found])
    order = np.argsort(needed)
    covered = np.cumsum(weight[order])
    index = min(int(np.searchsorted(covered, level)), len(order) - 1)
    # A hair more, so that rounding does not leave the deciding point outside.
    return float(np.sqrt(needed[order][index])) * (1.0 + 1e-9)


def carried_sigma(found: Sequence[Residual], q: float, level: float) -> float:
    """`run_sigma`, times what it lacks on sources that it has not seen: each source left out in
    turn, `level` of its points lie inside the others' spread times this, as a mean over sources
    (jackknife+, Barber et al. 2021, with sources as the units). As it is with fewer than
    `LEAST_SOURCES`."""
    sources = sorted({r.source for r in found})
    whole = run_sigma(found, q, level)
    if len(sources) < LEAST_SOURCES:
        return whole
    apart = []
    for source in sources:
        own = [r for r in found if r.source == source]
        others = run_sigma([r for r in found if r.source != source], q, level)
        errors = np.abs([r.error for r in own]) / q
        apart.append((others, errors, np.array([r.sigma for r in own])))

    def covered(times: float) -> float:
        inside = (np.mean(e <= np.hypot(sigma, times * others)) for others, e, sigma in apart)
        return float(np.mean(list(inside)))

    low, high = 1.0 / MOST_CARRIED, MOST_CARRIED
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if covered(middle) < level else (low, middle)
    return whole * high


def with_spread(
    run: RunParameters, found: Sequence[Residual], q: float, level: float
) -> RunParameters:
    """Run parameters whose spreads cover `level` of the runs, dense models and mixtures apart, and
    `MAKERS` apart from the others; together where fewer than `LEAST_SOURCES` have some. What runs
    of attention that nobody timed add to theirs is fitted after that to them alone."""
    every = found
    found = [one for one in every if not one.untimed] or every
    spreads = []
    for moe in (False, True):
        own = _enough([r for r in found if r.moe == moe]) or found
        sides = [[r for r in own if (r.framework in MAKERS) == made] for made in (True, False)]
        apart = all(_enough(side) for side in sides)
        both = [max(run_sigma(side, q, level), 0.01) for side in (sides if apart else [own])]
        spreads.append((both[0], both[-1]))
    (dense, others), (mixture, other_mixtures) = spreads
    fitted = replace(
        run,
        sigma=others,
        sigma_moe=other_mixtures,
        spreads=dict.fromkeys(MAKERS, (dense, mixture)),
    )
    # From however few there are, since the others' kernels say nothing of them.
    untimed = [one for one in every if one.untimed]
    of = "of models with attention over chosen or compressed keys"
    if not untimed:
        return fitted
    sigma, source = _beside(replace(fitted, sigma_untimed=0.0), untimed, q, level, of)
    return replace(fitted, sigma_untimed=sigma, sources={**run.sources, "sigma_untimed": source})


def _beside(
    run: RunParameters, found: Sequence[Residual], q: float, level: float, told: str
) -> tuple[float, str]:
    """What some runs add to the spread of the others, and from what it is known: the
    log-standard-deviation beside a run's own with which `level` of them lie inside (`run_sigma`).

    found   errors of such runs
    told    whose they are
    """
    wide = []
    for one in found:
        own = run.spread(one.moe, one.framework, untimed=one.untimed)
        wide.append(replace(one, sigma=float(np.hypot(one.sigma, own))))
    source = f"errors of {len(found)} runs {told}, every source left out of the fit"
    return run_sigma(wide, q, level), source


def _enough(found: list[Residual]) -> list[Residual]:
    """Errors of `LEAST_SOURCES` and more; none of fewer."""
    return found if len({r.source for r in found}) >= LEAST_SOURCES else []


def plan_spreads(found: Sequence[Residual]) -> dict[str, float]:
    """By source, the log-standard-deviation of plans about the median of those in their setting
    (robust: by the median deviation); sources with `LEAST_PLANS` in settings of several.

    Runs of one plan count once, with their median error.
    """
    settings: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in found:
        if one.setting:
            plans = settings.setdefault((one.source, one.setting), {})
            plans.setdefault(one.plan, []).append(one.error)
    apart: dict[str, list[float]] = {}
    for (source, _), plans in settings.items():
        error = np.array([np.median(values) for values in plans.values()])
        if (count := len(error)) > 1:
            # Deviations from a middle that they make themselves are short by this factor.
            wide = np.abs(error - np.median(error)) * np.sqrt(count / (count - 1.0))
            apart.setdefault(source, []).extend(wide.tolist())
    return {
        source: NORMAL * float(np.median(wide))
        for source, wide in sorted(apart.items())
        if len(wide) >= LEAST_PLANS
    }


def with_plan_spread(run: RunParameters, found: Sequence[Residual]) -> RunParameters:
    """Run parameters whose spread between plans is the median of the sources'; as they are where
    fewer than `LEAST_SOURCES` say something."""
    spreads = plan_spreads(found)
    if len(spreads) < LEAST_SOURCES:
        return run
    told = ", ".join(f"{source} {value:.3f}" for source, value in spreads.items())
    return replace(
        run,
        sigma_plan=float(np.median(list(spreads.values()))),
        sources={
            **run.sources,
            "sigma_plan": "errors of plans about the median of those of the same model, machine, "
            "accelerators, precision and framework, every source left out of the fit; the median "
            f"of {told}",
        },
    )


def with_unnamed_spread(
    run: RunParameters, found: Sequence[Residual], q: float, level: float
) -> RunParameters:
    """Run parameters with what a run adds to its spread of which nobody says the framework
    (`_beside`); as they are where fewer than `LEAST_SOURCES` have some.

    found   errors of runs whose framework was hidden from the prediction, their source left out of
            what was fitted
    """
    if len({one.source for one in found}) < LEAST_SOURCES:
        return run
    sigma, source = _beside(run, found, q, level, "whose framework was hidden")
    return replace(run, sigma_unnamed=sigma, sources={**run.sources, "sigma_unnamed": source})
