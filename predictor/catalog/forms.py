"""Forms that files are checked against: a class whose annotations say what each key may hold.

pydantic's core checks, from a schema that is written when a form is first used
(https://docs.pydantic.dev/latest/api/pydantic_core_schema/, read in November 2026); its models,
which take longer to import and to build than a prediction takes, are not needed for that.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic_core import SchemaValidator, ValidationError

from predictor.errors import LISTED, InputError, nearest
from predictor.plans import Kind

NEEDED = object()
"""Default of a key that must be stated."""

EMPTY: dict[str, Any] = {}
"""Default of a mapping; each form has its own."""

PLAIN = {str: "str", bool: "bool", int: "int", float: "float", Any: "any"}


class Spec:
    """Base of all forms: unknown keys are errors, instances are frozen.

    Annotations are `str`, `bool`, `int`, `float`, `Any`, forms, literals, lists that are not empty,
    tuples of any length, mappings by text, unions of these; `Annotated` by a `Kind`, whose ends
    hold, or by a function that reads what is given, before.
    """

    @classmethod
    @cache
    def fields(cls) -> dict[str, tuple[Any, Any]]:
        """Annotation and default of every key."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return {
            name: (hint, getattr(cls, name, NEEDED))
            for name, hint in hints.items()
            if typing.get_origin(hint) is not ClassVar
        }

    @classmethod
    @cache
    def validator(cls) -> SchemaValidator:
        """What checks values, and makes one of them."""
        return SchemaValidator(_schema(cls))

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """One that holds checked values."""
        made = cls.__new__(cls)
        vars(made).update(values)
        made.check()
        return made

    def check(self) -> None:
        """Raise ValueError where values contradict each other."""

    def to_dict(self, *, defaults: bool = True, blanks: bool = True) -> dict[str, Any]:
        """Keys and values, forms within it too; without those that are defaults, or None."""
        default = {} if defaults else {name: one for name, (_, one) in self.fields().items()}

        def plain(value: Any) -> Any:
            if isinstance(value, Spec):
                return value.to_dict(defaults=defaults, blanks=blanks)
            return [plain(one) for one in value] if isinstance(value, list) else value

        return {
            name: plain(value) if isinstance(value, (Spec, list)) else value
            for name, value in vars(self).items()
            if (blanks or value is not None) and (defaults or value != default[name])
        }

    def __repr__(self) -> str:
        told = ", ".join(f"{k}={v!r}" for k, v in self.to_dict(defaults=False).items())
        return f"{type(self).__name__}({told})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")


S = TypeVar("S", bound=Spec)


def parse(form: type[S], fields: Mapping[str, Any], where: str) -> S:
    """Validate a mapping.

    where   what to call it in an error: a file, a catalog row, 'the command line'

    Raises InputError, one line, naming the field, what was given and what is allowed.
    """
    if not isinstance(fields, Mapping):
        raise InputError(f"{where}: expected keys and values, got {type(fields).__name__}")
    try:
        found: S = form.validator().validate_python(dict(fields))
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, form)}") from None
    return found


def keys_schema(form: type[Spec]) -> Any:
    """Schema of pydantic's core of the keys of a form."""
    keys = {}
    for name, (hint, default) in form.fields().items():
        schema, needed = _schema(hint), default is NEEDED
        if not needed:
            copied = isinstance(default, dict)
            schema = {
                "type": "default",
                "schema": schema,
                "default": default,
                "copy_default": copied,
            }
        keys[name] = {"type": "typed-dict-field", "schema": schema, "required": needed}
    return {"type": "typed-dict", "fields": keys, "extra_behavior": "forbid"}


def _called(function: Any) -> Any:
    return {"type": "no-info", "function": function}


def _schema(hint: Any) -> Any:
    """Schema of pydantic's core of what an annotation allows."""
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _narrowed(_schema(inner[0]), inner[1])
    if origin in (typing.Union, types.UnionType):
        choices = [_schema(one) for one in inner if one is not type(None)]
        one = choices[0] if len(choices) == 1 else {"type": "union", "choices": choices}
        return {"type": "nullable", "schema": one} if type(None) in inner else one
    if origin is Literal:
        return {"type": "literal", "expected": list(inner)}
    if origin is list:
        return {"type": "list", "items_schema": _schema(inner[0]), "min_length": 1}
    if origin is tuple:
        return {"type": "tuple", "items_schema": [_schema(inner[0])], "variadic_item_index": 0}
    if origin is dict:
        return {
            "type": "dict",
            "keys_schema": _schema(inner[0]),
            "values_schema": _schema(inner[1]),
        }
    return {"type": "function-after", "function": _called(hint.of), "schema": keys_schema(hint)}


