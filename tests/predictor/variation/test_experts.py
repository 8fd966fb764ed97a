"""The busiest rank of a mixture: against Monte Carlo, by hand, and through whole predictions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reckon
from predictor.errors import InputError
from predictor.variation import Loads, busiest, parse_loads

EP = {"gpus": 64, "tp": 1, "pp": 4, "ep": 16, "global_batch": 256, "seq_len": 4096,
      "micro_batch": 1, "recompute": "full"}  # fmt: skip


@pytest.mark.parametrize(("a", "ranks"), [(0.5, 32), (1.0, 32), (2.0, 8), (5.0, 64)])
def test_dirichlet_loads_are_within_one_per_cent_of_monte_carlo(a: float, ranks: int) -> None:
    drawn = np.random.default_rng(7).dirichlet([a] * 256, 20_000)
    mean = ranks * drawn.reshape(20_000, ranks, -1).sum(axis=2).max(axis=1).mean()
    assert busiest(Loads("dirichlet", a), 256, 8, ranks).load == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(8, 2, 8), (256, 8, 32), (64, 6, 8)])
def test_the_more_uneven_the_busier_up_to_one_copy_of_every_token(
    experts: int, top_k: int, ranks: int
) -> None:
    """However uneven: an expert has one copy of each token at most, as where all ask for it."""
    most = busiest(Loads("one-hot"), experts, top_k, ranks).load
    for kind, numbers in (
        ("dirichlet", (1e3, 10.0, 1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-9, 1e-300)),
        ("zipf", (0.01, 0.3, 1.0, 2.0, 5.0, 100.0)),
    ):
        found = [busiest(Loads(kind, one), experts, top_k, ranks, 4096.0).load for one in numbers]
        assert all(b >= 0.97 * a for a, b in itertools.pairwise(found)), (kind, found)
        assert max(found) <= most
        assert found[-1] == pytest.approx(most, rel=0.02)


def test_chance_alone() -> None:
    """Tokens that fall evenly are counted: 64 ranks of 512 copies each, and of 8,192."""
    for copies in (512, 8192):
        counts = np.random.default_rng(3).poisson(copies, (4000, 64))
        mean = counts.max(axis=1).mean() / copies
        found = busiest(Loads("even"), 256, 8, 64, copies).load
        assert found == pytest.approx(mean, rel=0.01)
    assert busiest(Loads("even"), 256, 8, 64).load == 1.0
    assert busiest(Loads("zipf", 1.0), 256, 8, 1).load == 1.0


@pytest.mark.parametrize(("a", "copies"), [(0.5, 20.0), (2.0, 100.0)])
def test_uneven_tokens_are_counted_too(a: float, copies: float) -> None:
    """Loads that are drawn, of which each rank gets a number by chance."""
    lots = np.random.default_rng(11)
    share = 8 * lots.dirichlet([a * 32] * 8, 20_000)
    mean = (lots.poisson(copies * share) / copies).max(axis=1).mean()
    found = busiest(Loads("dirichlet", a), 256, 8, 8, copies).load
    assert found == pytest.approx(mean, rel=0.01)


def test_counted_tokens_of_stated_loads_vary_as_their_root() -> None:
    """Of eight alike ranks: the mean largest of as many normal numbers, 1.4236 (Harter 1961)."""
    even = Loads("file", weights=(1.0,) * 64)
    for copies in (1e4, 1e6):
        found = busiest(even, 64, 8, 8, copies).load
        assert (found - 1.0) * np.sqrt(copies) == pytest.approx(1.4236, rel=0.03)


def test_zipf_by_hand() -> None:
    """Four experts of 1, 1/2, 1/3, 1/4 on two ranks of two: the pairs of the first with each of
    the others, alike in likelihood; dealt: 1 with 1/4, 1/2 with 1/3; one replica each for the two
    busiest: pieces 1/2 1/2 1/4 1/4 1/3 1/4."""
    whole = 1 + 1 / 2 + 1 / 3 + 1 / 4
    pairs = np.mean([max(1 + other, whole - 1 - other) for other in (1 / 2, 1 / 3, 1 / 4)])
    law = Loads("zipf", 1.0)
    assert busiest(law, 4, 1, 2).load == pytest.approx(2 * pairs / whole, rel=0.01)
    assert busiest(law, 4, 1, 2, placement="balanced").load == pytest.approx(2 * 1.25 / whole)
    twice = busiest(law, 4, 1, 2, replicas=2).load
    assert twice == pytest.approx(2 * (1 / 2 + 1 / 3 + 1 / 4) / whole)


def test_a_single_copy_of_even_experts_is_dealt() -> None:
    """Seven experts and a copy of one on four ranks of two: six whole ones, of which two ranks have
    two each."""
    assert busiest(Loads("even"), 7, 1, 4, replicas=1).load == pytest.approx(4 * 2 / 7)


def test_what_one_expert_cannot_take_is_dropped() -> None:
    """Loads of 0.7 0.1 0.1 0.1 with a capacity of 1.2 times a quarter: 0.3 of the first is kept."""
    law = Loads("file", weights=(7.0, 1.0, 1.0, 1.0))
    found = busiest(law, 4, 1, 2, capacity=1.2)
    assert found.dropped == pytest.approx(0.4)
    assert found.load == pytest.approx(2 * (0.3 + 0.1))
    one = busiest(Loads("one-hot"), 64, 4, 32)
    assert (one.load, one.dropped) == (16.0, 0.0)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 1.5), st.sampled_from([2, 4, 8]), st.integers(0, 3))
def test_replicas_and_dealing_never_make_it_worse(s: float, ranks: int, more: int) -> None:
    """Greedy as both are, by more than 2 %."""
    law = Loads("zipf", s)
    given_, dealt, repeated = (
        busiest(law, 32, 2, ranks, placement=placement, replicas=replicas).load
        for placement, replicas in (("given", 0), ("balanced", 0), ("balanced", ranks * more))
    )
    assert 1.0 - 1e-9 <= repeated <= 1.02 * dealt
    assert dealt <= given_ + 1e-9


def test_loads_are_parsed_and_refused(tmp_path: Path) -> None:
    own = tmp_path / "loads.csv"
    own.write_text("3,1\n2 2\n")
    assert parse_loads(str(own)).weights == (3.0, 1.0, 2.0, 2.0)
    assert parse_loads("zipf:0.3") == Loads("zipf", 0.3)
    for text, words in (
        ("zipf:x", "write zipf:0.6"), ("even:2", "takes no number"), ("hot", "neither a file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            parse_loads(text)
    with pytest.raises(InputError, match="4 numbers for 8 experts"):
        busiest(parse_loads(str(own)), 8, 1, 2)
    with pytest.raises(InputError, match="no multiple of ep 4"):
        busiest(Loads("even"), 8, 1, 4, replicas=2)


def step(**more: Any) -> Any:
    return reckon.predict_train("deepseek-v3", "dgx-h100", {**EP, **more})


def test_a_step_waits_for_the_busiest_rank() -> None:
    """Stated loads are the load that they come to; the busiest rank's all-to-all, products and
    memory grow with it."""
    found = step(expert_loads="zipf:0.6")
    load = next(one.value for one in found.request.assumed if one.field == "expert_load")
    same, even = step(expert_load=load), step(expert_load=1.0)
    assert found.step_time.value == same.step_time.value > even.step_time.value
    told, level = found.to_dict(), even.to_dict()
    for term in ("forward", "ep_communication"):
        assert told["breakdown_s"][term] > level["breakdown_s"][term]
    assert told["memory"]["peak_gb"] > level["memory"]["peak_gb"]
    with pytest.raises(InputError, match="not both"):
        step(expert_loads="even", expert_load=1.2)
    with pytest.raises(InputError, match="expert_capacity needs"):
        step(expert_capacity=1.2)
