"""Logs and reports in their true forms: what is read of each, and what broken parts cost."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import reckon
from calibration.sources.reading import read_table
from calibration.tables.runs import Point, point_of
from predictor.errors import InputError
from predictor.timing import RunParameters
from reckon.launch.dimensions import dimensions
from reckon.logs import FORMATS, Bench, Follower, Log, figures, read_log
from reckon.logs.reading import lines, opened
from reckon.logs.rows import Given
from reckon.logs.steps import warm
from reckon.verbs.runs import read_one
from reckon.verbs.watching import watch
from tests.conftest import ROOT

Cli = Callable[..., tuple[int, str, str]]
FIXTURES = Path(__file__).parent / "fixtures"

TRAINING: dict[str, tuple[str, float, dict[str, Any]]] = {
    # Of 12 steps the first three are of warming up; the fifth of nine in order is 8922.3 ms.
    "megatron.log": ("megatron", 8.9223, {
        "model": "llama3-70b", "num_gpus": 128, "tp": 8, "pp": 4, "vpp": 4, "micro_batch": 1,
        "global_batch": 128, "seq_len": 8192, "dp_sharding": "zero1", "recompute": "selective",
        "sequence_parallel": 1, "memory_reserved_gb": 60.0, "stalls": 1, "published": "2025-03"}),
    # Seconds instead of milliseconds (BLOOM's fork); 105.21 and on by .01, the middle of nine.
    "megatron_seconds.log": ("megatron", 105.28, {"global_batch": 2048}),
    "primus.log": ("megatron", 5.6203, {"global_batch": 128}),
    # 77.309e9 bytes are 72 GiB, those of the first stage after its second step.
    "bridge.log": ("megatron-bridge", 3.155, {"framework": "megatron-bridge",
                                              "memory_reserved_gb": 77.309e9 / 2**30,
                                              "memory_gb_per_gpu": 72.478e9 / 2**30}),
    "nemo.log": ("nemo", 2.480, {"num_gpus": 16, "tp": 4, "global_batch": 32, "seq_len": 4096,
                                 "layers": 32, "hidden": 4096, "ffn_hidden": 11008}),
    "nemo_bar.log": ("nemo", 3.136, {"global_batch": 256}),
    # 8 sequences of 8,192 tokens on 8 devices of 5,768 tokens/s
    "torchtitan.log": ("torchtitan", 8192 / 5768, {
        "model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "num_gpus": 8, "dp_sharding": "fsdp",
        "seq_len": 8192, "global_batch": 8, "fused": 1, "memory_gb_per_gpu": 42.1}),
    "maxtext.log": ("maxtext", 8.2995, {"model": "llama3-8b", "num_gpus": 64, "seq_len": 8192,
                                        "global_batch": 256, "recompute": "full"}),
    "nanotron.log": ("nanotron", 5.22, {"model": "llama3-8b", "num_gpus": 8, "tp": 2, "dp": 4,
                                        "global_batch": 4 * 2 * 8, "dp_sharding": "zero1",
                                        "sequence_parallel": 1}),
    # Batch in tokens (2025): 262K over 4,096 are 64 sequences, as the configuration says.
    "nanotron_tokens.log": ("nanotron", 5.22, {"global_batch": 4 * 2 * 8, "seq_len": 4096}),
    # Six seconds a step; 25 of evaluation between and 31 of the first do not count.
    "trainer_bar.log": ("trainer-bar", 6.0, {"framework": "huggingface"}),
    # 64 samples a step, at 25.655 a second in the middle
    "deepspeed.log": ("deepspeed", 64 / 25.655, {"num_gpus": 8, "global_batch": 64,
                                                "micro_batch": 2,
                                                "dp_sharding": "zero3",
                                                "memory_gb_per_gpu": 38.49}),
    "llm-foundry.log": ("llm-foundry", 1024 / 256.65, {"num_gpus": 64, "global_batch": 1024,
                                                       "seq_len": 2048, "micro_batch": 8}),
    # 80 samples in 15.2 s, 8 a step
    "mllog.log": ("mllog", 15.2 * 8 / 80, {"global_batch": 8, "seq_len": 8192}),
    # 412.55 s for 50 steps
    "trainer_state.json": ("trainer-state", 412.55 / 50, {"global_batch": 64, "micro_batch": 4}),
    # 432.7067 s of .358 steps a second are 155 steps of 11.555 / .358 sequences.
    "all_results.json": ("trainer-state", 432.7067 / 155, {"global_batch": 32}),
    # 16 min 8.44 s for 310 steps
    "trainer_metrics.txt": ("trainer-state", 968.44 / 310, {"global_batch": 16, "micro_batch": 2}),
    # Six seconds a step; 40 of an evaluation and 45 before the first step do not count.
    "trainer_log.jsonl": ("trainer-log", 6.0, {"framework": "huggingface",
                                               "memory_reserved_gb": 52.25}),
    "unsloth.log": ("trainer-bar", 4.0, {"accelerator": "A100-SXM4-80GB", "num_gpus": 1,
                                         "global_batch": 16, "micro_batch": 4, "trained": "lora"}),
    "axolotl.log": ("trainer-bar", 5.0, {"memory_reserved_gb": 35.25, "memory_gb_per_gpu": 30.5}),
    # The sixth of seven in order, of ten every tenth is told; the one behind an evaluation is not.
    "nanogpt.log": ("nanogpt", 0.269, {"framework": "pytorch"}),
    "wandb_history.csv": ("wandb", 8.3, {"framework": "maxtext"}),
    "wandb_chart.csv": ("wandb", 2.505, {}),
}  # fmt: skip
"""Form, time of a step [s] and cells of the row, by hand from the fixture."""

SERVING: dict[str, tuple[str, dict[str, float], dict[str, Any]]] = {
    "vllm_bench.json": ("vllm-bench", {"ttft_ms": 402.1, "tpot_ms": 74.3,
                                       "output_tokens_per_s": 813.9, "requests_per_s": 3.179},
                        {"model": "llama3.1-70b", "tp": 8, "concurrency": 64, "input_len": 1024,
                         "output_len": 256, "accelerator": "H100-SXM5-80GB"}),
    "sglang_bench.jsonl": ("sglang-bench", {"ttft_ms": 120.3, "tpot_ms": 16.0,
                                            "e2e_latency_s": 4.2103, "output_tokens_per_s": 958.8,
                                            "requests_per_s": 3.745},
                           {"request_rate": 4, "input_len": 1024, "output_len": 256}),
    "genai_perf.json": ("genai-perf", {"ttft_ms": 310.5, "tpot_ms": 28.6, "e2e_latency_s": 7.6,
                                       "output_tokens_per_s": 537.6, "requests_per_s": 2.1},
                        {"model": "llama3-8b", "concurrency": 16, "input_len": 1024}),
    "aiperf.json": ("aiperf", {"ttft_ms": 310.5, "tpot_ms": 28.6, "e2e_latency_s": 7.6,
                               "output_tokens_per_s": 537.6, "requests_per_s": 2.1},
                    {"model": "llama3-8b", "concurrency": 16, "output_len": 256}),
    "llmperf_summary.json": ("llmperf", {"ttft_ms": 215.0, "tpot_ms": 21.5, "e2e_latency_s": 3.42,
                                         "output_tokens_per_s": 352.1, "requests_per_s": 2.36},
                             {"model": "llama3-8b", "concurrency": 8, "input_len": 551.2}),
    "trtllm_bench.json": ("trtllm-bench", {"ttft_ms": 210.4, "tpot_ms": 11.67,
                                           "e2e_latency_s": 24.1002,
                                           "output_tokens_per_s": 21299.2, "requests_per_s": 10.4},
                          {"model": "llama3.1-8b", "tp": 2, "num_gpus": 2, "concurrency": 251,
                           "weights_precision": "fp8", "kv_precision": "fp8"}),
    "inferencex.json": ("inferencex", {"ttft_ms": 410.0, "tpot_ms": 21.7, "e2e_latency_s": 22.6,
                                       "output_tokens_per_s": 90.05 * 8},
                        {"model": "deepseek-r1", "accelerator": "H200-SXM-141GB", "tp": 8,
                         "concurrency": 16, "framework": "sglang"}),
}  # fmt: skip
"""Form, metrics and cells, by hand from the fixture."""


def test_reports_that_were_copied_from_a_terminal() -> None:
    """The lines of the client's table, with the arguments above it, say what its file does."""
    (vllm,) = _benches("vllm_printed.log")
    assert vllm.form == "vllm-bench"
    assert vllm.values == pytest.approx(
        {"ttft_ms": 220.98, "tpot_ms": 14.82, "output_tokens_per_s": 651.95, "requests_per_s": 0.66}
    )
    assert not vllm.median
    assert vllm.stated["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (vllm.stated["concurrency"], vllm.stated["input_len"]) == (10, 2048)
    assert vllm.stated["output_len"] == pytest.approx(98734 / 100)
    (sglang,) = _benches("sglang_printed.log")
    assert (sglang.form, sglang.stated["framework"]) == ("sglang-bench", "sglang")
    assert sglang.values["e2e_latency_s"] == pytest.approx(12.64647)
    assert sglang.values["tpot_ms"] == pytest.approx(24.1)
    assert not sglang.median, "the mean time between tokens is a mean"
    assert (sglang.stated["concurrency"], sglang.stated["output_len"]) == (16, 512)


def test_several_reports_of_one_terminal_and_those_without_their_head(tmp_path: Path) -> None:
    text = (FIXTURES / "vllm_printed.log").read_text(encoding="utf-8")
    bare = text[text.index("Successful requests:") :].replace("14.82", "15.5")
    quoted = text.replace("220.98", "1,220.98").replace("  10  ", "  not set  ")
    path = tmp_path / "sweep.txt"
    path.write_text(text + "\nnoise: 12\n" + bare + quoted + "TPOT (ms): [TODO]\n", "utf-8")
    found = read_log(path)
    assert isinstance(found, list)
    assert [one.values["tpot_ms"] for one in found] == [14.82, 15.5, 14.82]
    assert found[2].values["ttft_ms"] == pytest.approx(1220.98)
    path.write_text("Successful requests: [TODO]\nMean TTFT (ms): [TODO]\n", "utf-8")
    with pytest.raises(InputError, match="no step and no report"):
        read_log(path)


def test_the_summary_that_a_trainer_prints(tmp_path: Path) -> None:
    """264 steps in 1,575 s, told by the bar that is the run's; without bars by the rate, which is
    rounded to three digits (0.168 +- 0.0005), to a whole number of steps."""
    path = FIXTURES / "trainer_printed.log"
    found = read_log(path)
    assert isinstance(found, Log)
    assert (found.form, found.framework, found.planned) == ("trainer-state", "huggingface", 264)
    assert found.steps[-1].values["seconds"] == pytest.approx(1575 / 264)
    assert found.stated["global_batch"] == 8
    told = [one for one in path.read_text(encoding="utf-8").splitlines() if "%|" not in one]
    bare = tmp_path / "bare.log"
    bare.write_text("\n".join(told), encoding="utf-8")
    found = read_log(bare)
    assert isinstance(found, Log)
    assert found.steps[-1].values["seconds"] == pytest.approx(
        1575 / 264, rel=0.0005 / 0.168 + 0.5 / 264
    )


def _benches(name: str) -> list[Bench]:
    found = read_log(FIXTURES / name)
    assert isinstance(found, list)
    return found


def test_every_form_has_a_fixture_and_a_line_in_the_guide() -> None:
    read = {form for form, *_ in (*TRAINING.values(), *SERVING.values())} | {
        "tensorboard", "torchtune"
    }  # fmt: skip
    assert read == {*FORMATS, "aiperf"}
    guide = (ROOT / "docs" / "guides" / "own-runs.md").read_text(encoding="utf-8")
    assert all(f"`{form}`" in guide for form in read)


@pytest.mark.parametrize("name", TRAINING)
def test_training_logs(name: str) -> None:
    form, seconds, cells = TRAINING[name]
    found = read_log(FIXTURES / name)
    assert isinstance(found, Log)
    assert found.form == form
    (row,) = read_one(FIXTURES / name, Given({})).rows
    assert row["metric"] == "step_time_s"
    assert row["step_time_s"] == pytest.approx(seconds, rel=1e-6)
    assert {key: row.get(key) for key in cells} == pytest.approx(cells)


@pytest.mark.parametrize("name", SERVING)
def test_reports_of_serving(name: str) -> None:
    form, metrics, cells = SERVING[name]
    found = read_log(FIXTURES / name)
    assert isinstance(found, list)
    assert all(isinstance(one, Bench) and one.form == form for one in found)
    rows = read_one(FIXTURES / name, Given({})).rows[: len(metrics)]
    assert {row["metric"]: row["value"] for row in rows} == pytest.approx(metrics)
    assert {key: rows[0].get(key) for key in cells} == pytest.approx(cells)


def _field(number: int, kind: int, content: bytes) -> bytes:
    size = bytes([len(content)]) if kind == 2 else b""
    return bytes([number << 3 | kind]) + size + content


def _event(step: int, tag: str, value: float, tensor: bool) -> bytes:
    """An event as `tensorflow.Event` with one scalar, in a record."""
    plain = _field(2, 5, struct.pack("<f", value))
    dense = _field(8, 2, _field(1, 0, b"\x01") + _field(5, 2, struct.pack("<f", value)))
    scalar = _field(1, 2, tag.encode()) + (dense if tensor else plain)
    data = (
        _field(1, 1, struct.pack("<d", 1.7e9 + step))
        + _field(2, 0, bytes([step]))
        + _field(5, 2, _field(1, 2, scalar))
    )
    return struct.pack("<Q", len(data)) + b"crc1" + data + b"crc2"


@pytest.mark.parametrize("tensor", [False, True])
def test_event_files_of_tensorboard(tmp_path: Path, tensor: bool) -> None:
    records = [_event(i, "train_step_timing in s", 2.0 + i / 100, tensor) for i in range(1, 9)]
    broken = struct.pack("<Q", 3) + b"crc1" + b"\x2a\xff\x01" + b"crc2"
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"".join([records[0], broken, *records[1:], records[0][:20]]))
    found = read_log(path)
    assert isinstance(found, Log)
    assert (found.form, found.framework, found.broken) == ("tensorboard", "nemo", 1)
    assert [step.number for step in found.steps] == list(range(1, 9))
    assert found.steps[3].get("seconds") == pytest.approx(2.04)


