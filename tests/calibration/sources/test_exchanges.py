"""Whose kernel a row of a collective times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.network.wire import op_of, wire
from calibration.sources.exchanges import CUSTOM_LIMIT, copies
from calibration.tables.implied import implied
from calibration.tables.kernel_table import check_kernels, gaps, shapes_of


def rows(**columns: object) -> pd.DataFrame:
    base = {"accelerator": "H100-SXM5-80GB", "dtype": "bf16", "latency_us": 10.0, "num_gpus": 8.0}
    return implied(check_kernels(pd.DataFrame([{**base, **columns}]), "rows"))


@pytest.mark.parametrize(
    ("kernel", "framework", "op"),
    [
        ("SGLang_CustomAllReduce_graph", "sglang", "allreduce.custom.sglang"),
        ("SGLang_CustomAllReduce_eager", "sglang", "allreduce.custom-eager.sglang"),
        ("vLLM_custom_graph", "vllm", "allreduce.custom.vllm"),
        ("TRTLLM", "tensorrt-llm", "allreduce.custom.trtllm"),
        ("NCCL", "nccl", "allreduce"),
    ],
)
def test_an_engines_all_reduce_is_told_from_nccls_by_its_name(
    kernel: str, framework: str, op: str
) -> None:
    small = rows(op="allreduce", kernel=kernel, framework=framework, message_bytes=2.0**20)
    assert op_of(small).item() == op
    large = rows(op="allreduce", kernel=kernel, framework=framework, message_bytes=2 * CUSTOM_LIMIT)
    assert op_of(large).item() == "allreduce"


@pytest.mark.parametrize(
    ("kernel", "dtype", "op", "size"),
    [
        ("deepep_normal_dispatch", "fp8", "alltoall.deepep_dispatch", 1 + 4 / 128),
        ("deepep_normal_combine", "bf16", "alltoall.deepep_combine", 2),
        ("deepep_ll_dispatch", "fp8", "alltoall.deepep_ll_dispatch", 1 + 4 / 128),
        ("NVLinkTwoSided_alltoall_dispatch", "nvfp4", "alltoall.nvlink_dispatch", 0.5 + 1 / 16),
        ("NVLinkTwoSided_alltoall_combine", "nvfp4", "alltoall.nvlink_combine", 2),
        (
            "NVLinkTwoSided_alltoall_combine_low_precision",
            "nvfp4",
            "alltoall.nvlink_combine",
            0.5 + 1 / 16,
        ),
        ("NVLinkOneSided_alltoall_combine", "nvfp4", "alltoall.one_sided_combine", 2),
    ],
)
def test_an_exchange_sends_every_chosen_experts_copy(
    kernel: str, dtype: str, op: str, size: float
) -> None:
    found = rows(op="alltoall", kernel=kernel, dtype=dtype, m=64.0, k=7168.0, topk=8.0)
    assert op_of(found).item() == op
    assert found["message_bytes"].item() == pytest.approx(64 * 8 * 7168 * size)
    assert gaps(found).item() == ""


def test_copies_for_one_rank_travel_once_except_with_low_latency() -> None:
    sizes = {"op": "alltoall", "m": 64.0, "k": 7168.0, "topk": 8.0, "dtype": "bf16"}
    once = rows(kernel="deepep_normal_combine", **sizes)
    each = rows(kernel="deepep_ll_combine", **sizes)
    assert copies(once).item() == 8
    assert copies(each).item() == 1
    # Of 8 draws among 8 ranks 8 (1 - (7/8)^8) differ.
    shared = (
        wire(once, "alltoall.deepep_combine").ideal / wire(each, "alltoall.deepep_ll_combine").ideal
    )
    assert shared.item() == pytest.approx(1 - (7 / 8) ** 8)


def test_a_domain_of_many_hosts_is_one_node() -> None:
    sizes = {"m": 64.0, "k": 7168.0, "topk": 8.0, "accelerator": "GB200-186GB"}
    kernel = "NVLinkTwoSided_alltoall_combine"
    found = rows(op="alltoall", kernel=kernel, num_nodes=8.0, **{**sizes, "num_gpus": 32.0})
    assert found["link"].item() == "nvlink5"


@pytest.mark.parametrize(
    ("framework", "kernel", "idle"),
    [("vllm", "", 7.0), ("trtllm", "", 0.0), ("", "DeepGEMM grouped decode", 0.0)],
)
def test_who_walks_over_the_rows_of_other_ranks(framework: str, kernel: str, idle: float) -> None:
    sizes = {"m": 1024.0, "n": 2048.0, "k": 7168.0, "experts": 256.0, "topk": 8.0, "moe_ep": 8.0}
    found = rows(op="moe_gemm", dtype="fp8_block", framework=framework, kernel=kernel, **sizes)
    shapes = shapes_of(found, "moe_gemm", "fp8_block")
    assert np.asarray(shapes.idle).item() == idle
    assert shapes.batch.item() == 32  # experts of one rank, all with tokens
    assert shapes.m.item() == 1024 * 8 / 256
