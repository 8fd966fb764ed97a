"""Batches of any frozen dataclass: taking, stacking and joining undo each other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import arrays, catalog
from predictor.arrays import (
    Array,
    Numeric,
    category_fields,
    compact,
    distinct_rows,
    filled,
    flat,
    identity,
    in_order,
    join,
    kind,
    mapped,
    numeric_fields,
    rowwise,
    shape_of,
    stack,
    take,
    tiled,
    varying,
    widened,
)
from predictor.hardware import Accelerator, Cluster, Tier
from predictor.plans import ServingPlan, TrainingPlan


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    rate: Numeric
    link: str = "wire"
    per_stage: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    size: Numeric
    name: str
    parts: tuple[Inner, ...]
    table: dict[str, Numeric]
    shape: tuple[float, float] = (16.0, 8.0)
    other: Inner | None = None


numerics = st.floats(-1e6, 1e6)
outers = st.builds(
    Outer,
    numerics,
    st.just("a"),
    st.tuples(st.builds(Inner, numerics), st.builds(Inner, numerics)),
    st.fixed_dictionaries({"x": numerics, "y": numerics}),
    other=st.builds(Inner, numerics),
)


def test_types_say_which_fields_are_numbers() -> None:
    assert numeric_fields(Outer) == ("size", "parts", "table", "other")
    assert category_fields(Outer) == ("name", "shape")
    assert numeric_fields(Tier) == ("bandwidth", "latency", "oversubscription", "window")
    assert {"peak", "memory", "relative"} <= set(numeric_fields(Accelerator))
    assert numeric_fields(Cluster) == ("accelerator", "tiers", "prefill")


@pytest.mark.parametrize("cls", [TrainingPlan, ServingPlan])
def test_every_field_of_a_plan_is_a_number_or_a_category(cls: type) -> None:
    both = {*numeric_fields(cls), *category_fields(cls)}
    assert both == {one.name for one in fields(cls)}
    assert len(both) == len(numeric_fields(cls)) + len(category_fields(cls))


@given(st.lists(outers, min_size=1, max_size=5))
def test_what_is_stacked_can_be_taken_again(many: list[Outer]) -> None:
    batch = stack(many)
    assert shape_of(batch) == (len(many),)
    for position, one in enumerate(many):
        assert identity(compact(take(batch, np.array([position])))) == identity(one)


@given(st.lists(outers, min_size=1, max_size=4), st.lists(outers, min_size=1, max_size=4))
def test_joined_batches_are_the_batch_of_all(some: list[Outer], more: list[Outer]) -> None:
    assert identity(join([stack(some), stack(more)])) == identity(stack([*some, *more]))


@given(outers, st.integers(2, 4), st.integers(1, 3))
def test_one_machine_stands_for_all_plans(one: Outer, plans: int, times: int) -> None:
    assert identity(flat(one, (plans,), np.arange(plans))) == identity(one)
    assert identity(tiled(one, (plans,), times)) == identity(one)
    batch = mapped(one, lambda value: np.full((1,), value))
    repeated = tiled(batch, (plans,), times)
    assert shape_of(repeated) == (plans * times,)
    assert identity(compact(repeated)) == identity(one)


def test_flat_walks_through_all_dimensions() -> None:
    batch = Inner(np.array([[1.0], [2.0]]), per_stage=np.array([[3.0, 4.0, 5.0]]))
    found = flat(batch, (2, 3), np.array([0, 4]))
    assert found.rate.tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    assert found.per_stage is not None
    assert found.per_stage.tolist() == [3.0, 4.0]


def test_what_one_lacks_of_a_table_is_zero() -> None:
    many = [Outer(1.0, "a", (), {"x": 1.0}), Outer(2.0, "a", (), {"y": 3.0})]
    found = stack(many).table
    assert {key: np.asarray(value).tolist() for key, value in found.items()} == {
        "x": [1.0, 0.0],
        "y": [0.0, 3.0],
    }


def test_the_kind_is_all_but_the_numbers() -> None:
    cluster, nan = catalog.system("dgx-h100"), float("nan")
    faster = mapped(cluster, lambda value: value * 2.0)
    assert kind(cluster) == kind(faster)
    assert identity(cluster) != identity(faster)
    assert identity(Inner(nan)) == identity(Inner(float("nan")))
    assert kind(Inner(1.0)) != kind(Inner(1.0, link="other"))
    assert kind(Inner(1.0)) != kind(Inner(1.0, per_stage=np.ones(3)))


def test_machines_are_batches_down_to_their_relatives() -> None:
    own = catalog.system("dgx-h100")
    both = stack([own, own])
    assert {value.shape for value in varying(both)} == {(2,)}
    assert len(varying(both)) == len(varying(widened(own, (1,)))) > 20
    assert identity(compact(both)) == identity(own)


@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from([1, 2, 64]), st.integers(0, 99))
def test_a_row_of_a_product_does_not_depend_on_those_beside_it(
    rows: int, inner: int, width: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    left, right = random.normal(size=(rows, inner)), random.normal(size=(inner, width))
    whole = rowwise(left, right)
    assert whole == pytest.approx(left @ right, rel=1e-9, abs=1e-9)
    for row in range(rows):
        assert (rowwise(left[row : row + 1], right)[0] == whole[row]).all()


@given(st.integers(1, 300), st.integers(1, 5), st.integers(0, 99))
def test_a_sum_does_not_depend_on_the_columns_beside_it(
    terms: int, columns: int, seed: int
) -> None:
    values = np.random.default_rng(seed).lognormal(sigma=3.0, size=(terms, columns))
    whole = in_order(values)
    for column in range(columns):
        assert in_order(values[:, column : column + 1])[0] == whole[column]
        assert in_order(np.concatenate([values, np.zeros((9, columns))]))[column] == whole[column]


@given(st.integers(1, 60), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 99))
def test_distinct_rows_are_those_of_a_set(rows: int, values: list[int], seed: int) -> None:
    """The first of each, and for every row which of them it is; columns of many values or few."""
    random = np.random.default_rng(seed)
    columns = [random.integers(0, many, size=rows) * np.pi for many in values]
    first, inverse = distinct_rows(columns)
    told = list(zip(*columns, strict=True))
    assert len(first) == len(set(told))
    assert all(told[first[which]] == row for which, row in zip(inverse, told, strict=True))
    assert all(told.index(told[at]) == at for at in first)


def test_distinct_rows_of_more_combinations_than_numbers() -> None:
    """Twelve columns of 64 values: 2 to the 72 combinations. The last row is the first one but for
    the first column."""
    column = np.append(np.arange(64.0), 0.0)
    other = column.copy()
    other[-1] = 1.0
    first, inverse = distinct_rows([other, *[column] * 11])
    assert sorted(first.tolist()) == list(range(65))
    assert sorted(inverse.tolist()) == list(range(65))


def test_distinct_rows_are_told_apart_where_their_codes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows have one code at first, then each its own."""
    mixed, starts = arrays._mixed, []

    def once_alike(words: Any, start: int) -> Any:
        starts.append(start)
        return mixed(words, start) * np.uint64(start > 0)

    monkeypatch.setattr(arrays, "_mixed", once_alike)
    first, inverse = distinct_rows([np.array([3.0, 1.0, 3.0, 2.0])])
    assert starts == [0, 1]
    assert sorted(first.tolist()) == [0, 1, 3]
    assert first[inverse].tolist() == [0, 1, 0, 3]


