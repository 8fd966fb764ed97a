"""A searched plan is the plan that a prediction of the same fields completes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import TrainingPlanSpec, parse
from predictor.catalog.artifacts import load
from predictor.catalog.given import read_given
from predictor.plans.training import CATEGORY_FIELDS
from predictor.search.space import space_of
from predictor.training import complete_training

RUN = load("kernels-only").run
LAYOUT = ("tp", "pp", "cp", "vpp", "micro_batch", "ep", "etp", "global_batch", "seq_len")
TOLD = ("sharding", "recompute", "recompute_modules", "schedule", "rank_order", "cp_kind")
REQUESTS: dict[str, dict[str, Any]] = {
    "graphs go without FSDP": {
        "model": "llama3-8b", "system": "gb200-nvl72", "framework": "megatron-bridge",
        "precision": "bf16", "sharding": ["zero1", "fsdp"],
    },
    "weights stay gathered under pipelines": {
        "model": "llama3-8b", "system": "dgx-h100", "framework": "torchtitan", "precision": "bf16",
        "sharding": ["fsdp"],
    },
    "experts as the recipe has them": {
        "model": "qwen3-30b-a3b", "system": "gb200-nvl72", "framework": "megatron-bridge",
        "precision": "mxfp8", "sharding": ["zero1"], "ep": [4], "etp": [1],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", list(REQUESTS))
def test_categories_of_every_block_are_those_of_a_prediction(name: str) -> None:
    wanted = REQUESTS[name]
    model, cluster = catalog.model(wanted["model"]), catalog.system(wanted["system"])
    fields = {name: value for name, value in wanted.items() if name not in ("model", "system")}
    fields |= {
        "gpus": 8, "global_batch": 32, "seq_len": 4096, "tp": [1, 2], "pp": [1, 2], "cp": [1],
        "vpp": [1], "micro_batch": [1], "recompute": "none", "cp_kind": "ring",
        "schedule": "1f1b", "rank_order": "tp-cp-dp-pp",
    }  # fmt: skip
    seen = set()
    for block in space_of(model, cluster, read_given(fields), RUN).blocks():
        for row in range(len(block)):
            plan = block.plan(np.array([row]))
            told = {n: float(np.ravel(getattr(plan, n))[0]) for n in LAYOUT}
            stated = {n: int(v) for n, v in told.items() if np.isfinite(v)}
            stated |= {n: getattr(plan, n) for n in TOLD} | {"tp_overlap": plan.tp_overlap}
            stated |= {n: wanted[n] for n in ("framework", "precision")} | {"gpus": 8}
            spec = parse(TrainingPlanSpec, stated, "test")
            own = complete_training(spec, RUN, strict=False, model=model, cluster=cluster).plan
            differ = [n for n in CATEGORY_FIELDS if getattr(plan, n) != getattr(own, n)]
            assert not differ, stated
            seen.add((plan.sharding, plan.cuda_graphs, plan.reshard, plan.dispatch))
    assert len(seen) >= (1 if name.startswith("experts") else 2)


def test_blocks_share_no_layers_with_those_that_autocast_tells_apart() -> None:
    """A Trainer's whole weights are in fp32 under autocast; ZeRO's are narrow, and FSDP gathers
    narrow ones."""
    model, cluster = catalog.model("llama3.2-1b"), catalog.system("dgx-h100")
    kinds = ["none", "zero1", "fsdp"]
    asked = {
        "gpus": 8, "global_batch": 32, "seq_len": 2048, "framework": "huggingface", "tp": [1],
        "pp": [1], "cp": [1], "micro_batch": [1, 2], "recompute": "none", "sharding": kinds,
    }  # fmt: skip
    found = {}
    for block in space_of(model, cluster, read_given(asked), RUN).blocks():
        plan = block.plan(np.arange(len(block)))
        assert np.all(block.base.autocast == plan.autocast)
        found[plan.sharding] = bool(plan.autocast.any())
    assert found == {"none": True, "zero1": False, "fsdp": False}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("dropout", [True, False]),
        ("dispatch", ["copies", "once"]),
        ("precision", ["bf16", "fp16", "fp8"]),
    ],
)
def test_several_values_of_what_no_search_tries_are_all_tried(field: str, values: list) -> None:
    model, cluster = catalog.model("mixtral-8x7b"), catalog.system("dgx-h100")
    asked = {
        "gpus": 8, "global_batch": 32, "seq_len": 2048, "tp": [1], "pp": [1], "cp": [1], "ep": [8],
        "micro_batch": [1], "recompute": "none", "sharding": "zero1", field: values,
    }  # fmt: skip
    space = space_of(model, cluster, read_given(asked), RUN)
    tried = [getattr(block.base, field) for block in space.blocks()]
    assert sorted(set(tried)) == sorted(values)
