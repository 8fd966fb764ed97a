"""Memory of state spaces: weights and states of a served model by hand, and what training holds."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.memory.parameters import layer_parameters
from predictor.memory.serving import serving_memory
from predictor.plans.serving import ServingPlan
from tests.predictor.memory.test_laws_served import NODE, RUN

NAMES = (
    "mamba2-2.7b",
    "mamba-2.8b",
    "mamba-codestral-7b",
    "falcon-h1-0.5b",
    "jamba-reasoning-3b",
    "zamba2-1.2b",
    "zamba2-7b",
)


def served(tp: float = 1.0, **fields: float) -> ServingPlan:
    given = {"batch": 4.0, "input_len": 1000.0, "output_len": 200.0, "chunk": 2048.0, **fields}
    return ServingPlan(tp=tp, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_one_accelerator_holds_every_parameter_once(name: str) -> None:
    model = catalog.model(name)
    found = serving_memory(model, NODE, served(), RUN)
    assert float(found.classes["weights"]) == pytest.approx(2 * model.parameters, rel=1e-12)


@pytest.mark.parametrize("name", [*NAMES, "falcon-h1-34b", "jamba-1.5-large"])
def test_layers_of_training_hold_what_their_blocks_have(name: str) -> None:
    """Routed experts, whose ranks divide them, aside."""
    model = catalog.model(name)
    ends = model.embedding_parameters + model.head_parameters + model.norm_parameters
    experts = model.moe_layers * model.num_experts * model.expert_matrix
    layers = model.layers * np.asarray(layer_parameters(model, 1.0))
    assert float(layers) == pytest.approx(model.parameters - ends - experts, rel=1e-12)


def test_ranks_divide_mamba_1_but_for_its_norm() -> None:
    model = catalog.model("falcon-mamba-7b")
    block = 4096 * 3 * 8192 + 8192 * (256 + 32) + 256 * 8192
    assert float(layer_parameters(model, 8.0)) == block / 8 + 4096


def test_a_sequence_without_attention_is_its_states_however_long_it_is() -> None:
    """Mamba-1: 16 values of each of 8,192 channels in 32 bits, and three tokens of them in 16."""
    model = catalog.model("falcon-mamba-7b")
    long, short = (
        serving_memory(model, NODE, served(input_len=length), RUN) for length in (1e5, 1e2)
    )
    state = 64 * (4 * 8192 * 16 + 2 * 3 * 8192)
    assert float(long.per_sequence) == float(short.per_sequence) == state
    assert float(long.classes["cache"]) == 4 * state


def test_activations_without_a_feed_forward_block_are_the_first_projections() -> None:
    """The residual, its norm, gate and channels with B, C and steps, and the outcome."""
    model = catalog.model("mamba-codestral-7b")
    found = serving_memory(model, NODE, served(tp=8.0, batch=64.0, serving=0.0), RUN)
    elements = 2 * 4096 + (2 * 8192 + 2 * 1024 + 128 + 8192) / 8
    logits = 64 * (2 + 4) * 32768 / 8
    assert float(found.classes["activations"]) == pytest.approx(2 * 2048 * elements + logits)
