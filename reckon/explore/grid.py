"""What a grid file says: a model, a machine and a plan, and which of their fields are swept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from predictor import catalog
from predictor.catalog import (
    EMPTY,
    KEYS,
    AcceleratorSpec,
    ServingPlanSpec,
    Spec,
    TrainingPlanSpec,
    parse,
)
from predictor.errors import InputError, nearest
from predictor.records import dataclass

MOST_POINTS = 1_000_000
"""Points that one grid may span."""

NUMBERS = ("scale_up_gbs", "scale_out_gbs", "domain")
LINKS = (*NUMBERS, "network")
"""Keys of a catalog machine beside those of its accelerator: rates of the innermost and outermost
network, accelerators that the innermost joins, and another system whose networks it takes."""

SECTIONS = ("model", "plan", "machine", "technology")


class GridSpec(Spec):
    """A grid as a user writes it."""

    title: str = ""
    workload: Literal["training", "serving"] = "training"
    model: str | dict[str, Any]
    system: str | dict[str, Any] | None = None
    technology: dict[str, Any] | None = None
    machine: dict[str, Any] = EMPTY
    plan: dict[str, Any] = EMPTY
    sweep: dict[str, Any] = EMPTY
    plans: Literal["fixed", "best"] = "fixed"
    launches: bool = True
    optimise: dict[str, Any] = EMPTY
    assumptions: dict[str, Any] = EMPTY
    cost: dict[str, Any] = EMPTY
    calibration: str = "default"


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A checked grid.

    axes    key ('technology.node', 'plan.tp', 'model', 'system') -> its values, slowest first
    """

    spec: GridSpec
    axes: dict[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """Points in all."""
        return math.prod(len(values) for values in self.axes.values())

    def index(self) -> dict[str, npt.NDArray[np.intp]]:
        """For every point, the position of its value on each axis."""
        shape = tuple(len(values) for values in self.axes.values())
        every = np.unravel_index(np.arange(self.size), shape) if shape else ()
        return dict(zip(self.axes, every, strict=True))


def read_grid(ref: str | Path | Mapping[str, Any], where: str = "grid") -> Grid:
    """Read a grid from a YAML file or a mapping.

    Raises InputError, one line: unknown keys, values that are no list, more points than fit.
    """
    if isinstance(ref, Mapping):
        content = dict(ref)
    else:
        where = str(ref)
        content = catalog.read_mapping(Path(ref))
    spec = parse(GridSpec, {"workload": _workload(content), **content}, where)
    if (spec.system is None) == (spec.technology is None) and "system" not in spec.sweep:
        raise InputError(f"{where}: state either a system or a technology")
    if spec.machine and spec.technology is not None:
        raise InputError(f"{where}: machine changes a catalog system; state it under technology")
    if spec.sweep and spec.optimise:
        raise InputError(
            f"{where}: sweep and optimise are two questions: state one, or a grid for each"
        )
    axes = {}
    for key, values in spec.sweep.items():
        _known(key, spec, where)
        axes[key] = _values(key, values, where)
    grid = Grid(spec, axes)
    if grid.size > MOST_POINTS:
        raise InputError(f"{where}: {grid.size:,} points are more than {MOST_POINTS:,}")
    for section in ("plan", "machine", "technology"):
        for key in getattr(spec, section) or {}:
            _known(f"{section}.{key}", spec, where)
    return grid


def _workload(content: Mapping[str, Any]) -> str:
    """Serving where a grid's plan has keys that only served plans have, else training."""
    swept, plan = content.get("sweep") or (), content.get("plan") or ()
    keys = {str(key) for key in plan} | {str(key).removeprefix("plan.") for key in swept}
    serves = keys - set(TrainingPlanSpec.fields())
    return "serving" if serves & set(ServingPlanSpec.fields()) else "training"


ELSEWHERE = {
    "model": "state the model as `model`",
    "system": "state the system as `system`",
    "accelerator": "a system of it is `system` (`h100`), other numbers are under machine",
    "accelerators_per_node": "write machine.domain, the accelerators that the inner link joins",
    "inter_link_gbps": "write machine.scale_out_gbs, in GB/s: an eighth of it",
}
"""Keys of plans that say where they run, which a grid says elsewhere."""


def fields_of(section: str, workload: str) -> tuple[str, ...]:
    """Keys that a section of a grid may have; empty: any (a model's)."""
    if section == "technology":
        return KEYS
    if section == "machine":
        return (*AcceleratorSpec.fields(), *LINKS)
    if section == "plan":
        form = TrainingPlanSpec if workload == "training" else ServingPlanSpec
        return tuple(form.fields())
    from predictor.catalog import ModelSpec

    return tuple(ModelSpec.fields())


def _known(key: str, spec: GridSpec, where: str) -> None:
    if key in ("model", "system"):
        return
    section, dot, name = key.partition(".")
    if section not in SECTIONS or not dot:
        raise InputError(
            f"{where}: sweep {key!r}: write model, system, or SECTION.FIELD with a section of "
            f"{', '.join(SECTIONS)}"
        )
    if section == "technology" and spec.technology is None:
        raise InputError(f"{where}: {key!r} needs a technology to start from")
    if section == "machine" and spec.technology is not None:
        raise InputError(f"{where}: {key!r} needs a system to start from")
    if section == "plan" and name in ELSEWHERE:
        raise InputError(f"{where}: plan.{name}: {ELSEWHERE[name]}")
    allowed = fields_of(section, spec.workload)
    if name not in allowed:
        near = nearest(name, allowed)
        hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(allowed)}"
        raise InputError(f"{where}: unknown {section} field {name!r}{hint}")


def _values(key: str, values: Any, where: str) -> tuple[Any, ...]:
    """A list, or {from, to, steps, scale: linear|log} as numbers."""
    if isinstance(values, Mapping):
        wrong = set(values) - {"from", "to", "steps", "scale"}
        try:
            if wrong:
                raise KeyError(sorted(wrong)[0])
            low, high, steps = float(values["from"]), float(values["to"]), int(values["steps"])
            log = {"linear": False, "log": True}[str(values.get("scale", "linear"))]
            if steps < 1 or (log and min(low, high) <= 0):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{where}: sweep {key}: write a list, or from, to, steps and scale (linear, log)"
            ) from None
        made = np.geomspace(low, high, steps) if log else np.linspace(low, high, steps)
        return tuple(float(value) for value in made)
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}: sweep {key}: needs a list of values")
    return tuple(values)


def combinations(lists: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of a mapping's lists."""
    names = list(lists)
    options = [value if isinstance(value, list) else [value] for value in lists.values()]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*options)]
