"""What others gained by evening out work: sign and size of published gains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.models import Model, Tower
from predictor.plans.serving import ServingPlan
from predictor.serving.prediction import predict_inference
from predictor.training import complete_training, dealt_step

KNOWN = load("default")

# Model, window, ranks of a sequence, replicas; gain of balanced packing divided by document over
# fixed windows divided as a whole, with kernels that cost what their squares say and links that
# cost nothing (8 micro-batches, 4 stages): METHOD_UNEVEN, section 2.
IDEAL = [
    ("gpt3-6.7b", 65536, 2, 2, 1.24),
    ("gpt3-6.7b", 131072, 2, 2, 1.25),
    ("gpt3-6.7b", 131072, 4, 2, 1.55),
    ("gpt3-6.7b", 163840, 4, 1, 1.36),
    ("llama3-70b", 131072, 8, 2, 1.52),
]


def packing_gain(model: str, window: int, cp: int, dp: int) -> float:
    """Fixed windows divided as a whole over balanced ones divided adaptively."""
    plan = {
        "tp": 8, "pp": 4, "cp": cp, "gpus": 32 * cp * dp, "global_batch": 8 * dp, "micro_batch": 1,
        "seq_len": window, "recompute": "full", "documents": "wlb",
    }  # fmt: skip
    fixed, even = (
        reckon.predict_train(model, "dgx-h100", {**plan, **more}).step_time.value
        for more in ({"packing": "fixed"}, {"packing": "balanced", "cp_sharding": "adaptive"})
    )
    return fixed / even


def test_balanced_packing_gains_what_wlb_llm_gained() -> None:
    """1.23 on average (arXiv 2503.17924), and no more than the ideal, but for 3 % by which closed
    forms and its Monte Carlo may differ."""
    gains = []
    for model, window, cp, dp, ideal in IDEAL:
        gains.append(packing_gain(model, window, cp, dp))
        assert 1.05 < gains[-1] <= 1.03 * ideal
    assert np.mean(gains) == pytest.approx(1.23, abs=0.08)


def prompts_gain(model: Model, system: str, nodes: bool, batch: float) -> float:
    """Throughput of prompts with the best number of chunks over that without, less 1; `nodes`:
    experts on a node each."""
    cluster = catalog.system(system)
    if nodes:
        cluster = replace(cluster, tiers=cluster.tiers[1:])
    plan = ServingPlan(
        batch=batch, input_len=4096.0, output_len=64.0, tp=1.0, dp=8.0, ep=8.0, serving=1.0,
        expert_chunks=np.array([1.0, 2.0, 3.0, 4.0, 8.0]),
    )  # fmt: skip
    found = predict_inference(model, cluster, plan, KNOWN)
    times = found.prompts.compute + found.prompts.communication
    return float(times[0] / times.min() - 1.0)


def test_experts_in_chunks_gain_at_most_what_eps_moe_gained() -> None:
    """21 % of prompt throughput on average, 52 % at most (arXiv 2410.12247), which also chooses
    kernels by load: pipelines alone bring something nearly everywhere, on average 5 to 21 %, and
    at best between the published mean and the published best."""
    names = ("deepseek-v2", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3")
    gains = [
        prompts_gain(catalog.model(name), system, nodes, 32.0)
        for name in names
        for system in ("dgx-h100", "dgx-a100")
        for nodes in (False, True)
    ]
    assert min(gains) >= 0.0
    assert 0.05 < np.mean(gains) < 0.21
    assert 0.21 < max(gains) < 0.524


def test_images_and_layers_dealt_evenly_gain_what_omnibal_gained() -> None:
    """1.8 times on an encoder of 6 billion parameters before a language model of 20 (arXiv
    2407.20761): between stages of as many layers of either with images as they come, and stages
    of as much work with as many tiles to every replica. Sign and size: 1.5 to 2.1."""
    language = replace(
        catalog.model("llama2-70b"), layers=48, hidden=6144, heads=48, kv_heads=8, head_dim=128,
        ffn_hidden=16384, vocab=92544,
        tower=Tower("vision", 45, 3200, 25, 12800, 1025, 256, patch_width=588, merged=4),
    )  # fmt: skip
    plan = {
        "system": "dgx-a100", "tp": 8, "pp": 4, "gpus": 256, "global_batch": 512, "seq_len": 2048,
        "micro_batch": 1, "recompute": "full", "images": 1,
    }  # fmt: skip

    def step(**more: Any) -> tuple[float, list[Any]]:
        spec = parse(TrainingPlanSpec, {**plan, **more}, "test")
        request = complete_training(spec, KNOWN.run, model=language)
        found, dealt = dealt_step(request, KNOWN)
        return float(found.step_time), list(dealt.shares)

    tiles = 0.5 * (2.49 + 4.75)
    even, shares = step(image_tiles=tiles)
    uneven, _ = step(image_samples="both", image_tiles=tiles)
    data = uneven / even
    assert 1.0 < data < 1.4
    encoder, last = shares[0], shares[-1]
    per = encoder.time / encoder.tower
    by_count = max(per * 24, last.time / max(last.layers, 1) * 24)  # 93 layers on four stages
    model = by_count / max(one.time for one in shares)
    assert model > 1.0
    assert 1.5 < data * model < 2.1
