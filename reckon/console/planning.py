"""`reckon plan train` and `reckon plan infer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from predictor import catalog
from predictor.errors import InputError
from predictor.plans import PLAN, SERVING_FIELDS, TRAINING_FIELDS
from reckon.console.files import line
from reckon.console.flags import (
    Invocation,
    Paneled,
    argument,
    calibration_option,
    field_options,
    invocation,
    json_option,
    option,
    settings_option,
    switch,
)
from reckon.console.progress import progress, working

if TYPE_CHECKING:
    from reckon.verbs.offers import InferenceSearch
    from reckon.verbs.plans import TrainingSearch

TRAIN_EXAMPLE = (
    "Example: reckon plan train --model gpt3-175b --system dgx-a100 --gpus 512 "
    "--global-batch 1536 --seq-len 2048. Every field may be a list or range."
)
INFER_EXAMPLE = (
    "Example: reckon plan infer --model llama3-70b --system dgx-h100,dgx-h200 --rate 20 "
    "--input-len 1024 --output-len 256 --ttft-ms 1000 --tpot-ms 40 --precision bf16,fp8"
)


class Budget(click.ParamType):
    """A number of tokens, also as 15T."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        try:
            return catalog.number("it", value)
        except InputError as error:
            self.fail(str(error), param, ctx)


BUDGET = Budget()

OFFLOADED: dict[str, Any] = {"offload_activations": [0, 0.5, 1], "offload_optimizer": [0, 1]}
"""What `--offload` adds to the search."""


def _training_bounds() -> list[click.Option]:
    """Flags that bound a search of training plans and are no fields of one."""
    return [
        option("batch-tokens", "Instead of --global-batch: tokens per step.", "X", BUDGET),
        option("tokens", "To train on.", "X", BUDGET),
        option("days", "At most so many.", "X", float),
        option("money", "At most so much, in the price's unit.", "X", float),
        option("price-per-gpu-hour", "Adds money.", "X", float, key="price"),
        option("memory-fraction", "Of the memory (default 0.95).", "X", float),
        switch("tp-in-node", "Tensor parallel inside the node only.", unless=None),
        option("objective", "time, cost, energy, money.", "O"),
        option("power-limits", "To try for energy, money.", "W,W"),
        option("slower", "For these: 0.05, 5 % at most.", "X", float),
        option("price-per-kwh", "Adds it to money.", "X", float),
        option("stage-clocks", "For these: stage or pass.", "EACH"),
    ]


def _serving_promise() -> list[click.Option]:
    """Flags of the load and the promise, which are no fields of a serving plan."""
    return [
        option("rate", "Requests per second.", "X", float),
        option("load", "Or a table: hour, requests_per_s.", "CSV"),
        option("ttft-ms", "Promised first token.", "X", float),
        option("tpot-ms", "Promised time per token.", "X", float),
        option("ttft-percentile", "Of requests that meet it (90).", "P", float),
        option("tpot-percentile", "Of requests that meet it (90).", "P", float),
        option("headroom", "Load to carry beyond, 0.2: 20 %.", "X", float),
        option("spare", "Engines beyond those needed.", "N", int),
        option("price-per-gpu-hour", "X, or SYSTEM=X,...", "X", key="price"),
        option("objective", "gpus, cost, energy, money.", "O"),
        option("power-limits", "To try for energy, money.", "W,W"),
        option("price-per-kwh", "Adds it to money.", "X", float),
        option("simulate", "Requests that finalists serve one by one; 0: 2,000.", "N", int),
    ]


def _telling(what: str) -> list[click.Option]:
    """Flags of how a search is told."""
    return [
        settings_option(),
        option("top", f"{what} to list.", "N", int, default=10),
        option("report", "Pictures, one HTML file.", "FILE"),
        calibration_option(),
        json_option(),
        option("emit", "Launch line instead.", "NAME"),
        option("for", "Only what its launch line can say.", "NAME", key="target"),
    ]


