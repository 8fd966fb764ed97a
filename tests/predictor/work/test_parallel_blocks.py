"""Attention and MLP side by side: GPT-J, GPT-NeoX, Falcon, PaLM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.models.huggingface import from_config
from predictor.plans import ServingPlan, TrainingPlan
from predictor.work.communication import step_collectives
from predictor.work.serving import layer_operators, pass_collectives
from predictor.work.training import step_operators

NEOX = catalog.model("gpt-neox-20b")
APART = replace(NEOX, parallel="")
TRAINED = TrainingPlan(tp=1.0, pp=1.0, dp=1.0, micro_batch=1.0, global_batch=1.0, seq_len=2048.0)
SERVED = ServingPlan(batch=8.0, input_len=512.0, output_len=64.0)


@pytest.mark.parametrize("split", [0.0, 1.0])
def test_the_ranks_add_up_once_per_layer(split: float) -> None:
    """Half the traffic of a layer, forward and backward, with sequences split or whole."""
    plan = replace(TRAINED, tp=4.0, sequence_parallel=split)

    def traffic(model: object) -> float:
        return sum(
            float(c.bytes * c.count)
            for c in step_collectives(model, plan)
            if c.group == "tp" and c.module in ("layer", "dense")
        )

    assert traffic(NEOX) == pytest.approx(0.5 * traffic(APART))
    assert traffic(APART) > 0


def test_an_engine_adds_up_once_per_layer() -> None:
    plan = replace(SERVED, tp=4.0)
    once, twice = (
        sum(float(c.count) for c in pass_collectives(m, plan, 64.0, 1.0) if ".reduce" in c.name)
        for m in (NEOX, APART)
    )
    assert twice - once == NEOX.layers


def test_one_norm_serves_both_where_it_is_shared() -> None:
    one = replace(NEOX, parallel="shared_norm")
    assert NEOX.vector_parameters - one.vector_parameters == NEOX.layers * 2 * NEOX.hidden
    names = [o.name for o in layer_operators(one, SERVED, 8.0)]
    assert "mlp.norm" not in names
    assert "mlp.norm" in [o.name for o in layer_operators(NEOX, SERVED, 8.0)]
    saved = {
        m.parallel: sum(float(o.saved) for o in step_operators(m, TRAINED) if o.module == "dense")
        for m in (one, NEOX)
    }
    # What the second norm keeps of its input, and the MLP of what that norm puts out.
    assert saved["own_norms"] - saved["shared_norm"] == 2 * 2.0 * 2048 * NEOX.hidden


@pytest.mark.parametrize(
    ("config", "parallel"),
    [
        ({"model_type": "gpt_neox"}, "own_norms"),
        ({"model_type": "gpt_neox", "use_parallel_residual": False}, ""),
        ({"model_type": "falcon"}, "shared_norm"),
        ({"model_type": "falcon", "new_decoder_architecture": True}, "own_norms"),
        ({"model_type": "falcon", "parallel_attn": False}, ""),
        ({"model_type": "phi"}, "shared_norm"),
        ({"model_type": "cohere"}, "shared_norm"),
        ({"model_type": "llama"}, ""),
    ],
)
def test_configurations_say_how_blocks_stand(config: dict[str, object], parallel: str) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
             "intermediate_size": 256, "vocab_size": 100}  # fmt: skip
    assert from_config({**sizes, **config}, "c").get("parallel", "") == parallel
