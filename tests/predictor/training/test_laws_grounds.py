"""What a step rests on: links that exchanges cross, the least that is known of what a share is made
of, and what each cost taken away saves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.memory import memory
from predictor.timing.calibration import RunParameters
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.decomposition import parts
from predictor.training.explanation import Explanation, explain
from predictor.training.layer import layer_parts
from predictor.training.prediction import predict
from predictor.training.software import environment, environment_of
from predictor.training.step import assemble

KNOWN = load("default")
TRUST = ("default", "roofline", "transferred", "interpolated", "measured")
"""What is known, least first."""

SMALL = {"model": "gpt2-124m", "system": "dgx-h100", "tp": 1, "pp": 1, "seq_len": 1024}
DENSE = {"model": "llama3-70b", "system": "dgx-h100", "gpus": 256, "tp": 8, "pp": 4,
         "global_batch": 256, "seq_len": 8192}  # fmt: skip
SPARSE = {**DENSE, "model": "qwen3-next-80b-a3b", "tp": 1, "pp": 2, "ep": 8, "gpus": 64}
LOADED = {**DENSE, "recompute": "full", "framework": "megatron-lm"}


@cache
def asked(**fields: Any) -> TrainingRequest:
    """A request of which nothing is doubted, which is another matter."""
    found = complete_training(parse(TrainingPlanSpec, fields, "test"), RunParameters())
    return replace(found, assumed=())


@cache
def explained(**fields: Any) -> Explanation:
    return explain(asked(**fields), KNOWN)


def on(why: Explanation, name: str) -> set[str]:
    """Links on which an exchange rests."""
    found = [one.name.partition("/")[2] for one in why.grounds if one.name.startswith(f"{name}/")]
    return {link for one in found for link in one.split("+")}


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_what_leaves_the_node_rests_on_the_network(nodes: int) -> None:
    """Replicas of one node add up over its own links, those of two and more over the network."""
    gpus = 8 * nodes
    why = explained(**SMALL, gpus=gpus, global_batch=gpus)
    assert on(why, "dp") == {"nvlink4" if nodes == 1 else "infiniband-ndr"}


@pytest.mark.parametrize(("tp", "stages", "far"), [(4, 2, False), (8, 2, True), (8, 4, True)])
def test_stages_of_a_node_send_over_its_links(tp: int, stages: int, far: bool) -> None:
    gpus = tp * stages
    why = explained(**{**DENSE, "model": "llama3-8b", "gpus": gpus, "tp": tp, "pp": stages})
    assert on(why, "p2p") == {"infiniband-ndr" if far else "nvlink4"}
    assert on(why, "allgather") == {"nvlink4"}, "tensor parallelism stays in the node"


@pytest.mark.parametrize("fields", [DENSE, SPARSE, LOADED])
def test_a_share_is_known_as_the_least_known_of_its_kernels(fields: dict[str, Any]) -> None:
    made, why = asked(**fields), explained(**fields)
    _, listed = parts(made.model, made.cluster, made.plan, KNOWN)
    step = predict(made.model, made.cluster, made.plan, KNOWN)
    least: dict[str, str] = {}
    for family, known in zip(listed.timing.family, listed.timing.pedigree, strict=True):
        least[family] = min(known, least.get(family, known), key=TRUST.index)
    told = {one.name: one for one in why.grounds}
    assert len(least.keys() & told.keys()) > 5
    for family in least.keys() & told.keys():
        assert told[family].known == least[family], family
        kind, dtype, place = family.split("/")
        model = KNOWN.kernels.get((kind, dtype, place))
        assert told[family].points == (model.points if model else 0)
        assert told[family].share < 1.0
    if fields is not LOADED:  # what is known of several kernels of one family differs
        assert len(set(zip(listed.timing.family, listed.timing.pedigree, strict=True))) > len(least)
    assert sum(one.share for one in why.grounds) == pytest.approx(1.0)
    assert why.step_time == pytest.approx(float(step.step_time))


@pytest.mark.parametrize("fields", [DENSE, SPARSE])
def test_a_share_of_exchanges_is_known_as_the_least_known_of_its_links(
    fields: dict[str, Any],
) -> None:
    why = explained(**fields)
    exchanges = ("allgather", "reducescatter", "alltoall", "allreduce", "p2p")
    own = [one for one in why.grounds if one.name.partition("/")[0] in exchanges]
    assert own
    for one in own:
        op, _, links = one.name.partition("/")
        used = [KNOWN.link(op, link) for link in links.split("+")]
        assert one.points == sum(model.points for model in used)
        assert one.known == min((model.pedigree for model in used), key=TRUST.index)


def saved(why: Explanation, name: str) -> float:
    return {one.name: one.saves for one in why.remedies}.get(name, 0.0)


@pytest.mark.parametrize("fields", [DENSE, SPARSE, LOADED])
def test_what_a_cost_saves_is_the_step_without_it(fields: dict[str, Any]) -> None:
    made, why = asked(**fields), explained(**fields)

    def without(plan: Any = None, run: Any = None) -> float:
        known = KNOWN if run is None else replace(KNOWN, run=run)
        one = predict(made.model, made.cluster, plan or made.plan, known)
        return why.step_time - float(one.step_time)

    free = replace(KNOWN.run, host_per_kernel=0.0)
    assert saved(why, "host time per launch") == pytest.approx(without(run=free), rel=1e-6)
    if made.plan.recompute != "none":
        again = without(replace(made.plan, recompute="none"))
        assert saved(why, "recomputation") == pytest.approx(again)
    if made.model.is_moe:
        even = without(replace(made.plan, expert_load=1.0))
        assert saved(why, "imbalance of experts") == pytest.approx(even)
    factor = environment(KNOWN.run.factors, made.plan.framework, made.plan.era).factor
    assert saved(why, "pipeline bubble") == pytest.approx(why.terms["bubble"] * factor)
    factors = {key: 1.0 if value == factor else value for key, value in KNOWN.run.factors.items()}
    plain = without(run=replace(KNOWN.run, factors=factors))
    assert saved(why, "framework factor") == pytest.approx(plain)
    assert [one.saves for one in why.remedies] == sorted(
        (one.saves for one in why.remedies), reverse=True
    )


@pytest.mark.parametrize("late", [1e-3, 0.5, 30.0])
def test_what_a_step_waits_for_its_data_is_a_share_of_it(late: float) -> None:
    """However short: 2 M tokens of a replica's batch that come so much later than the step ends."""
    made = asked(**LOADED)
    step = float(predict(made.model, made.cluster, made.plan, KNOWN).step_time)
    tokens = float(made.plan.global_batch * made.plan.seq_len / made.plan.dp)
    slow = replace(made, plan=replace(made.plan, loader_rate=tokens / (step + late)))
    why = explain(slow, KNOWN)
    shares = {one.name: one.share for one in why.grounds}
    assert saved(why, "waiting for data") == pytest.approx(late)
    assert shares["data loading"] == pytest.approx(late / (step + late))
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("weak", ["reducescatter", "allgather"])
def test_exchanges_of_gradients_are_known_as_the_less_known_of_them(weak: str) -> None:
    link = "infiniband-ndr"
    fits = {
        (op, link): replace(KNOWN.link(op, link), pedigree="default" if op == weak else "measured")
        for op in ("reducescatter", "allgather", "allreduce")
    }
    known = replace(KNOWN, links={**KNOWN.links, **fits})
    grounds = {one.name: one.known for one in explain(asked(**DENSE), known).grounds}
    assert grounds[f"dp/{link}"] == "default"


