from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from calibration.sources import kineto
from calibration.sources.found import Found, Stated
from calibration.sources.kineto_calls import Calls
from calibration.tables.kernel_table import check_kernels, gaps
from predictor import catalog
from predictor.errors import InputError
from tests.calibration.conftest import Recorded

Cli = Callable[..., tuple[int, str, str]]

DGX = catalog.system("dgx-a100")
STATED = Stated(
    tiers=DGX.tiers,
    per_node=DGX.accelerators_per_node,
    system=(DGX.name, DGX.accelerator.name),
)


class Trace:
    """A trace in the making: operator calls one after another, each with kernels."""

    def __init__(self, linked: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.clock, self.linked = 0.0, linked

    def event(self, cat: str, name: str, dur: float, tid: int = 1, **args: Any) -> None:
        at = {"ph": "X", "cat": cat, "name": name, "ts": self.clock, "dur": dur}
        self.events.append({**at, "pid": 1, "tid": tid, "args": args})

    def call(
        self, name: str, kernels: list[tuple[str, float]], inside: str = "", **inputs: Any
    ) -> None:
        """Times of `kernels` in us; `inside`: an operator call around this one."""
        number = len(self.events)
        if inside:
            self.event("cpu_op", inside, 100.0, **{"External id": -number})
        self.event("cpu_op", name, 80.0, **{"External id": number}, **inputs)
        for kernel, time in kernels:
            self.clock += 1.0
            ids = {"correlation": len(self.events), "External id": number, "device": 0}
            if self.linked:
                self.event("cuda_runtime", "cudaLaunchKernel", 0.5, **ids)
            self.event("kernel", kernel, time, tid=7, **ids)
        self.clock += 200.0

    def read(self, folder: Path, stated: Stated = STATED) -> Found:
        path = folder / "trace.json"
        device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}
        path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": self.events}))
        return kineto.read(path, stated)


def tensors(*shapes: list[int], dtype: str = "c10::BFloat16", **more: Any) -> dict[str, Any]:
    return {"Input Dims": list(shapes), "Input type": [dtype] * len(shapes), **more}


def only(found: Found) -> dict[str, Any]:
    """The one row, with a type in every column."""
    (row,) = check_kernels(found.rows, "trace").to_dict("records")
    return row


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", [[64, 32], [32, 16]], (64, 16, 32, 1)),
        ("aten::addmm", [[16], [64, 32], [32, 16]], (64, 16, 32, 1)),
        ("aten::linear", [[2, 32, 128], [256, 128]], (64, 256, 128, 1)),
        ("aten::bmm", [[8, 64, 32], [8, 32, 16]], (64, 16, 32, 8)),
        ("aten::baddbmm", [[8, 64, 16], [8, 64, 32], [8, 32, 16]], (64, 16, 32, 8)),
        ("aten::_scaled_mm", [[64, 32], [32, 16]], (64, 16, 32, 1)),
    ],
)
@pytest.mark.parametrize("linked", [True, False])
def test_products(tmp_path: Path, name: str, shapes: list, expected: tuple, linked: bool) -> None:
    """Found by the launching call, and by External id where there is none; kernels add up."""
    trace = Trace(linked)
    trace.call(name, [("gemm", 30.0), ("splitKreduce", 2.5)], "aten::matmul", **tensors(*shapes))
    row = only(trace.read(tmp_path))
    assert (row["m"], row["n"], row["k"], row["batch"]) == expected
    assert (row["op"], row["dtype"], row["latency_us"]) == ("gemm", "bf16", 32.5)
    assert row["accelerator"] == "A100-SXM4-80GB"
    assert row["layout"] == ("bmm" if row["batch"] > 1 else "")


@pytest.mark.parametrize(
    ("strides", "kernel", "layout"),
    [
        ([[32, 1], [1, 32]], "nvjet", "fwd"),
        ([[32, 1], [16, 1]], "nvjet", "dgrad"),
        ([[1, 64], [16, 1]], "nvjet", "wgrad"),
        (None, "ampere_sgemm_32x32_sliced1x4_tn", "fwd"),
        (None, "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4", "dgrad"),
        (None, "Cijk_Ailk_Bjlk_SB_Bias_AS", "wgrad"),
        (None, "gemm_kernel", ""),
    ],
)
def test_directions_of_a_linear_layer(
    tmp_path: Path, strides: list | None, kernel: str, layout: str
) -> None:
    more = {"Input Strides": strides} if strides else {}
    trace = Trace()
    trace.call("aten::mm", [(kernel, 3.0)], **tensors([64, 32], [32, 16], **more))
    assert only(trace.read(tmp_path))["layout"] == layout


