"""What an accelerator does in a second of serving, as predicted and at a measured rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.catalog import (
    ServingPlanSpec,
    accelerator,
    load,
    parse,
    power_constants,
    power_setting,
)
from predictor.power import Conditions, demand, lengthened
from predictor.serving import (
    complete_serving,
    limited,
    power,
    predict_inference,
    serving_activity,
    serving_power,
)
from predictor.serving.activities import Passing, one_pass_each
from predictor.serving.pass_works import PassWork, decode_work, prompt_work
from predictor.serving.prediction import InferencePrediction

CALIBRATION = load("default")
CONSTANTS = power_constants(accelerator("H100-SXM5-80GB"))


def served(
    model: str, precision: str, gpus: int, accelerator: str = "H100-SXM5-80GB"
) -> InferencePrediction:
    fields = {
        "model": model, "accelerator": accelerator, "gpus": gpus, "tp": gpus,
        "precision": precision, "concurrency": 32, "input_len": 200, "output_len": 400,
        "framework": "vllm",
    }  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, fields, "test"), CALIBRATION.run)
    return predict_inference(found.model, found.cluster, found.plan, CALIBRATION)


def padded(found: InferencePrediction, rate: float | None) -> float:
    share = serving_activity(found, rate).activity["decode"].padded
    return float(np.asarray(share).ravel()[0])


def test_shares_of_a_second_add_up_to_it() -> None:
    found = served("llama3-8b", "bf16", 1)
    for rate in (None, 0.5 * float(found.output_tokens_per_s)):
        shares = serving_activity(found, rate).share
        assert np.isclose(sum(float(one) for one in shares.values()), 1.0)


def test_a_rate_beyond_what_passes_make_leaves_no_time_between_them() -> None:
    fields = {
        "model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "gpus": 1, "concurrency": 8,
        "input_len": 16000, "output_len": 2, "framework": "vllm", "version": "0.6.0",
    }  # fmt: skip
    found = complete_serving(parse(ServingPlanSpec, fields, "test"), CALIBRATION.run)
    told = serving_activity(
        predict_inference(found.model, found.cluster, found.plan, CALIBRATION), 1e6
    )
    assert sum(float(np.max(share)) for share in told.share.values()) == pytest.approx(1.0)
    assert float(np.max(told.share["prefill.beside"])) > 0.9
    assert all(float(np.max(one.halted)) < 0.01 for one in told.activity.values())


def test_only_experts_scaled_by_block_fill_time_that_nobody_foresaw_with_padding() -> None:
    mixture = served("qwen3-235b-a22b", "fp8_block", 8)
    rate = float(mixture.output_tokens_per_s)
    assert padded(mixture, None) == pytest.approx(0.0, abs=1e-12)
    half, quarter = padded(mixture, 0.5 * rate), padded(mixture, 0.25 * rate)
    assert 0.3 < half < quarter < 1.0
    # As much as was foreseen, or more, leaves next to nothing.
    assert padded(mixture, rate) < 0.1
    assert padded(mixture, 1.5 * rate) == pytest.approx(0.0, abs=1e-12)
    for other in (served("qwen3-235b-a22b", "bf16", 8), served("llama3-8b", "fp8_block", 1)):
        assert padded(other, 0.25 * float(other.output_tokens_per_s)) == 0.0


def test_a_pass_that_decodes_reads_all_weights_once() -> None:
    """In 16 bits; beside them 300 tokens of keys and values are little."""
    found = served("llama3-8b", "bf16", 1)
    weights = 2.0 * (found.model.parameters - found.model.embedding_parameters)
    own = decode_work(found, 1.0)
    assert weights < float(np.max(own.bytes)) < 1.03 * weights
    assert float(np.max(own.flop)) == pytest.approx(weights, rel=0.03)


def test_prompts_of_a_pass_share_its_weights() -> None:
    """A prompt of 200 tokens multiplies 200 times what one token does; rows are those of all that
    are read together, and what each reads is its part of a pass."""
    found = served("llama3-8b", "bf16", 1)
    together = float(np.max(found.work.together))
    own, one = prompt_work(found), decode_work(found, 1.0)
    assert float(np.max(own.flop)) == pytest.approx(200 * float(np.max(one.flop)), rel=0.15)
    assert float(np.max(own.bytes)) * together > float(np.max(one.bytes))
    told, sequences = serving_activity(found), float(np.max(found.work.sequences))
    pieces = {one.name: one.pieces for one in serving_power(found, Conditions()).phases}
    passes = float(np.max(pieces["prefill"]))
    many = float(told.prompts) / passes
    assert float(np.max(told.activity["prefill.beside"].rows)) == pytest.approx(
        200 * many + sequences
    )
    assert 1.0 < many < together


def test_four_bits_are_widened_once_in_a_pass_and_by_nobody_who_multiplies_them() -> None:
    """Weights of a matrix multiplied in 16 bits: two bytes each of all layers (the head keeps its
    16 bits), per tile of rows; gpt-oss's floats not on Blackwell, AWQ's integers there too."""
    dense = served("llama3-8b", "int4_wo", 1)
    layers = 2.0 * (dense.model.parameters - 2 * dense.model.embedding_parameters)
    assert float(np.max(decode_work(dense, 1.0).widened)) == pytest.approx(layers, rel=0.01)
    tiles = np.ceil(200 * float(np.max(dense.work.together)) / 128.0)
    together = float(np.max(dense.work.together))
    assert float(np.max(prompt_work(dense).widened)) * together == pytest.approx(
        tiles * layers, rel=0.01
    )
    assert float(np.max(decode_work(served("llama3-8b", "bf16", 1), 1.0).widened)) == 0.0
    native = served("gpt-oss-20b", "w4a16_mxfp4", 1, "B200-SXM-180GB")
    assert float(np.max(decode_work(native, 1.0).widened)) == 0.0
    made = served("gpt-oss-20b", "w4a16_mxfp4", 1)
    assert float(np.max(decode_work(made, 1.0).widened)) > 0.0
    awq = served("llama3-8b", "int4_wo", 1, "B200-SXM-180GB")
    assert float(np.max(decode_work(awq, 1.0).widened)) == pytest.approx(layers, rel=0.01)


def shares(many: int) -> dict[str, float]:
    found = serving_activity(served("llama3-8b", "bf16", many)).share
    return {name: float(np.max(one)) for name, one in found.items()}


def test_ranks_wait_for_each_other_in_collectives_and_no_longer() -> None:
    """As long as collectives take: a rank by itself never, ranks of eight longer than of two."""
    alone, pair, eight = (shares(many) for many in (1, 2, 8))
    assert set(alone) == {"prefill", "prefill.beside", "decode", "idle"}
    for phase in ("prefill.beside", "decode"):
        own = [one[f"{phase}.exchange"] / one[phase] for one in (pair, eight)]
        assert 0.0 < own[0] < own[1]


def test_no_kernel_multiplies_while_ranks_exchange() -> None:
    """What a pass computes, reads and sends is the same: the collectives' part of its time has all
    of the bytes on links and no FLOP, the kernels' part the rest."""
    work = serving_activity(served("llama3-70b", "bf16", 8)).activity
    talk, kernels = work["decode.exchange"], work["decode"]
    assert float(np.max(np.asarray(talk.flop))) == 0.0 < float(np.max(np.asarray(talk.link)))
    assert float(np.max(np.asarray(kernels.link))) == 0.0 < float(np.max(np.asarray(kernels.flop)))
    assert float(np.max(np.asarray(kernels.spinning))) == 0.0


