"""What the terminal shows of a sweep: what it came to, the best cells, refusals by their reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reckon.views.terminal import four, grid, strong

if TYPE_CHECKING:
    import pandas as pd

    from reckon.sweeping import Swept

BEST, REASONS = 5, 6
"""Cells and reasons that are listed."""

RANKED: dict[str, tuple[str, bool, str]] = {
    "predict train": ("tokens_per_s_per_gpu", False, "tokens/s/GPU"),
    "plan train": ("tokens_per_s_per_gpu", False, "tokens/s/GPU"),
    "predict infer": ("output_tokens_per_s_per_gpu", False, "output tokens/s/GPU"),
    "plan infer": ("gpus", True, "GPUs"),
}
"""By verb: the figure that cells are ranked by, whether the least is best, and its heading."""


def show_swept(found: Swept) -> None:
    """Print what a sweep came to."""
    print(
        f"{found.cells:,} cells in {found.folder}: {found.before:,} were there, {found.ok:,} "
        f"predicted, {found.unfit:,} do not fit, {found.refused:,} refused ({found.seconds:.1f} s)"
    )
    parts = sorted(Path(found.folder).glob("part-*.parquet"))
    if not parts:
        return
    import pandas as pd

    table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    _best(table)
    _refused(table)


def _best(table: pd.DataFrame) -> None:
    """Print the best cells that fit, by what differs among cells."""
    verb = str(table["verb"].iloc[0])
    key, ascending, heading = RANKED[verb]
    fitting = table[table["status"] == "ok"].copy()
    if fitting.empty:
        return
    for name in ("tokens_per_s", "output_tokens_per_s"):
        if name in fitting:
            fitting[f"{name}_per_gpu"] = fitting[name] / fitting["gpus"]
    requests = [json.loads(text) for text in fitting["request"]]
    names = list(dict.fromkeys(name for one in requests for name in one))
    varying = [n for n in names if len({str(one.get(n, "")) for one in requests}) > 1]
    ranked = fitting.sort_values(key, ascending=ascending, kind="stable").head(BEST)
    rows = []
    for one in ranked.to_dict("records"):
        own = json.loads(one["request"])
        rows.append(
            [*(_cell(own.get(n, "")) for n in varying), four(float(one[key])),
             *([four(float(one["step_time_s"]))] if verb.endswith("train") else []),
             f"{float(one['memory_gb']) * 1e9 / 2**30:.1f}"]
        )  # fmt: skip
    columns = [*varying, heading, *(["step s"] if verb.endswith("train") else []), "GiB"]
    print(f"\n{strong('best cells')}\n{grid(columns, rows, left=len(varying))}")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", "..."))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _refused(table: pd.DataFrame) -> None:
    """Print how many cells were refused, by reason; numbers in it do not tell reasons apart."""
    refused = table[table["status"] == "refused"]["reason"]
    if refused.empty:
        return
    kinds: dict[str, list[str]] = {}
    for reason in refused:
        kinds.setdefault(re.sub(r"\d[\d.,e+]*", "N", str(reason)), []).append(str(reason))
    most = sorted(kinds.values(), key=len, reverse=True)
    rows = [[f"{len(own):,}", f"{own[0]:.110}"] for own in most[:REASONS]]
    more = f" ({len(most) - REASONS} more kinds)" if len(most) > REASONS else ""
    print(f"\n{strong('refused')}{more}\n{grid(['cells', 'for example'], rows, left=2)}")
