"""Limits of power, and what is drawn, where prompts are read on accelerators of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.arrays import stack
from predictor.catalog import load
from predictor.errors import InputError
from predictor.power import Conditions
from predictor.search import search_engines
from predictor.serving import (
    PoweredApart,
    Promise,
    apart_loads,
    held_engines,
    limited,
    predict_inference,
    serving_power,
    serving_watts,
)
from predictor.serving.reading import read_table
from reckon.explore.evaluate import serve_columns
from reckon.verbs.powering import PowerResult
from reckon.verbs.served import ServingResult

ONE = {"tp": 1, "input_len": 2000, "output_len": 200, "framework": "vllm"}
APART = {**ONE, "prefill_workers": 1, "prefill_tp": 1}
LOADS: list[dict[str, Any]] = [
    {"rate": 4.0}, {"rate": 100.0}, {"concurrency": 8}, {"concurrency": 64},
]  # fmt: skip


@cache
def _served(fields: tuple[tuple[str, Any], ...], system: str) -> ServingResult:
    found = reckon.predict_infer("llama3-8b", system, dict(fields))
    assert isinstance(found, ServingResult)
    return found


def serve(
    given: dict[str, Any], limit: float | None = None, system: str = "dgx-h100"
) -> ServingResult:
    more = {} if limit is None else {"power_limit": limit}
    return _served(tuple({**given, **more}.items()), system)


def drawn(found: ServingResult) -> PowerResult:
    assert found.power is not None
    return found.power


def kinds(found: ServingResult) -> PoweredApart:
    under = drawn(found).under
    assert isinstance(under, PoweredApart)
    return under


@pytest.mark.parametrize("given", LOADS)
def test_a_limit_that_binds_nothing_is_none(given: dict[str, Any]) -> None:
    free, held = serve({**APART, **given}), serve({**APART, **given}, 700.0)
    for name in ("ttft", "tpot", "e2e", "output_tokens_per_s"):
        assert getattr(held, name).value == getattr(free, name).value
    assert held.breakdown == free.breakdown
    assert (held.most, drawn(held).to_dict()) == (free.most, drawn(free).to_dict())


@pytest.mark.parametrize("given", LOADS)
def test_a_lower_limit_is_never_quicker_nor_draws_or_carries_more(given: dict[str, Any]) -> None:
    """Where workers are busy all the time fewer decode, each the sooner: the rate falls instead."""
    limits = (None, 450.0, 250.0)
    found = [serve({**APART, **given}, limit) for limit in limits]
    rows = np.array(
        [[one.most or 0.0, one.requests_per_s, -one.ttft.value, -one.e2e.value] for one in found]
    )
    assert np.all(np.diff(rows, axis=0) <= 1e-9 * np.abs(rows[1:]))
    means = np.array([drawn(one).mean for one in found])
    assert np.all(np.diff(means) <= 1e-4 * means[1:])
    for limit, one in zip(limits, found, strict=True):
        under = kinds(one)
        for kind in (under.readers, under.decoders):
            assert 100.0 < float(kind.mean) <= (limit or 700.0)
            assert float(kind.instant) <= (limit or 700.0)
    if not any(one.saturated for one in found) and "rate" in given:
        slow = np.array([one.tpot.value for one in found])
        assert np.all(np.diff(slow) >= -1e-6 * slow[1:])


@pytest.mark.parametrize(("limit", "rate"), [(None, 0.5), (400.0, 4.0)])
def test_each_kind_draws_what_it_does_by_itself(limit: float | None, rate: float) -> None:
    """A worker is an engine that answers with one token; what decodes, one whose prompts are in the
    cache but for a token or two."""
    under = kinds(serve({**APART, "rate": rate}, limit))
    reads = drawn(serve({**ONE, "output_len": 1, "rate": rate}, limit))
    assert float(under.readers.mean) == pytest.approx(reads.mean, rel=0.03)
    decodes = drawn(serve({**ONE, "cached": 0.999, "rate": rate}, limit))
    assert float(under.decoders.mean) == pytest.approx(decodes.mean, rel=0.04)


def test_the_mean_is_that_of_all_accelerators() -> None:
    found = serve({**APART, "prefill_workers": 3, "tp": 2, "rate": 6.0}, 450.0)
    under, told = kinds(found), drawn(found)
    by_hand = (3 * float(under.readers.mean) + 2 * float(under.decoders.mean)) / 5
    assert told.gpus == 5
    assert told.mean == pytest.approx(by_hand)
    assert sum(share for _, share in told.phases.values()) == pytest.approx(1.0)
    assert sum(w * share for w, share in told.phases.values()) == pytest.approx(told.mean)
    each = told.to_dict()["kinds"]
    assert (each["prefill"]["gpus"], each["decode"]["gpus"]) == (3, 2)
    assert each["decode"]["power_w"]["value"] == pytest.approx(float(under.decoders.mean))
    energy = told.to_dict()["energy_per_request_j"]["value"]
    assert energy == pytest.approx(5 * told.mean / 6.0)


def test_a_limit_on_those_that_read_makes_first_tokens_late_and_no_others() -> None:
    """520 W is above what decoding draws, below what reading does."""
    free, held = (serve({**APART, "rate": 4.0}, limit) for limit in (None, 520.0))
    assert held.ttft.value > 1.05 * free.ttft.value
    assert held.tpot.value == pytest.approx(free.tpot.value, rel=1e-3)
    assert float(kinds(held).decoders.mean) == pytest.approx(float(kinds(free).decoders.mean))


@pytest.mark.parametrize(("given", "limit"), [({"rate": 8.0}, 300.0), ({"concurrency": 8}, 300.0)])
def test_requests_one_by_one_agree(given: dict[str, Any], limit: float) -> None:
    found = serve({**APART, **given, "simulate": 2000}, limit)
    assert found.served is not None
    assert found.instead is None
    assert found.e2e.value == pytest.approx(found.served.e2e.mean(), rel=0.04)
    assert found.tpot.value == pytest.approx(found.served.tpot.mean(), rel=0.04)
    if "rate" in given:
        assert found.ttft.value == pytest.approx(found.served.ttft.mean(), rel=0.06)


def test_passes_of_requests_one_by_one_are_as_much_longer() -> None:
    found = serve({**APART, "rate": 4.0}, 300.0)
    assert found.powered is not None
    free, conditions = found.powered.batch, found.powered.conditions
    held = limited(free, serving_power(free, conditions), conditions)
    known = load("default")
    slower = held_engines(free, held, known)
    before, after = (
        read_table(free.model, free.cluster, free.plan, one) for one in (known, slower)
    )
    ratio = float(held.work.prompts.compute) / float(free.work.prompts.compute)
    many = min(before.most, float(free.work.together))
    assert after.reading(int(many), 2000.0) == pytest.approx(
        ratio * before.reading(int(many), 2000.0), rel=0.03
    )


@pytest.mark.parametrize(
    ("given", "system", "told"),
    [
        ({"power_limit": 100}, "dgx-h100", "draws 1.. W awake"),
        ({"power_limit": 800}, "dgx-h100", "takes limits up to 700 W"),
        ({"power_limit": 500, "prefill_system": "dgx-a100"}, "dgx-h100", "up to 400 W"),
        ({"clock": 100}, "dgx-h100", "--clock 100 MHz"),
        ({"prefill_power_limit": 90}, "dgx-h100", "prefill_power_limit 90 W"),
        ({"prefill_power_limit": 500, "prefill_system": "dgx-a100"}, "dgx-h100", "up to 400 W"),
    ],
)
def test_what_cannot_be_of_either_kind_is_one_line(
    given: dict[str, Any], system: str, told: str
) -> None:
    with pytest.raises(InputError, match=told) as error:
        serve({**APART, "rate": 1.0, **given}, system=system)
    assert "\n" not in str(error.value)


def test_another_system_reads_by_its_own_constants_and_in_its_own_nodes() -> None:
    mixed = serve({**APART, "rate": 4.0, "prefill_system": "dgx-h100"}, 300.0, "dgx-a100")
    under, both = kinds(mixed), drawn(mixed).kinds
    alike = serve({**APART, "rate": 4.0}, 300.0)
    assert float(under.readers.mean) == pytest.approx(float(kinds(alike).readers.mean), rel=0.02)
    assert both["prefill"].cluster.accelerator.name.startswith("H100")
    assert drawn(mixed).site == pytest.approx(sum(one.site for one in both.values()))


def test_a_batch_is_its_plans_each_by_itself() -> None:
    """In any order, alike ones among them, and beside plans that read their own prompts."""
    model, cluster, known = catalog.model("llama3-8b"), catalog.system("dgx-h100"), load("default")
    single = serve({**APART, "concurrency": 8}).batch
    workers, batch = np.array([1.0, 2.0, 1.0, 3.0]), np.array([8.0, 8.0, 8.0, 40.0])
    plan = replace(single.plan, prefill_workers=workers, batch=batch)
    found = predict_inference(model, cluster, plan, known)
    for given in (Conditions(), Conditions(limit=350.0)):
        under = serving_power(found, given)
        assert isinstance(under, PoweredApart)
        held = limited(found, under, given)
        for at in range(4):
            one = replace(plan, prefill_workers=workers[at], batch=batch[at])
            alone = predict_inference(model, cluster, one, known)
            mine = serving_power(alone, given)
            assert float(under.mean[at]) == pytest.approx(float(mine.mean), rel=1e-9)
            tpot = limited(alone, mine, given).latencies.tpot
            assert float(held.latencies.tpot[at]) == pytest.approx(float(tpot), rel=1e-9)
    some = replace(plan, prefill_workers=np.array([0.0, 2.0, 1.0, 0.0]))
    both = predict_inference(model, cluster, some, known)
    with pytest.raises(InputError, match="by themselves"):
        serving_power(both, Conditions())
    watts = serving_watts(both, Conditions())
    assert watts[1:3] == pytest.approx(serving_watts(found, Conditions())[1:3], rel=1e-9)


@pytest.mark.parametrize("limit", [None, 400.0])
def test_what_a_fleet_draws_at_each_load_is_the_prediction_at_that_rate(
    limit: float | None,
) -> None:
    """And what it carries is what searches say without a limit."""
    model, cluster, known = catalog.model("llama3-8b"), catalog.system("dgx-h100"), load("default")
    fields = {"input_len": (2000,), "output_len": (200,), "tp": (1,), "pp": (1,),
              "prefill_tp": (1,), "framework": ("vllm",)}  # fmt: skip
    promise = Promise(2.0, 0.03)
    (engine, *_) = (
        one for one in search_engines(model, [cluster], fields, promise, known, 15.0).engines
        if one.apart
    )  # fmt: skip
    loads = apart_loads(model, cluster, stack([engine.plan]), known)
    told = loads.capacity(promise, Conditions(limit=limit))
    assert told.drawn is not None
    workers = int(float(engine.plan.prefill_workers))
    assert workers == 1
    for rate in (0.05, 4.0) if limit is None else (4.0,):
        one = serve({**APART, "prefill_workers": workers, "rate": rate}, limit)
        power = float(np.interp(rate, told.drawn.rate[0], told.drawn.power[0]))
        assert power == pytest.approx(drawn(one).mean, rel=0.02)
    if limit is None:
        best = int(told.best(promise)[0])
        assert float(told.rate[0, best]) == pytest.approx(engine.rate, rel=0.03)
        for values, known_ in ((told.ttft[0], engine.curve[1]), (told.tpot[0], engine.curve[2])):
            same = np.interp(told.rate[0, :best], engine.curve[0], known_)
            assert values[:best] == pytest.approx(same, rel=0.03)


@pytest.mark.parametrize("conditions", [Conditions(), Conditions(limit=400.0, reading=250.0)])
def test_loads_of_a_batch_are_those_of_its_plans_each_by_itself(conditions: Conditions) -> None:
    model, cluster, known = catalog.model("llama3-8b"), catalog.system("dgx-h100"), load("default")
    single = serve({**APART, "concurrency": 8}).batch.plan
    plans = [
        replace(single, batch=np.inf, tp=tp, prefill_workers=workers, prefill_tp=reads)
        for tp, workers, reads in ((1.0, 1.0, 1.0), (2.0, 3.0, 1.0), (1.0, 2.0, 2.0))
    ]
    given = (Promise(2.0, 0.03), conditions)
    told = apart_loads(model, cluster, stack(plans), known).capacity(*given)
    for row, plan in enumerate(plans):
        alone = apart_loads(model, cluster, stack([plan]), known).capacity(*given)
        assert told.drawn is not None
        assert alone.drawn is not None
        for name in ("rate", "ttft", "tpot", "running", "used"):
            mine, others = getattr(told, name)[row], getattr(alone, name)[0]
            assert mine == pytest.approx(others, rel=1e-9), name
        for name in ("rate", "power", "prompts", "passes"):
            mine, others = getattr(told.drawn, name)[row], getattr(alone.drawn, name)[0]
            assert mine == pytest.approx(others, rel=1e-9), name


@pytest.mark.parametrize("given", [{"rate": 4.0}, {"concurrency": 8}])
def test_each_kind_is_held_by_its_own_limit(given: dict[str, Any]) -> None:
    """First tokens as under that of the workers, the others as under that of the rest."""
    both = serve({**APART, **given, "prefill_power_limit": 450.0}, 250.0)
    reads, decodes = (serve({**APART, **given}, limit) for limit in (450.0, 250.0))
    assert both.tpot.value == pytest.approx(decodes.tpot.value, rel=0.01)
    assert both.ttft.value == pytest.approx(reads.ttft.value, rel=0.01)
    assert both.ttft.value < 0.9 * decodes.ttft.value
    assert both.tpot.value > 1.05 * reads.tpot.value
    assert 255.0 < float(kinds(both).readers.instant) <= 450.0
    assert float(kinds(both).decoders.instant) <= 250.0


def test_one_limit_of_both_kinds_is_twice_the_same() -> None:
    one, two = (
        serve({**APART, "rate": 4.0, **limits})
        for limits in ({"power_limit": 300.0}, {"power_limit": 300.0, "prefill_power_limit": 300.0})
    )
    assert drawn(one).to_dict() == drawn(two).to_dict()
    assert one.ttft.value == two.ttft.value


def test_a_limit_of_what_nobody_has_changes_nothing() -> None:
    plain, held = (
        serve({**ONE, "rate": 4.0, **limits}) for limits in ({}, {"prefill_power_limit": 200.0})
    )
    assert drawn(plain).to_dict() == drawn(held).to_dict()
    assert plain.e2e.value == held.e2e.value
    assert held.request.idle == ("prefill_power_limit (needs prefill_workers)",)


def test_a_grid_tells_what_both_kinds_of_plans_draw() -> None:
    single = serve({**APART, "concurrency": 8}).batch
    plan = replace(single.plan, prefill_workers=np.array([0.0, 1.0]))
    columns = serve_columns(single.model, single.cluster, plan, single.calibration)
    alone = drawn(serve({**ONE, "concurrency": 8})).mean
    assert columns["drawn_w"] == pytest.approx(
        [alone, drawn(serve({**APART, "concurrency": 8})).mean], rel=0.01
    )
    each = columns["drawn_w"] * columns["gpus"] / columns["output_tokens_per_s"]
    assert columns["energy_per_token_j"] == pytest.approx(each)


def test_a_line_for_each_kind_and_a_column_for_each_limit(cli: Any) -> None:
    line = (
        "predict infer --model llama3-8b --system dgx-h100 --tp 1 --concurrency 8 --input-len 500 "
        "--output-len 50 --set prefill_workers=2 --set prefill_tp=1"
    ).split()
    status, out, _ = cli(*line)
    assert status == 0
    assert "2 read prompts: " in out
    assert "1 decode: " in out
    assert "J/token" in cli(*line, "--power-limit", "600,300")[1]
    assert "J/token" not in cli(*line, "--input-len", "500,600")[1]
    refused = cli(*line, "--power-limit", "100")
    assert refused[0] == 2
    assert refused[2].count("\n") == 1
