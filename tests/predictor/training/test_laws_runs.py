"""Runs, not only steps: failures, fleets, machines that vary, by their equations anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.plans import Passes, TrainingPlan
from predictor.training.fleet import Reserve, rates, served
from predictor.training.ledger import TERMS
from predictor.training.prediction import predict
from predictor.training.reliability import Reliability, best_interval, goodput, useful_share
from predictor.training.variation import (
    arithmetic_share,
    checked_by_lots,
    meets,
    slowest_pass,
    told,
    vary_meeting,
)
from predictor.training.whole_run import budget_of, machines_of, reliability_of
from predictor.variation import LEVELS, SILENT, Meeting, Profile, stalled, waiting
from tests.predictor.dense import dense

Make = Callable[..., TrainingPlan]
SMALL = dense(layers=4, ffn_hidden=1024)
TIMES = Reliability(mtbf=4e7, sigma=0.4, restart=500.0, storage=1e6, blocking=0.25)


def test_goodput_is_dalys_of_the_jobs_own_numbers(plan: Make) -> None:
    """Sixteen accelerators fail sixteen times as often and write as fast together; training waits
    for a quarter of the write, and what it does meanwhile is lost with a failure: back comes the
    restart, the reading, and three quarters of a write."""
    made = plan(tp=2.0, pp=2.0, dp=4.0, weight_bytes=2.0, optimizer_bytes=12.0)
    found = goodput(SMALL, made, TIMES, q=1.5)
    size = 14.0 * SMALL.parameters
    write, mtbf = size / 16e6, 4e7 / 16
    assert (float(found.checkpoint), float(found.write)) == pytest.approx((size, write))
    assert float(found.mtbf) == mtbf
    interval = float(best_interval(0.25 * write, mtbf))
    assert float(found.interval) == pytest.approx(interval)
    back = 500.0 + 1.75 * write
    for name, by in (("share", 1.0), ("low", math.exp(-0.6)), ("high", math.exp(0.6))):
        share = useful_share(interval, 0.25 * write, back, mtbf * by)
        assert float(getattr(found, name)) == pytest.approx(float(share))


def test_a_checkpoint_is_written_before_the_next_begins(plan: Make) -> None:
    """However soon one is asked for; and not more than one a second."""
    made = plan(tp=2.0, pp=2.0, dp=4.0)
    often = Reliability(4e7, 0.0, 500.0, 1e5, blocking=0.1, interval=1e-3)
    found = goodput(SMALL, made, often)
    assert float(found.interval) == pytest.approx(0.9 * float(found.write))
    adapters = goodput(SMALL, plan(tp=1.0, trained="lora"), Reliability(4e9, 0.0, 1.0, 1e9))
    assert float(adapters.interval) == 1.0


def test_where_nothing_ends_nothing_is_useful() -> None:
    assert 0.0 <= float(useful_share(1e6, 1.0, 1.0, 1.0)) < 1e-100
    assert 0.0 <= float(useful_share(1.0, 1.0, 1e6, 1.0)) < 1e-100
    assert float(useful_share(1.0, 0.0, 0.0, 1e9)) == pytest.approx(1.0)
    # Writes that take twice the time between failures: one every such time, whatever it costs.
    assert float(best_interval(2.0, 1.0)) == 1.0
    assert float(best_interval(1.9999, 1.0)) == pytest.approx(
        2.0 * (1 + 1 / 3 + 1 / 9) - 2.0, rel=1e-3
    )


def test_reserves_are_stated_in_hours() -> None:
    plain = machines_of({}, None)
    assert (plain["variation"], plain["faults"], plain["fleet"]) == (SILENT, (), None)
    own = machines_of({"spares": 2}, 1e9)["fleet"]
    assert own == Reserve(2, 86400.0, np.inf, 3600.0, 1.0, False)
    assert Reserve() == Reserve(0, 86400.0, np.inf, 3600.0, 1.0, False)
    stated = {"repair_hours": 2.0, "preempted_hours": 5.0, "returned_hours": 0.5, "elastic": True}
    some = machines_of({**stated, "preempted_group": 3.0}, 1e9)["fleet"]
    assert some == Reserve(0, 7200.0, 18000.0, 1800.0, 3.0, True)
    assert machines_of({"preempted_group": 0.5}, 1e9)["fleet"].group == 1.0
    with pytest.raises(InputError, match="spares is of a whole run"):
        machines_of({"spares": 1}, None)
    assert budget_of({"tokens": 5.0, "price_per_gpu_hour": 2.0}, 5.0) == (5.0, 2.0)
    assert budget_of({}, 5.0) == (None, None)
    with pytest.raises(InputError, match="15 are fewer than the 131,072 of one step"):
        budget_of({"tokens": 15.0}, 131_072.0)
    known = {"mtbf_hours": 1.0, "sigma": 0.1, "restart_s": 3.0, "storage_gbs": 1.0}
    assert reliability_of({**known, "checkpoint_blocking": 1.0}).blocking == 1.0
    assert Reliability(1.0, 1.0, 1.0, 1.0).blocking == 1.0


@pytest.fixture(scope="module")
def found() -> Any:
    """Four replicas of two accelerators each, one to a node of two."""
    cluster = catalog.system("dgx-h100")
    made = TrainingPlan(tp=2.0, pp=1.0, dp=4.0, micro_batch=1.0, global_batch=16.0, seq_len=512.0)
    return predict(SMALL, cluster, made, load("none"))


def test_fewer_replicas_share_out_the_batch(found: Any) -> None:
    """Three do six micro-batches each where four did four; one does them all. Nodes that do not
    make a replica add nothing."""
    own = rates(found, 4)
    assert own[0] == 0.0
    for many, each in ((1, 16), (2, 8), (3, 6), (4, 4)):
        made = TrainingPlan(tp=2.0, pp=1.0, dp=float(many), micro_batch=1.0,
                            global_batch=float(many * each), seq_len=512.0)  # fmt: skip
        step = float(predict(SMALL, found.cluster, made, found.calibration).step_time)
        assert own[many] == pytest.approx(16 * 512 / step)
    assert rates(found, 8).tolist() == [own[k // 2] for k in range(9)]


def test_a_fleet_by_hand(found: Any) -> None:
    """One node of eight that fails every 8 x 16 h of an accelerator's 128, and is away 4 h, or is
    preempted every 32 h for half an hour: 0.25 + 1/64 h away for each hour there."""
    times = Reliability(mtbf=128 * 3600.0, sigma=0.2, restart=60.0, storage=1e9)
    own = served(found, times, Reserve(repair=4 * 3600.0, every=32 * 3600.0, returned=1800.0))
    gone = 0.25 + 1.0 / 64.0
    assert own.enough == own.available == pytest.approx(1.0 / (1.0 + gone))
    assert float(own.goodput.mtbf) == pytest.approx(3600.0 / (1 / 16 + 1 / 32))
    told_ = own.to_dict()
    assert told_["mtbf_hours"] == pytest.approx(1.0 / (1 / 16 + 1 / 32))
    assert told_["effective_share"]["value"] == pytest.approx(
        own.available * float(own.goodput.share)
    )
    pairs = served(found, times, Reserve(repair=0.0, every=32 * 3600.0, group=2.0))
    assert float(pairs.goodput.mtbf) == pytest.approx(3600.0 / (1 / 16 + 1 / 64))
    assert own.spares == 2  # 1 - 0.2099^3 = 0.991 are enough, 1 - 0.2099^2 = 0.956 not
    going_on = served(found, times, Reserve(repair=4 * 3600.0, elastic=True))
    assert going_on.available == pytest.approx(going_on.enough)


def test_who_meets_inside_a_layer(plan: Make) -> None:
    """Ranks of tensor and context parallelism, or of experts if they are more, or of weights that
    are gathered; no more than a stage has."""
    made = plan(tp=2.0, cp=2.0, pp=4.0, dp=8.0, vpp=2.0, global_batch=64.0)
    own = meets(made, 3.0, 0.2)
    assert (own.ranks, own.stages, own.replicas) == (4.0, 4.0, 8.0)
    assert (own.batches, own.chunks, float(own.sections)) == (8.0, 2.0, pytest.approx(15.0))
    experts = meets(plan(tp=2.0, pp=2.0, dp=8.0, ep=4.0, etp=2.0, global_batch=64.0), 1.0, 1.0)
    assert (experts.ranks, experts.replicas) == (8.0, 2.0)
    shared = plan(tp=2.0, pp=1.0, dp=8.0, dp_shard=4.0, sharding="hsdp", global_batch=64.0)
    assert meets(shared, 1.0, 1.0).ranks == 8.0
    assert meets(plan(tp=2.0, pp=1.0, dp=8.0, sharding="fsdp"), 1.0, 1.0).ranks == 16.0


def test_shares_of_arithmetic_are_of_time() -> None:
    """2 x 3 s bound by it, 1 x 4 s not: six tenths; of plans that share layers each its own."""
    timing = SimpleNamespace(time=np.array([3.0, 4.0]), bound=np.array([0, 1]))
    executions = np.array([2.0, 1.0])
    assert float(arithmetic_share(executions, timing, np.zeros((), int))) == 0.6  # type: ignore[arg-type]
    two = SimpleNamespace(time=np.array([[3.0, 1.0], [4.0, 1.0]]), bound=np.array([[0, 1], [1, 0]]))
    many = np.array([[2.0, 2.0, 1.0], [1.0, 1.0, 4.0]])
    own = arithmetic_share(many, two, np.array([0, 0, 1]))  # type: ignore[arg-type]
    assert own.tolist() == [0.6, 0.6, 0.8]
    passes = Passes(*(np.array(v) for v in ([1.0, 2.0, 9.0], [2.0, 3.0, 9.0], [0.0, 1.0, 9.0])),
                    np.array([1.0, 3.0, 0.0]))  # fmt: skip
    assert float(slowest_pass(passes)) == 6.0


def varied(of: Profile, seen: np.ndarray | None, **terms: float) -> Any:
    own = {name: np.asarray(terms.get(name, 0.0)) for name in TERMS}
    step = np.asarray(sum(own.values()))
    return vary_meeting(MEETING, step, own, np.asarray(0.7), of, seen), step


MEETING = Meeting(8.0, 4.0, 256.0, 32.0)
OF = Profile(
    "own", run=0.01, compute=0.05, memory=0.02, step=0.004, work=0.03, collectives=0.2, stalls=1e-3
)  # fmt: skip
STEP = {
    "forward": 2.0, "backward": 3.0, "recompute": 1.0, "tp_communication": 0.5, "host": 0.25,
    "offload": 0.25, "bubble": 1.0, "dp_communication": 0.8, "optimizer": 0.2, "framework": 0.9,
    "data_loading": 0.1,
}  # fmt: skip


def test_a_step_varies_by_what_its_pipeline_does() -> None:
    """Kernels are 6 of 7 busy seconds, collectives half a second; the framework stretches all but
    loading by a tenth; the pipeline is what is left of the step without gradients, optimizer and
    loader."""
    found, step = varied(OF, np.zeros(()), **STEP)
    assert float(step) == 10.0
    pipeline = 10.0 - 0.1 - 1.1 * 1.0
    assert float(found.share) == pytest.approx(pipeline / 10.0)
    gpu = 6.0 / 7.0 * math.hypot(0.7 * 0.05, 0.3 * 0.02)
    work = math.hypot(0.03 * 6.5 / 7.0, 0.2 * 0.5 / 7.0)
    assert (float(found.gpu), float(found.work)) == pytest.approx((gpu, work))
    waits = waiting(MEETING, gpu, work, OF)
    more = float(waits.whole) * pipeline
    assert float(found.centre) == pytest.approx(10.0 + more - 0.1)
    assert float(found.added) == pytest.approx(more - 0.1)
    series = found.series
    fresh = math.hypot(float(waits.step) * pipeline / 10.0, 0.2 * 1.1 * 0.8 / 10.0)
    assert float(series.fresh) == pytest.approx(fresh)
    assert float(series.run) == pytest.approx(
        math.hypot(0.01, float(waits.allocation) * pipeline / 10.0)
    )
    assert float(series.same) == 0.004
    assert float(series.stalled) == pytest.approx(float(stalled(1e-3, 8192.0)))
    assert found.average(50.0)[0] == pytest.approx(found.centre * series.average(50.0)[0])


def test_calibrations_contain_the_waiting_that_they_have_seen() -> None:
    """Of as many accelerators nothing is added; a loader hides what it lasts longer than."""
    own, _ = varied(OF, None, **STEP)
    all_of_it, _ = varied(OF, own.waits.whole, **STEP)
    assert 0.0 < float(own.seen) < float(own.waits.whole)
    assert float(all_of_it.added) == 0.0
    loading, _ = varied(OF, np.zeros(()), **{**STEP, "data_loading": 50.0})
    assert float(loading.added) == 0.0


def test_what_varies_is_told_in_seconds() -> None:
    found, _ = varied(OF, None, **STEP)
    out = told(found, {"work": np.asarray(0.3)}, 100.0)
    p50, p95, p99 = (float(found.quantile(p)) for p in LEVELS)
    assert out["step_time_s"] == {"p50": p50, "p95": p95, "p99": p99}
    assert (out["p95_over_p50"], out["p99_over_p50"]) == (p95 / p50, p99 / p50)
    mean, spread = (float(v) for v in found.average(100.0))
    assert (out["run"]["steps"], out["run"]["mean_step_time_s"]) == (100.0, mean)
    assert out["run"]["sd_s"] == spread
    assert out["run"]["p50_s"] == pytest.approx(mean)
    assert out["run"]["p95_s"] == pytest.approx(mean + 1.6448536 * spread)
    waits, pipeline = out["waiting_s"], 8.8
    for name in ("ranks", "stages", "replicas"):
        assert waits[name] == pytest.approx(pipeline * float(getattr(found.waits, name)))
    assert waits["in_calibration"] == pytest.approx(pipeline * float(found.seen))
    assert waits["added"] == pytest.approx(float(found.added))
    assert out["p95_less_s"] == {"work": 0.3}
    assert out["stalled_share"] == float(found.series.stalled)


def test_lots_are_told_beside_the_closed_form() -> None:
    own = vary_meeting(
        Meeting(2.0, 1.0, 2.0, 4.0), np.ones(()),
        {**{name: np.zeros(()) for name in TERMS}, "forward": np.ones(())},
        np.ones(()), Profile("own", compute=0.03, stalls=7.6), np.zeros(()),
    )  # fmt: skip
    out = checked_by_lots(own, 12)
    lots = own.drawn(12)
    assert (out["draws"], out["waiting_share"]) == (12.0, float(own.waits.whole))
    assert (out["waiting_share_drawn"], out["waiting_share_drawn_sd"]) == (lots.shift, lots.error)
    p50, p95, p99 = (float(own.series.quantile(p)) for p in LEVELS)
    assert (out["p95_over_p50"], out["p99_over_p50"]) == (p95 / p50, p99 / p50)
    drawn = [lots.quantile[k] / lots.quantile[0] for k in (1, 2)]
    assert [out["p95_over_p50_drawn"], out["p99_over_p50_drawn"]] == drawn
    assert 1.0 <= drawn[0] < drawn[1]  # four of 1,000 accelerators: three steps in a hundred stall
