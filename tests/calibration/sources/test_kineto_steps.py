"""Where the time of recorded steps went: hand-made traces, and real ones against their own sums."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from calibration.sources.kineto_calls import Calls
from calibration.sources.kineto_file import READ_AT_ONCE, load
from calibration.sources.kineto_steps import Anatomy, anatomy, class_of
from predictor.errors import InputError
from tests.calibration.conftest import Recorded

Event = dict[str, Any]


def launched(number: int, name: str, call: float, start: float, dur: float, stream: int) -> list:
    """A kernel, and the runtime call of 2 us that launched it at `call`."""
    ids = {"correlation": number, "device": 0, "stream": stream}
    host = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "tid": 1}
    device = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream}
    return [
        {**host, "ts": call, "dur": 2.0, "args": ids},
        {**device, "ts": start, "dur": dur, "args": ids},
    ]


def step(number: int, start: float, dur: float) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1,
            "tid": 1, "ts": start, "dur": dur, "args": {}}  # fmt: skip


def steps_of(folder: Path, events: list[Event], **header: Any) -> Anatomy:
    path = folder / "t.json"
    path.write_text(json.dumps({**header, "traceEvents": events}))
    trace = load(path)
    return anatomy(trace, Calls(trace.events), str(path))


def test_overlap_gaps_and_who_was_waited_for(tmp_path: Path) -> None:
    """0-10 gemm; all-reduce 5-30 beside elementwise 10-20; idle 30-40 since the launch came at 36;
    idle 50-53 though launched at 1."""
    events = [
        step(3, 0.0, 100.0),
        *launched(1, "sm80_gemm", -0.0, 0.0, 10.0, 7),
        *launched(2, "ncclDevKernel_AllReduce", 1.0, 5.0, 25.0, 20),
        *launched(3, "vectorized_elementwise_kernel", 2.0, 10.0, 10.0, 7),
        *launched(4, "sm80_gemm", 36.0, 40.0, 10.0, 7),
        *launched(5, "sm80_gemm", 1.0, 53.0, 7.0, 7),
    ]
    found = steps_of(tmp_path, events)
    micro = 1e-6
    assert found.classes == pytest.approx(
        {"communication": 25 * micro, "gemm": 27 * micro, "elementwise": 10 * micro}
    )
    assert found.kernel_time == pytest.approx(62 * micro)
    assert found.compute == pytest.approx(37 * micro)
    assert (found.communication, found.exposed) == pytest.approx((25 * micro, 10 * micro))
    assert found.together == pytest.approx(0.0)
    assert (found.host_idle, found.other_idle) == pytest.approx((8 * micro, 5 * micro))
    assert found.gaps == 2
    assert found.window == pytest.approx(60 * micro)
    whole = found.compute + found.exposed + found.host_idle + found.other_idle
    assert whole == pytest.approx(found.window)
    assert found.streams == pytest.approx(
        {"device 0 stream 7": 37 * micro, "device 0 stream 20": 25 * micro}
    )


def test_only_what_was_launched_within_the_steps_counts(tmp_path: Path) -> None:
    events = [
        *launched(1, "gemm", 0.0, 3.0, 5.0, 7),
        step(1, 10.0, 10.0),
        step(2, 20.0, 30.0),
        *launched(2, "gemm", 12.0, 15.0, 4.0, 7),
        *launched(3, "gemm", 45.0, 47.0, 8.0, 7),
        *launched(4, "gemm", 55.0, 70.0, 8.0, 7),
    ]
    found = steps_of(tmp_path, events)
    assert found.steps == 2
    assert found.step_time == pytest.approx(20e-6)
    assert found.kernel_time == pytest.approx(6e-6)
    assert found.whole == pytest.approx(25e-6)
    with pytest.raises(InputError, match="within the steps"):
        steps_of(tmp_path, [step(1, 100.0, 5.0), *launched(1, "gemm", 0.0, 3.0, 5.0, 7)])


def call(name: str, start: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> Event:
    """What a host's thread calls."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start,
            "dur": dur, "args": {}}  # fmt: skip


def test_calls_of_a_host_count_without_those_within_them(tmp_path: Path) -> None:
    events = [
        step(1, 0.0, 100.0),
        call("aten::linear", 0.0, 50.0),
        call("aten::addmm", 10.0, 35.0),
        call("aten::gelu", 60.0, 20.0),
        call("gloo:all_reduce", 70.0, 30.0, tid=2, cat="user_annotation"),
    ]
    found = steps_of(tmp_path, events)
    assert found.on_host
    assert found.classes == pytest.approx(
        {"gemm": 50e-6, "elementwise": 20e-6, "communication": 30e-6}
    )
    assert (found.compute, found.exposed) == pytest.approx((70e-6, 20e-6))
    assert found.host_idle == pytest.approx(10e-6)


