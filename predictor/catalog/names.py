"""One spelling for each framework and engine: `data/defaults/aliases.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from predictor.catalog import tables


@lru_cache(maxsize=1)
def aliases() -> Mapping[str, str]:
    """What frameworks and engines are called, and the spelling of each."""
    table = tables.read_mapping(tables.data_dir() / "defaults" / "aliases.yaml")
    return {alias: name for name, others in table.items() for alias in (name, *others)}


def spelled(name: str) -> str:
    """The one spelling of a framework or an engine; a name that has no alias is only brought to
    lower case and dashes, and whoever needs it known says so where it is not."""
    folded = "-".join(str(name).lower().replace("_", " ").split())
    return aliases().get(folded, folded)
