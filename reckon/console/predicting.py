"""`reckon predict train`, `reckon predict infer` and `reckon explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from predictor.errors import InputError
from predictor.plans import EXPLAIN, PREDICT, SERVING_FIELDS, TRAINING_FIELDS, Table
from reckon.console.flags import (
    Invocation,
    Paneled,
    allow_oom_option,
    argument,
    calibration_option,
    field_options,
    invocation,
    json_option,
    option,
    settings_option,
    switch,
)

if TYPE_CHECKING:
    from predictor.training import Explanation
    from reckon.verbs.results import Prediction
    from reckon.verbs.served import ServingResult
    from reckon.verbs.serving import ServingSweep
    from reckon.verbs.training import Sweep

TRAIN_EXAMPLE = (
    "Example: reckon predict train --model llama3-70b --system dgx-h100 --gpus 1024 "
    "--tp 8 --pp 4 --global-batch 1024 --seq-len 8192"
)
INFER_EXAMPLE = (
    "Example: reckon predict infer --model llama3-70b --system dgx-h200 --gpus 8 --tp 8 "
    "--batch 64 --input-len 1024 --output-len 256"
)
EXPLAIN_EXAMPLE = (
    "Example: reckon explain trace.json.gz --model llama3-8b --system dgx-h100 --gpus 8 "
    "--tp 8 --global-batch 8 --seq-len 8192"
)

TIMELINE = ("timeline", "Schedule as a trace (Perfetto).", "FILE")


def _line_option(
    dialect: str, text: str = "", hidden: bool = False, also: tuple[str, ...] = ()
) -> click.Option:
    """A launch line to read, under every spelling of its dialect."""
    names = tuple(f"from-{name}" for name in also)
    key = f"from_{dialect}".replace("-", "_")
    return option(f"from-{dialect}", text, "LINE|FILE", key=key, also=names, hidden=hidden)


def _predicting(
    name: str,
    fields: Table,
    predict: Callable[..., int],
    more: list[click.Option],
    text: str,
    example: str,
) -> Paneled:
    """`reckon predict` of plans with these fields; `more` are its own flags."""
    flags = field_options(fields, PREDICT)

    def run(**given: Any) -> int:
        asked = invocation(given, flags, fields)
        return predict(asked, _lines(given), **given)

    return Paneled(
        name,
        callback=run,
        params=[
            argument("file", "[RUN.yaml]", required=False),
            *flags,
            settings_option(),
            calibration_option(),
            json_option(),
            *more,
        ],
        help=f"{text} Comma lists give a row each; RUN.yaml has keys as the flags.",
        epilog=example,
    )


def train_command() -> click.Command:
    """`reckon predict train`."""
    more = [
        switch("explain", "What would help most, and what is known."),
        option("monte-carlo", "Draw N steps too, to check --variation.", "N", int),
        option(*TIMELINE),
        allow_oom_option(),
        option("emit", "Launch line: megatron torchtitan ...", "NAME"),
        _line_option("megatron", "Read such a line.", also=("megatron-lm",)),
        _line_option("torchtitan", "Or -nemo, -deepspeed, -trainer, -maxtext, ..."),
        _line_option("nemo", hidden=True, also=("megatron-bridge",)),
        _line_option("automodel", hidden=True, also=("nemo-automodel",)),
        _line_option("deepspeed", hidden=True),
        _line_option("trainer", hidden=True, also=("axolotl", "llama-factory", "torchtune")),
        _line_option("maxtext", hidden=True),
        _line_option("nanotron", hidden=True),
        _line_option("llm-foundry", hidden=True, also=("composer",)),
    ]
    text = "Step time, memory and bottlenecks of a training run."
    return _predicting("train", TRAINING_FIELDS, predict_train, more, text, TRAIN_EXAMPLE)


def infer_command() -> click.Command:
    """`reckon predict infer`."""
    more = [
        switch("explain", "Taxes of a decoding pass: launch, waiting, locality."),
        allow_oom_option(),
        option("emit", "Launch line: vllm sglang trtllm tgi lmdeploy llama-cpp.", "NAME"),
        _line_option("vllm", "Read such a line."),
        _line_option("sglang", "Or of SGLang."),
        _line_option("trtllm", "Or TensorRT-LLM.", also=("tensorrt-llm",)),
        _line_option("tgi", "Or TGI, LMDeploy (-lmdeploy), llama.cpp (-llama-cpp)."),
        _line_option("lmdeploy", hidden=True),
        _line_option("llama-cpp", hidden=True, also=("llama.cpp",)),
    ]
    text = "Time to first token, time per token, throughput, memory."
    return _predicting("infer", SERVING_FIELDS, predict_infer, more, text, INFER_EXAMPLE)


def explain_command() -> click.Command:
    """`reckon explain`."""
    flags = field_options(TRAINING_FIELDS, EXPLAIN)

    def run(trace: Path, timeline: str | None, ranks: Path | None, **given: Any) -> int:
        from reckon.verbs.tracing import explain
        from reckon.views.trace import show_trace

        asked = invocation(given, flags)
        result = explain(trace, asked.fields, asked.calibration, timeline, ranks)
        asked.write(result)
        if not asked.quiet:
            show_trace(result)
        return 0

    return Paneled(
        "explain",
        callback=run,
        params=[
            argument("trace", "TRACE", type=Path),
            *flags,
            settings_option(),
            calibration_option(),
            json_option(),
            option(*TIMELINE),
            option("ranks", "Traces of all ranks: who is waited for.", "DIR", Path),
        ],
        help="A recorded step (a trace of PyTorch's profiler) against its prediction, term by "
        "term. TRACE is a .json or .json.gz.",
        epilog=EXPLAIN_EXAMPLE,
    )


def _lines(given: dict[str, Any]) -> dict[str, str]:
    """Launch lines to read, by flag; taken out of the values of flags."""
    names = [name for name in given if name.startswith("from_")]
    texts = {name: given.pop(name) for name in names}
    return {name: text for name, text in texts.items() if text}


def _launched(
    lines: Mapping[str, str], asked: Invocation
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The request with what a launch line says, and what is to be told of the line."""
    if not lines:
        return asked.fields, {}
    from reckon.verbs.launching import join

    return join(dict(lines), dict(asked.fields))


