"""Laws of every work list, of models of every kind: what more of the same adds, and what the
backward pass is of the forward one."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.work.primitives import Operator
from predictor.work.serving import decode_attention, layer_operators, prefill_attention
from predictor.work.training import step_operators

TRAINED = (
    "gpt3-175b", "llama3-8b", "gemma3-12b", "falcon-40b", "bloom-7b1", "mpt-7b", "mixtral-8x7b",
    "deepseek-v3", "gpt-oss-120b", "llama4-scout-17b-16e", "qwen3-next-80b-a3b", "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b", "lfm2-8b-a1b", "lfm3-1.7b", "trinity-mini", "ling-3.0-flash",
    "falcon-h1-34b", "jamba-1.5-mini", "falcon-mamba-7b",
)  # fmt: skip
SERVED = (*TRAINED, "deepseek-v3.2", "glm-5", "glm-5.2", "glm-5.3-flash", "hy4-770b-a49b")


def totals(found: list[Operator], what: str) -> dict[str, float]:
    """An extensive quantity of each kernel, over how often it runs."""
    sums: dict[str, float] = {}
    for one in found:
        key = f"{one.module} {one.name} {one.phase}"
        sums[key] = sums.get(key, 0.0) + float(getattr(one, what)) * float(one.count)
    return sums


def grows_evenly(one: list[Operator], two: list[Operator], three: list[Operator]) -> None:
    """Work in proportion to how much there is; traffic and what is kept by equal steps: what is
    read once whatever there is, weights, is their intercept and not below nothing. Of experts,
    more tokens ask for more, and for ever fewer that none has asked for yet."""
    first, second = totals(one, "flop"), totals(two, "flop")
    assert second == pytest.approx({key: 2 * value for key, value in first.items()}, rel=1e-9)
    chosen = {f"{made.module} {made.name} {made.phase}" for made in one if made.op == "moe_gemm"}
    for what in ("bytes", "saved"):
        a, b, c = (totals(found, what) for found in (one, two, three))
        for key, least in a.items():
            assert 0 <= least <= b[key] <= 2 * least * (1 + 1e-9)
            even = 2 * b[key] - least
            if key in chosen:
                assert b[key] <= c[key] <= even * (1 + 1e-9)
            else:
                assert c[key] == pytest.approx(even, rel=1e-9)


def step(name: str, micro_batch: float, tp: float = 2.0) -> list[Operator]:
    plan = TrainingPlan(
        tp=tp, pp=1.0, dp=1.0, micro_batch=micro_batch, global_batch=8 * micro_batch, seq_len=4096.0
    )
    return step_operators(catalog.model(name), plan)


@pytest.mark.parametrize("name", TRAINED)
def test_larger_micro_batches_are_more_of_the_same(name: str) -> None:
    grows_evenly(*(step(name, float(many)) for many in (1, 2, 3)))


@pytest.mark.parametrize("name", TRAINED)
def test_only_forward_passes_keep_anything(name: str) -> None:
    assert all(float(one.saved) == 0 for one in step(name, 1.0) if one.phase != "forward")


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_twice_the_products(name: str) -> None:
    """A product's two gradients are a product of its size each (Narayanan et al. 2021, appendix);
    scans form some states again, less than a hundredth of the products of a model."""
    spent = {"forward": 0.0, "backward": 0.0}
    for one in step(name, 1.0):
        if one.op in ("gemm", "moe_gemm"):
            spent[one.phase] += float(one.flop) * float(one.count)
    ratio = spent["backward"] / spent["forward"]
    scans = catalog.model(name).mamba_groups or catalog.model(name).delta_layers
    assert 2.0 < ratio < 2.01 if scans else ratio == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("name", SERVED)
def test_more_sequences_are_more_of_the_same(name: str) -> None:
    """Decoding at equal contexts, and prompts of equal lengths, with as many experts busy."""
    model = catalog.model(name)
    plan = ServingPlan(batch=1.0, input_len=1024.0, output_len=64.0, tp=2.0)
    for read in (decode_attention, prefill_attention):
        found = [read(model, plan, float(many), 2048.0) for many in (1, 2, 3)]
        grows_evenly(*found)
    one, two, three = (layer_operators(model, plan, 4096.0 * many) for many in (1, 2, 3))
    grows_evenly(one, two, three)
