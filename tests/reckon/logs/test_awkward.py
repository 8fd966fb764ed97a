"""Logs as they come: resumed, of several jobs, of batches that grow, of other encodings, of users
who say otherwise. What counts is what one would read off them by eye."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InputError
from reckon.logs import Follower, Log, read_log
from reckon.logs.rows import Given
from reckon.verbs.runs import read_one

FIXTURES = Path(__file__).parent / "fixtures"
HOST = Given({"accelerator": "H100-SXM5-80GB"})

PLAN: dict[str, Any] = {
    "bf16": True, "hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32,
    "ffn_hidden_size": 14336, "swiglu": True, "padded_vocab_size": 128256, "seq_length": 8192,
    "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1, "world_size": 64, "seed": 1, "load": "None",
}  # fmt: skip


def arguments(**changed: Any) -> str:
    """A configuration as Megatron-LM prints it."""
    rows = [f"  {key} {'.' * (48 - len(key))} {value}" for key, value in (PLAN | changed).items()]
    head, end = "-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21
    return "\n".join([head, *rows, end, ""])


def steps(numbers: range, seconds: float, batch: int = 128) -> Iterator[str]:
    for number in numbers:
        yield (
            f" iteration {number:8d}/     500 | consumed samples: {batch * number:12d} | elapsed "
            f"time per iteration (ms): {seconds * 1e3:.1f} | global batch size: {batch:5d} | "
            "lm loss: nan |\n"
        )


def log(folder: Path, *parts: str | Iterator[str], name: str = "a.log") -> Path:
    path = folder / name
    path.write_text("".join("".join(part) for part in parts), encoding="utf-8")
    return path


def test_a_job_that_was_resumed_is_one_job(tmp_path: Path) -> None:
    """What differs in its arguments (seed, path of the checkpoint) makes no other job of it; steps
    that it did again count as they went last."""
    path = log(tmp_path, arguments(), steps(range(1, 31), 9.0), "srun: error: node failure\n",
               arguments(load="/ckpt", seed=2), steps(range(21, 61), 8.0))  # fmt: skip
    found = read_one(path, HOST)
    (row,) = found.rows
    assert (row["step_time_s"], row["steps"]) == (8.0, 60 - 6)
    assert not any("jobs" in note for note in found.notes)


def test_jobs_of_different_plans_in_one_file_are_a_row_each(tmp_path: Path) -> None:
    path = log(tmp_path, arguments(), steps(range(1, 41), 9.0),
               arguments(global_batch_size=256, world_size=128, tensor_model_parallel_size=4),
               steps(range(1, 21), 7.0, 256))  # fmt: skip
    found = read_one(path, HOST)
    told = [tuple(row[key] for key in ("num_gpus", "tp", "global_batch", "step_time_s", "steps"))
            for row in found.rows]  # fmt: skip
    assert told == [(64, 2, 128, 9.0, 36), (128, 4, 256, 7.0, 17)]
    assert any("2 jobs" in note for note in found.notes)


def test_a_configuration_is_found_however_many_steps_stand_before_it(tmp_path: Path) -> None:
    path = log(tmp_path, arguments(), steps(range(1, 401), 9.0), arguments(world_size=32),
               steps(range(1, 21), 18.0))  # fmt: skip
    assert [row["step_time_s"] for row in read_one(path, HOST).rows] == [9.0, 18.0]


def test_steps_of_the_batch_that_most_have_count(tmp_path: Path) -> None:
    """While a batch is ramped up its steps are shorter; the plan is of the steps that count, though
    the arguments name the batch at the end of the ramp."""
    grown = [steps(range(1, 41), 2.0, 32), steps(range(41, 61), 4.0, 64),
             steps(range(61, 71), 8.0, 128)]  # fmt: skip
    found = read_one(log(tmp_path, arguments(), *grown), HOST)
    (row,) = found.rows
    assert (row["global_batch"], row["step_time_s"], row["stalls"]) == (32, 2.0, 0)
    assert any("steps of 32 sequences count; 30 of other batches" in n for n in found.notes)
    even = log(tmp_path, steps(range(1, 24), 2.0, 32), steps(range(24, 44), 8.0, 128))
    (row,) = read_one(even, HOST).rows
    assert (row["global_batch"], row["step_time_s"]) == (128, 8.0)


def test_what_a_user_says_counts_and_a_log_that_says_otherwise_is_told(tmp_path: Path) -> None:
    said = Given({"accelerator": "H100-SXM5-80GB", "gpus": 32, "global_batch": 64})
    found = read_one(log(tmp_path, arguments(), steps(range(1, 12), 9.0)), said)
    (row,) = found.rows
    assert (row["num_gpus"], row["global_batch"]) == (32, 64)
    assert any("gpus is 32, as you say; the log says 64" in note for note in found.notes)
    assert any("64 sequences, as you say; its lines say 128" in note for note in found.notes)


def test_lines_of_validation_are_no_steps(tmp_path: Path) -> None:
    lines = [
        f"step: {n}  loss: 8.1  memory: 42.10GiB(53%)  tps: 5,000\n"
        f"[titan] validate step: {n}  loss: 8.1  memory: 30.00GiB(40%)  tps: 15,000\n"
        for n in range(1, 12)
    ]
    found = read_log(log(tmp_path, *lines))
    assert isinstance(found, Log)
    assert {step.get("tokens_per_s_per_gpu") for step in found.steps} == {5000.0}
    assert found.broken == 0
    old = read_log(log(tmp_path, *(line.replace("tps:", "wps:") for line in lines)))
    assert isinstance(old, Log)
    assert old.steps == found.steps


def test_a_log_of_powershell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.log"
    text = "".join(steps(range(1, 12), 9.0))
    path.write_bytes(text.encode("utf-16"))
    (row,) = read_one(path, HOST).rows
    assert row["step_time_s"] == 9.0


def test_a_folder_is_told_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name the log"):
        read_log(tmp_path)


def test_rates_of_sequences_alone_ask_for_their_number(tmp_path: Path) -> None:
    line = (
        "epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=25, CurrSamplesPerSec=25\n"
    )
    path = log(tmp_path, *(line.format(n) for n in range(1, 12)))
    with pytest.raises(InputError, match="--set global_batch="):
        read_one(path, HOST)


def bar(done: int, total: int, seconds: int) -> str:
    gone = f"{seconds // 60:02d}:{seconds % 60:02d}"
    return f"\r {done * 100 // total}%|##   | {done}/{total} [{gone}<99:99,  6.00s/it]"


def test_a_trainer_that_was_resumed_takes_the_time_of_its_own_steps(tmp_path: Path) -> None:
    """Its summary tells all 1,050 steps beside the 300 s of the last fifty; its bar does not."""
    summary = ("\n{'train_runtime': 300.0, 'train_samples_per_second': 28.0, "
               "'train_steps_per_second': 3.5, 'train_loss': 0.2, 'epoch': 3.0}\n")  # fmt: skip
    bars = [bar(0, 1050, 0), *(bar(1000 + n, 1050, 6 * n) for n in range(1, 51))]
    found = read_log(log(tmp_path, *bars, summary))
    assert isinstance(found, Log)
    assert {step.get("seconds") for step in found.steps} == {6.0}
    whole = read_log(log(tmp_path, *(bar(n, 50, 6 * n) for n in range(51)), summary.replace(
        "'train_steps_per_second': 3.5", "'train_steps_per_second': 0.167")))  # fmt: skip
    assert isinstance(whole, Log)
    assert whole.form == "trainer-state"


def test_of_several_bars_the_one_that_runs_for_longest_is_followed() -> None:
    follower = Follower()
    told = []
    for line in [*(bar(n, 9, n) for n in range(10)), *(bar(n, 200, 4 * n) for n in range(100)),
                 *(bar(n, 30, 2 * n) for n in range(31))]:  # fmt: skip
        told += [step.get("seconds") for one in line.split("\r") if (step := follower.feed(one))]
    assert set(told) == {4.0}
    assert any("no loss beside it" in note for note in follower.log().notes)
    follower.feed("{'loss': 1.2, 'grad_norm': 0.5, 'epoch': 0.1}")
    assert not follower.log().notes
    assert (follower.form, follower.planned) == ("trainer-bar", 200)


def test_a_trainer_that_counts_tokens_tells_the_time_of_every_stretch(tmp_path: Path) -> None:
    """Each entry has the seconds since the start: 100 of ten steps, 40 of each ten behind."""
    entries = [{"step": 10 * n, "loss": 2.0, "train_runtime": 60.0 + 40.0 * n} for n in range(1, 9)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": entries, "max_steps": 80}), encoding="utf-8")
    found = read_log(path)
    assert isinstance(found, Log)
    assert [step.get("seconds") for step in found.steps] == [10.0] + 7 * [4.0]
    path.write_text(json.dumps({"log_history": [{"step": 5, "loss": 2.0}]}), encoding="utf-8")
    with pytest.raises(InputError, match="its progress bar"):
        read_one(path, HOST)


def test_a_chart_of_several_runs_says_which_counts(tmp_path: Path) -> None:
    rows = ["Step,a - step_time,b - step_time", *(f"{n},2.5,3.5" for n in range(1, 9))]
    found = read_one(log(tmp_path, "\n".join(rows), name="chart.csv"), HOST)
    assert found.rows[0]["step_time_s"] == 2.5
    assert any("2 runs, of which a counts" in note for note in found.notes)


def test_a_rate_that_any_loop_may_log_is_no_framework_s(tmp_path: Path) -> None:
    rows = ["Step,tokens_per_sec,lm_loss", *(f"{n},50000,2.0" for n in range(1, 9))]
    found = read_log(log(tmp_path, "\n".join(rows), name="history.csv"))
    assert isinstance(found, Log)
    assert found.framework == ""


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"failed": 30}, "30 requests failed"), ({"request_rate": 3.0}, "no more than 64 at once")],
)
def test_what_a_report_of_serving_does_not_say_by_itself(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    report = json.loads((FIXTURES / "vllm_bench.json").read_text(encoding="utf-8"))
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(report | changed), encoding="utf-8")
    assert all(told in row["notes"] for row in read_one(path, HOST).rows)
    path.write_text(json.dumps(report | {"completed": 0}), encoding="utf-8")
    with pytest.raises(InputError, match="no step and no report"):
        read_log(path)


def test_a_report_that_does_not_say_its_accelerators_says_that_one_is_taken() -> None:
    """SGLang's file states neither; vLLM's was given metadata."""
    assert any("one is taken" in n for n in read_one(FIXTURES / "sglang_bench.jsonl", HOST).notes)
    assert not any("one is taken" in n for n in read_one(FIXTURES / "vllm_bench.json", HOST).notes)


def test_a_damaged_archive_ends_in_a_word(tmp_path: Path, cli: Callable[..., Any]) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00" + bytes(range(200)))
    status, _, err = cli("import", "runs", path, "--out", tmp_path / "m.csv")
    assert status == 2
    assert "ends early" in err
    assert err.count("\n") == 1


def test_samples_that_are_rounded_tell_no_batch(tmp_path: Path) -> None:
    """tqdm writes 125,184 as '1.25e+5'; the next that differs is a thousand away, not 256."""
    bars = [
        f"\rEpoch 0: :  {n / 10:.0f}%|##| {n}/900 [1:10<2:00, global_step={n}.0, "
        f"consumed_samples={256 * n:.2e}, train_step_timing in s=3.130]".replace("e+0", "e+")
        for n in range(480, 540)
    ]
    assert "global_batch" not in read_one(log(tmp_path, *bars), HOST).rows[0]
    exact = [line.replace(f"{256 * n:.2e}".replace("e+0", "e+"), f"{256 * n}.0")
             for n, line in zip(range(480, 540), bars, strict=True)]  # fmt: skip
    assert read_one(log(tmp_path, *exact), HOST).rows[0]["global_batch"] == 256


def test_a_step_that_is_rounded_is_that_of_its_bar(tmp_path: Path) -> None:
    bars = [
        f"\rEpoch 0: :  30%|##| {n}/500000 [1:10<2:00, v_num=0, global_step=1.23e+5, "
        f"train_step_timing in s={3 + n % 2}.0]"
        for n in range(123_000, 123_020)
    ]
    found = read_log(log(tmp_path, *bars))
    assert isinstance(found, Log)
    assert [step.number for step in found.steps] == list(range(123_000, 123_020))


def test_deepspeed_s_pipelines_and_its_first_releases(tmp_path: Path) -> None:
    """`runtime/pipe/engine.py` tells the time; `utils/timer.py` of 2021 a running mean."""
    piped = log(tmp_path, *(f"steps: {n} loss: 7.1 iter time (s): 2.5{n % 3} samples/sec: 204.8\n"
                            for n in range(10, 200, 10)))  # fmt: skip
    (row,) = read_one(piped, HOST).rows
    assert (row["step_time_s"], row["framework"]) == (2.51, "deepspeed")
    old = log(tmp_path, *(f"[2021-05-01 10:00:00,123] [INFO] [timer.py:157:stop] 0/{n}, "
                          "SamplesPerSec=25.6\n" for n in range(10, 200, 10)))  # fmt: skip
    (row,) = read_one(old, Given({**HOST.fields, "global_batch": 64})).rows
    assert row["step_time_s"] == pytest.approx(2.5)


def test_arguments_as_gpt_neox_prints_them(tmp_path: Path) -> None:
    """With what set each behind it, in columns that long values overrun."""
    own: dict[str, Any] = {
        "hidden_size": 2048, "num_layers": 24, "num_attention_heads": 16, "seq_length": 2048,
        "train_batch_size": 512, "train_micro_batch_size_per_gpu": 4, "global_num_gpus": 32,
        "model_parallel_size": 2, "pipe_parallel_size": 1, "pos_emb": "rotary", "precision": "fp16",
        "zero_optimization": {"stage": 1, "allgather_partitions": True, "overlap_comm": True},
        "padded_vocab_size": 50304,
    }  # fmt: skip
    told = [f"  {key} {'.' * (32 - len(key))} {value}" for key, value in own.items()]
    table = [f"{line}{'.' * (64 - len(line))}updated\n" for line in told]
    lines = (
        f" samples/sec: 201.4 | iteration {n:8d}/ 320000 | elapsed time per iteration (ms): 2542.3 "
        "| learning rate: 6.000E-04 | lm_loss: 7.1E+00 |\n"
        for n in range(10, 200, 10)
    )
    found = read_one(log(tmp_path, *table, lines), HOST)
    (row,) = found.rows
    assert not found.missing
    told_of = ("num_gpus", "tp", "global_batch", "micro_batch", "layers", "hidden", "precision",
               "dp_sharding", "grad_overlap")  # fmt: skip
    assert [row[key] for key in told_of] == [32, 2, 512, 4, 24, 2048, "fp16", "zero1", 1]


def test_a_framework_that_prints_another_s_lines_too_is_itself(tmp_path: Path) -> None:
    """Megatron-Bridge tells a step in its own line and in Megatron-LM's; the latter say more."""
    both = (f"Step Time : 9.00s GPU utilization: 461.0MODEL_TFLOP/s/GPU\n{line}"
            for line in steps(range(1, 21), 9.012))  # fmt: skip
    (row,) = read_one(log(tmp_path, both), HOST).rows
    assert (row["framework"], row["step_time_s"], row["global_batch"]) == (
        "megatron-bridge", 9.012, 128,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("wandb_history.csv", lambda text: codecs.BOM_UTF8 + text),
        ("wandb_history.csv", lambda text: text.decode().encode("utf-16")),
        ("wandb_history.csv", gzip.compress),
        ("wandb_history.csv", lambda text: text.replace(b",", b"\t")),
        ("wandb_history.csv", lambda text: text.replace(b",", b";").replace(b".", b",")),
        ("trainer_state.json", lambda text: codecs.BOM_UTF8 + text),
        ("trainer_state.json", gzip.compress),
        ("vllm_bench.json", lambda text: codecs.BOM_UTF8 + text),
        ("maxtext.log", gzip.compress),
    ],
)  # fmt: skip
def test_files_as_other_programs_save_them(
    tmp_path: Path, name: str, how: Callable[[bytes], bytes]
) -> None:
    """Spreadsheets mark UTF-8, and divide columns as their country does; archives of any name."""
    path = tmp_path / name
    path.write_bytes(how((FIXTURES / name).read_bytes()))
    (mine, *_), (row, *_) = read_one(path, HOST).rows, read_one(FIXTURES / name, HOST).rows
    assert (mine["metric"], mine["value"]) == (row["metric"], row["value"])