def train_command() -> click.Command:
    """`reckon plan train`."""
    bounds = _training_bounds()
    flags = field_options(TRAINING_FIELDS, PLAN)

    def run(compare: str | None, offload: bool, top: int, target: str | None, **given: Any) -> int:
        from reckon.verbs.plans import asked
        from reckon.views.plans import show_training
        from reckon.views.report import write_training

        said = invocation(given, [*flags, *bounds], also=OFFLOADED if offload else {})
        drawn(given["report"])
        own = read_plan(compare) if compare else None
        with progress("searching") as told:
            found = asked(
                said.fields,
                said.calibration,
                said.where,
                compare=own,
                keep=max(top, 100),
                target=aim(given["emit"], target),
                progress=told,
            )
        return _told(
            said,
            found,
            show=lambda: show_training(found, top),
            draw=lambda path: write_training(path, found, top, line()),
            top=top,
            **given,
        )

    return Paneled(
        "train",
        callback=run,
        params=[
            argument("file", "[RUN.yaml]", required=False),
            *flags,
            *bounds,
            switch("offload", "Also search offloading to the host."),
            option("compare", "Your plan: .yaml, or 'tp=8 pp=4 ...'.", "PLAN"),
            *_telling("Plans"),
        ],
        help="The fastest or cheapest layout, the Pareto front, and why. RUN.yaml: a file.",
        epilog=TRAIN_EXAMPLE,
    )


def infer_command() -> click.Command:
    """`reckon plan infer`."""
    promise = _serving_promise()
    flags = field_options(SERVING_FIELDS, PLAN)

    def run(top: int, target: str | None, **given: Any) -> int:
        from reckon.verbs.fleets import asked
        from reckon.views.fleets import show_inference
        from reckon.views.report import write_inference

        said = invocation(given, [*flags, *promise])
        drawn(given["report"])
        aimed = aim(given["emit"], target)
        with working("searching fleets"):
            found = asked(said.fields, said.calibration, said.where, target=aimed)
        return _told(
            said,
            found,
            show=lambda: show_inference(found, top),
            draw=lambda path: write_inference(path, found, top, line()),
            top=top,
            **given,
        )

    return Paneled(
        "infer",
        callback=run,
        params=[
            argument("file", "[RUN.yaml]", required=False),
            *flags,
            *promise,
            *_telling("Fleets"),
        ],
        help="The fewest GPUs, or the least money, for a load within promised latencies. "
        "RUN.yaml has keys as the flags.",
        epilog=INFER_EXAMPLE,
    )


def _told(
    said: Invocation,
    found: TrainingSearch | InferenceSearch,
    *,
    show: Callable[[], None],
    draw: Callable[[Path], None],
    top: int,
    report: str | None,
    emit: str | None,
) -> int:
    """Tell what was found: as a launch line or on the terminal, as JSON, in pictures."""
    line = {"emitted": found.emit(emit, quiet=said.quiet)} if emit else {}
    if said.json:
        said.write({**found.to_dict(max(top, 1)), **line})
    if not said.quiet and not emit:
        show()
    if report:  # last, so that a report that fails never loses the ranking
        draw(Path(report))
        if not said.quiet and not emit:
            print(f"\npictures in {report}")
    return 0 if not line or line["emitted"]["read_back"]["holds"] else 2


def drawn(report: str | None) -> str | None:
    """Where pictures go; asked before a search. Raises InputError for what is no page."""
    if report is not None and Path(report).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--report {report}: pictures are a page; give a FILE.html")
    return report


def aim(emit: str | None, target: str | None) -> str | None:
    """The target of a search: that of `--for`, else the one whose line is written.

    Raises InputError where they are two.
    """
    from reckon.launch import framework_of

    if emit is None or target is None:
        return target or emit
    if framework_of(emit) != framework_of(target):
        raise InputError(f"--for {target} and --emit {emit} are two targets; give one")
    return target


def read_plan(text: str) -> dict[str, Any]:
    """A plan as a YAML file, or as 'tp=8 pp=4'."""
    if "=" not in text:
        return dict(catalog.read_mapping(Path(text)))
    pairs = (word.partition("=") for word in text.replace(",", " ").split())
    return {key.replace("-", "_"): value for key, _, value in pairs}
