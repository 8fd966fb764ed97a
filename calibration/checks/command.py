"""A check of the shared tables as a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration


def of_shared(name: str, check: Callable[[Path, Calibration], None], arguments: list[str]) -> int:
    """Check the default calibration against the one folder that is named; the exit status.

    name   of the module, as Python runs it
    """
    if len(arguments) != 1:
        print(f"usage: python -m {name} SHARED", file=sys.stderr)
        return 2
    try:
        check(Path(arguments[0]), load("default"))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
