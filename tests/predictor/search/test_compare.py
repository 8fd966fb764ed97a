from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.search.comparison import (
    Timed,
    alternatives,
    differences,
    over_best,
    ratio,
    ties,
    timed,
    timed_again,
)
from predictor.search.contenders import varied
from predictor.search.layouts import search_train
from predictor.search.ranking import SearchResult
from predictor.training.prediction import predict

KERNELS = load("kernels-only")
LLAMA, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")


FIELDS = {"gpus": 16, "global_batch": 64, "seq_len": 8192, "cp": [1, 2],
          "schedule": ["1f1b", "zb-h1"]}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search_train(LLAMA, DGX, FIELDS, KERNELS, prune=False)


def test_shared_errors_cancel_in_a_ratio() -> None:
    one = Timed(2.0, {}, {"gemm": 0.2, "link": 0.05})
    other = Timed(1.0, {}, {"gemm": 0.2})
    reach = math.exp(KERNELS.interval_q * math.sqrt(0.05**2 + 2 * KERNELS.run.sigma_plan**2))
    own = ratio(one, other, KERNELS)
    assert (own.value, own.low, own.high) == pytest.approx((2.0, 2.0 / reach, 2.0 * reach))
    assert not own.tie
    assert ratio(one, one, KERNELS).tie


def test_a_plan_is_timed_as_it_was_in_the_search(found: SearchResult) -> None:
    positions = [0, 5, len(found) - 1]
    for at, own in zip(positions, timed_again(found, positions), strict=True):
        assert own.step_time == pytest.approx(float(found.step_time[at]), rel=1e-12)
        assert sum(own.breakdown.values()) == pytest.approx(own.step_time)
        plan = found.plan(at)
        alone = predict(LLAMA, DGX, plan, KERNELS)
        # The errors of the families and the run's own make up the spread of the prediction.
        of_run = KERNELS.run.spread(LLAMA.is_moe, plan.framework, plan.named, LLAMA.untimed)
        whole = math.sqrt(sum(v**2 for v in own.errors.values()) + of_run**2)
        assert whole == pytest.approx(float(alone.sigma), rel=1e-9)


def test_differences_add_up_to_the_difference(found: SearchResult) -> None:
    one, other = timed_again(found, [3, 0])
    spent = differences(one, other)
    assert sum(more for _, more in spent) == pytest.approx(one.step_time - other.step_time)
    sizes = [abs(more) for _, more in spent]
    assert sizes == sorted(sizes, reverse=True)


def test_alternatives_are_the_best_with_another_value(found: SearchResult) -> None:
    best = found.plan(0)
    assert max(Counter(one.field for one in alternatives(found)).values()) == 3
    for one in alternatives(found):
        assert one.value != getattr(best, one.field)
        column = found.column(one.field)
        assert found.step_time[column == one.value].min() == found.step_time[one.position]
        assert one.ratio.value == pytest.approx(found.step_time[one.position] / found.step_time[0])


def test_alternatives_leave_out_what_follows_from_others(found: SearchResult) -> None:
    """No prediction layers stand behind the model, and what a framework does with a sharding is
    not a choice beside it."""
    assert not LLAMA.mtp_layers
    assert {"mtp", "stops_early"} <= set(varied(found.blocks))
    assert not {one.field for one in alternatives(found, 50)} & {"mtp", "stops_early"}


def test_alternatives_survive_the_bound(found: SearchResult) -> None:
    pruned = search_train(LLAMA, DGX, FIELDS, KERNELS, keep=20)
    assert len(pruned) < len(found)
    ours = {(one.field, str(one.value)): one.ratio.value for one in alternatives(pruned, 50)}
    theirs = {(one.field, str(one.value)): one.ratio.value for one in alternatives(found, 50)}
    assert ours == pytest.approx(theirs)


def test_ties_are_those_whose_interval_contains_one(found: SearchResult) -> None:
    tied = {at for at, _ in ties(found, 50)}
    for at, own in zip(range(1, 50), over_best(found, list(range(1, 50))), strict=True):
        assert (at in tied) == (own.low <= 1.0)
        assert own.value >= 1.0


def test_cost_counts_accelerators() -> None:
    fields = {**FIELDS, "gpus": [8, 16], "sharding": "zero1", "recompute": ["none", "full"]}
    result = search_train(LLAMA, DGX, fields, KERNELS, objective="cost")
    ratios = [own.value for own in over_best(result, list(range(30)))]
    assert ratios == sorted(ratios)
    assert ratios[0] == 1.0


def test_a_single_plan_is_a_batch_of_one(found: SearchResult) -> None:
    plan = found.plan(0)
    (own,) = timed(LLAMA, DGX, plan, KERNELS)
    assert own.step_time == pytest.approx(float(np.asarray(found.step_time[0])))