@pytest.mark.parametrize("fields", [DENSE, SPARSE, LOADED])
def test_kernels_at_their_peak_save_what_a_step_of_such_kernels_does(
    fields: dict[str, Any],
) -> None:
    """Taken apart anew with kernels that take what their arithmetic does at the peak."""
    made, why = asked(**fields), explained(**fields)
    model, cluster, plan = made.model, made.cluster, made.plan
    found, listed = parts(model, cluster, plan, KNOWN)
    ideal = np.array([o.flop / cluster.accelerator.peak_for(o.dtype) for o in listed.operators])
    bound = np.asarray(listed.timing.bound)
    for name, chosen in (
        ("memory- and latency-bound kernels", bound != 0),
        ("compute-bound kernels below peak", bound == 0),
    ):
        least = np.minimum(listed.timing.time, ideal)
        quick = replace(listed.timing, time=np.where(chosen, least, listed.timing.time))
        layers = layer_parts(model, cluster, plan, KNOWN, quick)
        own, _ = parts(model, cluster, plan, KNOWN, (layers, found.index))
        step = assemble(own, KNOWN.run, environment_of(cluster, plan, KNOWN.run))
        told = saved(why, name)
        assert told > 0.0
        assert told == pytest.approx(why.step_time - float(step.step_time), rel=1e-6)


@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b"])
def test_whether_a_plan_without_recomputation_fits_is_said(model: str) -> None:
    made = asked(**{**LOADED, "model": model, "tp": 4, "pp": 2, "gpus": 64})
    plain = replace(made.plan, recompute="none")
    need, has = float(memory(made.model, plain, KNOWN.run).peak), made.cluster.accelerator.memory
    (told,) = (one for one in explain(made, KNOWN).remedies if one.name == "recomputation")
    fits = model == "llama3-8b"
    assert (need <= has) is fits
    assert told.note == ("it would fit" if fits else f"it would need {round(need / 1e9)} GB")


def test_an_optimizer_saves_what_it_takes_where_nothing_else_ends_a_step() -> None:
    why = explained(**SMALL, gpus=1, global_batch=8)
    assert saved(why, "optimizer") == pytest.approx(why.terms["optimizer"])
    assert saved(why, "data-parallel communication") == 0.0
