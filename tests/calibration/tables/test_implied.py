"""What rows of a kernel table say without stating it."""

from __future__ import annotations

import pandas as pd
import pytest

from calibration.checks.kernel_rows import predicted_rows
from calibration.network.wire import wire, wire_times
from calibration.tables.implied import implied
from calibration.tables.kernel_table import check_kernels, gaps, shapes_of
from predictor import catalog
from predictor.catalog import load
from predictor.timing import collective_time
from predictor.work import Group


def rows(**columns: object) -> pd.DataFrame:
    table = pd.DataFrame({"accelerator": "H100-SXM5-80GB", "latency_us": 10.0, **columns})
    return implied(check_kernels(table, "t"))


@pytest.mark.parametrize(
    ("op", "kernel", "dtype", "each"),
    [
        ("norm", "layernorm", "bf16", 4.0),  # read and written
        ("elementwise", "add", "fp16", 6.0),  # two read, one written
        ("elementwise", "swiglu", "bf16", 6.0),  # per element of the outcome
        ("elementwise", "gelu", "fp32", 8.0),
        ("elementwise", "cast", "bf16->fp8", 3.0),
    ],
)
def test_streams_follow_from_rows_columns_and_type(
    op: str, kernel: str, dtype: str, each: float
) -> None:
    table = rows(op=[op], kernel=kernel, dtype=dtype, m=10.0, n=100.0)
    assert table["message_bytes"].tolist() == [1000.0 * each]
    assert gaps(table).tolist() == [""]


def test_modules_that_run_kernel_by_kernel_move_their_operands_again_and_again() -> None:
    """A Llama norm of transformers: bf16 to fp32 (2 + 4), square (4 + 4), mean (4), product
    (4 + 4), back (4 + 2), product with the weights (2 + 2) bytes per element; its activation reads
    one half and writes it (2 + 2), and multiplies both (2 + 2 + 2). Fused ones read once."""
    names = ["Llama-3.1-8B", "Phi-mini-MoE", "Llama-3.1-8B", "Llama-3.1-8B", ""]
    table = rows(op=["norm", "norm", "norm", "elementwise", "elementwise"],
                 kernel=["ln", "ln", "ln", "act_fn", "act_fn"], dtype="bf16", m=10.0, n=100.0,
                 framework=["transformers", "transformers", "vllm", "transformers", "vllm"],
                 notes=names)  # fmt: skip
    assert table["message_bytes"].tolist() == [36e3, 4e3, 4e3, 10e3, 6e3]
    assert table["kernels"].tolist() == [8.0, 1.0, 1.0, 2.0, 1.0]
    assert table["op"].tolist() == ["elementwise", "norm", "norm", "elementwise", "elementwise"]


def test_several_kernels_of_no_size_take_as_many_launches() -> None:
    table = pd.DataFrame({
        "accelerator": "A100-SXM4-80GB", "op": "norm", "kernel": "ln", "dtype": "bf16", "m": 1.0,
        "n": 128.0, "latency_us": 10.0, "framework": ["transformers", ""], "notes": "llama",
    })  # fmt: skip
    eager, fused = predicted_rows(check_kernels(table, "t"), load("kernels-only"))
    assert 4.0 < eager.predicted / fused.predicted < 12.0


def test_what_is_stated_stays() -> None:
    table = rows(op=["norm"], kernel="ln", dtype="bf16", m=10.0, n=100.0, message_bytes=7.0)
    assert table["message_bytes"].tolist() == [7.0]
    stated = rows(op=["allreduce"], dtype="bf16", num_gpus=8.0, message_bytes=1e6, link="mine",
                  link_gbs=3.0)  # fmt: skip
    assert (stated["link"].tolist(), stated["link_gbs"].tolist()) == (["mine"], [3.0])


def test_a_node_implies_its_links() -> None:
    """Inside one node the scale-up link of the catalog's system; between nodes the outermost."""
    table = rows(op=["allreduce"] * 3, dtype="bf16", num_gpus=[8.0, 8.0, 16.0],
                 num_nodes=[1.0, None, 2.0], message_bytes=1e6)  # fmt: skip
    system = catalog.default_system(catalog.accelerator("H100-SXM5-80GB"), None)
    inner, outer = system.tiers[0], system.tiers[-1]
    assert table["link"].tolist() == [inner.link, inner.link, outer.link]
    assert table["link_gbs"].tolist() == [inner.rate / 1e9, inner.rate / 1e9, outer.rate / 1e9]
    assert table["node_link"].tolist() == ["", "", inner.link]
    assert (gaps(table) == "").all()


