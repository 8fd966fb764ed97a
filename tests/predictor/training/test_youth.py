"""Steps take longer with the libraries of an architecture's first years."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reckon
from predictor.catalog.artifacts import load
from predictor.timing import RunParameters
from predictor.training import YOUNG, youth

SOLD = RunParameters(factors={YOUNG: 1.2}, sold={"hopper": "2022-10", "blackwell": "2024-12"})


def test_libraries_grow_up_in_three_years_from_the_first_sale() -> None:
    assert youth(SOLD, "hopper", "2022-10") == pytest.approx(1.2)
    assert youth(SOLD, "hopper", "2021") == pytest.approx(1.2)  # pre-production: no younger
    assert youth(SOLD, "hopper", "2024-04") == pytest.approx(1.2**0.5)
    assert youth(SOLD, "hopper", "2025-10") == youth(SOLD, "hopper", "2027") == 1.0
    assert 1.0 < youth(SOLD, "blackwell", "neutral") < youth(SOLD, "blackwell", "2025") < 1.2


def test_what_is_not_known_to_have_been_slow_is_not() -> None:
    """A100's first runs, of September 2020, took what their kernels did."""
    assert youth(SOLD, "ampere", "2020-09") == youth(SOLD, "tpu", "2020") == 1.0
    assert youth(replace(SOLD, factors={}), "hopper", "2023") == 1.0


def test_the_shipped_ratio_was_fitted_and_reaches_steps() -> None:
    run = load("default").run
    assert 1.05 < run.factors[YOUNG] < 1.3

    def step(system: str, era: str) -> float:
        plan = {
            "gpus": 8, "framework": "megatron-bridge", "era": era, "precision": "bf16",
            "global_batch": 64, "seq_len": 8192, "tp": 1, "pp": 1, "micro_batch": 1,
        }  # fmt: skip
        return float(reckon.predict_train("llama3-8b", system, plan).step_time.value)

    most = youth(run, "blackwell", "2025-03") / youth(run, "blackwell", "2025-09")
    assert 1.01 < step("DGX-B200", "2025-03") / step("DGX-B200", "2025-09") < most
    early, late = (step("DGX-H100", era) for era in ("2026-01", "2026-08"))
    assert early == pytest.approx(late, rel=0.02)  # grown up: what is left is dated software
