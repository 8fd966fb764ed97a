"""A pipeline's schedule played event by event: what the closed forms of `schedules` sum up."""

from __future__ import annotations

from predictor.plans.folded import Block, Work
from predictor.plans.schedules import BOTH, SCHEDULES, V
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work [s].

    stage        device of the pipeline
    direction    'forward', 'backward' or 'weights'
    chunk        which of the device's stages it is of
    """

    stage: int
    direction: str
    micro_batch: int
    chunk: int
    start: float
    end: float


def routes(fold: str, pp: int, vpp: int) -> list[list[tuple[int, int]]]:
    """The ways of micro-batches through (device, chunk), in forward order."""
    there = [(device, 0) for device in range(pp)]
    back = [(device, 1) for device in reversed(range(pp))]
    if fold == V:
        return [there + back]
    if fold == BOTH:
        return [there, back]
    return [[(device, chunk) for chunk in range(vpp) for device in range(pp)]]


Hop = float | tuple[float, ...]
Place = tuple[int, int]
"""A device and one of its chunks."""


@dataclass(frozen=True, slots=True)
class _Player:
    """What of a schedule has been played.

    ahead, after   the place before and behind a place on a micro-batch's way forward
    transfer       for which a transfer keeps a link, one way, to itself [s], of each link from the
                   first
    latency        after which its last byte is there [s]
    done           when a piece of work ended, by direction, micro-batch, device and chunk [s]
    arrived        when what it made is at the next place on its way [s]
    free           until when a link is kept, by its two devices in the order of its way [s]
    """

    ahead: dict[Place, Place | None]
    after: dict[Place, Place | None]
    transfer: tuple[float, ...]
    latency: tuple[float, ...]
    done: dict[tuple[str, int, int, int], float]
    arrived: dict[tuple[str, int, int, int], float]
    free: dict[tuple[int, int], float]

    @classmethod
    def of(cls, fold: str, pp: int, vpp: int, transfer: Hop, latency: Hop) -> _Player:
        """Nothing played yet of a pipeline."""
        ahead: dict[Place, Place | None] = {}
        after: dict[Place, Place | None] = {}
        for route in routes(fold, pp, vpp):
            ahead |= dict(zip(route, [None, *route], strict=False))
            after |= dict(zip(route, [*route[1:], None], strict=True))
        kept, away = (h if isinstance(h, tuple) else (h,) * pp for h in (transfer, latency))
        return cls(ahead, after, kept, away, {}, {}, {})

    def finish(self, stage: int, work: Work, end: float) -> None:
        """A piece of work ends, and what it made sets out for the next place."""
        direction, batch, chunk = work
        self.done[(direction, batch, stage, chunk)] = end
        if direction == "weights":
            return
        place = (self.after if direction == "forward" else self.ahead)[(stage, chunk)]
        if place is not None and place[0] != stage:
            link = (stage, place[0])
            number = min(link)
            self.free[link] = max(end, self.free.get(link, 0.0)) + self.transfer[number]
            end = self.free[link] + self.latency[number]
        self.arrived[(direction, batch, stage, chunk)] = end

    def ready(self, stage: int, work: Work, block: Block) -> float | None:
        """When the input of a piece of work is there; None while it is not yet known."""
        direction, batch, chunk = work
        if direction == "weights":
            own = ("backward", batch, chunk)
            return 0.0 if own in block else self.done.get(("backward", batch, stage, chunk))
        before = (self.ahead if direction == "forward" else self.after)[(stage, chunk)]
        if before is not None:
            return self.arrived.get((direction, batch, *before))
        return 0.0 if direction == "forward" else self.done.get(("forward", batch, stage, chunk))


def timeline(
    schedule: str,
    forward: list[float],
    backward: list[float],
    weights: list[float],
    m: int,
    vpp: int = 1,
    transfer: Hop = 0.0,
    latency: Hop = 0.0,
    fills: int = 1,
) -> list[Event]:
    """Play a schedule event by event. Transfers between devices run beside their work, one after
    the other on a link each way.

    forward, backward, weights   time of one micro-batch on each device, all its chunks together [s]
                                 (as `Passes`)
    m                            micro-batches; a multiple of the stages when vpp > 1
    fills                        how often the pipeline fills and runs empty for them, each time
                                 for alike many (those left over: for the first ones)
    transfer, latency            of what a micro-batch sends on: for which it keeps the link to
                                 itself, and after which it is there [s]; one for all links, or
                                 one for each between a stage and the next

    Returns the events in order of their end; the last one's end is the pipeline's time. Work that
    runs as one block is shown one after the other.
    """
    passes, events = (list(forward), list(backward), list(weights)), list[Event]()
    for batches in _alike(m, fills):
        start = events[-1].end if events else 0.0
        before = 1 + max((event.micro_batch for event in events), default=-1)
        for event in _once(schedule, passes, batches, vpp, (transfer, latency)):
            moved = start + event.start, start + event.end
            own = (event.stage, event.direction, before + event.micro_batch, event.chunk)
            events.append(Event(*own, *moved))
    return events


def _alike(m: int, fills: int) -> list[int]:
    """Micro-batches of each time that a pipeline fills."""
    each, left = divmod(m, fills)
    return [each + (at < left) for at in range(fills)]


def _once(
    schedule: str,
    passes: tuple[list[float], list[float], list[float]],
    m: int,
    vpp: int,
    hops: tuple[Hop, Hop],
) -> list[Event]:
    """A pipeline that fills once and runs empty, as `timeline`."""
    forward, backward, weights = passes
    pp, entry = len(forward), SCHEDULES[schedule]
    whole = (
        list(backward) if entry.splits else [b + w for b, w in zip(backward, weights, strict=True)]
    )
    length = {"forward": forward, "backward": whole, "weights": weights}
    orders = [entry.order(stage, pp, vpp, m) for stage in range(pp)]
    position, free = [0] * pp, [0.0] * pp
    player = _Player.of(entry.fold, pp, vpp, *hops)
    events: list[Event] = []
    progress = True
    while progress:
        progress = False
        for stage in range(pp):
            while position[stage] < len(orders[stage]):
                block = orders[stage][position[stage]]
                inputs = [player.ready(stage, work, block) for work in block]
                known = [at for at in inputs if at is not None]
                if len(known) < len(inputs):
                    break
                end = max(*known, free[stage])
                for direction, batch, chunk in block:
                    start, end = end, end + length[direction][stage] / vpp
                    events.append(Event(stage, direction, batch, chunk, start, end))
                free[stage] = end
                for work in block:
                    player.finish(stage, work, end)
                position[stage] += 1
                progress = True
    return sorted(events, key=lambda event: event.end)
