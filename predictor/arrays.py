"""Numbers that are floats, or arrays of one broadcast shape; and batches of them.

A batch is a frozen dataclass whose numbers are such: plans, machines, pieces of a step. Which of
its fields are numbers, their types say: `Numeric` and arrays; tables (mappings) and tuples of them;
dataclasses that hold some, however deep. Everything else is a category, one value for the whole
batch. What is done to batches (take some, stack single ones, join several, tell them apart) is done
here, for every such class alike.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.records import replace

Array = npt.NDArray[np.float64]
Numeric = float | Array
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

B = TypeVar("B")

NUMBERS = frozenset((float, np.ndarray))
"""Types of numbers themselves."""


@cache
def numeric_fields(cls: type) -> tuple[str, ...]:
    """Fields of a dataclass that are numbers of a batch, or hold some, in their order."""
    hints = typing.get_type_hints(cls)
    return tuple(one.name for one in fields(cls) if _holds_numbers(hints[one.name]))


@cache
def category_fields(cls: type) -> tuple[str, ...]:
    """The other fields: one value for a whole batch."""
    known = numeric_fields(cls)
    return tuple(one.name for one in fields(cls) if one.name not in known)


def _holds_numbers(hint: Any) -> bool:
    """Whether values of a type are numbers of a batch, or hold some."""
    if hint == Numeric or hint is np.ndarray or is_dataclass(hint):
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (dict, collections.abc.Mapping):
        return _holds_numbers(inner[1])
    if origin in (typing.Union, types.UnionType, tuple):
        return any(_holds_numbers(one) for one in inner)
    return origin is np.ndarray


def varying(batch: object) -> list[Array]:
    """Numbers of a batch that are arrays, however deep, in a fixed order; none for a single one."""
    found: list[Array] = []
    own: Any = type(batch)
    for name in numeric_fields(own):
        _gather(getattr(batch, name), found)
    return found


def _gather(value: Any, found: list[Array]) -> None:
    """Add the arrays of a value; asked of every piece of every prediction, so in plain loops."""
    if type(value) is float or value is None:
        return
    if isinstance(value, np.ndarray):
        if value.ndim:
            found.append(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            _gather(one, found)
    elif isinstance(value, tuple):
        for one in value:
            _gather(one, found)
    elif is_dataclass(value):
        found += varying(value)


def shape_of(batch: object) -> tuple[int, ...]:
    """Broadcast shape of the numbers: () for a single one."""
    shapes = {value.shape for value in varying(batch)}
    return np.broadcast_shapes(*shapes) if len(shapes) != 1 else shapes.pop()


def combined(many: Sequence[B], make: Callable[[list[Any]], Any]) -> B:
    """One batch of several of the same make: each number is `make` of those of all, None for one
    that lacks an entry of a table that others have. Categories are those of the first."""
    own: Any = type(many[0])
    found = {
        name: _combined([getattr(one, name) for one in many], make) for name in numeric_fields(own)
    }
    return replace(many[0], **found)


def _combined(values: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    sample = next((value for value in values if value is not None), None)
    if sample is None:
        return None
    if type(sample) in NUMBERS:
        return make(values)
    if isinstance(sample, Mapping):
        tables = [{} if value is None else value for value in values]
        return {key: _combined([t.get(key) for t in tables], make) for key in _in_line(tables)}
    if isinstance(sample, tuple):
        return tuple(_combined(list(parts), make) for parts in zip(*values, strict=True))
    if is_dataclass(sample):
        blank = mapped(sample, lambda _: None)
        return combined([blank if value is None else value for value in values], make)
    return make(values)


def _in_line(tables: Sequence[Mapping[Any, Any]]) -> list[Any]:
    """Keys of all tables, in an order that is that of each of them where they agree, so that sums
    over one table are those over its like to the last bit."""
    found = list(tables[0])
    known, seen = set(found), {tuple(found)}
    for keys in map(tuple, tables):
        if keys in seen:
            continue
        seen.add(keys)
        at = 0
        for key in keys:
            if key in known:
                at = found.index(key) + 1
            else:
                found.insert(at, key)
                known.add(key)
                at += 1
    return found


def mapped(batch: B, change: Callable[[Any], Any]) -> B:
    """The same with `change` applied to every number."""
    own: Any = type(batch)
    found = {name: _mapped(getattr(batch, name), change) for name in numeric_fields(own)}
    return replace(batch, **found)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of every number of a value; asked of every piece of a batch, numbers come first."""
    if type(value) in NUMBERS:
        return change(value)
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(one, change) for one in value)
    return mapped(value, change) if is_dataclass(value) else change(value)


