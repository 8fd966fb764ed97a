"""Second towers beside a served language model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.models.tower import Tower
from predictor.serving.encoding import tower_plan
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
