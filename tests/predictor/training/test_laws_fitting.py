"""What a plan is given where a request leaves it open, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.errors import InputError
from predictor.memory import MEMORY_FRACTION, memory
from predictor.models import Model
from predictor.timing import RunParameters
from predictor.training.choice import CHUNKS, chunks, most_at_once
from predictor.training.fitting import (
    AGAIN,
    AVOIDED,
    BELIEVED,
    LATENTS,
    PARTLY,
    SHARES,
    SWITCHED,
    WIDER,
    Draft,
    Recomputation,
    _avoided,
    _batch_divides,
    _context,
    _experts,
    _layouts,
    _price,
    _repeated,
    _shared,
    _stages,
    _starved,
    _undivided,
    again_share,
    divisors,
    first_fit,
    layouts,
    recomputations,
    shares_experts,
)
from tests.predictor.dense import dense

DENSE = dense(heads=32, kv_heads=8, head_dim=128, ffn_hidden=11264, vocab=32000)
MIXED = replace(DENSE, num_experts=16, top_k=2, expert_ffn_hidden=1024)
LATENT = catalog.model("deepseek-v2-lite")
DGX = catalog.system("dgx-h100")
RUN = RunParameters()
ASKED: dict[str, Any] = {
    "gpus": 64, "global_batch": 256, "seq_len": 8192, "era": "2025-01", "sharding": "none",
}  # fmt: skip
NOTHING = Recomputation("none", 1.0, "core_attn")


def draft(model: Model = DENSE, memory_gb: float = 80.0, **more: Any) -> Draft:
    fields = ("published", "split", "experts_split", "whole")
    own = {name: more.pop(name) for name in fields if name in more}
    device = replace(DGX.accelerator, memory=memory_gb * 1e9)
    return Draft(model, replace(DGX, accelerator=device), {**ASKED, **more},
                 **{"split": False, **own})  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "cp"),
    [
        ({"cp": 3}, 3),
        ({}, 1),  # as many sequences as replicas, and more
        ({"global_batch": 2}, 4),  # eight replicas for two sequences
        ({"global_batch": 4, "micro_batch": 2}, 4),
        ({"global_batch": 1}, 8),  # 1,024 tokens each, no fewer
        ({"global_batch": 1, "seq_len": 4096}, 1),
        ({"global_batch": 3}, 1),  # does not divide
        ({"global_batch": 2, "seq_len": 8190}, 1),
        ({"global_batch": 8}, 1),
        ({"global_batch": 2, "era": "2023-06"}, 1),
        ({"global_batch": 2, "era": "2023-07"}, 4),
        ({"global_batch": 2, "dp": 2}, 1),
        ({"global_batch": 2, "gpus": None}, 1),
    ],
)
def test_sequences_that_are_fewer_than_replicas_are_shared(stated: dict, cp: int) -> None:
    assert _context({**ASKED, **stated}, 8, 1) == cp


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"tp": 5}, "tp 5 does not divide the 32 attention heads of dense; nearest 4"),
        ({"tp": 4, "pp": 3}, "gpus 64 is not a multiple of tp x pp x cp 12; nearest 60"),
        ({"tp": 4, "cp": 2, "pp": 3}, "tp x pp x cp 24; nearest 48"),
        ({"dp": 6}, "gpus 64 is not a multiple of tp x pp x cp 1 x dp 6; nearest 60"),
        ({"tp": 4, "pp": 4, "dp": 3}, "tp x pp x cp 16 x dp 3; nearest 48"),
        ({"tp": 8, "micro_batch": 3}, "multiple of dp 8 x micro-batch 3; nearest 240"),
        ({}, "no tp and pp inside a node divide"),
    ],
)
def test_what_does_not_divide_is_said(stated: dict, words: str) -> None:
    assert words in str(_undivided(DENSE, {**ASKED, **stated}))


def test_a_published_batch_need_not_be_one_of_whole_replicas() -> None:
    """992 accelerators and 1,024 sequences, as papers round them: the layouts of any batch, as long
    as every replica has a sequence."""
    asked: dict[str, Any] = {"gpus": 992, "tp": 8}
    with pytest.raises(InputError, match="global batch 1024 is not a multiple of dp 124"):
        layouts(draft(global_batch=1024, **asked))
    assert (8, 1, 1) in layouts(draft(global_batch=1024, published=True, **asked))
    with pytest.raises(InputError):
        layouts(draft(global_batch=1, published=True, **asked))


def test_what_may_be_computed_again_goes_from_least_to_most() -> None:
    fits = recomputations(draft(), "fit")
    assert fits[0] == NOTHING
    assert fits[1] == Recomputation("selective", 1.0, "core_attn")
    assert [one.share for one in fits[2:]] == list(SHARES) == [k / 8 for k in range(1, 9)]
    assert {one.kind for one in fits[2:]} == {"full"}
    latent = recomputations(draft(LATENT), "fit")
    assert latent[1] == Recomputation("selective", 1.0, "mla_up_proj")
    assert len(latent) == len(fits) + 1
    assert recomputations(draft(LATENT), LATENTS) == [latent[1]]
    assert recomputations(draft(), LATENTS) == [Recomputation("none", 1.0, "mla_up_proj")]
    both = [Recomputation(kind, 1.0, "core_attn") for kind in ("none", "full")]
    assert recomputations(draft(), SWITCHED) == both
    stated = recomputations(draft(recompute="full", recompute_share=0.5), "fit")
    assert stated == [Recomputation("full", 0.5, "core_attn")]
    assert recomputations(draft(), "full") == [Recomputation("full", 1.0, "core_attn")]


def test_prices_of_layouts_and_of_computing_again() -> None:
    """Each doubling of a replica's ranks, of tensor parallelism twice with experts; narrow ranks
    and starved pipelines are a last resort unless they are stated."""
    assert _price(draft(), (1, 1, 1)) == 0.0
    assert _price(draft(), (2, 1, 1)) == pytest.approx(WIDER)
    assert _price(draft(), (2, 4, 1)) == pytest.approx(3 * WIDER)
    assert _price(draft(MIXED), (2, 4, 1)) == pytest.approx(4 * WIDER)
    assert _price(draft(), (4, 1, 1)) == pytest.approx(2 * WIDER + AVOIDED)
    assert _price(draft(tp=4), (4, 1, 1)) == pytest.approx(2 * WIDER)
    full, half, some = (
        Recomputation(*own)
        for own in (("full", 1.0, ""), ("full", 0.5, ""), ("selective", 1.0, ""))
    )
    assert [_repeated(one) for one in (NOTHING, full, half, some)] == [0, AGAIN, AGAIN / 2, PARTLY]
    plan = SimpleNamespace(recompute="full", recompute_share=0.25, recompute_modules="")
    assert again_share(plan) == AGAIN / 4  # type: ignore[arg-type]


def test_a_forward_pass_again_is_a_third_of_both() -> None:
    """A backward pass is two forward ones (Kaplan et al. 2020, section 2.1); parts of one are less;
    what is believed of published plans is what peaks are off by, a tenth."""
    assert pytest.approx(1.0 / 3.0, rel=0.02) == AGAIN
    assert 0.0 < PARTLY < AGAIN / 4.0
    assert 1.0 < BELIEVED <= 8.0 / 7.0
    assert AVOIDED > 20 * WIDER + AGAIN


def test_ranks_are_narrow_below_two_thousand_columns_and_pipelines_starve_below_four_rounds() -> (
    None
):
    assert [_avoided(DENSE, ASKED, tp, 1) for tp in (1, 2, 4)] == [False, False, True]
    assert not _starved(ASKED, 8, 1)
    # Four stages on 64 accelerators with tp 2: eight replicas of 32 micro-batches each.
    assert not _starved(ASKED, 2, 4)
    assert _starved({**ASKED, "global_batch": 120}, 2, 4)  # 15 of 16
    assert not _starved({**ASKED, "global_batch": 128}, 2, 4)
    assert _starved({**ASKED, "global_batch": 128, "micro_batch": 2}, 2, 4)
    assert _starved({**ASKED, "global_batch": 128, "dp": 16}, 2, 4)
    assert not _starved({**ASKED, "global_batch": 64, "cp": 2}, 2, 4)
    assert not _starved({"global_batch": 16}, 2, 4)  # of one replica


def test_stages_divide_the_layers_or_are_powers_of_two() -> None:
    assert _stages(DENSE) == [1, 2, 3, 4, 6, 12]
    assert _stages(replace(DENSE, layers=10)) == [1, 2, 4, 5, 10]
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_layouts_are_in_the_order_in_which_they_are_tried() -> None:
    """Wide ranks and filled pipelines first, of those the fewest ranks, tensor before pipeline;
    with experts pipeline before tensor; sharded weights by themselves."""
    found = _layouts(DENSE, 8, ASKED)
    assert found[:4] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(64 % (tp * pp) == 0 for tp, pp in found)
    assert max(tp for tp, _ in found) == 8
    avoided = [_avoided(DENSE, ASKED, *pair) for pair in found]
    assert avoided == sorted(avoided)
    assert _layouts(MIXED, 8, ASKED)[1:3] == [(1, 2), (2, 1)]
    assert _layouts(DENSE, 8, {**ASKED, "sharding": "fsdp"}) == [(1, 1)]
    assert _layouts(DENSE, 8, {**ASKED, "sharding": "fsdp", "tp": 4}) == [(4, 1)]
    assert {tp for tp, _ in _layouts(DENSE, 4, ASKED)} == {1, 2, 4}
    uneven = replace(DENSE, ffn_hidden=11266)
    assert {tp for tp, _ in _layouts(uneven, 8, ASKED)} == {1, 2}
    assert _batch_divides(ASKED, 1, 1, 1)
    assert not _batch_divides({**ASKED, "global_batch": 250}, 1, 1, 1)
    assert _batch_divides({**ASKED, "global_batch": 16}, 2, 2, 1)
    assert not _batch_divides({**ASKED, "global_batch": 16, "micro_batch": 2}, 2, 2, 1)
    assert _batch_divides({**ASKED, "global_batch": 16, "micro_batch": 2}, 2, 2, 2)
    assert layouts(draft(tp=4, pp=3)) == [(4, 3, 1)]
    assert layouts(draft(global_batch=16))[0] == (1, 1, 4)
    assert layouts(draft(global_batch=16, seq_len=1024))[0] == (4, 1, 1)


@pytest.mark.parametrize("sharding", ["none", "zero1", "fsdp"])
def test_replicas_that_are_stated_leave_the_rest_to_a_layout(sharding: str) -> None:
    """Of 64 accelerators eight each; weights that are sharded need none where replicas are all."""
    asked = {**ASKED, "sharding": sharding}
    eight = _layouts(DENSE, 8, {**asked, "dp": 8})
    assert {tp * pp for tp, pp in eight} == {8}
    assert (8, 1) in eight
    assert _layouts(DENSE, 8, {**asked, "dp": 8, "tp": 4}) == [(4, 2)]
    assert _layouts(DENSE, 8, {**asked, "dp": 8, "pp": 2}) == [(4, 2)]
    assert {tp * pp for tp, pp in _layouts(DENSE, 8, {**asked, "dp": 8, "cp": 4})} == {2}
    assert _layouts(DENSE, 8, {**asked, "dp": 64}) == [(1, 1)]
    assert _layouts(DENSE, 8, {**asked, "dp": 16, "cp": 4}) == [(1, 1)]
    assert {tp * pp * cp for tp, pp, cp in layouts(draft(dp=8))} == {8}
    # The other of both, whatever it divides.
    assert _layouts(DENSE, 8, {**asked, "gpus": 40, "dp": 8, "tp": 1}) == [(1, 5)]
    assert _layouts(DENSE, 8, {**asked, "gpus": 24, "dp": 2, "pp": 1, "cp": 4}) == [(3, 1)]
    assert _layouts(DENSE, 8, {**asked, "gpus": 8, "dp": 8, "tp": 4}) == []
    with pytest.raises(InputError, match="dp 6; nearest 60 and 66"):
        layouts(draft(dp=6))


def test_long_sequences_are_divided_where_nothing_fits_otherwise() -> None:
    """From 32,768 tokens on, into parts of 4,096 and more."""
    long = {"seq_len": 32768, "global_batch": 64}
    assert _shared(draft(**long), [(8, 1, 1), (8, 1, 4)]) == [(8, 1, 2), (8, 1, 8)]
    assert _shared(draft(**long), [(8, 1, 8)]) == []  # 2,048 each
    assert _shared(draft(**long, gpus=24), [(8, 1, 2)]) == []  # four do not divide three
    ran = {"whole": True, "published": True}
    for more in ({"seq_len": 32767}, {"cp": 1}, {"dp": 8}, {"era": "2023-06"}, ran,
                 {"gpus": None}):  # fmt: skip
        assert _shared(draft(**{**long, **more}), [(8, 1, 1)]) == []


def test_the_cheapest_that_fits_is_taken() -> None:
    """What fits with nothing is left so; less memory takes more ranks or computes again, whatever
    costs less; with none at all the last of both."""
    candidates, options = [(1, 1, 1), (2, 1, 1), (1, 2, 1)], recomputations(draft(), "fit")
    assert first_fit(draft(memory_gb=1e4), candidates, options, RUN) == ((1, 1, 1), NOTHING)
    assert first_fit(draft(memory_gb=1e-3), candidates, options, RUN) == ((1, 2, 1), options[-1])
    assert first_fit(draft(), [(4, 2, 1)], [options[0]], RUN) == ((4, 2, 1), options[0])
    for gigabytes in (48.0, 64.0, 80.0, 110.0):
        own = draft(memory_gb=gigabytes)
        priced = [
            (_price(own, layout) + _repeated(again), layout, again)
            for layout in candidates
            for again in options
            if float(memory(DENSE, own.plan(layout, again), RUN).peak) <= own.capacity
        ]
        if priced:
            best = min(priced, key=lambda one: one[0])
            found = first_fit(own, candidates, options, RUN)
            assert _price(own, found[0]) + _repeated(found[1]) == pytest.approx(best[0])
            assert (best[0], *found) in priced


def test_room_is_less_for_what_is_planned_than_for_what_ran() -> None:
    device = 80e9
    run = {"tp": 8, "pp": 1, "micro_batch": 1}
    assert draft().capacity == pytest.approx(MEMORY_FRACTION * device)
    assert draft(published=True).capacity == device
    assert draft(published=True, **run).capacity == pytest.approx(BELIEVED * device)
    assert draft(**run).capacity == pytest.approx(MEMORY_FRACTION * device)
    assert not draft(**run).is_run


def test_a_plan_of_a_draft_has_what_is_stated_and_the_layouts_own() -> None:
    own = draft(tp=4, micro_batch=2, vpp=3, split="tp").plan((4, 2, 1), NOTHING)
    assert (own.tp, own.pp, own.cp, own.dp, own.ep) == (4.0, 2.0, 1.0, 8.0, 1.0)
    assert (own.micro_batch, own.vpp, own.sequence_parallel) == (2, 3, 1.0)
    assert draft().plan((4, 2, 2), NOTHING, 4).micro_batch == 4
    assert draft().plan((4, 2, 2), NOTHING).dp == 4.0
    assert draft(dp=2).plan((4, 2, 2), NOTHING).dp == 2.0
    assert draft(gpus=None).values["gpus"] is None
    assert draft(split="tp").plan((1, 1, 1), NOTHING).sequence_parallel == 0.0
    assert draft(sequence_parallel=1).plan((1, 1, 1), NOTHING).sequence_parallel == 1.0


def test_pipelines_are_interleaved_as_far_as_layers_and_micro_batches_allow() -> None:
    """Twelve layers on two stages: six chunks; on four three. 14 with embedding and output: seven
    on two where the layers alone do not divide. No more than eight."""
    values = {"pp": 2, "dp": 1, "micro_batch": 1, "global_batch": 16}
    assert chunks(DENSE, values) == 6
    assert chunks(DENSE, {**values, "pp": 4}) == 3
    assert chunks(replace(DENSE, layers=13), {**values, "pp": 3, "global_batch": 15}) == 5
    assert chunks(replace(DENSE, layers=32), values) == CHUNKS == 8
    assert chunks(replace(DENSE, layers=36), values) == 6  # 18 on each: the most up to eight
    assert chunks(DENSE, {**values, "pp": 1}) == 1
    assert chunks(DENSE, {**values, "global_batch": 15}) == 1
    assert chunks(DENSE, {**values, "global_batch": 15, "dp": 3, "pp": 5}) == 1
    assert chunks(DENSE, {**values, "global_batch": 32, "micro_batch": 4}) == 6


def test_as_many_sequences_at_once_as_fit_and_divide_a_ranks_share() -> None:
    """Of four of a rank, the most whose peak the device has; none where not even one does."""
    own = draft(gpus=64, global_batch=256)
    layout, again = (1, 1, 1), Recomputation("full", 1.0, "core_attn")
    peaks = {
        many: float(memory(DENSE, own.plan(layout, again, many), RUN).peak) for many in (1, 2, 4)
    }
    assert peaks[1] < peaks[2] < peaks[4]
    for most, room in ((4, 1.01), (2, 1.01), (1, 1.01)):
        device = peaks[most] * room / MEMORY_FRACTION / 1e9
        assert most_at_once(draft(memory_gb=device), layout, again, RUN, 8) == most
    assert most_at_once(draft(memory_gb=1e4), layout, again, RUN, 3) == 2
    assert most_at_once(draft(memory_gb=1e-3), layout, again, RUN, 8) == 0
    assert most_at_once(draft(global_batch=64), layout, again, RUN, 8) == 1
    assert most_at_once(draft(global_batch=100), layout, again, RUN, 8) == 1
    rounded = draft(memory_gb=1e4, global_batch=64 * 4 + 10, published=True)
    assert most_at_once(rounded, layout, again, RUN, 8) == 4
    for share in (2, 3):  # of 64 replicas; a share is divided as far as it can be
        batch = draft(memory_gb=1e4, global_batch=64 * share)
        assert most_at_once(batch, layout, again, RUN, 8) == share


@pytest.mark.parametrize(
    ("more", "tp", "ranks", "expected"),
    [
        ({}, 2, 32, (8, 1)),  # a node's ranks
        ({"sharding": "fsdp"}, 1, 64, (16, 1)),  # all of the stage, as far as there are experts
        ({"ep": 4}, 2, 32, (4, 2)),
        ({"ep": 16}, 4, 32, (16, 1)),  # 64 ranks would be more than the stage has
        ({"ep": 4, "etp": 1}, 2, 32, (4, 1)),
        ({"experts_split": True}, 2, 32, (4, 2)),
        ({}, 1, 4, (4, 1)),
        ({}, 1, 12, (4, 1)),  # 16 experts and 12 ranks
    ],
)
def test_experts_are_divided_among_a_domains_ranks(
    more: dict, tp: int, ranks: int, expected: tuple[int, int]
) -> None:
    assert _experts(draft(MIXED, **more), tp, ranks) == expected


def test_dense_models_have_the_expert_parallelism_that_is_stated() -> None:
    assert _experts(draft(), 2, 32) == (1, 1)
    assert _experts(draft(ep=2, etp=3), 2, 32) == (2, 3)
    assert np.isfinite(_price(draft(), (1, 1, 1)))


def test_a_stage_has_the_ranks_among_which_experts_are_stated_to_be_divided() -> None:
    """Where any layout has; else the rule that is broken says so."""
    wide = layouts(draft(MIXED, ep=16, gpus=16, global_batch=256))
    assert wide
    assert {16 // pp % 16 for _, pp, _ in wide} == {0}
    free = layouts(draft(MIXED, gpus=16, global_batch=256))
    assert {pp for _, pp, _ in free} > {pp for _, pp, _ in wide}
    impossible = layouts(draft(MIXED, ep=24, gpus=16, global_batch=256))
    assert impossible == free


@pytest.mark.parametrize(
    ("stated", "can"),
    [
        ({}, True),
        ({"ep": 4}, True),
        ({"ep": 8}, False),
        ({"ep": 8, "dp": 2}, True),
        ({"ep": 4, "etp": 2}, False),
        ({"ep": 4, "etp": 2, "gpus": 16}, True),
        ({"ep": 8, "gpus": 8}, False),
    ],
)
def test_ranks_of_a_stage_share_experts_where_they_divide_into_whole_sets(
    stated: dict[str, int], can: bool
) -> None:
    """Four of each replica, on two stages."""
    assert shares_experts(stated, 4, 2, 1) is can