def test_a_call_that_waits_for_a_collective_does_not_compute(tmp_path: Path) -> None:
    """0-50 a product that holds a wait of 20-45, while the library's thread exchanges at 22-44."""

    events = [
        step(1, 0.0, 60.0),
        call("aten::mm", 0.0, 50.0),
        call("_c10d_functional::wait_tensor", 20.0, 25.0),
        call("gloo:all_reduce", 22.0, 22.0, tid=2, cat="user_annotation"),
    ]
    found = steps_of(tmp_path, events)
    assert found.classes == pytest.approx({"gemm": 25e-6, "communication": 22e-6})
    assert (found.compute, found.exposed) == pytest.approx((25e-6, 25e-6))
    assert found.host_idle == pytest.approx(10e-6)
    assert found.together == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["ampere_sgemm_128x64_tn", "aten::addmm", "aten::linear"], "gemm"),
        (["splitKreduce_kernel", "aten::mm"], "gemm"),
        (["cudnn::bn_fw_tr_1C11_kernel_NCHW", "aten::cudnn_batch_norm"], "norm"),
        (["sm80_xmma_wgrad_implicit_gemm", "aten::convolution_backward"], "convolution"),
        (["multi_tensor_apply_kernel", "aten::_foreach_add_", "Optimizer.step#SGD.step"],
         "optimizer"),
        (["vectorized_elementwise_kernel<4, Fill>", "aten::fill_"], "elementwise"),
        (["Memcpy HtoD (Pinned -> Device)", "aten::copy_"], "transfer"),
        (["flash_fwd_kernel", "aten::_scaled_dot_product_flash_attention"], "attention"),
        (["softmax_warp_forward", "aten::_softmax"], "softmax"),
        (["softmax_warp_forward", "aten::_log_softmax", "aten::cross_entropy_loss"], "loss"),
        (["ncclDevKernel_AllGather"], "communication"),
        (["mystery"], "other"),
    ],
)  # fmt: skip
def test_classes(names: list[str], label: str) -> None:
    assert class_of(names) == label


def test_no_step_is_shorter_than_what_the_device_did_in_it(tmp_path: Path) -> None:
    """The host marks three steps in 30, while the device works 60 on what they launched: it fills
    a queue. A step lasts what the device takes, 20."""
    events = [step(n, 10.0 * n, 10.0) for n in range(3)]
    for n in range(3):
        events += launched(n, "gemm", 10.0 * n + 1.0, 5.0 + 20.0 * n, 20.0, 7)
    found = steps_of(tmp_path, events)
    assert found.compute == pytest.approx(20e-6)
    assert found.step_time == pytest.approx(20e-6)
    assert found.to_dict()["step_times_s"] == pytest.approx([10e-6] * 3)


def test_a_trace_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    """Events that lie across the borders of what is read are read whole."""
    events = []
    for number in range(6000):
        events += launched(
            number, f"gemm {'x' * (number % 97)}", 3.0 * number, 3.0 * number, 2.0, 7
        )
    path = tmp_path / "t.json.gz"
    text = json.dumps({"traceEvents": events, "traceName": "behind", "rank": 12})
    assert len(text) > 2 * READ_AT_ONCE
    path.write_bytes(gzip.compress(text.encode()))
    trace = load(path)
    assert [event["name"] for event in trace.events] == [event["name"] for event in events]
    assert trace.header == {"traceName": "behind", "rank": 12}
    for share in (0.3, 0.9, 0.999):
        path.write_bytes(gzip.compress(text[: int(share * len(text))].encode()))
        with pytest.raises(InputError, match="is no whole JSON file"):
            load(path)
    path.write_text(text.replace('"gemm xx"', '"gemm" xx', 1))
    with pytest.raises(InputError, match="at character"):
        load(path)


TRACES = ("a100_rank0_nccl_metadata", "a100_rank3of8_control",
          "mi250_minitoy_train_ROCm6_2_kineto", "v100_ns_timestamps")  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_totals_of_real_traces_are_their_own(recorded: Recorded, name: str) -> None:
    """Kernel time, busy time and step time against sums over the raw file."""
    every, trace = recorded(name)
    raw = [e for e in every if e.get("ph") == "X"]
    found = anatomy(trace, Calls(trace.events), name)
    device = [e for e in raw if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert found.whole == pytest.approx(sum(e["dur"] for e in device) * 1e-6)
    assert sum(found.streams.values()) == pytest.approx(found.whole)
    marks = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in raw
        if e["name"].startswith("ProfilerStep") and e.get("cat") == "user_annotation"
    )
    assert found.steps == len(marks)
    marked = (marks[-1][1] - marks[0][0]) * 1e-6 / len(marks)
    assert found.step_time == pytest.approx(max(marked, found.window))
    assert found.to_dict()["step_times_s"] == pytest.approx([(b - a) * 1e-6 for a, b in marks])
    runtime = {e["args"]["correlation"]: e["ts"] for e in raw if e.get("cat") == "cuda_runtime"}
    inside = [
        e for e in device
        if any(a <= runtime.get(e["args"]["correlation"], e["ts"]) <= b for a, b in marks)
    ]  # fmt: skip
    assert found.kernel_time == pytest.approx(sum(e["dur"] for e in inside) * 1e-6 / found.steps)
    nccl = sum(e["dur"] for e in inside if e["name"].startswith("nccl"))
    assert found.classes.get("communication", 0.0) == pytest.approx(nccl * 1e-6 / found.steps)
    parts = found.compute + found.exposed + found.host_idle + found.other_idle
    assert parts == pytest.approx(found.window, rel=1e-6)
    assert found.window <= found.step_time * (1 + 1e-12)
    assert found.exposed <= found.communication
    assert found.compute <= found.kernel_time * (1 + 1e-4)  # stamps of 0.25 us
