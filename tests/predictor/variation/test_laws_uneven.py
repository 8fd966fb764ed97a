"""Unequal documents, experts and images against counts token by token and other libraries."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom

from predictor import catalog
from predictor.errors import InputError
from predictor.variation import Loads, busiest, packed, parse_loads, waiting_for
from predictor.variation.experts import GIVEN, load_of, take_loads
from predictor.variation.images import Tiles, busiest_replica, sums, tiles_of
from predictor.variation.order import clark, maximum, normal_maximum, pearson
from predictor.variation.packing import (
    WINDOWS,
    cut,
    drawn,
    lengths_of,
    packed_fields,
    squares,
    take_packing,
)


def test_documents_are_cut_to_windows() -> None:
    own, many = cut(np.array([5.0, 12.0, 3.0]), 5.0)
    assert dict(zip(own.tolist(), many.tolist(), strict=True)) == {2.0: 1.0, 3.0: 1.0, 5.0: 3.0}
    own, many = cut(np.array([3.0, 4.0]), 5.0)
    assert own.tolist() == [3.0, 4.0]
    assert many.tolist() == [1.0, 1.0]


def test_moments_are_integrals_over_where_documents_begin() -> None:
    """A window meets a document that begins anywhere from its own length before it to its end; it
    sees x of it. Tokens of a window are given, so that what varies is x^2 - r x, r its mean."""
    lengths, window = np.array([100.0, 250.0, 900.0]), 1000.0
    mean, spread, skew = squares(lengths, window)
    one = lengths.mean() / window

    def over(what: object) -> float:
        whole = 0.0
        for own in lengths / window:
            found, _ = quad(
                lambda at, own=own: what(min(at + own, 1.0) - max(at, 0.0)),  # type: ignore[operator]
                -own, 1.0, points=sorted((0.0, 1.0 - own)),
            )  # fmt: skip
            whole += found / len(lengths)
        return whole / one

    rate = over(lambda x: x * x)
    assert mean == pytest.approx(rate)
    variance = over(lambda x: (x * x - rate * x) ** 2)
    assert spread == pytest.approx(math.sqrt(variance))
    assert skew == pytest.approx(over(lambda x: (x * x - rate * x) ** 3) / variance**1.5)


@pytest.mark.parametrize("length", [40.0, 256.0, 300.0])
def test_equal_documents_fill_windows_alike_only_where_they_divide_them(length: float) -> None:
    mean, spread, skew = squares(np.full(5, length), 1024.0)
    if length == 256.0:
        assert (mean, spread, skew) == (0.25, 0.0, 0.0)
    else:
        assert mean < length / 1024.0
        assert spread > 0.0
    assert squares(np.full(5, 1e7), 1000.0)[0] == 1.0


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_window_attend_token_by_token(tmp_path: Path, ranks: int) -> None:
    """Token i of a document sees i + 1 of it, or 2 i + 1 halves; rank r has chunks r and
    2 c - 1 - r of every window. Divided by document, each rank has its share of the squares, and of
    what goes by the token the root of the ranks times its share."""
    window = 64
    file = tmp_path / f"lengths{ranks}"
    file.write_text("5\n24\n61\n130\n")
    ends = drawn(lengths_of(str(file)), float(window), WINDOWS)
    edges = sorted({0.0, *ends.tolist(), *(float(window * k) for k in range(WINDOWS + 1))})
    lengths = np.diff(edges)
    token = np.concatenate([2.0 * np.arange(n) + 1.0 for n in lengths])
    chunks = token.reshape(WINDOWS, 2 * ranks, -1).sum(axis=2)
    load = np.stack([chunks[:, r] + chunks[:, 2 * ranks - 1 - r] for r in range(ranks)], axis=1)
    whole = load.sum() / load.size
    by_sequence = load.max(axis=1)
    of = (np.array(edges[:-1]) // window).astype(int)
    squared, tokens = np.bincount(of, lengths**2), np.bincount(of, lengths)
    more = (squared + 1100.0 * tokens * math.sqrt(ranks)) / (squared + 1100.0 * tokens)
    by_document = more * load.mean(axis=1)
    best = np.minimum(by_sequence, by_document)
    for division, own in (("sequence", by_sequence), ("document", by_document), ("adaptive", best)):
        found = packed(str(file), "fixed", float(window), float(ranks), division).cp_load
        assert found == pytest.approx(own.mean() / whole)


def test_drawn_documents_fill_their_windows_and_no_more() -> None:
    ends = drawn(np.array([10.0, 90.0]), 200.0, 50)
    assert 200.0 * 50 - 90.0 <= ends[-1] < 200.0 * 50
    assert set(np.diff(ends).tolist()) == {10.0, 90.0}


def test_lognormal_lengths_have_their_mean_and_their_spread() -> None:
    own = lengths_of("lognormal:2000:0.5")
    assert own.mean() == pytest.approx(2000.0, rel=0.002)
    assert np.log(own).std() == pytest.approx(0.5, rel=0.005)
    assert np.all(np.diff(own) >= 0)
    assert np.median(own) == pytest.approx(2000.0 * math.exp(-0.125), rel=0.001)


@pytest.mark.parametrize("numbers", ["0:1", "1e9:1", "10:-0.1", "10:10", "10", "10:1:1", "x:1"])
def test_lognormals_that_no_documents_have_are_refused(numbers: str) -> None:
    with pytest.raises(InputError, match="lognormal:MEAN:SIGMA"):
        lengths_of(f"lognormal:{numbers}")


def test_files_of_lengths_hold_tokens(tmp_path: Path) -> None:
    for text in ("0.5\n", "1e9\n", "3 x\n"):
        file = tmp_path / f"bad{len(text)}"
        file.write_text(text)
        with pytest.raises(InputError, match="no lengths of at least one token"):
            lengths_of(str(file))
    one = tmp_path / "one"
    one.write_text("7 1\n")
    assert lengths_of(str(one)).tolist() == [1.0, 7.0]


def test_a_plan_has_what_its_packing_comes_to() -> None:
    """A micro-batch of four sequences varies half as much; whole sequences are not divided."""
    found = packed("wlb", "fixed", 8192.0, 4.0)
    values = packed_fields({"documents": "wlb"}, 8192.0, 4.0, 4.0, whole=False)
    assert values == {
        "document": found.document, "attention_load": found.cp_load, "useful": 1.0,
        "attention_cv": found.cv / 2.0, "attention_skew": found.skew / 2.0,
    }  # fmt: skip
    assert packed_fields({"documents": "wlb"}, 8192.0, 1.0, 4.0, whole=True)["attention_load"] == 1
    stated = {"documents": "wlb", "packing": "padded", "tp": 2}
    assert take_packing(stated) == {"documents": "wlb", "packing": "padded"}
    assert stated == {"tp": 2}
    assert packed("wlb", "fixed", 8192.0).cp_load == 1.0


@pytest.mark.parametrize(("p", "m", "n"), [(1.0, 8.0, 16.0), (4.0, 8.0, 1.0), (4.0, 1.0, 16.0)])
def test_waiting_for_unequal_micro_batches_by_its_terms(p: float, m: float, n: float) -> None:
    """Without skewness: the longest of p on its way, while a pipeline is full, and the longest of
    n replicas, whose m micro-batches vary by a root of m less, and by p^0.3 more in a pipeline."""
    late = 0.2 * float(normal_maximum(p)[0]) * (m - 1.0) / (m + p - 1.0)
    apart = 0.2 * p**0.3 / math.sqrt(m) * float(normal_maximum(n)[0])
    assert float(waiting_for(0.2, 0.0, p, m, n)) == pytest.approx(late + apart, rel=1e-3)


def test_counts_of_drawn_loads_are_negative_binomial() -> None:
    """Gamma-distributed loads whose tokens are counted: mean, spread and skewness of SciPy's."""
    a, experts, ranks, copies = 0.8, 64, 8, 200.0
    shape = a * experts / ranks
    mean, variance, skew = nbinom(shape, shape / (shape + copies)).stats("mvs")
    most, _ = maximum(lambda tail: pearson(tail, float(skew)), float(ranks))
    expected = 1.0 + math.sqrt(variance) / mean * float(most)
    found = busiest(Loads("dirichlet", a), experts, 2, ranks, copies)
    assert (found.load, found.dropped) == (pytest.approx(expected), 0.0)


