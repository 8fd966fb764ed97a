"""Installs what PyPI has of open peers, each into an environment of its own, and prints them beside
reckon: the same rows, the same machine.

    python -m tools.peers [--shared ../shared] [--folder .peers] [--out docs/accuracy/peers.md]

reckon stands there twice: `kernels-only`, in which no run was fitted (as in none of the peers), and
as it ships, with the rows' own source left out of the fit. Peers get what the row states, in their
own form, and their own defaults else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import reckon
from predictor.files import write_text
from tools.peers import rows as tables
from tools.peers.rows import Row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INSTALL_SECONDS, ASK_SECONDS = 1800, 1200
ALONE = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool on PyPI.

    package    with its version
    script     that asks it; '' where it cannot be asked
    options    of the script
    answers    'training', 'serving'
    why        it cannot be asked, or how it was
    """

    name: str
    package: str
    script: str = ""
    options: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    why: str = ""


PEERS = (
    Peer("llm-analysis", "llm-analysis==0.2.2", "asks_llm_analysis.py", (), ("training", "serving"),
         "its defaults: hardware at its peak"),
    Peer("llm-analysis, half of the peak", "llm-analysis==0.2.2", "asks_llm_analysis.py", ("half",),
         ("training", "serving"), "with the FLOP efficiency that its source names for Megatron-LM"),
    Peer("GenZ", "genz-llm==0.0.16", "asks_genz.py", (), ("serving",), "its defaults"),
    Peer("aiconfigurator", "aiconfigurator==0.12.0", "asks_aiconfigurator.py", (), ("serving",),
         "static batches by its own measured tables, of which reckon's kernels are fitted to an "
         "earlier release"),
    Peer("Vidur", "vidur==0.0.26", why="the package on PyPI has none of the profiles that it "
         "predicts from (they are in its repository)"),
    Peer("Calculon", "calculon", why="PyPI's calculon is another project (a library of producers "
         "and consumers, 2013); this one is not on PyPI"),
    Peer("LLM-Viewer", "llm-viewer", why="not on PyPI"),
    Peer("SimuMax", "simumax", why="not on PyPI"),
)  # fmt: skip
"""As PyPI had them on 2026-11-22."""


def environment(peer: Peer, folder: Path) -> tuple[Path | None, str]:
    """The Python of a peer's environment, made if it is not there; None and why."""
    place = folder / peer.package.replace("==", "-")
    python, done = place / "bin" / "python", place / "installed"
    if done.exists():
        return python, ""
    try:
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
             peer.package],
        ):  # fmt: skip
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"not installed after {INSTALL_SECONDS} s"
    except (subprocess.CalledProcessError, OSError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        return None, "cannot be installed: " + told.decode(errors="replace").strip()[-150:]
    done.touch()
    return python, ""


@dataclass(frozen=True, slots=True)
class Answers:
    """Predicted seconds of rows by `point_id`, seconds that one took (median), why others have
    none."""

    values: dict[str, float]
    each: float
    why: dict[str, str]


def ask(peer: Peer, python: Path, asked: Sequence[Row]) -> Answers:
    """What a peer says of some rows."""
    command = [str(python), str(HERE / peer.script), *peer.options]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=ASK_SECONDS,
            cwd=tempfile.gettempdir(), check=True, env=ALONE,
        )  # fmt: skip
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError, OSError) as error:
        return Answers({}, float("nan"), {row["point_id"]: f"{error!s:.100}" for row in asked})
    values = {name: value for name, value, _, _ in told if value and np.isfinite(value)}
    spent = [seconds for name, _, _, seconds in told if name in values]
    why = {name: reason or "no number" for name, _, reason, _ in told if name not in values}
    return Answers(values, float(np.median(spent)) if spent else float("nan"), why)


