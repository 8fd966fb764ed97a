"""What a row states counts more than its source's script, but for what rows cannot say."""

import pytest

from calibration.tables.requests import InferencePoint, _with_script, inference_point
from predictor.timing import RunParameters


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"), ("bf16", "bf16"), (None, None)],
)
def test_a_script_says_to_what_activations_are_narrowed(stated, expected):
    found = _with_script({"precision": stated, "tp": 2}, {"activations": "mxfp8", "tp": 4})
    assert found.get("precision") == expected
    assert found["tp"] == 2
    assert "activations" not in found


def test_a_baseline_that_leaves_out_its_prompts_is_doubtful():
    """FasterTransformer's page has a column of Megatron-LM: 8 and 32 tokens of 175B take 9 and 33
    times 345.7 ms after prompts of 16 x 128 and 16 x 512 tokens. The larger ones alone take 1.15 s
    at the peak of eight A100. The column beside it is believed."""
    short, long = 3.11157 / 9, 11.40953 / 33
    assert short == pytest.approx(long, rel=0.001)
    row = {
        "point_id": "a", "source": "fastertransformer_gpt", "accelerator": "A100-SXM4-80GB",
        "num_gpus": 8, "tp": 8, "model": "gpt3-175b", "weights_precision": "fp16", "batch": 16,
        "input_len": 512, "output_len": 32, "metric": "e2e_latency_s", "value": 11.40953,
        "published": "2023-03", "framework": "megatron-lm",
        "notes": "static batch; Megatron-LM baseline column (PyTorch, unoptimized)",
    }  # fmt: skip
    found = inference_point(row, RunParameters())
    assert isinstance(found, InferencePoint)
    assert found.flagged
    beside = row | {"framework": "fastertransformer", "notes": "static batch"}
    assert not inference_point(beside, RunParameters()).flagged


def _of(source: str, **fields: object) -> InferencePoint:
    row = {
        "point_id": "a", "source": source, "accelerator": "H200-SXM-141GB", "num_gpus": 8, "tp": 8,
        "ep": 8, "model": "minimax-m2.5", "weights_precision": "fp8", "concurrency": 4,
        "input_len": 1024, "output_len": 128, "metric": "ttft_ms", "value": 477.0,
        "published": "2026-02", "framework": "vllm", **fields,
    }  # fmt: skip
    found = inference_point(row, RunParameters())
    assert isinstance(found, InferencePoint)
    return found


def test_an_experimental_client_sends_prompts_of_one_length_to_a_server_without_processors():
    """Its own file beside the results says fixed lengths. The server's job asks for no processors:
    four clients wait 477 ms for a first token that takes 90 to 110 in the same project's table."""
    notes = "the repository warns that this folder is WIP/experimental; num_prompts=40; median"
    found = _of("inferencex_experimental", notes=notes)
    assert found.request.variation == 0.0
    assert found.flagged
    assert found.tentative
    assert not _of("aiconfigurator_silicon_inferencemax", notes="").flagged


def test_pairs_that_were_other_pairs_on_the_page_before_are_doubtful():
    """TensorRT-LLM's pages: two GH200 make 23,643 tokens/s of Mixtral 8x7B, then 5,475 and 3,271,
    while four make 41,574 and 43,071. Those of 0.11 are half of a node of four, as the page's fours
    are one."""
    fields = {
        "accelerator": "GH200-96GB", "num_gpus": 2, "tp": 2, "ep": None, "model": "mixtral-8x7b",
        "concurrency": None, "output_len": 2048, "metric": "output_tokens_per_s", "value": 3271.0,
        "published": "2024-09", "framework": "tensorrt-llm", "framework_version": "0.13.0",
        "notes": "max-throughput offline in-flight batching, infinite request rate",
    }  # fmt: skip
    other = fields | {"framework_version": "0.11.0", "value": 23643.0}
    assert _of("trtllm_perf_docs", **fields).flagged
    pair = _of("trtllm_perf_docs", **other)
    assert not pair.flagged
    assert pair.request.cluster.accelerators_per_node == 4
