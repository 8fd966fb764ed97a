"""What a row states counts more than its source's script, but for what rows cannot say."""

import pytest

from calibration.tables.requests import _with_script


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"), ("bf16", "bf16"), (None, None)],
)
def test_a_script_says_to_what_activations_are_narrowed(stated, expected):
    found = _with_script({"precision": stated, "tp": 2}, {"activations": "mxfp8", "tp": 4})
    assert found.get("precision") == expected
    assert found["tp"] == 2
    assert "activations" not in found
