"""What a search is asked beside its plan, however it is written: a number, or one line."""

import pytest

from predictor.errors import InputError
from reckon.verbs import fleets, plans

TRAINING = {
    "model": "llama3-8b", "system": "dgx-h100", "gpus": 8, "global_batch": 8, "seq_len": 4096,
    "tp": 1, "pp": 1, "recompute": "full", "micro_batch": 1,
}  # fmt: skip
SERVING = {
    "model": "llama3-8b", "system": "dgx-h100", "input_len": 64, "output_len": 8, "rate": 1.0,
    "tp": 1, "pp": 1,
}  # fmt: skip


@pytest.mark.parametrize("wrong", ["abc", "9x", "nan", "inf", "-1", [1, 2], {}])
@pytest.mark.parametrize("name", [*plans.LIMITS, "slower", "price_per_kwh", "power_limits"])
def test_what_bounds_a_search_of_training_is_a_number(name: str, wrong: object) -> None:
    if name == "power_limits" and wrong == [1, 2]:
        wrong = [1, "x"]
    saving = {"objective": "energy"} if name in plans.THRIFT else {}
    with pytest.raises(InputError) as error:
        plans.asked({**TRAINING, **saving, name: wrong}, "kernels-only")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", ["abc", "9x", "nan", "inf", "-1", [1, 2]])
@pytest.mark.parametrize("name", [*fleets.NUMBERS, "price_per_kwh", "rate"])
def test_what_a_fleet_is_for_is_a_number(name: str, wrong: object) -> None:
    saving = {"objective": "energy"} if name in fleets.THRIFT else {}
    with pytest.raises(InputError) as error:
        fleets.asked({**SERVING, **saving, name: wrong}, "kernels-only")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("written", [15e12, "15e12", "15T", "15000B"])
def test_tokens_to_train_on_are_the_same_however_written(written: object) -> None:
    found = plans.asked({**TRAINING, "tokens": written}, "kernels-only")
    assert found.result.limits.tokens == 15e12


@pytest.mark.parametrize("written", ["no", "false", False])
def test_a_switch_that_is_off_is_off(written: object) -> None:
    found = plans.asked({**TRAINING, "tp_in_node": written}, "kernels-only")
    assert found.result.limits.tp_in_node is False
