"""`result.power`: laws of what users are told, and one line for what cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

import reckon
from predictor.catalog import load
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import sweep_serving
from reckon.views.power import _costs, show_power
from reckon.views.terminal import seconds

PLAN = {"gpus": 64, "tp": 8, "pp": 2, "global_batch": 64, "seq_len": 4096}
SERVED = {"tp": 4, "concurrency": 32, "input_len": 512, "output_len": 128}


def train(**more: Any) -> Prediction:
    found = reckon.predict_train("llama3-70b", "dgx-h100", {**PLAN, **more})
    assert isinstance(found, Prediction)
    return found


def serve(**more: Any) -> ServingResult:
    found = reckon.predict_infer("llama3-8b", "dgx-h100", {**SERVED, **more})
    assert isinstance(found, ServingResult)
    return found


def test_a_step_draws_the_mean_of_its_phases_and_stays_within_its_limit() -> None:
    found = train()
    power = found.power
    assert power is not None
    told = power.to_dict()
    mean = sum(watts * share for watts, share in power.phases.values())
    assert mean == pytest.approx(power.mean)
    assert sum(share for _, share in power.phases.values()) == pytest.approx(1.0)
    assert power.mean <= told["peak_1s_w"]["value"] <= told["peak_100ms_w"]["value"] <= 700.0
    assert told["energy_j"]["value"] == pytest.approx(power.mean * 64 * found.step_time.value)
    assert told["energy_per_sample_j"]["value"] * 64 == pytest.approx(told["energy_j"]["value"])
    assert told["node_power_w"]["value"] > 8 * power.mean
    assert told["power_w"]["high"] / told["power_w"]["value"] >= 1.05


def test_samples_per_second_and_megajoule_fall_with_the_square_of_the_time() -> None:
    """CharLLM's measure: (samples / step) / (energy of the step in MJ)."""
    found = train()
    assert found.power is not None
    told = found.power.to_dict()
    step = found.step_time.value
    hand = 64 / step / (found.power.mean * 64 * step / 1e6)
    assert told["samples_per_s_per_mj"] == pytest.approx(hand)


def test_a_limit_that_nobody_states_is_told_where_it_matters() -> None:
    """What it tells of a lower one is what a plan with that limit takes; nothing where a limit is
    stated, or where the step hardly depends on it."""
    found = train(pp=8, gpus=512)
    limit = found.supposed_limit
    assert limit is not None
    assert (limit.taken, limit.lower) == pytest.approx((700.0, 560.0))
    under = train(pp=8, gpus=512, power_limit=560.0)
    assert under.step_time.value / found.step_time.value - 1.0 == pytest.approx(limit.longer)
    assert under.supposed_limit is None
    waiting = reckon.predict_train(
        "llama3-8b", "dgx-h100", {**PLAN, "pp": 4, "global_batch": 16, "seq_len": 128}
    )
    assert isinstance(waiting, Prediction)
    assert waiting.supposed_limit is None


def test_the_line_of_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    for stated in ({}, {"power_limit": 600.0}):
        found = train(**stated)
        show_power(found.power, limit=found.supposed_limit)
        assert ("state --power-limit" in capsys.readouterr().out) == (not stated)


def test_a_lower_limit_costs_time_and_saves_energy() -> None:
    found = [train(), *(train(power_limit=w) for w in (600.0, 500.0, 400.0))]
    steps = [one.step_time.value for one in found]
    means = [one.power.mean for one in found if one.power]
    assert steps == sorted(steps)
    assert means == sorted(means, reverse=True)
    assert steps[1] / steps[0] < 1.05
    assert steps[2] * means[2] < steps[0] * means[0]
    for one in found:
        assert sum(one.breakdown.values()) == pytest.approx(one.step_time.value)


def test_the_boards_own_limit_changes_nothing() -> None:
    assert train(power_limit=700.0).step_time.value == pytest.approx(train().step_time.value)


def test_a_clock_above_that_of_the_datasheets_rates_binds_nothing() -> None:
    """An H100 may be set to 1,980 MHz; its products were timed at 1,830."""
    free, top, above = train(), train(clock=1830), train(clock=1980)
    assert above.step_time.value == top.step_time.value == pytest.approx(free.step_time.value)
    assert above.power is not None
    assert top.power is not None
    assert above.power.to_dict() == top.power.to_dict()


def test_one_accelerator_of_a_node_keeps_the_fans_of_eight_slow() -> None:
    """Fans of a node are made for all of its accelerators; flow follows what there is to cool."""
    one, all_ = serve(tp=1).power, serve(tp=8).power
    assert one is not None
    assert all_ is not None
    fans = [found.to_dict()["node_parts_w"]["fans"] for found in (one, all_)]
    assert fans[0] < 0.5 * fans[1]


