"""Files are written whole or not at all, and nothing that is no file is replaced by one."""

from __future__ import annotations

import gzip
import os
import stat
import threading
from pathlib import Path

import pytest

from predictor import files
from predictor.errors import InputError
from predictor.files import prepare_folder, unpacked, write_text, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def broken(place: Path) -> None:
        place.write_text("half")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_whole(path, broken)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "everybody may read it"


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """As does a device: `--json /dev/null` must not put a file in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["missing/a.json", ".", "file/a.json"])
def test_an_impossible_place_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write") as caught:
        write_text(tmp_path / name, "x")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a/b")
    assert list((tmp_path / "a/b").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write to folder"):
        prepare_folder(tmp_path / "file/c")


def test_what_unpacks_to_as_much_as_a_table_holds_is_read_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED", 500)
    monkeypatch.setattr(files, "PACKED", 0)
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"x" * 500))
    assert unpacked(path).read() == b"x" * 500
    path.write_bytes(gzip.compress(b"x" * 501))
    with pytest.raises(ValueError, match="more than"):
        unpacked(path)
    plain = tmp_path / "table.csv"
    plain.write_bytes(b"x" * 1000)
    assert len(unpacked(plain).read()) == 1000
