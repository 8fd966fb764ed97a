"""Searches for fleets of the least energy or money: what they promise is what a prediction says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.errors import InputError
from predictor.search import EngineOffer
from reckon.verbs.fleets import InferenceSearch, asked
from reckon.verbs.frugal_fleets import spent, watts_at
from reckon.verbs.loads import Load

SPACE = {
    "model": "llama3-8b", "system": "dgx-h100", "rate": 40, "input_len": 512, "output_len": 128,
    "tpot_ms": 30, "ttft_ms": 2000, "tp": [1, 2, 4], "pp": 1, "simulate": 300,
}  # fmt: skip


def found(**more: Any) -> InferenceSearch:
    """A small space, by energy unless said otherwise."""
    return asked({**SPACE, "objective": "energy", **more}, "kernels-only")


@pytest.fixture(scope="module")
def saving() -> InferenceSearch:
    return found(power_limits="500,350", prefill_tp=1)


def watts(engine: EngineOffer, rate: float) -> float:
    """Of an accelerator of one engine by itself, under its limit, as it is predicted."""
    fields = {
        "input_len": 512, "output_len": 128, "rate": rate, "power_limit": engine.limit,
        "prefill_power_limit": engine.reading,
        **{name: float(getattr(engine.plan, name)) for name in ("tp", *READING)},
    }  # fmt: skip
    known = {name: value for name, value in fields.items() if value}
    one = reckon.predict_infer("llama3-8b", "dgx-h100", known, "kernels-only")
    assert one.power is not None
    return float(one.power.mean)


READING = ("prefill_workers", "prefill_tp")


def test_the_energy_is_that_of_the_prediction_at_the_engines_share(saving: InferenceSearch) -> None:
    """Engines by themselves, at their share of the load, under their limit: idle time counts as
    idle, however little is asked of them."""
    own = [fleet for fleet in saving.fleets if not fleet.engine.apart]
    for fleet in [*own[:2], next(f for f in saving.fleets if f.engine.apart and f.engine.limit)]:
        assert fleet.spent is not None
        assert fleet.spent.power == pytest.approx(watts(fleet.engine, 40 / fleet.count), rel=0.015)
        assert fleet.spent.energy == pytest.approx(fleet.gpus * fleet.spent.power / 40)
    engine = own[0].engine
    for share in (0.002, 0.05, 0.3):
        rate = share * engine.rate
        told = watts_at(engine, np.array([rate]))
        assert told is not None
        assert float(told[0]) == pytest.approx(watts(engine, rate), rel=0.015)


def test_those_that_read_and_those_that_decode_are_tried_under_limits_of_their_own(
    saving: InferenceSearch,
) -> None:
    """And those of two limits draw what is predicted of them."""
    apart = [fleet for fleet in saving.fleets if fleet.engine.apart and fleet.spent]
    unlike = [fleet for fleet in apart if fleet.engine.reading is not None]
    pairs = {(fleet.engine.limit, fleet.engine.reading) for fleet in unlike}
    assert len(pairs) > 2
    assert pairs <= {(a, b) for a in (None, 350.0, 500.0) for b in (350.0, 500.0, 700.0)}
    fleet = unlike[0]
    assert fleet.spent is not None
    assert fleet.spent.power == pytest.approx(watts(fleet.engine, 40 / fleet.count), rel=0.015)
    assert saving.entry(fleet)["prefill_power_limit_w"] == fleet.engine.reading


def test_a_load_that_comes_and_goes_takes_the_energy_of_its_hours(saving: InferenceSearch) -> None:
    """The nights of a fleet that stays are nearly idle, and cheaper an hour, not a request."""
    engine, count = saving.fleets[0].engine, saving.fleets[0].count
    day = Load(np.arange(2.0), np.array([40.0, 1.0]))
    both = spent(engine, count, day, 0.1)
    hours = [spent(engine, count, Load(np.zeros(1), np.array([r])), 0.1) for r in (40.0, 1.0)]
    assert both is not None
    assert both.energy == pytest.approx(
        sum(r * one.energy for r, one in zip((40.0, 1.0), hours, strict=True) if one) / 41.0
    )
    assert both.money == pytest.approx(np.mean([one.money for one in hours if one]))
    busy, night = (one for one in hours if one)
    assert night.energy > 3.0 * busy.energy
    assert night.money is not None
    assert busy.money is not None
    assert night.money < busy.money


def test_what_energy_costs_is_what_a_prediction_of_the_same_accelerators_says(
    saving: InferenceSearch,
) -> None:
    """At the meter, with all that is in a node."""
    engine = next(f.engine for f in saving.fleets if not f.engine.apart and f.engine.limit is None)
    size = float(engine.plan.tp)
    fields = {"tp": size, "dp": 8.0 / size, "input_len": 512, "output_len": 128,
              "rate": 40.0, "price_per_kwh": 0.1}  # fmt: skip
    one = reckon.predict_infer("llama3-8b", "dgx-h100", fields, "kernels-only")
    assert one.run_energy is not None
    told = spent(engine, int(8.0 / size), Load(np.zeros(1), np.array([40.0])), 0.1)
    assert told is not None
    assert told.money == pytest.approx(one.run_energy["energy_price"] / 24.0, rel=0.01)


def test_they_are_ranked_by_energy_and_keep_the_promise(saving: InferenceSearch) -> None:
    energies = [fleet.spent.energy for fleet in saving.fleets if fleet.spent is not None]
    assert len(energies) == len(saving.fleets)
    assert energies == sorted(energies)
    assert {fleet.engine.limit for fleet in saving.fleets} == {None, 500.0, 350.0}
    for fleet in saving.fleets:
        assert fleet.tpot <= 0.03
        assert fleet.ttft <= 2.0
    assert {fleet.engine.apart for fleet in saving.fleets} == {False, True}
    assert not saving.simulated.broken


def test_a_lower_limit_carries_no_more(saving: InferenceSearch) -> None:
    """Of one layout: less power at any load, at most the same rate within the promise."""
    for tp in (1.0, 2.0, 4.0):
        own = {
            f.engine.limit: f.engine
            for f in saving.fleets
            if float(f.engine.plan.tp) == tp and not f.engine.apart
        }
        rates = [own[limit].rate for limit in (None, 500.0, 350.0) if limit in own]
        assert rates == sorted(rates, reverse=True)
        for limit, engine in own.items():
            assert engine.drawn is not None
            assert engine.drawn.power.max() <= (limit or 700.0)
            assert (engine.drawn.passes >= 1.0 - 1e-9).all()


def test_the_front_gives_time_for_energy(saving: InferenceSearch) -> None:
    front = saving.saving
    assert len(front) > 3
    assert [one.tpot for one in front] == sorted(one.tpot for one in front)
    assert [one.energy for one in front] == sorted((one.energy for one in front), reverse=True)


def test_money_weighs_energy_against_hours() -> None:
    """Dear energy asks for what energy asks for, dear accelerators for the fewest of them."""
    both = {"objective": "money", "power_limits": [500, 350], "simulate": 100, "prefill_workers": 0}
    energy = found(**both, price_per_kwh=1e6, price_per_gpu_hour=1e-6).fleets[0]
    hours = found(**both, price_per_kwh=1e-6, price_per_gpu_hour=1e6).fleets[0]
    assert energy.spent is not None
    assert hours.spent is not None
    assert energy.spent.energy <= hours.spent.energy
    assert hours.gpus <= energy.gpus


def test_every_search_tells_power(cli: Any) -> None:
    line = (
        "plan infer --model llama3-8b --system dgx-h100 --rate 5 --input-len 512 --output-len 64 "
        "--tp 1,2 --pp 1 --simulate 100 --top 2 --json -"
    )
    status, out, _ = cli(*line.split())
    told = json.loads(out)
    assert status == 0
    own = [fleet for fleet in told["fleets"] if fleet["plan"]["prefill_workers"] == 0]
    assert own
    for fleet in own:
        power = fleet["power"]
        assert 100 < power["power_w"]["low"] < power["power_w"]["value"] < 700
        each = power["energy_per_request_j"]["value"]
        assert power["energy_per_token_j"]["value"] == pytest.approx(each / 64)
    energies = [one["energy_per_token_j"] for one in told["energy_frontier"]]
    assert energies == sorted(energies, reverse=True)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"power_limits": "600,x"}, "power limit x must be a number"),
        ({"power_limits": "20"}, "--power-limit 20 W"),
        ({"price_per_kwh": 0}, "price_per_kwh 0"),
        ({"objective": "money"}, "needs --price-per-kwh or"),
        ({"objective": "gpus", "power_limits": "500"}, "need --objective energy or money"),
    ],
)
def test_what_cannot_be_is_one_line(stated: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        found(tp=1, prefill_workers=0, **stated)
    assert "\n" not in str(error.value)
