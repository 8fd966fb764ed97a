"""What a profile has measured so far, a line for each row: it outlives a process that is killed.

Rows are appended and flushed as they are measured; the tables themselves are written at the end,
whole. A last line that was cut while it was written is no row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from predictor.errors import InputError
from predictor.files import finite

NAME = ".measured.jsonl"
"""The journal's file in the folder of a profile."""

Row = dict[str, Any]
KINDS = ("kernels", "steps", "passes", "power")


@dataclass(slots=True)
class Tables:
    """Rows as they are measured: kernels, training steps, passes of serving, power of kernels that
    ran for seconds.

    journal   where each is written down at once; None for nowhere
    """

    kernels: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    passes: list[Row] = field(default_factory=list)
    power: list[Row] = field(default_factory=list)
    journal: TextIO | None = None

    def keep(self, kind: str, rows: Iterable[Row]) -> None:
        """Take in rows as they come; an interrupt keeps those before it."""
        table = getattr(self, kind)
        for row in rows:
            table.append(row)
            if self.journal is not None:
                self.journal.write(json.dumps([kind, finite(row)], default=str) + "\n")
                self.journal.flush()

    def open(self, folder: Path) -> None:
        """Write down from now on what is kept, after what the folder's journal holds.

        Raises InputError where the folder cannot be written to.
        """
        path = folder / NAME
        try:
            whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
            self.journal = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
            os.truncate(path, len(whole) + bool(whole))
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None

    def close(self, folder: Path, written: bool) -> None:
        """End the journal; what was written as tables needs it no more."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None
        if written:
            (folder / NAME).unlink(missing_ok=True)


def left(folder: Path) -> Tables:
    """What a profile that was killed had measured; nothing if there was none.

    Raises InputError for a journal that is none.
    """
    path, found = folder / NAME, Tables()
    if not path.is_file():
        return found
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        for line in lines:
            kind, row = json.loads(line)
            if kind not in KINDS or not isinstance(row, dict):
                raise ValueError(kind)
            getattr(found, kind).append(row)
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"{path} is no journal of a profile ({error!s:.60}): remove it") from None
    return found
