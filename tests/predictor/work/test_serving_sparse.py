"""Sparse attention over chosen keys: published sizes, the indexer, and what stays bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.memory.parameters import mixer_parameters
from predictor.serving.completion import complete_serving
from predictor.serving.passes import decode_cores
from predictor.serving.prediction import predict_inference
from predictor.timing.calibration import RunParameters
from predictor.work.serving import (
    decode_attention,
    kv_token_bytes,
    layer_operators,
    prefill_attention,
)
from tests.predictor.work.served import CALIBRATION, CLUSTER, named, plan

GLM = catalog.model("glm-5")


def test_parameters_are_those_that_are_published() -> None:
    """744B; the stated 40B active are those without the embedding and the output projection."""
    tables = GLM.embedding_parameters + GLM.head_parameters
    assert GLM.parameters / 1e9 == pytest.approx(744, rel=0.005)
    assert (GLM.active_parameters - tables) / 1e9 == pytest.approx(40, rel=0.01)
    newer, older = catalog.model("deepseek-v3.2"), catalog.model("deepseek-v3")
    assert newer.parameters / 1e9 == pytest.approx(671, rel=0.005)
    # 64 queries of 128 from 1536, a key and 64 weights from 7168, in 61 layers.
    assert newer.parameters - older.parameters == 61 * (1536 * 8192 + 7168 * (128 + 64))


def test_the_indexer_is_whole_on_every_rank() -> None:
    one, eight = (float(mixer_parameters(GLM, tp)) for tp in (1.0, 8.0))
    index = 2048 * 32 * 128 + 6144 * (128 + 32)
    latent = 6144 * (2048 + 512 + 64)
    split = GLM.attention_matrix - index - latent
    assert one - eight == pytest.approx(split * 7 / 8)
    queries = named(layer_operators(GLM, plan(tp=8.0), 4.0))["index.query"]
    assert (queries.n, queries.k, queries.count) == (32 * 128, 2048, 78)


def test_index_keys_lie_beside_the_latents() -> None:
    assert kv_token_bytes(GLM, plan()) == 2 * (512 + 64) + 128 + 4
    assert kv_token_bytes(GLM, plan(kv="fp8")) == 512 + 64 + 128 + 4


def test_decoding_attends_to_2048_keys_at_most() -> None:
    short, edge, long = (
        named(decode_attention(GLM, plan(), 4.0, keys)) for keys in (1024.0, 2048.0, 65536.0)
    )
    assert short["attention"].flop == edge["attention"].flop / 2
    assert long["attention"].flop == edge["attention"].flop
    assert long["attention"].bytes == edge["attention"].bytes
    # All heads of the indexer against all keys, on every rank: 132 bytes each, 4 per score.
    scores = long["index.scores"]
    assert scores.flop == 2 * 4 * 32 * 128 * 65536
    assert scores.bytes == 4 * (32 * 128 + 65536 * 132 + 65536 * 4)
    assert long["index.choose"].bytes == 4 * 65536 * 8


def test_guesses_share_the_index_keys() -> None:
    one, two = (
        named(decode_attention(GLM, plan(drafted=d), 4.0, 8192.0))["index.scores"] for d in (0, 1)
    )
    assert two.flop == 2 * one.flop
    assert two.bytes - one.bytes == 4 * (32 * 128 + 8192 * 4)


def test_longer_contexts_cost_scores_only() -> None:
    def lines(model: object, context: float) -> dict[str, float]:
        found = decode_cores(
            model, CLUSTER, plan(), 16.0, np.array([context]), np.ones(1), CALIBRATION
        )
        return {line.name: float(line.time) for line in found.lines}

    dense = replace(GLM, index_topk=0)
    short, long = lines(GLM, 4096.0), lines(GLM, 65536.0)
    assert long["attention"] == short["attention"]
    assert long["index.scores"] > short["index.scores"]
    assert sum(long.values()) < 0.5 * sum(lines(dense, 65536.0).values())


def test_short_prompts_are_read_as_without_an_indexer() -> None:
    dense = replace(GLM, index_topk=0, index_heads=0, index_head_dim=0)
    ours, theirs = (named(prefill_attention(m, plan(), 2.0, 2048.0)) for m in (GLM, dense))
    assert set(ours) == set(theirs)
    for name, operator in theirs.items():
        assert (ours[name].flop, ours[name].count) == (operator.flop, operator.count)


def test_prompts_of_one_batch_are_read_either_way() -> None:
    found = named(prefill_attention(GLM, plan(), 2.0, np.array([1024.0, 4096.0])))
    assert np.asarray(found["attention"].count).tolist() == [78, 0]
    assert np.asarray(found["attention.chosen"].count).tolist() == [0, 78]


def test_long_prompts_are_read_over_chosen_keys() -> None:
    """4,096 tokens: the first 2,048 see 1,024 on average, the others 2,048. Eight heads of a rank
    fill 64 rows of latents: 576 wide against the keys, 512 wide from them."""
    found = named(prefill_attention(GLM, plan(tp=8.0), 2.0, 4096.0))
    assert not {"attention", "attention.kv_up"} & set(found)
    core = found["attention.chosen"]
    assert float(core.count) == 78
    assert float(core.flop) == pytest.approx(2 * 2 * 64 * 4096 * 1536 * (576 + 512))
    assert float(found["index.scores"].flop) == pytest.approx(2 * 2 * 32 * 128 * 4096 * 2048)
    # Behind cached tokens all see 2,048.
    later = named(prefill_attention(GLM, plan(tp=1.0), 2.0, 4096.0, 4096.0))["attention.chosen"]
    assert float(later.flop) == pytest.approx(2 * 2 * 64 * 4096 * 2048 * (576 + 512))


def test_a_batch_of_plans_is_the_plans_one_by_one() -> None:
    """Prompts on both sides of what attention may choose."""
    lengths = np.array([500.0, 9000.0])

    def latencies(given: object) -> object:
        own = plan(input_len=given, weights="fp8_block")
        return predict_inference(GLM, CLUSTER, own, CALIBRATION).latencies

    both = latencies(lengths)
    for i, length in enumerate(lengths):
        one = latencies(float(length))
        assert float(both.ttft[i]) == pytest.approx(float(one.ttft))  # type: ignore[attr-defined]
        assert float(both.tpot[i]) == pytest.approx(float(one.tpot))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("accelerator", "cache"), [("B200-SXM-180GB", "fp8"), ("H200-SXM-141GB", "bf16")]
)
def test_sglang_keeps_a_narrow_cache_on_blackwell(accelerator: str, cache: str) -> None:
    fields = {"accelerator": accelerator, "accelerators_per_node": 8, "tp": 8, "input_len": 1000}
    fields |= {"output_len": 100, "concurrency": 8, "precision": "fp8_block"}
    for model, own in (("glm-5", cache), ("deepseek-v3", "bf16")):
        given = {**fields, "model": model, "framework": "sglang"}
        request = complete_serving(parse(ServingPlanSpec, given, "test"), RunParameters())
        assert request.plan.kv == own


def test_scores_need_8_bit_products() -> None:
    fields = {"model": "glm-5", "system": "dgx-a100", "input_len": 1000, "output_len": 10}
    with pytest.raises(InputError, match="glm-5 scores cached keys in fp8, which A100-SXM4-80GB"):
        complete_serving(parse(ServingPlanSpec, fields, "test"), RunParameters())
