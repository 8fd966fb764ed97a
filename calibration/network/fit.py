"""Fits the parameters of links to measured collectives.

The time of a link (`hardware.LinkModel`) is linear in latencies, the square-root term and the
inverse efficiencies: a non-negative least squares finds them, reweighted so that it is the
logarithm of the time that is fitted. What a link's own measurements show beyond that, where NCCL
changes its protocol or algorithm, becomes a curve per number of members.

A link that nobody measured is known by its family, else its class: one fit to all their links,
each with the same weight, without curves. Its spread is what fits to the other links miss of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from calibration.heldout import HeldOut, errors
from calibration.sources.exchanges import CUSTOM, copies, is_exchange
from calibration.tables.kernel_table import gaps, is_collective
from calibration.tables.libraries import library
from predictor import catalog
from predictor.arrays import take
from predictor.errors import InputError
from predictor.hardware import LinkCurve, LinkModel, default_link, link_class, link_family
from predictor.plans import distinct_share
from predictor.timing import ANY, Calibration, hops, latency, traffic, volume
from predictor.units import Z80

LEAST_ROWS = 8
"""Fewer rows of a link only scale what is known of its family (`scaled`)."""

PHASES = 4
"""Every fourth message size is held out, each once."""

ENGINES = ("sglang", "trtllm", "vllm")
"""Libraries whose own all-reduces were timed."""

REFERENCE_CLOCK = 1.8e9
"""Clock at which latencies inside a node are stated [Hz]."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkFit:
    """Links with the held-out errors of each (message sizes left out)."""

    links: dict[tuple[str, str], LinkModel] = field(default_factory=dict)
    heldout: dict[tuple[str, str], HeldOut] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """What rows of one collective put on the wire, each an array over the rows.

    ideal    time of the least traffic at the link's rate [s]
    steps    hops of the algorithm
    members  that exchange data: ranks, or nodes where there are several
    below    ranks of a node whose links work together
    inner    time of the traffic inside the nodes, as far as it is known [s]
    clock    of the accelerators [Hz]; NaN where not known
    time     measured [s]
    """

    ideal: np.ndarray
    steps: np.ndarray
    members: np.ndarray
    below: np.ndarray
    inner: np.ndarray
    clock: np.ndarray
    time: np.ndarray


def op_of(table: pd.DataFrame) -> pd.Series:
    """Under which name each collective row is fitted: its op, with '.custom' for the small
    all-reduce of inference engines ('.custom-eager' where it was not in a captured graph), and the
    engine where the row says whose ('.custom.vllm'); with its kernel, where that exchanges the
    tokens of a mixture ('.deepep_ll_dispatch')."""
    custom = table["kernel"].eq(CUSTOM) & table["op"].eq("allreduce")
    eager = np.where(table["mode"] == "eager", ".custom-eager", ".custom")
    engine = table["framework"].map(library)
    whose = eager + np.where(engine.isin(ENGINES), "." + engine, "")
    which = np.where(is_exchange(table), "." + table["kernel"], "")
    return table["op"] + pd.Series(np.where(custom, whose, which), index=table.index)


def _clock(name: str) -> float:
    try:
        return float(catalog.accelerator(name).clock)
    except InputError:
        return float("nan")


def wire(table: pd.DataFrame, op: str, known: Calibration | None = None) -> Wire:
    """Checked rows of one collective without gaps (`kernel_table.gaps`).

    known   links inside the nodes, of rows that state theirs (`node_link`, `node_link_gbs`,
            `node_in_switch`)
    """
    kind = op.partition(".")[0]
    size = table["num_gpus"].to_numpy(float)
    nodes = table["num_nodes"].fillna(1.0).to_numpy(float)
    # Across nodes it is the nodes that exchange data, over the links of all their ranks.
    below = np.where(nodes > 1, size / nodes, 1.0)
    members = size / below
    shared = np.ones_like(below) if kind in ("alltoall", "p2p") else below
    rate = table["link_gbs"].to_numpy(float) * 1e9 * shared
    message = table["message_bytes"].to_numpy(float)
    reducing = (table["in_switch"].fillna(0.0).to_numpy(float) > 0) & (op == kind)
    names = table["accelerator"].to_numpy(str)
    clocks = {name: _clock(name) for name in np.unique(names)}
    clock = np.array([clocks[name] for name in names])
    inner = np.zeros(len(table))
    if known is not None and kind not in ("alltoall", "p2p", "broadcast"):
        stated = (below > 1) & (table["node_link_gbs"].to_numpy(float) > 0)
        for link in table["node_link"][stated].unique():
            own = stated & (table["node_link"] == link).to_numpy()
            model = known.link(op, str(link))
            switch = table["node_in_switch"].to_numpy(float)[own] > 0
            moved = volume(kind, message[own], below[own], below[own], switch)
            ideal = moved / (table["node_link_gbs"].to_numpy(float)[own] * 1e9)
            inner[own] = traffic(model, ideal, below[own], 1.0, model.pace(clock[own]))
    moved = volume(kind, message, size, members, reducing) * distinct_share(members, copies(table))
    time = table["latency_us"].to_numpy(float) * 1e-6
    return Wire(moved / rate, hops(op, members), members, shared, inner, clock, time)


