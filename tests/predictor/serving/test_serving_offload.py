"""Weights and cache in the host's memory."""

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.catalog.systems import alone
from predictor.errors import InputError
from predictor.memory.serving import weight_bytes
from predictor.plans.serving import ServingPlan
from predictor.serving.completion import complete_serving
from predictor.serving.offload import attention_time, default_link, hosts_memory
from predictor.serving.prediction import BREAKDOWN, predict_inference
from predictor.serving.simulation import one_by_one
from predictor.serving.tables import pass_table
from predictor.timing.calibration import RunParameters
from predictor.timing.engines import ServingParameters
from tests.predictor.serving.bare import bare

MODEL = catalog.model("mixtral-8x7b")
CLUSTER = alone(catalog.accelerator("A100-PCIe-40GB"))
BARE = ServingParameters({"neutral": bare()})
CALIBRATION = replace(load("default"), serving=BARE)


def predict(**fields):
    base = {
        "batch": np.inf,
        "input_len": 100.0,
        "output_len": 64.0,
        "serving": 1.0,
        "max_batch": 4096.0,
        "offload": "weights",
        "host_memory": 265e9,
        "host_bandwidth": 200e9,
        "host_link": 25e9,
    }
    plan = ServingPlan(**{**base, **fields})
    return predict_inference(MODEL, CLUSTER, plan, CALIBRATION)


def test_a_pass_lasts_as_long_as_the_stream_of_the_weights():
    found = predict(batch=64.0)
    stream = float(weight_bytes(MODEL, found.plan)) / 25e9  # 93 GB: 3.7 s
    assert float(found.latencies.step) == pytest.approx(stream)
    assert stream == pytest.approx(3.74, rel=0.01)
    assert sum(found.breakdown[name] for name in BREAKDOWN) == pytest.approx(
        float(found.latencies.e2e)
    )


def test_a_pass_lasts_as_long_as_attention_on_the_host_where_that_is_slower():
    found = predict(batch=4096.0, host_bandwidth=10e9, output_len=500.0)
    running = float(found.work.running)
    cache = running * (100 + 250) * 32 * 2 * 2 * 8 * 128  # bytes
    assert float(found.latencies.step) == pytest.approx(cache / 10e9)


def test_the_host_reads_chosen_keys_and_keeps_states():
    """GLM-5: 132 bytes of every index key and 1,152 of 2,048 latents, in 78 layers; Qwen3.5: 15
    caches and 45 states, which are written too."""
    own = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0, host_bandwidth=1e9)
    sparse = 78 * (8192 * 132 + 2048 * 1152)
    assert attention_time(catalog.model("glm-5"), own, 3.0, 8192.0) == pytest.approx(
        3 * sparse / 1e9
    )
    state = 4 * 64 * 128 * 128 + 2 * 3 * (2 * 2048 + 8192)
    linear = 15 * 1000 * 2 * 2 * 2 * 256 + 45 * 2 * state
    assert attention_time(catalog.model("qwen3.5-397b-a17b"), own, 1.0, 1000.0) == pytest.approx(
        linear / 1e9
    )


def test_the_bound_of_the_throughput():
    """Prompts fit into the idle time of the device: tokens per second are sequences per stream."""
    found = predict(batch=512.0, synchrony=0.0)
    stream = float(weight_bytes(MODEL, found.plan)) / 25e9
    assert float(found.output_tokens_per_s) == pytest.approx(512 / stream, rel=0.05)
    more = [float(predict(batch=b).output_tokens_per_s) for b in (64.0, 256.0, 1024.0, np.inf)]
    assert more == sorted(more)


def test_the_host_holds_the_cache():
    small, large = predict(host_memory=150e9).memory, predict(host_memory=265e9).memory
    per_sequence = 164 * 32 * 2 * 2 * 8 * 128
    assert float(small.sequences) == (0.9 * 150e9 - weight_bytes(MODEL, predict().plan)) // (
        per_sequence
    )
    assert large.sequences > small.sequences
    assert large.fits
    assert not predict(offload="none", batch=1.0).memory.fits


def test_events_stream_too():
    plan = predict(batch=64.0).plan
    table = pass_table(MODEL, CLUSTER, plan, CALIBRATION)
    decode, _ = table.lookups()
    assert decode.at(64, 132.0) == pytest.approx(float(predict(batch=64.0).latencies.step))


