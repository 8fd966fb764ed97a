"""What others disturbed is measured again, later and once."""

from profiler.order import OTHERS, RARE, Order

CALM = [{"waited": 0.0}]
DISTURBED = [{"waited": 0.6}]


class Listed:
    """A design that asks for cases in their order."""

    def __init__(self, cases: int) -> None:
        self.cases = list(range(cases))

    def next(self, left: float) -> int | None:
        return self.cases.pop(0) if self.cases and left > 0 else None


def walked(cases: int, disturbed: set[int]) -> tuple[list[int], list[int]]:
    """Cases as they are asked for, and those whose rows are kept."""
    order = Order(Listed(cases))  # type: ignore[arg-type]
    asked, kept = [], []
    while (case := order.next(1.0)) is not None:
        asked.append(case)
        if not order.postponed(case, DISTURBED if case in disturbed else CALM):
            kept.append(case)
    return asked, kept


def test_calm_cases_are_asked_for_once() -> None:
    assert walked(5, set()) == (list(range(5)), list(range(5)))


def test_a_disturbed_case_comes_again_after_others_and_is_then_kept() -> None:
    asked, kept = walked(3 * OTHERS, {2})
    first, second = (n for n, case in enumerate(asked) if case == 2)
    assert second - first == OTHERS
    assert sorted(kept) == list(range(3 * OTHERS))
    assert len(asked) == 3 * OTHERS + 1


def test_what_is_left_at_the_end_comes_again_at_once() -> None:
    asked, kept = walked(4, {1, 3})
    assert asked == [0, 1, 2, 3, 1, 3]
    assert sorted(kept) == [0, 1, 2, 3]


def test_rows_whose_second_chance_never_comes_are_not_lost() -> None:
    order = Order(Listed(2))  # type: ignore[arg-type]
    case = order.next(1.0)
    assert order.postponed(case, DISTURBED)
    assert order.left() == DISTURBED


def test_where_all_is_disturbed_few_are_measured_twice() -> None:
    cases = 10 * OTHERS
    asked, kept = walked(cases, set(range(cases)))
    assert sorted(kept) == list(range(cases))
    assert len(asked) <= (1 + 2 * RARE) * cases
