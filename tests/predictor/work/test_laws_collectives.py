"""Every collective of a step by hand: operation, bytes, how often, and what hides it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from predictor.work.communication import (
    HANDLED,
    Held,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.work.primitives import Collective
from predictor.work.serving import pass_collectives
from tests.predictor.work.counts import DENSE, HEADS, KV, MIXED, TOP, D, H, served, trained

CP = 2.0
TOKENS = 3 * 1280 / CP
WHOLE = 2 * TOKENS * H
Told = tuple[str, str, float, float, str]


def told(found: Iterable[Collective]) -> dict[str, Told]:
    """Operation, group, bytes, executions and what hides it, of those that are run."""
    found = [one for one in found if np.max(one.count) > 0]
    numbers = [(float(np.max(one.bytes)), float(np.max(one.count))) for one in found]
    return {
        one.name: (one.op, one.group, size, count, one.behind)
        for one, (size, count) in zip(found, numbers, strict=True)
    }


REGIONS = (("attention.qkv", "attention.out"), ("mlp.up", "mlp.down"))


def ring(again: bool = False) -> dict[str, Told]:
    """Keys and values of a rank pass by behind the attention; gradients of both backward, too."""
    message = 2 * TOKENS * 2 * KV / 2 * D
    found = {
        "attention.exchange": ("p2p", "cp", message, 1.0, "attention"),
        "attention.exchange.bwd": ("p2p", "cp", 2 * message, 1.0, "attention.bwd"),
    }
    if again:
        found["attention.exchange.again"] = ("p2p", "cp", message, 1.0, "attention.again")
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_of_a_dense_model_with_split_sequences(overlap: bool, recompute: str) -> None:
    expected: dict[str, Told] = {}
    passes = [""] if recompute == "none" else ["", ".again"]
    for enter, leave in REGIONS:
        for again in passes:
            before, after = (f"{one}{again}" if overlap else "" for one in (enter, leave))
            expected[f"{enter}.gather{again}"] = ("allgather", "tp", WHOLE, 1.0, before)
            expected[f"{leave}.scatter{again}"] = ("reducescatter", "tp", WHOLE, 1.0, after)
        expected |= {
            f"{leave}.gather.bwd": ("allgather", "tp", WHOLE, 1.0,
                                    f"{leave}.dgrad" if overlap else ""),
            f"{enter}.regather": ("allgather", "tp", WHOLE, 1.0, f"{enter}.dgrad"),
            f"{enter}.scatter.bwd": ("reducescatter", "tp", WHOLE, 1.0, f"{enter}.wgrad"),
        }  # fmt: skip
    expected |= {
        "embedding.scatter": ("reducescatter", "tp", WHOLE, 1.0, ""),
        "embedding.gather.bwd": ("allgather", "tp", WHOLE, 1.0, ""),
        "head.gather": ("allgather", "tp", WHOLE, 1.0, ""),
        "loss.reduce": ("allreduce", "tp", 4 * TOKENS, 3.0, ""),
        "head.scatter.bwd": ("reducescatter", "tp", WHOLE, 1.0, ""),
    } | ring(recompute == "full")
    plan = trained(cp=CP, tp_overlap=overlap, recompute=recompute)
    assert told(step_collectives(DENSE, plan)) == expected


def test_a_step_of_a_dense_model_with_whole_sequences() -> None:
    """All-reduces of what row-parallel products leave, and of the gradients of inputs."""
    expected: dict[str, Told] = {
        f"{leave}.reduce": ("allreduce", "tp", WHOLE, 1.0, "") for _, leave in REGIONS
    }
    expected |= {
        f"{enter}.reduce.bwd": ("allreduce", "tp", WHOLE, 1.0, f"{enter}.wgrad")
        for enter, _ in REGIONS
    }
    expected |= {
        "embedding.reduce": ("allreduce", "tp", WHOLE, 1.0, ""),
        "loss.reduce": ("allreduce", "tp", 4 * TOKENS, 3.0, ""),
        "head.reduce.bwd": ("allreduce", "tp", WHOLE, 1.0, ""),
    } | ring()
    plan = trained(cp=CP, sequence_parallel=0.0)
    assert told(step_collectives(DENSE, plan)) == expected


def test_ranks_that_split_a_sequence_pass_on_as_often_as_there_are_others() -> None:
    for cp in (2.0, 4.0, 8.0):
        found = {one.name: one for one in step_collectives(DENSE, trained(cp=cp))}
        assert float(np.max(found["attention.exchange"].calls)) == cp - 1


@pytest.mark.parametrize(
    ("kind", "op", "message", "backward"),
    [
        # Queries, keys, values and outcomes of a rank's heads for tokens, both ways.
        ("ulysses", "alltoall", 2 * TOKENS * 2 * (HEADS / 2 + KV / 2) * D, 1.0),
        ("allgather", "allgather", CP * 2 * TOKENS * 2 * KV / 2 * D, 2.0),
    ],
)
def test_other_ways_to_split_a_sequence(
    kind: str, op: str, message: float, backward: float
) -> None:
    found = told(step_collectives(DENSE, trained(cp=CP, cp_kind=kind)))
    assert found["attention.exchange"] == (op, "cp", message, 1.0, "")
    assert found["attention.exchange.bwd"] == (op, "cp", backward * message, 1.0, "")


def test_attention_of_windows_alone_hides_its_exchange_behind_itself() -> None:
    window = replace(DENSE, sliding_window=128)
    found = told(step_collectives(window, trained(cp=CP)))
    assert found["attention.exchange"][-1] == "attention.window"
    half = replace(window, sliding_pattern="alternating")
    names = {one.behind for one in step_collectives(half, trained(cp=CP))
             if one.name == "attention.exchange"}  # fmt: skip
    assert "attention" in names
    apart = told(step_collectives(DENSE, trained(cp=CP, attention="unfused")))
    assert apart["attention.exchange"][-1] == "attention.context"
    assert apart["attention.exchange.bwd"][-1] == "attention.context.dgrad"


def test_stages_hand_on_what_a_rank_has() -> None:
    for pp, sent in ((1.0, {}), (4.0, {"pipeline.forward", "pipeline.backward"})):
        found = told(pipeline_collectives(DENSE, trained(cp=CP, pp=pp)))
        assert set(found) == set(sent)
        for one in found.values():
            assert one[:4] == ("p2p", "pp", WHOLE / 2, 1.0)
    stated = told(pipeline_collectives(DENSE, trained(cp=CP, pp=4.0, handed_bytes=4.0)))
    assert stated["pipeline.forward"][2] == 2 * WHOLE / 2


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"])
def test_gradients_and_weights_of_every_sharding(sharding: str) -> None:
    """Of 1,000 weights of which 600 have gradients, and 300 of experts, in five layers: gradients
    of 4 bytes, gathered weights of 2; the embedding of both ends once more."""
    plan = trained(dp=8.0, global_batch=24.0, sharding=sharding, pp=2.0, dp_shard=4.0,
                   reshard=True)  # fmt: skip
    dense, experts = Held(1000.0, 600.0), Held(300.0, 300.0)
    found = told(gradient_collectives(plan, dense, experts, 5.0, 70.0))
    tie = found.pop("embedding.tie")
    assert tie == ("allreduce", "ends", 70 * 4.0, 1.0, "")
    repeats = float(np.max(plan.exchanges))
    for kind, prefix, held in (("", "", dense), ("experts.", "e", experts)):
        grads, weights = held.trained * 4.0, held.weights * 2.0
        if sharding == "none":
            assert found[f"{kind}gradients.reduce"][:4] == (
                "allreduce", f"{prefix}dp", grads, repeats
            )  # fmt: skip
            continue
        if sharding in ("zero1", "zero2"):
            own = found[f"{kind}gradients.scatter"]
            assert own[:4] == ("reducescatter", f"{prefix}dp", grads, repeats)
            own = found[f"{kind}weights.gather"]
            assert own[:4] == ("allgather", f"{prefix}dp", held.trained * 2.0, 1.0)
            continue
        group = f"{prefix}shard"
        for name in ("gather", "regather"):
            own = found[f"{kind}weights.{name}"]
            assert own[:4] == ("allgather", group, pytest.approx(weights / 6), 6.0 * repeats)
        own = found[f"{kind}gradients.scatter"]
        assert own[:3] == ("reducescatter", group, pytest.approx(grads / 6))
        shards = float(np.max(plan.expert_shard_group if kind else plan.shard_group))
        own = found[f"{kind}gradients.replicate"]
        assert own[:3] == ("allreduce", f"{prefix}replicate", pytest.approx(grads / 6 / shards))


def test_replicas_of_mirrored_stages_lie_over_the_whole_pipeline() -> None:
    """DualPipe: each stage is on two devices. Four stages of two ranks, two replicas: those that
    share a gradient are four of sixteen; experts' of a rank, too."""
    plan = trained(tp=2.0, pp=4.0, dp=2.0, schedule="dualpipe", global_batch=48.0)
    found = groups(plan)
    size, stride = (float(np.asarray(v)) for v in (found["dp"].size, found["dp"].stride))
    assert (size, stride) == (4.0, 4.0)
    experts = groups(replace(plan, ep=2.0, etp=1.0))["edp"]
    assert float(np.asarray(experts.size)) == 2 * 2 * 2 / 2
    assert float(np.asarray(experts.stride)) == 2.0 * 4 / 2
    plain = groups(replace(plan, schedule="1f1b"))
    assert float(np.asarray(plain["dp"].size)) == 2.0
    ends = plain["ends"]
    assert (float(np.asarray(ends.size)), float(np.asarray(ends.stride))) == (2.0, 3 * 4.0)
    near = groups(replace(plan, pp=2.0, schedule="1f1b"))["ends"]
    assert float(np.asarray(near.stride)) == 4.0
    alone = groups(replace(plan, pp=1.0, schedule="1f1b"))
    assert float(np.asarray(alone["pp"].size)) == 1.0


