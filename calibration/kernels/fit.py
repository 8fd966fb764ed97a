"""Fits the efficiency of one kind of kernel to measured points.

What is learned is y = -log(efficiency) as a function of the features of
`predictor.timing.features`; large tables get a small neural network, small ones a ridge regression
on products of two features. Errors that are reported are those of shapes held out of the fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd

from calibration.heldout import HeldOut, errors
from calibration.kernels.near import fitted
from calibration.tables.kernel_table import shapes_of
from predictor.hardware import Accelerator
from predictor.timing import (
    ANY,
    DEFAULTS,
    Calibration,
    EfficiencyModel,
    Shapes,
    ideal,
    shape_keys,
    shape_times,
)
from predictor.units import Z80

NETWORK_POINTS = 4000
"""Tables from this size on get a neural network."""

LIBRARY_POINTS = 1000
"""Where several libraries were timed, tables from this size on get a network: only that can say
that their difference depends on the shape."""

QUADRATIC_POINTS = 40
"""Tables from this size on get products of two features, smaller ones the features alone."""

POINTS_PER_FEATURE = 3
"""Points per feature of the commonest variant (layout, direction), from which on it is fitted
alone; and points per feature that products of two features need."""

SMALL_TABLE = 1000
"""Tables below this size are held out fold by fold, larger ones in a single fold."""

NEAR_POINTS = (8, 400)
"""Tables of this size may keep their points beside the trend."""

KEEP_SHAPES = 5000
"""Tables up to this size keep their shapes, so that predictions can say 'measured'."""

MOST_POINTS = 32_000
"""A fit takes at most this many points; a pooled one spreads them evenly over accelerators."""

TRAINED_POINTS = 2.4e6
"""Points that a network sees in all its epochs."""

LEAST_POINTS = 4
"""Kinds with fewer points on an accelerator are not fitted there."""

LONGEST_LAUNCH = 50e-6
"""What takes longer than this is at work, not being launched [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measured points of one kind and data type, on one or several accelerators.

    features (N, F); ideal, time, latency [s]; variant names; group: accelerator of each point;
    library: kernel library that took `time`, '' for the neutral one; sizes: `SIZES` of the shapes,
    (N, sizes)
    """

    features: np.ndarray
    ideal: np.ndarray
    time: np.ndarray
    latency: np.ndarray
    variant: np.ndarray
    group: np.ndarray
    keys: np.ndarray
    library: np.ndarray
    sizes: np.ndarray

    def take(self, index: np.ndarray) -> Points:
        """The points at `index`."""
        return Points(*(getattr(self, name)[index] for name in POINT_FIELDS))

    @property
    def y(self) -> np.ndarray:
        """-log(efficiency) of each point."""
        return np.asarray(
            np.log(np.maximum(self.time - self.latency, 0.02 * self.time) / self.ideal)
        )

    @property
    def weight(self) -> np.ndarray:
        """How much of the time the efficiency decides: squared share beyond the latency."""
        return np.asarray(np.clip((self.time - self.latency) / self.time, 0.02, 1.0) ** 2)


SIZES = ("m", "n", "k", "batch", "flop", "bytes", "idle", "windowed", "sharing", "joined", "cold")
"""Numbers of a shape (`timing.Shapes`)."""

POINT_FIELDS = tuple(item.name for item in fields(Points))


LEAST_EMPTY = 5
"""Kernels as good as empty that show what an empty one takes on a GPU, where neighbours disturb."""


def latency_of(
    time: np.ndarray, ideal_time: np.ndarray, default: float, least: int = LEAST_EMPTY
) -> float:
    """Time of an empty kernel [s]: nine tenths of the fastest hundredth of the short kernels whose
    ideal time is less than a tenth of what they took; `default` where there are fewer than `least`
    such."""
    small = time[(ideal_time < 0.1 * time) & (time < LONGEST_LAUNCH)]
    if len(small) < least:
        return min(default, 0.5 * float(time.min()))
    return float(0.9 * np.quantile(small, 0.01))


def points_of(table: pd.DataFrame, accelerator: Accelerator, op: str, dtype: str) -> Points:
    """Rows of one kind and data type on one accelerator as points to fit."""
    shapes = shapes_of(table, op, dtype)
    found = ideal(shapes, accelerator)
    time = table["latency_us"].to_numpy(float) * 1e-6
    time = time - np.minimum(found.fetch, 0.5 * time)
    # Faster than the ceiling by more than rounding is a broken row, not an efficient kernel.
    sound = time > 0.98 * found.time
    names = np.array(shapes.variants)[shapes.variant.astype(int)]
    default = DEFAULTS.get(op, DEFAULTS[ANY]).latency
    latency = np.full(time.shape, default)
    # What is one kernel on a GPU may be several on a host, as many as the variant has.
    groups = (
        [names == name for name in set(names)]
        if accelerator.is_host
        else [np.ones(time.shape, bool)]
    )
    for group in groups:
        if (own := group & sound).any():
            least = 1 if accelerator.is_host else LEAST_EMPTY
            latency[group] = latency_of(time[own], found.time[own], default, least)
    everything = Points(
        features=found.features,
        ideal=found.time,
        time=time,
        latency=latency,
        variant=names,
        group=np.full(time.shape, accelerator.name, dtype=object),
        keys=_keys(shapes),
        library=table["framework"].to_numpy(object),
        sizes=np.stack([getattr(shapes, name) + 0.0 * shapes.m for name in SIZES], axis=1),
    )
    return everything.take(np.flatnonzero(sound))


def _keys(shapes: Shapes) -> np.ndarray:
    return shape_keys(shapes.m, shapes.n, shapes.k, shapes.batch)


def join(parts: list[Points]) -> Points:
    """Points one after another."""
    return Points(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in POINT_FIELDS)
    )


def fit_points(
    points: Points, kind: str, dtype: str, place: str, seed: int = 0, seen: float = TRAINED_POINTS
) -> EfficiencyModel:
    """Fit one model to points.

    place   accelerator name, '*ARCHITECTURE' or '**VENDOR'
    seen    points that a network sees in all its epochs
    """
    low, high = points.features.min(axis=0), points.features.max(axis=0)
    mean, spread = points.features.mean(axis=0), points.features.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    libraries = [str(name) for name in np.unique(points.library.astype(str)) if name]
    codes = np.array([points.library == name for name in libraries], float)
    codes = codes.reshape(len(libraries), len(points.time)).T
    z = (points.features - mean) / scale
    y, weight = points.y, points.weight * balance(points.group)
    base = _base_variant(points.variant)
    offsets = dict.fromkeys(map(str, np.unique(points.variant)), 0.0)
    mask = points.variant == base
    enough = POINTS_PER_FEATURE * z.shape[1]
    if len(y) < NETWORK_POINTS and mask.sum() < enough:
        # Too few of one variant to learn from: all together, each with its offset from that.
        base, mask = "", np.ones_like(mask)
    if len(y) >= (LIBRARY_POINTS if libraries else NETWORK_POINTS):
        degree = 1
        weights, biases = _network(z[mask], codes[mask], y[mask], weight[mask], seed, seen)
    else:
        degree = 2 if mask.sum() >= max(QUADRATIC_POINTS, enough) else 1
        weights, biases = _ridge(z[mask], codes[mask], y[mask], weight[mask], degree)
    # The code of a library is one input: its weights are what it adds to the first biases.
    own = len(weights[0]) - len(libraries)
    stacks = {name: weights[0][own + index] for index, name in enumerate(libraries)}
    weights = (weights[0][:own], *weights[1:])
    model = EfficiencyModel(
        kind=kind,
        dtype=dtype,
        accelerator=place,
        latency=shortest(points),
        limit=float(np.quantile(y, 0.995)),
        degree=degree,
        sigma=0.0,
        points=len(y),
        offsets=offsets,
        low=low,
        high=high,
        mean=mean,
        scale=scale,
        weights=weights,
        biases=biases,
        keys=np.unique(points.keys) if len(y) <= KEEP_SHAPES else np.empty(0),
        stacks=stacks,
        lags=lags_of(points, place),
    )
    for name in offsets:
        other = points.variant == name
        if name != base and other.any():
            residual = y[other] - inefficiency(model, points.take(np.flatnonzero(other)))
            offsets[name] = float(np.average(residual, weights=weight[other]))
    return model


MOST_BALANCED = 10.0
"""By how much points of an accelerator with few of them count more, at most."""


def balance(group: np.ndarray) -> np.ndarray:
    """How much more each point counts for accelerators to count alike, (N,): thousands of points of
    one harness do not speak for the accelerators of a hundred."""
    names, side, counts = np.unique(group.astype(str), return_inverse=True, return_counts=True)
    alike = len(group) / len(names) / counts
    return np.asarray(np.clip(alike, 1.0 / MOST_BALANCED, MOST_BALANCED)[side])


def shortest(points: Points) -> float:
    """Time of an empty kernel [s]: the usual one of the accelerator with the shortest. Those with
    longer ones had no short kernels, or a harness that adds its own time."""
    of = points.group.astype(str)
    return min(float(np.median(points.latency[of == name])) for name in np.unique(of))


def lags_of(points: Points, place: str) -> dict[str, float]:
    """What each variant's latency adds to the median one [s]; none where all are alike, or pooled
    over accelerators that differ."""
    usual = float(np.median(points.latency))
    if place.startswith(ANY) or np.all(points.latency == usual):
        return {}
    names = points.variant.astype(str)
    return {
        str(name): float(np.median(points.latency[names == name])) - usual
        for name in np.unique(names)
    }


def fit_near(points: Points, kind: str, dtype: str, place: str) -> EfficiencyModel:
    """Fit one model to few points, which it keeps: a trend, and what they say of shapes nearby."""
    mean, spread = points.features.mean(axis=0), points.features.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    y = points.y
    slopes, constant, offsets, near = fitted(
        (points.features - mean) / scale, points.variant.astype(str), y, points.weight
    )
    return EfficiencyModel(
        kind=kind,
        dtype=dtype,
        accelerator=place,
        latency=float(np.median(points.latency)),
        limit=float(np.quantile(y, 0.995)) + HEADROOM - min(offsets.values()),
        degree=1,
        sigma=0.0,
        points=len(y),
        offsets=offsets,
        low=points.features.min(axis=0),
        high=points.features.max(axis=0),
        mean=mean,
        scale=scale,
        weights=(slopes[:, None],),
        biases=(np.array([constant]),),
        keys=np.unique(points.keys),
        lags=lags_of(points, place),
        near=near,
    )


HEADROOM = 0.2
"""By how much y may exceed that of all points but one in 200, where these are few."""


def _base_variant(names: np.ndarray) -> str:
    """The variant with most points; the others get an offset from it."""
    values, counts = np.unique(names.astype(str), return_counts=True)
    return str(values[np.argmax(counts)])


def _ridge(
    z: np.ndarray, codes: np.ndarray, y: np.ndarray, weight: np.ndarray, degree: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Ridge regression on features (and their products) and codes of libraries, strength by
    leave-one-out."""
    from sklearn.linear_model import Ridge, RidgeCV

    rows, cols = np.triu_indices(z.shape[1])
    products = z[:, rows] * z[:, cols] if degree == 2 else z[:, :0]
    expanded = np.concatenate([z, products, codes], axis=1)
    center, spread = expanded.mean(axis=0), expanded.std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    # Leave-one-out needs points to leave out; fewer get a fixed, firm pull toward the mean.
    estimator = RidgeCV(np.logspace(-2, 4, 13)) if len(y) >= 12 else Ridge(alpha=3.0)
    estimator.fit((expanded - center) / spread, y, sample_weight=weight)
    coefficient = estimator.coef_ / spread
    bias = estimator.intercept_ - coefficient @ center
    return (coefficient[:, None],), (np.array([bias]),)


def _network(
    z: np.ndarray, codes: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int, seen: float
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """A multilayer perceptron of rectifiers; learning rate lowered in steps."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    estimator = MLPRegressor(
        hidden_layer_sizes=(64, 64, 64),
        alpha=1e-5,
        batch_size=512,
        max_iter=1,
        warm_start=True,
        random_state=seed,
    )
    center = float(np.average(y, weights=weight))
    epochs = int(np.clip(seen / len(y), 10, 200))
    # Weights are kept in single precision (`calibration.artifact`).
    inputs = np.concatenate([z, codes], axis=1).astype(np.float32)
    target, weight = (y - center).astype(np.float32), weight.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for rate, share in ((4e-3, 0.5), (1e-3, 0.3), (2e-4, 0.2)):
            estimator.set_params(
                learning_rate_init=rate,
                max_iter=max(int(epochs * share), 1),
                n_iter_no_change=10_000,
            )
            estimator.fit(inputs, target, sample_weight=weight)
    biases = [bias.astype(float) for bias in estimator.intercepts_]
    biases[-1] = biases[-1] + center
    return tuple(weight.astype(float) for weight in estimator.coefs_), tuple(biases)


def inefficiency(model: EfficiencyModel, points: Points) -> np.ndarray:
    """y that a model answers for points before the offset of their variant, (N,)."""
    y = np.empty(len(points.time))
    for name in np.unique(points.library.astype(str)):
        own = points.library == name
        variant = points.variant[own].astype(str)
        y[own] = model.inefficiency(points.features[own], str(name), variant)
    return y


def predict_points(model: EfficiencyModel, points: Points) -> np.ndarray:
    """Times that a model answers for points [s], each in its own kernel library."""
    offset = np.array([model.offsets.get(str(name), 0.0) for name in points.variant])
    lag = np.array([model.lags.get(str(name), 0.0) for name in points.variant])
    y = np.maximum(inefficiency(model, points) + offset, 0.0)
    return np.asarray(model.latency + lag + points.ideal * np.exp(y))


def op_of(kind: str) -> str:
    """The operator that a kind of the calibration is fitted to: batched products are products."""
    name = kind.split(".")[0].split("/")[0]
    return "gemm" if name == "bmm" else name


def predict_unseen(
    points: Points, accelerator: Accelerator, op: str, dtype: str, known: Calibration
) -> np.ndarray:
    """Times that a calibration answers for points of an accelerator that it does not know [s], as
    `timing.shape_times` has them, each in its own kernel library."""
    time, stranger = np.empty(len(points.time)), replace(accelerator, name="")
    for library in np.unique(points.library.astype(str)):
        own = np.flatnonzero(points.library == library)
        shapes = _shapes(points.take(own), op, dtype)
        time[own] = shape_times(shapes, stranger, known, library=str(library))[0]
    return time


def _shapes(points: Points, op: str, dtype: str) -> Shapes:
    """The shapes of points of one op and data type."""
    names, codes = np.unique(points.variant.astype(str), return_inverse=True)
    numbers = dict(zip(SIZES, points.sizes.T, strict=True))
    variants = tuple(str(name) for name in names)
    return Shapes(op=op, dtype=dtype, variants=variants, variant=codes.astype(float), **numbers)


def spread(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Log-standard-deviation whose central 80 % covers 80 % of the errors."""
    return float(np.quantile(np.abs(np.log(predicted / measured)), 0.8) / Z80)


def folds_of(points: Points, count: int = 5, like: Points | None = None) -> np.ndarray:
    """A fold for every distinct shape, the same for all its rows, and for the same shape of
    `like`."""
    distinct = np.unique((points if like is None else like).keys)
    order = np.random.default_rng(0).permutation(len(distinct))
    at = np.minimum(np.searchsorted(distinct, points.keys), len(distinct) - 1)
    return np.where(distinct[at] == points.keys, order[at] % count, -1)


def fit_checked(
    points: Points,
    kind: str,
    dtype: str,
    place: str,
    rows: Points | None = None,
    near: bool = False,
) -> tuple[EfficiencyModel, HeldOut]:
    """Fit on all points; error and spread from fits without a fifth of the shapes (of small
    tables each fifth in turn, of large ones the first).

    points  to fit: times of every library, and neutral ones
    rows    to predict: the measurements among them; the points themselves if not given
    near    of small tables, take the trend with the points around it (`fit_near`) where that
            predicts the shapes left out better
    """
    rows = points if rows is None else rows
    fold, own = folds_of(points), folds_of(rows, like=points)
    folds = np.unique(fold) if len(fold) < SMALL_TABLE else np.array([0])
    predicted, measured = [], []
    for number in folds:
        out = fold == number
        if (~out).sum() >= 3:
            trial = fit_points(points.take(np.flatnonzero(~out)), kind, dtype, place)
            test = rows.take(np.flatnonzero(own == number))
            predicted.append(predict_points(trial, test))
            measured.append(test.time)
    if not measured:
        model = fit_points(points, kind, dtype, place)
        return replace(model, sigma=0.3), HeldOut(float("nan"), float("nan"), float("nan"), 0)
    guess, truth = np.concatenate(predicted), np.concatenate(measured)
    make: Callable[[Points, str, str, str], EfficiencyModel] = fit_points
    if near and NEAR_POINTS[0] <= len(points.time) <= NEAR_POINTS[1]:
        other = np.concatenate(
            [
                predict_points(
                    fit_near(points.take(np.flatnonzero(fold != number)), kind, dtype, place),
                    rows.take(np.flatnonzero(own == number)),
                )
                for number in folds
                if (fold != number).sum() >= 3
            ]
        )
        if np.abs(np.log(other / truth)).mean() < np.abs(np.log(guess / truth)).mean():
            guess, make = other, fit_near
    found, sigma = errors(guess, truth), spread(guess, truth)
    return replace(make(points, kind, dtype, place), sigma=max(sigma, 0.01)), found


def sample(points: Points, limit: int) -> Points:
    """At most `limit` points, evenly over the accelerators."""
    if len(points.time) <= limit:
        return points
    rng = np.random.default_rng(0)
    groups = np.unique(points.group.astype(str))
    chosen = []
    for name in groups:
        index = np.flatnonzero(points.group == name)
        chosen.append(rng.permutation(index)[: limit // len(groups)])
    return points.take(np.sort(np.concatenate(chosen)))
