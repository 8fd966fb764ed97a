"""What stages, or replicas, on unlike accelerators are dealt, and their step as a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import Memory
from predictor.plans import Event, TrainingPlan, timeline
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.training.prediction import TrainingPrediction
from predictor.training.software import environment_of
from predictor.units import GB


@dataclass(frozen=True, slots=True)
class Share:
    """What one stage, or one replica, is dealt.

    system, accelerator   on which it is
    many      such replicas; 1 of stages
    layers, micro_batches   of the stage; of the replica
    tower     layers of the second tower on the stage
    time      that it works in a step [s]
    memory    of its fullest device, and of the accelerator [bytes]
    binds     the longest term of its time
    again     share of the stage's layers that it computes again, where stages choose; NaN
    """

    system: str
    accelerator: str
    many: int
    layers: int
    micro_batches: int
    time: float
    memory: float
    capacity: float
    binds: str
    tower: int = 0
    again: float = np.nan


@dataclass(frozen=True, slots=True)
class Dealt:
    """A step of unlike accelerators.

    by       'stage' or 'replica'
    shares   of each stage, or of replicas that are alike
    slowest  position of the one that the others wait for
    even     the step where layers, or micro-batches, are dealt evenly [s]; inf where that fits
             nowhere
    cool     the step where layers are dealt as if no place in the node were hot [s]; as it is
             unless the request asks for that (`split` 'heat')
    passes   forward and backward passes, and weights' gradients, of every stage [s]
    hops     transfer and latency between each stage and the next [s]
    towers   share of the work of all stages that is the second tower's; 0 without one
    """

    by: str
    shares: tuple[Share, ...]
    slowest: int
    even: float
    cool: float = 0.0
    passes: tuple[list[float], list[float], list[float]] = ((), (), ())  # type: ignore[assignment]
    hops: tuple[tuple[float, ...], tuple[float, ...]] = field(default=((), ()))
    towers: float = 0.0

    def timeline(self, plan: TrainingPlan) -> list[Event]:
        """The pipeline event by event, before the framework's factor.

        Raises InputError of replicas, whose pipelines differ.
        """
        if self.by != "stage":
            raise InputError("a timeline is of one pipeline; replicas on several systems have many")
        m, fills = int(plan.micro_batches), int(plan.fills)
        return timeline(plan.schedule, *self.passes, m, 1, *self.hops, fills)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it; every key carries its unit."""
        return {
            "by": self.by,
            "slowest": self.slowest,
            "even_step_time_s": self.even,
            **({"cool_step_time_s": self.cool} if self.cool else {}),
            **({"tower_time_share": self.towers} if self.towers else {}),
            "shares": [
                {
                    "system": one.system,
                    "accelerator": one.accelerator,
                    "many": one.many,
                    "layers": one.layers,
                    **({"tower_layers": one.tower} if self.towers else {}),
                    **({} if np.isnan(one.again) else {"recompute_share": one.again}),
                    "micro_batches": one.micro_batches,
                    "time_s": one.time,
                    "memory_gb": one.memory / GB,
                    "capacity_gb": one.capacity / GB,
                    "binds": one.binds,
                }
                for one in self.shares
            ],
        }


def named(clusters: Sequence[Cluster]) -> str:
    """Names of several systems, each once."""
    return " + ".join(dict.fromkeys(one.name for one in clusters))


def told(
    base: TrainingPrediction,
    cluster: Cluster,
    terms: dict[str, float],
    need: Memory,
    devices: Sequence[tuple[Cluster, float]],
    calibration: Calibration,
) -> TrainingPrediction:
    """A prediction as that of one system, with the step of several.

    devices   accelerators of each system, for the peak of which a step uses a part
    """
    step = np.asarray(sum(terms.values()))
    # A second tower may wait for its host where the language model does not.
    known = base.breakdown["host"] / base.step_time
    waiting = np.maximum(terms["host"] / step - known, 0.0)
    using = environment_of(cluster, base.plan, calibration.run)
    doubt = using.routed_doubt if base.model.is_moe else using.doubt
    sigma = np.hypot(base.sigma, doubt * waiting)
    reach = np.exp(calibration.interval_q * sigma)
    linear = base.plan.recipe.peak
    peaks = np.array([float(np.asarray(c.accelerator.peak_for(linear))) for c, _ in devices])
    weights = np.array([many for _, many in devices])
    return replace(
        base,
        cluster=cluster,
        step_time=step,
        sigma=sigma,
        low=step / reach,
        high=step * reach,
        breakdown={name: np.asarray(value) for name, value in terms.items()},
        need=need,
        peak=float((peaks * weights).sum() / weights.sum()),
    )


def together(classes: dict[str, Array]) -> Array:
    """All that the allocator may lose a part of [bytes]."""
    apart = ("fragmentation", "context")
    return sum((v for name, v in classes.items() if name not in apart), np.zeros(()))
