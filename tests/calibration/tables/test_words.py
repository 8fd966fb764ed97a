"""What tables call things is read as what it is, and what says nothing as unstated."""

import pytest

from calibration.tables.words import (
    cached,
    modules_of,
    recomputed,
    sharded,
    stored,
    told_month,
    trained,
    yes,
)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("BF16", "bf16"),
        ("FP8 (E4M3)", "fp8"),
        ("fp8-blockscale", "fp8_block"),
        ("int8", "int8_wo"),
        ("int8 (SmoothQuant)", "sq"),
        ("W8A16", "int8_wo"),
        ("int4 (AWQ)", "int4_wo"),
        ("gptq-int8", "int8_wo"),
        ("int4 (q4f16_1)", "int4_wo"),
        ("int4 (Q4_K_M)", "q4_k"),
        ("Q8_0", "q8_0"),
        ("exl2-4.65bpw", "exl2_4.65"),
        ("4.5 bpw", "exl2_4.65"),
        ("mxfp4", "w4a16_mxfp4"),
        ("NVFP4", "nvfp4"),
        ("mixed", None),
        ("", None),
        ("fp8-w8a8", "fp8"),
        ("w8a8_block_fp8", "fp8_block"),
        ("FP8 (128x128)", "fp8_block"),
        ("INT8-SQ", "sq"),
        ("q0f16", "fp16"),
        ("ggml Q4_0", "int4_wo"),
        ("Q5_0", "q5_k"),
        ("3-bit", "exl2_3"),
        ("IQ2_XXS", "exl2_2.5"),
        ("FP6", "q6_k"),
        ("16-bit", "fp16"),
        ("1.58bit", None),
    ],
)
def test_weights(said: str, name: str | None) -> None:
    assert stored(said) == name


def test_caches_hold_integers_as_they_are() -> None:
    assert [cached(said) for said in ("fp8_e5m2", "INT8", "fp16", "auto")] == [
        "fp8", "int8", "fp16", None,
    ]  # fmt: skip
    assert [cached(said) for said in ("q8_0", "int4", "KV4", "NVFP4", "fp8_e4m3 (block)")] == [
        "int8", "int4", "int4", "nvfp4", "fp8",
    ]  # fmt: skip
    assert cached("strange") == "strange"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("bf16-mixed", "bf16"),
        ("FP8_CS", "fp8"),
        ("fp8 blockwise", "fp8_block"),
        ("MXFP8", "mxfp8"),
        ("float16", "fp16"),
        ("tf32", "tf32"),
        ("FP8-MX", "mxfp8"),
        ("fp8_sc", "fp8_block"),
        ("FP8 rowwise", "fp8_rowwise"),
        ("int8 (AQT)", "int8"),
        ("blockwise FP8", "fp8_block"),
        ("row-wise float8", "fp8_rowwise"),
        ("BF16, int8 optimizer", "bf16"),
        ("amp", None),
    ],
)
def test_recipes_of_training(said: str, name: str | None) -> None:
    assert trained(said) == name


def test_what_is_sharded_and_computed_again() -> None:
    said = ("DDP", "ZeRO-1", "zero_3", "FSDP2", "HSDP", "something", None)
    assert [sharded(one) for one in said] == [
        "none", "zero1", "zero3", "fsdp", "hsdp", "something", None,
    ]  # fmt: skip
    said = ("Full", "block", "off", True, "per_op", "selective", "partial", None)
    assert [recomputed(one) for one in said] == [
        "full", "full", "none", "full", "per_op", "selective", "fit", None,
    ]  # fmt: skip


def test_what_is_called_a_technique_is_read_by_what_is_said_of_it() -> None:
    said = ("AC", "AC: selective", "recompute: none", "activation checkpointing (full)",
            "without recompute", "recompute_granularity=selective", "per op", "remat")  # fmt: skip
    assert [recomputed(one) for one in said] == [
        "full", "selective", "none", "full", "none", "selective", "per_op", "full",
    ]  # fmt: skip
    said = ("DeepSpeed ZeRO3", "ZeRO stage 3", "Stage-1", "2", "0", "PyTorch FSDP", "DDP + ZeRO-1",
            "data parallel", "NO_SHARD", "Fully Sharded Data Parallel")  # fmt: skip
    assert [sharded(one) for one in said] == [
        "zero3", "zero3", "zero1", "zero2", "none", "fsdp", "zero1", "none", "none", "fsdp",
    ]  # fmt: skip
    assert modules_of("minimal_flash") == "layernorm,mlp_act"


def test_remarks_behind_a_word_do_not_hide_it() -> None:
    said = ("HSDP (shard 8)", "FSDP, 64 ranks", "ZeRO-3 offload", "dist_opt", "fully_shard")
    assert [sharded(one) for one in said] == ["hsdp", "fsdp", "zero3", "zero1", "fsdp"]
    said = ("full (block)", "selective (core attention)", "Full/uniform", "no recompute",
            "activation checkpointing", "something else")  # fmt: skip
    assert [recomputed(one) for one in said] == [
        "full", "selective", "full", "none", "full", "something else",
    ]  # fmt: skip
    said = ("mlp, core_attn", "moe_act", "full", "core_attn and more", "", None)
    assert [modules_of(one) for one in said] == [
        "mlp,core_attn", "moe_act", None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "month"),
    [
        ("2024-06", "2024-06"), ("2024-06-15", "2024-06"), ("2024/6", "2024-06"), ("2024", "2024"),
        ("2024/2025", "2024"), ("2025-02 (docs)", "2025-02"), ("June 2024", "2024-06"),
        ("Sept. 2023", "2023-09"), ("2024-13", "2024"), ("soon", "soon"), ("", None), (None, None),
        ("Q3 2024", "2024"), ("arXiv 2204.02311", "2022-04"), ("20240615", "2024-06"),
        ("MLPerf v4.0 (June 2024)", "2024-06"),
    ],
)  # fmt: skip
def test_months(said: str | None, month: str | None) -> None:
    assert told_month(said) == month


def test_truths() -> None:
    said = (1, 0, 1.0, "0", "True", "no", True, None)
    assert [yes(one) for one in said] == [True, False, True, False, True, False, True, None]
    said = ("Y", "enabled", "\u2713", "N", "disabled", "8", "with tp")
    assert [yes(one) for one in said] == [True, True, True, False, False, True, None]
