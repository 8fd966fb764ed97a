"""Weights of which nobody says the data type: as sure one by one as among others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from predictor.catalog import ServingPlanSpec, load, parse
from predictor.serving import complete_serving
from predictor.timing import UNSAID_SPREAD
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import predict_each_serving, sweep_serving

BASE = load("default")
KNOWN = replace(
    BASE, serving=replace(BASE.serving, sigma={**BASE.serving.sigma, UNSAID_SPREAD: 0.4})
)
ASKED = {
    "model": "llama3-8b", "system": "dgx-h100", "framework": "vllm", "tp": 1, "batch": 8,
    "input_len": 512, "output_len": 64,
}  # fmt: skip
SAID = {**ASKED, "precision": "bf16"}


def test_weights_that_nobody_says_are_less_sure() -> None:
    """By what is fitted, in every metric; times are those of the data type that is assumed."""
    said, asked = (sweep_serving(one, KNOWN, "test").predictions[0] for one in (SAID, ASKED))
    for metric, value in said.batch.sigma.items():
        expected = math.hypot(float(value), 0.4)
        assert float(asked.batch.sigma[metric]) == pytest.approx(expected), metric
    assert asked.tpot.value == said.tpot.value
    assert asked.tpot.high / asked.tpot.low > said.tpot.high / said.tpot.low


def test_as_sure_among_others_as_alone() -> None:
    alone = [sweep_serving(one, KNOWN, "test").predictions[0] for one in (SAID, ASKED)]
    for order in ((SAID, ASKED), (ASKED, SAID)):
        found = predict_each_serving(list(order), KNOWN, "test")
        for asked, one in zip(order, found, strict=True):
            assert isinstance(one, ServingResult)
            assert one.e2e == alone[asked is ASKED].e2e


def test_a_checkpoint_says_it() -> None:
    for model, guessed in (("llama3-8b", True), ("gpt-oss-20b", False), ("deepseek-r1", False)):
        fields = {**ASKED, "model": model, "system": "dgx-h200", "tp": 8}
        found = complete_serving(parse(ServingPlanSpec, fields, "plan"), KNOWN.run)
        assert found.guessed == guessed
