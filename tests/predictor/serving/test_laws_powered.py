"""What passes of serving compute, read and send, counted by hand; how often a second has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.arrays import mapped, take
from predictor.plans import ServingPlan
from predictor.power import Conditions, Powered
from predictor.serving import predict_inference, serving_activity, serving_power
from predictor.serving.activities import EXCHANGE
from predictor.serving.joint import repeated
from predictor.serving.pass_works import decode_work, prompt_work
from predictor.serving.prediction import InferencePrediction
from tests.predictor.serving.test_serving_power import CALIBRATION, served

DENSE = served("llama3-8b", "bf16", 1)
"""32 layers of 4096 wide, eight heads of 128 for keys; prompts of 200 tokens, answers of 400."""

PAIR = served("llama3-8b", "bf16", 2)


def other(found: InferencePrediction, **fields: object) -> InferencePrediction:
    plan = replace(found.plan, **fields)
    return predict_inference(found.model, found.cluster, plan, CALIBRATION)


def test_stages_share_a_pass() -> None:
    """Each has half of it, of its collectives and of what is widened, too; what part of its time
    follows the clock does not change."""
    for one in (PAIR, served("llama3-8b", "int4_wo", 2)):
        two = replace(one, plan=replace(one.plan, pp=2.0))
        whole, half = decode_work(one, 4.0), decode_work(two, 4.0)
        for name in ("flop", "bytes", "widened"):
            own, part = (float(getattr(work, name)) for work in (whole, half))
            assert part == pytest.approx(0.5 * own), name
        assert float(half.core) == pytest.approx(float(whole.core))


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_rank_sends_what_a_ring_does(gpus: int) -> None:
    """Two all-reduces a layer, of 16-bit numbers: 2 (n - 1) / n of their bytes; logits beside
    them, of 128,256 numbers a token."""
    found = served("llama3-8b", "bf16", gpus)
    sums = 2 * 32 * 4096 * 2 * 2 * (gpus - 1) / gpus
    for tokens in (1.0, 16.0):
        sent = float(decode_work(found, tokens).link) / tokens
        assert sums <= sent <= sums + 4 * 128256 + 2 * 2 * 4096
    # Of prompts that are read together each has its own part.
    sent = float(np.max(prompt_work(found).link))
    assert 200 * sums <= sent <= 200 * (sums + 2 * 2 * 4096) + 4 * 128256
    assert float(np.max(found.work.together)) > 1.0


def test_the_part_that_follows_the_clock_is_that_of_arithmetic() -> None:
    """Of both ideal times: less than a twentieth for one token, which reads all weights; most of it
    for long prompts; as much as memory where each takes as long."""
    device = DENSE.cluster.accelerator
    for work in (decode_work(DENSE, 1.0), decode_work(DENSE, 300.0), prompt_work(DENSE)):
        compute = float(work.flop) / float(device.peak["bf16"])
        memory = float(work.bytes) / float(device.bandwidth)
        assert float(work.core) == pytest.approx(compute / (compute + memory))
    assert float(decode_work(DENSE, 1.0).core) < 0.05 < 0.5 < float(prompt_work(DENSE).core)


def test_a_sequence_reads_its_cache_at_its_mean_length() -> None:
    """400 tokens: a prompt and half of its answer; keys and values of 16 bits."""
    more = float(decode_work(DENSE, 9.0).bytes - decode_work(DENSE, 1.0).bytes) / 8.0
    cache = 400 * 32 * 2 * 8 * 128 * 2
    assert cache < more < 1.3 * cache  # with what the layers read and write of it


def test_a_prompt_is_computed_in_parts_as_it_is_whole() -> None:
    """The second half of 16,000 tokens behind the first, which is cached: both add up to all."""
    whole = replace(DENSE, plan=replace(DENSE.plan, input_len=16000.0))
    first = replace(DENSE, plan=replace(DENSE.plan, input_len=8000.0))
    second = replace(DENSE, plan=replace(whole.plan, cached=0.5))
    parts = float(prompt_work(first).flop) + float(prompt_work(second).flop)
    assert parts == pytest.approx(float(prompt_work(whole).flop), rel=0.01)
    assert float(prompt_work(second).flop) > 1.1 * float(prompt_work(first).flop)


@pytest.mark.parametrize("dp", [1.0, 2.0])
@pytest.mark.parametrize("fields", [{}, {"output_len": 2.0}, {"drafted": 2.0, "acceptance": 0.6}])
def test_every_token_but_the_first_is_made_in_a_pass(dp: float, fields: dict[str, float]) -> None:
    """Of each replica: requests x (answer - 1) tokens a second, as many as passes have sequences
    and these keep of their guesses; rows of its products are all that is guessed."""
    found = other(DENSE, dp=dp, batch=32.0 * dp, **fields)
    for rate in (None, 0.5 * float(found.output_tokens_per_s)):
        told = serving_activity(found, rate)
        whole = float(found.output_tokens_per_s) if rate is None else rate
        answer = float(found.plan.output_len)
        assert float(told.prompts) == pytest.approx(whole / answer / dp)
        sequences = float(np.max(found.work.sequences))
        made = float(told.passes) * sequences * float(found.plan.tokens_per_pass)
        assert made == pytest.approx(float(told.prompts) * (answer - 1.0))
        rows = float(np.max(told.activity["decode"].rows))
        assert rows == pytest.approx(sequences * (1.0 + float(found.plan.drafted)))
        pass_ = decode_work(found, found.work.sequences)
        # All others have prompts as well.
        alone = float(told.passes) - float(told.pieces["prefill"])
        flop = float(np.max(told.activity["decode"].flop))
        assert flop == pytest.approx(max(alone, 0.0) * float(np.max(pass_.flop)), abs=1e6)


def test_ranks_talk_for_as_long_as_collectives_of_all_passes_take() -> None:
    told = serving_activity(PAIR)
    each = float(PAIR.parameters.communication) * float(np.max(PAIR.work.decoding.communication))
    share, rest = (float(np.max(told.share[f"decode{part}"])) for part in (f".{EXCHANGE}", ""))
    assert share / (share + rest) == pytest.approx(each / float(PAIR.latencies.step))
    assert 0.0 < share < rest


def test_an_engine_that_is_always_full_is_never_idle() -> None:
    """Requests that wait leave no more time than clients that follow each other."""
    for full in (DENSE, other(DENSE, batch=np.inf)):
        told = serving_activity(full)
        assert float(np.max(told.share["idle"])) == pytest.approx(0.0, abs=1e-9)
        assert float(np.max(told.activity["decode"].halted)) == pytest.approx(0.0, abs=1e-3)


def test_replicas_that_read_padding_compute_it() -> None:
    """Of a mixture on two replicas that meet: prompts of one are computed by the other as well."""
    found = other(served("mixtral-8x7b", "bf16", 4), tp=2.0, dp=2.0, ep=4.0,
                  replica_passes="padded")  # fmt: skip
    times = float(np.max(repeated(found.work)))
    assert times > 1.0
    told = serving_activity(found)
    each = float(np.max(prompt_work(found).flop))
    decoded = float(np.max(decode_work(found, found.work.sequences).flop))
    flop = float(np.max(told.activity["prefill.beside"].flop))
    flop -= float(told.pieces["prefill"]) * decoded
    assert flop == pytest.approx(float(told.prompts) * times * each, rel=0.01)


@pytest.mark.parametrize("limit", [None, 350.0, np.array([300.0, 350.0, 300.0, 300.0, 650.0])])
def test_alike_plans_of_a_batch_draw_what_each_draws_alone(limit: float | np.ndarray) -> None:
    """To the last bit, whatever shape the batch has; plans differ where their limits do."""
    conditions = Conditions(limit=limit)
    plan = mapped(DENSE.plan, lambda value: np.full(5, value))
    plan = replace(plan, input_len=np.array([200.0, 900.0, 200.0, 200.0, 900.0]))

    def drawn(of: ServingPlan, under: Conditions) -> Powered:
        return serving_power(predict_inference(DENSE.model, DENSE.cluster, of, CALIBRATION), under)

    together = drawn(plan, conditions)
    column = drawn(mapped(plan, lambda value: value[:, None]), Conditions())
    for place in range(5):
        own = take(conditions, np.array([place])) if np.ndim(limit) else conditions
        alone = drawn(take(plan, np.array([place])), own)
        for name in ("mean", "energy", "clock", "temperature", "waited", "throttled"):
            ours, theirs = (getattr(one, name) for one in (together, alone))
            assert np.array_equal(ours[..., place], theirs[..., 0]), name
        for ours, theirs in zip(together.phases, alone.phases, strict=True):
            assert np.array_equal(np.broadcast_to(ours.power, 5)[place], theirs.power[0])
        if limit is None:
            assert np.array_equal(column.mean[place, 0], alone.mean[0])
