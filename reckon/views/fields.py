"""The fields of plans as rows, and as the page of reference."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from predictor.errors import unknown
from predictor.plans import (
    EXPLAIN,
    PLAN,
    PREDICT,
    SERVING_FIELDS,
    TRAINING_FIELDS,
    PlanField,
    ServingPlan,
    Table,
    TrainingPlan,
    default_of,
)

WIDEST_VALUES, WIDEST_DEFAULT = 36, 64
"""Letters of a cell on the terminal."""

TABLES: dict[str, tuple[Table, type, dict[str, str]]] = {
    "training": (
        TRAINING_FIELDS,
        TrainingPlan,
        {PREDICT: "predict train", EXPLAIN: "explain", PLAN: "plan train"},
    ),
    "serving": (
        SERVING_FIELDS,
        ServingPlan,
        {PREDICT: "predict infer", PLAN: "plan infer"},
    ),
}
"""The tables, the plans that hold their defaults, and the verbs that take them."""


def _row(of: str, found: PlanField) -> dict[str, Any]:
    """One field as a row."""
    _, plan, verbs = TABLES[of]
    flags = [verb for name, verb in verbs.items() if name in found.flags]
    return {
        "name": found.name,
        "plan": of,
        "unit": found.unit,
        "values": found.values,
        "default": default_of(found, plan),
        "reason": found.reason,
        "touches": ", ".join(found.touches),
        "verbs": ", ".join(verbs.values()),
        "flag": f"--{found.name.replace('_', '-')}" if flags else "",
        "flag_of": ", ".join(flags),
        "what": " ".join(part for part in (found.help, found.more) if part),
    }


def listed() -> list[dict[str, Any]]:
    """A row for each field of each plan: what values it takes, what is taken where it is not
    stated and why, which verbs take it and which have a flag for it."""
    return [_row(of, one) for of, (entries, *_) in TABLES.items() for one in entries.values()]


def briefly(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a terminal has room for them: long values cut, those verbs that have a flag."""
    return [
        {
            "name": row["name"],
            "plan": row["plan"],
            "unit": row["unit"],
            "values": shorten(row["values"], WIDEST_VALUES, placeholder=" ..."),
            "default, because": shorten(
                f"{row['default']}: {row['reason']}" if row["reason"] else row["default"],
                WIDEST_DEFAULT,
                placeholder=" ...",
            ),
            "flag of": row["flag_of"] or "(--set)",
        }
        for row in rows
    ]


def entry(name: str) -> dict[str, Any]:
    """One field, in each plan that has it.

    Raises InputError for a name that neither has.
    """
    key = name.lstrip("-").replace("-", "_")
    found = {of: _row(of, own[key]) for of, (own, *_) in TABLES.items() if key in own}
    if not found:
        raise unknown("field", name, [*TRAINING_FIELDS, *SERVING_FIELDS], "reckon show fields")
    return {"name": key, **{of: {k: v for k, v in row.items() if k not in ("name", "plan")}
                            for of, row in found.items()}}  # fmt: skip


HEAD = """# Fields of plans

What a request may state: as a flag where a verb has one, by `--set NAME=VALUE`, as a key of a run
file or of a sweep's grid, or in the mapping that `reckon.predict_train`, `predict_infer`, `search`
and `search_infer` take. What is left out is completed, and every field that was filled in is told
with its reason. `reckon show fields NAME` prints one.

What a field touches is what it changes by itself: a longer pass also lengthens a pipeline's bubble
and hides more of what runs behind it. Verbs that have no flag of a field take it by `--set`.

This page is made from the table by `python tools/reference.py`.
"""


def reference() -> str:
    """The page of reference, in Markdown."""
    parts = [HEAD]
    for of in TABLES:
        parts.append(f"\n## {of.capitalize()}\n")
        columns = ["field", "what", "values", "unit", "default", "touches", "flag of"]
        parts.append(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for row in listed():
            if row["plan"] != of:
                continue
            why = f" ({row['reason']})" if row["reason"] else ""
            cells = [
                f"`{row['name']}`", row["what"], row["values"], row["unit"],
                row["default"] + why, row["touches"], row["flag_of"],
            ]  # fmt: skip
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"
