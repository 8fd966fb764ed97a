"""The importers, on the foreign files as they are (skipped where those are not beside us)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.sources import aiconfigurator, fgpm, tidy
from calibration.tables.kernel_table import check_kernels, kinds, shapes_of
from predictor import catalog
from predictor.precision import PEAK
from predictor.timing import ideal


def test_message_sizes_are_bytes(shared: Path) -> None:
    """Bus bandwidth of the largest all-reduce on 8 A100: 222 GB/s (bulk/kernels/NOTES.md)."""
    table = aiconfigurator.nccl(shared / "bulk/kernels/aiconfigurator/nccl_perf.parquet")
    own = table[
        (table["accelerator"] == "A100-SXM4-80GB")
        & (table["op"] == "allreduce")
        & (table["num_gpus"] == 8)
    ]
    bus = own["message_bytes"] * 1.75 / own["latency_us"] / 1e3
    assert bus.max() == pytest.approx(222, rel=0.02)


MACHINES = ("h100_sxm", "b200_sxm")


def test_versions_are_one_and_libraries_kept_apart(measured_on: Callable[..., Path]) -> None:
    keys = ["accelerator", "dtype", "framework"]
    """Of a few matrices and batches, with all that was timed of each."""
    gemm = aiconfigurator.gemm(measured_on("gemm_perf", *MACHINES, k=(2048, 4096, 7168)))
    assert len(gemm) > 10_000
    assert not gemm.duplicated([*keys, "m", "n", "k"]).any()
    table = measured_on("generation_attention_perf", *MACHINES, batch_size=(1, 16, 128))
    decode = aiconfigurator.decode(table)
    assert len(decode) > 10_000
    shape = ["batch", "kv_len", "heads", "kv_heads", "head_dim", "kv_dtype", "window"]
    assert not decode.duplicated([*keys, *shape]).any()
    for table in (gemm, decode):
        assert (table["latency_us"] > 0.1).all()
        assert {"sglang", "trtllm", "vllm"} == set(table["framework"])
        assert table["accelerator"].nunique() == len(MACHINES)


def test_products_that_waited_for_the_host_are_left_out(tmp_path: Path) -> None:
    """More rows by the same matrix cannot take 1.4 times less: one could add rows of zeros."""
    path = tmp_path / "gemm_perf.parquet"
    rows = pd.DataFrame({"m": [256, 512, 768, 1024], "latency": [0.02, 0.09, 0.06, 0.05]})
    base = {"device": "NVIDIA H100 80GB HBM3", "n": 8192, "k": 4096, "power": float("nan")}
    every = [
        rows.assign(**base, dir_backend=name, gemm_dtype=dtype)
        for name in ("sglang", "trtllm")
        for dtype in ("bfloat16", "fp8_block")
    ]
    pd.concat(every).to_parquet(path)
    kept = aiconfigurator.gemm(path)
    ours = kept[(kept["framework"] == "sglang") & (kept["dtype"] == "fp8_block")]
    assert sorted(ours["m"]) == [256.0, 768.0, 1024.0]
    assert len(kept) == 15


def test_experts_that_were_mistuned_are_left_out() -> None:
    """Half of the experts cannot take longer than all of them."""
    base = {"accelerator": "H100-SXM5-80GB", "dtype": "bf16", "framework": "f", "kernel": "",
            "m": 64.0, "n": 8192.0, "k": 5120.0, "experts": 16.0, "topk": 1.0}  # fmt: skip
    times = {(1, 1): 942.0, (1, 2): 3582.0, (1, 4): 258.0, (2, 1): 3303.0, (2, 2): 480.0}
    table = pd.DataFrame(
        [{**base, "moe_tp": tp, "moe_ep": ep, "latency_us": t} for (tp, ep), t in times.items()]
    )
    kept = aiconfigurator._tuned(table)
    assert sorted(kept["latency_us"]) == [258.0, 480.0, 942.0]


def test_experts_that_take_much_longer_than_all_their_parts_are_left_out() -> None:
    """Four parts of each of 16 wide experts in 196 us: the whole took 3,822 of them because its
    tuning failed; parts that the cache may hold (of one expert) say nothing."""
    base = {"accelerator": "H100-SXM5-80GB", "dtype": "fp8", "framework": "f", "kernel": "",
            "m": 16.0, "n": 8192.0, "k": 5120.0, "topk": 1.0, "moe_ep": 1}  # fmt: skip
    times = {1: 3822.0, 2: 1954.0, 4: 196.0, 8: 110.0}
    table = pd.DataFrame(
        [
            {**base, "experts": count, "moe_tp": tp, "latency_us": t}
            for tp, t in times.items()
            for count in (16.0, 1.0)
        ]
    )
    kept = aiconfigurator._tuned(table)
    assert sorted(kept.loc[kept["experts"] == 16, "latency_us"]) == [110.0, 196.0]
    assert len(kept[kept["experts"] == 1]) == 4


@pytest.mark.parametrize(
    ("device", "dtype", "stays"),
    [
        ("NVIDIA H100 80GB HBM3", "fp8", False),
        ("NVIDIA H200", "bfloat16", False),
        ("NVIDIA H200", "fp8_block", True),
        ("NVIDIA B200", "fp8", True),
    ],
)
def test_experts_that_no_collector_tuned_as_engines_do_are_left_out(
    tmp_path: Path, device: str, dtype: str, stays: bool
) -> None:
    """FlashInfer's CUTLASS kernels on Hopper, of vLLM and SGLang; TensorRT-LLM's were tuned."""
    kernels = {
        "vllm": "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts",
        "sglang": "sglang_flashinfer_cutlass_moe",
        "trtllm": "moe_torch_flow_cutlass",
    }
    row = {"device": device, "moe_dtype": dtype, "num_tokens": 64, "inter_size": 14336,
           "hidden_size": 4096, "num_experts": 8, "topk": 2, "moe_tp_size": 1, "moe_ep_size": 1,
           "distribution": "balanced", "power": float("nan"), "latency": 1.0,
           "dir_version": "1"}  # fmt: skip
    table = pd.DataFrame(
        [{**row, "dir_backend": name, "kernel_source": one} for name, one in kernels.items()]
    )
    table.to_parquet(path := tmp_path / "moe_perf.parquet")
    kept = set(aiconfigurator.experts(path)["framework"])
    assert kept == (set(kernels) if stays else {"trtllm"})


def test_experts_of_which_a_router_reached_half_are_left_out(tmp_path: Path) -> None:
    """Groups are chosen first of DeepSeek-V3's with vLLM and SGLang, on many ranks, too, and of
    whatever TensorRT-LLM's kernels for few tokens ran; GLM-5 has one group. A former SGLang's ranks
    multiplied what belongs to others."""
    row = {"device": "NVIDIA B200", "moe_dtype": "nvfp4", "num_tokens": 64, "inter_size": 2048,
           "num_experts": 256, "topk": 8, "moe_tp_size": 1, "distribution": "balanced",
           "power": float("nan"), "latency": 1.0}  # fmt: skip
    kernels = {"vllm": "f", "sglang": "g", "trtllm": "moe_torch_flow_min_latency"}

    def kept(version: str) -> set[tuple[str, float, float]]:
        table = pd.DataFrame(
            [
                {**row, "dir_backend": name, "dir_version": version, "kernel_source": one,
                 "hidden_size": k, "moe_ep_size": ep}
                for name, one in kernels.items()
                for k in (6144, 7168)
                for ep in (1, 8)
            ]
        )  # fmt: skip
        table.to_parquet(path := tmp_path / "moe_perf.parquet")
        found = aiconfigurator.experts(path)
        return set(zip(found["framework"], found["k"], found["moe_ep"], strict=True))

    both = {(name, 6144.0, ep) for name in ("vllm", "sglang") for ep in (1.0, 8.0)}
    assert kept("0.5.14") == both
    assert kept("0.5.10") == both - {("sglang", 6144.0, 8.0)}


@pytest.fixture(scope="module")
def experts(measured_on: Callable[..., Path]) -> pd.DataFrame:
    return check_kernels(aiconfigurator.experts(measured_on("moe_perf", *MACHINES)), "moe")


def test_no_experts_are_faster_than_their_matrices_are_read(experts: pd.DataFrame) -> None:
    """Of 64 tokens and more on servers' accelerators, with two matrices where a model has no gate
    (Nemotron-H), whoever's kernels they are."""
    bare = experts["kernel"].str.contains("nongated").to_numpy()
    assert set(experts.loc[bare, "framework"]) == {"vllm", "sglang", "trtllm"}
    for (name, dtype), own in experts[experts["m"] >= 64].groupby(["accelerator", "dtype"]):
        found = ideal(shapes_of(own, "moe_gemm", str(dtype)), catalog.accelerator(str(name)))
        faster = own["latency_us"].to_numpy(float) * 1e-6 < 0.98 * found.time
        assert faster.mean() < 1e-3, (name, dtype)


