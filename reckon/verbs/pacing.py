"""Clocks of the stages of a pipeline: what is not waited for runs slower, and saves energy.

The least energy within the pipeline's own time (or a deadline beyond it), over the schedule as it
is played: every pass, or every stage, has a clock; what waits draws what a bubble draws (Chung et
al. 2024, Perseus, arXiv 2312.06902, sections 3 and 4). A linear programme of the times at which
pieces of work begin and of the shares of clocks, solved to its optimum (HiGHS).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.arrays import Array, Index
from predictor.errors import InputError
from predictor.power import CLOCKS, Powered, sensible
from predictor.records import dataclass
from predictor.training import Pipeline, with_clocks

MODES = ("stage", "pass")
"""One clock for each stage, or one for each pass of a micro-batch (Perseus)."""

MOST = {"stage": 12_000, "pass": 6_000}
"""Pieces of work and transfers of a pipeline whose clocks are sought."""

LATE = 1e-9
"""Share of the time by which a step may be late, for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Paced:
    """A step whose stages have clocks of their own.

    mode      of `MODES`
    clocks    of each stage, mean over its time at work, and the lowest, over the highest
    before, after   the step with every stage at the clock of its conditions, and with these; both
              as means over the stages
    deadline  of the pipeline [s]; `lasts` is what it takes, `quickest` at the highest clocks [s]
    """

    mode: str
    clocks: Array
    lowest: Array
    before: Powered
    after: Powered
    deadline: float
    lasts: float
    quickest: float

    @property
    def later(self) -> float:
        """By which the pipeline is longer than at the highest clocks [s]."""
        return max(self.lasts - self.quickest, 0.0)

    @property
    def saved(self) -> float:
        """Share of the step's energy."""
        return 1.0 - float(self.after.energy) / float(self.before.energy)

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; every key carries its unit."""
        return {
            "by": self.mode,
            "energy_saved_share": self.saved,
            "clock": self.clocks.tolist(),
            "lowest_clock": self.lowest.tolist(),
            "pipeline_s": self.lasts,
            "deadline_s": self.deadline,
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """Clocks that a group of pieces may have.

    clocks   their positions in `CLOCKS`, (options,)
    times    of each piece of the group [s], (pieces, options)
    energy   of all of them beyond waiting [J], (options,)
    """

    clocks: Index
    pieces: Index
    times: Array
    energy: Array


def _options(own: Pipeline, mode: str) -> list[_Options]:
    """Groups of pieces of one clock, with what each clock takes of them."""
    longer = np.stack([each.longer() for each in own.paces])
    beyond = np.stack([each.beyond(own.waiting) for each in own.paces])
    graph = own.graph
    real = np.flatnonzero(graph.stage >= 0)
    each = graph.pieces[real] * own.times[:, graph.stage[real]].T
    times, joules = each @ longer, each @ beyond
    if mode == "stage":
        groups = [np.flatnonzero(graph.stage[real] == at) for at in range(own.times.shape[1])]
    else:
        groups = [np.array([at]) for at in range(len(real))]
    found = []
    known: dict[bytes, Index] = {}
    for group in groups:
        whole, energy = times[group].sum(axis=0), joules[group].sum(axis=0)
        key = np.append(whole, energy).tobytes()
        if key not in known:
            every = np.arange(len(CLOCKS), dtype=np.intp)
            known[key] = every if mode == "stage" else sensible(whole, energy)
        kept = known[key]
        found.append(_Options(kept, real[group], times[np.ix_(group, kept)], energy[kept]))
    return found


def _quickest(own: Pipeline) -> float:
    """Time of the pipeline with every stage at the clock of its conditions [s]."""
    longer = np.array([each.longer()[0] for each in own.paces])
    durations = own.graph.durations(own.times * longer[:, None], own.transfer)
    return float(own.graph.ends(durations, own.latency).max())


def _solved(own: Pipeline, options: list[_Options], deadline: float) -> list[Array]:
    """Shares of the clocks of each group, of the least energy within the deadline [s]: that beyond
    waiting, and of all stages waiting until the pipeline's end."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix, vstack

    graph, count = own.graph, len(own.graph.stage)
    first = count + np.concatenate([[0], np.cumsum([len(one.clocks) for one in options])])
    total = int(first[-1]) + 1  # the last is the end of the pipeline, until which all draw
    # Times of pieces, over the deadline: a row each, over the shares of its group.
    rows, columns, values = [], [], []
    fixed = np.where(graph.stage < 0, own.transfer, 0.0) / deadline
    for number, one in enumerate(options):
        places = np.arange(first[number], first[number + 1])
        rows.append(np.repeat(one.pieces, len(places)))
        columns.append(np.tile(places, len(one.pieces)))
        values.append((one.times / deadline).ravel())
    lasts = coo_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), (count, total)
    ).tocsr()
    begin = coo_matrix((np.ones(count), (np.arange(count), np.arange(count))), (count, total))
    ends = (begin.tocsr() + lasts).tocsr()
    bonds = ends[graph.before] - begin.tocsr()[graph.after]
    bound = -fixed[graph.before] - own.latency / deadline * graph.arrives
    final = np.setdiff1d(np.arange(count), graph.before)
    weights = np.concatenate([*(one.energy for one in options), [0.0]])
    weights[-1] = own.waiting * own.times.shape[1] * deadline
    scale = np.abs(weights).max()
    end = coo_matrix((np.ones(len(final)), (np.arange(len(final)), np.full(len(final), total - 1))),
                     (len(final), total))  # fmt: skip
    owner = np.repeat(np.arange(len(options)), [len(one.clocks) for one in options])
    places = np.arange(count, total - 1)
    whole = coo_matrix((np.ones(len(owner)), (owner, places)), (len(options), total))
    result = linprog(
        np.concatenate([np.zeros(count), weights / scale]),
        A_ub=vstack([bonds, ends[final] - end]),
        b_ub=np.concatenate([bound, -fixed[final]]),
        A_eq=whole,
        b_eq=np.ones(len(options)),
        bounds=[*((0.0, None) for _ in range(total - 1)), (0.0, 1.0 + LATE)],
        method="highs",
    )
    if not result.success:
        raise InputError(f"clocks of the stages were not found: {result.message}")
    return [result.x[first[at] : first[at + 1]] for at in range(len(options))]


