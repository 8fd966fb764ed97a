from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import catalog
from predictor.catalog.clusters import whole_node
from predictor.errors import InputError


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_row_loads_and_has_a_source(kind: str) -> None:
    load = {"accelerators": catalog.accelerator, "systems": catalog.system, "models": catalog.model}
    for name, row in catalog.rows(kind).items():
        assert load[kind](name).name == name
        assert row.get("source"), f"{name} has no source"


def test_parameters_agree_with_the_stated_counts(shared: Path) -> None:
    import pandas as pd

    table = pd.read_csv(shared / "catalog" / "models.csv").set_index("name")
    both = sorted(set(table.index) & set(catalog.rows("models")))
    assert len(both) > 100
    for name in both:
        own = catalog.model(name)
        matrices = own.matrix_parameters() + own.vocab * own.hidden + own.head_parameters
        # The catalog counts matrices, not norms and biases; it has no learned positions either.
        stated = float(table.params_total_calc_b[name])
        assert matrices / 1e9 == pytest.approx(stated, rel=0.012), name


def test_names_match_without_case_and_by_alias() -> None:
    assert catalog.system("dgx-h100").name == "DGX-H100"
    assert catalog.model("gpt-530b").name == "megatron-529.6b"
    assert catalog.accelerator("TPUv6e-Trillium").name == "TPUv6e"


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [
        ("accelerator", "H100-SMX5-80GB", "H100-SXM5-80GB"),
        ("system", "dgx-h10O", "DGX-H100"),
        ("model", "llama3-70c", "llama3-70b"),
    ],
)
def test_a_near_miss_is_named(kind: str, wrong: str, near: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{near}'"):
        getattr(catalog, kind)(wrong)


def test_rack_scale_systems_have_three_tiers() -> None:
    tiers = catalog.system("GB200-NVL72").tiers
    assert [tier.size for tier in tiers][:2] == [4, 72]
    assert len(tiers) == 3
    assert tiers[1].bandwidth == pytest.approx(900e9)
    assert tiers[2].bandwidth < tiers[1].bandwidth


def test_units_are_converted_once() -> None:
    a100 = catalog.accelerator("A100-SXM4-80GB")
    assert a100.peak["bf16"] == pytest.approx(312e12)
    assert a100.memory == pytest.approx(80 * 2**30)
    assert a100.bandwidth == pytest.approx(2039e9)
    assert catalog.system("dgx-a100").tiers[1].bandwidth == pytest.approx(25e9)


def test_a_system_from_a_file_may_hold_its_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\n"
        "accelerator: {name: chip, bf16_tflops: 100, memory_gb: 32, memory_bandwidth_gbs: 1000}\n"
        "accelerators_per_node: 4\n"
        "tiers:\n"
        "- {link: nvlink4, size: 4, bandwidth_gbs: 400}\n"
        "- {link: infiniband, bandwidth_gbs: 25, oversubscription: 2}\n"
    )
    cluster = catalog.system(str(path))
    assert cluster.accelerator.peak["bf16"] == pytest.approx(100e12)
    assert cluster.tiers[1].rate == pytest.approx(12.5e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nbandwith: 3\n", "unknown key 'bandwith'"),
        ("name: x\nmemory_gb: -1\nmemory_bandwidth_gbs: 10\n", "memory_gb.*more than 0"),
        ("name: x\nmemory_gb: many\nmemory_bandwidth_gbs: 10\n", "memory_gb.*got 'many'"),
        ("name: x\nmemory_gb: 10\n", "'memory_bandwidth_gbs' is missing"),
        ("name: x\nmemory_bandwidth_gbs: 10\n", "either memory_gb .* or memory_gib"),
        ("- a\n- b\n", "must hold keys and values"),
        ("name: [unclosed\n", "is not YAML"),
        ("name: x\nmemory_gb: 1e400\nmemory_bandwidth_gbs: 10\n", "memory_gb"),
        ("name: x\nyear: 2024-13-45\n", "is not YAML: month must be in 1..12"),
        ("name: x\nyear: " + "9" * 5000 + "\n", "is not YAML"),
        ("accelerator: &a\n  accelerator: *a\n", "leads back to the file itself"),
    ],
)
def test_a_bad_accelerator_file_gives_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        catalog.accelerator(str(path))
    assert "\n" not in str(caught.value)


def test_a_json_file_nested_without_end_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not JSON"):
        catalog.model(str(path))