def test_more_ranks_have_less_to_do(experts: pd.DataFrame) -> None:
    """8,192 tokens of all ranks on servers' accelerators: of eight ranks one takes at most 0.65 of
    one of two, even where the rows of all are put in order, and 0.4 as a median."""
    keys = ["accelerator", "framework", "dtype", "kernel", "experts", "topk", "k", "n"]
    own = experts[(experts["m"] == 8192) & (experts["moe_tp"] == 1)]
    wide = own.groupby([*keys, "moe_ep"])["latency_us"].min().unstack("moe_ep")
    less = (wide[8.0] / wide[2.0]).dropna()
    assert len(less) > 50
    assert less.median() < 0.4
    assert less.max() < 0.8


def test_times_carried_to_other_numbers_of_tokens_are_left_out() -> None:
    """Steps of 16 and 1,024: one time for 1 to 16 is that of 16, one for 1,024 and more that of
    1,024; two measurements of one number stay."""
    same = {"accelerator": "x", "dtype": "fp8", "n": 384.0, "k": 4096.0, "experts": 8.0,
            "topk": 2.0}  # fmt: skip
    times = {1: 9.5, 8: 9.5, 16: 9.5, 32: 11.0, 512: 40.0, 1024: 70.5, 4096: 70.5, 32768: 70.5}
    table = pd.DataFrame([{**same, "m": m, "latency_us": t} for m, t in times.items()])
    again = table[table["m"] == 512].assign(latency_us=41.0)
    other = table[table["m"] == 4096].assign(n=768.0)
    kept = tidy.timed_once(pd.concat([table, again, other], ignore_index=True))
    own = kept[kept["n"] == 384]
    assert sorted(zip(own["m"], own["latency_us"], strict=True)) == [
        (16, 9.5), (32, 11.0), (512, 40.0), (512, 41.0), (1024, 70.5)
    ]  # fmt: skip
    assert kept[kept["n"] == 768]["m"].tolist() == [4096]


