"""The command line: parses flags, calls the verbs, and turns errors into one line.

Exit status: 0 done, 2 bad input (one line on stderr), 1 internal error.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from predictor.errors import InputError
from reckon import __version__
from reckon.console.explore_cli import register as register_explore
from reckon.console.flags import (
    CP,
    EP,
    PP,
    TP,
    VPP,
    AcceleratorName,
    CalibrationName,
    EngineEra,
    EngineName,
    InputLen,
    Json,
    MicroBatch,
    ModelName,
    OutputLen,
    RunFile,
    SeqLen,
    Settings,
    SystemName,
    Text,
    TrainingEra,
    TrainingFramework,
    flag,
)
from reckon.console.plan_cli import plan_app

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How fast will this language model train or serve on these accelerators?",
)
predict_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(predict_app, name="predict", help="Predict a run.")
app.add_typer(plan_app, name="plan", help="Find the best plan.")

EXAMPLE = (
    "Example: reckon predict train --model llama3-70b --system dgx-h100 --gpus 1024 "
    "--tp 8 --pp 4 --global-batch 1024 --seq-len 8192"
)


@app.callback(invoke_without_command=True)
def main_callback(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Global flags."""
    if version:
        print(f"reckon {__version__}")
        raise typer.Exit


@predict_app.command("train", epilog=EXAMPLE)
def predict_train_command(
    file: RunFile = None,
    model: ModelName = None,
    system: SystemName = None,
    accelerator: AcceleratorName = None,
    gpus: Annotated[Text, flag("gpus", "Accelerators in all.")] = None,
    tp: TP = None,
    pp: PP = None,
    vpp: VPP = None,
    cp: CP = None,
    ep: EP = None,
    dp: Annotated[Text, flag("dp", "Data parallel (default: what remains).")] = None,
    micro_batch: MicroBatch = None,
    global_batch: Annotated[Text, flag("global-batch", "Sequences per step.")] = None,
    seq_len: SeqLen = None,
    precision: Annotated[Text, flag("precision", "fp32 tf32 fp16 bf16 fp8 ...", "P")] = None,
    recompute: Annotated[Text, flag("recompute", "none selective per_op full fit.", "R")] = None,
    sharding: Annotated[Text, flag("sharding", "none zero1 zero2 zero3 fsdp hsdp.", "S")] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option("--sequence-parallel/--no-sequence-parallel", help="Megatron's flag."),
    ] = None,
    attention: Annotated[Text, flag("attention", "flash or unfused.", "A")] = None,
    framework: TrainingFramework = None,
    era: TrainingEra = None,
    tokens: Annotated[Text, flag("tokens", "Budget: adds days, goodput, GPU-hours.")] = None,
    price_per_gpu_hour: Annotated[Text, flag("price-per-gpu-hour", "Adds money.", "X")] = None,
    settings: Settings = None,
    calibration: CalibrationName = "default",
    json: Json = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="What would help most, and what is known.")
    ] = False,
    timeline: Annotated[Text, flag("timeline", "Schedule as a trace (Perfetto).", "FILE")] = None,
    allow_oom: Annotated[
        bool, typer.Option("--allow-oom", help="Exit 0 even if it does not fit.")
    ] = False,
    emit: Annotated[Text, flag("emit", "Launch line: megatron torchtitan ...", "NAME")] = None,
    from_megatron: Annotated[
        Text,
        typer.Option(
            "--from-megatron", "--from-megatron-lm", metavar="LINE|FILE", help="Read such a line."
        ),
    ] = None,
    from_torchtitan: Annotated[
        Text, flag("from-torchtitan", "Or -nemo, -deepspeed.", "LINE|FILE")
    ] = None,
    from_nemo: Annotated[
        Text, typer.Option("--from-nemo", "--from-megatron-bridge", hidden=True)
    ] = None,
    from_deepspeed: Annotated[Text, typer.Option("--from-deepspeed", hidden=True)] = None,
) -> None:
    """Step time, memory and bottlenecks of a training run. Comma lists give a row each."""
    given = locals()
    from reckon.console.commands import FLAGS, predict_train

    flags = {name: given[name] for name in FLAGS if given[name] is not None}
    lines = {name: given[name] for name in given if name.startswith("from_") and given[name]}
    raise typer.Exit(
        predict_train(
            file,
            flags,
            settings or [],
            calibration,
            json,
            allow_oom,
            explain,
            lines,
            emit,
            timeline,
        )
    )


def _explain(trace: Path, **given: Any) -> None:
    """A recorded step (a trace of PyTorch's profiler) against its prediction, term by term."""
    from reckon.console.commands import FLAGS, explain

    flags = {name: given[name] for name in FLAGS if given.get(name) is not None}
    rest = (given["calibration"], given["json"], given["timeline"])
    raise typer.Exit(explain(trace, flags, given["settings"] or [], *rest))