def test_a_table_that_is_cut_off_in_its_archive(tmp_path: Path) -> None:
    rows = ["Step,step_time", *(f"{n},{2.5 + n % 7 / 1000}" for n in range(2000))]
    path = tmp_path / "history.csv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode())[:-200])
    found = read_one(path, HOST)
    assert found.rows[0]["step_time_s"] == pytest.approx(2.503)
    assert any("ends early" in note for note in found.notes)


def test_metrics_that_aiperf_s_first_releases_keep_among_records(tmp_path: Path) -> None:
    report = json.loads((FIXTURES / "aiperf.json").read_text(encoding="utf-8"))
    metrics = {key: value for key, value in report.items() if isinstance(value, dict)}
    config = {"input_config": metrics.pop("input_config")}
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps({"records": metrics, **config, "was_cancelled": False}), "utf-8")
    mine, theirs = read_log(path), read_log(FIXTURES / "aiperf.json")
    assert mine == theirs


BROKEN: tuple[tuple[str, str, str], ...] = (
    ("nanotron_tokens.log", "context_parallel_size=1", "context_parallel_size=true"),
    ("nanotron_tokens.log", "dp=4", "dp=null"),
    ("nanotron_tokens.log", "262K", "1e400"),
    ("deepspeed.log", '"gradient_accumulation_steps": 4', '"gradient_accumulation_steps": 0'),
    ("sglang_bench.jsonl", '"max_concurrency": null', '"max_concurrency": Infinity'),
    ("llmperf_summary.json", '"num_concurrent_requests": ', '"num_concurrent_requests": 1e40'),
    ("trainer_state.json", '"loss": 2.9', '"loss": ""'),
    ("trainer_printed.log", "'train_runtime': ", "'train_runtime': 1e400"),
    ("wandb_history.csv", "3,24.9", "inf,24.9"),
)


@pytest.mark.parametrize(("name", "before", "after"), BROKEN)
def test_a_figure_that_is_none_is_no_traceback(
    name: str, before: str, after: str, tmp_path: Path
) -> None:
    """It is left out, or the file is refused in a line."""
    text = (FIXTURES / name).read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / name
    path.write_text(text.replace(before, after), encoding="utf-8")
    try:
        found = read_one(path, HOST)
    except InputError:
        return
    assert all(0 < row["value"] < float("inf") for row in found.rows)
