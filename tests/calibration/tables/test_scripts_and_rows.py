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
