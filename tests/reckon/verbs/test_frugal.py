"""Searches for the least energy or money: what they promise is what a prediction says."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.errors import InputError
from predictor.power import Conditions
from predictor.training import limited, step_power
from reckon.verbs.frugal import Thrift, thrift_of
from reckon.verbs.plans import TrainingSearch, asked

SPACE = {
    "model": "llama3-8b", "system": "dgx-h100", "gpus": 8, "global_batch": 16, "seq_len": 4096,
    "tp": [1, 2, 4, 8], "pp": 1, "cp": 1, "micro_batch": [1, 2], "sharding": "zero1",
    "recompute": ["none", "full"], "schedule": "1f1b", "framework": "megatron-lm",
}  # fmt: skip
LIMITS = (650.0, 500.0, 350.0)


def found(**more: Any) -> TrainingSearch:
    """A small space, by energy unless said otherwise."""
    return asked({**SPACE, "objective": "energy", **more}, "kernels-only")


@pytest.fixture(scope="module")
def free() -> TrainingSearch:
    return found(power_limits="650,500,350")


def test_energies_are_those_of_predictions_and_none_is_less(free: TrainingSearch) -> None:
    """Each plan under its limit, predicted by itself; no other limit takes less."""
    for one in free.frugal[:4]:
        plain = free.prediction(one.position)
        energies = {}
        for limit in (None, *LIMITS):
            conditions = Conditions(limit=limit)
            under = step_power(plain, conditions)
            own = limited(plain, under, conditions)
            joules = 8 * float(under.mean) * float(own.step_time) / 16
            energies[limit] = joules, float(own.step_time)
        assert min(energies, key=lambda limit: energies[limit][0]) == one.limit
        assert one.energy == pytest.approx(energies[one.limit][0], rel=1e-12)
        assert one.step_time == pytest.approx(energies[one.limit][1], rel=1e-12)
    ranked = [one.energy for one in free.frugal]
    assert ranked == sorted(ranked)
    assert [one.position for one in free.frugal] == list(range(len(free.frugal)))
    assert free.to_dict(3)["frugal"][0]["rank"] == 1


def test_a_deadline_is_kept_and_costs_energy(free: TrainingSearch) -> None:
    tight = found(power_limits=list(LIMITS), slower=0.05)
    fastest = float(tight.result.step_time.min())
    assert all(one.step_time <= 1.05 * fastest * (1 + 1e-9) for one in tight.frugal)
    assert free.frugal[0].step_time > 1.05 * fastest
    assert tight.frugal[0].energy > free.frugal[0].energy
    none = found(slower=0.0)
    assert len(none.frugal) >= 1
    assert {one.limit for one in none.frugal} == {None}


def test_money_weighs_energy_against_hours() -> None:
    """Dear energy asks for low limits, dear accelerators for none."""
    both = {"objective": "money", "power_limits": list(LIMITS)}
    energy = found(**both, price_per_kwh=1e6, price_per_gpu_hour=1e-6)
    hours = found(**both, price_per_kwh=1e-6, price_per_gpu_hour=1e6)
    assert energy.frugal[0].limit is not None
    assert hours.frugal[0].limit is None
    assert energy.frugal[0].energy < hours.frugal[0].energy
    assert hours.frugal[0].step_time < energy.frugal[0].step_time


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"power_limits": "600,x"}, "power limit x must be a number"),
        ({"slower": -0.1}, "slower -0.1"),
        ({"price_per_kwh": 0}, "price_per_kwh 0"),
        ({"power_limits": "20"}, "20"),
        ({"objective": "money"}, "needs --price-per-kwh"),
        ({"objective": "time", "slower": 0.1}, "need --objective energy or money"),
    ],
)
def test_what_cannot_be_is_one_line(stated: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        found(tp=8, micro_batch=1, recompute="none", **stated)
    assert "\n" not in str(error.value)
    assert thrift_of({"power_limits": [700]}) == Thrift(limits=(700.0,))
