"""Packed documents: moments against drawn windows, limits, a traced job, whole predictions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reckon
from predictor.errors import InputError
from predictor.plans import DIVISIONS, timeline
from predictor.variation import packed, waiting_for
from predictor.variation.packing import SHORT, WINDOWS, cut, drawn, lengths_of, squares

LONG = {"gpus": 64, "tp": 8, "pp": 2, "cp": 2, "global_batch": 32, "seq_len": 131072,
        "micro_batch": 1, "recompute": "full"}  # fmt: skip


def windows(text: str, window: int, many: int) -> np.ndarray:
    """s2 of drawn windows."""
    ends = drawn(lengths_of(text), float(window), many)
    edges = np.union1d(ends, float(window) * np.arange(many + 1))
    of = np.minimum((edges[:-1] / window).astype(int), many - 1)
    return np.bincount(of, (np.diff(edges) / window) ** 2, many)


@pytest.mark.parametrize(
    ("text", "window"),
    [("wlb", 131072), ("wlb", 8192), ("wikipedia", 8192), ("lognormal:2000:1", 32768)],
)
def test_moments_of_windows(text: str, window: int) -> None:
    """The mean within 4 %, the spread within 12 %: what drawing 5,000 windows tells them to."""
    mean, spread, _ = squares(lengths_of(text), float(window))
    found = windows(text, window, 5000)
    assert mean == pytest.approx(found.mean(), rel=0.04)
    assert spread == pytest.approx(found.std(), rel=0.12)


def test_documents_that_fill_windows_are_counted_by_hand(tmp_path: Path) -> None:
    """One to a window is the sequence; eight to a window attend an eighth; longer ones are cut."""
    for length, share in ((4096, 1.0), (512, 1 / 8), (8192, 1.0)):
        own = packed(f"lognormal:{length}:0", "fixed", 4096.0, cp=4.0)
        assert own.document == pytest.approx(share * 4096)
        assert own.cv == 0.0
    file = tmp_path / "lengths"
    file.write_text("100\n300\n")
    padded = packed(str(file), "padded", 400.0)
    assert (padded.document, padded.useful) == (400.0, 0.5)
    assert packed("wlb", "unmasked", 4096.0).document == 4096.0


@given(st.lists(st.integers(1, 60), min_size=1), st.integers(1, 20))
def test_documents_that_are_cut_keep_their_tokens(lengths: list[int], window: int) -> None:
    """As many windows as each fills, and what is left of it, a single token too."""
    own, many = cut(np.array(lengths, float), float(window))
    assert float((own * many).sum()) == sum(lengths)
    assert ((own > 0) & (own <= window) & (many > 0)).all()
    pieces = sum(-(-length // window) for length in lengths)
    assert many.sum() == pieces


def test_stated_quantiles_are_those_of_the_lengths() -> None:
    """Straight between them; equal ones are equal documents, and what is not stated below the first
    is as long as that."""
    found = lengths_of("quantiles:0.5:1000:0.9:5000:1:20000")
    assert np.quantile(found, [0.1, 0.5, 0.7, 0.9]) == pytest.approx(
        [1000, 1000, 3000, 5000], rel=0.01
    )
    assert found.max() == pytest.approx(20000, rel=0.01)
    assert packed("quantiles:0:512:1:512", "fixed", 4096.0).document == pytest.approx(512.0)
    for wrong in ("", ":", ":0.5", ":0.5:x", ":0.9:10:0.5:20", ":0.5:20:0.9:10", ":2:10", ":0.5:0"):
        with pytest.raises(InputError, match="write quantiles:SHARE:TOKENS"):
            lengths_of("quantiles" + wrong)


def test_prolong_has_long_documents_of_its_own_length() -> None:
    """Of 77,932 lengths 2,571 have 10,000 tokens and more; those are taken twice, half of them as
    65,536: 3.2 % of the documents, which hold 41 % of the tokens of all."""
    found = lengths_of("prolong")
    assert np.mean(np.abs(found - 65536) < 1) == pytest.approx(2571 / (77932 + 2571), rel=0.03)
    share = found[found >= 10000].sum() / found.sum()
    assert 0.4 < share < 0.6


@settings(max_examples=8, deadline=None)
@given(st.integers(8, 17), st.sampled_from([2, 4, 8, 16]))
def test_masks_never_add_work(log2_window: int, cp: int) -> None:
    window = 2.0**log2_window
    fixed, balanced, unmasked = (
        packed("wlb", name, window, cp) for name in ("fixed", "balanced", "unmasked")
    )
    assert fixed.document == balanced.document <= unmasked.document == window
    assert balanced.cv == 0.0 <= fixed.cv
    assert 1.0 <= fixed.cp_load < cp
    whole, apart, best = (
        packed("wlb", "fixed", window, cp, division).cp_load for division in DIVISIONS
    )
    assert whole == fixed.cp_load
    assert 1.0 < best <= min(whole, apart)


@pytest.mark.parametrize("cv", [0.1, 0.3])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_unequal_micro_batches_against_the_played_pipeline(p: int, cv: float) -> None:
    """Within a fifth of the spread of a micro-batch, for pipelines half full and full."""
    random = np.random.default_rng(p)
    for m in (2 * p, 6 * p):
        found = []
        for _ in range(12):
            load = random.gamma(cv**-2, cv**2, m)
            found.append(one_forward_one_backward(load, p))
        alone = 3.0 * (m + p - 1)
        played = np.mean(found) / alone - 1.0
        told = float(waiting_for(cv, 2 * cv, float(p), float(m), 1.0))
        assert told == pytest.approx(played, abs=0.2 * cv + 2 * np.std(found) / alone / 12**0.5)


def one_forward_one_backward(load: np.ndarray, p: int) -> float:
    """Time of 1F1B whose passes take 1 and 2 times the load of a micro-batch."""
    m = len(load)
    order = timeline("1f1b", [1.0] * p, [2.0] * p, [0.0] * p, m)
    free, done = [0.0] * p, {}
    for event in sorted(order, key=lambda event: (event.start, event.stage)):
        k, i = event.stage, event.micro_batch
        if event.direction == "forward":
            before, length = done.get(("f", k - 1, i), 0.0), load[i]
        else:
            last = ("f", k, i) if k == p - 1 else ("b", k + 1, i)
            before, length = done[last], 2.0 * load[i]
        free[k] = max(free[k], before) + length
        done[(event.direction[0], k, i)] = free[k]
    return max(free)


def test_the_slowest_replica() -> None:
    """Against Monte Carlo of sums of gammas: a spread of 0.31, a skewness of 2.4 by construction
    of a gamma on a constant."""
    cv, skew = 0.31, 2.4
    shape = (2.0 / skew) ** 2
    scale = cv / math.sqrt(shape)
    random = np.random.default_rng(2)
    for dp, m in ((8, 8), (32, 8), (64, 4)):
        sums = 1.0 - shape * scale + random.gamma(shape, scale, (2000, dp, m))
        mean = sums.mean(axis=2).max(axis=1).mean()
        told = 1.0 + float(waiting_for(cv, skew, 1.0, float(m), float(dp)))
        assert told == pytest.approx(mean, rel=0.02)


def step(**more: Any) -> Any:
    return reckon.predict_train("llama3-8b", "dgx-h100", {**LONG, **more})


def test_packing_in_whole_predictions() -> None:
    """Unmasked windows, and documents that fill them, are what is predicted without documents, to
    the last bit; masks save time, balance saves more, and division by document more still; of
    padded sequences the padding is no output."""
    plain = step().step_time.value
    assert step(documents="wlb", packing="unmasked").step_time.value == plain
    assert step(documents="lognormal:131072:0").step_time.value == plain
    # What documents leave out is done by nobody: utilisations stay below the peak.
    assert step().mfu() == step(documents="wlb", packing="unmasked").mfu()
    assert max(step(documents="wlb", packing="balanced").mfu().values()) < 1.0
    fixed = step(documents="wlb").step_time.value
    divided = step(documents="wlb", cp_sharding="document").step_time.value
    best = step(documents="wlb", cp_sharding="document", packing="balanced").step_time.value
    assert best < divided < fixed < plain
    padded = step(documents="wlb", packing="padded")
    assert padded.step_time.value == plain
    share = padded.tokens_per_s / step().tokens_per_s
    assert share == pytest.approx(lengths_of("wlb").mean() / 131072, rel=1e-6)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a file nor one of wlb, wikipedia, dclm, prolong"):
        step(documents="wbl")
    with pytest.raises(InputError, match="packing needs"):
        step(packing="fixed")
    with pytest.raises(InputError, match="MEAN in tokens"):
        lengths_of("lognormal:many")
    empty = tmp_path / "none"
    empty.write_text("")
    with pytest.raises(InputError, match="no lengths"):
        lengths_of(str(empty))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_attend_token_by_token(ranks: int, tmp_path: Path) -> None:
    """A token sees those of its document before it in its window, 2 k + 1 of twice the square; rank
    i has chunks i and 2 c - 1 - i. Whole documents are shared evenly, shorter pieces of each as
    slow as `SHORT` says."""
    file, window = tmp_path / "lengths", 16
    file.write_text("3\n7\n20\n41\n")
    ends = drawn(lengths_of(str(file)), float(window), WINDOWS)
    token = np.arange(WINDOWS * window)
    bounds = np.union1d(np.append(ends, 0.0), window * np.arange(WINDOWS))
    begun = bounds[np.searchsorted(bounds, token, "right") - 1]
    work = (2 * (token - begun) + 1).reshape(WINDOWS, 2 * ranks, -1).sum(axis=2)
    load = np.array([work[:, i] + work[:, 2 * ranks - 1 - i] for i in range(ranks)])
    mean, sequence = load.mean(axis=0), load.max(axis=0)
    pieces = np.diff(np.append(bounds, WINDOWS * window))
    squared = np.bincount((bounds // window).astype(int), pieces**2, WINDOWS)
    linear = SHORT * window
    document = mean * (squared + linear * math.sqrt(ranks)) / (squared + linear)
    expected = [own.mean() / mean.mean() for own in (sequence, document)]
    expected.append(np.minimum(sequence, document).mean() / mean.mean())
    found = [
        packed(str(file), "fixed", float(window), float(ranks), way).cp_load for way in DIVISIONS
    ]
    assert found == pytest.approx(expected)


def test_two_documents_of_half_a_window_leave_every_rank_the_same() -> None:
    """Chunks of each cost 1, 3, 5 ... of the first: rank i has chunk i of one and chunk c - 1 - i
    of the other, 2 i + 1 and 2 (c - 1 - i) + 1, which add up to the same for all."""
    for ranks in (2, 4, 8):
        load = packed("lognormal:4096:0", "fixed", 8192.0, ranks).cp_load
        assert load == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("p", [4, 8])
def test_the_slowest_of_pipelines_against_played_ones(p: int) -> None:
    """What is beyond one pipeline's: mean of the longest of eight, of which each is 1F1B, within a
    fifth of the spread of a micro-batch."""
    cv, m, dp = 0.3, 2 * p, 8
    random = np.random.default_rng(p)
    alone = 3.0 * (m + p - 1)
    played = [
        [one_forward_one_backward(random.gamma(cv**-2, cv**2, m), p) / alone for _ in range(dp)]
        for _ in range(8)
    ]
    beyond = np.mean([max(row) - np.mean(row) for row in played])
    several, one = (float(waiting_for(cv, 2 * cv, float(p), float(m), n)) for n in (float(dp), 1.0))
    assert several - one == pytest.approx(beyond, abs=0.2 * cv)


@pytest.mark.parametrize("division", DIVISIONS)
def test_documents_as_long_as_windows_are_windows(division: str) -> None:
    """Ranks that divide them have as much, however they do."""
    whole = packed("quantiles:0:8192:1:8192", "fixed", 8192.0, 4.0, division)
    assert whole.document == pytest.approx(8192.0)
    assert whole.cp_load == 1.0


@pytest.mark.parametrize(
    "lengths", [[100.0, 300.0, 700.0], [50.0, 50.0, 999.0], [400.0], [250.0, 1700.0, 2600.0]]
)
def test_spread_and_skewness_are_those_of_the_pieces_that_windows_cut(lengths: list[float]) -> None:
    """Renewal reward: a piece q of a window brings q^2 where r q is due, r the mean; squares and
    cubes of what it brings beyond add up over pieces. Documents begin anywhere."""
    window, starts = 1000.0, (np.arange(2000) + 0.5) / 2000
    pieces, weights = [], []
    own, many = cut(np.array(lengths), window)
    for share, number in zip(own / window, many, strict=True):
        first = np.minimum(1.0 - starts, share)
        for each in (first, share - first):
            pieces.append(each)
            weights.append(np.full(len(starts), number))
    q, w = np.concatenate(pieces), np.concatenate(weights)
    due = (w * q).sum()
    rate = (w * q**2).sum() / due
    second, third = ((w * (q**2 - rate * q) ** k).sum() / due for k in (2, 3))
    mean, spread, skew = squares(np.array(lengths), window)
    assert mean == pytest.approx(rate, rel=1e-3)
    assert spread == pytest.approx(math.sqrt(second), rel=1e-3)
    assert skew == pytest.approx(third / second**1.5, rel=1e-2)
