"""Batches whose kernels are timed together are predicted as each is by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import stack, varying
from predictor.catalog import load
from predictor.errors import InputError
from predictor.plans import Batch, TrainingPlan
from predictor.timing import TrainingList, training_times, training_times_together
from predictor.training import predict, predict_batches
from predictor.work import step_operators

KNOWN = load("default")

PLAN = TrainingPlan(tp=2.0, pp=2.0, dp=4.0, micro_batch=1.0, global_batch=64.0, seq_len=4096.0)

OTHERS = (
    ("llama3-8b", {}),
    ("llama3-8b", {"precision": "fp8", "fused": False}),
    ("gpt2-1.5b", {"attention": "flash2"}),
    ("mixtral-8x7b", {"ep": 4.0, "recompute": "full"}),
)


def batches(system: str, **fields: object) -> list[Batch[TrainingPlan]]:
    """Several plans of every model of `OTHERS` on a system, first one, then more of them."""
    cluster, found = catalog.system(system), []
    for many, (name, own) in enumerate(OTHERS, 1):
        plans = [replace(PLAN, seq_len=1024.0 * (at + 1), **own, **fields) for at in range(many)]
        found.append(Batch(tuple(range(many)), catalog.model(name), cluster, stack(plans)))
    return found


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-b200", "mi300x-8x"])
def test_lists_of_kernels_take_as_long_as_each_by_itself(system: str) -> None:
    asked = batches(system)
    machine = asked[0].cluster.accelerator
    lists = [
        TrainingList(step_operators(one.model, one.plan), one.plan.shape, plain=not one.plan.fused)
        for one in asked
    ]
    together = training_times_together(lists, machine, load("default"))
    for own, one in zip(together, lists, strict=True):
        alone = training_times(one.operators, machine, KNOWN, one.shape, plain=one.plain)
        assert (own.pedigree, own.family) == (alone.pedigree, alone.family)
        for name in ("time", "sigma", "bound", "measured"):
            assert np.array_equal(getattr(own, name), getattr(alone, name)), name


def test_batches_are_predicted_as_each_by_itself() -> None:
    """On several machines, in their order."""
    asked = [one for pair in zip(batches("dgx-h100"), batches("dgx-h200"), strict=True)
             for one in pair]  # fmt: skip
    together = predict_batches(asked, KNOWN)
    for one, found in zip(asked, together, strict=True):
        alone = predict(one.model, one.cluster, one.plan, KNOWN)
        assert not isinstance(found, InputError)
        for name in ("step_time", "low", "high", "sigma", "layer_time", "executions"):
            assert np.array_equal(getattr(found, name), getattr(alone, name)), name
        for name, value in alone.breakdown.items():
            assert np.array_equal(found.breakdown[name], value), name


def test_one_that_cannot_be_costs_the_others_nothing() -> None:
    """A data type that the accelerator lacks, first and last; a machine for each plan."""
    first, *_ = asked = batches("dgx-h100")[:2]
    narrow = replace(first, plan=replace(first.plan, precision="nvfp4"))
    device = first.cluster.accelerator
    own = replace(device, bandwidth=np.array([device.bandwidth]))
    drawn = replace(first, cluster=replace(first.cluster, accelerator=own))
    assert varying(drawn.cluster)
    found = list(predict_batches([narrow, *asked, drawn, narrow], KNOWN))
    assert isinstance(found[0], InputError)
    assert isinstance(found[-1], InputError)
    for one, known in zip([*asked, drawn], found[1:-1], strict=True):
        alone = predict(one.model, one.cluster, one.plan, KNOWN)
        assert not isinstance(known, InputError)
        assert np.array_equal(known.step_time, alone.step_time)
