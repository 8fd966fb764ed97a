"""The ledger of a step: seconds of one micro-batch on each kind of stage, what of communication
shows, and what hides behind which computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.plans import LINE, SCHEDULES
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.calls import MIXTURE
from predictor.training.decomposition import COMPUTE_TERMS, Parts
from predictor.training.exchange import Exchange
from predictor.training.software import ATTENTION, Environment, alone, mixed, stretched
from predictor.variation.meeting import late
from predictor.work import PASSES

TERMS = (
    "forward",
    "backward",
    "recompute",
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "pp_communication",
    "offload",
    "host",
    "bubble",
    "dp_communication",
    "optimizer",
    "framework",
    "data_loading",
)
"""Terms of the breakdown; they add up to the step time."""

KINDS = ("tp", "cp", "ep", "pp", "dp", "offload")
"""Kinds of communication, each with an overlap and a term of its own; copies to the host and back
among them."""

WIDEST = 64.0
"""Nodes beyond which a network adds no more to what crosses it: as many as the factor of a doubling
was read off (nanotron's sweep, 2 to 64 nodes). Without an end thousands of nodes would have next to
no rate, and the tiers of a network end."""

UNSURE = 0.5
"""Log-standard-deviation of waiting at meetings: what disturbs ranks differs from hour to hour."""


def wire_time(exchange: Exchange, using: Environment) -> Array:
    """Time of a collective by itself [s], what larger networks add included."""
    if not (exchange.domains > 2.0).any():
        return exchange.time
    doublings = np.log2(np.clip(exchange.domains, 2.0, WIDEST) / 2.0)
    return np.asarray(exchange.time * using.nodes**doublings)


def shown_and_hidden(
    time: Array, window: Array, share: Numeric, contention: Numeric
) -> tuple[Array, Array]:
    """What of a collective adds to the step, and what hides [s].

    share       of the window that can hide it
    contention  a second of hidden communication slows what runs beside it by contention - 1
    """
    hidden = np.minimum(time, share * window)
    return time - hidden + (contention - 1.0) * hidden, hidden


@dataclass(slots=True, eq=False)
class Ledger:
    """Seconds of one micro-batch on each stage kind, booked as they are found; (3, *batch).

    terms     by term of `TERMS`
    hidden    of communication behind computation, by kind
    families  by family, with the log-standard-deviations `sigmas`
    stretch   of classes of kernels
    routed    of the blocks of a mixture, their exposed collectives included
    attention  of fused attention, by term
    layer     of the mean layer, base shape
    """

    parts: Parts
    run: RunParameters
    using: Environment
    terms: dict[str, Array]
    hidden: dict[str, Array]
    families: dict[str, Array]
    sigmas: dict[str, Array]
    stretch: dict[str, Numeric]
    routed: Array
    attention: dict[str, Array]
    layer: Array

    @property
    def full(self) -> tuple[int, ...]:
        """Shape of stage arrays."""
        return self.parts.at.count.shape

    @property
    def apart(self) -> npt.NDArray[np.bool_]:
        """Whether links between stages are resources of their own: where a device holds one
        stage."""
        line = SCHEDULES[self.parts.schedule].fold == LINE
        return np.asarray((self.parts.vpp == 1) & line)

    def on_stages(self, module: str, value: Array) -> Array:
        """What all of a module's kind take on the stages."""
        return np.asarray(self.parts.modules[module] * self.parts.spread(value))

    def longer(self, module: str, own: str) -> Numeric:
        """Time in a step over the time by itself of a class of kernels in a module's kind."""
        return self.stretch[own] * mixed(self.run.factors, module)

    def wire(self, exchange: Exchange) -> Array:
        """Time of a collective by itself [s], what larger networks add included."""
        return wire_time(exchange, self.using)

    def note(self, family: str, time: Array, sigma: Array) -> None:
        """Book time to a family, which is as uncertain as the most uncertain of it."""
        known = self.families
        known[family] = known[family] + time if family in known else time
        self.sigmas[family] = np.maximum(self.sigmas.get(family, 0.0), sigma)

    def note_routed(self, module: str, time: Array) -> None:
        """Book what a mixture's blocks take by themselves."""
        if module == MIXTURE:
            self.routed = self.routed + time

    def book(self, kind: str, shown: Array, behind: Array, family: str, sigma: Array) -> None:
        """Book communication of a kind: what shows, and what hides."""
        term = kind if kind in TERMS else f"{kind}_communication"
        self.terms[term] = self.terms[term] + shown
        self.hidden[kind] = self.hidden[kind] + behind
        self.note(family, shown, sigma)

    def windows(self) -> dict[str, Array]:
        """Computation of a pass, which may hide what runs beside it."""
        late = self.terms["backward"] + self.terms["recompute"]
        return {"forward": self.terms["forward"], "backward": late}


def booked(parts: Parts, run: RunParameters, using: Environment) -> Ledger:
    """The ledger of a micro-batch: kernels, collectives, copies, waiting for each other."""
    book = _kernels(parts, run, using)
    _inside(book)
    windows = book.windows()
    _beside(book, windows)
    _between(book, windows)
    _waiting(book)
    return book


def _kernels(parts: Parts, run: RunParameters, using: Environment) -> Ledger:
    """The ledger with kernels alone."""
    full = parts.at.count.shape
    inside = replace(using, factor=parts.gathered(using.factor))
    book = Ledger(
        parts=parts,
        run=run,
        using=using,
        terms={term: np.zeros(full) for term in TERMS},
        hidden={kind: np.zeros(full) for kind in KINDS},
        families={},
        sigmas={family: parts.spread(value) for family, value in parts.sigmas.items()},
        stretch={
            name: stretched(run.factors, name) / alone(inside, name)
            for name in {name for _, _, name in parts.work}
        },
        routed=np.zeros(full),
        attention={term: np.zeros(full) for term in COMPUTE_TERMS},
        layer=np.zeros(parts.launches["layer"].shape),
    )
    for (module, term, own), time in parts.work.items():
        scaled = book.longer(module, own) * time
        spent = book.on_stages(module, scaled)
        book.terms[term] = book.terms[term] + spent
        if own.startswith(ATTENTION):
            book.attention[term] = book.attention[term] + spent
        book.note_routed(module, spent)
        book.layer = book.layer + parts.mean_layer.get(module, 0.0) * scaled
    families = book.families
    for (module, family, own), time in parts.families.items():
        add = book.on_stages(module, book.longer(module, own) * time)
        families[family] = families[family] + add if family in families else add
    return book


def _inside(book: Ledger) -> None:
    """Collectives inside a stage that hide behind nothing, or behind a class of kernels."""
    parts, run = book.parts, book.run
    for (slot, _), exchange in parts.inside.items():
        if slot.behind == PASSES:
            continue
        share = run.overlap.get(slot.kind, 0.0)  # of no window where it hides behind nothing
        window = book.stretch.get(slot.behind, 1.0) * exchange.window
        shown, behind = shown_and_hidden(book.wire(exchange), window, share, run.contention)
        add = book.on_stages(slot.place, shown * exchange.count)
        covered = book.on_stages(slot.place, behind * exchange.count)
        book.book(slot.kind, add, covered, slot.op, parts.spread(exchange.sigma))
        book.note_routed(slot.place, add)
        mean = parts.mean_layer.get(slot.place, 0.0)
        book.layer = book.layer + mean * shown * exchange.count


def _beside(book: Ledger, windows: Mapping[str, Array]) -> None:
    """Collectives beside both passes: each takes its part of the window that they share."""
    parts, run = book.parts, book.run
    beside = [(slot, each) for (slot, _), each in parts.inside.items() if slot.behind == PASSES]
    whole = np.sum([book.wire(other) * other.count for _, other in beside], axis=0)
    for slot, exchange in beside:
        wire = book.on_stages(slot.place, book.wire(exchange) * exchange.count)
        part = wire / np.maximum(book.on_stages(slot.place, whole), 1e-30)
        window = part * (windows["forward"] + windows["backward"])
        share = run.overlap.get(slot.kind, 0.0)
        shown, behind = shown_and_hidden(wire, window, share, run.contention)
        book.book(slot.kind, shown, behind, slot.op, parts.spread(exchange.sigma))


def _between(book: Ledger, windows: Mapping[str, Array]) -> None:
    """Activations and their gradients between the chunks of devices that hold several, and copies
    to the host and back."""
    parts, run = book.parts, book.run
    for pipe, exchange in parts.between.items():
        time = np.where(book.apart, 0.0, book.wire(exchange) * exchange.count * parts.vpp)
        share = run.overlap.get("pp", 0.0) if pipe.behind else 0.0
        whole = time + np.zeros(book.full)
        shown, behind = shown_and_hidden(whole, windows[pipe.place], share, run.contention)
        book.book("pp", shown, behind, pipe.op, exchange.sigma)
    for copy, exchange in parts.offload.items():
        # Copy engines run beside any kernel: the whole pass is their window.
        window = windows[copy.behind] if copy.behind else np.zeros(book.full)
        shown, behind = shown_and_hidden(exchange.time, window, 1.0, 1.0)
        book.book("offload", shown, behind, "offload", exchange.sigma.max(axis=0))


def _waiting(book: Ledger) -> None:
    """Waiting for the slowest rank where ranks meet inside a stage, by kind as often as they do."""
    using, parts = book.using, book.parts
    if not np.any(np.hypot(using.alike, using.drawn) > 0):
        return
    zero = np.zeros(book.full)
    meetings = dict.fromkeys(KINDS, zero)
    for (slot, _), each in parts.inside.items():
        own = book.on_stages(slot.place, np.where(each.time > 0, each.count, 0.0))
        meetings[slot.kind] = meetings[slot.kind] + own
    whole: Array = sum(meetings.values(), zero)
    work: Array = sum((book.terms[term] for term in COMPUTE_TERMS), zero)
    wait = late(work, whole, using.alike, using.drawn)
    for kind, own in meetings.items():
        part = own / np.maximum(whole, 1e-30) * wait
        book.book(kind, part, zero, "waiting", np.full(zero.shape[1:], UNSURE))
