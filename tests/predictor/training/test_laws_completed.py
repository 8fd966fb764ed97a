"""What a request leaves open, rule by rule: replicas, chunks, micro-batches, loads, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.filling import Filler
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory import memory
from predictor.plans import FIT
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.choice import chunks, micro_batch
from predictor.training.completion import (
    _again,
    _fewest,
    _fitted,
    _interleaved,
    _loaded,
    _numbers,
    _planned,
    _replicated,
    _routed,
    _shape,
    _whole_replicas,
    complete_training,
    enforce_reach,
)
from predictor.training.fitting import Recomputation, inside
from predictor.training.habits import INTERLEAVED, WHOLE, Habits, own_shown
from predictor.variation import load_of
from tests.predictor.dense import dense

DENSE = dense(layers=24)
MIXED = replace(DENSE, num_experts=16, top_k=2, expert_ffn_hidden=512)
DGX = catalog.system("dgx-h100")
RUN = RunParameters()
PLAN = TrainingPlan(tp=2.0, pp=2.0, dp=4.0, micro_batch=2.0, global_batch=64.0, seq_len=1024.0)
NOTHING = Recomputation("none", 1.0, "core_attn")


def habits(recompute: str = FIT, **settings: Any) -> Habits:
    return Habits("own", settings, False, recompute, {})


def filled(defaults: list[Any], **values: Any) -> dict[str, Any]:
    filler = Filler(dict(values))
    filler.run(defaults)
    return filler.values


@pytest.mark.parametrize(("ep", "etp"), list(product((1, 2, 4, 6, 8), (1, 2, 3))))
def test_a_layout_by_itself_has_as_many_replicas_as_its_experts_need(ep: int, etp: int) -> None:
    """The fewest whose ranks of a stage divide into whole sets of experts."""
    for tp, cp in product((1, 2, 3, 4), (1, 2)):
        values = {"ep": ep, "etp": etp, "tp": tp, "cp": cp, "pp": 2}
        found = _fewest(values)
        assert [r * tp * cp % (ep * etp) == 0 for r in range(1, found + 1)] == [
            *[False] * (found - 1), True
        ]  # fmt: skip
    assert _fewest({"tp": 8, "cp": 1}) == 1


@pytest.mark.parametrize("gpus", [12, 24, 48, 60])
def test_replicas_are_what_accelerators_divide_into(gpus: int) -> None:
    values = {"tp": 2, "pp": 3, "cp": 2, "gpus": gpus, "sharding": "none"}
    draft: Any = SimpleNamespace(values=values, sequence_parallel=lambda tp: tp > 1, cluster=DGX)
    _whole_replicas(values)
    told = filled(_replicated(draft, habits()))
    assert told == {"dp": gpus // 12, "sequence_parallel": True}
    del values["gpus"]
    _whole_replicas(values)
    assert filled(_replicated(draft, habits()))["dp"] == 1
    _whole_replicas({**values, "gpus": gpus + 1, "dp": 3})  # told later, with what is stated
    with pytest.raises(InputError, match=f"gpus {gpus + 1} is not a multiple .*= 12; nearest"):
        _whole_replicas({**values, "gpus": gpus + 1})


@pytest.mark.parametrize(("stages", "filled_in"), [(1, False), (2, True), (4, True), (5, False)])
def test_own_runs_chunks_are_taken_where_they_divide_the_layers(
    stages: int, filled_in: bool
) -> None:
    """Of 24 layers; what is no layout's is taken anywhere."""
    own = RunParameters(habits={"vpp": 3, "cuda_graphs": "layer"})
    values = own_shown(Filler({"pp": stages}), own, DENSE).values
    assert values["cuda_graphs"] == "layer"
    assert ("vpp" in values) is filled_in
    assert own_shown(Filler({"pp": stages, "vpp": 1}), own, DENSE).values["vpp"] == 1
    assert "vpp" not in own_shown(Filler({}), own, DENSE).values


def test_schedules_bring_their_chunks_and_their_overlap() -> None:
    ran = {"gpus": 4, "global_batch": 32}

    def told(model: Any = MIXED, at_once: bool = False, **values: Any) -> dict[str, Any]:
        return filled(_shape({**ran, **values}, model, at_once))

    assert told(schedule="zb-v") == {"vpp": 2}
    assert told(schedule="dualpipe") == {"ep_overlap": True}
    assert told(schedule="dualpipev") == {"vpp": 2, "ep_overlap": True}
    assert told(DENSE, schedule="dualpipev") == {"vpp": 2}
    assert told() == told(schedule="1f1b") == {}
    assert told(at_once=True) == {"micro_batch": 8}


@pytest.mark.parametrize("sharding", ["hsdp", "fsdp", "zero1"])
def test_adam_of_16_bits_has_its_sizes_however_it_is_shared(sharding: str) -> None:
    told = filled(_numbers({"precision": "bf16", "sharding": sharding}))
    # Adam of 16-bit training: 2 bytes of a weight, 4 of a gradient, 12 of master and moments.
    assert (told["weight_bytes"], told["gradient_bytes"], told["optimizer_bytes"]) == (2, 4, 12)
    assert (told["reduce_bytes"], told["gather_bytes"]) == (4, 2)


@pytest.mark.parametrize(("tp", "cp", "dp", "found"), [(1, 1, 16, 8), (2, 1, 16, 4), (2, 2, 16, 2),
                                                       (1, 1, 12, 6), (16, 1, 4, 1)])  # fmt: skip
