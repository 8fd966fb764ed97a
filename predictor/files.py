"""Writing a file whole or not at all, and what of numbers JSON can say."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.errors import InputError


def is_file(path: Path) -> bool:
    """Whether there is a file of that name; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name beside it, then rename.

    write   writes its content to the path that it is given

    A symbolic link is followed. What exists and is no regular file (a device, a pipe) is written
    to as it is, since a rename would put a file in its place.

    Raises InputError where the folder is missing or not writable.
    """
    import tempfile  # with all that it imports, not where nothing is written

    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            write(path)
            return
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
        try:
            write(Path(name))
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text, in UTF-8."""
    write_whole(path, lambda place: place.write_text(text, encoding="utf-8"))


def prepare_folder(path: Path) -> None:
    """Make a folder for results, before the work whose results it is to hold.

    Raises InputError where that is not possible.
    """
    import tempfile

    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to folder {path}: {error.strerror or error}") from None


PACKED = 200
"""Bytes of one packed byte that a file of text has at most (tables of numbers have 3 to 20; gzip
itself can reach 1,032)."""

MOST_UNPACKED = 2**26
"""Bytes up to which any ratio is read."""


def unpacked(path: Path) -> io.BytesIO:
    """The content of a file, unpacked if it ends in `.gz`.

    Raises ValueError for one that unpacks to more than any table holds, and what `gzip` raises.
    """
    if path.suffix != ".gz":
        return io.BytesIO(path.read_bytes())
    import gzip

    most = max(PACKED * path.stat().st_size, MOST_UNPACKED)
    with gzip.open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it unpacks to more than {most / 2**20:,.0f} MiB, which no table does")
    return io.BytesIO(content)


def finite(value: Any) -> Any:
    """The same content with arrays as lists, and NaN and infinity as null, which JSON has no words
    for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