def request(**fields):
    base = {
        "model": "mixtral-8x7b",
        "accelerator": "H100-SXM5-80GB",
        "gpus": 1,
        "input_len": 100,
        "output_len": 64,
        "offload": "weights",
    }
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, RunParameters())


def test_hosts_are_completed_or_asked_for():
    found = request(host_memory_gb=512, saturated=True).plan
    assert (float(found.host_link), float(found.host_bandwidth)) == (55e9, 200e9)
    assert default_link(catalog.accelerator("A100-SXM4-80GB")) == 25e9
    assert float(request(host_memory_gb=512, host_link_gbs=10, batch=1).plan.host_link) == 10e9
    usual = request(batch=1)
    (told,) = (one for one in usual.assumed if one.field == "host_memory_gb")
    assert (told.value, told.rule) == (2048, "of the nodes that the plan takes")
    assert float(usual.plan.host_memory) == 2048e9
    assert float(hosts_memory(CLUSTER, 9.0)) == 2 * 8 * 128e9  # not in the catalog: the usual
    with pytest.raises(InputError, match="weights of mixtral-8x7b, 93 GB: 29 GB are missing"):
        request(host_memory_gb=64)


def test_tables_of_ngrams_alone_lie_with_the_host():
    """203 GB for each four ranks that divide them; decoding waits for nothing else."""
    asked = {"model": "deepseek-v4.1-flash", "accelerator": "B200-SXM-180GB", "offload": "ngrams"}
    one = request(**asked, gpus=4, tp=4, host_memory_gb=210, batch=8)
    assert float(one.plan.host_link) == default_link(one.cluster.accelerator)
    with pytest.raises(InputError, match="210 is less than the tables of n-grams of deepseek-v4"):
        request(**asked, gpus=8, tp=4, dp=2, host_memory_gb=210, batch=8)
    with pytest.raises(InputError, match="offload ngrams: llama3-8b has no tables of n-grams"):
        request(model="llama3-8b", offload="ngrams", batch=8)
    here, there = (
        predict_inference(one.model, one.cluster, replace(one.plan, offload=o), CALIBRATION)
        for o in ("none", "ngrams")
    )
    assert float(there.breakdown["host_transfer"]) == 0
    assert float(there.latencies.tpot) == pytest.approx(float(here.latencies.tpot), rel=1e-3)
    assert float(there.memory.sequences) > float(here.memory.sequences)


def test_a_prompt_hides_the_stream_of_the_weights_as_far_as_it_computes():
    """One alone: each of its passes takes as long as the stream, or as its arithmetic."""
    stream = float(weight_bytes(MODEL, predict().plan)) / 25e9
    short = predict(batch=1.0, serving=0.0, input_len=64.0)
    assert float(short.latencies.ttft) == pytest.approx(stream, rel=1e-3)
    whole = {"batch": 1.0, "serving": 0.0, "input_len": 32000.0, "chunk": 32000.0}
    streamed, bare = predict(**whole), predict(**whole, offload="none")
    assert float(bare.latencies.ttft) > stream
    assert float(streamed.latencies.ttft) == pytest.approx(float(bare.latencies.ttft), rel=1e-3)
    four = predict(**{**whole, "chunk": 8000.0})
    assert float(four.latencies.ttft) == pytest.approx(4 * stream, rel=1e-3)


@pytest.mark.parametrize("input_len", [64.0, 32000.0])
def test_a_prompt_that_meets_nobody_streams_the_weights(input_len):
    """Alone, no pass decodes whose stream it could ride on: one client as a batch of one, closed
    forms and requests one by one; of prompts that compute longer, that is what they take."""
    given = {"batch": 1.0, "input_len": input_len, "chunk": 64000.0, "output_len": 2.0}
    batch, client = predict(**given, serving=0.0), predict(**given)
    expected = float(batch.latencies.ttft)
    assert float(client.latencies.ttft) == pytest.approx(expected, rel=1e-3)
    assert sum(client.breakdown[name] for name in BREAKDOWN) == pytest.approx(
        float(client.latencies.e2e)
    )
    served = one_by_one(MODEL, CLUSTER, client.plan, CALIBRATION, 4, clients=1)
    assert float(served.ttft.mean()) == pytest.approx(expected, rel=0.1)
