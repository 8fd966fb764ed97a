"""What the lives of requests hold: one prompt of each other, as many passes as prompts fill, parts
that are no less than nothing."""

from dataclasses import replace

import numpy as np
import pytest

from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.serving.clients import Client, of_one_length
from predictor.serving.completion import complete_serving
from predictor.serving.prediction import predict_inference
from predictor.serving.simulation import one_by_one
from predictor.serving.whole_passes import prompt_pass

CALIBRATION = load("default")


def request(**fields):
    base = {"model": "llama3-8b", "system": "dgx-h100", "tp": 1, "framework": "vllm"}
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, CALIBRATION.run)


def predicted(one):
    return predict_inference(one.model, one.cluster, one.plan, CALIBRATION)


def by_one(one, clients, rounds=10):
    return one_by_one(
        one.model,
        one.cluster,
        one.plan,
        CALIBRATION,
        rounds * clients,
        Client(variation=one.variation),
        clients=clients,
    )


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
@pytest.mark.parametrize("output_len", [2, 3, 4])
def test_two_clients_of_short_answers_get_more_requests_than_one(framework, output_len):
    """Prompts of the other are read while one decodes, or before: each of them once in a life."""
    asked = {"framework": framework, "input_len": 1024, "output_len": output_len}
    alone, both = (predicted(request(**asked, concurrency=n)) for n in (1, 2))
    assert float(both.requests_per_s) > 1.03 * float(alone.requests_per_s)
    served = by_one(request(**asked, concurrency=2), 2, rounds=50)
    life = float(both.latencies.e2e)
    assert life == pytest.approx(float(served.e2e.mean()), rel=0.2)


@pytest.mark.parametrize("concurrency", [6, 40])
def test_a_token_of_a_short_answer_takes_as_long_as_one_by_one(concurrency):
    one = request(input_len=500, output_len=20, concurrency=concurrency)
    told = float(by_one(one, concurrency).tpot.mean())
    assert float(predicted(one).latencies.tpot) == pytest.approx(told, rel=0.15)


def test_answers_of_whole_tokens_that_round_to_one_length_are_alike():
    assert of_one_length(0.1, 4.0)
    assert of_one_length(0.0, 1e5)
    assert not of_one_length(0.1, 6.0)
    one = request(framework="sglang", input_len=1024, output_len=4, concurrency=8)
    assert float(one.plan.synchrony) == 1.0
    assert float(request(framework="sglang", input_len=1024, output_len=40, concurrency=8)
                 .plan.synchrony) < 1.0  # fmt: skip


def test_where_prompts_wait_for_others_answers_of_one_length_are_decoded_by_themselves():
    """Held prompts are read together, after all that ran have ended."""
    one = request(framework="tgi", input_len=300, output_len=100, concurrency=12, variation=0.0)
    found = predicted(one).latencies
    assert float(found.tpot) == pytest.approx(float(by_one(one, 12).tpot.mean()), rel=0.05)


def test_a_wave_of_prompts_that_come_first_is_read_before_anyone_decodes():
    """Of answers of one length, however many tokens the prompts have in all."""
    one = request(
        framework="sglang", input_len=3000, output_len=100, concurrency=128, variation=0.0
    )
    found, served = predicted(one).latencies, by_one(one, 128)
    assert float(found.tpot) == pytest.approx(float(served.tpot.mean()), rel=0.06)
    assert float(found.ttft) == pytest.approx(float(served.ttft.mean()), rel=0.15)


def test_a_wave_of_prompts_that_ride_along_fills_passes():
    """Requests of one length that ended together: their prompts delay tokens pass by pass."""
    one = request(
        model="qwen2.5-32b", system="dgx-b200", tp=4, input_len=240, output_len=138,
        concurrency=156, variation=0.0,
    )  # fmt: skip
    told = float(by_one(one, 156).tpot.mean())
    assert float(predicted(one).latencies.tpot) == pytest.approx(told, rel=0.15)


