"""Programs that run here write their logs, and these are read: HuggingFace's trainer, PyTorch's
TensorBoard writer, a training loop that prints as Megatron does. Logs that real runs wrote
elsewhere lie beside (`fixtures/real`, see its README)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibration.tables.runs import Point, point_of
from predictor.timing import RunParameters
from reckon.logs import Log, read_log
from reckon.logs.rows import Given
from reckon.verbs.runs import read_one

REAL = Path(__file__).parent / "fixtures" / "real"
HOST = Given({"accelerator": "H100-SXM5-80GB", "gpus": 1, "seq_len": 16})
STEPS, BATCH = 6, 2


def step() -> Callable[[], float]:
    """A training step of a small model that returns its loss."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(64, (BATCH, 16))

    def run() -> float:
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def test_a_training_loop_that_prints_as_megatron_does(tmp_path: Path) -> None:
    run, path, spent = step(), tmp_path / "train.log", []
    with path.open("w") as log:
        for number in range(1, STEPS + 1):
            begun = time.perf_counter()
            loss = run()
            spent.append(time.perf_counter() - begun)
            log.write(
                f" iteration {number:8d}/{STEPS:8d} | consumed samples: {BATCH * number:12d} | "
                f"elapsed time per iteration (ms): {spent[-1] * 1e3:.6f} | "
                f"global batch size: {BATCH:5d} | lm loss: {loss:.6E} |\n"
            )
    (row,) = read_one(path, HOST).rows
    assert row["step_time_s"] == pytest.approx(sorted(spent[3:])[1], rel=1e-4)
    assert row["global_batch"] == BATCH


def test_what_pytorch_s_tensorboard_writer_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (.[logs])")
    from torch.utils.tensorboard import SummaryWriter

    run, spent = step(), []
    with SummaryWriter(tmp_path) as writer:
        for number in range(1, STEPS + 1):
            begun = time.perf_counter()
            loss = run()
            spent.append(time.perf_counter() - begun)
            writer.add_scalar("train_step_timing in s", spent[-1], number)
            writer.add_scalar("reduced_train_loss", loss, number, new_style=True)
            writer.add_text("a text", "that is no number", number)
    (path,) = tmp_path.iterdir()
    found = read_log(path)
    assert isinstance(found, Log)
    assert (found.form, found.framework, found.broken) == ("tensorboard", "nemo", 0)
    assert [one.get("seconds") for one in found.steps] == pytest.approx(spent, rel=1e-6)
    assert not any(math.isnan(one.get("loss")) for one in found.steps)


def trained(folder: Path) -> Any:
    """A run of HuggingFace's trainer: a small Llama, `STEPS` steps, its state and its model."""
    torch = pytest.importorskip("torch")
    reason = "transformers and accelerate are not installed (.[logs])"
    transformers = pytest.importorskip("transformers", reason=reason)
    pytest.importorskip("accelerate", reason=reason)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, max_position_embeddings=64,
    )  # fmt: skip
    rows = [{"input_ids": x, "labels": x} for x in torch.randint(128, (BATCH * STEPS, 16))]
    given = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH,
        logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    trainer = transformers.Trainer(model=model, args=given, train_dataset=rows)
    found = trainer.train()
    trainer.save_state()
    config.save_pretrained(folder)
    return found


def test_what_huggingface_s_trainer_wrote(tmp_path: Path) -> None:
    """Its own runtime over its steps is the step; `config.json` beside it is the model."""
    metrics = trained(tmp_path).metrics
    path = tmp_path / "trainer_state.json"
    found = read_log(path)
    assert isinstance(found, Log)
    assert (found.form, found.planned, len(found.steps)) == ("trainer-state", STEPS, STEPS)
    told = read_one(path, HOST)
    assert any("the whole run" in note for note in told.notes)
    (row,) = told.rows
    assert row["step_time_s"] == pytest.approx(metrics["train_runtime"] / STEPS, rel=1e-3)
    assert (row["global_batch"], row["micro_batch"]) == (BATCH, BATCH)
    point = point_of(row, RunParameters())
    assert isinstance(point, Point), point
    model = point.request.model
    assert (model.layers, model.hidden, model.kv_heads, model.vocab) == (2, 32, 2, 128)


def test_logs_of_real_runs_are_read_as_they_were_written() -> None:
    """Figures that the programs printed by themselves, kept beside what they wrote."""
    told = json.loads((REAL / "told.json").read_text())
    (row,) = read_one(REAL / "trainer_state.json", HOST).rows
    assert row["step_time_s"] == pytest.approx(told["train_runtime"] / told["steps"], rel=1e-3)
    (events,) = REAL.glob("events.out.tfevents*")
    found = read_log(events)
    assert isinstance(found, Log)
    assert [one.get("seconds") for one in found.steps] == pytest.approx(told["seconds"], rel=1e-6)


def test_a_real_run_that_was_cut_off_is_read_by_its_bar() -> None:
    """All stretches together are the time from the bar's first step to the last look at it."""
    found = read_log(REAL / "trainer_bar.log")
    assert isinstance(found, Log)
    assert (found.form, found.planned) == ("trainer-bar", 500)
    looks = [1, *(step.number for step in found.steps)]
    spent = sum(
        step.get("seconds") * (step.number - before)
        for step, before in zip(found.steps, looks, strict=False)
    )
    told = json.loads((REAL / "told.json").read_text())["bar"]
    assert spent == pytest.approx(told[str(looks[-1])] - told["1"])
