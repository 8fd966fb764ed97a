"""Words of a plan in other people's spelling."""

from __future__ import annotations

import pytest

from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS


@pytest.mark.parametrize(
    ("field", "said", "meant"),
    [
        ("precision", "AWQ", "int4_wo"),
        ("precision", "W4A16", "int4_wo"),
        ("precision", "w8a8", "sq"),
        ("precision", "FP8-block", "fp8_block"),
        ("precision", "Q4_K_M", "q4_k"),
        ("kv_precision", "fp8_e4m3", "fp8"),
    ],
)
def test_serving(field: str, said: str, meant: str) -> None:
    assert getattr(parse(ServingPlanSpec, {field: said}, "here"), field) == meant


@pytest.mark.parametrize(
    ("field", "said", "meant"),
    [
        ("precision", "bfloat16", "bf16"),
        ("sharding", "ZeRO-3", "zero3"),
        ("sharding", "FSDP2", "fsdp"),
        ("recompute", "block", "full"),
        ("recompute", "Off", "none"),
    ],
)
def test_training(field: str, said: str, meant: str) -> None:
    assert getattr(parse(TrainingPlanSpec, {field: said}, "here"), field) == meant


@pytest.mark.parametrize("said", ["awqq", "fp8_blok", "int5", ""])
def test_what_is_no_word_is_refused(said: str) -> None:
    with pytest.raises(InputError, match="is not one of"):
        parse(ServingPlanSpec, {"precision": said}, "here")


def test_other_words_mean_one_of_the_choices_and_never_hide_one() -> None:
    for field in (*SERVING_FIELDS.values(), *TRAINING_FIELDS.values()):
        for word, choice in (field.words or {}).items():
            assert choice in field.choices, (field.name, word)
            assert word not in field.choices, (field.name, word)
