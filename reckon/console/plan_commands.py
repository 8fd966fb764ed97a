"""What `reckon plan` does with its parsed flags; returns the exit status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from reckon.console.commands import settings_of
from reckon.launch import framework_of
from reckon.verbs.fleets import InferenceSearch
from reckon.verbs.fleets import asked as asked_fleet
from reckon.verbs.plans import TrainingSearch, asked


def _stated(file: str | None, fields: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """A request from a file, flags and further settings; later ones count."""
    content = dict(catalog.read_mapping(Path(file))) if file else {}
    return {**content, **fields, **settings_of(settings)}


def _told(
    found: TrainingSearch | InferenceSearch,
    show: Callable[[], None],
    draw: Callable[[Path], None],
    top: int,
    report: str | None,
    json: str | None,
    emit: str | None,
) -> int:
    """Tell what was found: as a launch line or on the terminal, as JSON, in pictures."""
    line = {"emitted": found.emit(emit, quiet=json == "-")} if emit else {}
    if json:
        from reckon.console.files import write_json

        write_json(json, {**found.to_dict(max(top, 1)), **line})
    if report:
        draw(Path(report))
    if json != "-" and not emit:
        show()
        if report:
            print(f"\npictures in {report}")
    return 0 if not line or line["emitted"]["read_back"]["holds"] else 2


def aim(emit: str | None, target: str | None) -> str | None:
    """The target of a search: that of `--for`, else the one whose line is written.

    Raises InputError where they are two.
    """
    if emit is None or target is None:
        return target or emit
    if framework_of(emit) != framework_of(target):
        raise InputError(f"--for {target} and --emit {emit} are two targets; give one")
    return target


def plan_train(
    file: str | None,
    fields: dict[str, Any],
    settings: list[str],
    compare: str | None,
    top: int,
    report: str | None,
    calibration: str,
    json: str | None,
    emit: str | None = None,
    target: str | None = None,
) -> int:
    """The verb `reckon plan train`."""
    from reckon.views.plans import show_training
    from reckon.views.report import write_training

    own = read_plan(compare) if compare else None
    stated = _stated(file, fields, settings)
    goal = aim(emit, target)
    found = asked(stated, calibration, compare=own, keep=max(top, 100), target=goal)
    return _told(
        found,
        lambda: show_training(found, top),
        lambda path: write_training(path, found, top),
        top, report, json, emit,
    )  # fmt: skip


def plan_infer(
    file: str | None,
    fields: dict[str, Any],
    settings: list[str],
    top: int,
    report: str | None,
    calibration: str,
    json: str | None,
    emit: str | None = None,
    target: str | None = None,
) -> int:
    """The verb `reckon plan infer`."""
    from reckon.views.fleets import show_inference
    from reckon.views.report import write_inference

    stated = _stated(file, fields, settings)
    found = asked_fleet(stated, calibration, target=aim(emit, target))
    return _told(
        found,
        lambda: show_inference(found, top),
        lambda path: write_inference(path, found, top),
        top, report, json, emit,
    )  # fmt: skip


def read_plan(text: str) -> dict[str, Any]:
    """A plan as a YAML file, or as 'tp=8 pp=4'."""
    if "=" not in text:
        return dict(catalog.read_mapping(Path(text)))
    pairs = (word.partition("=") for word in text.replace(",", " ").split())
    return {key.replace("-", "_"): value for key, _, value in pairs}
