"""What configurations leave to their family: one key after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from predictor.catalog import data_dir
from predictor.errors import InputError
from predictor.models import Model
from predictor.models.counts import LARGEST
from predictor.models.huggingface import _delta, _experts, _falcon, _granite, from_config
from predictor.models.listed import windows
from predictor.models.mixed import marked, mimo_v2, step
from predictor.models.narrowing import _listed
from predictor.models.quantization import read_quantization

CLASSES = json.loads((data_dir() / "defaults" / "config_classes.json").read_text())

USUAL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100,
         "intermediate_size": 200}  # fmt: skip


def read(kind: str, **more: Any) -> dict[str, Any]:
    return from_config({"model_type": kind, **USUAL, **more}, "test")


def test_the_largest_of_normal_numbers() -> None:
    """Mean of the largest of n: the integral of x times its density n phi(x) Phi(x)^(n - 1)."""
    for power, known in enumerate(LARGEST):
        n = 2**power

        def density(x: float, n: int = n) -> float:
            return float(x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1))

        assert known == pytest.approx(quad(density, -8.0, 8.0)[0], abs=0.002)


def test_falcon_shares_its_keys() -> None:
    """One for all, or groups in its newer layers, whose blocks have a norm each."""
    found: dict[str, Any] = {"hidden": 64, "heads": 8}
    _falcon({}, found)
    assert found == {
        "hidden": 64, "heads": 8, "kv_heads": 1, "ffn_hidden": 256, "parallel": "shared_norm",
    }  # fmt: skip
    for content, expected in (
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, (2, "own_norms")),
        ({"multi_query": False}, (8, "shared_norm")),
        ({"multi_query": False, "parallel_attn": False}, (8, None)),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, (8, "shared_norm")),
    ):
        found = {"hidden": 64, "heads": 8, "ffn_hidden": 100}
        _falcon(content, found)
        assert (found["kv_heads"], found.get("parallel")) == expected
        assert found["ffn_hidden"] == 100


def test_mixtures_complete_each_others_widths() -> None:
    found: dict[str, Any] = {"ffn_hidden": 200, "shared_expert_ffn_hidden": 50}
    _experts({"num_experts": 4}, found)
    assert found == {
        "ffn_hidden": 200, "shared_expert_ffn_hidden": 50, "num_experts": 4,
        "expert_ffn_hidden": 200, "shared_experts": 1,
    }  # fmt: skip
    found = {"expert_ffn_hidden": 30}
    _experts({"num_experts": 4}, found)
    assert found == {"expert_ffn_hidden": 30, "ffn_hidden": 30, "num_experts": 4}
    found = {"expert_ffn_hidden": 30}
    _experts({}, found)
    assert found == {}
    bare: dict[str, Any] = {}
    _experts({"num_experts": 4}, bare)
    assert bare["expert_ffn_hidden"] == 0


def test_every_fourth_layer_has_attention_where_nothing_is_listed() -> None:
    assert _delta({}, 12, "test") == {"delta_layers": 9}
    assert _delta({"full_attention_interval": 3}, 13, "test") == {"delta_layers": 9}
    assert _delta({"full_attention_interval": 1}, 13, "test") == {"delta_layers": 0}
    listed = ["linear_attention", "linear_attention", "full_attention"]
    assert _delta({"layer_types": listed}, 3, "test") == {"delta_layers": 2}
    for wrong in (listed[:2], "full", [*listed[:2], "other"]):
        with pytest.raises(InputError, match="must list linear_attention or full_attention"):
            _delta({"layer_types": wrong}, 3, "test")
    for every in (0, "two"):
        with pytest.raises(InputError, match="must be a whole number of at least 1"):
            _delta({"full_attention_interval": every}, 12, "test")


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ({"shared_expert_ffn_hidden": 320, "ffn_hidden": 200}, 320),
        ({"ffn_hidden": 200}, 200),
        ({}, 0),
    ],
)
def test_granites_without_experts_have_what_is_stated_of_a_feed_forward_block(
    stated: dict[str, int], width: int
) -> None:
    found: dict[str, Any] = dict(stated)
    _granite({"layer_types": ["attention"] * 3}, found, "test")
    assert found == {"ffn_hidden": width, "positions": "rope"}


def test_granites_layers_are_two_blocks() -> None:
    kinds = ["mamba", "mamba", "attention"]
    found: dict[str, Any] = {"shared_expert_ffn_hidden": 90, "mamba_heads": 4}
    _granite({"layer_types": kinds}, found, "test")
    assert found == {
        "ffn_hidden": 90, "mamba_heads": 4, "layers": 6, "attention_layers": 1, "mamba_layers": 2
    }  # fmt: skip
    found = {"ffn_hidden": 80, "mamba_heads": 4, "mamba_state": 8}
    _granite({"layer_types": ["attention"] * 3, "num_local_experts": 4}, found, "test")
    assert found == {"ffn_hidden": 80, "positions": "rope"}


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("llama", {"attention_bias": True}, {"qkv_bias": True, "ffn_hidden": 200}),
        ("mistral", {"attention_bias": True}, {"qkv_bias": None}),
        ("gpt_neox", {}, {"parallel": "own_norms"}),
        ("gpt_neox", {"use_parallel_residual": False}, {"parallel": None}),
        ("qwen", {}, {"ffn_hidden": 100}),
    ],
)
def test_families_have_their_own_ways(
    kind: str, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(kind, **more)
    for name, value in expected.items():
        assert found.get(name) == value or (value is None and not found.get(name)), name


def test_one_key_head_of_starcoder() -> None:
    own = {"model_type": "gpt_bigcode", "n_layer": 4, "n_embd": 64, "n_head": 8, "vocab_size": 100}
    assert from_config(own, "test")["kv_heads"] == 1
    assert from_config({**own, "multi_query": False}, "test").get("kv_heads") in (None, 8)


def test_first_layers_that_are_dense() -> None:
    """MiMo-V2's first; Step 3.5's first three; or as a list has it."""
    base = {"layers": 6, "kv_heads": 4, "head_dim": 16, "heads": 8}
    kinds = ["full_attention"] * 6
    found: dict[str, Any] = dict(base)
    mimo_v2({"layer_types": kinds}, found, "test")
    assert found["dense_layers"] == 1
    found = dict(base)
    mimo_v2({"layer_types": kinds, "moe_layer_freq": [0, 0, 1, 1, 1, 1]}, found, "test")
    assert found["dense_layers"] == 2
    found = dict(base)
    step({}, found, "test")
    assert (found["dense_layers"], found["shared_experts"], found["head_gate"]) == (3, 1, True)
    found = dict(base)
    listed = ["dense", "dense", *["sparse"] * 4]
    step({"mlp_layer_types": listed, "gating": False}, found, "test")
    assert (found["dense_layers"], found["head_gate"]) == (2, False)
    with pytest.raises(InputError, match="must list 0 or 1 for each of the 3 layers"):
        marked([0, 1], 3, "key", "test")
    assert marked([0, 1, 1, 1], 3, "key", "test") == [0, 1, 1]


def pair(bits: int, kind: str, **more: Any) -> Any:
    group = {"weights": {"num_bits": bits, "type": kind, **more.pop("weights", {})}, **more}
    content = {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
    return read_quantization({"quantization_config": content}, "test")


def test_pairs_of_weights_and_activations() -> None:
    """Bits and kinds, and the elements of a scale: 16 of NVFP4, 32 of MX, any of others."""
    half = {"input_activations": {"num_bits": 8, "type": "float"}}
    assert pair(8, "float", **half).precision == "fp8"
    assert pair(8, "float", **half, weights={"group_size": 32}).precision == "mxfp8"
    assert pair(8, "float", **half, weights={"strategy": "block"}).precision == "fp8_block"
    assert pair(8, "int", input_activations={"num_bits": 8, "type": "int"}).precision == "sq"
    assert pair(4, "int").precision == "int4_wo"
    assert pair(4, "int", weights={"group_size": 128}).precision == "int4_wo"
    assert pair(4, "float", weights={"group_size": 32}).precision == "w4a16_mxfp4"
    fours = {"input_activations": {"num_bits": 4, "type": "float"}}
    assert pair(4, "float", **fours, weights={"group_size": 16}).precision == "nvfp4"
    assert pair(4, "float", **fours, weights={"group_size": 32}).precision == "mxfp4"
    floats, integers = pair(8, "float"), pair(8, "int")
    assert floats.precision == integers.precision == "int8_wo"
    assert (bool(floats.remark), bool(integers.remark)) == (True, False)
    none = pair(3, "int", weights={"group_size": 64})
    assert (none.precision, none.remark) == (
        "", "3-bit int weights in groups of 64 with 16-bit activations"
    )  # fmt: skip
    assert pair(3, "int").remark == "3-bit int weights with 16-bit activations"


@pytest.mark.parametrize(
    ("bits", "kind", "cache"), [(8, "float", "fp8"), (8, "int", "int8"), (4, "float", "")]
)
def test_schemes_of_caches(bits: int, kind: str, cache: str) -> None:
    content = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": bits, "type": kind}}
    found = read_quantization({"quantization_config": content}, "test")
    assert found is not None
    assert found.cache == cache
    assert bool(found.remark) is (not cache)


def test_a_list_holds_modules_by_name_part_glob_and_expression() -> None:
    name = "model.layers.3.mlp.up_proj"
    parts = ("mlp", "up_proj", "layers.3", "model.layers.3.mlp.", name, "model")
    globs = ("model.*.mlp", "*.up_proj", "model.layers.3*", r"re:.*\.mlp\..*", "re:model")
    for pattern in (*parts, *globs):
        assert _listed((pattern,))(name), pattern
    for pattern in ("up", "layers.4", "mlp.down_proj", "*.down_proj", "layers.*", "re:mlp", "3.up"):
        assert not _listed((pattern,))(name), pattern
    assert not _listed(())(name)
    assert _listed(("other", "mlp"))(name)
    with pytest.raises(InputError, match="is no regular expression"):
        _listed(("re:(",))


def test_what_a_language_model_within_another_leaves_out_is_its_class_s() -> None:
    """Llama's class is Llama 1 7B; Gemma 3's is Gemma 2 2B (report, table 1: 2,304 wide, 26 layers,
    windows of 4,096) with Gemma 3's words: 675 M parameters of embeddings at 4B, whose width is
    2,560, and 1,012 M at 12B with 3,840 (report, table 1)."""
    llama, gemma = CLASSES["llama"], CLASSES["gemma3_text"]
    own = Model(
        name="llama", layers=llama["num_hidden_layers"], hidden=llama["hidden_size"],
        heads=llama["num_attention_heads"], kv_heads=32, head_dim=128,
        ffn_hidden=llama["intermediate_size"], vocab=llama["vocab_size"],
    )  # fmt: skip
    assert own.parameters == pytest.approx(6.738e9, rel=1e-3)
    small = {
        "num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
        "sliding_window": 4096,
    }  # fmt: skip
    assert {name: gemma[name] for name in small} == small
    assert set(gemma) == {*small, "vocab_size", "attention_bias"}
    for width, millions in ((2560, 675), (3840, 1012)):
        assert gemma["vocab_size"] * width == pytest.approx(millions * 1e6, rel=0.01)


@pytest.mark.parametrize("kind", ["cohere2", "cohere2_moe"])
def test_every_fourth_layer_sees_all_where_no_list_says_which(kind: str) -> None:
    """Of a mixture without dense layers before it, too."""
    asked = {"layers": 8, "sliding_window": 16}
    assert windows(kind, {}, asked, "test") == {"sliding_pattern": "3 local : 1 global"}
