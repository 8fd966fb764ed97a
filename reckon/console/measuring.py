"""`reckon validate`, `calibrate`, `profile` and `import`: verbs of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from predictor.errors import InputError
from reckon.console.flags import argument, calibration_option, json_option, option, switch
from reckon.console.progress import working


@click.command(
    epilog="Example: reckon validate data/reference/training.csv --json out.json",
    params=[
        argument("tables", "POINTS...", nargs=-1, required=True, type=Path),
        calibration_option(),
        option("folds", "Refit without each source|model|accelerator.", "BY"),
        json_option(),
    ],
)
def validate(
    tables: tuple[Path, ...], calibration: str, folds: str | None, json: str | None
) -> int:
    """Predict every row of published tables (POINTS) and compare."""
    from reckon.verbs.validating import validate
    from reckon.views.validation import show_validation

    with working("predicting every row"):
        result = validate(list(tables), calibration, folds)
    return told(result, json, show_validation)


@click.command(
    epilog="Example: reckon calibrate out --base default --out out/calibration",
    params=[
        argument("measurements", "[DIR|FILE...]", nargs=-1, type=Path),
        option("out", "Where to write it.", "DIR", Path),
        option("reference", "Own runs, or published ones.", "RUNS", Path, multiple=True),
        option("suggest", "Plans: which to measure next.", "RUNS", Path),
        option("among", "What can be measured, if not those.", "RUNS", Path),
        option("base", "Start from this; 'none': afresh.", "NAME|DIR", default="default"),
        option("name", "Name of the calibration.", "TEXT"),
        option("system", "Of traces that do not say it.", "NAME"),
        json_option(),
    ],
)
def calibrate(
    measurements: tuple[Path, ...],
    out: Path | None,
    json: str | None,
    suggest: Path | None,
    among: Path | None,
    **rest: Any,
) -> int:
    """Fit efficiencies to measurements: profiles, kernel tables, traces; learn from own runs."""
    from reckon.verbs.calibrating import calibrate
    from reckon.views.measured import show_calibrated

    if suggest is not None:
        return _suggest(suggest, among, json, rest)
    if among is not None:
        raise InputError(
            "--among says what can be measured of what --suggest asks about: give both"
        )
    with working("calibrating"):
        found = calibrate(list(measurements), out or "", **rest)
    return told(found, json, show_calibrated)


@click.command(
    epilog="Example: reckon profile --budget 60s --ranks 2 --out out",
    params=[
        option("out", "Where to write the tables.", "DIR", Path, required=True),
        option("device", "auto, cpu, cuda:0, rocm, mps.", "D", default="auto"),
        option("budget", "Time to spend.", "T", default="120s"),
        option("ranks", "Processes for collectives; 1: none.", "N", int, default=1),
        option("threads", "CPU threads per process.", "N", int),
        option("models", "Whose kernels, e.g. gpt2,llama3-8b.", "NAMES"),
        option("modes", "Of eager, compiled, graph.", "NAMES"),
        option("backend", "Of collectives: gloo or nccl.", "NAME", default="gloo"),
        switch("resume", "Go on with what DIR holds."),
        option("trace", "Record a step there (.json.gz).", "FILE"),
    ],
)
def profile(out: Path, models: str | None, modes: str | None, **rest: Any) -> int:
    """Time kernels, collectives and small training steps on this machine (needs torch)."""
    from reckon.verbs.profiling import profile
    from reckon.views.measured import show_profile

    named, ways = ([p for p in (text or "").split(",") if p] for text in (models, modes))
    show_profile(profile(out, models=named, modes=ways or ["eager"], **rest))
    return 0


def _suggest(plans: Path, among: Path | None, json: str | None, rest: dict[str, Any]) -> int:
    """Say which plans to measure next, after the runs that are known."""
    from reckon.verbs.adapting import adapt, suggest
    from reckon.views.measured import show_suggested

    known = rest["base"]
    if rest["reference"]:
        known = adapt(known, list(rest["reference"]))
    found = {"schema_version": 1, "kind": "suggestions", "runs": suggest(known, plans, among=among)}
    return told(found, json, show_suggested)


KERNEL_FLAGS = {
    "accelerator": (option("accelerator", "Where the file does not name it.", "NAME"),),
    "op": (option("op", "Collective, where the file does not say.", "NAME"),),
    "link": (
        option("system", "To take the links from.", "NAME"),
        option("link", "Or the link itself, e.g. nvlink4.", "NAME"),
        option("link-gbs", "Its GB/s per GPU and direction.", "X", float),
        switch("in-switch", "Its switch reduces (NVLS, SHARP)."),
    ),
}
"""Flags that say what a foreign file of kernels does not."""


def _kernels(form: str, example: str) -> click.Command:
    """The command that reads kernels of a format."""

    def run(path: Path, out: Path, json: str | None, **stated: Any) -> int:
        from reckon.verbs.importing import import_table
        from reckon.views.measured import show_imported

        return told(import_table(form, path, out, **stated), json, show_imported)

    return click.Command(
        form,
        callback=run,
        params=[
            argument("path", "PATH", type=Path),
            option("out", "A .parquet, .csv or .csv.gz to write.", "FILE", Path, required=True),
            *(one for flags in KERNEL_FLAGS.values() for one in flags),
            json_option(),
        ],
        help=f"Turn measurements of {form} into a kernel table. PATH: a file, or a folder of "
        "tables.",
        epilog=f"Example: reckon import {form} {example}",
    )


import_aiconfigurator = _kernels("aiconfigurator", "gemm_perf.parquet --out gemm.parquet")
import_kineto = _kernels("kineto", "trace.json.gz --out kernels.parquet")
import_nccl_tests = _kernels("nccl-tests", "log.txt --system dgx-h100 --out nccl.parquet")
import_vidur = _kernels("vidur", "mlp.csv --accelerator a100 --out kernels.parquet")


def told(result: dict[str, Any], json: str | None, show: Any) -> int:
    """Write a result as JSON where that is asked for, and show it on the terminal."""
    if json:
        from reckon.console.files import write_json

        write_json(json, result)
    if json != "-":
        show(result)
    return 0
