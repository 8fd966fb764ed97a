from __future__ import annotations

import math

import pandas as pd
import pytest

from calibration.sources.told import amended
from calibration.tables.conventions import ALONE, ROUNDS
from calibration.tables.dimensions import base_name, model_of
from calibration.tables.runs import Point, Skipped, point_of
from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing.calibration import RunParameters

RUN = RunParameters()
ROW = {
    "point_id": "p1",
    "source": "paper",
    "published": "2024-05",
    "accelerator": "H100-SXM5-80GB",
    "gpus_per_node": 8.0,
    "num_gpus": 64.0,
    "model": "llama3-8b",
    "seq_len": 8192.0,
    "precision": "bf16",
    "global_batch": 128.0,
    "micro_batch": 1.0,
    "tp": 2.0,
    "pp": 1.0,
    "vpp": 1.0,
    "cp": 1.0,
    "framework": "nemo",
    "metric": "step_time_s",
    "value": 5.0,
    "step_time_s": 5.0,
}


def made(**changes: object) -> Point | Skipped:
    return point_of({**ROW, **changes}, RUN)


def point(**changes: object) -> Point:
    found = made(**changes)
    assert isinstance(found, Point), found
    return found


def test_a_row_becomes_a_point() -> None:
    found = point()
    plan = found.request.plan
    assert (plan.tp, plan.dp, plan.gpus) == (2, 32, 64)
    assert found.request.cluster.name == "DGX-H100"
    assert plan.tp_overlap, "NeMo's default"
    assert found.measured == 5.0


@pytest.mark.parametrize(
    ("stated", "laid"),
    [
        ({"tp": None, "dp": 16}, (4, 1, 16)),
        ({"tp": None, "pp": 2, "dp": 16}, (2, 2, 16)),
        ({"tp": 2, "pp": None, "dp": 8}, (2, 4, 8)),
        ({"tp": None, "pp": None, "dp": 8}, (2, 4, 8)),  # none narrower than 2,048 columns
        ({"tp": 2, "pp": 1, "dp": 16}, (2, 1, 32)),  # contradicts itself: ranks as of its layout
        ({"tp": 1, "pp": None, "dp": 24}, (1, 2, 24)),  # and so: what holds the model
    ],
)
def test_replicas_and_devices_say_what_a_row_leaves_open(stated: dict, laid: tuple) -> None:
    plan = point(**stated, global_batch=192.0).request.plan
    assert (plan.tp, plan.pp, plan.dp) == laid


@pytest.mark.parametrize(("stated", "expected"), [(8, 8), (16, 16), (64, 16)])
def test_experts_are_divided_among_the_ranks_of_a_stage_at_most(stated: int, expected: int) -> None:
    row = {"model": "qwen3-30b-a3b", "tp": 1.0, "pp": 4.0, "ep": float(stated), "value": 5.0}
    assert point(**row).request.plan.ep == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-70b-sft", "llama3-70b"),
        ("llama2_70b_lora", "llama2_70b"),
        ("llama3.1-405b-21L-proxy", "llama3.1-405b"),
        ("llama3-70b-12layers", "llama3-70b"),
        ("gpt-22b-1layer", "gpt-22b"),
        ("llama3-8b (called 7B)", "llama3-8b"),
        ("llama3-70b", "llama3-70b"),
        ("llama4-scout-2layers", "llama4-scout"),
        ("qwen2.5-32b-lora", "qwen2.5-32b"),
        ("Qwen2.5 32B QLoRA", "qwen2.5 32b"),
    ],
)
def test_suffixes_are_dropped(name: str, expected: str) -> None:
    assert base_name(name) == expected


def test_stated_dimensions_win_over_the_catalogs() -> None:
    found = model_of({**ROW, "model": "llama3.1-405b-21L-proxy", "layers": 21.0})
    assert found.layers == 21
    assert found.hidden == catalog.model("llama3.1-405b").hidden


@pytest.mark.parametrize(
    ("name", "layers"), [("deepseekv2-4layers", 4), ("llama4-scout-2layers", 2)]
)
def test_a_proxys_name_says_how_deep_it_is(name: str, layers: int) -> None:
    found = model_of({**ROW, "model": name})
    assert found.layers == layers
    assert found.is_moe


