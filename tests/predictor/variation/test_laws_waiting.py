"""Waiting by its equations, written anew; layouts, links, shares and faults by hand."""

from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.variation import SILENT, Meeting, Series, waiting
from predictor.variation.faults import NONE, fault, faults
from predictor.variation.links import fair_shares, rerouted
from predictor.variation.meeting import late
from predictor.variation.montecarlo import ALLOCATIONS, MOST, _correlated, _pipelines, draw
from predictor.variation.order import clark, normal_maximum
from predictor.variation.profile import Profile, drawn
from predictor.variation.sharing import kept_of, shared
from predictor.variation.slow import placed


def e(n: float) -> float:
    return float(normal_maximum(n)[0])


def d(n: float) -> float:
    return float(normal_maximum(n)[1])


@pytest.mark.parametrize(("t", "p", "r"), [(1.0, 4.0, 16.0), (8.0, 4.0, 2.0), (2.0, 1.0, 8.0)])
@pytest.mark.parametrize("chunks", [1.0, 2.0])
def test_a_static_spread_decides_once(t: float, p: float, r: float, chunks: float) -> None:
    """m passes at the pace of the slowest of all, (p - 1) / v of filling at that of a group's; it
    varies from allocation to allocation by the same share, and from step to step not at all."""
    gpu, m = 0.03, 6.0
    found = waiting(Meeting(t, p, r, m, chunks=chunks), gpu, 0.0, SILENT)
    fill = (p - 1.0) / chunks
    everyone = t * p * r
    assert float(found.whole) == pytest.approx(gpu * (m * e(everyone) + fill * e(t)) / (m + fill))
    assert float(found.allocation) == pytest.approx(gpu * d(everyone) * m / (m + fill))
    assert float(found.step) == 0.0


def test_replicas_wait_for_the_unluckiest_of_those_about_as_slow() -> None:
    """Of pipelines of single ranks: noise averages over m k sections; what varies is that and the
    slowest of its stages together, less what does so anyway."""
    gpu, work, p, r, m, k = 0.01, 0.08, 4.0, 16.0, 6.0, 5.0
    found = waiting(Meeting(1.0, p, r, m, sections=k), gpu, work, SILENT)
    own, apart = work / math.sqrt(m * k), gpu * d(p)
    luck = e(r) * (math.hypot(apart, own) - apart)
    whole = gpu * m * e(p * r) / (m + p - 1.0) + luck
    assert float(found.whole) == pytest.approx(whole)
    alike = own / math.hypot(apart, own)
    assert float(found.step) == pytest.approx(own * (alike * d(r) + 1.0 - alike))


@pytest.mark.parametrize("t", [2.0, 4.0])
def test_ranks_of_a_section_wait_for_the_later_of_one_and_the_others(t: float) -> None:
    """Clark's larger of the slowest accelerator, with its noise, and of the slowest of the rest."""
    gpu, work, p, m = 0.02, 0.03, 3.0, 5.0
    found = waiting(Meeting(t, p, 1.0, m), gpu, work, SILENT)
    both = math.hypot(gpu, work)
    section, noise = clark((gpu * e(t * p), work), (both * e(t - 1.0), both * d(t - 1.0)))
    whole = (m * float(section) + (p - 1.0) * both * e(t)) / (m + p - 1.0)
    assert float(found.whole) == pytest.approx(whole)
    assert float(found.step) == pytest.approx(float(noise) / math.sqrt(m))


def test_a_layout_on_fewer_accelerators_loses_replicas_then_stages_then_ranks() -> None:
    whole = Meeting(8.0, 4.0, 16.0, 5.0, 2.0, 3.0)
    assert (whole.accelerators, Meeting(1.0, 1.0, 1.0, 1.0).sections) == (512.0, 1.0)
    assert Meeting(1.0, 1.0, 1.0, 1.0).chunks == 1.0
    lefts = {1000.0: (8, 4, 16), 64.0: (8, 4, 2), 16.0: (8, 2, 1), 4.0: (4, 1, 1)}
    for most, left in lefts.items():
        own = whole.of(most)
        assert (own.ranks, own.stages, own.replicas) == left
        assert (own.batches, own.chunks, own.sections) == (5.0, 2.0, 3.0)


