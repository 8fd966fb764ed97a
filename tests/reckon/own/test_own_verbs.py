"""check, compare and watch: what they say of runs that are about to start, or run."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import reckon
from predictor.errors import InputError
from reckon.logs.following import RECENT, Expected, Tail, Times, Watched
from reckon.logs.rows import Given
from reckon.logs.steps import LoggedStep, warm
from reckon.verbs.contrasting import compare
from reckon.verbs.judging import DOUBTFUL, FITS, WRONG, check
from reckon.verbs.runs import read_one
from reckon.verbs.watching import watch

Cli = Callable[..., tuple[int, str, str]]

RUN = """model: llama3-8b
system: dgx-h100
gpus: 8
tp: 2
pp: 1
global_batch: 16
seq_len: 4096
micro_batch: 1
recompute: selective
sharding: zero1
precision: bf16
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_a_run_that_fits_is_what_predict_says(run: Path) -> None:
    found = check(str(run))
    assert found.status == FITS
    own = reckon.predict_train("llama3-8b", "dgx-h100", run)
    assert found.result.step_time.value == pytest.approx(own.step_time.value, rel=1e-12)  # type: ignore[union-attr]
    assert len(found.helps) <= 3
    for one in found.helps:
        changed = {**found.result.inputs(), one.field: one.after}
        assert one.ratio < 1, changed


def test_a_run_that_does_not_fit_is_wrong_and_told_what_needs_less() -> None:
    line = ("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
            "--num-attention-heads 64 --swiglu --vocab-size 128256 --seq-length 8192 "
            "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16 "
            "--frobnicate 3")  # fmt: skip
    found = check(line, {"system": "dgx-h100"})
    assert found.status == WRONG
    assert found.launch is not None
    assert found.launch.dialect == "megatron"
    assert any("frobnicate" in doubt for doubt in found.doubts)
    assert found.helps
    assert all(one.memory < 1 for one in found.helps)


TUNED = """base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
fp8: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, activation_checkpointing: true}
"""


def test_a_file_of_a_trainer_is_checked_with_the_accelerators_that_it_leaves_out(
    tmp_path: Path,
) -> None:
    """Other tools have flags of the same names, which are not enough for them."""
    path = tmp_path / "sft.yaml"
    path.write_text(TUNED, encoding="utf-8")
    found = check(str(path), {"system": "dgx-h100", "gpus": 8})
    plan = found.result.request.plan
    assert (plan.global_batch, plan.precision, found.result.request.model.name) == (
        8 * 2 * 4, "fp8", "llama3.1-8b",
    )  # fmt: skip
    with pytest.raises(InputError, match="give --gpus, or --global-batch"):
        check(str(path), {"system": "dgx-h100"})


