"""What stands in where nothing was measured, and what is kept of what was timed before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.timing import operator_times
from predictor.timing.defaults import DEFAULTS
from predictor.work import Operator

PRODUCT = Operator(
    "ffn.up", "gemm", "fwd", "forward", "layer", "bf16", m=4096.0, n=8192.0, k=4096.0,
    flop=2.0 * 4096 * 8192 * 4096, bytes=2.0 * (4096 * 4096 + 4096 * 8192 + 4096 * 8192),
)  # fmt: skip


def test_no_default_beats_the_ceiling() -> None:
    """Shares of a peak or a bandwidth; a launch takes microseconds; every one is uncertain."""
    for kind, one in DEFAULTS.items():
        assert 0.2 <= one.efficiency <= 0.85, kind
        assert 2e-6 <= one.latency <= 1e-5, kind
        assert one.sigma >= 0.25, kind
        assert one.source


def test_a_kernel_met_before_takes_what_it_took_and_another_what_is_its_own() -> None:
    known = load("kernels-only")
    machine = catalog.accelerator("H100-SXM5-80GB")
    fresh = replace(known)  # knows nothing of what was timed before
    first = operator_times([PRODUCT], machine, known, ()).time
    assert operator_times([PRODUCT], machine, known, ()).time == first
    assert operator_times([PRODUCT], machine, fresh, ()).time == first
    longer = replace(PRODUCT, k=8192.0, flop=2.0 * PRODUCT.flop)
    assert operator_times([longer], machine, known, ()).time > 1.5 * first
    slower = replace(machine, peak={name: 0.5 * rate for name, rate in machine.peak.items()})
    assert operator_times([PRODUCT], slower, known, ()).time > 1.5 * first
    lengths = np.array([4096.0, 8192.0])
    flop = 2.0 * 4096 * 8192 * lengths
    both = operator_times([replace(PRODUCT, k=lengths, flop=flop)], machine, known, (2,)).time
    alone = [operator_times([one], machine, known, ()).time[0] for one in (PRODUCT, longer)]
    assert both[0].tolist() == alone
    assert operator_times([PRODUCT], machine, known, (), sustained=True).time >= first


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.timing.kept.KEPT", 3)
    known = replace(load("none"))
    made: list[int] = []
    for key in (1, 2, 3, 1, 4, 1):
        known.once((key,), lambda key=key: made.append(key))
    assert made == [1, 2, 3, 4, 1], "known ones are not made again until all are dropped"
