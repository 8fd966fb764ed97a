"""The wheel, built and installed elsewhere, finds its data and predicts without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pytest.importorskip("hatchling")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_holds_code_and_data_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"reckon", "predictor", "profiler", "calibration"}
    assert "predictor/_data/models.csv" in names
    assert "predictor/_data/calibrations/default/calibration.json" in names
    assert "predictor/_data/defaults/frameworks.yaml" in names
    for brought in ("serve/static/index.html", "serve/static/app.js", "views/static/report.js",
                    "vendored/plotly-basic.min.js", "vendored/plotly-LICENSE"):  # fmt: skip
        assert f"reckon/{brought}" in names


def test_it_predicts_elsewhere_without_torch(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import sys; sys.modules['torch'] = None; import predictor; "
        "assert predictor.__file__.startswith(sys.argv[1]), predictor.__file__; "
        "from reckon.console.cli import main; "
        "sys.exit(main(['predict', 'train', '--model', 'llama3-8b', '--system', 'dgx-h100', "
        "'--gpus', '8', '--global-batch', '8', '--seq-len', '4096']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step time" in done.stdout


def test_profiling_without_torch_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from reckon.console.cli import main; "
        f"sys.exit(main(['profile', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'reckon[profile]'" in done.stderr