@pytest.mark.parametrize("chunk", [2048.0, 8192.0])
@pytest.mark.parametrize("concurrency", [1, 64])
def test_a_few_tokens_more_than_a_pass_takes_are_a_few_more(chunk, concurrency):
    """The rest of a prompt is a small pass, which others share where they wait."""
    one = request(system="dgx-a100", input_len=int(chunk), output_len=64, chunk=chunk,
                  concurrency=concurrency)  # fmt: skip
    lengths = np.array([chunk, chunk + 16.0])
    plan = replace(one.plan, input_len=lengths)
    found = predict_inference(one.model, one.cluster, plan, CALIBRATION)
    (few, more), (slow, slower) = found.requests_per_s, found.latencies.ttft
    assert 0.9 * few < more < 1.05 * few
    assert 0.95 * slow < slower < 1.12 * slow


def test_passes_over_prompts_are_full_ones_and_the_rest():
    one = request(input_len=1000, output_len=10, concurrency=1, chunk=512)

    def taken(tokens, chunk):
        plan = replace(one.plan, input_len=tokens, chunk=chunk)
        found, count = prompt_pass(one.model, one.cluster, plan, 1.0, CALIBRATION)
        return float(found.terms["linear"]), float(count), found

    whole, count, found = taken(1000.0, 512.0)
    assert count == 2.0
    assert whole == pytest.approx(taken(512.0, 512.0)[0] + taken(488.0, 512.0)[0])
    assert taken(1024.0, 512.0)[0] == pytest.approx(2.0 * taken(512.0, 512.0)[0])
    names = [line.name for line in found.lines]
    assert len(names) == len(set(names))
    times = sum(float(line.time) for line in found.lines)
    assert times == pytest.approx(float(found.compute))


def test_prompts_that_hide_in_a_pass_do_so_until_it_is_full():
    """One more sequence than graphs are captured for: launches hide one short prompt, not a
    hundred that end together."""
    one = request(
        model="qwen3-30b-a3b", accelerator="GB200-186GB", system=None, framework="tensorrt-llm",
        input_len=55, output_len=614, concurrency=128, variation=0.0,
    )  # fmt: skip
    plan = replace(one.plan, batch=np.array([128.0, 131.0]))
    less, more = predict_inference(one.model, one.cluster, plan, CALIBRATION).latencies.ttft
    assert more > 0.95 * less


@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3-30b-a3b"])
def test_no_part_of_a_latency_is_less_than_nothing(model):
    """Fewer clients than replicas, which wait for none."""
    one = request(
        model=model, tp=2, dp=2, gpus=4, framework="tensorrt-llm", input_len=35, output_len=37,
        concurrency=1,
    )  # fmt: skip
    found = predicted(one)
    parts = {name: float(value) for name, value in found.breakdown.items()}
    assert min(parts.values()) > -1e-12
    assert sum(parts.values()) == pytest.approx(float(found.latencies.e2e))


SPARSE = {"model": "deepseek-v3.2", "system": "dgx-h200", "tp": 8, "precision": "fp8_block",
          "input_len": 2048, "output_len": 64, "concurrency": 8}  # fmt: skip


def first_token(kind, length):
    one = request(**SPARSE, short_prompts=kind)
    plan = replace(one.plan, input_len=length)
    return float(predict_inference(one.model, one.cluster, plan, CALIBRATION).latencies.prompt)


def test_short_prompts_over_chosen_keys_are_absorbed_masked_or_neither():
    """A mask leaves no step where prompts grow longer than what may be chosen; without one there
    is a step, to what engines that absorb every prompt take below it, too."""
    before, behind = ({kind: first_token(kind, n) for kind in ("dense", "masked", "chosen")}
                      for n in (2048.0, 2049.0))  # fmt: skip
    assert before["dense"] == before["masked"] < 0.85 * before["chosen"]
    assert behind["masked"] == pytest.approx(before["masked"], rel=0.12)
    assert behind["dense"] == behind["chosen"] == pytest.approx(before["chosen"], rel=0.03)
    assert behind["masked"] < behind["chosen"]


@pytest.mark.parametrize(
    ("framework", "version", "kind"),
    [
        ("vllm", "0.12.0", "chosen"),
        ("vllm", "0.28.0", "masked"),
        ("sglang", "0.5.3", "chosen"),
        ("sglang", "0.5.7", "dense"),
        ("tensorrt-llm", None, "dense"),
    ],
)
def test_how_short_prompts_are_read_is_a_fact_of_the_release(framework, version, kind):
    told = {} if version is None else {"version": version}
    assert request(**SPARSE, framework=framework, **told).plan.short_prompts == kind
