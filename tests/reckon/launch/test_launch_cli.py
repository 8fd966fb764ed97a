"""Launch lines on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.timing.calibration import Calibration
from predictor.training.completion import complete_training
from reckon.launch import read_launch
from tests.reckon.launch.test_launch_scripts import GPT3

Cli = Callable[..., tuple[int, str, str]]


def test_a_launch_line_is_predicted(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "gpt3.sh"
    path.write_text(GPT3)
    line = ["predict", "train", "--from-megatron", path, "--system", "dgx-a100"]
    status, out, err = cli(*line, "--recompute", "full", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert found["inputs"]["model"] == "gpt3-175b"
    assert found["inputs"]["gpus"] == 1024
    assert found["inputs"]["framework"] == "megatron-lm"
    assert found["training"]["tokens"] == 500000 * 1536 * 2048
    launch = found["launch"]
    assert launch["understood"]["--num-layers"] == "96"
    assert "--lr" in launch["ignored"]
    assert "recompute" not in launch["fields"]
    assert "vocabulary" in err
    same = json.loads(cli(
        "predict", "train", "--model", "gpt3-175b", "--system", "dgx-a100", "--gpus", 1024,
        "--tp", 8, "--pp", 16, "--micro-batch", 1, "--global-batch", 1536, "--seq-len", 2048,
        "--precision", "fp16", "--sharding", "none", "--recompute", "full", "--framework",
        "megatron-lm", "--no-sequence-parallel", "--set", "dropout=true", "--set",
        "grad_overlap=false", "--set", "param_overlap=false", "--set", "gradient_bytes=2",
        "--set", "reduce_bytes=2", "--json", "-",
    )[1])  # fmt: skip
    assert found["step_time_s"] == same["step_time_s"]


def test_flags_beside_a_line_count_and_lists_vary(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "gpt3.sh"
    path.write_text(GPT3)
    line = ["predict", "train", "--from-megatron", path, "--system", "dgx-a100", "--allow-oom"]
    status, out, err = cli(*line, "--gpus", 2048, "--tp", "4,8", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert [p["inputs"]["tp"] for p in found["predictions"]] == [4, 8]
    assert [p["inputs"]["gpus"] for p in found["predictions"]] == [2048, 2048]
    assert found["launch"]["overridden"] == {"gpus": {"line": 1024, "given": 2048}}
    assert "gpus 2048 is given beside the line, which says 1024" in err


def test_what_is_emitted_is_predicted_the_same(cli: Cli, tmp_path: Path) -> None:
    request = ["predict", "train", "--model", "llama3-70b", "--system", "dgx-h100", "--gpus", 256,
               "--global-batch", 256, "--seq-len", 8192, "--framework", "megatron-lm"]  # fmt: skip
    status, text, err = cli(*request, "--tp", "1,8", "--pp", "4", "--emit", "megatron")
    assert status == 0
    assert text.startswith("torchrun --nproc-per-node 8 --nnodes 32 pretrain_gpt.py")
    assert "--tensor-model-parallel-size 8" in text
    assert "not said" not in err
    path = tmp_path / "run.sh"
    path.write_text(text)
    again = json.loads(
        cli("predict", "train", "--from-megatron", path, "--system", "dgx-h100", "--json", "-")[1]
    )
    direct = json.loads(cli(*request, "--tp", 8, "--pp", 4, "--emit", "nemo", "--json", "-")[1])
    assert again["step_time_s"] == direct["step_time_s"]
    assert again["memory"] == direct["memory"]
    assert direct["emitted"]["dialect"] == "nemo"
    assert direct["emitted"]["unsaid"] == []


def test_a_job_that_cannot_be_read_without_its_model_says_so(cli: Cli, tmp_path: Path) -> None:
    """Layers of a stage are no layout without the layers in all, and torchtitan has no name for
    this model: it has to be given beside the job, as it is told."""
    plan = ("--gpus", 16, "--tp", 1, "--pp", 2, "--seq-len", 2048, "--global-batch", 16)
    system = ("--system", "dgx-h200")
    asked = ("--model", "mistral-7b", *system, *plan, "--framework", "torchtitan")
    status, text, err = cli("predict", "train", *asked, "--emit", "torchtitan")
    assert status == 0
    assert "model=mistral-7b (it means none)" in err
    assert "read back with --model mistral-7b:" in err
    job = tmp_path / "job.toml"
    job.write_text(text, encoding="utf-8")
    status, _, err = cli("predict", "train", "--from-torchtitan", job, *system)
    assert status == 2
    assert "give --model" in err
    read = ("--from-torchtitan", job, *system, "--model", "mistral-7b")
    found = [cli("predict", "train", *line, "--json", "-")[1] for line in (read, asked)]
    first, second = (json.loads(one)["step_time_s"] for one in found)
    assert first == second


def test_serving_lines_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    request = ["predict", "infer", "--model", "llama3-70b", "--system", "dgx-h200", "--tp", 8,
               "--concurrency", 64, "--input-len", 1024, "--output-len", 256,
               "--framework", "vllm", "--precision", "bf16"]  # fmt: skip
    status, text, _ = cli(*request, "--emit", "vllm")
    assert status == 0
    path = tmp_path / "serve.sh"
    path.write_text(text)
    line = ["predict", "infer", "--from-vllm", path, "--system", "dgx-h200", "--json", "-"]
    again, direct = json.loads(cli(*line)[1]), json.loads(cli(*request, "--json", "-")[1])
    assert again["tpot_s"] == direct["tpot_s"]
    assert again["memory"] == direct["memory"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "--emit", "vllm"], "--emit vllm is for predict infer"),
        (["train", "--emit", "megatorn"], "did you mean 'megatron'"),
        (["train", "--from-megatron", "--bf16", "--from-nemo", "a=1"], "give one launch line"),
        (["train", "--from-megatron", "missing.sh"], "no such file"),
        (["train", "--from-megatron", "--num-gpus 3"], "no flag of megatron is in it"),
    ],
)
def test_bad_use_is_one_line_and_status_2(cli: Cli, arguments: list[str], told: str) -> None:
    rest = ["--model", "llama3-8b", "--system", "dgx-h100", "--global-batch", 8, "--seq-len", 4096,
            "--gpus", 8]  # fmt: skip
    status, out, err = cli("predict", *arguments, *rest)
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_searched_plan_is_emitted(
    kernels_only: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    from reckon.verbs.launching import emitted_request, training_request

    spec = parse(TrainingPlanSpec, {"gpus": 64, "global_batch": 64, "seq_len": 4096}, "test")
    llama, system = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    request = complete_training(spec, kernels_only.run, model=llama, cluster=system)
    asked = training_request(llama, system, request.plan, tokens=1e12)
    found = emitted_request("megatron", asked, kernels_only, "the best")
    told = capsys.readouterr()
    assert told.out == found["text"]
    assert "megatron: llama3-8b on 64 accelerators, the best" in told.err
    assert "--train-samples 244140625" in told.out


def test_searches_emit_their_best(cli: Cli) -> None:
    status, out, err = cli(
        "plan", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", 16,
        "--global-batch", 64, "--seq-len", 4096, "--framework", "megatron-lm", "--schedule", "1f1b",
        "--cp", 1, "--micro-batch", 1, "--emit", "megatron",
    )  # fmt: skip
    assert status == 0
    assert "--nnodes 2" in out
    assert "the best of" in err
    assert read_launch("megatron", out).fields["gpus"] == 16
    status, out, err = cli(
        "plan", "infer", "--model", "llama3-8b", "--system", "dgx-h100", "--rate", 20,
        "--input-len", 512, "--output-len", 128, "--ttft-ms", 1000, "--tpot-ms", 40,
        "--framework", "vllm", "--emit", "vllm",
    )  # fmt: skip
    assert status == 0
    assert out.startswith("vllm serve meta-llama/Meta-Llama-3-8B")
    assert "engines" in err
    assert read_launch("vllm", out).fields["rate"] <= 20
