"""Forms read values as pydantic's models of the same annotations do, and keep what they read."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic
import pytest

from predictor.catalog.forms import EMPTY, Spec, in_words, parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.plans import AMOUNT, COUNT, NATURAL, POSITIVE, Kind
from predictor.plans.fields import BUDGET


class Inner(Spec):
    """A form within a form."""

    width: Annotated[float, POSITIVE]
    named: str | None = None


class Outer(Spec):
    """Of every kind of annotation."""

    name: str
    parts: list[Inner]
    count: Annotated[int, COUNT] | None = None
    near: Inner | None = None
    word: Literal["a", "b"] = "a"
    words: tuple[str, ...] = ()
    facts: dict[str, Any] = EMPTY
    on: bool = False

    def check(self) -> None:
        """A law between two keys."""
        if self.on and self.count is None:
            raise ValueError("on needs a count")


NEEDED = {"name": "x", "parts": [{"width": 1}]}

GIVEN = (
    0, 1, -1, 3, 10**9, 10**9 + 1, 1.0, 1.5, 2e30, math.nan, math.inf, True, False, "8", " 8 ",
    "8.0", "8.5", "yes", "off", "", "x", None, [], [1], {}, {"a": 1}, b"8",
)  # fmt: skip


def ends(kind: Kind) -> Any:
    """An annotation of pydantic's with the same ends."""
    stated = {"ge": kind.least, "gt": kind.above, "le": kind.most, "lt": kind.below}
    known: dict[str, Any] = {name: end for name, end in stated.items() if end is not None}
    if kind.number is float:
        known["allow_inf_nan"] = False
    return Annotated[kind.number or str, pydantic.Field(**known)]


@pytest.mark.parametrize("value", GIVEN, ids=repr)
@pytest.mark.parametrize("kind", [COUNT, NATURAL, POSITIVE, AMOUNT, str, bool], ids=str)
def test_a_value_is_read_as_pydantic_reads_it(kind: Any, value: Any) -> None:
    hint = Annotated[kind.number, kind] if isinstance(kind, Kind) else kind
    own = type("Own", (Spec,), {"__annotations__": {"key": hint | None}, "key": None})
    known = pydantic.TypeAdapter((ends(kind) if isinstance(kind, Kind) else kind) | None)
    try:
        wanted = known.validate_python(value)
    except pydantic.ValidationError as error:
        told = error.errors()[0]["msg"]
        with pytest.raises(InputError) as refused:
            parse(own, {"key": value}, "test")
        assert in_words(told) in str(refused.value)
    else:
        found = parse(own, {"key": value}, "test").key  # type: ignore[attr-defined]
        assert found == wanted
        assert type(found) is type(wanted)


def test_forms_within_forms_are_read_and_written() -> None:
    given = {**NEEDED, "near": {"width": "2", "named": "n"}, "count": "3", "words": ["p", "q"]}
    found = parse(Outer, given, "test")
    assert found.near is not None
    assert (found.near.width, found.parts[0].width, found.count) == (2.0, 1.0, 3)
    written = found.to_dict(defaults=False)
    assert written == {
        "name": "x",
        "parts": [{"width": 1.0}],
        "near": {"width": 2.0, "named": "n"},
        "count": 3,
        "words": ("p", "q"),
    }
    assert parse(Outer, written, "test").to_dict() == found.to_dict()
    assert set(found.to_dict()) == set(Outer.fields())
    assert "named" not in found.to_dict(blanks=False)["parts"][0]
    with pytest.raises(AttributeError, match="frozen"):
        found.name = "other"


def test_no_two_share_a_mapping() -> None:
    first, second = (parse(Outer, NEEDED, "test") for _ in range(2))
    first.facts["own"] = 1
    assert second.facts == {}
    assert EMPTY == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"nme": "x"}, "unknown key 'nme'; did you mean 'name'"),
        ({"parts": []}, "parts: list should have at least 1 item"),
        ({"parts": [{"widht": 1}]}, "unknown key 'parts.0.widht'; did you mean 'width'"),
        ({"near": {"nmed": "n", "width": 1}}, "unknown key 'near.nmed'; did you mean 'named'"),
        ({"parts": [{}]}, "key 'parts.0.width' is missing"),
        ({"word": "c"}, "word: must be 'a' or 'b', got 'c'"),
        ({"on": True}, "on needs a count"),
        ({"name": 3}, "name: must be a text, got 3"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(Outer, {**NEEDED, **wrong}, "a file")
    assert str(refused.value).startswith("a file: ")
    assert told in str(refused.value)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="expected keys and values, got list"):
        parse(Outer, [1], "a file")  # type: ignore[arg-type]


def test_a_key_that_nothing_resembles_is_not_answered_by_a_hundred_others() -> None:
    with pytest.raises(InputError, match="unknown key 'zzqx'") as told:
        parse(TrainingPlanSpec, {"zzqx": 1}, "plan")
    assert "reckon show fields" in str(told.value)
    assert len(str(told.value)) < 120


@pytest.mark.parametrize(
    ("kind", "written", "meant"),
    [(COUNT, "1e3", 1000), (COUNT, "3.2e1", 32), (BUDGET, "15T", 15e12), (BUDGET, "1.5 b", 1.5e9),
     (BUDGET, "300B", 3e11), (BUDGET, "2e12", 2e12)],
)  # fmt: skip
def test_numbers_as_people_write_them(kind: Kind, written: str, meant: float) -> None:
    """Beyond what pydantic reads: exponents of whole numbers, scales of budgets."""
    own = type("Own", (Spec,), {"__annotations__": {"key": Annotated[kind.number, kind]}})
    assert parse(own, {"key": written}, "test").key == meant  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "written"), [(COUNT, "1.5e0"), (COUNT, "1k"), (BUDGET, "15X"),
                                               (POSITIVE, "15T")])  # fmt: skip
def test_what_is_no_number_is_refused(kind: Kind, written: str) -> None:
    own = type("Own", (Spec,), {"__annotations__": {"key": Annotated[kind.number, kind]}})
    with pytest.raises(InputError):
        parse(own, {"key": written}, "test")