def test_a_row_is_the_run_that_its_log_tells() -> None:
    given = Given({"accelerator": "H100-SXM5-80GB"})
    (row,) = read_one(FIXTURES / "megatron.log", given).rows
    point = point_of(row, RunParameters())
    assert isinstance(point, Point)
    plan, model = point.request.plan, point.request.model
    assert point.measured == pytest.approx(8.9223)
    assert (plan.gpus, plan.tp, plan.pp, plan.vpp, plan.dp) == (128, 8, 4, 4, 4)
    assert (plan.sharding, plan.sequence_parallel, plan.recompute) == ("zero1", True, "selective")
    assert (model.layers, model.hidden, model.kv_heads) == (80, 8192, 8)


def test_a_model_of_no_catalog_keeps_its_dimensions() -> None:
    given = Given({"accelerator": "H100-SXM5-80GB"})
    (row,) = read_one(FIXTURES / "nemo.log", given).rows
    point = point_of(row, RunParameters())
    assert isinstance(point, Point)
    found = dimensions(point.request.model)
    assert (found["layers"], found["hidden"], found["gated"]) == (32, 4096, True)


@pytest.mark.parametrize("name", [n for n in TRAINING if n.endswith(".log")])
def test_lines_as_they_come_are_the_file(name: str, tmp_path: Path) -> None:
    with opened(FIXTURES / name) as stream:
        follower = Follower()
        for line in lines(stream):
            follower.feed(line)
    whole = read_log(FIXTURES / name)
    assert isinstance(whole, Log)
    assert follower.log().steps == whole.steps
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress((FIXTURES / name).read_bytes()))
    again = read_log(packed)
    assert isinstance(again, Log)
    assert again.steps == whole.steps


