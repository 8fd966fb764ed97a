"""Entries of a table between flags and fields, each used in both directions.

A launch line is read to flags: names with a value, True or False for switches. Facts are fields of
a plan by their name, dimensions of a model by 'model.' and theirs. A dialect whose line says
everything (`whole`) means a default by a flag that is absent; overrides of a recipe say nothing by
it, and write every field out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from predictor.errors import InputError
from predictor.records import dataclass

Flags = dict[str, Any]
Facts = dict[str, Any]


class Entry(Protocol):
    """One relation between flags and fields."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that the entry understands."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a plan that the flags can say, as far as they can."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Other fields of a plan on which that depends."""
        ...

    def write(self, facts: Facts, whole: bool) -> Flags:
        """Flags that say what the fields are."""
        ...

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """Fields that the flags state; `facts` were read before."""
        ...


def number(flag: str, value: Any) -> int | float:
    """A number; whole ones as int.

    Raises InputError for anything else, and for a variable that the text does not set.
    """
    text = str(value).strip()
    try:
        found = float(text.replace("_", ""))
    except ValueError:
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        if value is True:
            raise InputError(f"{flag}: its value is missing")
        if text.startswith(("$", "`")):
            raise InputError(f"{flag} {text}: the text does not set that variable; put it in")
        raise InputError(f"{flag} {text}: not a number")
    return int(found) if found == int(found) else found


def whole_number(flag: str, value: Any) -> int:
    """A whole number; raises InputError for anything else."""
    found = number(flag, value)
    if not isinstance(found, int):
        raise InputError(f"{flag} {value}: not a whole number")
    return found


def truth(flag: str, value: Any) -> bool:
    """Whether a switch is on; raises InputError for a value that says neither."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off", "none", "null", ""):
        return False
    raise InputError(f"{flag} {value}: neither true nor false")


class _Alone:
    """An entry that depends on no field but its own."""

    __slots__ = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """None."""
        return ()


class _OneField(_Alone):
    """An entry of a single field."""

    __slots__ = ()
    field: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The field."""
        return (self.field,)


@dataclass(frozen=True, slots=True)
class Number(_OneField):
    """A flag whose value is a field.

    absent  what the line means where it has no such flag; None: nothing
    also    other names of the flag
    """

    flag: str
    field: str
    absent: float | None = None
    also: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag, and its other names."""
        return (self.flag, *self.also)

    def write(self, facts: Facts, whole: bool) -> Flags:
        """The flag, unless its absence says the same."""
        value = facts.get(self.field)
        if value is None or (whole and value == self.absent):
            return {}
        return {self.flag: value}

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The field."""
        for flag in self.flags:
            if flag in flags:
                return {self.field: number(flag, flags[flag])}
        return {self.field: self.absent} if whole and self.absent is not None else {}


@dataclass(frozen=True, slots=True)
class Switch(_OneField):
    """A flag without a value, there where a field is `when`."""

    flag: str
    field: str
    when: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag."""
        return (self.flag,)

    def write(self, facts: Facts, whole: bool) -> Flags:
        """The flag where the field is so; the contrary only where absence would say nothing."""
        if self.field not in facts:
            return {}
        holds = bool(facts[self.field]) == self.when
        return {self.flag: True} if holds else ({} if whole else {self.flag: False})

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The field."""
        if self.flag in flags:
            return {self.field: truth(self.flag, flags[self.flag]) == self.when}
        return {self.field: not self.when} if whole else {}


def same(one: Any, other: Any) -> bool:
    """Whether two values of a flag mean the same: numbers by value, words without case."""
    if isinstance(one, bool) or isinstance(other, bool):
        try:
            return truth("", one) == truth("", other)
        except InputError:
            return False
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one).lower() == str(other).lower()