NOT_OF_A_TRACE = ("file", "allow_oom", "explain", "emit", "tokens", "price_per_gpu_hour")
"""Flags of `predict train` that say nothing of a recorded step."""


def _as_predict_train(run: Any) -> Any:
    """Give a command the flags of `predict train`, behind the name of a trace."""
    described = inspect.signature(predict_train_command, eval_str=True)
    kept = [
        p
        for name, p in described.parameters.items()
        if name not in NOT_OF_A_TRACE and not name.startswith("from_")
    ]
    trace = inspect.Parameter(
        "trace",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        annotation=Annotated[Path, typer.Argument(metavar="TRACE", help="A .json or .json.gz.")],
    )
    run.__signature__ = described.replace(parameters=[trace, *kept])
    run.__annotations__ = {p.name: p.annotation for p in (trace, *kept)}
    return run


app.command(
    "explain",
    epilog="Example: reckon explain trace.json.gz --model llama3-8b --system dgx-h100 --gpus 8 "
    "--tp 8 --global-batch 8 --seq-len 8192",
)(_as_predict_train(_explain))


INFER_EXAMPLE = (
    "Example: reckon predict infer --model llama3-70b --system dgx-h200 --gpus 8 --tp 8 "
    "--batch 64 --input-len 1024 --output-len 256"
)


@predict_app.command("infer", epilog=INFER_EXAMPLE)
def predict_infer_command(
    file: RunFile = None,
    model: ModelName = None,
    system: SystemName = None,
    accelerator: AcceleratorName = None,
    gpus: Annotated[Text, flag("gpus", "Accelerators in all.")] = None,
    tp: TP = None,
    pp: PP = None,
    dp: Annotated[Text, flag("dp", "Replicas of the attention (dense: of all).")] = None,
    ep: EP = None,
    batch: Annotated[Text, flag("batch", "Requests that start together.")] = None,
    concurrency: Annotated[Text, flag("concurrency", "Or clients, one request each.")] = None,
    saturated: Annotated[
        bool | None, typer.Option("--saturated", help="Or as many requests as fit.")
    ] = None,
    rate: Annotated[Text, flag("rate", "Or requests per second, at random.", "X")] = None,
    simulate: Annotated[Text, flag("simulate", "Also serve N requests one by one.")] = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    precision: Annotated[
        Text, flag("precision", "bf16 fp8 fp8_block sq int8_wo int4_wo ...", "P")
    ] = None,
    kv_precision: Annotated[Text, flag("kv-precision", "bf16, fp8 or int8 cache.", "P")] = None,
    framework: EngineName = None,
    era: EngineEra = None,
    settings: Settings = None,
    calibration: CalibrationName = "default",
    json: Json = None,
    allow_oom: Annotated[
        bool, typer.Option("--allow-oom", help="Exit 0 even if it does not fit.")
    ] = False,
    emit: Annotated[Text, flag("emit", "Launch line: vllm sglang trtllm.", "NAME")] = None,
    from_vllm: Annotated[Text, flag("from-vllm", "Read such a line.", "LINE|FILE")] = None,
    from_sglang: Annotated[Text, flag("from-sglang", "Or of SGLang.", "LINE|FILE")] = None,
    from_trtllm: Annotated[
        Text,
        typer.Option(
            "--from-trtllm", "--from-tensorrt-llm", metavar="LINE|FILE", help="Or TensorRT-LLM."
        ),
    ] = None,
) -> None:
    """Time to first token, time per token, throughput, memory. Comma lists give a row each."""
    given = locals()
    from reckon.console.commands import INFER_FLAGS, predict_infer

    flags = {name: given[name] for name in INFER_FLAGS if given[name] is not None}
    lines = {name: given[name] for name in given if name.startswith("from_") and given[name]}
    raise typer.Exit(
        predict_infer(file, flags, settings or [], calibration, json, allow_oom, lines, emit)
    )


@app.command(epilog="Example: reckon sweep grid.yaml --out swept --workers 8")
def sweep(
    grid: Annotated[Text, typer.Argument(metavar="GRID.yaml", help="Fields with lists.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Parquet dataset to fill.")],
    workers: Annotated[int | None, flag("workers", "Processes (default: all cores).")] = None,
    cluster: Annotated[Text, flag("cluster", "Dask scheduler instead.", "tcp://HOST:PORT")] = None,
    chunk: Annotated[int | None, flag("chunk", "Cells of a file.")] = None,
    calibration: CalibrationName = "default",
    json: Json = None,
) -> None:
    """Predict every combination of a grid, in parallel; run again to resume or to add."""
    from reckon.sweeping import run

    raise typer.Exit(run(str(grid), str(out), calibration, workers, cluster, chunk, json))


