"""Who waits for whom: a table of Monte Carlo runs that others made, our own, limits and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.variation import LEVELS, SILENT, Meeting, Profile, Series, profile, stalled, waiting
from predictor.variation.montecarlo import draw
from predictor.variation.order import normal_maximum
from predictor.variation.profile import drawn, slowest

# ranks, stages, replicas, micro-batches, spread of accelerators, of sections; per cent that
# max-plus Monte Carlo (60 draws) found
TABLE = [
    (8, 1, 4, 16, 0.03, 0.0, 6.5),
    (8, 4, 16, 32, 0.03, 0.0, 9.0),
    (8, 4, 16, 8, 0.03, 0.0, 8.0),
    (1, 8, 16, 64, 0.03, 0.0, 7.2),
    (8, 4, 16, 16, 0.03, 0.02, 8.4),
    (8, 1, 64, 4, 0.02, 0.05, 9.6),
]
STILL = Series(0.0, 0.0, 0.0, 0.0, SILENT)


def of_table(sections: float = 4.0) -> tuple[Meeting, np.ndarray, np.ndarray]:
    rows = np.array(TABLE).T
    return Meeting(*rows[:4], sections=sections), rows[4], rows[5]


def test_closed_forms_are_within_one_per_cent_of_the_table() -> None:
    meeting, gpu, work = of_table()
    found = 100 * waiting(meeting, gpu, work, SILENT).whole
    assert found == pytest.approx([row[6] for row in TABLE], abs=1.0)


@pytest.mark.parametrize(("row", "sections"), [(0, 1), (2, 4), (4, 8), (5, 8)])
def test_closed_forms_are_within_one_per_cent_of_our_own_draws(row: int, sections: int) -> None:
    t, p, d, m, gpu, work, _ = TABLE[row]
    meeting = Meeting(t, p, d, m, sections=sections)
    drawn = draw(meeting, gpu, work, SILENT, STILL, draws=24, seed=3)
    found = float(waiting(meeting, gpu, work, SILENT).whole)
    assert 100 * found == pytest.approx(100 * drawn.shift, abs=1.0)


def test_limits() -> None:
    """Nothing varies: nobody waits. One accelerator: nobody to wait for. Static spread and many
    micro-batches: e_N s_G. Noise alone: e_t s_e, and the luck of replicas over sqrt(m k)."""
    meeting, gpu, work = of_table()
    assert np.all(waiting(meeting, 0.0 * gpu, 0.0 * work, SILENT).whole == 0.0)
    assert float(waiting(Meeting(1.0, 1.0, 1.0, 8.0), 0.03, 0.0, SILENT).whole) == 0.0
    long = waiting(Meeting(8.0, 4.0, 16.0, 1e6), 0.03, 0.0, SILENT)
    assert float(long.whole) == pytest.approx(0.03 * float(normal_maximum(512.0)[0]), rel=1e-4)
    noisy = waiting(Meeting(8.0, 1.0, 1.0, 4.0), 0.0, 0.05, SILENT)
    assert float(noisy.whole) == pytest.approx(0.05 * float(normal_maximum(8.0)[0]), rel=5e-3)
    e8, d8 = (float(value) for value in normal_maximum(8.0))
    e64 = float(normal_maximum(64.0)[0])
    lucky = waiting(Meeting(8.0, 1.0, 64.0, 4.0, sections=4.0), 0.0, 0.05, SILENT)
    by_hand = 0.05 * e8 + e64 * d8 * 0.05 / 4.0
    assert float(lucky.whole) == pytest.approx(by_hand, rel=0.01)
    # Noise that lasts longer than the step is drawn once in it, however much longer.
    for sections in (0.1, 1.0):
        drawn_once = waiting(Meeting(1.0, 1.0, 64.0, 1.0, sections=sections), 0.0, 0.05, SILENT)
        assert float(drawn_once.whole) == pytest.approx(0.05 * e64)


@settings(max_examples=20, deadline=None)
@given(
    t=st.sampled_from([1.0, 2.0, 8.0]),
    p=st.sampled_from([1.0, 4.0, 16.0]),
    d=st.floats(1.0, 500.0),
    by=st.floats(1.0, 8.0),
    gpu=st.floats(0.0, 0.05),
    work=st.floats(0.0, 0.05),
    slow=st.sampled_from([0.0, 0.002]),
)
def test_more_accelerators_never_wait_less(
    t: float, p: float, d: float, by: float, gpu: float, work: float, slow: float
) -> None:
    of = Profile("own", slow_share=slow)
    one, more = (
        waiting(Meeting(t, p, replicas, 16.0), gpu, work, of).whole for replicas in (d, d * by)
    )
    assert float(more) >= float(one) - 1e-4


def test_a_batch_is_its_plans_one_by_one() -> None:
    meeting, gpu, work = of_table()
    of = profile("typical")
    whole = waiting(meeting, gpu, work, of)
    for at, row in enumerate(TABLE):
        one = waiting(Meeting(*row[:4], sections=4.0), row[4], row[5], of)
        assert float(one.whole) == pytest.approx(whole.whole[at], rel=1e-9)
        assert float(one.step) == pytest.approx(whole.step[at], rel=1e-9)


def test_the_parts_of_waiting_add_up() -> None:
    meeting, gpu, work = of_table()
    found = waiting(meeting, gpu, work, SILENT)
    assert found.whole == pytest.approx(found.ranks + found.stages + found.replicas)
    assert np.all(found.ranks[:3] > 0)
    assert found.ranks[3] == 0.0, "one rank waits for none"


def test_quantiles_of_a_step_by_hand() -> None:
    """Without stalls log-normal; stalls of one step in a hundred reach the P99.5:
    (q / (1 - p))^(1/a) of the least."""
    plain = Series(0.01, 0.0, 0.0, 0.0, SILENT)
    assert plain.quantile(np.array(LEVELS)) == pytest.approx(
        np.exp(0.01 * np.array([0.0, 1.6448536, 2.3263479]))
    )
    of = Profile("own", stalls=1.0, stall_least=0.1, stall_index=1.5)
    stalls = Series(1e-6, 0.0, 0.01, 0.0, of)
    assert float(stalls.quantile(0.995)) == pytest.approx(1.0 + 0.1 * 2.0 ** (1 / 1.5), rel=1e-4)
    assert float(stalled(1e-3, 0.0)) == 0.0
    assert float(stalled(1e-3, 1000.0)) == pytest.approx(1e-3, rel=1e-3)


def test_nothing_varies_is_the_step_itself() -> None:
    assert STILL.quantile(np.array(LEVELS)) == pytest.approx([1.0, 1.0, 1.0], abs=1e-10)
    assert float(STILL.average(10.0)[1]) == 0.0


def test_the_mean_of_many_steps_is_sure_of_all_but_the_run() -> None:
    """Independent: s / sqrt(K). A correlation of 0.8 makes it sqrt((1 + 0.8) / (1 - 0.8)) = 3 times
    as unsure. The run's own part stays."""
    fresh = Series(0.0, 0.02, 0.0, 0.0, SILENT)
    assert float(fresh.average(100.0)[1]) == pytest.approx(0.002, rel=1e-3)
    same = Series(0.02, 0.0, 0.0, 0.0, Profile("own", correlation=0.8))
    assert float(same.average(1e6)[1]) == pytest.approx(3 * 0.02 / 1e3, rel=1e-3)
    run = Series(0.0, 0.02, 0.0, 0.01, SILENT)
    assert float(run.average(1e8)[1]) == pytest.approx(0.01, rel=1e-3)


