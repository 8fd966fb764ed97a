"""What is offered first keeps its promise when its requests are served one by one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.serving import one_by_one
from reckon.verbs import finalists

Cli = Callable[..., tuple[int, str, str]]

INFER = ["plan", "infer", "--model", "llama3-8b", "--system", "dgx-h100", "--input-len", "1024",
         "--output-len", "256", "--ttft-ms", "300", "--tpot-ms", "15", "--rate", "30",
         "--pp", "1", "--set", "prefill_workers=0"]  # fmt: skip

GRID = [
    *itertools.product([("llama3-8b", "dgx-h100")], [1024, 4096], [5.0, 60.0], [0.3, 0.8], [0.02]),
    (("llama3-70b", "dgx-h200"), 1024, 20.0, 1.0, 0.04),
    (("llama3-70b", "dgx-h100"), 4096, 10.0, 2.0, 0.03),
]


@pytest.mark.parametrize(("machine", "tokens", "rate", "ttft", "tpot"), GRID)
def test_the_first_fleet_keeps_its_promise_one_by_one(machine, tokens, rate, ttft, tpot):
    model, system = machine
    plan = {"input_len": tokens, "output_len": 256, "precision": "fp8", "pp": 1}
    found = reckon.search_infer(model, system, plan, rate, ttft=ttft, tpot=tpot)
    best = found.fleets[0]
    served = one_by_one(
        catalog.model(model),
        best.engine.cluster,
        best.engine.plan,
        load("default"),
        4000,
        rate=rate / best.count,
    )
    # Other requests than those that it was chosen by: a tenth of leeway for chance.
    assert np.quantile(served.ttft, 0.9) <= 1.1 * ttft
    assert np.quantile(served.tpot, 0.9) <= 1.1 * tpot
    last = found.simulated
    dropped = [trial for trial in found.trials if trial.broken]
    assert last.fleet is best
    assert not last.broken
    assert last.figures["ttft_s_at_share"] <= ttft
    assert last.figures["tpot_s_at_share"] <= tpot
    for trial in dropped:
        assert trial.broken
        assert trial.fleet not in found.fleets
        # Of its kind, none was dropped that takes more than the best: they are tried in order.
        if trial.fleet.engine.apart == best.engine.apart:
            assert trial.fleet.gpus <= best.gpus
    if found.contrast is not None:
        assert [t.broken for t in found.trials if t.fleet is found.contrast.other] == [""]


def test_a_broken_fleet_comes_back_with_one_engine_more(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = cli(*INFER, "--json", "-")
    first = json.loads(out)
    true, calls = finalists.one_by_one, []

    def once(*arguments, **rest):
        calls.append(rest["rate"])
        if len(calls) == 1:
            raise InputError("the cache has room for 4096 tokens")
        return true(*arguments, **rest)

    monkeypatch.setattr(finalists, "one_by_one", once)
    status, out, _ = cli(*INFER, "--json", "-", "--top", "200")
    found = json.loads(out)
    assert status == 0
    assert [trial["kept"] for trial in found["finalists"]] == [False, True]
    assert "the cache has room for 4096 tokens" in found["finalists"][0]["broken"]
    lost, more = first["fleets"][0], []
    for fleet in found["fleets"]:
        if fleet["plan"] == lost["plan"]:
            more.append(fleet["engines"])
    assert more == [lost["engines"] + 1]
    calls.clear()
    _, out, _ = cli(*INFER, "--top", "1")
    assert "dropped, served so:" in out
    assert "cannot serve them as lengths vary: the cache has room for 4096 tokens" in out
    assert "2,000 requests served one by one by an engine of the first" in out


def test_no_fleet_is_offered_where_none_keeps_the_promise(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = finalists.one_by_one

    def late(*arguments, **rest):
        found = true(*arguments, **rest)
        return replace(found, first=found.first + 1.0, last=found.last + 1.0)

    monkeypatch.setattr(finalists, "one_by_one", late)
    status, out, err = cli(*INFER, "--simulate", "50", "--tp", "1,2", "--pp", "1")
    assert (status, out) == (2, "")
    assert "no fleet keeps the promise when its requests are served one by one" in err
    assert "to the first token instead of 300" in err


def test_without_a_promise_nothing_is_broken():
    plan = {"input_len": 512, "output_len": 64, "prefill_workers": 0}
    found = reckon.search_infer("llama3-8b", "dgx-h100", plan, 5.0, simulate=100)
    assert math.isinf(found.promise.ttft)
    assert [trial.broken for trial in found.trials] == [""]
    assert found.trials[0].requests == 100
