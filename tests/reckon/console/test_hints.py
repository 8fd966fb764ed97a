"""Flags as people call them, numbers as people write them, and what is stated twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS
from reckon.console.cli import main
from reckon.console.hints import CALLED

Cli = Callable[..., tuple[int, str, str]]

TRAIN = ["predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "8",
         "--seq-len", "8192", "--calibration", "kernels-only"]  # fmt: skip


FLEET = ["plan", "infer", "--model", "llama3-8b", "--system", "dgx-h100", "--rate", "2",
         "--input-len", "512", "--output-len", "64"]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--gpus", "8"], "a search takes a load, --rate X"),
        (["--set", "gpus=8"], "tp, pp and dp bound an engine"),
        (["--set", "slo_ttft_ms=300"], "a search takes --ttft-ms"),
        (["--set", "turns=4"], "turns is of a single engine: ask reckon predict infer"),
        (["--report", "fleets.pdf"], "give a FILE.html"),
    ],
)
def test_what_a_search_of_fleets_would_pass_over_is_refused(
    capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    """`gpus`, promises of one engine and its clients were dropped without a word."""
    assert main([*FLEET, *more]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_promise_of_one_engine_is_stated_by_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "infer", *FLEET[2:], "--ttft-ms", "300"]) == 2
    assert "--set slo_ttft_ms=..." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--tensor-parallel-size", "8"], "it is --tp here"),
        (["--num_gpus", "8"], "it is --gpus here"),
        (["--price", "2"], "it is --price-per-gpu-hour here"),
        (["--trained", "lora"], "--set trained=..."),
        (["--lora-rank", "8"], "--set lora_rank=..."),
        (["--tpp", "8"], "--tpp"),
        (["--tp", "4", "--set", "tp=2"], "--tp 4 and --set tp=2: give one"),
        (["--tokens", "15X"], "tokens"),
        (["--era", "2031-13"], "is not a date"),
    ],
)
def test_what_a_flag_is_called_here(
    capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    assert main([*TRAIN, "--global-batch", "64", *more]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_flags_that_are_named_are_there() -> None:
    keys = {name.replace("_", "-") for name in (*TRAINING_FIELDS, *SERVING_FIELDS)}
    assert set(CALLED) <= keys | {"gpus", "system"}
    assert not [
        name for names in CALLED.values() for name in names if name in CALLED and name != "batch"
    ]


def days(capsys: pytest.CaptureFixture[str], batch: str, tokens: str) -> tuple[float, float]:
    assert main([*TRAIN, "--global-batch", batch, "--tokens", tokens, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["step_time_s"]["value"], found["training"]["days"]["value"]


def test_numbers_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    """15 T tokens are 15e12, and 1e3 sequences 1,000."""
    assert days(capsys, "1e3", "15T") == days(capsys, "1000", "15e12")


def test_a_port_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "99999999"]) == 2
    assert "65535" in capsys.readouterr().err


def test_a_group_without_a_verb_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Usage: reckon predict")
    assert "\n  train " in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show"], "give KIND, as in 'reckon show models"),
        (["sweep"], "give GRID.yaml, as in 'reckon sweep"),
        (["profile", "--budget", "10"], "give --out, as in 'reckon profile"),
        (["predict", "rl", "--model", "x"], "takes a file"),
        (["nothing-like-it"], "Known: predict, plan"),
    ],
)
def test_what_is_missing_is_said_with_an_example(cli: Cli, words: list[str], told: str) -> None:
    status, out, err = cli(*words)
    assert (status, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