def test_draws_of_stalls_and_of_correlated_steps_are_the_closed_form() -> None:
    of = Profile("own", step=0.02, correlation=0.3, stalls=1.0, stall_index=1.5)
    series = Series(0.02, 0.0, 0.02, 0.0, of)
    drawn = draw(Meeting(1.0, 1.0, 1.0, 1.0), 0.0, 0.0, of, series, draws=240, seed=5)
    closed = series.quantile(np.array(LEVELS)) / series.quantile(0.5)
    assert drawn.quantile[:2] == pytest.approx(closed[:2], rel=0.003)
    assert drawn.quantile[2] == pytest.approx(closed[2], rel=0.02)


def test_the_slowest_of_a_population_with_slow_ones() -> None:
    """Two in a thousand at least 10 % slow: of 8,192 the slowest is one of some 16, the largest of
    as many exponentials beyond 10 %; one accelerator is not slower than itself."""
    of = Profile("own", slow_share=0.002, slow_least=0.1, slow_scale=0.02)
    mean, _ = slowest(8192.0, 0.005, of)
    harmonic = sum(1.0 / k for k in range(1, 17))
    assert float(mean) == pytest.approx(0.1 + 0.02 * harmonic, rel=0.03)
    assert float(slowest(1.0, 0.005, of)[0]) == 0.0
    few = float(slowest(4.0, 0.005, of)[0])
    assert few == pytest.approx(0.005 * 1.0294 + 4 * 0.002 * (0.12 - 0.005), rel=0.15)
    lots = drawn((400, 2048), 0.015, of, np.random.default_rng(2)).max(axis=1)
    mean, spread = slowest(2048.0, 0.015, of)
    assert float(mean) == pytest.approx(lots.mean(), rel=0.03)
    assert float(spread) == pytest.approx(lots.std(), rel=0.15)
