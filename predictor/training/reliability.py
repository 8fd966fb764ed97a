"""The run, not only the step: what failures and checkpoints take of it.

Interruptions strike at random, each accelerator alike, so that a job of n is interrupted n times as
often. A checkpoint costs its write; an interruption costs the restart and, on average, half of what
was done since the last checkpoint, again and again where the restart fails too.

Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart
dumps" (equations 13, 20 and 37).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """How often jobs are interrupted, and how they save and come back; floats or arrays.

    mtbf       of one accelerator with its share of host, network and software [s]
    sigma      log-standard-deviation of it, from one fleet to another
    restart    from an interruption until steps run again, without reading the checkpoint [s]
    storage    rate at which one accelerator's part of a checkpoint is written or read [bytes/s]
    blocking   share of the write during which training waits
    interval   work between checkpoints [s]; NaN: the best
    """

    mtbf: Numeric
    sigma: Numeric
    restart: Numeric
    storage: Numeric
    blocking: Numeric = 1.0
    interval: Numeric = np.nan


@dataclass(frozen=True, slots=True, eq=False)
class Goodput:
    """What failures and checkpoints make of a run; arrays of one shape.

    share          of the time that is spent on steps that last, 0..1; low and high at the spread
                   of the reliability, `q` log-standard-deviations each way
    mtbf           of the job [s]
    checkpoint     size of one [bytes]
    write          of one, training waits or not [s]
    interval       work between two [s]
    """

    share: Array
    low: Array
    high: Array
    mtbf: Array
    checkpoint: Array
    write: Array
    interval: Array


def checkpoint_bytes(model: Model, plan: TrainingPlan) -> Array:
    """Weights and optimizer states of what is trained, once [bytes].

    14 bytes per parameter with mixed-precision Adam. Frozen weights are not saved again; their
    adapters are taken as nothing beside them.
    """
    trained = 0.0 if plan.frozen else float(model.parameters)
    return np.asarray(trained * (plan.weight_bytes + plan.optimizer_bytes), float)


def best_interval(write: Numeric, mtbf: Numeric) -> Array:
    """Work between checkpoints that loses least [s]: Daly 2006, equation 37.

    write, mtbf   time that a checkpoint takes of training, mean time between interruptions [s]

    sqrt(2 write mtbf) (Young 1974) with two more terms, less the write; the mtbf where writes take
    more than twice that.
    """
    ratio = np.asarray(write / (2.0 * mtbf), float)
    root = np.sqrt(2.0 * write * mtbf) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - write
    return np.asarray(np.where(ratio < 1.0, root, mtbf))


def useful_share(interval: Numeric, write: Numeric, restart: Numeric, mtbf: Numeric) -> Array:
    """Share of the time that makes progress, 0..1: Daly 2006, equation 20, exponential failures.

    work / (mtbf e^(restart / mtbf) (e^((interval + write) / mtbf) - 1)), the work of one interval
    over the time that it takes on average.
    """
    # Beyond e^300 nothing ever ends; the product of both stays below what a float holds.
    wait = np.minimum(restart / mtbf, 300.0)
    cycle = np.minimum((interval + write) / mtbf, 300.0)
    return np.asarray(interval / (mtbf * np.exp(wait) * np.maximum(np.expm1(cycle), 1e-300)))


def goodput(
    model: Model, plan: TrainingPlan, reliability: Reliability, q: Numeric = 1.0
) -> Goodput:
    """What failures and checkpoints make of a run of a plan, or of every plan of a batch.

    q   log-standard-deviations of the reliability to `low` and `high`

    Where training does not wait for the whole write, the checkpoint counts only once it is written:
    that much more work is lost. The interval is not shorter than the write.
    """
    gpus = plan.gpus
    saved = checkpoint_bytes(model, plan)
    write = saved / (reliability.storage * gpus)
    wait = reliability.blocking * write
    mtbf = reliability.mtbf / gpus
    chosen = np.where(
        np.isnan(reliability.interval), best_interval(wait, mtbf), reliability.interval
    )
    # Nothing to write (adapters): saved whenever it pays to read a clock.
    interval = np.maximum(np.maximum(chosen, write - wait), 1.0)
    back = reliability.restart + write + (write - wait)
    spread = np.exp(q * np.asarray(reliability.sigma))
    shares = [useful_share(interval, wait, back, mtbf * by) for by in (1.0, 1.0 / spread, spread)]
    shape = np.broadcast_shapes(shares[0].shape, np.shape(gpus))
    values = (*shares, mtbf, saved, write, interval)
    return Goodput(*(np.broadcast_to(np.asarray(value, float), shape) for value in values))