def test_an_accelerator_without_rates_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nmemory_gb: 10\nmemory_bandwidth_gbs: 10\n")
    with pytest.raises(InputError, match="x has no bf16 rate; state bf16_tflops"):
        catalog.accelerator(str(path)).peak_for("bf16")


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_size": 4096, "n_head": 32},
        {"n_embed": 4096, "num_attention_heads": 32},
    ],
)
def test_bloom_configs_come_in_two_spellings(tmp_path: Path, keys: dict) -> None:
    path = tmp_path / "config.json"
    content = {"model_type": "bloom", "n_layer": 30, "vocab_size": 250880, **keys}
    path.write_text(json.dumps(content))
    found = catalog.model(str(path))
    assert (found.hidden, found.heads, found.ffn_hidden) == (4096, 32, 16384)
    assert found.parameters == pytest.approx(7.07e9, rel=0.01)


def test_falcon_configs_say_how_keys_are_shared(tmp_path: Path) -> None:
    base = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
            "num_hidden_layers": 32, "vocab_size": 65024}  # fmt: skip
    for change, kv in (
        ({"multi_query": True}, 1),
        ({"multi_query": False}, 71),
        ({"new_decoder_architecture": True, "num_kv_heads": 71, "multi_query": True}, 71),
    ):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**base, **change}))
        assert catalog.model(str(path)).kv_heads == kv


def test_what_an_architecture_implies(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    bare = {k: v for k, v in LLAMA_CONFIG.items() if k != "tie_word_embeddings"}
    for kind, tied, bias in (
        ("llama", False, False),
        ("qwen2", False, True),
        ("gemma", True, False),
    ):
        path.write_text(json.dumps({**bare, "model_type": kind}))
        found = catalog.model(str(path))
        assert (found.tied_embeddings, found.qkv_bias) == (tied, bias)


def test_yaml_cannot_execute_anything(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    marker = tmp_path / "ran"
    path.write_text(f"name: !!python/object/apply:os.system ['touch {marker}']\n")
    with pytest.raises(InputError):
        catalog.accelerator(str(path))
    assert not marker.exists()


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def test_a_huggingface_config_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG))
    assert catalog.model(str(path)).parameters == catalog.model("llama3-8b").parameters


def test_a_gpt2_config_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    content = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    path.write_text(json.dumps(content))
    # 124,439,808 is what transformers counts for gpt2.
    assert catalog.model(str(path)).parameters == 124_439_808


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'"),
        ({"vocab_size": None}, "vocab"),
        ({"num_attention_heads": 0}, "heads"),
    ],
)
def test_a_bad_config_gives_one_line(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_CONFIG, **change}))
    with pytest.raises(InputError, match=message):
        catalog.model(str(path))


def test_data_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECKON_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="RECKON_DATA"):
        catalog.rows("models")


def config(**changes: object) -> dict[str, object]:
    return {
        "num_hidden_layers": 48,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 1.0),
        ({"model_type": "mistral", "sliding_window": None}, 0.0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 0.0),
        ({"model_type": "gemma3_text", "sliding_window": 1024}, 40 / 48),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 4}, 0.75),
        ({"model_type": "gpt_oss", "sliding_window": 128}, 0.5),
        (
            {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "intermediate_size_mlp": 8192,
            },
            0.75,
        ),
    ],
)
def test_windows_are_read_from_a_config(changes: dict, share: float) -> None:
    assert catalog.model(config(**changes)).windowed_share == pytest.approx(share)


def test_a_hybrid_is_read_from_its_pattern() -> None:
    """Nemotron 3 Nano as published, against the catalog's entry."""
    own = catalog.model("nemotron-3-nano-30b-a3b")
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    read = catalog.model(
        config(
            model_type="nemotron_h",
            hybrid_override_pattern=pattern,
            hidden_size=2688,
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=128,
            intermediate_size=1856,
            vocab_size=131072,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            n_shared_experts=1,
            moe_shared_expert_intermediate_size=3712,
            mamba_num_heads=64,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
        )
    )
    assert (read.layers, read.attention_layers, read.mamba_layers) == (52, 6, 23)
    assert read.parameters == own.parameters
    assert read.active_parameters == own.active_parameters
    with pytest.raises(InputError, match="hybrid_override_pattern"):
        catalog.model(config(model_type="nemotron_h", hybrid_override_pattern="MX"))


