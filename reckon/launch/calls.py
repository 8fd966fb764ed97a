"""Scripts as they are called: settings before the name, arguments behind it."""

from __future__ import annotations

import re
import shlex

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A script as it is called: the file, and what sets its variables and arguments."""

    file: str
    before: str


CALLERS = ("bash", "sh", "zsh", "sbatch", "srun", "source", ".", "exec", "env", "nohup")


def called(line: str) -> Call | None:
    """A call of a script that is there, with settings before its name or arguments behind; None
    where a line is something else."""
    try:
        words = shlex.split(line) if "\n" not in line else []
    except ValueError:
        return None
    own = 0
    while own < len(words) and re.match(r"[A-Za-z_]\w*=", words[own]):
        own += 1
    at = own
    while at < len(words) and words[at] in CALLERS:
        at += 1
    if at >= len(words) or len(words) < 2 or not words[at].endswith(SHELL):
        return None
    settings = [f"{name}={shlex.quote(value)}" for name, _, value in
                (word.partition("=") for word in words[:own])]  # fmt: skip
    arguments = " ".join(map(shlex.quote, words[at + 1 :]))
    return Call(words[at], "; ".join([*settings, f"set -- {arguments}; "]))


SHELL = (".sh", ".bash", ".slurm", ".sbatch")
"""What files of shell scripts end with."""
