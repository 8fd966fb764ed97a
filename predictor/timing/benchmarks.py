"""What is left of one's own benchmarks of serving when their engine has been learned: a Gaussian
process over load, lengths and split, of each metric and a little of all together.

    K_ij = common² + metric² [m_i = m_j]
         + (near² [m_i = m_j] + across²) exp(-1/2 sum_d (z_id - z_jd)² / length_d²)
         + [i = j] noise_i²

in logs of measured over predicted time (Rasmussen and Williams 2006, eq. 2.23), among benchmarks of
one engine, accelerator and checkpoint: a model, and which of its matrices are how narrow. Where
several checkpoints were measured, it is about the checkpoint's own level. What its parameters are
is learned from published benchmarks (`calibration.serving.process`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.records import dataclass

SIZES = ("batch", "input_len", "output_len", "tp")
"""Sizes of a benchmark over which the process goes, their log2."""

MOST_SIZE = 65536.0
"""Offline runs have any number of requests: this many."""


NOISE, QUEUED = 0.08, 0.3
"""Log error of a benchmark beside what its engine explains; of first tokens, which wait for as much
of a queue as chance has it."""

FIRST = "ttft"
LOUDER = {FIRST: QUEUED / NOISE}
"""How many times the process's noise a metric has."""


@dataclass(frozen=True, slots=True)
class Process:
    """Log-standard-deviations of the process; `lengths` by size, in octaves; `most` is a correction
    that is hardly exceeded; `source` says where all this is from."""

    common: float
    metric: float
    near: float
    across: float
    lengths: Mapping[str, float]
    noise: float
    most: float
    source: str = ""

    def covariance(
        self, one: Array, metrics: npt.NDArray[np.str_], other: Array, theirs: npt.NDArray[np.str_]
    ) -> Array:
        """Covariance of benchmarks by their sizes, (N, D) and (M, D), and metrics: (N, M)."""
        scale = np.array([self.lengths[name] for name in SIZES])
        away = ((one[:, None, :] - other[None, :, :]) / scale) ** 2
        close = np.exp(-0.5 * away.sum(-1))
        same = metrics[:, None] == theirs[None, :]
        return np.asarray(
            self.common**2 + self.metric**2 * same + (self.near**2 * same + self.across**2) * close
        )


@dataclass(frozen=True, slots=True, eq=False)
class Benchmarks:
    """One's own benchmarks.

    keys      `key_of` each
    metrics   'ttft', 'tpot', 'e2e' or 'throughput'
    sizes     `sizes` of each, (k, D)
    residual  log of measured over predicted time, of a throughput of predicted over measured, (k,)
    levels    by key, of those that have one of their own: log of the factor on its times, but for
              first tokens, which other kernels make
    """

    process: Process
    keys: Sequence[str]
    metrics: Sequence[str]
    sizes: Array
    residual: Array
    levels: Mapping[str, float] = field(default_factory=dict)

    def correction(self, key: str, metric: str | npt.NDArray[np.str_], sizes: Array) -> Array:
        """Log of the factor on the time of others of a key in a metric, (*batch); 0 where nothing
        of the key was measured.

        metric  one, or that of each
        sizes   (*batch, D)
        """
        known = np.array([own == key for own in self.keys], bool)
        shape = sizes.shape[:-1]
        if not known.any():
            return np.zeros(shape)
        metrics, own = np.array(self.metrics)[known], self.sizes[known]
        of = self.process
        noise = of.noise * np.array([LOUDER.get(name, 1.0) for name in metrics])
        inside = of.covariance(own, metrics, own, metrics) + np.diag(noise**2)
        flat = sizes.reshape(-1, sizes.shape[-1])
        asked = np.broadcast_to(np.asarray(metric), shape).ravel()
        across = of.covariance(flat, asked, own, metrics)
        level = self.levels.get(key, 0.0)
        left = self.residual[known] - level * (metrics != FIRST)
        told = across @ np.linalg.solve(inside, left)
        found = level * (asked != FIRST) + of.most * np.tanh(told / of.most)
        return np.asarray(found).reshape(shape)


def sizes_of(batch: Numeric, input_len: Numeric, output_len: Numeric, tp: Numeric) -> Array:
    """Sizes of benchmarks, (*batch, D)."""
    columns = np.broadcast_arrays(batch, input_len, output_len, tp)
    table = np.stack([np.asarray(column, float) for column in columns], axis=-1)
    return np.asarray(np.log2(np.clip(table, 1.0, MOST_SIZE)))


def key_of(engine: str, model: str, accelerator: str, weights: str, narrowed: str) -> str:
    """What benchmarks share that tell of each other.

    weights    data type of those that are narrow
    narrowed   which are (`ServingPlan.narrowed`)
    """
    return f"{engine} {model} {accelerator} {weights} {narrowed}"