@pytest.mark.parametrize("name", [n for n in TRAINING if n.endswith(".log")])
def test_broken_lines_cost_only_themselves(name: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_bytes()
    whole = read_log(FIXTURES / name)
    assert isinstance(whole, Log)
    rows = text.replace(b"\r", b"\n").split(b"\n")
    noise = b"\xff\xfe\x00 garbage iteration elapsed time per iteration (ms): x tps: --"
    path = tmp_path / name
    path.write_bytes(b"\n".join(part for row in rows for part in (row, noise if row else b"")))
    if name in ("torchtitan.log", "deepspeed.log", "nemo.log"):  # noise inside their dumps
        path.write_bytes(noise + b"\n" + text + noise)
    found = read_log(path, whole.form)
    assert isinstance(found, Log)
    assert [s.get("seconds") for s in found.steps] == pytest.approx(
        [s.get("seconds") for s in whole.steps], nan_ok=True
    )
    path.write_bytes(text[: int(len(text) * 0.97)])
    cut = read_log(path)
    assert isinstance(cut, Log)
    assert {s.number for s in cut.steps} <= {s.number for s in whole.steps}


def test_tokens_of_the_loss_are_told_as_such() -> None:
    """torchtune: 7,500.75 tokens/s of each are 8 sequences of 4,096 on two in so many seconds."""
    given = Given({"gpus": 2, "global_batch": 8, "seq_len": 4096})
    read = read_one(FIXTURES / "torchtune.log", given)
    (row,) = read.rows
    assert row["source_title"] == "a log of torchtune"
    assert row["step_time_s"] == pytest.approx(8 * 4096 / 2 / 7500.75)
    assert (row["memory_gb_per_gpu"], row["memory_reserved_gb"]) == (41.25, 47.046875)
    assert any("tokens of the loss" in note for note in read.notes)


def test_nanogpt_tells_the_tokens_of_a_step() -> None:
    (row,) = read_one(FIXTURES / "nanogpt.log", Given({"seq_len": 1024})).rows
    assert row["global_batch"] == 491_520 / 1024


@pytest.mark.parametrize("rate", ["0.003", "0.0"])
def test_a_summary_whose_rate_has_too_few_digits(tmp_path: Path, rate: str) -> None:
    """Ten hours at .003 steps a second are 90 to 126 steps: the time of one is not known to 17 %,
    but 1.58 sequences a second are, and of 512 a step takes 324 s."""
    path = tmp_path / "train_results.json"
    path.write_text(
        '{"train_runtime": 36000.0, "train_samples_per_second": 1.58,'
        f' "train_steps_per_second": {rate}, "epoch": 1.0}}', "utf-8"
    )  # fmt: skip
    with pytest.raises(InputError, match="global_batch="):
        reckon.read_runs(path)
    found = reckon.read_runs(path, {"global_batch": 512})
    assert found["value"][0] == pytest.approx(512 / 1.58)


def test_a_bar_without_room_is_one(tmp_path: Path) -> None:
    """Where tqdm has no width it writes no bar (notebooks whose output was kept)."""
    path = tmp_path / "run.log"
    steps = [f"{n}% {n}/100 [0{4 * n // 60}:{4 * n % 60:02d}<06:00,  4.00s/it]" for n in range(40)]
    path.write_text("\n".join([*steps, "{'loss': 1.0}"]), "utf-8")
    found = read_log(path)
    assert isinstance(found, Log)
    assert (found.form, found.planned) == ("trainer-bar", 100)
    assert found.steps[-1].get("seconds") == pytest.approx(4.0)


def test_the_last_step_is_known_where_it_is_told() -> None:
    """NeMo numbers steps from 0 and tells the last; its first releases counted from 1 beside it."""
    for name, last in (("nemo.log", 99), ("trainer_log.jsonl", 60), ("megatron.log", 500)):
        found = read_log(FIXTURES / name)
        assert isinstance(found, Log)
        assert found.planned == last
    follower = Follower()
    follower.feed(
        "Training epoch 0, iteration 1/100 | global_step: 0 | train_step_timing in s: 2.5"
    )
    assert follower.planned == 99


BOUND = {"mean_ttft_ms": 402.1, "mean_tpot_ms": 58.6, "total_input_tokens": 1024_000,
         "total_output_tokens": 256_000, "completed": 1000, "request_throughput": 8.3,
         "output_throughput": 2124.8, "max_concurrency": 128, "request_rate": 10.0}  # fmt: skip
"""A request is in flight for 15.3 s: 10 a second would be 153 at once."""


@pytest.mark.parametrize(("rate", "bound"), [(10.0, True), (8.0, False), ("inf", True)])
def test_what_holds_back_arrivals_is_their_load(tmp_path: Path, rate: Any, bound: bool) -> None:
    """Of a rate and a bound on requests at once, that counts which binds, whatever client says
    so: vLLM's, SGLang's and aiperf."""
    vllm = {**BOUND, "request_rate": rate}
    sglang = {**vllm, "mean_e2e_latency_ms": 15_345.0}
    parts = {"time_to_first_token": 402.1, "inter_token_latency": 58.6, "request_latency": 15_345.0}
    aiperf = {
        **{name: {"unit": "ms", "avg": value} for name, value in parts.items()},
        "output_sequence_length": {"unit": "tokens", "avg": 256.0},
        "input_config": {"loadgen": {"concurrency": 128, "request_rate": rate}},
    }
    for at, report in enumerate((vllm, sglang, aiperf)):
        path = tmp_path / f"{at}.json"
        path.write_text(json.dumps(report), "utf-8")
        (one,) = read_log(path)  # type: ignore[misc]
        assert isinstance(one, Bench)
        load = {"concurrency": 128, "batch": 128} if bound else {"request_rate": 8.0}
        assert {key: one.stated[key] for key in load} == load
        assert ("request_rate" in one.stated) is not bound


def test_a_trainer_s_log_ends_with_its_last_step(tmp_path: Path) -> None:
    """The last step comes 18 s after the one before it, too soon to be timed by whole seconds."""
    path = tmp_path / "trainer_log.jsonl"
    rows = [
        {"current_steps": n, "total_steps": 43, "epoch": n / 43, "elapsed_time": f"0:0{n // 10}:00"}
        for n in (10, 20, 30, 40)
    ]
    last = {"current_steps": 43, "total_steps": 43, "epoch": 1.0, "elapsed_time": "0:04:18"}
    path.write_text("\n".join(map(json.dumps, [*rows, last])) + "\n", "utf-8")

    def sleep(_: float) -> None:
        raise AssertionError("it is not known that the log has ended")

    *_, end = watch(path, sleep=sleep)
    assert (end["median_s"], end["steps"], end["event"]) == (6.0, 43.0, "end")


def test_figures_are_those_of_steps_that_count() -> None:
    assert [warm(n) for n in (1, 2, 3, 5, 20, 100)] == [0, 0, 1, 3, 3, 10]
    found = figures([1.0, 1.0, 1.0, 2.0])
    assert (found.median, found.stalls, found.steps) == (1.0, 1, 4)
    rates = figures([1.0, 1.0, 1.0, 0.5], inverse=True)
    assert rates.stalls == 1


def test_the_verb_writes_what_validate_reads(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    logs = [FIXTURES / "megatron.log", FIXTURES / "maxtext.log"]
    status, text, err = cli("import", "runs", *logs, "--out", out, "--system", "dgx-h100",
                            "--set", "recompute=none", "--json", "-")  # fmt: skip
    assert status == 0, err
    assert json.loads(text)["rows"] == 2
    assert set(read_table(out)["recompute"]) == {"none"}
    status, text, _ = cli("validate", out)
    assert status == 0
    assert "2 of 2 rows predicted" in text


def test_what_a_log_does_not_say_is_named(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "m.csv"
    status, _, err = cli("import", "runs", FIXTURES / "bridge.log", "--out", out)
    assert status == 0
    assert "does not say model (--model), accelerator" in err
    line = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 4096"
    found = reckon.read_runs(FIXTURES / "bridge.log", {"gpus": 16}, launch=("megatron", line))
    assert (found["tp"][0], found["seq_len"][0], found["num_gpus"][0]) == (2, 4096, 16)


@pytest.mark.parametrize(
    ("text", "told"),
    [("nothing here\n", "no step"), ("", "no step"), ('{"a": 1}', "no step"),
     ("iteration 1/ 2 | lm loss: 1.0 | elapsed time per iteration (ms): | x", "neither")],
)  # fmt: skip
def test_files_that_are_no_logs_are_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        reckon.read_runs(path)
    with pytest.raises(InputError, match="no such file"):
        reckon.read_runs(tmp_path / "absent.log")


def test_training_and_serving_do_not_mix() -> None:
    with pytest.raises(InputError, match="import them apart"):
        reckon.read_runs([FIXTURES / "megatron.log", FIXTURES / "vllm_bench.json"])
    two = reckon.read_runs([FIXTURES / "nemo.log"] * 2)
    assert isinstance(two, pd.DataFrame)
    assert two["point_id"].is_unique


def test_a_number_that_is_none_is_refused_before_the_table_is_written(
    cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "mine.csv"
    status, _, err = cli("import", "runs", FIXTURES / "bridge.log", "--out", out, "--system",
                         "dgx-h100", "--set", "seq_len=abc")  # fmt: skip
    assert status == 2
    assert "seq_len must be a number from 0 up, got 'abc'" in err
    assert not out.exists()