def test_drawn_pipelines_are_a_flow_shop() -> None:
    """Two stages, three micro-batches: each waits for the one before and for the stage before; what
    is beyond the slowest stage's own work is divided by the chunks."""
    times = np.array([[[3.0, 1.0, 2.0], [1.0, 4.0, 1.0]]])
    # Stage 1 ends at 3, 4, 6; stage 2 at 4, 8, 9; its own work is 6, as the first one's.
    assert _pipelines(times, 1.0).tolist() == [9.0]
    assert _pipelines(times, 3.0).tolist() == [7.0]
    assert _pipelines(np.full((2, 3, 4), 2.0), 2.0).tolist() == [8.0 + 4.0 / 2.0] * 2


def test_a_correlated_series_has_its_spread_and_its_correlation() -> None:
    lots = np.random.default_rng(0)
    found = _correlated((200, 400), 0.5, 0.6, lots)
    assert found.std() == pytest.approx(0.5, rel=0.02)
    assert found[:, 0].std() == pytest.approx(0.5, rel=0.1)
    begun = np.corrcoef(found[:, 0], found[:, 1])[0, 1]
    assert begun == pytest.approx(0.6, abs=0.2), "from the first step on"
    one, two = (np.corrcoef(found[:, :-n].ravel(), found[:, n:].ravel())[0, 1] for n in (1, 2))
    assert (one, two) == (pytest.approx(0.6, abs=0.02), pytest.approx(0.36, abs=0.02))


STILL = Series(0.0, 0.0, 0.0, 0.0, SILENT)


def test_lots_that_nothing_varies_are_the_step_itself() -> None:
    found = draw(Meeting(2.0, 3.0, 2.0, 4.0, chunks=2.0), 0.0, 0.0, SILENT, STILL, draws=12)
    assert (found.shift, found.error) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.0))
    assert found.quantile == (1.0, 1.0, 1.0)


def test_slow_accelerators_lengthen_what_is_drawn() -> None:
    """All of them slow by a tenth and, on average, a hundredth more: a rank by itself is, too."""
    slow = Profile("own", slow_share=1.0, slow_least=0.1, slow_scale=0.01)
    found = draw(Meeting(1.0, 1.0, 1.0, 1.0), 0.0, 0.0, slow, STILL, draws=1200)
    assert found.shift == pytest.approx(0.11, abs=5 * 0.01 / math.sqrt(ALLOCATIONS))


def test_lots_know_how_sure_they_are() -> None:
    """Of a static spread of 8 accelerators: d_8 s from allocation to allocation, a root of
    `ALLOCATIONS` less for their mean; a pipeline that is half of the step spreads half as much."""
    meeting, many = Meeting(8.0, 1.0, 1.0, 1.0), []
    for seed in range(40):
        one = draw(meeting, 0.05, 0.0, SILENT, STILL, draws=ALLOCATIONS, seed=seed)
        many.append((one.shift, one.error))
    shift, error = np.array(many).T
    assert shift.mean() == pytest.approx(0.05 * e(8.0), rel=0.05)
    assert error.mean() == pytest.approx(0.05 * d(8.0) / math.sqrt(ALLOCATIONS), rel=0.1)
    noisy = [
        draw(
            Meeting(1.0, 1.0, 1.0, 1.0), 0.0, 0.1, SILENT, STILL, share, draws=1200, seed=7
        ).quantile[1]
        - 1.0
        for share in (1.0, 0.5)
    ]
    assert noisy[0] == pytest.approx(0.1 * 1.645, rel=0.15)
    assert noisy[0] / noisy[1] == pytest.approx(2.0, rel=0.05)


def test_the_more_chunks_the_nearer_to_the_slowest_stage() -> None:
    """Two micro-batches of 1 and 3 s on two stages: 1 + 2 x 3 s; the second that is no work of the
    slowest is divided by the chunks, wherever the slower stage is."""
    for stages in ([1.0, 3.0], [3.0, 1.0]):
        times = np.repeat(np.array(stages)[None, :, None], 2, axis=2)
        for chunks in (1.0, 2.0, 4.0):
            assert float(_pipelines(times, chunks)[0]) == pytest.approx(6.0 + 1.0 / chunks)


