"""Shared fixtures: the measurement sets beside the checkout, small plans, a command-line runner."""

from __future__ import annotations

import gc
import os

# Several run at once, and their matrices are small: threads would but wait for each other. Asked
# before numpy is imported, which looks at it then; what tests start takes it over.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware.systems import Cluster
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import Calibration

settings.register_profile("reckon", deadline=None)  # no test asserts a time
settings.load_profile("reckon")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("the shared measurement sets are not beside this checkout")
    return path


@pytest.fixture(scope="session")
def kernels_only() -> Calibration:
    return load("kernels-only")


@pytest.fixture(scope="session")
def dgx_a100() -> Cluster:
    return catalog.system("dgx-a100")


@pytest.fixture(scope="session")
def gpt3() -> Model:
    return catalog.model("gpt3-175b")


@pytest.fixture(scope="session")
def llama() -> Model:
    return catalog.model("llama3-70b")


@pytest.fixture
def plan() -> Callable[..., TrainingPlan]:
    """A plan of 64 GPUs; keywords change it."""

    def make(**changes: object) -> TrainingPlan:
        fields: dict[str, object] = {
            "tp": 8.0,
            "pp": 8.0,
            "dp": 1.0,
            "micro_batch": 1.0,
            "global_batch": 64.0,
            "seq_len": 2048.0,
        }
        return TrainingPlan(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (exit status, stdout, stderr)."""
    from reckon.console.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def pytest_configure() -> None:
    """Thousands of small objects come and go in a test: cycles among them are looked for less
    often."""
    gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish() -> None:
    """What was imported and collected stays, and is not looked through again."""
    gc.collect()
    gc.freeze()
