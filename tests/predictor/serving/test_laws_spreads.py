"""How unsure latencies are: of whom a spread is, and what kernels' own add by their share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.plans import ServingPlan
from predictor.serving.latency import latencies
from predictor.serving.parts import TERMS, Pass
from predictor.serving.pass_times import prompt_time
from predictor.serving.prediction import predict_inference
from predictor.serving.spreads import (
    LATE,
    before_the_last,
    load_shares,
    reading_share,
    spread_of,
    spreads,
)
from predictor.timing.engines import (
    EARLY_SPREADS,
    KERNELS_SHARE,
    LATE_SPREADS,
    UNNAMED_SIGMA,
    UNNAMED_SPREAD,
    EngineParameters,
    ServingParameters,
)
from tests.predictor.serving.counted import OWN, work

KINDS = ("static", "serving", "saturated", "prefill")
METRICS = ("ttft", "tpot", "e2e", "throughput")
PAIRS = [f"{metric}.{kind}" for metric in METRICS for kind in KINDS]
TOLD = ServingParameters(sigma={pair: 0.1 + 0.01 * place for place, pair in enumerate(PAIRS)})
CASES = {
    "static": {"static": 1.0},
    "serving": {},
    "saturated": {"clients": math.inf},
    "prefill": {"static": 1.0, "output_len": 1.0},
    "two": {"static": 1.0, "output_len": 2.0},
}


def measured(spread: Any) -> np.ndarray:
    """A spread of kernels that were measured on the accelerator itself, and none of others'."""
    return np.array([float(spread), 0.0])


SURE = measured(0.0)


