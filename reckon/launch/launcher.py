"""The part of a launch line that starts processes: torchrun, srun, deepspeed, accelerate."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.files import is_file
from reckon.launch.shell import Script, options, read_script
from reckon.launch.table import Derived, Facts, Flags, whole_number

NODES, PER_NODE, PROCESSES = "@nodes", "@per-node", "@processes"
"""Flags under which a launcher's numbers are kept apart from the program's."""

NAMES: dict[str, str] = {
    "nnodes": NODES, "num-nodes": NODES, "nodes": NODES, "N": NODES, "num-machines": NODES,
    "nproc-per-node": PER_NODE, "num-gpus": PER_NODE, "ntasks-per-node": PER_NODE,
    "gpus-per-node": PER_NODE, "npernode": PER_NODE,
    "num-processes": PROCESSES, "np": PROCESSES, "n": PROCESSES, "ntasks": PROCESSES,
}  # fmt: skip
"""Options of launchers, dashes for underscores."""


def program(words: list[str]) -> tuple[list[str], list[str]]:
    """A command's words before and behind the program that it starts; all are the program's where
    there is no launcher."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return words[:place], words[place + 1 :]
        if word == "-m" and place + 1 < len(words) and any(map(_is_python, words[:place])):
            module = words[place + 1]
            if not module.startswith(("torch.distributed", "accelerate", "deepspeed.launcher")):
                return words[:place], words[place + 2 :]
    return [], words


def _is_python(word: str) -> bool:
    return bool(re.fullmatch(r".*python[\d.]*|.*torchrun", word))


def launched(words: list[str]) -> Flags:
    """Nodes and processes that a launcher's words state; later ones count."""
    found: Flags = {}
    for name, value in options(words).items():
        key = NAMES.get(name.lstrip("-").replace("_", "-"))
        text = next(iter(str(value).split()), "")
        if key and text.isdigit():
            found[key] = int(text)
    alone = ("torchrun", "torch.distributed", "deepspeed")
    if any(name in w for w in words for name in alone):
        found.setdefault(NODES, 1)
    return found


def choose(script: Script, known: tuple[str, ...]) -> tuple[Flags, list[str], list[str]]:
    """Of a script's commands the one with most flags that are known: the launcher's flags, the
    program's words, notes."""
    flags = {flag.lstrip("-").replace("_", "-") for flag in known}

    def score(words: list[str]) -> tuple[int, bool]:
        """Flags; and, where scripts print what they then run, whether it is run."""
        names = {name.lstrip("-").replace("_", "-") for name in options(program(words)[1])}
        return len(names & flags), words[:1] not in (["echo"], ["printf"])

    best = max(script.commands, key=score, default=[])
    if not score(best)[0]:  # a file of settings, for another to start something with
        settings = [" ".join(words).split() for words in script.variables.values()]
        best = max([best, *settings], key=score)
    before, behind = program(best)
    return {**launched(script.batch), **launched(before)}, behind, list(script.notes)


def command(
    text: str, known: tuple[str, ...], folder: Path | None = None
) -> tuple[Script, Flags, dict[str, str | bool], list[str]]:
    """A script, or one command of a launcher and a program: what was read; the launcher's numbers;
    the program's options as written; notes.

    known   flags by which the program's command is told from others
    folder  that the text is from, for files that it names
    """
    script = read_script(text, folder)
    launcher, words, notes = choose(script, known)
    return script, launcher, options(words), notes


ABOVE = 6
"""Folders above a script's own that are looked through for files that it names."""


def named_file(name: str, folder: Path) -> Path | None:
    """The file that a command means: from its own folder or one above, as it is written, or in its
    own folder without the path; None where there is none."""
    name = re.sub(r"^\$\{?PWD\}?/", "", name)
    above = [folder, *folder.resolve().parents[:ABOVE]]
    places = [*(place / name for place in above), Path(name), folder / Path(name).name]
    return next((place for place in places if is_file(place)), None)


def named_text(config: str, folder: Path, script: Script, what: str) -> str:
    """The text of a configuration that a command names: of a here-document, or of a file.

    folder  that the command is from
    what    it is, for the error

    Raises InputError where there is none.
    """
    text = script.files.get(config.removeprefix("./"))
    if text is not None:
        return text
    path = named_file(config, folder)
    if path is None:
        raise InputError(f"cannot read {config}, {what} that the command names; put it beside")
    return path.read_text(encoding="utf-8", errors="replace")


def quoted(value: Any) -> str:
    """A value as a shell takes it."""
    return shlex.quote(f"{value:g}" if isinstance(value, float) else str(value))


def rendered(head: str, flags: Flags) -> str:
    """A command with a flag on each line; switches that are off, and '@' flags, are left out."""
    lines = [head]
    for name, value in flags.items():
        if name.startswith("@") or value is False:
            continue
        flag = name if name.startswith("-") else f"--{name}"
        text = value if isinstance(value, str) and name.endswith("modules") else None
        said = text if text is not None else quoted(value)
        lines.append(flag if value is True else f"{flag} {said}")
    return " \\\n    ".join(lines) + "\n"


def _nodes(facts: Facts) -> Flags:
    gpus, node = int(facts["gpus"]), int(facts["@per_node"])
    per_node = gpus if gpus < node else next(n for n in range(node, 0, -1) if gpus % n == 0)
    return {NODES: gpus // per_node, PER_NODE: per_node}


def processes(flags: Flags) -> Facts:
    """Accelerators in all, where the launcher's numbers say it."""
    if PROCESSES in flags and PER_NODE not in flags:
        return {"gpus": whole_number(PROCESSES, flags[PROCESSES])}
    if NODES in flags and PER_NODE in flags:
        nodes = whole_number(NODES, flags[NODES])
        return {"gpus": nodes * whole_number(PER_NODE, flags[PER_NODE])}
    return {}


WORLD = Derived((NODES, PER_NODE, PROCESSES), _nodes, lambda flags, facts: processes(flags))
"""Accelerators in all: nodes times processes per node, one process each."""
