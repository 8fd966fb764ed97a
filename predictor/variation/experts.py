"""How unevenly tokens fall on experts, and what that leaves the busiest rank.

Loads of experts are shares w of the token copies, which add up to 1. A rank's load is the sum over
its experts times the ranks, 1 on average; the busiest one's is what the others wait for. Where
ranks are alike it has a closed form (the maximum of as many gammas); where experts are dealt by
load, repeated (EPLB: DeepSeek-AI 2024, DeepSeek-V3, section 3.4) or cut off at a capacity (Fedus
et al. 2021, section 2.2), it is the mean over drawn loads, always the same ones.
"""

from __future__ import annotations

import heapq
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.catalog import Assumption
from predictor.errors import InputError
from predictor.models import Model
from predictor.plans import PLACEMENTS
from predictor.records import dataclass
from predictor.variation.order import maximum, pearson

KINDS = ("even", "dirichlet", "zipf", "one-hot")
SHAPED = {"dirichlet": 1.0, "zipf": 0.6}
"""Those that have a number, and it where none is stated."""

DRAWS, DEALT = 2000, 64
"""Drawn loads: where experts lie as they are numbered, and where they are dealt one by one."""

LEAST_SHAPE, SMALL = 0.4, 0.05
"""Shape of a rank's load below which the closed form is not used, whose gammas have a skewness of 3
at most (`pearson`); and that of an expert's below which gammas are drawn in logarithms."""

GIVEN, BALANCED = PLACEMENTS


@dataclass(frozen=True, slots=True)
class Loads:
    """How loads of experts are distributed.

    kind     of `KINDS`, or 'file'
    number   concentration of a Dirichlet distribution of the loads; exponent of Zipf's law
    weights  of each expert, in their order, of a file
    """

    kind: str
    number: float = math.nan
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Busiest:
    """The busiest rank.

    load     its tokens over the mean
    dropped  share of all token copies that no expert takes, 0..1
    """

    load: float
    dropped: float


def parse_loads(text: str) -> Loads:
    """'even', 'dirichlet:0.5', 'zipf:0.6', 'one-hot', or a file with a number for each expert.

    Raises InputError for anything else.
    """
    kind, _, number = text.partition(":")
    if kind in KINDS:
        if number and kind not in SHAPED:
            raise InputError(f"expert_loads {text!r}: {kind} takes no number")
        try:
            value = float(number) if number else SHAPED.get(kind, math.nan)
        except ValueError:
            value = -1.0
        if kind in SHAPED and not 0.0 < value < 1e6:
            raise InputError(f"expert_loads {text!r}: write {kind}:{SHAPED[kind]:g} or the like")
        return Loads(kind, value)
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"expert_loads {text!r} is neither a file nor one of {', '.join(KINDS)} "
            "(dirichlet:0.5, zipf:0.6)"
        )
    words = path.read_text(encoding="utf-8").replace(",", " ").split()
    try:
        weights = tuple(float(word) for word in words)
    except ValueError:
        weights = ()
    if not weights or min(weights) < 0.0 or not 0.0 < sum(weights) < math.inf:
        raise InputError(f"expert_loads {text!r}: the file holds no numbers from 0 up")
    return Loads("file", math.nan, weights)


def busiest(
    loads: Loads,
    experts: int,
    top_k: int,
    ranks: int,
    copies: float = math.inf,
    replicas: int = 0,
    placement: str = GIVEN,
    capacity: float = math.inf,
) -> Busiest:
    """The busiest of the ranks that divide the experts.

    copies     token copies that a rank works on, on average; their number varies by chance as well
    replicas   further copies of experts, which share the tokens of the one
    placement  of `PLACEMENTS`: dealt ones go, the busiest first, each to the rank with least to do
               and room for it; replicas are dealt, too
    capacity   tokens that an expert takes at most, over the mean

    Raises InputError where the loads are not of as many experts, and where experts and replicas
    do not fill the ranks evenly.
    """
    _check(loads, experts, ranks, replicas)
    if ranks == 1 and math.isinf(capacity):
        return Busiest(1.0, 0.0)
    # A token goes to `top_k` experts: each has one of its copies at most.
    most = min(float(ranks), experts / top_k)
    if loads.kind == "one-hot":
        share = min(1.0, capacity * top_k / experts)
        return Busiest(most * share, 1.0 - share)
    dealt = placement == BALANCED or replicas > 0
    closed = loads.kind in ("even", "dirichlet") and not dealt and math.isinf(capacity)
    shape = loads.number * experts / ranks if loads.kind == "dirichlet" else math.inf
    if closed and shape >= LEAST_SHAPE:
        return Busiest(min(_largest_gamma(ranks, shape, copies), most), 0.0)
    found = _drawn(loads, experts, ranks, copies, replicas, dealt, capacity)
    return Busiest(min(found.load, most), found.dropped)


def _check(loads: Loads, experts: int, ranks: int, replicas: int) -> None:
    if loads.weights and len(loads.weights) != experts:
        raise InputError(f"expert_loads: {len(loads.weights)} numbers for {experts} experts")
    if (experts + replicas) % ranks:
        raise InputError(
            f"expert_replicas {replicas}: {experts} experts and they are no multiple of ep {ranks}"
        )


