"""Second towers beside a served language model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.models.tower import Tower
from predictor.serving.encoding import encoding, tower_plan
from tests.predictor.serving.counted import plan


@pytest.mark.parametrize(("tp", "split"), [(1.0, 1.0), (4.0, 4.0), (3.0, 1.0)])
def test_what_is_stated_of_language_layers_is_not_of_the_tower(tp: float, split: float) -> None:
    """It has no adapters and no experts and no replicas of attention (vLLM's and SGLang's towers);
    its sixteen heads are divided where they can be, else each rank has all."""
    tower = Tower(
        kind="vision", layers=24, hidden=1024, heads=16, ffn_hidden=4096, patches=576, tokens=576,
        patch_width=588,
    )  # fmt: skip
    own = tower_plan(replace(plan(tp=tp), adapters=4.0, ep=8.0, dp=2.0), tower)
    assert (float(own.adapters), float(own.ep), float(own.dp)) == (0.0, 1.0, 1.0)
    assert float(own.tp) == split


@pytest.mark.parametrize("modules", ["joined", "apart"])
def test_windows_are_read_by_themselves_and_launched_where_modules_are_apart(modules: str) -> None:
    """An engine has one kernel for all windows, which meet fewer keys; HuggingFace's code one call
    for each, which its host launches."""
    known, cluster, model = (
        load("kernels-only"),
        catalog.system("dgx-h100"),
        catalog.model("qwen3-8b"),
    )
    whole = Tower(
        kind="vision", layers=32, hidden=1280, heads=16, ffn_hidden=3420, patches=1024, tokens=256,
        patch_width=1176, merged=4, gated=True, several="loop",
    )  # fmt: skip
    asked = replace(plan(tp=1.0), modules=modules)

    def taken(tower: Tower) -> tuple[float, float]:
        made = encoding(replace(model, tower=tower), cluster, asked, 8.0, known)
        own = {name: float(np.sum(value)) for name, value in made.terms.items()}
        return own["attention"], float(made.kernels)

    plain, windowed = taken(whole), taken(replace(whole, window=64, whole=4))
    looped = modules == "apart"
    # 8 calls a layer, or 128 in 28 of 32.
    more = (28 * 128 + 4 * 8 - 32 * 8) if looped else 0.0
    launched = windowed[1] - plain[1]
    if looped:
        assert launched > more
    else:
        assert launched == pytest.approx(0.0, abs=1e-6)
        assert windowed[0] < plain[0]
