"""Fits efficiencies of kernels to measured tables.

For each kind of operator and data type: one model per accelerator, one pooled over each
architecture, one pooled over everything, so that an accelerator without data still gets its
relatives' efficiency. What is learned is y = -log(efficiency) as a function of the features of
`predictor.features`; large tables get a small neural network, small ones a ridge regression on
products of two features. Errors that are reported are those of shapes held out of the fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.neural_network import MLPRegressor

from calibration.tables import kinds, shapes_of, variants
from predictor import catalog
from predictor.efficiency import ANY, DEFAULTS, EfficiencyModel, shape_keys
from predictor.features import Shapes, ideal
from predictor.hardware import Accelerator

NETWORK_POINTS = 4000
"""Tables from this size on get a neural network."""

QUADRATIC_POINTS = 40
"""Tables from this size on get products of two features, smaller ones the features alone."""

SMALL_TABLE = 1000
"""Tables below this size are held out fold by fold, larger ones in a single fold."""

KEEP_SHAPES = 5000
"""Tables up to this size keep their shapes, so that predictions can say 'measured'."""

POOL_POINTS = 30_000
"""A pooled fit takes at most this many points, spread evenly over accelerators."""

LEAST_POINTS = 4
"""Kinds with fewer points on an accelerator are not fitted there."""

LONGEST_LAUNCH = 50e-6
"""What takes longer than this is at work, not being launched [s]."""

STREAMING = ("norm", "elementwise", "softmax", "loss", "embedding", "optimizer")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on points outside the fit: mean and median absolute error, mean log error, count."""

    mape: float
    median: float
    bias: float
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class KernelFit:
    """Models with the held-out errors of each, keyed as in the calibration."""

    models: dict[tuple[str, str, str], EfficiencyModel] = field(default_factory=dict)
    heldout: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer_sigma: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measured points of one kind and data type, on one or several accelerators.

    features (N, F); ideal, time, latency [s]; variant names; group: accelerator of each point
    """

    features: np.ndarray
    ideal: np.ndarray
    time: np.ndarray
    latency: np.ndarray
    variant: np.ndarray
    group: np.ndarray
    keys: np.ndarray

    def take(self, index: np.ndarray) -> Points:
        """The points at `index`."""
        return Points(
            *(
                getattr(self, name)[index]
                for name in ("features", "ideal", "time", "latency", "variant", "group", "keys")
            )
        )

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


def latency_of(time: np.ndarray, ideal_time: np.ndarray, default: float) -> float:
    """Time of an empty kernel [s]: nine tenths of the fastest hundredth of the short kernels whose
    ideal time is less than a tenth of what they took; `default` where there are no such."""
    small = time[(ideal_time < 0.1 * time) & (time < LONGEST_LAUNCH)]
    if len(small) < 5:
        return min(default, 0.5 * float(time.min()))
    return float(0.9 * np.quantile(small, 0.01))


def points_of(table: pd.DataFrame, accelerator: Accelerator, op: str, dtype: str) -> Points:
    """Rows of one kind and data type on one accelerator as points to fit."""
    shapes = shapes_of(table, op, dtype)
    found = ideal(shapes, accelerator)
    time = table["latency_us"].to_numpy(float) * 1e-6
    # Faster than the ceiling by more than rounding is a broken row, not an efficient kernel.
    sound = time > 0.98 * found.time
    names = np.array(shapes.variants)[shapes.variant.astype(int)]
    default = DEFAULTS.get(op, DEFAULTS[ANY]).latency
    latency = latency_of(time[sound], found.time[sound], default) if sound.any() else default
    everything = Points(
        found.features,
        found.time,
        time,
        np.full(time.shape, latency),
        names,
        np.full(time.shape, accelerator.name, dtype=object),
        _keys(shapes),
    )
    return everything.take(np.flatnonzero(sound))


def _keys(shapes: Shapes) -> np.ndarray:
    return shape_keys(shapes.m, shapes.n, shapes.k, shapes.batch)


def _join(parts: list[Points]) -> Points:
    return Points(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("features", "ideal", "time", "latency", "variant", "group", "keys")
        )
    )


def fit_points(points: Points, kind: str, dtype: str, place: str, seed: int = 0) -> EfficiencyModel:
    """Fit one model to points.

    place   accelerator name, '*ARCHITECTURE' or '*'
    """
    low, high = points.features.min(axis=0), points.features.max(axis=0)
    mean, spread = points.features.mean(axis=0), points.features.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    z = (points.features - mean) / scale
    y, weight = points.y, points.weight
    base = _base_variant(points.variant)
    offsets: dict[str, float] = {}
    mask = points.variant == base
    for name in np.unique(points.variant):
        offsets[str(name)] = 0.0
    if len(y) >= NETWORK_POINTS:
        degree = 1
        weights, biases = _network(z[mask], y[mask], weight[mask], seed)
    else:
        degree = 2 if mask.sum() >= QUADRATIC_POINTS else 1
        weights, biases = _ridge(z[mask], y[mask], weight[mask], degree)
    model = EfficiencyModel(
        kind=kind,
        dtype=dtype,
        accelerator=place,
        latency=float(np.median(points.latency)),
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
    )
    for name in offsets:
        other = (points.variant == name) & ~mask
        if other.any():
            residual = y[other] - model.inefficiency(points.features[other])
            offsets[name] = float(np.average(residual, weights=weight[other]))
    return model


def _base_variant(names: np.ndarray) -> str:
    """The variant with most points; the others get an offset from it."""
    values, counts = np.unique(names.astype(str), return_counts=True)
    return str(values[np.argmax(counts)])


def _ridge(
    z: np.ndarray, y: np.ndarray, weight: np.ndarray, degree: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Ridge regression on features (and their products), strength by leave-one-out."""
    rows, cols = np.triu_indices(z.shape[1])
    expanded = np.concatenate([z, z[:, rows] * z[:, cols]], axis=1) if degree == 2 else z
    center, spread = expanded.mean(axis=0), expanded.std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    # Leave-one-out needs points to leave out; fewer get a fixed, firm pull toward the mean.
    estimator = RidgeCV(np.logspace(-2, 4, 13)) if len(y) >= 12 else Ridge(alpha=3.0)
    estimator.fit((expanded - center) / spread, y, sample_weight=weight)
    coefficient = estimator.coef_ / spread
    bias = estimator.intercept_ - coefficient @ center
    return (coefficient[:, None],), (np.array([bias]),)


