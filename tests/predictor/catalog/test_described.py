"""Machines in files: what is refused, in one line, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import reckon
from predictor import catalog
from predictor.errors import InputError

PLAN = {"gpus": 8, "tp": 2, "global_batch": 16, "seq_len": 2048}


def own(**changes: object) -> dict[str, object]:
    """An H100's numbers under another name."""
    row = catalog.to_mapping(catalog.spec_of("accelerators", "H100-SXM5-80GB"))
    return {key: value for key, value in {**row, "name": "mine", **changes}.items() if value}


def told(accelerator: dict[str, object]) -> str:
    """Whose efficiencies a prediction says an accelerator takes."""
    found = reckon.predict_train("llama3-8b", "dgx-h100", {**PLAN, "accelerator": accelerator})
    rules = [one["rule"] for one in found.to_dict()["assumed"] if one["field"] == "accelerator"]
    return "".join(rules)


def test_whose_efficiencies_a_described_accelerator_takes_is_told() -> None:
    assert "H100-SXM5-80GB, the nearest of its architecture" in told(own())
    assert "none of which is near" in told(own(bf16_tflops=8.0, sm_count=2, l2_mb=1))
    assert "has the architecture 'hoper'" in told(own(architecture="hoper"))
    assert told({"name": "H100-SXM5-80GB", **own(name="H100-SXM5-80GB")}) == ""
    served = reckon.predict_infer(
        "llama3-8b", "dgx-h100",
        {"tp": 1, "batch": 1, "input_len": 128, "output_len": 8, "accelerator": own()},
    )  # fmt: skip
    assert any("the nearest of its" in one["rule"] for one in served.to_dict()["assumed"])


@pytest.mark.parametrize(
    "changes", [{"memory_bandwidth_gbs": 3.352}, {"bf16_tflops": 989e12}], ids=["TB/s", "FLOP/s"]
)
def test_numbers_in_another_unit_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match="check their units"):
        catalog.accelerator(own(**changes))


def test_a_key_that_is_stated_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    """Also within a list; what another mapping lends may be stated anew."""
    path = tmp_path / "run.yaml"
    path.write_text("gpus: 8\ntp: 2\ngpus: 16\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 3\): key 'gpus' is stated twice"):
        catalog.read_mapping(path)
    path.write_text("tiers:\n- {link: a, size: 8, link: b}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2\): key 'link' is stated twice"):
        catalog.read_mapping(path)
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: *a\n", encoding="utf-8")
    found = catalog.read_mapping(path)
    assert found == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("name", "share"),
    [("command-a-111b", 0.75), ("command-r7b", 0.75), ("aya-expanse-8b", 0.0),
     ("starcoder2-15b", 1.0)],
)  # fmt: skip
def test_windows_are_those_of_the_layers_that_have_them(name: str, share: float) -> None:
    """Three of four layers of Command A and R7B, whose pattern of '4' was read as all of them."""
    assert catalog.model(name).windowed_share == share


def test_a_pattern_of_windows_that_says_nothing_is_refused() -> None:
    own = {"name": "own", "layers": 8, "hidden": 64, "heads": 4, "ffn_hidden": 256, "vocab": 100,
           "sliding_window": 16}  # fmt: skip
    assert catalog.model({**own, "sliding_pattern": "3 local : 1 global"}).windowed_share == 0.75
    with pytest.raises(InputError, match="sliding_pattern '4' is none of 'all layers'"):
        catalog.model({**own, "sliding_pattern": "4"})
