"""Stages and replicas on unlike accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory import MEMORY_FRACTION, memory
from predictor.memory.training import allocation
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.dealt import Dealt, Share
from predictor.training.prediction import TrainingPrediction, predict
from predictor.training.uneven import dealt_step
from predictor.training.unlike_replicas import by_replica
from predictor.training.unlike_stages import _line, by_stage
from predictor.variation.swarm import balanced, rate_of_stages, utilisation, with_churn

KNOWN = load("default")
BASE = {"model": "llama3-8b", "tp": 2, "global_batch": 32, "seq_len": 2048}


def complete(**fields: Any) -> TrainingRequest:
    return complete_training(parse(TrainingPlanSpec, {**BASE, **fields}, "test"), KNOWN.run)


def both(**fields: Any) -> tuple[TrainingPrediction, Dealt]:
    return dealt_step(complete(**fields), KNOWN)


def test_one_system_is_the_plain_prediction() -> None:
    named = complete(stage_systems="dgx-h100:2+dgx-h100:2")
    assert not named.kinds
    plain = complete(system="dgx-h100", pp=4)
    ours, theirs = (predict(r.model, r.cluster, r.plan, KNOWN) for r in (named, plain))
    assert float(ours.step_time) == float(theirs.step_time)


def test_alike_systems_are_no_slower_than_the_plain_pipeline() -> None:
    """Told apart by name alone, layers may be dealt as they are by default, or better."""
    one = catalog.system("dgx-h100")
    plan = complete(system="dgx-h100", pp=4).plan
    found, dealt = by_stage(
        catalog.model("llama3-8b"), [(one, 2), (replace(one, name="other"), 2)], plan, KNOWN
    )
    plain = predict(catalog.model("llama3-8b"), one, plan, KNOWN)
    assert float(found.step_time) <= float(plain.step_time) * (1 + 1e-9)
    assert dealt.even == pytest.approx(float(plain.step_time), rel=1e-9)  # 8 layers each
    assert sum(share.layers for share in dealt.shares) == 32
    kept = {name: float(value.max()) for name, value in found.memory.classes.items()}
    lost, rest = kept.pop("fragmentation"), sum(kept.values()) - kept["context"]
    assert lost == pytest.approx(allocation(KNOWN.run, plan.framework).fragmentation * rest)


def test_the_faster_stages_take_more_and_nobody_is_far_behind() -> None:
    found, dealt = both(stage_systems="dgx-h100:2+dgx-a100:2")
    quick, slow = dealt.shares[1], dealt.shares[2]
    assert quick.layers > slow.layers
    # Two of three passes go backward, and nothing else of a stage is as long.
    assert {share.binds for share in dealt.shares} == {"backward"}
    # No layer more or less could even them out further: the gap is below a layer's time.
    assert abs(quick.time - slow.time) < max(quick.time / quick.layers, slow.time / slow.layers)
    assert float(found.step_time) < dealt.even
    assert sum(float(v) for v in found.breakdown.values()) == pytest.approx(float(found.step_time))
    fast, plain = (
        predict(r.model, r.cluster, r.plan, KNOWN).step_time
        for r in (complete(system=name, pp=4) for name in ("dgx-h100", "dgx-a100"))
    )
    assert float(fast) < float(found.step_time) < float(plain)


def test_the_order_of_systems_is_that_of_stages() -> None:
    _, dealt = both(stage_systems="dgx-a100:1+dgx-h100:3")
    assert [s.accelerator.split("-")[0] for s in dealt.shares] == ["A100", "H100", "H100", "H100"]
    played = dealt.timeline(complete(system="dgx-h100", pp=4).plan)
    assert {event.stage for event in played} == {0, 1, 2, 3}


def test_small_memories_take_fewer_layers() -> None:
    """A stage that is as fast but holds less is dealt what it holds."""
    one, plan = catalog.system("dgx-h100"), complete(system="dgx-h100", pp=4).plan
    small = replace(one, name="small", accelerator=replace(one.accelerator, memory=24e9))
    found, dealt = by_stage(catalog.model("llama3-8b"), [(small, 1), (one, 3)], plan, KNOWN)
    full = max(dealt.shares, key=lambda share: share.memory / share.capacity)
    assert float(found.memory.peak) == pytest.approx(full.memory)
    assert all(share.memory <= share.capacity for share in dealt.shares)
    assert dealt.shares[0].layers < dealt.shares[1].layers


def test_stages_hold_what_those_of_a_plain_pipeline_hold() -> None:
    """First, inner ones behind it and last; every further inner one a micro-batch less."""
    request = complete(system="dgx-h100", tp=2, pp=4, recompute="none")
    one, plan = request.cluster, request.plan
    kinds = [(one, 2), (replace(one, name="other"), 2)]
    line = _line(request.model, kinds, plan, KNOWN, None, (), ())
    assert line.even() == [8] * 4
    held = line.held(line.even())
    whole = memory(request.model, plan, KNOWN.run)
    plain = sum(np.broadcast_to(value, (3,)) for value in whole.classes.values())
    assert held[:2] == pytest.approx(plain[:2])
    assert held[3] == pytest.approx(plain[2])
    active = float(whole.classes["activations"][1]) / 3.0
    lost = allocation(KNOWN.run, plan.framework).fragmentation
    assert held[1] - held[2] == pytest.approx(active * (1.0 + lost))
    # A stage is told as what it is: first, inner or last, with all that it holds.
    for stage, kind in enumerate((0, 1, 1, 2)):
        one_of = line._memory(stage, line.spans(line.even())[stage])
        assert one_of.present.tolist() == [kind == k for k in range(3)]
        sums = sum(np.asarray(value) for value in one_of.classes.values())
        assert sums.tolist() == [pytest.approx(held[stage]) if k == kind else 0.0 for k in range(3)]
    # Where data come late, every deal waits as long as the one that is told.
    whole_step = line.total(line.even())[0]
    late = replace(line, tables=[replace(t, loading=whole_step + 5.0) for t in line.tables])
    told, dealt = late.prediction(late.even(), 2.0, 1.5, KNOWN)
    # The slowest host is waited for, wherever it is.
    for order in ((1.0, 3.0, 2.0, 0.0), (3.0, 2.0, 1.0, 0.0)):
        hosts = [
            replace(t, step=replace(t.step, once=t.step.once + more))
            for t, more in zip(line.tables, order, strict=True)
        ]
        waits = replace(line, tables=hosts).once() - line.once()
        assert waits == pytest.approx(3.0)
    assert float(told.breakdown["data_loading"]) == pytest.approx(5.0)
    assert (dealt.even, dealt.cool) == (pytest.approx(7.0), pytest.approx(6.5))


def test_replicas_end_together() -> None:
    found, dealt = both(replica_systems="dgx-h100:2+dgx-a100:2", tp=8, global_batch=256)
    fast, slow = dealt.shares
    assert (
        2 * (fast.micro_batches + slow.micro_batches)
        >= 256
        > 2 * (fast.micro_batches + slow.micro_batches - 2)
    )
    each = max(fast.time / fast.micro_batches, slow.time / slow.micro_batches)
    assert abs(fast.time - slow.time) < each
    assert float(found.step_time) < dealt.even


def test_replicas_are_as_slow_as_the_slowest_and_as_small_as_the_smallest() -> None:
    one, plan = catalog.system("dgx-h100"), complete(system="dgx-h100", tp=8, dp=4).plan
    kinds = [(one, 2), (replace(one, name="other"), 2)]
    alike, _ = by_replica(catalog.model("llama3-8b"), kinds, plan, KNOWN)
    tiers = tuple(replace(tier, bandwidth=0.1 * tier.bandwidth) for tier in one.tiers)
    far = replace(one, name="slow", tiers=tiers)
    _, mixed = by_replica(catalog.model("llama3-8b"), [(one, 2), (far, 2)], plan, KNOWN)
    each = [predict(catalog.model("llama3-8b"), m, plan, KNOWN) for m in (one, far)]
    ends = [float(p.breakdown["dp_communication"] + p.breakdown["optimizer"]) for p in each]
    paces = [float(p.step_time) - end for p, end in zip(each, ends, strict=True)]
    assert mixed.even == pytest.approx(max(paces) + max(ends)), "each as slow as the slowest"
    small = replace(one, accelerator=replace(one.accelerator, memory=30e9))
    told, _ = by_replica(catalog.model("llama3-8b"), [(one, 2), (small, 2)], plan, KNOWN)
    assert float(told.cluster.accelerator.memory) == 30e9, "told of where there is least room"
    plain = predict(catalog.model("llama3-8b"), one, plan, KNOWN)
    assert float(alike.step_time) == pytest.approx(float(plain.step_time), rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stage_systems": "dgx-h100:2+dgx-a100:2", "pp": 2}, "names 4 stages, pp says 2"),
        ({"stage_systems": "dgx-h100:x"}, "NAME:COUNT"),
        ({"stage_systems": "dgx-h100:2+dgx-a100:2", "first_layers": 4}, "first_layers is of one"),
        ({"stage_systems": "dgx-h100+dgx-a100", "replica_systems": "dgx-h100:2"}, "not both"),
    ],
)
def test_what_cannot_be_is_said(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        complete(**fields)


TIGHT = {
    "system": "dgx-h100", "model": "llama3-70b", "gpus": 16, "tp": 2, "pp": 8, "recompute": "full",
    "sharding": "none", "optimizer_bytes": 4, "gradient_bytes": 2, "global_batch": 64,
    "seq_len": 4096,
}  # fmt: skip
"""Stages that hold all activations where few micro-batches are under way, and not in front."""


def test_stages_compute_again_no_more_than_they_have_room_for() -> None:
    """Early stages of 1F1B have more micro-batches under way, and so compute more layers again;
    the step is shorter than alike and even, and what is left of memory is as searches leave it."""
    found, dealt = both(**TIGHT, stage_recompute="fits")
    again = [one.again for one in dealt.shares]
    assert again == sorted(again, reverse=True)
    assert 0.0 < again[0] < 1.0
    assert again[-1] == 0.0
    assert all(
        one.memory <= MEMORY_FRACTION * one.capacity for one in dealt.shares if one.again < 1
    )
    assert sum(one.layers for one in dealt.shares) == 80
    alike = predict(*_of(complete(**TIGHT)), KNOWN)
    assert dealt.even == pytest.approx(float(alike.step_time), rel=1e-9)
    assert float(found.step_time) < dealt.even


def test_with_room_for_everything_nothing_is_computed_again() -> None:
    """As long, and as full, as a pipeline of two alike systems without recomputation."""
    roomy = {"pp": 4, "recompute": "full"}
    found, dealt = both(system="dgx-h100", **roomy, stage_recompute="fits")
    assert [one.again for one in dealt.shares] == [0.0] * 4
    one = catalog.system("dgx-h100")
    plain = complete(system="dgx-h100", **roomy | {"recompute": "none"})
    kinds = [(one, 2), (replace(one, name="other"), 2)]
    bare, _ = by_stage(plain.model, kinds, plain.plan, KNOWN)
    assert float(found.step_time) == pytest.approx(float(bare.step_time), rel=1e-9)
    assert float(found.memory.peak) == pytest.approx(float(bare.memory.peak), rel=1e-9)


def test_stages_that_choose_are_of_one_plan() -> None:
    asked = complete(system="dgx-h100", pp=4, recompute="full", stage_recompute="fits")
    assert asked.single == "stage_recompute fits"
    with pytest.raises(InputError, match="leave replica_systems out"):
        both(replica_systems="dgx-h100:2+dgx-a100:2", recompute="full", stage_recompute="fits")


def _of(request: TrainingRequest) -> tuple[Any, Any, Any]:
    return request.model, request.cluster, request.plan


def test_the_command_prints_what_binds(cli: Callable[..., tuple[int, str, str]]) -> None:
    words = ["--model", "llama3-8b", "--tp", "2", "--global-batch", "32", "--seq-len", "2048"]
    status, out, err = cli(
        "predict", "train", *words, "--set", "stage_systems=dgx-h100:2+dgx-a100:2"
    )
    assert status == 0, err
    assert "binds: stage" in out
    status, _, err = cli(
        "plan", "train", *words, "--system", "dgx-h100", "--gpus", "8", "--set",
        "stage_systems=dgx-h100:2+dgx-a100:2",
    )  # fmt: skip
    assert status == 2
    assert "is of a single plan" in err


def test_a_stage_of_peers_is_as_fast_as_all_of_them() -> None:
    """By hand: 2 + 1 and 3 micro-batches a second make 3; without the third peer, 2."""
    assert rate_of_stages([np.array([2.0, 1.0]), np.array([3.0])]) == 3.0
    assert rate_of_stages([np.array([2.0]), np.array([3.0])]) == 2.0
    peers, work = np.array([4.0, 1.0, 1.0, 2.0]), np.array([1.0, 1.0])
    assert balanced(peers, work) == [[0], [3, 1, 2]]


def test_peers_that_move_lose_less() -> None:
    """With moving, the loss is that of the peers that are away, but for what does not divide; with
    none, the minimum of binomials, which one peer a stage makes up ** stages."""
    alone = with_churn(1, 4, 0.9, moves=False)
    assert alone == pytest.approx(0.9**4, abs=0.02)
    assert with_churn(1, 4, 0.9, moves=True) == alone, "no half of a peer serves a stage"
    stay, move = (with_churn(16, 4, 0.9, moves=m) for m in (False, True))
    assert stay < move <= 0.9
    assert move == pytest.approx(0.9, abs=0.5 / 16)


def test_wider_models_hide_slower_links() -> None:
    """Arithmetic with the square of the width, messages with the width: four times as wide, a link
    four times as slow hides as well."""
    width = np.array([1.0, 2.0, 4.0])
    used = utilisation(width**2, 2.0 * width)
    assert np.all(np.diff(used) > 0)
    assert used == pytest.approx([0.25, 0.5, 1.0])


def test_what_binds_a_replica_is_the_longest_term_of_its_own_step() -> None:
    """Eight stages wait for each other longer than they work until there are enough micro-batches:
    seven passes of each against as many as a replica is dealt."""
    model, one = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    kinds = [(one, 1), (replace(one, name="other"), 1)]
    bound = []
    for each in range(1, 15):
        plan = complete(
            system="dgx-h100", tp=1, pp=8, dp=2, micro_batch=1, global_batch=2 * each, vpp=1
        ).plan
        _, dealt = by_replica(model, kinds, plan, KNOWN)
        found = predict(model, one, plan, KNOWN).breakdown
        terms = {name: float(value) for name, value in found.items()}
        del terms["dp_communication"], terms["optimizer"]
        assert [share.micro_batches for share in dealt.shares] == [each, each]
        assert {share.binds for share in dealt.shares} == {max(terms, key=lambda one: terms[one])}
        bound.append(dealt.shares[0].binds)
    turn = bound.index("backward")
    assert 5 < turn < 12
    assert bound == ["bubble"] * turn + ["backward"] * (14 - turn)


@pytest.mark.parametrize("first", [True, False])
def test_all_wait_for_the_replica_that_works_longest(first: bool) -> None:
    """Whatever the number of micro-batches; the step is its time, and what follows it."""
    model = catalog.model("llama3-8b")
    kinds = [(catalog.system("dgx-h100"), 1), (catalog.system("dgx-a100"), 2)]
    kinds = kinds if first else kinds[::-1]
    most = complete(system="dgx-h100", tp=2, pp=4, dp=3, micro_batch=1, global_batch=24).plan
    waited = set()
    for whole in range(6, 24):
        plan = replace(most, global_batch=float(whole))
        found, dealt = by_replica(model, kinds, plan, KNOWN)
        times = [share.time for share in dealt.shares]
        assert dealt.slowest == times.index(max(times))
        ends = found.breakdown["dp_communication"] + found.breakdown["optimizer"]
        assert float(found.step_time - ends) == pytest.approx(max(times))
        assert sum(one.micro_batches * one.many for one in dealt.shares) >= whole
        assert float(found.step_time) <= dealt.even * (1.0 + 1e-9)
        waited.add(dealt.slowest)
    assert waited == {0, 1}, "so that the law tells one from the other"


def test_a_share_is_told_in_gigabytes_and_seconds() -> None:
    own = Share("a", "b", many=2, layers=3, micro_batches=4, time=5.0, memory=6e9, capacity=7e9,
                binds="forward", again=0.25)  # fmt: skip
    told = Dealt(by="replica", shares=(own,), slowest=0, even=8.0).to_dict()
    assert told["shares"] == [
        {
            "system": "a", "accelerator": "b", "many": 2, "layers": 3, "micro_batches": 4,
            "time_s": 5.0, "memory_gb": 6.0, "capacity_gb": 7.0, "binds": "forward",
            "recompute_share": 0.25,
        }
    ]  # fmt: skip
    assert (told["even_step_time_s"], told["slowest"]) == (8.0, 0)