@pytest.mark.parametrize("name", ["Apple-M4Max-40c-128GB", "Jetson-AGX-Orin-64GB", "GB10-128GB"])
def test_a_system_on_a_chip_is_no_server(name: str) -> None:
    """Its processors and memory are within its own limit; beside it are a fan and a supply."""
    plan = {"accelerator": name, "concurrency": 1, "input_len": 512, "output_len": 128}
    asked = {"model": "llama3.2-1b", **plan}
    found = sweep_serving(asked, load("default"), "test").predictions[0]
    assert found.power is not None
    told = found.power.to_dict()
    chip, whole = (told[key]["value"] for key in ("power_w", "node_power_w"))
    assert chip < whole < 1.5 * chip


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"site_kwh": 77.2, "energy_price": 7.72, "kg_co2e": 30.9},
         "77.2 kWh, price 7.72, 30.9 kg CO2e"),
        ({"site_kwh": 0.012, "energy_price": 0.0012, "kg_co2e": 0.0048},
         "0.012 kWh, price 0.0012, 0.0048 kg CO2e"),
        ({"site_kwh": 36956.4, "energy_price": 3695.6, "kg_co2e": 14782.5},
         "36,956 kWh, price 3,696, 14.78 t CO2e"),
    ],
)  # fmt: skip
def test_small_costs_keep_their_digits(told: dict[str, float], said: str) -> None:
    assert _costs(told) == said


def test_long_times_are_written_out() -> None:
    hours = {35.44: "35.4 h", 999.0: "999 h", 4540.0: "4,540 h", 2.26549e5: "227,000 h"}
    assert {at: seconds(3600.0 * at) for at in hours} == hours


def test_communication_does_not_slow_with_the_clock() -> None:
    fast, slow = train(), train(clock=1200.0)
    assert slow.breakdown["tp_communication"] == fast.breakdown["tp_communication"]
    assert slow.breakdown["forward"] > 1.2 * fast.breakdown["forward"]


def test_a_warm_inlet_heats_and_liquid_evens_out() -> None:
    cool, warm, wet = train(), train(inlet=40.0), train(cooling="liquid")
    assert cool.power
    assert warm.power
    assert wet.power
    first, second = cool.power.to_dict(), warm.power.to_dict()
    assert min(second["temperature_c"]) > min(first["temperature_c"]) + 10
    assert first["temperature_c"][1] > first["temperature_c"][0]
    assert len(wet.power.to_dict()["temperature_c"]) == 1
    assert warm.step_time.value >= cool.step_time.value


def test_prices_and_carbon_follow_the_meter() -> None:
    found = train(tokens=1e9, price_per_kwh=0.2, carbon_intensity=0.4, pue=1.5)
    run = found.run_energy
    assert run is not None
    assert run["energy_price"] == pytest.approx(0.2 * run["site_kwh"])
    assert run["kg_co2e"] == pytest.approx(0.4 * run["site_kwh"])
    plain = train(tokens=1e9, pue=1.0).run_energy
    assert plain is not None
    assert run["site_kwh"] == pytest.approx(1.5 * plain["site_kwh"])
    assert "energy_price" not in plain


def test_serving_per_token_and_under_a_limit() -> None:
    usual, held = serve(), serve(power_limit=300.0)
    assert usual.power
    assert held.power
    told = usual.power.to_dict()
    tokens = usual.output_tokens_per_s.value
    assert told["energy_per_token_j"]["value"] == pytest.approx(usual.power.mean * 4 / tokens)
    assert held.power.mean <= 300.0 < usual.power.mean
    assert held.tpot.value >= usual.tpot.value
    assert held.output_tokens_per_s.value <= usual.output_tokens_per_s.value


def test_an_engine_that_waits_for_requests_draws_less() -> None:
    busy = serve(concurrency=None, rate=20.0)
    calm = serve(concurrency=None, rate=0.5)
    assert busy.power
    assert calm.power
    assert calm.power.mean < busy.power.mean