SIZES = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --fp16 "
BATCH = "--micro-batch-size 4 --global-batch-size 8 --max-position-embeddings 512 "


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("pretrain_bert.py", "masked words"),
        ("tools/run_text_generation_server.py", "generates and does not train"),
        ("./tasks/msdp/main.py", "a task beside pretraining"),
    ],
)
def test_what_one_reader_knows_to_be_no_training_is_not_another_s(
    program: str, told: str, tmp_path: Path
) -> None:
    """DeepSpeed's reader knows Megatron-LM's flags, too, and took such lines for decoders."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun {program} {SIZES}{BATCH}\n", encoding="utf-8")
    with pytest.raises(InputError, match=told):
        check(str(path), {"system": "dgx-h100", "gpus": 2})


def test_flags_that_name_no_tool_are_those_of_the_tool_that_has_them(tmp_path: Path) -> None:
    path = tmp_path / "arguments.sh"
    path.write_text(f"ARGS='{SIZES}{BATCH}--vocab-size 50257'\nrun $ARGS\n", encoding="utf-8")
    found = check(str(path), {"system": "dgx-h100", "gpus": 2})
    assert found.launch is not None
    assert (found.launch.dialect, found.launch.fields["precision"]) == ("megatron", "fp16")


def test_what_the_reader_of_a_line_s_own_tool_finds_wrong_is_what_is_said(tmp_path: Path) -> None:
    """A Megatron script whose layers do not divide: other tools' readers know some of its words,
    and no model."""
    script = tmp_path / "run.sh"
    flags = (
        "--num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 "
        "--seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --vocab-size 128256 "
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --bf16 "
        "--num-layers-per-virtual-pipeline-stage 4"
    )
    script.write_text(f"torchrun --nproc_per_node 4 --nnodes 8 pretrain_gpt.py {flags}\n")
    with pytest.raises(InputError, match="126 layers are not"):
        check(str(script), {"system": "gb200-nvl72"})


def test_exit_statuses(cli: Cli, run: Path) -> None:
    status, out, _ = cli("check", run)
    assert (status, out.splitlines()[0].split(":")[0]) == (0, "fits")
    engine = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1 --wonder 1"
    beside = ("--system", "dgx-h100", "--set", "input_len=512", "--set", "output_len=64",
              "--set", "concurrency=8")  # fmt: skip
    status, out, _ = cli("check", engine, *beside, "--json", "-")
    assert status == DOUBTFUL
    assert json.loads(out)["status"] == "doubtful"
    for wrong in ("gibberish --foo", "absent.sh"):
        status, _, err = cli("check", wrong)
        assert status == 2
        assert err.count("\n") == 1


def test_a_ratio_cancels_what_both_are_wrong_about(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(RUN.replace("tp: 2", "tp: 4"))
    found = compare(str(run), str(other))
    one, two = (reckon.predict_train("llama3-8b", "dgx-h100", path) for path in (run, other))
    ratio = found.ratios["step_time"]
    assert ratio.value == pytest.approx(two.step_time.value / one.step_time.value)
    apart = two.step_time.high / one.step_time.low / (two.step_time.low / one.step_time.high)
    assert ratio.high / ratio.low < apart
    more = sum(b - a for _, a, b in found.terms)
    assert more == pytest.approx(two.step_time.value - one.step_time.value, rel=1e-6)
    back = compare(str(other), str(run)).ratios["step_time"]
    assert back.value * ratio.value == pytest.approx(1.0)
    same = compare(str(run), str(run)).ratios["step_time"]
    assert same.value == 1.0
    assert same.tie


def test_results_plans_and_logs_are_compared(cli: Cli, run: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert cli("predict", "train", run, "--json", result)[0] == 0
    found = compare(str(result), str(run))
    assert found.ratios["step_time"].value == pytest.approx(1.0, rel=1e-9)
    log = tmp_path / "a.log"
    log.write_text("".join(lines(range(1, 9), 2000.0)))
    slower = tmp_path / "b.log"
    slower.write_text("".join(lines(range(1, 9), 3000.0)))
    assert compare(str(log), str(slower)).measured["step_time"] == pytest.approx(1.5)
    with pytest.raises(InputError, match="no such file"):
        compare(str(run), str(tmp_path / "absent.yaml"))


def lines(numbers: Any, milliseconds: float) -> Iterator[str]:
    for number in numbers:
        samples = f"consumed samples: {number * 16:12d} | global batch size:    16"
        spent = f"elapsed time per iteration (ms): {milliseconds:.1f}"
        yield f" iteration {number:8d}/{40:8d} | {samples} | {spent} |\n"


def test_a_tail_follows_growth_truncation_and_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text("one\ntw")
    assert list(tail.read()) == [("line", "one")]
    with path.open("a") as stream:
        stream.write("o\n")
    assert list(tail.read()) == [("line", "two")]
    path.write_text("x\n")
    assert list(tail.read()) == [("truncated", ""), ("line", "x")]
    path.rename(tmp_path / "log.1")
    with (tmp_path / "log.1").open("a") as stream:
        stream.write("last of the old\n")
    path.write_text("new\n")
    found = list(tail.read())
    assert found == [("line", "last of the old"), ("rotated", ""), ("line", "new")]
    path.unlink()
    assert list(tail.read()) == []
    with_end = tmp_path / "cut"
    with_end.write_text("no end")
    tail = Tail(with_end)
    assert list(tail.read()) == []
    assert list(tail.close()) == [("line", "no end")]


def feed(found: Watched, times: list[float], start: int = 1) -> list[str]:
    events = []
    for at, seconds in enumerate(times, start):
        events += found.feed(LoggedStep(at, {"seconds": seconds}), float(at))
    return [event["event"] for event in events]


def test_changes_are_told_once() -> None:
    found = Watched(Expected(1.0, 0.9, 1.1))
    assert feed(found, [5.0] * 3 + [1.0] * 27) == ["inside"]
    assert found.status == 0
    assert feed(found, [1.0] * 10, 31) == []
    assert "drift" in feed(found, [1.3] * 12, 41)
    assert found.status == 1
    assert "drift" in feed(found, [1.0] * 12, 53)
    assert found.status == 0
    assert feed(Watched(Expected(1.0, 0.9, 1.1)), [2.0] * 9) == ["outside"]


def test_a_stall_is_told_and_its_end() -> None:
    found = Watched(Expected(1.0, 0.5, 1.5))
    feed(found, [1.0] * 6)
    assert found.wait(30.0) == []
    (event,) = found.wait(6.0 + 61.0)
    assert event["event"] == "stalled"
    assert found.wait(200.0) == []
    assert found.status == 1
    assert [e["event"] for e in found.feed(LoggedStep(7, {"seconds": 1.0}), 210.0)] == ["resumed"]
    assert found.status == 0


def test_before_the_first_step_a_job_is_waited_for_and_does_not_stall() -> None:
    """How long a start takes is not known, with a prediction of steps or without; where steps tell
    no time, the pauses between them say what a stall is."""
    for expected in (Expected(), Expected(1.0, 0.5, 1.5)):
        found = Watched(expected)
        assert found.wait(0.0) == found.wait(60.0) == []
        (event,) = found.wait(61.0)
        assert (event["event"], found.status) == ("waiting", 0)
        assert found.wait(3600.0) == []
    found = Watched(Expected())
    found.wait(0.0)
    found.feed(LoggedStep(1, {"loss": 2.0}), 400.0)
    assert found.wait(1000.0) == []
    found.feed(LoggedStep(2, {"loss": 2.0}), 500.0)
    assert found.wait(1000.0) == []
    assert [event["event"] for event in found.wait(1001.0)] == ["stalled"]


def test_steps_that_a_log_does_not_tell_are_no_stall_and_cost_all_the_same() -> None:
    """A line every hundredth step of 10 s comes after 1,000 s; 30 lines are 3,000 steps."""
    found = Watched(Expected(steps=3000, price=3600.0))
    for number in range(100, 3001, 100):
        assert found.wait(number * 10.0 - 1.0) == []
        found.feed(LoggedStep(number, {"seconds": 10.0}), number * 10.0)
    assert found.summary()["cost"] == pytest.approx(30_000.0)
    (event,) = found.wait(30_000.0 + 2_001.0)
    assert event["event"] == "stalled"


LOGS = Path(__file__).parents[1] / "logs" / "fixtures"


@pytest.mark.parametrize(
    "name", ["deepspeed.log", "llm-foundry.log", "mllog.log", "torchtitan.log", "maxtext.log"]
)
def test_a_log_that_tells_rates_is_followed_by_what_it_says_of_its_batch(name: str) -> None:
    """No plan is given; the time is that which the log comes to when it is imported."""
    *_, end = watch(LOGS / name, once=True)
    (row,) = read_one(LOGS / name, Given({})).rows
    assert end["median_s"] == pytest.approx(row["value"], rel=5e-3)


def test_the_median_of_steps_however_they_come() -> None:
    draw = random.Random(1)
    for count in range(1, 60):
        times, told = Times(), dict[int, float]()
        for number in (draw.randint(1, 40) for _ in range(count)):
            told[number] = draw.random()
            times.add(number, told[number])
        behind = [told[number] for number in sorted(told)][warm(len(told)) :]
        assert times.counted == len(behind)
        assert times.median == pytest.approx(median(behind))
        assert times.first == pytest.approx(median(behind[:RECENT]))


def test_what_is_no_run_is_told_in_a_line_that_helps(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    for arguments, told in (
        (("check", ""), "give a run file"),
        (("check", tmp_path), "is a folder"),
        (("check", tmp_path / "empty.yaml"), "found nothing"),
        (("watch", tmp_path, "--once"), "is a folder"),
    ):
        status, _, err = cli(*arguments)
        assert status == 2
        assert told in err
        assert err.count("\n") == 1


def test_runs_that_cannot_be_predicted_say_why(cli: Cli, tmp_path: Path) -> None:
    rows = "point_id,accelerator,num_gpus,model,global_batch,seq_len,step_time_s\n"
    path = tmp_path / "mine.csv"
    path.write_text(rows + "a,H100-SMX5,8,llama3-8b,8,4096,1.0\n", encoding="utf-8")
    status, _, err = cli("calibrate", "--reference", path, "--out", tmp_path / "c")
    assert status == 2
    assert "H100-SMX5" in err


def test_of_several_jobs_in_a_log_the_last_is_compared(tmp_path: Path) -> None:
    def job(tp: int, milliseconds: float) -> str:
        dump = f"-- arguments --\n  tensor_model_parallel_size ...... {tp}\n"
        return dump + "".join(lines(range(1, 21), milliseconds))

    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text(job(4, 1000.0), encoding="utf-8")
    two.write_text(job(2, 9000.0) + job(4, 1500.0), encoding="utf-8")
    fields = {"system": "dgx-h100", "model": "llama3-8b", "gpus": 8, "seq_len": 4096}
    assert compare(str(one), str(two), fields).measured["step_time"] == pytest.approx(1.5)


def test_a_check_takes_an_accelerator_for_a_system(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "base_model: Qwen/Qwen3-8B\nadapter: lora\nsequence_len: 2048\nmicro_batch_size: 1\n"
        "gradient_accumulation_steps: 4\nbf16: true\ngradient_checkpointing: true\n"
    )
    found = check(str(path), {"accelerator": "RTX-4090-24GB", "gpus": 1})
    assert found.result.request.cluster.accelerator.name == "RTX-4090-24GB"


def test_a_job_that_does_steps_again_is_judged_by_them() -> None:
    """Resumed at its thirtieth step, it takes 1.5 x as long from there: ten steps tell so."""
    found = Watched(Expected(1.0, 0.9, 1.1))
    feed(found, [1.0] * 40)
    assert "drift" in feed(found, [1.5] * 10, 30)
    assert found.now == 1.5


def test_a_log_that_goes_on_with_another_job_is_another_job(tmp_path: Path) -> None:
    """What the first took is not held against the second."""

    def job(tp: int, milliseconds: float) -> str:
        dump = f"-- arguments --\n  tensor_model_parallel_size ...... {tp}\n"
        return dump + "".join(lines(range(1, 21), milliseconds))

    log = tmp_path / "train.log"
    log.write_text(job(2, 1000.0) + job(4, 500.0))
    events = list(watch(log, once=True))
    assert [event["event"] for event in events] == ["another job", "end"]
    assert events[-1]["median_s"] == 0.5
    log.write_text(job(2, 1000.0) + job(2, 1000.0))
    assert [event["event"] for event in watch(log, once=True)] == ["end"]


def test_time_left_and_cost_are_those_of_the_steps_to_come() -> None:
    found = Watched(Expected(1.0, 0.5, 1.5, steps=110, price=3600.0))
    feed(found, [1.0] * 10)
    summary = found.summary()
    assert summary["left_s"] == pytest.approx(100.0)
    assert summary["cost"] == pytest.approx(110.0)
    rated = Expected(tokens=8192.0 * 8, gpus=8.0)
    assert rated.seconds(LoggedStep(1, {"tokens_per_s_per_gpu": 8192.0})) == pytest.approx(1.0)
    assert math.isnan(Expected().seconds(LoggedStep(1, {"loss": 2.0})))


def test_a_log_that_grows_stalls_is_cut_and_moves_away_is_followed(tmp_path: Path) -> None:
    """The file is written between looks; the clock is the test's."""
    path, now = tmp_path / "train.log", [0.0]
    script: list[Callable[[], object]] = [
        lambda: path.write_text("".join(lines(range(1, 11), 1000.0))),
        lambda: now.__setitem__(0, now[0] + 100.0),
        lambda: path.write_text("".join(lines(range(11, 13), 1000.0))),
        lambda: path.rename(tmp_path / "old.log"),
        lambda: path.write_text("".join(lines(range(13, 41), 1000.0))),
    ]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if script:
            script.pop(0)()

    events = list(watch(path, clock=lambda: now[0], sleep=sleep))
    names = [event["event"] for event in events]
    assert names[0] == "waiting"
    assert events[0]["text"] == f"no such file yet: {path}; it is waited for"
    assert [n for n in names if n in ("stalled", "truncated", "resumed", "rotated", "end")] == [
        "stalled", "truncated", "resumed", "rotated", "end",
    ]  # fmt: skip
    assert (events[-1]["step"], events[-1]["steps"], events[-1]["form"]) == (40, 40, "megatron")
    assert events[-1]["status"] == 0