def wire_times(model: LinkModel, rows: Wire) -> np.ndarray:
    """Time of each row on a link [s]."""
    pace = model.pace(rows.clock)
    moving = traffic(model, rows.ideal, rows.members, rows.below, pace)
    return latency(model, rows.steps, model.hop * pace, pace) + np.maximum(moving, rows.inner)


def wire_spread(model: LinkModel, rows: Wire) -> np.ndarray:
    """Log-standard-deviation of each of those times."""
    return model.spread(_waiting(model, rows))


def _waiting(model: LinkModel, rows: Wire) -> np.ndarray:
    """Share of latencies in each time."""
    pace = model.pace(rows.clock)
    return latency(model, rows.steps, model.hop * pace, pace) / wire_times(model, rows)


def _log_errors(model: LinkModel, rows: Wire) -> np.ndarray:
    return np.asarray(np.log(wire_times(model, rows) / rows.time))


def _positive() -> Any:
    """Least squares whose coefficients are none of them negative."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression(positive=True, fit_intercept=False)


def _solve(
    rows: Wire, op: str, link: str, weight: np.ndarray, clock: float, sharing: float
) -> LinkModel:
    """Least squares of the logarithm of the time for one way of sharing."""
    model = LinkModel(
        op=op,
        link=link,
        base=0.0,
        hop=0.0,
        root=0.0,
        log2_sizes=(),
        efficiencies=(),
        sigma=0.0,
        points=len(rows.time),
        clock=clock,
    )
    smooth = _class_of(link) == "scale-out"
    pace = np.asarray(model.pace(rows.clock)) * np.ones_like(rows.time)
    ideal = rows.ideal * rows.below**sharing
    sizes = np.unique(rows.members)
    steps, share = rows.steps, 0.0
    if smooth or np.unique(steps).size == 1:
        # Small messages are rarely measured on several numbers of nodes: base and hop stay in the
        # proportion of the documented default.
        usual = default_link(op, link.lstrip(ANY))
        share = usual.hop / usual.base
    columns = [pace * (1.0 + share * steps), pace * np.sqrt(ideal)]
    if share == 0.0:
        columns.append(pace * steps)
    fixed = len(columns)
    # Few numbers of nodes are ever measured: between nodes, efficiency falls with their doublings.
    if smooth:
        doublings = np.log2(rows.members) - 1.0
        columns += [ideal, ideal * doublings]
    else:
        columns += [np.where(rows.members == size, ideal, 0.0) for size in sizes]
    matrix, predicted = np.stack(columns, axis=1), rows.time
    estimator = _positive()
    for _ in range(4):
        # An efficiency cannot exceed one: fit what is beyond the ideal time.
        scale = weight / np.sqrt(predicted * rows.time)
        found = estimator.fit(matrix * scale[:, None], (rows.time - ideal) * scale).coef_
        predicted = matrix @ found + ideal
    base, root, *hops_ = (float(x) for x in found[:fixed])
    hop = hops_[0] if hops_ else base * share
    beyond = found[fixed:]
    if smooth:
        log2_sizes = np.arange(1.0, 15.0)
        inverse = 1.0 + beyond[0] + beyond[1] * (log2_sizes - 1.0)
    else:
        log2_sizes, inverse = np.log2(sizes), 1.0 + beyond
    return replace(
        model,
        base=base,
        hop=hop,
        root=root,
        log2_sizes=tuple(float(x) for x in log2_sizes),
        efficiencies=tuple(float(x) for x in 1.0 / inverse),
        sharing=sharing,
    )


def _class_of(link: str) -> str:
    """The class of a link, of a family, or itself where it is one."""
    return link[1:] if link.startswith(ANY) else link_class(link)


def _weights(unit: np.ndarray) -> np.ndarray:
    """Square roots of the weights of rows."""
    _, which, count = np.unique(unit, axis=0, return_inverse=True, return_counts=True)
    pairs = np.unique(unit, axis=0)[:, 0]
    within = {link: int((pairs == link).sum()) for link in np.unique(pairs)}
    share = np.array([within[link] for link in unit[:, 0]])
    return np.asarray(np.sqrt(1.0 / (count[which.ravel()] * share)))


def _fit(rows: Wire, unit: np.ndarray, op: str, link: str) -> LinkModel:
    """The smooth part of a link's model; each link, and within it each accelerator (`unit`),
    counts the same."""
    every, weights = rows, _weights(unit)
    outer = rows.inner < 0.8 * rows.time  # the others only bound this link
    if outer.sum() >= LEAST_ROWS:
        rows, unit = take(rows, outer), unit[outer]
    weight = _weights(unit)
    up = _class_of(link) == "scale-up"
    clock = REFERENCE_CLOCK if up and np.isfinite(rows.clock).any() else float("nan")
    # Only one machine with groups of several shapes shows how its links share the way out.
    shapes = {(*pair, below) for pair, below in zip(unit.tolist(), rows.below, strict=True)}
    several = len(shapes) > len(np.unique(unit, axis=0))
    trials = [
        _solve(rows, op, link, weight, clock, float(sharing))
        for sharing in (np.linspace(0.0, 1.0, 11) if several else [0.0])
    ]
    losses = [np.sum((weights * _log_errors(trial, every)) ** 2) for trial in trials]
    return trials[int(np.argmin(losses))]


def bounded(log_ideal: np.ndarray, log_factor: np.ndarray) -> tuple[float, ...]:
    """A curve raised where it falls by more than half of what the knots rise: the square root of
    the ideal time grows that fast at least, so the time of a larger message is not shorter."""
    found = log_factor.astype(float).tolist()
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] - 0.5 * float(log_ideal[i] - log_ideal[i - 1]))
    return tuple(found)


def _curves(model: LinkModel, rows: Wire) -> tuple[LinkCurve, ...]:
    """What the measurements of a link show beyond its smooth model."""
    pace = model.pace(rows.clock)
    waiting = latency(model, rows.steps, model.hop * pace, pace)
    moving = traffic(model, rows.ideal, rows.members, rows.below, pace)
    seen = (rows.time - waiting > 0.2 * rows.time) & (rows.inner < 0.8 * rows.time)
    found = []
    for members in np.unique(rows.members):
        own = seen & (rows.members == members)
        x = np.log(rows.ideal[own] * rows.below[own] ** model.sharing)
        y = np.clip(np.log((rows.time - waiting)[own] / moving[own]), -1.0, 1.0)
        _, knot = np.unique(np.round(2.0 * x / np.log(2.0)), return_inverse=True)
        if knot.size == 0 or knot.max() < 3:
            continue
        count = np.bincount(knot)
        at, factor = np.bincount(knot, x) / count, np.bincount(knot, y) / count
        found.append(LinkCurve(float(members), tuple(at.tolist()), bounded(at, factor)))
    return tuple(found)


def _own(rows: Wire, unit: np.ndarray, op: str, link: str) -> LinkModel:
    """A link's model with the curves that its own measurements show."""
    smooth = _fit(rows, unit, op, link)
    return replace(smooth, curves=_curves(smooth, rows))


