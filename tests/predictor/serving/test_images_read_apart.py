"""Images in prompts that workers apart read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.models.tower import Tower
from predictor.serving.reading import read_table
from tests.predictor.serving.test_laws_serving import CLUSTER, PLAIN, SMALL, plan


def test_shorter_prompts_have_as_many_fewer_images() -> None:
    """A prompt of 700 tokens of 1,000 has seven tenths of their images."""
    tower = Tower("vision", 4, 512, 8, 2048, patches=256, tokens=64, patch_width=588)
    sees = replace(SMALL, tower=tower)
    own = plan(prefill_workers=2.0, chunk=4096.0, tiles=10.0)
    whole = read_table(sees, CLUSTER, own, PLAIN, 0.3)
    short = read_table(sees, CLUSTER, replace(own, input_len=700.0, tiles=7.0), PLAIN, 0.0)
    blind = read_table(SMALL, CLUSTER, replace(own, tiles=0.0), PLAIN, 0.3)
    for at in range(3):
        assert whole.times[at][0] == pytest.approx(short.times[at][0])
        assert whole.times[at][0] > blind.times[at][0]
