"""What a request does not say of its engine, as a distribution."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import ServingPlanSpec, engine_named, parse
from predictor.errors import InputError
from predictor.serving import EXACT_STEPS, complete_serving, predict_inference
from predictor.serving.doubts import mixture, possible, quantiles

SHARES = (0.1, 0.5, 0.9)


def test_a_mixture_of_one_is_the_one():
    found = quantiles(np.log([3.0]), np.array([0.2]), SHARES)
    expected = [3.0 * np.exp(0.2 * NormalDist().inv_cdf(share)) for share in SHARES]
    assert found == pytest.approx(expected, rel=1e-3)
    assert quantiles(np.log([3.0, 3.0]), np.array([0.2, 0.2]), SHARES) == pytest.approx(found)


def test_a_mixture_of_two_that_are_sure_is_either():
    low, middle, high = quantiles(np.log([1.0, 100.0]), np.array([0.01, 0.01]), SHARES)
    assert low == pytest.approx(1.0, rel=0.03)
    assert high == pytest.approx(100.0, rel=0.03)
    assert low < middle < high


def test_releases_in_use_are_those_of_half_a_year():
    found = possible("vllm", "2026-01", None)
    releases = engine_named("vllm").releases
    assert found[0] == ("vllm", "0.14.0")
    assert all("2025-07" < releases[version] <= "2026-01" for _, version in found)
    assert possible("vllm", None, "0.9.2") == [("vllm", "0.9.2")]
    assert {name for name, _ in possible(None, None, None)} == {"vllm", "sglang", "tensorrt-llm"}
    assert possible("gpt-fast", None, None) == [("gpt-fast", "")]


def test_the_fact_that_moves_most_is_told():
    """Of vLLM in early 2026 it is asynchronous scheduling, on by default since 0.14."""
    fields = {"model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "tp": 1, "concurrency": 32,
              "input_len": 512, "output_len": 128, "framework": "vllm",
              "era": "2026-01"}  # fmt: skip
    found = mixture(parse(ServingPlanSpec, fields, "test"), catalog.load("default"))
    assert found.doubts[0].field == "scheduling"
    assert set(found.doubts[0].values) == {"overlapped", "serial"}
    for middle, low, high in found.values.values():
        assert low < middle < high


@pytest.mark.parametrize(
    ("accelerator", "engines"),
    [
        ("H100-SXM5-80GB", {"vllm", "sglang", "tensorrt-llm"}),
        ("MI300X-192GB", {"vllm-rocm", "sglang"}),
    ],
)
def test_what_nobody_named_runs_on_the_accelerator(accelerator: str, engines: set[str]) -> None:
    fields = {"model": "llama3-8b", "accelerator": accelerator, "tp": 1, "concurrency": 8,
              "input_len": 512, "output_len": 128, "era": "2025-06"}  # fmt: skip
    found = mixture(parse(ServingPlanSpec, fields, "test"), catalog.load("default"))
    assert {one.partition(" ")[0] for one in found.releases} == engines
    named = parse(ServingPlanSpec, {**fields, "framework": "tensorrt-llm"}, "test")
    if "tensorrt-llm" in engines:
        own = mixture(named, catalog.load("default"))
        assert {one.partition(" ")[0] for one in own.releases} == {"tensorrt-llm"}
    else:
        with pytest.raises(InputError, match="runs on NVIDIA's accelerators alone"):
            mixture(named, catalog.load("default"))


def test_the_interval_of_one_release_is_that_of_one_prediction():
    """Four fifths lie within z = 1.2816 standard deviations of the logarithm."""
    fields = {"model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "tp": 1, "concurrency": 8,
              "input_len": 512, "output_len": 128, "framework": "vllm",
              "version": "0.9.2"}  # fmt: skip
    spec, known = parse(ServingPlanSpec, fields, "test"), catalog.load("default")
    one = complete_serving(spec, known.run)
    alone = predict_inference(one.model, one.cluster, one.plan, one.sure(known), EXACT_STEPS)
    found = mixture(spec, known)
    z = NormalDist().inv_cdf(0.5 + known.interval_level / 2)
    middle, low, high = found.values["tpot"]
    assert middle == pytest.approx(float(alone.latencies.tpot), rel=0.01)
    for bound in (middle / low, high / middle):
        assert np.log(bound) == pytest.approx(z * float(alone.sigma["tpot"]), rel=0.01)
