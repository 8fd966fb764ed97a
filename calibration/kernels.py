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
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.neural_network import MLPRegressor

from calibration.fewshot import FewShot, few_shot_trial
from calibration.libraries import neutral, typical
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

MOST_POINTS = 32_000
"""A fit takes at most this many points; a pooled one spreads them evenly over accelerators."""

TRAINED_POINTS = 2.0e6
"""Points that a network sees in all its epochs."""

LEAST_POINTS = 4
"""Kinds with fewer points on an accelerator are not fitted there."""

LONGEST_LAUNCH = 50e-6
"""What takes longer than this is at work, not being launched [s]."""

FEW_SHOT_KINDS = ("gemm", "attention_prefill", "attention_decode")
"""Kinds on which bending to a few points is tried out."""

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
    transfer_coverage: dict[str, float] = field(default_factory=dict)
    fewshot: dict[tuple[str, str, str], FewShot] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measured points of one kind and data type, on one or several accelerators.

    features (N, F); ideal, time, latency [s]; variant names; group: accelerator of each point;
    library: log constant of the kernel library that took `time`, 0 for the neutral one
    """

    features: np.ndarray
    ideal: np.ndarray
    time: np.ndarray
    latency: np.ndarray
    variant: np.ndarray
    group: np.ndarray
    keys: np.ndarray
    library: np.ndarray

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


POINT_FIELDS = tuple(item.name for item in fields(Points))


def latency_of(time: np.ndarray, ideal_time: np.ndarray, default: float) -> float:
    """Time of an empty kernel [s]: nine tenths of the fastest hundredth of the short kernels whose
    ideal time is less than a tenth of what they took; `default` where there are no such."""
    small = time[(ideal_time < 0.1 * time) & (time < LONGEST_LAUNCH)]
    if len(small) < 5:
        return min(default, 0.5 * float(time.min()))
    return float(0.9 * np.quantile(small, 0.01))


def points_of(
    table: pd.DataFrame,
    accelerator: Accelerator,
    op: str,
    dtype: str,
    stacks: Mapping[str, float] | None = None,
) -> Points:
    """Rows of one kind and data type on one accelerator as points to fit.

    stacks   log constant of each kernel library, where the rows name theirs
    """
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
        table["framework"].map(stacks or {}).fillna(0.0).to_numpy(float),
    )
    return everything.take(np.flatnonzero(sound))


def _keys(shapes: Shapes) -> np.ndarray:
    return shape_keys(shapes.m, shapes.n, shapes.k, shapes.batch)


def _join(parts: list[Points]) -> Points:
    return Points(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in POINT_FIELDS)
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
    """A multilayer perceptron of rectifiers; learning rate lowered in steps."""
    estimator = MLPRegressor(
        hidden_layer_sizes=(64, 64, 64),
        alpha=1e-5,
        batch_size=512,
        max_iter=1,
        warm_start=True,
        random_state=seed,
    )
    center = float(np.average(y, weights=weight))
    epochs = int(np.clip(TRAINED_POINTS / len(y), 40, 200))
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
    """Times that a model answers for points [s], each in its own kernel library."""
    offset = np.array([model.offsets.get(str(name), 0.0) for name in points.variant])
    y = np.maximum(model.inefficiency(points.features) + offset, 0.0)
    return np.asarray((model.latency + points.ideal * np.exp(y)) * np.exp(points.library))


def errors(predicted: np.ndarray, measured: np.ndarray) -> HeldOut:
    """Absolute relative errors and log bias of predictions."""
    ratio = np.log(predicted / measured)
    share = np.abs(np.expm1(ratio))
    return HeldOut(float(share.mean()), float(np.median(share)), float(ratio.mean()), len(measured))


def _spread(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Log-standard-deviation whose central 80 % covers 80 % of the errors."""
    return float(np.quantile(np.abs(np.log(predicted / measured)), 0.8) / Z80)


