"""A search for a target finds what the target's launch line can say, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import take
from predictor.catalog import aliases, all_engines, frameworks, spelled
from predictor.errors import InputError
from predictor.plans import SERVING_NUMBERS, feasible, serving_rules
from predictor.plans.rules import any_broken
from predictor.search.fleet_space import apart, batches
from predictor.search.ranking import single
from predictor.search.space import space_of
from predictor.serving import ServingRequest
from predictor.timing.calibration import Calibration
from predictor.units import GB
from reckon.launch import DIALECTS, emit, read_launch, target_of
from reckon.verbs.fleets import search_infer
from reckon.verbs.launching import training_request
from reckon.verbs.plans import search
from reckon.verbs.serving import predict_infer
from reckon.verbs.training import predict_train

Cli = Callable[..., tuple[int, str, str]]

TRAINING = [name for name, dialect in DIALECTS.items() if not dialect.serving and dialect.written]
SERVING = [name for name, dialect in DIALECTS.items() if dialect.serving]

SPACE: dict[str, Any] = {"gpus": 16, "global_batch": 16, "seq_len": 8192, "tp": [1, 2, 4],
         "pp": [1, 2, 4], "cp": [1, 2], "offload_optimizer": [0, 1],
         "micro_batch": [1, 2]}  # fmt: skip

ENOUGH = 12
"""Plans inside a line's bounds, and outside, that are written for each model and line."""

MOST = 8
"""The same of engines, for each kind of them."""


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("name", TRAINING)
def test_a_plan_is_in_bounds_where_its_line_reads_back(
    name: str, model: str, kernels_only: Calibration
) -> None:
    """Of random plans of the whole space: the bounds against the line, written and read."""
    rng = np.random.default_rng(5)
    own, system, run = catalog.model(model), catalog.system("dgx-h100"), kernels_only.run
    fields = {**SPACE, "framework": DIALECTS[name].framework}
    blocks = list(space_of(own, system, fields, run).blocks())
    target = target_of(name, own, system, run, serving=False)
    seen = {True: 0, False: 0}
    for number in rng.permutation(len(blocks)):
        block = blocks[number]
        rows = rng.permutation(len(block))
        batch = block.plan(rows)
        rows = rows[feasible(batch, own) & ~any_broken(DIALECTS[name].laws(batch), batch.shape)]
        if not rows.size:
            continue
        outside = any_broken(target.rules(block.plan(rows)), rows.shape)
        for beyond in (False, True):
            if seen[beyond] >= ENOUGH:
                continue
            for row in rows[outside == beyond][:2]:
                plan = single(block.plan(np.array([row])))
                written = emit(name, training_request(own, system, plan, None), run)
                beside = (*DIALECTS[name].beside, "model", "seq_len")
                left = [str(one) for one in written.unsaid if one.field not in beside]
                assert beyond == bool(left), f"{left}\n{plan}\n{written.text}"
                seen[beyond] += 1
        if min(seen.values()) >= ENOUGH:
            break
    assert min(seen.values()) > 3, seen


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("name", SERVING)
def test_an_engine_is_in_bounds_where_its_line_reads_back(
    name: str, model: str, kernels_only: Calibration
) -> None:
    own, system, run = catalog.model(model), catalog.system("dgx-b200"), kernels_only.run
    fields = {"input_len": (512,), "output_len": (64,), "framework": (DIALECTS[name].framework,),
              "precision": ("bf16", "fp8", "fp8_block", "nvfp4"),
              "kv_precision": ("bf16", "fp8")}  # fmt: skip
    if name == "llama-cpp":  # which has formats of its own
        fields |= {"precision": ("bf16", "fp8", "q4_k"), "kv_precision": ("bf16", "int8")}
    target = target_of(name, own, system, run, serving=True)
    seen = {True: 0, False: 0}
    for together in batches(own, system, fields, kernels_only):
        for batch in (together, apart(own, system, together, fields, run)):
            batch = one_worker(batch)
            lawful = np.flatnonzero(~any_broken(serving_rules(batch, own), batch.shape))
            batch = take(batch, lawful[::41])
            outside = any_broken(target.rules(batch), batch.shape)
            each = [np.flatnonzero(outside == beyond)[:MOST] for beyond in (False, True)]
            for at in np.concatenate(each):
                plan = single_serving(batch, at)
                written = emit(name, ServingRequest(own, system, plan, (), 1.0), run)
                left = [str(one) for one in written.unsaid if one.field != "batch"]
                assert bool(outside[at]) == bool(left), f"{left}\n{plan}\n{written.text}"
                seen[bool(left)] += 1
    assert min(seen.values()) > 3, seen