def paced(own: Pipeline, mode: str, slower: float = 0.0) -> Paced:
    """A pipeline with the clocks that take the least energy.

    mode     of `MODES`
    slower   share by which the pipeline may be longer than at the highest clocks

    Raises InputError where the pipeline is too long for that.
    """
    if mode not in MODES:
        raise InputError(f"stage_clocks {mode!r} is not one of {', '.join(MODES)}")
    if len(own.graph.stage) > MOST[mode]:
        other = "; --stage-clocks stage takes less" if mode == "pass" else ""
        raise InputError(
            f"clocks of {len(own.graph.stage):,} passes and transfers are not sought, at most "
            f"{MOST[mode]:,}: fewer micro-batches or stages{other}"
        )
    quickest = _quickest(own)
    deadline = quickest * (1.0 + slower)
    options = _options(own, mode)
    shares = _solved(own, options, deadline)
    graph, stages = own.graph, own.times.shape[1]
    spent = np.zeros((3, stages, len(CLOCKS)))
    usual = np.zeros_like(spent)
    durations = np.where(graph.stage < 0, own.transfer, 0.0)
    for one, share in zip(options, shares, strict=True):
        durations[one.pieces] = one.times @ share
        for piece in one.pieces:
            stage = graph.stage[piece]
            each = graph.pieces[piece] * own.times[:, stage]
            spent[:, stage, one.clocks] += each[:, None] * share
            usual[:, stage, 0] += each
    lasts = float(graph.ends(durations, own.latency).max())
    longer = np.stack([each.longer() for each in own.paces])
    time = np.sum(spent * longer[:, None, :], axis=0)
    used = time > 1e-6 * time.sum(axis=1, keepdims=True)
    return Paced(
        mode=mode,
        clocks=time @ CLOCKS / time.sum(axis=1),
        lowest=np.array([CLOCKS[row].min() for row in used]),
        before=with_clocks(own, usual),
        after=with_clocks(own, spent, max(lasts - quickest, 0.0)),
        deadline=deadline,
        lasts=lasts,
        quickest=quickest,
    )
