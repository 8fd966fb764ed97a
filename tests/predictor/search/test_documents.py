"""Searches over how documents are packed and what ranks divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.search import alternatives
from predictor.search.layouts import search_train
from predictor.search.ranking import SearchResult

KERNELS = load("kernels-only")
LAYOUT: dict[str, Any] = {
    "gpus": 64, "global_batch": 32, "seq_len": 131072, "tp": 8, "cp": [1, 2, 4], "pp": [1, 2],
    "micro_batch": 1, "vpp": 1, "recompute": "full", "recompute_share": 1.0, "sharding": "zero1",
    "schedule": "1f1b", "cp_kind": "ring", "rank_order": "tp-cp-dp-pp", "sequence_parallel": True,
    "documents": "wlb",
}  # fmt: skip
EVERY = {"packing": ["fixed", "balanced"], "cp_sharding": ["sequence", "document", "adaptive"]}


def search(**fields: Any) -> SearchResult:
    model, system = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    return search_train(model, system, {**LAYOUT, **fields}, KERNELS, keep=100)


def test_all_policies_together_are_each_by_itself() -> None:
    """Layouts times policies; ranks that divide nothing have one division. The same times."""
    whole = search(**EVERY)
    assert len(search()) == 6
    assert len(whole) == 2 * 2 + 4 * 2 * 3  # cp 1; cp 2 and 4
    names = ("packing", "cp_sharding", "cp", "pp")
    found = {
        tuple(p[n] for n in names): t for p, t in zip(whole.plans, whole.step_time, strict=True)
    }
    for packing in EVERY["packing"]:
        for division in EVERY["cp_sharding"]:
            alone = search(packing=packing, cp_sharding=division)
            for plan, time in zip(alone.plans, alone.step_time, strict=True):
                ranks = plan["cp"], plan["pp"]
                own = division if plan["cp"] > 1 else "sequence"
                assert found[(packing, own, *ranks)] == pytest.approx(float(time), rel=1e-12)


def test_the_best_policy_is_predicted_as_it_was_ranked() -> None:
    """Balanced packing divided adaptively is no slower than any other of the same layout."""
    whole = search(**EVERY, cp=[2, 4])
    best = whole.plans[0]
    assert (best["packing"], best["cp_sharding"]) == ("balanced", "adaptive")
    own = {name: best[name] for name in ("tp", "pp", "cp", "micro_batch", "packing", "cp_sharding")}
    plan = {**LAYOUT, **own}
    again = reckon.predict_train("llama3-8b", "dgx-h100", plan, "kernels-only")
    assert float(whole.step_time[0]) == pytest.approx(again.step_time.value, rel=1e-9)


def test_alternatives_name_the_policy() -> None:
    told = {(one.field, one.value) for one in alternatives(search(**EVERY))}
    assert ("packing", "balanced, cp_sharding document") in told
    assert not any(name in ("packed", "document", "attention_load") for name, _ in told)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"packing": ["fixed", "padded"]}, "by itself"),
        ({"documents": ["wlb", "wikipedia"]}, "one value"),
        ({"documents": None, "packing": ["fixed", "balanced"]}, "documents=wlb"),
    ],
)
def test_what_cannot_be_compared_is_one_line(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        search(**fields)


def test_without_documents_nothing_is_told() -> None:
    found = search(documents=None)
    assert "packing" not in found.plans[0]
    assert np.all(found.column("useful") == 1.0)


def test_ranks_that_exchange_heads_attend_over_whole_documents() -> None:
    """A search that tries several ways of dividing a sequence: each is timed as it is predicted,
    and one that exchanges heads has a single division."""
    kinds, divisions = ["ring", "ulysses"], ["sequence", "document"]
    found = search(cp=2, pp=1, cp_kind=kinds, cp_sharding=divisions)
    pairs = [(plan["cp_kind"], plan["cp_sharding"]) for plan in found.plans]
    assert sorted(pairs) == [("ring", "document"), ("ring", "sequence"), ("ulysses", "sequence")]
    for at, (kind, division) in enumerate(pairs):
        own = {"cp": 2, "pp": 1, "cp_kind": kind, "cp_sharding": division}
        plan = {**LAYOUT, **own}
        again = reckon.predict_train("llama3-8b", "dgx-h100", plan, "kernels-only")
        assert float(found.step_time[at]) == pytest.approx(again.step_time.value, rel=1e-12)