def _network(
    z: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """A multilayer perceptron, two hidden layers of rectifiers; learning rate lowered in steps."""
    estimator = MLPRegressor(
        hidden_layer_sizes=(48, 48),
        alpha=1e-5,
        batch_size=256,
        max_iter=1,
        warm_start=True,
        random_state=seed,
    )
    center = float(np.average(y, weights=weight))
    epochs = int(np.clip(3e6 / len(y), 40, 200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for rate, share in ((4e-3, 0.5), (1e-3, 0.3), (2e-4, 0.2)):
            estimator.set_params(
                learning_rate_init=rate,
                max_iter=max(int(epochs * share), 1),
                n_iter_no_change=10_000,
            )
            estimator.fit(z, y - center, sample_weight=weight)
    biases = [bias.copy() for bias in estimator.intercepts_]
    biases[-1] = biases[-1] + center
    return tuple(estimator.coefs_), tuple(biases)


def predict_points(model: EfficiencyModel, points: Points) -> np.ndarray:
    """Times that a model answers for points [s], with each point's own latency where it has one."""
    offset = np.array([model.offsets.get(str(name), 0.0) for name in points.variant])
    y = np.maximum(model.inefficiency(points.features) + offset, 0.0)
    return np.asarray(model.latency + points.ideal * np.exp(y))


def errors(predicted: np.ndarray, measured: np.ndarray) -> HeldOut:
    """Absolute relative errors and log bias of predictions."""
    ratio = np.log(predicted / measured)
    share = np.abs(np.expm1(ratio))
    return HeldOut(float(share.mean()), float(np.median(share)), float(ratio.mean()), len(measured))


def _spread(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Log-standard-deviation whose central 80 % covers 80 % of the errors."""
    return float(np.quantile(np.abs(np.log(predicted / measured)), 0.8) / 1.2816)


def _folds(points: Points, count: int = 5) -> np.ndarray:
    """A fold for every distinct shape, the same for all its rows."""
    _, codes = np.unique(points.keys, return_inverse=True)
    order = np.random.default_rng(0).permutation(codes.max() + 1)
    return order[codes] % count


def fit_checked(
    points: Points, kind: str, dtype: str, place: str
) -> tuple[EfficiencyModel, HeldOut]:
    """Fit on all points; error and spread from fits without a fifth of the shapes (of small
    tables each fifth in turn, of large ones the first)."""
    fold = _folds(points)
    folds = np.unique(fold) if len(fold) < SMALL_TABLE else np.array([0])
    predicted, measured = [], []
    for out in (fold == number for number in folds):
        if (~out).sum() >= 3:
            trial = fit_points(points.take(np.flatnonzero(~out)), kind, dtype, place)
            test = points.take(np.flatnonzero(out))
            predicted.append(predict_points(trial, test))
            measured.append(test.time)
    if measured:
        guess, truth = np.concatenate(predicted), np.concatenate(measured)
        found, sigma = errors(guess, truth), _spread(guess, truth)
    else:
        found, sigma = HeldOut(float("nan"), float("nan"), float("nan"), 0), 0.3
    model = fit_points(points, kind, dtype, place)
    return replace(model, sigma=max(sigma, 0.01)), found


def _sample(points: Points, limit: int) -> Points:
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


def _split(table: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Parts of a kernel table that are fitted together: (kind, op, dtype, rows)."""
    table = table.assign(kind=kinds(table), layout=variants(table).where(table["op"] == "gemm", ""))
    table = table[table["kind"] != ""]
    for (kind, op, dtype), rows in table.groupby(["kind", "op", "dtype"], observed=True):
        yield str(kind), str(op), str(dtype), rows
    for (op, dtype), rows in table[table["op"].isin(STREAMING)].groupby(["op", "dtype"]):
        if rows["kind"].nunique() > 1:
            yield str(op), str(op), str(dtype), rows


def fit_kernels(
    table: pd.DataFrame,
    known: Mapping[str, Accelerator] | None = None,
    pool: bool = True,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> KernelFit:
    """Fit every kind of operator in a checked kernel table.

    table     rows of `predictor.schema`
    known     accelerators by name; those not given are looked up in the catalog
    pool      also fit over architectures and over everything, and measure what that is worth on
              each accelerator when it is left out
    jobs      processes
    progress  called with a line of text as the work advances
    """
    accelerators = {
        str(name): (known or {}).get(str(name)) or catalog.accelerator(str(name))
        for name in table["accelerator"].unique()
    }
    result = KernelFit()
    parts: dict[tuple[str, str], dict[str, Points]] = {}
    for kind, op, dtype, rows in _split(_merge_dtypes(table, accelerators)):
        for name, own in rows.groupby("accelerator", observed=True):
            points = points_of(own, accelerators[str(name)], op, dtype)
            if len(points.time) >= LEAST_POINTS:
                parts.setdefault((kind, dtype), {})[str(name)] = points

    run = Parallel(n_jobs=jobs)
    single = [(key, name, p) for key, group in parts.items() for name, p in group.items()]
    progress(f"{len(single)} fits of single accelerators")
    fitted = run(delayed(fit_checked)(p, *key, name) for key, name, p in single)
    for (key, name, _), (model, found) in zip(single, fitted, strict=True):
        result.models[(*key, name)], result.heldout[(*key, name)] = model, found
    if pool:
        _fit_pools(result, parts, accelerators, run, progress)
        derive_backward(result)
        derive_layouts(result)
    return result


def _fit_pools(
    result: KernelFit,
    parts: Mapping[tuple[str, str], Mapping[str, Points]],
    accelerators: Mapping[str, Accelerator],
    run: Parallel,
    progress: Callable[[str], None],
) -> None:
    """Add the models pooled over architectures and over everything to `result`."""
    pools: list[tuple[tuple[str, str], str, list[str]]] = []
    for key, group in parts.items():
        architectures: dict[str, list[str]] = {}
        for name in group:
            architectures.setdefault(accelerators[name].architecture, []).append(name)
        pools += [(key, f"{ANY}{arch}", names) for arch, names in architectures.items()]
        pools.append((key, ANY, list(group)))
    joint = [pool for pool in pools if len(pool[2]) > 1]
    progress(f"{len(joint)} pooled fits")
    fitted = run(
        delayed(fit_checked)(_join_sample(parts[key], names), *key, place)
        for key, place, names in joint
    )
    models = {
        (key, place): model for (key, place, _), (model, _) in zip(joint, fitted, strict=True)
    }
    for key, place, names in pools:
        model = models.get((key, place), result.models[(*key, names[0])])
        result.models[(*key, place)] = replace(model, accelerator=place, keys=np.empty(0))

    left_out = [(key, name) for key, group in parts.items() if len(group) > 1 for name in group]
    progress(f"{len(left_out)} fits with an accelerator left out")
    trials = run(
        delayed(fit_points)(
            _join_sample(parts[key], [other for other in parts[key] if other != name]), *key, ANY
        )
        for key, name in left_out
    )
    spreads: dict[str, list[float]] = {}
    for (key, name), trial in zip(left_out, trials, strict=True):
        points = parts[key][name]
        predicted = predict_points(trial, points)
        result.transfer[(*key, name)] = errors(predicted, points.time)
        spreads.setdefault(key[0].split(".")[0], []).append(_spread(predicted, points.time))
    for kind, values in spreads.items():
        result.transfer_sigma[kind] = float(np.sqrt(np.mean(np.square(values))))


def _join_sample(group: Mapping[str, Points], names: list[str]) -> Points:
    return _sample(_join([group[name] for name in names]), POOL_POINTS)


def _merge_dtypes(table: pd.DataFrame, known: Mapping[str, Accelerator]) -> pd.DataFrame:
    """On GPUs fp16 and bf16 products run alike, and memory-bound kernels in any type do; hosts
    compute in both cases, so their types stay apart."""
    gpu = ~table["accelerator"].map(lambda name: known[name].is_host).astype(bool)
    merged = table["dtype"].where(~(gpu & (table["dtype"] == "fp16")), "bf16")
    streaming = gpu & table["op"].isin(STREAMING)
    return table.assign(dtype=merged.where(~streaming, ANY))


def derive_backward(result: KernelFit) -> None:
    """Give the backward pass of attention to every kernel and place with a forward pass alone.

    Where both are known, the backward pass is slower than 2.5 forward passes by the mean
    difference of y; that difference shifts the other forward models.
    """
    name, other_name = "attention_prefill", "attention_backward"
    forward = {k: m for k, m in result.models.items() if k[0].startswith(name)}
    both = [
        (model, result.models[(key[0].replace(name, other_name), *key[1:])])
        for key, model in forward.items()
        if (key[0].replace(name, other_name), *key[1:]) in result.models
        and not key[2].startswith(ANY)
    ]
    if not both:
        return
    gaps = [
        float(other.inefficiency(model.mean[None])[0] - model.inefficiency(model.mean[None])[0])
        for model, other in both
    ]
    shift = float(np.mean(gaps))
    measured = {model.accelerator for _, model in both}
    for (kind, dtype, place), model in forward.items():
        key = (kind.replace(name, other_name), dtype, place)
        if key in result.models and place in measured:
            continue
        result.models[key] = replace(
            model,
            kind=key[0],
            latency=2 * model.latency,
            offsets={variant: shift + own for variant, own in model.offsets.items()},
            sigma=max(model.sigma, 0.15),
            keys=np.empty(0),
        )


def derive_layouts(result: KernelFit) -> None:
    """Give the layouts of the backward products to accelerators on which only the forward layout
    was measured: the mean difference of y between layouts within the accelerators that have all.
    """
    for kind in ("gemm", "bmm"):
        own = [
            model
            for key, model in result.models.items()
            if key[0] == kind and not key[2].startswith(ANY) and len(model.offsets) > 1
        ]
        if not own:
            continue
        forward = "fwd" if kind == "gemm" else "bmm"
        steps: dict[str, list[float]] = {}
        for model in own:
            for name, offset in model.offsets.items():
                steps.setdefault(name, []).append(offset - model.offsets.get(forward, 0.0))
        typical = {name: float(np.mean(values)) for name, values in steps.items()}
        for key, model in result.models.items():
            if key[0] == kind and (key[2].startswith(ANY) or len(model.offsets) == 1):
                base = model.offsets.get(forward, 0.0)
                offsets = {name: base + step for name, step in typical.items()}
                result.models[key] = replace(model, offsets=offsets)