def predict_train(
    asked: Invocation,
    lines: Mapping[str, str],
    *,
    explain: bool,
    monte_carlo: int | None,
    timeline: str | None,
    allow_oom: bool,
    emit: str | None,
) -> int:
    """Predict a training run, or one for each combination of lists; returns the exit status."""
    from predictor.catalog import load
    from reckon.verbs.training import sweep

    fields, told = _launched(lines, asked)
    found = sweep(fields, load(asked.calibration), asked.where)
    if explain and found.varying:
        raise InputError("--explain is of one plan; give no comma lists beside it")
    if timeline:
        from reckon.verbs.timeline import schedule_events, write_timeline

        if found.varying:
            raise InputError("--timeline draws one plan; give no comma lists beside it")
        write_timeline(timeline, schedule_events(found.predictions[0]))
    why = found.predictions[0].explain() if explain else None
    if why:
        told["explain"] = why.to_dict()
    lots = None
    if monte_carlo is not None:
        if found.varying:
            raise InputError("--monte-carlo is of one plan; give no comma lists beside it")
        lots = told["monte_carlo"] = found.predictions[0].monte_carlo(monte_carlo)
    held = _finish(asked, found, "training-sweep", emit, told)
    if not asked.quiet and not emit:
        _show_training(found, why)
        if lots:
            from reckon.views.terminal import show_lots

            show_lots(lots)
    return _status(found, allow_oom, held)


def predict_infer(
    asked: Invocation,
    lines: Mapping[str, str],
    *,
    explain: bool,
    allow_oom: bool,
    emit: str | None,
) -> int:
    """Predict how a model is served, or one way for each combination of lists; returns the exit
    status."""
    from predictor.catalog import load
    from reckon.verbs.serving import sweep_serving

    fields, told = _launched(lines, asked)
    found = sweep_serving(fields, load(asked.calibration), asked.where)
    if explain and found.varying:
        raise InputError("--explain is of one plan; give no comma lists beside it")
    taxes = found.predictions[0].taxes() if explain else None
    if taxes:
        told["explain"] = {"taxes": taxes.to_dict()}
    held = _finish(asked, found, "inference-sweep", emit, told)
    if not asked.quiet and not emit:
        from reckon.views.serving import show_serving, show_serving_sweep

        if found.varying:
            show_serving_sweep(found)
        else:
            show_serving(found.predictions[0])
            _show_power(found.predictions[0])
        if taxes:
            from reckon.views.explanation import show_taxes

            show_taxes(taxes)
    return _status(found, allow_oom, held)


def _finish(
    asked: Invocation,
    found: Sweep[Any] | ServingSweep,
    kind: str,
    emit: str | None,
    told: Mapping[str, Any],
) -> bool:
    """Print the launch line and write the JSON, where they were asked for.

    told   what the JSON says beside the predictions

    Returns whether the line, read back, holds what was predicted; True where none was asked for.
    """
    extra = dict(told)
    if emit:
        from reckon.verbs.launching import emitted

        extra["emitted"] = emitted(emit, found, quiet=asked.quiet)
    held = bool(extra["emitted"]["read_back"]["holds"]) if emit else True
    if not asked.json:
        return held
    if len(found.predictions) == 1 and not found.varying:
        content = found.predictions[0].to_dict()
    else:
        content = {
            "schema_version": 1,
            "kind": kind,
            "predictions": [
                {"asked": asked_of, **result.to_dict()}
                for result, asked_of in zip(found.predictions, found.stated, strict=True)
            ],
            "refused": [{"plan": plan, "reason": why} for plan, why in found.refused],
        }
    asked.write({**content, **extra})
    return held


def _show_training(found: Sweep[Any], why: Explanation | None) -> None:
    from reckon.views.terminal import show_prediction, show_sweep

    if found.varying:
        show_sweep(found)
    else:
        one = found.predictions[0]
        show_prediction(one, top=0 if why else 6)
        _show_power(one)
    slow = None if found.varying else found.predictions[0].faults
    if slow:
        from reckon.views.terminal import show_faults

        show_faults(slow)
    if why:
        from reckon.views.explanation import show_explanation

        show_explanation(why)


def _show_power(result: Prediction | ServingResult) -> None:
    from reckon.views.power import show_power

    paced, limit = (getattr(result, name, None) for name in ("paced", "supposed_limit"))
    show_power(result.power, result.run_energy, paced, limit)


def _status(found: Sweep[Any] | ServingSweep, allow_oom: bool, held: bool) -> int:
    """0, or 2 where nothing that was predicted fits, or a launch line holds something else."""
    fits = any(result.fits for result in found.predictions)
    return 0 if held and (allow_oom or fits) else 2