def test_a_proxy_has_as_large_a_share_of_every_kind_of_layer() -> None:
    """DeepSeek-V4-Flash has 43 layers: 21 that choose, 20 that pool, two with a window alone; of
    sixteen layers 7.8 and 7.4 would be such."""
    whole = model_of({**ROW, "model": "deepseek-v4-flash"})
    found = model_of({**ROW, "model": "deepseek-v4-flash-16layers"})
    assert (whole.layers, whole.choosing_layers, whole.pooling_layers) == (43, 21, 20)
    assert (found.layers, found.choosing_layers, found.pooling_layers) == (16, 7, 7)


def test_adapters_and_balance_are_read_from_name_and_notes() -> None:
    assert point(model="llama3-70b-lora", tp=8.0).request.plan.trained == "lora_qkv"
    other = point(model="llama3-70b-lora", tp=8.0, framework="nemo-automodel")
    assert other.request.plan.trained == "lora"
    for name, notes, trained in (
        ("Llama 3 70B (LoRA)", "", "lora_qkv"),
        ("Llama 3 70B QLoRA", "", "lora_qkv"),
        ("llama3-70b", "fine-tuning: LoRA, rank 16", "lora_qkv"),
        ("llama3-70b", "all weights, no LoRA", "all"),
        ("llama3-70b", "flora", "all"),
    ):
        assert point(model=name, tp=8.0, notes=notes).request.plan.trained == trained
    moe = {"model": "mixtral-8x7b", "framework": "megatron-lm", "ep": 8.0}
    assert point(**moe).request.plan.expert_load == 1.1
    noted = point(**moe, notes="MoE: token distribution force-balanced, dropless")
    assert noted.request.plan.expert_load == 1.0
    assert noted.request.plan.ep == 8


def test_qlora_has_weights_of_four_bits() -> None:
    """Unless a table says how they are stored."""
    told: tuple[dict[str, str], ...] = (
        {"model": "llama3_70b_qlora"}, {"notes": "QLoRA"}, {"notes": "LoRA"},
        {"notes": "QLoRA", "quantized": "int8"}, {"notes": "q_lora_rank 1536"},
    )  # fmt: skip
    of = {"model": "llama3-70b", "tp": 8.0}
    stored = [point(**{**of, **own}).request.plan.frozen_precision for own in told]
    assert stored == ["nf4", "nf4", "as multiplied", "int8", "as multiplied"]


def test_scales_by_row_are_read_from_notes() -> None:
    """torchao's recipes, where a column says fp8 of them all."""
    for said, notes, recipe in (
        ("fp8", "rowwise_with_gw_hp + bf16 all-gather", "fp8_rowwise"),
        ("fp8", "tensorwise", "fp8"), ("fp8", "throwise", "fp8"), ("bf16", "rowwise", "bf16"),
    ):  # fmt: skip
        assert point(precision=said, notes=notes).request.plan.precision == recipe


def test_ranks_share_sequences_that_are_fewer_than_replicas() -> None:
    """Where a row states tp and pp, and nothing of its other ranks."""
    few = {"tp": 1.0, "pp": 1.0, "global_batch": 16.0, "cp": None}
    plan = point(**few).request.plan
    assert (plan.cp, plan.dp, plan.micro_batches) == (4, 16, 1)
    assert isinstance(made(**few, dp=64.0), Skipped)
    assert point(**{**few, "cp": 8.0}).request.plan.dp == 8


@pytest.mark.parametrize(
    ("accelerator", "gpus"), [("8xH100", 8), ("2x8xH100", 16), ("p5.48xlarge", 8), ("v5p-128", 64)]
)
def test_a_name_that_says_how_many_says_so(accelerator: str, gpus: int) -> None:
    of = {"accelerator": accelerator, "num_gpus": None, "gpus_per_node": None, "tp": None}
    assert point(**of).request.plan.gpus == gpus
    assert point(**{**of, "num_gpus": 128.0}).request.plan.gpus == 128
    assert point(**{**of, "dp": 4.0, "tp": 2.0}).request.plan.gpus == 8


def test_what_is_no_date_is_none() -> None:
    assert point(published="in review").request.plan.era == point(published=None).request.plan.era