def test_joined_tables_have_zeros_for_what_one_lacks_in_the_order_of_each() -> None:
    one = Outer(np.ones(2), "a", (), {"x": np.ones(2), "z": np.full(2, 3.0)})
    other = Outer(np.ones(3), "a", (), {"x": np.ones(3), "y": np.full(3, 2.0), "z": np.ones(3)})
    found = join([one, other], [2, 3]).table
    assert list(found) == ["x", "y", "z"]
    assert list(np.asarray(found["y"])) == [0.0, 0.0, 2.0, 2.0, 2.0]
    assert list(np.asarray(found["z"])) == [3.0, 3.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_a_number_fills_any_shape_and_what_fills_it_is_not_copied(shape: tuple[int, ...]) -> None:
    found = filled(2.5, shape)
    assert found.shape == shape
    assert (found == 2.5).all()
    own = np.arange(float(np.prod(shape))).reshape(shape)
    assert filled(own, shape) is own
    row = np.arange(3.0)
    assert filled(row, (2, 3)).tolist() == [[0.0, 1.0, 2.0]] * 2
    assert filled(np.array([7.0]), (3,)).tolist() == [7.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        filled(2.5, (3,))[0] = 1.0


def test_what_a_batch_lacks_is_told_from_what_it_has() -> None:
    """Zeros stand only for entries of tables; of one plan nothing varies."""
    assert varying(Inner(1.0)) == []
    assert shape_of(Inner(1.0)) == ()
    assert shape_of(Inner(np.ones((2, 1)), per_stage=np.ones(3))) == (2, 3)
    taken = take(Inner(np.arange(4.0), per_stage=np.arange(8.0).reshape(2, 4)), np.array([3, 1]))
    assert np.asarray(taken.rate).tolist() == [3.0, 1.0]
    assert np.asarray(taken.per_stage).tolist() == [[3.0, 1.0], [7.0, 5.0]]
    alike = take(Inner(np.arange(4.0), per_stage=np.full((2, 1), 6.0)), np.array([2]))
    assert np.asarray(alike.per_stage).tolist() == [[6.0], [6.0]]
    assert compact(Inner(np.array([]))).rate.size == 0  # type: ignore[union-attr]
    # Zeros as wide as what the others have, of stages or of none.
    many = [Outer(1.0, "a", (), {"x": np.ones(3)}), Outer(2.0, "a", (), {})]
    assert np.asarray(stack(many).table["x"]).tolist() == [[1.0, 0.0]] * 3
