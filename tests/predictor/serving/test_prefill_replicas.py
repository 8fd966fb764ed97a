"""Workers that read prompts with replicas of the attention, which share a mixture's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.tables.columns import read_apart as columns_read
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.plans.serving import ServingPlan
from predictor.search import fleet_space
from predictor.serving.apart import holding, sending_time, worker
from predictor.serving.apart_events import serve_apart
from predictor.serving.clients import poisson, spread_lengths
from predictor.serving.completion import ServingRequest, complete_serving
from predictor.serving.prediction import predict_inference, prompt_pass
from predictor.serving.rates import Rates
from predictor.serving.reading import read_table
from predictor.serving.tables import pass_table
from predictor.timing.calibration import RunParameters
from reckon.launch import emit, read_launch

MODEL, CLUSTER, KNOWN = catalog.model("deepseek-v3"), catalog.system("dgx-h200"), load("default")
PLAN = ServingPlan(
    batch=64.0, input_len=2000.0, output_len=200.0, serving=1.0, tp=1.0, dp=16.0, ep=16.0,
    weights="fp8_block", prefill_workers=2.0, prefill_tp=2.0, prefill_dp=4.0, chunk=4000.0,
)  # fmt: skip


def test_a_worker_has_its_ranks_and_their_experts() -> None:
    own = worker(PLAN)
    assert (float(own.tp), float(own.dp), float(own.ep)) == (2.0, 4.0, 8.0)
    assert float(PLAN.gpus) == 16.0 + 2 * 8
    assert float(np.asarray(holding(PLAN).batch)) == 8.0  # two whole prompts for each replica
    # A replica's own ranks send the cache of a prompt: as fast as those of a worker of two.
    two = replace(PLAN, prefill_dp=1.0)
    assert float(sending_time(MODEL, PLAN, CLUSTER)) == float(sending_time(MODEL, two, CLUSTER))


def test_passes_fill_replica_by_replica() -> None:
    """One prompt leaves three replicas without: its own attention, and a quarter of the experts'
    tokens. Four take as long as one of each, five as two for some."""
    table = read_table(MODEL, CLUSTER, PLAN, KNOWN, 0.0)
    assert table.most == 8  # two prompts of 2,000 tokens fill a replica's pass
    length = float(PLAN.input_len)
    times = {many: table.reading(many, length) for many in (1, 2, 4, 6, 8)}
    assert times[1] < times[2] < times[4] < times[6] <= times[8]
    assert times[4] < 2.5 * times[1]
    assert times[8] < 2.1 * times[4]
    found, passes = prompt_pass(MODEL, CLUSTER, worker(PLAN), np.ones(()), KNOWN)
    assert float(np.asarray(passes)) == 1.0
    spent = float(np.asarray(found.compute + found.communication))
    assert spent < times[4] < 1.5 * spent  # with what the host does


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_closed_form_and_requests_one_by_one_agree(share: float) -> None:
    """Of one worker of four replicas, at a share of the most that it reads."""
    own = replace(PLAN, batch=np.inf, prefill_workers=1.0, dp=8.0, ep=8.0)
    rates = Rates(MODEL, CLUSTER, own, KNOWN, 0.0)
    rate, count = share * rates.most, 8000
    form = rates.at(rate).prediction.latencies
    both = read_table(MODEL, CLUSTER, own, KNOWN, 0.0), pass_table(MODEL, CLUSTER, own, KNOWN)
    lengths = (spread_lengths(mean, count, 0.0) for mean in (2000.0, 200.0))
    served = serve_apart(*both, *lengths, arrivals=poisson(rate, count))
    assert served.ttft.mean() == pytest.approx(float(form.ttft), rel=0.06)


def request(**fields: Any) -> ServingRequest:
    base = {"system": "dgx-h200", "input_len": 1024, "output_len": 128, "rate": 2, "tp": 8,
            "prefill_workers": 1, "prefill_tp": 1, "prefill_dp": 8}  # fmt: skip
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, RunParameters())


def test_replicas_are_of_mixtures() -> None:
    with pytest.raises(InputError, match="prefill_dp 8 shares the experts of a mixture"):
        request(model="llama3-70b")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_lines_say_replicas_of_a_worker_and_are_read_again(engine: str) -> None:
    one = request(model="deepseek-v3", framework=engine, ep=8)
    written = emit(engine, one, RunParameters())
    assert not [found for found in written.unsaid if found.field.startswith("prefill")]
    again = read_launch(engine, written.text).fields
    assert (again["prefill_workers"], again["prefill_tp"], again["prefill_dp"]) == (1, 1, 8)


@pytest.mark.parametrize("tp", [1, 8])
def test_tables_count_ranks_of_a_worker_once(tp: int) -> None:
    """`tp 8, dp 8` on eight accelerators, as SGLang says it, is what others call tp 1, dp 8."""
    row = {"prefill_workers": 2, "prefill_tp": tp, "prefill_dp": 8, "tp": tp, "dp": 8, "ep": 8,
           "num_gpus": 24}  # fmt: skip
    found = columns_read(row, True)
    assert (found["prefill_tp"], found["prefill_dp"], found["prefill_workers"]) == (1, 8, 2.0)
    assert (found["tp"], found["dp"]) == (1, 8)
    dense = columns_read(row, False)
    assert (dense["prefill_tp"], dense["prefill_dp"], dense["prefill_workers"]) == (1, 1, 16.0)


@pytest.mark.parametrize(
    "layout", [{"prefill_tp": 1, "prefill_dp": 16}, {"prefill_tp": 16, "prefill_dp": 1}]
)
def test_no_worker_divides_experts_among_more_ranks_than_there_are(layout: dict[str, int]) -> None:
    """Eight of Mixtral's; where the engine that decodes splits each, a worker's ranks may, too."""
    with pytest.raises(InputError, match="divides the 8 experts of mixtral-8x7b among more"):
        request(model="mixtral-8x7b", ep=8, **layout)
    split = request(model="mixtral-8x7b", ep=1, prefill_tp=16, prefill_dp=1)
    assert float(worker(split.plan).ep) == 1.0


def test_plans_of_a_batch_are_each_as_by_themselves() -> None:
    """Of workers with and without replicas, beside one that reads its own prompts."""
    workers, copies = np.array([0.0, 1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0, 4.0])
    every = replace(PLAN, prefill_workers=workers, prefill_tp=2.0, prefill_dp=copies)
    batch = predict_inference(MODEL, CLUSTER, every, KNOWN).latencies
    for at, (many, dp) in enumerate(zip(workers, copies, strict=True)):
        one = replace(PLAN, prefill_workers=float(many), prefill_tp=2.0, prefill_dp=float(dp))
        alone = predict_inference(MODEL, CLUSTER, one, KNOWN).latencies
        for name in ("ttft", "tpot", "e2e", "requests_per_s"):
            assert getattr(batch, name)[at] == pytest.approx(float(getattr(alone, name)), rel=1e-9)


@pytest.mark.parametrize(("dp", "chunk"), [(1, 16384), (4, 4096), (16, 1024)])
def test_the_chunk_is_shared_by_the_replicas_that_read(dp: int, chunk: int) -> None:
    """SGLang divides its chunk by the replicas of an engine; those that decode read none of it: of
    four that read beside 32, each had 512 tokens in a pass, not 4,096 (GB300: 34 -> 57 requests of
    4,096 tokens a second)."""
    asked = {"model": "deepseek-v3", "system": "GB300-NVL72", "precision": "nvfp4", "tp": 1,
             "dp": 32, "framework": "sglang", "input_len": 4096, "output_len": 512, "rate": 20.0,
             "prefill_workers": 2, "prefill_tp": 1, "prefill_dp": dp}  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, asked, "test"), KNOWN.run)
    assert float(found.plan.chunk) == chunk
    stated = complete_serving(parse(ServingPlanSpec, {**asked, "chunk": 777}, "test"), KNOWN.run)
    assert float(stated.plan.chunk) == 777.0
    beside = {name: value for name, value in asked.items() if not name.startswith("prefill")}
    whole = complete_serving(parse(ServingPlanSpec, beside, "test"), KNOWN.run)
    assert float(whole.plan.chunk) == 512.0


def test_searches_ask_for_what_each_kind_of_worker_does() -> None:
    fields = {"framework": ("sglang",), "precision": ("nvfp4",), "input_len": (4096,),
              "output_len": (512,), "tp": (1.0,), "dp": (32.0,)}  # fmt: skip
    node = catalog.system("GB300-NVL72")
    for batch in fleet_space.batches(MODEL, node, fields, KNOWN):
        many = fleet_space.apart(MODEL, node, batch, fields, KNOWN.run)
        copies = np.asarray(many.prefill_dp)
        assert len(set(copies.tolist())) > 2
        assert np.all(np.asarray(many.chunk) == 16384.0 / copies)
        told = fleet_space.apart(MODEL, node, batch, {**fields, "chunk": (512,)}, KNOWN.run)
        assert np.all(np.asarray(told.chunk) == np.asarray(batch.chunk).flat[0])
