"""Tables are scored without a trace in the process that asks."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from reckon.verbs.validating import SELDOM, seldom_collected


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize(("first", "meanwhile"), [(700, SELDOM), (2 * SELDOM, 2 * SELDOM), (0, 0)])
def test_garbage_is_looked_for_as_before_once_a_table_is_scored(first: int, meanwhile: int) -> None:
    """Less often meanwhile, but not where it is not looked for at all, and after an error too."""
    gc.set_threshold(first, 5, 6)
    with seldom_collected():
        assert gc.get_threshold() == (meanwhile, 5, 6)
    assert gc.get_threshold() == (first, 5, 6)
    with pytest.raises(KeyError), seldom_collected():
        raise KeyError
    assert gc.get_threshold() == (first, 5, 6)