def test_means_of_lots_are_as_sure_as_a_sample_of_their_number() -> None:
    """Of accelerators by themselves that do not vary between steps: twelve draws of one."""
    for seed in (1, 2):
        lots = np.random.default_rng(seed)
        own = [float(drawn((1,), 0.05, SILENT, lots)[0]) for _ in range(ALLOCATIONS)]
        found = draw(Meeting(1.0, 1.0, 1.0, 1.0), 0.05, 0.0, SILENT, STILL, draws=12, seed=seed)
        assert found.shift == pytest.approx(mean(own))
        assert found.error == pytest.approx(stdev(own) / math.sqrt(ALLOCATIONS))


def test_lots_beyond_their_number_are_refused() -> None:
    fits = Meeting(1.0, 1.0, float(MOST), 1.0)
    assert 1e7 < MOST < 0.5e9 / 8  # half a gigabyte
    with pytest.raises(InputError, match="check a smaller plan"):
        draw(Meeting(2.0, 1.0, float(MOST), 1.0), 0.0, 0.0, SILENT, STILL)
    with pytest.raises(InputError, match="draw at least 12"):
        draw(fits, 0.0, 0.0, SILENT, STILL, draws=11)


def test_ranks_that_meet_wait_by_what_is_alike_and_by_what_is_drawn_anew() -> None:
    """10 s in 40 stretches of a quarter of a second: 10 hypot(0.03, 0.02 / sqrt(0.25)) = 0.5 s;
    whatever lasts four times as long between meetings averages twice as well."""
    work, meets = np.array([10.0, 10.0, 10.0]), np.array([40.0, 0.0, 1.0])
    found = late(work, meets, 0.03, 0.02)
    assert found.tolist() == pytest.approx(
        [0.5, 0.0, 10.0 * math.hypot(0.03, 0.02 / math.sqrt(10.0))]
    )
    drawn = [float(late(np.array(8.0), np.array(n), 0.0, 0.02)) for n in (4.0, 16.0)]
    assert drawn[1] == pytest.approx(2.0 * drawn[0])


def test_a_spine_is_shared_by_those_on_it() -> None:
    """Three jobs on a spine oversubscribed twice: it carries one and a half of three; of four times
    as many as jobs it still carries one's."""
    assert kept_of(2.0, 2.0) == pytest.approx(0.5)
    assert kept_of(0.0, 8.0) == pytest.approx(1.0)
    assert kept_of(3.0, 16.0) == pytest.approx(0.25)
    assert kept_of(1.0, 1.0) == pytest.approx(1.0)


def test_who_keeps_how_much_says_when_both_have_done() -> None:
    """3 s and 2 s, of which the one keeps a quarter and the other half: the other has done after
    4 s, of which the one has lost three quarters. On average it sends a tenth of its period of
    20 s, and each second that meets it lasts four."""
    found = shared(3.0, 2.0, 20.0, 0.25, 0.5)
    assert (float(found.worst), float(found.average)) == (3.0, pytest.approx(0.9))
    quick = shared(0.5, 2.0, 20.0, 0.25, 0.5)
    assert float(quick.worst) == pytest.approx(0.75 * 2.0)
    assert float(shared(3.0, 2.0, 2.0, 0.25, 0.5).average) == 3.0  # never more than the worst
    assert float(shared(3.0, 2.0, 20.0, 0.25).worst) == pytest.approx(0.75 * 8.0)
    for share, left in ((1.01, 0.5), (0.5, 0.0), (-0.1, 0.5)):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            shared(1.0, 1.0, 2.0, share, left)


def test_links_that_nobody_limits_have_no_bound() -> None:
    """A flow that crosses nothing is not settled; one that crosses a link twice has half of it."""
    found = fair_shares(np.array([6.0]), np.array([[2.0], [1.0], [0.0]]))
    assert found[:2].tolist() == [2.0, 2.0]
    assert math.isinf(found[2])
    three = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert fair_shares(np.array([10.0, 4.0]), three).tolist() == [8.0, 2.0, 2.0]


