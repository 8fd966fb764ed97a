"""What the verbs of the command line share: types of flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Text = str | None
Json = Annotated[
    Text, typer.Option("--json", metavar="FILE", help="Whole result as JSON (- = stdout).")
]
CalibrationName = Annotated[
    str, typer.Option("--calibration", metavar="NAME|DIR", help="What to predict with.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a plan."),
]


def flag(name: str, help_text: str, metavar: str = "N") -> Any:
    """A flag with a value."""
    return typer.Option(f"--{name}", metavar=metavar, help=help_text)
