"""What has been learned: efficiencies of kernels and links, the parameters of a run and of engines.

A `Calibration` is plain numbers and arrays; `predictor/catalog/artifacts.py` reads it.

Kernel time = latency + ideal time / efficiency, where efficiency = exp(-y) and y >= 0 is what the
fitted model answers, so that no prediction beats the ceiling of `features.ideal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, in_blocks, rowwise
from predictor.hardware import (
    Accelerator,
    LinkModel,
    default_link,
    hop_beyond,
    link_class,
    link_family,
)
from predictor.records import dataclass
from predictor.timing.adaptation import Learned
from predictor.timing.data_types import STAND_IN, STOOD_IN, quicker, standing_in
from predictor.timing.defaults import ANY, DEFAULTS, PLAIN, Constant
from predictor.timing.engines import ServingParameters
from predictor.timing.kept import Kept
from predictor.timing.likeness import Kin, likeness, traits
from predictor.timing.run import RunParameters
from predictor.timing.shapes import ALONE
from predictor.units import Z80

VENDOR = f"{ANY}{ANY}"
"""Before a vendor's name: the place of the model of all its accelerators together."""

ABROAD = "+"
"""After a place: the model of the same points that stands for accelerators of other architectures,
where that is another than the one for those of its own."""

EMPTY_KERNEL, ITS_YEAR = 2.5e-6, 2020.0
"""Time of an empty kernel [s] on A100, and the year of that."""

LATENCY_TREND = 0.09
"""Fall of the log latency of an empty kernel per year: 2.5 us on A100 (2020), 1.65 on B200 (2024),
from CUDA graphs of the shared tables."""

UNLIKE = math.log(2.0)
"""Difference of the log of arithmetic over bandwidth from which on products of features that were
fitted to few accelerators run away on another: of MI308X's 80 processors alone, they had MI300X's
304 read 235 MB of weights at half of the pace from 8 rows on, and at all of it again from 9. Not
fitted: of fp8, any between 0.1 (MI350X by MI355X) and 1.2 (MI300X by MI308X) decides alike."""

POINTS_PER_FEATURE, POINTS_OF_SWEEP, SPARSE = 40, 20, 0.3
"""Points per feature below which a pooled model is one voice among relatives (half as many where
all features saturate), and how much it then counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """What measured points say of y nearby, beside the trend: the mean of a Gaussian process
    (Rasmussen & Williams 2006, eq. 2.25 and 4.9), sum over points j of pull_j times
    exp(-|z - z_j|^2 / (2 reach^2)), times `kinship` where j is of another variant.

    centres   standardised features of the points, (N, F)
    pull      of each, (N,)
    variants  names; `side` indexes them, (N,)
    reach     length over which points are alike, in standardised features
    """

    centres: Array
    pull: Array
    variants: tuple[str, ...]
    side: Array
    reach: float
    kinship: float

    def __call__(self, z: Array, variant: npt.NDArray[np.str_] | None = None) -> Array:
        """What they add to y at features z of kernels of those variants (None: of any),
        (M, F) -> (M,)."""
        products = rowwise(z, np.ascontiguousarray(self.centres.T))
        away = (z**2).sum(axis=1)[:, None] + (self.centres**2).sum(axis=1) - 2 * products
        near = np.exp(-0.5 * np.maximum(away, 0.0) / self.reach**2)
        if variant is not None and len(self.variants) > 1:
            own = np.array(self.variants)[self.side.astype(int)]
            near = near * np.where(variant[:, None] == own[None, :], 1.0, self.kinship)
        return rowwise(near, self.pull[:, None])[:, 0]


def points_of_pool(kind: str, features: int) -> int:
    """Points of a kind of kernel from which on a pool of them stands for its architecture alone."""
    alone = kind.partition(".")[2] in ALONE
    return (POINTS_OF_SWEEP if alone else POINTS_PER_FEATURE) * features


@lru_cache(maxsize=64)
def _pairs(features: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Positions of both factors of every product of two features."""
    return np.triu_indices(features)


