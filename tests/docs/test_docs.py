"""The documentation holds: its blocks run, its links lead somewhere, its pages are the code's."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tools import reference, scoreboard

DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md"))
GUIDES = [p for p in PAGES if p.parent.name in ("guides", "concepts") or p == DOCS / "index.md"]

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.S | re.M)

Cli = Callable[..., tuple[int, str, str]]


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of a page's blocks."""
    return [(m[1], m[2] or "", m[3]) for m in BLOCK.finditer(path.read_text(encoding="utf-8"))]


def commands(text: str) -> Iterator[list[str]]:
    """Commands of reckon in a console block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "reckon", f"a console block holds only reckon: {line}"
            yield words[1:]


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: str(p.relative_to(DOCS)))
def test_every_block_runs(
    page: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, title, text in blocks(page):
        if title:
            Path(title).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, f"{page.name}", "exec"), names)
        elif language == "console":
            for words in commands(text):
                status, out, err = cli(*words)
                assert status == 0, (words, err)
                assert out
        else:
            assert language in ("sh", "text", "yaml"), f"{page}: a block of {language} is not run"


def test_the_python_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own = text.partition("## Python")[2].partition("## How")[0]
    code = "\n".join(line[4:] for line in own.splitlines() if line.startswith("    "))
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_is_a_door_and_says_what_the_pages_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    page = scoreboard.PAGE.read_text(encoding="utf-8")
    assert scoreboard.put(text, "headline", scoreboard.headline(page)) == text


LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http", "#")):
            continue
        place = (page.parent / target.partition("#")[0]).resolve()
        assert place.exists(), f"{page.name}: {target}"


def test_the_menu_leads_to_pages_and_misses_none_but_new_guides() -> None:
    def places(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for one in entry.values() if isinstance(entry, dict) else ():
            yield from places(one)
        for one in entry if isinstance(entry, list) else ():
            yield from places(one)

    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed = set(places(nav))
    assert listed <= {str(p.relative_to(DOCS)) for p in PAGES}
    left = {p for p in PAGES if str(p.relative_to(DOCS)) not in listed}
    assert {p.parent.name for p in left} <= set(reference.LAST), "run: python tools/reference.py"


@pytest.mark.parametrize("name", reference.PAGES)
def test_pages_of_reference_are_those_of_the_code(name: str) -> None:
    own = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert own == reference.PAGES[name](), "run: python tools/reference.py"


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    zensical = pytest.importorskip("zensical", reason="zensical is not installed (reckon[docs])")
    assert zensical is not None
    import shutil
    import subprocess
    import sys

    for name in ("docs", "zensical.toml"):
        place = ROOT / name
        (shutil.copytree if place.is_dir() else shutil.copy)(place, tmp_path / name)
    env = {**os.environ, "no_proxy": "*"}
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:src|rel=\"stylesheet\" href)=\"https?://[^\"]*", page) == []
