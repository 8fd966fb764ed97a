"""Records behave as the standard library's dataclasses do: each law is asked of both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from predictor import records

MAKERS = (records.dataclass, dataclasses.dataclass)


def family(make: Callable[..., Any]) -> tuple[Any, Any, Any, Any]:
    """Four classes by one decorator: compared, with factories, mutable, with a cache."""

    @make(frozen=True, slots=True)
    class Point:
        x: float
        y: float = 2.0
        note: str = dataclasses.field(default="", compare=False, repr=False)

    @make(frozen=True, slots=True, eq=False)
    class Table:
        rows: list[int] = dataclasses.field(default_factory=list)
        hidden: dict[str, int] = dataclasses.field(default_factory=dict, init=False)
        seen: int = 0

        def __post_init__(self) -> None:
            self.hidden["rows"] = len(self.rows)

    @make(slots=True)
    class Counter:
        count: int = 0

    @make(frozen=True, eq=False)
    class Cached:
        x: float

        @cached_property
        def twice(self) -> float:
            return 2 * self.x

    return Point, Table, Counter, Cached


FAMILIES = [family(make) for make in MAKERS]


def compiled() -> tuple[Any, Any, Any, Any]:
    """Records of which so many were made that their `__init__` is compiled."""
    found = family(records.dataclass)
    for one in found:
        assert inspect.signature(one)
    return found


@pytest.mark.parametrize("kin", [*FAMILIES, compiled()], ids=["own", "standard", "compiled"])
def test_a_record_is_made_compared_shown_and_kept(kin: tuple[Any, Any, Any, Any]) -> None:
    point, table, counter, cached = kin
    one = point(1.0)
    assert (one.x, one.y, one.note) == (1.0, 2.0, "")
    assert point(y=3.0, x=1.0) == dataclasses.replace(one, y=3.0)
    assert one == point(1.0, note="other") != point(1.5)
    assert hash(one) == hash(point(1.0, note="other"))
    assert one != counter()
    assert repr(one).endswith("Point(x=1.0, y=2.0)")
    assert dataclasses.asdict(one) == {"x": 1.0, "y": 2.0, "note": ""}
    for wrong in ((), (1.0, 2.0, "", 4)):
        with pytest.raises(TypeError):
            point(*wrong)
    for name in ("z", "x"):
        with pytest.raises(TypeError, match=name):
            point(1.0, **{name: 2.0})
    with pytest.raises(TypeError, match="hidden"):
        table(hidden={})

    assert table([1, 2]).hidden == {"rows": 2}
    assert table().rows is not table().rows, "a list of its own"
    assert table() != table(), "told apart by what they are, not by what they hold"
    assert table(seen=3).seen == 3

    for frozen, name in ((one, "x"), (table(), "seen"), (cached(1.0), "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(frozen, name, 1.0)
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            delattr(frozen, name)
    moving = counter()
    moving.count += 1
    assert moving == counter(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(moving)
    assert cached(2.0).twice == 4.0
    assert not hasattr(one, "__dict__")


def test_the_hundredth_is_made_as_the_first() -> None:
    point, table, *_ = family(records.dataclass)
    made = [(point(float(i), note="n"), table([i])) for i in range(100)]
    assert [(p.x, p.y, p.note) for p, _ in made] == [(float(i), 2.0, "n") for i in range(100)]
    assert [(t.rows, t.hidden, t.seen) for _, t in made] == [
        ([i], {"rows": 1}, 0) for i in range(100)
    ]
    assert inspect.isfunction(vars(point)["__init__"])


def test_signatures_and_hints_are_those_of_the_standard_library() -> None:
    for own, standard in zip(*FAMILIES, strict=True):
        ours, theirs = (inspect.signature(one) for one in (own, standard))
        assert [p.name for p in ours.parameters.values()] == list(theirs.parameters)
        assert [p.kind for p in ours.parameters.values()] == [
            p.kind for p in theirs.parameters.values()
        ]
        assert own.__init__.__annotations__ == standard.__init__.__annotations__
        assert own.__match_args__ == standard.__match_args__
        assert [one.name for one in dataclasses.fields(own)] == [
            one.name for one in dataclasses.fields(standard)
        ]
        assert typing.get_type_hints(own) == typing.get_type_hints(standard)


@records.dataclass(frozen=True, slots=True)
class Sent:
    """At the top of a file, as what is sent to another process is."""

    x: float
    names: tuple[str, ...] = ()


def test_a_record_survives_copies_and_other_processes() -> None:
    one = Sent(1.0, ("a",))
    for back in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert back == one
        assert type(back) is Sent


def test_a_class_that_states_a_method_keeps_it() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    assert repr(Named("A")) == "<A>"
    assert Named("A") == Named("a")
    assert len({Named("A"), Named("a")}) == 1


def test_one_that_derives_from_a_record_has_its_fields() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Base:
        x: float

    @records.dataclass(frozen=True, slots=True)
    class More(Base):
        y: float = 1.0

    class Plain(Base):
        """Made as its base is."""

    more = More(2.0)
    assert (more.x, more.y) == (2.0, 1.0)
    assert more != Base(2.0)
    assert Plain(3.0).x == 3.0
    assert Base(4.0).x == 4.0


@pytest.mark.parametrize("make", MAKERS)
def test_a_record_of_nothing_or_one_thing_is_made_once(make: Callable[..., Any]) -> None:
    seen: list[str] = []

    @make(frozen=True)
    class Empty:
        pass

    @make(frozen=True)
    class Counted:
        name: str

        def __post_init__(self) -> None:
            seen.append(self.name)

    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    for at in range(20):
        assert Counted(str(at)) != Counted("other")
    assert seen == [name for at in range(20) for name in (str(at), "other")]


@pytest.mark.parametrize("make", MAKERS)
def test_one_is_replaced_as_the_standard_library_does(make: Callable[..., Any]) -> None:
    point, table, _, _ = family(make)
    one = point(1.0, note="kept")
    for changes in ({}, {"y": 3.0}, {"note": "other", "x": 0.0}):
        made, usual = records.replace(one, **changes), dataclasses.replace(one, **changes)
        assert (made.x, made.y, made.note) == (usual.x, usual.y, usual.note)
    rows = records.replace(table([1, 2]), seen=5)
    assert (rows.rows, rows.seen, rows.hidden) == ([1, 2], 5, {"rows": 2})
    for broken in (records.replace, dataclasses.replace):
        with pytest.raises(TypeError, match="strange"):
            broken(one, strange=1)
        with pytest.raises((TypeError, ValueError), match="hidden"):
            broken(table([1]), hidden={})


def test_a_record_of_one_thing_is_replaced() -> None:
    @records.dataclass(frozen=True)
    class Alone:
        x: int

    assert records.replace(Alone(1), x=2) == Alone(2)
