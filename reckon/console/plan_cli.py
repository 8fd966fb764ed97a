"""The flags of `reckon plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from reckon.console.flags import (
    CP,
    EP,
    PP,
    TP,
    VPP,
    AcceleratorName,
    CalibrationName,
    Emit,
    EngineEra,
    EngineName,
    For,
    InputLen,
    Json,
    MicroBatch,
    ModelName,
    OutputLen,
    Report,
    RunFile,
    SeqLen,
    Settings,
    SystemName,
    Text,
    TrainingEra,
    TrainingFramework,
    flag,
)

plan_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

TRAIN_EXAMPLE = (
    "Example: reckon plan train --model gpt3-175b --system dgx-a100 --gpus 512 "
    "--global-batch 1536 --seq-len 2048. Every field takes a value, a list (1,2,4) or a range "
    "(1..8), which bounds the search; the others are searched."
)


@plan_app.command("train", epilog=TRAIN_EXAMPLE)
def plan_train_command(
    file: RunFile = None,
    model: ModelName = None,
    system: SystemName = None,
    accelerator: AcceleratorName = None,
    gpus: Annotated[Text, flag("gpus", "N, a list, or LOW..HIGH; none: any.")] = None,
    global_batch: Annotated[Text, flag("global-batch", "Sequences per step.")] = None,
    batch_tokens: Annotated[Text, flag("batch-tokens", "Or tokens per step.")] = None,
    seq_len: SeqLen = None,
    tp: TP = None,
    pp: PP = None,
    vpp: VPP = None,
    cp: CP = None,
    ep: EP = None,
    dp: Annotated[Text, flag("dp", "Data parallel.")] = None,
    micro_batch: MicroBatch = None,
    precision: Annotated[Text, flag("precision", "fp16 bf16 fp8 ... (one: searched.)", "P")] = None,
    recompute: Annotated[Text, flag("recompute", "none selective per_op full.", "R")] = None,
    sharding: Annotated[Text, flag("sharding", "none zero1 zero2 fsdp hsdp.", "S")] = None,
    schedule: Annotated[Text, flag("schedule", "1f1b zb-h1 ...", "S")] = None,
    framework: TrainingFramework = None,
    era: TrainingEra = None,
    settings: Settings = None,
    tokens: Annotated[float | None, flag("tokens", "To train on.", "X")] = None,
    days: Annotated[float | None, flag("days", "At most so many.", "X")] = None,
    money: Annotated[
        float | None, flag("money", "At most so much, in the price's unit.", "X")
    ] = None,
    price: Annotated[float | None, flag("price-per-gpu-hour", "Adds money.", "X")] = None,
    memory_fraction: Annotated[
        float | None, flag("memory-fraction", "Of the memory (default 0.95).", "X")
    ] = None,
    tp_in_node: Annotated[
        bool, typer.Option("--tp-in-node", help="Tensor parallel inside the node only.")
    ] = False,
    offload: Annotated[
        bool, typer.Option("--offload", help="Also search offloading to the host.")
    ] = False,
    objective: Annotated[Text, flag("objective", "time or cost.", "O")] = None,
    compare: Annotated[
        Text, flag("compare", "Your plan: .yaml, or 'tp=8 pp=4 ...'.", "PLAN")
    ] = None,
    top: Annotated[int, flag("top", "Plans to list.")] = 10,
    report: Report = None,
    calibration: CalibrationName = "default",
    json: Json = None,
    emit: Emit = None,
    target: For = None,
) -> None:
    """The fastest (or cheapest) layout of a training run, the Pareto front, and why."""
    given = locals()
    from reckon.console.plan_commands import plan_train
    from reckon.verbs.plans import FIELDS, LIMITS, OFFLOADED

    fields = {n: given[n] for n in (*FIELDS, *LIMITS, "objective") if given[n] is not None}
    fields |= OFFLOADED if offload else {}
    raise typer.Exit(
        plan_train(
            file, fields, settings or [], compare, top, report, calibration, json, emit, target
        )
    )


INFER_EXAMPLE = (
    "Example: reckon plan infer --model llama3-70b --system dgx-h100,dgx-h200 --rate 20 "
    "--input-len 1024 --output-len 256 --ttft-ms 1000 --tpot-ms 40 --precision bf16,fp8"
)


@plan_app.command("infer", epilog=INFER_EXAMPLE)
def plan_infer_command(
    file: RunFile = None,
    model: ModelName = None,
    system: Annotated[Text, flag("system", "To choose among.", "NAME,...")] = None,
    accelerator: Annotated[Text, flag("accelerator", "Instead of systems.", "NAME,...")] = None,
    rate: Annotated[float | None, flag("rate", "Requests per second.", "X")] = None,
    load: Annotated[Text, flag("load", "Or a table: hour, requests_per_s.", "CSV")] = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    ttft_ms: Annotated[float | None, flag("ttft-ms", "Promised first token.", "X")] = None,
    tpot_ms: Annotated[float | None, flag("tpot-ms", "Promised time per token.", "X")] = None,
    ttft_percentile: Annotated[
        float | None, flag("ttft-percentile", "Of requests that meet it (90).", "P")
    ] = None,
    tpot_percentile: Annotated[
        float | None, flag("tpot-percentile", "Of requests that meet it (90).", "P")
    ] = None,
    headroom: Annotated[
        float | None, flag("headroom", "Load to carry beyond, 0.2: 20 %.", "X")
    ] = None,
    spare: Annotated[int | None, flag("spare", "Engines beyond those needed.")] = None,
    tp: TP = None,
    pp: PP = None,
    dp: Annotated[Text, flag("dp", "Attention replicas of a mixture.")] = None,
    ep: EP = None,
    prefill_workers: Annotated[
        Text, flag("prefill-workers", "That read prompts apart; 0: none.")
    ] = None,
    precision: Annotated[Text, flag("precision", "bf16,fp8,int4_wo ...", "P")] = None,
    kv_precision: Annotated[Text, flag("kv-precision", "bf16,fp8 cache.", "P")] = None,
    framework: EngineName = None,
    era: EngineEra = None,
    price: Annotated[Text, flag("price-per-gpu-hour", "X, or SYSTEM=X,...", "X")] = None,
    objective: Annotated[Text, flag("objective", "gpus or cost.", "O")] = None,
    simulate: Annotated[int | None, flag("simulate", "Check the best with N requests.")] = None,
    settings: Settings = None,
    top: Annotated[int, flag("top", "Fleets to list.")] = 10,
    report: Report = None,
    calibration: CalibrationName = "default",
    json: Json = None,
    emit: Emit = None,
    target: For = None,
) -> None:
    """The fewest GPUs, or the least money, for a load within promised latencies."""
    given = locals()
    from reckon.console.plan_commands import plan_infer
    from reckon.verbs.fleets import OPTIONS, STATED

    fields = {name: given[name] for name in (*STATED, *OPTIONS) if given[name] is not None}
    raise typer.Exit(
        plan_infer(file, fields, settings or [], top, report, calibration, json, emit, target)
    )
