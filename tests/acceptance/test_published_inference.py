"""Published runs of inference that state their layout in full, against the default calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.serving.engines import parameters_of
from calibration.serving.timed import published, timed, values
from calibration.tables.requests import InferencePoint, inference_point
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.serving import ServingPlan
from predictor.serving.passes import body
from predictor.timing.engines import ServingParameters

TABLE = Path(__file__).parents[3] / "shared" / "reference" / "inference.csv"
pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason="needs ../shared/reference")

SOURCES = {
    # Median error: engines fitted to the source too; kernels and documented defaults alone.
    "gpt_fast": (0.15, 0.35),
    "lmdeploy_a100_fp16": (0.12, 0.2),
    # Its fp8 products are those of another CDNA3 and of other vendors; nothing is of its engine.
    "rocm_vllm_devdocker": (0.1, 0.25),
}

ENOUGH = 90
"""Rows of a source, about, whose median is looked at."""


@pytest.mark.parametrize("source", SOURCES)
def test_decoding_of_static_batches(source: str) -> None:
    table = pd.read_csv(TABLE, low_memory=False)
    table = table[(table.source == source) & (table.metric != "ttft_ms")]
    table = table.iloc[:: max(len(table) // ENOUGH, 1)]
    calibration = load("default")
    made = [inference_point(row, calibration.run) for row in table.to_dict("records")]
    points = [p for p in made if isinstance(p, InferencePoint) and not p.flagged]
    found, refused = timed(points, calibration)
    assert not refused
    for own, most in zip((calibration.serving, ServingParameters()), SOURCES[source], strict=True):
        predicted = values(found, parameters_of(found, own.engines))[0]
        error = np.abs(np.log(predicted / published(found)))
        assert np.median(error) < most


BOUNDS = TABLE.with_name("gemm_bound_llama2_13b_derived.csv")
PROJECTIONS = {
    "QKV": "attention.qkv",
    "out proj": "attention.out",
    "gate+up": "mlp.up",
    "down": "mlp.down",
}


@pytest.mark.skipif(not BOUNDS.is_file(), reason="needs ../shared/reference")
@pytest.mark.parametrize(("system", "column"), [("dgx-a100", "A100"), ("dgx-h100", "H100")])
def test_what_bounds_every_projection(system: str, column: str) -> None:
    """Llama-2 13B at batch 1 (Kundu et al. 2024, section 5), derived row by row."""
    model, cluster = catalog.model("llama2-13b"), catalog.system(system)
    plan = ServingPlan(batch=1.0, input_len=200.0, output_len=200.0)
    table = pd.read_csv(BOUNDS)
    table = table[table.gemm.isin(PROJECTIONS)]
    assert len(table) == 8
    for row in table.to_dict("records"):
        rows = float(row["M"])
        found = body(
            model, cluster, plan, rows, 1.0, load("default"), captured=False, sustained=False
        )
        line = next(one for one in found.lines if one.name == PROJECTIONS[row["gemm"]])
        assert line.bound == {"compute": "compute", "DRAM": "memory"}[row[f"{column}_bound"]]
        ratio = row["intensity"] / row[f"{column}_ridge"]
        assert line.intensity == pytest.approx(ratio, rel=0.01)
