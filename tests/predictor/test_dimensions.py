"""Dimensions: where all that takes time takes a quarter of it, so does what is predicted.

Any product or sum of unlike quantities, seconds and bytes, rates and shares, breaks that; the same
law holds of every plan, so it is asked of plans in which each term of a step or a pass has a part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec, TrainingPlanSpec
from predictor.hardware import Cluster
from predictor.plans import ServingPlan
from predictor.serving import (
    complete_serving,
    decoding_taxes,
    pass_table,
    predict_inference,
    read_table,
    serve,
    serve_apart,
)
from predictor.serving.capacities import Promise, capacity
from predictor.timing import BULK, TILES, EngineParameters, RunParameters, ServingParameters
from predictor.training import TrainingPrediction, complete_training, predict
from predictor.training.power import step_activity
from predictor.training.reliability import Reliability, goodput
from tests.predictor.quicker import (
    QUICKER,
    quicker_calibration,
    quicker_cluster,
    quicker_constants,
    quicker_kernels,
    quicker_latencies,
)

NONE = load("none")
SLOW = replace(
    NONE, run=replace(NONE.run, overlap={"dp": 0.6, "tp": 0.3, "pp": 0.5}, contention=1.2)
)
TRAINING: dict[str, Any] = {
    "model": "llama3-8b", "system": "dgx-h100", "gpus": 16, "global_batch": 64, "seq_len": 4096,
}  # fmt: skip
SERVING: dict[str, Any] = {
    "model": "llama3-8b", "system": "dgx-h100", "gpus": 2, "tp": 2, "input_len": 1024,
    "output_len": 128, "batch": 16,
}  # fmt: skip
HOST = (
    "memory.offload.HOST_MEMORY*", "memory.offload.COHERENT*", "memory.offload.NVME_READ*",
    "memory.offload.NVME_WRITE*", "memory.offload.OLDER_LINK*",
    "timing.collectives.FLAGGED*", "timing.collectives.RING_HOP",
)  # fmt: skip
FRONT = (
    "serving.pass_times.ANSWERING", "serving.pass_times.LISTING", "serving.pass_times.PICKLED",
    "serving.pass_times.MADE", "serving.pass_times.MADE_LAYER",
)  # fmt: skip
"""What the hosts of engines take, whose kernels take what follows."""
ENGINE = (
    *FRONT, "serving.kernels.BLOCK_RATE*", "serving.kernels.HANDED", "serving.kernels.COPIED",
    "timing.fitted.EMPTY_KERNEL", "timing.alternatives.EMPTY_KERNEL",
    "timing.calibration.EMPTY_KERNEL",
)  # fmt: skip
UNEVEN = EngineParameters(
    decode=1.3, prefill=0.8, communication=1.7, mixing=0.6, gap=1e-6, launch=2e-5, step=8e-4,
    sequence=2e-5, request=4e-3, burst=2e4,
)  # fmt: skip
OWN = replace(NONE, serving=ServingParameters({"neutral": UNEVEN}))


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-300)


def trained(stated: dict[str, Any]) -> tuple[TrainingPrediction, TrainingPrediction]:
    """A plan's step here and in the quicker world."""
    spec = parse(TrainingPlanSpec, {**TRAINING, **stated}, "test")
    asked = complete_training(spec, RunParameters(), strict=False)
    usual = predict(asked.model, asked.cluster, asked.plan, SLOW)
    with quicker_latencies(), quicker_constants(*HOST):
        calibration = quicker_calibration(SLOW, asked.cluster)
        quick = predict(asked.model, quicker_cluster(asked.cluster), asked.plan, calibration)
    return usual, quick


@pytest.mark.parametrize(
    "stated",
    [
        {"sharding": "zero1", "recompute": "full"},
        {"tp": 8, "sequence_parallel": True},
        {"tp": 2, "pp": 4, "vpp": 2, "micro_batch": 1},
        {"pp": 4, "schedule": "zb-h1", "tp": 2},
        {"pp": 4, "schedule": "dualpipe", "tp": 2, "global_batch": 128},
        {"sharding": "fsdp", "attention": "unfused"},
        {"sharding": "hsdp", "precision": "fp8"},
        {"cp": 2, "tp": 2, "seq_len": 32768},
        {"trained": "lora", "system": "dgx-a100"},
        {"offload_optimizer": 1.0, "sharding": "zero2", "micro_batch": 1},
        {"offload_activations": 0.5, "offload_to": "nvme", "micro_batch": 1},
        {"model": "mixtral-8x7b", "gpus": 32, "ep": 8, "tp": 2, "pp": 2},
        {"model": "deepseek-v3", "gpus": 256, "ep": 32, "pp": 8, "global_batch": 512},
        {"model": "gpt3-175b", "gpus": 64, "tp": 8, "pp": 8, "system": "dgx-a100"},
    ],
    ids=str,
)
def test_a_step_of_a_machine_four_times_as_quick_takes_a_quarter(stated: dict[str, Any]) -> None:
    usual, quick = trained(stated)
    assert float(quick.step_time) == near(float(usual.step_time) / QUICKER)
    for name, value in usual.breakdown.items():
        assert quick.breakdown[name] == near(value / QUICKER), name
    for name, value in usual.hidden.items():
        assert quick.hidden[name] == near(value / QUICKER), name
    assert quick.layer_time == near(usual.layer_time / QUICKER)
    assert quick.sigma == near(usual.sigma)