def sigma(metric: str, prompts: float = 0.0, decoding: float = 0.0, **fields: float) -> float:
    made = work(**fields)
    return float(
        spreads(
            measured(prompts), measured(decoding), made, latencies(made, OWN), OWN, metric, TOLD
        )
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_spread_is_that_of_its_metric_and_kind(metric: str, kind: str) -> None:
    """Only the first token of a request of one is that of a prompt by itself; first tokens under
    load have one spread, whoever sends."""
    first = metric == "ttft"
    own = {"prefill": "prefill" if first else "static", "saturated": "serving" if first else kind}
    named = TOLD.sigma[f"{metric}.{own.get(kind, kind)}"]
    assert sigma(metric, **CASES[kind]) == pytest.approx(named)


def test_two_tokens_are_a_static_batch_and_kernels_are_no_more_than_a_pass() -> None:
    assert sigma("ttft", **CASES["two"]) == pytest.approx(TOLD.sigma["ttft.static"])
    most = math.hypot(1.0, TOLD.sigma["tpot.static"])
    assert sigma("tpot", 0.0, 1e9, **CASES["two"]) == pytest.approx(most)


def test_kernels_count_by_their_share_of_a_latency() -> None:
    """Kernels of a pass that are all of it, and off by a third of it: that, beside the run's."""
    bare = EngineParameters(decode=2.0, prefill=3.0, gap=0.0, launch=0.0, step=0.0, sequence=0.0,
                            request=0.0)  # fmt: skip
    made = work(static=1.0)
    found = latencies(made, bare)

    def of(metric: str, prompts: float, decoding: float) -> float:
        return float(
            spreads(measured(prompts), measured(decoding), made, found, bare, metric, TOLD)
        )

    assert of("tpot", 9.0, float(found.step) / 6.0) == pytest.approx(
        math.hypot(2.0 / 6.0, TOLD.sigma["tpot.static"])
    )
    half = float(prompt_time(made, bare)) / 6.0
    assert of("ttft", half, 0.0) == pytest.approx(math.hypot(0.5, TOLD.sigma["ttft.static"]))
    whole = of("ttft", 1e9, 0.0)  # no more than all of it
    assert whole == pytest.approx(math.hypot(1.0, TOLD.sigma["ttft.static"]))
    share = 1.0 - float((found.ttft + found.queue) / found.e2e)
    assert 0.0 < share < 1.0
    both = math.hypot(1.0 - share, share / 3.0)
    assert of("e2e", 1e9, float(found.step) / 6.0) == pytest.approx(
        math.hypot(both, TOLD.sigma["e2e.static"])
    )


def test_of_the_kernels_spread_as_much_stands_as_is_fitted() -> None:
    """All of it unless something is; whether the engine is named or not."""
    made = work(static=1.0)
    found = latencies(made, OWN)
    half = ServingParameters(sigma={**TOLD.sigma, f"{KERNELS_SHARE}.tpot": 0.5})

    def of(known: ServingParameters, decoding: float) -> float:
        return float(spreads(SURE, measured(decoding), made, found, OWN, "tpot", known))

    run = TOLD.sigma["tpot.static"]
    third = float(found.step) / OWN.decode / 3.0
    assert of(TOLD, third) == pytest.approx(math.hypot(1.0 / 3.0, run))
    assert of(half, third) == pytest.approx(math.hypot(0.5 / 3.0, run))
    ones = measured(1.0)
    assert half.unnamed().kernels("tpot", ones) == half.unsaid().kernels("tpot", ones) == 0.5
    assert half.kernels("e2e", ones) == 1.0


def test_first_tokens_under_load_are_less_sure_the_more_prompts_are_read() -> None:
    told = ServingParameters(sigma=dict(zip(EARLY_SPREADS, (0.2, 0.5, 0.8), strict=True)))
    for used, expected in ((0.0, 0.2), (0.6, math.hypot(0.2, 0.3)), (1.0, math.hypot(0.2, 0.5)),
                           (4.0, math.hypot(0.2, 0.5))):  # fmt: skip
        assert float(told.first_token((used, 0.0), late=False)) == pytest.approx(expected)
    for queued, expected in ((0.5, math.hypot(0.2, 0.4)), (3.0, math.hypot(0.2, 0.8))):
        assert float(told.first_token((0.0, queued), late=False)) == pytest.approx(expected)


def test_one_client_waits_for_nobody_else_s_prompts() -> None:
    """However long its own are: with 120,000 tokens the late end was thirteen times the value."""
    alone = work(running=1.0, clients=1.0)
    found = latencies(alone, OWN)
    assert float(reading_share(alone, found)) == 0.0
    sigmas = dict(zip((*EARLY_SPREADS, *LATE_SPREADS), (0.2, 0.5, 0.8, 0.3, 2.0, 0.1), strict=True))
    told = ServingParameters(sigma=sigmas)
    assert float(spreads(SURE, SURE, alone, found, OWN, LATE, told)) == pytest.approx(0.3)
    assert float(spreads(SURE, SURE, alone, found, OWN, "ttft", told)) == pytest.approx(0.2)


def test_who_waits_for_room_waits_as_long_as_nobody_is_sure_of() -> None:
    """Of eight clients of whom four run, half of a request's life is a wait."""
    assert float(load_shares(work(), latencies(work(), OWN))[1]) == 0.0
    made = work(running=4.0, clients=8.0)
    found = latencies(made, OWN)
    waited = float(load_shares(made, found)[1])
    assert waited == pytest.approx(float(found.queue / found.ttft))
    assert 0.5 < waited < 1.0
    names = (*EARLY_SPREADS, *LATE_SPREADS)
    still, queued = (
        ServingParameters(sigma=dict(zip(names, sigmas, strict=True)))
        for sigmas in ((0.2, 0.0, 0.0) * 2, (0.2, 0.0, 0.6) * 2)
    )
    for metric in ("ttft", LATE):
        one, more = (
            float(spreads(SURE, SURE, made, found, OWN, metric, told)) for told in (still, queued)
        )
        assert more == pytest.approx(math.hypot(one, 0.6 * waited))


def test_who_names_no_engine_is_less_sure() -> None:
    """By what is fitted, else by what is documented; nothing where no spread is fitted. What load
    adds stays as it is."""
    names = (*EARLY_SPREADS, *LATE_SPREADS)
    sigma = {**TOLD.sigma, **dict(zip(names, (0.1, 0.5, 0.6) * 2, strict=True))}
    fitted = ServingParameters(sigma={**sigma, UNNAMED_SPREAD: 0.4})
    for known, more in ((fitted, 0.4), (ServingParameters(sigma=sigma), UNNAMED_SIGMA)):
        wide = known.unnamed()
        for pair in PAIRS:
            metric, kind = pair.split(".")
            expected = math.hypot(known.spread(metric, kind), more)
            assert wide.spread(metric, kind) == pytest.approx(expected)
        for late in (False, True):
            told = float(wide.first_token((0.7, 0.2), late))
            assert told == pytest.approx(
                math.hypot(float(known.first_token((0.7, 0.2), late)), more)
            )
    assert ServingParameters().unnamed() == ServingParameters()


def test_predictions_of_no_named_engine_are_wider_by_that() -> None:
    known = load("default")
    sure = replace(known, serving=replace(
        known.serving, sigma={**known.serving.sigma, UNNAMED_SPREAD: 0.0}))  # fmt: skip
    unsure = replace(known, serving=replace(
        known.serving, sigma={**known.serving.sigma, UNNAMED_SPREAD: 0.2}))  # fmt: skip
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    for framework, more in (("neutral", 0.2), ("vllm", 0.0)):
        plan = ServingPlan(batch=8.0, input_len=512.0, output_len=64.0, serving=1.0,
                           framework=framework)  # fmt: skip
        one, other = (
            predict_inference(model, cluster, plan, each).sigma for each in (sure, unsure)
        )
        for metric, value in one.items():
            assert float(other[metric]) == pytest.approx(math.hypot(float(value), more)), metric


def test_the_spread_of_a_pass_is_the_root_of_its_families_squares() -> None:
    """3 s sure to a tenth and 4 s sure to a tenth, which err by themselves: .5 s; what other
    accelerators' kernels tell of is apart."""
    nothing = {name: np.zeros(()) for name in TERMS}
    families = {
        "gemm/bf16/A100": (np.asarray(3.0), np.asarray(0.1)),
        "norm/any/A100": (np.asarray(4.0), np.asarray(0.1)),
        "gemm/int8/*ampere": (np.asarray(2.0), np.asarray(0.2)),
    }
    found = spread_of(Pass(nothing, np.zeros(()), families))
    assert found.tolist() == pytest.approx([0.5, 0.4])
    assert spread_of(Pass(nothing, np.zeros(()), {})).tolist() == [0.0, 0.0]


def test_a_share_of_the_measured_kernels_spread_stands_beside_that_of_runs() -> None:
    """What was measured on other accelerators alone stands whole."""
    told = ServingParameters(sigma={"kernels.tpot": 0.25})
    both = np.array([[0.4, 0.0], [0.0, 0.3]])
    assert told.kernels("tpot", both).tolist() == pytest.approx([0.1, 0.3])
    assert told.kernels("e2e", both).tolist() == pytest.approx([0.4, 0.3])


def test_a_first_token_that_comes_late_is_as_unsure_as_late_ones_are() -> None:
    made = work()
    found = latencies(made, OWN)
    reading = float(reading_share(made, found))
    assert 0.0 < reading < 1.0
    others = 1.0 - 1.0 / float(made.clients)
    assert reading == pytest.approx(others * float(found.requests_per_s) * float(found.prompt))
    names = (*EARLY_SPREADS, *LATE_SPREADS)
    told = ServingParameters(sigma=dict(zip(names, (0.2, 0.5, 0.1, 0.3, 0.9, 0.1), strict=True)))
    for metric, still, loaded in (("ttft", 0.2, 0.5), (LATE, 0.3, 0.9)):
        spread = float(spreads(SURE, SURE, made, found, OWN, metric, told))
        assert spread == pytest.approx(math.hypot(still, loaded * reading))
    often = replace(found, requests_per_s=np.asarray(1e6))
    assert float(reading_share(made, often)) == others
    endless = replace(made, clients=np.inf)
    assert float(reading_share(endless, often)) == 1.0
    waiting = replace(found, queue=0.3 * found.e2e, ttft=0.2 * found.e2e, e2e=found.e2e)
    half = spreads(SURE, measured(found.step / OWN.decode), made, waiting, OWN, "e2e", TOLD)
    assert float(half) == pytest.approx(math.hypot(0.5, TOLD.sigma["e2e.serving"]))


def test_no_first_token_comes_after_the_last() -> None:
    """512 clients of two workers that read prompts apart: the first token at 184 s at worst, of
    requests that took 22 at worst."""
    made = work(clients=512.0)
    found, q, late = latencies(made, OWN), 1.28, np.array(2.5)
    narrow = dict.fromkeys(METRICS, np.array(0.2))
    held = before_the_last({**narrow, LATE: late}, found, made.output_len, q)
    assert {name: held[name] for name in METRICS} == narrow
    last = float(found.e2e) * math.exp(q * 0.2)
    others = (float(made.output_len) - 1.0) * float(found.tpot) * math.exp(-q * 0.2)
    first = float(found.ttft) * math.exp(q * float(held[LATE]))
    assert first == pytest.approx(min(last - others, float(found.ttft) * math.exp(q * 2.5)))
    assert first < float(found.ttft) * math.exp(q * 2.5)
    # Where the others leave nothing, as sure as of one that comes early; a sure one stays as it is.
    tight = before_the_last(
        {**narrow, LATE: late, "ttft": np.array(3.0)}, found, made.output_len, q
    )
    assert float(tight[LATE]) == 2.5
    sure = before_the_last({**narrow, LATE: np.array(0.01)}, found, made.output_len, q)
    assert float(sure[LATE]) == 0.01


def test_predicted_first_tokens_are_bounded_by_their_requests() -> None:
    plan = ServingPlan(batch=512.0, input_len=1024.0, output_len=512.0, serving=1.0, tp=1.0,
                       framework="vllm", era="2026-10")  # fmt: skip
    node = catalog.system("DGX-H100")
    found = predict_inference(catalog.model("llama3-8b"), node, plan, load("default"))
    first = found.interval("ttft", found.latencies.ttft)[1]
    last = found.interval("e2e", found.latencies.e2e)[1]
    between = found.interval("tpot", found.latencies.tpot)[0]
    assert float(first) <= float(last - 511.0 * between) * (1.0 + 1e-9)