def test_between_requests_an_engine_is_idle_and_a_limit_holds_what_it_does_for_one() -> None:
    """At a rate: passes draw what those of as many clients do, and what lies between them is no
    part of a pass, which a limit below it slows as much."""
    one = {"tp": 1, "input_len": 512, "output_len": 128, "concurrency": None}
    rare, loop = serve(**one, rate=0.01), serve(**{**one, "concurrency": 1})
    assert rare.power is not None
    assert loop.power is not None
    phases = rare.power.phases
    assert phases["idle"][1] > 0.98
    assert phases["decode"][0] == pytest.approx(loop.power.phases["decode"][0], rel=0.03)
    slower = [
        serve(**load, power_limit=300.0).tpot.value / free.tpot.value
        for load, free in (({**one, "rate": 0.01}, rare), ({**one, "concurrency": 1}, loop))
    ]
    assert slower[0] == pytest.approx(slower[1], rel=0.02)
    assert slower[0] > 1.1


def test_a_limit_that_makes_clients_wait_lowers_what_they_are_given() -> None:
    """However short their answers: clients that wait for longer ask for less."""
    for length in (2, 128):
        load = {"tp": 1, "concurrency": 4, "input_len": 1024, "output_len": length}
        free, held = serve(**load), serve(**load, power_limit=250.0)
        assert held.e2e.value > 1.2 * free.e2e.value
        assert held.requests_per_s < 0.9 * free.requests_per_s


def test_a_limit_lowers_the_rate_that_an_engine_can_serve() -> None:
    """Beyond it an engine is full, and gives what clients without end would get of it."""
    load: dict[str, Any] = {"tp": 1, "concurrency": None, "input_len": 512, "output_len": 128}
    most = []
    for limit in (None, 400.0, 250.0, 200.0):
        under = {} if limit is None else {"power_limit": limit}
        over = serve(**load, rate=90.0, **under)
        assert over.saturated
        assert over.most == pytest.approx(float(over.requests_per_s), rel=1e-6)
        most.append(over.most)
        below = serve(**load, rate=0.9 * over.most, **under)
        assert not below.saturated
        assert float(below.requests_per_s) == pytest.approx(0.9 * over.most)
    assert most == sorted(most, reverse=True)
    assert most[-1] < 0.6 * most[0]


def test_a_sweep_over_limits_is_one_by_one(cli: Any) -> None:
    line = (
        "predict train --model llama3-8b --system dgx-h100 --gpus 8 --global-batch 8 "
        "--seq-len 4096 --power-limit 400,500 --json -"
    )
    status, out, _ = cli(*line.split())
    assert status == 0
    found = json.loads(out)["predictions"]
    assert found[0]["step_time_s"]["value"] > found[1]["step_time_s"]["value"]
    assert [float(one["asked"]["power_limit"]) for one in found] == [400.0, 500.0]
    table = cli(*line.removesuffix(" --json -").split())[1].splitlines()
    assert [row.split()[0] for row in table[:3]] == ["power_limit", "400", "500"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"power_limit": 50.0}, "--power-limit 50 W"),
        ({"power_limit": 900.0}, "--power-limit 900 W"),
        ({"inlet": 95.0}, "--inlet 95 C"),
        ({"clock": 9000.0}, "--clock 9000 MHz"),
        ({"price_per_kwh": -1.0}, "price_per_kwh"),
        ({"cooling": "wind"}, "cooling"),
        ({"carbon_intensity": 400.0}, "at most 5"),
    ],
)
def test_what_cannot_be_gets_one_line(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(reckon.InputError, match=text) as caught:
        train(**fields)
    assert "\n" not in str(caught.value)


def test_an_interval_ends_at_the_limit() -> None:
    """But for what a sensor errs by; the instant peak may exceed it. Below it, as sure as the
    constants."""
    for watts in (350.0, 700.0):
        power = serve(power_limit=watts, input_len=4000, concurrency=128).power
        assert power is not None
        told = power.to_dict()
        mean = told["power_w"]
        for one in (mean, told["peak_1s_w"]):
            reach, most = one["value"] / one["low"], max(watts, 1.05 * one["value"])
            assert one["high"] == pytest.approx(min(reach * one["value"], most))
            assert reach > 1.05
        room = mean["high"] / mean["value"]
        assert told["energy_j"]["high"] == pytest.approx(told["energy_j"]["value"] * room)


def test_one_token_answers_leave_nothing_to_decode() -> None:
    for more in ({"concurrency": 4}, {"rate": 5.0, "concurrency": None}, {"batch": 4}):
        fields = {**SERVED, "output_len": 1, **more}
        own = {k: v for k, v in fields.items() if v is not None}
        if "batch" in more:
            own.pop("concurrency")
        found = reckon.predict_infer("llama3-8b", "dgx-h100", own)
        assert found.power is not None
        shares = {name: share for name, (_, share) in found.power.phases.items()}
        assert shares["decode"] < 1e-6 < 1e-3 < shares["prefill"]