def test_counts_where_experts_are_dealt_are_those_where_they_are_not() -> None:
    """Of even experts it makes no difference who has which: drawn noise against the closed form."""
    closed = busiest(Loads("even"), 64, 2, 16, 400.0).load
    dealt = busiest(Loads("even"), 64, 2, 16, 400.0, placement="balanced").load
    assert dealt - 1.0 == pytest.approx(closed - 1.0, rel=0.15)
    assert busiest(Loads("even"), 64, 2, 16, placement="balanced").load == pytest.approx(1.0)


def test_one_hot_tokens_go_to_the_same_experts() -> None:
    """Four of 64: 16 times the mean of each, which a capacity of two cuts to an eighth; ranks that
    have more than those four are all idle but theirs."""
    cut_off = busiest(Loads("one-hot"), 64, 4, 32, capacity=2.0)
    assert (cut_off.load, cut_off.dropped) == (2.0, 7 / 8)
    assert busiest(Loads("one-hot"), 64, 4, 8).load == 8.0
    assert busiest(Loads("one-hot"), 64, 4, 32, capacity=100.0).dropped == 0.0
    alone = busiest(Loads("file", weights=(3.0, 1.0)), 2, 1, 1, capacity=1.2)
    assert (alone.load, alone.dropped) == (pytest.approx(0.6 + 0.25), pytest.approx(0.15))


