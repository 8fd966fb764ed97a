"""Gives real inputs to the readers, and writes docs/accuracy/real-inputs.md of what became of them.

    python tools/real_inputs.py FOLDER            # verdict of each file, counts, figures
    python tools/real_inputs.py FOLDER --write    # the page, too
    python tools/real_inputs.py FOLDER --kind serving --verdict failed

`docs/accuracy/real-inputs.csv` lists the files: repository, commit, path (with `#N` the N-th block
of code of a page, with `:NAME` a function of a recipe) and the file's object name in git, so that
another version is noticed. FOLDER holds the repositories checked out at these commits, each as
`OWNER/NAME`; none of their content is kept here. Nothing of it is run.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.files import write_text
from predictor.models import Model
from predictor.records import dataclass
from reckon.launch import Launch, read_launch

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "accuracy" / "real-inputs.csv"
PAGE = ROOT / "docs" / "accuracy" / "real-inputs.md"

KINDS = {
    "megatron": "Megatron-LM and DeepSpeed scripts",
    "nemo": "NeMo configurations and recipes",
    "torchtitan": "torchtitan TOML and registries",
    "config": "`config.json` of models",
    "trainer": "HuggingFace and DeepSpeed trainers",
    "pretraining": "GPT-NeoX configurations",
    "maxtext": "MaxText commands and YAML",
    "nanotron": "nanotron YAML",
    "llm-foundry": "llm-foundry YAML",
    "serving": "serving lines and manifests",
}
"""Kinds of the list, and what they are called."""

REASONS: tuple[tuple[str, str], ...] = (
    ("open", r"does not set (that|those) variable|is a template|name the file as it is called"),
    ("open", r"not say the size of the vocabulary|cannot read .*(options|that the command names)"),
    ("open", r"its stage is not in its name|states a model without its|\?\?\?"),
    ("open", r"takes it from the checkpoint; state the number|the rest is in that file"),
    ("open", r"needs --num-layers, or --model|key '\w+' is missing|needs delta_\w+, "),
    ("open", r"kv_heads \d+ does not divide heads"),
    ("foreign", r"which is not read|is not predicted"),
    ("nothing", r"no flag of |no container that runs|\d recipes; name one|no settings are in it"),
)
"""Verdicts of a refusal, and what its message says then; any other is `failed`."""

VERDICTS = {
    "read": "model and plan were understood",
    "plan": "the plan was; the model is named nowhere in the file, or is in no catalog",
    "open": "refused: it leaves to its caller what a plan needs, which the message names",
    "foreign": "refused: it is of a model or a run that is not predicted, which the message names",
    "nothing": "refused: it starts no run of the kind (looked at by hand)",
    "failed": "refused for a wrong reason, or for none",
}

Row = dict[str, str]

BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.S | re.M)

SHOWN = 12
"""Files of each kind that the page lists, beside those that failed and those checked by hand."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a file.

    said     fields, or the refusal
    figures  by name, those of a plan and of the model
    """

    verdict: str
    said: str
    figures: dict[str, Any]


def listed(path: Path = LIST) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def place_of(row: Row, folder: Path) -> tuple[Path, str, str]:
    """The file of a row, the function of it, and the number of a block of code; empty for none."""
    path, _, block = row["path"].partition("#")
    path, _, function = path.partition(":")
    return folder / row["repository"] / path, function, block


def object_name(content: bytes) -> str:
    """The name that git gives a file of this content, its first twelve digits."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()[:12]