def test_a_rank_that_waits_draws_less_than_one_that_multiplies() -> None:
    """So that the mean of ranks may lie below a limit that each of their kernels meets."""
    for many in (4, 8):
        own = serving_activity(served("llama3-70b", "bf16", many)).activity
        drawn = {name: float(np.max(demand(one, CONSTANTS).whole)) for name, one in own.items()}
        assert drawn["idle"] < drawn["decode.exchange"] < drawn["decode"]


def test_a_limit_slows_kernels_and_no_collective() -> None:
    """A pass of as much more time as its kernels took longer, whatever ranks exchange."""
    found = served("llama3-70b", "bf16", 8)
    given = Conditions(limit=350.0)
    under = serving_power(found, given)
    slowed = limited(found, under, given)
    own = one_pass_each(found, ("step",))
    kernels, talk = (float(np.max(own[name].time)) for name in ("step", "step.exchange"))
    now, usual = (
        lengthened({**under.work, **own}, *power_setting(found.cluster, one), one)["step"]
        for one in (given, Conditions())
    )
    ratio = float(np.max(now / usual))
    of_kernels = float(
        np.max(np.asarray(slowed.work.decoding.compute) / np.asarray(found.work.decoding.compute))
    )
    assert ratio == pytest.approx((kernels * of_kernels + talk) / (kernels + talk), rel=1e-3)
    assert of_kernels > ratio > 1.0


