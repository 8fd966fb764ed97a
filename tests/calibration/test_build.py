"""Rebuilding a part of a calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from calibration.artifact import write
from calibration.build import partly
from calibration.kernels.fit import op_of
from calibration.kernels.parts import KernelFit
from predictor.timing import Calibration, EfficiencyModel
from tests.predictor.timing.test_likeness import model


def of(kind: str, y: float) -> EfficiencyModel:
    return replace(model("A", y), kind=kind)


def test_kinds_belong_to_operators() -> None:
    assert [op_of(kind) for kind in ("gemm", "bmm", "norm.fwd", "attention_prefill.kv8")] == [
        "gemm", "gemm", "norm", "attention_prefill",
    ]  # fmt: skip
    assert op_of("gemm/architecture") == "gemm"


def test_what_is_not_refitted_stays(tmp_path: Path) -> None:
    kinds = ("gemm", "bmm", "norm.fwd")
    kernels = {(kind, "bf16", "A"): of(kind, 0.25) for kind in kinds}
    before = Calibration("x", kernels=kernels, transfer_sigma={"gemm": 0.2, "norm": 0.3})
    rows = {f"{kind}/bf16/A": {"mape": 0.5} for kind in kinds}
    sections = {"kernels": rows, "families": {"A/gemm/fwd": {}, "A/norm.fwd/fwd": {}}, "links": {}}
    write(before, tmp_path / "c", sections)
    fresh = KernelFit(
        models={("gemm", "bf16", "A"): of("gemm", 0.75)}, transfer_sigma={"gemm": 0.1}
    )
    own = {"kernels": {"gemm/bf16/A": {"mape": 0.1}}, "families": {"A/gemm/fwd": {"mape": 0.1}}}
    found, heldout = partly(tmp_path / "c", ["gemm"], fresh, own)
    assert set(found.kernels) == {("gemm", "bf16", "A"), ("norm.fwd", "bf16", "A")}
    assert found.kernels["gemm", "bf16", "A"].biases[0][0] == 0.75
    assert found.kernels["norm.fwd", "bf16", "A"].biases[0][0] == 0.25
    assert found.transfer_sigma == {"gemm": 0.1, "norm": 0.3}
    assert heldout["kernels"] == {"norm.fwd/bf16/A": {"mape": 0.5}, "gemm/bf16/A": {"mape": 0.1}}
    assert heldout["families"] == {"A/norm.fwd/fwd": {}, "A/gemm/fwd": {"mape": 0.1}}
    assert heldout["links"] == {}
