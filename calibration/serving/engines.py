"""Parameters of serving engines from timed points, each drawn towards those of its kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.serving.descent import settle_gently
from calibration.serving.timed import Timed, published, select, values
from predictor.arrays import Array, Mask
from predictor.catalog import all_engines
from predictor.timing import (
    ENGINE_FIELDS,
    EngineParameters,
    ServingParameters,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ALL = ("neutral",)
"""Lineage of what all engines share."""


def lineage(label: str) -> list[str]:
    """What an engine's parameters are made of, each drawn towards the one before: all engines',
    those of the engine that it is built on, its own, those of its period."""
    name = label.partition(" until ")[0]
    path = [*ALL]
    if name not in ALL:
        if parent := all_engines()[name].like:
            path = lineage(parent)
        path.append(name)
    return path if label == name else [*path, label]


@dataclass(frozen=True, slots=True)
class Prior:
    """Where the logarithm of a parameter is expected, and how far off, in log units: the mean of
    all engines around the documented default, an engine around that, a period around its engine.
    """

    mean: float
    engine: float
    period: float


PRIORS: dict[str, Prior] = {
    "decode": Prior(0.1, 0.05, 0.025),
    "prefill": Prior(0.1, 0.075, 0.05),
    "communication": Prior(0.15, 0.1, 0.05),
    "gap": Prior(0.4, 0.25, 0.2),
    "launch": Prior(0.5, 0.35, 0.35),
    "step": Prior(0.7, 0.35, 0.35),
    "sequence": Prior(0.7, 0.35, 0.35),
    "request": Prior(0.7, 0.35, 0.35),
    "mixing": Prior(0.3, 0.1, 0.05),
    "burst": Prior(1.5, 0.1, 0.05),
}
"""Factors on kernels are narrow, since the kernels were measured; durations on the host are known
to a factor of two, and servers are rewritten from one period to the next; how synchronous clients
stay is hardly known beforehand, but it is the clients' own. How far engines and periods are apart
was chosen, with `OWN`, on sources left out: of 0.35, 0.5 and 1 times what was once guessed (twice
these), and 0, 0.15, 0.3 and 0.5. Gaps are known better than other durations: kernels were timed in
captured graphs, too, and hold most of theirs."""

DOCUMENTED = np.log([float(getattr(EngineParameters(), name)) for name in ENGINE_FIELDS])
"""Logarithms of the documented defaults, around which all engines' mean is expected."""

SCALE, QUEUED, KNEE = 0.2, 0.6, 1.5
"""Log error that is taken as ordinary; that of a first token under load, which clients and queues
decide as much as the engine; and how many of it halve a row's say (Cauchy's loss), so that odd
rows, whose cause no engine's parameter is, do not decide."""

OWN, OWN_QUEUED = 0.15, 0.1
"""Log error that all rows of a source have in common in one metric and kind of run: of clients,
builds and settings that nobody states. That of first tokens under load, which err by `QUEUED` each
by themselves and tell of the front end what nothing else tells, is kept small: with 0.3, those of
every source left out were predicted too short."""

MOST_ROWS = 15.0
"""A source counts in each metric as this many rows at most, since its rows err together."""

STEP = 1e-3
"""By which the logarithm of a parameter is moved to see what follows."""

DOUBT = 0.1
"""Weight of rows whose notes advise care, whose source calls them experimental or leaves out how
they were made (layout and precision of MLPerf's), or that contradict one another
(`contradictory`)."""

SLOW = 1.0
"""How many spreads above the documented value the search begins with launches: one that the device
hides has no slope, so that from the value itself the search ended, with one source left out, in a
minimum 13 above the next one (194 and 181), and with others not. Starts at 2 and at 3 end up to 4
lower still, with launches of 36 and 44 us for every engine; those of sources left out are then
predicted worse (prompts 20 and 25 %, passes of static batches 11.2 and 12.6 %), so that the nearer
one is kept."""

SHORTER = 1.3
"""First tokens that come so much sooner with more clients contradict one another."""


def weights(found: Timed) -> Array:
    """What each point counts in the fit, 0..1."""
    odd = np.array([point.flagged or point.tentative for point in found.points])
    odd = odd | contradictory(found)
    # Doubtful rows are counted apart: many of them leave a source's other rows their weight.
    keys = [f"{p.source}/{p.metric}/{p.kind}/{o}" for p, o in zip(found.points, odd, strict=True)]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(np.minimum(MOST_ROWS / counts[inverse], 1.0) * np.where(odd, DOUBT, 1.0))