def ours(path: Path, asked: Sequence[Row], calibration: str, folds: str | None) -> Answers:
    """What reckon says of them, by `reckon validate`."""
    names = {row["point_id"] for row in asked}
    table = pd.read_csv(path, low_memory=False)
    if not folds:
        table = table[table["point_id"].isin(names)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "rows.csv"
        table.to_csv(place, index=False)
        begin = time.perf_counter()
        found = reckon.validate(place, calibration, folds=folds)
        spent = (time.perf_counter() - begin) / max(len(table), 1)
    measured = {row["point_id"]: row["value"] for row in asked}
    values = {
        one["point_id"]: measured[one["point_id"]] * one["predicted"] / one["published"]
        for one in found["points"]
        if one["point_id"] in names
    }
    why = {one["point_id"]: one["reason"] for one in found["skipped"] if one["point_id"] in names}
    return Answers(values, float("nan") if folds else spent, why)


def scored(asked: Sequence[Row], told: dict[str, Answers]) -> list[str]:
    """Errors by source, and over the rows that all of them answer."""
    frame = pd.DataFrame(asked).set_index("point_id")
    errors = pd.DataFrame(
        {
            name: {p: abs(v / frame.at[p, "value"] - 1.0) for p, v in answers.values.items()}
            for name, answers in told.items()
        },
        index=frame.index,
    )
    lines = ["| source | rows | " + " | ".join(told) + " |", "|---|---:|" + "---:|" * len(told)]

    def line(label: str, own: pd.DataFrame) -> str:
        cells = [
            "" if own[name].isna().all() else f"{own[name].mean():.0%}"
            + (f" ({own[name].notna().sum()})" if own[name].isna().any() else "")
            for name in told
        ]  # fmt: skip
        return f"| {label} | {len(own)} | " + " | ".join(cells) + " |"

    lines += [line(str(source), own) for source, own in errors.groupby(frame["source"])]
    both = errors.dropna()
    if len(both):
        lines.append(line("**rows that all answer**", both))
        medians = " | ".join(f"{both[name].median():.0%}" for name in told)
        lines.append(f"| median of those | {len(both)} | {medians} |")
    took = " | ".join("" if np.isnan(a.each) else f"{1e3 * a.each:.2g} ms" for a in told.values())
    lines.append(f"| a prediction takes | | {took} |")
    return lines


def compare(kind: str, path: Path, asked: Sequence[Row], folder: Path) -> list[str]:
    """The table of a kind of rows, and what could not be asked."""
    told = {"reckon, kernels-only": ours(path, asked, "kernels-only", None)}
    if kind == "training":
        told["reckon, source left out"] = ours(path, asked, "default", "source")
    notes = []
    for peer in PEERS:
        if kind not in peer.answers:
            continue
        python, why = environment(peer, folder)
        if python is None:
            notes.append(f"- {peer.name} ({peer.package}): {why}")
            continue
        told[peer.name] = found = ask(peer, python, asked)
        notes.append(f"- {peer.name} ({peer.package}): {peer.why}; answers {len(found.values)} of "
                     f"{len(asked)} rows" + _reasons(found))  # fmt: skip
    return [*scored(asked, told), "", *notes]


def _reasons(found: Answers) -> str:
    counts = pd.Series(list(found.why.values()), dtype=object).value_counts()
    return "".join(f"; {count} x {reason}" for reason, count in counts.head(2).items())


INTRODUCTION = (
    "`make peers` installs them and writes this page: mean absolute error on the same rows (in "
    "brackets: how many of them a tool answers), and the time of a prediction on the machine that "
    "ran it. Peers were given what a row states, by their own interface; nothing was fitted for "
    f"them. Dense models only, at most {tables.MOST_OF_A_SOURCE} rows of a source."
)


def page(shared: Path, folder: Path) -> str:
    """The page: training, serving, who could not be asked."""
    lines = ["# Against peers", "", INTRODUCTION, "", "## Training steps", ""]
    path = ROOT / "data" / "reference" / "training.csv"
    lines += compare("training", path, tables.training(path), folder)
    lines += ["", "## Static batches: first token, time per token", ""]
    path = shared / "reference" / "inference.csv"
    if path.is_file():
        lines += compare("serving", path, tables.serving(path), folder)
    else:
        lines.append(f"not compared: there is no {path.name} beside the project")
    lines += ["", "## Who could not be asked", ""]
    lines += [f"- {peer.name}: {peer.why}" for peer in PEERS if not peer.script]
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="open peers beside reckon")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers", help="environments")
    parser.add_argument("--out", type=Path, help="page to write")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    text = page(given.shared, given.folder.resolve())
    if given.out:
        write_text(given.out, text)
    print(text)


if __name__ == "__main__":
    main()
