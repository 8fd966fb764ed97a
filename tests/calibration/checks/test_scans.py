"""What is not known of kernels that are timed by others in their stead."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from calibration.checks.scans import MODELS, kind_of_scan, timed
from calibration.checks.stand_ins import between_architectures, ratios
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.timing import STAND_IN
from predictor.timing.kernels import Listed, times_together
from predictor.work.primitives import streaming

MACHINES = ("A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB")


def of_two_libraries(slower: tuple[float, ...], shapes: int = 40) -> pd.DataFrame:
    """Products that one library takes so many times as long for as another, by machine."""
    rows = [
        {
            "accelerator": machine, "op": "gemm", "dtype": "bf16", "m": 2048.0 + 64.0 * i,
            "n": 8192.0, "k": 8192.0, "framework": library,
            "latency_us": (1000.0 + i) * (times if library == "vllm" else 1.0),
        }
        for machine, times in zip(MACHINES, slower, strict=True)
        for library in ("vllm", "trtllm")
        for i in range(shapes)
    ]  # fmt: skip
    return check_kernels(pd.DataFrame(rows), "rows")


def test_ratios_of_kernels_differ_by_architecture_as_they_were_made_to() -> None:
    (found,) = ratios(of_two_libraries((1.0, 1.2, 1.44)))
    assert np.allclose(np.sort(np.abs(found)), np.log([1.0, 1.2, 1.44]))
    assert between_architectures(of_two_libraries((1.3, 1.3, 1.3)), 0.8) == pytest.approx(0.0)
    apart = between_architectures(of_two_libraries((1.0, 1.2, 1.44)), 0.5)
    assert apart == pytest.approx(math.log(1.2))
    few = of_two_libraries((1.0, 1.2, 1.44), shapes=20)
    assert not ratios(few)  # of fewer shapes nothing is said
    assert between_architectures(few, 0.8) == 0.0


def test_scans_of_every_kind_are_counted() -> None:
    assert {kind_of_scan(op) for op in timed()["op"]} == set(MODELS)


def test_what_takes_longer_than_its_stand_in_is_known_less_well() -> None:
    """On Hopper, where they were compared, better than elsewhere; of a batch only those plans that
    take longer."""
    calibration = load("kernels-only")
    rows = np.array([2048.0, 4096.0, 8192.0])
    plain = streaming(
        name="x", op="elementwise", variant="copy", phase="forward", module="layer", dtype="bf16",
        rows=rows, columns=4096.0, bytes_per_element=4.0,
    )  # fmt: skip
    longer = replace(plain, stretch=np.array([1.0, 1.5, 2.0]))
    more = {}
    for name in MACHINES:
        machine = catalog.accelerator(name)
        lists = [Listed([one], (3,), host=0.0) for one in (plain, longer)]
        base, found = times_together(lists, machine, calibration)
        assert np.allclose(found.time[0], base.time[0] * [1.0, 1.5, 2.0])
        added = np.sqrt(found.sigma[0] ** 2 - base.sigma[0] ** 2)
        assert added[0] == 0.0
        assert added[1] == pytest.approx(added[2])
        more[name] = added[1]
    near = calibration.transfer_sigma[f"{STAND_IN}/architecture"]
    assert more["H100-SXM5-80GB"] == pytest.approx(near)
    assert more["A100-SXM4-80GB"] == more["B200-SXM-180GB"] > near > 0.1