def figures_of(model: Model | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The figures that are compared with those found by hand; parameters in billions."""
    own = {} if model is None else {
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads,
        "kv_heads": model.kv_heads, "vocab": model.vocab, "experts": model.num_experts,
        "params_b": round(model.parameters / 1e9, 3),
    }  # fmt: skip
    return {**own, **fields}


def _given(row: Row, folder: Path) -> str:
    place, function, block = place_of(row, folder)
    if block:
        text = place.read_text(encoding="utf-8", errors="replace")
        return str(BLOCK.findall(text)[int(block) - 1])
    called = row["call"].replace("FILE", str(place)) if row["call"] else str(place)
    return f"{called}:{function}" if function else called


def found(row: Row, folder: Path) -> Found:
    """What a reader says of a file. Errors that no reader should raise pass through."""
    given = _given(row, folder)
    try:
        if row["reader"] == "config":
            model = catalog.model(given)
            return Found("read", model.name, figures_of(model, {}))
        launch = read_launch(row["reader"], given)
    except InputError as error:
        verdict = next((v for v, sign in REASONS if re.search(sign, str(error))), "failed")
        if verdict == "nothing" and row["is"] != "nothing":
            verdict = "failed"
        return Found(verdict, str(error), {})
    return Found("read" if launch.model else "plan", _told(launch),
                 figures_of(launch.model, launch.fields))  # fmt: skip


PLAIN = ("gpus", "tp", "pp", "cp", "ep", "micro_batch", "global_batch", "seq_len", "precision")


def _told(launch: Launch) -> str:
    """The model and the fields that most plans have, of degrees only those above one."""
    name = launch.model.name if launch.model else next(
        (note for note in launch.notes if "the catalog has no model" in note), "no model named"
    ).partition(";")[0]  # fmt: skip
    fields = {k: launch.fields[k] for k in PLAIN if launch.fields.get(k) not in (None, 1)}
    return f"{name}, {' '.join(f'{k} {v}' for k, v in fields.items())}".rstrip(", ")


def differences(row: Row, own: Found) -> list[str]:
    """Figures found by hand that the reader has otherwise."""
    wrong = []
    for pair in row["by_hand"].split():
        name, _, wanted = pair.partition("=")
        has = own.figures.get(name)
        if str(has) != wanted and not (_number(has) and abs(float(has) - float(wanted)) <= 1e-9):
            wrong.append(f"{name} {has}, by hand {wanted}")
    return wrong


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def everything(rows: Iterable[Row], folder: Path) -> Iterator[tuple[Row, Found]]:
    """Every row with what became of it; a file that is absent or of another version is told."""
    for row in rows:
        place, _, _ = place_of(row, folder)
        if not place.is_file():
            print(f"{place}: not there", file=sys.stderr)
        elif object_name(place.read_bytes()) != row["blob"]:
            print(f"{place}: another version than {row['blob']}", file=sys.stderr)
        else:
            yield row, found(row, folder)


def counts(results: list[tuple[Row, Found]]) -> list[str]:
    """The table of verdicts by kind."""
    head = [*VERDICTS, "right", "right at first"]
    lines = [f"| kind | files | {' | '.join(head)} |", f"|---|{'---:|' * (len(head) + 1)}"]
    for kind, what in KINDS.items():
        own = [(row, one) for row, one in results if row["kind"] == kind]
        if not own:
            continue
        many = Counter(one.verdict for _, one in own)
        first = sum(row["first"] == "failed" for row, _ in own)
        cells = [*(many[v] for v in VERDICTS), _share(len(own) - many["failed"], len(own)),
                 _share(len(own) - first, len(own))]  # fmt: skip
        lines.append(f"| {what} | {len(own)} | {' | '.join(map(str, cells))} |")
    return lines


def _share(some: int, all_: int) -> str:
    return f"{some / all_:.0%}"


INTRODUCTION = """# Real inputs that were tried

Files that nobody here wrote, as public repositories hold them, given to the readers of launch
lines and of `config.json`. None was looked at before the column *right at first* was taken; the
readers were then mended, so that the other columns are of files that are known. GPT-NeoX had no
reader before: its was written with these files in view. Those of MaxText, nanotron and llm-foundry
were written from these programs' sources and one file of each, which is not in the list; a file
that was read, but as another model or another run, counts as wrong at first. Of the serving lines
sixty are recipes of vLLM's site, whose pages hold the lines: at first no page was read. Nor were
the 67 functions of torchtitan's registries, whose reader was written with these files in view.
[The list](real-inputs.csv) has repository, commit and path of every one; with them checked out,
`python tools/real_inputs.py FOLDER --write` writes this page.

"""


def page(results: list[tuple[Row, Found]]) -> str:
    """The page: what verdicts mean, counts, figures, some files of each kind."""
    lines = [f"- *{name}*: {what}." for name, what in VERDICTS.items()]
    lines += ["- *right*: all but those that failed.", "", *counts(results), ""]
    checked = [(row, one) for row, one in results if row["by_hand"]]
    many = sum(len(row["by_hand"].split()) for row, _ in checked)
    wrong = [f"`{row['path']}`: {w}" for row, one in checked for w in differences(row, one)]
    lines.append(
        f"Figures of {len(checked)} files ({many} in all: sizes, parameters, layout, batch) were "
        f"worked out by hand from the file alone: {len(wrong)} differ{'.' if not wrong else ':'}"
    )
    lines += ["", *(f"- {one}" for one in wrong)]
    for kind, what in KINDS.items():
        own = [(row, one) for row, one in results if row["kind"] == kind]
        if own:
            lines += ["", f"## {what[0].upper()}{what[1:]}", "", *_files(own)]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _files(own: list[tuple[Row, Found]]) -> list[str]:
    """Files of one kind as rows: those that failed, those checked by hand, and every few others."""
    every = max(1, len(own) // SHOWN)
    rows = ["| repository | file | | what reckon says |", "|---|---|---|---|"]
    for i, (row, one) in enumerate(own):
        if one.verdict == "failed" or row["by_hand"] or i % every == 0:
            said = re.sub(r"(/[\w.+@-]+){3,}", lambda m: m[0].rsplit("/", 1)[-1], one.said)
            said = said.replace("|", "\\|").replace("\n", " ")
            said = said if len(said) <= 140 else f"{said[:137]}..."
            mark = "by hand" if row["by_hand"] else ""
            rows.append(
                f"| {row['repository']} | `{row['path']}` | {mark} | {one.verdict}: {said} |"
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--verdict", choices=VERDICTS)
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    rows = [row for row in listed() if given.kind in (None, row["kind"])]
    results = list(everything(rows, given.folder))
    for row, one in results:
        if given.verdict in (None, one.verdict):
            print(f"{one.verdict}\t{row['repository']}\t{row['path']}\t{one.said}")
        for wrong in differences(row, one):
            print(f"differs\t{row['repository']}\t{row['path']}\t{wrong}")
    print("\n".join(counts(results)))
    if given.write:
        write_text(PAGE, page(results))
    return 1 if any(one.verdict == "failed" or differences(row, one) for row, one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
