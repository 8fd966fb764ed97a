"""Rows that describe a model: what is refused, what contradicts itself, what follows."""

from __future__ import annotations

import pytest

from calibration.tables.dimensions import described, model_of
from calibration.tables.runs import Point, Skipped, point_of
from predictor.errors import InputError
from predictor.timing import RunParameters


@pytest.mark.parametrize(
    ("name", "family", "has"),
    [
        ("bert-large", None, "an encoder only"),
        ("BERT 3.9B", None, "an encoder only"),
        ("own", "T5", "an encoder and a decoder"),
        ("Switch-C", "moe", "an encoder and a decoder"),
        ("Mamba2-5B", None, "state spaces whose sizes"),
        ("RWKV-7-2.9B", None, "linear attention alone"),
    ],
)
def test_stated_dimensions_make_no_decoder_of_another_model(
    name: str, family: str | None, has: str
) -> None:
    sizes = {"layers": 24, "hidden": 1024, "heads": 16, "ffn_hidden": 4096, "vocab": 30528}
    with pytest.raises(InputError, match=f"is not predicted: it has {has}"):
        model_of({**sizes, "model": name, "family": family})
    assert model_of({**sizes, "model": "own", "family": "gpt"}).layers == 24
    assert model_of({**sizes, "model": "nemotron-h-8b"}).mamba_layers > 0


LLAMA = {
    "point_id": "a", "source": "s", "model": "llama3-8b", "accelerator": "H100-SXM5-80GB",
    "num_gpus": 64.0, "tp": 1.0, "pp": 1.0, "dp": 64.0, "global_batch": 64.0, "seq_len": 4096.0,
    "metric": "step_time_s", "value": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"global_batch": 16.0}, "global batch 16 is less than dp 64"),
        ({"micro_batch": 2.0}, "global batch 64 is less than dp 64 x micro-batch 2"),
        ({"params_b": 70.0}, "params_b 70, and llama3-8b has 8.03"),
        ({"model": "mixtral-8x7b", "params_b": 3.0}, "params_b 3, and mixtral-8x7b has 46.7"),
    ],
)
def test_rows_that_contradict_themselves_are_told(more: dict[str, object], reason: str) -> None:
    found = point_of({**LLAMA, **more}, RunParameters())
    assert isinstance(found, Skipped)
    assert found.reason == f"the row contradicts itself: {reason}"


@pytest.mark.parametrize(
    "more",
    [
        {"dp": None, "global_batch": 16.0},  # ranks that share a sequence
        {"micro_batch": 1.0},
        {"params_b": 8.0},
        {"params_b": 8030.0},  # millions
        {"model": "mixtral-8x7b", "params_b": 13.0},  # those that a token touches
        {"model": "llama3-70b-4layers", "params_b": 70.0},  # those of the whole model
    ],
)
def test_rows_that_agree_are_taken(more: dict[str, object]) -> None:
    assert isinstance(point_of({**LLAMA, **more}, RunParameters()), Point)


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        ("llama-like-7b", None, 32000),
        ("llama3-9b", None, 128256),
        ("qwen3-own", None, 151936),
        ("ours", "gemma2", 256000),
        ("ours", None, 32000),
        ("gpt-9b", None, 51200),
    ],
)
def test_words_that_nobody_counts_are_those_of_the_family(
    name: str, family: str | None, words: int
) -> None:
    sizes = {"layers": 36, "hidden": 4096, "heads": 32, "ffn_hidden": 11008}
    found, assumed = described({**sizes, "model": name, "family": family})
    assert found.vocab == words
    assert [(one.field, one.value) for one in assumed] == [("vocab", words)]
