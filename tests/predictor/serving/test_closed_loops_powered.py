"""What clients that follow each other let an engine draw: against requests one by one, each of
whose passes draws what its own kernels do, and laws of the passes that fill a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.arrays import mapped, take
from predictor.catalog import ServingPlanSpec, parse
from predictor.power import Conditions
from predictor.serving import (
    complete_serving,
    predict_inference,
    serving_activity,
    serving_power,
)
from predictor.serving.pass_times import decode_time
from predictor.serving.pass_works import decode_work, prompt_work
from predictor.serving.prediction import InferencePrediction
from predictor.serving.prompts import beside, full_share
from tests.predictor.serving.test_serving_power import CALIBRATION
from tests.predictor.serving.timeline import Board, sent


def closed(clients: int, prompt: int, answer: int, **fields: Any) -> InferencePrediction:
    given = {
        "model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "gpus": 1, "framework": "vllm",
        "concurrency": clients, "input_len": prompt, "output_len": answer, **fields,
    }  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, given, "test"), CALIBRATION.run)
    return predict_inference(found.model, found.cluster, found.plan, CALIBRATION)


def one_by_one(found: InferencePrediction, clients: int, given: Conditions) -> tuple[float, float]:
    """Mean power of a run without its ends [W], and the share of it in which prompts are read."""
    under, free = (serving_power(found, one) for one in (given, Conditions()))
    run = sent(Board(found, given, under, free), max(12 * clients, 100), None, clients)
    run.run()
    begins, lasts, power, prompts = np.array(run.logged).T
    kept = (begins > 0.15 * begins[-1]) & (begins < 0.85 * begins[-1])
    whole = lasts[kept].sum()
    reads = lasts[kept & (prompts > 0)].sum() / whole
    return float((lasts * power)[kept].sum() / whole), float(reads)


@pytest.mark.parametrize(
    ("clients", "prompt", "answer", "framework", "limit"),
    [
        (2, 4000, 100, "vllm", None), (8, 16000, 100, "vllm", None), (32, 4000, 100, "vllm", None),
        (32, 4000, 100, "vllm", 400.0), (32, 500, 60, "vllm", None),
        (64, 500, 100, "sglang", None), (16, 4000, 100, "tgi", None),
    ],
)  # fmt: skip
def test_passes_of_a_closed_loop_draw_what_passes_one_by_one_do(
    clients: int, prompt: int, answer: int, framework: str, limit: float | None
) -> None:
    """Within 2 %, and about as much of the time reads prompts (where these ride along, a mean over
    passes that decode lost 6 to 11 % of the power, the rest of the time being idle): 0.66 of it for
    0.58 where prompts are short and answers, too."""
    found, given = closed(clients, prompt, answer, framework=framework), Conditions(limit=limit)
    power, reads = one_by_one(found, clients, given)
    under = serving_power(found, given)
    assert float(under.mean) == pytest.approx(power, rel=0.02)
    if limit is None:
        time = {one.name: float(np.max(one.time)) for one in under.phases}
        assert time["prefill"] == pytest.approx(reads, abs=0.09)


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
@pytest.mark.parametrize(("clients", "prompt"), [(1, 300), (4, 16000), (64, 900)])
def test_what_a_second_multiplies_is_that_of_its_requests(
    framework: str, clients: int, prompt: int
) -> None:
    """However prompts share passes with each other and with what decodes."""
    found = closed(clients, prompt, 200, framework=framework)
    told = serving_activity(found)
    flop = sum(float(np.max(np.asarray(one.flop))) for one in told.activity.values())
    decoded = float(told.passes) * float(decode_work(found, found.work.sequences).flop)
    read = float(told.prompts) * float(np.max(prompt_work(found).flop))
    assert flop == pytest.approx(decoded + read, rel=0.03)
    assert sum(float(np.max(one)) for one in told.share.values()) == pytest.approx(1.0)
    assert float(np.max(told.activity["decode"].halted)) < 0.05


@pytest.mark.parametrize("clients", [8, 64])
def test_passes_over_prompts_take_their_time_beside_those_that_decode(clients: int) -> None:
    """A pass with prompts takes what the first adds, and of every other its share of a full one;
    1 - exp(-m) of the passes have any, of m prompts for each."""
    found = closed(clients, 1000, 100)
    told, work, own = serving_activity(found), found.work, found.parameters
    steps, reads = float(told.passes), float(told.pieces["prefill"])
    each = float(told.prompts) / steps
    assert reads / steps == pytest.approx(1.0 - np.exp(-each))
    step = float(decode_time(work, own))
    more = float(told.prompts) / reads - 1.0
    long = step + float(beside(work, own)) + more * own.mixing * float(full_share(work, own))
    shares = [float(np.max(told.share[name])) for name in ("prefill.beside", "decode")]
    assert shares[0] / shares[1] == pytest.approx(reads * long / ((steps - reads) * step))
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("clients", [1, 8, 64])
def test_a_rate_that_is_as_predicted_tells_nothing_new(clients: int) -> None:
    found = closed(clients, 2000, 100)
    own = serving_activity(found)
    told = serving_activity(found, float(found.output_tokens_per_s))
    for name, one in own.activity.items():
        for mine, others in zip(_numbers(one), _numbers(told.activity[name]), strict=True):
            assert mine == pytest.approx(others, rel=1e-9, abs=1e-12), name
    half = serving_activity(found, 0.5 * float(found.output_tokens_per_s))
    reads = "prefill" if clients == 1 else "prefill.beside"
    assert float(half.share[reads]) == pytest.approx(0.5 * float(own.share[reads]))
    assert float(np.max(half.activity["decode"].halted)) > 0.4


def _numbers(of: Any) -> list[float]:
    names = ("time", "flop", "bytes", "link", "rows", "padded", "halted", "core")
    return [float(np.max(np.asarray(getattr(of, name)))) for name in names]


def test_replicas_without_a_client_are_idle() -> None:
    """Two replicas, one client: each runs half of the time."""
    one, two = closed(1, 300, 100), closed(1, 300, 100, dp=2, gpus=2)
    assert float(two.work.running) == pytest.approx(0.5)
    alone, half = serving_activity(one), serving_activity(two)
    assert float(np.max(alone.share["idle"])) == pytest.approx(0.0, abs=1e-9)
    assert float(np.max(half.share["idle"])) == pytest.approx(0.5)
    assert float(half.prompts) == pytest.approx(0.5 * float(alone.prompts), rel=0.01)


def test_static_batches_and_clients_in_one_batch_of_plans_draw_what_each_draws_alone() -> None:
    found = closed(16, 1000, 100)
    plan = mapped(found.plan, lambda value: np.full(3, value))
    plan = replace(plan, serving=np.array([1.0, 0.0, 1.0]), batch=np.array([16.0, 16.0, 64.0]))

    def drawn(of: Any) -> Any:
        told = predict_inference(found.model, found.cluster, of, CALIBRATION)
        return serving_power(told, Conditions(limit=450.0))

    together = drawn(plan)
    for place in range(3):
        alone = drawn(take(plan, np.array([place])))
        assert together.mean[place] == pytest.approx(alone.mean[0], rel=1e-9)
        assert together.instant[place] == pytest.approx(alone.instant[0], rel=1e-9)