def test_fp32_on_tensor_cores_is_tf32(tmp_path: Path) -> None:
    for kernel, dtype in (
        ("cutlass_80_tensorop_s1688gemm_64x64", "tf32"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
    ):
        trace = Trace()
        trace.call("aten::mm", [(kernel, 3.0)], **tensors([64, 32], [32, 16], dtype="float"))
        assert only(trace.read(tmp_path))["dtype"] == dtype


ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (0, 4),
    "aten::_scaled_dot_product_flash_attention_backward": (1, 11),
    "aten::_scaled_dot_product_efficient_attention": (0, 6),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, 11),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(tmp_path: Path, name: str) -> None:
    query, causal = ATTENTION[name]
    values = [""] * 16
    values[causal] = "True"
    dims: list[list[int]] = [[] for _ in values]
    dims[query : query + 3] = [[2, 32, 4096, 128], [2, 8, 4096, 128], [2, 8, 4096, 128]]
    inputs = {
        "Input Dims": dims,
        "Input type": ["c10::Half" if dim else "" for dim in dims],
        "Concrete Inputs": values,
    }
    trace = Trace()
    trace.call(name, [("flash_fwd_kernel", 900.0)], **inputs)
    row = only(trace.read(tmp_path))
    assert row["op"] == ("attention_backward" if "backward" in name else "attention_prefill")
    shape = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal", "dtype")
    assert [row[column] for column in shape] == [2, 4096, 4096, 32, 8, 128, 1, "fp16"]
    del inputs["Concrete Inputs"]  # older traces: causal or not is a factor of two
    trace = Trace()
    trace.call(name, [("flash_fwd_kernel", 900.0)], **inputs)
    found = trace.read(tmp_path)
    assert found.rows.empty
    assert sum(found.left_out.values()) == 1


WHOLE = [4096, 1024]


@pytest.mark.parametrize(
    ("name", "shapes", "op", "kernel", "streams"),
    [
        ("aten::native_layer_norm", [WHOLE, [], [1024]], "norm", "layernorm", 2),
        ("aten::native_layer_norm_backward", [WHOLE, WHOLE], "norm", "layernorm_bwd", 3),
        ("aten::_fused_rms_norm", [WHOLE, [], [1024]], "norm", "rmsnorm", 2),
        ("aten::_softmax", [WHOLE], "softmax", "fwd", 2),
        ("aten::_softmax_backward_data", [WHOLE, WHOLE], "softmax", "bwd", 3),
        ("aten::gelu", [WHOLE], "elementwise", "gelu", 2),
        ("aten::gelu_backward", [WHOLE, WHOLE], "elementwise", "gelu_bwd", 3),
        ("aten::silu", [WHOLE], "elementwise", "silu", 2),
        ("aten::mul", [WHOLE, WHOLE], "elementwise", "mul", 3),
        ("aten::add_", [WHOLE, WHOLE], "elementwise", "add", 3),
        ("aten::copy_", [WHOLE, WHOLE], "elementwise", "copy", 2),
        ("aten::native_dropout", [WHOLE], "elementwise", "dropout", 2.5),
    ],
)
def test_traffic_of_streaming_operators(
    tmp_path: Path, name: str, shapes: list, op: str, kernel: str, streams: float
) -> None:
    """Passes over a 16-bit tensor; the dropout mask takes a byte."""
    trace = Trace()
    trace.call(name, [("k", 12.0)], **tensors(*shapes))
    row = only(trace.read(tmp_path))
    assert (row["op"], row["kernel"], row["m"], row["n"]) == (op, kernel, *WHOLE)
    assert row["message_bytes"] == streams * 2 * 4096 * 1024