@app.command(epilog="Example: reckon validate data/reference/training.csv --json out.json")
def validate(
    tables: Annotated[list[Path], typer.Argument(metavar="POINTS...", help="Published tables.")],
    calibration: CalibrationName = "default",
    folds: Annotated[
        Text,
        typer.Option("--folds", metavar="BY", help="Refit without each source|model|accelerator."),
    ] = None,
    json: Json = None,
) -> None:
    """Predict every row of published tables and compare."""
    from reckon.console.commands import validate as run

    raise typer.Exit(run(tables, calibration, folds, json))


@app.command(epilog="Example: reckon calibrate out --base default --out out/calibration")
def calibrate(
    measurements: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE...", help="Profiles, kernel tables, traces.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.")],
    reference: Annotated[
        list[Path] | None,
        typer.Option("--reference", metavar="POINTS", help="Published or own runs."),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="NAME|DIR", help="Start from this; 'none': afresh.")
    ] = "default",
    name: Annotated[Text, typer.Option("--name", help="Name of the calibration.")] = None,
    system: Annotated[Text, flag("system", "Of traces that do not say it.", "NAME")] = None,
    json: Json = None,
) -> None:
    """Fit efficiencies to measurements."""
    from reckon.console.commands import calibrate as run

    raise typer.Exit(run(measurements, out, reference or [], base, name, system, json))


@app.command(epilog="Example: reckon profile --budget 60s --ranks 2 --out out")
def profile(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the tables.")],
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="auto, cpu, cuda:0, rocm, mps.")
    ] = "auto",
    budget: Annotated[str, typer.Option("--budget", metavar="T", help="Time to spend.")] = "120s",
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="Processes for collectives; 1: none.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads per process.")
    ] = None,
    models: Annotated[Text, flag("models", "Whose kernels, e.g. gpt2,llama3-8b.", "NAMES")] = None,
    modes: Annotated[Text, flag("modes", "Of eager, compiled, graph.", "NAMES")] = None,
    backend: Annotated[str, flag("backend", "Of collectives: gloo or nccl.", "NAME")] = "gloo",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds.")] = False,
    trace: Annotated[Text, flag("trace", "Record a step there (.json.gz).", "FILE")] = None,
) -> None:
    """Time kernels, collectives and small training steps on this machine (needs torch)."""
    from reckon.console.commands import profile as run

    more = {"threads": threads, "models": models, "modes": modes, "backend": backend}
    raise typer.Exit(run(out, device, budget, ranks, **more, resume=resume, trace=trace))


@app.command(
    "import",
    epilog="Example: reckon import nccl-tests log.txt --system dgx-h100 --out nccl.parquet",
)
def import_command(
    form: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help="aiconfigurator, kineto, nccl-tests or vidur."),
    ],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File, or folder of tables.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A .parquet, .csv or .csv.gz to write.")
    ],
    accelerator: Annotated[
        Text, flag("accelerator", "Where the file does not name it.", "NAME")
    ] = None,
    op: Annotated[Text, flag("op", "Collective, where the file does not say.", "NAME")] = None,
    system: Annotated[Text, flag("system", "To take the links from.", "NAME")] = None,
    link: Annotated[Text, flag("link", "Or the link itself, e.g. nvlink4.", "NAME")] = None,
    link_gbs: Annotated[
        float | None, flag("link-gbs", "Its GB/s per GPU and direction.", "X")
    ] = None,
    in_switch: Annotated[
        bool, typer.Option("--in-switch", help="Its switch reduces (NVLS, SHARP).")
    ] = False,
    json: Json = None,
) -> None:
    """Turn measurements of others into a kernel table."""
    names = ("accelerator", "op", "link", "link_gbs", "in_switch", "system")
    given = locals()
    from reckon.console.commands import import_table as run

    raise typer.Exit(run(form, path, out, {name: given[name] for name in names}, json))


@app.command(epilog="Example: reckon show models llama3-70b")
def show(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="accelerators, systems, models, calibrations.")
    ],
    name: Annotated[Text, typer.Argument(metavar="[NAME]")] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="As a file to edit and pass back.")] = False,
    json: Json = None,
) -> None:
    """List a catalog, or show one entry."""
    from reckon.console.commands import show as run

    raise typer.Exit(run(kind, name, yaml, json))


register_explore(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        status = app(args=arguments, prog_name="reckon", standalone_mode=False)
        return int(status or 0)
    except InputError as error:
        print(f"reckon: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reckon: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        # The parser's own complaints about flags know how to word themselves.
        if hasattr(error, "format_message"):
            print(f"reckon: {error.format_message()}", file=sys.stderr)
            return 2
        if type(error).__name__ in ("Abort", "Exit"):
            return int(getattr(error, "exit_code", 1))
        raise


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
