"""What the guide to one's own runs says of errors is what `make own` found."""

from __future__ import annotations

from tests.conftest import ROOT
from tools.own_runs import PAGE, page
from tools.own_steps import has_steps


def test_the_guides_tables_are_of_the_files() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m tools.own_runs"


def test_profiles_with_steps_are_told_from_tables_of_single_measurements() -> None:
    """`make own` names all folders of two cores, the last of which holds what hosts take alone."""
    profiles = {path.name for path in (ROOT / "data" / "measurements").glob("two-cores-*")}
    told = {name for name in profiles if has_steps(ROOT / "data" / "measurements" / name)}
    assert told == {f"two-cores-{number}" for number in range(1, 6)} < profiles