def test_no_experts_beat_their_roofline(shared: Path) -> None:
    """What aiter says of MI308X's at 32,768 tokens is seven times its peak."""
    table = tidy.experts(shared / "bulk/kernels/ops.parquet")
    for name, own in table.groupby("accelerator"):
        device = catalog.accelerator(str(name))
        flop = 6.0 * own["m"] * own["topk"] * own["n"] * own["k"]
        rates = {one: device.peak.get(PEAK.get(one, one), np.inf) for one in own["dtype"].unique()}
        rate = own["dtype"].map(rates)
        assert (flop / (own["latency_us"] * 1e-6) < rate).mean() > 0.99, name


def test_experts_and_latent_attention(shared: Path, experts: pd.DataFrame) -> None:
    folder = shared / "bulk/kernels/aiconfigurator"
    assert set(kinds(experts)) == {"moe_gemm"}
    assert {"bf16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4"} <= set(experts["dtype"])
    decode = aiconfigurator.latent_decode(folder / "generation_mla_perf.parquet")
    prefill = aiconfigurator.latent_attention(folder / "context_mla_perf.parquet")
    found = set(kinds(check_kernels(pd.concat([decode, prefill], ignore_index=True), "mla")))
    assert found == {"attention_decode.mla", "attention_decode.mla_kv8", "attention_prefill.mla"}
    gb = decode["batch"] * decode["kv_len"] * 576 * 2 / decode["latency_us"] / 1e3
    b200 = decode[(decode["accelerator"] == "B200-SXM-180GB") & (decode["kv_dtype"] == "bf16")]
    assert gb[b200.index].max() < 8000  # the memory's bandwidth


def test_operators_of_a_training_step_are_there(shared: Path) -> None:
    table = check_kernels(fgpm.operators(shared / "bulk/seeds/fgpm_ops_a100_gh200.csv.gz"), "fgpm")
    found = set(kinds(table))
    assert {
        "gemm", "bmm", "attention_prefill.flash2", "attention_backward.flash2", "norm.fwd",
        "norm.bwd", "softmax.fwd", "softmax.bwd", "elementwise.gelu", "elementwise.add",
        "embedding.fwd", "loss.fwd", "loss.bwd", "optimizer",
    } <= found  # fmt: skip


def test_no_gemm_beats_the_datasheet(shared: Path) -> None:
    table = fgpm.operators(shared / "bulk/seeds/fgpm_ops_a100_gh200.csv.gz")
    own = table[(table["op"] == "gemm") & (table["accelerator"] == "A100-SXM4-80GB")]
    rate = 2 * own["m"] * own["n"] * own["k"] * own["batch"].fillna(1) / own["latency_us"] / 1e6
    assert rate.max() < 312


def test_conversions_move_three_bytes_of_an_element_past_every_cache(shared: Path) -> None:
    """Two are read and one is written; nothing streams faster than the memory does, and kernels of
    today reach between half and all of its rate."""
    table = tidy.conversions(shared / "bulk/kernels/ops.parquet")
    assert (table["message_bytes"] == 3.0 * table["m"] * table["n"]).all()
    assert table["accelerator"].isin(catalog.rows("accelerators")).all()
    for name, own in table.groupby("accelerator"):
        device = catalog.accelerator(str(name))
        assert (own["message_bytes"] > device.l2).all()
        share = own["message_bytes"] / (own["latency_us"] * 1e-6) / device.bandwidth
        assert share.max() < 1.0
        assert share.median() > 0.5


def test_tidy_parts(shared: Path) -> None:
    path = shared / "bulk" / "kernels" / "ops.parquet"
    layouts = tidy.training_gemms(path)["layout"].value_counts()
    assert set(layouts.index) == {"fwd", "dgrad", "wgrad"}
    streams = tidy.streaming(path)
    assert set(streams["accelerator"]) <= set(catalog.rows("accelerators"))
    across = tidy.multi_node(path)
    assert (across["num_nodes"] > 1).all()
    assert across["link_gbs"].notna().all()
