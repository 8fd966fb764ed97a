"""Accelerators that a user describes, beside those of the catalog that are like them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.catalog import load
from predictor.catalog.alike import FURTHER, NEAR
from predictor.serving.prediction import predict_inference
from predictor.timing.relatives import machine_of, stand_in
from tests.predictor.work.served import CLUSTER, plan

MEASURED = ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X-192GB", "B200-SXM-180GB")
MORE = (
    ("memory_bandwidth_gbs", "l2_mb"),
    ("bf16_tflops", "fp16_tflops", "fp8_tflops", "fp4_tflops", "tf32_tflops", "fp32_tflops"),
)


def described(name: str, **times: float) -> dict[str, Any]:
    """The row of the catalog as somebody would write it in a file, some numbers multiplied."""
    row = catalog.to_mapping(catalog.spec_of("accelerators", name))
    own = {key: value for key, value in row.items() if value not in ("", None)}
    own |= {key: own[key] * by for key, by in times.items() if key in own}
    return {**own, "name": "one-of-mine"}


def seconds(accelerator: Any) -> tuple[float, float]:
    """A step of training [s] and a token of serving [s]."""
    plan = {"global_batch": 8, "seq_len": 4096, "gpus": 8, "tp": 2, "accelerator": accelerator}
    serve = {"tp": 2, "batch": 8, "input_len": 2048, "output_len": 32, "accelerator": accelerator}
    trained = reckon.predict_train("llama3-8b", "dgx-h100", plan)
    served = reckon.predict_infer("llama3-8b", "dgx-h100", serve)
    return trained.step_time.value, served.tpot.value


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_described_as_the_catalog_has_it_is_as_quick_and_as_sure(name: str) -> None:
    own = catalog.accelerator(described(name))
    assert own.relative is not None
    assert own.doubt == pytest.approx(0.0)
    assert seconds(described(name)) == pytest.approx(seconds(name), rel=1e-6)


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("keys", MORE, ids=["memory", "arithmetic"])
def test_more_of_anything_is_never_slower(name: str, keys: tuple[str, ...]) -> None:
    usual = seconds(described(name))
    for by in (1.02, 1.3, 1.7):
        more = seconds(described(name, **dict.fromkeys(keys, by)))
        assert all(m <= u * (1 + 1e-9) for m, u in zip(more, usual, strict=True))
        usual = more


ALONE = ("memory_bandwidth_gbs", "l2_mb", "memory_gib", "bf16_tflops")


@pytest.mark.parametrize("key", ALONE)
def test_more_of_one_thing_alone_is_never_slower_however_much(key: str) -> None:
    """Bytes of memory make nothing quicker; what is far beyond the catalog's goes on as it began;
    nor is a larger cache a slower one, in which benchmarks would have found their weights."""
    usual = seconds(described("H100-SXM5-80GB"))
    for by in (1.15, 4.0, 10.0) if key in ("memory_gib", "l2_mb") else (4.0, 10.0):
        more = seconds(described("H100-SXM5-80GB", **{key: by}))
        if key == "memory_gib":
            assert more == pytest.approx(usual, rel=1e-9)
        assert all(m <= u * (1 + 1e-9) for m, u in zip(more, usual, strict=True))
        usual = more


def test_a_catalog_machine_that_nobody_measured_is_itself_in_a_file() -> None:
    """An A800 is as near to an A100; written down by its name and numbers it is still the A800 of
    the catalog, as sure."""
    row = catalog.to_mapping(catalog.spec_of("accelerators", "A800-SXM4-80GB"))
    own = catalog.accelerator({key: value for key, value in row.items() if value})
    assert own is catalog.accelerator("A800-SXM4-80GB")
    assert own.relative is None


def test_doubt_grows_with_what_differs_and_is_none_of_its_own_far_away() -> None:
    doubts = []
    for by in (1.0, 1.02, 1.05):
        own = catalog.accelerator(described("H100-SXM5-80GB", memory_bandwidth_gbs=by))
        assert own.doubt == pytest.approx(FURTHER * np.sqrt(np.log(by)), abs=1e-9)
        doubts.append(own.doubt)
    assert doubts == sorted(set(doubts))
    far = described("H100-SXM5-80GB", memory_bandwidth_gbs=0.2 * np.exp(-NEAR))
    assert catalog.accelerator(far).relative is None
    assert (
        catalog.accelerator({**described("H100-SXM5-80GB"), "architecture": "mine"}).relative
        is None
    )


def test_what_was_measured_itself_stands_by_itself() -> None:
    """A card that somebody profiled is not told from the catalog's; a machine derived from it is
    told from it."""
    known = load("default")
    own = catalog.accelerator({**described("H100-SXM5-80GB"), "bf16_tflops": 800})
    assert own.relative is not None
    assert stand_in(own, known) == own.relative
    kernels = {
        (kind, dtype, own.name): replace(model, accelerator=own.name)
        for (kind, dtype, name), model in known.kernels.items()
        if name == "A100-SXM4-80GB"
    }
    profiled = replace(known, kernels={**known.kernels, **kernels})
    assert stand_in(own, profiled) is None
    more = replace(own, bandwidth=2.0 * own.bandwidth, relative=own)
    assert machine_of(more, profiled) is own
    assert machine_of(more, known) is own.relative
    # Its kernels are those that were measured on it: of another card, they take another time.
    model, cluster = catalog.model("llama3-8b"), replace(CLUSTER, accelerator=own)
    alike, itself = (
        float(predict_inference(model, cluster, plan(tp=1.0), one).latencies.tpot)
        for one in (known, profiled)
    )
    assert abs(itself / alike - 1.0) > 1e-3, "its kernels are those that were measured on it"
