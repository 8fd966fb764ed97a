"""`reckon import`: turn measurements in a foreign format into a kernel table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.sources.formats import FORMATS
from calibration.sources.found import Stated
from calibration.sources.nccl_tests import OPS
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.errors import InputError, unknown
from predictor.files import write_whole
from predictor.hardware import Tier

WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".csv.gz": lambda table, path: table.to_csv(path, index=False, compression="gzip"),
}
"""How a table is written, by the ending of its file."""


def import_table(
    form: str,
    path: str | Path,
    out: str | Path,
    accelerator: str | None = None,
    op: str | None = None,
    link: str | None = None,
    link_gbs: float | None = None,
    in_switch: bool = False,
    system: str | None = None,
) -> dict[str, Any]:
    """Read a foreign file and write its measurements as a kernel table.

    form          name of the format, one of `FORMATS`
    path          file, or folder of a format that has several tables
    out           file to write: .parquet, .csv or .csv.gz
    accelerator   catalog name or file, where the foreign file does not name it
    op            collective that it times ('all_reduce' or 'allreduce'), where it does not say so
    link, link_gbs, in_switch   the link of its collectives, its rate [GB/s per accelerator and
                  direction], and whether the switch reduces
    system        name or file, to take the links from

    Returns how many rows of which op were written, and how many were left out and why. Raises
    InputError for bad input, before anything is written.
    """
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    place = Path(out)
    endings = [ending for ending in WRITERS if place.name.endswith(ending)]
    if not endings:
        raise InputError(f"--out {out}: expected a .parquet, .csv or .csv.gz file")
    given = {
        "accelerator": accelerator,
        "op": op,
        "link": system or link or link_gbs or in_switch,
    }
    for name, value in given.items():
        if value and name not in FORMATS[form].takes:
            raise InputError(f"{form} files state their own {name}; leave the flag out")
    stated = _stated(accelerator, op, link, link_gbs, in_switch, system)
    found = FORMATS[form].read(Path(path), stated)
    reasons = dict(found.left_out.most_common())
    if found.rows.empty:
        why = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
        raise InputError(f"{path}: nothing became a row ({why})")
    check_kernels(found.rows, str(path))
    write_whole(place, lambda temporary: WRITERS[endings[0]](found.rows, temporary))
    counts = found.rows.groupby(["accelerator", "op", "dtype"], sort=True).size().reset_index()
    return {
        "format": form,
        "path": str(path),
        "out": str(out),
        "rows": len(found.rows),
        "written": [
            {"accelerator": str(a), "op": str(o), "dtype": str(d), "n": int(n)}
            for a, o, d, n in counts.to_numpy()
        ],
        "facts": found.facts,
        "left_out": [{"reason": reason, "n": count} for reason, count in reasons.items()],
    }


def _stated(
    accelerator: str | None,
    op: str | None,
    link: str | None,
    link_gbs: float | None,
    in_switch: bool,
    system: str | None,
) -> Stated:
    """The flags, checked against the catalogs and each other."""
    if op is not None:
        known = {**OPS, **{name: name for name in OPS.values()}}
        if op not in known:
            raise unknown("collective", op, known)
        op = known[op]
    if accelerator is not None:
        accelerator = catalog.accelerator(accelerator).name
    if system is not None:
        if link is not None or link_gbs is not None or in_switch:
            raise InputError("give --system or --link, --link-gbs and --in-switch, not both")
        cluster = catalog.system(system)
        return Stated(
            accelerator=accelerator,
            op=op,
            tiers=cluster.tiers,
            per_node=cluster.accelerators_per_node,
            system=(cluster.name, cluster.accelerator.name),
        )
    if link is None and link_gbs is None and not in_switch:
        return Stated(accelerator=accelerator, op=op)
    if not link or link_gbs is None or not 0 < link_gbs < math.inf:
        raise InputError("a link needs its name and its rate above 0: --link NAME --link-gbs X")
    tier = Tier(link=link, size=math.inf, bandwidth=link_gbs * 1e9, in_switch=in_switch)
    return Stated(accelerator=accelerator, op=op, tiers=(tier, tier))
