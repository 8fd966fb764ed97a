"""Optimizers: states, traffic and products by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.memory import lay_out
from predictor.plans import OPTIMIZERS, TrainingPlan
from predictor.training.completion import complete_training
from predictor.training.prediction import predict
from predictor.work import STEPS, matrices, newton_schulz, step_operators, update_operators

KNOWN = load("kernels-only")
MODEL, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")
BASE: dict[str, Any] = {
    "gpus": 8, "tp": 1, "pp": 1, "global_batch": 64, "seq_len": 4096, "micro_batch": 1,
    "recompute": "full",
}  # fmt: skip


def planned(**fields: Any) -> TrainingPlan:
    spec = parse(TrainingPlanSpec, {**BASE, **fields}, "test")
    return complete_training(spec, KNOWN.run, model=MODEL, cluster=DGX).plan


@pytest.mark.parametrize(
    ("optimizer", "beside", "alone", "narrow"),
    [("adam", 12.0, 8.0, 4.0), ("adam8bit", 6.03, 2.03, 2.03), ("lion", 8.0, 4.0, 4.0),
     ("adafactor", 4.01, 0.01, 0.01), ("muon", 8.0, 4.0, 2.0)],
)  # fmt: skip
def test_states_beside_an_fp32_copy_without_one_and_in_16_bits(
    optimizer: str, beside: float, alone: float, narrow: float
) -> None:
    """Megatron's; HuggingFace's, whose weights are the fp32 copy; torchtune's, all in bf16."""
    for framework, expected in (
        ("neutral", beside), ("huggingface", alone), ("torchtune", narrow),
    ):  # fmt: skip
        plan = planned(framework=framework, optimizer=optimizer, sharding="none")
        assert plan.optimizer_bytes == pytest.approx(expected)
    assert planned(optimizer=optimizer, optimizer_bytes=7).optimizer_bytes == 7.0


def test_an_update_moves_states_twice_gradient_and_weights_once() -> None:
    """Adam of 12 + 4 + 2 bytes: 2 x 12 + 4 + 2; without a copy of 4 in the states the weight is
    read too; Adafactor's kernels move 92 more."""
    plan = planned(grad_clip=False)
    for own, moved in (
        ({}, 2 * 12 + 4 + 2),
        ({"optimizer_bytes": 8.0, "weight_bytes": 4.0}, 2 * 8 + 4 + 4 + 4),
        ({"optimizer": "adafactor", "optimizer_bytes": 4.01}, 2 * 4.01 + 4 + 2 + 2 + 92),
    ):
        first, _ = update_operators(replace(plan, **own), 1e9)
        assert float(first.bytes) == pytest.approx(1e9 * moved)


def test_muon_makes_matrices_orthogonal_by_products() -> None:
    """Llama 3 8B: of 32 layers four matrices, 4,096 by 6,144, 4,096, 28,672 and 14,336; each of
    five steps 4 m^2 n + 2 m^3 FLOP."""
    plan = planned(optimizer="muon", sharding="none")
    found = matrices(step_operators(MODEL, plan), MODEL, plan, lay_out(MODEL, plan).held)
    sides = sorted((float(m), float(n), float(many.max())) for m, n, many in found)
    assert sides == [(4096.0, n, 32.0) for n in (4096.0, 6144.0, 14336.0, 28672.0)]
    for m, n, _ in sides:
        flop = STEPS * sum(float(one.flop) for one in newton_schulz(m, n, "bf16"))
        assert flop == pytest.approx(5 * (4 * m * m * n + 2 * m**3))


def test_ranks_that_divide_the_optimizer_divide_its_products() -> None:
    """Down to a matrix that one of them has."""

    def update(**fields: Any) -> float:
        return float(predict(MODEL, DGX, planned(**fields), KNOWN).breakdown["optimizer"])

    whole = update(optimizer="muon", sharding="none") - update(optimizer="sgd", sharding="none")
    part = update(optimizer="muon") - update(optimizer="sgd")
    assert whole == pytest.approx(8.0 * part, rel=1e-6)
    flop = 32 * 5 * sum(4 * 4096**2 * n + 2 * 4096**3 for n in (4096, 6144, 14336, 28672))
    assert 0.5 * 989e12 < flop / whole < 989e12
    many = {"gpus": 2048, "global_batch": 2048}
    least = update(optimizer="muon", **many) - update(optimizer="sgd", **many)
    assert least > 5 * (4 * 4096**2 * 28672 + 2 * 4096**3) / 989e12


def test_adapters_are_left_as_they_are() -> None:
    times = [
        float(predict(MODEL, DGX, planned(optimizer=own, trained="lora"), KNOWN).step_time)
        for own in ("sgd", "muon")
    ]
    assert times[0] == times[1]


def test_others_move_less_than_adam_or_say_why() -> None:
    plan = planned()
    adam = float(update_operators(plan, 1.0)[0].bytes)
    for name, one in OPTIMIZERS.items():
        own = planned(optimizer=name)
        assert float(update_operators(own, 1.0)[0].bytes) - one.more <= adam