def contradictory(found: Timed) -> Mask:
    """First tokens under load that fall while clients are added to one and the same server: what
    they wait for is no load, but something that nobody states (a warm-up, a limit of the client),
    and would pass for the engine's own time."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, point in enumerate(found.points):
        if point.metric == "ttft_s" and point.kind == "serving":
            request = point.request
            plan = request.plan
            key = (
                point.source, found.engine[index], request.model.name,
                request.cluster.accelerator.name, str(plan.weights), str(plan.era),
                *(float(n) for n in (plan.tp, plan.pp, plan.dp, plan.input_len, plan.output_len)),
            )  # fmt: skip
            groups.setdefault(key, []).append(index)
    odd = np.zeros(len(found.points), bool)
    for members in groups.values():
        ranked = sorted(members, key=lambda i: float(found.points[i].request.plan.batch))
        first = np.array([found.points[i].value for i in ranked])
        odd[ranked] = bool(np.any(np.maximum.accumulate(first) > SHORTER * first))
    return odd


def fit_engines(found: Timed) -> dict[str, EngineParameters]:
    """Parameters of every engine and period that there is, and of the neutral one (the mean).

    Least squares on the logarithms of the parameters: one of the mean, one for each engine, one for
    each period, added up along the `lineage`; each with its prior (`PRIORS`), in whose units the
    search is. Beside them, every source has an error of its own in each of its metrics (`OWN`),
    which is no engine's and is not carried on: what a source's rows share says little of the
    engine, how they differ says much. Runs that say nothing of engines (`telling`) are left out.
    """
    found = select(found, telling(found))
    labels = sorted(set(found.engine))
    known = {"neutral": list(ALL), **{name: lineage(name) for name in (*all_engines(), *labels)}}
    nodes = list(dict.fromkeys(node for path in known.values() for node in path))
    paths = {name: [nodes.index(node) for node in path] for name, path in known.items()}
    spread = _prior_spreads(nodes)
    own = np.array([labels.index(label) for label in found.engine])
    # Which nodes add up to a point's parameters, (points, nodes).
    sums = np.zeros((len(labels), len(nodes)))
    for position, label in enumerate(labels):
        sums[position, paths[label]] = 1.0
    target = np.log(published(found))
    queued = [p.metric == "ttft_s" and p.kind == "serving" for p in found.points]
    scale = np.where(queued, QUEUED, SCALE)
    shared = [f"{p.source}/{p.metric}/{p.kind}" for p in found.points]
    names, source = np.unique(shared, return_inverse=True)
    common = np.where(queued, OWN_QUEUED, OWN)

    def logs(state: Array) -> Array:
        """Logarithms of every label's parameters, (labels, parameters)."""
        return np.asarray(DOCUMENTED + sums @ (state[: spread.size].reshape(spread.shape) * spread))

    def predicted(each: Array) -> Array:
        own = EngineParameters(*np.moveaxis(np.exp(each), -1, 0))
        return np.log(values(found, own)[0])

    def residuals(state: Array) -> Array:
        off = predicted(logs(state)[own]) + common * state[spread.size :][source] - target
        return np.concatenate([off / scale, state])

    def slopes(state: Array) -> csr_array:
        from scipy.sparse import csr_array

        moves = STEP * np.eye(len(ENGINE_FIELDS) + 1, len(ENGINE_FIELDS), k=-1)  # none, then each
        base, *moved = predicted(logs(state)[own] + moves[:, None])
        columns = (np.array(moved) - base) / STEP / scale
        beside = csr_array((common / scale, (np.arange(len(target)), source)))
        return _stacked(columns.T, sums[own], spread, beside)

    start = np.zeros(spread.size + len(names))
    start[ENGINE_FIELDS.index("launch")] = SLOW  # of what all engines share, the first of the nodes
    best = settle_gently(residuals, slopes, start, weights(found), KNEE)
    state = best[: spread.size].reshape(spread.shape) * spread
    return {
        label: EngineParameters(*np.exp(DOCUMENTED + state[path].sum(axis=0)))
        for label, path in paths.items()
    }


def _prior_spreads(nodes: Sequence[str]) -> Array:
    """Log-standard-deviation of each node's parameters about those of the node before, (nodes,
    parameters)."""
    levels = ["mean" if node in ALL else "period" if " until " in node else "engine"
              for node in nodes]  # fmt: skip
    return np.array([[getattr(PRIORS[name], one) for name in ENGINE_FIELDS] for one in levels])


def _stacked(slopes: Array, sums: Array, spread: Array, common: csr_array) -> csr_array:
    """Slopes of all residuals in every node's parameters, in units of their spreads, and in what
    sources' rows have in common.

    slopes   of each point in its own parameters, (points, parameters)
    sums     which nodes add up to these, (points, nodes)
    common   of each point in its source's own error, (points, sources' errors)
    """
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    row, node = np.nonzero(sums)
    count = slopes.shape[1]
    entries = slopes[row] * spread[node]
    rows = np.repeat(row, count)
    columns = (node[:, None] * count + np.arange(count)).ravel()
    size = (len(slopes), spread.size)
    points = hstack([csr_array((entries.ravel(), (rows, columns)), shape=size), common])
    return csr_array(vstack([points, eye_array(points.shape[1])]))


def parameters_of(found: Timed, fitted: Mapping[str, EngineParameters]) -> EngineParameters:
    """Parameters of every point, one entry each."""
    known = ServingParameters(fitted)
    each = [
        known.of(point.request.plan.framework, point.request.plan.era) for point in found.points
    ]
    return EngineParameters(
        *(np.array([float(getattr(one, name)) for one in each]) for name in ENGINE_FIELDS)
    )


def telling(found: Timed) -> Mask:
    """Which runs say something of their engine's passes: not those of an engine that is none of the
    table's, nor static batches that have to wait for room in the cache, whose time is a
    scheduler's."""
    named = np.array([point.named for point in found.points], bool)
    static = np.array([point.kind == "static" for point in found.points], bool)
    waits = np.asarray(found.work.running * found.dp) < 0.999 * found.batch
    return np.asarray(named & ~(static & waits))


def held_out(found: Timed, by: Sequence[str], known: Mask | None = None) -> Array:
    """What each point states, predicted with parameters fitted without its group.

    by     group of each point: its source, model or accelerator
    known  points that parameters may be fitted to; all if None
    """
    groups = np.array(by)
    fitted_to = np.ones(len(groups), bool) if known is None else known
    result = np.empty(len(groups))
    for group in np.unique(groups):
        inside = groups == group
        fitted = fit_engines(select(found, fitted_to & ~inside))
        part = select(found, inside)
        result[inside] = values(part, parameters_of(part, fitted))[0]
    return result
