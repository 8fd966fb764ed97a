"""What settings of recipes and words of frameworks mean for a plan, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.filling import Filler, framework_settings
from predictor.errors import InputError
from predictor.plans import SCHEDULES, TrainingPlan
from predictor.training.completion import _host
from predictor.training.habits import (
    BUSIEST,
    UNDIVIDED,
    Habits,
    _named,
    _of_recipe,
    full_layers,
    habits_of,
    usual_load,
    whole_micro_batch,
    whole_share,
)
from tests.predictor.dense import dense

DENSE = dense(layers=24)
MIXED = replace(DENSE, num_experts=8, top_k=2, expert_ffn_hidden=512)


@pytest.mark.parametrize(
    ("field", "found", "values", "can"),
    [
        ("vpp", {"vpp": 2}, {"pp": 2}, True),
        ("vpp", {"vpp": 2}, {"pp": 1}, False),  # no stages that take turns
        ("vpp", {"vpp": 2}, {}, False),
        ("vpp", {"vpp": 5}, {"pp": 2}, False),  # 24 layers
        ("vpp", {"vpp": 2}, {"pp": 24}, False),  # half a layer each
        ("vpp", {"vpp": 6}, {"pp": 4}, True),
        ("vpp", {"vpp": 2}, {"pp": 2, "schedule": "gpipe"}, False),
        ("micro_batch", {"micro_batch": 4}, {"gpus": 8, "global_batch": 64}, True),
        ("micro_batch", {"micro_batch": 3}, {"gpus": 8, "global_batch": 64}, False),
        ("sharding", {"sharding": "fsdp"}, {"pp": 1}, True),
        ("sharding", {"sharding": "fsdp"}, {"pp": 2}, False),
        ("sharding", {"sharding": "zero1"}, {"pp": 2}, True),
        ("cuda_graphs", {"cuda_graphs": "layer"}, {"sharding": "fsdp"}, False),
        ("cuda_graphs", {"cuda_graphs": "layer"}, {"sharding": "zero1"}, True),
        ("loss", {"loss": "fused"}, {}, True),
    ],
)
def test_a_plan_has_a_recipes_setting_where_it_can(
    field: str, found: dict[str, Any], values: dict[str, Any], can: bool
) -> None:
    assert _of_recipe(field, found, values, DENSE) is can


@pytest.mark.parametrize(
    ("vendor", "named", "framework", "assumed"),
    [
        ("NVIDIA", None, "neutral", True),
        ("NVIDIA", "pytorch", "pytorch", False),
        ("NVIDIA", "neutral", "neutral", False),
        ("Google", None, "maxtext", True),
        ("Google", "neutral", "maxtext", True),
        ("Google", "pytorch", "maxtext", False),  # as it was asked for
        ("Google", "nemo", "nemo", False),
        ("AWS", None, "neuronx-distributed", True),
    ],
)
def test_accelerators_of_one_maker_are_trained_with_what_is_made_for_them(
    vendor: str, named: str | None, framework: str, assumed: bool
) -> None:
    filler = Filler({} if named is None else {"framework": named})
    assert _named(filler, vendor) == framework
    assert ("framework" in {one.field for one in filler.assumed}) is assumed


def test_only_mixtures_have_settings_of_experts() -> None:
    for field in ("ep_overlap", "dispatch", "dispatch_processors", "etp"):
        assert _of_recipe(field, {field: 1}, {}, MIXED)
        assert not _of_recipe(field, {field: 1}, {}, DENSE)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, 64),
        ({"gpus": 16}, 4),
        ({"gpus": 16, "tp": 2, "pp": 2, "cp": 2}, 32),
        ({"dp": 8, "gpus": 512, "tp": 2}, 8),
        ({"tp": 4}, 64),
        ({"gpus": 256}, 1),
    ],
)
def test_a_ranks_sequences_are_its_replicas_part_of_the_batch(
    values: dict[str, int], share: int
) -> None:
    own = {"global_batch": 64, **values}
    assert whole_share(own) == share
    if "pp" not in own:
        assert whole_micro_batch(own)[0] == share


@pytest.mark.parametrize(("stages", "dp", "many"), [(4, 1, 16), (4, 4, 4), (8, 4, 2), (4, 32, 1)])
def test_pipelines_take_a_micro_batch_for_each_stage(stages: int, dp: int, many: int) -> None:
    """Of 64 sequences; schedules that fold need two for each device."""
    values = {"global_batch": 64, "pp": stages, "dp": dp}
    assert whole_micro_batch(values)[0] == many
    folded = whole_micro_batch({**values, "schedule": "zb-v"})[0]
    assert folded == max(many / SCHEDULES["zb-v"].least, 1)


def test_micro_batches_divide_a_ranks_sequences() -> None:
    """Ten of a rank in four stages: two at once are the most that is left whole, of 13 one."""
    for batch, many in ((10, 2), (13, 1), (12, 3), (22, 2)):
        assert whole_micro_batch({"global_batch": batch, "pp": 4, "dp": 1})[0] == many


@pytest.mark.parametrize(
    ("values", "field", "value"),
    [
        ({"recompute_layers": 3, "pp": 2}, "recompute_share", 3 * 2 / 24),
        ({"recompute_layers": 3, "pp": 2, "vpp": 2}, "recompute_share", 3 * 2 * 2 / 24),
        ({"recompute_layers": 30, "pp": 2}, "recompute_share", 1.0),
        ({"recompute_method": "block", "pp": 4}, "recompute_share", 4 / 24),
        ({"recompute_method": "uniform", "recompute_layers": 3}, "recompute_chunk", 3),
        ({"recompute_method": "uniform"}, "recompute_chunk", 1),
    ],
)
def test_layers_of_megatrons_methods(values: dict[str, Any], field: str, value: float) -> None:
    filler = Filler({"recompute": "full", **values})
    full_layers(filler, DENSE)
    assert filler.values[field] == pytest.approx(value)


def test_methods_are_of_full_recomputation_and_count_layers_of_a_stage() -> None:
    plain = Filler({"recompute": "full"})
    full_layers(plain, DENSE)
    assert plain.values == {"recompute": "full"}
    with pytest.raises(InputError, match="is of full recomputation"):
        full_layers(Filler({"recompute": "selective", "recompute_layers": 2}), DENSE)
    with pytest.raises(InputError, match="state --pp"):
        full_layers(Filler({"recompute": "full", "recompute_layers": 2}), DENSE)


@pytest.mark.parametrize(
    ("fields", "memory", "told"),
    [
        ({"offload_activations": 0.5}, np.nan, True),
        ({"offload_optimizer": 1.0}, np.nan, True),
        ({"offload_optimizer": 1.0, "offload_to": "nvme"}, np.nan, False),
        ({"offload_optimizer": 1.0}, 2e12, False),
        ({}, np.nan, False),
    ],
)
def test_hosts_that_nobody_knows_have_the_usual_memory_where_it_matters(
    fields: dict[str, Any], memory: float, told: bool
) -> None:
    """128 GB for each of a node's eight accelerators."""
    cluster = replace(catalog.system("dgx-h100"), host_memory=memory)
    plan = TrainingPlan(1.0, 1.0, 8.0, 1.0, 8.0, 1024.0, **fields)
    (found,) = _host(plan, cluster)
    assert found.field == "host_memory_gb"
    assert found.when is told
    assert found.value == (8 * 128 if np.isnan(memory) else 2000)