@pytest.mark.parametrize("talks", [0.0, 0.25, 0.9])
def test_kernels_and_collectives_of_a_phase_last_as_long_as_it(talks: float) -> None:
    """Work and links are those of its passes; what is halted is of the time that kernels run."""
    work = PassWork(*map(np.asarray, (5e12, 2e9, 3e8, 0.0, 0.7)))
    shares = {"padded": np.asarray(0.02), "halted": np.asarray(0.05), "talks": np.asarray(talks)}
    one = Passing(phase="decode", work=work, rate=np.asarray(40.0), rows=np.asarray(8.0), thin=1.0,
                  **shares)  # fmt: skip
    found = one.parts(np.asarray(0.6))
    assert sum(float(part.time) for part in found.values()) == pytest.approx(0.6)
    assert sum(float(np.asarray(part.flop)) for part in found.values()) == pytest.approx(2e14)
    assert len(found) == (2 if talks else 1)
    kernels = found["decode"]
    assert float(kernels.time) == pytest.approx(0.6 * (1.0 - talks))
    assert float(kernels.halted * kernels.time) == pytest.approx(min(0.05, 1.0 - talks) * 0.6)
    if talks:
        (wires,) = (part for name, part in found.items() if name != "decode")
        assert float(np.asarray(wires.link)) == pytest.approx(40.0 * 3e8)


@pytest.mark.parametrize(("passes", "pieces"), [(0.2, 1.0), (1.5, 1.5), (40.0, 40.0)])
def test_a_second_of_decoding_is_as_many_pieces_as_passes(
    passes: float, pieces: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at least: of a pass that lasts longer, the second is a piece."""
    found = served("llama3-8b", "bf16", 1)
    own = serving_activity(found)
    work = replace(own, pieces={**own.pieces, "decode": np.maximum(passes, 1.0)})
    monkeypatch.setattr(power, "serving_activity", lambda found: work)
    under = serving_power(found, Conditions())
    (decode,) = (one for one in under.phases if one.name == "decode")
    assert float(np.max(decode.pieces)) == pieces


@pytest.mark.parametrize("drafted", [1.0, 3.0])
def test_guesses_are_multiplied_with_their_token_and_weights_read_once(drafted: float) -> None:
    """So many times the arithmetic of a pass, its weights and caches once."""
    found = served("llama3-8b", "bf16", 1)
    plain = decode_work(found, 4.0)
    ahead = decode_work(replace(found, plan=replace(found.plan, drafted=drafted)), 4.0)
    assert float(ahead.flop) == pytest.approx((1.0 + drafted) * float(plain.flop), rel=1e-3)
    assert float(plain.bytes) < float(ahead.bytes) < 1.01 * float(plain.bytes)