def test_broadcasts_casts_and_expanded_inputs(tmp_path: Path) -> None:
    def moved(name: str, **inputs: Any) -> float:
        trace = Trace()
        trace.call(name, [("k", 12.0)], **inputs)
        return only(trace.read(tmp_path))["message_bytes"]

    mixed = {"Input Dims": [WHOLE, WHOLE], "Input type": ["c10::BFloat16", "float"]}
    n = 4096 * 1024
    assert moved("aten::add", **tensors(WHOLE, [1024], dtype="float")) == 4 * (2 * n + 1024)
    assert moved("aten::copy_", **mixed) == 6 * n
    assert moved("aten::mul", **mixed) == (2 + 4 + 4) * n
    strides = {"Input Strides": [[0, 0], [1024, 1]]}
    assert moved("aten::mul", **tensors(WHOLE, WHOLE, **strides)) == pytest.approx(2 * (2 * n + 1))
    scalar = {"Input Dims": [WHOLE, []], "Input type": ["float", "Scalar"]}
    assert moved("aten::mul", **scalar) == 8 * n


def test_embedding(tmp_path: Path) -> None:
    inputs = {"Input Dims": [[50304, 64], [2, 128]], "Input type": ["float", "long int"]}
    trace = Trace()
    trace.call("aten::index_select", [("k", 5.0)], "aten::embedding")
    trace.events[0]["args"] |= inputs  # the kernel runs in a part of the operator
    row = only(trace.read(tmp_path))
    assert (row["op"], row["kernel"], row["m"], row["n"]) == ("embedding", "fwd", 256, 64)
    assert row["message_bytes"] == 2 * 4 * 256 * 64
    inputs["Input Dims"] = [[2, 128, 64], [2, 128]]
    trace = Trace()
    values = ["", "", "50304"]
    trace.call(
        "aten::embedding_dense_backward", [("k", 5.0)], **inputs, **{"Concrete Inputs": values}
    )
    assert only(trace.read(tmp_path))["message_bytes"] == 4 * 64 * (3 * 256 + 50304)


NCCL = {
    "Collective name": "allreduce",
    "In msg nelems": 1 << 20,
    "Out msg nelems": 1 << 23,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}


@pytest.mark.parametrize(
    ("name", "op", "elements"),
    [
        ("allreduce", "allreduce", 1 << 20),
        ("_allgather_base", "allgather", 1 << 23),
        ("_reduce_scatter_base", "reducescatter", 1 << 20),
        ("all_to_all", "alltoall", 1 << 20),
        ("broadcast", "broadcast", 1 << 20),
    ],
)
def test_collectives(tmp_path: Path, name: str, op: str, elements: int) -> None:
    """An all-gather is counted by its whole output, the others by their input (SCHEMA.md)."""
    trace = Trace()
    described = NCCL | {"Collective name": name}
    trace.call("record_param_comms", [("ncclDevKernel_X(ncclDevComm*)", 70.0)], **described)
    row = only(trace.read(tmp_path))
    assert (row["op"], row["message_bytes"], row["latency_us"]) == (op, 2 * elements, 70)
    assert (row["num_gpus"], row["num_nodes"], row["link"]) == (8, 1, "nvlink3")


def test_a_group_over_nodes(tmp_path: Path) -> None:
    trace = Trace()
    spread = NCCL | {"Group size": 2, "Process Group Ranks": "[0, 8]"}
    trace.call("record_param_comms", [("ncclDevKernel_AllReduce", 70.0)], **spread)
    row = only(trace.read(tmp_path))
    assert (row["num_gpus"], row["num_nodes"], row["link"]) == (2, 2, "infiniband-hdr")
    row = only(trace.read(tmp_path, Stated()))
    assert pd.isna(row["num_nodes"])
    assert row["link"] == ""


def test_equal_calls_are_one_row(tmp_path: Path) -> None:
    trace = Trace()
    for time in (10.0, 12.0, 11.0, 40.0, 10.5):
        trace.call("aten::mm", [("gemm", time)], **tensors([64, 32], [32, 16]))
    trace.call("aten::mm", [("gemm", 7.0)], **tensors([64, 32], [32, 8]))
    first, second = trace.read(tmp_path).rows.to_dict("records")
    assert (first["latency_us"], first["samples"]) == (11, 5)
    assert (first["latency_p10_us"], first["latency_p90_us"]) == pytest.approx((10.2, 28.8))
    assert (second["latency_us"], second["samples"]) == (7, 1)


