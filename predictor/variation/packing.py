"""Documents packed into windows: how much attention is left, and how unevenly it falls.

Documents are put one after the other and cut into windows of a sequence's length W (those longer
than W are cut first). A document attends to itself alone, so that the attention of a window is
s2 = sum (l / W)^2 of what it costs as one document; windows differ in it. Moments of s2 are those
of a renewal process whose documents at a window's ends are cut anywhere (Cox 1962, "Renewal
theory", section 8). Ranks of context parallelism that divide a window whatever its documents have
unequal keys to see (WLB-LLM: Wang et al. 2025, arXiv 2503.17924).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric, distinct_rows
from predictor.catalog import data_dir
from predictor.errors import InputError
from predictor.plans import DIVISIONS, PACKINGS
from predictor.records import dataclass
from predictor.variation.order import maximum, normal_maximum, normal_quantile, pearson

PACKING_KEYS = ("documents", "packing", "cp_sharding")
"""Of a request."""

PACKED_FIELDS = ("document", "attention_load", "attention_cv", "attention_skew", "useful")
"""Of a plan, that follow from them."""

POINTS = 4000
"""Of a distribution of lengths, alike in likelihood."""

WINDOWS = 1000
"""Drawn windows whose division among ranks is averaged."""

SHORT = 1100.0
"""Tokens at which what attention takes by the token is as much as what it takes by the square:
measured of one document on H100 (times of documents of 64 to 65,536 tokens, DistCA at 039f2e4). On
two ranks that divide a document, the former is 0.70 to 0.75 of what it is on one, from 1,024 to
4,096 tokens: it falls with the root of the ranks."""

NARROWER = 0.3
"""Power of the stages by which the time of a pipeline varies more than the sum of its micro-batches
does, which work on several at once: read off 1F1B played with gamma-distributed micro-batches, 2
to 16 stages, 1 to 8 micro-batches per stage (tests/predictor/variation/test_packing.py)."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing leaves of a sequence of W tokens.

    document   length of equal documents with as much attention [tokens]
    cv, skew   of the attention of one sequence over its mean
    cp_load    attention of the slowest context-parallel rank over the mean
    useful     share of the tokens that are no padding
    """

    document: float
    cv: float = 0.0
    skew: float = 0.0
    cp_load: float = 1.0
    useful: float = 1.0


@lru_cache(maxsize=16)
def lengths_of(text: str) -> Array:
    """Lengths of documents, alike in likelihood [tokens], of a name of `data/reference/
    documents.csv`, 'lognormal:MEAN:SIGMA', 'quantiles:SHARE:TOKENS:SHARE:TOKENS...', straight
    between them, or a file with a length for each document.

    Raises InputError for anything else.
    """
    kind, *numbers = text.split(":")
    if kind == "lognormal":
        try:
            mean, sigma = (float(number) for number in numbers)
        except ValueError:
            mean = sigma = -1.0
        if not (0.0 < mean < 1e9 and 0.0 <= sigma < 10.0):
            raise InputError(f"documents {text!r}: write lognormal:MEAN:SIGMA, MEAN in tokens")
        z = normal_quantile((np.arange(POINTS) + 0.5) / POINTS)
        return np.sort(mean * np.exp(sigma * z - sigma**2 / 2.0))
    if kind == "quantiles":
        return _quantiles(text, numbers)
    known = _corpora()
    if text in known:
        return known[text]
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"documents {text!r} is neither a file nor one of {', '.join(known)}, "
            "lognormal:MEAN:SIGMA, quantiles:SHARE:TOKENS:..."
        )
    try:
        found = np.array([float(w) for w in path.read_text(encoding="utf-8").split()])
    except ValueError:
        found = np.empty(0)
    if not found.size or not np.all((found >= 1.0) & (found < 1e9)):
        raise InputError(f"documents {text!r}: the file holds no lengths of at least one token")
    return np.sort(found)


def _quantiles(text: str, numbers: list[str]) -> Array:
    """Lengths between stated quantiles; those below the first are as long as that."""
    try:
        stated = np.array([float(number) for number in numbers])
    except ValueError:
        stated = np.empty(0)
    share, tokens = stated[: len(stated) // 2 * 2].reshape(-1, 2).T
    rising = np.all(np.diff(share) > 0) and np.all(np.diff(tokens) >= 0)
    inside = np.all((share >= 0) & (share <= 1)) and np.all((tokens >= 1) & (tokens < 1e9))
    if len(stated) < 2 or len(stated) % 2 or not (rising and inside):
        raise InputError(
            f"documents {text!r}: write quantiles:SHARE:TOKENS:SHARE:TOKENS..., shares of 0 to 1 "
            "and their tokens rising, e.g. quantiles:0.5:900:0.99:26000:1:131072"
        )
    return np.asarray(np.interp((np.arange(POINTS) + 0.5) / POINTS, share, tokens))


@lru_cache(maxsize=1)
def _corpora() -> Mapping[str, Array]:
    """Corpora of the shipped table: quantiles, straight between them."""
    knots: dict[str, list[tuple[float, float]]] = {}
    path = data_dir() / "reference" / "documents.csv"
    if path.is_file():  # data of one's own need not know of corpora
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                at = float(row["quantile"]), float(row["tokens"])
                knots.setdefault(row["corpus"], []).append(at)
    ranks = (np.arange(POINTS) + 0.5) / POINTS
    return {name: np.interp(ranks, *np.array(own).T) for name, own in knots.items()}


def cut(lengths: Array, window: float) -> tuple[Array, Array]:
    """Documents cut to a window: lengths, and how many of each for one of the first."""
    whole = np.floor(lengths / window)
    rest = lengths - whole * window
    many = np.concatenate([np.ones(len(rest)), [whole.sum()]])
    found = np.concatenate([rest, [window]])
    there = (found > 0) & (many > 0)
    return found[there], many[there]


def squares(lengths: Array, window: float) -> tuple[float, float, float]:
    """Mean, standard deviation and skewness of s2 = sum (l / W)^2 over windows; of equal documents
    that fill windows, they lie in all of them alike."""
    own, many = cut(lengths, window)
    if len(set(own.tolist())) == 1 and window % own[0] == 0.0:
        return float(own[0]) / window, 0.0, 0.0
    share = own / window
    many = many / many.sum()

    def moment(power: float) -> float:
        inside = (1.0 - share) * share**power
        across = share * 2.0 * share**power / (power + 1.0)
        return float((many * (inside + across)).sum())

    one, two, three = (float((many * share**k).sum()) for k in (1, 2, 3))
    mean = (two - three / 3.0) / one
    rate = moment(2) / one
    variance = (moment(4) - 2.0 * rate * moment(3) + rate**2 * moment(2)) / one
    third = moment(6) - 3.0 * rate * moment(5) + 3.0 * rate**2 * moment(4) - rate**3 * moment(3)
    if variance <= 1e-12:
        return min(mean, 1.0), 0.0, 0.0
    return mean, math.sqrt(variance), third / one / variance**1.5


@lru_cache(maxsize=256)
def _unequal_ranks(text: str, window: float, ranks: int) -> tuple[float, float, float]:
    """Attention of the slowest of ranks over their mean, by what they divide (`DIVISIONS`): the
    sequence, each document, or of every window what is quicker; over many windows.

    Of 2 c chunks of a window rank i takes chunks i and 2 c - 1 - i, whatever its documents; or it
    takes such chunks of every document, whose pieces are shorter (`SHORT`).
    """
    ends = drawn(lengths_of(text), window, WINDOWS)
    chunk = window / (2 * ranks)
    edges = np.union1d(ends, chunk * np.arange(2 * ranks * WINDOWS + 1))
    bounds = np.union1d(ends, window * np.arange(WINDOWS + 1))
    starts = edges[:-1]
    begun = bounds[np.searchsorted(bounds, starts, "right") - 1]
    work = (edges[1:] - begun) ** 2 - (starts - begun) ** 2
    of = np.minimum((starts / chunk + 1e-6).astype(int), 2 * ranks * WINDOWS - 1)
    each = np.bincount(of, work, 2 * ranks * WINDOWS).reshape(WINDOWS, 2 * ranks)
    load = each[:, :ranks] + each[:, ranks:][:, ::-1]
    length = np.diff(bounds)
    within = np.minimum((bounds[:-1] / window + 1e-6).astype(int), WINDOWS - 1)
    squared, tokens = (np.bincount(within, length**k, WINDOWS) for k in (2, 1))
    longer = (squared + SHORT * tokens * math.sqrt(ranks)) / (squared + SHORT * tokens)
    by_sequence, by_document = load.max(axis=1), longer * load.mean(axis=1)
    slowest = (by_sequence, by_document, np.minimum(by_sequence, by_document))
    one, other, least = (float(own.mean() / load.mean()) for own in slowest)
    return one, other, least


def drawn(lengths: Array, window: float, windows: int) -> Array:
    """Where documents end that are drawn one after the other, over so many windows."""
    own, many = cut(lengths, window)
    share = many / many.sum()
    number = int(1.2 * windows * window / float((own * share).sum())) + 100
    ends = np.cumsum(np.random.default_rng(0).choice(own, number, p=share))
    return np.asarray(ends[ends < windows * window])


def packed(
    text: str, packing: str, window: float, cp: float = 1.0, division: str = "sequence"
) -> Packed:
    """Sequences of a length of documents, packed.

    text      as of `lengths_of`
    packing   of `PACKINGS`
    cp        ranks that divide a sequence
    division  what they divide, of `DIVISIONS`

    Raises InputError where the documents are unknown.
    """
    lengths = lengths_of(text)
    if packing == "unmasked":
        return Packed(window)
    if packing == "padded":  # longer ones are cut off
        own = np.minimum(lengths, window)
        return Packed(window, useful=float(own.mean()) / window)
    mean, spread, skew = squares(lengths, window)
    load = 1.0
    if cp > 1 and mean < 1.0:
        load = _unequal_ranks(text, float(window), int(cp))[DIVISIONS.index(division)]
    if packing == "balanced":  # dealt by cost: ranks and micro-batches are alike
        return Packed(mean * window, cp_load=load)
    return Packed(mean * window, spread / mean, skew, load)


def take_packing(values: dict[str, Any]) -> dict[str, Any]:
    """What a request states of its documents, taken out of its values.

    Raises InputError where it states how they are packed but not what.
    """
    stated = {name: values.pop(name) for name in PACKING_KEYS if name in values}
    if stated and "documents" not in stated:
        raise InputError(f"{next(iter(stated))} needs --set documents=wlb or another")
    return stated


def packed_fields(
    stated: Mapping[str, Any], window: float, micro_batch: float, cp: float, whole: bool
) -> dict[str, float]:
    """Fields of a plan that stated documents come to.

    whole   ranks that divide a sequence attend over whole ones, of fewer heads
    """
    packing = str(stated.get("packing", PACKINGS[0]))
    division = str(stated.get("cp_sharding", DIVISIONS[0]))
    found = packed(str(stated["documents"]), packing, window, 1.0 if whole else cp, division)
    several = math.sqrt(micro_batch)
    values = (
        found.document,
        found.cp_load,
        found.cv / several,
        found.skew / several,
        found.useful,
    )
    return dict(zip(PACKED_FIELDS, values, strict=True))


def waiting_for(
    cv: Numeric, skew: Numeric, stages: Numeric, micro_batches: Numeric, replicas: Numeric
) -> Array:
    """What unequal micro-batches add to a step, over what equal ones take; broadcast shape.

    cv, skew   of the time of a micro-batch

    Stages of a pipeline work on as many micro-batches at once, and all wait for the longest, for
    as long as the pipeline is full. Of replicas the slowest decides; the time of each is the sum
    of its micro-batches.
    """
    m, p = np.maximum(micro_batches, 1.0), np.asarray(stages, float)
    inside = cv * normal_maximum(p)[0] * (m - 1.0) / (m + p - 1.0)
    spread = cv * p**NARROWER / np.sqrt(m)
    most = _most(np.asarray(skew / np.sqrt(m)), np.asarray(replicas, float))
    return np.asarray(inside + spread * np.where(np.asarray(replicas) > 1, most, 0.0))


def _most(skew: Array, replicas: Array) -> Array:
    """Mean of the largest of so many gammas of mean 0, standard deviation 1 and that skewness, once
    for each pair that differs; broadcast shape."""
    pairs = np.broadcast_arrays(skew, replicas)
    first, which = distinct_rows([one.ravel() for one in pairs])
    own, many = (one.ravel()[first] for one in pairs)
    found, _ = maximum(lambda tail: pearson(tail, own[:, None]), many)
    return np.asarray(found[which].reshape(pairs[0].shape))
