"""Prompts read on another system's accelerators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.plans.serving import ServingPlan
from predictor.search.fleets import Engines, accelerators, search_engines
from predictor.serving.apart import enough_accelerators, link_rate, readers
from predictor.serving.capacities import Promise
from predictor.serving.completion import complete_serving
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.rates import predict_rate
from predictor.serving.simulation import one_by_one

MODEL = catalog.model("llama3-8b")
H100, H200, A100 = (catalog.system(name) for name in ("dgx-h100", "dgx-h200", "dgx-a100"))
KNOWN = load("default")
PLAN = ServingPlan(
    batch=16.0, input_len=2000.0, output_len=200.0, serving=1.0, tp=2.0, prefill_workers=2.0,
    prefill_tp=1.0, synchrony=0.0,
)  # fmt: skip


def predicted(cluster: Cluster, plan: ServingPlan = PLAN) -> InferencePrediction:
    return predict_inference(MODEL, cluster, plan, KNOWN)


def of(decoding: Cluster, reading: Cluster) -> Cluster:
    return replace(decoding, prefill=reading)


def test_the_same_system_is_none() -> None:
    plan = replace(PLAN, prefill_workers=16.0)  # beyond a node: the outermost network in any case
    own, named = predicted(H100, plan), predicted(of(H100, H100), plan)
    for one in ("ttft", "tpot", "e2e", "requests_per_s"):
        assert float(getattr(own.latencies, one)) == float(getattr(named.latencies, one))


def test_each_side_is_its_own_machines() -> None:
    mixed, slow, fast = predicted(of(A100, H100)), predicted(A100), predicted(H100)
    # Passes over prompts are the readers', passes that decode the others'.
    assert float(mixed.prompts.compute) == float(fast.prompts.compute)
    assert float(mixed.prompts.compute) < float(slow.prompts.compute)
    assert float(mixed.latencies.ttft) < float(slow.latencies.ttft)
    assert float(mixed.latencies.step) > float(fast.latencies.step)
    held = predicted(of(A100, H200)).reader
    assert held is not None
    share = float(held.capacity) / float(mixed.memory.capacity)
    assert share == pytest.approx(H200.accelerator.memory / A100.accelerator.memory)


def test_a_cache_goes_as_fast_as_the_slower_side() -> None:
    sent, taken = H100.tiers[-1].rate, A100.tiers[-1].rate
    two = float(link_rate(PLAN, of(A100, H100)))  # one sends, two take in
    assert two == min(float(sent), 2.0 * float(taken))
    one = replace(PLAN, tp=1.0, prefill_tp=4.0)  # four send to one
    assert float(link_rate(one, of(A100, H100))) == float(taken) / 4.0
    assert float(link_rate(replace(one, kv_rate=1e9), of(A100, H100))) == 1e9


def test_each_side_runs_the_data_types_that_it_has() -> None:
    _, plan = readers(replace(PLAN, weights="fp8"), of(H100, A100))
    assert plan.weights == "int8_wo"  # weights of a byte, widened as they are read
    assert predicted(of(H100, A100), replace(PLAN, weights="fp8")).plan.weights == "fp8"


def test_each_network_reaches_its_own() -> None:
    small = replace(A100, tiers=A100.tiers[:1])  # a single node of eight
    assert bool(enough_accelerators(replace(PLAN, tp=8.0), of(small, H100)))
    assert not bool(enough_accelerators(replace(PLAN, tp=8.0), small))
    many = replace(PLAN, prefill_workers=9.0)
    assert not bool(enough_accelerators(many, of(H100, small)))


def test_plans_of_a_batch_are_read_for_by_one_system() -> None:
    mixed = replace(PLAN, prefill_workers=np.array([0.0, 2.0]))
    with pytest.raises(InputError, match="of all plans of a batch, or of none"):
        predicted(of(A100, H100), mixed)


def test_the_closed_form_is_that_of_requests_one_by_one() -> None:
    machines, plan = of(A100, H100), replace(PLAN, batch=np.inf)
    found = predict_rate(MODEL, machines, plan, 12.0, KNOWN, variation=0.1)
    served = one_by_one(MODEL, machines, plan, KNOWN, 3000, rate=12.0)
    # As close as closed forms come where one system does both (test_disaggregation).
    assert float(found.prediction.latencies.ttft) == pytest.approx(served.ttft.mean(), rel=0.1)
    assert float(found.prediction.latencies.tpot) == pytest.approx(served.tpot.mean(), rel=0.05)


def request(**fields: Any) -> Cluster:
    base = {"model": "llama3-8b", "system": "dgx-a100", "input_len": 512, "output_len": 64,
            "concurrency": 8, "tp": 1}  # fmt: skip
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, KNOWN.run).cluster


def test_a_request_names_it() -> None:
    found = request(prefill_system="dgx-h100", prefill_workers=1)
    assert found.prefill is not None
    assert (found.name, found.prefill.name) == ("DGX-A100-80GB", "DGX-H100")
    with pytest.raises(InputError, match="prefill_system needs prefill_workers"):
        request(prefill_system="dgx-h100")


def searched(prices: dict[str, float] | None) -> Engines:
    fields = {"input_len": (4096,), "output_len": (256,), "tp": (1, 2), "pp": (1,)}
    return search_engines(
        MODEL, [A100], fields, Promise(ttft=0.6, tpot=0.03), KNOWN, 20.0,
        readers=[H100], prices=prices,
    )  # fmt: skip


def test_a_search_reads_on_those_and_counts_their_price() -> None:
    cheap, dear = (
        searched({"DGX-A100-80GB": 1.0, "DGX-H100": 1.0}),
        searched({"DGX-A100-80GB": 1.0, "DGX-H100": 100.0}),
    )
    for found in (cheap, dear):
        assert all((e.cluster.prefill is not None) == e.apart for e in found.engines)
    one = next(e for e in dear.engines if e.apart)
    readers_ = one.plan.prefill_workers * one.plan.prefill_tp
    price = float(accelerators(one.plan, one.cluster, {"DGX-A100-80GB": 1.0, "DGX-H100": 100.0}))
    assert price == one.gpus - readers_ + 100.0 * readers_

    def share(found: Engines) -> float:
        """Of accelerators that read, of the engines with most of them."""
        kept = [e for e in found.engines if e.apart]
        return max(float(e.plan.prefill_workers * e.plan.prefill_tp) / e.gpus for e in kept)

    assert share(dear) <= share(cheap)


@pytest.mark.parametrize(("tp", "pp", "prefill_tp"), [(2, 1, 1), (2, 2, 1), (1, 1, 4), (4, 2, 8)])
@pytest.mark.parametrize("machines", [(A100, H200), (H200, A100)])
def test_no_more_is_sent_than_is_taken_in(
    machines: tuple[Cluster, Cluster], tp: int, pp: int, prefill_tp: int
) -> None:
    """What all senders of a worker send is what their networks carry, or all receivers'."""
    decoding, reading = machines
    plan = replace(PLAN, tp=float(tp), pp=float(pp), prefill_tp=float(prefill_tp))
    sent = float(link_rate(plan, of(decoding, reading))) * prefill_tp
    gives = float(reading.tiers[-1].rate) * prefill_tp
    takes = float(decoding.tiers[-1].rate) * tp * pp
    assert sent == pytest.approx(min(gives, takes))
