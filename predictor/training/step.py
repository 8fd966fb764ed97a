"""Puts the parts of a step together under the parameters of a run: its ledger, what
the host adds, how the pipeline plays, what the whole is stretched by.

Cheap beside taking the step apart (`decomposition.parts`), and arrays throughout: the runs of all
published tables are one batch, to which `calibration.runs` fits the parameters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, filled
from predictor.plans import Passes, pipeline_time
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.calls import MIXTURE
from predictor.training.decomposition import COMPUTE_TERMS, Parts
from predictor.training.ledger import TERMS, Ledger, booked, shown_and_hidden, wire_time
from predictor.training.software import Environment
from predictor.variation import waiting_for

ENDS = {"dp": "dp_communication", "optimizer": "optimizer"}
"""Families of what comes once a step, and their terms."""


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
    launches    seconds of a step that go with what the host takes for an operator: all of the
                launches that something waits for, over the framework's factor
    doubt       log-standard-deviation of that (`software.Environment`)
    attention   the same of fused attention, by term, per micro-batch; the factor leaves it, the
                optimizer and `once` as long as they take (`_stretched`)
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
    launches: Array
    doubt: Numeric
    attention: dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """What passes hand on to the next stage over links of their own; zero where stages wait for
    what they send. Shape of the batch.

    transfer, latency   as of `Passes`
    copied              for which a transfer keeps either stage from its passes [s]
    family, sigma       of the transfers
    """

    transfer: Array
    latency: Array
    copied: Array
    family: str
    sigma: Array


def _links(book: Ledger) -> _Links:
    """Both ways carry alike messages: the slower one counts."""
    transfer, latency, copied, sigma = (np.zeros(book.full[1:]) for _ in range(4))
    family = "p2p"
    for pipe, exchange in book.parts.between.items():
        there = book.apart & (exchange.count > 0)
        flight = np.where(there, exchange.flight, 0.0)
        kept = np.where(there, book.wire(exchange) - exchange.flight, 0.0)
        transfer, latency = np.maximum(transfer, kept), np.maximum(latency, flight)
        sent = there & (exchange.time > 0)  # none where transfers are thought away
        copied = np.maximum(copied, np.where(sent, exchange.copied, 0.0))
        sigma, family = np.maximum(sigma, exchange.sigma), pipe.op
    return _Links(transfer, latency, copied, family, sigma)


NEIGHBOURS = np.array([1.0, 2.0, 1.0])
"""Stages that a stage of each kind receives from or sends to in a pass."""


def _unequal(book: Ledger, stage_time: Array, slowest: npt.NDArray[np.intp]) -> Array | float:
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


def _launched(book: Ledger) -> tuple[Array, Array]:
    """Time of a micro-batch on each stage kind [s], what the host adds by its launches booked; and
    the launches that it waits for [s].

    The host runs ahead of the device and hides behind it, but not past a mixture: there it waits
    for the number of tokens of each expert before it launches them (`tokens_per_expert` copied to
    the host, Megatron Core's token_dispatcher.py), so that mixtures and the rest wait apart.
    """
    parts, using = book.parts, book.using
    device: Array = sum((book.terms[term] for term in TERMS), np.zeros(book.full))
    rate = book.run.host_per_kernel * (1.0 - parts.host)  # none that waits for launches
    host, bound = np.zeros(book.full), np.zeros(book.full)
    for mixture, busy in ((True, book.routed), (False, device - book.routed)):
        launched: Array = np.zeros(book.full)
        each = using.routed if mixture else using.launch
        for module in parts.launches:
            if (module == MIXTURE) == mixture:
                launched = launched + each * book.on_stages(module, parts.launches[module])
                launched = launched + book.on_stages(module, parts.kernels[module])
                launched = launched + using.hop * book.on_stages(module, parts.hops[module])
        host = host + np.maximum(rate * launched - busy, 0.0)
        bound = bound + np.where(rate * launched > busy, rate * launched, 0.0)
    book.terms["host"] = host
    return np.asarray(device + host), bound


def _lasting(book: Ledger) -> dict[str, Array]:
    """Computation of a pass with the time in which the device waits for its host, spread as the
    kernels are: what runs beside the pass goes on meanwhile."""
    compute: Array = sum((book.terms[term] for term in COMPUTE_TERMS), np.zeros(book.full))
    longer = 1.0 + book.terms["host"] / np.maximum(compute, 1e-30)
    return {phase: window * longer for phase, window in book.windows().items()}


def _passes(book: Ledger, stage_time: Array) -> Passes:
    """The passes of a micro-batch: communication and host time are spread over them as their
    kernels are."""
    parts = book.parts
    compute: Array = sum((book.terms[term] for term in COMPUTE_TERMS), np.zeros(book.full))
    ahead = book.terms["forward"] / np.maximum(compute, 1e-30)
    late: Array = np.zeros(book.full)
    for (module, own), time in parts.weights.items():
        late = late + book.on_stages(module, book.longer(module, own) * time)
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


def _played(
    parts: Parts, passes: Passes, links: _Links, factor: Numeric
) -> tuple[Passes, Array, Array]:
    """Passes with what they hand on, and of all micro-batches through the pipeline the time without
    links and what links add to it [s].

    What a stage passes on itself, in turn with its passes, is part of these, and of the way to the
    next stage: a message travels while either end copies it. Passes are over the framework's
    factor, which stretches no copy.
    """

    def played(passes: Passes) -> Array:
        filled = parts.m / parts.fills
        return parts.fills * pipeline_time(parts.schedule, passes, filled, parts.vpp)

    busy = played(passes)
    latency = np.maximum(links.latency - 2.0 * links.copied, -links.transfer)
    passes = replace(passes, transfer=links.transfer, latency=latency)
    if not np.any(links.copied):
        if not np.any(passes.hop):
            return passes, busy, np.zeros_like(busy)
        return passes, busy, played(passes) - busy
    own = NEIGHBOURS.reshape(3, *(1,) * links.copied.ndim) * links.copied
    whole, kept = (
        replace(passes, forward=passes.forward + each, backward=passes.backward + each)
        for each in (own, own / factor)
    )
    return kept, busy, played(whole) - busy


def _stretched(
    breakdown: dict[str, Array], own: dict[str, Array], waits: Array, factor: Numeric
) -> Array:
    """Time of all terms with what the framework's factor adds [s], which is booked as its own.

    own     of terms, whose time the factor leaves as it is: they are shown as long as they take,
            and what they were divided by comes off the framework's
    waits   for links, which no software slows
    """
    neutral = sum(breakdown.values(), np.zeros(()))
    more = factor - 1.0
    breakdown["framework"] = more * (neutral - waits)
    total = neutral + breakdown["framework"]
    for term, value in own.items():
        breakdown[term] = breakdown[term] + more * value
        breakdown["framework"] = breakdown["framework"] - more * value
    return np.asarray(total)


def assemble(parts: Parts, run: RunParameters, using: Environment) -> Step:
    """Put a step together.

    parts    of one plan or of a batch
    run      parameters of a run
    using    environment of the run; its `nodes` is one number where plans share layers
    """
    book = booked(parts, run, using)
    stage_time, bound = _launched(book)
    links = _links(book)

    m, present = parts.m, parts.at.count > 0
    passes, busy, waits = _played(parts, _passes(book, stage_time), links, using.factor)
    slowest = np.argmax(np.where(present, stage_time, -1.0), axis=0)

    def critical(value: Array) -> Array:
        """Of a step, on the slowest stage kind, from a micro-batch on each."""
        return np.asarray(m * _chosen(filled(value, book.full), slowest))

    exposed, behind, dp_sigma = _gradients(parts, _lasting(book), run, using)
    ends = {"dp_communication": exposed, "optimizer": parts.update / using.factor}
    last = np.argmax(np.where(present, exposed + ends["optimizer"], -1.0), axis=0)
    breakdown = {term: critical(value) for term, value in book.terms.items()}
    rest = busy - sum(breakdown.values(), np.zeros(parts.at.count.shape[1:]))
    breakdown["bubble"] = np.maximum(rest, 0.0) + busy * _unequal(book, stage_time, slowest)
    breakdown["pp_communication"] = breakdown["pp_communication"] + waits
    breakdown |= {term: _chosen(value, last) for term, value in ends.items()}
    # The host's own time is no kernel's, which the framework's factor stretches.
    once = run.host_per_kernel * using.once * (1.0 - parts.host) / using.factor
    breakdown["host"] = breakdown["host"] + once
    own = {term: critical(value) for term, value in book.attention.items()}
    own |= {"optimizer": breakdown["optimizer"], "host": once}
    total = _stretched(breakdown, own, waits, using.factor)
    # Batches are prefetched: a loader shows only where it takes longer than the step.
    breakdown["data_loading"] = np.maximum(parts.loading - total, 0.0)

    # A bubble is made of the same work, so its uncertainty is that of the families it consists of.
    longer = busy / np.maximum(critical(stage_time), 1e-30)
    families = {family: critical(value) * longer for family, value in book.families.items()}
    families[links.family] = families.get(links.family, 0.0) + waits / using.factor
    hidden = {kind: critical(value) for kind, value in book.hidden.items()}
    moved = 2.0 * m * (links.transfer + links.latency)
    hidden["pp"] = hidden["pp"] + np.maximum(moved - waits, 0.0)
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
        launches=critical(bound) * longer + once,
        doubt=np.where(np.any(book.routed > 0, axis=0), using.routed_doubt, using.doubt),
        attention=book.attention,
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
        time = wire_time(exchange, using) * exchange.count
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
        shown, behind = shown_and_hidden(time, window, 1.0, run.contention + parts.taken)
        exposed, covered = exposed + shown, covered + behind
    return exposed, covered, sigma
