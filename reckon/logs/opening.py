"""Files of runs as text: packed or not, as other systems encode them."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import IO, Any

from predictor.errors import InputError
from predictor.files import is_file

DAMAGED = (OSError, EOFError, zlib.error)
"""What reading an archive raises that ends early or is damaged."""

PACKED = b"\x1f\x8b"
"""What an archive of gzip begins with, whatever it is called."""


def opened(path: Path) -> IO[str]:
    """A log as text, unpacked where it begins as an archive of gzip does; what is no UTF-8 is
    replaced.

    Raises InputError for a file that cannot be read.
    """
    check_there(path)
    try:
        raw: Any = path.open("rb")
        if raw.peek(2)[:2] == PACKED:
            raw = gzip.GzipFile(fileobj=raw)
        return io.TextIOWrapper(raw, encoding=_encoding(raw), errors="replace", newline="")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def check_there(path: Path) -> None:
    """Raise InputError where a path is no file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the log or the event file in it")
    if not is_file(path):
        raise InputError(f"no such file: {path}")


def _encoding(raw: Any) -> str:
    """UTF-16 where a file begins as such does (PowerShell writes it), else UTF-8, its mark left
    out."""
    try:
        head = raw.peek(64)[:64]
    except DAMAGED:
        return "utf-8-sig"
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if marked and head.count(0) > len(head) // 4 else "utf-8-sig"
