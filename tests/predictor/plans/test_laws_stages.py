"""How layers fall on stages, stage by stage, of fourteen layers and a few less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.models.model import Model
from predictor.plans.copies import distinct_share
from predictor.plans.pipeline import in_flight, stages
from predictor.plans.placement import blocks
from predictor.plans.training import TrainingPlan

MODEL = Model(name="m", layers=14, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=256,
              vocab=1024)  # fmt: skip
LAYER = 4 * 64 * 64 + 3 * 64 * 256


def plan(pp: float, **fields: Any) -> TrainingPlan:
    given = {"dp": 1.0, "micro_batch": 1.0, "global_batch": 16.0, "seq_len": 128.0, **fields}
    return TrainingPlan(1.0, pp, **given)


@pytest.mark.parametrize(
    ("layers", "pp", "fields", "expected"),
    [
        (12, 4, {}, (3, 3, 3)),
        (14, 4, {}, (3, 4, 3)),  # embedding and head a slot each
        (13, 4, {}, (3, 4, 2)),  # and another for a second token
        (15, 4, {}, (3, 5, 3)),  # the remainder is the inner ones', the fullest five of nine
        (14, 1, {}, (None, 0, 14)),
        (15, 2, {}, (8, 0, 7)),
        (13, 2, {}, (7, 0, 6)),
        (14, 2, {"vpp": 2.0}, (7, 0, 7)),
        (15, 2, {"vpp": 2.0}, (8, 0, 7)),
        # A V's first device has the slots of both ends.
        (14, 4, {"schedule": "zb-v", "vpp": 2.0}, (2, 4, 4)),
        (13, 4, {"schedule": "zb-v", "vpp": 2.0}, (1, 4, 4)),
        (15, 2, {"schedule": "zb-v", "vpp": 2.0}, (7, 0, 8)),
        (16, 4, {"schedule": "zb-v", "vpp": 2.0}, (4, 4, 4)),
        # From both ends a device has a stage of each.
        (13, 4, {"schedule": "dualpipe"}, (2.5, 4, 2.5)),
        # Stated; the others share the rest.
        (14, 4, {"first_layers": 5.0}, (5, 3, 3)),
        (14, 4, {"last_layers": 2.0}, (4, 4, 2)),
        (14, 4, {"first_layers": 5.0, "last_layers": 2.0}, (5, 4, 2)),
        (14, 4, {"first_layers": 4.0}, (4, 4, 3)),
        (14, 2, {"first_layers": 5.0}, (5, 0, 9)),
        (14, 2, {"last_layers": 5.0}, (9, 0, 5)),
        (14, 4, {"first_layers": 1.0, "inner_layers": 6.0}, (1, 6, 4)),
    ],
)  # fmt: skip
def test_layers_of_each_kind_of_stage(
    layers: int, pp: int, fields: dict[str, Any], expected: tuple[float | None, ...]
) -> None:
    found = stages(replace(MODEL, layers=layers), plan(float(pp), **fields))
    for own, layer in zip(found.layers, expected, strict=True):
        assert layer is None or float(own) == layer
    assert found.count.tolist() == [float(pp > 1), max(pp - 2.0, 0.0), 1.0]
    assert found.index.tolist() == [0.0, min(1.0, pp - 1.0), pp - 1.0]


def test_a_batch_of_pipelines_is_each_of_them() -> None:
    """Stated for some alone: the others are as if nothing were."""
    pp, first = np.array([1.0, 2.0, 4.0, 4.0]), np.array([np.nan, 5.0, np.nan, 5.0])
    together = stages(MODEL, plan(pp, first_layers=first))  # type: ignore[arg-type]
    for at in range(4):
        alone = stages(MODEL, plan(float(pp[at]), first_layers=float(first[at])))
        there = alone.count > 0
        assert together.layers[there, at].tolist() == alone.layers[there].tolist()
        assert together.embeds[there, at].tolist() == alone.embeds[there].tolist()


def test_stages_of_equal_arithmetic() -> None:
    """An output projection of two layers' weights makes sixteen: each stage is filled until it
    passes its four, so that the first has five, and the last what the fourth twelfth leaves."""
    model = replace(MODEL, vocab=2 * LAYER // 64)
    found = stages(model, plan(4.0, split="cost"))
    assert found.layers.tolist() == [5.0, 4.0, 1.0]
    less = stages(replace(model, vocab=LAYER // 64), plan(4.0, split="cost"))
    # Fifteen: 3.75 each, 11.25 of three.
    assert less.layers.tolist() == [4.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("pp", "schedule", "embeds", "heads"),
    [
        (4.0, "1f1b", [1, 0, 0], [0, 0, 1]), (1.0, "1f1b", [1, 0, 1], [0, 0, 1]),
        (1.0, "zb-v", [1, 0, 1], [1, 0, 1]), (1.0, "dualpipe", [1, 0, 1], [0, 0, 1]),
        (4.0, "zb-v", [1, 0, 0], [1, 0, 0]), (4.0, "dualpipe", [0.5, 0, 0.5], [0.5, 0, 0.5]),
    ],
)  # fmt: skip
def test_where_embedding_and_head_are(
    pp: float, schedule: str, embeds: list[float], heads: list[float]
) -> None:
    found = stages(MODEL, plan(pp, schedule=schedule, vpp=2.0 if schedule == "zb-v" else 1.0))
    assert (found.embeds.tolist(), found.heads.tolist()) == (embeds, heads)


def test_what_is_in_flight_of_uneven_stages() -> None:
    made = plan(4.0)
    assert in_flight(made, stages(MODEL, made)).tolist() == [4 * 3, 3 * 4, 1 * 3]
    few = plan(4.0, global_batch=2.0)
    assert in_flight(few, stages(MODEL, few)).tolist() == [2 * 3, 2 * 4, 1 * 3]


MIXED = replace(MODEL, num_experts=4, top_k=2, expert_ffn_hidden=64, dense_layers=5, mtp_layers=2)


def test_blocks_of_uneven_stages() -> None:
    """Five dense layers fill the first stage's three and two of the inner two's eight; two extra
    layers with a head each on the last."""
    made = plan(4.0)
    found = blocks(MIXED, made, stages(MIXED, made))
    assert found["dense"].tolist() == [3.0, 1.0, 0.0]
    assert found["moe"].tolist() == [0.0, 3.0, 3.0 + 2.0]
    assert found["layer"].tolist() == [3.0, 4.0, 5.0]
    assert (found["head"].tolist(), found["mtp"].tolist()) == ([0, 0, 3], [0, 0, 2])
    dense = blocks(replace(MODEL, mtp_layers=2), made, stages(MODEL, made))
    assert dense["dense"].tolist() == [3.0, 4.0, 5.0]
    assert dense["moe"].tolist() == [0.0, 0.0, 0.0]
    both = plan(4.0, schedule="dualpipe")
    mirrored = blocks(MIXED, both, stages(MIXED, both))
    assert mirrored["dense"].tolist() == [1.5, 1.0, 1.5]


@pytest.mark.parametrize("domains", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("copies", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("targets", [8.0, 16.0, 24.0])
def test_copies_dealt_in_turn_go_to_neighbours(domains: float, copies: int, targets: float) -> None:
    """Elements take the next targets one after the other; each domain has as many of them."""
    own = targets / domains
    if copies > targets or own % 1:
        return
    hit = []
    for element in range(int(targets)):
        begin = element * copies
        hit.append(len({int((begin + at) % targets // own) for at in range(copies)}))
    found = float(distinct_share(domains, float(copies), turn=targets))
    assert found == pytest.approx(np.mean(hit) / copies)