def test_a_watched_job_is_held_against_its_plan(cli: Cli, run: Path, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(lines(range(1, 9), 1e6)))
    status, out, _ = cli("watch", log, "--plan", run, "--once", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [event["event"] for event in events] == ["outside", "end"]
    predicted = reckon.predict_train("llama3-8b", "dgx-h100", run).step_time
    assert events[-1]["predicted_s"] == pytest.approx(predicted.value)
    assert events[-1]["ratio"] == pytest.approx(1000.0 / predicted.value)
    log.write_text("".join(lines(range(1, 9), predicted.value * 1e3)))
    status, out, _ = cli("watch", log, "--plan", run, "--once")
    assert status == 0
    assert "inside" in out
    assert cli("watch", tmp_path / "absent", "--once")[0] == 2
    assert cli("watch", log, "--patience", "0", "--once")[0] == 0


def test_of_what_can_be_measured_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    """Large plans are cared about, small ones can be measured: those named are small ones."""
    rows = [
        f"{name},H100-SXM5-80GB,{gpus},llama3-8b,{tp},1,{gpus},4096,bf16"
        for name, gpus, tp in (("a", 8, 1), ("b", 16, 8), ("big", 512, 8))
    ]
    head = "point_id,accelerator,num_gpus,model,tp,pp,global_batch,seq_len,precision"
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_text("\n".join([head, *rows[:2]]) + "\n", encoding="utf-8")
    large.write_text("\n".join([head, rows[2]]) + "\n", encoding="utf-8")
    status, out, _ = cli("calibrate", "--suggest", large, "--among", small, "--json", "-")
    assert status == 0
    told = json.loads(out)["runs"]
    assert {one["name"] for one in told} == {"a", "b"}
    assert all(one["after"] <= one["before"] for one in told)
    status, _, err = cli("calibrate", "--among", small)
    assert status == 2
    assert "--suggest" in err
    assert err.count("\n") == 1


def test_what_is_missing_is_told_in_one_line(cli: Cli, tmp_path: Path) -> None:
    """An engine's line without what it is asked, and logs that do not say what they ran on: no
    ratio of nothing."""
    status, _, err = cli("check", "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 1",
                         "--system", "dgx-h100")  # fmt: skip
    assert status == 2
    assert "input_len=" in err
    assert err.count("\n") == 1
    titan = tmp_path / "titan.log"
    titan.write_text(
        "".join(
            f"step: {n}  loss: 8.1  memory: 42.10GiB(53%)  tps: 5,76{n}\n" for n in range(1, 9)
        ),
        encoding="utf-8",
    )
    status, out, err = cli("compare", titan, titan)
    assert status == 2
    assert "nan" not in out + err
    assert "the accelerator is not stated" in err
    assert err.count("\n") == 1


def test_a_wrong_line_of_a_tool_that_it_names_is_told_by_that_tool(tmp_path: Path) -> None:
    """Where no reader understands it, not what the first of them makes of it."""
    line = tmp_path / "serve.sh"
    line.write_text("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 "
                    "--tp 16 --moe-a2a-backend foo\n")  # fmt: skip
    with pytest.raises(InputError, match="--moe-a2a-backend foo: not known; known: deepep"):
        reckon.check(str(line), {"system": "dgx-h200"})
    line.write_text("make coffee --strong\n")
    with pytest.raises(InputError, match="no reader of launch lines understands it"):
        reckon.check(str(line), {"system": "dgx-h200"})


def test_runs_without_a_time_are_refused_with_why() -> None:
    row = {"point_id": "a", "source": "own", "model": "llama3-8b", "num_gpus": 8, "tp": 2,
           "accelerator": "H100-SXM5-80GB", "global_batch": 16, "seq_len": 4096,
           "metric": "speedup", "value": 0.4}  # fmt: skip
    with pytest.raises(InputError, match="no time of a step follows"):
        reckon.adapt("default", [row])
