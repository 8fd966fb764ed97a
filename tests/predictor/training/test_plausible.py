"""What every framework's plans obey when all else is left open."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.catalog import frameworks
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.training import TrainingPrediction, complete_training, predict

KNOWN = catalog.load("default")
BASE = {
    "model": "llama3-8b",
    "system": "dgx-h100",
    "gpus": 64,
    "global_batch": 128,
    "seq_len": 4096,
}
OTHERS = sorted(set(frameworks()) - {"neuronx-distributed"})  # which runs on AWS's chips alone


def predicted(**changes: object) -> TrainingPrediction:
    spec = parse(TrainingPlanSpec, {**BASE, **changes}, "test")
    request = complete_training(spec, KNOWN.run)
    return predict(request.model, request.cluster, request.plan, KNOWN)


@pytest.mark.parametrize("framework", OTHERS)
def test_a_plan_that_is_filled_in_fits_and_uses_no_more_than_there_is(framework: str) -> None:
    found = predicted(framework=framework)
    assert float(found.memory.peak) <= float(found.cluster.accelerator.memory)
    assert 0.0 < float(found.utilisation("6nd", hardware=True)) < 1.0


@pytest.mark.parametrize("framework", OTHERS)
def test_computing_again_costs_time_and_machines_bring_throughput(framework: str) -> None:
    """A pass of the layers that runs again is never free, and twice the accelerators, each with as
    many sequences, do more together."""
    fixed = {"framework": framework, "tp": 1, "pp": 1, "micro_batch": 1}
    kept, again = (predicted(**fixed, recompute=kind) for kind in ("none", "full"))
    assert float(again.step_time) > float(kept.step_time)
    twice = predicted(**fixed, recompute="full", gpus=128, global_batch=256)
    assert float(twice.tokens_per_s) > float(again.tokens_per_s)