def scaled(prior: LinkModel, rows: Wire, link: str) -> LinkModel:
    """A link of which little was measured: its family's model with latencies and traffic slowed
    by one factor each, both drawn towards one (log-standard-deviations: 1 of the factors, 0.1 of
    a measurement)."""
    from scipy.optimize import least_squares

    def slowed(by: np.ndarray) -> LinkModel:
        slow, slower = np.exp(by)
        return replace(
            prior,
            link=link,
            base=float(prior.base * slow),
            hop=float(prior.hop * slow),
            root=float(prior.root * slower),
            efficiencies=tuple(float(min(e / slower, 1.0)) for e in prior.efficiencies),
            points=len(rows.time),
        )

    def residuals(by: np.ndarray) -> np.ndarray:
        return np.concatenate([_log_errors(slowed(by), rows) / 0.1, by])

    return slowed(least_squares(residuals, np.zeros(2), bounds=(-6.0, 6.0)).x)


Spread = tuple[float, float]
"""Log-standard-deviations of large and of small messages."""


def _spread(
    groups: np.ndarray,
    fit: Callable[[Wire, np.ndarray], LinkModel],
    rows: Wire,
    unit: np.ndarray,
) -> tuple[Spread, HeldOut]:
    """Spread and errors of fits to the rows outside each group, on the rows inside it; links and
    accelerators count the same (`unit`)."""
    off, weight = np.zeros(len(groups)), _weights(unit) ** 2
    small = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        inside = groups == group
        trial, own = fit(take(rows, ~inside), unit[~inside]), take(rows, inside)
        off[inside] = _log_errors(trial, own)
        small[inside] = _waiting(trial, own) > 0.5

    def sigma(of: np.ndarray) -> float:
        of = of if of.sum() >= LEAST_ROWS else np.ones_like(of)
        size, share = np.abs(off[of]), weight[of]
        order = np.argsort(size)
        reached = np.cumsum(share[order]) / share.sum()
        return max(float(size[order[np.searchsorted(reached, 0.8)]]) / Z80, 0.01)

    return (sigma(~small), sigma(small)), errors(np.exp(off) * rows.time, rows.time)


