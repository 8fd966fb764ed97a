"""Fits the parameters of links to measured collectives.

time = base + hop steps + root sqrt(ideal) + ideal / efficiency(members): linear in what is sought,
so a non-negative least squares on relative errors finds it; one efficiency per group size.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression

from calibration.fit import HeldOut, errors
from calibration.tables import gaps, is_collective
from predictor.collectives import hops, link_time, volume
from predictor.efficiency import ANY, LinkModel, link_class, link_family


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
    time     measured [s]
    """

    ideal: np.ndarray
    steps: np.ndarray
    members: np.ndarray
    time: np.ndarray

    def take(self, index: np.ndarray) -> Wire:
        """The rows at `index`."""
        return Wire(self.ideal[index], self.steps[index], self.members[index], self.time[index])


def wire(table: pd.DataFrame, op: str) -> Wire:
    """Checked rows of one collective without gaps (`tables.gaps`)."""
    size = table["num_gpus"].to_numpy(float)
    nodes = table["num_nodes"].fillna(1.0).to_numpy(float)
    # Across nodes it is the nodes that exchange data, over the links of all their ranks.
    below = np.where(nodes > 1, size / nodes, 1.0)
    members = size / below
    own_link = op in ("alltoall", "p2p")
    rate = table["link_gbs"].to_numpy(float) * 1e9 * (1.0 if own_link else below)
    message = table["message_bytes"].to_numpy(float)
    reducing = table["in_switch"].fillna(0.0).to_numpy(float) > 0
    plain = volume(op, message, members, False)
    moved = np.where(reducing, volume(op, message, members, True), plain)
    time = table["latency_us"].to_numpy(float) * 1e-6
    return Wire(moved / rate, hops(op, members), members, time)


def wire_times(model: LinkModel, rows: Wire) -> np.ndarray:
    """Time of each row on a link [s]."""
    return link_time(model, rows.ideal, 1.0, rows.steps, rows.members, model.hop)


def _fit(rows: Wire, op: str, link: str) -> LinkModel:
    sizes = np.unique(rows.members)
    columns = [np.ones_like(rows.time), rows.steps, np.sqrt(rows.ideal)]
    columns += [np.where(rows.members == size, rows.ideal, 0.0) for size in sizes]
    relative = np.stack(columns, axis=1) / rows.time[:, None]
    # An efficiency cannot exceed one: fit what is beyond the ideal time.
    target = 1.0 - rows.ideal / rows.time
    estimator = LinearRegression(positive=True, fit_intercept=False).fit(relative, target)
    base, hop, root, *beyond = estimator.coef_
    efficiencies = 1.0 / (1.0 + np.asarray(beyond))
    return LinkModel(
        op=op,
        link=link,
        base=float(base),
        hop=float(hop),
        root=float(root),
        log2_sizes=tuple(float(x) for x in np.log2(sizes)),
        efficiencies=tuple(float(x) for x in efficiencies),
        sigma=0.0,
        points=len(rows.time),
    )


def fit_links(table: pd.DataFrame) -> LinkFit:
    """Fit every (op, link) of a table, each link's family, and its class.

    table    checked rows of collectives with `link`, `link_gbs` (GB/s per rank and direction),
             `in_switch`, `num_gpus`, `num_nodes`, `message_bytes`, `latency_us`
    """
    result = LinkFit()
    table = table[is_collective(table) & (gaps(table) == "")]
    for level in ("link", "family", "class"):
        names = {
            "link": table["link"],
            "family": table["link"].map(link_family),
            "class": ANY + table["link"].map(link_class),
        }[level]
        for (op, name), own in table.groupby([table["op"], names]):
            key = (str(op), str(name))
            if key in result.links or len(own) < 8:
                continue
            rows = wire(own, str(op))
            held = np.zeros(len(own), dtype=bool)
            _, order = np.unique(own["message_bytes"].to_numpy(float), return_inverse=True)
            held[order % 4 == 1] = True  # every fourth message size
            trial = _fit(rows.take(~held), *key)
            predicted = wire_times(trial, rows.take(held))
            found = errors(predicted, rows.time[held])
            spread = np.abs(np.log(predicted / rows.time[held]))
            sigma = float(np.quantile(spread, 0.8) / 1.2816)
            model = _fit(rows, *key)
            pedigree = "interpolated" if level == "link" else "transferred"
            result.links[key] = replace(model, sigma=max(sigma, 0.02), pedigree=pedigree)
            result.heldout[key] = found
    _derive(result)
    return result


def _derive(result: LinkFit) -> None:
    """Where only the all-reduce of a fabric was measured, its halves (all-gather, reduce-scatter)
    and the all-to-all use the wires as well as it does."""
    for (op, link), model in list(result.links.items()):
        outside = link_class(link) == "scale-out" and link not in (f"{ANY}scale-up", f"{ANY}host")
        if op != "allreduce" or not outside:
            continue
        for other in ("allgather", "reducescatter", "alltoall", "broadcast"):
            if (other, link) not in result.links:
                result.links[(other, link)] = replace(
                    model, op=other, sigma=max(model.sigma, 0.15), pedigree="transferred"
                )
