"""Modules of PyTorch are many small operators, whose launches the host pays one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reckon
from predictor import catalog
from predictor.plans import ServingPlan
from predictor.serving.modules import ALONE, SMALL, launches
from predictor.work.primitives import gemm, grouped
from predictor.work.serving import decode_attention, layer_operators

LLAMA = catalog.model("llama1-7b")
ASKED = {"concurrency": 1, "input_len": 60, "output_len": 200, "precision": "fp16"}


def plan(**fields: str) -> ServingPlan:
    return ServingPlan(batch=1.0, input_len=60.0, output_len=200.0, **fields)


def layer(own: ServingPlan) -> float:
    """Launches of one layer that decodes."""
    listed = [*layer_operators(LLAMA, own, 1.0), *decode_attention(LLAMA, own, 1.0, 100.0)]
    return sum(float(launches(one, own)) for one in listed)


def test_a_layer_of_llama_is_49_small_operators_where_modules_compose_it() -> None:
    """modeling_llama.py of 4.31 by hand: two norms of 8, three projections, 14 of rotation and
    cache, 8 of attention, 2 with the sum behind it, 2 up, 2 between, 2 down; nine of them are what
    an engine launches, the other forty cost half of one each."""
    assert layer(plan()) == 9.0
    assert layer(plan(modules="apart", fusion="unfused")) == pytest.approx(9.0 + 0.5 * 40.0)
    assert layer(plan(modules="apart")) == pytest.approx(9.0 + 0.5 * 35.0)


def test_experts_that_run_one_by_one_are_launched_one_by_one() -> None:
    def one(busy: float) -> float:
        product = grouped(
            "moe.experts", "layer", "bf16", 1.0, 14336.0, 4096.0, busy, gated=True, size=2.0
        )
        return float(launches(product, plan(modules="apart")))

    assert one(8.0) - one(4.0) == pytest.approx(0.5 * 12.0 * 4.0)


def test_the_host_binds_transformers_and_not_an_engine_on_the_same_card() -> None:
    """Twice the layers take twice the time at half the width; a card twice as fast gains nothing:
    some .8 to 1.1 ms a layer (ML.ENERGY's first sweep: 33 ms on A100 and V100 for 32 layers)."""
    times = {}
    for name in ("A100-SXM4-40GB", "H100-SXM5-80GB", "V100-SXM2-32GB"):
        asked = {**ASKED, "framework": "huggingface", "era": "2023-07", "gpus": 1}
        times[name] = reckon.predict_infer("llama1-7b", name, asked).tpot.value
    assert times["H100-SXM5-80GB"] == pytest.approx(times["A100-SXM4-40GB"], rel=0.05)
    assert times["V100-SXM2-32GB"] == pytest.approx(times["A100-SXM4-40GB"], rel=0.05)
    assert times["A100-SXM4-40GB"] == pytest.approx(33e-3, rel=0.25)
    engine = reckon.predict_infer("llama1-7b", "H100-SXM5-80GB", {**ASKED, "framework": "vllm"})
    assert engine.tpot.value < times["H100-SXM5-80GB"] / 3.0


def test_few_bits_are_unpacked_around_every_matrix() -> None:
    """Three matrices of queries, keys and values, two of a gated layer; in four bits a row by
    itself is multiplied as it is."""
    apart = plan(modules="apart", weights="int8_wo")
    four = replace(apart, weights="int4_wo")
    plain = replace(apart, weights="bf16")

    def more(name: str, rows: float, own: ServingPlan) -> float:
        one = gemm(name, "fwd", "forward", "layer", "bf16", m=rows, n=64.0, k=64.0)
        return float(launches(one, own)) - float(launches(one, plain))

    for name, matrices in (("attention.qkv", 3), ("attention.out", 1), ("mlp.up.wide", 2)):
        assert more(name, 1.0, apart) == pytest.approx(SMALL * 28.0 * matrices)
        assert more(name, 16.0, four) == pytest.approx(SMALL * 6.0 * matrices)
        assert more(name, 1.0, four) == pytest.approx(SMALL * ALONE * matrices)
    assert more("head", 16.0, apart) == 0.0
    assert more("mlp.up", 16.0, replace(apart, modules="joined")) <= 0.0


def test_neuron_sent_scores_through_memory_until_it_had_a_kernel_for_long_prompts() -> None:
    """transformers_neuronx/layers/attention.py: score, mask and softmax over the whole square
    @ 0623de2 (the SDK's 2.18), `flash_attention` from 4,096 tokens on @ c8d6bdc (2.19)."""
    asked = {
        "gpus": 16, "tp": 16, "batch": 1, "input_len": 8192, "output_len": 4, "precision": "bf16",
        "framework": "transformers-neuronx",
    }  # fmt: skip
    old, new = (
        reckon.predict_infer("llama2-13b", "Trainium1-32GB", {**asked, "version": version})
        for version in ("2.18.0", "2.19.0")
    )
    assert old.ttft.value > 1.3 * new.ttft.value