def one_worker(batch: Any) -> Any:
    from dataclasses import replace

    workers = np.minimum(batch.prefill_workers, 1.0)
    return replace(batch, serving=1.0, batch=np.inf, prefill_workers=workers)


def single_serving(batch: Any, at: int) -> Any:
    from dataclasses import replace

    row = take(batch, np.array([at]))
    return replace(row, **{n: float(np.ravel(getattr(row, n))[0]) for n in SERVING_NUMBERS})


@pytest.mark.parametrize("name", TRAINING)
def test_a_search_for_a_target_keeps_its_promise(
    name: str, kernels_only: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"gpus": 8, "global_batch": 16, "seq_len": 8192, "micro_batch": 1, "tp": [1, 2],
            "pp": [1, 2, 4], "cp": 1, "recompute": ["none", "full"]}  # fmt: skip
    found = search("llama3-8b", "dgx-h100", plan, kernels_only, target=name)
    told = found.emit(name)
    text = capsys.readouterr().out
    back = told["read_back"]
    assert back["holds"]
    assert (back["fits"], back["differs"]) == (True, [])
    given = catalog.model("llama3-8b") if "model" in back["beside"] else None
    launch = read_launch(name, text, given)
    fields = {**launch.fields, **{k: v for k, v in back["beside"].items() if k != "model"}}
    again = predict_train(launch.model or "llama3-8b", "dgx-h100", fields, kernels_only)
    assert again.step_time.value == pytest.approx(float(found.result.step_time[0]), rel=1e-9)
    assert again.peak_memory == pytest.approx(float(found.result.memory[0]), rel=1e-9)
    assert again.fits
    # The whole space has plans that are no slower, or the target says all of it.
    free = search("llama3-8b", "dgx-h100", {**plan, "framework": found.result.plan(0).framework},
                  kernels_only)  # fmt: skip
    assert free.result.step_time[0] <= found.result.step_time[0] * (1 + 1e-12)
    assert free.result.counts.possible > found.result.counts.possible


@pytest.mark.parametrize("name", SERVING)
@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
def test_a_fleet_for_a_target_keeps_its_promise(
    name: str, model: str, kernels_only: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"input_len": 512, "output_len": 64, "precision": ["bf16", "fp8"], "tp": [1, 2],
            "pp": 1, "dp": [1, 2], "prefill_workers": 0}  # fmt: skip
    found = search_infer(model, "dgx-b200", plan, 40.0, ttft=1.0, tpot=0.05, target=name,
                         simulate=300, calibration=kernels_only)  # fmt: skip
    told = found.emit(name)
    text = capsys.readouterr().out
    assert told["read_back"]["holds"], told
    assert told["unsaid"] == []
    launch = read_launch(name, text)
    again = predict_infer(launch.model, "dgx-b200", launch.fields, kernels_only)
    promised = told["read_back"]["promised"]
    assert again.ttft.value == pytest.approx(promised["ttft_s"], rel=1e-9)
    assert again.tpot.value == pytest.approx(promised["tpot_s"], rel=1e-9)
    assert again.peak_memory / GB == pytest.approx(promised["memory_gb"], rel=1e-9)
    assert again.fits


RUN = ["--model", "llama3-8b", "--system", "dgx-h100", "--gpus", 16, "--global-batch", 64,
       "--seq-len", 8192]  # fmt: skip