def _largest_gamma(ranks: int, shape: float, copies: float) -> float:
    """Mean of the largest of so many gammas of mean 1, whose tokens are counted: variance 1 / shape
    + 1 / copies (the negative binomial's), and its skewness. Of a Dirichlet distribution this is
    exact, since the largest share does not depend on the sum."""
    of_loads, of_counts = 1.0 / shape, 1.0 / copies
    variance = of_loads + of_counts
    if variance == 0.0:
        return 1.0
    third = 2.0 * of_loads**2 + 3.0 * of_loads * of_counts + of_counts**2
    skew = third / variance**1.5
    mean, _ = maximum(lambda tail: pearson(tail, skew), float(ranks))
    return 1.0 + math.sqrt(variance) * float(mean)


def _drawn(
    loads: Loads,
    experts: int,
    ranks: int,
    copies: float,
    replicas: int,
    dealt: bool,
    capacity: float,
) -> Busiest:
    """Mean over draws of the loads, and of who lies where."""
    shares = _shares(loads, experts, DEALT if dealt else DRAWS)
    kept = np.minimum(shares, capacity / experts)
    dropped = float(1.0 - kept.sum(axis=1).mean())
    if dealt:
        held = np.stack([_dealt(row, ranks, replicas) for row in kept])
    else:
        held = kept.reshape(len(kept), ranks, -1).sum(axis=2)
    found = held * ranks
    if math.isfinite(copies):
        noise = np.random.default_rng(1).standard_normal(found.shape)
        found = found + noise * np.sqrt(found / copies)
    return Busiest(float(found.max(axis=1).mean()), dropped)


@lru_cache(maxsize=64)
def _shares(loads: Loads, experts: int, draws: int) -> Array:
    """Shares of the experts in the order in which they lie, (draws, experts)."""
    random = np.random.default_rng(0)
    if loads.kind == "file":
        own = np.asarray(loads.weights) / sum(loads.weights)
        return np.broadcast_to(own, (draws, experts))
    if loads.kind == "dirichlet":
        return _dirichlet(random, loads.number, (draws, experts))
    ranked = np.arange(1.0, experts + 1.0) ** (-loads.number if loads.kind == "zipf" else 0.0)
    whole = np.tile(ranked / ranked.sum(), (draws, 1))
    return np.asarray(random.permuted(whole, axis=1))


def _dirichlet(random: np.random.Generator, number: float, shape: tuple[int, int]) -> Array:
    """Shares of a Dirichlet distribution, rows that add up to 1. Gammas of small shapes are below
    what a float holds: there in logarithms, as gammas of a shape of one more and a power of what
    is drawn evenly (Marsaglia and Tsang 2000, section 6)."""
    if number >= SMALL:
        drawn = random.standard_gamma(number, shape)
    else:
        power = np.log1p(-random.random(shape)) / max(number, 1e-6)
        logs = np.log(random.standard_gamma(1.0 + number, shape)) + power
        drawn = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


def _dealt(shares: Array, ranks: int, replicas: int) -> Array:
    """Loads of the ranks where the busiest experts are repeated, one replica at a time for the one
    whose copies have most to do, and all are dealt, longest first (Graham 1969), with equal
    numbers on every rank."""
    heap = [(-float(share), 1, float(share)) for share in shares]
    heapq.heapify(heap)
    for _ in range(replicas):
        _, many, share = heap[0]
        heapq.heapreplace(heap, (-share / (many + 1), many + 1, share))
    pieces = sorted((share / many for _, many, share in heap for _ in range(many)), reverse=True)
    room = len(pieces) // ranks
    open_ranks = [(0.0, rank, 0) for rank in range(ranks)]
    done = np.zeros(ranks)
    for piece in pieces:
        load, rank, many = heapq.heappop(open_ranks)
        done[rank] = load + piece
        if many + 1 < room:
            heapq.heappush(open_ranks, (load + piece, rank, many + 1))
    return done


LOAD_KEYS = ("expert_loads", "expert_replicas", "expert_placement", "expert_capacity")
"""Of a request; together they say what `expert_load` is."""


def take_loads(values: dict[str, Any]) -> dict[str, Any]:
    """What a request states of the loads of experts, taken out of its values.

    Raises InputError where it states their outcome, too, or no loads.
    """
    stated = {name: values.pop(name) for name in LOAD_KEYS if name in values}
    if stated and "expert_load" in values:
        raise InputError(f"give expert_load or {next(iter(stated))}, not both")
    if stated and "expert_loads" not in stated:
        raise InputError(f"{next(iter(stated))} needs --set expert_loads=even or another")
    return stated


def load_of(
    stated: dict[str, Any], model: Model, ranks: float, copies: float = math.inf
) -> Assumption:
    """`expert_load` as `take_loads` found it stated, and the rule behind it.

    ranks    that divide the experts
    copies   token copies that each works on, on average
    """
    loads = parse_loads(str(stated["expert_loads"]))
    replicas = int(stated.get("expert_replicas", 0))
    found = busiest(
        loads=loads,
        experts=model.num_experts,
        top_k=model.top_k,
        ranks=int(ranks),
        copies=copies,
        replicas=replicas,
        placement=str(stated.get("expert_placement", GIVEN)),
        capacity=float(stated.get("expert_capacity", math.inf)),
    )
    rule = f"the busiest of {int(ranks)} ranks, loads {stated['expert_loads']}"
    if replicas:
        rule += f", {replicas} replicas"
    if found.dropped > 0.0:
        rule += f"; {100.0 * found.dropped:.1f} % of the token copies are dropped"
    return Assumption("expert_load", round(found.load, 4), rule)