def _narrowed(schema: dict[str, Any], by: Any) -> Any:
    if not isinstance(by, Kind):
        return {"type": "function-before", "function": _called(by), "schema": schema}
    ends = {"ge": by.least, "gt": by.above, "le": by.most, "lt": by.below}
    finite = {"allow_inf_nan": False} if by.number is float else {}
    schema = schema | {name: end for name, end in ends.items() if end is not None} | finite
    if by.number is None:
        return schema
    read = _whole if by.number is int else None
    read = scaled if by.scaled else _length if by.binary else read
    if read is None:
        return schema
    return {"type": "function-before", "function": _called(read), "schema": schema}


SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def scaled(value: Any) -> Any:
    """A number with its scale behind it, as 15T; anything else as it is."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbgtKMBGT])\s*", value) if (
        isinstance(value, str)) else None  # fmt: skip
    return value if match is None else float(match[1]) * SCALES[match[2].lower()]


def number(name: str, value: Any, least: float = -math.inf, whole: bool = False) -> float:
    """A number that a request states beside its plan, also as 15T or a text 15e12.

    Raises InputError for what is none, is not finite, below the least, or a part of one where a
    whole one is asked for.
    """
    try:
        found = float(scaled(value))
    except (TypeError, ValueError):
        raise InputError(f"{name} {value!s:.40} must be a number") from None
    if not math.isfinite(found):
        raise InputError(f"{name} {found:g} must be a finite number")
    if found < least:
        raise InputError(f"{name} {found:g} cannot be below {least:g}")
    if whole and not found.is_integer():
        raise InputError(f"{name} {found:g} must be a whole number")
    return found


def _whole(value: Any) -> Any:
    """A whole number that is written with an exponent, as 1e3; anything else as it is."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value):
        found = float(value)
        return int(found) if found.is_integer() else value
    return value


def _length(value: Any) -> Any:
    """A length with a k behind it, as 8k for 8,192, or as `_whole` reads it."""
    match = re.fullmatch(r"\s*(\d+)[kK]\s*", value) if isinstance(value, str) else None
    return _whole(value) if match is None else 1024 * int(match[1])


SAID: tuple[tuple[str, str], ...] = (
    (r"^input should be a valid integer.*", "must be a whole number"),
    (r"^input should be a valid number.*", "must be a number"),
    (r"^input should be a valid boolean.*", "must be true or false"),
    (r"^input should be a valid string.*", "must be a text"),
    (r"^input should be a finite number.*", "must be a finite number"),
    (r"^input should be greater than or equal to ", "must be at least "),
    (r"^input should be less than or equal to ", "must be at most "),
    (r"^input should be greater than ", "must be more than "),
    (r"^input should be ", "must be "),
)
"""What pydantic says of values, and how that is said here."""


def in_words(message: str) -> str:
    """A message of pydantic's in plain words."""
    message = message[:1].lower() + message[1:]
    for pattern, words in SAID:
        if re.search(pattern, message):
            return re.sub(pattern, words, message)
    return message


def _explain(error: ValidationError, form: type[Spec]) -> str:
    # A misspelt key explains a missing one, so it comes first.
    found = error.errors(include_url=False)
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys(form, first["loc"][:-1])
        near = nearest(str(first["loc"][-1]), known)
        few = f"known keys: {', '.join(known)}"
        rest = few if len(known) <= LISTED else "`reckon show fields` lists those of plans"
        return f"unknown key {place!r}; " + (f"did you mean {near!r}?" if near else rest)
    if first["type"] == "missing":
        return f"key {place!r} is missing"
    message = in_words(first["msg"].removeprefix("Value error, "))
    told = f"{place}: {message}" if place else message
    given = repr(first["input"])
    if given in message or isinstance(first["input"], Mapping):
        return told
    return f"{told}, got {given if len(given) <= 60 else given[:57] + '...'}"


def _keys(form: type[Spec], path: tuple[Any, ...]) -> list[str]:
    """Keys allowed at a place inside a form."""
    for name in path:
        hints = [form.fields()[name][0]] if isinstance(name, str) else []
        while hints:
            one = hints.pop()
            if isinstance(one, type) and issubclass(one, Spec):
                form = one
            hints += typing.get_args(one)
    return list(form.fields())
