"""What sources of published runs differ in: the prior with which a few runs of one's own are read.

    python -m calibration.checks.few_shot ../shared --write

The covariance of `predictor.timing.adaptation` has a parameter for each way in which runs of one
source can be off together. They are those that make the residuals of published sources likeliest,
every source's residuals being under run parameters fitted without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from calibration.runs.apart import Runs, environments
from calibration.tables.waiting import calm_share, threads_of
from predictor.arrays import Array
from predictor.files import write_text
from predictor.timing import HOSTS, Prior, RunParameters, Traits, log_t
from predictor.training import (
    SIZES,
    SLOPES,
    WORDS,
    Described,
    assemble,
    describe,
    interval,
    traits,
)

START = Prior(
    level=0.05,
    slopes=dict.fromkeys(SLOPES, 0.4),
    alike=dict.fromkeys(WORDS, 0.1),
    near=0.1,
    lengths=dict.fromkeys(SIZES, 1.0),
    noise=0.04,
    rough=dict.fromkeys(SLOPES, 0.1),
    known=0.3,
    source="residuals of published sources, each under run parameters of others",
)
"""Where the search starts, and what it is drawn to weakly."""

DRAWN = 1.5
"""Standard deviation of that, on the log scale."""

MOST = 80
"""Rows of a source that are used: more cost time and say little."""

COUNTS = 30.0
"""A source counts as so many rows at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Runs of one source: what they are compared by, log of measured over predicted time."""

    source: str
    traits: Traits
    residual: Array

    def take(self, index: np.ndarray) -> Block:
        """Some of them."""
        return Block(self.source, self.traits.take(index), self.residual[index])


def described(runs: Runs) -> Described:
    """Sizes and categories of published runs."""
    found = [
        describe(one.request.model, one.request.cluster, one.request.plan) for one in runs.points
    ]
    return Described(
        np.concatenate([one.sizes for one in found]), np.concatenate([one.words for one in found])
    )


def block(runs: Runs, run: RunParameters, source: str = "own") -> Block:
    """Runs of one source under run parameters."""
    using = environments(runs, run)
    step = assemble(runs.parts, run, using)
    sigma = interval(step, using.factor, 0.0, host=False)
    threads = [threads_of(point.request.cluster.accelerator) for point in runs.points]
    calm = calm_share(np.array([point.waited for point in runs.points]), np.array(threads))
    known = traits(runs.parts, run, using, step, described(runs), sigma, 1.0 / calm - 1.0)
    return Block(source, known, runs.measured - np.log(step.step_time))


def _vector(prior: Prior) -> Array:
    """Parameters of the covariance on their log scale."""
    parts = [
        prior.level, *prior.slopes.values(), *prior.alike.values(), prior.near,
        *prior.lengths.values(), prior.noise, *prior.rough.values(), prior.known,
    ]  # fmt: skip
    return np.log(parts)


def _prior(vector: Array, like: Prior) -> Prior:
    """The contrary of `_vector`."""
    values = iter(np.exp(vector).tolist())

    def table(names: Mapping[str, float]) -> dict[str, float]:
        return {name: next(values) for name in names}

    return replace(
        like,
        level=next(values),
        slopes=table(like.slopes),
        alike=table(like.alike),
        near=next(values),
        lengths=table(like.lengths),
        noise=next(values),
        rough=table(like.rough),
        known=next(values),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What of a block's covariance does not depend on its parameters."""

    left: Array
    slopes: Array
    alike: Array
    apart: Array
    squares: Array
    sigma: Array
    weight: float


def _pieces(one: Block) -> _Pieces:
    known = one.traits
    words = known.words
    alike = np.stack([words[:, c, None] == words[None, :, c] for c in range(words.shape[1])])
    apart = (known.sizes[:, None, :] - known.sizes[None, :, :]) ** 2
    return _Pieces(
        left=one.residual[:, None] - known.host,
        slopes=np.stack([np.outer(column, column) for column in known.slopes.T]),
        alike=alike.astype(float),
        apart=np.moveaxis(apart, -1, 0),
        squares=(known.slopes**2).T,
        sigma=known.sigma**2,
        weight=min(1.0, COUNTS / len(one.residual)),
    )


