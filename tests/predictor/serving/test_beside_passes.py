"""What requests take beside the passes that read and decode them, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.serving.latency import latencies
from predictor.serving.pass_times import decode_time, prompt_time, told
from tests.predictor.serving.counted import OWN, plan, work


def test_a_last_token_that_is_decoded_costs_a_pass_and_is_not_read() -> None:
    """Of a prompt of one token nothing is read; of a longer one, one token less."""
    alone = work(static=1.0)
    step, prompts = float(decode_time(alone, OWN)), float(prompt_time(alone, OWN))
    for length in (1.0, 2.0, 1000.0):
        found = latencies(work(static=1.0, new_tokens=length, answered=1.0), OWN)
        assert float(found.ttft) == pytest.approx(step + prompts * (length - 1.0) / length)
        assert float(found.tpot) == pytest.approx(step)
    under_load = [float(latencies(work(answered=x), OWN).ttft) for x in (0.0, 1.0)]
    assert under_load[1] > under_load[0]


def test_a_session_is_made_once_a_batch() -> None:
    kept, made = (latencies(work(static=1.0, making=m), OWN) for m in (0.0, 0.25))
    assert float(made.ttft - kept.ttft) == pytest.approx(0.25)
    assert float(made.e2e - kept.e2e) == pytest.approx(0.25)
    assert float(made.tpot) == pytest.approx(float(kept.tpot))


def test_workers_are_told_all_tokens_each_and_a_lone_one_nothing() -> None:
    def time(tp: float, context: float, control: str = "pickled") -> float:
        return float(told(replace(plan(), tp=tp, control=control), context))

    assert time(1, 1000) == time(8, 1000, "broadcast") == 0.0
    assert time(8, 1000) == pytest.approx(2 * time(4, 1000)) == pytest.approx(2 * time(8, 500))
