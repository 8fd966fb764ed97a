"""What files may say and leave out: each number in SI, each contradiction on either side."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.entries import DEFAULT_L2, DEFAULT_SMS, NEEDED
from predictor.catalog.forms import parse, scaled
from predictor.catalog.specs import AcceleratorSpec, ModelSpec, TierSpec, TowerSpec
from predictor.errors import InputError
from predictor.hardware import DEFAULT_CLOCK, Tier
from predictor.models.model import Model
from predictor.models.tower import Tower

LEAST: dict[str, Any] = {"name": "m", "layers": 12, "hidden": 60, "heads": 6, "ffn_hidden": 200,
                         "vocab": 1000}  # fmt: skip


@pytest.mark.parametrize(("form", "made"), [(ModelSpec, Model), (TowerSpec, Tower)])
def test_what_a_file_leaves_out_is_what_the_object_leaves_out(form: Any, made: Any) -> None:
    own = {name: default for name, (_, default) in form.fields().items()}
    for one in fields(made):
        if one.default is not MISSING:
            assert own[one.name] == one.default, one.name
    if form is TowerSpec:
        assert own["patch_width"] == 3 * 14**2, "three colours of patches of 14"
    tier = {name: default for name, (_, default) in TierSpec.fields().items()}
    usual = {one.name: one.default for one in fields(Tier)}
    for name in ("oversubscription", "in_switch", "direct"):
        assert tier[name] == usual[name]


def test_an_accelerator_in_si() -> None:
    stated = {
        "name": "x", "memory_gb": 80, "memory_bandwidth_gbs": 2000, "sm_count": 100,
        "clock_mhz": 1500, "fp32_tflops": 20, "tf32_tflops": 150, "fp16_tflops": 300,
        "bf16_tflops": 310, "fp8_tflops": 600, "fp4_tflops": 1200, "int8_tops": 620, "l2_mb": 50,
        "l2_bandwidth_gbs": 5000, "tdp_w": 700, "host_link_gbs": 32, "dispatch_us": 3,
        "split_dispatch_us": 5, "year": 2023,
    }  # fmt: skip
    one = catalog.accelerator(stated)
    assert one.peak == {
        "fp32": 20e12, "tf32": 150e12, "fp16": 300e12, "bf16": 310e12, "fp8": 600e12,
        "fp4": 1200e12, "int8": 620e12,
    }  # fmt: skip
    assert (one.memory, one.bandwidth, one.l2, one.l2_bandwidth) == (80e9, 2e12, 50e6, 5e12)
    assert (one.sms, one.clock, one.power, one.year) == (100, 1.5e9, 700, 2023)
    assert (one.host_bandwidth, one.dispatch) == (32e9, pytest.approx(3e-6))
    assert one.split_dispatch == pytest.approx(5e-6)
    binary = {**{k: v for k, v in stated.items() if k != "memory_gb"}, "memory_gib": 80}
    assert catalog.accelerator(binary).memory == 80 * 2**30
    for both in (
        {**stated, "memory_gib": 80},
        {k: v for k, v in stated.items() if k != "memory_gb"},
    ):
        with pytest.raises(InputError, match="either memory_gb"):
            parse(AcceleratorSpec, both, "test")


def test_what_an_accelerator_leaves_open_is_of_the_usual_order() -> None:
    one = catalog.accelerator({"name": "x", "memory_gb": 80, "memory_bandwidth_gbs": 2000})
    assert (one.sms, one.l2, one.clock) == (DEFAULT_SMS, DEFAULT_L2, DEFAULT_CLOCK)
    assert 108 <= DEFAULT_SMS <= 152
    assert 25e6 <= DEFAULT_L2 <= 50e6
    assert one.l2_bandwidth == pytest.approx(32 * DEFAULT_SMS * DEFAULT_CLOCK)
    assert (one.dispatch, one.split_dispatch) == (0.0, 0.0)
    for name in ("power", "year", "host_bandwidth"):
        assert math.isnan(getattr(one, name))
    # No cache is slower than the memory behind it.
    slow = catalog.accelerator({"name": "x", "memory_gb": 80, "memory_bandwidth_gbs": 9000})
    assert slow.l2_bandwidth == 9e12


def test_a_models_sizes_follow_from_others() -> None:
    made = catalog.model(LEAST)
    assert (made.kv_heads, made.head_dim, made.ffn_hidden) == (6, 10, 200)
    plain = {k: v for k, v in LEAST.items() if k != "ffn_hidden"}
    assert catalog.model({**plain, "gated": False}).ffn_hidden == 240
    with pytest.raises(InputError, match="'ffn_hidden' is missing"):
        catalog.model(plain)
    with pytest.raises(InputError, match="hidden 62 is not a multiple of heads 6; state head_dim"):
        catalog.model({**LEAST, "hidden": 62})
    assert catalog.model({**LEAST, "hidden": 62, "head_dim": 16}).head_dim == 16


RULE = {"delta_layers": 12, "delta_key_heads": 2, "delta_value_heads": 4, "delta_key_dim": 8,
        "delta_value_dim": 8}  # fmt: skip
HYBRID = {"mamba_layers": 6, "mamba_heads": 2, "mamba_head_dim": 8, "mamba_state": 4,
          "mamba_groups": 1}  # fmt: skip
LATENT = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
V4 = {"out_groups": 3, "out_rank": 4, "q_lora_rank": 8, "qk_rope_head_dim": 4, "sliding_window": 16}
INDEX = {"index_topk": 8, "index_heads": 2, "index_head_dim": 4}

CASES: list[tuple[dict[str, Any], str | None]] = [
    ({"kv_heads": 4}, "kv_heads 4 does not divide heads 6"),
    ({"kv_heads": 3}, None),
    (
        {"num_experts": 4, "top_k": 5, "expert_ffn_hidden": 8},
        "top_k 5 is more than the 4 experts there are",
    ),
    ({"num_experts": 4, "top_k": 4, "expert_ffn_hidden": 8}, None),
    (INDEX, "index_topk 8 needs kv_lora_rank, index_block, index_means or out_groups"),
    ({**INDEX, "index_block": 4}, None),
    ({**INDEX, **LATENT}, None),
    ({**INDEX, **V4}, None),
    ({**HYBRID, "attention_layers": 6}, None),
    (
        {**HYBRID, "attention_layers": 6, "dense_layers": 1},
        "attention, mamba and dense layers are 13, more than the 12 layers there are",
    ),
    ({**HYBRID, "attention_layers": 7}, "are 13, more than the 12"),
    ({**HYBRID, **RULE}, "delta_layers and mamba_layers in one model are not predicted"),
    (RULE, None),
    ({**RULE, "delta_layers": 13}, "delta_layers 13 are more than the 12 layers"),
    ({**RULE, "delta_key_heads": 3}, "delta_key_heads 3 does not divide delta_value_heads 4"),
    ({"sliding_window": 8, "window_kv_heads": 4}, "window_kv_heads 4 does not divide its 6 heads"),
    ({"sliding_window": 8, "window_heads": 8, "window_kv_heads": 4}, None),
    (
        {
            **V4,
            **INDEX,
            "choosing_layers": 6,
            "choosing_ratio": 4,
            "pooling_layers": 6,
            "pooling_ratio": 8,
        },
        None,
    ),
    (
        {
            **V4,
            **INDEX,
            "choosing_layers": 6,
            "choosing_ratio": 4,
            "pooling_layers": 7,
            "pooling_ratio": 8,
        },
        "13 layers that choose, pool or see all keys are more than the 12",
    ),
    ({**INDEX, "index_block": 4, "whole_layers": 12}, None),
    ({**INDEX, "index_block": 4, "whole_layers": 13}, "13 layers that choose, pool or see all"),
    ({**V4, "out_groups": 4}, "out_groups 4 does not divide 6 heads"),
    ({**INDEX, **LATENT, "sharing_layers": 11}, None),
    ({**INDEX, **LATENT, "sharing_layers": 12}, "sharing_layers 12 leave no layer that chooses"),
    ({**INDEX, **LATENT, **RULE, "delta_layers": 4, "sharing_layers": 7}, None),
    (
        {**INDEX, **LATENT, **RULE, "delta_layers": 4, "sharing_layers": 8},
        "sharing_layers 8 leave no layer that chooses",
    ),
    ({"borrowing_layers": 11}, None),
    ({"borrowing_layers": 12}, "borrowing_layers 12 leave none of the 12 layers keys"),
    ({**LATENT, "borrowing_layers": 2}, "layers of several heads beside latent attention"),
    ({**RULE, "sliding_window": 8, "window_head_dim": 4}, "layers of several heads beside"),
    ({**HYBRID, "attention_layers": 2, "values_are_keys": True}, "layers of several heads beside"),
]


@pytest.mark.parametrize(("stated", "words"), CASES)
def test_kinds_of_blocks_do_not_contradict_each_other(
    stated: dict[str, Any], words: str | None
) -> None:
    if words is None:
        assert catalog.model({**LEAST, **stated}).layers == 12
        return
    with pytest.raises(InputError) as caught:
        catalog.model({**LEAST, **stated})
    assert words in str(caught.value)


@pytest.mark.parametrize("key", sorted(NEEDED))
def test_what_makes_no_sense_without_others_names_them(key: str) -> None:
    with pytest.raises(InputError, match=f"{key} (1|True) needs {', '.join(NEEDED[key])}"):
        catalog.model({**LEAST, key: 1})


@pytest.mark.parametrize(
    ("text", "number"),
    [("15T", 15e12), ("1.5b", 1.5e9), ("2G", 2e9), ("3m", 3e6), ("4 k", 4e3), ("7", "7"),
     ("x7", "x7"), (8, 8), ("1e3", "1e3")],
)  # fmt: skip
def test_scales_behind_numbers(text: Any, number: Any) -> None:
    assert scaled(text) == number


def test_tiers_of_a_file_grow_outwards() -> None:
    own = {"name": "x", "memory_gb": 80, "memory_bandwidth_gbs": 2000}
    tier = {"link": "nvlink4", "size": 8, "bandwidth_gbs": 450, "latency_us": 2, "window_mb": 4}
    system = {"name": "s", "accelerator": own, "accelerators_per_node": 8, "host_memory_gb": 100,
              "tiers": [tier, {"link": "ethernet", "bandwidth_gbs": 25}]}  # fmt: skip
    made = catalog.system(system)
    inner, outer = made.tiers
    assert (inner.size, inner.bandwidth, inner.window) == (8.0, 450e9, 4e6)
    assert inner.latency == pytest.approx(2e-6)
    assert (outer.size, outer.bandwidth) == (math.inf, 25e9)
    assert math.isnan(outer.latency)
    assert math.isinf(outer.window)
    assert (made.host_memory, made.accelerators_per_node) == (100e9, 8)
    bare = catalog.system({k: v for k, v in system.items() if k != "host_memory_gb"})
    assert math.isnan(bare.host_memory)
    for wrong, words in (
        ([{**tier, "size": None}, tier], "tiers.0.size must be given and not below 1"),
        ([tier, {**tier, "size": 4}], "tiers.1.size must be given and not below 8"),
    ):
        with pytest.raises(InputError) as caught:
            catalog.system({**system, "tiers": wrong})
        assert words in str(caught.value)
    assert len(catalog.system({**system, "tiers": [tier, tier]}).tiers) == 2
