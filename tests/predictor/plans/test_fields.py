"""The table of plan fields agrees with the dataclasses, with what completion fills in, and with
what the arithmetic does."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import reckon
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.plans import (
    SERVING_DERIVED,
    SERVING_FIELDS,
    SWITCH,
    TRAINING_DERIVED,
    TRAINING_FIELDS,
    PlanField,
    ServingPlan,
    Table,
    TrainingPlan,
    default_of,
)
from predictor.plans.fields import SERVING_PHASES, TRAINING_PHASES

PLANS = [
    (TRAINING_FIELDS, TrainingPlan, TRAINING_DERIVED),
    (SERVING_FIELDS, ServingPlan, SERVING_DERIVED),
]
ENTRIES = [(of, entry) for of, (table, *_) in enumerate(PLANS) for entry in table.values()]


@pytest.mark.parametrize(("table", "plan", "derived"), PLANS)
def test_a_plan_has_the_fields_of_its_table_and_no_others(
    table: Table, plan: type, derived: dict[str, str]
) -> None:
    held = {entry.holder for entry in table.values() if entry.holder}
    own = {one.name for one in fields(plan)}
    assert held | set(derived) == own
    assert not held & set(derived)


@pytest.mark.parametrize(("of", "entry"), ENTRIES)
def test_an_entry_says_all(of: int, entry: PlanField) -> None:
    plan = PLANS[of][1]
    phases = (SERVING_PHASES if of else TRAINING_PHASES) + ("run", "all")
    assert entry.touches
    assert set(entry.touches) <= set(phases)
    assert entry.help.endswith((".", "..."))
    assert len(entry.help) <= 66
    assert default_of(entry, plan)
    if entry.choices and not entry.default:
        assert default_of(entry, plan) in entry.choices


@pytest.mark.parametrize(("of", "entry"), ENTRIES)
def test_what_lies_outside_its_values_is_refused(of: int, entry: PlanField) -> None:
    form: Any = ServingPlanSpec if of else TrainingPlanSpec
    kind = entry.kind
    outside: list[Any] = []
    if kind.number is not None:
        below = kind.above if kind.least is None else kind.least - 1
        outside = [below, float("nan")]
        outside.append(kind.most * 2 if kind.most is not None else kind.below)
        for inside in (kind.least, kind.most):
            if inside is not None:
                assert getattr(parse(form, {entry.name: inside}, "t"), entry.name) == inside
    elif entry.choices:
        outside = ["no such", entry.choices[0] + "x"]
        for choice in entry.choices:
            assert getattr(parse(form, {entry.name: choice.upper()}, "t"), entry.name) == choice
    elif kind is SWITCH:
        outside = ["maybe", 2]
    for value in outside:
        with pytest.raises(InputError, match=entry.name):
            parse(form, {entry.name: value}, "t")


DENSE = {"gpus": 16, "tp": 2, "pp": 2, "global_batch": 64, "seq_len": 4096, "tokens": 1e9,
         "recompute": "selective"}  # fmt: skip
SERVED = {"gpus": 8, "tp": 8, "concurrency": 16, "input_len": 512, "output_len": 64}
REQUESTS = [
    (0, "llama3-8b", {**DENSE, "sharding": "hsdp", "recompute": "full", "era": "2022-01"}),
    (0, "mixtral-8x7b", DENSE),
    (1, "llama3-8b", SERVED),
    (1, "mixtral-8x7b", {**SERVED, "offload": "weights"}),
]


@pytest.mark.parametrize(("of", "model", "stated"), REQUESTS)
def test_what_is_filled_in_is_the_default_of_the_table(
    of: int, model: str, stated: dict[str, Any]
) -> None:
    verb = reckon.predict_infer if of else reckon.predict_train
    found: Any = verb(model, "dgx-h100", stated)
    held = {entry.holder or name: entry for name, entry in PLANS[of][0].items()}
    compared = 0
    for one in found.request.assumed:
        entry = PLANS[of][0].get(one.field) or held[one.field]
        told = default_of(entry, PLANS[of][1])
        try:
            number = float(told)
        except ValueError:
            continue
        scale = 1e9 if entry.name.endswith("_gbs") and entry.name != one.field else 1.0
        assert number * scale == pytest.approx(float(one.value)), one.field
        compared += 1
    assert compared >= 2


BASE = {"gpus": 32, "tp": 2, "pp": 2, "cp": 2, "vpp": 2, "global_batch": 128, "seq_len": 8192,
        "micro_batch": 1, "recompute": "selective", "sharding": "fsdp"}  # fmt: skip
EXPERTS = {**BASE, "ep": 4, "dispatch": "once", "grad_overlap": False, "param_overlap": False}
ROUTED = {**EXPERTS, "expert_loads": "zipf:1"}
PACKED = {**BASE, "documents": "wlb"}
FULL = {**BASE, "recompute": "full"}
AWAY = {**BASE, "offload_optimizer": 0.5, "offload_activations": 0.5}
OTHERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "inter_link_gbps": ("llama3-8b", BASE, 100),
    "vpp": ("llama3-8b", BASE, 4),
    "dp_shard": ("llama3-8b", {**BASE, "sharding": "hsdp"}, 2),
    "first_layers": ("llama3-8b", {**BASE, "vpp": 1}, 14),
    "last_layers": ("llama3-8b", {**BASE, "vpp": 1}, 14),
    "expert_load": ("mixtral-8x7b", EXPERTS, 1.5),
    "expert_chunks": ("mixtral-8x7b", EXPERTS, 2),
    "packing": ("llama3-8b", PACKED, "balanced"),
    "cp_sharding": ("llama3-8b", PACKED, "document"),
    "expert_loads": ("mixtral-8x7b", EXPERTS, "zipf:0.6"),
    "expert_replicas": ("mixtral-8x7b", ROUTED, 4),
    "expert_placement": ("mixtral-8x7b", ROUTED, "balanced"),
    "expert_capacity": ("mixtral-8x7b", ROUTED, 1.25),
    "dispatch_processors": ("mixtral-8x7b", EXPERTS, 2),
    "routed_nodes": ("mixtral-8x7b", {**EXPERTS, "ep": 8, "tp": 1, "pp": 2, "gpus": 64}, 1),
    "wide_share": ("llama3-8b", {**BASE, "precision": "fp8"}, 0.2),
    "recompute": ("llama3-8b", BASE, "full"),
    "recompute_modules": ("llama3-8b", BASE, "mlp"),
    "cuda_graphs": ("llama3-8b", BASE, "step"),
    "recompute_share": ("llama3-8b", FULL, 0.5),
    "recompute_method": ("llama3-8b", FULL, "uniform"),
    "recompute_layers": ("llama3-8b", FULL, 2),
    "sharding": ("llama3-8b", {**BASE, "merges_apart": False}, "zero1"),
    "sequence_parallel": ("llama3-8b", BASE, False),
    "attention": ("llama3-8b", BASE, "unfused"),
    "schedule": ("llama3-8b", {**BASE, "vpp": 1}, "zb-h1"),
    "split": ("llama3-8b", {**BASE, "vpp": 1}, "cost"),
    "cp_kind": ("llama3-8b", BASE, "ulysses"),
    "rank_order": ("llama3-8b", BASE, "tp-cp-pp-dp"),
    "dispatch": ("mixtral-8x7b", EXPERTS, "copies"),
    "routing": ("mixtral-8x7b", EXPERTS, "in_turn"),
    "offload_activations": ("llama3-8b", AWAY, 0.9),
    "offload_optimizer": ("llama3-8b", AWAY, 0.9),
    "offload_to": ("llama3-8b", AWAY, "nvme"),
    "loader_rate": ("llama3-8b", BASE, 1000),
    "tp_overlap": ("llama3-8b", BASE, True),
    "tp_async_backward": ("llama3-8b", BASE, False),
    "tp_regather": ("llama3-8b", BASE, False),
    "adapters": ("llama3-8b", BASE, 1.0),
    "grad_overlap": ("llama3-8b", BASE, False),
    "param_overlap": ("llama3-8b", BASE, False),
    "p2p_overlap": ("llama3-8b", BASE, True),
    "pipeline_fill": ("llama3-8b", {**BASE, "pp": 2, "vpp": 1, "global_batch": 512}, 1),
    "ep_overlap": ("mixtral-8x7b", EXPERTS, True),
    "reshard": ("llama3-8b", BASE, False),
    "reduce_last": ("llama3-8b", {**BASE, "pp": 1, "vpp": 1}, True),
    "flat_copies": ("llama3-8b", {**BASE, "framework": "megatron-lm"}, True),
    "sums_apart": ("llama3-8b", {**BASE, "micro_batch": 1}, True),
    "built_whole": ("llama3-70b", {**BASE, "gpus": 512, "global_batch": 512}, True),
    "clamps_apart": ("gpt-oss-120b", {**EXPERTS, "recompute": "none"}, True),
    "activation_apart": ("llama3-8b", BASE, True),
    "norms_persist": ("gpt3-175b", {**BASE, "recompute": "none"}, True),
    "experts_looped": ("mixtral-8x7b", EXPERTS, True),
    "routers_kept": ("mixtral-8x7b", {**EXPERTS, "recompute": "full"}, True),
    "windows_masked": ("mistral-7b", {**BASE, "seq_len": 8192}, True),
    "merges_apart": ("llama3-8b", {**BASE, "cp_kind": "allgather"}, True),
    "keys_repeated": ("llama3-8b", BASE, True),
    "index_loss": ("deepseek-v3.2", {**EXPERTS, "seq_len": 4096}, True),
    "vocab_parallel": ("llama3-8b", BASE, False),
    "grad_clip": ("llama3-8b", BASE, False),
    "dropout": ("llama3-8b", BASE, True),
    "fused": ("llama3-8b", BASE, False),
    "fused_norm": ("llama3-8b", {**BASE, "fused": False}, True),
    "stops_early": ("llama3-8b", FULL, True),
    "saves_narrow": ("llama3-8b", {**BASE, "precision": "fp8"}, False),
    "weight_bytes": ("llama3-8b", BASE, 4),
    "gradient_bytes": ("llama3-8b", BASE, 2),
    "handed_bytes": ("llama3-8b", {**BASE, "pp": 2}, 0.516),
    "handed_rate": ("llama3-8b", {**BASE, "pp": 2, "vpp": 1}, 1e9),
    "reduce_bytes": ("llama3-8b", BASE, 2),
    "gather_bytes": ("llama3-8b", BASE, 1),
    "optimizer_bytes": ("llama3-8b", BASE, 6),
    "logit_bytes": ("llama3-8b", BASE, 2),
    "offload_weights": ("llama3-8b", {**BASE, "sharding": "fsdp", "tp": 1, "pp": 1, "vpp": 1}, 1),
    "optimizer": ("llama3-8b", BASE, "lion"),
    "update_early": (
        "llama3.2-1b",
        {"gpus": 1, "global_batch": 1, "seq_len": 256, "framework": "torchtune"},
        True,
    ),
    "scored": ("llama3-8b", BASE, 1),
    "referred": ("llama3-8b", BASE, 1),
    "host_memory_gb": ("llama3-8b", AWAY, 512),
    "tokens": ("llama3-8b", BASE, 1e9),
}
"""Field -> a model, a request, and another value of the field."""

TERMS = {
    "forward": ("forward",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer",),
}


@pytest.fixture(scope="module")
def shares() -> Any:
    """Seconds of each phase and peak memory of a request."""
    known: dict[str, dict[str, float]] = {}

    def of(model: str, stated: dict[str, Any]) -> dict[str, float]:
        key = repr((model, stated))
        if key not in known:
            machine = "dgx-h100" if stated.get("precision") == "fp8" else "dgx-a100"
            found: Any = reckon.predict_train(model, machine, stated, "kernels-only")
            times = found.breakdown
            known[key] = {
                **{phase: sum(times[name] for name in names) for phase, names in TERMS.items()},
                "memory": found.peak_memory,
            }
        return known[key]

    return of


def test_every_field_that_does_not_touch_all_is_tried() -> None:
    partial = {
        name for name, entry in TRAINING_FIELDS.items()
        if "all" not in entry.touches and "run" not in entry.touches
    }  # fmt: skip
    assert partial <= set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_field_leaves_alone_what_it_does_not_touch(name: str, shares: Any) -> None:
    model, stated, other = OTHERS[name]
    before, after = shares(model, stated), shares(model, {**stated, name: other})
    changed = {phase for phase in before if after[phase] != pytest.approx(before[phase], rel=1e-9)}
    assert changed <= set(TRAINING_FIELDS[name].touches)


def test_every_kind_of_number_has_values() -> None:
    """Ends in order: a share has a half, a count a two, and nothing beyond its ends."""
    kinds = {entry.kind for table in (TRAINING_FIELDS, SERVING_FIELDS) for entry in table.values()}
    for kind in (one for one in kinds if one.number is not None):
        low = kind.least if kind.least is not None else kind.above
        high = kind.most if kind.most is not None else kind.below
        assert low is not None
        assert high is not None
        inner = 0.5 if kind.what == "share" else 2
        assert low < inner < high
        assert low in (0, 1)
        assert kind.what != "share" or high == 1
