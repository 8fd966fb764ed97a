"""The least that a plan can take, from which a search leaves plans out, with what was fitted to
runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.search.layouts import _Search
from predictor.search.ranking import Limits
from predictor.search.space import space_of
from predictor.training.decomposition import parts
from predictor.training.ledger import booked
from predictor.training.prediction import environment_of

KNOWN = load("default")
DGX = catalog.system("dgx-h100")


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_the_bound_is_what_the_kernels_of_the_mean_layer_take(name: str) -> None:
    """Of ranks that share no layer nothing else is inside it: the bound is what the ledger of the
    step books for a layer. Others share it, and exchange what may hide: it is no more."""
    model = catalog.model(name)
    fields: dict[str, Any] = {"gpus": 8, "global_batch": 16, "seq_len": 4096, "tp": [1, 2], "cp": 1,
                              "ep": 1, "pp": [1, 2], "micro_batch": 1, "schedule": "1f1b",
                              "recompute": "full", "sharding": "none"}  # fmt: skip
    search = _Search(space_of(model, DGX, fields, KNOWN.run), KNOWN, Limits(), "time", 10, None)
    apart = 0
    for block in search.blocks:
        rows = np.arange(len(block))[:4]
        layers = {block.group: search._layers(block, np.arange(block.base.shape[0]))[0]}
        bounds = search._bound(block, rows, layers)
        for row, bound in zip(rows, bounds, strict=True):
            plan = block.plan(np.array([row]))
            found, _ = parts(model, DGX, plan, KNOWN)
            using = environment_of(DGX, plan, KNOWN.run)
            layer = float(np.ravel(booked(found, KNOWN.run, using).layer)[0])
            each = float(np.ravel(plan.micro_batches)[0]) * model.layers
            booked_ = float(using.factor) * each / float(np.ravel(plan.pp)[0]) * layer
            assert bound <= booked_ * (1.0 + 1e-9)
            if float(np.ravel(plan.tp)[0]) == 1.0:
                assert bound == pytest.approx(booked_)
                apart += 1
    assert apart
    assert float(using.factor) > 1.05, "so that the law tells what the factor stretches"
