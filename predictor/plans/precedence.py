"""What has to come before what in a pipeline: the order of `events` without its times.

Pieces of work, and transfers that keep a link, are numbered so that each comes after all it waits
for; the longest path over them is the pipeline's time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array, Index
from predictor.plans.events import routes
from predictor.plans.folded import Block
from predictor.plans.schedules import SCHEDULES
from predictor.records import dataclass

DIRECTIONS = ("forward", "backward", "weights")


@dataclass(frozen=True, slots=True, eq=False)
class Precedence:
    """Pieces of a pipeline's work and what they wait for.

    stage    of each piece, (N,); -1: a transfer
    pieces   how much of a micro-batch's pass each does, by `DIRECTIONS`, (N, 3)
    link     of a transfer, between a stage and the next, (N,); -1: none
    before, after   of each bond, (E,); bonds by the piece that waits
    arrives  1 where what is waited for comes over a link, so that its latency is added, (E,)
    """

    stage: Index
    pieces: Array
    link: Index
    before: Index
    after: Index
    arrives: Array

    def ends(self, duration: Array, latency: float = 0.0) -> Array:
        """When each piece ends that lasts so long [s], (N,)."""
        start = np.zeros(len(self.stage))
        end = np.array(duration, float)
        bonds = zip(self.before.tolist(), self.after.tolist(), self.arrives.tolist(), strict=True)
        for before, after, arrives in bonds:
            at = end[before] + latency * arrives
            if at > start[after]:
                start[after] = at
                end[after] = at + duration[after]
        return end

    def durations(self, passes: Sequence[Sequence[float]], transfer: float = 0.0) -> Array:
        """Of each piece [s], (N,).

        passes     of one micro-batch by `DIRECTIONS`, of each stage [s], (3, stages)
        transfer   for which one keeps its link [s]
        """
        each = np.asarray(passes, float)[:, np.maximum(self.stage, 0)].T
        return np.where(self.stage >= 0, np.sum(self.pieces * each, axis=1), transfer)


class _Builder:
    """Pieces as they are played."""

    def __init__(self, schedule: str, pp: int, m: int, vpp: int) -> None:
        entry = SCHEDULES[schedule]
        self.share = 1.0 / vpp
        self.orders = [entry.order(stage, pp, vpp, m) for stage in range(pp)]
        self.splits = entry.splits
        ahead: dict[tuple[int, int], tuple[int, int] | None] = {}
        after: dict[tuple[int, int], tuple[int, int] | None] = {}
        for route in routes(entry.fold, pp, vpp):
            ahead |= dict(zip(route, [None, *route], strict=False))
            after |= dict(zip(route, [*route[1:], None], strict=True))
        self.comes = {"forward": ahead, "backward": after}
        self.goes = {"forward": after, "backward": ahead}
        self.made: dict[tuple[str, int, int, int], int] = {}
        self.sent: dict[tuple[str, int, int, int], int] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.stage: list[int] = []
        self.link: list[int] = []
        self.pieces: list[list[float]] = []
        self.bonds: list[tuple[int, int, float]] = []

    def inputs(self, stage: int, block: Block) -> list[tuple[int, float]] | None:
        """Pieces that a block waits for, and whether they come over a link; None while one of them
        has no number yet."""
        found = []
        for direction, batch, chunk in block:
            if direction == "weights":
                if ("backward", batch, chunk) in block:
                    continue
                known, far = self.made.get(("backward", batch, stage, chunk)), 0.0
            else:
                place = self.comes[direction][(stage, chunk)]
                if place is None:
                    if direction == "forward":
                        continue
                    known, far = self.made.get(("forward", batch, stage, chunk)), 0.0
                elif place[0] == stage:
                    known, far = self.made.get((direction, batch, *place)), 0.0
                else:
                    known, far = self.sent.get((direction, batch, *place)), 1.0
            if known is None:
                return None
            found.append((known, far))
        return found

    def add(self, stage: int, block: Block, waits: list[tuple[int, float]], before: int) -> int:
        """Number a block and the transfers of what it makes."""
        number = self._new(stage, -1)
        for direction, _, _ in block:
            self.pieces[number][DIRECTIONS.index(direction)] += self.share
        if before >= 0:
            self.bonds.append((before, number, 0.0))
        self.bonds += [(known, number, far) for known, far in waits]
        for direction, batch, chunk in block:
            self.made[(direction, batch, stage, chunk)] = number
            place = None if direction == "weights" else self.goes[direction][(stage, chunk)]
            if place is not None and place[0] != stage:
                link = (stage, place[0])
                sent = self._new(-1, min(link))
                self.bonds.append((number, sent, 0.0))
                if link in self.last:
                    self.bonds.append((self.last[link], sent, 0.0))
                self.last[link] = sent
                self.sent[(direction, batch, stage, chunk)] = sent
        return number

    def _new(self, stage: int, link: int) -> int:
        self.stage.append(stage)
        self.link.append(link)
        self.pieces.append([0.0, 0.0, 0.0])
        return len(self.stage) - 1


def precedence(schedule: str, pp: int, m: int, vpp: int = 1) -> Precedence:
    """What of a schedule waits for what.

    pp, m, vpp   stages, micro-batches, virtual stages of a device
    """
    own = _Builder(schedule, pp, m, vpp)
    position, before = [0] * pp, [-1] * pp
    progress = True
    while progress:
        progress = False
        for stage in range(pp):
            while position[stage] < len(own.orders[stage]):
                block = own.orders[stage][position[stage]]
                waits = own.inputs(stage, block)
                if waits is None:
                    break
                before[stage] = own.add(stage, block, waits, before[stage])
                position[stage] += 1
                progress = True
    pieces = np.array(own.pieces)
    if not own.splits:
        pieces[:, 2] = pieces[:, 1]  # a backward pass makes the weights' gradients, too
    bonds = np.array(sorted(own.bonds, key=lambda bond: bond[1]), float).reshape(-1, 3)
    return Precedence(
        stage=np.array(own.stage, dtype=np.intp),
        pieces=pieces,
        link=np.array(own.link, dtype=np.intp),
        before=bonds[:, 0].astype(np.intp),
        after=bonds[:, 1].astype(np.intp),
        arrives=bonds[:, 2],
    )
