"""Fits the parameters of links to measured collectives.

The time of a link (`hardware.LinkModel`) is linear in latencies, the square-root term and the
inverse efficiencies: a non-negative least squares finds them, reweighted so that it is the
logarithm of the time that is fitted. What a link's own measurements show beyond that, where NCCL
changes its protocol or algorithm, becomes a curve per number of members.

A link that nobody measured is known by its family, else its class: one fit to all their links,
each with the same weight, without curves. Its spread is what fits to the other links miss of each.

Between nodes a technology's name stands for many networks, of which one or two were measured: their
families lean on the class, their spread is that of whole networks left out, and what was seen
through links inside the nodes makes no curves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd

from calibration.heldout import HeldOut, errors
from calibration.network.wire import Wire, log_errors, moving, op_of, share_waiting, waiting, wire
from calibration.tables.kernel_table import gaps, is_collective
from predictor.arrays import take
from predictor.hardware import (
    USUAL_HOP,
    LinkCurve,
    LinkModel,
    default_link,
    hop_beyond,
    link_class,
    link_family,
)
from predictor.timing import ANY, CHUNK, Calibration, hops
from predictor.units import Z80

LEAST_ROWS = 8
"""Fewer rows of a link only scale what is known of its family (`scaled`)."""

PHASES = 4
"""Every fourth message size is held out, each once."""

REFERENCE_CLOCK = 1.8e9
"""Clock at which latencies inside a node are stated [Hz]."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkFit:
    """Links with the held-out errors of each (message sizes left out)."""

    links: dict[tuple[str, str], LinkModel] = field(default_factory=dict)
    heldout: dict[tuple[str, str], HeldOut] = field(default_factory=dict)


USUAL_WEIGHT = 0.02
"""Weight beside all measurements of a fit's, of an empty message that takes what is documented of
latencies (`hardware.default_link`): where all that was measured is large, nothing else tells them
(two such tables of InfiniBand gave none at all, and transfers between nodes took no time)."""


def _solve(
    rows: Wire, op: str, link: str, weight: np.ndarray, clock: float, sharing: float
) -> LinkModel:
    """Least squares of the logarithm of the time for one way of sharing."""
    smooth = _class_of(link) == "scale-out"
    usual = default_link(op, link.lstrip(ANY)).waiting_beyond(0.0)
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
        beyond=0.0 if smooth else float("nan"),
    )
    pace = np.asarray(model.pace(rows.clock)) * np.ones_like(rows.time)
    ideal = rows.ideal * rows.below**sharing
    sizes = np.unique(rows.members)
    steps, share = rows.steps, 0.0
    if smooth or np.unique(steps).size == 1:
        # Small messages are rarely measured on several numbers of nodes: base and hop stay in the
        # proportion of the documented default.
        share = usual.hop / usual.base
    longer = 1.0 + rows.beyond / USUAL_HOP  # a root's term grows with its hop's
    columns = [pace * (1.0 + share * steps), pace * np.sqrt(ideal * longer)]
    if share == 0.0:
        columns.append(pace * steps)
    fixed = len(columns)
    # Few numbers of nodes are ever measured: between nodes, efficiency falls with their doublings.
    if smooth:
        doublings = np.log2(rows.members) - 1.0
        columns += [ideal, ideal * doublings]
    else:
        columns += [np.where(rows.members == size, ideal, 0.0) for size in sizes]
    matrix = np.stack(columns, axis=1)
    moves = np.ones(matrix.shape[1], bool)
    moves[[0, *range(2, fixed)]] = False
    empty = _empty(usual, float(steps.min()), matrix[0], share)
    found = _descend(rows, matrix, ideal, weight, moves, empty if smooth else None)
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


def _empty(
    usual: LinkModel, steps: float, columns: np.ndarray, share: float
) -> tuple[np.ndarray, float]:
    """An empty message as a row of the least squares, and its usual time [s]."""
    row = np.zeros_like(columns)
    row[0] = 1.0 + share * steps
    return row, usual.base + usual.hop * steps


