"""`reckon import runs`: a verb of one's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from predictor.errors import InputError
from reckon.console.flags import (
    argument,
    json_option,
    option,
    settings,
    settings_option,
)

DIALECTS = ("megatron", "torchtitan", "nemo", "deepspeed", "vllm", "sglang", "trtllm",
            "tgi", "lmdeploy", "llama-cpp")  # fmt: skip
"""Launch lines that may stand beside a log."""

LINES = [
    option(f"from-{name}", "Launch line or its file (-torchtitan, ...).", "TEXT|FILE",
           hidden=name != "megatron")
    for name in DIALECTS
]  # fmt: skip


def launch_of(given: dict[str, Any]) -> tuple[str, str]:
    """The launch line among flags, taken out of them; ('', '') where there is none."""
    said = {name: given.pop(f"from_{name}".replace("-", "_")) for name in DIALECTS}
    lines = {name: text for name, text in said.items() if text}
    if len(lines) > 1:
        raise InputError(f"give one launch line, not {' and '.join(lines)}")
    return next(iter(lines.items()), ("", ""))


@click.command(
    epilog="Example: reckon import runs train.log --system dgx-h100 --out mine.csv",
    params=[
        argument("files", "FILE...", nargs=-1, required=True, type=Path),
        option("out", "A .parquet, .csv or .csv.gz to write.", "FILE", Path, required=True),
        option("form", "Their form, where it is not found out.", "NAME"),
        option("model", "Where they do not say it.", "NAME|FILE"),
        option("system", "What they ran on.", "NAME|FILE"),
        option("accelerator", "Or its accelerator.", "NAME"),
        option("gpus", "Accelerators in all.", "N", int),
        option("source", "What the table calls the source.", "NAME", default="own"),
        *LINES,
        settings_option(),
        json_option(),
    ],
)
def import_runs(files: tuple[Path, ...], out: Path, json: str | None, **given: Any) -> int:
    """Read logs of training and reports of serving benchmarks into one table of runs.

    FILE: a log, trainer_state.json, an event file, a table of Weights & Biases, a report.
    """
    from reckon.console.measuring import told
    from reckon.logs.rows import Given
    from reckon.verbs.runs import import_runs
    from reckon.views.runs import show_runs

    launch = launch_of(given)
    fields = settings(given.pop("set"))
    fields |= {k: v for k in ("accelerator", "gpus") if (v := given.pop(k)) is not None}
    form, said = given.pop("form") or "", given
    said_fields = {key: number_of(value) for key, value in fields.items()}
    beside = Given(said_fields, said["model"], said["system"], launch, said["source"])
    return told(import_runs(list(files), out, beside, form), json, show_runs)


def number_of(value: Any) -> Any:
    """A flag's text as the number that it is."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return value
    return int(found) if found.is_integer() else found
