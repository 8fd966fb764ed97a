"""Jobs of known micro-batches: two traced ones, and pipelines by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.errors import InputError
from predictor.plans import timeline
from predictor.variation.jobs import Job, makespans

# Replicas, micro-batches, and what comes after the pipelines [s]: the mean of measured step less
# replayed pipeline, as those who traced the jobs account for it.
TRACED = {"SE": (32, 8, 0.216), "ST": (2, 4, 0.206)}


def traced(shared: Path, name: str) -> tuple[Job, np.ndarray]:
    folder = shared / "reference" / "variation"
    passes = pd.read_csv(folder / f"straggler_{name}_microbatches.csv.gz")
    steps = pd.read_csv(folder / f"straggler_{name}_steps.csv")["step_s"].to_numpy()
    index = ["step", "dp_rank", "mb_id"]
    forward, backward = (
        passes.pivot_table(index=index, columns="stage", values=f"{way}_s").to_numpy()
        for way in ("forward", "backward")
    )
    replicas, batches, tail = TRACED[name]
    return Job.of(forward, backward, batches, replicas, tail), steps


def test_a_job_of_uneven_lengths_is_its_traces(shared: Path) -> None:
    """From the pooled micro-batches alone, which know nothing of steps or ranks."""
    job, steps = traced(shared, "SE")
    mean, spread = job.step()
    assert mean == pytest.approx(steps.mean(), rel=0.04)
    assert spread == pytest.approx(steps.std(ddof=1), rel=0.25)
    assert float(job.quantile(0.95)) == pytest.approx(np.quantile(steps, 0.95), rel=0.04)


def test_a_job_with_a_slow_last_stage_is_its_traces(shared: Path) -> None:
    job, steps = traced(shared, "ST")
    assert job.step()[0] == pytest.approx(steps.mean(), rel=0.02)


def test_equal_micro_batches_take_what_the_timeline_says() -> None:
    forward, backward = np.array([1.0, 1.0, 1.5, 2.0]), np.array([2.0, 2.5, 2.0, 3.0])
    times = makespans(*(np.tile(v, (3, 8, 1)) for v in (forward, backward)))
    events = timeline("1f1b", list(forward), list(backward), [0.0] * 4, 8)
    assert times == pytest.approx(events[-1].end)


def test_one_stage_adds_up_and_its_sum_is_less_skewed() -> None:
    """Eight exponentials of one second: mean 8, spread sqrt 8, skewness 2 / sqrt 8."""
    lots = np.random.default_rng(0).standard_exponential((20000, 1))
    job = Job.of(lots, 0.0 * lots, 8, 1)
    assert (job.mean, job.spread) == pytest.approx((8.0, np.sqrt(8.0)), rel=0.05)
    assert job.skew == pytest.approx(2.0 / np.sqrt(8.0), rel=0.25)


def test_passes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="forward and a backward"):
        Job.of(np.ones((4, 2)), np.ones((4, 3)), 8, 1)