def _descend(
    rows: Wire,
    matrix: np.ndarray,
    ideal: np.ndarray,
    weight: np.ndarray,
    moves: np.ndarray,
    empty: tuple[np.ndarray, float] | None,
) -> np.ndarray:
    """Coefficients of the columns, none of them negative, that fit the logarithm of the time.

    ideal   time of the traffic at an efficiency of one, which none exceeds: what is beyond it is
            fitted [s]
    moves   columns that are traffic, of which only a chunk counts where the links inside the nodes
            take longer (`timing.chained`)
    empty   a row of no traffic, with its time
    """
    from scipy.optimize import nnls

    time, predicted = rows.time, rows.time
    chunk = CHUNK / np.maximum(rows.message, CHUNK)
    outer = np.full_like(time, np.inf)
    for _ in range(6):
        above = outer >= rows.inner
        passed = np.where(above, 1.0, chunk)
        columns = matrix * np.where(moves, passed[:, None], 1.0)
        waits = rows.within + rows.beyond * rows.steps
        given = waits + passed * ideal + np.where(above, chunk, 1.0) * rows.inner
        scale = weight / np.sqrt(predicted * time)
        left, beyond = columns * scale[:, None], (time - given) * scale
        if empty is not None:
            firm = np.sqrt(USUAL_WEIGHT * np.sum(weight**2)) / empty[1]
            left = np.vstack([left, firm * empty[0]])
            beyond = np.append(beyond, firm * empty[1])
        found = np.asarray(nnls(left, beyond)[0])
        predicted = columns @ found + given
        outer = ideal + matrix[:, moves] @ found[moves]
    return found


def _class_of(link: str) -> str:
    """The class of a link, of a family, or itself where it is one."""
    return link[1:] if link.startswith(ANY) else link_class(link)


def _weights(unit: np.ndarray, home: str = "") -> np.ndarray:
    """Square roots of the weights of rows: links count alike, and accelerators of each.

    home   family between nodes that is sought: its networks (accelerators of a link) count alike,
           and all others together as one; families count alike where it is none of them
    """
    each = _pairs(unit)
    count = Counter(each)
    accelerators = Counter(link for link, _ in count)
    share = {link: 1.0 / number for link, number in accelerators.items()}
    if home:
        families = [link_family(link) for link in share]
        several = len(set(families)) - 1 if home in families else 1
        for link, family in zip(share, families, strict=True):
            own = family == home
            share[link] = 1.0 if own else share[link] / (several * families.count(family))
    return np.sqrt([share[pair[0]] / count[pair] for pair in each])


def _pairs(unit: np.ndarray) -> list[tuple[str, str]]:
    """Link and accelerator of each row."""
    return [(link, accelerator) for link, accelerator in unit.tolist()]


def _fit(rows: Wire, unit: np.ndarray, op: str, link: str) -> LinkModel:
    """The smooth part of a link's model; each link, and within it each accelerator (`unit`),
    counts the same (`_weights`)."""
    up = _class_of(link) == "scale-up"
    home = "" if up else link_family(link.lstrip(ANY))
    every, weights = rows, _weights(unit, home)
    outer, weight = rows.inner < 0.8 * rows.time, weights  # the others only bound this link
    if LEAST_ROWS <= outer.sum() < len(outer):
        rows, unit = take(rows, outer), unit[outer]
        weight = _weights(unit, home)
    clock = REFERENCE_CLOCK if up and np.isfinite(rows.clock).any() else float("nan")
    # Only one machine with groups of several shapes shows how its links share the way out.
    shapes = set(zip(_pairs(unit), rows.below.tolist(), strict=True))
    several = len(shapes) > len({pair for pair, _ in shapes})
    trials = [
        _solve(rows, op, link, weight, clock, float(sharing))
        for sharing in (np.linspace(0.0, 1.0, 11) if several else [0.0])
    ]
    losses = [np.sum((weights * log_errors(trial, every)) ** 2) for trial in trials]
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
    beyond, smooth = rows.time - waiting(model, rows), moving(model, rows)
    seen = (beyond > 0.2 * rows.time) & (rows.inner == 0.0)
    found = []
    for members in np.unique(rows.members):
        own = seen & (rows.members == members)
        x = np.log(rows.ideal[own] * rows.below[own] ** model.sharing)
        y = np.clip(np.log(beyond[own] / smooth[own]), -1.0, 1.0)
        _, knot = np.unique(np.round(2.0 * x / np.log(2.0)), return_inverse=True)
        if knot.size == 0 or knot.max() < 3:
            continue
        count = np.bincount(knot)
        at, factor = np.bincount(knot, x) / count, np.bincount(knot, y) / count
        found.append(LinkCurve(float(members), tuple(at.tolist()), bounded(at, factor)))
    return tuple(found)


def _own(rows: Wire, unit: np.ndarray, op: str, link: str) -> LinkModel:
    """A link's model with the curves that its own measurements show."""
    smooth = _fit(rows, unit, op, link).waiting_beyond(hop_beyond(link))
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
        return np.concatenate([log_errors(slowed(by), rows) / 0.1, by])

    return slowed(least_squares(residuals, np.zeros(2), bounds=(-6.0, 6.0)).x)


Spread = tuple[float, float]
"""Log-standard-deviations of large and of small messages."""


