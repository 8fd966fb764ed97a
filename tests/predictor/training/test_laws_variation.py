"""How steps vary, by limits: what is bound by what, what dilutes what, and what nobody says."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.training.ledger import TERMS
from predictor.training.variation import Variation, vary_meeting
from predictor.variation import SILENT, Profile
from predictor.variation.composition import Meeting

MEETING = Meeting(8.0, 4.0, 16.0, 32.0)
VARIED = Profile("varied", compute=0.05, memory=0.02, work=0.01, run=0.01, step=0.005)


def vary(bound: float, of: Profile = VARIED, **terms: float) -> Variation:
    """A step of one second of kernels, with other terms beside."""
    own = {**dict.fromkeys(TERMS, np.zeros(())), "forward": np.ones(())}
    own |= {name: np.asarray(value) for name, value in terms.items()}
    step = np.asarray(sum(own.values()))
    return vary_meeting(MEETING, step, own, np.asarray(bound), of, np.zeros(()))


def test_accelerators_differ_by_what_bounds_their_kernels() -> None:
    """All arithmetic, all memory, and half of each, independent of each other; what is no kernel
    dilutes it."""
    assert float(vary(1.0).gpu) == pytest.approx(0.05)
    assert float(vary(0.0).gpu) == pytest.approx(0.02)
    assert float(vary(0.5).gpu) == pytest.approx(0.5 * np.hypot(0.05, 0.02))
    assert float(vary(1.0, host=1.0).gpu) == pytest.approx(0.025)


def test_what_nobody_waits_in_dilutes_what_waiting_varies() -> None:
    """An optimizer that takes as long as the pipeline halves the share of the rest, and with it
    what varies from step to step and from allocation to allocation."""
    alone, beside = vary(0.7), vary(0.7, optimizer=1.0)
    assert (float(alone.share), float(beside.share)) == (pytest.approx(1.0), pytest.approx(0.5))
    assert float(alone.series.fresh) > 0
    assert float(beside.series.fresh) == pytest.approx(0.5 * float(alone.series.fresh))
    assert float(beside.added) == pytest.approx(float(alone.added))


def test_a_machine_of_which_nothing_is_said_does_not_vary() -> None:
    """Neither a name alone nor the profile of none moves any quantile."""
    for of in (Profile("own"), SILENT):
        found = vary(0.7, of)
        assert float(found.gpu) == float(found.work) == float(found.added) == 0.0
        assert found.quantile(np.array([0.01, 0.5, 0.99])) == pytest.approx(np.ones(3))


def test_spreads_grow_with_each_of_their_parts() -> None:
    """More of any of them, and the 99th percentile is no less; of most it is more."""
    least = float(vary(0.7).quantile(0.99))
    for name in ("compute", "memory", "work", "step", "collectives", "stalls"):
        more = Profile(
            **{**{n: getattr(VARIED, n) for n in Profile.__dataclass_fields__}, name: 0.2}
        )
        found = vary(0.7, more, tp_communication=0.3, dp_communication=0.2)
        same = vary(0.7, VARIED, tp_communication=0.3, dp_communication=0.2)
        assert float(found.quantile(0.99)) > float(same.quantile(0.99)) > least
