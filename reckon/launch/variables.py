"""Values of flags that a script leaves to its caller: variables that its text does not set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from predictor.errors import InputError
from reckon.launch.table import Cases, Entry, Flags, Switch

OPEN = re.compile(r"\$(?:\{?([A-Za-z_]\w*|\d+)\}?|[({])|`")
"""A variable, or a command whose outcome nobody knows."""

RUN_LENGTH = ("--train-tokens", "--train-samples", "--train-iters", "--num-prompts", "steps",
              "tokens.train_steps", "max_duration")  # fmt: skip
"""Flags that say how long a run is, not how fast."""


def unset(value: Any) -> bool:
    """Whether a value is, or has in it, what only a shell knows."""
    text = str(value).strip()
    return text.startswith(("$", "`")) or (text.startswith("{") and bool(OPEN.search(text)))


def settled(
    flags: Flags,
    entries: Iterable[Entry],
    beside: Mapping[str, Any],
    spelled: Mapping[str, str],
) -> tuple[Flags, list[str]]:
    """The flags without those whose value only a shell knows, where a plan can do without them:
    what they say is given beside the line, or is of the length of a run. A note for each.

    beside   keys of a plan that are given beside the line
    spelled  fields of a serving plan that such keys call otherwise

    Raises InputError, one line, that names all others.
    """
    left: dict[str, Any] = {}
    notes: list[str] = []
    for entry in entries:
        own = {spelled.get(name, name) for name in entry.fields}
        given = bool(own) and own <= set(beside)
        for flag in (flag for flag in entry.flags if unset(flags.get(flag, ""))):
            if given or flag.startswith(RUN_LENGTH):
                told = "given beside it" if given else "how long the run is"
                notes.append(f"{flag} {flags[flag]} is not set in the text: {told}")
                left.pop(flag, None)
                flags = {name: value for name, value in flags.items() if name != flag}
            elif _switched(entry, flag):  # what stands behind a switch is no value of it
                flags = {**flags, flag: True}
            else:
                left[flag] = flags[flag]
    if left:
        raise InputError(_told(left))
    return flags, notes


def _switched(entry: Entry, flag: str) -> bool:
    """Whether a flag is on or off, and takes no value."""
    if isinstance(entry, Cases):
        return all(isinstance(given.get(flag, True), bool) for _, given in entry.rows)
    return isinstance(entry, Switch)


def _told(left: Mapping[str, Any]) -> str:
    """What is not set, and how to set it."""
    shown = [f"{flag} {value}" for flag, value in left.items()]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    what = "that variable" if len(shown) == 1 else "those variables"
    names = dict.fromkeys(m[1] for v in left.values() for m in OPEN.finditer(str(v)) if m[1])
    words = [name for name in names if not name.isdigit()]
    call = " ".join([*(f"{name}=..." for name in words[:4]), "FILE"])
    numbered = [int(name) for name in names if name.isdigit()]
    call += " ..." if numbered else ""
    how = f"; name the file as it is called, '{call}'" if names else "; put it in"
    return f"{', '.join(shown[:4])}{more}: the text does not set {what}{how}"
