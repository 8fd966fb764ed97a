"""What a serving device holds where it is no plain decoder on one stage, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from predictor import catalog
from predictor.hardware import Cluster
from predictor.memory import serving_memory, weight_bytes
from predictor.memory.serving import tower_bytes
from predictor.models import Tower
from predictor.plans import ServingPlan
from predictor.timing import RunParameters
from predictor.work import state_bytes

RUN = RunParameters(engine=1.5e9)
DGX = catalog.system("dgx-h100")
LLAMA = catalog.model("llama3-8b")


def node(memory: float) -> Cluster:
    return replace(DGX, accelerator=replace(DGX.accelerator, memory=memory))


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 40.0, "input_len": 1000.0, "output_len": 200.0, "serving": 1.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def test_a_cache_that_does_not_hold_all_holds_whole_sequences() -> None:
    """As many as there is room for, not one more, and not all of the batch."""
    found = serving_memory(LLAMA, node(24e9), plan(), RUN)
    each, many = float(found.per_sequence), float(found.sequences)
    assert 1.0 < many < 40.0
    fixed = sum(float(found.classes[name]) for name in ("weights", "activations", "runtime"))
    assert many == math.floor((0.9 * 24e9 - fixed) / each)
    assert float(found.classes["cache"]) == many * each
    assert float(found.entered) == math.floor((0.9 * 24e9 - fixed) / (each * 1000 / 1200))
    static = serving_memory(LLAMA, node(24e9), plan(serving=0.0, pool="free"), RUN)
    assert float(static.classes["cache"]) == 40.0 * each  # all of it, or it does not fit


def test_a_pool_of_weights_and_cache_leaves_the_rest_to_activations() -> None:
    """Nine tenths are weights and cache; activations and the runtime have the tenth, and take of
    the cache what they need beyond it."""
    small = plan(pool="static", batch=4.0)
    found = serving_memory(LLAMA, node(80e9), small, RUN)
    beside = float(found.classes["activations"]) + 1.5e9
    assert beside < 0.1 * 80e9
    assert float(found.capacity) == pytest.approx(0.9 * 80e9 + beside)
    tight = serving_memory(LLAMA, node(18e9), small, RUN)
    assert float(tight.classes["activations"]) + 1.5e9 > 0.1 * 18e9
    assert float(tight.capacity) == 18e9
    whole = serving_memory(LLAMA, node(80e9), replace(small, pool="total"), RUN)
    assert float(whole.capacity) == 0.9 * 80e9


def test_stages_have_their_part_of_the_states() -> None:
    """Of a hybrid on two stages each holds half of the state spaces' states and of the cache."""
    model = catalog.model("nemotron-h-8b")
    one, two = (plan(pp=pp) for pp in (1.0, 2.0))
    whole, half = (float(serving_memory(model, DGX, p, RUN).per_sequence) for p in (one, two))
    assert whole > float(state_bytes(model, one)) > 0.0
    assert half == pytest.approx(0.5 * whole)


def test_a_second_tower_is_held_beside_the_decoder() -> None:
    tower = Tower("vision", layers=2, hidden=64, heads=8, ffn_hidden=256, patches=9, tokens=9,
                  patch_width=12)  # fmt: skip
    model = replace(LLAMA, tower=tower)
    seeing, blind = plan(tiles=2.0), plan()
    with_, without = (
        float(serving_memory(model, DGX, p, RUN).classes["weights"]) for p in (seeing, blind)
    )
    assert with_ - without == float(tower_bytes(model, seeing)) > 0.0
    assert without == float(weight_bytes(model, blind))


def test_adapters_without_slots_are_as_many_as_requests_ask_for() -> None:
    own = plan(adapters=100.0, adapter_rank=16.0)
    every, few = (
        float(serving_memory(LLAMA, DGX, replace(own, adapter_slots=n), RUN).classes["adapters"])
        for n in (0.0, 10.0)
    )
    assert every == pytest.approx(4.0 * few)
