"""Rules that fill what a request leaves open: never what it states, and each with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.catalog.filling import Default, Filler
from predictor.errors import InputError

FIELDS = ("tp", "pp", "dp")
REASONS = st.sampled_from(("", "why", "why else"))
RULES = st.lists(
    st.builds(Default, st.sampled_from(FIELDS), st.integers(1, 64), REASONS, st.booleans())
)


@given(st.dictionaries(st.sampled_from(FIELDS), st.integers(1, 64)), RULES)
def test_what_is_stated_stays_and_the_first_rule_that_holds_fills(
    stated: dict[str, int], rules: list[Default]
) -> None:
    filler = Filler(stated)
    filler.run(rules)
    for field in FIELDS:
        holding = [rule for rule in rules if rule.when and rule.field == field]
        told = [one for one in filler.assumed if one.field == field]
        if field in stated or not holding:
            assert filler.values.get(field) == stated.get(field)
            assert not told
        else:
            first = holding[0]
            assert filler.values[field] == first.value
            assert [(one.value, one.rule) for one in told] == [(first.value, first.rule)]


def test_what_has_no_default_is_asked_for_by_its_flag() -> None:
    Filler({"seq_len": 8}).need("seq_len")
    with pytest.raises(InputError, match="give --seq-len: it has no default"):
        Filler({"seq_len": None}).need("seq_len")
