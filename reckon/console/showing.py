"""`reckon show`: the catalogs and the fields of plans, as tables, JSON, or YAML to pass back."""

from __future__ import annotations

import click

from reckon.console.files import write_json
from reckon.console.flags import argument, json_option, switch


@click.command(
    epilog="Example: reckon show models llama3-70b",
    params=[
        argument("kind", "KIND"),
        argument("name", "[NAME]", required=False),
        switch("yaml", "As a file to edit and pass back."),
        json_option(),
    ],
)
def show(kind: str, name: str | None, yaml: bool, json: str | None) -> int:
    """List a catalog, or show one entry.

    KIND: accelerators, systems, models, calibrations, fields (of plans), or technology (what a
    machine that does not exist may be made of; `show systems FILE` says what its budget makes).
    """
    from reckon.views.catalogs import content, show

    found = content(kind, name)
    if json:
        write_json(json, found)
    if json == "-":
        return 0
    if yaml:
        import yaml as library

        print(library.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
    else:
        show(kind, found)
    return 0
