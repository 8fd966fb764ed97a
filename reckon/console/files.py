"""Writing results as JSON, to a file or to standard output; and the command that was given."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from predictor.files import finite, write_text

_given: list[str] = []


def remember(arguments: list[str]) -> None:
    """Keep the command that was given, for pages that quote it."""
    _given[:] = arguments


def line() -> str:
    """The command that was given."""
    return shlex.join(["reckon", *_given])


def write_json(target: str, content: Any) -> None:
    """Write JSON to a file, or to standard output if `target` is '-'."""
    text = json.dumps(finite(content), indent=1, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_text(Path(target), text)