def test_the_line_of_a_search_is_what_was_promised(cli: Cli, tmp_path: Path) -> None:
    """What Megatron cannot say, such as zero-bubble schedules, is not offered for it."""
    request = ["plan", "train", *RUN, "--pp", 4, "--tp", 2, "--cp", 1, "--micro-batch", 1,
               "--recompute", "full"]  # fmt: skip
    status, out, err = cli(*request, "--emit", "megatron-lm")
    assert status == 0
    assert "as promised" in err
    path = tmp_path / "run.sh"
    path.write_text(out)
    line = ["predict", "train", "--from-megatron-lm", path, "--system", "dgx-h100", "--json", "-"]
    again = json.loads(cli(*line)[1])
    direct = json.loads(cli(*request, "--for", "megatron", "--json", "-")[1])
    best = direct["plans"][0]
    assert best["plan"]["schedule"] == "1f1b"
    assert again["step_time_s"]["value"] == pytest.approx(best["step_time_s"]["value"], rel=1e-9)
    assert again["fits"] if "fits" in again else cli(*line)[0] == 0
    own = json.loads(cli(*request, "--framework", "megatron-lm", "--json", "-")[1])
    assert own["plans"][0]["plan"]["schedule"] == "1f1b"
    free = json.loads(cli(*request, "--json", "-")[1])
    assert free["plans"][0]["plan"]["schedule"] != "1f1b"


def test_a_line_that_says_another_plan_is_told_with_status_2(cli: Cli) -> None:
    request = ["predict", "train", *RUN, "--pp", 4, "--tp", 2, "--set", "schedule=zb-h1"]
    status, out, err = cli(*request, "--framework", "megatron", "--emit", "megatron")
    assert status == 2
    assert out.startswith("torchrun")
    assert "the plan it was written for has step_time_s" in err
    status, out, err = cli(*request, "--framework", "torchtitan", "--emit", "torchtitan")
    assert (status, "as promised" in err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "train", *RUN, "--for", "vllm"], "--for vllm is for plan infer"),
        (["plan", "train", *RUN, "--for", "megatorn"], "did you mean 'megatron'"),
        (["plan", "train", *RUN, "--for", "nemo", "--emit", "megatron"], "are two targets"),
        (
            ["plan", "train", *RUN, "--pp", 4, "--schedule", "zb-h1", "--for", "megatron"],
            "cannot say",
        ),
    ],
)
def test_bad_targets_are_one_line(cli: Cli, arguments: list[Any], told: str) -> None:
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_every_alias_is_one_of_a_framework_or_an_engine() -> None:
    known = {*frameworks(), *all_engines()}
    assert set(aliases().values()) <= known
    for name in known:
        assert spelled(name) == name
        assert spelled(name.upper().replace("-", "_")) == name
    for alias, name in aliases().items():
        assert spelled(f" {alias.replace('-', ' ')} ") == name


@pytest.mark.parametrize(
    ("alias", "name"), [("megatron", "megatron-lm"), ("trtllm", "tensorrt-llm"), ("vLLM", "vllm")]
)
def test_aliases_are_accepted_in_flags_and_lines(
    alias: str, name: str, cli: Cli, kernels_only: Calibration
) -> None:
    if name in frameworks():
        request = ["predict", "train", *RUN, "--framework"]
    else:
        request = ["predict", "infer", "--model", "llama3-8b", "--system", "dgx-h100",
                   "--concurrency", 8, "--input-len", 512, "--output-len", 64,
                   "--framework"]  # fmt: skip
    one, two = (json.loads(cli(*request, spelling, "--json", "-")[1]) for spelling in (alias, name))
    assert one["inputs"] == two["inputs"]
    assert one["inputs"]["framework"] == name
    emitted = [cli(*request, spelling, "--emit", spelling)[1] for spelling in (alias, name)]
    assert emitted[0] == emitted[1] != ""


def test_an_unknown_framework_has_its_nearest_named(cli: Cli) -> None:
    status, _, err = cli("predict", "train", *RUN, "--framework", "megatorn")
    assert status == 2
    assert "did you mean 'megatron-lm'" in err
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        target_of("megatorn", catalog.model("llama3-8b"), catalog.system("dgx-h100"), None, False)  # type: ignore[arg-type]
