"""How many points make a pool that stands for an architecture: in tests as in predictions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibration.kernels.left_out import near_of
from predictor import catalog
from predictor.timing import points_of_pool

NAMES = ("H100-SXM5-80GB", "H200-SXM-141GB", "GH200-96GB")


def group(points: int, features: int) -> Any:
    """Of each accelerator so many points, of one library."""
    shape = SimpleNamespace(time=np.ones(points), features=np.ones((points, features)))
    rows = SimpleNamespace(library=np.array(["vllm"] * points))
    return {name: SimpleNamespace(points=shape, rows=rows) for name in NAMES}


@pytest.mark.parametrize(("points", "enough"), [(59, False), (60, True)])
def test_two_relatives_stand_where_their_pool_would(points: int, enough: bool) -> None:
    """Kernels that stream have three features: a pool of 120 points is believed in predictions;
    the test of accelerators left out asked for a thousand of it."""
    every = {name: catalog.accelerator(name) for name in NAMES}
    found = near_of("elementwise", NAMES[0], group(points, 3), every)
    assert found == (list(NAMES[1:]) if enough else [])
    assert points_of_pool("elementwise", 3) == 120


def test_kernels_timed_alone_need_half_as_many() -> None:
    assert points_of_pool("attention_prefill.flash2", 15) == 300
    assert points_of_pool("gemm", 27) == 1080