@pytest.mark.parametrize("routed", ["copies", "once"])
def test_the_way_to_the_experts_and_back(routed: str) -> None:
    """Four ranks of experts of half the tokens each: top three of them, 2 bytes of 640 channels; a
    token sent once goes to each rank that it has to."""
    plan = trained(tp=1.0, dp=4.0, ep=4.0, sequence_parallel=0.0, dispatch=routed,
                   dispatch_processors=20.0, global_batch=12.0)  # fmt: skip
    found = {one.name: one for one in step_collectives(MIXED, plan) if one.group == "ep"}
    tokens = 3 * 1280
    exchanged = [one for name, one in found.items() if one.op == "alltoall" and "count" not in name]
    assert {one.name for one in exchanged} >= {
        "moe.dispatch", "moe.combine", "moe.dispatch.bwd", "moe.combine.bwd"
    }  # fmt: skip
    for one in exchanged:
        if float(np.max(one.bytes)) < 1e4:
            continue  # counts of tokens
        assert float(np.max(one.bytes)) == 2 * tokens * TOP * H
        assert float(np.max(one.copies)) == (TOP if routed == "once" else 1.0)
        rank, kib, both = HANDLED
        ranks = 4 * (1 - (1 - 1 / 4) ** TOP)
        each = rank * ranks + 2 * H / 1024 * (kib + both * ranks)
        least = tokens * each / 20.0 if routed == "once" else 0.0
        assert float(np.max(one.least)) == pytest.approx(least)