def in_order(values: Array) -> Array:
    """Sum over the first axis, one after the other: the same to the last bit whatever the other
    axes hold. (numpy's own order depends on how the whole lies in memory.)"""
    return np.asarray(np.add.accumulate(values, axis=0)[-1])


ROWS = 16
"""Rows that are multiplied by a matrix at a time."""


def rowwise(rows: Array, matrix: Array) -> Array:
    """Product of rows and a matrix, (N, F) x (F, H) -> (N, H), each row of it the same to the last
    bit whichever rows are beside it.

    A library of matrix products adds up in an order that depends on how many rows there are. Here
    there are always `ROWS`, the last of them filled up: as fast for many rows (no threads that
    wait for each other), and never more than one block's work for few.
    """
    count = len(rows)
    blocks = in_blocks(rows).reshape(-1, ROWS, rows.shape[1])
    return np.asarray((blocks @ matrix).reshape(-1, matrix.shape[1])[:count])


def in_blocks(rows: Array) -> Array:
    """Rows with zeros added up to whole blocks of `ROWS`."""
    missing = -len(rows) % ROWS
    if not missing:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]))])


def take(batch: B, index: Index | Mask) -> B:
    """Those at `index` of a batch, which counts along the last axis. What is one number for all
    stays one number."""
    length = shape_of(batch)[-1]

    def chosen(value: Any) -> Any:
        if type(value) is float or not getattr(value, "ndim", 0):
            return value
        if value.shape[-1] != length:
            value = np.broadcast_to(value, (*value.shape[:-1], length))
        return value[..., index]

    return mapped(batch, chosen)


def flat(batch: B, shape: tuple[int, ...], index: Index | None = None) -> B:
    """A batch of `shape`, or what broadcasts to it (a machine for all plans), in one dimension;
    those at `index` of it, if given. What is one number for all stays one number."""
    spot: Any = slice(None) if index is None else index

    def chosen(value: Any) -> Any:
        if type(value) is float or not getattr(value, "ndim", 0):
            return value
        return (value if value.shape == shape else np.broadcast_to(value, shape)).reshape(-1)[spot]

    return mapped(batch, chosen) if varying(batch) else batch


def widened(batch: B, shape: tuple[int, ...]) -> B:
    """The same with every number an array of `shape`."""
    return mapped(batch, lambda value: np.broadcast_to(value, shape))


def tiled(batch: B, shape: tuple[int, ...], times: int) -> B:
    """A batch of `shape` in one dimension, so many times over."""
    if not varying(batch):
        return batch
    every = flat(batch, shape)
    return mapped(every, lambda one: np.tile(one, times) if getattr(one, "ndim", 0) else one)


def stack(many: Sequence[B]) -> B:
    """Single ones of the same make as one batch, along a new last axis; every number becomes an
    array. What one lacks of a table that others have is zero in it."""
    return combined(many, _stacked)


def _stacked(values: list[Any]) -> Array:
    shape = np.shape(next(value for value in values if value is not None))
    blank = np.zeros(shape)
    if not shape:
        return np.array([0.0 if value is None else float(value) for value in values])
    return np.stack([blank if value is None else value for value in values], axis=-1)