def _covariance(vector: Array, own: _Pieces, sizes: tuple[int, int, int]) -> tuple[Array, Array]:
    """Covariance of a block, and its slopes over every parameter, (P, n, n)."""
    slopes, words, lengths = sizes
    square = np.exp(2.0 * vector)
    count = len(own.sigma)
    at = 1 + slopes + words
    scale = 1.0 / square[at + 1 : at + 1 + lengths]
    near = np.exp(-0.5 * np.tensordot(scale, own.apart, 1)) * square[at]
    eye = np.eye(count)
    parts = [np.full((1, count, count), square[0])]
    parts.append(square[1 : 1 + slopes, None, None] * own.slopes)
    parts.append(square[1 + slopes : at, None, None] * own.alike)
    parts.append(near[None])
    last = at + 1 + lengths
    alone = [square[last] * np.ones((1, count))]
    alone.append(square[last + 1 : last + 1 + slopes, None] * own.squares)
    alone.append((square[-1] * own.sigma)[None])
    diagonal = np.concatenate(alone)
    whole = sum((part.sum(0) for part in parts), diagonal.sum(0) * eye)
    stretch = 0.5 * near[None] * own.apart * scale[:, None, None]
    gradient = 2.0 * np.concatenate([*parts, stretch, diagonal[:, :, None] * eye])
    return whole, gradient


def likelihood(vector: Array, pieces: Sequence[_Pieces], like: Prior) -> tuple[float, Array]:
    """Minus the log probability of blocks of residuals, and its slope over the parameters."""
    sizes = len(like.slopes), len(like.alike), len(like.lengths)
    total, slope = 0.0, np.zeros(len(vector))
    host = -0.5 * (HOSTS / like.host) ** 2
    host = host - np.log(np.exp(host).sum())
    for own in pieces:
        covariance, gradient = _covariance(vector, own, sizes)
        count = len(own.sigma)
        inverse = np.linalg.inv(covariance)
        _, determinant = np.linalg.slogdet(covariance)
        pull = inverse @ own.left
        distance = (own.left * pull).sum(0)
        score = log_t(distance, np.asarray(determinant), count, like.freedom) + host
        top = score.max()
        share = np.exp(score - top)
        total -= own.weight * float(top + np.log(share.sum()))
        share = share / share.sum()
        bend = share * (like.freedom + count) / (like.freedom + distance)
        outward = 0.5 * (inverse - (pull * bend) @ pull.T)
        slope += own.weight * np.einsum("pij,ij->p", gradient, outward, optimize=True)
    return total, slope


def fit_prior(blocks: Sequence[Block], start: Prior = START, steps: int = 60) -> Prior:
    """The covariance under which the residuals of sources are likeliest.

    blocks   each of one source, of two rows at least
    start    where the search starts; it is drawn to `START`
    """
    chosen = [_thinned(one) for one in blocks if len(one.residual) > 1]
    pieces = [_pieces(one) for one in chosen]
    middle = _vector(START)

    def cost(vector: Array) -> tuple[float, Array]:
        value, slope = likelihood(vector, pieces, start)
        away = (vector - middle) / DRAWN
        return value + 0.5 * float(away @ away), slope + away / DRAWN

    bounds = [(np.log(1e-3), np.log(4.0))] * len(middle)
    found = minimize(
        cost, _vector(start), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": steps, "ftol": 1e-6},
    )  # fmt: skip
    return _prior(found.x, start)


def _thinned(one: Block) -> Block:
    """At most `MOST` rows of a block, drawn evenly."""
    count = len(one.residual)
    if count <= MOST:
        return one
    return one.take(np.unique(np.linspace(0, count - 1, MOST).astype(int)))


def write_prior(prior: Prior, left_out: Mapping[str, Any], out: Path) -> None:
    """Keep a prior, with what it brought sources that were left out of it."""
    content = {
        name: {key: float(f"{v:.4g}") for key, v in value.items()}
        if isinstance(value, Mapping)
        else (float(f"{value:.4g}") if isinstance(value, float) else value)
        for name in Prior.__slots__
        for value in [getattr(prior, name)]
    }
    write_text(out, json.dumps({**content, "left_out": left_out}, indent=1) + "\n")