def test_nought_is_what_is_not_divided() -> None:
    none = {"pp": 0.0, "vpp": 0.0, "cp": 0.0, "ep": 0.0, "dp": 0.0, "inter_link_gbps": 0.0}
    plan = point(**none).request.plan
    assert (plan.tp, plan.pp, plan.vpp, plan.cp, plan.ep, plan.dp) == (2, 1, 1, 1, 1, 32)


def test_expert_parallelism_of_a_dense_model_is_no_matter() -> None:
    assert point(ep=1.0).request.plan.ep == 1


MIXTURE = {
    **ROW, "model": "ours", "layers": 32.0, "hidden": 4096.0, "heads": 32.0, "kv_heads": 8.0,
    "vocab": 32000.0, "ffn_hidden": 14336.0, "num_experts": 32.0, "top_k": 2.0,
    "expert_ffn_hidden": 3584.0, "params_b": 46.7,
}  # fmt: skip
"""Of Mixtral's size, each of its experts cut in four."""


@pytest.mark.parametrize(("open_", "value"), [("num_experts", 32), ("expert_ffn_hidden", 3584)])
def test_experts_follow_from_the_parameters_stated(open_: str, value: int) -> None:
    assert getattr(model_of({**MIXTURE, open_: None}), open_) == value


def test_a_mixture_of_nobody_knows_how_many_experts_is_no_dense_model() -> None:
    with pytest.raises(InputError, match="num_experts not stated"):
        model_of({**MIXTURE, "num_experts": None, "params_b": None})
    whole = {**MIXTURE, "num_experts": 8.0, "expert_ffn_hidden": None}
    assert model_of(whole).expert_ffn_hidden == 14336  # as wide as its feed-forward, as Mixtral's


def test_a_gated_width_follows_from_the_parameters_stated() -> None:
    """Llama 2 13B's 13,824, to the parameters that papers state."""
    of = {**ROW, "model": "ours", "layers": 40.0, "hidden": 5120.0, "heads": 40.0, "gated": 1.0,
          "vocab": 32000.0, "params_b": 13.0}  # fmt: skip
    assert model_of(of).ffn_hidden == pytest.approx(13824, abs=64)
    with pytest.raises(InputError, match="ffn_hidden not stated"):
        model_of({**of, "params_b": None})


def test_heads_that_follow_divide_among_keys() -> None:
    of = {**ROW, "model": "gpt-x", "layers": 48.0, "hidden": 6144.0, "vocab": 51200.0}
    assert model_of({**of, "gated": 0.0, "kv_heads": 64.0}).heads == 64


def test_dimensions_follow_from_others_where_they_must() -> None:
    """BLOOM's search for a shape: hidden 14400 and 194 billion parameters, nothing else."""
    dims = {"hidden": 14400.0, "ffn_hidden": 57600.0, "vocab": 250880.0, "family": "gpt"}
    found = model_of({**ROW, "model": "bloom-194b", "gated": 0.0, "params_b": 194.0, **dims})
    assert found.heads * found.head_dim == 14400
    assert found.head_dim == 120  # of the divisors the nearest to 128
    assert abs(found.parameters - 194e9) < 0.5 * 12 * 14400**2
    with pytest.raises(InputError, match="layers"):
        model_of({**ROW, "model": "bloom-194b", "gated": 0.0, **dims})


def test_an_unknown_model_needs_its_dimensions() -> None:
    stated = {
        "layers": 10.0,
        "hidden": 1024.0,
        "heads": 16.0,
        "ffn_hidden": 4096.0,
        "vocab": 1000.0,
    }
    gpt = model_of({**ROW, "model": "bloom-x", "gated": 0.0, **stated})
    assert (gpt.norm, gpt.positions, gpt.gated) == ("layernorm", "alibi", False)
    llama = model_of({**ROW, "model": "mystery", "gated": 1.0, **stated})
    assert (llama.norm, llama.positions, llama.gated) == ("rmsnorm", "rope", True)