def _folds(points: Points, count: int = 5, like: Points | None = None) -> np.ndarray:
    """A fold for every distinct shape, the same for all its rows, and for the same shape of
    `like`."""
    distinct = np.unique((points if like is None else like).keys)
    order = np.random.default_rng(0).permutation(len(distinct))
    at = np.minimum(np.searchsorted(distinct, points.keys), len(distinct) - 1)
    return np.where(distinct[at] == points.keys, order[at] % count, -1)


def fit_checked(
    points: Points, kind: str, dtype: str, place: str, rows: Points | None = None
) -> tuple[EfficiencyModel, HeldOut]:
    """Fit on all points; error and spread from fits without a fifth of the shapes (of small
    tables each fifth in turn, of large ones the first).

    points  neutral times, to fit
    rows    the measurements behind them, to predict; the points themselves if not given
    """
    rows = points if rows is None else rows
    fold, own = _folds(points), _folds(rows, like=points)
    folds = np.unique(fold) if len(fold) < SMALL_TABLE else np.array([0])
    predicted, measured = [], []
    for number in folds:
        out = fold == number
        if (~out).sum() >= 3:
            trial = fit_points(points.take(np.flatnonzero(~out)), kind, dtype, place)
            test = rows.take(np.flatnonzero(own == number))
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
    parts: dict[tuple[str, str], dict[str, Part]] = {}
    for kind, op, dtype, rows in _split(_merge_dtypes(table, accelerators)):
        tables = {str(name): own for name, own in rows.groupby("accelerator", observed=True)}
        usual = typical(tables)
        for name, own in tables.items():
            part = _part(own, accelerators[name], op, dtype, usual)
            if len(part.points.time) >= LEAST_POINTS:
                parts.setdefault((kind, dtype), {})[name] = part

    run = Parallel(n_jobs=jobs)
    single = [(key, name, p) for key, group in parts.items() for name, p in group.items()]
    progress(f"{len(single)} fits of single accelerators")
    fitted = run(delayed(fit_checked)(p.points, *key, name, p.rows) for key, name, p in single)
    for (key, name, part), (model, found) in zip(single, fitted, strict=True):
        result.models[(*key, name)] = replace(model, stacks=part.stacks)
        result.heldout[(*key, name)] = found
    if pool:
        _fit_pools(result, parts, accelerators, run, progress)
        derive_backward(result)
        derive_layouts(result)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One kind and data type on one accelerator: neutral points to fit, measured rows to predict,
    the log constant of each kernel library."""

    points: Points
    rows: Points
    stacks: dict[str, float]
    usual: dict[str, float]


def _part(
    rows: pd.DataFrame, accelerator: Accelerator, op: str, dtype: str, usual: dict[str, float]
) -> Part:
    plain, stacks = neutral(rows, usual)
    points = points_of(plain, accelerator, op, dtype)
    if len(points.time) > MOST_POINTS:
        chosen = np.random.default_rng(0).permutation(len(points.time))[:MOST_POINTS]
        points = points.take(np.sort(chosen))
    measured = points_of(rows, accelerator, op, dtype, stacks)
    return Part(points, measured, stacks, usual)


def _fit_pools(
    result: KernelFit,
    parts: Mapping[tuple[str, str], Mapping[str, Part]],
    accelerators: Mapping[str, Accelerator],
    run: Parallel,
    progress: Callable[[str], None],
) -> None:
    """Add the models pooled over architectures and over everything to `result`, and what they are
    worth on each accelerator that is left out of them."""
    pools: list[tuple[tuple[str, str], str, list[str]]] = []
    trials: list[tuple[tuple[str, str], str, str, list[str]]] = []
    for key, group in parts.items():
        architectures: dict[str, list[str]] = {}
        for name in group:
            architectures.setdefault(accelerators[name].architecture, []).append(name)
        pools += [(key, f"{ANY}{arch}", names) for arch, names in architectures.items()]
        pools.append((key, ANY, list(group)))
        for name in group:
            near = [n for n in architectures[accelerators[name].architecture] if n != name]
            if len(group) > 1:
                place = f"{ANY}{accelerators[name].architecture}" if near else ANY
                trials.append((key, name, place, near or [n for n in group if n != name]))

    def usual(key: tuple[str, str], names: list[str]) -> dict[str, float]:
        return parts[key][names[0]].usual

    def years(names: list[str]) -> float:
        return float(np.mean([accelerators[name].year for name in names]))

    joint = [pool for pool in pools if len(pool[2]) > 1]
    progress(f"{len(joint)} pooled fits")
    fitted = run(
        delayed(fit_points)(_join_sample(parts[key], names), *key, place)
        for key, place, names in joint
    )
    models = {(key, place): model for (key, place, _), model in zip(joint, fitted, strict=True)}
    for key, place, names in pools:
        model = models.get((key, place), result.models[(*key, names[0])])
        year = years(names) if place == ANY else np.nan
        result.models[(*key, place)] = replace(
            model, accelerator=place, keys=np.empty(0), stacks=usual(key, names), year=year
        )

    progress(f"{len(trials)} fits with an accelerator left out")
    left = run(
        delayed(fit_points)(_join_sample(parts[key], names), *key, place)
        for key, _, place, names in trials
    )
    ratios: dict[str, dict[str, np.ndarray]] = {}
    for (key, name, place, names), trial in zip(trials, left, strict=True):
        part = parts[key][name]
        year = years(names) if place == ANY else np.nan
        base = replace(trial, accelerator=place, year=year, stacks=part.usual)
        own = replace(base, latency=float(base.latency_on(accelerators[name])), year=np.nan)
        rows = replace(part.rows, library=_library_of(part, base))
        predicted = predict_points(own, rows)
        result.transfer[(*key, name)] = errors(predicted, rows.time)
        kind = key[0].split(".")[0] + ("" if place == ANY else "/architecture")
        ratios.setdefault(kind, {})["/".join((*key, name))] = np.abs(np.log(predicted / rows.time))
        if key[0] in FEW_SHOT_KINDS and len(part.points.time) > SMALL_TABLE:
            result.fewshot[(*key, name)] = few_shot_trial(
                own, result.models[(*key, name)], part.points, predict_points
            )
    for kind, groups in ratios.items():
        result.transfer_sigma[kind] = _balanced_quantile(list(groups.values())) / Z80
        if len(groups) > 2:
            # What an interval fitted to the other accelerators covers of each.
            covered = []
            for name in groups:
                rest = [values for other, values in groups.items() if other != name]
                covered.append(float(np.mean(groups[name] <= _balanced_quantile(rest))))
            result.transfer_coverage[kind] = float(np.mean(covered))


Z80 = 1.2816
"""Of a normal distribution, 80 % lies within this many standard deviations."""


def _balanced_quantile(groups: list[np.ndarray]) -> float:
    """80 % quantile over groups that count alike."""
    spread = [np.quantile(values, np.linspace(0.005, 0.995, 100)) for values in groups]
    return float(np.quantile(np.concatenate(spread), 0.8))


def _library_of(part: Part, base: EfficiencyModel) -> np.ndarray:
    """Constants of the rows' libraries as they hold elsewhere."""
    elsewhere = {own: base.stacks.get(name, 0.0) for name, own in part.stacks.items()}
    return np.array([elsewhere.get(value, 0.0) for value in part.rows.library])


def _join_sample(group: Mapping[str, Part], names: list[str]) -> Points:
    return _sample(_join([group[name].points for name in names]), MOST_POINTS)


def _merge_dtypes(table: pd.DataFrame, known: Mapping[str, Accelerator]) -> pd.DataFrame:
    """On GPUs fp16 and bf16 products run alike, and memory-bound kernels in any type do; hosts
    compute in both cases, so their types stay apart."""
    hosts = {name for name, device in known.items() if device.is_host}
    gpu = ~table["accelerator"].isin(hosts)
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
