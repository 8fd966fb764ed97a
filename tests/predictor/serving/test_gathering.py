"""First tokens where requests arrive at random: by hand, and against passes made one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.serving.gathering import (
    MOST,
    PassLengths,
    first_token_quantile,
    gathered,
    numbers,
    pass_lengths,
)
from predictor.serving.latency import WAITING_SHARE, riding
from predictor.serving.pass_times import DeviceTime
from predictor.serving.prompts import beside
from tests.predictor.serving import bare

OWN = replace(bare.BARE, request=0.2)


def work(**fields):
    """Passes of 0.1 s; one prompt by itself takes 0.3 s, of many in a pass each 0.04 s."""
    base = {"prompts": DeviceTime(0.4, 0.0, 10.0), "together": 10.0,
            "single": DeviceTime(0.3, 0.0, 10.0), "apart": 1.0}  # fmt: skip
    return bare.work(**{**base, **fields})


def quantile(one, rate, others, share):
    return float(first_token_quantile(one, OWN, np.array(rate), np.array(others), share))


def test_who_meets_nothing_waits_for_its_own_prompt():
    of = pass_lengths(work(), OWN)
    for share in (0.1, 0.5, 0.99):
        assert quantile(work(), 1e-9, 1e-9, share) == pytest.approx(float(of.alone) + 0.2)


@pytest.mark.parametrize("overlapped", [0.0, 1.0])
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_who_meets_no_prompts_waits_for_the_rest_of_a_pass(overlapped, apart):
    """Anywhere in it; and for one more where that is prepared already."""
    one = work(overlapped=overlapped, apart=apart)
    of = pass_lengths(one, OWN)
    for share in (0.1, 0.5, 0.9):
        found = quantile(one, 1e-9, 1e3, share)
        assert found == pytest.approx(
            float((share + overlapped) * of.step + of.first) + 0.2, rel=1e-4
        )


@given(st.floats(0.01, 8.0), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_passes_have_as_many_prompts_as_come(rate, step, more, part):
    """And their mean is that of those without, of first prompts and of the others."""
    first = step * more + 0.05
    of = PassLengths(*(np.array(v) for v in (step, first, part * first, first)))
    if rate * part * first > 0.8:
        return
    some, prompts, mean = (float(value) for value in gathered(np.array(rate), of))
    assert prompts == pytest.approx(rate * mean)
    assert 0 < some <= prompts
    parts = (1 - some) * step + some * first + (prompts - some) * part * first
    assert mean == pytest.approx(parts, rel=0.03)


@given(st.floats(0.01, 1.0), st.floats(1.0, 900.0))
def test_passes_of_many_prompts_are_told_apart_and_none_is_lost(some, each):
    """Shares add up to all passes and prompts to all that come; numbers are whole ones up to the
    last, and each is as much rarer than the one before as that was."""
    count, chance = numbers(np.array(some), np.array(some * each))
    assert chance.sum() == pytest.approx(1.0)
    assert (chance * count).sum() == pytest.approx(some * each)
    assert count[:-1].tolist() == list(range(MOST))
    assert chance[0] == pytest.approx(1.0 - some)
    assert chance[2:-1] == pytest.approx(chance[1:-2] * (1.0 - 1.0 / each), abs=1e-12)


@pytest.mark.parametrize(
    ("rate", "passes", "near", "each"),
    [(0.5, 40_000, 0.1, 0.04), (2.0, 40_000, 0.1, 0.04), (6.0, 40_000, 0.1, 0.04),
     (16.0, 10_000, 0.12, 0.04), (20.0, 5_000, 0.12, 0.04), (2.0, 8_000, 0.1, 0.2)],
)  # fmt: skip
@pytest.mark.parametrize("overlapped", [False, True])
def test_quantiles_are_those_of_passes_made_one_by_one(rate, passes, near, each, overlapped):
    """An engine that always decodes, with prompts that come at random; more than `MOST` gather in a
    pass at the highest rates."""
    prompts = DeviceTime(10.0 * each, 0.0, 10.0)
    one = work(overlapped=float(overlapped), chunk=1e9, prompts=prompts)
    of = pass_lengths(one, OWN)
    step, first = float(of.step), float(of.first)
    assert float(of.each) == pytest.approx(each)
    numbers = np.random.default_rng(3)
    now, came, read = 0.0, [], []
    before: list[float] = []  # came during the pass before the last one
    for _ in range(passes):
        ready, before = (before, came) if overlapped else (came, [])
        spent = first + (len(ready) - 1) * each if ready else step
        came = list(now + spent * numbers.random(numbers.poisson(rate * spent)))
        now += spent
        read += [now - at for at in ready]
    for share in (0.5, 0.9):
        found = quantile(one, rate, 1e3, share) - OWN.request
        assert found == pytest.approx(np.quantile(read, share), rel=near)
    prompts = float(gathered(np.array(rate), of)[1])
    assert prompts == pytest.approx(len(read) / passes, rel=0.03)


def test_first_tokens_are_later_the_more_arrive():
    found = [quantile(work(), rate, 20.0, 0.9) for rate in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("fields", "looks"),
    [
        ({"polling": 5.0}, 5.0),
        ({"polling": 5.0, "hold": 1.0, "running": 1.0}, 1.0),
        ({"polling": 1e3, "hold": 1.0, "running": 8.0}, 1.0 + (WAITING_SHARE - 1 / 8) * 100),
        (
            {"polling": 1e3, "hold": 1.0, "running": 8.0, "per_pass": 2.0},
            1.0 + (WAITING_SHARE - 1 / 8) * 50,
        ),
    ],
)
def test_who_looks_every_few_passes_is_late_by_a_share_of_them(fields, looks):
    """An idle engine's passes of 0.1 s; of 101 tokens a hundred follow the first."""
    one = work(output_len=101.0, **fields)
    found = quantile(one, 1e-9, 1e-9, 0.5)
    alone = float(pass_lengths(one, OWN).alone) + 0.2
    assert found == pytest.approx(alone + 0.5 * (looks - 1.0) * 0.1, rel=1e-6)


@pytest.mark.parametrize("passes", [1.0, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("many", [0.5, 3.0, 40.0])
def test_a_prompt_of_several_passes_has_them_to_itself(passes, many):
    """Each delays the others by all that it adds, however many there are; of prompts of one pass
    those that share it add their share of a full one."""
    own = replace(bare.BARE, mixing=0.5)
    one = bare.work(
        single=DeviceTime(0.3, 0.0, 10.0, passes), prompts=DeviceTime(0.4, 0.0, 10.0, 1.0),
        together=10.0, clients=np.inf, output_len=101.0,
    )  # fmt: skip
    prompt, after = np.array(0.04), 100.0
    found = float(riding(one, own, many, prompt, after))
    first, share = float(beside(one, own)), 0.5 * 0.04
    if passes > 1:
        assert found == pytest.approx(many * first)
    else:
        ones = after * (1.0 - np.exp(-many / after))
        assert found == pytest.approx(ones * first + (many - ones) * share)
    apart = replace(one, apart=np.asarray(1.0))
    assert float(riding(apart, own, many, prompt, after)) >= many * 0.04
