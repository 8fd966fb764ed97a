"""Dated facts of software: each condition on either side of its boundary, releases and months."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.catalog.software import (
    CONDITIONS,
    Engine,
    Fact,
    Setting,
    month_of,
    version_of,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.models.model import Model

DEVICE = Accelerator(
    name="H100-SXM", architecture="hopper", peak={"bf16": 1e15, "fp8": 2e15}, memory=80 * 2.0**30,
    bandwidth=3e12, l2=5e7, l2_bandwidth=5e12, sms=132.0, vendor="NVIDIA",
)  # fmt: skip
DENSE = Model(name="m", layers=4, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=128,
              vocab=100, max_context=4096, family="llama")  # fmt: skip
AT = Setting(DEVICE, DENSE, weights="fp8", tp=4, dp=2, drafted=1)
MIXED = replace(DENSE, num_experts=4, top_k=2, expert_ffn_hidden=8)


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("memory_from", 80, 80.5), ("memory_below", 80.5, 80), ("accelerators", ["H100"], ["H200"]),
        ("other_than", ["H200"], ["H100"]), ("architectures", ["hopper"], ["ampere"]),
        ("vendor", "nvidia", "amd"), ("multiplies", "fp8", "fp4"), ("weights", ["fp8"], ["bf16"]),
        ("context_above", 4095, 4096), ("models", ["dense", "latent"], ["mixture", "sparse"]),
        ("families", ["llama"], ["qwen"]), ("tp_from", 4, 5), ("tp_below", 5, 4),
        ("dp_from", 2, 3), ("replicas", True, False), ("guesses", True, False),
    ],
)  # fmt: skip
def test_a_condition_on_either_side(name: str, yes: Any, no: Any) -> None:
    assert CONDITIONS[name](yes, AT)
    assert not CONDITIONS[name](no, AT)
    for value in (yes, no):
        fact = Fact("batch", 1, "", {name: value}, "file", "read")
        assert fact.holds(AT) is (value is yes)


def test_every_condition_is_asked() -> None:
    alone = Setting(DEVICE, MIXED)
    assert (alone.tp, alone.dp, alone.drafted, alone.weights) == (1, 1, 0, "bf16")
    assert CONDITIONS["replicas"](False, alone)
    assert CONDITIONS["guesses"](False, alone)
    assert CONDITIONS["models"](["mixture"], alone)
    assert CONDITIONS["models"](["separate"], alone)
    window = replace(MIXED, sliding_window=8)
    assert CONDITIONS["models"](["windowed"], replace(alone, model=window))
    half = replace(window, sliding_pattern="alternating")
    assert not CONDITIONS["models"](["windowed"], replace(alone, model=half))
    chosen = replace(MIXED, kv_lora_rank=8, index_topk=4)
    for kind in ("sparse", "latent"):
        assert CONDITIONS["models"]([kind], replace(alone, model=chosen))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.11.2rc1", (0, 11, 2)), ("0.2", (0, 2, 0)), ("v1", (1, 0, 0)), ("1.2.3.4", (1, 2, 3, 4)),
     ("25.04-py3", (25, 4, 0)), ("0.5rc2.7", (0, 5, 0))],
)  # fmt: skip
def test_releases_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_of(text) == numbers


def test_what_is_no_release_and_no_date() -> None:
    with pytest.raises(InputError, match="version 'main' begins with no number"):
        version_of("main")
    with pytest.raises(InputError, match="era 'soon' is not a date"):
        month_of("soon")
    assert (month_of("2024"), month_of("2024-03")) == ("2024-06", "2024-03")


FACTS = (
    Fact("batch", 1, "", {}, "a", "read"), Fact("batch", 2, "0.2", {}, "b", "memory"),
    Fact("batch", 3, "0.3", {"tp_from": 8}, "c", "read"),
    Fact("length", "context", "", {}, "d", "read"),
)  # fmt: skip
ENGINE = Engine("one", {"0.1": "2023-01", "0.2": "2023-06", "0.3": "2024-01"},
                ("2023-06", "2024-06"), "", FACTS)  # fmt: skip


def test_releases_and_their_months() -> None:
    """A release that is not listed is of the month of the last before it; one before all of the
    first's."""
    for version, month in (("0.1", "2023-01"), ("0.2.5", "2023-06"), ("9", "2024-01"),
                           ("0.0.1", "2023-01")):  # fmt: skip
        assert ENGINE.month(version) == month
    for era, version in ((None, "0.3"), ("neutral", "0.3"), ("2023-06", "0.2"), ("2023", "0.2"),
                         ("2023-05", "0.1"), ("2022-12", "")):  # fmt: skip
        assert ENGINE.version(era) == version
    none = replace(ENGINE, releases={})
    assert none.version(None) == none.version("2024-01") == ""
    with pytest.raises(InputError, match="no releases of one are known"):
        none.month("0.1")


def test_periods_share_parameters_up_to_their_last_month() -> None:
    for era, label in ((None, "one"), ("neutral", "one"), ("2023-06", "one until 2023-06"),
                       ("2023-07", "one until 2024-06"), ("2024-07", "one")):  # fmt: skip
        assert ENGINE.label(era) == label


def test_the_last_fact_that_holds_decides() -> None:
    def told(setting: Setting, era: str | None, version: str = "", engine: Engine = ENGINE) -> Any:
        found = {one.field: one for one in engine.defaults(setting, era, version)}
        return found["batch"].value, found["length"].value, found["batch"].rule

    assert told(AT, None) == (2, 4096, "one 0.3: b, since 0.2; memory")
    assert told(replace(AT, tp=8), None)[0] == 3
    assert told(replace(AT, tp=8), None)[2] == "one 0.3: c, since 0.3 where tp_from 8"
    assert told(AT, "2023-01") == (1, 4096, "one 0.1: a")
    assert told(AT, None, "0.2")[0] == 2
    assert told(AT, "2022-01")[0] == 1, "before all releases what holds from the beginning"
    # A model that says nothing of its context has the usual one.
    assert told(replace(AT, model=replace(DENSE, max_context=0)), None)[1] == 2048
    # Engines without releases date their facts.
    dated = replace(ENGINE, releases={}, facts=(FACTS[0], replace(FACTS[1], since="2023-06"),
                                                FACTS[3]))  # fmt: skip
    for era, value in (("2023-05", 1), ("2023-06", 2), (None, 2), ("neutral", 2)):
        assert told(AT, era, engine=dated)[0] == value
