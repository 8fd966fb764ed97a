"""A search under a framework's name lists what that framework can run, unless more is stated."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.catalog import framework_offers, frameworks, read_given
from predictor.catalog.artifacts import load
from predictor.catalog.filling import _offers
from predictor.search.space import space_of

RUN = load("kernels-only").run
ASKED: dict[str, Any] = {
    "gpus": 16, "global_batch": 64, "seq_len": 8192, "tp": [1, 2], "micro_batch": [1],
}  # fmt: skip


def listed(**more: Any) -> dict[str, set[Any]]:
    """Values of some fields over all plans of a search, as plans with a pipeline have them, too."""
    found: dict[str, set[Any]] = {
        name: set() for name in ("schedule", "cp_kind", "sharding", "recompute", "pp", "piped")
    }
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    for block in space_of(model, cluster, read_given({**ASKED, **more}), RUN).blocks():
        for name in ("schedule", "cp_kind", "sharding", "recompute"):
            found[name].add(getattr(block.fixed, name))
        stages = set(block.column("pp", slice(None)).ravel().tolist())
        found["pp"] |= stages
        if max(stages) > 1:
            found["piped"].add(block.fixed.sharding)
    return found


@pytest.mark.parametrize("name", sorted(_offers()))
def test_what_is_searched_is_what_the_framework_can_run(name: str) -> None:
    assert name in frameworks()
    offers, found = framework_offers(name), listed(framework=name)
    for field in ("schedule", "sharding", "recompute", "pp"):
        assert found[field] <= set(offers.get(field, found[field])), field
    assert found["piped"] <= set(offers.get("piped_sharding", found["piped"]))
    assert offers["evidence"]


def test_a_name_that_is_free_searches_more() -> None:
    free, core, trainer = (listed(framework=f) for f in ("neutral", "megatron-lm", "huggingface"))
    assert {"zb-h1", "zb-v", "dualpipe"} <= free["schedule"]
    assert core["schedule"] == {"1f1b"}
    assert max(free["pp"]) > 1
    assert trainer["pp"] == {1.0}


def test_what_is_stated_is_searched_whoever_runs_it() -> None:
    found = listed(framework="huggingface", pp=[2], schedule="zb-h1")
    assert (found["pp"], found["schedule"]) == ({2.0}, {"zb-h1"})


def test_words_of_one_meaning_are_one_plan() -> None:
    """torchtitan's selective checkpoints are by operator, so that parts of layers are no plans of
    their own."""
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    given = read_given({**ASKED, "framework": "torchtitan"})
    blocks = list(space_of(model, cluster, given, RUN).blocks())
    parts = {b.fixed.recompute_modules for b in blocks if b.fixed.recompute == "per_op"}
    assert len(parts) == 1
