"""Puts the parts of a step together under the parameters of a run: what hides behind what, what
the host adds, how the pipeline plays, what the whole is stretched by.

Cheap beside taking the step apart (`parts.parts`), and arrays throughout: the runs of all published
tables are one batch, to which `calibration.runs` fits the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, in_order
from predictor.plans import Passes, pipeline_time
from predictor.timing import RunParameters
from predictor.training.decomposition import COMPUTE_TERMS, Parts
from predictor.training.layer import Exchange, Slot
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

ANY, LAUNCH, HOP, NODES = "*", "launch", "hop", "nodes"
"""Keys of `RunParameters.factors` beside those of kernels ('gemm') and frameworks ('nemo',
'nemo/2024'): frameworks in general; 'launch', 'launch/FRAMEWORK' and 'hop/FRAMEWORK'; 'nodes' and
'nodes/FRAMEWORK' (see `Environment`); those of `memory.Allocation`."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step put together; arrays of the batch's shape, stage arrays (3, *batch).

    step_time   [s]
    breakdown   seconds by term of `TERMS`, on the slowest stage
    hidden      seconds of communication that run behind computation, by kind, of a step
    families    family -> seconds of a step, on the slowest stage, for the interval
    sigmas      their log-standard-deviations
    layer_time  of one layer (the mean one) and micro-batch, forward and backward [s]
    slowest     index of the slowest stage kind
    passes      of one micro-batch on each kind of stage
    """

    step_time: Array
    breakdown: dict[str, Array]
    hidden: dict[str, Array]
    families: dict[str, Array]
    sigmas: dict[str, Array]
    layer_time: Array
    slowest: npt.NDArray[np.intp]
    passes: Passes


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """What the software of a run and where it runs add; floats, or arrays of the batch's shape.

    factor   on the whole step
    launch   host time per operator (its module, its autograd node, its launch) over
             `RunParameters.host_per_kernel`, which further kernels of the operator take each
    hop      the same for one step of a tensor-parallel ring that the framework launches step by
             step; 0 where a collective is one launch
    nodes    time of communication between nodes per doubling of the nodes beyond two
    """

    factor: Numeric = 1.0
    launch: Numeric = 1.0
    hop: Numeric = 0.0
    nodes: Numeric = 1.0


def environment(factors: Mapping[str, float], framework: str, era: str) -> Environment:
    """The environment of a framework in a year ('YYYY' or 'YYYY-MM'): its own of that year, else
    of all years, else that of frameworks in general."""
    year = f"{framework}/{era[:4]}"

    def first(keys: tuple[str, ...], default: float) -> float:
        return float(next((factors[key] for key in keys if key in factors), default))

    return Environment(
        factor=first((year, framework, ANY), 1.0),
        launch=first((f"{LAUNCH}/{year}", f"{LAUNCH}/{framework}", LAUNCH), 1.0),
        hop=first((f"{HOP}/{year}", f"{HOP}/{framework}"), 0.0),
        nodes=first((f"{NODES}/{framework}", NODES), 1.0),
    )


def stretched(factors: Mapping[str, float], name: str) -> float:
    """Time in a step over the time by itself of a class of kernels ('gemm.ampere'): the product of
    the factors of the class and of every class that it belongs to ('gemm')."""
    pieces = name.split(".")
    names = (".".join(pieces[: depth + 1]) for depth in range(len(pieces)))
    return math.prod(float(factors.get(key, 1.0)) for key in names)


def _wire(exchange: Exchange, using: Environment) -> Array:
    """Time of a collective by itself [s], what larger networks add included."""
    doublings = np.log2(np.maximum(exchange.domains / 2.0, 1.0))
    return np.asarray(exchange.time * using.nodes**doublings)


def _exposed(time: Array, window: Array, share: Numeric, contention: float) -> tuple[Array, Array]:
    """What of a collective adds to the step, and what hides [s].

    share       of the window that can hide it
    contention  a second of hidden communication slows what runs beside it by contention - 1
    """
    hidden = np.minimum(time, share * window)
    return time - hidden + (contention - 1.0) * hidden, hidden


def assemble(parts: Parts, run: RunParameters, using: Environment) -> Step:
    """Put a step together.

    parts    of one plan or of a batch
    run      parameters of a run
    using    environment of the run; its `nodes` is one number where plans share layers
    """
    at, m, spread = parts.at, parts.m, parts.spread
    full = at.count.shape
    shape = full[1:]
    stretch = {name: stretched(run.factors, name) for _, _, name in parts.work}

    def on_stages(module: str, value: Array) -> Array:
        return np.asarray(parts.modules[module] * spread(value))

    terms = {term: np.zeros(full) for term in TERMS}
    families: dict[str, Array] = {}
    layer: Array = np.zeros(parts.launches["layer"].shape)
    for (module, term, own), time in parts.work.items():
        scaled = stretch[own] * time
        terms[term] = terms[term] + on_stages(module, scaled)
        layer = layer + parts.mean_layer.get(module, 0.0) * scaled
    for (module, family, own), time in parts.families.items():
        add = on_stages(module, stretch[own] * time)
        families[family] = families[family] + add if family in families else add
    sigmas = {family: spread(value) for family, value in parts.sigmas.items()}

    def note(family: str, time: Array, sigma: Array) -> None:
        families[family] = families[family] + time if family in families else time
        sigmas[family] = np.maximum(sigmas.get(family, 0.0), sigma)

    hidden = {kind: np.zeros(full) for kind in KINDS}
    beside: list[tuple[Slot, Exchange]] = []
    for (slot, _), exchange in parts.inside.items():
        if slot.behind == PASSES:
            beside.append((slot, exchange))
            continue
        share = run.overlap.get(slot.kind, 0.0) if slot.behind else 0.0
        window = stretch.get(slot.behind, 1.0) * exchange.window
        shown, behind = _exposed(_wire(exchange, using), window, share, run.contention)
        add = on_stages(slot.place, shown * exchange.count)
        term = f"{slot.kind}_communication"
        terms[term] = terms[term] + add
        hidden[slot.kind] = hidden[slot.kind] + on_stages(slot.place, behind * exchange.count)
        note(slot.op, add, spread(exchange.sigma))
        layer = layer + parts.mean_layer.get(slot.place, 0.0) * shown * exchange.count

    windows = {"forward": terms["forward"], "backward": terms["backward"] + terms["recompute"]}
    for slot, exchange in beside:
        # Each takes its part of the window that they share.
        wire = _wire(exchange, using) * exchange.count
        whole = in_order(np.array([_wire(other, using) * other.count for _, other in beside]))
        part = on_stages(slot.place, wire) / np.maximum(on_stages(slot.place, whole), 1e-30)
        shown, behind = _exposed(
            on_stages(slot.place, wire),
            part * (windows["forward"] + windows["backward"]),
            run.overlap.get(slot.kind, 0.0),
            run.contention,
        )
        term = f"{slot.kind}_communication"
        terms[term] = terms[term] + shown
        hidden[slot.kind] = hidden[slot.kind] + behind
        note(slot.op, shown, spread(exchange.sigma))
    for pipe, exchange in parts.between.items():
        time = _wire(exchange, using) * exchange.count * parts.vpp
        # Only between chunks of interleaved stages is there another one to compute.
        share = run.overlap.get("pp", 0.0) if pipe.behind else 0.0
        hides = np.where(parts.vpp > 1, share, 0.0)
        shown, behind = _exposed(time + np.zeros(full), windows[pipe.place], hides, run.contention)
        terms["pp_communication"] = terms["pp_communication"] + shown
        hidden["pp"] = hidden["pp"] + behind
        note(pipe.op, shown, exchange.sigma)

    for copy, exchange in parts.offload.items():
        # Copy engines run beside any kernel: the whole pass is their window.
        shown, behind = _exposed(exchange.time, windows[copy.behind], 1.0, 1.0)
        terms["offload"] = terms["offload"] + shown
        hidden["offload"] = hidden["offload"] + behind
        note("offload", shown, exchange.sigma.max(axis=0))

    device: Array = sum((terms[term] for term in TERMS), np.zeros(full))
    launched: Array = np.zeros(full)
    for module in parts.launches:
        launched = launched + using.launch * on_stages(module, parts.launches[module])
        launched = launched + on_stages(module, parts.kernels[module])
        launched = launched + using.hop * on_stages(module, parts.hops[module])
    # A CPU runs its kernels itself; their latency is part of their time.
    host = run.host_per_kernel * (1.0 - parts.host) * launched
    terms["host"] = np.maximum(host - device, 0.0)
    stage_time = device + terms["host"]

    # Communication and host time are spread over the two passes as their kernels are.
    compute: Array = sum((terms[term] for term in COMPUTE_TERMS), np.zeros(full))
    ahead = terms["forward"] / np.maximum(compute, 1e-30)
    late: Array = np.zeros(full)
    for (module, own), time in parts.weights.items():
        late = late + on_stages(module, stretch[own] * time)
    late = late / np.maximum(compute, 1e-30)
    passes = Passes(
        ahead * stage_time, (1.0 - ahead - late) * stage_time, late * stage_time, at.count
    )
    busy = pipeline_time(parts.schedule, passes, m, parts.vpp)
    slowest = np.argmax(np.where(at.count > 0, stage_time, -1.0), axis=0)

    def critical(value: Array) -> Array:
        """Value of the slowest stage kind."""
        chosen = np.take_along_axis(np.broadcast_to(value, full), slowest[None], axis=0)
        return np.asarray(chosen[0])

    exposed, behind, dp_sigma = _gradients(parts, windows, run, using)
    present = at.count > 0
    after = np.where(present, exposed, 0.0) + parts.update
    last = np.argmax(after, axis=0)[None]

    breakdown = {term: m * critical(value) for term, value in terms.items()}
    rest = busy - sum(breakdown.values(), np.zeros(shape))
    breakdown["bubble"] = np.maximum(rest, 0.0)  # not below zero by rounding
    breakdown["dp_communication"] = np.take_along_axis(exposed, last, axis=0)[0]
    breakdown["optimizer"] = np.take_along_axis(parts.update, last, axis=0)[0]
    neutral = sum(breakdown.values(), np.zeros(shape))
    breakdown["framework"] = (using.factor - 1.0) * neutral
    # Batches are prefetched: a loader shows only where it takes longer than the step.
    total = using.factor * neutral
    breakdown["data_loading"] = np.maximum(parts.loading - total, 0.0)

    # A bubble is made of the same work, so its uncertainty is that of the families it consists of.
    longer = busy / np.maximum(m * critical(stage_time), 1e-30)
    times = {family: m * critical(value) * longer for family, value in families.items()}
    times["dp"], times["optimizer"] = breakdown["dp_communication"], breakdown["optimizer"]
    sigmas["dp"], sigmas["optimizer"] = dp_sigma, parts.update_sigma
    concealed = {kind: m * critical(value) for kind, value in hidden.items()}
    concealed["dp"] = np.take_along_axis(behind, last, axis=0)[0]
    return Step(
        step_time=np.asarray(total + breakdown["data_loading"]),
        breakdown=breakdown,
        hidden=concealed,
        families=times,
        sigmas=sigmas,
        layer_time=spread(layer),
        slowest=slowest,
        passes=passes,
    )


def _gradients(
    parts: Parts, windows: dict[str, Array], run: RunParameters, using: Environment
) -> tuple[Array, Array, Array]:
    """Data-parallel communication of a step by stage kind: exposed and hidden [s], (3, *batch),
    and its spread.

    windows  seconds of one micro-batch's forward and backward pass on each stage kind

    What hides does so behind the passes of one micro-batch (all of them, where the communication
    repeats with every micro-batch); the last bucket, one part in layers + 1, never hides.
    """
    full = parts.at.count.shape
    exposed, covered = np.zeros(full), np.zeros(full)
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
        shown, behind = _exposed(time, window, 1.0, run.contention)
        exposed, covered = exposed + shown, covered + behind
    return exposed, covered, sigma
