"""Interpolations of configurations: `${model.hidden_size}`, `${.hidden_size}`,
`${multiply:4, ${.hidden_size}}` (OmegaConf 2.3's grammar, with the resolvers that NeMo registers).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from reckon.launch.structured import scalar

RESOLVERS: dict[str, Callable[..., float]] = {
    "multiply": lambda *numbers: math.prod(numbers),
    "add": lambda *numbers: sum(numbers),
    "sum": lambda *numbers: sum(numbers),
    "subtract": lambda a, b: a - b,
    "div": lambda a, b: a / b,
    "divide": lambda a, b: a / b,
    "divide_ceil": lambda a, b: math.ceil(a / b),
    "divide_floor": lambda a, b: a // b,
}
"""Arithmetic of NeMo's configurations (nemo/core/config/templates)."""

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
"""Name of a variable of the environment; behind its colon stands what counts where none sets it
(AMD-AGI/Primus @ fd1eeab, examples/*/configs)."""
DEEPEST, FOLLOWED = 12, 4
"""Interpolations within each other, and behind each other, that are followed."""


def interpolated(content: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same mapping with the interpolations put in that can be; others stay as written."""
    found = content
    for _ in range(FOLLOWED):
        before, found = found, _within(found, found, ())
        if before == found:
            break
    return dict(found)


def _within(value: Any, root: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _within(one, root, (*path, str(key))) for key, one in value.items()}
    if isinstance(value, list):
        return [_within(one, root, path) for one in value]
    if isinstance(value, str) and "${" in value:
        return _text(value, root, path)
    return value


def _text(text: str, root: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
    """A text with what its interpolations stand for; a value where it is one interpolation."""
    for _ in range(DEEPEST):
        match = INNERMOST.search(text)
        if match is None:
            return text
        value = _value(match[1].strip(), root, path)
        if value is None:
            return text
        if isinstance(value, str) and "${" in value:  # of another place, put in there first
            return text
        if match[0] == text:
            return value
        text = text[: match.start()] + str(value) + text[match.end() :]
    return text


def _value(inner: str, root: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
    """What an interpolation without others in it stands for; None where that is not known."""
    name, colon, rest = inner.partition(":")
    if colon and VARIABLE.fullmatch(name):
        return scalar(rest)
    if colon:
        if name not in RESOLVERS:
            return None
        try:
            numbers = [float(part) for part in rest.split(",")]
            found = RESOLVERS[name](*numbers)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            return None
        return int(found) if math.isfinite(found) and found == int(found) else found
    dots = len(inner) - len(inner.lstrip("."))
    keys = inner.lstrip(".").split(".")
    if dots:
        return _at(root, [*path[: len(path) - dots], *keys])
    found = _at(root, keys)
    # A part of a larger configuration names itself from the root of the whole.
    return _at(root, keys[1:]) if found is None and len(keys) > 1 else found


def _at(root: Mapping[Any, Any], keys: list[str]) -> Any:
    place: Any = root
    for key in keys:
        if not isinstance(place, Mapping) or key not in place:
            return None
        place = place[key]
    return None if isinstance(place, Mapping | list) else place


def loaded(text: str) -> dict[Any, Any] | None:
    """The mapping that a YAML text holds, its interpolations put in; None where it holds none."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return interpolated(content) if isinstance(content, dict) else None
