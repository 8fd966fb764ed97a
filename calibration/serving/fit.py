"""Parameters of serving engines, fitted to published runs with shrinkage; refitted by
`python -m calibration.serving.fit TABLE... --out data/calibrations/default`.

The work of every row is timed once; then latencies are arithmetic (`predictor.serving.latencies`),
and the logarithms of an engine's parameters are least squares on log errors (Cauchy's loss), each
drawn towards the mean of all engines, and that towards a documented default.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.serving import open_loops
from calibration.serving.engines import fit_engines, held_out, parameters_of, telling
from calibration.serving.spreads import fit_spreads, loads_of, operator_sigma
from calibration.serving.timed import published, select, timed
from calibration.serving.unnamed import HIDDEN, fit_added, hidden_points
from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Skipped
from predictor.catalog import (
    FILE,
    engines_mapping,
    load,
)
from predictor.errors import InputError
from predictor.files import prepare_folder, write_text
from predictor.schema import INFERENCE_KEYS, of_inference
from predictor.timing import (
    Calibration,
    RunParameters,
    ServingParameters,
)


def fit(
    points: Sequence[InferencePoint],
    calibration: Calibration,
    aside: Mapping[str, Sequence[InferencePoint]] | None = None,
) -> ServingParameters:
    """Parameters of engines and spreads of runs, from all points.

    aside   points of which something is hidden (`hidden_points`), by its name, to which nothing but
            what that adds to the spread is fitted
    """
    kinds = {id(point): what for what, own in (aside or {}).items() for point in own}
    every, _ = timed([*points, *(p for own in (aside or {}).values() for p in own)], calibration)
    every = select(every, telling(every))
    kind = np.array([kinds.get(id(point), "") for point in every.points], object)
    said = kind == ""
    found = select(every, said)
    engines_ = fit_engines(found)
    off = np.log(held_out(every, [p.source for p in every.points], said) / published(every))
    errors = off[said]
    fitted = replace(calibration, serving=ServingParameters(engines_))
    opened, arrived, _ = open_loops.predicted([p for p in points if p.rate is not None], fitted)
    missed = np.log(arrived / np.array([point.value for point in opened]))
    own = parameters_of(found, engines_)
    sigma = fit_spreads(
        [*found.points, *opened],
        np.concatenate([errors, missed]),
        np.hstack([operator_sigma(found, own), np.zeros((2, len(opened)))]),
        np.hstack([loads_of(found, own), open_loops.loads_of(opened, fitted)]),
        calibration.interval_q,
        calibration.interval_level,
    )
    known = ServingParameters(engines_, sigma)
    for what in aside or {}:
        part = select(every, kind == what)
        theirs = parameters_of(part, engines_)
        sigma = sigma | fit_added(
            what,
            points=part.points,
            errors=off[kind == what],
            operators=operator_sigma(part, theirs),
            loads=loads_of(part, theirs),
            parameters=known,
            q=calibration.interval_q,
            level=calibration.interval_level,
        )
    return ServingParameters(engines_, sigma, frozenset(p.point_id for p in found.points))


def read_inference(paths: Sequence[Path], run: RunParameters) -> list[InferencePoint]:
    """Points of inference tables that can be predicted.

    Raises InputError where a file is no such table, and where no row can be predicted.
    """
    made: list[InferencePoint | Skipped] = []
    for path in paths:
        table = read_table(path)
        if not of_inference(table.columns):
            raise InputError(
                f"{path} is no table of inference runs: no column {INFERENCE_KEYS[0]!r}"
            )
        table = check_runs(table, str(path))
        made += [inference_point(row, run) for row in table.to_dict("records")]
    return usable(made)


def usable(made: Sequence[InferencePoint | Skipped]) -> list[InferencePoint]:
    """The points among rows.

    Raises InputError where there is none, with the reason of the first.
    """
    found = [point for point in made if isinstance(point, InferencePoint)]
    if not found:
        why = next((f": {one.reason}" for one in made if isinstance(one, Skipped)), "")
        raise InputError(f"none of {len(made)} benchmarks can be used{why}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Refit the engines of a calibration to tables of inference runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--calibration", default="default")
    parser.add_argument("--out", type=Path, required=True, help="folder of the calibration")
    given = parser.parse_args(arguments)
    prepare_folder(given.out)  # before what takes long
    calibration = load(given.calibration)
    points = read_inference(given.tables, calibration.run)
    aside = {what: hidden_points(given.tables, calibration.run, what) for what in HIDDEN}
    fitted = fit(points, calibration, aside)
    content = engines_mapping(fitted)
    # The ids are many: one line for all of them.
    ids = json.dumps(content.pop("points"))
    text = json.dumps(content, indent=1).removesuffix("\n}")
    write_text(given.out / FILE, f'{text},\n "points": {ids}\n}}\n')


if __name__ == "__main__":
    main()
