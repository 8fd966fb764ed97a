"""What two of a machine's own training steps add to profiles of it.

    python -m tools.own_steps data/measurements/*

Each profile is calibrated, and every pair of its steps learned from in turn; half a minute each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import reckon
from calibration.checks.own_steps import added, line
from predictor.catalog import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", type=Path, nargs="+")
    for profile in parser.parse_args().profiles:
        if not profile.is_dir():
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "calibration"
            reckon.calibrate(profile, place)
            print(line(profile.name, added(profile, load(place))))


if __name__ == "__main__":
    main()
