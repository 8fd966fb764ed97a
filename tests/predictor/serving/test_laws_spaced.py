"""First tokens of a batch whose clients send one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.catalog import ServingPlanSpec, load, parse
from predictor.serving import complete_serving, predict_inference
from predictor.serving.pass_times import DeviceTime, Work
from predictor.serving.spaced import spaced

KNOWN = load("default")
NONE = DeviceTime(0.0, 0.0, 0.0)
WORK = Work(
    prompts=NONE, together=np.float64(16.0), decoding=NONE, captured=0.0, sequences=16.0, fill=0.0,
    running=16.0, clients=16.0, static=1.0, new_tokens=128.0, output_len=128.0, chunk=8192.0,
    synchrony=0.0, answered=1.0,
)  # fmt: skip


def one_by_one(count: int, gap: float, each: float, answer: float) -> float:
    """The same by walking through the readings: what is there is read together."""
    now, taken, waited = 0.0, 0, 0.0
    while taken < count:
        now = max(now, taken * gap)
        there = min(int(now / gap * (1 + 1e-9)) + 1, count)
        now += (there - taken) * each + answer
        waited += sum(now - i * gap for i in range(taken, there))
        taken = there
    return waited / count - answer


def test_a_batch_that_is_handed_over_is_read_as_one() -> None:
    assert float(spaced(WORK, 0.16, 0.02)) == 0.16


def test_the_first_is_read_alone_and_the_others_after_it() -> None:
    """Sixteen of 10 ms each, 1 ms apart, with passes of 20 ms: the first after 30 ms, the others
    after another 150 + 20, less what they were sent later (1 to 15 ms, 8 on average)."""
    found = float(spaced(replace(WORK, spacing=1e-3), 0.16, 0.02))
    assert found + 0.02 == pytest.approx((0.03 + 15 * (0.2 - 0.008)) / 16)


@pytest.mark.parametrize(
    ("count", "gap", "each", "answer"),
    [(1, 1e-3, 1e-2, 0.02), (64, 1e-3, 1e-2, 0.02), (64, 2e-3, 5e-3, 0.0), (8, 0.1, 0.01, 0.0),
     (32, 1e-3, 0.0, 0.02), (64, 1e-3, 8e-3, 0.01), (200, 0.1, 0.02, 0.0)],
)  # fmt: skip
def test_readings_follow_each_other_until_all_are_read(count, gap, each, answer) -> None:
    work = replace(WORK, together=np.float64(count), spacing=gap, answered=float(answer > 0))
    expected = one_by_one(count, gap, each, answer)
    assert float(spaced(work, count * each, answer)) == pytest.approx(expected, rel=1e-9)


def test_batches_of_plans_are_each_their_own() -> None:
    """One of the two is handed over."""
    work = replace(WORK, together=np.array([16.0, 16.0]), spacing=np.array([0.0, 1e-3]))
    found = spaced(work, np.array([0.16, 0.16]), 0.02)
    assert found[0] == 0.16
    assert found[1] == pytest.approx(float(spaced(replace(WORK, spacing=1e-3), 0.16, 0.02)))


def test_threads_of_lmdeploy_s_benchmark_wait_for_the_pass_of_the_first() -> None:
    """Sixteen that ask for one token after another, 1 ms apart: 15 of 16 meet a pass under way,
    less what they were sent later."""

    def first(**more):
        stated = {
            "model": "llama2-13b", "system": "dgx-a100", "gpus": 1, "batch": 16, "input_len": 1,
            "output_len": 128, "framework": "lmdeploy", "version": "0.1.0", **more,
        }  # fmt: skip
        asked = complete_serving(parse(ServingPlanSpec, stated, "test"), KNOWN.run)
        found = predict_inference(asked.model, asked.cluster, asked.plan, KNOWN).latencies
        return float(found.ttft), float(found.step)

    (at_once, step), (apart, _) = first(), first(spacing_s=1e-3)
    assert apart - at_once == pytest.approx(15 / 16 * (step - 8e-3), rel=0.01)