def test_gpt3_without_vocab_is_megatrons() -> None:
    dims = {"layers": 10.0, "hidden": 1024.0, "heads": 16.0, "ffn_hidden": 4096.0}
    assert (
        model_of({**ROW, "model": "gpt3-x", "family": "gpt", "gated": 0.0, **dims}).vocab == 51200
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "mystery"}, "not stated and not in the catalog"),
        ({"accelerator": math.nan}, "accelerator is not stated"),
        ({"accelerator": "Z900"}, "unknown accelerator"),
        ({"seq_len": math.nan}, "--seq-len"),
        ({"precision": "fp8", "accelerator": "A100-SXM4-80GB"}, "has no fp8 rate"),
    ],
)
def test_a_row_that_is_not_predicted_says_why(changes: dict, reason: str) -> None:
    found = made(**changes)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_throughput_is_converted_where_that_is_exact() -> None:
    tokens = 128 * 8192
    found = point(step_time_s=math.nan, metric="tokens_per_s_per_gpu", value=1000.0)
    assert found.measured == pytest.approx(tokens / 64_000)


def test_a_row_that_contradicts_itself_is_taken_by_its_layout() -> None:
    assert point(num_gpus=100.0, tp=8.0, pp=1.0, dp=4.0).request.plan.gpus == 32


def test_no_row_is_lost() -> None:
    """All are read but one, which states no length of its sequences."""
    table = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    read = [point_of(row, RUN) for row in table.iloc[::13].to_dict("records")]
    names = [one.point_id for one in read if isinstance(one, Point)]
    assert names == list(table["point_id"].iloc[::13])
    (row,) = table[table["point_id"] == "tpurec_r24_a"].to_dict("records")
    assert "--seq-len" in getattr(point_of(row, RUN), "reason", "")


def test_memory_is_read_as_gib_and_the_reserved_before_the_allocated() -> None:
    assert point(memory_gb_per_gpu=40.0).memory == 40.0 * 2**30
    assert point(memory_gb_per_gpu=40.0, memory_reserved_gb=50.0).memory == 50.0 * 2**30
    assert math.isnan(point().memory)


def test_a_row_is_read_with_the_defaults_of_its_time() -> None:
    late, early = (
        point(published=date, framework="megatron-lm").request.plan
        for date in ("2024-05", "2021-04")
    )
    assert (late.attention, early.attention) == ("flash", "unfused")


@pytest.mark.parametrize(
    ("notes", "field", "value"),
    [
        ("no TP/DP comm overlap (non-overlap contract), no recompute", "grad_overlap", False),
        ("no TP/DP comm overlap (non-overlap contract), no recompute", "tp_async_backward", False),
        ("2D+AsyncTP + compile + Float8", "tp_overlap", True),
        ("async TP; bf16; torch.compile", "tp_overlap", True),
        ("EP overlap on, search run; forced-balanced routing", "ep_overlap", True),
        ("kernels: TE + DeepEP; FSDP=8", "dispatch", "once"),
        ("FSDP+compile; selective AC (per-op)", "fused", True),
    ],
)
def test_settings_that_only_notes_state(notes: str, field: str, value: object) -> None:
    model = {"model": "mixtral-8x7b", "framework": "torchtitan"}
    told, untold = (getattr(point(**model, notes=n).request.plan, field) for n in (notes, ""))
    assert told == value
    assert untold != value


def test_a_row_without_compilation_is_not_fused() -> None:
    for framework in ("torchtitan", "fms-fsdp"):
        found = point(framework=framework, notes="SDPA flash v2, without torch.compile")
        assert not found.request.plan.fused


def test_transformer_engines_recipes_over_huggingface_are_huggingfaces() -> None:
    """Their models, sharded and trained by PyTorch: nothing of torchtitan's habits, of which one is
    that it recomputes by operators."""
    row = {"model": "mixtral-8x7b", "framework": "huggingface/transformer-engine"}
    plan = point(**row, dp_sharding="fsdp", recompute=None, tp=1.0, pp=1.0).request.plan
    assert (plan.framework, plan.sharding) == ("huggingface", "fsdp")
    assert plan.recompute in ("none", "full")


def test_the_heads_that_a_row_states_win() -> None:
    """SC '21's 1.7B has 24 heads in the catalog; a row of another shape keeps its own."""
    own = {"model": "gpt-1.7b", "hidden": 2304.0, "heads": 16.0}
    found = model_of({**ROW, **own})
    assert (found.heads, found.kv_heads, found.head_dim) == (16, 16, 144)
    stated = model_of({**ROW, **own, "kv_heads": 4.0})
    assert (stated.heads, stated.kv_heads) == (16, 4)


