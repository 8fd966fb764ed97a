"""Slow and failed links: what they cost a collective, by algorithm.

A ring of n sends 2 S (n - 1) / n over every link in one direction: one slow link, or one slow NIC,
costs 1 / d of the traffic. In a double binary tree a NIC too carries 2 S (inner node of one tree,
leaf of the other), so a slow NIC costs 1 / d; a slow path between two nodes carries S / 2 each way
of one tree, and shows only below a quarter of its rate. In an all-to-all everyone waits for the
slow one's share.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError, unknown

NIC, PATH = "nic", "path"
"""What is slow: all that a rank sends, or what goes from one node to one other."""

ALGORITHMS = ("ring", "tree", "alltoall", "hierarchical")


def slowdown(algorithm: str, what: str, derate: Numeric) -> Array:
    """Time of a collective's traffic over that of a sound network, 1 or more; shape of `derate`.

    algorithm   one of `ALGORITHMS`; 'hierarchical': only the phase between nodes goes this way
    what        `NIC` or `PATH`
    derate      share of its rate that is left, above 0; 1: sound
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    if what not in (NIC, PATH):
        raise unknown("what is slow", what, (NIC, PATH))
    d = np.asarray(derate, float)
    if np.any(d <= 0) or np.any(d > 1):
        raise InputError("a derate is above 0 and at most 1; what has failed is rerouted")
    if what == PATH and algorithm == "tree":
        return np.asarray(np.maximum(1.0, 1.0 / (4.0 * d)))
    return np.asarray(1.0 / d)


def rerouted(lost: Numeric, of: Numeric) -> Array:
    """Share of the rate that is left when so many of equal links have failed and their traffic goes
    over the others (rails of a node, uplinks of a leaf); 0: the job stops."""
    if np.any(np.asarray(lost) < 0) or np.any(np.asarray(of) < 1):
        raise InputError("links that have failed are 0 or more, of 1 or more")
    return np.asarray(np.maximum(1.0 - np.asarray(lost, float) / of, 0.0))


def fair_shares(rates: Array, paths: Array) -> Array:
    """Rates of flows that share links, max-min fair [bytes/s], (flows,).

    rates   of the links [bytes/s], (links,)
    paths   which flow takes which link, 0 or 1 (or how much of it), (flows, links)

    Water filling: the link that gives its flows least settles them, and so on (Bertsekas and
    Gallager 1992, section 6.5.2).
    """
    left, open_ = np.asarray(rates, float).copy(), np.ones(len(paths), dtype=bool)
    found = np.full(len(paths), np.inf)
    while open_.any():
        load = paths[open_].sum(axis=0)
        share = np.where(load > 0, left / np.maximum(load, 1e-300), np.inf)
        link = int(np.argmin(share))
        if not np.isfinite(share[link]):
            break
        settled = open_ & (paths[:, link] > 0)
        found[settled] = share[link]
        left = np.maximum(left - paths[settled].sum(axis=0) * share[link], 0.0)
        open_ &= ~settled
    return found