@dataclass(frozen=True, slots=True, eq=False)
class EfficiencyModel:
    """Fitted efficiency of one kind of operator in one data type on one accelerator.

    A chain of affine maps with rectifiers between them on standardised features (clipped to the
    box `low`..`high` of the training points), after an optional expansion to all products of two.

    accelerator  its name, or '*ARCHITECTURE' for one pooled over those
    latency   time of an empty kernel [s]
    limit     y never exceeds this: the least efficient of the training points
    offsets   added to y for a variant (layout, direction) that shares the model
    sigma     log-standard-deviation of held-out residuals
    keys      hashes of the measured shapes, sorted; empty where not kept
    stacks    what each kernel library adds to the first biases; the neutral one (the geometric mean
              of all libraries) adds nothing
    year      mean year of the pooled accelerators; NaN where the latency is an accelerator's own
    tilt      constant and slopes on the standardised features by which few points bent y; empty
              where none did
    lags      added to the latency for a variant that shares the model [s]: on a CPU one may be a
              single kernel, another several
    near      what measured points add nearby; None where there are so many that the chain follows
              them by itself
    casts     what tables of a narrow data type's products add for narrowing their input [s], by
              kernel library, '' for the neutral one: what the smallest take over those in 16 bits
    kin       whose measurements a pooled model is of; None where an accelerator's own
    least     y never falls below this where arithmetic binds (the first feature of products and
              attention is above 0): the most efficient of the points of a pool of few
    """

    kind: str
    dtype: str
    accelerator: str
    latency: float
    limit: float
    degree: int
    sigma: float
    points: int
    offsets: Mapping[str, float]
    low: Array
    high: Array
    mean: Array
    scale: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    keys: Array
    stacks: Mapping[str, Array] = field(default_factory=dict)
    year: float = math.nan
    tilt: Array = field(default_factory=lambda: np.empty(0))
    lags: Mapping[str, float] = field(default_factory=dict)
    near: Neighbours | None = None
    casts: Mapping[str, float] = field(default_factory=dict)
    kin: Kin | None = None
    least: float = 0.0

    def inefficiency(
        self, features: Array, library: str = "", variant: npt.NDArray[np.str_] | None = None
    ) -> Array:
        """y = -log(efficiency) of each row of features, (N, F) -> (N,); within 0 and `limit`.

        library   the kernel library that runs them; one that is not known counts as neutral
        variant   of each row, (N,), which `near` tells apart
        """
        shift = self.stacks.get(library)
        z = self.standard(features)
        count, bend = len(z), np.zeros(len(z))
        if self.tilt.size:
            bend = self.tilt[0] + rowwise(z, self.tilt[1:, None])[:, 0]
        if self.near is not None:
            bend = bend + self.near(z, variant)
        z = in_blocks(z)
        if self.degree == 2:
            rows, cols = _pairs(z.shape[1])
            z = np.concatenate([z, z[:, rows] * z[:, cols]], axis=1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = rowwise(z, weight) + (bias if index or shift is None else bias + shift)
            if index + 1 < len(self.weights):
                z = np.maximum(z, 0.0)
        least = np.where(features[:, 0] > 0.0, self.least, 0.0) if self.least else 0.0
        return np.minimum(np.maximum(z[:count, 0] + bend, least), self.limit)

    def standard(self, features: Array) -> Array:
        """Features within the box, standardised, (N, F) -> (N, F)."""
        inside = np.minimum(np.maximum(features, self.low), self.high)
        return np.asarray((inside - self.mean) / self.scale)

    @property
    def sparse(self) -> bool:
        """Whether there are too few points to stand for an architecture alone."""
        return self.points < points_of_pool(self.kind, self.low.size)

    def latency_on(self, accelerator: Accelerator) -> Numeric:
        """Time of an empty kernel [s]: an accelerator's own, or the pool's carried over the years,
        by `LATENCY_TREND` at most 1.6 times up or down."""
        return np.asarray(self.latency * _over_years(accelerator.year - self.year))

    def reaches_beyond(self, other: EfficiencyModel) -> bool:
        """Whether its training box holds more than a standard deviation of the other's beyond the
        other's own."""
        if self.low.shape != other.low.shape:
            return False
        further = np.maximum(other.low - self.low, self.high - other.high)
        return bool(np.any(further > other.scale))

    def distance(self, features: Array) -> Array:
        """How far each row lies outside the training box, in standard deviations, (N, F) -> (N,)"""
        outside = np.maximum(self.low - features, features - self.high)
        return np.asarray(np.max(np.maximum(outside, 0.0) / self.scale, axis=1))


@dataclass(frozen=True, slots=True)
class Throttle:
    """Sustained clocks under a power cap: log slowdown = gamma * max(0, log(u / start)) of a
    kernel that reaches the share u of peak in short bursts, fading over `fade` seconds of kernel
    time (long kernels are throttled in the burst measurement already).

    start   holds for a device with `watts` per peak FLOP/s, and scales with that ratio
    """

    start: float
    gamma: float
    fade: float
    watts: float


@dataclass(frozen=True, slots=True)
class Resolved:
    """The efficiency that applies to a kind of operator on an accelerator, and how it is known.

    relative         of an accelerator's own model that was measured in part of the range only, the
                     model of its architecture that was measured further out; None if there is none
    relative_sigma   log-standard-deviation of that one
    relatives        where no accelerator of its architecture was measured, or hardly: models of
                     all, the most alike first, with their likeness
    quicker          where kernels in 16 bits stand for a narrower type's, how many times the peak
                     of these is theirs; 0 where a data type's own do, or a related one's
    """

    model: EfficiencyModel | None
    constant: Constant | None
    pedigree: str
    sigma: float
    relative: EfficiencyModel | None = None
    relative_sigma: float = 0.0
    relatives: tuple[tuple[EfficiencyModel, float], ...] = ()
    quicker: Numeric = 0.0

    def foreign(self, dtype: str) -> bool:
        """Whether kernels in a data type are known from other architectures alone, or from another
        type's. Those of an architecture's own were timed, whatever others might do."""
        stands_in = self.model is not None and self.model.dtype not in (dtype, ANY)
        return self.pedigree == "transferred" and (bool(self.relatives) or stands_in)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Everything fitted, with its provenance.

    own    what a handful of one's own training runs says of others; None where none were measured
    power  constants of power by accelerator and law (`data/power/laws.yaml`), of profiles that
           recorded power; they stand in place of those that ship
    """

    name: str
    kernels: Mapping[tuple[str, str, str], EfficiencyModel] = field(default_factory=dict)
    links: Mapping[tuple[str, str], LinkModel] = field(default_factory=dict)
    throttles: Mapping[str, Throttle] = field(default_factory=dict)
    run: RunParameters = field(default_factory=RunParameters)
    serving: ServingParameters = field(default_factory=ServingParameters)
    transfer_sigma: Mapping[str, float] = field(default_factory=dict)
    own: Learned | None = None
    power: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    interval_level: float = 0.8
    interval_q: float = Z80
    fitted_files: frozenset[str] = frozenset()
    fitted_points: frozenset[str] = frozenset()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    _kept: Kept = field(default_factory=Kept, init=False, repr=False)

    def __repr__(self) -> str:
        kernels, links = len(self.kernels), len(self.links)
        return f"<Calibration {self.name}: {kernels} kernel models, {links} links>"

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T], numbers: int = 0) -> T:
        """What `make` answers, kept for when the key is met again.

        numbers   in a large answer and its key, of which fewer are kept; 0 for a small one
        """
        return self._kept.once(key, make, numbers)

    def resolve(self, kind: str, dtype: str, accelerator: Accelerator) -> Resolved:
        """Find the efficiency for a kind of operator: this accelerator's own, else its
        architecture's, else those of the architectures most alike (its vendor's, if there are any,
        before those in 16 bits before others'), else the constant default.
        At each step the exact data type comes before a related one. A kernel by name
        ('attention_prefill.flash2') comes before its generic kind wherever one was measured on
        this architecture: kernels written for an older one do not gain what newer kernels do.
        """
        key = kind, dtype, accelerator.name, accelerator.architecture
        found = self.once(key, lambda: self._measured(*key))
        if found is not None:
            return _stood_in(self._in_balance(found, accelerator), dtype)
        kinds, dtypes = standing_in(kind, dtype)
        alike = () if accelerator.is_host else self._alike(kinds, dtypes, accelerator)
        kin = alike[0][0].kin if alike else None
        if kin is None or kin.vendor != accelerator.vendor:
            found = self._wide(kind, dtype, accelerator)
            if found is not None:
                return found
        if alike:
            sigma = max(alike[0][0].sigma, self.transfer(kinds[-1], False))
            return Resolved(alike[0][0], None, "transferred", sigma, relatives=alike)
        constant = DEFAULTS.get(kind, DEFAULTS.get(kinds[-1], DEFAULTS[ANY]))
        return Resolved(None, constant, "roofline", constant.sigma)

    def _in_balance(self, found: Resolved, accelerator: Accelerator) -> Resolved:
        """What few accelerators of an architecture say of one whose arithmetic is to its bandwidth
        as none of theirs: leaning on what is known of many (`ABROAD`)."""
        model = found.model
        if found.pedigree != "transferred" or model is None or model.kin is None:
            return found
        away = abs(traits(accelerator)[0] - model.kin.traits[0])
        leant = self.kernels.get((model.kind, model.dtype, f"{model.accelerator}{ABROAD}"))
        return found if leant is None or not away > UNLIKE else replace(found, model=leant)

    def plain(self, kind: str, dtype: str, accelerator: Accelerator) -> Resolved:
        """The same of kernels that wait for memory as PyTorch's own operators run them, where those
        were timed on anything; of a device that was profiled, what it took."""
        found = self.resolve(kind, dtype, accelerator)
        place = (found.model.kind, found.model.accelerator) if found.model else None
        if accelerator.is_host or place == (kind, accelerator.name):
            return found
        other = self.resolve(f"{kind}@{PLAIN}", dtype, accelerator)
        return found if other.model is None else other

    def _wide(self, kind: str, dtype: str, accelerator: Accelerator) -> Resolved | None:
        """What its vendor's kernels in 16 bits say of those in a narrower type, of which none of
        the vendor's was measured; None where nothing of either is known."""
        times = quicker(dtype, accelerator)
        if times is None or accelerator.is_host or not accelerator.vendor:
            return None
        half = self.resolve(kind, accelerator.wide, accelerator)
        kin = half.relatives[0][0].kin if half.relatives else None
        if half.model is None or (kin is not None and kin.vendor != accelerator.vendor):
            return None
        sigma = float(np.hypot(half.sigma, STAND_IN))
        return replace(half, pedigree="transferred", sigma=sigma, quicker=times)

    def _measured(self, kind: str, dtype: str, name: str, architecture: str) -> Resolved | None:
        """What was measured on an accelerator of that name, or on others of its architecture."""
        kinds, dtypes = standing_in(kind, dtype)
        own: EfficiencyModel | None = None
        near = (name, f"{ANY}{architecture}")
        for known, place in ((known, place) for known in kinds for place in near):
            for candidate in dtypes:
                model = self.kernels.get((known, candidate, place))
                if model is None:
                    continue
                if place == name:
                    own = own or model
                    continue
                sigma = max(model.sigma, self.transfer(kinds[-1], True))
                if own is None and not model.sparse:
                    return Resolved(model, None, "transferred", sigma)
                if own is None:
                    break  # too few to stand alone
                if model.kind == own.kind and model.reaches_beyond(own):
                    return Resolved(own, None, "interpolated", own.sigma, model, sigma)
        return None if own is None else Resolved(own, None, "interpolated", own.sigma)

    def _alike(
        self, kinds: tuple[str, ...], dtypes: tuple[str, ...], accelerator: Accelerator
    ) -> tuple[tuple[EfficiencyModel, float], ...]:
        """Models pooled over architectures with what each counts, the most alike first; of the
        accelerator's vendor, if there are any."""
        own = traits(accelerator)
        key = kinds, dtypes, accelerator.vendor, repr(own)
        return self.once(key, lambda: tuple(self._ranked(kinds, dtypes, accelerator.vendor, own)))

    def _ranked(
        self, kinds: tuple[str, ...], dtypes: tuple[str, ...], vendor: str, own: tuple[float, ...]
    ) -> list[tuple[EfficiencyModel, float]]:
        """The same of an accelerator of these traits. Of a vendor, a data type that was hardly
        measured gives way to a related one that was."""
        for theirs in (vendor, ""):
            every = [
                found
                for name in kinds
                for dtype in dtypes
                if (found := self._pooled(name, dtype, theirs, own))
            ]
            for found in every:
                if not all(model.sparse for model, _ in found):
                    return found
            if every:
                return every[0]
        return []

    def _pooled(
        self, kind: str, dtype: str, vendor: str, own: tuple[float, ...]
    ) -> list[tuple[EfficiencyModel, float]]:
        """Models of a kind and data type pooled over architectures of a vendor ('': of all), with
        their likeness to an accelerator of these traits, the most alike first. The model of all
        of the vendor's accelerators together has as much to say as these."""
        every: dict[tuple[str, str], list[str]] = self.once(("places",), self._places)
        places = every.get((kind, dtype), [])
        # What stands for other architectures stands in place of the pool of its own.
        pools = [
            self.kernels[kind, dtype, at]
            for at in places
            if not at.startswith(VENDOR) and f"{at}{ABROAD}" not in places
        ]
        found = [
            (one, likeness(own, one.kin.traits) * (SPARSE if one.sparse else 1.0))
            for one in pools
            if one.kin and (not vendor or one.kin.vendor == vendor)
        ]
        found.sort(key=lambda pair: -pair[1])
        together = self.kernels.get((kind, dtype, f"{VENDOR}{vendor}"))
        if found and together is not None:
            found.append((together, sum(weight for _, weight in found)))
        return found

    def _places(self) -> dict[tuple[str, str], list[str]]:
        """Where each kind and data type is pooled: architectures and vendors."""
        found: dict[tuple[str, str], list[str]] = {}
        for kind, dtype, at in self.kernels:
            if at.startswith(ANY):
                found.setdefault((kind, dtype), []).append(at)
        return found

    def sibling(
        self, model: EfficiencyModel, accelerator: Accelerator, library: str
    ) -> EfficiencyModel | None:
        """The model of an accelerator's architecture, or of that before or after its mid-life
        revision, that knows a library which its own model does not; None if there is none."""
        first = accelerator.architecture.removesuffix("-ultra")
        for place in dict.fromkeys((accelerator.architecture, first, f"{first}-ultra")):
            found = self.kernels.get((model.kind, model.dtype, f"{ANY}{place}"))
            if found is not None and library in found.stacks:
                return found
        return None

    def transfer(self, kind: str, near: bool) -> float:
        """Log-standard-deviation of models that serve an accelerator without data: relatives of its
        architecture (near), or all; of a calibration that left none out, a fifth."""
        far = self.transfer_sigma.get(kind, 0.2)
        return self.transfer_sigma.get(f"{kind}/architecture", far) if near else far

    def link(self, op: str, link: str) -> LinkModel:
        """Parameters of a collective on a link: its own, its family's, or the default. What is not
        known of one engine's kernel is that of all engines', or else of NCCL."""
        outer = op.rpartition(".")[0]
        either = (op, outer) if "." in outer else (op,)
        for name in (link, link_family(link), ANY + link_class(link)):
            for one in either:
                found = self.links.get((one, name))
                if found is not None:
                    return found.waiting_beyond(hop_beyond(link))
        return self.link(outer, link) if outer else default_link(op, link)


def _stood_in(found: Resolved, dtype: str) -> Resolved:
    """What was found, less certain where another data type's kernels stand for one's."""
    model = found.model
    if model is None or model.dtype == dtype or dtype not in STOOD_IN:
        return found
    return replace(found, pedigree="transferred", sigma=float(np.hypot(found.sigma, STAND_IN)))


def _over_years(years: Numeric) -> Array:
    """Factor on the time of an empty kernel after so many years; 1 where that is NaN."""
    known = np.where(np.isnan(years), 0.0, years)
    return np.asarray(np.clip(np.exp(-LATENCY_TREND * known), 1 / 1.6, 1.6))


def empty_kernel(year: Numeric) -> Array:
    """Time of an empty kernel on an accelerator of a year [s]."""
    return np.asarray(EMPTY_KERNEL * _over_years(np.asarray(year, float) - ITS_YEAR))


def shape_keys(m: Array, n: Array, k: Array, batch: Array) -> Array:
    """A number per shape that is equal for equal shapes, to look measured shapes up by."""
    mixed = np.zeros(np.shape(m))
    for column, weight in zip((m, n, k, batch), (1.0, math.pi, math.e, 7.3), strict=True):
        mixed = mixed + weight * np.sqrt(np.asarray(column, float) + 1.0)
    return np.round(mixed, 7)
