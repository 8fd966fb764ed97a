"""Records steps with PyTorch's profiler; `calibration.sources.kineto` reads such traces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from predictor.files import write_whole
from profiler.device import Device

WARM_UP_STEPS, STEPS = 2, 3
RECORDED = WARM_UP_STEPS + STEPS
"""Steps that a recording runs, of which the trace holds the last `STEPS`."""


def record(step: Callable[[], object], device: Device, path: Path) -> None:
    """Write a trace of some steps after a warm-up, with the shapes of all operators.

    path   .json or .json.gz

    Raises InputError where it cannot be written.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    activities = [ProfilerActivity.CPU]
    if device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def finished(found: profile) -> None:
        write_whole(path, lambda place: found.export_chrome_trace(str(place)))

    with profile(
        activities=activities,
        record_shapes=True,
        schedule=schedule(wait=0, warmup=WARM_UP_STEPS, active=STEPS, repeat=1),
        on_trace_ready=finished,
    ) as running:
        for _ in range(RECORDED):
            step()
            device.synchronize()
            running.step()
