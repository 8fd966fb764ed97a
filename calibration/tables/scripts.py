"""Settings of public benchmark scripts: what they passed to the engines of published rows.

They are facts of the rows, `data/software/serving/scripts/`, each with its source; none looks at a
measured value. What a row itself states counts more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from calibration.tables.cells import cell
from predictor import catalog
from predictor.errors import unknown

ONE_PROMPT = "one_prompt_and"
"""Key of a budget of as many tokens as one prompt, one token of each client and so many more."""


@lru_cache(maxsize=1)
def _scripts() -> Mapping[str, list[Mapping[str, Any]]]:
    """Settings by source of rows, in the order in which they count."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted((catalog.data_dir() / "software" / "serving" / "scripts").glob("*.yaml")):
        content = catalog.read_mapping(path)
        for source in content["sources"]:
            found.setdefault(source, []).extend(content["settings"])
    return found


def _begins(column: str) -> Callable[[Any, Mapping[Any, Any]], bool]:
    return lambda names, row: (
        str(row.get(column)).lower().startswith(tuple(name.lower() for name in names))
    )


def _number(column: str, row: Mapping[Any, Any]) -> float:
    value = cell(row, column)
    return float("nan") if value is None else float(value)


ASKED: dict[str, Callable[[Any, Mapping[Any, Any]], bool]] = {
    "framework": lambda names, row: row["@framework"] in names,
    "accelerator": _begins("accelerator"),
    "model": _begins("model"),
    "weights": lambda names, row: str(row.get("weights_precision")) in names,
    "concurrency_from": lambda least, row: _number("concurrency", row) >= least,
    "concurrency_below": lambda most, row: _number("concurrency", row) < most,
    "tp_from": lambda least, row: _number("tp", row) >= least,
    "tp_below": lambda most, row: _number("tp", row) < most,
    "since": lambda month, row: str(row.get("published")) >= month,
    "until": lambda month, row: str(row.get("published")) <= month,
}
"""What a setting's `where` may ask of a row: beginnings of names, numbers, months."""


def script_settings(row: Mapping[Any, Any], framework: str, source: str) -> dict[str, Any]:
    """Fields of a plan that the script of a row's source sets.

    framework   the row's engine, as facts call it

    Raises InputError for a condition that is not known.
    """
    asked = {**row, "@framework": framework}
    found: dict[str, Any] = {}
    for setting in _scripts().get(source, ()):
        where = setting.get("where", {})
        for name in where:
            if name not in ASKED:
                raise unknown(f"condition of {source}'s scripts", name, ASKED)
        if all(ASKED[name](value, asked) for name, value in where.items()):
            found |= setting["set"]
    if isinstance(found.get("chunk"), Mapping):
        beyond = float(found["chunk"][ONE_PROMPT])
        tokens = _number("concurrency", row) + _number("input_len", row) + beyond
        found["chunk"] = round(tokens) if tokens == tokens else None
    return {name: value for name, value in found.items() if value is not None}