def join(many: Sequence[B], sizes: Sequence[int] = ()) -> B:
    """Batches, one after another along the last axis.

    sizes   of them, where one may lack an entry of a table that others have: it is zero in it
    """

    def laid_out(values: list[Any]) -> Array:
        shape = next(value for value in values if value is not None).shape[:-1]
        there = [
            np.zeros((*shape, sizes[at])) if value is None else value
            for at, value in enumerate(values)
        ]
        return np.concatenate(there, axis=-1)

    return combined(many, laid_out)


def compact(batch: B) -> B:
    """The same with one number in place of each array whose values are all the same."""

    def settled(value: Any) -> Any:
        first = np.ravel(value)[:1]
        alike = first.size and np.array_equal(value, np.full_like(value, first[0]), equal_nan=True)
        return float(first[0]) if alike else value

    return mapped(batch, settled)


def kind(batch: object) -> Hashable:
    """What those have in common that make one batch: every category, and which numbers there are"""
    return _told(batch, lambda _: True)


def identity(batch: object) -> Hashable:
    """All that one is, down to the last number: those of one identity are the same."""
    return _told(batch, _exactly)


def _exactly(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        if value.ndim:
            return value.shape, value.tobytes()
        value = value.item()
    return "nan" if value != value else value


PLAIN = frozenset((float, int, bool, str, type(None), np.ndarray))
"""Types that hold nothing else."""


def _told(value: Any, number: Callable[[Any], Hashable]) -> Hashable:
    if type(value) in PLAIN:
        return None if value is None else number(value)
    if isinstance(value, Mapping):
        return tuple((key, _told(value[key], number)) for key in sorted(value))
    if isinstance(value, tuple):
        return tuple(_told(one, number) for one in value)
    if is_dataclass(value):
        own: Any = type(value)
        of_numbers = (_told(getattr(value, name), number) for name in numeric_fields(own))
        others = (_told(getattr(value, name), _exactly) for name in category_fields(own))
        return own.__name__, *of_numbers, *others
    return None if value is None else number(value)


def filled(value: Numeric, shape: tuple[int, ...]) -> Array:
    """A number as an array of a shape, without copying it."""
    array = np.asarray(value, float)
    if array.shape == shape:
        return array
    if array.ndim:
        return np.broadcast_to(array, shape)
    # What `broadcast_to` makes of one number, which takes it ten times as long.
    array = np.ndarray(shape, float, array, 0, (0,) * len(shape))
    array.flags.writeable = False
    return array


ODD, HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
"""What words are mixed with: an odd number of 64 bits (Steele et al. 2014), and half of them."""


def distinct_rows(
    columns: Sequence[Array],
) -> tuple[Index, Index]:
    """Distinct rows of a table, told apart by every bit of their numbers.

    columns   at least one, of one length

    Returns the position of the first of each, and for every row which of them it is.
    """
    words = [np.ascontiguousarray(one, float).view(np.uint64) for one in columns]
    count = len(words[0])
    for start in range(count + 1):
        # Rows of one code are nearly always one row, which is looked after.
        _, place = np.unique(_mixed(words, start), return_inverse=True)
        first = np.empty(int(place.max(initial=-1)) + 1, dtype=np.intp)
        first[place[::-1]] = np.arange(count - 1, -1, -1)
        if all(np.array_equal(one[first][place], one) for one in words):
            break
    return first, place


def _mixed(words: Sequence[npt.NDArray[np.uint64]], start: int) -> npt.NDArray[np.uint64]:
    """A code of 64 bits of each row of a table."""
    code = np.full(len(words[0]), start, dtype=np.uint64)
    for one in words:
        code ^= one
        code ^= code >> HALF
        code *= ODD
    return code


def is_number(value: Numeric, number: float) -> bool:
    """Whether a value is that number for all plans, told without a look at arrays."""
    return isinstance(value, float) and value == number
