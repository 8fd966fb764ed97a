"""What two of a machine's own training steps add to profiles of it.

    python -m tools.own_steps data/measurements/two-cores-*

Each profile is calibrated, and every pair of its steps learned from in turn; half a minute each.
Of two profiles or more the spread of disturbed steps that is likeliest is told, and how each
profile fares under that of the others.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import reckon
from calibration.checks.own_steps import added, likeliest, line, steps_of
from predictor.catalog import load, own_prior


def has_steps(folder: Path) -> bool:
    """Whether a folder is a profile with steps; others hold tables of single measurements."""
    return (folder / "kernels.parquet").is_file() and (folder / "steps.csv").is_file()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", type=Path, nargs="+")
    found = []
    for profile in parser.parse_args().profiles:
        if not has_steps(profile):
            print(f"{profile.name}: no training steps in it")
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "calibration"
            reckon.calibrate(profile, place)
            found.append(steps_of(profile, load(place)))
        print(line(profile.name, added(found[-1])))
    if len(found) > 1:
        known = likeliest(found, own_prior())
        print(f"likeliest: strayed {known.strayed:.2f}")
        for one in found:
            known = likeliest([other for other in found if other is not one], own_prior())
            told = line(one.source, added(one, known))
            print(f"strayed {known.strayed:.2f} without {told}")


if __name__ == "__main__":
    main()
