"""For which plans each category makes sense, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.plans import SCHEDULES
from predictor.search.choices import (
    CHOICES,
    PAIRED,
    WORSE,
    _both_dimensions,
    _inside,
    _overlaps,
    _piped,
    _recomputes,
    _schedules,
    _sharded,
    _split_sequences,
    everywhere,
)
from tests.predictor.dense import dense

DENSE = dense(layers=6, heads=16, kv_heads=4, head_dim=128, ffn_hidden=4096, vocab=8192)
MIXED = replace(DENSE, num_experts=8, top_k=2, expert_ffn_hidden=512)
DGX = catalog.system("dgx-h100")


def basis(**fields: Any) -> Any:
    defaults = {"attention": "flash", "tp_overlap": False, "ep_overlap": False}
    return SimpleNamespace(
        model=fields.pop("model", DENSE), cluster=DGX, given=fields.pop("given", {}),
        runs={}, offers={},
        defaults=SimpleNamespace(**{**defaults, **fields}),
    )  # fmt: skip


def rows(**columns: list[int]) -> dict[str, np.ndarray]:
    many = max(map(len, columns.values()))
    usual = dict.fromkeys(("tp", "cp", "dp", "pp", "vpp", "micro_batch"), [1] * many)
    usual["global_batch"] = [64] * many
    return {name: np.array(value) for name, value in {**usual, **columns}.items()}


def test_sequences_are_split_among_several_and_heads_whole() -> None:
    at, own = basis(), rows(cp=[1, 2, 2, 2], tp=[1, 1, 8, 16])
    ring = _split_sequences(at, own, {"cp_kind": "p2p"})
    assert ring.tolist() == [False, True, True, True]
    heads = _split_sequences(at, own, {"cp_kind": "ulysses"})
    assert heads.tolist() == [False, True, True, False], "16 heads do not divide among 32"


def test_which_dimension_lies_closer_matters_where_both_do_and_share_a_domain() -> None:
    """A node of eight."""
    own = rows(dp=[1, 2, 2, 2, 2], pp=[2, 1, 2, 2, 2], tp=[1, 1, 4, 8, 4], cp=[1, 1, 1, 1, 2])
    found = _both_dimensions(basis(), own, {})
    assert found.tolist() == [False, False, True, False, False]


def test_shards_need_replicas_and_some_no_pipeline_or_several_nodes() -> None:
    own = rows(dp=[1, 2, 1, 2, 8, 16], cp=[1, 1, 2, 1, 1, 1], pp=[1, 1, 1, 2, 1, 1])
    several = [False, True, True, True, True, True]
    for name in ("zero1", "fsdp"):
        assert _sharded(basis(), own, {"sharding": name}).tolist() == several
    two = _sharded(basis(), own, {"sharding": "zero2"})
    assert two.tolist() == [False, True, True, False, True, True]
    groups = _sharded(basis(), own, {"sharding": "hsdp"})
    assert groups.tolist() == [False] * 5 + [True], "more than the eight of a node"
    wide = rows(dp=[2, 2], cp=[2, 1], tp=[4, 4])
    assert _sharded(basis(), wide, {"sharding": "hsdp"}).tolist() == [True, False]


def test_tensor_parallel_pieces_overlap_inside_a_node() -> None:
    assert _inside(basis(), rows(tp=[1, 2, 8, 16]), {}).tolist() == [False, True, True, False]
    assert _overlaps(basis()) == [{"tp_overlap": False}]
    assert _overlaps(basis(tp_overlap=True)) == [{"tp_overlap": False}, {"tp_overlap": True}]


def test_schedules_need_stages_chunks_of_their_fold_and_micro_batches() -> None:
    own = rows(pp=[1, 2, 2, 2], vpp=[1, 1, 2, 4])
    plain = {"1f1b": [True] * 3, "zb-h1": [True, False, False], "zb-v": [False, True, False]}
    for name, able in plain.items():
        assert _piped(basis(), own, {"schedule": name}).tolist() == [False, *able]
    # Four devices, two micro-batches in flight for each.
    few = rows(pp=[4] * 3, vpp=[2] * 3, dp=[2, 2, 1], micro_batch=[4, 8, 8])
    assert SCHEDULES["zb-v"].least == 2.0
    assert _piped(basis(), few, {"schedule": "zb-v"}).tolist() == [True, False, True]


def test_schedules_that_pair_chunks_hide_the_exchanges_of_experts() -> None:
    names = [one["schedule"] for one in _schedules(basis())]
    assert names == [name for name in SCHEDULES if name not in WORSE]
    for usual in (False, True):
        table = _schedules(basis(model=MIXED, ep_overlap=usual))
        assert [one["ep_overlap"] for one in table] == [usual or n in PAIRED for n in names]
    stated = basis(model=MIXED, given={"ep_overlap": (True,)})
    assert all(set(one) == {"schedule"} for one in _schedules(stated))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, ["layernorm", "mlp"]),
        ({"attention": "unfused"}, ["core_attn", "layernorm", "mlp"]),
        ({"given": {"attention": ("flash", "unfused")}}, ["core_attn", "layernorm", "mlp"]),
        ({"model": MIXED}, ["layernorm", "moe"]),
    ],
)
def test_parts_are_repeated_that_are_kept(fields: dict[str, Any], parts: list[str]) -> None:
    table = _recomputes(basis(**fields))
    assert table[0] == {"recompute": "none"}
    assert [one["recompute_modules"] for one in table[1:-2]] == parts
    assert [one["recompute"] for one in table[-2:]] == ["per_op", "full"]


def test_the_first_of_every_choice_holds_for_every_plan() -> None:
    assert everywhere(basis(), rows(tp=[1, 2, 4]), {}).tolist() == [True] * 3
    for choice in CHOICES:
        assert len(choice.values(basis(tp_overlap=True))) > 1
