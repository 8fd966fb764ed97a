"""Reinforcement learning after pre-training: an iteration of rollouts, which are served, and of
training on them; on the same accelerators in turn, or on some of them each.

Answers have long-tailed lengths: an iteration's rollouts last until the longest of them ends, while
engines run emptier and emptier. Shared accelerators do one after the other; apart, either waits for
the other (`IN_TURN`), or trains on the rollouts of the iteration before (`BEHIND`: Noukhovitch et
al. 2024, arXiv 2410.18252), so that an iteration takes the longer of both. Before they learn,
those that train work out what the model, and the one it is compared with, say of the answers (one
pass forward each, `plans.objectives`). Weights go from those that train to those that serve in each
(Hu et al. 2024, OpenRLHF, arXiv 2405.11143, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.records import dataclass, replace
from predictor.serving import Client, complete_serving, one_by_one
from predictor.timing import Calibration
from predictor.training import complete_training, predict

SHARED, IN_TURN, BEHIND = "shared", "apart, in turn", "apart, one behind"
"""Where both run, and who waits for whom."""

PASSES = ("scored", "referred")
"""Fields of a plan that count passes without gradients."""

WEIGHT = 2.0
"""Bytes of a weight as it is sent: 16 bits."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What an iteration rolls out and learns from.

    prompts, samples   prompts, and answers to each
    input_len, output_len   mean tokens
    variation   standard deviation of the lengths over their mean, log-normal
    batch       sequences of an optimizer step
    epochs      times that an iteration's answers are learned from
    critic      whether a second model of the same size learns what answers are worth (PPO: Ouyang
                et al. 2022, section 3.5); what it holds is not counted to what fits
    """

    prompts: int
    samples: int
    input_len: int
    output_len: int
    variation: float
    batch: int
    epochs: int = 1
    critic: bool = False

    @property
    def answers(self) -> int:
        """Of an iteration."""
        return self.prompts * self.samples


@dataclass(frozen=True, slots=True)
class Iteration:
    """One way to run an iteration.

    way        of `SHARED`, `IN_TURN`, `BEHIND`
    rollout_gpus, training_gpus   accelerators that do each; of shared ones, all do both
    engines    that serve
    rollout    time until the last answer has ended [s]
    tail       of it, after nine tenths of the answers have [s]
    training   time of all optimizer steps [s]
    weights    of sending the new weights to the engines [s]
    time       of the iteration [s]
    idle       share of the accelerators' time in which they do neither
    """

    way: str
    rollout_gpus: int
    training_gpus: int
    engines: int
    rollout: float
    tail: float
    training: float
    weights: float
    time: float
    idle: float


def iterations(
    model: Model,
    cluster: Cluster,
    gpus: int,
    rollouts: Rollouts,
    serve: dict[str, Any],
    train: dict[str, Any],
    calibration: Calibration,
) -> list[Iteration]:
    """Every way to run an iteration on so many accelerators, the shortest first.

    serve   keys of a serving plan: of an engine; lengths and load come from `rollouts`
    train   keys of a training plan; lengths, batch and accelerators come from here

    Answers and prompts are trained on in sequences of their mean length (packed). Raises InputError
    where no number of engines and replicas takes the accelerators.
    """
    rolled = _rolled(model, cluster, rollouts, serve, calibration)
    trained = _trained(model, cluster, rollouts, train, calibration)
    size, replica = rolled(0)[0], trained(0)[0]
    if gpus < max(size, replica):
        raise InputError(f"gpus {gpus} hold no engine of {size} or no replica of {replica}")
    sent = WEIGHT * model.parameters / size / float(np.asarray(cluster.tiers[-1].rate))
    found = list(_shared(gpus, size, replica, rolled, trained, sent))
    for engines in range(1, gpus // size):
        rest = (gpus - engines * size) // replica * replica
        step = trained(rest)[1] if rest else np.inf
        if not np.isfinite(step):
            continue
        _, last, tail = rolled(engines)
        sizes = (engines * size, rest, engines, last, tail, step, sent)
        for way, time in ((IN_TURN, last + step + sent), (BEHIND, max(last, step) + sent)):
            busy = engines * size * last + rest * step
            found.append(Iteration(way, *sizes, time, 1.0 - busy / (gpus * time)))
    if not found:
        raise InputError(
            f"gpus {gpus}: no number of engines of {size} and replicas of {replica} divides the "
            f"batch {rollouts.batch}"
        )
    return sorted(found, key=lambda one: one.time)


Rolled = Callable[[int], tuple[int, float, float]]
Trained = Callable[[int], tuple[int, float]]


def _shared(
    gpus: int, size: int, replica: int, rolled: Rolled, trained: Trained, sent: float
) -> Iterator[Iteration]:
    """All accelerators in turn; weights are only dealt anew."""
    engines, ranks = gpus // size, gpus // replica * replica
    step = trained(ranks)[1]
    if np.isfinite(step):
        _, last, tail = rolled(engines)
        time = last + step + sent
        busy = engines * size * last + ranks * step
        sizes = (engines * size, ranks, engines, last, tail, step, sent)
        yield Iteration(SHARED, *sizes, time, 1.0 - busy / (gpus * time))


def _rolled(
    model: Model,
    cluster: Cluster,
    rollouts: Rollouts,
    serve: dict[str, Any],
    calibration: Calibration,
) -> Rolled:
    """Accelerators of an engine; with so many of them, until the last answer ends and how long of
    that after nine tenths have [s]. All answers are asked for at once."""
    lengths = {"input_len": rollouts.input_len, "output_len": rollouts.output_len}
    spec = parse(ServingPlanSpec, {**serve, **lengths, "saturated": True}, "serve")
    plan = complete_serving(spec, calibration.run, model=model, cluster=cluster).plan
    client = Client(variation=rollouts.variation, lengths="lognormal")
    known: dict[int, tuple[float, float]] = {}

    def rolled(engines: int) -> tuple[int, float, float]:
        if engines and engines not in known:
            # Of dp replicas of the attention one is followed, all where they wait (`one_by_one`).
            each = max(-(-rollouts.answers // (engines * int(plan.dp))), 1)
            served = one_by_one(model, cluster, plan, calibration, each, client, clients=each)
            ends: Array = np.sort(served.last)
            known[engines] = float(ends[-1]), float(ends[-1] - np.quantile(ends, 0.9))
        last, tail = known.get(engines, (0.0, 0.0))
        return int(plan.gpus), last, tail

    return rolled


def _trained(
    model: Model,
    cluster: Cluster,
    rollouts: Rollouts,
    train: dict[str, Any],
    calibration: Calibration,
) -> Trained:
    """Accelerators of a replica; with so many in all, the time of an iteration's optimizer steps
    [s], inf where the batch does not divide. What answers are compared with is worked out once for
    all epochs, as far as the request leaves it to the objective (`plans.objectives`)."""
    length = rollouts.input_len + rollouts.output_len
    fields = {"learns_from": "grpo", **train, "seq_len": length, "global_batch": rollouts.batch}
    layout = {name: int(fields.get(name, 1)) for name in ("tp", "pp", "cp")}
    replica = int(np.prod(list(layout.values())))
    steps = rollouts.epochs * rollouts.answers / rollouts.batch
    known: dict[int, float] = {}

    def step(own: dict[str, Any], gpus: int) -> float:
        """Of an optimizer step; passes without gradients that nobody states serve all epochs."""
        spec = parse(TrainingPlanSpec, {**own, **layout, "gpus": gpus}, "train")
        plan = complete_training(spec, calibration.run, model=model, cluster=cluster).plan
        if rollouts.epochs > 1:
            open_ = [name for name in PASSES if getattr(spec, name) is None]
            shared = {name: getattr(plan, name) / rollouts.epochs for name in open_}
            plan = replace(plan, **shared)
        return float(predict(model, cluster, plan, calibration).step_time)

    def trained(gpus: int) -> tuple[int, float]:
        if gpus and gpus not in known:
            learning = [fields, {**fields, "compared_with": "none"}][: 1 + rollouts.critic]
            try:
                known[gpus] = steps * sum(step(own, gpus) for own in learning)
            except InputError:
                known[gpus] = np.inf
        return replica, known.get(gpus, 0.0)

    return trained