def phases(message: np.ndarray) -> np.ndarray:
    """Which of the `PHASES` holds each message size out."""
    _, order = np.unique(message, return_inverse=True)
    return np.asarray(order % PHASES)


def _units(table: pd.DataFrame) -> np.ndarray:
    """Link and accelerator of each row, (N, 2)."""
    return table[["link", "accelerator"]].to_numpy(str)


def fit_links(table: pd.DataFrame, base: Calibration | None = None) -> LinkFit:
    """Fit every (op, link) of a table, each link's family, and its class.

    table    checked rows of collectives with `link`, `link_gbs` (GB/s per rank and direction),
             `in_switch`, `num_gpus`, `num_nodes`, `message_bytes`, `latency_us`
    base     what is known of links already: links of few rows scale its models
    """
    result = LinkFit()
    table = table[is_collective(table) & (gaps(table) == "")]
    table = table.assign(fitted=op_of(table))
    inside = table["link"].map(link_class) == "scale-up"
    few = []
    for part in (table[inside], table[~inside]):  # what is inside nodes first
        known = Calibration("", links={**(base.links if base else {}), **result.links})
        for (op, link), own in part.groupby(["fitted", "link"]):
            key = (str(op), str(link))
            if len(own) < LEAST_ROWS:
                few.append((key, own))
                continue
            rows, unit = wire(own, key[0], known), _units(own)
            phase = phases(own["message_bytes"].to_numpy(float))
            (large, small), found = _spread(
                phase, partial(_own, op=key[0], link=key[1]), rows, unit
            )
            model = _own(rows, unit, *key)
            result.links[key] = replace(model, sigma=large, latency_sigma=small)
            result.heldout[key] = found
    _pool(result, table, base.links if base else {})
    for key, own in few:
        known = Calibration("", links={**(base.links if base else {}), **result.links})
        prior = known.link(*key)
        rows = wire(own, key[0], known)
        result.links[key] = replace(
            scaled(replace(prior, curves=()), rows, key[1]),
            sigma=max(0.5 * prior.sigma, 0.1),
            latency_sigma=max(0.5 * float(prior.spread(1.0)), 0.1),
            pedigree="transferred",
        )
    _derive(result)
    return result


def _pool(result: LinkFit, table: pd.DataFrame, base: Mapping[tuple[str, str], LinkModel]) -> None:
    """Fit families and classes of links. What `base` knows of a class stands."""
    for name_of in (link_family, lambda link: ANY + link_class(link)):
        for (op, name), own in table.groupby(["fitted", table["link"].map(name_of)]):
            key = (str(op), str(name))
            kind = link_class(str(own["link"].iloc[0]))
            known = (key[0], ANY + kind) in base
            if known or key in result.links or len(own) < LEAST_ROWS:
                continue
            alike = (table["link"].map(link_class) == kind) & (table["fitted"] == "allreduce")
            links = own["link"].nunique()
            if key[1].startswith(ANY) and links == 1 < table.loc[alike, "link"].nunique():
                continue  # more is known from the all-reduces of the class (`_derive`)
            rows = wire(own, key[0], Calibration("", links=result.links))
            unit = _units(own)
            fit = partial(_fit, op=key[0], link=key[1])
            if links > 1:
                spread, found = _spread(unit[:, 0], fit, rows, unit)
                wider = np.sqrt(1.0 + 1.0 / links)  # of one more link, where few are known
                large, small = (float(wider * sigma) for sigma in spread)
            else:  # one link says nothing of others
                phase = phases(own["message_bytes"].to_numpy(float))
                spread, found = _spread(phase, fit, rows, unit)
                large, small = (max(sigma, 0.25) for sigma in spread)
            result.links[key] = replace(
                fit(rows, unit),
                sigma=large,
                latency_sigma=small,
                pedigree="transferred",
            )
            result.heldout[key] = found


def _derive(result: LinkFit) -> None:
    """Where only the all-reduce of a fabric was measured, the other collectives use the wires as
    well as it does."""
    for (op, link), model in list(result.links.items()):
        if op != "allreduce" or _class_of(link) != "scale-out":
            continue
        for other in ("allgather", "reducescatter", "alltoall", "broadcast", "p2p"):
            if (other, link) not in result.links:
                result.links[(other, link)] = replace(
                    model,
                    op=other,
                    curves=(),
                    sigma=max(model.sigma, 0.15),
                    latency_sigma=max(float(model.spread(1.0)), 0.15),
                    pedigree="transferred",
                )