def test_hybrid_sharding_is_inside_a_node(tp: int, cp: int, dp: int, found: int) -> None:
    """Shards of a node of eight beside what else divides its ranks, of whole shares of replicas."""
    assert inside(8, tp, cp, dp) == found
    values = {"tp": tp, "pp": 1, "cp": cp, "dp": dp, "sharding": "hsdp"}
    draft: Any = SimpleNamespace(values=values, sequence_parallel=bool, cluster=DGX)
    assert filled(_replicated(draft, habits()))["dp_shard"] == found
    values["sharding"] = "fsdp"
    assert "dp_shard" not in filled(_replicated(draft, habits()))


def test_chunks_are_of_those_who_interleave() -> None:
    """24 layers on four stages, many micro-batches: six chunks of a layer; one elsewhere."""
    values = {"pp": 4, "tp": 1, "cp": 1, "dp": 1, "global_batch": 64, "micro_batch": 1}
    most = chunks(DENSE, values)
    assert filled(_interleaved(most, values, habits(vpp=INTERLEAVED)))["vpp"] == 6
    assert filled(_interleaved(most, values, habits()))["vpp"] == 1
    stated = {**values, "schedule": "zb-h1"}
    assert filled(_interleaved(most, stated, habits(vpp=INTERLEAVED)))["vpp"] == 1


def test_unequal_shares_and_pipelines_take_one_sequence_at_once() -> None:
    draft: Any = SimpleNamespace(values={"gpus": 8, "global_batch": 64})
    rest: Any = (NOTHING, [NOTHING], RUN)
    same, dealt = micro_batch(draft, habits(micro_batch=WHOLE), (1, 1, 1), *rest, True)
    kept, piped = micro_batch(draft, habits(), (2, 2, 1), *rest, False)
    assert (dealt.value, piped.value, same, kept) == (1, 1, NOTHING, NOTHING)
    assert dealt.rule != piped.rule


def test_a_layout_is_told_by_its_numbers() -> None:
    again = Recomputation("full", 0.5, "mlp")
    told = filled([*_fitted((2, 3, 4)), *_again(again, habits(), True)])
    assert told == {"tp": 2, "pp": 3, "cp": 4, "recompute": "full", "recompute_share": 0.5}
    part = Recomputation("selective", 1.0, "mlp")
    alone = [*_fitted((8, 1, 1)), *_again(part, habits("selective"), True)]
    assert filled(alone) == {
        "tp": 8, "pp": 1, "cp": 1, "recompute": "selective", "recompute_modules": "mlp"
    }  # fmt: skip
    rules = {one.field: one.rule for one in alone if one.when}
    assert rules["cp"] == "no context parallelism unless asked for"
    assert rules["recompute"] == "default of own"


def test_what_a_plan_comes_to_is_told() -> None:
    made = replace(PLAN, ep=4.0, etp=2.0)
    assert filled(_planned(made, MIXED, habits())) == {"ep": 4, "etp": 2, "gpus": 16}
    assert filled(_planned(made, DENSE, habits())) == {"gpus": 16}


@pytest.mark.parametrize(("ep", "etp"), [(8.0, 1.0), (4.0, 2.0)])
def test_the_load_of_experts_is_that_of_a_ranks_copies(ep: float, etp: float) -> None:
    """2 x 1,024 tokens of each of two ranks' half, two experts for each; those that split experts
    have each other's copies, too."""
    made = replace(PLAN, ep=ep, etp=etp)
    routed = {"expert_loads": "dirichlet:5"}
    filler = Filler({})
    found = _loaded(filler, made, MIXED, dict(routed))
    expected = load_of(dict(routed), MIXED, ep, 2 * 1024 / 2 * 2 * etp).value
    assert found.expert_load == expected > 1.0
    assert [one.field for one in filler.assumed] == ["expert_load"]
    assert _loaded(filler, made, MIXED, {}) is made


def test_experts_loads_are_of_mixtures() -> None:
    values = {"expert_load": 1.3}
    assert _routed(values, DENSE) == {}
    assert values == {}
    values = {"expert_load": 1.3}
    assert _routed(values, MIXED) == {}
    assert values == {"expert_load": 1.3}


def test_a_machine_without_a_network_ends_where_its_links_do() -> None:
    node = replace(DGX, tiers=DGX.tiers[:1])
    reach = DGX.tiers[0].size
    enforce_reach(float(reach), node)
    with pytest.raises(InputError, match="has no network beyond 8"):
        enforce_reach(2.0 * reach, node)


@pytest.mark.parametrize(
    ("strict", "full", "least"),
    [(True, 0.97, False), (True, 0.94, True), (False, 0.97, True), (False, 1.02, False)],
)
def test_the_least_sharding_fits_into_what_plans_may_fill(
    strict: bool, full: float, least: bool
) -> None:
    """95 % of the memory; of what ran, all of it."""
    asked = {
        "model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 4096, "micro_batch": 1,
        "framework": "huggingface", "recompute": "none",
    }  # fmt: skip

    def completed(memory: float, **more: Any) -> TrainingPlan:
        device = replace(DGX.accelerator, memory=memory)
        spec = parse(TrainingPlanSpec, {**asked, **more}, "test")
        return complete_training(spec, RUN, strict, cluster=replace(DGX, accelerator=device)).plan

    plain = completed(1e12, sharding="zero1")
    need = float(memory(catalog.model("llama3-8b"), plain, RUN).peak)
    found = completed(need / full).sharding
    assert (found == "zero1") is least
    assert found != "none"
