"""What names of a run and of a model's repository say, kept beside a line's flags."""

from __future__ import annotations

from predictor import catalog
from reckon.launch.table import Derived, Entry, Facts, Flags

HINTS: tuple[Entry, ...] = (
    Derived(
        ("@name",),
        lambda facts: {},
        lambda flags, facts: {"model.hint": str(flags["@name"])} if "@name" in flags else {},
    ),
    Derived(
        ("@repository",),
        lambda facts: {},
        lambda flags, facts: _repository_means(flags),
    ),
)
"""What names of a run and a recipe's repository say of the model."""


def _repository_means(flags: Flags) -> Facts:
    """The model of a recipe's repository."""
    if "@repository" not in flags:
        return {}
    written = str(flags["@repository"])
    known = catalog.read_model_name(written) is not None
    return {"model.name" if known else "model.unknown": written}