def test_what_an_accelerator_does_in_a_step_takes_the_whole_step() -> None:
    """Phases, of which power is the mean, last as long together as the step, whatever its framework
    adds to them."""
    stated = {"tp": 2, "pp": 4, "micro_batch": 1, "framework": "megatron-lm"}
    asked = complete_training(parse(TrainingPlanSpec, {**TRAINING, **stated}, "test"), SLOW.run)
    for factor in (1.0, 1.4):
        run = replace(SLOW.run, factors={"*": factor})
        found = predict(asked.model, asked.cluster, asked.plan, replace(SLOW, run=run))
        assert bool(found.breakdown["framework"] > 0.0) is (factor > 1.0)
        every = step_activity(found).activity.values()
        assert sum(float(one.time) for one in every) == near(float(found.step_time))


def test_a_fleet_that_breaks_and_writes_four_times_as_quickly_is_as_useful() -> None:
    asked = complete_training(parse(TrainingPlanSpec, TRAINING, "test"), RunParameters())
    once = Reliability(mtbf=4e9, sigma=0.3, restart=1200.0, storage=1e8, blocking=0.3)
    quick = replace(
        once, mtbf=once.mtbf / QUICKER, restart=once.restart / QUICKER,
        storage=once.storage * QUICKER,
    )  # fmt: skip
    usual, other = (goodput(asked.model, asked.plan, one) for one in (once, quick))
    assert float(other.share) == near(float(usual.share))
    assert float(other.interval) == near(float(usual.interval) / QUICKER)
    assert 0.5 < float(usual.share) < 1.0


def served(stated: dict[str, Any]) -> tuple[Any, ServingPlan, Cluster]:
    fields = {key: value for key, value in {**SERVING, **stated}.items() if value is not None}
    asked = complete_serving(parse(ServingPlanSpec, fields, "test"), RunParameters(), strict=False)
    return asked.model, asked.plan, asked.cluster


def quickly(plan: ServingPlan) -> ServingPlan:
    """The plan with the rates that it states itself four times as high."""
    return replace(plan, kv_rate=plan.kv_rate * QUICKER)


REQUESTS: list[dict[str, Any]] = [
    {},
    {"batch": 1, "execution": "eager"},
    {"batch": None, "concurrency": 64},
    {"framework": "trtllm", "precision": "fp8"},
    {"framework": "sglang", "batch": None, "rate": 4.0},
    {"framework": "vllm", "batch": None, "rate": 4.0, "era": "2024-03"},
    {"framework": "transformers"},
    {"framework": "llama.cpp", "tp": 1, "pp": 2, "batch": 4},
    {"framework": "fastertransformer", "batch": 8, "precision": "fp16"},
    {"framework": "vllm", "batch": 32, "precision": "w4a16"},
    {"model": "mixtral-8x7b", "gpus": 8, "tp": 8},
    {"model": "deepseek-v3", "gpus": 16, "tp": 8, "dp": 2},
    {"pp": 2, "tp": 1, "batch": 64},
    {"gpus": 4, "prefill_workers": 2, "prefill_tp": 1, "concurrency": 32, "batch": None},
]


@pytest.mark.parametrize("stated", REQUESTS, ids=str)
def test_a_request_to_a_machine_four_times_as_quick_takes_a_quarter(stated: dict[str, Any]) -> None:
    model, plan, cluster = served(stated)
    usual = predict_inference(model, cluster, plan, NONE)
    with quicker_latencies(), quicker_constants(*ENGINE):
        calibration = quicker_calibration(NONE, cluster)
        quick = predict_inference(model, quicker_cluster(cluster), quickly(plan), calibration)
    for name in ("ttft", "tpot", "e2e", "step", "prompt", "turn"):
        value = getattr(usual.latencies, name) / QUICKER
        assert getattr(quick.latencies, name) == near(value), name
    rate = usual.latencies.requests_per_s * QUICKER
    assert quick.latencies.requests_per_s == near(rate)


