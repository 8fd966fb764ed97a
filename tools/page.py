"""The page in a real browser: how long it takes, and its pictures in the documentation.

    python tools/page.py                            # times: start, a change, a search
    python tools/page.py --pictures docs/images     # the page and a report at three widths

It needs Chromium and Playwright. Seconds on the wall, beside them those of the processors of the
page's own processes, which say what a quiet machine would take.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import psutil

from reckon.console.cli import main as reckon
from reckon.views.terminal import grid

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

CHANGES = ("4096", "2048", "16384", "4096", "8192", "2048", "4096", "16384", "8192")
"""Sequence lengths that are typed one after the other."""

SEARCH = {
    "model": "llama3-70b",
    "system": "dgx-h100",
    "plan": {"gpus": 1024, "global_batch": 1024, "seq_len": 8192, "tokens": 15e12},
}
"""What the page asks when it is opened and *Search* is pressed."""

PAGES = (("explorer", 1280, "light"), ("explorer-390-light", 390, "light"),
         ("explorer-390-dark", 390, "dark"), ("explorer-820-dark", 820, "dark"))  # fmt: skip
REPORTS = (("report-1180-light", 1180, "light"), ("report-820-dark", 820, "dark"),
           ("report-390-light", 390, "light"))  # fmt: skip
REPORTED = (
    "plan train --model llama3-8b --system dgx-h100 --gpus 16 --global-batch 64 --seq-len 4096 "
    "--recompute none --schedule 1f1b"
).split()

CHANGED = """async value => {
  const field = document.querySelector('#f-seq_len');
  const shown = () => document.querySelector('.figure .value').innerText;
  const before = shown(), start = performance.now();
  field.value = value;
  field.dispatchEvent(new Event('change', {bubbles: true}));
  while (shown() === before) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""
"""Milliseconds from a change of the form to the figure that follows from it."""


def spent(process: psutil.Process) -> float:
    """Seconds of processors of a process and those that it started."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


@contextmanager
def served() -> Iterator[tuple[str, psutil.Process, float, float]]:
    """The page as `reckon serve` serves it: its address, its process, and the seconds on the wall
    and of processors until it answered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start, address = time.perf_counter(), f"http://127.0.0.1:{port}/"
    process = subprocess.Popen([sys.executable, "-m", "reckon", "serve", "--port", str(port)],
                               stdout=subprocess.DEVNULL)  # fmt: skip
    own = psutil.Process(process.pid)
    try:
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).read()
                break
            except OSError:
                time.sleep(0.01)
        yield address, own, time.perf_counter() - start, sum(own.cpu_times()[:2])
    finally:
        process.terminate()
        process.wait()


def asked(address: str, body: dict[str, Any] | None = None) -> Any:
    """The answer of an address of the page."""
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, head)
    return json.loads(urllib.request.urlopen(request, timeout=600).read())


def searched(address: str) -> Any:
    """The answer of the page's search."""
    identity = asked(address + "api/search", SEARCH)["id"]
    while (found := asked(f"{address}api/search/{identity}"))["state"] == "running":
        time.sleep(0.05)
    return found["answer"]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as one:
        yield one.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def times() -> None:
    """Print how long the page takes to start, to follow a change and to search."""
    rows = []
    with served() as (address, own, wall, processors), chromium() as browser:
        rows.append(["start", f"{wall:.2f} s", f"{processors:.2f} s", "2 s"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.wait_for_selector(".figure")
        before = spent(own)
        each = [page.evaluate(CHANGED, value) for value in CHANGES]
        used = (spent(own) - before) / len(CHANGES)
        told = f"{statistics.median(each):.0f} ms"
        rows.append(["a change of the form", told, f"{1e3 * used:.0f} ms", "150 ms"])
        page.close()
        before = spent(own)
        found = searched(address)
        rows.append(["search of 1,024 GPUs", f"{found['seconds']:.1f} s",
                     f"{spent(own) - before:.1f} s", "6 s"])  # fmt: skip
    print(f"{found['counts']['enumerated']:,} plans searched")
    print(grid(["the page", "on the wall", "of processors", "asked"], rows, left=1))


def pictures(folder: Path) -> None:
    """Write the pictures of the documentation."""
    with served() as (address, *_), chromium() as browser, tempfile.TemporaryDirectory() as made:
        report = Path(made) / "report.html"
        with redirect_stdout(io.StringIO()):
            reckon([*REPORTED, "--report", str(report)])
        for name, width, scheme in PAGES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector(".figure")
            page.click("#search-button")
            page.wait_for_selector("#plot .main-svg", timeout=300_000)
            _shot(page, folder / f"{name}.jpg")
        for name, width, scheme in REPORTS:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(report.as_uri())
            page.wait_for_selector(".main-svg")
            _shot(page, folder / f"{name}.jpg")


def _shot(page: Any, path: Path) -> None:
    page.wait_for_timeout(500)  # what moves comes to rest
    page.screenshot(path=path, full_page=True, type="jpeg", quality=60)
    page.close()
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if not CHROMIUM:
        print("the page is not timed: no Chromium here (apt-get install chromium)")
    elif given.pictures:
        pictures(given.pictures)
    else:
        times()


if __name__ == "__main__":
    main()
