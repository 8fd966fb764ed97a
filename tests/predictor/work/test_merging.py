"""Attention over one rank's keys after the other's, merged in 32 bits: counts by hand of PyTorch's
context parallelism (torch/distributed/tensor/experimental/_attention.py, 2.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor.memory import memory
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.timing import RunParameters
from predictor.work import step_collectives, step_operators
from predictor.work.cores import Reading
from predictor.work.merging import APART, COMPILED
from tests.predictor.work.served import of_step

Make = Callable[..., TrainingPlan]
OWN = {"tp": 1.0, "pp": 1.0, "cp": 4.0, "cp_kind": "allgather", "seq_len": 8192.0,
       "merges_apart": True}  # fmt: skip
ROWS, HEADS, KEY_HEADS, SIZE = 2048, 64, 8, 128


def exchanged(model: Model, made: TrainingPlan) -> list[tuple[str, str, float, float, str]]:
    """Phase, operation, bytes of a call, calls and what hides them of what cp ranks exchange."""
    return [
        (c.phase, c.op, float(c.bytes), float(c.count * c.calls), c.behind)
        for c in step_collectives(model, made)
        if c.group == "cp"
    ]


def test_blocks_are_the_ranks_own_keys_and_halves_of_later_ones(llama: Model, plan: Make) -> None:
    """Own queries and keys behind the mask, then three times half of the queries with all keys of
    another rank: together what one kernel over all keys does."""
    found, whole = (of_step(llama, plan(**OWN | {"merges_apart": on})) for on in (True, False))
    for end in ("", ".bwd"):
        own, later = found[f"attention{end}"], found[f"attention.later{end}"]
        assert (own.m, own.n, float(own.count)) == (ROWS, ROWS, 1.0)
        assert (later.n, float(later.count)) == (ROWS, 3.0)
        assert later.m == pytest.approx(ROWS / 2, rel=1e-3)
        assert later.flop == pytest.approx(own.flop)
        assert own.flop + 3 * later.flop == pytest.approx(whole[f"attention{end}"].flop)
    assert (own.saved, later.saved) == (whole["attention.bwd"].saved, 0.0)
    assert found["attention"].saved == whole["attention"].saved


def test_queries_that_see_everything_meet_whole_blocks() -> None:
    reading = Reading(2.0, 512.0, 2048.0, 2048.0, 0.0, 2048.0, blocks=4.0)
    for one in (reading.own, reading.later):
        assert (one.query, one.keys, one.seen) == (512.0, 512.0, 512.0)


def test_merges_operator_by_operator(llama: Model, plan: Make) -> None:
    """Per element of the outcome and of queries, reads and writes of 32 bits 4 bytes each, of 16
    bits 2; three later blocks. Per element of keys and values the same."""
    found = of_step(llama, plan(**OWN, fused=False))
    widen, difference, scale, subtract, narrow = 2 + 4, 4 + 4 + 4, 4 + 4, 4 + 4 + 4, 4 + 2
    outcome = widen + narrow + 3 * (widen + difference + scale + subtract)
    contiguous = cat = 2 + 2
    queries, keys = ROWS * HEADS * SIZE, ROWS * 2 * KEY_HEADS * SIZE
    merge = found["attention.merge"]
    assert merge.bytes == pytest.approx(queries * outcome + keys * (contiguous + 3 * cat))
    zeros, add, joined = 4, 4 + 2 + 4, 4 + 4
    gradient = zeros + 4 * add + narrow
    half = add / 2 + joined
    own = zeros + contiguous + add + joined + narrow
    travelling = own + 3 * (cat + half + joined)
    back = found["attention.merge.bwd"]
    assert back.bytes == pytest.approx(queries * gradient + keys * travelling)
    assert (merge.kernels, back.kernels) == (4 + 3 * 10, 11 + 3 * 7)


def test_merges_of_a_compiled_graph(llama: Model, plan: Make) -> None:
    """Three merges: 2 + 2 bytes read and 4 written, 4 + 2 and 4, 4 + 2 and 2; sums of queries'
    gradients alike; keys are laid out once, their gradients in what is sent."""
    found = of_step(llama, plan(**OWN, fused=True))
    queries, keys = ROWS * HEADS * SIZE, ROWS * 2 * KEY_HEADS * SIZE
    sums = (2 + 2 + 4) + (4 + 2 + 4) + (4 + 2 + 2)
    assert found["attention.merge"].bytes == pytest.approx(queries * sums + keys * (2 + 2))
    half = (4 + 2 + 4) / 2 + (4 + 4) / 2
    sent = (2 + 2) + (2 + 4) + 3 * half + (4 + 2)
    assert found["attention.merge.bwd"].bytes == pytest.approx(queries * sums + keys * sent)
    for one, other in ((COMPILED.forward, APART.forward), (COMPILED.backward, APART.backward)):
        assert one.queries < other.queries
        assert one.keys <= other.keys


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_keys_are_gathered_and_gradients_sent_in_32_bits(
    llama: Model, plan: Make, fused: bool, repeated: bool
) -> None:
    """Gathered forward, and again backward; gradients leave after each of four blocks, the last
    time with nothing left to compute. A compiled graph waits at once."""
    made = plan(**OWN, fused=fused, keys_repeated=repeated)
    elements = ROWS * 2 * (HEADS if repeated else KEY_HEADS) * SIZE
    before, behind = ("", "") if fused else ("attention", "attention.bwd")
    assert exchanged(llama, made) == [
        ("forward", "allgather", 4 * 2.0 * elements, 1.0, before),
        ("backward", "allgather", 4 * 2.0 * elements, 1.0, behind),
        ("backward", "p2p", 4.0 * elements, 3.0, behind),
        ("backward", "p2p", 4.0 * elements, 1.0, ""),
    ]


def test_keys_that_go_round_are_sent_as_often(llama: Model, plan: Make) -> None:
    made = plan(**OWN | {"cp_kind": "ring"}, fused=False, recompute="full")
    elements = ROWS * 2 * KEY_HEADS * SIZE
    sent = ("p2p", 2.0 * elements, 3.0)
    found = exchanged(llama, made)
    assert found[:3] == [
        ("forward", *sent, "attention"),
        ("recompute", *sent, "attention.again"),
        ("backward", *sent, "attention.bwd"),
    ]


def test_checkpoints_by_operator_gather_keys_again(llama: Model, plan: Make) -> None:
    """All-gathers are not among what they keep, attention is; a compiled graph has no use for
    them."""
    for fused in (False, True):
        made = plan(**OWN, recompute="per_op", fused=fused)
        again = [one for one in exchanged(llama, made) if one[0] == "recompute"]
        assert len(again) == (not fused)
        assert all(one[-1] == "" for one in again)
        assert "attention.merge.again" in of_step(llama, made)


@pytest.mark.parametrize("other", [{"cp": 1.0}, {"cp_kind": "ulysses"}, {"attention": "unfused"}])
def test_nothing_is_merged_elsewhere(llama: Model, plan: Make, other: dict[str, object]) -> None:
    """Not on one rank, nor where heads are exchanged for tokens, nor where scores are written."""
    apart, joined = (plan(**OWN | {"merges_apart": on} | other) for on in (True, False))
    one, two = (
        {o.name: (float(o.flop), float(o.bytes), float(o.count)) for o in step_operators(llama, m)}
        for m in (apart, joined)
    )
    assert one == two
    if apart.cp > 1:
        assert exchanged(llama, apart) == exchanged(llama, joined)


def test_the_backward_pass_holds_what_it_merges(llama: Model, plan: Make) -> None:
    """Keys and values of four ranks in 16 bits, or of two that pass them on; gradients of queries,
    and of keys and values twice, in 32."""
    queries, keys = ROWS * HEADS * SIZE, ROWS * 2 * KEY_HEADS * SIZE
    for kind, ranks in (("allgather", 4), ("ring", 2), ("ulysses", 0)):
        made = [
            plan(**OWN | {"cp_kind": kind, "merges_apart": on, "pp": 4.0}) for on in (True, False)
        ]
        apart, joined = (memory(llama, one, RunParameters()).classes for one in made)
        more = apart["backward workspace"] - joined["backward workspace"]
        wide = 4 * (queries + 2 * keys) if ranks else 0
        assert more[0] == pytest.approx(ranks * 2 * keys + wide), kind


def test_a_batch_has_what_each_plan_has(llama: Model, plan: Make) -> None:
    both = of_step(llama, plan(**OWN | {"cp": np.array([1.0, 4.0])}))
    for at, cp in enumerate((1.0, 4.0)):
        alone = of_step(llama, plan(**OWN | {"cp": cp}))
        for name in ("attention", "attention.later", "attention.merge", "attention.merge.bwd"):
            times = np.broadcast_to(both[name].count, 2)[at]
            assert times == (float(alone[name].count) if name in alone else 0.0)
            if times:
                assert np.broadcast_to(both[name].bytes, 2)[at] == alone[name].bytes


def test_repeated_keys_are_merged_too(llama: Model, plan: Make) -> None:
    few, many = (of_step(llama, plan(**OWN, keys_repeated=on)) for on in (False, True))
    more = ROWS * 2 * (HEADS - KEY_HEADS) * SIZE
    gained = many["attention.merge.bwd"].bytes - few["attention.merge.bwd"].bytes
    assert gained == pytest.approx(more * (16 + 3 * 9))
    same = replace(llama, kv_heads=llama.heads)
    assert many["attention.merge"].bytes == of_step(same, plan(**OWN))["attention.merge"].bytes