def test_what_becomes_no_row_is_counted(tmp_path: Path) -> None:
    trace = Trace()
    trace.call("aten::mm", [("gemm", 5.0)], **tensors([64, 32], [32, 16]))
    trace.call("aten::mm", [("a", 5.0), ("b", 1.0)])
    trace.call("aten::argsort", [("sort", 5.0)], **tensors([64]))
    trace.call("aten::mm", [("gemm", 5.0)], **tensors([0, 32], [32, 16]))
    trace.call("aten::add", [("k", 5.0)], **tensors([8], [8], dtype="c10::complex<float>"))
    trace.call("record_param_comms", [("ncclDevKernel", 5.0)])
    trace.call("record_param_comms", [("ncclDevKernel", 5.0)], **(NCCL | {"Group size": 1}))
    trace.event("kernel", "graph", 5.0, tid=7, correlation=-1, device=0)
    trace.event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 5.0, tid=7, device=0)
    found = trace.read(tmp_path)
    assert len(found.rows) == 1
    assert found.left_out == {
        "shapes were not recorded (record_shapes=True)": 2,
        "operator aten::argsort: no row for it": 1,
        "operator aten::mm: empty or unequal factors": 1,
        "data type 'c10::complex<float>' is not known": 1,
        "collectives whose size was not recorded": 1,
        "collectives of one rank alone": 1,
        "launched by no recorded operator": 1,
        "copies between host and device": 1,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "is no whole JSON file"),
        (gzip.compress(b'{"traceEvents": [', mtime=0)[:-9], "is no whole JSON file"),
        (b"[]", "it has no traceEvents"),
        (b'{"traceEvents": [{"ph": "M"}, {"ph": "X", "name": "a", "ts": 1}]}', "event 1 of"),
        (b'{"traceEvents": []}', "holds neither kernels nor operator calls"),
        (b'{"traceEvents": []} and more', "more follows"),
        (b'{"traceEvents": [{"ph": "X", "name": "a"', "is no whole JSON file"),
        (b'{"traceEvents": [1, 2]}', "event 0 of"),
        (b'{"schemaVersion": 1}', "it has no traceEvents"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": ["kernel"]}]}',
            "event 0 of traceEvents: its cat is a list",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": "kernel",'
            b' "args": {"correlation": [1]}}]}',
            "event 0 of traceEvents: its correlation is a list",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        kineto.read(path, Stated())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_durations_are_microseconds_whatever_is_displayed(recorded: Recorded) -> None:
    """Copies state their bytes and their bandwidth: the two give their time."""
    for name in ("v100_ns_timestamps", "a100_rank0_nccl_metadata"):
        copies = [e for e in recorded(name)[0] if e.get("cat") == "gpu_memset"]
        assert copies
        for event in copies:
            stated = event["args"]["memory bandwidth (GB/s)"]
            assert event["args"]["bytes"] / event["dur"] / 1e3 == pytest.approx(stated, rel=1e-3)


def test_launching_calls_and_external_ids_agree(recorded: Recorded) -> None:
    """Two ways to find the operator of a kernel, on traces that have both."""
    for name in ("v100_ns_timestamps", "a100_rank0_nccl_metadata"):
        events = recorded(name)[1].events
        calls = Calls(events)
        kernels = [event for event in events if event.get("cat") == "kernel"]
        assert len(kernels) > 2000
        for kernel in kernels:
            own = calls.by_external[kernel["args"]["External id"]]
            around = [call for call in calls.around(kernel) if call["cat"] == "cpu_op"]
            assert around[0] is own


def test_real_traces(shared: Path) -> None:
    traces = shared / "bulk" / "traces"
    found = kineto.read(traces / "a100_rank3of8_control.json.gz", Stated())
    table = check_kernels(found.rows, "control")
    table = table[table["op"] != "memcpy"]
    counts = {"elementwise": 200, "gemm": 147, "norm": 10, "alltoall": 22, "allreduce": 3}
    assert Counter(table["op"]) == counts
    assert set(table["accelerator"]) == {"A100-SXM4-40GB"}
    collective = table["op"].isin(["alltoall", "allreduce"])
    assert set(table[collective]["num_gpus"]) == {8}
    table = table[~collective]
    assert (gaps(table) == "").all()
    gemms = table[table["op"] == "gemm"]
    rate = 2 * gemms["m"] * gemms["n"] * gemms["k"] * gemms["batch"] / gemms["latency_us"] / 1e6
    assert (rate < gemms["dtype"].map({"tf32": 156, "fp32": 19.5})).all()
    streams = table[(table["op"] != "gemm") & (table["message_bytes"] > 100e6)]
    bandwidth = streams["message_bytes"] / streams["latency_us"] / 1e3
    assert bandwidth.between(600, 1555).all()

    found = kineto.read(traces / "a100_rank0_nccl_metadata.json.gz", Stated())
    assert Counter(found.rows["op"]) == {"allreduce": 5, "broadcast": 2, "memcpy": 23}
    assert set(found.rows["num_gpus"].dropna()) == {2}
    sizes = found.rows[found.rows["op"] == "allreduce"]["message_bytes"]
    assert sizes.sum() == 4 * 25557032  # the parameters of a ResNet-50

    path = traces / "mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    table = kineto.read(path, Stated()).rows  # 'AMD Radeon Graphics', of 104 units and 64 GB
    assert set(table["accelerator"]) == {"MI210-64GB"}
    gemms = table[table["op"] == "gemm"]
    assert list(gemms["layout"]) == ["fwd", "wgrad"]
    assert list(gemms["latency_us"]) == [pytest.approx(24.48), pytest.approx(12.64)]


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    trace = Trace()
    trace.call("aten::mm", [("gemm", 3.0)], **tensors([64, 32], [32, 16]))
    path = tmp_path / "t.json"
    device = {"id": 0, "name": "AMD Radeon Graphics", "numSms": 7, "totalGlobalMem": 2**30}
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": trace.events}))
    with pytest.raises(InputError, match="'AMD Radeon Graphics' is not known"):
        kineto.read(path, Stated())


def test_the_calls_of_a_host_are_its_kernels(tmp_path: Path) -> None:
    """The outermost known call counts, once; a gloo annotation is the collective itself."""
    trace = Trace()
    trace.event("cpu_op", "aten::linear", 100.0, **tensors([64, 32], [16, 32], dtype="float"))
    trace.clock += 10.0
    trace.event("cpu_op", "aten::addmm", 60.0, **tensors([16], [64, 32], [32, 16], dtype="float"))
    trace.clock += 200.0
    described = tensors([1000], dtype="float")
    trace.event("user_annotation", "gloo:all_reduce", 40.0, tid=2, **described)
    path = tmp_path / "t.json"
    job = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
    path.write_text(json.dumps({**job, "traceEvents": trace.events}))
    with pytest.raises(InputError, match="of a host, which it does not name"):
        kineto.read(path, Stated())
    rows = kineto.read(path, STATED).rows.to_dict("records")
    assert [(row["op"], row["latency_us"]) for row in rows] == [("gemm", 100), ("allreduce", 40)]
    assert (rows[1]["message_bytes"], rows[1]["num_gpus"]) == (4000, 2)


def test_of_calls_of_one_name_the_innermost_states_the_shapes(tmp_path: Path) -> None:
    """A call of DTensor states the shapes of all ranks together, the one within it its own."""
    trace = Trace()
    trace.event("cpu_op", "aten::linear", 60.0, **tensors([64, 32], [16, 32], dtype="float"))
    trace.clock += 1.0
    trace.event("cpu_op", "aten::mm", 50.0, **tensors([64, 32], [32, 16], dtype="float"))
    trace.clock += 1.0
    trace.event("cpu_op", "aten::mm", 40.0, **tensors([64, 32], [32, 8], dtype="float"))
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": trace.events}))
    (row,) = kineto.read(path, STATED).rows.to_dict("records")
    assert (row["n"], row["latency_us"]) == (8, 40)
    trace = Trace()
    outside = tensors([64, 32], [32, 16])
    trace.call("aten::mm", [("gemm", 7.0)], "aten::mm", **tensors([64, 32], [32, 8]))
    trace.events[0]["args"] |= outside
    assert only(trace.read(tmp_path))["n"] == 8


def test_a_copy_within_the_device_states_its_bytes(tmp_path: Path) -> None:
    trace = Trace()
    trace.event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 5.0, tid=7, device=0, bytes=4096)
    row = only(trace.read(tmp_path))
    assert (row["op"], row["message_bytes"], row["latency_us"]) == ("memcpy", 8192, 5)


def test_import_then_validate(cli: Cli, tmp_path: Path) -> None:
    trace = Trace()
    for m in (1024, 4096):
        trace.call("aten::mm", [("gemm", m / 4)], **tensors([m, 4096], [4096, 4096]))
    trace.read(tmp_path)
    out = tmp_path / "kernels.parquet"
    status, text, _ = cli("import", "kineto", tmp_path / "trace.json", "--out", out)
    assert status == 0
    assert "2 rows" in text
    status, text, _ = cli("validate", out)
    assert status == 0
    assert "2 of 2 rows predicted" in text
