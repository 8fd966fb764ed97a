"""Data types of weights that nobody states."""

from __future__ import annotations

from calibration.tables.requests import InferencePoint, inference_point
from predictor.catalog import ServingPlanSpec, parse
from predictor.precision import WEIGHT_BYTES
from predictor.serving import complete_serving
from predictor.timing import RunParameters

RUN = RunParameters()
ROW = {
    "point_id": "a", "source": "paper", "published": "2024-09", "accelerator": "H100-SXM5-80GB",
    "num_gpus": 1, "tp": 1, "pp": 1, "model": "llama3-70b", "batch": 1, "input_len": 64,
    "output_len": 32, "framework": "vllm", "metric": "tpot_ms", "value": 20.0,
}  # fmt: skip


def weights(**columns: object) -> str:
    found = inference_point({**ROW, **columns}, RUN)
    assert isinstance(found, InferencePoint), found
    return str(found.request.plan.weights)


def asked(**fields: object) -> str:
    own = {"model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "batch": 1, "input_len": 64,
           "output_len": 32, **fields}  # fmt: skip
    return str(complete_serving(parse(ServingPlanSpec, own, "plan"), RUN).plan.weights)


def test_what_ran_fitted() -> None:
    """140 GB do not fit one accelerator of 80 GB; 70 GB do, where it multiplies fp8, and 36 GB do
    on any; on four accelerators nothing says that it was narrowed."""
    assert weights() == "fp8"
    assert weights(accelerator="A100-SXM4-80GB") == "int4_wo"
    assert weights(tp=4, num_gpus=4) == "bf16"
    assert weights(accelerator="A100-SXM4-80GB", tp=1, pp=2, num_gpus=2) == "bf16"
    assert weights(weights_precision="fp16") == "fp16"
    for one in ("H100-SXM5-80GB", "A100-SXM4-80GB"):
        assert 70e9 * WEIGHT_BYTES[weights(accelerator=one)] < 80e9


def test_what_is_asked_for_need_not_fit() -> None:
    """A request of which nobody says that it ran is of 16 bits, whether these fit or not: that they
    do not is an answer."""
    assert asked(tp=1) == "bf16"
    assert asked(model="llama3-70b", tp=1, dp=1) == "bf16"


def test_rows_have_the_weights_that_were_released() -> None:
    """As requests have that name the model."""
    assert weights(model="deepseek-r1", tp=8, num_gpus=8, accelerator="H200-SXM-141GB") == (
        asked(model="deepseek-r1", tp=8, accelerator="H200-SXM-141GB")
    )
    assert weights(model="gpt-oss-120b", tp=2, num_gpus=2) == "w4a16_mxfp4"
    assert weights(model="deepseek-r1", tp=16, num_gpus=16, weights_precision="bf16") == "bf16"


def test_engines_have_formats_of_their_own() -> None:
    assert asked(framework="llama.cpp") == "q4_k"
    assert asked(framework="llama.cpp", precision="fp16") == "fp16"
    assert asked(framework="nim") == "fp8"
    assert asked(framework="nim", accelerator="A100-SXM4-80GB") == "bf16"
    assert asked(framework="nim", model="gpt-oss-20b") == "w4a16_mxfp4"
    assert asked(framework="vllm") == "bf16"
