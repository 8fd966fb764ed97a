"""Errors that are written for the one who must act."""

from __future__ import annotations

from collections.abc import Iterable

LISTED = 32
"""Most choices that one line names."""

FEW = 4
"""Most choices that are asked for where a name is the beginning of several."""


class InputError(ValueError):
    """Bad input: an unknown name, an impossible plan, a malformed file.

    The message is one line that names what was given, what is allowed and, where there is one,
    the nearest valid choice. The command line prints it and exits with status 2.
    """


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `name` most resembles (case does not count), else the only one that
    begins with it, or None."""
    import difflib

    folded, word = {choice.lower(): choice for choice in choices}, name.lower()
    close = difflib.get_close_matches(word, folded, n=1, cutoff=0.6)
    begun = [choice for choice in folded if word and choice.startswith(word)]
    found = close or (begun if len(begun) == 1 else [])
    return folded[found[0]] if found else None


def unknown(what: str, name: object, choices: Iterable[str], hint: str = "") -> InputError:
    """Build the error for a name that is not among `choices`; those are asked for of which it is
    the first words, the nearest otherwise.

    Where nothing resembles it, up to `LISTED` choices are named; of more, `hint` says where they
    can be seen.
    """
    choices = list(choices)
    message = f"unknown {what} {str(name)!r}"
    near = nearest(str(name), choices)
    whole = [one for one in choices if one.lower().startswith(f"{str(name).lower()}-")]
    if 1 < len(whole) <= FEW:
        message += f"; did you mean {' or '.join(map(repr, whole))}?"
    elif near is not None:
        message += f"; did you mean {near!r}?"
    elif len(choices) <= LISTED:
        message += f"; known: {', '.join(choices)}"
    return InputError(message + (f" ({hint})" if hint else ""))