def test_what_has_failed_is_carried_by_the_rest() -> None:
    assert rerouted(3.0, 8.0) == 0.625
    assert rerouted(9.0, 8.0) == 0.0
    assert rerouted(0.0, 1.0) == 1.0
    for lost, of in ((-1.0, 8.0), (1.0, 0.5)):
        with pytest.raises(InputError, match="links that have failed"):
            rerouted(lost, of)


def test_units_that_are_slow_sit_somewhere() -> None:
    """On one stage there is no choice; none cost nothing; spread they reach the worst stage."""
    losses = np.array([0.3, 0.1])
    own = placed(losses, 1.0, 8.0)
    assert (own.packed, own.spread, own.random) == (0.1, 0.3, pytest.approx(0.2))
    assert own.by_stage is losses
    assert placed(losses, 0.0, 8.0).spread == 0.0
    single = placed(np.array([0.3]), 1.0, 8.0)
    assert single.packed == single.random == single.spread == 0.3


def test_faults_are_read_field_by_field() -> None:
    """Times are in hours, shares and units 1 where none are stated."""
    spell = fault(" compute:1.2x4@5000h/2h ")
    assert (spell.kind, spell.value, spell.of, spell.units) == ("compute", 1.2, 0.0, 4)
    assert (spell.share, spell.every, spell.lasting) == (1.0, 5000 * 3600.0, 2 * 3600.0)
    assert spell.share_of(1.0) == pytest.approx(1.0 - math.exp(-2 / 5000))
    assert str(spell) == "compute:1.2x4"
    rail = fault("rail:1@0.01")
    assert (rail.share, rail.units, math.isnan(rail.every)) == (0.01, 1, True)
    assert (rail.share_of(1e9), str(rail)) == (0.01, "rail:1")
    spine = fault("spine:1/32")
    assert (spine.value, spine.of, spine.share, str(spine)) == (1.0, 32.0, 1.0, "spine:1/32")
    assert [one.kind for one in faults("nic:0.5,hbm:0.9")] == ["nic", "hbm"]
    assert faults(NONE) == ()


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("nic", "is not KIND:VALUE"),
        ("wheel:1", "unknown faults 'wheel'"),
        ("nic:1.5", "from 0 to 1"),
        ("hbm:0", "without memory stops the job"),
        ("compute:0.99", "1 or more"),
        ("spine:3/2", "uplinks that a leaf switch has lost"),
        ("spine:1", "uplinks that a leaf switch has lost"),
        ("neighbour:1.5/2", "other jobs of its kind"),
        ("neighbour:1/0.5", "other jobs of its kind"),
        ("nic:0.5/2", "only a spine is stated as a share"),
        ("nic:0.5@1.5", "a share of the time is from 0 to 1"),
        ("nic:0.5x0", "units 1 or more"),
        ("nic:0.5@0h/1h", "time between spells is above 0"),
        ("nic:0.5.1", "is no number"),
    ],
)
def test_a_fault_that_cannot_be_says_why(stated: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fault(stated)


@pytest.mark.parametrize(
    "stated",
    ["nic:0", "nic:1", "hbm:1", "compute:1", "spine:0/4", "spine:4/4", "neighbour:0/1", "rail:0",
     "nic:0.5@0", "nic:0.5@1"],
)  # fmt: skip
def test_a_fault_at_its_bound_is_one(stated: str) -> None:
    assert fault(stated).units == 1


def test_noise_of_a_profile_is_not_that_of_its_slow_ones() -> None:
    """Slow accelerators beyond the normal make everyone wait, more the more there are of them."""
    few, many = (Profile("own", slow_share=share) for share in (0.001, 0.01))
    none, some, more = (
        float(waiting(Meeting(1.0, 1.0, 64.0, 8.0), 0.01, 0.0, of).whole)
        for of in (SILENT, few, many)
    )
    assert none == pytest.approx(0.01 * e(64.0))
    assert none < some < more
