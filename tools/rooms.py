"""The architecture as the imports have it: which room uses which, cycles between files, and how many
lines each room has.

    python tools/rooms.py

Run by `make rooms`; exits with 1 where files import each other in a circle.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grimp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("predictor", "profiler", "calibration", "reckon")


def graph_of(packages: Sequence[str] = PACKAGES) -> grimp.ImportGraph:
    """Imports between the files of the packages, those inside functions too."""
    return grimp.build_graph(*packages, cache_dir=None)


def room_of(module: str) -> str:
    """'predictor.plans' of 'predictor.plans.rules'; the package of what lies beside its rooms."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    inside = room and (ROOT / package / room).is_dir()
    return f"{package}.{room}" if inside else package


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Files that import each other in a circle, each circle with all that is entangled in it."""
    names = sorted(graph.modules)
    place = {name: position for position, name in enumerate(names)}
    pairs = [
        (place[name], place[other])
        for name in names
        for other in graph.find_modules_directly_imported_by(name)
    ]
    rows, columns = np.array(pairs).reshape(-1, 2).T
    imports = csr_array((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(names)))
    _, label = connected_components(imports, directed=True, connection="strong")
    sizes = np.bincount(label)
    return [[names[at] for at in np.flatnonzero(label == one)] for one in np.flatnonzero(sizes > 1)]


def between(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """How many files of a room import from a file of another: (importer, imported) -> number."""
    return Counter(
        (room_of(name), room_of(other))
        for name in graph.modules
        for other in graph.find_modules_directly_imported_by(name)
        if room_of(name) != room_of(other)
    )


def order(rooms: Sequence[str], found: Counter[tuple[str, str]]) -> list[str]:
    """Rooms from the bottom to the top: each after those that it imports, as far as that goes."""
    left, placed = sorted(rooms), []
    while left:
        free = [r for r in left if not any(found[r, other] for other in left if other != r)]
        placed += free or left[:1]
        left = [r for r in left if r not in placed]
    return placed


def lines(room: str) -> tuple[int, int]:
    """Files and lines of code of a room, with what is written about it."""
    package, _, inner = room.partition(".")
    folder = ROOT / package / inner
    paths = folder.rglob("*.py") if inner else folder.glob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return len(texts), sum(text.count("\n") for text in texts)


def table(rooms: Sequence[str], found: Counter[tuple[str, str]], package: str) -> list[str]:
    """Lines of a table: rooms of a package by what they import, all rooms of others together."""
    own = [room for room in rooms if room.partition(".")[0] == package]
    others = [name for name in PACKAGES if name != package]
    used = [name for name in others if any(_to(found, room, name) for room in own)]
    short = [room.partition(".")[2] or room for room in own]
    columns = [*short, *used]
    rows = [["files", "lines", *columns]]
    for room in own:
        counts = [found[room, other] for other in own] + [_to(found, room, name) for name in used]
        rows.append([*(str(number) for number in lines(room)), *(str(c or ".") for c in counts)])
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    left = max(len(name) for name in ["", *short])
    return [
        "  ".join([name.ljust(left), *(c.rjust(w) for c, w in zip(row, widths, strict=True))])
        for name, row in zip(["", *short], rows, strict=True)
    ]


def _to(found: Counter[tuple[str, str]], room: str, package: str) -> int:
    """Imports of a room from another package."""
    return sum(n for (a, b), n in found.items() if a == room and b.partition(".")[0] == package)


def main() -> int:
    """Print the tables and the cycles; 1 where there are any."""
    sys.path.insert(0, str(ROOT))
    graph = graph_of()
    found = between(graph)
    rooms = order(sorted({room_of(name) for name in graph.modules}), found)
    for package in PACKAGES:
        print(f"\n{package}: rooms (rows) by what their files import (columns), bottom first\n")
        print("\n".join(table(rooms, found, package)))
    total = sum(lines(room)[1] for room in rooms)
    circles = cycles(graph)
    print(f"\n{len(graph.modules)} files, {total} lines; {len(circles)} cycles between files")
    for circle in circles:
        print("  " + ", ".join(circle))
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main())