@pytest.mark.parametrize(("chosen", "load"), [(1, 4.5), (2, 2.5), (8, 1.0)])
def test_an_untrained_routers_busiest_expert_has_between_its_share_and_all(
    chosen: int, load: float
) -> None:
    """Of eight experts a token chooses so many: half-way between 1 and 8 / chosen."""
    mixed = replace(MIXED, top_k=chosen)
    padded = Habits("x", {"expert_load": BUSIEST}, False, "none", {})
    assert usual_load(mixed, padded).value == load
    assert usual_load(mixed, replace(padded, settings={})).value < 1.5
    assert not usual_load(DENSE, padded).when


@pytest.mark.parametrize("framework", ["neutral", "torchtitan", "kempnerforge"])
def test_habits_of_undivided_plans_are_of_those_alone(framework: str) -> None:
    """Yes or no, by a pipeline or split layers, whether one is stated as whole or not at all."""
    own, _ = framework_settings(framework, None, DENSE, {"framework": framework})
    h100 = catalog.accelerator("H100-SXM5-80GB")
    kinds = {field: kind for field, kind in own.items() if kind in list(UNDIVIDED)}
    assert kinds
    for field, kind in kinds.items():
        by = UNDIVIDED[kind]
        for many, holds in ((None, True), (1, True), (2, False), (4, False)):
            values = {"framework": framework} | ({} if many is None else {by: many})
            assert habits_of(Filler(values), DENSE, h100).settings[field] is holds