QWEN_35 = {
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 60,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": None,
    "vocab_size": 248320,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(
    "layers",
    [
        {"full_attention_interval": 4},
        {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15},
    ],
)
def test_delta_rules_are_read_from_a_config(layers: dict) -> None:
    """Qwen3.5 as published, its language model inside of one that sees, or alone."""
    own = catalog.model("qwen3.5-397b-a17b")
    inner = config(**QWEN_35, **layers)
    outer = {"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": inner}
    for given in (inner, outer):
        read = catalog.model(given)
        assert (read.layers, read.delta_layers, read.output_gate) == (60, 45, True)
        assert read.parameters == own.parameters
        assert read.active_parameters == own.active_parameters
    with pytest.raises(InputError, match="'layer_types' must list linear_attention or full"):
        catalog.model({**inner, "layer_types": ["sliding_attention"] * 60})
    with pytest.raises(InputError, match="'full_attention_interval' must be a whole number"):
        catalog.model(config(**QWEN_35, full_attention_interval=0))
    assert not catalog.model({**inner, "attn_output_gate": False}).output_gate


def test_an_indexer_is_read_from_a_config() -> None:
    """GLM-5 as published, against the catalog's entry."""
    own = catalog.model("glm-5")
    read = catalog.model(
        config(
            model_type="glm_moe_dsa",
            num_hidden_layers=78,
            hidden_size=6144,
            num_attention_heads=64,
            num_key_value_heads=64,
            intermediate_size=12288,
            vocab_size=154880,
            n_routed_experts=256,
            num_experts_per_tok=8,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            q_lora_rank=2048,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            index_n_heads=32,
            index_head_dim=128,
            index_topk=2048,
            head_dim=64,
        )
    )
    assert (read.index_heads, read.index_head_dim, read.index_topk) == (32, 128, 2048)
    assert read.parameters == own.parameters


def test_llama_4_is_read_with_its_alternating_mixtures() -> None:
    own = catalog.model("llama4-maverick-17b-128e")
    read = catalog.model(
        config(
            model_type="llama4_text",
            hidden_size=5120,
            num_attention_heads=40,
            num_key_value_heads=8,
            intermediate_size=8192,
            intermediate_size_mlp=16384,
            num_local_experts=128,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            vocab_size=202048,
        )
    )
    assert read.parameters == own.parameters


RULE = dict.fromkeys(("delta_key_heads", "delta_value_heads"), 8)
RULE |= dict.fromkeys(("delta_key_dim", "delta_value_dim"), 128)
SCAN = dict.fromkeys(("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_groups"), 8)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts": 8, "expert_ffn_hidden": 4096}, "num_experts 8 needs top_k"),
        (
            {"num_experts": 8, "expert_ffn_hidden": 4096, "top_k": 9},
            "top_k 9 is more than the 8 experts",
        ),
        ({"mamba_layers": 4}, "mamba_layers 4 needs mamba_heads, mamba_head_dim"),
        ({"attention_layers": 4}, "attention_layers 4 needs mamba_layers"),
        ({"kv_lora_rank": 512}, "kv_lora_rank 512 needs qk_rope_head_dim"),
        ({"dense_layers": 49}, "are 49, more than the 48 layers"),
        ({"delta_layers": 36}, "delta_layers 36 needs delta_key_heads, delta_value_heads"),
        ({"delta_layers": 49, **RULE}, "delta_layers 49 are more than the 48 layers"),
        ({"delta_layers": 36, **RULE, "delta_key_heads": 3}, "3 does not divide delta_value_heads"),
        ({"delta_layers": 9, "mamba_layers": 9, **RULE, **SCAN}, "in one model are not predicted"),
        (
            {"index_topk": 2048, "index_heads": 4, "index_head_dim": 128},
            "index_topk 2048 needs kv_lora_rank, index_block, index_means or out_groups",
        ),
        ({"index_topk": 2048}, "index_topk 2048 needs index_heads, index_head_dim"),
    ],
)
def test_blocks_that_contradict_each_other_are_refused(changes: dict, says: str) -> None:
    dims = {"name": "x", "layers": 48, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 99}
    with pytest.raises(InputError, match=says):
        catalog.model({**dims, **changes})


def test_a_run_as_large_as_a_node_is_that_node() -> None:
    """Four GH200 are a node of four, one is a node of one; eight say nothing of their nodes."""
    gh200, h100 = catalog.accelerator("gh200"), catalog.accelerator("h100")
    assert whole_node(gh200, {"gpus": 4}) == 4
    assert whole_node(gh200, {"tp": 2, "pp": 2}) == 4
    assert whole_node(gh200, {"gpus": 1}) is None
    assert whole_node(gh200, {"gpus": 8}) is None
    assert whole_node(h100, {"gpus": 4}) is None  # fits into a node as it is