def _spread(
    groups: np.ndarray,
    fit: Callable[..., LinkModel],
    rows: Wire,
    unit: np.ndarray,
    networks: bool = False,
) -> tuple[Spread, HeldOut]:
    """Spread and errors of fits to the rows outside each group, on the rows inside it; links and
    accelerators count the same (`unit`).

    fit   of rows and their units, told the group that it is without where groups are networks
    """
    off, weight = np.zeros(len(groups)), _weights(unit) ** 2
    small = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        inside = groups == group
        kept, own = (take(rows, ~inside), unit[~inside]), take(rows, inside)
        trial = fit(*kept, group) if networks else fit(*kept)
        off[inside] = log_errors(trial, own)
        small[inside] = share_waiting(trial, own) > 0.5

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
    result.links.update(stepped(result.links))
    if base is None:
        _strangers(result)
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
    kinds = table["link"].map(link_class)
    for name_of in (link_family, lambda link: ANY + link_class(link)):
        for (op, name), own in table.groupby(["fitted", table["link"].map(name_of)]):
            key = (str(op), str(name))
            kind = link_class(str(own["link"].iloc[0]))
            known = (key[0], ANY + kind) in base
            if known or key in result.links or len(own) < LEAST_ROWS:
                continue
            alike = (kinds == kind) & (table["fitted"] == "allreduce")
            alone = own["link"].nunique() == 1
            if key[1].startswith(ANY) and alone and table.loc[alike, "link"].nunique() > 1:
                continue  # more is known from the all-reduces of the class (`_derive`)
            whole = table[(kinds == kind) & (table["fitted"] == op)]
            rows = whole if kind == "scale-out" else own
            model, found = _pooled(rows, key, Calibration("", links={**base, **result.links}))
            result.links[key] = replace(model, points=len(own), pedigree="transferred")
            result.heldout[key] = found


def _pooled(
    table: pd.DataFrame, key: tuple[str, str], known: Calibration
) -> tuple[LinkModel, HeldOut]:
    """The model of a family or class, and its errors on links or networks left out.

    table   its rows; of a family between nodes those of its whole class
    """
    rows, unit = wire(table, key[0], known), _units(table)
    fit = partial(_fit, op=key[0], link=key[1])
    outside, links = _class_of(key[1]) == "scale-out", table["link"].nunique()
    networks = (table["link"] + " " + table["source"]).to_numpy(str)
    count = len(np.unique(networks)) if outside else links
    if count > 1:
        if outside:
            spread, found = _spread(networks, partial(_without, op=key[0]), rows, unit, True)
        else:
            spread, found = _spread(unit[:, 0], fit, rows, unit)
        wider = np.sqrt(1.0 + 1.0 / count)  # of one more link, where few are known
        large, small = (float(wider * sigma) for sigma in spread)
    else:  # one link says nothing of others
        phase = phases(table["message_bytes"].to_numpy(float))
        spread, found = _spread(phase, fit, rows, unit)
        large, small = (max(sigma, 0.25) for sigma in spread)
    return replace(fit(rows, unit), sigma=large, latency_sigma=small), found


def _without(rows: Wire, unit: np.ndarray, network: str, op: str) -> LinkModel:
    """What stands for a network that is not among the rows: its family, which leans on the others.

    network   its link, and who measured it
    """
    return _fit(rows, unit, op, link_family(network.split()[0]))


def stepped(links: Mapping[tuple[str, str], LinkModel]) -> dict[tuple[str, str], LinkModel]:
    """Links inside nodes that were timed among one number of ranks alone, whose latency for that
    many is parted into what a call takes and what each hop adds as their family's is, if that has
    any of the latter (two cards of PCIe 4 beside two, four and eight of PCIe 5)."""
    found = {}
    for (op, link), model in links.items():
        pool = links.get((op, link_family(link)))
        if pool is None or _class_of(link) != "scale-up" or len(model.log2_sizes) > 1:
            continue
        steps = float(hops(op, 2.0 ** model.log2_sizes[0]))
        usual = pool.base + pool.hop * steps
        if len(pool.log2_sizes) > 1 and pool.hop > 0.0:
            slow = (model.base + model.hop * steps) / usual
            found[op, link] = replace(model, base=pool.base * slow, hop=pool.hop * slow)
    return found


def _strangers(result: LinkFit) -> None:
    """Links between nodes are as uncertain as networks left out: those that are asked for are
    hardly ever the ones that were measured."""
    for (op, link), model in result.links.items():
        pool = result.links.get((op, link_family(link)))
        if _class_of(link) == "scale-out" and model.pedigree == "interpolated" and pool is not None:
            result.links[(op, link)] = replace(
                model,
                sigma=max(model.sigma, pool.sigma),
                latency_sigma=max(float(model.spread(1.0)), float(pool.spread(1.0))),
            )


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
