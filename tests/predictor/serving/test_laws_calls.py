"""Which messages an engine's own all-reduce takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.catalog import system
from predictor.hardware import Cluster
from predictor.plans.serving import ServingPlan
from predictor.serving.calls import CUSTOM_LIMIT, _largest, _reached
from predictor.work import Group

H100 = system("dgx-h100")
MIB = 2.0**20


def on(architecture: str) -> Cluster:
    return replace(H100, accelerator=replace(H100.accelerator, architecture=architecture))


def plan(**fields: Any) -> ServingPlan:
    return ServingPlan(batch=1.0, input_len=1.0, output_len=1.0, **fields)


@pytest.mark.parametrize(
    ("architecture", "limits"),
    [
        ("hopper", {2: 64, 4: 32, 6: 64, 8: 64}),
        ("blackwell", {2: 8, 4: 32, 6: 128, 8: 128}),
        ("blackwell-ultra", {2: 8, 4: 32, 6: 128, 8: 128}),
        ("ada", {2: 64, 4: 32, 6: 64, 8: 64}),  # as Hopper
    ],
)
def test_sums_in_the_switch_are_taken_up_to_what_vllm_says(
    architecture: str, limits: dict[int, float]
) -> None:
    """vLLM, all_reduce_utils.py: SYMM_MEM_ALL_REDUCE_MAX_SIZES of 9.0 and 10.0 [MiB]; never less
    than what its kernel on the cards takes, 8 MiB."""
    cluster = on(architecture)
    switch, card = plan(summed="switch"), plan(summed="card")
    assert CUSTOM_LIMIT == 8 * MIB
    for ranks, most in limits.items():
        assert float(_largest(switch, cluster, Group(float(ranks), 1.0))) == most * MIB
        assert float(_largest(card, cluster, Group(float(ranks), 1.0))) == CUSTOM_LIMIT
    sizes = np.array([float(ranks) for ranks in limits] + [16.0])
    many = np.asarray(_largest(switch, cluster, Group(sizes, 1.0)))
    assert many.tolist() == [most * MIB for most in limits.values()] + [CUSTOM_LIMIT]


def test_it_reaches_as_far_as_the_innermost_link_or_the_node() -> None:
    inner = H100.tiers[0]
    assert _reached(plan(reach="node"), H100) == inner.size == 8.0
    wide = replace(H100, tiers=(inner, replace(inner, size=72.0), *H100.tiers[1:]))
    assert _reached(plan(reach="node"), wide) == 8.0
    assert _reached(plan(reach="domain"), wide) == 72.0