@pytest.mark.parametrize("family", ["minimax_m2", "llama"])
def test_norms_over_all_heads_add_up_their_squares(family: str) -> None:
    """Of queries and of keys, in 32 bits, of every token; a pass of ten tokens on four ranks."""
    found = told(pass_collectives(replace(DENSE, family=family), served(tp=4.0), 10.0, 2.0))
    squares = found.pop("attention.squares", None)
    assert squares == (("allreduce", "tp", 2 * 4 * 10.0, 5.0, "") if "mini" in family else None)
    whole = 2 * 10.0 * H
    assert found == {
        "attention.reduce": ("allreduce", "tp", whole, 5.0, ""),
        "mlp.reduce": ("allreduce", "tp", whole, 5.0, ""),
        "embedding.reduce": ("allreduce", "tp", whole, 1.0, ""),
        "head.gather": ("allgather", "tp", 2 * 2.0 * 3072, 1.0, ""),
    }
    piped = told(pass_collectives(DENSE, served(tp=4.0, pp=3.0), 10.0, 2.0))
    assert piped["pipeline"] == ("p2p", "pp", whole / 4, 2.0, "")


def test_calls_are_one_where_all_that_the_network_sees_is() -> None:
    """Whoever makes them, and whatever they are called; numbers that nobody stated are alike."""
    one = Collective("a", "allreduce", "forward", "pass", "tp", 8.0, 1.0, turn=float("nan"))
    assert one.call == replace(one, name="b", count=2.0, turn=float("nan")).call
    many = replace(one, bytes=np.array([8.0, 9.0]))
    assert many.call == replace(many, bytes=np.array([8.0, 9.0])).call
    others = ({"bytes": 9.0}, {"copies": 2.0}, {"reach": 4.0}, {"turn": 4.0}, {"least": 1.0},
              {"op": "allgather"}, {"group": "dp"}, {"bytes": np.array([8.0, 9.0])})  # fmt: skip
    assert len({one.call, *(replace(one, **other).call for other in others)}) == 1 + len(others)
