"""Norms that nothing fuses: the kernels of their definition, one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.hardware import Accelerator
from predictor.plans import TrainingPlan
from predictor.timing.training_kernels import training_times
from predictor.work import Operator, step_operators
from tests.predictor.training.test_host_time import cpu

H100, KNOWN = catalog.accelerator("H100-SXM5-80GB"), load("kernels-only")
MODEL = catalog.model("llama3.2-1b")


def timed(one: Operator, accelerator: Accelerator = H100) -> float:
    return float(training_times([one], accelerator, KNOWN, (), plain=True).time[0])


def norm(fused: bool, gradient: bool) -> Operator:
    """Of 16,384 rows of 2,048, in 16 bits."""
    plan = TrainingPlan(
        tp=1.0, pp=1.0, dp=1.0, micro_batch=8.0, seq_len=2048.0, global_batch=8.0, fused=False,
        fused_norm=fused,
    )  # fmt: skip
    name = "attention.norm.bwd" if gradient else "attention.norm"
    return next(one for one in step_operators(MODEL, plan) if one.name == name)


@pytest.mark.parametrize(("gradient", "kernels"), [(False, 8), (True, 15)])
def test_a_norm_in_parts_is_as_many_passes_over_its_elements(gradient: bool, kernels: int) -> None:
    """Each at the rate of a sum, on a device; on a host, which was timed with all of them, what a
    norm takes."""
    parts = norm(False, gradient)
    assert parts.kernels == kernels
    one = replace(parts, op="elementwise", variant="add", kernels=1.0,
                  bytes=parts.bytes / kernels)  # fmt: skip
    assert timed(parts) == pytest.approx(kernels * timed(one), rel=1e-12)
    assert timed(parts) > timed(norm(True, gradient))
    assert timed(parts, cpu()) == timed(replace(parts, kernels=1.0), cpu())


def test_what_a_norm_in_parts_moves_and_keeps() -> None:
    """In 16 bits: forward a cast, what is squared read and written, read for the mean, read for the
    product and written, cast, scaled: 36 bytes an element; kept are the wide input and the scaled
    one's."""
    forward, whole = norm(False, False), norm(True, False)
    elements = 16384.0 * 2048.0
    assert forward.bytes == 36.0 * elements
    assert forward.saved == 6.0 * elements
    assert (whole.bytes, whole.saved) == (4.0 * elements, 2.0 * elements)