Row = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cases(_Alone):
    """Combinations of flags that stand for values of one or several fields.

    rows   values of the fields (None: not said), and the flags; a tuple of values holds
           spellings, the first of which is written. False: the flag is absent or off
    """

    fields: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of all rows."""
        return tuple(dict.fromkeys(flag for _, given in self.rows for flag in given))

    def write(self, facts: Facts, whole: bool) -> Flags:
        """The flags of the first row with these values; none where there is no such row."""
        for values, given in self.rows:
            if all(
                f in facts and same(facts[f], v) for f, v in zip(self.fields, values, strict=True)
            ):
                flags = {f: v[0] if isinstance(v, tuple) else v for f, v in given.items()}
                return {f: v for f, v in flags.items() if not (whole and v is False)}
        return {}

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The values of the row that has most of the flags.

        Raises InputError for a value that no row has, and for flags that no row has together.
        """
        own = {f: flags[f] for f in self.flags if f in flags}
        if not own and not whole:
            return {}
        said = [f for f, value in own.items() if not self._off(value)]
        self._check_values(own, said)
        fitting = [row for row in self.rows if self._fits(row[1], own)]
        if not fitting:
            if said:
                together = " ".join(_show(flag, own) for flag in said)
                raise InputError(f"{together}: not known together")
            return {}
        best = max(fitting, key=lambda row: sum(f in own for f in row[1]))
        left = [f for f in said if f not in best[1]]
        if left:
            other = next((f for f in said if f in best[1]), None)
            if other is None:
                raise InputError(f"{_show(left[0], own)}: not known alone")
            raise InputError(f"{_show(left[0], own)} contradicts {_show(other, own)}")
        return self._facts(best)

    def _facts(self, row: Row) -> Facts:
        return {f: v for f, v in zip(self.fields, row[0], strict=True) if v is not None}

    @staticmethod
    def _off(value: Any) -> bool:
        return value is False or str(value).lower() in ("false", "none", "null", "")

    def _fits(self, wanted: dict[str, Any], own: Flags) -> bool:
        for flag, value in wanted.items():
            if value is False:
                if flag in own and not self._off(own[flag]):
                    return False
            elif flag not in own:
                return False
            else:
                spellings = value if isinstance(value, tuple) else (value,)
                if not any(same(own[flag], spelling) for spelling in spellings):
                    return False
        return True

    def _check_values(self, own: Flags, said: list[str]) -> None:
        """Raise InputError for the first flag whose value no row has."""
        for flag in said:
            known = [
                str(spelling)
                for _, given in self.rows
                if flag in given and given[flag] is not False
                for spelling in (given[flag] if isinstance(given[flag], tuple) else (given[flag],))
            ]
            if not any(same(own[flag], spelling) for spelling in known):
                told = ", ".join(dict.fromkeys(known))
                raise InputError(f"{_show(flag, own)}: not known; known: {told}")


def _show(flag: str, own: Flags) -> str:
    return flag if own[flag] is True else f"{flag} {own[flag]}"


@dataclass(frozen=True, slots=True)
class Derived:
    """Flags and fields that follow from each other by a pair of functions.

    says    facts -> flags
    means   (flags, facts read before) -> facts; asked only where one of the flags is there, or
            where absence means something
    fields  of a plan, that the flags can say
    needs   other fields of a plan on which that depends
    """

    flags: tuple[str, ...]
    says: Callable[[Facts], Flags]
    means: Callable[[Flags, Facts], Facts]
    off: tuple[tuple[str, Any], ...] = ()
    fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def write(self, facts: Facts, whole: bool) -> Flags:
        """The flags."""
        found = self.says(facts)
        return found if found or whole else dict(self.off)

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The facts."""
        there = any(flag in flags for flag in self.flags)
        return self.means(flags, facts) if there or whole else {}


def tokens_of_steps(flag: str, flags: Flags, facts: Facts) -> Facts:
    """The budget of a line that counts steps, where the size of a step is known."""
    if flag not in flags or not {"seq_len", "global_batch"} <= set(facts):
        return {}
    return {"tokens": number(flag, flags[flag]) * facts["seq_len"] * facts["global_batch"]}


def clipping(flag: str, absent: float) -> Derived:
    """Gradients are clipped by a norm, or by none where it is 0.

    absent   the norm of a line that has no such flag
    """
    return Derived(
        (flag,),
        lambda facts: {flag: 1.0 if facts["grad_clip"] else 0.0},
        lambda flags, facts: {"grad_clip": number(flag, flags.get(flag, absent)) > 0},
        fields=("grad_clip",),
    )


@dataclass(frozen=True, slots=True)
class Where:
    """An entry that is written only where it matters, and read everywhere.

    needs   fields of a plan by which it matters
    """

    entry: Entry
    holds: Callable[[Facts], bool]
    needs: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The entry's flags."""
        return self.entry.flags

    @property
    def fields(self) -> tuple[str, ...]:
        """The entry's fields."""
        return self.entry.fields

    def write(self, facts: Facts, whole: bool) -> Flags:
        """The entry's flags, or none."""
        return self.entry.write(facts, whole) if self.holds(facts) else {}

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The entry's fields."""
        return self.entry.read(flags, facts, whole)
