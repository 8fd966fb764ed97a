"""Laws of layers that plans share."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import replace
from predictor.training import predict
from predictor.training.layer import AROUND, LAYERS, layers_of

DGX = catalog.system("dgx-h100")
MODELS = [catalog.model(name) for name in ("llama3-8b", "mixtral-8x7b")]
PLAN = TrainingPlan(2.0, 2.0, 4.0, 1.0, 32.0, 4096.0, sharding="zero1")
OTHER = {
    "pp": 4.0,
    "dp": 8.0,
    "global_batch": 64.0,
    "vpp": 2.0,
    "dp_shard": 2.0,
    "first_layers": 15.0,
    "last_layers": 15.0,
    "inner_layers": 16.0,
    "recompute_chunk": 2.0,
    "loader_rate": 1e5,
    "handed_rate": 1e9,
    "pipeline_fill": 1.0,
    "useful": 0.5,
}
"""Another value of each number that layers do not depend on."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", AROUND)
def test_plans_of_the_same_layers_share_them_and_are_predicted_as_alone(
    name: str, model: Model
) -> None:
    other = replace(PLAN, **{name: OTHER[name]})
    met, alone = load("default"), replace(load("default"))
    first, _ = layers_of(model, DGX, PLAN, met)
    again, _ = layers_of(model, DGX, other, met)
    assert again is first
    found, fresh = (predict(model, DGX, other, known) for known in (met, alone))
    assert found.step_time == fresh.step_time
    assert np.array_equal(found.executions, fresh.executions)
    assert found.memory.peak == fresh.memory.peak


@pytest.mark.parametrize("name", ["tp", "micro_batch", "seq_len", "recompute", "attention"])
def test_plans_of_other_layers_do_not(name: str) -> None:
    other = {"tp": 4.0, "micro_batch": 2.0, "seq_len": 2048.0, "recompute": "full"}
    plan = replace(PLAN, **{name: other.get(name, "unfused")})
    known = load("default")
    assert (
        layers_of(MODELS[0], DGX, plan, known)[0] is not layers_of(MODELS[0], DGX, PLAN, known)[0]
    )


def test_a_rank_alone_shares_nothing_with_ranks_of_many() -> None:
    one = replace(PLAN, tp=1.0, pp=1.0, dp=1.0)
    known = load("default")
    several, _ = layers_of(MODELS[0], DGX, replace(one, dp=2.0), known)
    assert layers_of(MODELS[0], DGX, one, known)[0] is not several


def test_no_more_are_kept_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as have so many numbers; small answers stay when large ones are dropped."""
    monkeypatch.setattr("predictor.timing.kept.KEPT_NUMBERS", 3 * LAYERS)
    known = replace(load("default"))
    known.once(("small",), lambda: 1)
    kept = []
    for length in range(7):
        layers_of(MODELS[0], DGX, replace(PLAN, seq_len=128.0 * (1.0 + length)), known)
        kept.append((len(known._kept.large), known._kept.held / LAYERS))
    assert kept == [(1, 1), (2, 2), (3, 3), (1, 1), (2, 2), (3, 3), (1, 1)]
    assert ("small",) in known._kept.known


LOOP = replace(PLAN, tp=1.0, pp=1.0, dp=8.0, framework="huggingface", weight_bytes=4.0)
"""Whole weights in fp32 under autocast where they are not sharded."""


def test_sharding_that_ends_autocast_is_another_layer() -> None:
    """One after the other as each alone, in either order."""
    plans = [replace(LOOP, sharding=kind) for kind in ("none", "fsdp")]
    alone = [predict(MODELS[0], DGX, plan, load("default")).step_time for plan in plans]
    for order in ((0, 1), (1, 0)):
        known = replace(load("default"))
        for at in order:
            assert predict(MODELS[0], DGX, plans[at], known).step_time == alone[at]


def test_weights_of_a_batch_that_are_under_autocast_or_not_are_apart() -> None:
    both = replace(LOOP, sharding="none", weight_bytes=np.array([4.0, 2.0, 4.0]))
    found = predict(MODELS[0], DGX, both, load("default")).step_time
    for at, width in enumerate((4.0, 2.0, 4.0)):
        one = replace(LOOP, sharding="none", weight_bytes=width)
        assert found[at] == predict(MODELS[0], DGX, one, load("default")).step_time
    assert found[0] > found[1]
