"""The flags of `reckon plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from reckon.flags import CalibrationName, Json, Settings, Text, flag

plan_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

TRAIN_EXAMPLE = (
    "Example: reckon plan train --model gpt3-175b --system dgx-a100 --gpus 512 "
    "--global-batch 1536 --seq-len 2048. Every field takes a value, a list (1,2,4) or a range "
    "(1..8), which bounds the search; the others are searched."
)

REPORT_HELP = "Pictures, one HTML file."


@plan_app.command("train", epilog=TRAIN_EXAMPLE)
def plan_train_command(
    file: Annotated[Text, typer.Argument(metavar="[RUN.yaml]", help="Keys as the flags.")] = None,
    model: Annotated[Text, flag("model", "Catalog name, config.json or .yaml.", "NAME")] = None,
    system: Annotated[Text, flag("system", "Catalog name or .yaml.", "NAME")] = None,
    accelerator: Annotated[Text, flag("accelerator", "Instead of a system.", "NAME")] = None,
    gpus: Annotated[Text, flag("gpus", "N, a list, or LOW..HIGH; none: any.")] = None,
    global_batch: Annotated[Text, flag("global-batch", "Sequences per step.")] = None,
    batch_tokens: Annotated[Text, flag("batch-tokens", "Or tokens per step.")] = None,
    seq_len: Annotated[Text, flag("seq-len", "Tokens per sequence.")] = None,
    tp: Annotated[Text, flag("tp", "Tensor parallel.")] = None,
    pp: Annotated[Text, flag("pp", "Pipeline parallel.")] = None,
    vpp: Annotated[Text, flag("vpp", "Virtual stages per device.")] = None,
    cp: Annotated[Text, flag("cp", "Context parallel.")] = None,
    ep: Annotated[Text, flag("ep", "Expert parallel.")] = None,
    dp: Annotated[Text, flag("dp", "Data parallel.")] = None,
    micro_batch: Annotated[Text, flag("micro-batch", "Sequences per micro-batch.")] = None,
    precision: Annotated[Text, flag("precision", "fp16 bf16 fp8 ... (one: searched.)", "P")] = None,
    recompute: Annotated[Text, flag("recompute", "none selective per_op full.", "R")] = None,
    sharding: Annotated[Text, flag("sharding", "none zero1 zero2 fsdp hsdp.", "S")] = None,
    schedule: Annotated[Text, flag("schedule", "1f1b zb-h1 ...", "S")] = None,
    framework: Annotated[Text, flag("framework", "Whose defaults to assume.", "NAME")] = None,
    era: Annotated[Text, flag("era", "Of the framework, YYYY-MM.", "DATE")] = None,
    settings: Settings = None,
    tokens: Annotated[float | None, flag("tokens", "To train on.", "X")] = None,
    days: Annotated[float | None, flag("days", "At most so many.", "X")] = None,
    money: Annotated[
        float | None, flag("money", "At most so much, in the price's unit.", "X")
    ] = None,
    price: Annotated[float | None, flag("price", "Of a GPU-hour.", "X")] = None,
    memory_fraction: Annotated[
        float | None, flag("memory-fraction", "Of the memory (default 0.95).", "X")
    ] = None,
    tp_in_node: Annotated[
        bool, typer.Option("--tp-in-node", help="Tensor parallel inside the node only.")
    ] = False,
    objective: Annotated[Text, flag("objective", "time or cost.", "O")] = None,
    compare: Annotated[
        Text, flag("compare", "Your plan: .yaml, or 'tp=8 pp=4 ...'.", "PLAN")
    ] = None,
    top: Annotated[int, flag("top", "Plans to list.")] = 10,
    report: Annotated[Text, flag("report", REPORT_HELP, "FILE")] = None,
    calibration: CalibrationName = "default",
    json: Json = None,
) -> None:
    """The fastest (or cheapest) layout of a training run, the Pareto front, and why."""
    given = locals()
    from reckon.plan import FIELDS, LIMITS, run_train

    fields = {name: given[name] for name in FIELDS if given[name] is not None}
    limits = {name: given[name] for name in LIMITS if given[name] is not None}
    raise typer.Exit(
        run_train(
            file, fields, settings or [], limits, objective, compare, top, report, calibration, json
        )
    )
