"""Host time of operators, and data as cold as a pass finds it. No test looks at how long anything
took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from predictor.schema import KERNEL_COLUMNS  # noqa: E402
from predictor.work.primitives import Operator  # noqa: E402
from profiler import dispatch, output, ranks, step, suite  # noqa: E402
from profiler.cases import Case  # noqa: E402
from profiler.device import Device, find  # noqa: E402
from profiler.operators import BEYOND, Arena, build, builds  # noqa: E402
from profiler.timing import LEAST_SAMPLES, Sample, calmest, measure, waited_share  # noqa: E402
from tests.predictor.products import matmul  # noqa: E402
from tests.profiler.short import nothing  # noqa: E402


def test_host_time_is_what_operators_leave_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten kernels of 2 us in passes of 100 us: 8 us each beside the kernels."""
    operator = Operator(
        name="add", op="elementwise", variant="add", phase="forward", module="layer", dtype="fp32",
        m=4.0, n=4.0,
    )  # fmt: skip
    whole = dispatch.Whole(lambda: [Sample(100e-6, 0.0)] * 3, [(operator, 4.0), (operator, 6.0)], 1)
    fixed = suite.Measured(2e-6, 2e-6, 2e-6, 5)
    monkeypatch.setattr(dispatch, "measure", lambda *arguments: fixed)
    found = dispatch.host_time(whole, find("cpu", 1))
    assert found.median == pytest.approx(8e-6)
    # A pass that took less than its kernels shows no host time, not a negative one.
    short = replace(whole, call=lambda: [Sample(1e-6, 0.0)])
    assert 0 < dispatch.host_time(short, find("cpu", 1)).median < 1e-7


def test_host_times_are_rows_that_the_device_file_takes() -> None:
    device = find("cpu", 1)
    rows = list(dispatch.host_times(device, suite.Allowance(0.0)))
    assert [row["kernel"] for row in rows] == ["serving.gpt"], "one in any case, no more"
    split = {**rows[0], "kernel": f"{output.SPLIT}.llama", "latency_us": 80.0}
    other = {**rows[0], "kernel": "training.gpt", "latency_us": rows[0]["latency_us"] + 2.0}
    fast = suite.row(
        Case(matmul("fp32", 64.0, 64.0, 64.0), 1, 64.0),
        suite.Measured(1e-5, 1e-5, 1e-5, 5),
        device,
        "warm",
    )
    table = pd.DataFrame([*rows, split, other, fast]).reindex(columns=list(KERNEL_COLUMNS))
    made = output.accelerator_mapping(table, device)
    assert made["dispatch_us"] == pytest.approx(rows[0]["latency_us"] + 1.0, abs=1e-2)
    assert made["split_dispatch_us"] == 80.0


def test_small_models_are_not_among_the_checks() -> None:
    checked = {check.model.hidden for check in step.checks(find("cpu"))}
    assert {dispatch.small_model(style).hidden for style in ("gpt", "llama")}.isdisjoint(checked)


def test_calls_of_small_products_read_more_weights_than_the_cache_holds() -> None:
    cache = 2.0**20
    operator = matmul("fp32", 1.0, 64.0, 512.0)
    calls, cold = builds(operator, "cpu", 1, cache)
    weights = 64 * 512 * 4
    assert cold
    assert len(calls) == int(BEYOND * cache / weights)
    results = [call() for call in calls]
    assert len({float(one.sum()) for one in results}) > 1, "not all of the same weights"
    few, still = builds(operator, "cpu", 1, cache, most=4)
    assert (len(few), still) == (4, False)


def test_an_arena_goes_round() -> None:
    arena = Arena(torch.arange(8192))
    starts = [int(arena.take(2000)[0]) for _ in range(5)]
    assert starts == [0, 2048, 4096, 6144, 0]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_gated_activation_is_timed_on_both_sides_of_one_product(dtype: str) -> None:
    operator = Operator(
        name="x", op="elementwise", variant="swiglu", phase="forward", module="layer", dtype=dtype,
        m=6.0, n=10.0,
    )  # fmt: skip
    assert tuple(build(operator, "cpu", 1)().shape) == (6, 10)  # type: ignore[attr-defined]
    backward = build(replace(operator, variant="swiglu_bwd"), "cpu", 1)()
    assert tuple(backward[0].shape) == (6, 20)  # type: ignore[index]


def test_samples_that_waited_for_a_processor_do_not_count() -> None:
    calm, rough = Sample(1.0, 0.0), Sample(9.0, 8.0)
    assert calmest([rough, calm, rough, calm], 2) == [calm, calm]
    assert waited_share([calm, calm]) == 0.0
    # Too few calm ones: the calmest, and how much they waited is said.
    better = Sample(2.0, 1.0)
    assert calmest([rough, calm, better], 2) == [calm, better]
    assert waited_share([calm, better]) == pytest.approx(1 / 3)


def test_a_timing_waits_for_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others compute at first, more samples are taken until enough are calm."""
    readings = iter(np.concatenate([np.arange(0.0, 40.0, 1.0), np.full(10_000, 40.0)]))
    monkeypatch.setattr(Device, "waited", lambda self: float(next(readings)))
    found = measure([lambda: sum(range(50))], find("cpu", 1), 0.05)
    assert found.waited == 0.0
    assert found.samples >= LEAST_SAMPLES


def test_ranks_that_end_without_a_result_are_an_error() -> None:
    with pytest.raises(ChildProcessError, match="without a result"):
        ranks.spawn(nothing, 1)
