"""What rows of measured collectives put on the wire, and the time that a link's model gives them,
as `predictor.timing.collectives` gives it to groups of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from calibration.sources.exchanges import CUSTOM, copies, is_exchange
from calibration.tables.libraries import library
from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import LinkModel, hop_beyond
from predictor.plans import distinct_share
from predictor.timing import Calibration, chained, hops, latency, ring_hop, traffic, volume

ENGINES = ("sglang", "trtllm", "vllm")
"""Libraries whose own all-reduces were timed."""


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """What rows of one collective put on the wire, each an array over the rows.

    ideal    time of the least traffic at the link's rate [s]
    steps    hops of the algorithm
    members  that exchange data: ranks, or nodes where there are several
    below    ranks of a node whose links work together
    inner    time of the traffic inside the nodes, as far as it is known [s]
    within   of the hops there, as far as they are known [s]
    clock    of the accelerators [Hz]; NaN where not known
    beyond   what is documented of a hop of the link beyond the usual [s]
    message  [bytes]
    time     measured [s]
    """

    ideal: np.ndarray
    steps: np.ndarray
    members: np.ndarray
    below: np.ndarray
    inner: np.ndarray
    within: np.ndarray
    clock: np.ndarray
    beyond: np.ndarray
    message: np.ndarray
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
    inner, within = np.zeros(len(table)), np.zeros(len(table))
    if known is not None and kind not in ("alltoall", "p2p", "broadcast"):
        stated = (below > 1) & (table["node_link_gbs"].to_numpy(float) > 0)
        for link in table["node_link"][stated].unique():
            own = stated & (table["node_link"] == link).to_numpy()
            model = known.link(op, str(link))
            switch = table["node_in_switch"].to_numpy(float)[own] > 0
            moved = volume(kind, message[own], below[own], below[own], switch)
            ideal = moved / (table["node_link_gbs"].to_numpy(float)[own] * 1e9)
            pace = np.asarray(model.pace(clock[own]))
            inner[own] = traffic(model, ideal, below[own], 1.0, pace)
            hop = ring_hop(op, str(link), model.hop * pace, message[own] / size[own])
            within[own] = (hops(op, size[own]) - hops(op, members[own])) * hop
    moved = volume(kind, message, size, members, reducing) * distinct_share(members, copies(table))
    time = table["latency_us"].to_numpy(float) * 1e-6
    return Wire(
        ideal=moved / rate,
        steps=hops(op, members),
        members=members,
        below=shared,
        inner=inner,
        within=within,
        clock=clock,
        beyond=table["link"].map(hop_beyond).to_numpy(float),
        message=message,
        time=time,
    )


def moving(model: LinkModel, rows: Wire) -> np.ndarray:
    """Time of each row's traffic on a link, latencies and what goes on inside nodes aside [s]."""
    model = model.waiting_beyond(rows.beyond)
    return traffic(model, rows.ideal, rows.members, rows.below, model.pace(rows.clock))


def waiting(model: LinkModel, rows: Wire) -> np.ndarray:
    """Latencies in the time of each row, those inside the nodes too [s]."""
    model, pace = model.waiting_beyond(rows.beyond), model.pace(rows.clock)
    return latency(model, rows.steps, model.hop * pace, pace) + rows.within


def wire_times(model: LinkModel, rows: Wire) -> np.ndarray:
    """Time of each row on a link [s]."""
    return waiting(model, rows) + chained(moving(model, rows), rows.inner, rows.message)


def share_waiting(model: LinkModel, rows: Wire) -> np.ndarray:
    """Share of latencies in each time."""
    return waiting(model, rows) / wire_times(model, rows)


def wire_spread(model: LinkModel, rows: Wire) -> np.ndarray:
    """Log-standard-deviation of each of those times."""
    return model.spread(share_waiting(model, rows))


def log_errors(model: LinkModel, rows: Wire) -> np.ndarray:
    """Logarithm of predicted over measured time of each row."""
    return np.asarray(np.log(wire_times(model, rows) / rows.time))
