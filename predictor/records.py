"""`dataclass` as of the standard library, for programs that start often and make few.

The standard decorator writes and compiles five methods of each class while a program starts. There
are some hundred classes here, of most of which a run makes nothing. So what can be said once for
all of them is (`__repr__`, `__eq__`, `__hash__`, what keeps the frozen ones frozen), and `__init__`
is compiled when some of a class have been made: imports take a quarter of the time. `fields`,
`replace`, `asdict` and the rest of `dataclasses` work on these as on any.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache, cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        """Make a dataclass of a class, as `dataclasses.dataclass` of the same arguments does."""

        def made(cls: type) -> type:
            own = cls.__dict__
            shared = {"__repr__": _repr}
            if eq:
                shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if frozen:
                shared |= {"__setattr__": _set, "__delattr__": _delete}
            if frozen and slots:
                shared |= {"__getstate__": _state, "__setstate__": _restore}
            for name, method in shared.items():
                if name not in own:
                    setattr(cls, name, method)
            plain = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
            plain.__init__ = _Init(plain, frozen)
            return plain

        return made


R = TypeVar("R")

EARLY = 8
"""Records of a class that are filled field by field, before its `__init__` is compiled."""


class _Init:
    """`__init__` of a class: the first `EARLY` are filled field by field, which is slower than a
    function of its own, and far quicker than to compile one; which then takes this one's place."""

    def __init__(self, cls: Any, frozen: bool) -> None:
        self.cls, self.frozen, self.left = cls, frozen, EARLY

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None and self.left:
            self.left -= 1
            return partial(self.early, instance)
        made = self.cls.__init__ = _init(self.cls, self.frozen)
        return made.__get__(instance, owner)

    def early(self, instance: Any, /, *given: Any, **named: Any) -> None:
        """Fill the fields; what cannot be is left to the function that would have been compiled,
        whose errors name it."""
        own = dataclasses.fields(self.cls)
        taken = [one.name for one in own if one.init]
        values = dict(zip(taken, given, strict=False)) | named
        for one in own:
            if one.name not in values and one.default is not MISSING:
                values[one.name] = one.default
            elif one.name not in values and one.default_factory is not MISSING:
                values[one.name] = one.default_factory()
        known = len(given) <= len(taken) and named.keys() <= {*taken[len(given) :]}
        if not known or len(values) != len(own):
            _init(self.cls, self.frozen)(instance, *given, **named)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()


def _init(cls: Any, frozen: bool) -> Any:
    """The function that the standard library would have written."""
    known: dict[str, Any] = {"_put": object.__setattr__, "_missing": MISSING}
    taken, filled, hints = [], {}, {}
    for one in dataclasses.fields(cls):
        made, value = one.default_factory is not MISSING, one.name
        if made:
            known[f"_make_{one.name}"] = one.default_factory
            value = f"_make_{one.name}()"
        elif one.default is not MISSING:
            known[f"_default_{one.name}"] = one.default
            value = one.name if one.init else f"_default_{one.name}"
        if one.init:
            hints[one.name] = one.type
            taken.append(f"{one.name}{_default_of(one)}")
            value = f"{value} if {one.name} is _missing else {one.name}" if made else one.name
        filled[one.name] = value
    lines = _filling(cls, filled, known) if frozen else _assigned(filled)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def _around({', '.join(known)}):\n def __init__(self, {', '.join(taken)}):\n"
    text += "".join(f"  {line}\n" for line in lines or ["pass"]) + " return __init__"
    found: dict[str, Any] = {}
    exec(text, sys.modules[cls.__module__].__dict__, found)
    made = found["_around"](**known)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {**hints, "return": None}
    return made


def _assigned(filled: dict[str, str]) -> list[str]:
    return [f"self.{name} = {value}" for name, value in filled.items()]


def _filling(cls: Any, filled: dict[str, str], known: dict[str, Any]) -> list[str]:
    """Lines that fill a frozen record. One that is its slots alone is of a class of the same slots
    that is not frozen while it is filled, which takes a third of the time.

    filled   what each field becomes; known   names that the lines use, which are added
    """
    names = tuple(filled)
    if not names or cls.__bases__ != (object,) or cls.__dict__.get("__slots__") != names:
        return [f"_put(self, {name!r}, {value})" for name, value in filled.items()]
    known |= {"_own": cls, "_open": type(cls.__name__, (), {"__slots__": names}), "_each": _each}
    return [
        "if self.__class__ is not _own:",
        f" _each(self, {names!r}, ({', '.join(filled.values())},))",
        "else:",
        " _put(self, '__class__', _open)",
        *(f" {line}" for line in _assigned(filled)),
        " self.__class__ = _own",
    ]


def _each(record: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Fill a record of a class that derives from the one whose fields these are."""
    for name, value in zip(names, values, strict=True):
        object.__setattr__(record, name, value)


def _default_of(one: Field[Any]) -> str:
    if one.default_factory is not MISSING:
        return "=_missing"
    return "" if one.default is MISSING else f"=_default_{one.name}"


@cache
def _compared(cls: Any) -> Callable[[Any], Any]:
    """What reads of a record what two of its class are compared by."""
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


@cache
def _taken(cls: Any) -> tuple[Callable[[Any], Any], dict[str, int]]:
    """What reads of a record what its `__init__` takes, and where each stands."""
    names = [one.name for one in dataclasses.fields(cls) if one.init]
    read = attrgetter(*names) if len(names) > 1 else lambda one: [getattr(one, n) for n in names]
    return read, {name: at for at, name in enumerate(names)}


@cache
def _found_out(cls: Any) -> tuple[str, ...] | None:
    """What a record's dictionary may hold beside its fields: properties that it found out once.
    None where there is no dictionary, or `__init__` does more than to fill it."""
    whole = all(one.init for one in dataclasses.fields(cls))
    if not whole or hasattr(cls, "__post_init__") or "__dict__" not in dir(cls):
        return None
    parents = [own for own in cls.__mro__ if own is not object]
    if any("__slots__" in vars(own) for own in parents):
        return None
    every = (item for own in parents for item in vars(own).items())
    return tuple(name for name, what in every if isinstance(what, cached_property))


def replace(record: R, /, **changes: Any) -> R:
    """As `dataclasses.replace`, which asks every field by itself, a hundred of a plan."""
    own: Any = type(record)
    read, places = _taken(own)
    if not changes.keys() <= places.keys():
        return dataclasses.replace(record, **changes)  # type: ignore[type-var]
    known = _found_out(own)
    if known is not None:
        filled = dict(vars(record))
        for name in known:
            filled.pop(name, None)
        filled.update(changes)
        like: R = object.__new__(own)
        object.__setattr__(like, "__dict__", filled)
        return like
    values = list(read(record))
    for name, value in changes.items():
        values[places[name]] = value
    made: R = own(*values)
    return made


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (one.name for one in dataclasses.fields(self) if one.repr)
    inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({inside})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    own = _compared(self.__class__)
    return own(self) == own(other)


def _hash(self: Any) -> int:
    return hash(_compared(self.__class__)(self))


def _set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
