"""Write the pages of reference that are made from code and tables: `docs/reference`.

python tools/reference.py
"""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path

import click
from pydantic.json_schema import GenerateJsonSchema

import reckon
from predictor import catalog
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec
from predictor.catalog.forms import keys_schema
from predictor.files import write_text
from reckon.console.cli import Verbs, app
from reckon.views.fields import reference

MENU = Path(__file__).resolve().parent.parent / "zensical.toml"
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"


def commands(group: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    """All commands with their names, those of groups below them."""
    found: list[tuple[str, click.Command]] = []
    if isinstance(group, Verbs):
        for name in group.list_commands(click.Context(group)):
            inner = group.get_command(click.Context(group), name)
            assert inner is not None
            found += commands(inner, (*path, name))
        return found
    return [(" ".join(path), group)]


def command_line() -> str:
    """Every command with its flags."""
    parts = ["# Command line\n\nExit status: 0 done, 2 bad input (one line on stderr), 1 internal "
             "error. Every command has `--help`.\n"]  # fmt: skip
    for name, one in commands(app):
        context = click.Context(one, info_name=f"reckon {name}")
        parts.append(f"\n## reckon {name}\n\n{one.help or ''}\n\n| flag | what |\n|---|---|\n")
        for param in one.params:
            record = param.get_help_record(context)
            if record is not None:
                flag, text = (cell.replace("|", "\\|") for cell in record)
                parts.append(f"| `{flag}` | {text} |\n")
        if one.epilog:
            parts.append(f"\n{one.epilog}\n")
    return "".join(parts)


def python() -> str:
    """What `reckon` exports, with its docstrings."""
    parts = [f"# Python\n\n```text\n{inspect.getdoc(reckon)}\n```\n"]
    for name in sorted(reckon._LAZY):
        one = getattr(reckon, name)
        signature = str(inspect.signature(one)) if callable(one) else ""
        text = inspect.getdoc(one) or ""
        head = textwrap.fill(f"{name}{signature}", 96, subsequent_indent="    ")
        parts.append(f"\n## reckon.{name}\n\n```text\n{head}\n\n{text}\n```\n")
        if inspect.isclass(one):
            members = [
                (key, inspect.getdoc(value) or "")
                for key, value in vars(one).items()
                if not key.startswith("_") and (callable(value) or isinstance(value, property))
            ]
            parts += [f"- `{key}`: {' '.join(text.split())}\n" for key, text in members]
    return "".join(parts)


def schemas() -> str:
    """JSON Schemas of requests."""
    parts = [
        "# JSON\n\nWhat `--json` writes has a `schema_version`, a `kind`, the request as it was "
        "`stated` and, completed, as `inputs`, what was `assumed` with the rule of each, what has "
        "`no_effect`, and figures whose keys carry their unit; "
        "`{value, low, high}` is a figure with its interval. Requests (run files, plans in Python, "
        "bodies over HTTP) follow these schemas; the result of one prediction is a run file, too:\n"
    ]
    for name, form in (("training", TrainingPlanSpec), ("serving", ServingPlanSpec)):
        made = GenerateJsonSchema().generate(keys_schema(form))
        told = {"description": form.__doc__, "title": form.__name__}
        schema = json.dumps(dict(sorted({**made, **told}.items())), indent=1)
        parts.append(f"\n## A {name} request\n\n```json\n{schema}\n```\n")
    return "".join(parts)


def catalogs() -> str:
    """What the catalogs hold."""
    parts = ["# Catalogs\n\n`reckon show KIND NAME` prints an entry, `--yaml` as a file.\n"]
    for kind in catalog.KINDS:
        rows = catalog.rows(kind)
        parts.append(f"\n## {kind.capitalize()} ({len(rows)})\n\n")
        parts.append(", ".join(f"`{name}`" for name in rows) + "\n")
    parts.append("\n## Instances of clouds\n\n| instance | system | accelerators | USD an hour |"
                 " where, when, source |\n|---|---|---:|---:|---|\n")  # fmt: skip
    for one in catalog.instances():
        price = "" if one.price is None else f"{one.price:g}"
        parts.append(f"| {one.name} | {one.system} | {one.count} | {price} | {one.told} |\n")
    return "".join(parts)


PAGES = {
    "fields.md": reference,
    "cli.md": command_line,
    "python.md": python,
    "json.md": schemas,
    "catalogs.md": catalogs,
}


LAST = {
    "guides": '    { "The explorer" = "guides/explorer.md" },\n',
    "accuracy": '    { "Real inputs" = "accuracy/real-inputs.md" },\n',
}
"""Folders whose new pages are taken into the menu, and the entry that they stand before."""


def menu(text: str) -> str:
    """`zensical.toml` with guides and pages of accuracy that its menu does not have yet."""
    for folder, last in LAST.items():
        added = ""
        for page in sorted((FOLDER.parent / folder).glob("*.md")):
            if f"{folder}/{page.name}" not in text:
                title = page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
                name = json.dumps(title, ensure_ascii=False)
                added += f'    {{ {name} = "{folder}/{page.name}" }},\n'
        text = text.replace(last, added + last)
    return text


def main() -> None:
    MENU.write_text(menu(MENU.read_text(encoding="utf-8")), encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        write_text(FOLDER / name, page())
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