@pytest.mark.parametrize("name", ["gpt-18b", "bloom-176b", "llama3-8b", "llama3-70b"])
def test_heads_as_the_catalog_states_them_change_nothing(name: str) -> None:
    known = catalog.model(name)
    found = model_of({**ROW, "model": name, "heads": float(known.heads)})
    assert found == model_of({**ROW, "model": name})
    assert (found.kv_heads, found.head_dim) == (known.kv_heads, known.head_dim)


def test_groups_of_the_catalog_stay_where_they_divide_the_row_s_heads() -> None:
    known = catalog.model("llama3-8b")
    assert known.kv_heads == 8
    same = model_of({**ROW, "model": "llama3-8b", "heads": 64.0})
    assert (same.heads, same.kv_heads, same.head_dim) == (64, 8, 64)
    other = model_of({**ROW, "model": "llama3-8b", "hidden": 4080.0, "heads": 60.0})
    assert (other.heads, other.kv_heads) == (60, 60)


def test_heads_share_out_the_width_of_the_row() -> None:
    """BLOOM's runs with 64 heads: as many parameters as with 112."""
    few, many = (model_of({**ROW, "model": "bloom-176b", "heads": h}) for h in (64.0, 112.0))
    assert few.heads * few.head_dim == many.heads * many.head_dim == 14336
    assert few.parameters == many.parameters


def test_a_gpt_s_feed_forward_is_four_times_as_wide_and_said_to_be_assumed() -> None:
    own = {"model": "gpt-odd", "family": "gpt", "layers": 24.0, "hidden": 2048.0, "heads": 16.0}
    found = point(**own)
    assert found.request.model.ffn_hidden == 8192
    assumed = {one.field: one for one in found.request.assumed}
    assert assumed["ffn_hidden"].value == 8192
    assert "4 x hidden" in assumed["ffn_hidden"].rule
    assert "heads" not in assumed
    assert not [a for a in point(**own, ffn_hidden=5632.0).request.assumed if a.field[:3] == "ffn"]
    with pytest.raises(InputError, match="ffn_hidden not stated"):
        model_of({**ROW, **own, "model": "odd", "family": "llama"})