@pytest.mark.parametrize(
    "stated", [one for one in REQUESTS if "prefill_workers" not in one], ids=str
)
def test_an_engine_that_takes_a_quarter_for_everything_answers_in_a_quarter(
    stated: dict[str, Any],
) -> None:
    """Factors on kernels and collectives and times of the host scale what they are factors of."""
    model, plan, cluster = served(stated)
    usual = predict_inference(model, cluster, plan, OWN)
    quick = replace(OWN, serving=ServingParameters({"neutral": quicker_kernels(UNEVEN)}))
    with quicker_constants(*FRONT):
        found = predict_inference(model, cluster, quickly(plan), quick)
    for name in ("ttft", "tpot", "e2e", "step", "prompt", "turn"):
        value = getattr(usual.latencies, name) / QUICKER
        assert getattr(found.latencies, name) == near(value), name


@pytest.mark.parametrize(("tp", "communication"), [(1, 1.7), (4, 1.7), (8, 40.0)])
def test_taxes_of_an_engine_that_takes_a_quarter_are_a_quarter(
    tp: int, communication: float
) -> None:
    """Whether kernels hide the collectives, or the other way round; but for one tile of it, what
    hides is the shorter of both."""
    model, plan, cluster = served({"gpus": tp, "tp": tp, "execution": "graph"})
    one = replace(UNEVEN, communication=communication)
    usual, found = (
        replace(NONE, serving=ServingParameters({"neutral": engine}))
        for engine in (one, quicker_kernels(one))
    )
    whole = decoding_taxes(model, cluster, plan, usual)
    with quicker_constants(*FRONT):
        quarter = decoding_taxes(model, cluster, plan, found)
    assert quarter.total == near(whole.total / QUICKER)
    assert quarter.together == near(whole.together / QUICKER)
    device = predict_inference(model, cluster, plan, usual).work.decoding
    shorter = min(1.3 * float(device.compute), communication * float(device.communication))
    assert whole.alone[BULK] == near(shorter * (1.0 - 1.0 / TILES))
    assert quarter.alone == near({name: one / QUICKER for name, one in whole.alone.items()})


@pytest.mark.parametrize("stated", REQUESTS, ids=str)
def test_requests_under_way_are_their_rate_times_their_time(stated: dict[str, Any]) -> None:
    """Little's law; a request is its first token and the others, and the sum of its parts."""
    model, plan, cluster = served(stated)
    found = predict_inference(model, cluster, plan, OWN)
    times = found.latencies
    assert times.e2e == near(times.ttft + times.tpot * (plan.output_len - 1.0))
    assert sum(found.breakdown.values()) == near(times.e2e)
    if np.isfinite(plan.batch):
        assert times.requests_per_s * times.e2e * plan.dp == near(plan.batch)


def test_queues_in_front_of_a_machine_four_times_as_quick_are_as_long() -> None:
    """Of a quicker machine at a rate as much higher: the same share waits, a quarter as long."""
    model, plan, cluster = served({"batch": 1})
    wide = replace(plan, tp=np.array([1.0, 2.0]))
    usual = capacity(model, cluster, wide, NONE, Promise(ttft=1.0, tpot=0.04))
    with quicker_latencies(), quicker_constants(*ENGINE):
        promise = Promise(ttft=1.0 / QUICKER, tpot=0.04 / QUICKER)
        calibration = quicker_calibration(NONE, cluster)
        quick = capacity(model, quicker_cluster(cluster), quickly(wide), calibration, promise)
    assert quick.rate == near(usual.rate * QUICKER)
    assert quick.ttft == near(usual.ttft / QUICKER)
    assert quick.tpot == near(usual.tpot / QUICKER)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("clients", [0, 24])
def test_requests_one_by_one_are_served_four_times_as_quickly(clients: int, apart: bool) -> None:
    workers = {"gpus": 4, "prefill_workers": 2, "prefill_tp": 1} if apart else {}
    model, plan, cluster = served({"batch": None, "concurrency": 24, **workers})
    generator = np.random.default_rng(5)
    given, wanted = generator.integers(64, 1024, 150), generator.integers(2, 128, 150)
    came = np.cumsum(generator.exponential(0.05, 150))

    def one_by_one(cluster: Cluster, plan: ServingPlan, calibration: Any, arrivals: Any) -> Any:
        lengths = (1024.0, 128.0)
        table = pass_table(model, cluster, plan, calibration, lengths)
        at = None if clients else arrivals
        if not apart:
            return serve(table, given, wanted, at, clients)
        reading = read_table(model, cluster, plan, calibration, 1024.0)
        return serve_apart(reading, table, given, wanted, at, clients)

    usual = one_by_one(cluster, plan, NONE, came)
    with quicker_latencies(), quicker_constants(*ENGINE):
        calibration = quicker_calibration(NONE, cluster)
        quick = one_by_one(quicker_cluster(cluster), quickly(plan), calibration, came / QUICKER)
    assert quick.ttft == near(usual.ttft / QUICKER)
    assert quick.tpot == near(usual.tpot / QUICKER)
    assert quick.gaps[0] == near(usual.gaps[0] / QUICKER)
