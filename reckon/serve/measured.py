"""What the page says of accuracy and of power limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import power_constants
from predictor.errors import InputError
from predictor.files import finite
from predictor.timing import Calibration
from reckon.serve.answers import Answer

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Of an accelerator's own limit, at which the page asks what a limit costs."""


def limits(
    answer: Callable[[Mapping[str, Any], Calibration], Answer],
    fields: Mapping[str, Any],
    known: Calibration,
) -> Answer:
    """The request under limits on the power of an accelerator: a row each, less those that it
    cannot keep.

    answer   of one request, `answers.train` or `answers.infer`

    Raises InputError.
    """
    own = catalog.system(fields["system"]).accelerator
    most = float(power_constants(own).limit)
    rows = []
    for watts in sorted({round(share * most) for share in SHARES} | _stated(fields), reverse=True):
        try:
            found = answer({**fields, "power_limit": watts}, known)
        except InputError as error:
            if watts in _stated(fields):
                raise
            rows.append({"limit_w": watts, "refused": str(error)})
            continue
        power = found["power"]
        each = "sample" if "energy_per_sample_j" in power else "request"
        rows.append(
            {
                "limit_w": watts,
                "yours": watts in _stated(fields),
                "time_s": found["step_time_s" if "step_time_s" in found else "tpot_s"],
                "power_w": power["power_w"],
                "each": each,
                "energy_j": power[f"energy_per_{each}_j"],
                "temperature_c": max(power["temperature_c"]),
            }
        )
    return {"accelerator": own.name, "limit_w": most, "rows": rows}


def _stated(fields: Mapping[str, Any]) -> set[int]:
    limit = fields.get("power_limit")
    return set() if limit is None else {round(float(limit))}


@cache
def _content(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((folder / "calibration.json").read_text("utf-8"))
    return found


SECTIONS = {
    "kernels": "unseen_shapes",
    "library_left_out": "library_left_out",
    "accelerator_left_out": "accelerator_left_out",
}
"""Sections of a calibration's held-out errors, as the page calls them."""


def accuracy(fields: Mapping[str, Any], known: Calibration, folder: Path) -> Answer:
    """How far off what was left out of the fits was: kernels of the accelerator of a request, runs
    that the calibration knows, power.

    Raises InputError.
    """
    own = catalog.system(fields["system"]).accelerator.name
    content = _content(folder)
    rows: dict[str, Answer] = {}
    for section, label in SECTIONS.items():
        for name, found in content["heldout"].get(section, {}).items():
            kind, _, rest = name.partition("/")
            dtype, _, place = rest.partition("/")
            if place != own or "mape" not in found:
                continue
            row = rows.setdefault(f"{kind}/{dtype}", {"kind": kind, "dtype": dtype})
            row[label] = found["mape"]
            if section == "kernels":
                row["points"] = found["points"]
    told = {
        "accelerator": own,
        "calibration": known.name,
        "level": known.interval_level,
        "fitted_to": content["provenance"].get("fitted_to"),
        "runs": content["provenance"].get("runs", {}),
        "sigma": known.run.sigma,
        "kernels": sorted(rows.values(), key=lambda row: (row["kind"], row["dtype"])),
        "power": _power(own),
    }
    return dict(finite(told))


def _power(accelerator: str) -> list[Answer]:
    """Held-out errors of power on an accelerator, by what was left out."""
    path = catalog.data_dir() / "power" / "fitted.json"
    held: Mapping[str, Any] = json.loads(path.read_text("utf-8"))["held_out"]
    return [
        {"what": what, **groups[accelerator]}
        for what, groups in held.items()
        if groups.get(accelerator, {}).get("n")
    ]
