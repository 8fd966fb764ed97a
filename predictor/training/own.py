"""What a training run is compared by with one's own measured runs, and its correction by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.timing import HOSTS, Calibration, Learned, Prior, RunParameters, Traits
from predictor.training.decomposition import Parts
from predictor.training.exchange import Exchange
from predictor.training.software import Environment
from predictor.training.spread import interval
from predictor.training.step import Step, assemble

SLOPES = ("contention", "attention", "between", "recompute", "bubble")
"""Physical parameters by which runs are compared: slowdown beside communication, time of fused
attention, of communication between nodes, of recomputation, of the bubble. Kernels that stream
memory are none: their share stands for much that a run is (adapters, eager pipelines), and three
runs in which it differs taught other ones wrongly (AutoModel: 3.2 points worse than with none, 2.3
without it; no source is better with it)."""

SIZES = ("parameters", "tp", "seq_len", "pp", "micro_batch")
"""Sizes of a run over which the process goes, their log2."""

WORDS = ("accelerator", "precision", "moe", "plan")
"""Categories of a run; a plan is how it is laid out."""

LAYOUT = ("tp", "pp", "cp", "ep", "vpp", "micro_batch")

STEP = 0.02
"""By which the log of a parameter is moved to see what follows."""


def _between(found: Parts, factor: float) -> Parts:
    """Parts whose communication between nodes takes so many times as long."""

    def longer(one: Exchange) -> Exchange:
        crosses = one.domains > 1
        return replace(
            one,
            time=np.where(crosses, factor * one.time, one.time),
            flight=np.where(crosses, factor * one.flight, one.flight),
        )

    return replace(
        found,
        inside={key: longer(one) for key, one in found.inside.items()},
        between={key: longer(one) for key, one in found.between.items()},
        gradients={key: longer(one) for key, one in found.gradients.items()},
    )


def _stretched(run: RunParameters, name: str, factor: float) -> RunParameters:
    return replace(run, factors={**run.factors, name: factor * float(run.factors.get(name, 1.0))})


def slopes(found: Parts, run: RunParameters, using: Environment, step: Step) -> Array:
    """d log step time / d log parameter, (*batch, A) in the order of `SLOPES`.

    step   what `assemble` makes of the same
    """
    up = float(np.exp(STEP))
    moved = {
        "contention": (found, replace(run, contention=up * run.contention)),
        "attention": (found, _stretched(run, "attention", up)),
        "between": (_between(found, up), run),
    }
    columns = {
        name: np.log(assemble(parts, own, using).step_time / step.step_time) / STEP
        for name, (parts, own) in moved.items()
    }
    neutral = step.step_time / using.factor
    columns |= {name: step.breakdown[name] / neutral for name in ("recompute", "bubble")}
    return np.stack([columns[name] for name in SLOPES], axis=-1)


def hosts(found: Parts, run: RunParameters, using: Environment, step: Step) -> Array:
    """Log of the step time at every host cost of `HOSTS` over that at the calibration's,
    (*batch, G)."""
    columns = []
    for cost in HOSTS:
        if cost == 0.0:
            columns.append(np.zeros(np.shape(step.step_time)))
            continue
        own = replace(run, host_per_kernel=run.host_per_kernel * float(np.exp(cost)))
        columns.append(np.log(assemble(found, own, using).step_time / step.step_time))
    return np.stack(columns, axis=-1)


@dataclass(frozen=True, slots=True)
class Described:
    """Sizes and categories of runs, arrays of one shape or plain."""

    sizes: Array
    words: npt.NDArray[np.str_]


def describe(model: Model, cluster: Cluster, plan: TrainingPlan) -> Described:
    """Sizes and categories of a plan, or of every plan of a batch, flat: (N, D), (N, C)."""
    shape = plan.shape
    count = int(np.prod(shape))

    def flat(value: Numeric) -> Array:
        return np.broadcast_to(np.asarray(value, float), shape).ravel()

    numbers = {"parameters": float(model.parameters)}
    sizes = [np.log2(np.maximum(flat(numbers.get(n, getattr(plan, n, 1.0))), 1e-9)) for n in SIZES]
    layout = np.stack([flat(getattr(plan, name)) for name in LAYOUT], axis=1)
    rows, place = np.unique(layout, axis=0, return_inverse=True)
    told = np.array([f"{plan.sharding} " + " ".join(f"{v:g}" for v in row) for row in rows])
    words = np.empty((count, len(WORDS)), dtype=object)
    words[:, 0], words[:, 1] = cluster.accelerator.name, plan.precision
    words[:, 2], words[:, 3] = str(model.is_moe), told[place.ravel()]
    return Described(np.stack(sizes, axis=1), words.astype(str))


def traits(
    found: Parts,
    run: RunParameters,
    using: Environment,
    step: Step,
    described: Described,
    sigma: Array,
    waited: Array | None = None,
) -> Traits:
    """What runs are compared by, flat.

    described   their sizes and categories
    sigma       what kernels leave open of each
    waited      what each lost by waiting for processors that others used, over its own time; none
                if None
    """
    count = len(described.sizes)
    return Traits(
        slopes(found, run, using, step).reshape(count, -1),
        described.sizes,
        described.words,
        np.broadcast_to(sigma, np.shape(step.step_time)).ravel(),
        hosts(found, run, using, step).reshape(count, -1),
        np.zeros(count) if waited is None else waited,
    )


def corrected(
    learned: Learned,
    known: Traits,
    step: Step,
    using: Environment,
) -> tuple[Step, Environment, Array]:
    """A step as one's own runs say it is, with its log-standard-deviation.

    The correction is of the whole, and stands in the breakdown with the framework's own.
    """
    shape = np.shape(step.step_time)
    log, sigma = (value.reshape(shape) for value in learned.correction(known))
    factor = np.exp(log)
    more = (factor - 1.0) * step.step_time
    breakdown = {**step.breakdown, "framework": step.breakdown["framework"] + more}
    made = replace(step, step_time=np.asarray(step.step_time + more), breakdown=breakdown)
    return made, replace(using, factor=using.factor * factor), np.asarray(sigma)


def check_prior(prior: Prior) -> None:
    """Raise InputError where runs were taken in by other traits than these."""
    named = tuple(prior.slopes), tuple(prior.lengths), tuple(prior.alike)
    if named != (SLOPES, SIZES, WORDS):
        raise InputError(
            "another reckon learned this calibration's own runs; learn from them again "
            "(reckon calibrate --reference)"
        )


def as_measured(
    found: Parts,
    step: Step,
    using: Environment,
    whole: Array,
    of: tuple[Model, Cluster, TrainingPlan],
    calibration: Calibration,
) -> tuple[Step, Environment, Array]:
    """`corrected` by a calibration that knows one's own runs; as it is by one that does not.

    whole   log-standard-deviation of the step without them
    """
    if calibration.own is None:
        return step, using, whole
    check_prior(calibration.own.prior)
    sigma = interval(step, using.factor, 0.0, host=False)
    known = traits(found, calibration.run, using, step, describe(*of), sigma)
    return corrected(calibration.own, known, step, using)
