"""Iterations of rollouts and training: laws of how they share accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.search.post_training import BEHIND, IN_TURN, SHARED, Iteration, Rollouts, iterations
from predictor.training.completion import complete_training
from predictor.training.prediction import predict

KNOWN = load("default")
MODEL, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")
OF = Rollouts(prompts=32, samples=4, input_len=256, output_len=512, variation=0.8, batch=64)


def ways(gpus: int = 16, of: Rollouts = OF, **train: Any) -> list[Iteration]:
    return iterations(MODEL, DGX, gpus, of, {"tp": 1}, {"tp": 4, **train}, KNOWN)


@pytest.fixture(scope="module")
def found() -> list[Iteration]:
    return ways()


def test_times_are_sums_or_the_longer(found: list[Iteration]) -> None:
    assert {one.way for one in found} == {SHARED, IN_TURN, BEHIND}
    assert [one.time for one in found] == sorted(one.time for one in found)
    for one in found:
        both = one.rollout, one.training
        whole = max(both) if one.way == BEHIND else sum(both)
        assert one.time == pytest.approx(whole + one.weights)
        assert 0.0 <= one.idle < 1.0
        if one.way != SHARED:
            assert one.rollout_gpus + one.training_gpus <= 16
    assert next(one for one in found if one.way == SHARED).idle < 0.05


def test_training_is_that_of_its_plan(found: list[Iteration]) -> None:
    one = next(one for one in found if one.way == SHARED)
    fields = {"gpus": 16, "tp": 4, "pp": 1, "cp": 1, "global_batch": 64, "seq_len": 768,
              "learns_from": "grpo"}  # fmt: skip
    request = complete_training(
        parse(TrainingPlanSpec, fields, "test"), KNOWN.run, model=MODEL, cluster=DGX
    )
    step = float(predict(MODEL, DGX, request.plan, KNOWN).step_time)
    assert one.training == pytest.approx(2 * step)  # 128 answers, 64 a step


def test_more_engines_end_sooner_and_long_tails_later(found: list[Iteration]) -> None:
    split = sorted((one for one in found if one.way == BEHIND), key=lambda one: one.engines)
    assert split[-1].rollout <= split[0].rollout * 1.001
    alike = Rollouts(**{**{n: getattr(OF, n) for n in OF.__dataclass_fields__}, "variation": 0.01})
    even = next(one for one in ways(of=alike) if one.way == SHARED)
    own = next(one for one in found if one.way == SHARED)
    assert even.rollout < own.rollout
    assert even.tail < 0.1 * even.rollout < own.tail


def test_weights_are_sent_once_in_16_bits(found: list[Iteration]) -> None:
    """8.03e9 of them, over one adapter of 50 GB/s of an engine of one accelerator."""
    for one in found:
        assert one.weights == pytest.approx(2.0 * MODEL.parameters / 50e9)


def test_the_last_answer_ends_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten answers the last ends at 30 s; nine tenths have ended by 9 + 0.1 x 21 s."""

    class Ends:
        last = np.array([30.0, *range(1, 10)])

    monkeypatch.setattr("predictor.search.post_training.one_by_one", lambda *_, **__: Ends)
    one = next(one for one in ways() if one.way == SHARED)
    assert one.rollout == 30.0
    assert one.tail == pytest.approx(30.0 - (9.0 + 0.1 * 21.0))


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="hold no engine"):
        ways(gpus=2)


def test_the_command(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "rl.yaml"
    text = (
        "{model: llama3-8b, system: dgx-h100, gpus: 16, prompts: 8, samples: 4, input_len: 256, "
        "output_len: 128, variation: 0.8, batch: 16, serve: {tp: 1}, train: {tp: 4}}"
    )
    file.write_text(text)
    status, out, err = cli("predict", "rl", str(file))
    assert status == 0, err
    assert "best:" in out
    for old, new, message in (
        ("gpus: 16, ", "", "lacks gpus"),
        ("samples: 4", "samples: none", "is not a whole number"),
        ("batch: 16", "batch: 16, reward: 7", "the request has 'reward'"),
    ):
        file.write_text(text.replace(old, new))
        status, _, err = cli("predict", "rl", str(file))
        assert status == 2
        assert message in err


def test_epochs_share_what_was_worked_out_before_and_a_critic_learns_beside(
    found: list[Iteration],
) -> None:
    """Two epochs: twice the passes that learn, once those without gradients. A critic has no
    reference: one pass without gradients beside what learns."""
    once = next(one.training for one in found if one.way == SHARED)
    plain = next(one.training for one in ways(learns_from="tokens") if one.way == SHARED)
    twice, both = (
        next(one.training for one in ways(of=replace(OF, **own)) if one.way == SHARED)
        for own in ({"epochs": 2}, {"critic": True})
    )
    assert twice == pytest.approx(once + plain, rel=0.01)
    assert both - once == pytest.approx((once + plain) / 2.0, rel=0.01)