def test_loads_are_what_they_are_when_nothing_is_said() -> None:
    assert parse_loads("dirichlet") == Loads("dirichlet", 1.0)
    assert parse_loads("zipf") == Loads("zipf", 0.6)
    assert math.isnan(parse_loads("even").number)
    for text in ("zipf:0", "dirichlet:1e6", "zipf:-1"):
        with pytest.raises(InputError, match="or the like"):
            parse_loads(text)


@pytest.mark.parametrize("text", ["1 -0.1", "0 0", "", "1 inf", "a"])
def test_files_of_loads_hold_shares(tmp_path: Path, text: str) -> None:
    file = tmp_path / "loads"
    file.write_text(text)
    with pytest.raises(InputError, match="holds no numbers from 0 up"):
        parse_loads(str(file))


def test_a_request_says_what_its_loads_come_to() -> None:
    """Experts that differ seven to one on two ranks, a capacity of 1.2 times the mean."""
    model = catalog.model("mixtral-8x7b")
    stated = {"expert_loads": "one-hot", "expert_capacity": 1.0, "tp": 1}
    own = take_loads(stated)
    assert stated == {"tp": 1}
    found = load_of(own, model, 4.0)
    assert (found.field, found.value) == ("expert_load", 1.0)
    assert found.rule.endswith("4 ranks, loads one-hot; 75.0 % of the token copies are dropped")
    repeated = load_of({"expert_loads": "even", "expert_replicas": 8}, model, 4.0, 512.0)
    assert repeated.rule.endswith("loads even, 8 replicas")
    assert repeated.value == round(repeated.value, 4) > 1.0
    placed = load_of({"expert_loads": "even", "expert_placement": GIVEN}, model, 4.0)
    assert placed.value == 1.0
    with pytest.raises(InputError, match="expert_placement needs"):
        take_loads({"expert_placement": GIVEN})


def test_replicas_share_what_most_comes_to() -> None:
    """Loads of 6, 2, 1, 1: two copies more of the first are 2 each; dealt over three ranks of two:
    2 + 1, 2 + 1, 2 + 2."""
    law = Loads("file", weights=(6.0, 2.0, 1.0, 1.0))
    assert busiest(law, 4, 1, 3, replicas=2).load == pytest.approx(3 * 4 / 10)


def test_the_larger_of_two_that_move_together_is_less() -> None:
    """Of two alike with correlation r: m + s sqrt((1 - r) / pi); wholly alike: one of them."""
    for r in (-0.5, 0.0, 0.6):
        mean, spread = clark((1.0, 0.2), (1.0, 0.2), r)
        late = 0.2 * math.sqrt((1.0 - r) / math.pi)
        assert float(mean) == pytest.approx(1.0 + late)
        assert float(spread) == pytest.approx(math.sqrt(0.2**2 - late**2))
    same = clark((1.0, 0.2), (1.0, 0.2), 1.0)
    assert [float(one) for one in same] == pytest.approx([1.0, 0.2])


def test_skewed_values_end_where_their_gamma_does() -> None:
    """-2 / skew; skewness of nothing is the normal's."""
    tails = np.array([0.9999999, 0.5])
    assert pearson(tails, 2.0)[0] == pytest.approx(-1.0, rel=1e-6)
    assert np.all(pearson(np.linspace(0.01, 1.0 - 1e-12, 50), 2.5) >= -2.0 / 2.5)
    assert pearson(np.array([0.1]), 1e-7) == pytest.approx(1.2815515655446004)


def test_tiles_are_counted_from_files(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("# counts\ntiles,samples\n1,3\n4,1\n1,4\n")
    found = tiles_of(str(own))
    assert found.shares == (0.0, 7 / 8, 0.0, 0.0, 1 / 8)
    assert sums(found, 3).sum() == pytest.approx(1.0)
    assert len(sums(found, 3)) == 4 * 3 + 1
    for text in ("-1,1", "1,0", "x,1"):
        own.write_text(f"tiles,samples\n{text}\n")
        with pytest.raises(InputError, match="columns tiles and samples"):
            tiles_of(str(own))


def test_one_replica_or_no_tiles_make_nobody_wait() -> None:
    assert busiest_replica(Tiles((0.5, 0.5)), 3, 1) == 1.0
    assert busiest_replica(Tiles((1.0,)), 3, 8) == 1.0
