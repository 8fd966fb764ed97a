"""State-space hybrids: counts by hand, published sizes, and the paper's own yardstick."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.pipeline import stages
from predictor.plans.placement import blocks
from predictor.plans.training import TrainingPlan
from predictor.timing.kernels import operator_times
from predictor.work.communication import step_collectives
from predictor.work.training import step_operators
from tests.predictor.work.served import of_step

Make = Callable[..., TrainingPlan]
NANO = catalog.model("nemotron-3-nano-30b-a3b")
H8B = catalog.model("nemotron-h-8b")
SCAN = ("scores", "within", "states", "between", "pass")


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("nemotron-h-8b", 8.1, 8.1),
        ("nemotron-h-56b", 56.3, 56.3),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.6),
        ("nemotron-3-super-120b-a12b", 120.6, 12.7),
        ("moonlight-16b-a3b", 16.0, 2.9),
    ],
)
def test_parameters_are_those_that_are_published(name: str, total: float, active: float) -> None:
    model = catalog.model(name)
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.01)


def test_a_layer_of_a_hybrid_is_one_block(plan: Make) -> None:
    """Nemotron 3 Nano: 23 state-space, 23 mixture and 6 attention blocks."""
    made = plan(tp=1.0, pp=1.0)
    held = blocks(NANO, made, stages(NANO, made))
    found = of_step(NANO, made)
    assert held["layer"][2] == 52
    assert held["moe"][2] == 23
    assert held["dense"][2] == 0
    assert held["layer"][2] * found["mamba.in"].count == pytest.approx(23)
    assert held["layer"][2] * found["attention.qkv"].count == pytest.approx(6)


def test_projections_are_mamba_2s(plan: Make) -> None:
    """Gate and channels (2 x 4096), B and C (2 x 8 x 128), step sizes (64)."""
    found = of_step(NANO, plan(tp=1.0))
    assert (found["mamba.in"].n, found["mamba.in"].k) == (2 * 4096 + 2 * 8 * 128 + 64, 2688)
    assert (found["mamba.out"].n, found["mamba.out"].k) == (2688, 4096)


def test_the_scan_costs_the_same_per_token_however_long_the_sequence(plan: Make) -> None:
    short, long = (of_step(NANO, plan(tp=1.0, seq_len=s)) for s in (4096.0, 32768.0))
    for part in SCAN:
        assert long[f"mamba.{part}"].flop == 8 * short[f"mamba.{part}"].flop
    # Within chunks of 128: half the keys of dense attention over 256 tokens.
    assert short["mamba.within"].flop == 2 * 4096 * 128 * 4096


def test_the_scan_takes_as_long_as_flash_attention_over_2048_tokens(plan: Make) -> None:
    """Dao and Gu 2024, figure 10, on A100. FlashAttention-2 as published: 190 TFLOP/s forward at
    that length (Dao 2023, figure 5); twice that for its backward pass's arithmetic of 2.5."""
    accelerator = catalog.accelerator("A100-SXM4-80GB")
    operators = step_operators(H8B, plan(tp=1.0, seq_len=8192.0))
    timing = operator_times(operators, accelerator, load("kernels-only"), ())
    spent = {"forward": 0.0, "backward": 0.0}
    for operator, time in zip(operators, timing.time, strict=True):
        if operator.name.split(".")[0] == "mamba" and operator.name.split(".")[1] in SCAN:
            spent[operator.phase] += float(time)
    flash = 0.5 * 4 * 8192 * 2048 * H8B.mamba_width / 190e12
    assert spent["forward"] == pytest.approx(flash, rel=0.25)
    assert spent["backward"] == pytest.approx(2.5 * flash, rel=0.25)


def test_its_products_are_tensor_parallel(plan: Make) -> None:
    made = plan(tp=8.0, sequence_parallel=1.0)
    gathered = {c.name: c for c in step_collectives(NANO, made)}["mamba.in.gather"]
    assert gathered.bytes == 2.0 * 2048 * 2688
    assert float(gathered.count) == pytest.approx(23 / 52)
    one, eight = (of_step(NANO, plan(tp=t)) for t in (1.0, 8.0))
    for part in ("in", "out", "within", "states", "between"):
        assert eight[f"mamba.{part}"].flop * 8 == one[f"mamba.{part}"].flop
