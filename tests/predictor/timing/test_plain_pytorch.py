"""Kernels of plain PyTorch: small ones one after the other, products of odd rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.hardware import Accelerator
from predictor.timing import PLAIN, Calibration, EfficiencyModel
from predictor.timing.kernels import operator_times
from predictor.timing.training_kernels import ODD, training_times
from predictor.work import Operator
from predictor.work.primitives import gemm, streaming

H100, KNOWN = catalog.accelerator("H100-SXM5-80GB"), load("kernels-only")


def timed(one: Operator, calibration: Calibration = KNOWN, plain: bool = True) -> float:
    return float(training_times([one], H100, calibration, (), plain=plain).time[0])


@pytest.mark.parametrize("columns", [32000.0, 50304.0, 128256.0])
def test_a_loss_of_pytorchs_own_operators_runs_at_half_of_the_bandwidth(columns: float) -> None:
    """Widened logits of 16 bits, 14 bytes each way: traces of H100 give 6.3 GB and 15 in 8.9 ms for
    8,192 x 128,256, 0.5 to 0.6 of 3.35 TB/s (`data/measurements/h100-sxm-2`)."""
    for variant in ("fwd", "bwd"):
        one = streaming(
            name="loss", op="loss", variant=variant, phase="forward", module="head", dtype="bf16",
            rows=8192.0, columns=columns, bytes_per_element=14.0,
        )  # fmt: skip
        share = 14.0 * 8192.0 * columns / timed(one) / float(np.asarray(H100.bandwidth))
        assert 0.4 < share < 0.7


def norm() -> Operator:
    """An RMS norm of 8,192 x 4,096 in one kernel."""
    return streaming(
        name="norm", op="norm", variant="rmsnorm", phase="forward", module="layer", dtype="bf16",
        rows=8192.0, columns=4096.0, bytes_per_element=4.0,
    )  # fmt: skip


def test_a_machine_that_was_profiled_keeps_what_it_took() -> None:
    """Its own kind comes before anybody's plain PyTorch; without either nothing changes."""
    one = norm()
    key = ("norm.fwd", "*", H100.name)
    assert key not in KNOWN.kernels
    other = KNOWN.kernels["norm.fwd@plain", "*", H100.name]
    own: EfficiencyModel = replace(other, kind="norm.fwd", accelerator=H100.name, latency=1.0)
    mine = replace(KNOWN, kernels={**KNOWN.kernels, key: own})
    assert timed(one, mine) > 1.0 > timed(one)
    assert timed(one, Calibration("none")) == timed(one, Calibration("none"), plain=False)


def test_frameworks_with_kernels_of_their_own_ask_for_no_plain_ones() -> None:
    one = norm()
    kept = {key: model for key, model in KNOWN.kernels.items() if not key[0].endswith(PLAIN)}
    bare = replace(KNOWN, kernels=kept)
    assert timed(one, bare, plain=False) == timed(one, plain=False)
    assert timed(one, bare) != timed(one)


def head(variant: str, vocab: float) -> Operator:
    """The output projection of 8,192 tokens of 2,048 elements, and its gradients."""
    sizes = {
        "fwd": (8192.0, vocab, 2048.0), "dgrad": (8192.0, 2048.0, vocab),
        "wgrad": (vocab, 2048.0, 8192.0),
    }  # fmt: skip
    m, n, k = sizes[variant]
    return gemm(
        name="head", layout=variant, phase="forward", module="head", dtype="bf16", m=m, n=n, k=k
    )


@pytest.mark.parametrize(
    ("variant", "measured"), [("fwd", 17.42e-3), ("dgrad", 12.28e-3), ("wgrad", 12.14e-3)]
)
def test_rows_of_odd_length_keep_products_off_wide_instructions(
    variant: str, measured: float
) -> None:
    """50,257 tokens of GPT-2's on an H100, whose step was traced: within a third; 50,304 run at
    least three times faster."""
    odd, padded = timed(head(variant, 50257.0)), timed(head(variant, 50304.0))
    assert measured / 1.34 < odd < 1.34 * measured
    assert padded < odd / 3.0
    assert odd == pytest.approx(
        float(head(variant, 50257.0).flop) / (ODD * H100.sms * H100.clock), rel=0.01
    )


def test_odd_numbers_of_tokens_are_no_rows() -> None:
    """What a product has of rows of tokens may be odd; another maker's is no matter either."""
    one = gemm(
        name="x", layout="fwd", phase="forward", module="layer", dtype="bf16",
        m=8191.0, n=4096.0, k=4096.0,
    )  # fmt: skip
    assert timed(one) < 1.1 * timed(replace(one, m=8192.0, flop=one.flop * 8192.0 / 8191.0))
    amd: Accelerator = catalog.accelerator("MI300X-192GB")
    whole, odd = (
        float(training_times([head("fwd", vocab)], amd, KNOWN, ()).time[0])
        for vocab in (50304.0, 50257.0)
    )
    assert odd < 2.0 * whole
    assert operator_times([head("fwd", 50257.0)], amd, KNOWN, ()).time[0] <= odd
