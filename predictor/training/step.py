"""Puts the parts of a step together under the parameters of a run: what hides behind what, what
the host adds, how the pipeline plays, what the whole is stretched by.

Cheap beside taking the step apart (`decomposition.parts`), and arrays throughout: the runs of all
published tables are one batch, to which `calibration.runs` fits the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, filled
from predictor.plans import LINE, SCHEDULES, Passes, pipeline_time
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.decomposition import COMPUTE_TERMS, Parts
from predictor.training.exchange import Exchange
from predictor.training.software import ATTENTION, Environment, alone, stretched
from predictor.variation import waiting_for
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

UNSURE = 0.5
"""Log-standard-deviation of waiting at meetings: what disturbs ranks differs from hour to hour."""

ENDS = {"dp": "dp_communication", "optimizer": "optimizer"}
"""Families of what comes once a step, and their terms."""

MIXTURE = "moe"
"""Module of a mixture's blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step put together; arrays of the batch's shape, stage arrays (3, *batch).

    step_time   [s]
    breakdown   seconds by term of `TERMS`, on the slowest stage
    hidden      seconds of communication that run behind computation, by kind, of a step
    families    family -> seconds of a step, on the slowest stage, for the interval
    sigmas      their log-standard-deviations
    kernels     those of kernels (the others are of links, and of the step's ends)
    layer_time  of one layer (the mean one) and micro-batch, forward and backward [s]
    slowest     index of the slowest stage kind
    passes      of one micro-batch on each kind of stage
    terms       seconds of one micro-batch by term of `TERMS`, on each kind of stage, (3, *batch);
                over the framework's factor, as `passes`, `families` and `ends` are
    ends        the same of 'dp_communication' and 'optimizer', once a step
    once        the same of what the host does once a step
    """

    step_time: Array
    breakdown: dict[str, Array]
    hidden: dict[str, Array]
    families: dict[str, Array]
    sigmas: dict[str, Array]
    kernels: frozenset[str]
    layer_time: Array
    slowest: npt.NDArray[np.intp]
    passes: Passes
    terms: dict[str, Array]
    ends: dict[str, Array]
    once: Array


def _wire(exchange: Exchange, using: Environment) -> Array:
    """Time of a collective by itself [s], what larger networks add included."""
    if not (exchange.domains > 2.0).any():
        return exchange.time
    doublings = np.log2(np.maximum(exchange.domains / 2.0, 1.0))
    return np.asarray(exchange.time * using.nodes**doublings)


def _exposed(
    time: Array, window: Array, share: Numeric, contention: Numeric
) -> tuple[Array, Array]:
    """What of a collective adds to the step, and what hides [s].

    share       of the window that can hide it
    contention  a second of hidden communication slows what runs beside it by contention - 1
    """
    hidden = np.minimum(time, share * window)
    return time - hidden + (contention - 1.0) * hidden, hidden


@dataclass(slots=True, eq=False)
class _Ledger:
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

    def on_stages(self, module: str, value: Array) -> Array:
        """What all of a module's kind take on the stages."""
        return np.asarray(self.parts.modules[module] * self.parts.spread(value))

    def wire(self, exchange: Exchange) -> Array:
        """Time of a collective by itself [s], what larger networks add included."""
        return _wire(exchange, self.using)

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


def _kernels(parts: Parts, run: RunParameters, using: Environment) -> _Ledger:
    """The ledger with kernels alone."""
    full = parts.at.count.shape
    book = _Ledger(
        parts=parts,
        run=run,
        using=using,
        terms={term: np.zeros(full) for term in TERMS},
        hidden={kind: np.zeros(full) for kind in KINDS},
        families={},
        sigmas={family: parts.spread(value) for family, value in parts.sigmas.items()},
        stretch={
            name: stretched(run.factors, name) / alone(using, name)
            for name in {name for _, _, name in parts.work}
        },
        routed=np.zeros(full),
        attention={term: np.zeros(full) for term in COMPUTE_TERMS},
        layer=np.zeros(parts.launches["layer"].shape),
    )
    for (module, term, own), time in parts.work.items():
        scaled = book.stretch[own] * time
        spent = book.on_stages(module, scaled)
        book.terms[term] = book.terms[term] + spent
        if own.startswith(ATTENTION):
            book.attention[term] = book.attention[term] + spent
        book.note_routed(module, spent)
        book.layer = book.layer + parts.mean_layer.get(module, 0.0) * scaled
    families = book.families
    for (module, family, own), time in parts.families.items():
        add = book.on_stages(module, book.stretch[own] * time)
        families[family] = families[family] + add if family in families else add
    return book


def _inside(book: _Ledger) -> None:
    """Collectives inside a stage that hide behind nothing, or behind a class of kernels."""
    parts, run = book.parts, book.run
    for (slot, _), exchange in parts.inside.items():
        if slot.behind == PASSES:
            continue
        share = run.overlap.get(slot.kind, 0.0) if slot.behind else 0.0
        window = book.stretch.get(slot.behind, 1.0) * exchange.window
        shown, behind = _exposed(book.wire(exchange), window, share, run.contention)
        add = book.on_stages(slot.place, shown * exchange.count)
        covered = book.on_stages(slot.place, behind * exchange.count)
        book.book(slot.kind, add, covered, slot.op, parts.spread(exchange.sigma))
        book.note_routed(slot.place, add)
        mean = parts.mean_layer.get(slot.place, 0.0)
        book.layer = book.layer + mean * shown * exchange.count


def _beside(book: _Ledger, windows: Mapping[str, Array]) -> None:
    """Collectives beside both passes: each takes its part of the window that they share."""
    parts, run = book.parts, book.run
    beside = [(slot, each) for (slot, _), each in parts.inside.items() if slot.behind == PASSES]
    whole = np.sum([book.wire(other) * other.count for _, other in beside], axis=0)
    for slot, exchange in beside:
        wire = book.on_stages(slot.place, book.wire(exchange) * exchange.count)
        part = wire / np.maximum(book.on_stages(slot.place, whole), 1e-30)
        window = part * (windows["forward"] + windows["backward"])
        share = run.overlap.get(slot.kind, 0.0)
        shown, behind = _exposed(wire, window, share, run.contention)
        book.book(slot.kind, shown, behind, slot.op, parts.spread(exchange.sigma))


def _apart(parts: Parts) -> npt.NDArray[np.bool_]:
    """Whether links between stages are resources of their own: where a device holds one stage."""
    line = SCHEDULES[parts.schedule].fold == LINE
    return np.asarray((parts.vpp == 1) & line)


def _between(book: _Ledger, windows: Mapping[str, Array]) -> None:
    """Activations and their gradients between the chunks of devices that hold several, and copies
    to the host and back."""
    parts, run = book.parts, book.run
    apart = _apart(parts)
    for pipe, exchange in parts.between.items():
        time = np.where(apart, 0.0, book.wire(exchange) * exchange.count * parts.vpp)
        share = run.overlap.get("pp", 0.0) if pipe.behind else 0.0
        whole = time + np.zeros(book.full)
        shown, behind = _exposed(whole, windows[pipe.place], share, run.contention)
        book.book("pp", shown, behind, pipe.op, exchange.sigma)
    for copy, exchange in parts.offload.items():
        # Copy engines run beside any kernel: the whole pass is their window.
        shown, behind = _exposed(exchange.time, windows[copy.behind], 1.0, 1.0)
        book.book("offload", shown, behind, "offload", exchange.sigma.max(axis=0))


def _waiting(book: _Ledger) -> None:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """What passes hand on to the next stage over links of their own; zero where stages wait for
    what they send. Shape of the batch.

    transfer, latency   as of `Passes`
    family, sigma       of the transfers
    """

    transfer: Array
    latency: Array
    family: str
    sigma: Array


def _links(book: _Ledger) -> _Links:
    """Both ways carry alike messages: the slower one counts."""
    parts, apart = book.parts, _apart(book.parts)
    transfer, latency, sigma = (np.zeros(book.full[1:]) for _ in range(3))
    family = "p2p"
    for pipe, exchange in parts.between.items():
        there = apart & (exchange.count > 0)
        flight = np.where(there, exchange.flight, 0.0)
        kept = np.where(there, book.wire(exchange) - exchange.flight, 0.0)
        transfer, latency = np.maximum(transfer, kept), np.maximum(latency, flight)
        sigma, family = np.maximum(sigma, exchange.sigma), pipe.op
    return _Links(transfer, latency, family, sigma)


def _unequal(book: _Ledger, stage_time: Array, slowest: npt.NDArray[np.intp]) -> Array | float:
    """What micro-batches of unequal attention add to the passes of a step, over these: as much as
    attention is of a micro-batch's time on the slowest stage."""
    parts = book.parts
    if not np.any(parts.attention_cv > 0):
        return 0.0
    attention: Array = sum(book.attention.values(), np.zeros(book.full))
    share = _chosen(attention / np.maximum(stage_time, 1e-30), slowest)
    return waiting_for(
        share * parts.attention_cv,
        parts.attention_skew,
        parts.at.count.sum(axis=0),
        parts.m,
        parts.replicas,
    )


def _launched(book: _Ledger) -> Array:
    """Time of a micro-batch on each stage kind [s], what the host adds by its launches booked.

    The host runs ahead of the device and hides behind it, but not past a mixture: there it waits
    for the number of tokens of each expert before it launches them (`tokens_per_expert` copied to
    the host, Megatron Core's token_dispatcher.py), so that mixtures and the rest wait apart.
    """
    parts, using = book.parts, book.using
    device: Array = sum((book.terms[term] for term in TERMS), np.zeros(book.full))
    rate = book.run.host_per_kernel * (1.0 - parts.host)  # none that waits for launches
    host: Array = np.zeros(book.full)
    for mixture, busy in ((True, book.routed), (False, device - book.routed)):
        launched: Array = np.zeros(book.full)
        each = using.routed if mixture else using.launch
        for module in parts.launches:
            if (module == MIXTURE) == mixture:
                launched = launched + each * book.on_stages(module, parts.launches[module])
                launched = launched + book.on_stages(module, parts.kernels[module])
                launched = launched + using.hop * book.on_stages(module, parts.hops[module])
        host = host + np.maximum(rate * launched - busy, 0.0)
    book.terms["host"] = host
    return np.asarray(device + host)


def _lasting(book: _Ledger, windows: Mapping[str, Array]) -> dict[str, Array]:
    """Computation of a pass with the time in which the device waits for its host, spread as the
    kernels are: what runs beside the pass goes on meanwhile."""
    compute: Array = sum((book.terms[term] for term in COMPUTE_TERMS), np.zeros(book.full))
    longer = 1.0 + book.terms["host"] / np.maximum(compute, 1e-30)
    return {phase: window * longer for phase, window in windows.items()}


def _passes(book: _Ledger, stage_time: Array) -> Passes:
    """The passes of a micro-batch: communication and host time are spread over them as their
    kernels are."""
    parts = book.parts
    compute: Array = sum((book.terms[term] for term in COMPUTE_TERMS), np.zeros(book.full))
    ahead = book.terms["forward"] / np.maximum(compute, 1e-30)
    late: Array = np.zeros(book.full)
    for (module, own), time in parts.weights.items():
        late = late + book.on_stages(module, book.stretch[own] * time)
    late = late / np.maximum(compute, 1e-30)
    return Passes(
        ahead * stage_time,
        (1.0 - ahead - late) * stage_time,
        late * stage_time,
        parts.at.count,
    )


def _with_links(sigmas: dict[str, Array], links: _Links) -> dict[str, Array]:
    """Spreads of families, with that of what passes between stages."""
    known = sigmas.get(links.family, 0.0)
    return {**sigmas, links.family: np.maximum(known, links.sigma)}


def _played(parts: Parts, passes: Passes, links: _Links) -> tuple[Passes, Array, Array]:
    """Passes with what they hand on, and of all micro-batches through the pipeline the time without
    links and what links add to it [s]."""
    busy = pipeline_time(parts.schedule, passes, parts.m, parts.vpp)
    passes = replace(passes, transfer=links.transfer, latency=links.latency)
    if not np.any(passes.hop):
        return passes, busy, np.zeros_like(busy)
    return passes, busy, pipeline_time(parts.schedule, passes, parts.m, parts.vpp) - busy


def _shown_whole(breakdown: dict[str, Array], own: dict[str, Array], more: Numeric) -> None:
    """Terms whose time the framework's factor leaves as it is are shown as long as they take: what
    they were divided by comes off the framework's."""
    for term, value in own.items():
        breakdown[term] = breakdown[term] + more * value
        breakdown["framework"] = breakdown["framework"] - more * value


def assemble(parts: Parts, run: RunParameters, using: Environment) -> Step:
    """Put a step together.

    parts    of one plan or of a batch
    run      parameters of a run
    using    environment of the run; its `nodes` is one number where plans share layers
    """
    book = _kernels(parts, run, using)
    _inside(book)
    windows = book.windows()
    _beside(book, windows)
    _between(book, windows)
    _waiting(book)
    stage_time = _launched(book)
    links = _links(book)

    m, present = parts.m, parts.at.count > 0
    passes, busy, waits = _played(parts, _passes(book, stage_time), links)
    slowest = np.argmax(np.where(present, stage_time, -1.0), axis=0)

    def critical(value: Array) -> Array:
        """Of a step, on the slowest stage kind, from a micro-batch on each."""
        return np.asarray(m * _chosen(filled(value, book.full), slowest))

    exposed, behind, dp_sigma = _gradients(parts, _lasting(book, windows), run, using)
    ends = {"dp_communication": exposed, "optimizer": parts.update / using.factor}
    last = np.argmax(np.where(present, exposed, 0.0) + ends["optimizer"], axis=0)
    breakdown = {term: critical(value) for term, value in book.terms.items()}
    rest = busy - sum(breakdown.values(), np.zeros(parts.at.count.shape[1:]))
    breakdown["bubble"] = np.maximum(rest, 0.0) + busy * _unequal(book, stage_time, slowest)
    breakdown["pp_communication"] = breakdown["pp_communication"] + waits
    breakdown |= {term: _chosen(value, last) for term, value in ends.items()}
    # The host's own time is no kernel's, which the framework's factor stretches.
    once = run.host_per_kernel * using.once * (1.0 - parts.host) / using.factor
    breakdown["host"] = breakdown["host"] + once
    neutral = sum(breakdown.values(), np.zeros(parts.at.count.shape[1:]))
    more = using.factor - 1.0
    breakdown["framework"] = more * (neutral - waits)  # no software slows a link
    total = neutral + breakdown["framework"]
    own = {term: critical(value) for term, value in book.attention.items()}
    _shown_whole(breakdown, {**own, "optimizer": breakdown["optimizer"], "host": once}, more)
    # Batches are prefetched: a loader shows only where it takes longer than the step.
    breakdown["data_loading"] = np.maximum(parts.loading - total, 0.0)

    # A bubble is made of the same work, so its uncertainty is that of the families it consists of.
    longer = busy / np.maximum(critical(stage_time), 1e-30)
    families = {family: critical(value) * longer for family, value in book.families.items()}
    families[links.family] = families.get(links.family, 0.0) + waits / using.factor
    hidden = {kind: critical(value) for kind, value in book.hidden.items()}
    hidden["pp"] = hidden["pp"] + np.maximum(2.0 * m * passes.hop - waits, 0.0)
    return Step(
        step_time=np.asarray(total + breakdown["data_loading"]),
        breakdown=breakdown,
        hidden={**hidden, "dp": _chosen(behind, last)},
        families=families | {name: _chosen(ends[term], last) for name, term in ENDS.items()},
        sigmas=_with_links({**book.sigmas, "dp": dp_sigma, "optimizer": parts.update_sigma}, links),
        kernels=frozenset(parts.sigmas),
        layer_time=parts.spread(book.layer),
        slowest=slowest,
        passes=passes,
        terms=book.terms,
        ends=ends,
        once=once,
    )


def _chosen(value: Array, stage: npt.NDArray[np.intp]) -> Array:
    """Of stage arrays, the value of one stage kind for each plan."""
    return np.asarray(value[(stage, *np.indices(stage.shape, sparse=True))])


def _gradients(
    parts: Parts, windows: dict[str, Array], run: RunParameters, using: Environment
) -> tuple[Array, Array, Array]:
    """Data-parallel communication of a step by stage kind: exposed and hidden [s], (3, *batch),
    and its spread.

    windows  seconds of one micro-batch's forward and backward pass on each stage kind (`_lasting`)

    What hides does so behind the passes of one micro-batch (all of them, where the communication
    repeats with every micro-batch); the last bucket, one part in layers + 1, never hides, nor do
    copies from and to the buffers that travel. What hides takes processors from the passes
    (`Frame.taken`).
    """
    full = parts.at.count.shape
    exposed, covered = np.array(parts.flat), np.zeros(full)
    hideable = {"forward": np.zeros(full), "backward": np.zeros(full)}
    sigma = np.zeros(full[1:])
    present = parts.at.count > 0
    for (slot, _), exchange in parts.gradients.items():
        time = _wire(exchange, using) * exchange.count
        sigma = np.maximum(sigma, np.max(np.where(present, exchange.sigma, 0.0), axis=0))
        if slot.behind:
            hideable[slot.behind] = hideable[slot.behind] + time
        else:
            exposed = exposed + time
    for phase, time in hideable.items():
        tail = time / (parts.at.layers + 1.0) / parts.repeats
        window = np.minimum(
            run.overlap.get("dp", 0.0) * windows[phase] * parts.repeats, time - tail
        )
        shown, behind = _exposed(time, window, 1.0, run.contention + parts.taken)
        exposed, covered = exposed + shown, covered + behind
    return exposed, covered, sigma