@pytest.mark.parametrize("stated", [1.0, True, "True", 0.0, False, "False"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt-odd"])
def test_tied_embeddings_are_as_the_table_says(name: str, stated: object) -> None:
    own = {"layers": 24.0, "hidden": 2048.0, "heads": 16.0, "ffn_hidden": 8192.0, "vocab": 50257.0}
    row = {**ROW, **own, "model": name, "tied_embeddings": stated}
    assert model_of(row).tied_embeddings is (stated in (1.0, "True"))


def test_what_is_known_of_published_rows_fills_their_empty_cells() -> None:
    row = {"source": "torchtitan_nvfp4", "point_id": "titan_nvfp4_r1_a", "accelerator": math.nan}
    assert amended({**ROW, **row})["accelerator"] == "GB200-186GB"
    assert amended({**ROW, **row, "accelerator": "H100"})["accelerator"] == "H100"
    assert amended({**ROW, **row, "source": "mine"}) == {**ROW, **row, "source": "mine"}
    guess = {"source": "torchao_training", "point_id": "torchao_h100_r1_a"}
    assert amended({**ROW, **guess})["accelerator"] == "H100-SXM5-96GB-HBM2e-500W"


PEAKS = {("torchtune_docs", "mem_82")}
"""Rows of the shared table of peaks (`reference/memory_points.csv`)."""


def test_every_amended_row_is_a_published_one() -> None:
    folder = catalog.data_dir() / "reference"
    known = pd.read_csv(folder / "training.csv", low_memory=False)
    rows = pd.read_csv(folder / "amended.csv")
    pairs = set(zip(known["source"], known["point_id"], strict=True))
    assert set(zip(rows["source"], rows["point_id"], strict=True)) <= pairs | PEAKS
    fields = {"power_limit", "optimizer_bytes", "update_early", "sums_apart", "doubtful"}
    fields |= {"attention"}
    assert set(rows["column"]) <= {*known.columns, *fields}


def test_rows_that_judge_are_in_no_fit() -> None:
    """`unseen.csv` is what `make validate` scores without ever having fitted to it."""
    folder = catalog.data_dir() / "reference"
    fitted, unseen = (
        {
            tuple(row)
            for row in pd.read_csv(folder / name, low_memory=False)[
                ["source", "point_id"]
            ].to_numpy()
        }
        for name in ("training.csv", "unseen.csv")
    )
    assert len(unseen) > 100
    assert not fitted & unseen
    assert not {point for _, point in unseen} & load("default").fitted_points


def test_ranks_of_experts_beside_the_data_parallel_ones_repeat_their_sequences() -> None:
    """4 ranks with data of their own x 4 among which experts are divided are 16 accelerators, each
    with a sequence: as much work as 16 sequences on 16 ranks, of which none has a quarter."""
    experts = {"model": "mixtral-8x7b", "tp": 1.0, "num_gpus": 16.0, "global_batch": 4.0}
    beside = point(**experts, ep=4.0, dp=4.0)
    inside = point(**{**experts, "global_batch": 16.0}, ep=4.0, dp=16.0)
    assert float(beside.request.plan.micro_batches) == 1.0
    for name in ("dp", "ep", "global_batch", "micro_batch"):
        one, other = (getattr(found.request.plan, name) for found in (beside, inside))
        assert one == other


def test_an_accelerator_that_may_draw_less_is_one_with_a_lower_cap() -> None:
    usual, capped, loose = point(), point(power_limit=500.0), point(power_limit=900.0)
    powers = [float(found.request.cluster.accelerator.power) for found in (usual, capped, loose)]
    assert powers == [700.0, 500.0, 700.0]
    assert capped.request.cluster.accelerator.name == usual.request.cluster.accelerator.name


def test_what_a_sources_memory_is_of() -> None:
    """nvidia-smi's figure has all, torch's max_memory_allocated tensors alone, others the cache."""
    known = {"bigscience_bloom_prequel": "device", "kempnerforge_moe": "tensors"}
    for source, of in (*known.items(), ("torchtitan_mxfp8", "allocator")):
        assert point(source=source, memory_gb_per_gpu=40.0).memory_of == of


def test_who_states_no_batch_is_taken_to_have_that_of_others() -> None:
    """The median of published sources' medians of micro-batches per stage, and of rows without."""
    table = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    table = table[table["global_batch"].notna() & table["micro_batch"].notna()]
    degrees = {name: table[name].fillna(1) for name in ("tp", "pp", "cp")}
    ranks = table["num_gpus"] / (degrees["tp"] * degrees["pp"] * degrees["cp"])
    replicas = table["dp"].fillna(ranks)
    rounds = table["global_batch"] / (replicas * table["micro_batch"]) / degrees["pp"]
    piped = degrees["pp"] > 1
    medians = rounds[piped].groupby(table["source"][piped]).median()
    assert medians.median() == ROUNDS
    assert rounds[~piped].median() == ALONE


def test_machines_whose_limit_nobody_states_are_doubtful() -> None:
    """Four rows of torchtitan's page and five of torchao's are of B200s that are called power
    limited; nobody says how far."""
    table = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    own = table[table["source"].isin(["torchtitan_mxfp8", "torchao_training", "torchao_moe"])]
    found = [point_of(row, RUN) for row in own.to_dict("records")]
    names = {one.point_id for one in found if isinstance(one, Point) and one.doubtful}
    assert names == {f"titan_mxfp8_r{i}_a" for i in range(1, 5)} | {
        f"torchao_b200_r{i}_a" for i in range(1, 6)
    }


def test_replicas_that_follow_need_sequences_too() -> None:
    """Of 64 accelerators that tensor parallelism leaves whole, each would have half a sequence of
    a micro-batch of two."""
    found = made(tp=1.0, global_batch=64.0, micro_batch=2.0)
    assert isinstance(found, Skipped)
    assert found.reason.endswith("global batch 64 is less than dp 64 x micro-batch 2")
    assert point(tp=1.0, global_batch=128.0, micro_batch=2.0).request.plan.dp == 64