PAIRS = {"accelerator": "H100-PCIe-80GB", "dtype": "bf16",
         "notes": "network=h100_pairwise_nvlink, devices_per_node4"}  # fmt: skip


def test_notes_that_name_a_system_imply_its_links() -> None:
    """Two cards have the bridge between them; of four, the two of a bridge carry together through
    the host what leaves it, but for transfers between two cards."""
    table = rows(op=["allreduce", "allreduce", "alltoall"], num_gpus=[2.0, 4.0, 4.0],
                 num_nodes=1.0, message_bytes=1e8, **PAIRS)  # fmt: skip
    assert table["link"].tolist() == ["nvlink4", "pcie5", "pcie5"]
    assert table["link_gbs"].tolist() == [300.0, 126.0, 63.0]
    plain = rows(op=["allreduce"], num_gpus=2.0, message_bytes=1e8, **{**PAIRS, "notes": ""})
    assert plain["link"].tolist() == ["pcie5"]


def test_rows_and_plans_take_the_same_time_between_bridges() -> None:
    kernels = load("kernels-only")
    system = catalog.system("H100-pairwise-NVLink")
    for size in (2.0, 4.0):
        table = rows(op=["allreduce"], num_gpus=size, message_bytes=1e8, **PAIRS)
        model = kernels.link("allreduce", table["link"][0])
        row = wire_times(model, wire(table, "allreduce", kernels))[0]
        plan, _ = collective_time("allreduce", 1e8, Group(size, 1.0), system, kernels)
        assert row == pytest.approx(float(plan), rel=0.05)


def test_fabrics_that_nothing_names_are_doubted() -> None:
    """Clouds join nodes of A100 at a quarter of what DGX have; a named instance is that."""
    open_, named, inside = (
        rows(op=["allreduce"], accelerator="A100-SXM4-80GB", dtype="bf16", num_gpus=8.0 * nodes,
             num_nodes=nodes, message_bytes=1e8, notes=notes)["doubt"][0]
        for nodes, notes in ((2.0, "nccl-tests"), (2.0, "p4de.24xlarge"), (1.0, "nccl-tests"))
    )  # fmt: skip
    assert (named, inside) == (0.0, 0.0)
    assert 0.3 < open_ < 1.5


def test_a_link_of_a_strange_accelerator_stays_open() -> None:
    table = rows(op=["allreduce"], dtype="bf16", num_gpus=8.0, message_bytes=1e6)
    strange = implied(table.assign(accelerator="X1", link="", link_gbs=None))
    assert gaps(strange).str.contains("link is not stated").all()


def test_heads_of_576_are_latents() -> None:
    sizes = {"batch": 4.0, "kv_len": 512.0, "q_len": 512.0, "dtype": "bf16"}
    table = rows(op=["attention_decode", "attention_decode", "attention_prefill"],
                 heads=[128.0, 128.0, 16.0], kv_heads=[1.0, 8.0, 16.0],
                 head_dim=[576.0, 576.0, 192.0], **sizes)  # fmt: skip
    assert table["kernel"].tolist() == ["mla", "", "mla"]


def test_data_types_have_other_names() -> None:
    table = rows(op=["gemm"] * 3, m=8.0, n=8.0, k=8.0,
                 dtype=["fp8-blockscale", "bfloat16/bfloat16", "nvfp4"])  # fmt: skip
    assert table["dtype"].tolist() == ["fp8_block", "bf16", "nvfp4"]


def test_libraries_of_kernels_time_products_without_their_casts() -> None:
    """aiter's tuner and DeepGEMM's harness make the inputs before; engines' layers do not."""
    table = rows(op=["gemm"] * 3, m=8.0, n=8.0, k=8.0, dtype="fp8",
                 framework=["aiter", "", "vLLM 0.12"], kernel=["ck", "DeepGEMM", ""])  # fmt: skip
    assert shapes_of(table, "gemm", "fp8").joined.tolist() == [1.0, 1.0, 0.0]  # type: ignore[union-attr]
